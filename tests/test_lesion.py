"""Factorials add up on the log scale; planted interactions are found; draws are paired; rules judge what is there."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import experiment, profiles
from labkit.errors import RequestError
from labkit.runs import Header, Row, Run, Span
from labkit.teach import viz
from labs import lesion, lesion_figures, rules_lesion

SMALL = SimpleNamespace(
    lesion_train=512, lesion_validation=128, lesion_noise=0.2, lesion_sizes={"projection": 16, "hidden": 16},
    lesion_batches=[16, 64], lesion_rate=0.4, lesion_epochs=2.0, lesion_target=0.15, lesion_seeds=1,
    general_target=0.2, hasty_target=0.2, general_peak=2.0, general_cycle=2.0, general_epochs=3.0, general_seeds=1, general_fresh=256,
    general_shift=0.4, tuned_factors=[0.5, 2.0], tuned_batches=[64], tuned_epochs=1.0, tuned_reused=128,
    tuned_fresh=256,
)  # fmt: skip


def times_of(single: dict, interactions: dict, base: float = 10.0) -> dict:
    """Times of the eight cells, literally: the base divided by every factor whose letters are all on."""
    found = {}
    for cell in lesion.CELLS:
        speed = math.prod(factor for term, factor in {**single, **interactions}.items() if set(term) <= set(cell))
        found[cell] = [base / speed]
    return found


def value(table, kind: str, term: str = "ABC", column: str = "factor") -> float:
    return float(table[(table["kind"] == kind) & (table["term"] == term)].iloc[0][column])


FACTORS = st.floats(0.2, 5.0)


@settings(max_examples=30)
@given(st.tuples(*[FACTORS] * 3), st.tuples(*[FACTORS] * 4))
def test_planted_speedups_and_interactions_come_back(singles, planted):
    single = dict(zip("ABC", singles))
    interactions = dict(zip(("AB", "AC", "BC", "ABC"), planted))
    table = rules_lesion.factorial_effects(times_of(single, interactions))
    for letter, factor in single.items():
        assert value(table, "single", letter) == pytest.approx(factor)
    assert value(table, "interaction", "ABC") == pytest.approx(interactions["ABC"])
    # with a three-way term, a two-way one is the mean over the third being off and on
    assert value(table, "interaction", "AB") == pytest.approx(interactions["AB"] * math.sqrt(interactions["ABC"]))
    assert value(table, "joint") == pytest.approx(math.prod([*singles, *planted]))
    assert value(table, "product of singles") == pytest.approx(math.prod(singles))
    assert math.prod(value(table, "share", letter) for letter in "ABC") == pytest.approx(value(table, "joint"))
    both_ways = value(table, "singles over joint") * value(table, "lesions over joint")
    assert both_ways == pytest.approx(interactions["ABC"])


def test_a_share_is_the_mean_over_all_orders_of_switching_on():
    times = times_of({"A": 2.0, "B": 3.0, "C": 0.5}, {"AB": 1.7, "BC": 0.4, "ABC": 1.3})
    table = rules_lesion.factorial_effects(times)
    for letter in "ABC":
        logs = []
        for order in itertools.permutations("ABC"):
            before = "".join(sorted(order[: order.index(letter)]))
            after = "".join(sorted(before + letter))
            logs.append(math.log(times[before][0] / times[after][0]))
        assert value(table, "share", letter, "log") == pytest.approx(np.mean(logs))


def test_without_interactions_every_kind_of_speedup_agrees():
    table = rules_lesion.factorial_effects(times_of({"A": 2.0, "B": 3.0, "C": 0.5}, {}))
    for letter, factor in zip("ABC", (2.0, 3.0, 0.5)):
        for kind in ("single", "lesion", "share", "main"):
            assert value(table, kind, letter) == pytest.approx(factor)
    assert value(table, "singles over joint") == pytest.approx(1.0)


def test_a_miss_takes_its_seed_out_of_every_cell():
    times = times_of({"A": 2.0, "B": 2.0, "C": 2.0}, {})
    both = {cell: [*one, 7.0 * one[0]] for cell, one in times.items()}
    both["AB"][1] = math.inf
    table = rules_lesion.factorial_effects(both)
    assert (table["missed"] == 1).all() and (table["seeds"] == 1).all() and table["low"].isna().all()
    assert value(table, "joint") == pytest.approx(8.0)


def test_the_interval_has_the_width_of_a_mean_and_ignores_what_all_cells_share():
    random = np.random.default_rng(5)
    machine, noise = random.lognormal(0, 1, 40), random.normal(0, 0.1, 40)
    times = {cell: list(10 * machine * np.exp(noise * (cell == "A"))) for cell in lesion.CELLS}
    table = rules_lesion.factorial_effects(times)
    width = math.log(value(table, "single", "A", "high") / value(table, "single", "A", "low"))
    assert width == pytest.approx(2 * 1.96 * noise.std(ddof=1) / math.sqrt(40), rel=0.1)
    assert value(table, "single", "B", "high") == pytest.approx(1.0)


@pytest.mark.parametrize(
    "times", [{}, {"": [1.0]}, {"": [1.0], "A": [1.0, 2.0]}, {"": [0.0], "A": [1.0]}, {"": [], "A": []}]
)
def test_factorials_that_are_none_are_refused(times):
    with pytest.raises(RequestError):
        rules_lesion.factorial_effects(times)


def run_of(cell: str, repeat: int, seconds: float) -> Run:
    target = {"metric": "validation_accuracy", "value": 0.9, "higher": True}
    run = Run(Header("13", {"cell": cell}, repeat, target=target), status="finished")
    run.spans.append(Span("train", 0.0, seconds))
    run.rows.append(Row(10, 1.0, 10, seconds, "validation_accuracy", 0.95))
    return run


def judged(interactions: dict, seeds: int = 6, asked: int = 6, **more):
    random = np.random.default_rng(1)
    times = times_of({"A": 2.0, "B": 1.5, "C": 3.0}, interactions)
    runs = [run_of(cell, s, times[cell][0] * random.lognormal(0, 0.02)) for cell in lesion.CELLS for s in range(seeds)]
    cells = {cell: {"cell": cell} for cell in lesion.CELLS}
    rule = {"cells": cells, "what": "seconds", "kind": "single", "factor": 1.1, "seeds": asked, "misses": 0, **more}
    return rules_lesion.do_not_compose(runs, **rule)


def test_the_rule_finds_an_interaction_and_its_absence():
    assert judged({"AB": 1.5}).outcome == "holds" and judged({"AB": 0.6}).outcome == "holds"
    assert judged({}).outcome == "contradicted"
    assert judged({"AB": 1.1}).outcome == "not seen"
    assert judged({"AB": 1.5}, asked=7).outcome == "not attempted"
    assert judged({"AB": 1.5}, kind="lesion").outcome == "holds"
    assert judged({"AB": 1.5}, what="steps").outcome == "contradicted"  # every cell took 10 steps


def drawn(arm: str, repeat: int, blocks: dict) -> Run:
    run = Run(Header("13", {"arm": arm}, repeat), status="finished")
    for draw, values in blocks.items():
        run.rows += [Row(9, 1.0, 64, 0.0, f"{draw}_block", value) for value in values]
    return run


def arms(difference: float, seeds: int = 4, spread: float = 0.01):
    random = np.random.default_rng(3)
    hard = random.normal(0.9, 0.05, 32)  # how hard a block is, for both: pairing takes it out
    found = {"fast": [], "long": []}
    for repeat in range(seeds):
        for arm, runs in found.items():
            gap = difference * (arm == "fast") + random.normal(0, 0.003)
            values = {draw: hard + gap + random.normal(0, spread, 32) for draw in ("fresh", "reused", "shifted")}
            runs.append(drawn(arm, repeat, values))
    return found


def test_pairing_takes_out_how_hard_the_images_are_and_the_margin_decides():
    near, far = arms(-0.005), arms(-0.04)
    gap, low, high = rules_lesion.paired_interval(near["fast"], near["long"], "fresh")
    assert low < gap < high and gap == pytest.approx(-0.005, abs=0.006) and high - low < 0.02
    select = {"fast": {"arm": "fast"}, "long": {"arm": "long"}, "draw": "fresh", "margin": 0.02}
    for runs, outcome in ((near, "holds"), (far, "contradicted")):
        found = rules_lesion.nearly_as_well(runs["fast"] + runs["long"], seeds=4, **select)
        assert found.outcome == outcome
    both = far["fast"] + far["long"]
    assert rules_lesion.nearly_as_well(both, seeds=4, against="reused", **select).outcome == "holds"
    assert rules_lesion.nearly_as_well(both, seeds=5, **select).outcome == "not attempted"
    assert rules_lesion.nearly_as_well(both[1:], seeds=4, **select).outcome == "not attempted"


def test_equal_candidates_make_the_winner_look_too_good_and_one_far_ahead_does_not():
    random = np.random.default_rng(1)

    def candidates(ahead: float):
        runs = []
        for number in range(24):
            right = random.random((128, 64)) < 0.9 - ahead * (number > 0)
            runs.append(drawn(str(number), 0, {"fresh": right.mean(axis=1)}))
        return runs

    rule = {"select": {}, "candidates": 24, "images": 512, "what": "optimism", "bound": 0.0}
    equal = rules_lesion.reuse(candidates(0.0), 512)
    # the best of 24 lies 1.95 sd above its own mean, and the sets' own luck cancels
    assert np.mean(equal["optimism"]) == pytest.approx(1.95 * math.sqrt(0.09 / 512), rel=0.2)
    assert len(equal["tau"]) == 16 and abs(np.mean(equal["tau"])) < 0.2
    assert rules_lesion.reused_and_fresh(candidates(0.0), **rule).outcome == "holds"
    assert abs(np.mean(rules_lesion.reuse(candidates(0.3), 512)["optimism"])) < 0.005
    assert rules_lesion.reused_and_fresh(candidates(0.0)[1:], **rule).outcome == "not attempted"


def test_one_candidate_has_no_optimism():
    values = np.random.default_rng(2).random(32)
    found = rules_lesion.reuse([drawn("0", 0, {"fresh": values}), drawn("1", 0, {"fresh": values / 9})], 256)
    assert np.mean(found["optimism"]) == pytest.approx(0.0, abs=1e-12) and found["tau"] == [1.0] * 8


def test_the_cells_differ_in_what_they_name_and_see_equally_many_images_between_evaluations():
    recipes = lesion.lesion_recipes(SMALL)
    assert list(recipes) == ["", "A", "B", "C", "AB", "AC", "BC", "ABC"]
    for cell, recipe in recipes.items():
        assert recipe.batch == (64 if "A" in cell else 16) and recipe.pool == (2 if "C" in cell else 1)
        assert recipe.rate / (1 - recipe.options["momentum"]) == pytest.approx(0.4 * (4 if "A" in cell else 1))
        assert recipe.evaluate_every * recipe.batch == 256 and recipe.stop_at_target
    arms = lesion.arm_recipes(SMALL)
    assert (arms["fast"].model, arms["fast"].sizes, arms["fast"].pool) == (
        arms["long"].model,
        arms["long"].sizes,
        arms["long"].pool,
    )
    assert arms["fast"].stop_at_target and not arms["long"].stop_at_target
    assert len({(r.batch, r.rate, r.options["momentum"]) for r in lesion.candidate_recipes(SMALL)}) == 4


def test_the_rows_of_the_draws_are_the_models_accuracy_and_the_clock_does_not_see_them(store):
    recipe = lesion.arm_recipes(SMALL)["long"]
    run = experiment.train(recipe, store, lab="13", callbacks=[lesion.Draws(recipe, SMALL.general_shift, first=0)])
    fresh = rules_lesion.blocks([run], "fresh")
    assert fresh.shape == (1, 4) and fresh.mean() == pytest.approx(run.last("test_accuracy"), abs=1e-6)
    assert rules_lesion.blocks([run], "reused").mean() == pytest.approx(run.last("validation_accuracy"), abs=1e-6)
    assert rules_lesion.blocks([run], "shifted").shape == (1, 4)
    assert not np.array_equal(rules_lesion.blocks([run], "shifted"), fresh)
    bare = experiment.train(recipe, store, lab="bare")
    assert bare.last("test_accuracy") == run.last("test_accuracy")  # looking changes nothing
    train_end = max(span.end for span in run.spans if span.kind == "train")
    first = min(row.when for row in run.series("fresh_block"))
    assert first >= train_end and not any(span.start <= first < span.end for span in run.spans)
    assert lesion.of_recipe([run, bare], recipe) == [run, bare]
    assert lesion.of_recipe([run], lesion.arm_recipes(SMALL)["fast"]) == []


def test_the_fresh_draw_shares_no_image_with_what_was_seen_before():
    recipe = lesion.arm_recipes(SMALL)["fast"]
    data, draws = recipe.load(), lesion.Draws(recipe).draws
    seen = {image.tobytes() for part in (data.train_x, data.validation_x, data.test_x) for image in part}
    fresh, classes = draws["fresh"]
    assert fresh.shape == data.test_x.shape and not seen & {image.tobytes() for image in fresh}
    assert set(draws) == {"reused", "fresh"} and np.bincount(classes, minlength=10).min() > 10


def test_the_figures_say_their_numbers():
    random = np.random.default_rng(0)
    times = times_of({"A": 2.0, "B": 1.5, "C": 3.0}, {"AC": 1.5})
    cells = {c: [run_of(c, s, times[c][0] * random.lognormal(0, 0.1)) for s in range(3)] for c in lesion.CELLS}
    two = [("yours", {c: runs[:1] for c, runs in cells.items()}, "C1"), ("recorded", cells, "C0")]
    for figure, number in (
        (lesion_figures.factorial_figure, "with none on"),
        (lesion_figures.composition_figure, "the product of the single speed-ups is"),
        (lesion_figures.effects_figure, "in steps x"),
    ):
        _, alt, data = figure(two)
        assert number in alt and len(data)
    _, alt, data = lesion_figures.generalisation_figure(
        [("yours", arms(-0.01, seeds=1), "C1"), ("recorded", arms(-0.01), "C0")]
    )
    assert "1 seed," in alt and "4 seeds" in alt and len(data) == 6
    # the same sign as the claim's evidence, which is below 0 where the fast model loses more
    gap = rules_lesion.paired_interval(*lesion.paired(arms(-0.01)), "fresh", "reused")[0]
    assert f"fresh less reused {100 * gap:+.1f} points" in alt


def test_where_every_seed_missed_the_figures_say_so_and_write_no_nan():
    times = times_of({"A": 2.0, "B": 1.5, "C": 3.0}, {})
    cells = {c: [run_of(c, 0, times[c][0])] for c in lesion.CELLS}
    missed = {c: [Run(run.header, status="finished") for run in runs] for c, runs in cells.items()}
    some = {**cells, "AB": missed["AB"]}
    both = lambda first: [("yours", first, "C1"), ("recorded", cells, "C0")]  # noqa: E731
    fig, alt, _ = lesion_figures.factorial_figure(both(missed))
    assert "yours: 8 of 8 runs missed the target; no seed is left" in alt and "nan" not in alt
    labels = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    assert labels == ["yours (no run reached it)", "recorded"]
    for groups in (both(missed), both(some)):
        fig, alt, _ = lesion_figures.composition_figure(groups)
        assert alt.startswith("yours: no seed is left, 1 left out for a miss; recorded: the product")
        assert "nan" not in alt
        assert "yours: no seed is left" in [text.get_text() for text in fig.axes[1].texts]
    fig, alt, _ = lesion_figures.effects_figure([("yours", some, "C1")])
    assert alt == "yours: no seed is left." and viz.render(fig)


def test_yours_show_around_the_recorded_candidates_and_the_picks_are_in_squares():
    random = np.random.default_rng(0)
    runs = []
    for number in range(4):
        run = drawn(str(number), 0, {"fresh": random.random(32)})
        run.header.config.update(validation=512, batch=64, rate=0.1, options={"momentum": 0.0})
        run.rows.append(Row(9, 1.0, 0, 0.0, "validation_accuracy", [0.0, 1.0, 0.1, 0.2][number]))
        runs.append(run)
    fig, alt, _ = lesion_figures.reuse_figure([("yours", runs[:3], "C1"), ("recorded", runs, "C0")])
    yours, mine, recorded, theirs = fig.axes[0].lines[:4]
    assert yours.get_markersize() > 1.5 * recorded.get_markersize() and yours.get_markerfacecolor() == "none"
    assert mine.get_marker() == theirs.get_marker() == "s" and mine.get_xdata()[0] == theirs.get_xdata()[0] == 100
    assert "where 2 of the candidates do better" in alt and "where 3 of the candidates do better" in alt


def test_the_reader_is_told_batches_rate_target_and_epochs():
    said = lesion.lesion_words(SMALL)
    recipes = lesion.lesion_recipes(SMALL)
    for cell in ("", "A"):
        assert f"{recipes[cell].batch}" in said and f"{recipes[cell].rate:g}" in said
    assert "target 15.0% of 128 validation images, read every 256 training images" in said and "2 epochs of 512" in said
    assert lesion.arm_words(SMALL) == (
        "fast: batch 64, 2 epochs, target 20.0%; hasty: 1 epochs, 20.0%; long: batch 16, 3 epochs, no target"
    )


def test_at_smoke_every_cell_reaches_its_target(store):
    recipes = lesion.lesion_recipes(profiles.resolve("13", "smoke"))
    runs = [experiment.train(recipe, store, lab="13") for recipe in recipes.values()]
    assert all(run.last("validation_accuracy") >= run.header.target["value"] for run in runs)
