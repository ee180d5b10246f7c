"""Clock rules on planted spans: the seconds of each are added up by hand."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.curve import SPAN_KINDS, Header, Row, Run, Span
from labkit.errors import RequestError
from labkit.tta import clock
from labs.rules_times import thinned

TARGET = {"metric": "accuracy", "value": 0.9, "higher": True}
# Nothing is recorded before 0.5, from 7.5 to 8 and from 14 to 14.25. The target is met at 15.
SPANS = [
    Span("init", 0.5, 1.5),
    Span("data", 1.5, 2.0),
    Span("compile", 2.0, 4.0),
    Span("warm-up", 4.0, 4.5),
    Span("train", 4.5, 7.5),
    Span("evaluate", 8.0, 9.0),
    Span("checkpoint", 9.0, 9.25),
    Span("train", 9.25, 14.0),
    Span("evaluate", 14.25, 15.0),
    Span("train", 15.0, 20.0),
    Span("evaluate", 20.0, 21.0),
]
ROWS = [(100, 9.0, 0.5), (200, 15.0, 0.9), (300, 21.0, 0.95)]


def run(rows=ROWS, spans=SPANS, target=TARGET, **header) -> Run:
    found = [Row(step, step / 100, step, when, "accuracy", value) for step, when, value in rows]
    return Run(Header("11", {}, target=target, **header), list(spans), found, "finished")


def taking(seconds: float, final: float = 0.95) -> Run:
    """A run that trains for so many seconds, meets the target (or not) at the end, and does nothing else."""
    return run([(1, seconds, final)], [Span("train", 0.0, seconds)])


@pytest.mark.parametrize(
    "rule, seconds",
    [
        ("wall", 15.0),  # all of it, the half second before the first span too
        ("dawnbench", 1.0 + 0.5 + 2.0 + 3.0 + 4.75),  # init, data, compile, train
        ("mlperf", 15.0 - 1.5 - 2.0 - 0.5),  # from the data on, without compile and warm-up, gaps on the clock
        ("algoperf", 2.0 + 3.0 + 4.75),  # compile, train
    ],
)
def test_the_seconds_of_each_rule(rule, seconds):
    assert clock.time_to_target(run(), rule) == clock.Answer(seconds)


def test_the_default_is_dawnbench_and_the_target_may_be_another():
    assert clock.time_to_target(run()).seconds == 11.25
    later = {**TARGET, "value": 0.93}
    assert clock.time_to_target(run(), "dawnbench", later).seconds == 16.25
    assert clock.time_to_target(run(target=None), "wall", later).seconds == 21.0


def test_the_crossing_is_at_least_the_target_on_the_raw_value():
    rows = [(1, 1.0, math.nextafter(0.9, 0)), (2, 2.0, 0.9), (3, 3.0, 0.99)]
    assert clock.first_crossing(run(rows), TARGET).step == 2
    assert clock.first_crossing(run(rows[:1]), TARGET) is None
    assert clock.first_crossing(run([(1, 1.0, math.nan), (2, 2.0, math.inf)]), TARGET).step == 2
    assert clock.first_crossing(run(), {**TARGET, "metric": "another"}) is None
    assert clock.first_crossing(run(), {"metric": "accuracy", "value": 0.9}).step == 200


def test_a_loss_is_met_from_above():
    target = {"metric": "accuracy", "value": 0.5, "higher": False}
    rows = [(1, 1.0, math.nextafter(0.5, 1)), (2, 2.0, 0.5), (3, 3.0, 0.1)]
    assert clock.first_crossing(run(rows), target).step == 2
    assert clock.time_to_target(run(rows), "wall", target).seconds == 2.0
    assert clock.first_crossing(run([(1, 1.0, math.nan)]), target) is None


@pytest.mark.parametrize("rule", ["wall", "dawnbench", "mlperf", "algoperf"])
def test_a_miss_is_infinite_and_is_no_time(rule):
    answer = clock.time_to_target(run([(100, 9.0, 0.5)]), rule)
    assert answer.seconds == math.inf and not answer and str(answer) == "not reached"


def test_a_clock_that_has_not_started_shows_nothing():
    """An evaluation before the first step can meet the target already."""
    early = run([(0, 1.0, 0.95)], [Span("evaluate", 0.5, 1.0), Span("data", 2.0, 3.0), Span("train", 3.0, 4.0)])
    assert [clock.time_to_target(early, rule).seconds for rule in ("wall", "mlperf", "algoperf")] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("rule", clock.RULES)
def test_a_public_log_answers_only_its_own_clock(rule):
    log = run(spans=[], clock="dawnbench", source="public-log")
    answer = clock.time_to_target(log, rule)
    if rule == "dawnbench":
        assert answer.seconds == 15.0
        assert clock.time_to_target(run(ROWS[:1], [], clock="dawnbench"), rule).seconds == math.inf
    else:
        assert answer.seconds is None and "carries only the dawnbench clock" in answer.reason
        assert str(clock.score([log] * 3, rule)).startswith("not answerable: ")


UNCLEAR = [
    ({"arms": 4}, "4 runs were trained together"),
    ({"spans": []}, "no spans of time"),
    ({"target": None}, "no target"),
    ({"spans": [Span("evaluate", 0.0, 15.0)]}, "no span that"),  # on the wall clock everything is
]


@pytest.mark.parametrize(
    "rule, change, reason",
    [(rule, *case) for rule in clock.RULES for case in UNCLEAR if (rule, case[1]) != ("wall", "no span that")],
)
def test_what_cannot_be_answered_says_why(rule, change, reason):
    unclear = run(**change)
    answer = clock.time_to_target(unclear, rule)
    assert answer.seconds is None and not answer and reason in answer.reason
    total = clock.score([unclear, unclear, run()], rule)
    assert total.seconds is None and reason in total.reason


def test_a_rule_about_sets_does_not_judge_one_run():
    answer = clock.time_to_target(run(), "speedrun")
    assert answer.seconds is None and "a set of runs" in answer.reason


@pytest.mark.parametrize("call", [clock.time_to_target, lambda r, rule: clock.score([r], rule)])
def test_an_unknown_rule_is_named_with_those_there_are(call):
    with pytest.raises(RequestError, match="unknown clock rule 'darts'; allowed: wall, dawnbench, mlperf, speedrun"):
        call(run(), "darts")


def test_no_runs_have_no_score():
    with pytest.raises(RequestError, match="at least one run"):
        clock.score([], "wall")


def test_best_is_the_fastest_run():
    assert clock.score([taking(3), taking(2), taking(1, 0.1)], "dawnbench").seconds == 2
    assert clock.score([taking(1, 0.1)], "dawnbench").seconds == math.inf


@pytest.mark.parametrize(
    "times, misses, median",
    [
        ([4, 1, 2], 0, 2),
        ([4, 1], 0, 2.5),
        ([4, 1], 1, 4),
        ([1, 2, 3], 1, 2.5),
        ([1, 2], 2, math.inf),
        ([], 1, math.inf),
    ],
)
def test_the_median_counts_a_miss_as_infinite(times, misses, median):
    everything = [taking(time) for time in times] + [taking(9, 0.1)] * misses
    assert clock.score(everything, "algoperf").seconds == median
    assert clock.score(everything[::-1], "wall").seconds == median


def test_mlperf_drops_the_fastest_and_the_slowest():
    five = [taking(time) for time in (1, 2, 4, 6, 100)]
    assert clock.score(five, "mlperf").seconds == 4.0
    assert clock.score([*five[:4], taking(9, 0.1)], "mlperf").seconds == 4.0  # the one miss is the slowest
    two = clock.score([*five[:3], taking(9, 0.1), taking(9, 0.1)], "mlperf")
    assert two.seconds == math.inf and "2 of 5 runs missed" in two.reason
    few = clock.score(five[:2], "mlperf")
    assert few.seconds is None and "three runs or more, not 2" in few.reason


def test_a_speed_run_is_the_mean_training_time_if_the_mean_metric_is_proved():
    def last(value, seconds):  # evaluation is off this clock, and it does not matter when the target was crossed
        spans = [Span("data", 0, 5), Span("train", 5, 5 + seconds), Span("evaluate", 5 + seconds, 50)]
        return run([(1, 6.0, 0.95), (2, 50.0, value)], spans)

    proved = [last(0.91 + bump, 10 + 2 * place) for place, bump in enumerate((0.0, 0.001, 0.002, 0.003))]
    assert clock.score(proved, "speedrun") == clock.Answer(13.0)
    straddling = [last(value, 10) for value in (0.89, 0.9, 0.91, 0.92)]  # mean .905, standard error .0065
    answer = clock.score(straddling, "speedrun")
    assert answer.seconds == math.inf and "not proved to meet 0.9" in answer.reason and "n = 4" in answer.reason
    one = clock.score(proved[:1], "speedrun")
    assert one.seconds is None and "one run" in one.reason
    losses = {**TARGET, "value": 0.95, "higher": False}
    assert clock.score(proved, "speedrun", losses).seconds == 13.0
    assert clock.score(proved, "speedrun", {**losses, "value": 0.5}).seconds == math.inf


@pytest.mark.parametrize("finals", [(0.95, 0.95, 0.95), (0.95, 0.96, math.nan), (0.95, 0.96, math.inf)])
def test_finals_of_which_no_mean_can_be_proved(finals):
    answer = clock.score([taking(9, final) for final in finals], "speedrun")
    assert answer.seconds is None and "cannot be tested" in answer.reason


def test_every_rule_is_complete():
    for name, rule in clock.RULES.items():
        assert name == rule.name and rule.says and rule.counts | rule.starts_at <= set(SPAN_KINDS)
        assert rule.per in ("run", "set") and rule.score in ("best", "median", "drop-extremes", "mean-if-proved")


@st.composite
def recorded(draw) -> Run:
    """Spans that do not overlap, gaps between some, an evaluation at the end of some."""
    now, spans, rows = 0.0, [], []
    for place in range(draw(st.integers(1, 10))):
        now += draw(st.sampled_from([0.0, 0.125, 2.0]))
        end = now + draw(st.integers(0, 40)) / 8
        spans.append(Span(draw(st.sampled_from(SPAN_KINDS)), now, end))
        now = end
        if draw(st.booleans()):
            rows.append((4 * place, now, draw(st.sampled_from([0.2, 0.8, 0.9, 0.95, math.nan]))))
    return run(rows, spans)


@settings(max_examples=200, deadline=None)
@given(recorded())
def test_a_rule_that_counts_more_never_shows_less(planted):
    until = max(span.end for span in planted.spans)
    seconds = {name: clock.counted_seconds(planted, rule, until) for name, rule in clock.RULES.items()}
    assert seconds["wall"] == until and min(seconds.values()) >= 0
    assert seconds["wall"] >= seconds["mlperf"]
    assert seconds["wall"] >= seconds["dawnbench"] >= seconds["algoperf"] >= seconds["speedrun"]
    answers = {
        name: clock.time_to_target(planted, name).seconds for name in ("wall", "mlperf", "dawnbench", "algoperf")
    }
    for more, less in (("wall", "mlperf"), ("wall", "dawnbench"), ("dawnbench", "algoperf")):
        if None not in (answers[more], answers[less]):
            assert answers[more] >= answers[less]
    # The ledger: what the benchmark's clock leaves out is the other spans and the gaps.
    kinds = clock.RULES["dawnbench"].counts
    others = sum(span.end - span.start for span in planted.spans if span.kind not in kinds)
    assert seconds["wall"] - seconds["dawnbench"] == others + (until - planted.seconds())


@settings(max_examples=100, deadline=None)
@given(recorded(), st.integers(1, 12), st.sampled_from(["wall", "dawnbench", "mlperf", "algoperf"]))
def test_evaluating_less_often_never_makes_a_run_earlier(planted, every, rule):
    often, seldom = (clock.time_to_target(r, rule).seconds for r in (planted, thinned(planted, every)))
    assert (often is None and seldom is None) or seldom >= often
    again = dataclasses.replace(planted, rows=planted.rows + thinned(planted, every).rows)
    assert clock.time_to_target(again, rule).seconds == often  # the first crossing counts, not the last
