"""Lab 13's exercises: every solution passes, every planted mistake is told apart by its own message."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

from labkit.paths import notebooks
from labs import cost
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
    "in percent": share_of(lambda r, c, o: 100 * share(c, r, o)),
    "give a number": share_of(lambda r, c, o: "half"),
    "return two numbers": lambda *given: {"ring": 1.0, "share": 0.5},
}


@pytest.mark.parametrize("words", RING_MISTAKES)
def test_a_wrong_ring_is_told_why(words):
    assert words in lab13.ring_and_share(RING_MISTAKES[words])


def rounded(answer, digits):
    """The answers of a function, each number to so many significant digits."""

    def short(part):
        return float(f"{part:.{digits}g}") if isinstance(part, float) else part

    def make(*given):
        found = answer(*given)
        return tuple(map(short, found)) if isinstance(found, tuple) else short(found)

    return make


@pytest.mark.parametrize("shape", [list, np.array, pd.Series, torch.tensor])
def test_a_ring_may_come_in_any_shape_and_rounded(shape):
    right = solved("13.1", "def answer(workers, size, alpha, beta, compute, overlap):")
    assert lab13.ring_and_share(lambda *given: shape(list(rounded(right, 4)(*given)))) is None
    assert "nearly: it is 0.0353219" in lab13.ring_and_share(rounded(right, 2))


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
    "inputs and outputs count too": layer_with(intensity=lambda r, b: b / 2),
    "GFLOP/s; give FLOP/s": layer_with(attainable=lambda r, b: r["attainable"] / 1e9),
    "(and give FLOP/s, not": layer_with(attainable=lambda r, b: 100),
    "with the bytes of the inputs": layer_with(attainable=lambda r, b: min(100e9, 20e9 * b / 2)),
    "faster than the peak (and": layer_with(attainable=lambda r, b: r["attainable"] if b == 1 else 20 * r["intensity"]),
    "look again at how bytes": layer_with(bytes=lambda r, b: 12345),
    "nearly: it is 0.497087": layer_with(intensity=lambda r, b: 0.49 if b == 1 else r["intensity"]),
    "64 is missing": {1: lab13.layer_numbers(1)},
    "give a number": layer_with(bytes=lambda r, b: "a few"),
}


@pytest.mark.parametrize("words", LAYER_MISTAKES)
def test_a_wrong_number_of_the_layer_is_told_why(words):
    assert words in lab13.layer_on_the_roofline(LAYER_MISTAKES[words])


def test_the_layer_is_below_one_roof_at_batch_1_and_below_the_other_at_64():
    assert lab13.layer_numbers(1)["attainable"] < 100e9 == lab13.layer_numbers(64)["attainable"]


def test_numbers_of_the_layer_may_be_rounded_and_weights_alone_are_not_near_enough():
    short = {b: {part: float(f"{v:.4g}") for part, v in lab13.layer_numbers(b).items()} for b in (1, 64)}
    assert lab13.layer_on_the_roofline(short) is None
    weights = layer_with(bytes=lambda r, b: 4 * 256 * 512, intensity=lambda r, b: b / 2)
    assert lab13.layer_on_the_roofline(weights).startswith("bytes at batch 1: 524288; the inputs and outputs move")


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
    "in percent": lambda events: 100 * lab13.share_outside(events),
    "nearly: it is 0.423077": lambda events: round(lab13.share_outside(events), 2),
}


def named(*parts, key="self_us"):
    """A first try of many: what has one of these parts in its name is matrix work, by `key` (None: by count)."""

    def answer(events):
        weight = [e[key] if key else 1 for e in events]
        chosen = [w for e, w in zip(events, weight) if any(part in e["name"].lower() for part in parts)]
        return 1 - sum(chosen) / sum(weight)

    return answer


@pytest.mark.parametrize(
    "answer, words",
    [
        (named("mm", "conv", key="total_us"), "add up self_us"),
        (named("mm", "conv", "linear", key="total_us"), "add up self_us"),
        (named("mm", "conv", key=None), "share of the events"),
        (named("mm", "conv", "linear", key=None), "share of the events"),
        (named("mm", "conv"), "only call the kernels"),
        (lambda events: 100 * named("mm", "conv")(events), "in percent"),
    ],
)
def test_a_first_try_by_parts_of_names_is_told_why(answer, words):
    assert words in lab13.outside_matrix_work(answer)


@pytest.mark.parametrize("more", [("conv2d",), ("convolution",), ("conv2d", "linear"), ("lstm",)])
def test_some_of_the_calls_that_lead_to_a_kernel_may_be_counted(more):
    assert lab13.outside_matrix_work(lambda events: lab13.share_outside(events, (*lab13.MATRIX, *more))) is None


@pytest.mark.parametrize("shape", [float, np.float32, np.array, torch.tensor])
def test_a_share_may_be_rounded_to_three_decimals(shape):
    assert lab13.outside_matrix_work(lambda events: shape(round(lab13.share_outside(events), 3))) is None


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
    "you multiply times": replaced(0, lambda t, r: t["A"] * t["B"] * t["C"]),
    "give a number": replaced(1, lambda t, r: "two"),
    "it is 2.40669": replaced(1, lambda t, r: 2.2),
    "nearly: it is 2.40669": replaced(1, lambda t, r: 2.42),
    "compare abs(log f)": chosen_by(lambda t, x: abs(lab13.interaction(t, x) - 1)),
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


def test_the_smallest_factor_is_not_the_largest_interaction():
    # it picks what seconds saved pick, so one message has to serve both
    said = lab13.find_the_interaction(chosen_by(lambda t, x: -lab13.interaction(t, x)))
    assert "smallest factor, one above 1 counts as much" in said


def test_what_was_planted_is_what_is_found():
    effects = {"A": 2.0, "B": 1.5, "C": 0.9, "AB": 0.6, "AC": 1.2, "BC": 1.1, "ABC": 1.3}
    times = lab13.planted(10.0, {x: effects[x] for x in "ABC"}, {x: effects[x] for x in lab13.TERMS})
    assert len(times) == 8 and times[""] == 10.0
    for term in lab13.TERMS:
        assert lab13.interaction(times, term) == pytest.approx(effects[term])
    assert times[""] / times["ABC"] == pytest.approx(math.prod(effects.values()))


@pytest.mark.parametrize("shape", [tuple, list])
def test_an_interaction_may_be_rounded_and_its_letters_turned(shape):
    assert lab13.find_the_interaction(lambda t: shape(rounded(right, 4)(t))) is None
    assert lab13.find_the_interaction(lambda t: (*right(t)[:2], right(t)[2][::-1], right(t)[3])) is None


def test_no_message_calls_a_number_wrong_and_gives_the_same_number():
    for spec, answer in (
        (lab13.outside_matrix_work, lambda e: lab13.share_outside(e) * 1.004),
        (lab13.find_the_interaction, replaced(1, lambda t, r: r[1] * 1.0025)),
    ):
        numbers = spec(answer).replace(";", " ").replace(":", " ").split()
        assert len({n for n in numbers if n[0].isdigit() and n[-1].isdigit()}) == 2


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
