"""The Lightning module of the translation labs."""

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.errors import RequestError
from labkit.tasks.base import Task

PAD = 0


class Translation(Task):
    """Cross-entropy of the next unit of the target, given the true units before it, in nats per target unit.

    A batch is (source [b, S], target [b, T]), the target from BEGIN to END, both padded with 0 at the end; padding
    counts for nothing. Under gradient accumulation a step averages its micro-batches' means, so that a unit in a
    micro-batch of short sentences weighs a little more.

    Args:
        model: maps (source, target[:, :-1]) to logits [b, T - 1, V] of target[:, 1:].
        label_smoothing: of the training loss only. The other arguments are those of `Task`.

    When not to use it: to judge translations; they are made without the true units, see `workloads.seq2seq`."""

    def __init__(self, model, *args, label_smoothing: float = 0.0, **options):
        super().__init__(model, *args, **options)
        if not 0.0 <= label_smoothing < 1.0:
            raise RequestError(f"label_smoothing {label_smoothing} is out of range; it must lie in [0, 1)")
        self.label_smoothing = label_smoothing

    def _logits(self, batch) -> tuple[Tensor, Tensor]:
        source, target = batch
        return self.model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()

    def training_step(self, batch, batch_index: int) -> Tensor:
        return F.cross_entropy(*self._logits(batch), ignore_index=PAD, label_smoothing=self.label_smoothing)

    def sums(self, batch) -> Tensor:
        logits, units = self._logits(batch)
        loss = F.cross_entropy(logits.float(), units, ignore_index=PAD, reduction="sum")
        real = units != PAD
        return torch.stack([loss, ((logits.argmax(1) == units) & real).sum(), real.sum()])

    def summary(self, totals: Tensor) -> dict[str, Tensor]:
        loss, correct, count = totals
        return {"loss": loss / count, "token_accuracy": correct / count}
