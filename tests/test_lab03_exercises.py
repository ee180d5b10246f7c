"""Lab 03's exercises: every solution passes; a planted mistake is told apart by its own message."""

import itertools
import math

import numpy as np
import pytest
from labs import lab03, puzzles
from labs.collective_extras import all_reduce_circulant

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labkit.training.collectives import ALL_REDUCE

SOURCE = (notebooks() / "src" / "03_allreduce_puzzles.py").read_text(encoding="utf-8")
PUZZLES = {"03.b1": "reduce-scatter", "03.b2": "ring", "03.2": "broadcast", "03.3": "butterfly", "03.4": "tree",
           "03.5": "rabenseifner", "03.7": "five rounds"}  # fmt: skip
GIVEN = {
    "03.b1": "P, r = comm.size, comm.rank\nblock = np.array_split(array, P)",
    "03.b2": "P, r = comm.size, comm.rank\nblock = np.array_split(array, P)",
    "03.3": "core = 1\nwhile 2 * core <= comm.size:\n    core *= 2",
    "03.5": "core = 1\nwhile 2 * core <= comm.size:\n    core *= 2\n"
            "edge = np.linspace(0, len(array), core + 1).astype(int)",
}  # what the reader's cell holds above the solution


def solved(id):
    body = GIVEN.get(id, "") + "\n" + solution_code(SOURCE, id)
    space = {"np": np}
    exec("def answer(array, comm):\n" + "\n".join("    " + line for line in body.splitlines()), space)
    return space["answer"]


@pytest.mark.parametrize("id", PUZZLES)
def test_the_solutions_are_right_and_as_fast_as_asked(id, capsys):
    found = puzzles.attempt(PUZZLES[id], solved(id))
    assert check(id, found) is True
    goal = found.puzzle.goal(found.size, found.words)
    assert (found.trace.rounds, found.trace.words) == goal


@pytest.mark.parametrize("id", GIVEN)
def test_what_the_tests_put_above_a_solution_is_in_the_readers_cell(id):
    for line in GIVEN[id].splitlines():
        assert line.strip() in SOURCE


def test_the_solution_of_six_meets_both_numbers_for_every_length_that_three_divides():
    for words in (3, 6, 36, 300):
        found = puzzles.play(puzzles.PUZZLES["six"], solved("03.7"), 6, words)
        assert found.problem is None and (found.trace.rounds, found.trace.words) == (5, 5 * words / 3)


def test_the_fold_of_the_butterfly_works_for_any_number_of_ranks():
    for size in range(2, 9):
        found = puzzles.play(puzzles.PUZZLES["butterfly"], solved("03.3"), size, 5)
        core = 2 ** int(math.log2(size))
        assert found.problem is None and found.trace.rounds == math.log2(core) + 2 * (core < size)


@pytest.mark.parametrize("id", PUZZLES)
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    assert check(id, puzzles.attempt(PUZZLES[id], lambda array, comm: ...)) is None


def halves_twice(array, comm):
    """Rabenseifner's without a fold: right for a power of two only."""
    low, high = 0, comm.size
    while high - low > 1:
        middle = (low + high) // 2
        other = comm.rank + (middle - low if comm.rank < middle else low - middle)
        array += comm.sendrecv(array, other, len(array), other)
        low, high = (low, middle) if comm.rank < middle else (middle, high)


def root_sends_to_all(array, comm):
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.send(array, other)
    else:
        array[:] = comm.recv(len(array), 0)


def adds_in_a_broadcast(array, comm):
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.send(array, other)
    else:
        array += comm.recv(len(array), 0)


def whole_arrays_around(array, comm):
    travelling = array.copy()
    for _ in range(comm.size - 1):
        travelling = comm.sendrecv(travelling, (comm.rank + 1) % comm.size, len(array), (comm.rank - 1) % comm.size)
        array += travelling


def no_fold(array, comm):
    distance = 1
    while distance < comm.size:
        array += comm.sendrecv(array, comm.rank ^ distance, len(array), comm.rank ^ distance)
        distance *= 2


def shifted_instead(array, comm):
    distance = 1
    while distance < comm.size:
        other = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        array += comm.sendrecv(array, other[0], len(array), other[1])
        distance *= 2


def three_rounds(array, comm):
    """All six in three rounds, the fewest of all, by windows of 2, 4 and 6 ranks: with whole arrays."""
    for distance in (1, 2):
        two = array.copy() if distance == 2 else None
        array += comm.sendrecv(array, (comm.rank - distance) % 6, len(array), (comm.rank + distance) % 6)
    array += comm.sendrecv(two, (comm.rank - 4) % 6, len(array), (comm.rank + 4) % 6)


def all_to_root_and_back(array, comm):
    if comm.rank:
        comm.send(array, 0)
        array[:] = comm.recv(len(array), 0)
    else:
        for other in range(1, comm.size):
            array += comm.recv(len(array), other)
        for other in range(1, comm.size):
            comm.send(array, other)


def folded_butterfly(array, comm):
    return ALL_REDUCE["butterfly"](array, comm)


MISTAKES = {
    ("03.b1", "send one block a round"): whole_arrays_around,
    ("03.2", "those who have it double in each round"): root_sends_to_all,
    ("03.2", "also holds the part of rank"): adds_in_a_broadcast,
    ("03.b2", "10 rounds and 60 words are enough"): whole_arrays_around,
    ("03.3", "with P = 3 and n = 18: rank 1, round 2: cannot send to rank 3"): no_fold,
    ("03.3", "with P = 3 and n = 18: rank 0 counts rank 0's part of word 0 twice"): shifted_instead,
    ("03.4", "every second rank can send in the first round"): all_to_root_and_back,
    ("03.5", "send half of the part that you still sum"): folded_butterfly,
    ("03.6", "takes 3 rounds and 108 words on the critical path; 6 rounds and 60 words are enough"): three_rounds,
    ("03.6", "with P = 6 and n = 36"): halves_twice,
    ("03.7", "5 rounds and 60 words are enough: look at what the last message"): all_reduce_circulant,
}


@pytest.mark.parametrize("id, words", MISTAKES)
def test_a_planted_mistake_has_its_own_message(id, words, capsys):
    found = puzzles.attempt(({"03.6": "six"} | PUZZLES)[id], MISTAKES[id, words])
    assert words in lab03.EXERCISES[id].spec(found)
    assert check(id, found) is False


def test_only_an_attempt_at_this_puzzle_counts():
    ring = puzzles.attempt("ring", solved("03.b2"))
    assert "not function" in lab03.EXERCISES["03.b2"].spec(lambda array, comm: array)
    assert "that is an attempt at the puzzle 'ring all-reduce'" in lab03.EXERCISES["03.6"].spec(ring)


def by_hand():
    space = {}
    exec(solution_code(SOURCE, "03.1"), space)
    return space["costs"]


def test_the_costs_by_hand_are_right_rounded_too(capsys):
    assert check("03.1", by_hand()) is True
    assert check("03.1", {key: float(f"{value:.3g}") for key, value in by_hand().items()}) is True
    assert check("03.1", {**by_hand(), "ring rounds": ...}) is None
    assert "give a dictionary" in lab03.by_hand({"ring rounds": 126})


@pytest.mark.parametrize(
    "key, value", [(key, value) for key, (_, slips) in lab03._BY_HAND.items() for value, _ in slips]
)
def test_a_wrong_cost_is_told_why(key, value):
    said = lab03.by_hand({**by_hand(), key: value})
    assert said.startswith(key) and dict(lab03._BY_HAND[key][1])[value] in said
    assert "rounds x alpha" in lab03.by_hand({**by_hand(), key: 0.123})


def test_the_slips_of_one_number_differ_from_each_other_and_from_the_right_one():
    for right, slips in lab03._BY_HAND.values():
        numbers = [right, *(value for value, _ in slips)]
        for one, other in itertools.combinations(numbers, 2):
            assert not math.isclose(one, other, rel_tol=2 * lab03.NEAR)
