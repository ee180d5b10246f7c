"""Lab 13's exercises: every solution passes, every planted mistake is told apart by its own message."""

import itertools
import math

import pytest

from labkit.paths import notebooks
from labkit.simulate import cost
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs import lab13

SOURCE = (notebooks() / "src" / "13_utilisation.py").read_text(encoding="utf-8")


def solved(id, head="", name="answer"):
    """What the solution of an exercise defines; `head` is the line that the solution's body stands under."""
    body = solution_code(SOURCE, id)
    if head:
        body = head + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math}
    exec(body, space)
    return space[name]


@pytest.mark.parametrize(
    "id, head, name",
    [
        ("13.1", "def answer(workers, size, alpha, beta, compute, overlap):", "answer"),
        ("13.2", "", "layer"),
        ("13.3", "def answer(events):", "answer"),
        ("13.4", "def answer(cell):", "answer"),
    ],
)
def test_the_solutions_are_right(id, head, name, capsys):
    assert check(id, solved(id, head, name)) is True


@pytest.mark.parametrize("id", sorted(lab13.EXERCISES))
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    unfilled = None if id == "13.2" else lambda *given: ...
    assert check(id, unfilled) is None


def share(compute, ring, overlap):
    return float(cost.step_seconds(compute, ring, overlap)[1])


def ring_of(seconds):
    return lambda p, n, a, b, c, o: (seconds(p, n, a, b), share(c, float(cost.ring_seconds(p, n, a, b)), o))


def share_of(found):
    def answer(p, n, a, b, c, o):
        ring = float(cost.ring_seconds(p, n, a, b))
        return ring, found(ring, c, o)

    return answer


RING_MISTAKES = {
    "one pass": ring_of(lambda p, n, a, b: (p - 1) * (a + n / p * b)),
    "not all n": ring_of(lambda p, n, a, b: 2 * (p - 1) * (a + n * b)),
    "messages themselves": ring_of(lambda p, n, a, b: 2 * (p - 1) / p * n * b),
    "P - 1 rounds": ring_of(lambda p, n, a, b: 2 * p * a + 2 * n * b),
    "without overlap": share_of(lambda r, c, o: r / (c + r)),
    "of the whole step": share_of(lambda r, c, o: max(0.0, r - o * c) / c),
    "cannot be negative": share_of(lambda r, c, o: (r - o * c) / (c + r - o * c)),
    "fraction of the computing": share_of(lambda r, c, o: (1 - o) * r / (c + (1 - o) * r)),
}


@pytest.mark.parametrize("words", RING_MISTAKES)
def test_a_wrong_ring_is_told_why(words):
    assert words in lab13.ring_and_share(RING_MISTAKES[words])


def layer_with(**changes):
    """The right answer of 13.2 with one part of it made by `changes[part](right numbers, batch)`."""
    right = {batch: lab13.layer_numbers(batch) for batch in (1, 64)}
    return {b: {**r, **{part: make(r, b) for part, make in changes.items()}} for b, r in right.items()}


LAYER_MISTAKES = {
    "two FLOPs": layer_with(FLOPs=lambda r, b: r["FLOPs"] / 2),
    "each image of the batch": layer_with(FLOPs=lambda r, b: 2 * 256 * 512),
    "forward only": layer_with(FLOPs=lambda r, b: 3 * r["FLOPs"]),
    "4 bytes": layer_with(bytes=lambda r, b: r["bytes"] / 4),
    "inputs and outputs move": layer_with(bytes=lambda r, b: 4 * 256 * 512),
    "writing counts": layer_with(bytes=lambda r, b: 4 * (b * 256 + 256 * 512)),
    "weights have to be read": layer_with(bytes=lambda r, b: 4 * b * (256 + 512)),
    "once a batch": layer_with(bytes=lambda r, b: 4 * b * (256 + 256 * 512 + 512)),
    "turn it over": layer_with(intensity=lambda r, b: r["bytes"] / r["FLOPs"]),
    "cannot feed": layer_with(attainable=lambda r, b: 100e9),
    "faster than the peak": layer_with(attainable=lambda r, b: 20e9 * r["intensity"]),
    "64 is missing": {1: lab13.layer_numbers(1)},
    "give a number": layer_with(bytes=lambda r, b: "a few"),
}


@pytest.mark.parametrize("words", LAYER_MISTAKES)
def test_a_wrong_number_of_the_layer_is_told_why(words):
    assert words in lab13.layer_on_the_roofline(LAYER_MISTAKES[words])


def test_the_layer_is_below_one_roof_at_batch_1_and_below_the_other_at_64():
    assert lab13.layer_numbers(1)["attainable"] < 100e9 == lab13.layer_numbers(64)["attainable"]


def without(*gone):
    kept = [name for name in lab13.MATRIX if name not in gone]
    return lambda events: lab13.share_outside(events, kept)


TRACE_MISTAKES = {
    "share of the matrix work": lambda events: 1 - lab13.share_outside(events),
    "add up self_us": lambda events: lab13.share_outside(events, key="total_us"),
    "divide by the whole": lambda events: 1 / (1 / lab13.share_outside(events) - 1),
    "share of the events": lambda events: (
        1 - sum(e["name"].removeprefix("aten::") in lab13.MATRIX for e in events) / len(events)
    ),
    "convolution_backward is matrix work": without("convolution_backward"),
    "whole recurrent layer": without("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    "backward pass of the recurrent": without("mkldnn_rnn_layer_backward"),
    "kernel behind conv2d": without("mkldnn_convolution"),
    "mm is a matrix product": without("mm"),
    "bmm is a batch": without("bmm"),
    "adds a bias": without("addmm"),
    "only call the kernels": lambda events: lab13.share_outside(
        events, (*lab13.MATRIX, "AddmmBackward0", "ConvolutionBackward0")
    ),
    "batch norm has no": lambda events: lab13.share_outside(
        events, (*lab13.MATRIX, "native_batch_norm", "native_batch_norm_backward")
    ),
    "number by number": lambda events: lab13.share_outside(events, (*lab13.MATRIX, "add_", "mul_", "addcmul_")),
    "return a number": lambda events: "most of it",
}


@pytest.mark.parametrize("words", TRACE_MISTAKES)
def test_a_wrong_reading_of_a_trace_is_told_why(words):
    assert words in lab13.outside_matrix_work(TRACE_MISTAKES[words])


def test_a_call_that_only_leads_to_a_kernel_may_be_counted_with_it():
    callers = (*lab13.MATRIX, "linear", "conv2d", "convolution", "lstm")
    assert lab13.outside_matrix_work(lambda events: lab13.share_outside(events, callers)) is None


def right(times):
    up = {cell: times[""] / t for cell, t in times.items()}
    term = max(lab13.TERMS, key=lambda x: abs(math.log(lab13.interaction(times, x))))
    return up["A"] * up["B"] * up["C"], up["ABC"], term, lab13.interaction(times, term)


def replaced(at, make):
    """The right answer with its part `at` made by `make(times, right answer)`."""
    return lambda t: tuple(make(t, right(t)) if n == at else part for n, part in enumerate(right(t)))


def chosen_by(size):
    def make(times):
        term = max(lab13.TERMS, key=lambda x: size(times, x))
        return (*right(times)[:2], term, lab13.interaction(times, term))

    return make


def up(times, cell):
    return times[""] / times[cell]


FACTORIAL_MISTAKES = {
    "the slow time over the fast": replaced(0, lambda t, r: 1 / r[0]),
    "product of the lesions": replaced(0, lambda t, r: math.prod(t[x] / t["ABC"] for x in ("AB", "AC", "BC"))),
    "you added them": replaced(0, lambda t, r: sum(up(t, x) for x in "ABC")),
    "that is the joint": replaced(0, lambda t, r: r[1]),
    "percentages do not": replaced(0, lambda t, r: 1 + sum(up(t, x) - 1 for x in "ABC")),
    "product of the single ones": replaced(1, lambda t, r: r[0]),
    "seconds saved": replaced(1, lambda t, r: t[""] - t["ABC"]),
    "must be one of": replaced(2, lambda t, r: "A"),
    "take the three pairs out": chosen_by(lambda t, x: abs(math.log(lab13.interaction(t, x, joint_only=True)))),
    "absolute logarithms": chosen_by(lab13.interaction),
    "fastest pair": chosen_by(lambda t, x: up(t, x) if len(x) == 2 else 0),
    "lies further from 1": replaced(
        2, lambda t, r: min(lab13.TERMS, key=lambda x: abs(math.log(lab13.interaction(t, x))))
    ),
    "you compare seconds": chosen_by(lambda t, x: abs(t[""] - t[x] - sum(t[""] - t[y] for y in x))),
    "turn it over: below 1": replaced(3, lambda t, r: 1 / r[3]),
    "its logarithm": replaced(3, lambda t, r: math.log(r[3])),
    "out of the three-way term": replaced(3, lambda t, r: lab13.interaction(t, r[2], joint_only=True)),
    "divide by the single": replaced(3, lambda t, r: up(t, r[2])),
    "all interactions do together": replaced(3, lambda t, r: r[1] / r[0]),
    "return four": lambda t: 2.0,
}


@pytest.mark.parametrize("words", FACTORIAL_MISTAKES)
def test_a_wrong_interaction_is_told_why(words):
    assert words in lab13.find_the_interaction(FACTORIAL_MISTAKES[words])


def test_what_was_planted_is_what_is_found():
    effects = {"A": 2.0, "B": 1.5, "C": 0.9, "AB": 0.6, "AC": 1.2, "BC": 1.1, "ABC": 1.3}
    times = lab13.planted(10.0, {x: effects[x] for x in "ABC"}, {x: effects[x] for x in lab13.TERMS})
    assert len(times) == 8 and times[""] == 10.0
    for term in lab13.TERMS:
        assert lab13.interaction(times, term) == pytest.approx(effects[term])
    assert times[""] / times["ABC"] == pytest.approx(math.prod(effects.values()))


def test_every_case_has_one_largest_term_and_they_are_not_all_the_same():
    found = []
    for times in lab13.CASES.values():
        sizes = sorted(abs(math.log(lab13.interaction(times, x))) for x in lab13.TERMS)
        assert sizes[-1] > 1.2 * sizes[-2]
        found.append(right(times)[2])
    assert len(set(found)) == 4


def test_the_messages_of_one_exercise_differ():
    for spec, mistakes in (
        (lab13.ring_and_share, RING_MISTAKES),
        (lab13.layer_on_the_roofline, LAYER_MISTAKES),
        (lab13.outside_matrix_work, TRACE_MISTAKES),
        (lab13.find_the_interaction, FACTORIAL_MISTAKES),
    ):
        said = {words: spec(answer) for words, answer in mistakes.items()}
        assert all(said[a] != said[b] for a, b in itertools.combinations(said, 2))
