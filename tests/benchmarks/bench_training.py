"""Training through Lightning with the clock attached, against a bare PyTorch loop that does the same work.

Both read the same `DeviceBatches`, step the same optimizer and schedule, and evaluate the same set once at the end. The
time is that of training, from the first step to the end of the evaluation; making a Trainer is in neither.
"""

import time
import warnings

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

from labkit import models
from labkit.datasets.memory import DeviceBatches, evaluation_batches
from labkit.optim import build
from labkit.optim.schedules import Schedule, to_torch
from labkit.runs import Header, RunWriter
from labkit.tasks import ImageClassification
from labkit.tta.callback import TimeToAccuracy


class Edges(pl.Callback):
    """Wall and processor seconds from the start of training to its end."""

    def on_train_start(self, trainer, task):
        self.start = time.perf_counter(), time.process_time()

    def on_train_end(self, trainer, task):
        self.seconds = time.perf_counter() - self.start[0], time.process_time() - self.start[1]


@pytest.mark.parametrize(
    "name, batch, steps, aim",
    [("row-lstm", 256, 12, "<= 1.05"), ("resnet8", 64, 16, "<= 1.05"), ("deep-mlp", 64, 400, "<= 1.05")],
)
def bench_lightning_against_a_bare_loop(compare, tmp_path, name, batch, steps, aim):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (batch * 16, 1, 28, 28), dtype=np.uint8)
    y = generator.integers(0, 10, len(x))
    schedule = Schedule(peak=0.01, total_steps=steps, warmup_steps=4)
    evaluation = evaluation_batches(x[:256], y[:256], mean=0.5, std=0.3)

    def parts():
        torch.manual_seed(0)
        return models.build(name), DeviceBatches(x, y, batch, mean=0.5, std=0.3)

    def through_lightning():
        model, batches = parts()
        edges = Edges()
        with RunWriter(Header("bench", {}), tmp_path / "run.jsonl") as writer, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"pytorch_lightning\..*")
            trainer = pl.Trainer(
                max_steps=steps,
                max_epochs=-1,
                accelerator="cpu",
                devices=1,
                val_check_interval=steps,
                check_val_every_n_epoch=None,
                num_sanity_val_steps=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[edges, TimeToAccuracy(writer, batch)],
            )
            task = ImageClassification(model, "sgd", schedule, optimizer_options={"momentum": 0.9})
            trainer.fit(task, batches, evaluation)
        return edges.seconds

    def bare():
        model, batches = parts()
        optimizer = build.build("sgd", model, rate=schedule.peak, momentum=0.9)
        rates, step = to_torch(optimizer, schedule), 0
        wall, processor = time.perf_counter(), time.process_time()
        model.train()
        while step < steps:
            for images, classes in batches:
                loss = F.cross_entropy(model(images), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rates.step()
                step += 1
                if step == steps:
                    break
        model.eval()
        with torch.no_grad():
            correct, total = 0, 0.0
            for images, classes in evaluation:
                logits = model(images)
                total += float(F.cross_entropy(logits, classes, reduction="sum"))
                correct += int((logits.argmax(1) == classes).sum())
        return time.perf_counter() - wall, time.process_time() - processor

    compare(f"Lightning + clock / bare loop, {name} B={batch}", aim, through_lightning, bare)
