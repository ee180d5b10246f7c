"""What a dialect does to the length of a step, on a noisy quadratic whose gradients are the same for every dialect's
weights: a ramp, a decay, a change of the rate, a first step. All in float64; claims R02, R04, R06, R08 and R09.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from labkit import optim
from labkit.errors import choose
from labkit.optim.schedules import Schedule, momentum_correction

STEPS = 200
RATE = {"lars": 8.0, "lamb": 0.02}  # peaks
SHAPES = ((12, 10), (10, 8), (8, 10))
Maker = Callable[[list], torch.optim.Optimizer]


def ramp(peak: float, steps: int = STEPS) -> Schedule:
    """Forty steps up (the first at peak / 40, since a rate of 0 has no step to compare), then poly(2) to 0."""
    return Schedule(peak, steps, warmup_steps=steps / 5, ramp="first-step", decay="poly", decay_from="warmup-end")


@dataclass
class Quadratic:
    """Half the sum of h (w - c)^2 over three matrices, with noise on the gradient that is drawn once for all.

    Args:
        noise: its standard deviation; the gradients' own length at the start is near 1 per number.
    """

    seed: int = 0
    noise: float = 0.5
    steps: int = STEPS

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.start = [normal(*shape) * scale for shape, scale in zip(SHAPES, (0.3, 1.0, 3.0), strict=True)]
        self.centre = [normal(*shape) for shape in SHAPES]
        self.curvature = [10.0 ** (normal(*shape) / 2) for shape in SHAPES]
        self.errors = [[normal(*shape) * self.noise for shape in SHAPES] for _ in range(self.steps)]

    def gradients(self, weights: Sequence[torch.Tensor], step: int) -> list[torch.Tensor]:
        parts = zip(self.curvature, weights, self.centre, self.errors[step], strict=True)
        return [h * (w - c) + e for h, w, c, e in parts]

    def lengths(self, make: Maker, rates: Callable[[int], float], before_step=None) -> tuple[np.ndarray, list]:
        """(length of every step over all tensors, final weights) of an optimizer.

        Args:
            make: from the parameters to their optimizer.
            rates: the rate of a step, counted from 0.
            before_step: called with (optimizer, step) once the rate is set.
        """
        params = [w.clone().requires_grad_() for w in self.start]
        optimizer, found = make(params), []
        for step in range(self.steps):
            with torch.no_grad():
                before = [p.clone() for p in params]
                for p, g in zip(params, self.gradients(params, step), strict=True):
                    p.grad = g
            for group in optimizer.param_groups:
                group["lr"] = rates(step)
            if before_step is not None:
                before_step(optimizer, step)
            optimizer.step()
            moved = [(p.detach() - b).square().sum() for p, b in zip(params, before, strict=True)]
            found.append(float(torch.stack(moved).sum().sqrt()))
        return np.array(found), [p.detach() for p in params]


def maker(kind: str, dialect: str = "paper", **options) -> Maker:
    """An optimizer of `labkit.optim` by its dialect; LARS with the paper's trust coefficient whatever the dialect."""
    choose("optimizer", kind, RATE)
    if kind == "lars":
        options = {"trust_coefficient": 1e-3, "weight_decay": 1e-4, **options}
        return lambda params: optim.LARS(params, RATE[kind], dialect=dialect, **options)
    return lambda params: optim.LAMB(params, RATE[kind], dialect=dialect, **options)


def ratios(kind: str, dialects: Sequence[str], seed: int = 0) -> dict[str, np.ndarray]:
    """{dialect: its step over the paper's, by step} under the ramp and the decay."""
    world, schedule = Quadratic(seed), ramp(RATE[kind])
    paper, _ = world.lengths(maker(kind), schedule)
    return {dialect: world.lengths(maker(kind, dialect), schedule)[0] / paper for dialect in dialects}


def conventions(seed: int = 0) -> list[tuple]:
    """Evidence for R02: convention B's step over A's, under the schedule and at a constant rate; `samples` is t."""
    world, rows = Quadratic(seed), []
    for metric, rates in (("step_b_over_a", ramp(RATE["lars"])), ("step_b_over_a_constant", lambda step: 3.0)):
        a, b = (world.lengths(maker("lars", convention=name), rates)[0] for name in "AB")
        rows += [(metric, float(value), step) for step, value in enumerate(b / a)]
    return rows


def correction_error(seed: int = 0) -> list[tuple]:
    """Evidence for R09: convention A with the momentum corrected at each change of the rate, against convention B, as
    the largest difference of their weights at the end relative to the largest weight.
    """
    world, schedule = Quadratic(seed), ramp(RATE["lars"])

    def correct(optimizer, step):
        for group in optimizer.param_groups:
            group["momentum"] = 0.9 * (momentum_correction(schedule(step - 1), schedule(step)) if step else 1.0)

    _, corrected = world.lengths(maker("lars", convention="A"), schedule, correct)
    _, plain = world.lengths(maker("lars", convention="A"), schedule)
    _, outside = world.lengths(maker("lars", convention="B"), schedule)
    scale = max(float(w.abs().max()) for w in outside)

    def apart(ours):
        return max(float((a - b).abs().max()) for a, b in zip(ours, outside, strict=True)) / scale

    return [("momentum_correction_error", apart(corrected)), ("uncorrected_difference", apart(plain))]


def increment_error(batches: Sequence[int] = (512, 1024, 8192), base: int = 256, per_epoch: int = 100) -> list[tuple]:
    """Evidence for R08: how far the increments of Goyal's gradual warm-up are from (peak - base rate) / steps."""
    rows = []
    for batch in batches:
        k, steps = batch / base, 5 * per_epoch
        shape = Schedule(0.1 * k, 10 * steps, warmup_steps=steps, warmup_start=1 / k)
        increments = np.diff([shape(step) for step in range(steps + 1)])
        wanted = (0.1 * k - 0.1) / steps
        rows.append(("ramp_increment_error", float(np.abs(increments - wanted).max()), batch))
    return rows


SETTINGS = {  # of LAMB, for R06
    "adapted": {},
    "excluded": {"adapt": False},
    "equal betas": {"betas": (0.9, 0.9)},
}


def without_correction(setting: str, seed: int = 0, steps: int = 50) -> list[tuple]:
    """Evidence for R06: LAMB's step without bias correction over the one with it, at the same weights; `samples` is t,
    counted from 1. In "equal betas" the tensor is excluded too, so that no ratio hides the correction.
    """
    choose("setting of LAMB", setting, SETTINGS)
    options = dict(SETTINGS[setting])
    adapt = options.pop("adapt", setting != "equal betas")
    world = Quadratic(seed, steps=steps)
    lengths = {}
    for corrected in (True, False):
        # A tiny rate: both walk through the same weights, so only the rule differs.
        def make(params, corrected=corrected):
            groups = [{"params": params, "adapt": adapt}]
            return optim.LAMB(groups, 1e-9, bias_correction=corrected, weight_decay=0.01, **options)

        lengths[corrected], _ = world.lengths(make, lambda step: 1e-6)
    values = lengths[False] / lengths[True]
    return [("step_without_over_with", float(value), step + 1) for step, value in enumerate(values)]


def seeded_velocity(seed: int = 0) -> float:
    """First step of a velocity that starts at the raw gradient, over the rule's: m g + r (g + b w) against r (g + b w).

    Version 3.9.0 of one library did so; the ratio r is then the only thing that the step does not have.
    """
    world, momentum, coefficient, decay = Quadratic(seed), 0.9, 1e-3, 1e-4
    wrong = right = 0.0
    for w, g in zip(world.start, world.gradients(world.start, 0), strict=True):
        part = coefficient * float(w.norm() / g.norm()) * (g + decay * w)
        right += float(part.square().sum())
        wrong += float((momentum * g + part).square().sum())
    return math.sqrt(wrong / right)


def first_step(optimizer_class, seed: int = 0) -> float:
    """The first step of another library's LARS over the paper's, on the quadratic; both with its 1e-3 and 1e-4."""
    world = Quadratic(seed, steps=1)

    def make(params):
        return optimizer_class(params, lr=1.0, momentum=0.9, weight_decay=1e-4, trust_coefficient=1e-3)

    theirs, _ = world.lengths(make, lambda step: 1.0)
    ours, _ = world.lengths(maker("lars"), lambda step: 1.0)
    return float(theirs[0] / ours[0])
