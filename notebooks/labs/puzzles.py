"""Lab 03's puzzles and their referee: a learner's collective is run on virtual ranks, for several numbers of ranks and
lengths; what is wrong is said by rank, round and message (`labs.puzzle_faults`), and rounds and words are scored.

When not to use it: for what you found somewhere. Threads keep it from hanging the notebook; they are no sandbox."""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit.errors import choose
from labkit.simulate import traced
from labs.puzzle_faults import encoded, lost, verdict

LIMIT, BUDGET = 0.2, 0.8  # seconds: of one run, and of all runs of an attempt


@dataclass(frozen=True)
class Puzzle:
    """A task: `wanted(rank, size, words)` lists, for each word that counts, (its place in the result, the ranks whose
    part belongs there). `goal(size, words)` is (rounds, words) that have to be reached; `least` the lower bounds."""

    title: str
    wanted: Callable
    goal: Callable
    least: Callable
    sizes: tuple = (4, 2, 3, 5, 6, 8)
    scored: tuple = (8,)
    slow: str = ""  # what to say to an answer with too many rounds
    heavy: str = ""  # and to one with too many words


@dataclass
class Attempt:
    """What came of an answer: `problem` is None if it is right and fast enough; `trace` is the run that is drawn, with
    `wrong` the messages at fault, `ranks` the ranks whose result is wrong, `waits` the pairs (source, rank) in vain."""

    puzzle: Puzzle
    size: int
    words: int
    trace: traced.Trace
    problem: str | None = None
    wrong: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    waits: list[tuple] = field(default_factory=list)

    @property
    def score(self) -> str:
        least = self.puzzle.least(self.size, self.words)
        return (f"P = {self.size}, n = {self.words}: {self.trace.rounds} rounds (at least {least[0]}), "
                f"{self.trace.words} words on the critical path (at least {math.ceil(least[1])})")


def lg(ranks: int) -> int:
    """The logarithm to the base 2, rounded up."""
    return (ranks - 1).bit_length()


def everywhere(rank: int, size: int, words: int) -> list:
    return [(place, range(size)) for place in range(words)]


def own_block(rank: int, size: int, words: int) -> list:
    return [(int(place), range(size)) for place in np.array_split(np.arange(words), size)[rank]]


def from_root(rank: int, size: int, words: int) -> list:
    return [(place, [0]) for place in range(words)]


def core(ranks: int) -> int:
    """The largest power of two in it: the ranks that are left when the others have folded into them."""
    return 1 << (ranks.bit_length() - 1)


def both(size: int, words: int) -> tuple:
    return lg(size), 2 * words * (size - 1) / size


PUZZLES = {
    "broadcast": Puzzle(
        "broadcast", from_root, lambda size, n: (lg(size), n * lg(size)), lambda size, n: (lg(size), n), scored=(5, 8),
        slow="let every rank that has the array pass it on: the number of those that have it can double in each round",
        heavy="let every rank that has the array pass it on, so that those who have it double in each round",
    ),
    "reduce-scatter": Puzzle(
        "ring reduce-scatter", own_block, lambda size, n: (size - 1, n * (size - 1) / size),
        lambda size, n: (lg(size), n * (size - 1) / size), scored=(6,),
        slow="every rank can send in every round, all at once: use sendrecv",
        heavy="send one block a round, not the whole array",
    ),
    "ring": Puzzle(
        "ring all-reduce", everywhere, lambda size, n: (2 * (size - 1), 2 * n * (size - 1) / size), both, scored=(6,),
        slow="every rank can send in every round, all at once: use sendrecv",
        heavy="send one block a round, not the whole array",
    ),
    "butterfly": Puzzle(
        "butterfly all-reduce", everywhere,
        lambda size, n: tuple((lg(size) + (size & (size - 1) > 0)) * each for each in (1, n)), both,
        sizes=(4, 2, 8, 3, 5, 6, 7), scored=(8, 6),
        slow="double the distance after every exchange; a fold takes one round before and one after",
        heavy="each rank sends its array once a round",
    ),
    "tree": Puzzle(
        "tree all-reduce", everywhere, lambda size, n: (2 * lg(size), 2 * n * lg(size)), both, scored=(8, 5),
        slow="halve the number of those that still have a partial sum in every round; then double those that have the sum",
        heavy="each rank sends its array up once and the sum on; every second rank can send in the first round",
    ),
    "rabenseifner": Puzzle(
        "Rabenseifner's all-reduce", everywhere,
        lambda size, n: (2 * lg(core(size)) + 2 * (core(size) < size),
                         2 * n * (core(size) - 1) / core(size) + 2 * n * (core(size) < size)), both,
        sizes=(4, 2, 8, 3, 5, 6, 7), scored=(8, 6),
        slow="halve the part that you still sum in every round, then double the part that you have",
        heavy="send half of the part that you still sum, then a quarter, an eighth; only a fold sends whole arrays",
    ),
    "six": Puzzle(
        "all-reduce for six ranks", everywhere, lambda size, n: (6, 5 * n / 3), both, sizes=(6,), scored=(6,),
        slow="6 = 2 x 3: reduce-scatter inside groups, across them, and all-gather inside need not take more than 6",
        heavy="a fold sends whole arrays; let every message be a part",
    ),
    "five rounds": Puzzle(
        "six ranks in five rounds", everywhere, lambda size, n: (5, 5 * n / 3), both, sizes=(6,), scored=(6,),
        slow="look at what the last message of the one half and the first of the other half say to each other",
        heavy="let every message be a part; whole arrays are too much in any round",
    ),
}  # fmt: skip


def attempt(name: str, function: Callable) -> Attempt | None:
    """Run `function(array, comm)` on virtual ranks, several numbers of ranks and lengths; None if it is unfilled.

    It works in place, or returns its result. At the first run that goes wrong the rest is left out.

    Raises:
        RequestError: there is no puzzle of that name."""
    choose("puzzle", name, PUZZLES)
    puzzle, begin, scored = PUZZLES[name], time.monotonic(), []
    for size in puzzle.sizes:
        for words in (6 * size, 2 * size + 1, 1):
            found = play(puzzle, function, size, words, max(0.05, min(LIMIT, BUDGET - (time.monotonic() - begin))))
            if found is None or found.problem:
                return found
            if time.monotonic() - begin > BUDGET:
                found.problem = f"right up to {size} ranks, but computing took more than {BUDGET:g} s; loop less"
                return found
            if size in puzzle.scored and words == 6 * size:
                scored.append(found)
    for found in sorted(scored, key=lambda found: puzzle.scored.index(found.size)):
        least = puzzle.least(found.size, found.words)
        if found.trace.rounds < least[0] or found.trace.words < least[1] - 1e-9:
            found.problem = (f"{found.score}: that is less than any program needs whose ranks know of each other by "
                             "messages alone; what they share besides does not exist on real machines")  # fmt: skip
            return found
        rounds, words = puzzle.goal(found.size, found.words)
        why = puzzle.heavy if found.trace.words > words else puzzle.slow if found.trace.rounds > rounds else ""
        if why:
            found.problem = (f"the result is right, but at P = {found.size}, n = {found.words} it takes "
                             f"{found.trace.rounds} rounds and {found.trace.words} words on the critical path; "
                             f"{rounds} rounds and {words:g} words are enough: {why}")  # fmt: skip
            return found
    return max(scored, key=lambda found: found.size)


def play(puzzle: Puzzle, function: Callable, size: int, words: int, limit: float = LIMIT) -> Attempt | None:
    """One run on `size` ranks with `words` words each."""

    def rank(comm):
        array = encoded(comm.rank, words)
        with np.errstate(all="ignore"):  # a loop that never ends overflows on its way
            found = function(array, comm)
        return array if found is None else found, found is None

    where = f"with P = {size} and n = {words}"
    try:
        trace = traced.run(rank, size, limit=limit)
    except traced.TraceError as error:
        if isinstance(error.__cause__, TypeError) and "ellipsis" in str(error.__cause__):
            return None  # arithmetic on the `...` of an unfilled line
        advice = "; one has to send first, or both at once by sendrecv" if error.kind == "deadlock" else ""
        found = Attempt(puzzle, size, words, error.trace, f"{where}: {error}{advice}", ranks=[error.rank])
        if error.kind == "unreceived":
            found.wrong = lost(error.trace)
        elif error.kind == "deadlock":
            found.waits = [(int(source), int(waiting)) for waiting, source in
                           re.findall(r"rank (\d+) in round \d+ for rank (\d+)", str(error))]  # fmt: skip
        return found
    silent = not trace.sent and all(empty for _, empty in trace.results)
    if any(result is ... for result, _ in trace.results):
        return None
    if silent and all(np.array_equal(result, encoded(r, words)) for r, (result, _) in enumerate(trace.results)):
        return None
    trace.results = [result for result, _ in trace.results]
    kinds = [np.asarray(result).dtype for result in trace.results]
    if any(kind.kind not in "fiub" for kind in kinds):
        said = f"rank {next(r for r, kind in enumerate(kinds) if kind.kind not in 'fiub')} returns no array of real numbers", [], []
    else:
        said = verdict(puzzle.wanted, trace, words)
    return Attempt(puzzle, size, words, trace) if said is None else Attempt(
        puzzle, size, words, trace, f"{where}: {said[0]}", said[1], said[2])  # fmt: skip
