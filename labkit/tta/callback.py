"""The Lightning callback that keeps the clock: spans at the edges of phases, metric rows at each evaluation, a stop at the target."""

import math
import time

import pytorch_lightning as pl
import torch

from labkit.runs import RunWriter
from labkit.tta.clock import first_crossing


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was asked, so that an edge of a span is where the work ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class TimeToAccuracy(pl.Callback):
    """Writes spans `train`, `evaluate` and `checkpoint` and one metric row per logged number and evaluation.

    Args:
        writer: the run that is being written; its header may carry a target.
        samples_per_step: samples in one optimizer step over all ranks (for the `samples` column).
        stop_at_target: end training at the first evaluation that meets the target.
        progress: a `labkit.progress.Progress` to keep up to date, or None.

    Training also ends when a metric stops being finite: nothing can be learnt from the steps after that.
    When not to use it: to time single steps; spans are phases, and a synchronisation per step would change what is measured.
    """

    def __init__(self, writer: RunWriter, samples_per_step: int = 0, stop_at_target: bool = False, progress=None):
        self.writer, self.samples_per_step, self.stop_at_target, self.progress = (
            writer,
            samples_per_step,
            stop_at_target,
            progress,
        )
        self.evaluated_at = -1
        self._edge: float | None = None
        self._save = None
        self._shown = 0.0

    def _close(self, kind: str, device: torch.device) -> float:
        """End the open phase here, record it, and start the next at the same instant."""
        synchronise(device)
        now = self.writer.now()
        if self._edge is not None:
            self.writer.span(kind, self._edge, now)
        self._edge = now
        return now

    def setup(self, trainer, task, stage) -> None:
        if self._save is not None or not trainer.is_global_zero:
            return
        self._save = trainer.save_checkpoint

        def timed(*args, **kwargs):
            training = self._edge is not None
            if training:
                self._close("train", task.device)
            begin = self.writer.now()
            self._save(*args, **kwargs)
            self._edge, _ = (
                begin,
                self._close("checkpoint", task.device)
                if training
                else self.writer.span("checkpoint", begin, self.writer.now()),
            )
            self._edge = self.writer.now() if training else None

        trainer.save_checkpoint = timed

    def teardown(self, trainer, task, stage) -> None:
        if self._save is not None:
            trainer.save_checkpoint, self._save = self._save, None

    def on_train_start(self, trainer, task) -> None:
        synchronise(task.device)
        self._edge = self.writer.now()

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx) -> None:
        # Reading the loss would make an accelerator wait, so the line shows it only as often as a person can read.
        if self.progress is not None and time.monotonic() - self._shown > 0.5:
            self._shown = time.monotonic()
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            self.progress.update(trainer.global_step, loss=float(loss))

    def on_validation_start(self, trainer, task) -> None:
        if not trainer.sanity_checking and self._edge is not None and trainer.state.fn == "fit":
            self._close("train", task.device)
        elif self._edge is None:
            self._edge = self.writer.now()

    def on_validation_end(self, trainer, task) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        when = self._close("evaluate", task.device)
        self.evaluated_at = step = trainer.global_step
        batches = trainer.num_training_batches if trainer.state.fn == "fit" else 0
        epoch = step * trainer.accumulate_grad_batches / batches if batches and math.isfinite(batches) else 0.0
        if not epoch and self.writer.run.rows:
            # A closing evaluation outside `fit`: go on from the last row at the same pace.
            last = self.writer.run.rows[-1]
            epoch = last.epoch * step / max(last.step, 1)
        for name, value in sorted(trainer.callback_metrics.items()):
            self.writer.metric(
                name, float(value), step=step, epoch=epoch, samples=step * self.samples_per_step, when=when
            )
        diverged = any(not math.isfinite(float(value)) for value in trainer.callback_metrics.values())
        target = self.writer.header.target
        reached = self.stop_at_target and target is not None and first_crossing(self.writer.run, target) is not None
        if trainer.state.fn == "fit" and (diverged or reached):
            trainer.should_stop = True

    def on_train_end(self, trainer, task) -> None:
        self._close("train", task.device)
        self._edge = None
