"""What collectives cost in the alpha-beta-gamma model, in closed form, and the model fitted to measured times.

T = rounds x alpha + words x beta + added x gamma: alpha in s per message, beta in s per word sent, gamma in s per word
added, all along the critical path (`labkit.simulate.trace` says what a round is). The counts are exact for every
length n and number of ranks P. The usual formulas (Chan et al.) are their case P = 2^k with n a multiple of P; else
butterfly and rabenseifner fold the ranks beyond the last power of two into others: two more rounds of n words.

When not to use it: where messages share links, or where sending overlaps with adding."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from labkit.errors import RequestError, choose

ALL_REDUCE = ("naive", "tree", "butterfly", "ring", "rabenseifner", "hierarchical")


class Counts(NamedTuple):
    """Along the critical path: messages after each other, words sent, words added."""

    rounds: int
    words: int
    added: int


def group_size(size: int, group: int | None = None) -> int:
    """Ranks in a group of a hierarchical collective: `group`, which has to divide `size`, or the best square's side.

    Raises:
        RequestError: groups of `group` do not fill `size` ranks."""
    fits = [width for width in range(1, size + 1) if size % width == 0]
    if group not in (None, *fits):
        raise RequestError(f"{size} ranks do not fill groups of {group}; allowed: {', '.join(map(str, fits))}")
    return group or max(width for width in fits if width * width <= size)


def counts(collective: str, count: int, size: int, group: int | None = None) -> Counts:
    """Of `collective`, one of `ALL_REDUCE` or reduce_scatter, all_gather, broadcast, all_to_all, on `size` ranks.

    `count` is the length in words of each rank's array, `group` the ranks per group of the hierarchical one."""
    log, block, fold = (size - 1).bit_length(), -(-count // size), size & (size - 1) > 0
    deep, others = log - fold, size - 1
    halves = sum(-(-count // 2**level) for level in range(1, deep + 1))
    table = {
        "naive": (2 * others, 2 * others * count, others * count),
        "tree": (2 * log, 2 * log * count, log * count),
        "butterfly": (deep + 2 * fold, (deep + 2 * fold) * count, (deep + fold) * count),
        "ring": (2 * others, 2 * others * block, others * block),
        "rabenseifner": (2 * deep + 2 * fold, 2 * halves + 2 * fold * count, halves + fold * count),
        "reduce_scatter": (others, others * block, others * block),
        "all_gather": (others, others * block, 0),
        "broadcast": (log, log * count, 0),
        "all_to_all": (others, others * block, 0),
    }
    choose("collective", collective, [*table, "hierarchical"])
    if collective != "hierarchical":
        return Counts(*table[collective])
    inner = group_size(size, group)
    inside, across = counts("ring", count, inner), counts("ring", -(-count // inner), size // inner)
    return Counts(*(a + b for a, b in zip(inside, across, strict=True)))


def seconds(collective: str, count: int, size: int, alpha: float, beta: float, gamma: float = 0,
            group: int | None = None) -> float:
    rounds, words, added = counts(collective, count, size, group)
    return rounds * alpha + words * beta + added * gamma


def lower_bound(count: int, size: int, alpha: float, beta: float, gamma: float = 0) -> float:
    """Seconds that no all-reduce undercuts, as each of its terms has to be paid (Chan et al.)."""
    share = count * (size - 1) / size
    return (size - 1).bit_length() * alpha + 2 * share * beta + share * gamma


def best(count: int, size: int, alpha: float, beta: float, gamma: float = 0, among: Iterable = ALL_REDUCE) -> str:
    """The cheapest of `among`; of equals the first."""
    return min(among, key=lambda name: seconds(name, count, size, alpha, beta, gamma))


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
    if len(rows) <= 3 or not (rows[:, 3] > 0).all():
        raise RequestError("a fit needs at least 4 rows (rounds, words, added, seconds > 0)")
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
