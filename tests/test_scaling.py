"""Lab 07's reading of its runs: what is a cell, what is flat, who wins, and figures that say their numbers."""

import dataclasses
import math

import pytest

from labkit import profiles
from labs.factorial import LABELS, RULES, Cell
from labkit.rules.general import published
from labkit.runs import Header, Row, Run, Span
from labkit.teach import viz
from labs import plan07, scaling, scaling_controls, scaling_figures, scaling_rules

SETTINGS = profiles.resolve("07", "full", {"mlp_rates": [2.0**-9, 2.0**-8, 2.0**-7]})


def run_of(recipe, repeat=0, curve=((1.0, 0.5, 0.9),), arms=1, began="a") -> Run:
    """A finished run whose evaluations are (training loss, validation accuracy, test accuracy), evenly spaced."""
    rows = []
    for n, values in enumerate(curve, start=1):
        step = round(recipe.steps * n / len(curve))
        for name, value in zip(("train_loss", "validation_accuracy", "test_accuracy"), values, strict=True):
            rows.append(Row(step, step * recipe.batch / recipe.train, step * recipe.batch, float(n), name, value))
    config = {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(recipe).items()
    }
    return Run(Header("07", config, repeat, arms=arms, began=began), [Span("train", 0.0, 50.0)], rows, "finished")


def mlp(cell: Cell, **rest):
    return plan07._recipe(SETTINGS, cell, **{**plan07.mlp(SETTINGS), **rest})


def accuracy(cell: Cell) -> float:
    """A made-up table: good below a cliff at rate 2^-4, better with more updates."""
    return 0.1 if cell.rate > 2.0**-4 else 0.95 - 0.02 * math.log2(cell.batch / 16) / 2


@pytest.fixture(scope="module")
def full() -> scaling.Map:
    cells = plan07.table(SETTINGS).factorial(SETTINGS.mlp_rates)
    made = [run_of(mlp(cell), curve=[(0.2, 0.8, 0.8), (0.05, accuracy(cell), accuracy(cell))]) for cell in cells]
    return scaling.Map(made, SETTINGS, "deep-mlp")


def test_only_runs_of_the_table_are_read():
    cell = Cell(64, 2.0**-8, 0.0)
    others = [
        mlp(cell, epochs=100.0),
        mlp(cell, curvature_every=5),
        mlp(cell, sizes={"own": "MyModel"}),
        mlp(cell, optimizer="adam", options={}),
        mlp(cell, train=2048),
    ]
    found = scaling.Map([run_of(recipe) for recipe in [mlp(cell), *others]], SETTINGS, "deep-mlp")
    assert len(found.runs) == 1 and len(found.longer) == 1 and found.solver("adam", 64) == (2.0**-8, 0.9)


def test_the_newest_run_of_a_seed_counts_and_seeds_are_averaged():
    cell = Cell(64, 2.0**-8, 0.0)
    made = [
        run_of(mlp(cell), 0, [(1.0, 0.5, 0.70)], began="2024-01-01"),
        run_of(mlp(cell), 0, [(1.0, 0.5, 0.90)], began="2024-01-02"),
        run_of(mlp(cell), 1, [(math.nan, 0.5, 0.80)], began="2024-01-01"),
    ]
    found = scaling.Map(made, SETTINGS, "deep-mlp")
    assert sorted(found.values(cell)) == [0.80, 0.90] and found.mean(cell) == pytest.approx(0.85)
    assert found.mean(cell, "train_loss") == math.inf  # a diverged loss is no small one
    assert math.isnan(found.mean(Cell(64, 1.0, 0.0)))


def test_each_cell_of_a_path_lies_in_the_slice_of_its_rule(full):
    for rule in RULES:
        for cell in full.table.path(rule, 2.0**-8):
            assert scaling_figures.SLICE[rule] in full.slices(cell)


def test_every_base_rate_is_flat_where_the_smallest_batch_was_not_trained(full):
    large = scaling.Map([run for run in full.runs if run.config["batch"] == 1024], SETTINGS, "deep-mlp")
    assert large.flat() == sorted(SETTINGS.mlp_rates)


def test_a_rule_that_crosses_the_cliff_loses_by_the_numbers_of_its_cell(full):
    duel = full.duel(2.0**-7)  # LEGW at 2^-4, linear at 2^-1
    assert (duel.ours, duel.theirs, duel.winner) == (pytest.approx(0.89), 0.1, "legw")
    error = math.sqrt(0.89 * 0.11 / 452 + 0.1 * 0.9 / 452)
    assert duel.bound == pytest.approx(2 * error)
    assert list(full.verdicts()["winner"]) == ["LEGW"] * 3
    assert full.verdicts(theirs="fixed")["winner"].eq("tie").all()


def test_the_winner_must_be_the_same_from_every_flat_base_rate():
    table, made = plan07.table(SETTINGS), []
    for rate, (ours, theirs) in {2.0**-8: (0.9, 0.8), 2.0**-7: (0.7, 0.8)}.items():
        made.append(run_of(mlp(table.path("fixed", rate)[0])))
        made.append(run_of(mlp(table.path("legw", rate)[-1]), curve=[(1.0, 0.5, ours)]))
        made.append(run_of(mlp(table.path("linear", rate)[-1]), curve=[(1.0, 0.5, theirs)]))
    assert scaling.Map(made[:3], SETTINGS, "deep-mlp").winner() == "LEGW"
    assert scaling.Map(made, SETTINGS, "deep-mlp").winner() == scaling.UNDECIDED


def test_retuned_is_the_best_on_validation_not_on_test():
    cells = Cell(64, 2.0**-8, 0.0), Cell(64, 2.0**-7, 0.0)
    made = [run_of(mlp(cells[0]), curve=[(1.0, 0.9, 0.7)]), run_of(mlp(cells[1]), curve=[(1.0, 0.8, 0.99)])]
    assert scaling.Map(made, SETTINGS, "deep-mlp").retuned(64) == cells[0]


def test_seconds_are_of_runs_that_own_them():
    cell = Cell(64, 2.0**-8, 0.0)
    shared = scaling.Map([run_of(mlp(cell), arms=5)], SETTINGS, "deep-mlp")
    own = scaling.Map([run_of(mlp(cell))], SETTINGS, "deep-mlp")
    assert math.isnan(shared.seconds(64)) and own.seconds(64) == pytest.approx(50.0 / 25)


def test_accuracy_at_equal_loss_is_read_at_the_first_crossing():
    run = run_of(mlp(Cell(64, 2.0**-8, 0.0)), curve=[(0.5, 0, 0.6), (0.1, 0, 0.8), (0.2, 0, 0.7), (0.05, 0, 0.9)])
    assert scaling.accuracy_at_loss(run, 0.1) == 0.8 and math.isnan(scaling.accuracy_at_loss(run, 0.01))


def test_the_heat_map_says_the_numbers_along_its_paths(full):
    none = scaling.Map([], SETTINGS, "deep-mlp")
    fig, alt, data = scaling_figures.heat_map(full, none, rate=2.0**-7)
    assert "LEGW 0.950 at 16, 0.930 at 64, 0.910 at 256, 0.890 at 1024" in alt and len(data) == len(RULES)
    assert "0.100 at 1024" in alt and viz.render(fig)
    loss = scaling_figures.heat_map(full, none, ["legw"], 2.0**-7, "training loss")
    assert "0.050 at 1024" in loss[1]


def test_every_figure_is_drawn_with_no_runs_with_one_kind_and_with_both(full):
    none, few = scaling.Map([], SETTINGS, "deep-mlp"), scaling.Map(full.runs[:6], SETTINGS, "deep-mlp")
    for recorded, yours in ((none, none), (full, none), (none, few), (full, few)):
        pair = {"deep-mlp": recorded, "row-lstm": none}, {"deep-mlp": yours, "row-lstm": none}
        drawn = [
            scaling_figures.heat_map(recorded, yours),
            scaling_figures.base_rates(*pair),
            scaling_figures.ladder(recorded, yours),
            scaling_controls.equal_footing(*pair),
            scaling_controls.retuned(recorded, yours),
        ]
        for fig, alt, _ in drawn:
            assert alt.strip() and viz.render(fig)


def test_the_curvature_figure_names_the_peak_of_the_smoothed_curve():
    run = run_of(mlp(Cell(64, 2.0**-8, 0.0)))
    values = [0.1, 9.0, 0.2, 0.3, 1.0, 3.0, 4.0, 3.0, 1.0, 0.5]  # one spike, then a hump
    run.rows += [Row(10 * n, n * 10 / 64, 640 * n, 0.0, "curvature", value) for n, value in enumerate(values)]
    _, alt, data = scaling_controls.curvature([], [run])
    assert data["peak update"].tolist() == [50] and "update 50" in alt


def test_the_published_settings_leave_their_rule_in_the_last_row_alone():
    resnet, mlperf = published("resnet50_legw.csv"), published("mlperf_rcp_resnet.csv")
    fig, alt, data = scaling_rules.published_settings(resnet, mlperf)
    assert "from 4 at batch 512 to 32 at 32768" in alt and "is 14 epochs at 32768, where the rule says 10 (L03)" in alt
    for ax, exception in zip(fig.axes, (None, 32768), strict=True):  # rates, then warm-ups
        rule, points = (dict(zip(*line.get_data(), strict=True)) for line in ax.lines[:2])
        differ = [batch for batch, value in points.items() if not math.isclose(rule[batch], value)]
        assert differ == ([] if exception is None else [exception])
    assert len(data) == len(resnet) + len(mlperf) and viz.render(fig)


def test_the_rules_are_drawn_with_the_peaks_and_warm_ups_of_their_paths():
    table, rate = plan07.table(SETTINGS), 2.0**-5
    fig, alt, data = scaling_rules.rule_schedules(table, rate, 100)
    rows, k = data.set_index("rule"), table.batches[-1] / table.batches[0]
    assert rows["peak rate"]["LEGW"] == rate * math.sqrt(k) == rows["peak rate"]["square root"]
    assert rows["peak rate"]["linear"] == rate * k and rows["peak rate"]["fixed rate"] == rate
    constant = SETTINGS.warmup_epochs * SETTINGS.train / table.batches[0]
    assert rows["warm-up updates"]["LEGW"] == pytest.approx(constant) and rows["warm-up updates"]["linear"] == 0
    for rule, line in zip(RULES, fig.axes[1].lines, strict=True):
        drawn = list(line.get_ydata())
        assert len(drawn) == 100 and max(drawn) == rows["peak rate"][LABELS[rule]]
        assert (drawn[0] == 0) == (rows["warm-up updates"][LABELS[rule]] > 0)
    assert "LEGW 0.25 after 40" in alt and viz.render(fig)


def test_speed_is_against_the_smallest_batch_of_the_same_source_and_missing_seconds_are_left_out():
    none = dict.fromkeys((16, 64, 256, 1024), math.nan)
    own = {16: 8.0, 64: 4.0, 256: 2.0, 1024: 1.0}
    fig, alt, data = scaling_rules.speed({**none, 64: 6.0, 1024: 2.0}, own)
    rows = data.set_index(["source", "batch"])["times faster"]
    assert rows["yours"].tolist() == [1, 2, 4, 8] and rows["recorded"].to_dict() == {64: 1.0, 1024: 3.0}
    assert "yours 1 s at batch 1024 (8.00 times faster)" in alt and "reports 5.3 times on average" in alt
    assert fig.axes[0].get_ylim()[1] > 8 and viz.render(fig)
    _, alone, data = scaling_rules.speed(none, own)
    assert set(data["source"]) == {"yours"} and "recorded" not in alone
