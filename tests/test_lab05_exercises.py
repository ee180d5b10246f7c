"""Lab 05's exercises: every solution passes; a planted mistake is told apart by its own message."""

import numpy as np
import pytest
from labs import delayed, lab05

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code

SOURCE = (notebooks() / "src" / "05_asynchronous_sgd.py").read_text(encoding="utf-8")
HEADS = {"05.b1": "answer(delay, rate, steps):\n    w = [1.0]", "05.b2": "answer(grows, low, high):",
         "05.2": "answer(pushed, worker, bound):"}


def solved(id):
    space = {}
    body = "\n".join("    " + line for line in solution_code(SOURCE, id).splitlines())
    exec(f"def {HEADS[id]}\n{body}", space)
    return space["answer"]


@pytest.mark.parametrize("id", HEADS)
def test_the_solutions_are_right_and_an_unfilled_one_is_no_mistake(id, capsys):
    assert check(id, solved(id)) is True
    assert check(id, lambda *_: ...) is None


def path(late):
    """A path whose gradient is taken at w[late(t, delay)]."""
    def answer(delay, rate, steps):
        w = [1.0]
        for t in range(steps):
            w.append(w[-1] - rate * w[late(t, delay)])
        return w
    return answer


PATHS = {
    "not where it was": path(lambda t, delay: t),
    "one update too old": path(lambda t, delay: max(t - delay - 1, 0)),
    "one update too young": path(lambda t, delay: min(t, max(t - delay + 1, 0))),
    "the sign is turned": lambda delay, rate, steps: delayed.path(delay, -rate, steps=steps),
    "it waits for the first gradients": lab05.waits_at_start,
    "return 9 numbers": lambda delay, rate, steps: delayed.path(delay, rate, steps=steps)[1:],
    "after 1 update yours is": lambda delay, rate, steps: delayed.path(delay, rate / 2, steps=steps),
}


@pytest.mark.parametrize("words", PATHS)
def test_a_wrong_update_is_told_why(words):
    assert words in lab05.late_path(PATHS[words])


def halved(times, swap=False):
    def answer(grows, low, high):
        for _ in range(times):
            middle = (low + high) / 2
            low, high = (middle, high) if grows(middle) is swap else (low, middle)
        return low
    return answer


def for_ever(grows, low, high):
    while low < high:
        grows(low)


def test_a_wrong_bisection_is_told_why(capsys):
    assert "halve more often" in lab05.bisection(halved(6))
    assert "`high` has to move" in lab05.bisection(halved(25, swap=True))
    assert "return one number" in lab05.bisection(lambda grows, low, high: (low, high))
    assert check("05.b2", for_ever) is False
    assert "more than 200 trials" in capsys.readouterr().out


def test_staleness_by_hand_is_that_of_its_definition(capsys):
    space = {}
    exec(solution_code(SOURCE, "05.1"), space)
    assert check("05.1", space["by_hand"]) is True
    assert check("05.1", tuple(np.float64(value) for value in space["by_hand"])) is True
    last = {}
    for at, worker in enumerate(lab05.ORDER):
        since = [other for other in lab05.ORDER[last.get(worker, -1) + 1 : at]]
        assert space["by_hand"][at] == len(since) and worker not in since
        last[worker] = at


HANDS = {
    "one too many": [1, 2, 2, 4, 2, 4],
    "how old the start is": [0, 1, 2, 3, 4, 5],
    "the worker's own writings": [0, 0, 1, 0, 2, 1],
    "writing number 4, of C, is not 2 old": [0, 1, 1, 2, 1, 3],
    "list of 6 numbers": [0, 1],
    "entry 2 of your list is no number: None": [0, None, 1, 3, 1, 3],
}


@pytest.mark.parametrize("words", HANDS)
def test_a_wrong_staleness_is_told_why(words):
    assert words in lab05.by_hand(HANDS[words])


WAITS = {
    "<=, not <": lambda p, w, s: p[w] - min(p) < s,
    "the slowest must never wait": lambda p, w, s: max(p) - min(p) <= s,
    "stops the slow ones": lambda p, w, s: max(p) - p[w] <= s,
    "not the mean": lambda p, w, s: p[w] - sum(p) / len(p) <= s,
    "return True or False": lambda p, w, s: p[w] - min(p),
    "yours says True": lambda p, w, s: True,
}


@pytest.mark.parametrize("words", WAITS)
def test_who_waits_wrongly_is_told_why(words):
    assert words in lab05.who_waits(WAITS[words])


def broken(held, after, **changes):
    return {"delay": 6, "inside": 0.05, "outside": 0.2, "taken": [0, 4], "reference": 0.9,
            "found": {"inside": held, "outside": after}} | changes


BREAKS = {
    "both broke": broken(0.3, 0.1),
    "both held": broken(0.9, 0.85),
    "held outside and broke inside": broken(0.5, 0.9),
    "not measured above": broken(0.9, 0.1, delay=4),
    "whole delay": broken(0.9, 0.1, delay=2.5),
    "four times": broken(0.9, 0.1, outside=0.1),
    "leave the call": 7,
    "without delay is nan": broken(0.9, 0.1, reference=float("nan")),
    "without delay is 0": broken(0.9, 0.1, reference=0.0),
    "without delay is inf": broken(0.9, 0.1, reference=float("inf")),
    "left no accuracies": broken(float("nan"), 0.1),
    "run the whole cell": broken(0.9, None),
    "the two trainings": broken(0.9, 0.1, found=None),
}


@pytest.mark.parametrize("words", BREAKS)
def test_a_prediction_that_failed_is_told_why(words):
    assert words in lab05.break_it(BREAKS[words])


def test_the_messages_of_one_exercise_differ_and_a_good_prediction_passes(capsys):
    for spec, mistakes in ((lab05.late_path, PATHS), (lab05.by_hand, HANDS), (lab05.who_waits, WAITS),
                           (lab05.break_it, BREAKS)):
        twice = ("whole delay", "run the whole cell", "the two trainings")  # said with another
        mistakes = {words: answer for words, answer in mistakes.items() if words not in twice}
        assert len({spec(answer) for answer in mistakes.values()}) == len(mistakes)
    assert check("05.3", broken(0.9, 0.1)) is True
    assert check("05.3", broken(0.9, 0.1, delay=..., inside=...)) is None
    assert lab05.refused(broken(0, 0, delay=..., inside=...), [0]) is not None  # so the notebook trains nothing


def test_a_prediction_is_right_only_where_both_sides_came_true():
    values = (0.0, 0.5, 0.7, 0.9, 1.0, 1.5, -0.1, float("nan"), float("inf"), None, "no")
    for inside in values:
        for outside in values:
            numbers = all(isinstance(value, float) and 0 <= value <= 1 for value in (inside, outside))
            right = numbers and inside >= 0.75 * 0.9 > outside
            assert (lab05.break_it(broken(inside, outside)) is None) is right, (inside, outside)
