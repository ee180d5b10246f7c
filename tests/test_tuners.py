"""Auto-tuners: AdaScale's gain, YellowFin's closed form, the range test's reading; plans, costs and verdicts."""

import copy
import dataclasses
import functools
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

from labkit import claims
from labkit.datasets.memory import InOrder
from labkit.errors import RequestError
from labkit.experiment import Recipe, header, train
from labkit.lab import Lab, find
from labkit.models.mlp import DeepMLP
from labkit.optim.schedules import Schedule
from labkit.runs import Header, Row, Run, RunWriter
from labkit.tasks.images import ImageClassification
from labs import rules_tuners, tuners
from labs.adascale import AdaScale, gain, moments, noise_course
from labs.range_test import RangeTest, steepest
from labs.yellowfin import GROWTH, Tuner, YellowFin, single_step

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def fit(task, batches, steps, *callbacks, **options):
    trainer = pl.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", devices=1, callbacks=list(callbacks), **QUIET, **options
    )
    trainer.fit(task, InOrder(batches))
    return trainer


@pytest.fixture
def writer(tmp_path):
    with RunWriter(Header("08", {"batch": 32}), tmp_path / "run.jsonl") as made:
        yield made


def classifier(steps, rate=0.05, **options):
    torch.manual_seed(0)
    return ImageClassification(DeepMLP(4, 8, 2), schedule=Schedule(rate, steps, **options))


def batches(count, size=4, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 1, 2, 2, generator=numbers), torch.randint(10, (size,), generator=numbers))
        for _ in range(count)
    ]


# AdaScale


def test_moments_and_gain_equal_the_definitions_in_float64():
    numbers = np.random.default_rng(0)
    gradients = numbers.normal(0.5, 1.0, (8, 300))
    mean = gradients.mean(0)
    variance, signal = moments([float(g @ g) for g in gradients], float(mean @ mean))
    literal = np.trace(np.cov(gradients.T))
    assert variance == pytest.approx(literal, rel=1e-12)
    # E |mean|^2 = |true|^2 + variance / S
    assert signal == pytest.approx(float(mean @ mean) - literal / 8, rel=1e-12)
    small, large = signal + variance, signal + variance / 64
    assert gain(variance, signal, 64) == pytest.approx(small / large, rel=1e-12)


@pytest.mark.parametrize("scale", [1, 2, 64])
def test_the_gain_is_1_without_noise_and_k_for_noise_alone(scale):
    assert gain(0.0, 2.0, scale) == 1 and gain(-1e-9, 2.0, scale) == 1 and gain(0.0, 0.0, scale) == 1
    assert gain(3.0, 0.0, scale) == scale and gain(3.0, -1.0, scale) == scale
    values = [gain(noise, 1.0, scale) for noise in 10.0 ** np.arange(-6, 7)]
    assert values == sorted(values) and 1 <= values[0] <= 1 + 1e-4 and scale * 0.999 <= values[-1] <= scale


def test_gains_fall_to_1_as_the_noise_does():
    names, values = zip(*noise_course(16, [math.inf, 10.0, 1.0, 0.1, 0.0]), strict=True)
    assert names[0] == "gain_at_noise_inf" and list(values) == sorted(values, reverse=True)
    assert values[0] == pytest.approx(16, rel=0.05) and values[-1] == pytest.approx(1, abs=1e-9)
    assert values[2] == pytest.approx(2 / (1 + 1 / 16), rel=0.05)  # as much noise as signal


def test_the_callback_measures_the_gradients_of_the_micro_batches(writer):
    task, data = classifier(1), batches(4)
    gradients = []
    for images, classes in data:
        model = copy.deepcopy(task.model).double()
        F.cross_entropy(model(images.double()), classes).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).numpy())
    mean = np.mean(gradients, 0)
    variance = sum(float((g - mean) @ (g - mean)) for g in gradients) / 3
    signal = max(float(mean @ mean) - variance / 4, 0)
    # at scale 16 a base batch is a quarter of a micro-batch: four times its variance
    expected = (4 * variance + signal) / (4 * variance / 16 + signal)
    fit(task, data, 1, AdaScale(writer, scale=16), accumulate_grad_batches=4)
    assert writer.run.last("gain") == pytest.approx(expected, rel=1e-4)
    assert writer.run.last("rate") == pytest.approx(0.05 * expected, rel=1e-4)
    assert writer.run.rows[-1].samples == 32 and writer.run.rows[-1].step == 1


def test_with_identical_micro_batches_it_is_the_base_run(writer):
    one = batches(1)
    plain, tuned = classifier(6, warmup_steps=3.0, decay="poly"), classifier(6, warmup_steps=3.0, decay="poly")
    fit(plain, one, 6)
    fit(tuned, one * 4, 6, AdaScale(writer, scale=4), accumulate_grad_batches=4)
    assert [row.value for row in writer.run.series("gain")] == pytest.approx([1.0] * 6, abs=1e-5)
    for a, b in zip(plain.parameters(), tuned.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_gains_add_up_to_the_base_steps_and_set_the_rate(store, tiny):
    base = tiny(train=256, epochs=4, warmup_steps=8.0, decay="poly")
    recipe = tuners.adascale(base, 64)
    assert recipe.steps == base.steps == 64 and recipe.accumulate == 8 and recipe.batch == 64
    assert recipe.schedule() == base.schedule()
    run = train(recipe, store, lab="08")
    gains, progress = ([row.value for row in run.series(name)] for name in ("gain", "scale_invariant_step"))
    assert all(1 <= value <= 4 for value in gains)
    assert progress == pytest.approx(np.cumsum(gains)) and progress[-2] < 64 <= progress[-1]
    assert run.rows[-1].step == len(gains) and 16 <= len(gains) < 64
    rates = [value * base.schedule()(at) for value, at in zip(gains, [0.0, *progress], strict=False)]
    assert [row.value for row in run.series("rate")] == pytest.approx(rates)
    assert run.status == "finished" and math.isfinite(run.last("test_accuracy"))
    capped = train(tuners.adascale(base, 64, runs=1), store, lab="08")
    assert capped.rows[-1].step == 16 and tuners.examples(capped) == base.steps * base.batch


@pytest.mark.parametrize(
    ("options", "said"), [({"accumulate_grad_batches": 1}, "2 or more"), ({"schedule": None}, "Schedule")]
)
def test_adascale_says_what_it_needs(options, said):
    task = classifier(2)
    if "schedule" in options:
        task.schedule = options.pop("schedule")
    with pytest.raises(RequestError, match=said):
        fit(task, batches(4), 2, AdaScale(scale=4), **{"accumulate_grad_batches": 4, **options})
    with pytest.raises(RequestError, match="scale 0.5"):
        AdaScale(scale=0.5)


# YellowFin


@pytest.mark.parametrize("seed", range(6))
def test_single_step_is_the_constrained_minimum(seed):
    numbers = np.random.default_rng(seed)
    low, spread, variance, distance = 10.0 ** numbers.uniform([-3, 0, -4, -2], [1, 3, 2, 2])
    rate, momentum = single_step(low, low * spread, variance, distance)
    bound = (math.sqrt(spread) - 1) / (math.sqrt(spread) + 1)
    assert momentum >= bound**2 - 1e-12 and rate == pytest.approx((1 - math.sqrt(momentum)) ** 2 / low, rel=1e-6)
    x = np.linspace(bound, 1, 400_001)
    cost = x**2 * distance**2 + ((1 - x) ** 2 / low) ** 2 * variance
    mine = momentum * distance**2 + rate**2 * variance
    assert mine <= cost.min() * (1 + 1e-9)
    assert math.sqrt(momentum) == pytest.approx(x[np.argmin(cost)], abs=1e-4)


def test_without_noise_single_step_is_the_optimal_heavy_ball():
    rate, momentum = single_step(1.0, 9.0, 0.0, 5.0)
    assert momentum == pytest.approx(0.25) and rate == pytest.approx(0.25)  # ((3-1)/(3+1))^2, (1-1/2)^2
    assert rate == pytest.approx((2 / (math.sqrt(9.0) + math.sqrt(1.0))) ** 2)  # Polyak's
    assert single_step(1.0, 9.0, 1.0, 0.0) == (0.0, 1.0)  # at the optimum, nothing but noise: do not move
    with pytest.raises(RequestError, match="no range"):
        single_step(2.0, 1.0, 1.0, 1.0)


def literal_yellowfin(gradients, memory, window, slow_start):
    """The whole history read again at every step: weighted means over lists."""
    keep = 1 - 1 / memory

    def mean(values):
        weights = [keep ** (len(values) - 1 - at) for at in range(len(values))]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    squares, used, lows, highs, ratios, rates, momenta, limit = [], [], [], [], [], [], [], math.inf
    for gradient in gradients:
        square = min(float(gradient @ gradient), GROWTH * limit**2)
        squares.append(square)
        used.append(gradient * math.sqrt(square / float(gradient @ gradient)))
        lows.append(math.log(min(squares[-window:])))
        highs.append(math.log(max(squares[-window:])))
        limit = math.sqrt(math.exp(mean(highs)))
        ratios.append(mean([math.sqrt(s) for s in squares]) / mean(squares))
        centre = mean(used)
        variance = max(0.0, mean(squares) - float(centre @ centre))
        rate, momentum = single_step(math.exp(mean(lows)), math.exp(mean(highs)), variance, mean(ratios))
        rates.append(rate)
        momenta.append(momentum)
    return mean(rates) * min(1, len(gradients) / slow_start), mean(momenta), limit


def test_the_tuner_equals_the_literal_rule_in_float64():
    gradients = np.random.default_rng(1).normal(0.3, 1.0, (30, 40)) * np.linspace(1, 0.2, 30)[:, None]
    gradients[12] *= 1e4  # one gradient beyond what may be believed
    tuner = Tuner(memory=15, window=5, slow_start=60)
    for at, gradient in enumerate(gradients):
        mine = tuner.update(torch.tensor(gradient))
        if at in (0, 4, 11, 12, 13, 29):
            *expected, limit = literal_yellowfin(list(gradients[: at + 1]), 15, 5, 60)
            assert mine == pytest.approx(expected, rel=1e-9) and tuner.limit == pytest.approx(limit, rel=1e-9)


def noisy_quadratic(seed, steps):
    """Curvatures 0.1 to 10, gradient noise as a log-likelihood at one sample has it: covariance = curvature."""
    numbers = torch.Generator().manual_seed(seed)
    curvature = torch.logspace(-1, 1, 10, dtype=torch.float64)
    weights = torch.nn.Parameter(10 * torch.ones(10, dtype=torch.float64))
    optimizer, tuner, losses = torch.optim.SGD([weights], lr=1.0, momentum=0.9), Tuner(100, slow_start=100), []
    for _ in range(steps):
        noise = curvature.sqrt() * torch.randn(10, generator=numbers, dtype=torch.float64)
        weights.grad = curvature * weights.detach() + noise
        tuner.tune(optimizer)
        optimizer.step()
        losses.append(float((curvature * weights.detach() ** 2).sum() / 2))
    return losses


def test_yellowfin_converges_on_noisy_quadratics():
    for seed in range(2):
        losses = noisy_quadratic(seed, 3000)
        assert losses[0] > 1000 and np.mean(losses[-100:]) < 5


def test_yellowfin_clips_an_outlier_and_leaves_what_is_not_finite():
    weights = torch.nn.Parameter(torch.ones(4))
    optimizer, tuner = torch.optim.SGD([weights], lr=1.0, momentum=0.9), Tuner(20, slow_start=1)
    for _ in range(20):
        weights.grad = torch.full((4,), 0.5)
        tuner.tune(optimizer)
    assert tuner.limit == pytest.approx(1.0) and weights.grad.tolist() == [0.5] * 4
    weights.grad = torch.full((4,), 500.0)
    tuner.tune(optimizer)
    assert float(weights.grad.norm()) == pytest.approx(tuner.limit, rel=1e-5) and tuner.limit < 2
    before = optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]
    weights.grad = torch.full((4,), math.nan)
    assert tuner.tune(optimizer) == before and tuner.count == 21


def test_a_run_under_yellowfin_ignores_the_recipes_rate(store, tiny):
    entry = {"name": "labs.yellowfin.YellowFin", "memory": 20, "slow_start": 4}
    runs = [train(tiny(rate=rate, callbacks=(entry,)), store, lab="08") for rate in (0.01, 1.0)]
    assert runs[0].last("test_loss") == runs[1].last("test_loss")
    rates, momenta = ([row.value for row in runs[0].series(name)] for name in ("rate", "momentum"))
    assert len(rates) == len(momenta) == 16 and len(set(rates)) > 8 and all(0 <= value < 1 for value in momenta)
    plain = train(tiny(), store, lab="08")
    assert plain.last("test_loss") != runs[0].last("test_loss")
    with pytest.raises(RequestError, match="choose optimizer sgd"):
        train(tiny(optimizer="adam", options={}, callbacks=(entry,)), store, lab="08")
    with pytest.raises(RequestError, match="factor above 0"):
        YellowFin(factor=0)


# The range test


class Quadratic(pl.LightningModule):
    """Loss sum(h w^2) / 2 under plain gradient descent: stable below rate 2 / max(h)."""

    def __init__(self, curvature):
        super().__init__()
        self.curvature, self.weights = torch.tensor(curvature), torch.nn.Parameter(torch.ones(len(curvature)))

    def training_step(self, batch, index):
        return (self.curvature * self.weights**2).sum() / 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.mark.parametrize("curvature", [[1.0], [0.1, 3.0, 100.0], [50.0, 50.0]])
def test_the_range_test_picks_a_stable_rate_of_a_quadratic(writer, curvature):
    trainer = fit(Quadratic(curvature), [torch.zeros(1)] * 10, 120, RangeTest(writer, low=1e-5, high=1e3))
    rates, losses = ([row.value for row in writer.run.series(name)] for name in ("range_rate", "range_loss"))
    assert rates[:2] == pytest.approx([1e-5, 1e-5 * 1e8 ** (1 / 119)])
    assert losses[0] == pytest.approx(sum(curvature) / 2)
    assert trainer.global_step == len(rates) < 120 and losses[-1] > 4 * min(losses)  # it ended as it diverged
    assert 1e-5 < steepest(rates, losses) < 2 / max(curvature)


def test_steepest_reads_the_middle_of_the_fall():
    rates = np.logspace(-4, 0, 81)
    fall = 2 - np.tanh(3 * (np.log10(rates) + 2))  # steepest at 1e-2
    assert steepest(rates, fall) == pytest.approx(1e-2, rel=0.01)
    rises = np.where(rates > 0.1, 50 * rates, 0)  # what comes after the least loss does not matter
    assert steepest(rates, fall + rises) == pytest.approx(1e-2, rel=0.01)
    losses = np.where(rates > 0.5, np.nan, fall)
    assert steepest(rates, losses) == pytest.approx(1e-2, rel=0.01)
    assert steepest(rates, rates) == rates[0]
    with pytest.raises(RequestError, match="3 finite losses"):
        steepest(rates, [1.0, 0.9, 0.8, math.nan, 0.1])
    with pytest.raises(RequestError, match="in this order"):
        RangeTest(low=1.0, high=0.1)


# Plans and their cost


def test_plans_span_the_same_rates_and_keep_to_the_budget(tiny):
    base = tiny(train=256, epochs=4, rate=0.0625, warmup_steps=8.0)
    assert tuners.octaves(1.0, 5) == [0.25, 0.5, 1, 2, 4] and tuners.octaves(1.0, 2) == [0.5, 1]
    unit = base.steps * base.batch
    for name in ("legw", "random_search", "yellowfin", "range_test"):
        recipes, repeats = tuners.plan(name, base, 64, budget=6)
        assert len(recipes) * len(repeats) == 5
        assert all(recipe.steps * recipe.batch == unit for recipe in recipes)
    rates = [recipe.rate for recipe in tuners.plan("random_search", base, 64, budget=60)[0]]
    assert min(rates) >= min(tuners.octaves(0.0625, 59)) and len(set(rates)) == 59
    (test,), repeats = tuners.plan("range_test", base, 64, seed=3)
    assert test.callbacks[0]["low"] == 0.0625 / 4 and test.callbacks[0]["high"] == 0.0625 * 4 * 4
    assert repeats == [3, 4, 5, 6, 7]
    with pytest.raises(RequestError, match="2 runs or more"):
        tuners.plan("legw", base, 64, budget=1)
    with pytest.raises(RequestError, match="tuner"):
        tuners.plan("grid", base, 64)


def test_scaled_recipes_follow_the_rules(tiny):
    base = tiny(train=1024, epochs=8, rate=0.01, warmup_steps=32.0, decay="multistep",
                decay_options={"milestones": [256, 384]}, evaluate_every=64)
    grown = tuners.scaled(base, 256)
    assert grown.rate == pytest.approx(0.04) and grown.warmup_steps == 32  # sqrt(16); constant iterations
    assert grown.steps == 32 and grown.decay_options["milestones"] == [16, 24] and grown.evaluate_every == 4
    linear, ada = tuners.collapse(base, 256, [0.01])
    assert linear.rate == pytest.approx(0.16) and linear.warmup_steps == pytest.approx(0.055 * 32)
    assert ada.schedule() == base.schedule() and ada.callbacks[0] == {"name": "labs.adascale.AdaScale", "scale": 16.0}


def test_compare_trains_every_tuner_within_the_budget(store, tiny):
    base = tiny(train=256, epochs=4, rate=0.0625, warmup_steps=8.0, evaluate_every=0)
    lab = Lab(find("07"), "smoke", None, [0], store, False)
    table = tuners.compare(lab, base, 64, budget=2, seeds=1)
    assert list(table["tuner"]) == list(tuners.LABELS.values())
    assert (table["in all"] <= 2 + 1e-9).all() and (table["s.e."] > 0).all()
    by = table.set_index("tuner")
    assert by.loc["LEGW", "in all"] == 2 and by.loc["LEGW", "baseline given"] == 1
    assert by.loc["random search", "baseline given"] == by.loc["random search", "in all"] == 2
    assert by.loc["LEGW", "setting"] == "base rate 0.0625" and by.loc["YellowFin", "setting"] == "factor 1"
    runs = store.runs("07")
    params = {"base": dataclasses.asdict(base), "batch": 64, "budget": 2, "seed": 0, "seeds": 1, "images": 64}
    for name in ("range_test", "random_search", "yellowfin", "adascale"):
        found = rules_tuners.tuner_behind(runs, tuner=name, margin=2.0, **params)
        means = [by.loc[tuners.LABELS[which], "test accuracy"] for which in ("legw", name)]
        assert f"LEGW {means[0]:.3f}" in found.evidence and f"{means[1]:.3f} at batch" in found.evidence


# Verdicts


@functools.cache
def data():
    return Recipe(data="procedural", train=128, validation=32, test=64, pool=2).load()


def made(recipe, repeat=0, step=None, rows=(), **metrics):
    """A run as the store would give it, with these final metrics."""
    top = header(recipe, data(), lab="08", repeat=repeat)
    step = recipe.steps if step is None else step
    values = [*rows, *metrics.items()]
    return Run(top, [], [Row(step, 1.0, step * recipe.batch, 0.0, *value) for value in values], "finished")


def story(base, batch, legw, theirs, best=1):
    """Runs of LEGW and random search with a budget of 3: the tuning run number `best` wins on validation."""
    runs = []
    for name, accuracy in (("legw", legw), ("random_search", theirs)):
        recipes, _ = tuners.plan(name, base, batch, 3)
        scores = [0.91 if number == best else 0.9 for number in range(len(recipes))]
        tried = [made(recipe, validation_accuracy=score, test_accuracy=0.5)
                 for recipe, score in zip(recipes, scores, strict=True)]
        last = tuners.final(name, base, batch, tried, 3)
        # under random search the final run with the tuning seed is the tuning run itself
        runs += [run for run in tried if run.config["rate"] != last.rate or run.config["batch"] != last.batch]
        runs += [made(last, repeat, validation_accuracy=0.91, test_accuracy=accuracy) for repeat in range(3)]
    return runs


@pytest.mark.parametrize(
    ("legw", "theirs", "outcome"),
    [(0.95, 0.80, "holds"), (0.80, 0.95, "contradicted"), (0.90, 0.91, "not seen"), (math.nan, 0.9, "contradicted")],
)
def test_tuner_behind_weighs_the_margin(tiny, legw, theirs, outcome):
    base = tiny(epochs=4, rate=0.0625, warmup_steps=8.0)
    params = {"base": dataclasses.asdict(base), "batch": 64, "tuner": "random_search", "budget": 3, "seed": 0,
              "seeds": 3, "images": 452, "margin": 2.0}
    runs = story(base, 64, legw, theirs)
    found = rules_tuners.tuner_behind(runs, **params)
    assert found.outcome == outcome and found.runs == 10
    for missing in range(len(runs)):
        short = runs[:missing] + runs[missing + 1 :]
        assert rules_tuners.tuner_behind(short, **params).outcome == "not attempted"
    assert rules_tuners.tuner_behind([], **params).outcome == "not attempted"


def test_linear_collapses_over_the_flat_set_and_iterations_are_counted(tiny):
    base = tiny(epochs=4, rate=0.0625, warmup_steps=8.0)
    common = {"base": dataclasses.asdict(base), "batch": 64, "rates": 3, "seed": 0, "seeds": 2, "images": 452}
    ladder = [made(recipe, validation_accuracy=value, test_accuracy=0.93)
              for recipe, value in zip(tuners.base_ladder(base, 3), (0.94, 0.5, 0.945), strict=True)]
    flat = [ladder[0].config["rate"], ladder[2].config["rate"]]

    def judged(*accuracies):
        runs = list(ladder)
        for recipe, accuracy in zip(tuners.collapse(base, 64, flat), accuracies, strict=True):
            steps = 20 if recipe.callbacks else recipe.steps
            runs += [made(recipe, repeat, step=steps, test_accuracy=accuracy) for repeat in (0, 1)]
        return runs

    assert rules_tuners.linear_collapses(ladder, fall=0.1, **common).outcome == "not attempted"
    for accuracies, outcome, fraction in (
        ((0.1, 0.92, math.nan, 0.93), "holds", 1.0),
        ((0.9, 0.92, 0.1, 0.93), "partly", 0.5),
        ((0.9, 0.92, 0.9, 0.93), "not seen", 0.0),
        ((0.9, 0.2, 0.9, 0.2), "contradicted", 0.0),
    ):
        found = rules_tuners.linear_collapses(judged(*accuracies), fall=0.1, **common)
        assert (found.outcome, found.fraction, found.runs) == (outcome, fraction, 8)
    runs = judged(0.1, 0.92, 0.1, 0.93)
    found = rules_tuners.more_iterations(runs, at_least=1.1, **common)  # 20 steps against 128 / 64 * 4
    assert found.outcome == "holds" and "2.50 times" in found.evidence and found.runs == 4
    assert rules_tuners.more_iterations(runs, at_least=3.0, **common).outcome == "not seen"


def test_gain_between_reads_the_evidence_and_every_recorded_gain(store, tiny):
    lab = Lab(find("07"), "smoke", None, [0], store, False)
    course = noise_course(64, [math.inf, 10.0, 1.0, 0.1, 0.01, 0.0])
    runs = [lab.evidence("adascale_gain", course, scale=64)]
    assert rules_tuners.gain_between([], scale=64, tolerance=0.05).outcome == "not attempted"
    assert rules_tuners.gain_between(runs, scale=64, tolerance=0.05).outcome == "holds"
    base = tiny(epochs=4)
    for value, outcome in ((3.9, "holds"), (4.1, "contradicted"), (0.99, "contradicted")):
        more = [*runs, made(tuners.adascale(base, 64), rows=[("gain", value)])]
        assert rules_tuners.gain_between(more, scale=64, tolerance=0.05).outcome == outcome
    wrong = [lab.evidence("adascale_gain", [*course[:-1], ("gain_at_noise_0", 1.2)], scale=64)]
    assert rules_tuners.gain_between(wrong, scale=64, tolerance=0.05).outcome == "contradicted"


def test_the_claims_are_judged_by_these_rules():
    own = [claim for claim in claims.load("08") if claim.rule and claim.rule["name"] in
           {rule.__name__ for rule in rules_tuners.RULES}]
    assert len(own) == 11 and {claim.rule["name"] for claim in own} == {rule.__name__ for rule in rules_tuners.RULES}
    for claim in own:
        assert claims.judge(claim, []).verdict == "not attempted"
