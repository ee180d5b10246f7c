"""The Lightning module of the image labs: model + loss + metrics + optimizer + schedule.

It needs nothing of labkit around it: `Trainer(max_steps=...).fit(task, train_batches, [validation_batches,
test_batches])` works, with mixed precision, gradient accumulation, checkpoint and
resume, and DDP. The schedule counts *optimizer steps*, so accumulating gradients does not shorten a warm-up."""

from collections.abc import Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.errors import RequestError
from labkit.optim import build
from labkit.optim.schedules import Schedule, to_torch


class ImageClassification(pl.LightningModule):
    """Cross-entropy classification of images [n, channels, height, width] into integer classes [n].

    Args:
        model: maps images to logits [n, classes].
        optimizer: a name that `labkit.optim.build` knows, or a function from the module to a `torch.optim.Optimizer`.
        schedule: rate for each optimizer step; None keeps the optimizer's own rate.
        evaluations: the names of the validation loaders, in order; metrics are `<name>_accuracy` and `<name>_loss`.
        label_smoothing: of the training loss only.
        optimizer_options: passed on to `labkit.optim.build` (momentum, weight_decay, ...).

    When not to use it: a loss that is not a mean over samples; write a task of its own."""

    def __init__(self, model: nn.Module, optimizer="sgd", schedule: Schedule | None = None,
                 evaluations: Sequence[str] = ("validation",), label_smoothing: float = 0.0,
                 optimizer_options: dict | None = None):
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise RequestError(f"label_smoothing {label_smoothing} is out of range; it must lie in [0, 1)")
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.evaluations, self.label_smoothing = tuple(evaluations), label_smoothing
        self.optimizer_options = dict(optimizer_options or {})
        self._totals: dict[str, Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def on_train_epoch_start(self) -> None:
        # A resumed run goes on with the order of its epoch, counted in steps: Lightning's own count of epochs may have
        # gone one too far when a checkpoint was saved at the end of one.
        trainer = self.trainer
        if hasattr(trainer.train_dataloader, "set_epoch"):
            done = trainer.global_step * trainer.accumulate_grad_batches
            trainer.train_dataloader.set_epoch(done // trainer.num_training_batches)

    def training_step(self, batch, batch_index: int) -> Tensor:
        images, classes = batch
        return F.cross_entropy(self.model(images), classes, label_smoothing=self.label_smoothing)

    def on_validation_epoch_start(self) -> None:
        loaders = len(self.trainer.num_val_batches)
        if loaders != len(self.evaluations):
            raise RequestError(f"{loaders} validation loader(s) for the evaluations {', '.join(self.evaluations)}; "
                               "give one loader each")
        self._totals = {name: torch.zeros(3, device=self.device) for name in self.evaluations}

    def validation_step(self, batch, batch_index: int, dataloader_idx: int = 0) -> None:
        images, classes = batch
        logits = self.model(images).float()
        loss = F.cross_entropy(logits, classes, reduction="sum")
        correct = (logits.argmax(1) == classes).sum()
        # Accumulated on the device: reading a number here would make the host wait for every batch.
        self._totals[self.evaluations[dataloader_idx]] += torch.stack(
            [loss, correct, torch.full_like(loss, len(classes))]
        )

    def on_validation_epoch_end(self) -> None:
        for name, totals in self._totals.items():
            loss, correct, count = (self.trainer.strategy.reduce(totals, reduce_op="sum") if self.trainer.world_size > 1
                                    else totals)
            self.log_dict({f"{name}_loss": loss / count, f"{name}_accuracy": correct / count})

    def configure_optimizers(self):
        if callable(self.optimizer):
            optimizer = self.optimizer(self)
        else:
            rate = self.schedule.peak if self.schedule is not None else None
            optimizer = build.build(self.optimizer, self.model, rate=rate, **self.optimizer_options)
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": to_torch(optimizer, self.schedule), "interval": "step"}}
