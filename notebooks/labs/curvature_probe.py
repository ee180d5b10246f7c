"""The Lightning callback that follows the curvature along the gradient through training."""

import pytorch_lightning as pl
from torch import Tensor
from torch.nn import functional as F

from labs.curvature import curvature_along_gradient
from labkit.runs import RunWriter


class CurvatureProbe(pl.Callback):
    """Writes metric `curvature` (signed, on a fixed probe) before the first and after every `every` optimizer steps.

    Args:
        every: optimizer steps between probes.
        images: [n, c, h, w], normalised, on the model's device; the same at every probe.
        classes: [n].
        writer: the run that is being written.

    When not to use it: in a run whose seconds matter; a probe costs about three gradients and lies inside the training
    span."""

    def __init__(self, every: int, images: Tensor, classes: Tensor, writer: RunWriter):
        self.every, self.images, self.classes, self.writer = every, images, classes, writer
        self.probed_at = -1

    def probe(self, trainer, task) -> None:
        step = trainer.global_step
        if step == self.probed_at:
            return
        self.probed_at = step
        value = float(curvature_along_gradient(task.model, F.cross_entropy, self.images, self.classes))
        self.writer.metric("curvature", value, step=step,
                           epoch=step / trainer.num_training_batches * trainer.accumulate_grad_batches)

    def on_train_start(self, trainer, task) -> None:
        self.probe(trainer, task)

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx) -> None:
        if trainer.global_step % self.every == 0:
            self.probe(trainer, task)
