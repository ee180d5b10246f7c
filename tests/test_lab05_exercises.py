"""Lab 05's exercises: every solution passes; a planted mistake is told apart by its own message."""

import numpy as np
import pytest
import torch
from labs import delayed, delayed_study, lab05

import labkit
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


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A short session that has trained without delay, and with a delay of 4."""
    changes = {"delays": [0, 4], "momenta": [0.0], "train": 512, "steps": 256, "seeds": 1}
    lab = labkit.start("05", "smoke", overrides=changes, record_to=str(tmp_path_factory.mktemp("store")))
    delayed_study.constant_delays(lab, lab.settings, delayed.Digits.load(512))
    return lab


CHOICES = {  # (delay, inside, outside) of predictions about that session
    "both broke": (6, 1.0, 4.0),
    "both held": (6, 0.0075, 0.03),
    "not measured above": (4, 0.2, 0.8),
    "whole delay": (2.5, 0.2, 0.8),
    "four times": (6, 0.2, 0.4),
}


def chosen(lab, *values):
    return dict(zip(("delay", "inside", "outside"), values, strict=True)) | {"lab": lab}


@pytest.mark.parametrize("words", CHOICES)
def test_a_prediction_that_failed_is_told_why(lab, words):
    assert words in lab05.break_it(chosen(lab, *CHOICES[words]))


def test_the_messages_of_one_exercise_differ():
    for spec, mistakes in ((lab05.late_path, PATHS), (lab05.by_hand, HANDS), (lab05.who_waits, WAITS)):
        assert len({spec(answer) for answer in mistakes.values()}) == len(mistakes)


def test_a_good_prediction_passes_in_any_form(lab, capsys):
    assert check("05.3", chosen(lab, 6, 0.1, 0.8)) is False  # not four times
    for form in (float, np.float32, str, lambda value: np.array([value]), lambda value: torch.tensor([value])):
        assert check("05.3", chosen(lab, form(6), form(0.05), form(0.2))) is True
    assert check("05.3", chosen(lab, ..., ..., 1.0)) is None
    assert lab05.play(chosen(lab, ..., ..., 1.0), lab) is None  # so the notebook trains nothing


def test_no_result_is_taken_on_trust(lab, tmp_path):
    """A forged result changes nothing, and without a session, or one that has trained, there is no verdict."""
    forged = {"found": {"inside": 0.9, "outside": 0.1}, "reference": 0.9, "taken": [0]}
    assert "both broke" in lab05.break_it(chosen(lab, 6, 1.0, 4.0) | forged)
    for none in (7, forged, chosen(None, 6, 0.05, 0.2), {"lab": lab}):
        assert "leave the call of check" in lab05.break_it(none)
    fresh = labkit.start("05", "smoke", record_to=str(tmp_path))
    assert "best accuracy without delay is nan" in lab05.break_it(chosen(fresh, 6, 0.05, 0.2))


def test_a_prediction_is_right_only_where_both_sides_came_true():
    values = (0.0, 0.5, 0.7, 0.9, 1.0)
    for inside in values:
        for outside in values:
            assert (lab05.judged(inside, outside, 0.9) is None) is (inside >= 0.75 * 0.9 > outside), (inside, outside)
    assert "held outside and broke inside" in lab05.judged(0.5, 0.9, 0.9)


def float32(delay, rate, steps):
    w = [np.float32(1)]
    for t in range(steps):
        w.append(w[-1] - np.float32(rate) * w[max(t - delay, 0)])
    return w


def with_gradients(delay, rate, steps):
    return torch.tensor(delayed.path(delay, rate, steps=steps), requires_grad=True)


FORMS = {
    "05.b1": [float32, lambda *given: np.array(float32(*given)), with_gradients,
              lambda *given: with_gradients(*given).float()[:, None], lambda *given: list(with_gradients(*given)),
              lambda *given: [np.array([value]) for value in float32(*given)]],
    "05.b2": [lambda *given: torch.tensor([halved(25)(*given)]), lambda *given: np.array(halved(25)(*given))],
    "05.1": [torch.tensor([0, 1, 1, 3, 1, 3]), np.array([0, 1, 1, 3, 1, 3.0]), torch.tensor([[0, 1, 1], [3, 1, 3]]),
             [torch.tensor([value]) for value in (0, 1, 1, 3, 1, 3)], ["0", "1", "1", "3", "1", "3"]],
    "05.2": [lambda p, w, s: torch.tensor(p[w] - min(p) <= s), lambda p, w, s: np.bool_(p[w] - min(p) <= s),
             lambda p, w, s: np.array([p[w] - min(p) <= s]), lambda p, w, s: (torch.tensor(p)[w] - min(p) <= s)[None]],
}  # fmt: skip


@pytest.mark.parametrize("id", FORMS)
def test_what_is_right_is_right_in_any_form(id, capsys):
    for answer in FORMS[id]:
        assert check(id, answer) is True


def test_what_is_no_array_of_numbers_is_told_so():
    for wrong in (None, "w", {"w": 1.0}, 1.0, [[1.0, 2.0], [3.0]]):
        assert "return 9 numbers" in lab05.late_path(lambda *given, wrong=wrong: wrong)
    off = lab05.late_path(lambda delay, rate, steps: delayed.path(delay, rate, steps=steps) * (1 + 4e-5))
    assert "after 0 updates yours is 1.00004, not 1" in off  # the two never read the same
