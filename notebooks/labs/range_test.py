"""The learning-rate range test (Smith): one short run whose rate rises exponentially, and the rule that reads it."""

import math
from collections.abc import Sequence

import numpy as np
import pytorch_lightning as pl

from labkit.errors import RequestError

WORSE = 4.0  # times the best smoothed loss at which a test ends: the rest would be divergence


class RangeTest(pl.Callback):
    """Raises the rate from `low` to `high` by a constant factor per optimizer step, over the whole run.

    Writes `range_loss`, the training loss before the update at a rate, and `range_rate`, that rate, at every step. The
    run ends early when the loss, smoothed, is four times its best, or no longer finite.

    Args:
        writer: the run that is being written, or None.
        low, high: rates, 0 < low < high.

    Raises:
        RequestError: rates out of order.

    When not to use it: with gradient accumulation, where the loss of a step is spread over its micro-batches; with a
    model whose loss does not fall within the length of the test.
    """

    def __init__(self, writer=None, *, low: float, high: float):
        if not 0 < low < high:
            raise RequestError(f"a range test from rate {low:g} to {high:g}; rates must be above 0 and in this order")
        self.writer, self.low, self.high = writer, low, high
        self.rate, self._smooth, self._best = low, None, math.inf

    def on_before_optimizer_step(self, trainer, task, optimizer) -> None:
        done = trainer.global_step / max(1, trainer.max_steps - 1)
        self.rate = self.low * (self.high / self.low) ** done
        for group in optimizer.param_groups:
            group["lr"] = self.rate

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx) -> None:
        loss, step = float(outputs["loss"] if isinstance(outputs, dict) else outputs), trainer.global_step
        if self.writer is not None:
            epoch = step / trainer.num_training_batches
            samples, when = step * self.writer.header.config.get("batch", 0), self.writer.now()
            for name, value in (("range_rate", self.rate), ("range_loss", loss)):
                self.writer.metric(name, value, step=step, epoch=epoch, samples=samples, when=when)
        self._smooth = loss if self._smooth is None else 0.8 * self._smooth + 0.2 * loss
        self._best = min(self._best, self._smooth)
        if not self._smooth <= WORSE * self._best:  # also where it is no number
            trainer.should_stop = True


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float:
    """The rate at which the smoothed loss falls most steeply against log(rate), no later than where it is least.

    Smoothed: the centred mean over a tenth of the steps (shorter at the ends). The rule is fixed: nobody looks at the
    curve. A loss that never falls gives the lowest rate.

    Raises:
        RequestError: fewer than five finite losses before the first that is not.
    """
    losses, rates = np.asarray(losses, float), np.asarray(rates, float)
    finite = np.isfinite(losses)
    count = len(losses) if finite.all() else int(np.argmin(finite))
    if count < 5:
        raise RequestError(f"a range test with {count} finite losses; take 5 steps or more, from a lower rate")
    half = max(1, count // 20)
    smooth = np.array([losses[max(0, at - half) : min(count, at + half + 1)].mean() for at in range(count)])
    slope = np.gradient(smooth, np.log(rates[:count]))
    return float(rates[np.argmin(slope[: np.argmin(smooth) + 1])])
