"""The exercises of lab 03: collectives that the reader writes (judged by `labs.puzzles`), and their costs by hand."""

import itertools
import math
from collections.abc import Mapping

from labkit.simulate import cost
from labkit.teach.exercises import exercise
from labs import cost_fit
from labs.answers import number
from labs.puzzles import PUZZLES, Attempt

NEAR = 0.006  # relative: three digits
ROUGH = 0.03  # the right method, too few digits

# 03.1: 64 ranks, 5 us a message, 10 GB/s, words of 4 bytes, adding up for nothing.
RANKS, ALPHA, BETA = 64, 5e-6, 4e-10
KILO, MEGA = 256, 2621440  # words: 1 KiB and 10 MiB


def micro(name: str, words: int) -> float:
    return 1e6 * cost.seconds(name, words, RANKS, ALPHA, BETA)


CROSSING = 4 * cost_fit.crossover("butterfly", "rabenseifner", RANKS, ALPHA, BETA) / 1024  # KiB
_BY_HAND = {
    "ring rounds": (126, ((63, "that is the reduce-scatter; the all-gather takes as many again"),
                          (128, "a rank has P - 1 neighbours to hear of, not P"),
                          (12, "that is 2 lg P, Rabenseifner's"))),
    "butterfly 1 KiB": (micro("butterfly", KILO), (
        (30.0, "those are the six latencies; each round also moves 256 words"),
        (micro("tree", KILO), "that is the tree, up and down; in a butterfly everyone has the sum after going up"))),
    "ring 10 MiB": (micro("ring", MEGA), (
        (2e6 * MEGA * BETA * 63 / 64, "those are the words alone; 126 latencies come on top"),
        (micro("ring", MEGA) / 2, "that is half of it: reduce-scatter and all-gather"),
        (1e6 * 126 * (ALPHA + MEGA * BETA), "a message of the ring holds n / P words, not n"))),
    "Rabenseifner 10 MiB": (micro("rabenseifner", MEGA), (
        (micro("butterfly", MEGA), "that is the butterfly: here the messages halve on the way"),
        (micro("ring", MEGA), "that is the ring: as many words, but 2 lg P rounds, not 2 (P - 1)"))),
    "crossing KiB": (CROSSING, (
        (CROSSING / 4, "those are thousands of words; a word has four bytes"),
        (CROSSING * 1024, "those are bytes; divide by 1024"),
        (2 * CROSSING, "Rabenseifner's has twice the rounds, so lg P more than the butterfly, not 2 lg P more"))),
}  # fmt: skip


def by_hand(answer):
    """A dictionary of `_BY_HAND`."""
    if not isinstance(answer, Mapping) or set(answer) != set(_BY_HAND):
        return f"give a dictionary with {', '.join(_BY_HAND)}"
    for key, (right, slips) in _BY_HAND.items():
        value = number(answer[key])
        if not math.isclose(value, right, rel_tol=NEAR):
            near = (why for wrong, why in slips if math.isclose(value, wrong, rel_tol=NEAR))
            if math.isclose(value, right, rel_tol=ROUGH):
                near = itertools.chain(near, ["that is near; give three digits"])
            why = next(near, "write rounds x alpha + words x beta, with the table of the Intuition")
            return f"{key}, {answer[key]!r}, is not right: {why}"
    return None


def puzzle(name: str):
    """The spec of a puzzle: what `puzzles.attempt(name, ...)` found."""

    def spec(answer):
        if not isinstance(answer, Attempt):
            return f'check what puzzles.attempt("{name}", your_function) returned, not {type(answer).__name__}'
        if answer.puzzle is not PUZZLES[name]:
            return f"that is an attempt at the puzzle {answer.puzzle.title!r}; this one is {PUZZLES[name].title!r}"
        return answer.problem

    return spec


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "03.b1",
            "ring reduce-scatter",
            puzzle("reduce-scatter"),
            (
                "Follow one block: it starts at the rank after its owner, goes once around, and everyone adds a part.",
                "In step s, rank r sends block r - s - 1 to r + 1 and adds what comes from r - 1 to block r - s - 2, "
                "all modulo P.",
            ),
        ),
        exercise(
            "03.b2",
            "ring all-reduce",
            puzzle("ring"),
            (
                "After the reduce-scatter, rank r owns block r. Send finished blocks around the same ring; do not add.",
                "In step s of the second half, rank r sends block r - s and writes what comes over block r - s - 1.",
            ),
        ),
        exercise(
            "03.1",
            "costs by hand",
            by_hand,
            (
                "A word costs 4 bytes / 10 GB/s = 0.4 ns. lg 64 = 6. 1 KiB is 256 words, 10 MiB are 2 621 440.",
                "The crossing: 6 alpha + 6 n beta = 12 alpha + 2 n beta x 63/64. Solve for n, times 4 / 1024.",
            ),
        ),
        exercise(
            "03.2",
            "broadcast by a tree",
            puzzle("broadcast"),
            (
                "In round k, let the ranks below 2^k, who have the array, send it to the rank 2^k above them.",
                "A rank receives once, from the rank that is its number without the highest bit; before that it does "
                "nothing, and afterwards it only sends.",
            ),
        ),
        exercise(
            "03.3",
            "butterfly for any number of ranks",
            puzzle("butterfly"),
            (
                "For P = 2^k: exchange everything with rank ^ 1, rank ^ 2, rank ^ 4 ... and add.",
                "Else let core be the largest power of two in P. Rank core + i gives its array to rank i before, and "
                "gets the sum from it after; only the first core ranks exchange.",
            ),
        ),
        exercise(
            "03.4",
            "tree all-reduce",
            puzzle("tree"),
            (
                "Up: in round k the ranks with an odd multiple of 2^k give their array to the rank 2^k below and are done.",
                "Down: the same pairs, backwards, with the largest distance first; receive over your array, do not add.",
            ),
        ),
        exercise(
            "03.5",
            "Rabenseifner's all-reduce",
            puzzle("rabenseifner"),
            (
                "Keep a range of blocks, at first all. With the partner half of the ranks away: give one half of the range, "
                "add what comes to the other half, keep that. Then with the partner a quarter away.",
                "At the end each rank has the sum of one block. Now go back: nearest partner first, exchange the ranges, "
                "until each has all. For other numbers of ranks fold before and after, as in the butterfly.",
            ),
        ),
        exercise(
            "03.6",
            "six ranks, no words too many",
            puzzle("six"),
            (
                "6 = 2 x 3. Do not fold: reduce-scatter inside groups, deal with the other group, all-gather inside.",
                "In rings of three, two rounds leave every rank a third of its group's sum. The rank with the same "
                "third in the other group has what is missing.",
            ),
        ),
        exercise(
            "03.7",
            "six ranks in five rounds",
            puzzle("five rounds"),
            (
                "Where one half of the algorithm ends by a message and the other begins by one, between the same ranks, "
                "both can go at once.",
                "The two ranks with the same third of their groups' sums swap the whole thirds: both have the sum of it.",
            ),
        ),
    )
}
