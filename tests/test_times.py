"""Readings of repeated runs: pieces add up to the clock, selection is order statistics, coarse readings come later."""

import itertools
import math
import warnings

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import RequestError
from labkit.experiment import Recipe
from labkit.runs import SPAN_KINDS, Header, Row, Run, RunWriter, Span
from labkit.teach import viz
from labs import one_run, times, times_figures
from labkit.tta import clock, statistics
from labkit.tta.callback import TimeToAccuracy

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
        one_run.ledger_figure(runs[0]),
        times.rules_figure(runs),
        times.grid_figure(runs, [0.9, 0.93], [8, 64]),
        times.reading_figure(runs, 0.93, 8, "algoperf", "yours"),
    ):
        assert viz.render(fig)[:4] == b"\x89PNG" and len(table) and words
    assert f"median {statistics.median(seconds).value:.3g} s" in words and "n = 5" in words
    assert "speedrun not answerable" in one_run.ledger_figure(runs[0])[1]


def test_figures_of_runs_that_all_miss_say_so():
    runs = [run_of([0.5, 0.6]), run_of([0.4, 0.7])]
    assert "wall not reached" in one_run.ledger_figure(runs[0])[1]
    assert "needs three runs" in times.rules_figure(runs)[1]
    assert "none (0%)" in times.grid_figure(runs, [0.9], [10])[1]
    assert "reach rate 0%" in times.reading_figure(runs, 0.9, 10, "wall", "yours")[1]


def group(name, count, seed=0, target=0.93):
    """A group of made-up runs as the figures take it, each with a closing look at test images."""
    runs = times.simulated(count, seed, steps=512, target=target)
    for number, run in enumerate(runs):
        run.header.config.update(model="deep-mlp", evaluate_every=8)
        run.rows.append(Row(512, 8, 1, run.rows[-1].when, "test_accuracy", 0.92 + 0.001 * (7 * number % 5)))
    return name, runs, {"yours": viz.YOURS, "recorded": viz.RECORDED}[name]


GROUPS = {
    "own only": [group("yours", 5)],
    "own and recorded": [group("yours", 5), group("recorded", 14, seed=1)],
    "all miss": [group("yours", 4, target=0.999)],
    "two runs": [group("yours", 2), group("recorded", 2, seed=1)],
}
FIGURES = [
    times_figures.crossings_figure,
    times_figures.literature_figure,
    times_figures.target_figure,
    times_figures.best_of_figure,
    times_figures.kept_figure,
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
@pytest.mark.parametrize("case", GROUPS)
def test_figures_of_groups_draw_and_name_every_group(case, figure):
    fig, words, table = figure(GROUPS[case])
    assert viz.render(fig)[:4] == b"\x89PNG" and "nan" not in words
    nothing = case == "all miss" and figure in (times_figures.target_figure, times_figures.best_of_figure)
    assert table.empty == nothing
    if not (case == "all miss" and figure is times_figures.best_of_figure):
        assert all(name in words for name, _, _ in GROUPS[case])


def test_figures_of_groups_say_what_the_runs_hold():
    (_, runs, _), (_, recorded, _) = groups = GROUPS["own and recorded"]
    fig, words, table = times_figures.crossings_figure(groups)
    assert table["first crossing (step)"].tolist() == times.steps_to_target(runs)
    assert "14 runs, 12 drawn" in fig.axes[1].get_title() and "drawn" not in fig.axes[0].get_title()
    dots = [line for line in fig.axes[1].lines if line.get_marker() == "o"]
    assert len(dots) == sum(map(math.isfinite, times.steps_to_target(recorded)))  # those not drawn have theirs too

    k = statistics.coefficient_of_variation(times_figures.reached_seconds(recorded))
    assert (
        f"recorded {k.value:.2f} [{k.low:.2f}, {k.high:.2f}] over {k.n} runs"
        in times_figures.literature_figure(groups)[1]
    )

    table = times_figures.target_figure(groups)[2].set_index(["runs", "target"])["median steps"]
    assert table["yours", 0.93] == np.median(times.steps_to_target(runs))
    assert table["recorded", 0.92] == np.median(times.steps_to_target(recorded, 0.92))

    table = times_figures.best_of_figure(groups)[2].set_index(["runs", "n"])["best / mean"]
    seconds = times_figures.reached_seconds(recorded)
    assert table["recorded", 1] == pytest.approx(1)
    assert table["recorded", len(seconds)] == pytest.approx(min(seconds) / np.mean(seconds))


def test_labels_stand_clear_of_lines():
    groups = GROUPS["own and recorded"]
    right = times_figures.literature_figure(groups)[0].axes[1]
    bound = next(line.get_xdata()[0] for line in right.lines if line.get_linestyle() == "--")
    assert all(text.get_position()[0] > bound for text in right.texts)
    steep, flat = run_of([0.0, 0.9] + [0.91] * 8 + [0.93]), run_of([0.0, 0.9, 0.905])  # one median ends early
    ax = times_figures.target_figure([("yours", [flat], viz.YOURS), ("recorded", [steep], viz.RECORDED)])[0].axes[0]
    drawn = {line.get_color(): line.get_xydata()[~np.isnan(line.get_ydata())][-1] for line in ax.lines[:2]}
    assert drawn[viz.YOURS][0] < drawn[viz.RECORDED][0]
    low, high = (next(text for text in ax.texts if text.get_text().startswith(name)) for name in ("yours", "recorded"))
    for text, colour in ((low, viz.YOURS), (high, viz.RECORDED)):  # each at the end of its own line
        x, y = getattr(text, "xy", text.get_position())
        assert x == drawn[colour][0] and 0 <= y - drawn[colour][1] < 0.15 * ax.get_ylim()[1]
    assert low.get_text() == "yours, then a miss" and high.get_text() == "recorded"


def test_a_median_that_is_not_reached_is_named_in_the_picture():
    runs = [run_of([0.0, 0.95]), run_of([0.0, 0.5]), run_of([0.0, 0.5])]
    texts = [text.get_text() for text in times.reading_figure(runs, 0.9, 10, "wall", "yours")[0].axes[0].texts]
    assert texts == ["median not reached"]
    reached = [text.get_text() for text in times.reading_figure(runs[:1], 0.9, 10, "wall", "yours")[0].axes[0].texts]
    assert reached == ["median 2.2 s"]


def test_labels_of_lines_that_end_alike_are_not_on_each_other():
    for groups in (GROUPS["own and recorded"], [group("yours", 5, target=0.9), group("recorded", 5, target=0.9)]):
        ax = times_figures.target_figure(groups)[0].axes[0]
        low, high = sorted(getattr(text, "xy", text.get_position())[1] for text in ax.texts)
        assert high - low > 0.07 * ax.get_ylim()[1]


def test_a_single_run_is_singular():
    fig, words, _ = times_figures.crossings_figure([group("yours", 1)])
    assert "1 of 1 run crosses 0.93" in words and fig.axes[0].get_title().endswith(", 1 run")


def test_choosing_by_validation_gains_nothing_from_one_run_and_the_largest_from_all():
    _, runs, _ = GROUPS["own only"][0]
    gains = times_figures.selection_gains(runs)
    final = 100 * np.array([times.curve(run)[1][-1] for run in runs])
    tested = 100 * np.array([run.last("test_accuracy") for run in runs])
    assert gains["validation"][0] == pytest.approx(0) and gains["test"][0] == pytest.approx(0)
    assert gains["validation"][-1] == pytest.approx(final.max() - final.mean())
    assert gains["test"][-1] == pytest.approx(tested[final.argmax()] - tested.mean())


def test_figures_of_groups_that_all_miss_say_so():
    groups = GROUPS["all miss"]
    assert "0 of 4 runs cross 0.999; 0 end at or above it" in times_figures.crossings_figure(groups)[1]
    assert "fewer than two runs reached" in times_figures.literature_figure(groups)[1]
    assert "the median is a miss at every target drawn" in times_figures.target_figure(groups)[1]
    assert times_figures.best_of_figure(groups)[1] == "fewer than two runs reached the target."
    assert "expected time with failures is not reached" in times_figures.kept_figure(groups)[1]
    assert list(times_figures.readme_sum(groups)[0]["run"]) == ["cifar10-fast, V100 (README)"]


def test_a_target_whose_easier_neighbour_is_a_miss_too_has_no_ratio():
    runs = [run_of([0.0] * late + [0.86]) for late in (1, 2, 3)]
    words = times_figures.target_figure([("yours", runs, viz.YOURS)])[1]
    assert words == "yours: the median is a miss even one point below 0.9."


def test_the_sum_of_the_readme_comes_out_and_medians_stand_below_it():
    groups = GROUPS["own and recorded"]
    table, words = times_figures.readme_sum(groups)
    assert list(table["run"]) == ["cifar10-fast, V100 (README)", "recorded, median", "yours, median"]
    assert (table["by dawnbench"][0], words.split(" = ")[1]) == (74, "74 s")
    wall, bench = (np.median(times.seconds_to_target(groups[0][1], rule)) for rule in ("wall", "dawnbench"))
    assert table["ratio"][2] == pytest.approx(wall / bench, abs=1e-3) and table["ratio"][2] > 1


def test_targets_are_moved_around_that_of_the_runs():
    values = times.moved(GROUPS["own only"][0][1])
    assert values == sorted(values) and 0.93 in values and (values[0], values[-1]) == (0.83, 0.94)


def test_loaders_scale_the_images_and_checkpoints_are_saved_at_start_and_after_evaluations(tmp_path):
    recipe = Recipe(data="procedural", train=64, validation=32, test=32, batch=24)
    train, validation = one_run.loaders(recipe)
    images = train.dataset.tensors[0]
    assert abs(images.mean()) < 0.05 and images.std() == pytest.approx(1, abs=0.05)
    assert [len(batch[1]) for batch in train] == [24, 24] and len(validation.dataset) == 32

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(images[0].numel(), 10))

        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, index):
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), batch_size=32)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    path = tmp_path / "model.ckpt"
    with warnings.catch_warnings(), RunWriter(Header("11", {}), tmp_path / "run.jsonl") as writer:
        callbacks = [TimeToAccuracy(writer, 24), one_run.SaveAtStartAndAfterEvaluations(path)]
        options = {"max_steps": 4, "max_epochs": -1, "val_check_interval": 2, "check_val_every_n_epoch": None}
        trainer = pl.Trainer(**options, callbacks=callbacks, default_root_dir=tmp_path, **one_run.quiet("cpu"))
        trainer.fit(Module(), train, validation)
    kinds = [span.kind for span in writer.run.spans if span.kind != "train"]
    assert kinds == ["checkpoint", "evaluate", "checkpoint", "evaluate", "checkpoint"] and path.is_file()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.ckpt", "run.jsonl"]  # nothing else is written
