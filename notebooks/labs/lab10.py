"""The exercises of lab 10: the estimators, the fit, three batches by hand, a right average, and the noise knob."""

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np

from labkit.optim.noise import noise_scale
from labkit.teach.exercises import exercise
from labs.answers import number

NEAR = 0.01  # relative: rounded answers are right


def near(a, b, tolerance: float = NEAR) -> bool:
    return math.isclose(number(a), b, rel_tol=tolerance, abs_tol=1e-9)


def slip(value, slips) -> str:
    """The remark of the usual mistake that gives this value; `slips` are (value, remark); empty if none does."""
    return next((remark for mistake, remark in slips if near(value, mistake)), "")


def pair(found) -> tuple[float, float] | None:
    """Two finite numbers, however they are packed."""
    try:
        first, second = (float(part) for part in found)
    except (TypeError, ValueError):
        return None
    return (first, second) if math.isfinite(first + second) else None


def estimators(answer):
    """A function (small_sq, big_sq, b_small, b_big) -> (trace, squared norm)."""
    for trace, square, small, big in ((6.0, 2.0, 4, 16), (50.0, 0.5, 16, 64), (3.0, 7.0, 1, 2)):
        given = square + trace / small, square + trace / big  # what the two norms are on average
        found = pair(answer(*given, small, big))
        asked = f"norms {given[0]:g} at batch {small} and {given[1]:g} at batch {big}"
        if found is None:
            return "return two numbers: the trace of the covariance, then the squared norm of the gradient"
        if near(found[0], square) and near(found[1], trace):
            return "the two are there, in the other order: the trace first, then the squared norm"
        if not near(found[0], trace):
            slips = (
                (-trace, "the sign is turned: the smaller batch has the larger norm and the larger 1/B"),
                (given[0] - given[1], "divide the difference of the norms by the difference of 1/B"),
                ((given[0] - given[1]) / (big - small), "divide by the difference of 1/B, not of B"),
                (trace / square, "that is the ratio already; return trace and squared norm"),
            )
            why = slip(found[0], slips) or "write both norms as |G|^2 + trace/B and subtract"
            return f"{asked}: your trace is {found[0]:.5g}, not {trace:g}: {why}"
        if not near(found[1], square):
            slips = (
                (given[1], "that is the norm of the big batch, which still holds trace / B of noise"),
                (given[0], "that is the norm of the small batch, noise and all"),
                ((given[1] - given[0]) / (big - small), "multiply each norm by its own batch before you subtract"),
                ((big * given[0] - small * given[1]) / (big - small), "each norm takes its own batch, not the other's"),
                (-square, "the sign is turned: (big ... - small ...) / (big - small)"),
            )
            why = slip(found[1], slips) or "B |g|^2 = B |G|^2 + trace: subtract the two and the trace is gone"
            return f"{asked}: your squared norm is {found[1]:.5g}, not {square:g}: {why}"
    return None


def fitted(answer):
    """A function (batches, steps) -> (S_min, B_crit), on points that lie exactly on the curve."""
    for floor, knee, batches in ((80.0, 120.0, (8, 32, 128, 512)), (300.0, 20.0, (4, 8, 16, 64, 256))):
        batches = np.array(batches, float)
        found = pair(answer(batches, floor * (1 + knee / batches)))
        if found is None:
            return "return two numbers: S_min in steps and B_crit in samples"
        if not near(found[0], floor, 0.03):
            last = floor * (1 + knee / batches[-1])
            slips = ((knee, "that is B_crit; S_min comes first"), (floor * knee, "that is the slope against 1/B"),
                     (last, "that is the largest batch's: it has not reached the floor"))  # fmt: skip
            why = slip(found[0], slips) or "S is a straight line in 1/B; S_min is where it meets 1/B = 0"
            return f"S_min is {floor:g} there; you give {found[0]:.5g}: {why}"
        if not near(found[1], knee, 0.03):
            slips = ((floor * knee, "that is the slope, S_min times B_crit: divide by S_min"),
                     (floor / (floor * knee), "turn it over: slope / S_min"))  # fmt: skip
            why = slip(found[1], slips) or "the slope of S against 1/B is S_min times B_crit"
            return f"B_crit is {knee:g} there; you give {found[1]:.5g}: {why}"
    return None


# 10.1: S_min 100 steps, B_crit 200.
FLOOR, KNEE = 100.0, 200.0
_BY_HAND = {
    "steps at 50": (500.0, ((400.0, "S_min B_crit / B alone is perfect scaling: S_min itself comes on top"),
                            (125.0, "B over B_crit is the wrong way round: S = S_min (1 + B_crit / B)"))),
    "steps at 800": (125.0, ((25.0, "that is perfect scaling; no batch gets below S_min = 100"),
                             (500.0, "B over B_crit is the wrong way round: S = S_min (1 + B_crit / B)"),
                             (100.0, "S_min is for an infinite batch; 800 is four times B_crit"))),
    "examples at 800": (100000.0, ((20000.0, "that is E_min, what a very small batch needs"),
                                   (125.0, "those are steps; examples are steps times the batch"),
                                   (80000.0, "that takes S_min steps; the batch of 800 needs 125"))),
    "faster": (4.0, ((16.0, "that is perfect scaling: 16 times the workers, 16 times fewer steps"),
                     (0.25, "turn it over: how many times fewer steps"))),
    "dearer": (4.0, ((16.0, "the steps fall while the batch grows: 16 / 4"),
                     (1.0, "only perfect scaling costs nothing"),
                     (0.25, "turn it over: how many times as many examples"))),
}  # fmt: skip


def three_batches(answer):
    """A dictionary of `_BY_HAND`."""
    if not isinstance(answer, Mapping) or set(answer) != set(_BY_HAND):
        return f"give a dictionary with {', '.join(_BY_HAND)}"
    for key, (right, slips) in _BY_HAND.items():
        if not near(answer[key], right):
            why = slip(answer[key], slips) or "S = S_min (1 + B_crit / B) steps, E = S B examples"
            return f"{key}, {answer[key]!r}, is not right: {why}"
    return None


def series(seed: int = 0, steps: int = 60):
    """(small_sq, big_sq) per step, batches 16 and 64, of a run whose noise scale grows: |G|^2 falls faster than tr."""
    random, t = np.random.default_rng(seed), np.arange(steps)
    square, trace = 4.0 * 0.93**t, 80.0 * 0.96**t
    spread = 0.1 * random.standard_normal((2, steps))
    return (square + trace / 16) * (1 + spread[0] / 8), (square + trace / 64) * (1 + spread[1])


def averaged(answer):
    """A function (small_sq, big_sq, b_small, b_big), two arrays over steps, -> the noise scale of the path."""
    for seed in (0, 1):
        small, big = series(seed)
        found = answer(small.copy(), big.copy(), 16, 64)
        traces, squares = noise_scale(small, big, 16, 64)
        right = float(traces.sum() / squares.sum())
        if getattr(found, "ndim", 0):
            return "return one number for the whole path, not one per step"
        try:
            found = float(found)
        except (TypeError, ValueError):
            return f"return a number, the noise scale of the path; you give {found!r}"
        if near(found, right):
            continue
        slips = (
            (float(np.mean(traces / squares)), "that is the mean of the ratios: a step with |G|^2 near 0 rules it"),
            (float(np.median(traces / squares)), "that is the median of the ratios, not the path's average"),
            (float(traces[-1] / squares[-1]), "that is the last step alone: the noise scale grew on the way"),
            (float(traces[0] / squares[0]), "that is the first step alone: the noise scale grows from there"),
            (1 / right, "turn it over: trace over squared norm"),
            (float(small.sum() / big.sum()), "that divides the norms; estimate trace and squared norm first"),
            (float(traces.sum() / big.sum()), "the norm of the big batch still holds noise: use the estimate of |G|^2"),
            (float(np.mean(traces)), "that is the trace; divide by the squared norm"),
        )
        why = slip(found, slips) or "sum (or average) the traces, sum the squared norms, then divide once"
        return f"the noise scale of this path is {right:.4g}, not {found:.4g}: {why}"
    return None


# 10.3: the noise knob.
WORKERS, IMAGES = 64, 2
GOAL = WORKERS * IMAGES  # they pay if this batch is at most the critical one: at most twice the examples
SPARE = 4.0  # but no more noise than needed: the critical batch at most so many times the goal
TRUST = 2.0  # the factor within which the knee has to be foretold


def turned_knob(answer):
    """{"noise": level, "knee": foretold, "known": levels measured before, "measured": `labs.critical.Study`}."""
    level, knee, measured = answer["noise"], answer["knee"], answer["measured"]
    if not isinstance(level, Real) or not 0 <= level <= 2:
        return f"the noise level is {level!r}; give a number from 0 to 2"
    if not isinstance(knee, Real) or isinstance(knee, bool) or not knee > 0:
        return f"the knee is {knee!r}; give the critical batch that you expect, a number of samples"
    for known in answer["known"]:
        if abs(level - known) < 0.1 * known:
            return f"{level:g} was measured above, at {known:g}: nothing to foretell; choose a level of your own"
    if not hasattr(measured, "knee"):
        return "nothing was measured: the cell trains only for a level from 0 to 2 and a knee"
    if not math.isfinite(measured.knee):
        return f"at noise {level:g} the target was reached at fewer than three batches: no fit; try less noise"
    found = f"at noise {level:g} the critical batch is {measured.knee:.0f}"
    if measured.knee < GOAL:
        return f"{found}: {WORKERS} x {IMAGES} = {GOAL} would need more than twice the examples; turn it further"
    if measured.knee > SPARE * GOAL:
        return f"{found}, over {SPARE:g} times the {GOAL} that you need: less noise would do"
    if max(knee / measured.knee, measured.knee / knee) > TRUST:
        slips = ((WORKERS, "that is the number of workers; the knee is a batch size"), (IMAGES, "that is one worker's"))
        why = slip(knee, slips) or "draw knee against noise level from the levels that you know, on log axes"
        return f"{found}: they pay, but you foretold {knee:g}, off by more than a factor of {TRUST:g}: {why}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "10.b1",
            "the estimators",
            estimators,
            (
                "On average |gradient|^2 at batch B is |G|^2 + trace / B. You have it at two B: two equations.",
                "Subtract them and |G|^2 is gone; multiply each by its B, subtract, and the trace is gone.",
            ),
        ),
        exercise(
            "10.b2",
            "the fit",
            fitted,
            (
                "S_min (1 + B_crit / B) = S_min + (S_min B_crit) / B: a straight line in x = 1/B.",
                "np.polyfit(1 / batches, steps, 1) gives slope and intercept; which of the two is S_min?",
            ),
        ),
        exercise(
            "10.1",
            "three batches by hand",
            three_batches,
            (
                "Put B = 50 and B = 800 into S = 100 (1 + 200 / B); the examples are S times B.",
                "faster = steps at 50 / steps at 800; dearer = examples at 800 / examples at 50.",
            ),
        ),
        exercise(
            "10.2",
            "one number for a whole path",
            averaged,
            (
                "noise_scale takes arrays: it gives a trace and a squared norm per step.",
                "An average of ratios follows the steps with the smallest denominators. Sum first, divide last.",
            ),
        ),
        exercise(
            "10.3",
            "turn the noise knob",
            turned_knob,
            (
                f"{WORKERS} workers with {IMAGES} images are batch {GOAL}: it pays if the critical batch is as large.",
                "Levels are measured above. Interpolate log(critical batch) against log(noise) and read it the other "
                f"way round, somewhat above {GOAL} to be safe.",
            ),
        ),
    )
}
