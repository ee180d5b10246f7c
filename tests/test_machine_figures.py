"""Figures of lab 00 say their numbers, draw one mark for each, and count an empty guess as none."""

import math

import pandas as pd
import pytest

from labkit import doctor
from labkit.teach import viz
from labkit.teach.predict import Prediction
from labs import machine_figures

MEASURED = [(name, 10.0 * (n + 1), unit) for n, (name, unit) in enumerate(doctor.NUMBERS)]


def guesses(*answers):
    return [
        Prediction(f"00.p{n}", "How fast?", (), unit, answer)
        for n, (answer, (_, _, unit)) in enumerate(zip(answers, MEASURED), 1)
    ]


def test_the_roofline_bends_where_arithmetic_and_memory_balance():
    rows = [
        {"operation": "add", "FLOPs per byte": 0.25, "GFLOP/s at most": 25.0},
        {"operation": "product", "FLOPs per byte": 64.0, "GFLOP/s at most": 1000.0},
    ]
    fig, alt, data = machine_figures.roofline(rows, peak=1000.0, bandwidth=100.0)
    roof = fig.axes[0].lines[0]
    x, y = list(roof.get_xdata()), list(roof.get_ydata())
    assert x[1] == 10.0 and y[1:] == [1000.0, 1000.0] and y[0] == pytest.approx(100.0 * x[0])
    assert "balance at 10 FLOPs per byte" in alt and "product at most 1000 GFLOP/s" in alt
    assert len(data) == 2 and viz.render(fig)


def test_a_step_is_named_at_the_smallest_and_the_largest_batch():
    rows = pd.DataFrame({"batch": [16, 64, 256], "estimated ms": [1.0, 4.0, 16.0], "measured ms": [5.0, 6.0, 20.0]})
    rows["times the estimate"] = rows["measured ms"] / rows["estimated ms"]
    fig, alt, data = machine_figures.steps(rows)
    assert "at batch 16 estimated 1 ms, measured here 5 ms, 5.0 times" in alt and "at batch 256" in alt
    assert "at batch 64" not in alt and data is rows and viz.render(fig)


def test_a_guess_has_its_log_error_and_an_empty_or_impossible_one_has_none():
    fig, alt, data = machine_figures.guesses(MEASURED, guesses(100.0, None, 3.0, 0, -1.0))
    errors = data["log10 error"].dropna()
    assert (
        errors.tolist() == pytest.approx([1.0, 1.0])
        and data["guess"].notna().tolist() == errors.reindex(range(5)).notna().tolist()
    )
    name = MEASURED[0][0]
    assert f"Guesses: {name} 100, log10 error 1.00" in alt and "Recorded: none" in alt and viz.render(fig)
    low, high = fig.axes[0].get_xlim()
    assert low < 3.0 and high > 100.0
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["1", "10", "100"]
    assert not len(fig.axes[0].get_xticks(minor=True))


def test_no_guess_at_all_is_said_and_leaves_no_error():
    fig, alt, data = machine_figures.guesses(MEASURED, guesses(*[None] * 5))
    assert data["log10 error"].isna().all() and "Guesses: none" in alt
    assert "no guesses yet" in fig.axes[0].get_title() and "blue" not in fig.axes[0].get_title()


def test_recorded_numbers_of_each_machine_stand_beside_the_same_number():
    machines = [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.12345]]
    fig, alt, data = machine_figures.guesses(MEASURED, guesses(*[None] * 5), machines)
    assert data["recorded"].tolist() == [[1.0, 6.0], [2.0, 7.0], [3.0, 8.0], [4.0, 9.0], [5.0, 10.123]]
    assert "blue: recorded" in fig.axes[0].get_title() and f"{MEASURED[4][0]} 5.0, 10.123" in alt


def test_the_median_timing_is_not_moved_by_one_interruption():
    timings = {"quiet": [10.0, 10.0, 11.0], "spinning": [1.0, 9.0, 9.5]}
    fig, alt, data = machine_figures.noise(timings, 256, cpus=4)
    assert data["median"].tolist() == [10.0, 9.0] and "spinning: median 9 GFLOP/s, from 1 to 9.5" in alt
    assert [len(line.get_xdata()) for line in fig.axes[0].lines] == [3, 3]
    assert "on 4 CPUs." in alt and all(map(math.isfinite, fig.axes[0].get_xlim())) and viz.render(fig)


def test_a_narrow_axis_has_steps_within_a_power_of_ten_and_one_is_singular():
    fig, alt, _ = machine_figures.noise({"quiet": [101.0], "crowded": [46.0]}, 256, cpus=1)
    assert [label.get_text() for label in fig.axes[0].get_xticklabels()] == ["50", "100", "200"]
    assert alt.startswith("1 timing of") and "on 1 CPU." in alt and "1 timing each" in fig.axes[0].get_title()
