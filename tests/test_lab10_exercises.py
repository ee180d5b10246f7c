"""Lab 10's exercises: every solution passes, rounded too; every planted mistake is told apart by its own message."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkit.optim.noise import noise_scale
from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs import lab10

SOURCE = (notebooks() / "src" / "10_critical_batch_size.py").read_text(encoding="utf-8")


def solved(id, head="", name="answer"):
    """What the solution of an exercise defines; `head` is the line that the solution's body stands under."""
    body = solution_code(SOURCE, id)
    if head:
        body = head + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math, "np": np, "noise_scale": noise_scale}
    exec(body, space)
    return space[name]


HEADS = {
    "10.b1": "def answer(small_sq, big_sq, b_small, b_big):",
    "10.b2": "def answer(batches, steps):",
    "10.2": "def answer(small_sq, big_sq, b_small, b_big):",
}


@pytest.mark.parametrize("id", HEADS)
def test_the_solutions_are_right(id, capsys):
    assert check(id, solved(id, HEADS[id])) is True


def test_the_solution_by_hand_is_right(capsys):
    assert check("10.1", solved("10.1", name="by_hand")) is True


def knob(noise=0.6, knee=180.0, measured=170.0, known=(0.1, 0.9)):
    return {"noise": noise, "knee": knee, "known": list(known), "measured": SimpleNamespace(knee=measured)}


def test_the_solution_of_the_knob_reads_the_levels_that_are_known(capsys):
    levels = {0.1: SimpleNamespace(knee=40.0), 0.9: SimpleNamespace(knee=448.0)}
    space = {"math": math, "np": np, "levels": levels}
    exec(solution_code(SOURCE, "10.3"), space)
    assert 0.1 < space["my_level"] < 0.9 and space["my_knee"] == 256
    assert check("10.3", knob(space["my_level"], space["my_knee"], 190.0)) is True


@pytest.mark.parametrize("id", sorted(lab10.EXERCISES))
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    unfilled = {"10.1": {"steps at 50": ...}, "10.3": {**knob(), "noise": ..., "knee": ..., "measured": ""}}
    assert check(id, unfilled.get(id, lambda *given: ...)) is None


def rounded(function):
    def answer(*given):
        found = function(*given)
        short = [float(f"{float(part):.3g}") for part in (found if isinstance(found, tuple) else (found,))]
        return tuple(short) if len(short) > 1 else short[0]

    return answer


@pytest.mark.parametrize("id", HEADS)
def test_three_digits_are_enough(id, capsys):
    assert check(id, rounded(solved(id, HEADS[id]))) is True


@pytest.mark.parametrize("shape", [list, np.array, torch.tensor])
def test_a_pair_may_come_in_any_shape(shape, capsys):
    right = solved("10.b1", HEADS["10.b1"])
    assert check("10.b1", lambda *given: shape([float(part) for part in right(*given)])) is True


def estimator(trace=None, square=None):
    def answer(s, b, m, n):
        right = noise_scale(s, b, m, n)
        return (trace(s, b, m, n) if trace else right[0]), (square(s, b, m, n) if square else right[1])

    return answer


ESTIMATOR_MISTAKES = {
    "return two numbers": lambda s, b, m, n: noise_scale(s, b, m, n)[0],
    "in the other order": lambda s, b, m, n: noise_scale(s, b, m, n)[::-1],
    "the smaller batch has the larger norm": estimator(trace=lambda s, b, m, n: (s - b) / (1 / n - 1 / m)),
    "divide the difference of the norms by": estimator(trace=lambda s, b, m, n: s - b),
    "not of B": estimator(trace=lambda s, b, m, n: (s - b) / (n - m)),
    "that is the ratio already": estimator(trace=lambda *given: noise_scale(*given)[0] / noise_scale(*given)[1]),
    "write both norms as": estimator(trace=lambda s, b, m, n: 1234.0),
    "which still holds trace / B": estimator(square=lambda s, b, m, n: b),
    "noise and all": estimator(square=lambda s, b, m, n: s),
    "multiply each norm by its own batch before": estimator(square=lambda s, b, m, n: (b - s) / (n - m)),
    "not the other's": estimator(square=lambda s, b, m, n: (n * s - m * b) / (n - m)),
    "(big ... - small ...)": estimator(square=lambda s, b, m, n: -noise_scale(s, b, m, n)[1]),
    "subtract the two and the trace is gone": estimator(square=lambda s, b, m, n: 1234.0),
}  # fmt: skip


@pytest.mark.parametrize("words", ESTIMATOR_MISTAKES)
def test_a_wrong_estimator_is_told_why(words):
    assert words in lab10.estimators(ESTIMATOR_MISTAKES[words])


def line(batches, steps):
    slope, least = np.polyfit(1 / batches, steps, 1)
    return slope, least


FIT_MISTAKES = {
    "return two numbers": lambda b, s: line(b, s)[1],
    "S_min comes first": lambda b, s: (line(b, s)[0] / line(b, s)[1], line(b, s)[1]),
    "that is the slope against 1/B": lambda b, s: line(b, s),
    "has not reached the floor": lambda b, s: (s[-1], 100.0),
    "where it meets": lambda b, s: (7.0, 100.0),
    "divide by S_min": lambda b, s: (line(b, s)[1], line(b, s)[0]),
    "turn it over": lambda b, s: (line(b, s)[1], line(b, s)[1] / line(b, s)[0]),
    "the slope of S against 1/B is": lambda b, s: (line(b, s)[1], 7.0),
}


@pytest.mark.parametrize("words", FIT_MISTAKES)
def test_a_wrong_fit_is_told_why(words):
    assert words in lab10.fitted(FIT_MISTAKES[words])


RIGHT = {"steps at 50": 500, "steps at 800": 125, "examples at 800": 100000, "faster": 4, "dearer": 4}


@pytest.mark.parametrize(
    "key, value", [(key, value) for key, (_, slips) in lab10._BY_HAND.items() for value, _ in slips]
)
def test_a_wrong_number_by_hand_is_told_why(key, value):
    said = lab10.three_batches({**RIGHT, key: value})
    why = dict(lab10._BY_HAND[key][1])[value]
    assert said.startswith(key) and why in said
    assert "E = S B" in lab10.three_batches({**RIGHT, key: 7.7})


def test_numbers_by_hand_may_be_rounded_and_have_to_be_all_there():
    assert lab10.three_batches({**RIGHT, "faster": 4.01}) is None
    assert "give a dictionary" in lab10.three_batches({"faster": 4})


def of_ratios(reduce):
    def answer(s, b, m, n):
        traces, squares = noise_scale(s, b, m, n)
        return reduce(traces, squares)

    return answer


PATH_MISTAKES = {
    "one number for the whole path": of_ratios(lambda t, q: t / q),
    "return a number": lambda *given: "fifty",
    "mean of the ratios": of_ratios(lambda t, q: np.mean(t / q)),
    "median of the ratios": of_ratios(lambda t, q: np.median(t / q)),
    "last step alone": of_ratios(lambda t, q: t[-1] / q[-1]),
    "first step alone": of_ratios(lambda t, q: t[0] / q[0]),
    "turn it over": of_ratios(lambda t, q: q.sum() / t.sum()),
    "divides the norms": lambda s, b, m, n: s.sum() / b.sum(),
    "still holds noise": lambda s, b, m, n: noise_scale(s, b, m, n)[0].sum() / b.sum(),
    "divide by the squared norm": of_ratios(lambda t, q: t.mean()),
    "then divide once": lambda *given: 12345.0,
}


@pytest.mark.parametrize("words", PATH_MISTAKES)
def test_a_wrong_average_is_told_why(words):
    assert words in lab10.averaged(PATH_MISTAKES[words])


def test_means_in_place_of_sums_are_right_too():
    assert lab10.averaged(of_ratios(lambda t, q: t.mean() / q.mean())) is None


KNOB_MISTAKES = {
    "give a number from 0 to 2": knob(noise=3.0),
    "give the critical batch that you expect": knob(knee="large"),
    "nothing to foretell": knob(noise=0.88),
    "no fit; try less noise": knob(measured=math.nan),
    "turn it further": knob(measured=90.0),
    "less noise would do": knob(measured=900.0),
    "number of workers": knob(knee=64, measured=140.0),
    "that is one worker's": knob(knee=2),
    "draw knee against noise level": knob(knee=500),
}


@pytest.mark.parametrize("words", KNOB_MISTAKES)
def test_a_wrong_turn_of_the_knob_is_told_why(words):
    assert words in lab10.turned_knob(KNOB_MISTAKES[words])


def test_no_run_is_no_knee():
    assert "nothing was measured" in lab10.turned_knob({**knob(), "measured": ""})
    assert "no fit" in lab10.turned_knob({**knob(), "measured": SimpleNamespace(knee=math.nan)})


def test_the_messages_of_one_exercise_differ():
    for spec, mistakes in (
        (lab10.estimators, ESTIMATOR_MISTAKES),
        (lab10.fitted, FIT_MISTAKES),
        (lab10.averaged, PATH_MISTAKES),
        (lab10.turned_knob, KNOB_MISTAKES),
    ):
        said = [spec(answer) for answer in mistakes.values()]
        assert all(a != b for a, b in itertools.combinations(said, 2))
