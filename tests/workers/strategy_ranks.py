"""What the tests of the strategies run on ranks: the kit's image task in a Trainer, in Fabric and in a bare loop."""

import logging
import os
import signal
import time
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from lightning_fabric import Fabric
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import distributed as dist
from torch import nn

from labkit import models
from labkit.datasets.memory import DeviceBatches, evaluation_batches
from labkit.tasks.images import ImageClassification
from labkit.training import averaging, gossip, ranks
from labkit.training.compression import State
from parallel import strategies
from parallel.joined import even_steps
from parallel.resumable import Resumable
from labkit.training.wrapper import flatten
from mixing_ranks import METHODS

SAMPLES, BATCH, SHAPE = 64, 16, (1, 4, 4)
STRATEGIES = {"local": strategies.LocalSGDStrategy, "elastic": strategies.ElasticStrategy,
              "gossip": strategies.GossipStrategy, "ddp": strategies.HookedDDPStrategy}


def data(dtype=torch.float32):
    x = torch.randn(SAMPLES, *SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return x.to(dtype), x.flatten(1)[:, :4].argmax(1)


def batches(dtype=torch.float32, batch=BATCH, **options):
    return DeviceBatches(*data(dtype), batch, seed=3, dtype=dtype, **options)


def sgd(module):
    return torch.optim.SGD(module.parameters(), 0.2, momentum=0.9)


def task(optimizer=sgd, cls=ImageClassification):
    torch.manual_seed(0)
    return cls(models.build("deep-mlp", SHAPE, 4, width=8, depth=2), optimizer)


class Watch(Callback):
    """Who is rank zero, and what happens to a rank in the middle."""

    def __init__(self, who=None, at=None, what=None):
        self.who, self.at, self.what = who, at, what

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.global_rank, trainer.global_step) == (self.who, self.at):
            if self.what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "hangs":
                time.sleep(1000)
            if self.what == "nan":
                with torch.no_grad():
                    next(module.parameters()).fill_(float("nan"))


def trainer(strategy, steps, callbacks=(), **options):
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning\..*")
    checkpoints = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return pl.Trainer(**{"max_steps": steps, "max_epochs": -1, "strategy": strategy, "accelerator": "cpu", "devices": 1,
                         "logger": False, "enable_checkpointing": checkpoints, "enable_progress_bar": False,
                         "enable_model_summary": False, "num_sanity_val_steps": 0, "callbacks": list(callbacks),
                         **options})


def _strategy(name, options):
    return STRATEGIES[name](**options) if name in STRATEGIES else name


def fit(name, options, steps=7, dtype=torch.float32, batch=BATCH, watch=(), folder=None, resume=None, every=0,
        **changes):
    """The kit's task by a strategy. Returns a dict of what this rank has in the end.

    Args:
        every: steps between checkpoints, with batches whose place in an epoch they hold; 0: at the end of epochs."""
    callbacks = [Watch(*watch)]
    if folder:
        when = {"every_n_train_steps": every} if every else {"save_on_train_epoch_end": True}
        callbacks.append(ModelCheckpoint(folder, "{step}", save_top_k=-1, **when))
    made = trainer(_strategy(name, options), steps, callbacks, **changes)
    module = task()
    mine = batches(dtype, batch, rank=made.global_rank, world=made.world_size)  # torchrun has no group yet
    mine = Resumable(mine) if every else mine
    made.fit(module, mine, evaluation_batches(*data(dtype), dtype=dtype), ckpt_path=resume)
    return {"weights": flatten(module.parameters()), "metrics": {k: float(v) for k, v in made.callback_metrics.items()},
            "counted": _counted(made),
            "zero": made.is_global_zero, "rank": made.global_rank, "world": made.world_size, "step": made.global_step,
            "files": sorted(path.name for path in Path(folder).glob("*")) if folder else []}


def _counted(made):
    """What the method of a Trainer has counted."""
    state, method = getattr(made.strategy, "hook_state", None), made.strategy.optimizers[0]
    if isinstance(state, State):
        return {"step": state.step, "payload": state.payload, "sent": state.sent}
    return {"messages": method.messages, "words": method.words} if isinstance(method, gossip.Gossip) else {}


def uneven(name, counts, agreed):
    """A fit on another number of batches on every rank, all of them or as many as the least; how many steps it took."""
    mine = [batch for _ in range(2) for batch in batches()][: counts[dist.get_rank()]]
    options = {"limit_train_batches": even_steps(len(mine))} if agreed else {}
    made = trainer(_strategy(name, {}), -1, max_epochs=1, use_distributed_sampler=False, **options)
    made.fit(task(), torch.utils.data.DataLoader(mine, batch_size=None))
    return made.global_step


def several(calls):
    """Functions of this module, by name, for each of some (arguments, options): in one launch of the ranks."""
    return {name: [globals()[name](*args, **options) for args, options in each] for name, each in calls.items()}


def fits(calls):
    return several({"fit": calls})["fit"]


def validated(name, options):
    """Weights before and after `Trainer.validate`, after a fit."""
    made, module = trainer(_strategy(name, options), 3), task()
    made.fit(module, batches())
    before = flatten(module.parameters())
    made.validate(module, evaluation_batches(*data()), verbose=False)
    return before, flatten(module.parameters())


def bare(method, options, steps=7, clip=0.0, accumulate=1):
    """The same training in a plain loop over the ranks' own batches."""
    module = task()
    wrapped = METHODS[method](sgd(module), **options)
    return _loop(module, wrapped, wrapped.step, lambda loss: loss.backward(), steps, clip, accumulate)


def fabric(method, options, steps=7, clip=0.0, accumulate=1):
    """The same in Fabric."""
    made, module = Fabric(accelerator="cpu", devices=1), task()
    model, wrapped = made.setup(module.model, METHODS[method](sgd(module), **options))
    module.model = model
    return _loop(module, wrapped, wrapped.step, made.backward, steps, clip, accumulate)


def _loop(module, wrapped, step, backward, steps, clip, accumulate):
    reader, done, micro = batches(), 0, 0
    while done < steps:
        for batch in reader:
            backward(nn.functional.cross_entropy(module.model(batch[0]), batch[1]) / accumulate)
            micro += 1
            if micro % accumulate:
                continue
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            step()
            wrapped.zero_grad()
            done += 1
            if done == steps:
                break
    return flatten(module.parameters())


def loops(method, options, hard):
    """Each of both loops: plain, with clipping and accumulation, and with accumulation only."""
    ways = ({}, hard, hard | {"clip": 0.0})
    return {"bare": [bare(method, options, **way) for way in ways],
            "fabric": [fabric(method, options, **way) for way in ways]}


def averages(accumulate):
    """How often the gradients are averaged in four steps of the synchronous part."""
    made = trainer(strategies.LocalSGDStrategy(begin=99), 4, accumulate_grad_batches=accumulate)
    calls, mean = [], averaging.mean
    averaging.mean = lambda tensors, what: calls.append(what) or mean(tensors, what)
    made.fit(task(), batches())
    averaging.mean = mean
    return calls


class Adversaries(pl.LightningModule):
    """Two networks with an optimizer each, trained in turn: one answers x with y, the other finds y's error."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.maker, self.judge = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
        self.register_buffer("level", torch.zeros(3))

    def training_step(self, batch, batch_index):
        x = batch[0].flatten(1)[:, :4]
        for network, optimizer in zip((self.judge, self.maker), self.optimizers(), strict=True):
            error = (self.judge(self.maker(x)) - x.flip(1)).square().mean()
            optimizer.zero_grad()
            self.manual_backward(-0.1 * error if network is self.judge else error)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.judge.parameters(), 0.1), torch.optim.SGD(self.maker.parameters(), 0.1, 0.9)]


def adversaries(options):
    """Weights after 5 batches, how often how many tensors were averaged, and how many each optimizer mixes."""
    made = trainer(strategies.LocalSGDStrategy(**options), 10, precision="64-true")
    module, calls, mean = Adversaries(), [], averaging.mean
    averaging.mean = lambda tensors, *what: calls.append(len(tensors)) or mean(tensors, *what)
    made.fit(module, batches(torch.float64))
    averaging.mean = mean
    return flatten(module.parameters()), calls, [len(optimizer.mixed) for optimizer in made.strategy.optimizers]


class Logs(ImageClassification):
    """Logs this rank's number, to be reduced."""

    def training_step(self, batch, batch_index):
        self.log("mean_rank", float(self.global_rank), sync_dist=True)
        return super().training_step(batch, batch_index)


def logged(names):
    found = []
    for name in names:
        made = trainer(name, 1)
        made.fit(task(cls=Logs), batches())
        found.append(float(made.callback_metrics["mean_rank"]))
    return found


def main():
    """As a script, under torchrun or SLURM: the file argv[1].<rank> gets what the rank ended with."""
    import sys

    target, nodes, devices = sys.argv[1:4]
    found = fit("gossip", {}, num_nodes=int(nodes), devices=int(devices))
    if dist.is_torchelastic_launched():  # then run_ranks may be used too, again and again
        for _ in range(2):
            again = ranks.run_ranks(fit, found["world"], "gossip", {})[found["rank"]]
            assert torch.equal(again["weights"], found["weights"])
    torch.save(found, f"{target}.{found['rank']}")


if __name__ == "__main__":
    main()
