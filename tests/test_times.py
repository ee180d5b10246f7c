"""Readings of repeated runs: pieces add up to the clock, selection is order statistics, coarse readings come later."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import RequestError
from labkit.runs import SPAN_KINDS, Header, Row, Run, Span
from labkit.teach import viz
from labs import times
from labkit.tta import clock, statistics

TARGET = {"metric": "accuracy", "value": 0.9, "higher": True}


def run_of(values, every=10, seconds=1.0):
    """A run that trains for `seconds` and is evaluated for a tenth of it, once for each value."""
    run = Run(Header("11", {"evaluate_every": every}, target=TARGET), status="finished")
    for number, value in enumerate(values, start=1):
        edge = (number - 1) * 1.1 * seconds
        run.spans += [Span("train", edge, edge + seconds), Span("evaluate", edge + seconds, edge + 1.1 * seconds)]
        run.rows.append(Row(number * every, number, number, edge + 1.1 * seconds, "accuracy", value))
    return run


PARTS = st.tuples(st.sampled_from(SPAN_KINDS), st.integers(0, 20), st.integers(0, 20))


@given(st.lists(PARTS, min_size=1, max_size=12), st.integers(1, 300), st.sampled_from(sorted(clock.RULES)))
def test_the_drawn_pieces_add_up_to_the_clock(parts, until, rule):
    run, edge = Run(Header("11", {}, target=TARGET)), 0
    for kind, gap, length in parts:  # spans follow one another, with gaps between them
        run.spans.append(Span(kind, edge + gap, edge + gap + length))
        edge += gap + length
    pieces = times.segments(run, rule, until)
    assert sum(end - start for start, end in pieces) == clock.counted_seconds(run, clock.RULES[rule], until)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7, unique_by=lambda p: p[0]))
def test_selection_is_the_mean_over_all_draws(pairs):
    chosen_on, value = zip(*pairs)
    for n in range(1, len(pairs) + 1):
        draws = itertools.combinations(range(len(pairs)), n)
        winners = [value[max(draw, key=lambda i: chosen_on[i])] for draw in draws]
        assert times.picked_by(chosen_on, value, n) == pytest.approx(np.mean(winners))


@given(st.lists(st.floats(0.8, 1.0), min_size=1, max_size=20), st.integers(1, 4))
def test_a_coarser_reading_is_never_earlier(values, factor):
    run = run_of(values)
    fine, coarse = times.steps_to_target([run])[0], times.steps_to_target([run], every=10 * factor)[0]
    assert coarse >= fine and (math.isinf(coarse) or coarse % (10 * factor) == 0)


def test_evaluating_rarely_makes_the_variation_zero_and_changes_no_run():
    runs = [run_of([0.0] * late + [0.95] * (8 - late)) for late in (1, 2, 3)]
    fine, coarse = times.steps_to_target(runs), times.steps_to_target(runs, every=40)
    assert fine == [20, 30, 40] and coarse == [40, 40, 40]
    assert times.variation(fine) == pytest.approx(1 / 3) and times.variation(coarse) == 0


def test_a_crossing_that_does_not_last_is_reached_and_not_kept():
    runs = [run_of([0.91, 0.85]), run_of([0.5, 0.9]), run_of([0.5, 0.6])]
    assert times.steps_to_target(runs) == [10, 20, math.inf] and times.kept(runs) == 1
    row = times.reread(runs, [0.9], [10]).iloc[0]
    assert row["reach"] == pytest.approx(2 / 3) and row["end above"] == pytest.approx(1 / 3)


def test_a_closing_evaluation_of_a_step_seen_before_does_not_count_twice_or_cost_more():
    run = run_of([0.5, 0.8])
    run.spans.append(Span("evaluate", 2.2, 5.0))
    run.rows.append(Row(20, 2, 2, 5.0, "accuracy", 0.8))
    assert times.curve(run)[0].tolist() == [10, 20]
    assert times.full_cost([run], "wall") == pytest.approx([2.2])


def test_a_rule_that_judges_sets_cannot_be_asked_for_seconds_of_runs():
    with pytest.raises(RequestError, match="speedrun.*not answerable.*wall, dawnbench, mlperf, algoperf"):
        times.seconds_to_target([run_of([0.95])], "speedrun")


def test_made_up_runs_say_so_and_are_the_same_each_time():
    one, two = times.simulated(3), times.simulated(3)
    assert [run.rows for run in one] == [run.rows for run in two]
    assert {run.header.source for run in one} == {"simulated"}


def test_figures_say_their_numbers_and_draw_within_the_size():
    runs = times.simulated(5)
    seconds = times.seconds_to_target(runs, "algoperf")
    for fig, words, table in (
        times.ledger_figure(runs[0]),
        times.rules_figure(runs),
        times.grid_figure(runs, [0.9, 0.93], [8, 64]),
        times.reading_figure(runs, 0.93, 8, "algoperf", "yours"),
    ):
        assert viz.render(fig)[:4] == b"\x89PNG" and len(table) and words
    assert f"median {statistics.median(seconds).value:.3g} s" in words and "n = 5" in words
    assert "speedrun not answerable" in times.ledger_figure(runs[0])[1]


def test_figures_of_runs_that_all_miss_say_so():
    runs = [run_of([0.5, 0.6]), run_of([0.4, 0.7])]
    assert "wall not reached" in times.ledger_figure(runs[0])[1]
    assert "needs three runs" in times.rules_figure(runs)[1]
    assert "none (0%)" in times.grid_figure(runs, [0.9], [10])[1]
    assert "reach rate 0%" in times.reading_figure(runs, 0.9, 10, "wall", "yours")[1]
