"""What the Lightning modules of the labs share: optimizer, schedule, and sums over an evaluation.

A task needs nothing of labkit around it: `Trainer(max_steps=...).fit(task, train_batches, [validation_batches,
test_batches])` works, with mixed precision, gradient accumulation, checkpoint and resume, and DDP. The schedule counts
*optimizer steps*, so accumulating gradients does not shorten a warm-up."""

from collections.abc import Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from labkit.errors import RequestError
from labkit.optim import build
from labkit.optim.schedules import Schedule, to_torch


class Task(pl.LightningModule):
    """A model with its optimizer and schedule. Subclasses say what the loss is (`training_step`), what an evaluation
    sums over a batch (`sums`), and what is reported of the sums (`summary`).

    Args:
        model: the network.
        optimizer: a name that `labkit.optim.build` knows, or a function from the module to a `torch.optim.Optimizer`.
        schedule: rate for each optimizer step; None keeps the optimizer's own rate.
        evaluations: the names of the validation loaders, in order; metrics are `<name>_<what summary calls it>`.
        optimizer_options: passed on to `labkit.optim.build` (momentum, weight_decay, ...)."""

    def __init__(self, model: nn.Module, optimizer="sgd", schedule: Schedule | None = None,
                 evaluations: Sequence[str] = ("validation",), optimizer_options: dict | None = None):
        super().__init__()
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.evaluations, self.optimizer_options = tuple(evaluations), dict(optimizer_options or {})
        self._totals: dict[str, Tensor] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def sums(self, batch) -> Tensor:
        """What is added up over the batches of an evaluation, as one vector on the device."""
        raise TypeError(f"{type(self).__name__} has no sums: give it a method that adds up an evaluation's batches")

    def summary(self, totals: Tensor) -> dict[str, Tensor]:
        """The metrics of an evaluation, by name, from the totals of `sums`."""
        raise TypeError(f"{type(self).__name__} has no summary: give it a method that turns totals into metrics")

    def on_train_epoch_start(self) -> None:
        # A resumed run goes on with the order of its epoch, counted in steps: Lightning's own count of epochs may have
        # gone one too far when a checkpoint was saved at the end of one.
        trainer = self.trainer
        if hasattr(trainer.train_dataloader, "set_epoch"):
            done = trainer.global_step * trainer.accumulate_grad_batches
            trainer.train_dataloader.set_epoch(done // trainer.num_training_batches)

    def on_validation_epoch_start(self) -> None:
        loaders = len(self.trainer.num_val_batches)
        if loaders != len(self.evaluations):
            raise RequestError(f"{loaders} validation loader(s) for the evaluations {', '.join(self.evaluations)}; "
                               "give one loader each")
        self._totals = {}

    def validation_step(self, batch, batch_index: int, dataloader_idx: int = 0) -> None:
        # Accumulated on the device: reading a number here would make the host wait for every batch.
        name, sums = self.evaluations[dataloader_idx], self.sums(batch)
        self._totals[name] = self._totals[name] + sums if name in self._totals else sums

    def on_validation_epoch_end(self) -> None:
        for name, totals in self._totals.items():
            if self.trainer.world_size > 1:
                totals = self.trainer.strategy.reduce(totals, reduce_op="sum")
            self.log_dict({f"{name}_{what}": value for what, value in self.summary(totals).items()})

    def configure_optimizers(self):
        if callable(self.optimizer):
            optimizer = self.optimizer(self)
        else:
            rate = self.schedule.peak if self.schedule is not None else None
            # A fused step unscales its gradients itself, too late for Lightning to clip them.
            trainer = self._trainer  # None outside of one, where `trainer` would raise
            clipped = trainer is not None and trainer.gradient_clip_val and "mixed" in str(trainer.precision)
            optimizer = build.build(self.optimizer, self.model, rate=rate, fused=not clipped, **self.optimizer_options)
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": to_torch(optimizer, self.schedule), "interval": "step"}}
