"""One rank of two data-parallel trainings, started as its own process with RANK, LOCAL_RANK and WORLD_SIZE set.

Usage: ddp.py OUTPUT. Rank 0 leaves there, for a training of 6 steps (`whole`) and for one that the clock of rank 0 ends
at its first evaluation (`stopped`), the weights, the metrics and the number of steps.
"""

import os
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from labkit.datasets.memory import DeviceBatches
from labkit.optim.schedules import Schedule
from labkit.runs import Header, RunWriter
from labkit.tasks import ImageClassification
from labkit.tta.callback import TimeToAccuracy


def data(rank: int = 0, world: int = 1):
    """96 float64 images of 4 x 4 in 3 classes: training batches of 24 over all ranks, evaluation."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(96) % 3
    x = torch.randn(96, 1, 4, 4, generator=generator, dtype=torch.float64) + y.view(-1, 1, 1, 1)
    batches = DeviceBatches(x, y, 24, seed=3, augment=("flip", "crop"), dtype=torch.float64, rank=rank, world=world)
    return batches, DataLoader(TensorDataset(x, y), 32)


def task() -> ImageClassification:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    ).double()
    return ImageClassification(
        model,
        "sgd",
        Schedule(peak=0.1, total_steps=6, warmup_steps=3),
        optimizer_options={"momentum": 0.9, "weight_decay": 0.01},
    )


def trainer(**options) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return pl.Trainer(accelerator="cpu", max_steps=6, num_sanity_val_steps=0, **{**quiet, **options})


def train(rank: int, world: int, target: dict | None, record: Path) -> dict:
    """One training through the clock; only rank 0 has a run to write."""
    batches, evaluation = data(rank, world)
    writer = RunWriter(Header("test", {}, target=target), record) if rank == 0 else None
    module = task()
    clock = TimeToAccuracy(writer, 24, stop_at_target=target is not None)
    boss = trainer(strategy="ddp", devices=world, val_check_interval=2, callbacks=[clock])
    boss.fit(module, batches, evaluation)
    if rank == 0:
        writer.finish()
    metrics = {name: float(value) for name, value in boss.callback_metrics.items()}
    return {"weights": module.state_dict(), "metrics": metrics, "steps": boss.global_step}


def main(output: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    target = {"metric": "validation_accuracy", "value": 0.0, "higher": True}
    ends = {
        "whole": train(rank, world, None, output.with_name("whole.jsonl")),
        "stopped": train(rank, world, target, output.with_name("stopped.jsonl")),
    }
    if rank == 0:
        torch.save(ends, output)
    # Lightning leaves the group open: a rank whose peer ends first would abort in gloo's threads while Python ends.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
