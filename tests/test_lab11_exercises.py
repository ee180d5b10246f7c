"""Lab 11's exercises: every solution passes, every planted mistake is told apart, every planted cheat is named."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs import lab11, times
from labkit.tta import clock, statistics

SOURCE = (notebooks() / "src" / "11_time_to_accuracy.py").read_text(encoding="utf-8")
RUNS = times.simulated(5, steps=512)


def solved(id, head="", names=("answer",)):
    """What the solution of an exercise defines; `head` is the line that the solution's body stands under."""
    body = solution_code(SOURCE, id)
    if head:
        body = head + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math, "np": np, "lab11": lab11, "runs": RUNS, "settings": type("S", (), {"evaluate_every": 1})}
    exec(body, space)
    return space[names[0]]


def first(curves, target, passes=lambda v, t: v >= t, miss=lambda curve: math.inf):
    return [next((s for s, v in zip(*curve) if passes(v, target)), miss(curve)) for curve in curves]


def statistics_of(read, middle=np.median):
    def answer(curves, target):
        found = read(curves, target)
        return found, float(middle(found)), float(np.mean(np.isfinite(found)))

    return answer


def of_the_reached(found):
    return np.median([t for t in found if math.isfinite(t)] or [math.inf])


@pytest.mark.parametrize(
    "id, head, name",
    [
        ("11.1", "def answer(curves, target):", "answer"),
        ("11.2", "", "by_hand"),
        ("11.3", "def answer(run_times, budget):", "answer"),
        ("11.5", "def answer(entry):", "answer"),
    ],
)
def test_the_solutions_are_right(id, head, name, capsys):
    assert check(id, solved(id, head, (name,))) is True


def test_the_solution_of_the_game_wins_all_that_can_be_won(capsys):
    choices = solved("11.4", names=("choices",))
    assert check("11.4", {**choices, "runs": RUNS}) is True
    fair, taken = (lab11.published(RUNS, c) for c in (lab11.honest(RUNS), choices))
    assert f"a factor of {fair / taken:.2f} won" in lab11.won(RUNS, choices) and taken < fair


@pytest.mark.parametrize(
    "answer, message",
    [
        (statistics_of(lambda c, t: first(c, t, lambda v, g: v > g)), "first crossing is >=, not >"),
        (
            statistics_of(lambda c, t: [s[int(np.argmax(v))] if max(v) >= t else math.inf for s, v in c]),
            "time of the best value",
        ),
        (statistics_of(lambda c, t: first(c, t, miss=lambda curve: curve[0][-1])), "not as long as it ran"),
        (statistics_of(lambda c, t: [s[int(np.argmax(np.array(v) >= t))] for s, v in c]), "argmax of nothing"),
        (
            statistics_of(lambda c, t: [s if v[-1] >= t else math.inf for s, v in zip(first(c, t), [x[1] for x in c])]),
            "falls below the target again has still crossed",
        ),
        (
            statistics_of(lambda c, t: [s for s in first(c, t) if math.isfinite(s)]),
            "a miss stays in the list, as math.inf",
        ),
        (statistics_of(lambda c, t: first(c, t, miss=lambda curve: math.nan)), "its time is math.inf"),
        (first, "return three things"),
        (lambda c, t: np.array(first(c, t)), "return three things"),
        (lambda c, t: (2.0, 2.0, 1.0), "return three things"),
        (lambda c, t: (first(c, t), "2 s", 1.0), "the median is a number"),
        (lambda c, t: (list(map(str, first(c, t))), 2.0, 1.0), "every time is a number"),
        (lambda c, t: (first(c[:1], t), 2.0, 1.0), "each curve has one time"),
        (statistics_of(first, of_the_reached), "leaves the misses out"),
        (lambda c, t: (first(c, t), float(np.median(first(c, t))), 1.0), "a rate of 0.4"),
    ],
)
def test_slips_of_reading_a_crossing_are_told_apart(answer, message):
    assert message in lab11.EXERCISES["11.1"].spec(answer)


FORMS = [np.array, pd.Series, pd.Index, tuple, torch.tensor, lambda found: list(np.array(found))]


@pytest.mark.parametrize("form", FORMS)
def test_any_sequence_of_times_and_any_scalar_will_do(form):
    def answer(curves, target, passes=lambda v, t: v >= t):
        found, median, reach = statistics_of(lambda c, t: first(c, t, passes))(curves, target)
        return form(found), np.float64(median), torch.tensor(reach)

    assert lab11.EXERCISES["11.1"].spec(answer) is None
    wrong = lab11.EXERCISES["11.1"].spec(lambda curves, target: answer(curves, target, lambda v, t: v > t))
    assert "first crossing is >=, not >" in wrong


@pytest.mark.parametrize("mistake", lab11.LEDGER_MISTAKES)
def test_each_wrong_clock_is_explained(mistake):
    rule, wrong = mistake
    right = {name: clock.time_to_target(lab11.LEDGER, name).seconds for name in times.PER_RUN}
    assert right == {"wall": 19.5, "dawnbench": 15.0, "mlperf": 17.5, "algoperf": 12.0}
    message = lab11.EXERCISES["11.2"].spec({**right, rule: wrong})
    assert message.endswith(lab11.LEDGER_MISTAKES[mistake]) and f"under {rule}" in message


def test_a_rule_without_an_answer_is_asked_for_and_an_unplanned_number_gets_the_rules_text():
    assert "under algoperf too" in lab11.EXERCISES["11.2"].spec({"wall": 19.5, "dawnbench": 15.0, "mlperf": 17.5})
    assert clock.RULES["wall"].says in lab11.EXERCISES["11.2"].spec({"wall": 1.0})


@pytest.mark.parametrize(
    "rule, seconds, message",
    [
        ("dawnbench", 13.0, "2 s missing, as long as init; "),
        ("dawnbench", 14.0, "1 s missing, as long as data; "),
        ("dawnbench", 9.0, "6 s missing, as long as one span of train; "),
        ("dawnbench", 15.5, "0.5 s too much, as long as the time without a span; "),
        ("mlperf", 16.5, "1 s missing, as long as data or one span of evaluate; "),
        ("algoperf", 13.0, "1 s too much, as long as data or one span of evaluate; "),
    ],
)
def test_a_forgotten_or_superfluous_span_is_named(rule, seconds, message):
    right = {name: clock.time_to_target(lab11.LEDGER, name).seconds for name in times.PER_RUN}
    assert f"under {rule}: {message}" in lab11.EXERCISES["11.2"].spec({**right, rule: seconds})


def test_seconds_with_a_unit_or_without_a_rule_are_told_what_is_expected():
    spec = lab11.EXERCISES["11.2"].spec
    assert spec({"wall": "19.5 s"}) == "under wall a number of seconds is expected, such as 1.5; you give '19.5 s'"
    assert "give the seconds by rule" in spec(19.5)


def split(run_times):
    reached = [t for t in run_times if math.isfinite(t)]
    return np.mean(reached), len(reached) / len(run_times)


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda t, budget: split(t)[0], "3 failures were paid too"),
        (
            lambda t, budget: split(t)[0] if t[-1] == math.inf and len(t) == 2 else statistics.expected_time(t, budget),
            "1 failure was paid too",
        ),
        (lambda t, budget: split(t)[0] / split(t)[1], "charges a failure what a success costs"),
        (lambda t, budget: budget / split(t)[1], "only if a success costs the whole budget"),
        (lambda t, budget: split(t)[0] + (1 - split(t)[1]) * budget, "one failure at most"),
        (lambda t, budget: 1.0, "the expected time is"),
    ],
)
def test_ways_to_forget_failures_are_told_apart(answer, message):
    assert message in lab11.EXERCISES["11.3"].spec(answer)


def test_the_expected_time_agrees_with_tries_until_success():
    random = np.random.default_rng(0)
    tries = random.geometric(0.4, size=200_000) - 1  # failures before the first success
    seconds = tries * 40.0 + random.choice([10.0, 20.0], size=tries.size)
    expected = statistics.expected_time([10.0, 20.0, *[math.inf] * 3], 40.0)
    assert abs(seconds.mean() - expected) < 4 * seconds.std() / math.sqrt(tries.size)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("pick", "median", "changing the pick alone"),
        ("rule", "wall", "changing the rule alone"),
        ("target", 0.93, "changing the target alone"),
        ("every", 32, "changing the every alone"),
        ("target", 0.5, "outside the band"),
        ("rule", "speedrun", "rule 'speedrun' is not among"),
        ("every", 3, "every 3 is not among"),
        ("target", "0.91", "target '0.91' is not a number, such as 0.91"),
        ("target", math.nan, "outside the band"),
        ("pick", ["best"], "is not among"),
    ],
)
def test_a_choice_that_leaves_something_to_win_is_named(field, value, message):
    best = {**lab11.least(RUNS)[1], "runs": RUNS}
    said, told = lab11.EXERCISES["11.4"].spec({**best, field: value}), lab11.won(RUNS, {**best, field: value})
    assert message in said
    # What is printed below the check repeats a refusal; it neither raises nor tells of a gain.
    refused = "changing the" not in said
    assert not refused or told == f"nothing is won by a choice that is refused: {said}"
    assert refused or said.startswith(told)


def test_honest_choices_win_nothing_and_the_best_grid_choice_is_the_least():
    assert "nothing won" in lab11.won(RUNS, lab11.honest(RUNS))
    three = {"rule": "wall", "target": 0.93, "every": 1, "runs": RUNS}
    assert "choose the pick too" in lab11.EXERCISES["11.4"].spec(three)
    seconds, choices = lab11.least(RUNS)
    assert seconds == lab11.published(RUNS, choices) <= min(times.seconds_to_target(RUNS, "dawnbench", 0.91))


def strict(entry, without=()):
    """A rule that refuses all planted cheats, less the parts named in `without`."""
    plan = entry["announced"]
    found = [field for field in lab11.ANNOUNCED if field not in without and entry[field] != plan[field]]
    found += ["before"] if "before" not in without and not entry["before"] else []
    found += ["forgets runs"] if "forgets" not in without and entry["pick"] not in ("median", "expected") else []
    found += ["few"] if "few" not in without and entry["runs"] < 5 else []
    found += ["coarse"] if "coarse" not in without and entry["evaluations"] < 8 else []
    found += ["tuned"] if "tuned" not in without and entry["read_on"] == entry["tuned_on"] else []
    return found


@pytest.mark.parametrize(
    "without, message",
    [
        (("rule",), "the clock was changed"),
        (("target",), "the target was lowered"),
        (("every",), "at more evaluations"),
        (("every", "coarse"), "at fewer evaluations"),
        (("pick", "forgets"), "picked from those"),
        (("forgets",), "announcing a cheat"),
        (("runs",), "three of the announced twelve"),
        (("before",), "after the runs were seen"),
        (("few",), "a single run"),
        (("coarse",), "passes at its first evaluation"),
        (("tuned",), "tuned on"),
    ],
)
def test_a_rule_with_a_hole_is_shown_what_slips_through(without, message):
    verdict = lab11.EXERCISES["11.5"].spec(lambda entry: strict(entry, without))
    assert verdict.startswith("your rule lets this through") and message in verdict


@pytest.mark.parametrize("cheat", lab11.CHEATS)
def test_each_cheat_alone_is_named_when_only_it_passes(cheat):
    def answer(entry):
        return [] if entry == lab11.CHEATS[cheat] else strict(entry)

    assert lab11.EXERCISES["11.5"].spec(answer) == f"your rule lets this through: {cheat}"


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda entry: True, "the clock was changed"),
        (lambda entry: ["no"], "refuses an honest entry (no): everything as announced"),
        (lambda entry: [] if entry["rule"] == "wall" else ["wall only"], "an honest entry (wall only): another clock"),
        (lambda entry: entry["runs"] == 12 and not strict(entry), "refuses an honest entry: thirty runs"),
        (lambda entry: "fine", "return a list of reasons"),
    ],
)
def test_a_rule_that_accepts_or_refuses_too_much_is_told(answer, message):
    assert message in lab11.EXERCISES["11.5"].spec(answer)


def test_true_and_false_will_do_for_reasons():
    assert lab11.EXERCISES["11.5"].spec(lambda entry: not strict(entry)) is None


@pytest.mark.parametrize(
    "id, answer",
    [
        ("11.1", lambda curves, target: None),
        ("11.2", dict.fromkeys(times.PER_RUN, ...)),
        ("11.3", lambda t, budget: None),
        ("11.4", {"rule": ..., "target": ..., "every": ..., "pick": ..., "runs": RUNS}),
        ("11.5", lambda entry: ...),
    ],
)
def test_an_empty_answer_is_not_a_wrong_one(id, answer, capsys):
    assert check(id, answer) is None
    assert "not answered yet" in capsys.readouterr().out


def test_where_the_honest_median_is_a_miss_any_number_is_won_and_no_number_is_not():
    hopeless = times.simulated(3, steps=64)
    assert "nothing won" in lab11.won(hopeless, lab11.honest(hopeless))
    half = [*times.simulated(2, steps=512), *times.simulated(3, steps=64)]
    assert "any finite number is won" in lab11.won(half, {**lab11.honest(half), "pick": "best"})
    assert lab11.won(half, {"rule": ...}) == "no choices yet: nothing is won"
