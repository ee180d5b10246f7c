"""LARS and LAMB written out number by number in float64, one tensor at a time: what the fast ones must equal (claims
R01, R05). Slow on purpose, and only for checks.
"""

import math

import numpy as np
import torch

from labkit import optim
from labkit.errors import choose
from labkit.optim import dialects
from labkit.optim.schedules import Schedule

STEPS, TENSORS = 200, ((5, 4), (3, 6), (4, 4), (7,))  # the third starts at 0, the last is a bias: excluded, not decayed
MOMENTUM, DECAY, BETAS = 0.9, 0.05, (0.9, 0.99)


def norm(values) -> float:
    return math.sqrt(float((values * values).sum()))


def excluded(options: dict, decay: float, adapt: bool, dimensions: int) -> tuple[bool, float]:
    """(is the ratio left out, the decay that remains) of a tensor."""
    if options["exclude"] == "vectors" and dimensions < 2:
        return True, 0.0
    return not adapt or (options["exclude"] == "undecayed" and decay == 0.0), decay


def lars(w, g, v, rate: float, momentum: float, decay: float, adapt: bool, options: dict):
    """(weights, velocity) after one step of LARS; `options` as in `labkit.optim.dialects`."""
    out, decay = excluded(options, decay, adapt, w.ndim)
    ratio, kept = 1.0, decay
    if not out:
        a, b = norm(w), norm(g + decay * w) if options["decay"] == "sum" else norm(g)
        below = b + (decay * a if options["decay"] == "ratio" else 0.0) + options["eps"]
        rule = options["zero_norm"]
        zero = a == 0.0 or (below if rule == "quotient" else b) == 0.0
        if rule == "none" or not zero:
            low, high = options["trust_bounds"]
            ratio = min(max(options["trust_coefficient"] * a / below, low), high)
            ratio = min(ratio / rate, 1.0) if options["trust_clip"] else ratio
        elif rule == "skip":
            kept = 0.0
    d = g if options["decay"] == "outside" else g + kept * w
    convention = options["convention"]
    inside = {"A": rate * ratio, "B": ratio, "C": 1.0}[convention]
    outside = {"A": 1.0, "B": rate, "C": rate * ratio}[convention]
    v = momentum * v + inside * d
    step = outside * v + (rate * kept * w if options["decay"] == "outside" else 0.0)
    return w - step, v


def lamb(w, g, m, s, t: int, rate: float, betas, decay: float, adapt: bool, options: dict):
    """(weights, first moment, second moment) after step `t` (from 1) of LAMB; the gradient as it was clipped."""
    out, decay = excluded(options, decay, adapt, w.ndim)
    one, two = betas
    m, s = one * m + (1 - one) * g, two * s + (1 - two) * g * g
    first, second = 1 - one**t, 1 - two**t
    if options["bias_correction"] is True:
        u = (m / first) / (np.sqrt(s / second) + options["eps"])
    else:
        u = m / (np.sqrt(s) + options["eps"])
    corrected = {"rate": math.sqrt(second) / first, "rate-first": 1 / first}.get(options["bias_correction"], 1.0)
    beside = rate * decay * w
    if options["decay"] == "ratio":
        u = u + decay * w
    elif options["decay"] == "before":
        w = w - beside
    ratio = 1.0
    if not out and norm(w) > 0 and norm(u) > 0:
        low, high = options["phi_bounds"]
        below, above = options["trust_bounds"]
        ratio = min(max(min(max(norm(w), low), high) / (norm(u) + options["ratio_eps"]), below), above)
    return w - rate * corrected * ratio * u - (beside if options["decay"] == "outside" else 0.0), m, s


def clipped(grads: list, options: dict) -> list:
    """All gradients after LAMB's clip or pre-normalisation by their common norm."""
    total = math.sqrt(sum(norm(g) ** 2 for g in grads))
    if options["pre_normalize"] and total > 0:
        return [g / total for g in grads]
    return [g * min(1.0, options["max_grad_norm"] / total) for g in grads] if total > 0 else grads


def difference(kind: str, dialect: str, seed: int = 0, steps: int = STEPS) -> float:
    """Largest difference, relative to the largest weight, between `labkit.optim` and the rule written out over `steps`
    steps at rates that rise and fall.

    Args:
        kind: "lars" or "lamb".
        dialect: a name of `labkit.optim.dialects`.
    """
    choose("optimizer", kind, ("lars", "lamb"))
    options = dialects.resolved(getattr(dialects, kind.upper()), dialect, {})
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape) * (n != 2) for n, shape in enumerate(TENSORS)]
    decays, adapts = [DECAY, DECAY, DECAY, 0.0], [True, True, True, False]
    params = [torch.tensor(w, requires_grad=True) for w in weights]
    groups = [{"params": params[:3]}, {"params": params[3:], "weight_decay": 0.0, "adapt": False}]
    peak = 4.0 if kind == "lars" else 0.02
    schedule = Schedule(peak, steps, warmup_steps=steps / 5, ramp="first-step", decay="poly", decay_from="warmup-end")
    if kind == "lars":
        optimizer = optim.LARS(groups, lr=peak, momentum=MOMENTUM, weight_decay=DECAY, dialect=dialect)
    else:
        optimizer = optim.LAMB(groups, lr=peak, betas=BETAS, weight_decay=DECAY, dialect=dialect)
    states = [[np.zeros(shape) for _ in range(2)] for shape in TENSORS]
    worst = 0.0
    for step in range(steps):
        rate = schedule(step)
        grads = [0.3 * w + rng.normal(size=w.shape) * 10.0 ** rng.uniform(-2, 1) for w in weights]
        grads[1] *= step % 7 != 3  # a gradient that is exactly 0 now and then
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, g in zip(params, grads, strict=True):
            parameter.grad = torch.tensor(g)
        optimizer.step()
        if kind == "lamb":
            grads = clipped(grads, options)
        for n, g in enumerate(grads):
            if kind == "lars":
                weights[n], states[n][0] = lars(
                    weights[n], g, states[n][0], rate, MOMENTUM, decays[n], adapts[n], options
                )
            else:
                weights[n], *states[n] = lamb(
                    weights[n], g, *states[n], step + 1, rate, BETAS, decays[n], adapts[n], options
                )
        scale = max(float(np.abs(w).max()) for w in weights)
        errors = [np.abs(p.detach().numpy() - w).max() for p, w in zip(params, weights, strict=True)]
        worst = max(worst, float(max(errors)) / scale)
    return worst
