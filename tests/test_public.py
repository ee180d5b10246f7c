"""The public tables of lab 12: what is computed from them equals a literal transcription, and nothing is made up."""

import math

import numpy as np
import pandas as pd
import pytest

from labkit import claims, profiles
from labkit.experiment import train
from labkit.teach import viz
from labkit.tta import clock, statistics
from labs import plan11, plan12, public, public_clocks, public_figures, public_logs, times

FIGURES = {
    "progress": lambda: public_figures.progress_figure(public.entries()),
    "variation": lambda: public_figures.variation_figure(public.variations(public.runs()), public.spreads([])),
    "evaluations": lambda: public_figures.evaluations_figure(
        public.runs(), public.variations(public.runs()), "NCF, DGX-1 (v0.5)"
    ),
    "ranks": lambda: public_figures.ranks_figure(GRID, public.entries()),
    "margins": lambda: public_figures.margins_figure(public.entries(), [("yours", times.simulated(4), viz.YOURS)]),
    "ladder": lambda: public_clocks.ladder_figure(public.ladder(public.runs(), 100, 0)),
    "cost": lambda: public_clocks.cost_figure(public.entries()),
    "inference": lambda: public_clocks.inference_figure(public.published("dawnbench_inference.csv")),
    "autumn": lambda: public_clocks.autumn_figure(public.runs(), public_logs.hour_twice()),
}
GRID = public.published("dawnbench_thresholds.csv")


def mlperf_rows(seconds, evaluations=None, system="v0.6/Lab/box-1", benchmark="resnet", epochs=None, round="v0.6"):
    """A table as `public.runs` gives it; infinite seconds are a miss that ran for 1000 s."""
    count = len(seconds)
    return pd.DataFrame(
        {
            "round": round, "system": system, "benchmark": benchmark, "file": [f"result_{n}.txt" for n in range(count)],
            "seconds": seconds, "converged": np.isfinite(seconds),
            "spent": [t if math.isfinite(t) else 1000.0 for t in seconds],
            "evaluations": evaluations or [1] * count, "last_epoch": epochs or [4.0] * count,
        }
    )  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_and_says_numbers(name):
    fig, alt, data = FIGURES[name]()
    assert len(viz.render(fig)) > 1000 and len(data) and any(sign.isdigit() for sign in alt)
    assert "nan" not in alt.lower()


@pytest.mark.parametrize("task", public.TASKS)
@pytest.mark.parametrize("moved", [-4.0, -0.5, 0.0, 0.5, 1.0])
def test_the_leader_board_at_a_threshold_is_the_sorted_column(task, moved):
    fig, alt, data = public_figures.leaderboard_figure(GRID, public.entries(), task, moved)
    viz.render(fig)
    assert data["seconds"].is_monotonic_increasing and "Kendall tau" in alt
    if moved == 0.0:
        known = public.entries().set_index("entry")["tta_seconds"]
        assert np.allclose(data["seconds"], known[data["entry"]])
        assert (data["official rank"] == data["seconds"].rank(method="min")).all()


@pytest.mark.parametrize(
    "task, moved, title",
    [
        ("ImageNet", -4.0, "ImageNet at 90, the nearest in the table to 89 (official 93)"),
        ("ImageNet", -3.0, "ImageNet at 90 (official 93)"),
        ("SQuAD", 0.5, "SQuAD at 0.75, the nearest in the table to 0.755 (official 0.75)"),
    ],
)
def test_a_threshold_that_the_table_does_not_hold_is_said_to_be_another(task, moved, title):
    fig, alt, _ = public_figures.leaderboard_figure(GRID, public.entries(), task, moved)
    assert fig.axes[0].get_title() == title and alt.startswith(title.partition(" (")[0].replace(" at", " at threshold"))


def test_a_threshold_that_nobody_reaches_says_so_in_the_picture():
    fig, alt, data = public_figures.leaderboard_figure(GRID, public.entries(), "ImageNet", 1.0)
    assert data.empty and "no entry reaches it" in [text.get_text() for text in fig.axes[0].texts]


def test_every_source_and_licence_is_said():
    table = public.sources()
    assert (
        list(table["table"]) == list(public.TABLES)
        and table["source"].str.contains("/").all()
        and (table["licence"] != "").all()
    )


def test_progress_takes_the_fastest_so_far_and_the_fastest_seed():
    rows = [("a", "2018-01-01", 900), ("b", "2018-01-05", 600), ("c", "2018-06-01", 700), ("d", "2018-07-01", 60)]
    table = pd.DataFrame(rows, columns=["entry", "date", "tta_seconds"]).assign(task="T")
    found = public.progress(table.assign(date=pd.to_datetime(table["date"])))
    assert found["entry"].tolist() == ["b", "d"] and found["speed-up"].tolist() == [1.0, 10.0]


def test_the_name_of_the_bound_stands_outside_the_axes_where_no_interval_crosses_it():
    fig = public_figures.variation_figure(public.variations(public.runs()), public.spreads([]))[0]
    viz.render(fig)
    ax = fig.axes[0]
    assert "our bound" in ax.texts[0].get_text() and ax.texts[0].get_window_extent().x0 > ax.get_window_extent().x1


def test_variation_leaves_misses_out_and_says_how_much_is_the_evaluation():
    table = mlperf_rows([100.0, 100.5, 100.2, 200.0, 200.4, math.inf], evaluations=[1, 1, 1, 2, 2, 2])
    row = public.variations(table).iloc[0]
    reached = np.array([100.0, 100.5, 100.2, 200.0, 200.4])
    assert (row["runs"], row["reached"]) == (6, 5) and row["variation"] == pytest.approx(
        reached.std(ddof=1) / reached.mean()
    )
    assert row["evaluation counts"] == 2 and 0.999 < row["share"] <= 1
    alone = public.variations(mlperf_rows([100.0, 100.5, 100.2])).iloc[0]
    assert alone["evaluation counts"] == 1 and math.isnan(alone["share"])
    assert public.variations(mlperf_rows([100.0, math.inf])).empty


def test_a_grouping_that_means_nothing_gets_no_share_on_average():
    random = np.random.default_rng(0)
    shares = [
        public.variations(mlperf_rows(random.normal(100, 1, 10).tolist(), evaluations=[1, 2] * 5)).iloc[0]["share"]
        for _ in range(60)
    ]
    assert abs(np.mean(shares)) < 0.1


def test_agreement_is_kendalls_tau_with_misses_last():
    seconds = {1.0: (5, 6, 7), 2.0: (8, 9, 10), 3.0: (math.inf, 20, 15)}
    grid = pd.DataFrame(
        [("T", e, t, s) for t, column in seconds.items() for e, s in zip("abc", column)],
        columns=["task", "entry", "threshold", "seconds"],
    )  # fmt: skip
    found = public.agreement(grid, pd.DataFrame({"task": ["T"], "threshold": [2.0]}))
    assert found["tau"].tolist() == pytest.approx([1.0, 1.0, -1.0]) and found["reached"].tolist() == [3, 3, 2]
    assert found["moved"].tolist() == [-1.0, 0.0, 1.0]


def test_the_ladder_splits_a_speed_up_into_throughput_and_epochs():
    small = mlperf_rows([1000.0, 1020.0, 980.0], system="v0.6/Google/tpu-v3-32", epochs=[60.0, 60.0, 60.0])
    large = mlperf_rows([50.0, 52.0, 48.0], system="v0.6/Google/tpu-v3-2048", epochs=[72.0, 76.0, 68.0])
    found = public.ladder(pd.concat([small, large]), 400, 0).set_index("cores")
    one = statistics.scaling(1000.0, 50.0, 32, 2048, 60.0, 72.0)
    row = found.loc[2048]
    assert (row["tta"], row["throughput"], row["epochs ratio"]) == pytest.approx(
        (one.tta_speedup, one.throughput_speedup, one.epochs_ratio)
    )
    for name in ("tta", "throughput", "epochs ratio"):
        assert row[f"{name} low"] <= row[name] <= row[f"{name} high"]
        assert found.loc[32, name] == found.loc[32, f"{name} low"] == 1.0


def test_the_ladder_splits_as_claim_d14_does():
    said = claims.board([], "12").set_index("claim").loc["D14", "evidence"]
    last = public.ladder(public.runs(), 100, 0).iloc[-1]
    assert f"{last['tta']:.1f} times faster = throughput {last['throughput']:.1f}" in said
    assert f"epochs {last['epochs ratio']:.2f} " in said


def test_the_ladder_of_the_logs_is_the_product_of_its_parts():
    found = public.ladder(public.runs(), 100, 0)
    assert found["cores"].tolist() == [32, 128, 256, 512, 2048]
    assert np.allclose(found["tta"], found["throughput"] / found["epochs ratio"])


def test_a_public_run_answers_its_own_clock_and_no_other():
    group = public_logs.as_runs(mlperf_rows([100.0, 110.0, 120.0, math.inf, 90.0]))
    assert [clock.time_to_target(run, "mlperf").seconds for run in group] == [100.0, 110.0, 120.0, math.inf, 90.0]
    table = public_logs.answers({"logs": group}).loc[:, "logs"]
    assert table["mlperf"] == "110 s" and set(table.drop("mlperf")) == {"not answerable"}
    fig, alt, data = public_clocks.picks_figure(group, "dawnbench", "logs")
    assert "not answerable, this log carries only the mlperf clock" in alt and data is None
    assert viz.render(fig)


def test_one_number_of_many_by_each_way():
    group = public_logs.as_runs(mlperf_rows([100.0, 110.0, 120.0, math.inf, 90.0]))
    found = public_clocks.picks_figure(group, "mlperf", "logs")[2].set_index("one number")["seconds"]
    assert (
        found["fastest run"] == 90 and found["median, misses infinite"] == 110 and found["mean of the reached"] == 105
    )
    assert found["expected, failures paid"] == pytest.approx(105 + 1000 / 4)
    assert found["MLPerf, by its round"] == pytest.approx(110)


def test_own_runs_are_read_under_a_rule_that_judges_sets_too(tiny):
    for target, words in ((0.93, "mean to the end 2.1"), (0.96, "target not proved no number")):
        runs = times.simulated(4, target=target)
        fig, alt, data = public_clocks.picks_figure(runs, "speedrun", "own", viz.YOURS)
        assert fig.axes[0].lines[0].get_color() == viz.YOURS and len(fig.axes[0].lines[0].get_xdata()) == 4
        scored = clock.score(runs, "speedrun")
        assert data["seconds"].tolist() == [scored.seconds] and words in alt and scored.reason in alt
    one = public_clocks.picks_figure(runs[:1], "speedrun", "own")[1]
    assert "not answerable, a mean cannot be proved with one run" in one
    runs = times.simulated(4)
    assert public_clocks.picks_figure(runs, "wall", "own")[2]["seconds"].iloc[0] < math.inf


def test_the_officially_scored_sets_of_the_lab_are_in_the_table():
    table, scores = public.runs(), public.published("mlperf_systems.csv").set_index(["system", "benchmark"])
    for name, (system, benchmark) in public.SETS.items():
        rows = public.one_set(table, name)
        group = public_logs.as_runs(rows)
        found = public_clocks.picks_figure(group, "mlperf", name)[2].set_index("one number")["seconds"]
        assert found["MLPerf, by its round"] == pytest.approx(scores.loc[(system, benchmark), "score_seconds"])
        assert len(rows) == scores.loc[(system, benchmark), "runs"]


def test_reach_counts_the_failures_and_their_price():
    table = mlperf_rows([100.0, 120.0, math.inf, math.inf])
    row = public.reach(table, []).set_index("set").loc["resnet, v0.6/Lab/box-1"]
    assert row["reached"] == "2 of 4" and float(row["expected s"]) == 110 + 1000


def test_an_hour_that_was_lived_twice_is_accepted_and_one_that_did_not_return_is_not():
    text = public_logs.hour_twice()
    found = public_logs.read_text(text)
    assert found["flags"] == ["clock-stepped-and-returned"] and found["tta_seconds"] == 1290 * 25
    lines = text.splitlines()
    stamps = [int(line.split()[2]) for line in lines]
    assert min(np.diff(stamps[2:-1])) == 1290 - 3600 and max(np.diff(stamps[2:-1])) == 1290 + 3600
    returned = int(np.argmax(np.diff(stamps[2:-1]))) + 3
    one_way = [
        line if n < returned else line.replace(str(at), str(at - 3600))
        for n, (line, at) in enumerate(zip(lines, stamps))
    ]
    assert "its clock cannot be right" in public_logs.read_text("\n".join(one_way) + "\n")["reason"]


def test_runs_of_lab_11_are_found_again_by_recipe(store, tiny):
    recipe = tiny(target={"metric": "validation_accuracy", "value": 0.1, "higher": True})
    for repeat in (1, 0):
        train(recipe, store, lab="11", repeat=repeat)
    train(tiny(rate=0.01), store, lab="11")
    assert [run.header.repeat for run in public_logs.own_runs(store, recipe, recipe.device)] == [0, 1]
    assert public_logs.own_runs(store, tiny(epochs=1), recipe.device) == []


def test_the_recipe_is_lab_11s():
    assert plan12.own(plan12.Profile(own="smoke")) == plan11.repeated(profiles.resolve("11", "smoke"))


def test_without_a_checkout_the_tables_are_used_and_an_empty_folder_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_LOGS", raising=False)
    assert public_logs.live("") == "no checkout named: the tables that come with the course are used"
    assert public_logs.live(tmp_path) == "no DAWNBench entries there; no MLPerf logs there"


def test_a_checkout_that_is_read_now_gives_the_tables_back(request):
    said = public_logs.live(request.getfixturevalue("public_logs"))
    assert said == (
        "69 DAWNBench entries read now, 69 of them in our table, largest difference 0 s; "
        "410 MLPerf logs read now, 410 of them in our table, largest difference 0 s"
    )
