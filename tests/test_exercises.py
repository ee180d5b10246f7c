"""Exercises and predictions: every state a reader can be in gets its own message, and none a traceback."""

import math

import pytest

from labkit.errors import RequestError, WorkError
from labkit.teach import check, exercise, hint, predict, solution
from labkit.teach.exercises import find, solution_code

HINTS = ("count the slices", "2 * (W - 1)")


def ring_messages(answer):
    """The spec of a function from ranks to the messages each rank sends in a ring all-reduce."""
    for ranks in (2, 3, 8):
        if answer(ranks) != 2 * (ranks - 1):
            return f"for {ranks} ranks you count {answer(ranks)} messages, not {2 * (ranks - 1)}"
    return None


REGISTRY = {
    "03.1": exercise("03.1", "messages in a ring", ring_messages, HINTS),
    "03.2": exercise("03.2", "a number", lambda answer: None if answer == 6 else f"{answer} is not 3!", HINTS),
}


def ellipsis_body(ranks): ...


def unfilled_line(ranks):
    steps = ...  # your answer
    return 2 * steps


@pytest.mark.parametrize("answer", [None, ..., (..., 3), {"a": ...}, lambda ranks: None, ellipsis_body, unfilled_line])
def test_an_empty_answer_is_not_a_wrong_one(answer, capsys):
    assert check("03.1", answer, REGISTRY) is None
    assert capsys.readouterr().out.startswith("03.1: not answered yet")


def test_a_wrong_answer_gets_the_specs_own_words(capsys):
    assert check("03.1", lambda ranks: ranks, REGISTRY) is False
    out = capsys.readouterr().out
    assert "for 3 ranks you count 3 messages, not 4" in out and 'hint("03.1")' in out


def test_a_right_answer_is_right(capsys):
    assert check("03.1", lambda ranks: 2 * (ranks - 1), REGISTRY) is True
    assert check("03.2", 6, REGISTRY) is True
    assert capsys.readouterr().out == "03.1: right (messages in a ring)\n03.2: right (a number)\n"


def test_an_answer_that_raises_is_told_what_and_where(capsys):
    def answer(ranks):
        return 2 / (ranks - 2)  # the planted mistake

    assert check("03.1", answer, REGISTRY) is False
    captured = capsys.readouterr()
    assert "it raised ZeroDivisionError" in captured.out and "return 2 / (ranks - 2)" in captured.out
    assert "Traceback" not in captured.out + captured.err


def test_a_specs_mistake_is_not_blamed_on_the_reader():
    registry = {"03.3": exercise("03.3", "t", lambda answer: False, HINTS)}
    with pytest.raises(WorkError, match="03.3: spec must return None or a sentence"):
        check("03.3", 1, registry)


def test_hints_come_one_at_a_time(capsys):
    hint("03.1", registry=REGISTRY)
    first = capsys.readouterr().out
    hint("03.1", 2, registry=REGISTRY)
    second = capsys.readouterr().out
    assert HINTS[0] in first and HINTS[1] not in first and HINTS[1] in second
    with pytest.raises(RequestError, match="unknown hint of 03.1 '3'; allowed: 1, 2"):
        hint("03.1", 3, registry=REGISTRY)


def test_an_unknown_exercise_is_named_with_the_known_ones():
    with pytest.raises(RequestError, match="unknown exercise '03.9'; allowed: 03.1, 03.2"):
        check("03.9", 1, REGISTRY)
    with pytest.raises(RequestError, match="'99.1': there is no lab '99'"):
        find("99.1")


@pytest.mark.parametrize(
    "bad, message",
    [
        (("7.1", "t", print, HINTS), "two digits"),
        (("07.1", "t", 3, HINTS), "spec"),
        (("07.1", "t", print, HINTS[:1]), "two hints"),
    ],
)
def test_an_exercise_is_complete_or_refused(bad, message):
    with pytest.raises(RequestError, match=message):
        exercise(*bad)


SOURCE = """# %%
def ring(ranks):
    # BEGIN SOLUTION
    steps = ranks - 1
    return 2 * steps
    # END SOLUTION

teach.check("03.1", ring)

# %%
# BEGIN SOLUTION
number = 6
# END SOLUTION

# %% [markdown]
# Between.

# %%
teach.check("03.2", number)

# %%
teach.check("03.3", None)
"""


def test_the_solution_is_that_of_the_checking_cell_or_of_the_nearest_above():
    assert solution_code(SOURCE, "03.1") == "steps = ranks - 1\nreturn 2 * steps"
    assert solution_code(SOURCE, "03.2") == "number = 6"
    with pytest.raises(WorkError, match="03.3 has no solution"):
        solution_code(SOURCE, "03.3")
    with pytest.raises(RequestError, match="unknown exercise '03.4'; allowed: 03.1, 03.2, 03.3"):
        solution_code(SOURCE, "03.4")


def test_a_solution_is_shown_from_the_notebooks_source(tmp_path, capsys):
    (tmp_path / "03_allreduce.py").write_text(SOURCE)
    solution("03.1", tmp_path)
    assert "return 2 * steps" in capsys.readouterr().out
    with pytest.raises(RequestError, match="no notebook with this number"):
        solution("04.1", tmp_path)


class Record:
    def __init__(self):
        self.kept = {}

    def keep(self, name, value):
        self.kept[name] = value


def test_an_open_prediction_is_not_kept_and_raises_nothing(capsys):
    lab = Record()
    prediction = predict("03.p1", "How many messages?", "messages", None, lab)
    assert prediction.answer is None and lab.kept == {}
    assert "not answered yet" in capsys.readouterr().out
    prediction.compare(14)
    assert "measured 14 messages; you made no prediction" in capsys.readouterr().out
    assert prediction.log_error(14) == math.inf


def test_a_number_is_kept_and_judged_by_its_factor(capsys):
    lab = Record()
    prediction = predict("03.p1", "How long?", "ms", 200, lab)
    assert lab.kept == {"03.p1": 200.0}
    prediction.compare(2, "Start-up counts.")
    line = "you predicted 200 ms; measured 2 ms: off by a factor of 100 (log10 error 2.00). Start-up counts."
    assert line in capsys.readouterr().out
    assert prediction.log_error(2) == predict("03.p1", "How long?", "ms", 0.02).log_error(2) == pytest.approx(2)


def test_a_difference_that_may_be_negative_has_no_factor(capsys):
    predict("03.p2", "By how much?", "points", -1.5).compare(0.5)
    assert "off by 2." in capsys.readouterr().out


def test_an_option_is_kept_as_written_and_compared(capsys):
    lab = Record()
    prediction = predict("07.p1", "Which rule?", ["linear", "LEGW"], " legw", lab)
    assert lab.kept == {"07.p1": "LEGW"}
    prediction.compare("LEGW")
    prediction.compare("linear")
    out = capsys.readouterr().out
    assert "measured LEGW: as you predicted" in out and "measured linear: not as you predicted" in out
    with pytest.raises(RequestError, match="two positive numbers"):
        prediction.log_error(1)


@pytest.mark.parametrize(
    "options, answer", [(["a", "b"], "c"), ("ms", "fast"), ("ms", math.nan), ("ms", True), ("ms", [1])]
)
def test_an_answer_that_cannot_be_one_is_named_and_not_kept_and_stops_nothing(options, answer, capsys):
    lab = Record()
    assert predict("07.p1", "?", options, answer, lab).answer is None
    out = capsys.readouterr().out
    assert "07.p1: answer" in out and "not answered yet" in out and lab.kept == {}


def test_a_number_may_be_written_as_a_text():
    assert predict("07.p1", "?", "ms", " 20 ").answer == 20.0


@pytest.mark.parametrize("answer, words", [(30, "not a number from 0 to 1"), (-0.1, "not a number from 0 to 1"), (0.3, "")])
def test_an_impossible_share_is_no_prediction(capsys, answer, words):
    made = predict("07.p9", "What share?", "", answer=answer, low=0, high=1)
    assert (made.answer is None) == bool(words) and words in capsys.readouterr().out


def test_a_prediction_with_one_bound_says_it(capsys):
    assert predict("07.p9", "How many times?", "x", answer=-3, low=0).answer is None
    assert "a number (x) of 0 or more" in capsys.readouterr().out
