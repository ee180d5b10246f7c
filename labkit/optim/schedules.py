"""How the learning rate follows the batch size (scaling rules) and the step number (schedules).

Standard library only: torch is imported inside `to_torch` alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING

from labkit.errors import RequestError, choose

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


def require_range(name: str, value: float, low: float = 0.0, high: float = math.inf, *, open_low: bool = False,
                  open_high: bool = False) -> None:
    """Refuse a `value` that is no finite number in the interval from `low` to `high`, naming both.

    Raises:
        RequestError: one line, e.g. ``momentum must be a number in [0, 1), not 1.5``."""
    open_high = open_high or math.isinf(high)
    inside = isinstance(value, Real) and math.isfinite(value) and low <= value <= high
    if not inside or (open_low and value == low) or (open_high and value == high):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise RequestError(f"{name} must be a number in {interval}, not {value!r}")


@dataclass(frozen=True)
class _Setting:
    batch: int
    rate: float
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.batch, Integral) or self.batch < 1:
            raise RequestError(f"batch must be a whole number of samples, at least 1, not {self.batch!r}")
        require_range("rate", self.rate, open_low=True)
        require_range("warmup_epochs", self.warmup_epochs)


class Baseline(_Setting):
    """A tuned starting point: batch size (samples), peak learning rate, warm-up length (epochs)."""


class Scaled(_Setting):
    """What a scaling rule answers for another batch size; same fields and units as `Baseline`."""


def fixed(base: Baseline, batch: int) -> Scaled:
    """The baseline's rate and warm-up epochs at every batch size: the control, not a recommendation."""
    return Scaled(batch, base.rate, base.warmup_epochs)


def square_root(base: Baseline, batch: int) -> Scaled:
    """Peak rate times sqrt(k), k = batch / base.batch; warm-up epochs unchanged.

    It keeps the covariance of the update, which goes as rate^2 / batch, constant (You et al., UCB/EECS-2018-138).
    Without a warm-up that grows too, it is half of `legw`: use it as the control that isolates the other half."""
    return Scaled(batch, base.rate * math.sqrt(batch / base.batch), base.warmup_epochs)


def linear(base: Baseline, batch: int) -> Scaled:
    """Peak rate times k, warm-up epochs unchanged. Not far above the baseline: the rate outgrows stability."""
    return Scaled(batch, base.rate * (batch / base.batch), base.warmup_epochs)


def linear_with_warmup(base: Baseline, batch: int, warmup_epochs: float = 5.0) -> Scaled:
    """Peak rate times k after a warm-up of a fixed number of epochs (Goyal et al., arXiv 1706.02677: 5 epochs).

    Goyal's ramp starts at the baseline's own rate: give the schedule ``warmup_start = base.rate / scaled.rate``."""
    return Scaled(batch, base.rate * (batch / base.batch), warmup_epochs)


def legw(base: Baseline, batch: int) -> Scaled:
    """Linear-epoch gradual warm-up: peak rate times sqrt(k) and warm-up epochs times k, with the same k.

    k times the epochs at 1/k of the steps per epoch is a constant number of warm-up *iterations*: see
    `warmup_iterations`. Source: You et al., arXiv 1901.08256, abstract (the SC'19 text calls the method DATE).
    Not for a baseline without warm-up: k times nothing is nothing, and what remains is `square_root`."""
    k = batch / base.batch
    return Scaled(batch, base.rate * math.sqrt(k), base.warmup_epochs * k)


RULES: Mapping[str, Callable[..., Scaled]] = MappingProxyType(
    {rule.__name__: rule for rule in (fixed, square_root, linear, linear_with_warmup, legw)}
)


def warmup_iterations(scaled: Scaled | Baseline, samples: int) -> float:
    """Warm-up in optimizer steps, fractional: epochs * samples / batch. Under `legw` the same at every batch size."""
    require_range("samples", samples, open_low=True)
    return scaled.warmup_epochs * samples / scaled.batch


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the OPTIMIZER step (0-based; with gradient accumulation, not the micro-batch).

    With the defaults, rate(t) = peak * min(1, t/W) * s(t): LEGW's formula, W the warm-up steps and s the baseline's
    decay, which runs from step 0 as if there were no warm-up. The choices that recipes leave unsaid are options:

    - ``ramp``: "zero" is t/W, so step 0 has rate exactly 0 and moves nothing; "first-step" is (t+1)/W.
    - ``warmup``: "gradual" adds a constant amount per step, from ``warmup_start * peak`` up; "constant" holds
      ``warmup_start * peak`` for W steps, then leaps (Goyal et al. compare the two).
    - ``decay_from``: "start" is the product above; "warmup-end" begins the decay after the warm-up and fits it into
      the remaining total_steps - W (TPU and MLPerf LARS code and the NUS ResNet-50 code; some divide by one step
      more). "jump" ramps to the full peak, then switches to a decay counted from step 0, so that the rate **jumps
      down** as the warm-up ends: the LEGW author's MNIST scripts do so. To name it is the point; avoid it.

    A run shorter than its warm-up is allowed (the formula holds); it never reaches its peak: see `reaches_peak`.

    Args:
        peak: highest rate, the `Scaled.rate` of a rule.
        total_steps: length of the run in optimizer steps. "poly" and "cosine" reach `end` at t = total_steps, one
            step after the last; the rate stays there beyond.
        warmup_steps: W, may be fractional (`warmup_iterations`); 0 means none, and then step 0 already has the peak.
        decay: "constant"; "poly" (`power`, `end`); "cosine" (`end`); "multistep" (times `gamma` at each of
            `milestones`); "exponential" (smoothly, by the factor `gamma` over the whole decay, so that the curve
            over epochs is the same for every batch size).
        power: exponent of "poly".
        end: final rate of "poly" and "cosine".
        milestones: steps, ascending, may be fractional, counted from where `decay_from` says.
        gamma: factor in (0, 1].
        warmup_start: fraction of the peak at which the warm-up begins; for Goyal's ramp 1/k.

    Raises:
        RequestError: an option outside its range, or one that the chosen decay would ignore; a negative step."""

    peak: float
    total_steps: int
    warmup_steps: float = 0.0
    decay: str = "constant"
    power: float = 2.0
    end: float = 0.0
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    warmup: str = "gradual"
    warmup_start: float = 0.0
    ramp: str = "zero"
    decay_from: str = "start"

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        choose("decay", self.decay, ("constant", "poly", "multistep", "cosine", "exponential"))
        choose("warmup", self.warmup, ("gradual", "constant"))
        choose("ramp", self.ramp, ("zero", "first-step"))
        choose("decay_from", self.decay_from, ("start", "warmup-end", "jump"))
        require_range("peak", self.peak, open_low=True)
        require_range("total_steps", self.total_steps, low=1)
        require_range("warmup_steps", self.warmup_steps)
        require_range("power", self.power, open_low=True)
        require_range("end", self.end, high=self.peak)
        require_range("gamma", self.gamma, high=1.0, open_low=True)
        require_range("warmup_start", self.warmup_start, high=1.0)
        if self.end and self.decay not in ("poly", "cosine"):
            raise RequestError(f"end = {self.end:g} has no meaning for decay {self.decay!r}; allowed: poly, cosine")
        if bool(self.milestones) != (self.decay == "multistep"):
            raise RequestError(f"milestones {self.milestones} with decay {self.decay!r}; only multistep needs them")
        if any(m < 0 for m in self.milestones) or sorted(set(self.milestones)) != list(self.milestones):
            raise RequestError(f"milestones must be ascending step numbers from 0 on, not {self.milestones}")
        if self.warmup == "constant" and not self.warmup_start:
            raise RequestError("warmup 'constant' needs warmup_start, the fraction of the peak, above 0")

    def __call__(self, step: float) -> float:
        """The learning rate of optimizer step `step` (0-based)."""
        return self.peak * self.factor(step)

    def factor(self, step: float) -> float:
        """The rate as a fraction of the peak, in [0, 1]."""
        require_range("step", step)
        if self.decay_from == "jump":
            return self._ramp(step) if step < self.warmup_steps else self._decay(step)
        return self._ramp(step) * self._decay(step)

    @property
    def reaches_peak(self) -> bool:
        """Whether the warm-up is over before the run is."""
        return self.warmup_steps < self.total_steps

    def _ramp(self, step: float) -> float:
        if not self.warmup_steps:
            return 1.0
        if self.warmup == "constant":
            return self.warmup_start if step < self.warmup_steps else 1.0
        done = min(1.0, (step + (self.ramp == "first-step")) / self.warmup_steps)
        return self.warmup_start + (1.0 - self.warmup_start) * done

    def _decay(self, step: float) -> float:
        offset = self.warmup_steps if self.decay_from == "warmup-end" else 0.0
        if self.decay == "constant" or step < offset:
            return 1.0
        if self.decay == "multistep":
            return self.gamma ** sum(step - offset >= milestone for milestone in self.milestones)
        done = min(1.0, (step - offset) / (self.total_steps - offset)) if self.total_steps > offset else 1.0
        if self.decay == "exponential":
            return self.gamma**done
        left = (1.0 - done) ** self.power if self.decay == "poly" else (1.0 + math.cos(math.pi * done)) / 2.0
        return self.end / self.peak + (1.0 - self.end / self.peak) * left


def to_torch(optimizer: "Optimizer", schedule: Schedule) -> "LambdaLR":
    """The schedule as a torch scheduler; call its ``step()`` once per optimizer step.

    The rate at every step is a closed form of the step number, so a resume through ``state_dict`` is exact, and a
    rate of 0 at step 0 and fractional warm-ups hold (torch's own `LinearLR` refuses a start at 0). A parameter group
    with a rate of its own keeps its ratio to the peak.

    Raises:
        RequestError: the optimizer was not built with ``lr=schedule.peak``."""
    from torch.optim.lr_scheduler import LambdaLR

    built_with = float(optimizer.defaults["lr"])
    if not math.isclose(built_with, schedule.peak, rel_tol=1e-6):
        raise RequestError(f"optimizer lr {built_with:g} is not the schedule's peak {schedule.peak:g}; make it so")
    return LambdaLR(optimizer, schedule.factor)


def momentum_correction(previous_rate: float, rate: float) -> float:
    """Factor on the momentum coefficient for one step, when the rate goes from `previous_rate` to `rate`.

    With the rate inside the velocity (LARS convention A) the velocity still carries the old rate after a change.
    Momentum times rate / previous_rate makes it follow the form with the rate outside (convention B, torch's SGD).
    Source: Goyal et al., arXiv 1706.02677. Not for convention B, which needs no correction.

    Raises:
        RequestError: previous_rate is 0: that velocity forgot its gradient, no factor brings it back; use a ramp
            from the first step."""
    require_range("previous_rate", previous_rate, open_low=True)
    require_range("rate", rate)
    return rate / previous_rate
