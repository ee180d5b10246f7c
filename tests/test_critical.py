"""Lab 10's measurements, rules and controls: planted tables give what was planted, callbacks do what formulas say."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from labkit import claims, profiles
from labkit.errors import RequestError
from labkit.experiment import Recipe, header, train
from labkit.runs import Header, Row, Run
from labs import critical, plan10, rules_critical, rules_critical_noise
from labs.critical_controls import GhostNorm, GrowBatch

BATCHES = [4, 16, 64, 256, 1024, 4096]
CLAIMS = {claim.id: claim for claim in claims.load("10")}


def curve(steps, target=0.1, accuracy=lambda step: 0.9, seed=0, every=None, **config) -> Run:
    """A run whose loss falls as a power of ten and is at the target after `steps` steps, evaluated twenty times."""
    every = every or max(steps, 1) / 16
    rows = []
    for n in range(1, 26):
        step = round(n * every)
        rows += [
            Row(step, 0.0, 0, 0.0, "train_loss", 10 ** (-step / steps * math.log10(1 / target))),
            Row(step, 0.0, 0, 0.0, "test_accuracy", accuracy(step / steps)),
        ]
    return Run(Header("10", config, seed), [], rows, "finished")


def sweep(floor=80.0, knee=114.0, top=0.5, seeds=3, spread=0.0, accuracy=lambda batch: 0.93, batches=BATCHES, **config):
    """Runs at three rates, the middle one the best: steps = floor (1 + knee / B), rate = top / (1 + 60 / B)."""
    random, runs = np.random.default_rng(0), []
    for batch, notch, seed in itertools.product(batches, (-1, 0, 1), range(seeds)):
        steps = floor * (1 + knee / batch) * (1 + 0.5 * abs(notch)) * math.exp(spread * random.standard_normal())
        rate = top / (1 + 60 / batch) * 2.0**notch
        runs.append(curve(steps, seed=seed, batch=batch, rate=rate, accuracy=lambda _, b=batch: accuracy(b), **config))
    return runs


def test_the_crossing_is_found_between_evaluations():
    for steps in (400.0, 834.5):
        assert rules_critical.crossing(curve(steps, every=37), 0.1) == pytest.approx(steps, rel=2e-3)
    assert rules_critical.crossing(curve(400, every=1), 0.1) == math.inf
    assert rules_critical.crossing(curve(10, every=40), 0.1) == 40  # reached before the first look: an upper bound
    assert rules_critical.value_at(curve(400, accuracy=lambda part: part), 400, "test_accuracy") == pytest.approx(1.0)


@pytest.mark.parametrize("knee", [3.0, 114.0, 2000.0])
def test_the_fit_recovers_exact_points_and_agrees_with_a_literal_search(knee):
    batches = np.array(BATCHES, float)
    floor, found, rms = rules_critical.knee_fit(batches, 80 * (1 + knee / batches))
    assert (float(floor), float(found)) == pytest.approx((80, knee), rel=1e-3) and rms < 1e-3
    noisy = 80 * (1 + knee / batches) * np.exp(0.1 * np.sin(batches))
    from scipy.optimize import least_squares

    best = least_squares(lambda p: p[0] + np.log1p(np.exp(p[1]) / batches) - np.log(noisy), [4.0, math.log(knee)])
    assert float(rules_critical.knee_fit(batches, noisy)[1]) == pytest.approx(math.exp(best.x[1]), rel=1e-3)
    many = rules_critical.knee_fit(batches, np.stack([noisy, 2 * noisy]))
    assert many[1][0] == pytest.approx(many[1][1]) and many[0][1] == pytest.approx(2 * many[0][0])


def test_the_best_rate_has_no_seed_that_missed():
    runs = sweep(seeds=2)
    lucky = curve(1.0, seed=0, batch=4, rate=9.0), curve(math.inf, every=10, seed=1, batch=4, rate=9.0)
    found = rules_critical.best(rules_critical.steps_table([*runs, *lucky], 0.1))
    assert found[4][0] == pytest.approx(0.5 / 16) and list(found) == BATCHES
    assert found[4][1] == pytest.approx(80 * (1 + 114 / 4), rel=0.02)


def test_the_interval_holds_the_knee_and_narrows_with_seeds():
    widths = []
    for seeds in (3, 12):
        study = critical.Study(sweep(spread=0.1, seeds=seeds), 0.1)
        assert study.low < study.knee < study.high and study.low < 150 and study.high > 90
        widths.append(math.log(study.high / study.low))
    assert widths[1] < 0.8 * widths[0]
    one = critical.Study(sweep(seeds=1), 0.1)
    assert one.low == one.high and "one seed" in one.words() and one.knee == pytest.approx(114, rel=0.05)
    assert critical.Study([], 0.1).words().endswith("no fit")


SHARED = {"select": {}, "target": 0.1, "batches": BATCHES, "seeds": 3}
JUDGED = {
    "three_regimes": ({"steep": -0.8, "flat": -0.2}, {}, {"knee": 1e6}, "contradicted"),
    "hyperbola": ({"rms": 0.15}, {}, {"spread": 1.5}, "not seen"),
    "equal_loss": (None, {}, {"accuracy": lambda batch: 0.93 - 0.03 * (batch > 100), "spread": 0.01}, "contradicted"),
    "saturating_rate": ({"rms": 0.35}, {}, {}, "holds"),
    "no_single_rule": (
        {"low": [4, 16], "high": [1024, 4096], "linear": 0.75, "flat": 0.25},
        {},
        {"top": 0.5},
        "holds",
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_rules_tell_a_planted_table_from_its_opposite(name):
    extra, right, wrong, outcome = JUDGED[name]
    given = {**SHARED, **(extra or {})}
    if name == "equal_loss":
        given = {key: SHARED[key] for key in ("select", "target", "seeds")} | {
            "small": [4, 16],
            "large": [1024, 4096],
            "margin": 0.015,
        }
    rule = getattr(rules_critical, name)
    assert rule(sweep(**right), **given).outcome == "holds"
    assert rule(sweep(**wrong), **given).outcome == outcome
    assert rule(sweep(seeds=2), **given).outcome == "not attempted"
    assert rule([], **given).outcome == "not attempted"


def test_a_rate_that_is_linear_everywhere_does_not_saturate():
    runs = [
        curve(100 * (1 + abs(notch)), seed=seed, batch=batch, rate=0.01 * batch * 2.0**notch)
        for batch, notch, seed in itertools.product(BATCHES, (-1, 0, 1), range(3))
    ]
    given = {**SHARED, "low": [4, 16], "high": [1024, 4096], "linear": 0.75, "flat": 0.25}
    assert rules_critical.no_single_rule(runs, **given).outcome == "not seen"
    assert critical.Study(runs, 0.1).rate_knee > 1e4


def test_a_best_rate_at_the_edge_of_those_tried_is_no_best_rate():
    runs = [run for run in sweep() if abs(run.config["rate"] * (1 + 60 / run.config["batch"]) - 0.25) > 0.01]
    found = rules_critical.saturating_rate(runs, **SHARED, rms=0.35)
    assert found.outcome == "not seen" and "edges at [4," in found.evidence


def followed(scale, seed=0, steps=200.0, **config) -> Run:
    """A run with noise scale `scale(part of the path)`, |G|^2 falling by ten, and a distance of 1 + log t."""
    run = curve(steps, seed=seed, batch=64, rate=0.25, accumulate=4, **config)
    for step in range(260):
        square = 10 ** (-step / steps)
        run.rows.append(Row(step, 0.0, 0, 0.0, "gradient_squared_norm", square))
        run.rows.append(Row(step, 0.0, 0, 0.0, "noise_trace", square * scale(step / steps)))
        run.rows.append(Row(step + 1, 0.0, 0, 0.0, "distance", 1 + math.log(step + 1)))
    return run


def test_the_noise_scale_of_a_path_ends_at_the_target_and_weighs_steps_alike():
    run = followed(lambda part: 50.0 if part <= 1 else 9999.0)
    assert rules_critical_noise.path_noise(run, 0.1) == pytest.approx(50, rel=0.05)
    rising = followed(lambda part: 10 + 100 * part)
    rows = rules_critical_noise.course(rising, 0.1)
    assert len(rows) == pytest.approx(201, abs=2)
    assert rules_critical_noise.path_noise(rising, 0.1) == pytest.approx(rows[:, 0].sum() / rows[:, 1].sum())


@pytest.mark.parametrize("scale, outcome", [(80, "holds"), (20, "contradicted"), (900, "contradicted")])
def test_the_prediction_has_to_come_within_three_times(scale, outcome):
    runs = [*sweep(accumulate=1), *(followed(lambda part: scale, seed) for seed in range(3))]
    given = {**SHARED, "select": {}, "noise": {"accumulate": 4}, "noise_seeds": 3, "within": 3.0}
    table = {**given, "select": {"accumulate": 1}}
    assert rules_critical_noise.noise_predicts(runs, **table).outcome == outcome
    assert rules_critical_noise.noise_predicts(runs[:-1], **table).outcome == "not attempted"


def test_growth_of_the_noise_scale_is_told_from_its_absence():
    given = {"select": {}, "target": 0.1, "seeds": 2, "parts": 8, "at_least": 0.7}
    for scale, outcome in ((lambda part: 10 * 4**part, "holds"), (lambda part: 50 - 20 * part, "not seen")):
        runs = [followed(scale, seed) for seed in range(2)]
        assert rules_critical_noise.noise_grows(runs, **given).outcome == outcome


@pytest.mark.parametrize(
    "knees, outcome",
    [((40, 80, 200), "holds"), ((200, 80, 40), "contradicted"), ((80, 80, 80), "not seen")],
)
def test_the_knob_has_to_move_knee_and_noise(knees, outcome):
    runs = []
    for level, knee in zip((0.1, 0.3, 0.9), knees):
        runs += sweep(knee=knee, spread=0.02, noise=level, accumulate=1)
        runs += [followed(lambda part, k=knee: k, noise=level)]
    given = {**SHARED, "levels": [0.1, 0.3, 0.9], "noise": {"accumulate": 4}, "share": 0.975}
    assert rules_critical_noise.knob_moves(runs, **given).outcome == outcome
    assert rules_critical_noise.knob_moves(runs[:-1], **given).outcome == "not attempted"


def ended(arm, accuracy, seed=0, loss=0.1, updates=None) -> Run:
    rows = [Row(9, 0.0, 0, 0.0, "test_accuracy", accuracy), Row(9, 0.0, 0, 0.0, "train_loss", loss)]
    rows += [Row(9, 0.0, 0, 0.0, "updates", updates)] if updates else []
    return Run(Header("10", {"arm": arm, "batch": 8, "options": {"momentum": 0.9}}, seed), [], rows, "finished")


def arm(name, mean, **rest):
    return [ended(name, mean + 0.002 * (seed - 1), seed, **rest) for seed in range(3)]


@pytest.mark.parametrize(
    "grown, updates, outcome",
    [
        (0.930, 50, "holds"),
        (0.90, 50, "contradicted"),
        (0.930, 90, "contradicted"),
        (0.916, 50, "not seen"),
    ],
)
def test_growing_the_batch_has_to_be_as_good_and_shorter(grown, updates, outcome):
    runs = arm("decay", 0.930, updates=100) + arm("grow", grown, updates=updates)
    given = {"decayed": {"arm": "decay"}, "grown": {"arm": "grow"}, "seeds": 3, "margin": 0.015, "fewer": 0.75}
    assert rules_critical_noise.grown_batch(runs, **given).outcome == outcome
    assert rules_critical_noise.grown_batch(runs[1:], **given).outcome == "not attempted"


@pytest.mark.parametrize(
    "ends, outcome",
    [
        ((0.90, 0.89), "holds"),
        ((0.93, 0.90), "not seen"),
        ((0.90, 0.5), "contradicted"),
        ((0.95, 0.90), "contradicted"),
    ],
)
def test_slightly_worse_is_neither_equal_nor_much_worse(ends, outcome):
    runs = arm("m0", 0.93) + arm("m1", ends[0]) + arm("m2", ends[1])
    scaled = [{"arm": name, "batch": 8, "options": {"momentum": 0.9}} for name in ("m1", "m2")]
    given = {"plain": {"arm": "m0"}, "scaled": scaled, "seeds": 3, "worse": 0.05}
    assert rules_critical_noise.slightly_worse(runs, **given).outcome == outcome


@pytest.mark.parametrize(
    "short, long, outcome",
    [(0.85, 0.93, "holds"), (0.93, 0.93, "not seen"), (0.85, 0.86, "contradicted")],
)
def test_a_gap_closes_only_if_there_was_one(short, long, outcome):
    runs = arm("small", 0.93) + arm("short", short) + arm("long", long)
    given = {name: {"arm": name} for name in ("small", "short", "long")} | {"seeds": 3, "margin": 0.01}
    assert rules_critical_noise.gap_closes(runs, **given).outcome == outcome


def test_a_logarithm_is_told_from_a_power():
    given = {"select": {}, "seeds": 1, "start": 8, "at_least": 0.95}
    log = followed(lambda part: 1.0)
    assert rules_critical_noise.log_distance([log], **given).outcome == "holds"
    power = followed(lambda part: 1.0)
    power.rows = [dataclasses.replace(r, value=r.step**0.5) if r.name == "distance" else r for r in power.rows]
    assert rules_critical_noise.log_distance([power], **given).outcome == "contradicted"


def recipes(settings) -> list:
    """Every recipe of the lab, by kind."""
    found = {
        "table": plan10.table(settings),
        "noise": [plan10.noise_run(settings)],
        "momenta": plan10.momenta(settings),
        "growth": list(plan10.growth(settings).values()),
        "updates": list(plan10.equal_updates(settings).values()),
    }
    for level in settings.knob:
        found[f"knob {level}"] = [*plan10.knob(settings, level), plan10.noise_run(settings, level)]
    return found


@pytest.mark.parametrize("profile", profiles.NAMES)
def test_every_recipe_of_every_profile_is_planned_once(profile):
    made = [recipe for part in recipes(profiles.resolve("10", profile)).values() for recipe in part]
    assert all(made.count(recipe) == 1 for recipe in made)
    for recipe in made:
        assert recipe.steps >= 1 and recipe.options.get("momentum") is not None


def test_the_claims_select_just_the_runs_that_the_full_profile_makes():
    settings, runs = profiles.resolve("10", "full"), []
    for part in recipes(settings).values():
        for recipe in part:
            config = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(recipe).items()}
            runs.append(Run(Header("10", config)))
    count = {name: len(part) for name, part in recipes(settings).items()}

    def chosen(select):
        return len(rules_critical.chosen(runs, select))

    rule = {id: claim.rule for id, claim in CLAIMS.items()}
    assert chosen(rule["R12"]["select"]) == count["table"] == 55 and rule["R12"]["batches"] == settings.batches
    assert chosen({**rule["R17"]["select"], **rule["R17"]["noise"]}) == chosen(rule["R18"]["select"]) == 1
    assert chosen({**rule["R20"]["select"], "noise": 0.3, "accumulate": 1}) == count["knob 0.3"] - 1 == 25
    assert rule["R20"]["levels"] == settings.knob and rule["R20"]["batches"] == settings.knob_batches
    assert chosen(rule["R21"]["decayed"]) == chosen(rule["R21"]["grown"]) == 1
    assert all(chosen(select) == 1 for select in (rule["R22"]["plain"], *rule["R22"]["scaled"]))
    assert all(chosen(rule["R23"][arm]) == 1 for arm in ("small", "short", "long"))
    assert chosen(rule["R24"]["select"]) == 1


def test_the_arms_of_the_controls_are_found_again():
    settings = profiles.resolve("10", "quick")
    every = [recipe for part in recipes(settings).values() for recipe in part]
    runs = [Run(header(recipe, recipe.load(), lab="10")) for recipe in every if recipe.data == "mnist5k"]
    found = critical.control_arms(runs, settings)
    assert {kind: [len(runs) for runs in arms.values()] for kind, arms in found.items()} == {
        "growth": [1] * 3,
        "momentum": [1] * 2,
        "updates": [1] * 5,
    }


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("batches", [8, 4, 16], "increasing"),
        ("batches", [8, 8192, 9000], "more than the 4096"),
        ("noise_parts", 7, "equal parts"),
        ("knob", [0.9, 0.1], "increasing"),
        ("large_batch", 40, "multiple of control_batch"),
        ("momenta", [0.99], "momenta asks"),
    ],
)
def test_profiles_that_cannot_be_trained_are_refused(field, value, words):
    extra = {"control_batch": 64} if field == "momenta" else {}
    with pytest.raises(RequestError, match=words):
        profiles.resolve("10", "quick", {field: value, **extra})


def test_a_ghost_batch_norm_is_a_batch_norm_of_each_part():
    torch.manual_seed(0)
    x, ghost, whole = torch.randn(10, 3), GhostNorm(3, 4), GhostNorm(3)
    parts = [x[:4], x[4:8], x[8:]]
    literal = torch.cat([(p - p.mean(0)) / (p.var(0, unbiased=False) + 1e-5).sqrt() for p in parts])
    assert torch.allclose(ghost(x), literal, atol=1e-6)
    assert not torch.allclose(whole(x), literal, atol=1e-2)
    running = torch.zeros(3)
    for part in parts:
        running = 0.9 * running + 0.1 * part.mean(0)
    assert torch.allclose(ghost.norm.running_mean, running, atol=1e-6)
    assert torch.equal(ghost.eval()(x), ghost.norm(x))


def small(**changes) -> Recipe:
    shape = {"train": 128, "test": 32, "pool": 2, "sizes": {"width": 8, "depth": 2}, "options": {"momentum": 0.0}}
    return Recipe(data="procedural", batch=16, rate=0.05, epochs=4.0, **shape, **changes)


def test_a_growing_batch_makes_the_updates_of_the_formula(store):
    grow = {"name": "labs.critical_controls.GrowBatch", "milestones": [2, 3], "factor": 2, "epochs": 4, "batch": 16}
    run = train(small(callbacks=(grow,)), store, lab="t")
    assert (run.last("updates"), run.last("samples_seen")) == (8 + 8 + 4 + 2, 4 * 128)
    still = train(small(callbacks=({**grow, "milestones": [], "factor": 1},)), store, lab="t")
    assert (still.last("updates"), still.last("samples_seen")) == (32, 512)
    assert math.isfinite(run.last("test_accuracy")) and run.last("train_loss") != still.last("train_loss")


@pytest.mark.parametrize("milestones", [[0], [4], [2, 1], [1, 1], [1.5]])
def test_milestones_that_are_no_epochs_of_the_run_are_refused(milestones):
    with pytest.raises(RequestError, match="milestones"):
        GrowBatch(milestones=milestones, factor=2, epochs=4, batch=16)


def test_normalisation_is_put_before_every_relu_and_trained(store):
    plain = train(small(), store, lab="t")
    normal = {"name": "labs.critical_controls.Normalise", "ghost": 0}
    whole = train(small(callbacks=(normal,)), store, lab="t")
    ghosts = train(small(callbacks=({**normal, "ghost": 4},)), store, lab="t")
    assert len({run.last("train_loss") for run in (plain, whole, ghosts)}) == 3
    one = train(small(callbacks=({**normal, "ghost": 16},)), store, lab="t")
    assert one.last("train_loss") == whole.last("train_loss")  # a ghost batch that is the batch
    import pytorch_lightning as pl

    from labkit import models
    from labs.critical_controls import Normalise

    task = pl.LightningModule()
    task.model = models.build("deep-mlp", width=8, depth=3)
    for _ in range(2):  # a second stage must not put in another
        Normalise(ghost=4).setup(None, task, "fit")
    kinds = [type(layer).__name__ for layer in task.model.layers]
    assert kinds == ["Flatten", *["Linear", "GhostNorm", "ReLU"] * 3, "Linear"]


def test_the_distance_is_that_of_the_weights_at_steps_even_in_log_t(store):
    far = {"name": "labs.critical_controls.DistanceFromStart", "per_octave": 1}
    run = train(small(callbacks=(far,)), store, lab="t")
    assert [row.step for row in run.series("distance")] == [1, 2, 4, 8, 16, 32]
    # The first step is rate times the gradient of the first batch, at the weights of the seed.
    recipe = small()
    batches, _ = recipe.workload.loaders(recipe, recipe.load(), 0)
    torch.manual_seed(0)
    model = recipe.workload.build(recipe, recipe.load())
    images, classes = next(iter(batches))
    torch.nn.functional.cross_entropy(model(images), classes).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert run.series("distance")[0].value == pytest.approx(0.05 * float(norm), rel=1e-4)


def test_gain_is_perfect_far_below_the_knee_and_nothing_far_above():
    fewer, dearer = critical.gain(1e6, 1, [64])
    assert fewer[0] == pytest.approx(64, rel=1e-3) and dearer[0] == pytest.approx(1, rel=1e-3)
    fewer, dearer = critical.gain(1e-3, 1, [64])
    assert fewer[0] == pytest.approx(1, rel=1e-2) and dearer[0] == pytest.approx(64, rel=1e-2)
    assert critical.gain(128, 2, [64])[1][0] == pytest.approx(2 / (1 + 2 / 128))  # twice the least
