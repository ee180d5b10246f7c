"""What collectives cost in the alpha-beta-gamma model, in closed form.

T = rounds x alpha + words x beta + added x gamma: alpha in s per message, beta in s per word sent, gamma in s per word
added, all along the critical path (`labkit.simulate.trace` says what a round is). The counts are exact for every
length n and number of ranks P. The usual formulas (Chan et al.) are their case P = 2^k with n a multiple of P; else
butterfly and rabenseifner fold the ranks beyond the last power of two into others: two more rounds of n words.

When not to use it: where messages share links, or where sending overlaps with adding."""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from labkit.errors import RequestError, choose

ALL_REDUCE = ("naive", "tree", "butterfly", "ring", "rabenseifner", "hierarchical")


class Counts(NamedTuple):
    """Along the critical path: messages after each other, words sent, words added."""

    rounds: int
    words: int
    added: int


def _check(count, size, *prices) -> None:
    whole = hasattr(count, "__index__") and hasattr(size, "__index__")
    if not (whole and min(count, size - 1, *prices) >= 0 and sum(prices) < inf):
        raise RequestError(f"{count} words, {size} ranks, prices {prices}: from 0, 1, 0 on, words and ranks whole")


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

    `count`: words of each rank's array, `group`: ranks per group of a hierarchical one. RequestError: out of range."""
    _check(count, size)
    log, block, fold = (int(size) - 1).bit_length(), -(-count // size), size & (size - 1) > 0
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
    """Seconds of a collective of `count` words on `size` ranks; constants in s a message, a word sent, a word added."""
    _check(count, size, alpha, beta, gamma)
    rounds, words, added = counts(collective, count, size, group)
    return rounds * alpha + words * beta + added * gamma


def lower_bound(count: int, size: int, alpha: float, beta: float, gamma: float = 0) -> float:
    """Seconds that no all-reduce undercuts, as each of its terms has to be paid (Chan et al.)."""
    _check(count, size, alpha, beta, gamma)
    share = count * (size - 1) / size
    return (int(size) - 1).bit_length() * alpha + 2 * share * beta + share * gamma


def best(count: int, size: int, alpha: float, beta: float, gamma: float = 0, among: Iterable = ALL_REDUCE) -> str:
    """The cheapest of `among`; of equals the first."""
    return min(among, key=lambda name: seconds(name, count, size, alpha, beta, gamma))
