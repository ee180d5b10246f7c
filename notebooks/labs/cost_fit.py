"""Where two all-reduces cost the same in the model of `labkit.simulate.cost`, and its parameters from timings."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from labkit.errors import RequestError
from labkit.simulate.cost import counts, seconds


def crossover(first: str, second: str, size: int, alpha: float, beta: float, gamma: float = 0) -> float | None:
    """The length in words above which the other one of two all-reduces is the cheaper; None where one always is."""
    unit = size << size.bit_length()  # a length that every algorithm cuts into equal parts
    start = [counts(name, unit, size).rounds * alpha for name in (first, second)]
    slope = [seconds(name, unit, size, 0, beta, gamma) / unit for name in (first, second)]
    gap = start[1] - start[0], slope[0] - slope[1]
    return gap[0] / gap[1] if gap[0] * gap[1] > 0 else None


class Fit(NamedTuple):
    """The model's parameters, their standard errors (nan where one is held at 0), and the rms of relative residuals."""

    alpha: float
    beta: float
    gamma: float
    errors: tuple[float, float, float]
    rms: float


def fit(samples: Iterable) -> Fit:
    """Non-negative least squares on relative errors over rows (rounds, words, added, seconds measured).

    A column of zeros, as `added` is where nothing was added up, leaves its parameter 0.

    Raises:
        RequestError: not more rows than parameters, or a time that is not positive."""
    rows = np.array([tuple(row) for row in samples], float).reshape(-1, 4)
    if len(rows) <= 3 or not (rows[:, 3] > 0).all() or not np.isfinite(rows).all() or rows.min() < 0:
        raise RequestError("a fit needs at least 4 rows (rounds, words, added, seconds > 0), finite and none below 0")
    table = rows[:, :3] / rows[:, 3:]
    scale = np.linalg.norm(table, axis=0)
    found = None
    for kept in itertools.product((True, False), repeat=3):  # few enough to try every set of parameters that are not 0
        kept = np.array(kept) & (scale > 0)
        columns = table[:, kept] / scale[kept]
        values = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0]
        loss = float(((columns @ values - 1) ** 2).sum())
        if (values >= 0).all() and (found is None or loss < found[0]):
            found = loss, kept, values, columns
    loss, kept, values, columns = found
    estimate, errors = np.zeros(3), np.full(3, np.nan)
    estimate[kept] = values / scale[kept]
    spread = np.linalg.pinv(columns.T @ columns) * loss / (len(rows) - kept.sum())
    errors[kept] = np.sqrt(np.diag(spread)) / scale[kept]
    return Fit(*map(float, estimate), tuple(map(float, errors)), float(np.sqrt(loss / len(rows))))
