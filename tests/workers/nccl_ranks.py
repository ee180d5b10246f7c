"""One rank under torchrun, on a GPU of its own: every strategy and hook trains the kit's task, is saved and resumed.

Usage: nccl_ranks.py FOLDER DEVICES [cpu]. Each rank leaves FOLDER/rank.<rank>, {way: (weights of 4 steps, weights of 2
and, resumed, 2 more, backend, device)}; `cpu` does the same with gloo, to try the script where there is no GPU."""

import sys
from pathlib import Path

import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import distributed

import strategy_ranks
from labkit.datasets.memory import DeviceBatches
from labkit.training.wrapper import flatten, world
from parallel import strategies
from parallel.resumable import Resumable

WAYS = {"local": (strategies.LocalSGDStrategy, {"period": 2}),
        "post-local": (strategies.LocalSGDStrategy, {"begin": 9}),
        "elastic": (strategies.ElasticStrategy, {"period": 2}), "gossip": (strategies.GossipStrategy, {}),
        **{hook: (strategies.HookedDDPStrategy, {"hook": hook, **options}) for hook, options in {
            "none": {}, "fp16": {}, "onebit": {}, "qsgd": {}, "terngrad": {}, "topk": {"density": 0.1},
            "dgc": {"density": 0.1, "stage": 2}, "powersgd": {}}.items()}}


def fit(way, devices, accelerator, steps, folder=None, resume=None):
    """(flat weights on the CPU, the Trainer) of this rank."""
    make, options = WAYS[way]
    callbacks = [ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=2)] if folder else []
    made = strategy_ranks.trainer(make(**options), steps, callbacks, accelerator=accelerator, devices=devices)
    module, (x, y) = strategy_ranks.task(), strategy_ranks.data()
    rank = {"rank": made.global_rank, "world": made.world_size}
    batches = DeviceBatches(x, y, strategy_ranks.BATCH, device=made.strategy.root_device, **rank)
    made.fit(module, Resumable(batches), ckpt_path=resume)
    return flatten(module.parameters()).cpu(), made


def main(folder, devices, accelerator="gpu"):
    found = {}
    for way in WAYS:
        at = str(Path(folder) / way)
        whole, made = fit(way, devices, accelerator, 4, at)
        resumed, _ = fit(way, devices, accelerator, 4, resume=f"{at}/step=2.ckpt")
        backend = distributed.get_backend() if distributed.is_initialized() else None
        found[way] = whole, resumed, backend, made.strategy.root_device.type
    torch.save(found, Path(folder) / f"rank.{world()[0]}")
    if distributed.is_initialized():
        distributed.barrier()  # a rank whose peer ends first could abort in gloo's threads
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
