"""AdaScale (Johnson et al.): a large batch runs the small batch's schedule, at the pace that the noise allows.

One step at scale k counts as r steps of the base run, r in [1, k] being the ratio of the mean square of a base batch's
gradient to that of the large batch's: 1 where all gradients agree (a larger batch tells nothing new), k where they are
all noise. The rate is r times the base schedule's, read at the sum of the gains so far, and the run ends when that sum
reaches the base run's steps: it may take up to k times the base run's examples, so it is never an equal-epoch
comparison.
"""

import math
from collections.abc import Iterable

import pytorch_lightning as pl
import torch
from torch import Tensor

from labkit.errors import RequestError

ROWS = 200  # rows of each metric in one run at most, about


def moments(squares: Iterable[float], mean_square: float) -> tuple[float, float]:
    """Unbiased (variance of one gradient, squared norm of the true gradient) from S independent gradients.

    Args:
        squares: their squared norms |g_i|^2, two or more.
        mean_square: squared norm of their mean.

    The second may come out negative: it is an estimate. Its average over steps is what to use.
    """
    squares = list(squares)
    count = len(squares)
    variance = (sum(squares) - count * mean_square) / (count - 1)
    return variance, mean_square - variance / count


def gain(variance: float, signal: float, scale: float) -> float:
    """Steps of the base run that one step at `scale` times its batch is worth, in [1, scale].

    Args:
        variance: of one base batch's gradient (the trace of its covariance). signal: squared norm of the true gradient.
            Estimates below 0 count as 0; where both are 0 the gain is 1.
    """
    noise, signal = max(variance, 0.0), max(signal, 0.0)
    if noise == 0.0:
        return 1.0
    return min(scale, max(1.0, (noise + signal) / (noise / scale + signal)))


class AdaScale(pl.Callback):
    """Sets the rate before every optimizer step and ends the run when the gains add up to the base run's steps.

    The replicas are the micro-batches of gradient accumulation (two or more). The run's own schedule has to be the
    base run's, and its limit of optimizer steps (`max_steps`) the base run's steps, which a gain of 1 would need; see
    `labs.tuners.adascale`.

    Writes `gain`, `rate` and `scale_invariant_step`, about two hundred times.

    Args:
        writer: the run that is being written, or None.
        scale: k, the batch over the base run's batch; the micro-batches need not be as small as the base batch.
        most: optimizer steps after which the run ends even if the gains do not suffice.
        smoothing: weight of the past in the averages of variance and signal (each averaged by itself); None means
            max(0, 1 - k/1000), a memory that shortens as the estimates sharpen.

    Raises:
        RequestError: fewer than two micro-batches, no schedule, or scale below 1.

    When not to use it: on several processes or with loss scaling (`16-mixed`), where a micro-batch's gradient is not
    the difference of what has been accumulated; in a run that is resumed. It copies the gradient once a micro-batch.
    """

    def __init__(self, writer=None, *, scale: float, most: int | None = None, smoothing: float | None = None):
        if not scale >= 1:
            raise RequestError(f"scale {scale} of AdaScale is out of range; it must be 1 or more")
        self.writer, self.scale, self.most = writer, scale, most
        self.smoothing = max(0.0, 1 - scale / 1000) if smoothing is None else smoothing
        self.progress = 0.0  # sum of the gains so far
        self._variance = self._signal = self._weight = 0.0
        self._squares: list[Tensor] = []
        self._before: Tensor | None = None
        self._written = -math.inf

    def on_train_start(self, trainer, task) -> None:
        if trainer.accumulate_grad_batches < 2:
            raise RequestError("AdaScale compares micro-batches; let the recipe accumulate 2 or more")
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        if len(schedulers) != 1 or not hasattr(schedulers[0], "lr_lambdas"):
            raise RequestError("AdaScale reads the rate from the run's schedule; give the task a `Schedule`")

    def on_after_backward(self, trainer, task) -> None:
        groups = trainer.optimizers[0].param_groups
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for group in groups for p in group["params"]]
        total = torch.cat([part.flatten() for part in parts])
        own = total if self._before is None else total - self._before
        self._squares.append(own.dot(own))
        self._before = total

    def on_before_optimizer_step(self, trainer, task, optimizer) -> None:
        count = len(self._squares)
        if count > 1:  # the last, incomplete step of an epoch may have a single micro-batch
            mean = self._before / count
            variance, signal = moments(torch.stack(self._squares).tolist(), float(mean.dot(mean)))
            # the variance of a base batch, which is count / scale times a micro-batch's size
            variance *= self.scale / count
            keep = self.smoothing
            self._variance = keep * self._variance + (1 - keep) * variance
            self._signal = keep * self._signal + (1 - keep) * signal
            self._weight = keep * self._weight + (1 - keep)
        self._squares, self._before = [], None
        weight = self._weight or 1.0
        now = gain(self._variance / weight, self._signal / weight, self.scale)
        scheduler = trainer.lr_scheduler_configs[0].scheduler
        for group, peak, factor in zip(
            optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        ):
            group["lr"] = now * peak * factor(self.progress)
        self.progress += now
        step, total = trainer.global_step + 1, trainer.max_steps
        ended = self.progress >= total or (self.most is not None and step >= self.most)
        if ended:
            trainer.should_stop = True
        if self.writer is not None and (ended or self.progress - self._written >= total / ROWS):
            self._written = self.progress
            self._write(trainer, step, now, optimizer.param_groups[0]["lr"])

    def _write(self, trainer, step: int, now: float, rate: float) -> None:
        at = {
            "step": step,
            "epoch": step * trainer.accumulate_grad_batches / trainer.num_training_batches,
            "samples": step * self.writer.header.config.get("batch", 0),
            "when": self.writer.now(),
        }
        for name, value in (("gain", now), ("rate", rate), ("scale_invariant_step", self.progress)):
            self.writer.metric(name, value, **at)


def noise_course(scale: int, levels: Iterable[float], size: int = 20_000, seed: int = 0) -> list[tuple[str, float]]:
    """Rows (`gain_at_noise_<level>`, gain) for evidence: the gain estimated from `scale` gradients of `size` numbers.

    Each is a true gradient of norm 1 plus noise of root mean square norm `level`; `inf` is noise alone.
    """
    numbers = torch.Generator().manual_seed(seed)
    true, noise = (torch.randn(rows, size, generator=numbers, dtype=torch.float64) for rows in (1, scale))
    true, noise = true / true.norm(), noise / math.sqrt(size)
    rows = []
    for level in levels:
        gradients = noise if math.isinf(level) else true + level * noise
        mean = gradients.mean(0)
        found = moments((gradients * gradients).sum(1).tolist(), float(mean.dot(mean)))
        rows.append((f"gain_at_noise_{level:g}", gain(*found, scale)))
    return rows
