"""What every rule returns, and what several need."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Finding:
    """An outcome (`holds`, `partly`, `not seen`, `contradicted`, `not attempted`), the evidence in words, how many
    runs, and the fraction of the flat set of base rates on which it held."""

    outcome: str
    evidence: str
    runs: int = 0
    fraction: float | None = None


def needs(what: str) -> Finding:
    """Not attempted, and what would be needed."""
    return Finding("not attempted", f"needs {what}")


def chosen(runs, select: dict):
    """Runs whose configuration has all of these values."""
    return [run for run in runs if all(run.config.get(key) == value for key, value in select.items())]


def interval(values) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % interval of a mean by Student's t, infinite for a single value, NaN if one is NaN."""
    mean, count = float(np.mean(values)), len(values)
    half = math.inf if count < 2 else stats.t.isf(0.025, count - 1) * np.std(values, ddof=1) / math.sqrt(count)
    return mean, float(mean - half), float(mean + half)
