"""One rank of a data-parallel training of 6 steps, started as its own process with RANK, LOCAL_RANK, WORLD_SIZE set.

Usage: ddp.py OUTPUT TARGET. Rank 0 leaves weights, metrics and the number of steps in OUTPUT; TARGET is the accuracy at
which rank 0's clock ends training, or `none`.
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
    """96 float64 images of 4 x 4 in 3 classes: this rank's training batches of 24 over all ranks, and the evaluation."""
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
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return pl.Trainer(accelerator="cpu", max_steps=6, num_sanity_val_steps=0, **{**quiet, **options})


def main(output: Path, target: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    batches, evaluation = data(rank, world)
    goal = None if target == "none" else {"metric": "validation_accuracy", "value": float(target), "higher": True}
    writer = RunWriter(Header("test", {}, target=goal), output.with_suffix(".jsonl")) if rank == 0 else None
    module = task()
    boss = trainer(
        strategy="ddp",
        devices=world,
        val_check_interval=2,
        callbacks=[TimeToAccuracy(writer, 24, stop_at_target=goal is not None)],
    )
    boss.fit(module, batches, evaluation)
    if rank == 0:
        writer.finish()
        metrics = {name: float(value) for name, value in boss.callback_metrics.items()}
        torch.save({"weights": module.state_dict(), "metrics": metrics, "steps": boss.global_step}, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
