"""The Lightning module of the image labs."""

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.errors import RequestError
from labkit.tasks.base import Task


class ImageClassification(Task):
    """Cross-entropy classification of images [n, channels, height, width] into integer classes [n].

    Args:
        model: maps images to logits [n, classes].
        label_smoothing: of the training loss only. The other arguments are those of `Task`.

    When not to use it: a loss that is not a mean over samples; write a task of its own."""

    def __init__(self, model, *args, label_smoothing: float = 0.0, **options):
        super().__init__(model, *args, **options)
        if not 0.0 <= label_smoothing < 1.0:
            raise RequestError(f"label_smoothing {label_smoothing} is out of range; it must lie in [0, 1)")
        self.label_smoothing = label_smoothing

    def training_step(self, batch, batch_index: int) -> Tensor:
        images, classes = batch
        return F.cross_entropy(self.model(images), classes, label_smoothing=self.label_smoothing)

    def sums(self, batch) -> Tensor:
        images, classes = batch
        logits = self.model(images).float()
        loss = F.cross_entropy(logits, classes, reduction="sum")
        return torch.stack([loss, (logits.argmax(1) == classes).sum(), torch.full_like(loss, len(classes))])

    def summary(self, totals: Tensor) -> dict[str, Tensor]:
        loss, correct, count = totals
        return {"loss": loss / count, "accuracy": correct / count}
