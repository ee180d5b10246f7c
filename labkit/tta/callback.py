"""The Lightning callback that keeps the clock: spans at the edges of phases, metric rows at each evaluation, a stop at
the target."""

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

    One phase is open at a time and the next begins where it ends, so spans never overlap. Under data parallelism rank
    zero alone writes.

    Args:
        writer: the run that is being written (it may be None except on rank zero); its header may carry a target.
        samples_per_step: samples in one optimizer step over all ranks (for the `samples` column).
        stop_at_target: end training at the first evaluation that meets the target.
        progress: a `labkit.progress.Progress` to keep up to date, or None.

    Training also ends when a metric stops being finite: nothing can be learnt from the steps after that.
    When not to use it: to time single steps; spans are phases, and a synchronisation per step would change what is
    measured."""

    def __init__(self, writer: RunWriter | None, samples_per_step: int = 0, stop_at_target: bool = False,
                 progress=None):
        self.writer, self.samples_per_step = writer, samples_per_step
        self.stop_at_target, self.progress = stop_at_target, progress
        self.evaluated_at = -1
        self._phase: str | None = None  # kind of the open span
        self._edge = 0.0  # where it began
        self._save = None
        self._shown = 0.0

    def _turn(self, kind: str | None, trainer) -> float:
        """End the open phase here, record it, and open the next (None: nothing) at the same instant."""
        synchronise(trainer.strategy.root_device)
        now = self.writer.now()
        if self._phase is not None:
            self.writer.span(self._phase, self._edge, now)
        self._phase, self._edge = kind, now
        return now

    def setup(self, trainer, task, stage) -> None:
        if self._save is not None or not trainer.is_global_zero:
            return
        self._save = trainer.save_checkpoint

        def timed(*args, **kwargs):
            interrupted = self._phase
            self._turn("checkpoint", trainer)
            try:
                return self._save(*args, **kwargs)
            finally:
                self._turn(interrupted, trainer)

        trainer.save_checkpoint = timed

    def teardown(self, trainer, task, stage) -> None:
        if self._save is not None:
            trainer.save_checkpoint, self._save = self._save, None

    def on_exception(self, trainer, task, exception) -> None:
        # The phase that failed has no end worth recording, and Lightning calls no teardown.
        self._phase = None
        self.teardown(trainer, task, "")

    def on_train_start(self, trainer, task) -> None:
        if trainer.is_global_zero:
            self._turn("train", trainer)

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx) -> None:
        # Reading the loss would make an accelerator wait, so the line shows it only as often as a person can read.
        if self.progress is not None and time.monotonic() - self._shown > 0.5:
            self._shown = time.monotonic()
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            self.progress.update(trainer.global_step, loss=float(loss))

    def on_validation_start(self, trainer, task) -> None:
        if not trainer.sanity_checking and trainer.is_global_zero:
            self._turn("evaluate", trainer)

    def on_validation_end(self, trainer, task) -> None:
        if trainer.sanity_checking:
            return
        fitting = trainer.state.fn == "fit"
        self.evaluated_at = trainer.global_step
        ended = False
        if trainer.is_global_zero:
            ended = self._record(trainer, self._turn("train" if fitting else None, trainer))
        # Rank zero decides for all: a rank that trained on alone would wait for the others for ever.
        if fitting and trainer.strategy.broadcast(ended):
            trainer.should_stop = True

    def _record(self, trainer, when: float) -> bool:
        """Write the rows of one evaluation that ended at `when`; whether training has nothing left to do."""
        step = trainer.global_step
        batches = trainer.num_training_batches if trainer.state.fn == "fit" else 0
        epoch = step * trainer.accumulate_grad_batches / batches if batches and math.isfinite(batches) else 0.0
        if not epoch and self.writer.run.rows:
            # A closing evaluation outside `fit`: go on from the last row at the same pace.
            last = self.writer.run.rows[-1]
            epoch = last.epoch * step / max(last.step, 1)
        values = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        # The closing evaluation may look again at a part that training has just evaluated: one row is enough.
        known = {row.name for row in self.writer.run.rows if row.step == step}
        for name in sorted(values.keys() - known):
            self.writer.metric(name, values[name], step=step, epoch=epoch, samples=step * self.samples_per_step,
                               when=when)
        target = self.writer.header.target
        reached = self.stop_at_target and target is not None and first_crossing(self.writer.run, target) is not None
        return reached or not all(map(math.isfinite, values.values()))

    def on_train_end(self, trainer, task) -> None:
        if trainer.is_global_zero:
            self._turn(None, trainer)
