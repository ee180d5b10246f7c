"""YellowFin (Zhang and Mitliagkas): momentum SGD that sets its own rate and momentum from the gradients it sees.

On a noisy one-dimensional quadratic the squared distance to the optimum after one step is momentum * D^2 + rate^2 * C;
YellowFin minimises that among the settings for which every curvature between h_min and h_max contracts at the rate
sqrt(momentum), its "robust region". The curvatures are read off the squared norms of recent gradients, which is right
for log-likelihoods at one sample (the Fisher information) and too small for a mean over many.
"""

import math
from collections import deque

import pytorch_lightning as pl
import torch
from torch import Tensor

from labkit.errors import RequestError

GROWTH = 100.0  # times the largest curvature so far that a single gradient may report
ROWS = 200  # rows of each metric in one run at most, about


def single_step(low: float, high: float, variance: float, distance: float) -> tuple[float, float]:
    """(rate, momentum) that minimise momentum * D^2 + rate^2 * C in the robust region, in closed form.

    The region: sqrt(momentum) >= (sqrt(h_max/h_min) - 1) / (sqrt(h_max/h_min) + 1), rate = (1 - sqrt(momentum))^2 /
    h_min. With x = sqrt(momentum) the minimum without the bound solves p x = (1 - x)^3, p = D^2 h_min^2 / 2C, whose
    one real root is Cardano's; the objective is convex in x, so the bound, where it binds, is the answer.

    Args:
        low, high: h_min and h_max, smallest and largest curvature, 0 < low <= high.
        variance: C, of the gradient. distance: D, to the optimum.

    Raises:
        RequestError: curvatures that are not 0 < low <= high.
    """
    if not 0 < low <= high:
        raise RequestError(f"curvatures {low:g} and {high:g} are no range; they must be above 0 and in this order")
    root = math.sqrt(high / low)
    bound = (root - 1) / (root + 1)
    free = 0.0
    if variance > 0:
        p = (distance * low) ** 2 / (2 * variance)
        # y^3 + p y + p = 0 for y = x - 1, solved by y = w - p / 3w
        w = -math.cbrt((p + math.sqrt(p * p + 4 * p**3 / 27)) / 2)
        free = 1 + w - p / (3 * w) if w else 1.0
    x = min(max(free, bound, 0.0), 1.0)
    return (1 - x) ** 2 / low, x * x


class Tuner:
    """The update rule: gradients in, (rate, momentum) out. All averages are exponential and corrected for their start.

    Args:
        memory: steps that the averages reach back, 1 / (1 - beta).
        window: recent gradients whose smallest and largest squared norms are the curvature range.
        slow_start: steps over which the rate is raised linearly.
        factor: multiplies the rate: the one thing about it that can be tuned by hand.

    Raises:
        RequestError: memory, window or slow_start below 1, or a factor of 0 or less.
    """

    def __init__(self, memory: float = 1000, window: int = 20, slow_start: int = 200, factor: float = 1.0):
        if min(memory, window, slow_start) < 1 or not factor > 0:
            raise RequestError(
                "YellowFin needs memory, window and slow_start of 1 or more and a factor above 0, not "
                f"{memory}, {window}, {slow_start} and {factor}"
            )
        self.keep, self.slow_start, self.factor = 1 - 1 / memory, slow_start, factor
        self.recent: deque[float] = deque(maxlen=window)
        self.count, self.limit = 0, math.inf
        self._averages: dict = {}

    def average(self, name: str, value):
        """Take `value` into the average of this name and give the average, corrected for its start at 0."""
        self._averages[name] = self.keep * self._averages.get(name, 0.0) + (1 - self.keep) * value
        return self._averages[name] / (1 - self.keep**self.count)

    def update(self, gradient: Tensor) -> tuple[float, float]:
        """(rate, momentum) for the step along this gradient, a vector; `limit` is then the norm to clip it at."""
        self.count += 1
        norm = float(gradient.norm())
        square = min(max(norm * norm, 1e-30), GROWTH * self.limit**2)
        self.recent.append(square)
        low, high = (
            math.exp(self.average(name, math.log(extreme(self.recent))))
            for name, extreme in (("low", min), ("high", max))
        )
        self.limit = math.sqrt(high)
        mean = self.average("mean", gradient * (math.sqrt(square) / norm if norm * norm > square else 1.0))
        mean_square = self.average("square", square)
        variance = max(0.0, mean_square - float(mean.dot(mean)))
        distance = self.average("distance", self.average("norm", math.sqrt(square)) / mean_square)
        rate, momentum = single_step(low, high, variance, distance)
        rate, momentum = self.average("rate", rate), self.average("momentum", momentum)
        return self.factor * rate * min(1.0, self.count / self.slow_start), momentum

    def tune(self, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
        """Set rate and momentum of a momentum SGD from the gradients of its parameters, and clip those at `limit`.

        Call it before `optimizer.step()`; that is all of YellowFin. A gradient that is not finite is left alone.
        """
        groups = optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        norm = float(flat.norm())
        if not math.isfinite(norm):
            return groups[0]["lr"], groups[0]["momentum"]
        rate, momentum = self.update(flat)
        if norm > self.limit:
            torch._foreach_mul_(gradients, self.limit / norm)
        for group in groups:
            group["lr"], group["momentum"] = rate, momentum
        return rate, momentum


class YellowFin(pl.Callback):
    """Tunes the run's momentum SGD before every optimizer step; writes `rate` and `momentum`, about two hundred times.

    The run's own rate, schedule and momentum are not used.

    Args:
        writer: the run that is being written, or None.
        memory, window, slow_start, factor: of `Tuner`; an average reaches back a tenth of the run at most, if it is to
            forget the start.

    Raises:
        RequestError: the run's optimizer has no momentum.

    When not to use it: on several processes, with loss scaling (`16-mixed`), or in a run that is resumed.
    """

    def __init__(
        self, writer=None, *, memory: float = 1000, window: int = 20, slow_start: int = 200, factor: float = 1.0
    ):
        self.writer, self.tuner = writer, Tuner(memory, window, slow_start, factor)

    def on_train_start(self, trainer, task) -> None:
        if not all("momentum" in group for group in trainer.optimizers[0].param_groups):
            raise RequestError("YellowFin tunes the momentum of SGD; choose optimizer sgd")

    def on_before_optimizer_step(self, trainer, task, optimizer) -> None:
        rate, momentum = self.tuner.tune(optimizer)
        step = trainer.global_step + 1
        if self.writer is None or step % max(1, trainer.max_steps // ROWS):
            return
        epoch = step * trainer.accumulate_grad_batches / trainer.num_training_batches
        samples, when = step * self.writer.header.config.get("batch", 0), self.writer.now()
        for name, value in (("rate", rate), ("momentum", momentum)):
            self.writer.metric(name, value, step=step, epoch=epoch, samples=samples, when=when)
