"""Callbacks that lab 10's recipes name: a batch that grows, ghost batch normalisation, the distance from the start.

Each is constructed as Class(writer=writer, ...) by `labkit.experiment`.
"""

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from labkit.errors import RequestError


class GrowBatch(pl.Callback):
    """Multiplies the batch by `factor` at each of `milestones`, by accumulating more micro-batches per step.

    Training ends after `epochs`; at its end, `updates` (optimizer steps) and `samples_seen` are written. The columns
    `epoch` and `samples` of a run's other rows count steps of one size and are wrong after the first milestone.

    Source: Smith et al. (arXiv 1711.00489), who do this in place of dividing the rate.

    Args:
        milestones: whole epochs, ascending, 1 or more.
        factor: 2 or more.
        epochs: of the whole run.
        batch: samples per step at the start.

    Raises:
        RequestError: milestones that are not such epochs.
    """

    def __init__(self, writer=None, *, milestones=(), factor: int = 1, epochs: int, batch: int):
        if list(milestones) != sorted({int(m) for m in milestones}) or any(not 0 < m < epochs for m in milestones):
            raise RequestError(f"milestones must be whole, ascending epochs from 1 to {epochs - 1}, not {milestones}")
        self.writer, self.milestones, self.factor = writer, milestones, factor
        self.epochs, self.batch, self.micro_batches = epochs, batch, 0

    def on_train_epoch_start(self, trainer, task) -> None:
        trainer.accumulate_grad_batches = self.factor ** sum(trainer.current_epoch >= m for m in self.milestones)

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx) -> None:
        self.micro_batches += 1

    def on_train_epoch_end(self, trainer, task) -> None:
        if trainer.current_epoch + 1 >= self.epochs:
            trainer.should_stop = True

    def on_train_end(self, trainer, task) -> None:
        if self.writer is not None:
            self.writer.metric("updates", trainer.global_step, step=trainer.global_step)
            self.writer.metric("samples_seen", self.micro_batches * self.batch, step=trainer.global_step)


class GhostNorm(nn.Module):
    """Batch normalisation [n, features] with the statistics of each `ghost` rows; of the whole batch if 0.

    Source: Hoffer et al. (arXiv 1705.08741). Ghost batches share scale, shift and running statistics; each moves the
    running ones in turn. At evaluation it is plain batch normalisation. When not to use it: rows that are ordered.
    """

    def __init__(self, features: int, ghost: int = 0):
        super().__init__()
        self.norm, self.ghost = nn.BatchNorm1d(features), ghost

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.ghost or len(x) <= self.ghost:
            return self.norm(x)
        return torch.cat([self.norm(part) for part in x.split(self.ghost)])


class Normalise(pl.Callback):
    """Puts a `GhostNorm` before every ReLU of a `deep-mlp`, before the optimizer is made.

    Args:
        ghost: rows of a ghost batch; 0: the whole batch.
    """

    def __init__(self, writer=None, *, ghost: int = 0):
        self.ghost = ghost

    def setup(self, trainer, task, stage) -> None:
        layers = []
        if any(isinstance(layer, GhostNorm) for layer in task.model.layers):
            return  # a second stage of the same run
        for layer in task.model.layers:
            if isinstance(layer, nn.ReLU):
                layers.append(GhostNorm(layers[-1].out_features, self.ghost))
            layers.append(layer)
        task.model.layers = nn.Sequential(*layers)


class DistanceFromStart(pl.Callback):
    """Writes `distance`, the norm of w_t - w_0, after steps that are evenly spaced in log t, `per_octave` to an octave.

    Source of the question: Hoffer et al. (arXiv 1705.08741).
    """

    def __init__(self, writer=None, *, per_octave: int = 4):
        self.writer, self.per_octave, self.next = writer, per_octave, 1.0

    def on_train_start(self, trainer, task) -> None:
        self.start = [parameter.detach().clone() for parameter in task.parameters()]

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx) -> None:
        step = trainer.global_step
        if step < self.next:
            return
        while self.next <= step:
            self.next *= 2 ** (1 / self.per_octave)
        parts = torch._foreach_sub([parameter.detach() for parameter in task.parameters()], self.start)
        distance = float(torch.stack(torch._foreach_norm(parts)).norm())
        if self.writer is not None:
            self.writer.metric("distance", distance, step=step)
