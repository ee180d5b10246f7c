"""Weights in fixed point: rounding to nearest stalls where updates are smaller than half a step; stochastic does not.

Source: the survey's discussion of low precision, after its reference 88 (Gupta et al.); the problem is our own.
Q(x) = step floor(x / step + u): u = 1/2 is nearest, u uniform in [0, 1) is stochastic, whose mean over u is x. When not
to use it: to save memory or time. The arithmetic is float64; only the weights' values are those of few bits."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.errors import RequestError, choose

ROUNDINGS = ("stochastic", "nearest")


def rounded(x: np.ndarray, bits: int, span: float, rounding: str, rng: np.random.Generator | None = None) -> np.ndarray:
    """x in fixed point of `bits` bits (sign included): multiples of span / 2^(bits - 1) in [-span, span), clipped.

    Raises:
        RequestError: unknown rounding, fewer than 2 bits, or stochastic without a generator."""
    choose("rounding", rounding, ROUNDINGS)
    if bits < 2 or (rounding == "stochastic" and rng is None):
        raise RequestError(f"bits {bits} must be 2 or more, and stochastic rounding needs rng=np.random.default_rng(0)")
    step = span / 2 ** (bits - 1)
    u = 0.5 if rounding == "nearest" else rng.random(np.shape(x))
    return np.clip(step * np.floor(np.asarray(x) / step + u), -span, span - step)


def train(rounding: str | None, seed: int, bits: int = 8, rate: float = 0.02, steps: int = 1000, batch: int = 32,
          weights: int = 50, span: float = 4.0) -> np.ndarray:
    """Mean squared error of noisy linear regression over all 512 samples, before each step of SGD and at the end.

    The same seed gives the same samples, targets and batches whatever the rounding; only the draws of u are extra.

    Args:
        rounding: one of `ROUNDINGS`; None keeps float64.

    Returns:
        [steps + 1]."""
    data, noise = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    x, truth = data.standard_normal((512, weights)), data.standard_normal(weights)
    y = x @ truth + 0.1 * data.standard_normal(len(x))
    w, losses = np.zeros(weights), []
    for chosen in data.integers(len(x), size=(steps, batch)):
        losses.append(np.mean((x @ w - y) ** 2))
        w = w - rate * 2 / batch * x[chosen].T @ (x[chosen] @ w - y[chosen])
        if rounding is not None:
            w = rounded(w, bits, span, rounding, noise)
    return np.array([*losses, np.mean((x @ w - y) ** 2)])


def study(seeds: Sequence[int], **options) -> pd.DataFrame:
    """Columns seed, rounding (float64 too), step, loss."""
    parts = []
    for seed in seeds:
        for name in (*ROUNDINGS, None):
            losses = train(name, seed, **options)
            parts.append(pd.DataFrame({"seed": seed, "rounding": name or "float64", "step": range(len(losses)),
                                       "loss": losses}))
    return pd.concat(parts, ignore_index=True)


def evidence(table: pd.DataFrame) -> list[tuple]:
    """Rows for `lab.evidence`: the final loss of each rounding, in the order of the seeds (samples: the seed)."""
    last = table[table["step"] == table["step"].max()].sort_values("seed")
    return [(row.rounding, row.loss, int(row.seed)) for row in last.itertuples()]
