"""Runs trained together are, each of them, the run that its recipe gives when it is trained alone."""

import math

import pytest

from labkit import runs
from workloads.arms import train_together
from labkit.errors import RequestError
from labkit.experiment import train
from labkit.runs import Store
from labkit.tta.clock import RULES, score, time_to_target

RATES = (0.01, 0.05, 0.2)


def arms_of(tiny, **changes):
    return [
        tiny(rate=rate, warmup_steps=warmup, **changes) for rate, warmup in zip(RATES, (0.0, 4.0, 2.5), strict=True)
    ]


def rows(run):
    return sorted((row.step, row.epoch, row.samples, row.name) for row in run.rows)


def values(run):
    return {(row.step, row.name): row.value for row in run.rows}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decay": "cosine", "augment": ("flip", "crop")},
        {"options": {}, "sampling": "replacement", "epochs": 2.4, "evaluate_every": 5},
    ],
)
def test_an_arm_is_the_run_that_its_recipe_gives_alone(tiny, store, tmp_path, changes):
    recipes = arms_of(tiny, **changes)
    alone = Store(tmp_path / "alone")
    together = train_together(recipes, store, lab="test", repeat=2)
    assert [run.config["rate"] for run in together] == list(RATES)
    for recipe, arm in zip(recipes, together, strict=True):
        run = train(recipe, alone, lab="test", repeat=2)
        assert rows(arm) == rows(run)
        assert values(arm) == pytest.approx(values(run), rel=1e-5, abs=1e-7)
        assert arm.header.identity == run.header.identity
        assert arm.status == "finished" and runs.read(store.path(arm.header)).status == "finished"
    assert len({run.last("train_loss") for run in together}) == len(recipes)


def test_parts_left_out_during_training_are_left_out_and_evaluated_at_the_end(tiny, store):
    for run in train_together(arms_of(tiny, evaluate_on=("validation",)), store, lab="test"):
        assert [row.step for row in run.series("validation_loss")] == [8, 16]
        assert [row.step for row in run.series("test_accuracy")] == [16]


def test_an_arm_that_diverges_ends_where_it_would_have_ended_alone(tiny, store, tmp_path):
    recipes = [tiny(rate=0.05, epochs=4), tiny(rate=1e6, epochs=4)]
    sound, lost = train_together(recipes, store, lab="test")
    run = train(recipes[1], Store(tmp_path / "alone"), lab="test")
    assert rows(lost) == rows(run) and not math.isfinite(lost.last("train_loss"))
    assert lost.rows[-1].step == 8 and sound.rows[-1].step == 32
    assert math.isfinite(sound.last("train_loss"))
    assert lost.status == "finished" and store.find(lost.header).status == "finished"


@pytest.mark.parametrize(
    "change",
    [{"batch": 32}, {"epochs": 3}, {"options": {"momentum": 0.8}}, {"decay": "cosine"}, {"evaluate_every": 4}],
)
def test_recipes_that_differ_in_anything_but_rate_and_warm_up_are_refused(tiny, store, change):
    with pytest.raises(RequestError, match="may differ only in rate and warmup_steps"):
        train_together([tiny(), tiny(rate=0.1, **change)], store, lab="test")
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "adam", "options": {}},
        {"options": {"momentum": 0.9, "nesterov": True}},
        {"options": {"momentum": 0.9, "weight_decay": 0.1}},
        {"accumulate": 2},
        {"precision": "bf16-mixed"},
        {"curvature_every": 4},
        {"target": {"metric": "test_accuracy", "value": 0.5, "higher": True}, "stop_at_target": True},
        {"model": "resnet8", "sizes": {}},
        {"model": "row-lstm", "sizes": {}},
    ],
)
def test_what_a_batched_step_cannot_do_is_refused(tiny, store, change):
    with pytest.raises(RequestError, match="only for deep-mlp with plain momentum SGD"):
        train_together([tiny(rate=rate, **change) for rate in RATES], store, lab="test")
    assert not store.folder.exists()


def test_no_recipe_and_a_rate_of_zero_are_refused(tiny, store):
    with pytest.raises(RequestError, match="give at least one"):
        train_together([], store, lab="test")
    with pytest.raises(RequestError, match="peak must be a number"):
        train_together([tiny(), tiny(rate=0.0)], store, lab="test")
    assert not store.folder.exists()


def test_arms_share_their_seconds_so_no_clock_answers_for_one(tiny, store):
    target = {"metric": "train_loss", "value": 1e9, "higher": False}
    together = train_together(arms_of(tiny, target=target), store, lab="test")
    for run in together:
        assert run.header.arms == 3
        for rule in RULES:
            answer = time_to_target(run, rule)
            assert answer.seconds is None and not answer
        assert "3 runs were trained together" in str(time_to_target(run, "wall"))
    assert all(score(together, rule).seconds is None for rule in RULES)


def test_arms_that_are_in_the_store_are_not_trained_again(tiny, store):
    recipes = arms_of(tiny)
    first = train_together(recipes[:2], store, lab="test")
    kept = {store.path(run.header): store.path(run.header).read_bytes() for run in first}
    more = train_together([*recipes, tiny(rate=0.1)], store, lab="test")
    assert {path: path.read_bytes() for path in kept} == kept
    assert [run.header.arms for run in more] == [2, 2, 2, 2]
    assert [values(run) for run in more[:2]] == [values(run) for run in first]
    everything = {path: path.read_bytes() for path in store.folder.glob("*/*")}
    train_together(recipes, store, lab="test")
    assert {path: path.read_bytes() for path in store.folder.glob("*/*")} == everything
    assert len(everything) == 4
    train_together(recipes, store, lab="test", fresh=True)
    assert all(path.read_bytes() != before for path, before in kept.items())


def test_a_run_that_was_trained_alone_serves_as_an_arm_but_not_the_other_way_round(tiny, store):
    recipes = arms_of(tiny)
    alone = train(recipes[0], store, lab="test")
    together = train_together(recipes, store, lab="test")
    assert [run.header.arms for run in together] == [1, 2, 2]
    assert values(together[0]) == values(alone)
    assert train(recipes[1], store, lab="test").header.arms == 1  # its seconds had to be its own


def test_the_only_one_left_is_trained_alone_and_the_same_one_twice_is_trained_once(tiny, store):
    recipes = arms_of(tiny)
    (single,) = train_together(recipes[:1], store, lab="test")
    assert single.header.arms == 1 and time_to_target(
        single, target={"metric": "train_loss", "value": 9, "higher": False}
    )
    first, second, first_again = train_together([recipes[1], recipes[2], recipes[1]], store, lab="test")
    assert first is first_again and first.header.arms == second.header.arms == 2
    assert values(runs.read(store.path(first.header))) == pytest.approx(values(first))


def test_a_failure_leaves_partials_of_all_arms_and_no_finished_run(tiny, store):
    class Pulled:
        def update(self, step, **numbers):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_together(arms_of(tiny, epochs=4), store, lab="test", progress=Pulled())
    assert store.runs() == [] and [run.status for run in store.unfinished()] == ["failed"] * 3
    assert all(run.series("train_loss")[-1].step == 16 for run in store.unfinished())
