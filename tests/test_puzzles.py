"""The referee of lab 03: what a word holds can be read back; right answers pass; each planted mistake is named by rank,
round and message, and none can hang."""

import itertools
import time

import numpy as np
import pytest
from labs import collective_extras, collective_figures, puzzle_faults, puzzles

from labkit.errors import RequestError
from labkit.training.collectives import ALL_REDUCE, broadcast


@pytest.mark.parametrize("size", [2, 5, 8])
def test_a_sum_says_whose_parts_it_holds_and_of_which_place(size):
    random = np.random.default_rng(0)
    for _ in range(50):
        counts = random.integers(0, 4, size)
        place = int(random.integers(0, 40))
        if counts.sum() == 0:
            continue
        value = sum(count * puzzle_faults.encoded(rank, 40)[place] for rank, count in enumerate(counts))
        assert puzzle_faults.decoded(value, size) == (tuple(counts), place)


def test_what_is_no_sum_of_parts_is_not_read_as_one():
    part = puzzle_faults.encoded(1, 4)
    mixed = puzzle_faults.decoded(part[0] + puzzle_faults.encoded(0, 4)[3], 2)
    assert mixed == ((1, 1), None)
    assert [puzzle_faults.decoded(value, 2) for value in (np.nan, np.inf, -part[0], part[0] / 2**8, 0.0)] == [None] * 5


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_every_all_reduce_of_the_kit_gives_the_right_sum(name):
    for size, words in itertools.product((2, 3, 4, 5, 6, 7, 8), (24, 7, 1)):
        assert puzzles.play(puzzles.PUZZLES["ring"], ALL_REDUCE[name], size, words).problem is None


@pytest.mark.parametrize(
    "puzzle, function",
    [("ring", ALL_REDUCE["ring"]), ("butterfly", ALL_REDUCE["butterfly"]), ("broadcast", broadcast)],
)
def test_the_usual_algorithms_solve_their_puzzles(puzzle, function):
    found = puzzles.attempt(puzzle, function)
    assert found.problem is None and found.size == max(found.puzzle.scored)
    rounds, words = found.puzzle.goal(found.size, found.words)
    assert (found.trace.rounds, found.trace.words) == (rounds, words)


# Planted mistakes, each with words that its message has to hold.


def overwrites(array, comm):
    distance = 1
    while distance < comm.size:
        array[:] = comm.sendrecv(array, comm.rank ^ distance, len(array), comm.rank ^ distance)
        distance *= 2


def same_partner_twice(array, comm):
    for _ in range(2):
        array += comm.sendrecv(array, comm.rank ^ 1, len(array), comm.rank ^ 1)


def one_round_short(array, comm):
    distance = 1
    while 2 * distance < comm.size:
        array += comm.sendrecv(array, comm.rank ^ distance, len(array), comm.rank ^ distance)
        distance *= 2


def takes_the_mean(array, comm):
    ALL_REDUCE["ring"](array, comm)
    array /= comm.size


def returns_a_number(array, comm):
    ALL_REDUCE["ring"](array, comm)
    return float(array[0])


def mixes_the_blocks(array, comm):
    ALL_REDUCE["ring"](array, comm)
    array[:] = np.roll(array, 1)


def waits_first(array, comm):
    array += comm.recv(len(array), (comm.rank - 1) % comm.size)
    comm.send(array, (comm.rank + 1) % comm.size)


def never_ends(array, comm):
    while True:
        array[0] += 1


def sleeps(array, comm):
    time.sleep(60)


def sends_too_much(array, comm):
    ALL_REDUCE["ring"](array, comm)
    comm.send(array, (comm.rank + 1) % comm.size)


def beyond_the_last(array, comm):
    comm.send(array, comm.rank + 1)


def wrong_length(array, comm):
    comm.sendrecv(array, comm.rank ^ 1, len(array) - 1, comm.rank ^ 1)


def divides_by_zero(array, comm):
    return array[: 1 // comm.rank]


def never_written(array, comm):
    return np.full(len(array), np.nan)


MISTAKES = {
    "its own part was overwritten by what came in round 2 from rank 2": overwrites,
    "its own part came back to it in round 2 from rank 1": same_partner_twice,
    "ranks 2, 3 are missing: no message to rank 0 ever held rank 2's part": one_round_short,
    "do not divide": takes_the_mean,
    "rank 0 returns": returns_a_number,
    "holds a sum of word": mixes_the_blocks,
    "waits for ever": waits_first,
    "still running": never_ends,
    "time.sleep(60)": sleeps,
    "never received": sends_too_much,
    "there are ranks 0 to 3": beyond_the_last,
    "expects": wrong_length,
    "ZeroDivisionError": divides_by_zero,
    "was never written": never_written,
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_named_with_the_ranks_tried(words):
    found = puzzles.attempt("butterfly", MISTAKES[words])
    assert words in found.problem and found.problem.startswith("with P = 4 and n = 24: "), found.problem
    assert found.ranks


def test_a_loop_that_sends_for_ever_is_stopped_and_drawn_in_part():
    def sends_for_ever(array, comm):
        while comm.size > 1:
            array += comm.sendrecv(array, comm.rank ^ 1, len(array), comm.rank ^ 1)

    found = puzzles.attempt("ring", sends_for_ever)
    assert "still running" in found.problem and "Only the first 36 of" in collective_figures.attempt(found)[1]


def test_the_messages_at_fault_are_marked():
    def marked(function):
        found = puzzles.attempt("butterfly", function)
        return [(m.round, m.source, m.dest) for m in (found.trace.messages[index] for index in found.wrong)]

    assert marked(overwrites) == [(2, 2, 0)]
    assert marked(same_partner_twice) == [(2, 1, 0)]
    assert sorted(message[1:] for message in marked(sends_too_much)) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert marked(one_round_short) == []  # what is missing was never sent


def test_who_waits_for_whom_is_drawn():
    found = puzzles.attempt("ring", waits_first)
    assert sorted(found.waits) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    alt = collective_figures.attempt(found)[1]
    assert "rank 0 waits for rank 3" in alt


def test_a_part_counted_twice_is_found_on_the_way_and_blamed_on_the_message_that_brought_it():
    def again(array, comm):  # a ring that adds in its second half too
        size, rank = comm.size, comm.rank
        block = np.array_split(array, size)
        for step in range(2 * size - 2):
            into = block[(rank - step - 2) % size]
            into += comm.sendrecv(block[(rank - step - 1) % size], (rank + 1) % size, len(into), (rank - 1) % size)

    found = puzzles.attempt("ring", again)
    assert "before it sends in round 5: its own part came back to it in round 4 from rank 3" in found.problem
    assert [found.trace.messages[index][:2] for index in found.wrong] == [(3, 0)]


def test_a_block_in_the_wrong_place_is_found_where_it_is():
    def shifted(array, comm):
        size, rank = comm.size, comm.rank
        block = np.array_split(array, size)
        for step in range(size - 1):
            into = block[(rank - step - 1) % size]
            into += comm.sendrecv(block[(rank - step) % size], (rank + 1) % size, len(into), (rank - 1) % size)

    assert "The whole sum is in its words 6 to 11 instead" in puzzles.attempt("reduce-scatter", shifted).problem


def test_right_and_slow_is_told_both_numbers():
    slow = puzzles.attempt("butterfly", ALL_REDUCE["ring"]).problem
    assert "takes 14 rounds and 84 words" in slow and "3 rounds and 144 words are enough: double the distance" in slow
    heavy = puzzles.attempt("ring", ALL_REDUCE["butterfly"]).problem
    assert "takes 4 rounds and 144 words" in heavy and "10 rounds and 60 words are enough: send one block" in heavy


@pytest.mark.parametrize("name", ["naive", "tree", "butterfly", "ring", "rabenseifner", "hierarchical"])
def test_the_kit_s_own_collectives_solve_their_puzzles_and_two_that_of_six(name):
    if name in puzzles.PUZZLES:
        assert puzzles.attempt(name, ALL_REDUCE[name]).problem is None
    assert (puzzles.attempt("six", ALL_REDUCE[name]).problem is None) == (name == "hierarchical")
    assert puzzles.attempt("six", collective_extras.all_reduce_circulant).problem is None


@pytest.mark.parametrize("name", ["ring", "butterfly", "rabenseifner", "hierarchical", "circulant"])
def test_no_algorithm_of_the_kit_needs_only_five_rounds(name):
    function = ALL_REDUCE.get(name, collective_extras.all_reduce_circulant)
    problem = puzzles.attempt("five rounds", function).problem
    assert "5 rounds and 60 words are enough" in problem
    assert ("the last message" in problem) == (name in ("ring", "hierarchical", "circulant"))  # those have the fewest words


@pytest.mark.parametrize("function", [lambda array, comm: ..., lambda array, comm: None, lambda array, comm: ... + 1])
def test_an_unfilled_function_is_no_attempt(function, capsys):
    assert puzzles.attempt("ring", function) is None
    collective_figures.show(None)
    assert "Nothing to draw yet" in capsys.readouterr().out


def test_an_unknown_puzzle_is_refused():
    with pytest.raises(RequestError, match="unknown puzzle 'rings'; allowed: broadcast"):
        puzzles.attempt("rings", broadcast)


def test_the_score_stands_beside_the_bounds():
    found = puzzles.attempt("ring", ALL_REDUCE["ring"])
    assert found.score == "P = 6, n = 36: 10 rounds (at least 3), 60 words on the critical path (at least 60)"
    figure, alt, data = collective_figures.attempt(found)
    assert found.score in alt and set(data["from>to:words"]) == {"0>1:6 1>2:6 2>3:6 3>4:6 4>5:6 5>0:6"}
    assert len(data) == 10


def test_a_thousand_rounds_are_drawn_in_part():
    def chatter(array, comm):
        for _ in range(100):
            comm.sendrecv(array, comm.rank ^ 1, len(array), comm.rank ^ 1)

    alt = collective_figures.attempt(puzzles.attempt("butterfly", chatter))[1]
    assert "Only the first 36 of 100 rounds are drawn" in alt


SHARED = {}


def shares_besides(array, comm):
    """A cheat: the ranks meet in a global, and send empty messages."""
    SHARED[comm.rank] = array.copy()
    for step in range(comm.size - 1):
        comm.sendrecv(array[:0], (comm.rank + 1) % comm.size, 0, (comm.rank - 1) % comm.size)
    array[:] = sum(SHARED[rank] for rank in range(comm.size))


@pytest.mark.parametrize("name", ["ring", "six"])
def test_what_is_below_the_bounds_is_no_answer(name):
    assert "less than any program needs" in puzzles.attempt(name, shares_besides).problem


def test_an_answer_of_texts_is_told_as_that():
    assert "returns no array of real numbers" in puzzles.attempt("ring", lambda array, comm: array.astype(str)).problem


def test_an_error_that_speaks_of_an_ellipsis_is_an_error():
    def wrong(array, comm):
        raise ValueError("my ellipsis")

    assert "my ellipsis" in puzzles.attempt("ring", wrong).problem
