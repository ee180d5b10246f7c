"""What each rank of lab 04 does: for `run_ranks(synchronous_ranks.several, 4, {...})`.

Every rank makes the same small network and the same batches from seeds, trains its own part of every batch together
with the others, and one copy alone on the whole batches. All in float64. Reported are largest differences between
parameters at the end, relative to the largest parameter.

`counts` says how many samples of a batch each rank has; rank r's are those after the first sum(counts[:r])."""

import logging
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from labkit.training.collectives import ProcessComm, all_reduce_ring
from labs.synchronous_nets import CLASSES, GhostNorm, SynchronisedNorm, network, samples

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}


def share(tensor: Tensor, counts: Sequence[int], rank: int) -> Tensor:
    """Rank `rank`'s samples of a batch."""
    return tensor.split(list(counts))[rank]


def trained(model: nn.Module, steps: int, batch: int, part: Callable, loss: Callable, reduce=None) -> list[Tensor]:
    """Parameters after `steps` updates by momentum SGD; `loss(scores, y)` of `part(tensor)`, `reduce` before a step."""
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    for step in range(steps):
        x, y = samples(batch, seed=1 + step)
        optimizer.zero_grad()
        loss(model(part(x)), part(y)).backward()
        if reduce is not None:
            reduce(list(model.parameters()))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def alone(steps: int, batch: int, norm=None) -> list[Tensor]:
    """One process, whole batches."""
    return trained(network(norm), steps, batch, lambda tensor: tensor, F.cross_entropy)


def apart(mine: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    largest = max(tensor.abs().max() for tensor in right)
    return float(max((a - b).abs().max() for a, b in zip(mine, right, strict=True)) / largest)


def by_ring(parameters: Sequence[nn.Parameter]) -> None:
    """The mean over ranks of all gradients, as one array around our own ring."""
    comm = ProcessComm()
    flat = all_reduce_ring(torch.cat([parameter.grad.flatten() for parameter in parameters]), comm) / comm.size
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def together(steps: int, counts: Sequence[int], norm=None, loss=F.cross_entropy, way: str = "ddp") -> list[Tensor]:
    """This rank's parameters after training by torch's DistributedDataParallel (`ddp`) or over our `ring`."""
    rank, model = distributed.get_rank(), network(norm)
    wrapped, reduce = (DistributedDataParallel(model), None) if way == "ddp" else (model, by_ring)
    return trained(wrapped, steps, sum(counts), lambda tensor: share(tensor, counts, rank), loss, reduce)


def even(batch: int) -> list[int]:
    return [batch // distributed.get_world_size()] * distributed.get_world_size()


def equal(way: str, steps: int, batch: int) -> dict:
    """`error` between training in this `way` on all ranks and one process; how far the latter `moved`."""
    right, start = alone(steps, batch), [parameter.detach() for parameter in network().parameters()]
    mine = by_lightning(steps, batch) if way == "lightning" else together(steps, even(batch), way=way)
    return {"error": apart(mine, right), "moved": apart(start, right)}


def by_lightning(steps: int, batch: int) -> list[Tensor]:
    """A Lightning module that knows nothing of ranks but its share; its Trainer has DDP on the ranks that are there."""
    import pytorch_lightning as pl

    from parallel.strategies import Ranks

    class Task(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, pair, index):
            x, y = (share(tensor, even(batch), self.global_rank) for tensor in pair)
            return F.cross_entropy(self.model(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), **SGD)

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning\..*")
    task, batches = Task(), [samples(batch, seed=1 + step) for step in range(steps)]
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing", "use_distributed_sampler")
    trainer = pl.Trainer(accelerator="cpu", strategy=Ranks(), devices=1, max_steps=steps, **dict.fromkeys(quiet, False))
    trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))
    return [parameter.detach().clone() for parameter in task.model.parameters()]


def normalised(statistics: str, steps: int, batch: int) -> dict:
    """`whole error` from one process with the batch's statistics, `ghost error` from one with ghost batches."""
    norm = {"local": nn.BatchNorm2d, "synchronised": SynchronisedNorm}[statistics]
    mine = together(steps, even(batch), norm)
    ghost = alone(steps, batch, lambda channels: GhostNorm(channels, even(batch)))
    return {"whole error": apart(mine, alone(steps, batch, nn.BatchNorm2d)), "ghost error": apart(mine, ghost)}


def weight(counts: Sequence[int], rank: int) -> float:
    """What rank's mean loss is multiplied with, so that the mean over ranks is the mean over the batch."""
    return len(counts) * counts[rank] / sum(counts)


def uneven(mean: str, steps: int, counts: Sequence[int], normalise: bool = False) -> dict:
    """Shards of `counts` samples, each rank's loss its own mean; a `plain` mean over ranks, or a `weighted` one. With
    `normalise` both have batch normalisation, the ranks a synchronised one."""
    factor = 1.0 if mean == "plain" else weight(counts, distributed.get_rank())
    norms = (SynchronisedNorm, nn.BatchNorm2d) if normalise else (None, None)
    mine = together(steps, counts, norms[0], lambda scores, y: factor * F.cross_entropy(scores, y))
    return {"error": apart(mine, alone(steps, sum(counts), norms[1]))}


def gradient_factor(loss: str, batch: int) -> dict:
    """By how much a wrongly normalised loss makes the first gradient too long (least squares), and what is left."""
    mine, right = network(), network()
    model, rank = DistributedDataParallel(mine), distributed.get_rank()
    x, y = samples(batch)
    scores, kinds = model(share(x, even(batch), rank)), share(y, even(batch), rank)
    {"sum": lambda: F.cross_entropy(scores, kinds, reduction="sum"),
     "divided by the whole batch": lambda: F.cross_entropy(scores, kinds, reduction="sum") / batch,
     "mean": lambda: F.cross_entropy(scores, kinds)}[loss]().backward()  # fmt: skip
    F.cross_entropy(right(x), y).backward()
    ours, one = (torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (mine, right))
    factor = ours @ one / (one @ one)
    return {"factor": float(factor), "rest": float((ours - factor * one).norm() / one.norm())}


def joined(batches: Sequence[int]) -> dict:
    """Ranks with different numbers of `batches`, kept from waiting for ever by torch's Join: updates made here, and
    what the last gradient of the longest rank was divided by, as Join does by default and with the other choice."""
    found, rank = {}, distributed.get_rank()
    for name, initial in (("default", True), ("divide_by_initial_world_size=False", False)):
        inner = network()
        model, made = DistributedDataParallel(inner), 0
        with Join([model], divide_by_initial_world_size=initial):
            for step in range(batches[rank]):
                x, y = samples(2, seed=step)
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()
                made += 1
        one = network()
        F.cross_entropy(one(x), y).backward()
        ours, right = (m[-1].bias.grad for m in (inner, one))
        found |= {"updates": made, name: float(right.norm() / ours.norm())}
    return found


def dropout(draws: int, same: bool) -> dict:
    """Variance over `draws` of the mean over ranks of a gradient that only dropout makes random, one batch for all;
    with the `same` seed on all ranks their masks are copies of each other."""
    generator = torch.Generator().manual_seed(0 if same else distributed.get_rank())
    x, y = samples(16)
    flat, weights = x.flatten(1), torch.zeros(x[0].numel(), CLASSES, dtype=torch.float64)
    found = torch.empty(draws, weights.numel(), dtype=torch.float64)
    error = weights.new_full((len(x), CLASSES), 1 / CLASSES) - F.one_hot(y, CLASSES)  # of the scores, at weights 0
    for draw in range(draws):
        kept = 2.0 * (torch.rand(flat.shape, generator=generator, dtype=torch.float64) < 0.5)
        found[draw] = ((flat * kept).T @ error / len(x)).flatten()
    distributed.all_reduce(found)
    return {"variance": float((found / distributed.get_world_size()).var(0).sum())}


def several(jobs: dict[str, tuple]) -> dict[str, dict]:
    """More functions of this module in one launch: name -> (function by name, *arguments)."""
    results = {}
    for name, (function, *arguments) in jobs.items():
        results[name] = globals()[function](*arguments)
        distributed.barrier()
    return results
