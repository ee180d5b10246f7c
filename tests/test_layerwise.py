"""Lab 08's science: dialects against the rule written out, what each does to a step, the traces, the claim rules."""

import dataclasses

import numpy as np
import pytest
import torch

from labkit import claims, models, optim, profiles
from labkit.errors import RequestError
from labkit.optim import dialects
from labkit.optim.groups import parameter_groups
from labkit.runs import Header, Row, Run
from labs import (
    layerwise,
    layerwise_figures,
    layerwise_literal,
    layerwise_ramp,
    layerwise_traces,
    layerwise_tuned,
    plan08,
    rules_layerwise,
)
from labs.layerwise_groups import AdaptAll

FULL = profiles.resolve("08", "full")
CLAIMS = {claim.id: claim for claim in claims.load("08")}


@pytest.mark.parametrize(
    "kind, dialect", [*(("lars", name) for name in dialects.LARS), *(("lamb", name) for name in dialects.LAMB)]
)
def test_every_dialect_equals_the_rule_written_out(kind, dialect):
    assert layerwise_literal.difference(kind, dialect, steps=60) < 1e-10


@pytest.mark.parametrize(
    "kind, wrong",
    [
        ("lars", {"convention": "B"}),
        ("lars", {"decay": "gradient"}),
        ("lars", {"zero_norm": "none"}),
        ("lars", {"trust_clip": True}),
        ("lamb", {"bias_correction": False}),
        ("lamb", {"decay": "outside"}),
        ("lamb", {"phi_bounds": (0.0, 0.5)}),
    ],
)
def test_the_written_rule_is_not_blind(monkeypatch, kind, wrong):
    right = getattr(layerwise_literal, kind)
    monkeypatch.setattr(layerwise_literal, kind, lambda *given: right(*given[:-1], {**given[-1], **wrong}))
    assert layerwise_literal.difference(kind, "paper", steps=20) > 1e-6


# ----------------------------------------------------------------------------- the quadratic


def test_conventions_agree_at_a_constant_rate_and_part_under_a_ramp():
    rows = {(metric, step): value for metric, value, step in layerwise_ramp.conventions()}
    constant = [value for (metric, _), value in rows.items() if metric.endswith("constant")]
    assert max(abs(value - 1) for value in constant) < 1e-9
    # With equal gradients the first ratios are those of two geometric sums: 2 x 1.9 / (0.9 + 2) at t = 1.
    assert rows["step_b_over_a", 0] == pytest.approx(1.0)
    assert rows["step_b_over_a", 1] == pytest.approx(3.8 / 2.9, rel=0.02)
    assert rows["step_b_over_a", 5] > 1.4 and rows["step_b_over_a", 190] < 0.5


def test_momentum_correction_makes_a_walk_as_b_and_without_it_they_differ():
    (_, corrected), (_, plain) = layerwise_ramp.correction_error()
    assert corrected < 1e-12 < 1e-3 < plain


def test_gradual_warmup_has_equal_increments():
    assert max(error for _, error, _ in layerwise_ramp.increment_error()) < 1e-12


def test_bias_correction_cancels_in_the_ratio_and_not_outside_it():
    courses = {name: [v for _, v, _ in layerwise_ramp.without_correction(name)] for name in layerwise_ramp.SETTINGS}
    assert np.allclose(courses["adapted"], 1.0, atol=1e-3)
    t = np.arange(1, 51)
    # Without correction Adam's direction is (1 - b1^t) / sqrt(1 - b2^t) times as long, but for the decay.
    assert np.allclose(courses["excluded"], (1 - 0.9**t) / np.sqrt(1 - 0.999**t), rtol=0.05)
    assert np.allclose(courses["equal betas"], np.sqrt(1 - 0.9**t), rtol=0.05)


def test_a_seeded_velocity_is_too_long_by_about_the_ratio_and_the_right_one_is_not():
    class Seeded(optim.LARS):
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = p.grad.clone()
            return super().step(closure)

    seeded = layerwise_ramp.first_step(lambda params, **options: Seeded(params, convention="B", **options))
    assert seeded == pytest.approx(layerwise_ramp.seeded_velocity(), rel=1e-3)
    assert layerwise_ramp.first_step(optim.LARS) == pytest.approx(1.0)


def test_first_step_of_the_public_library():
    public = pytest.importorskip("pytorch_optimizer", reason="the public library is not installed")
    ratio = layerwise_ramp.first_step(public.LARS)
    assert ratio == pytest.approx(1.0, rel=1e-6) or ratio > 10


# ----------------------------------------------------------------------------- the traces


def test_the_five_traces_show_what_their_features_say():
    found = {name: layerwise_traces.trace(name) for name in layerwise_traces.NAMES}
    for name, frame in found.items():
        places, features = layerwise_traces.at_the_places(frame), layerwise_traces.FEATURES[name]
        assert places["zero tensor"] == features["zero"]
        assert (layerwise_traces.leap(frame) > 5) == features["drop"].startswith("leaps")
        at_once = places["after it"] / places["before the fall"]
        later = places["before the drop"] / places["after it"]
        assert (at_once > 0.5) == features["fall"].startswith("fades")
        assert (at_once < 0.25 and later > 2) == ("climbs back" in features["fall"])


def test_any_two_dialects_of_the_puzzle_part_somewhere():
    for given in layerwise_traces.NAMES:
        for right in layerwise_traces.NAMES:
            if given != right:
                assert layerwise_traces.parted(given, right)


# ----------------------------------------------------------------------------- figures and groups


def test_a_first_step_of_lars_is_the_same_share_of_every_weight_tensor():
    torch.manual_seed(0)
    model = models.build("resnet8", image_shape=(1, 14, 14), classes=10)
    layerwise_figures.first_gradients(model, torch.randn(8, 1, 14, 14), torch.arange(8))
    frame = layerwise_figures.stepped(model, "paper", 4.0)
    weights = frame[frame["kind"] == "weight"]
    assert np.allclose(weights["step / |w|"], 4.0 * 1e-3, rtol=0.02)  # the decay takes a little from the ratio
    sgd = layerwise_figures.stepped(model, "SGD", 0.5)
    assert np.allclose(sgd["|step|"], 0.5 * sgd["|g|"], rtol=1e-4)
    assert layerwise_figures.stepped(model, "paper", 4.0).equals(frame)  # the model was left as it was


def test_adapt_all_gives_every_group_the_first_one_s_decay(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = optim.LARS(parameter_groups(model, 0.25), lr=1.0)
    noted = {}
    writer = type("Writer", (), {"metric": lambda self, name, value: noted.update({name: value})})()
    trainer = type("Trainer", (), {"optimizers": [optimizer]})()
    AdaptAll(writer=writer).on_train_start(trainer, None)
    assert [(group["adapt"], group["weight_decay"]) for group in optimizer.param_groups] == [(True, 0.25)] * 2
    assert noted == {"tensors_included": 3}


def test_equal_dialects_share_a_line():
    lines = layerwise_figures.grouped({"a": np.ones(3), "b": np.ones(3) * 1.01, "c": np.array([1.0, 1.0, 2.0])})
    assert [names for names, _ in lines] == ["a, b", "c"]


# ----------------------------------------------------------------------------- plan


@pytest.mark.parametrize("name", profiles.NAMES)
@pytest.mark.parametrize("model", plan08.MODELS)
def test_every_solver_has_the_same_tuning_budget_and_the_same_schedule(name, model):
    settings = profiles.resolve("08", name)
    recipes = plan08.tuning(settings, model)
    assert len(recipes) == settings.octaves * len(plan08.solvers(settings, model))
    assert len({(recipe.warmup_steps, recipe.decay, recipe.epochs, recipe.batch) for recipe in recipes}) == 1


def test_rates_are_octaves_around_the_middle():
    assert plan08.rates("resnet8", "lars", 7) == [2.0**e for e in range(-3, 4)]
    assert plan08.rates("row-lstm", "adam", 1) == [2.0**-5]
    with pytest.raises(RequestError, match="adagrad"):
        plan08.rates("resnet8", "adagrad", 7)


def test_the_ladder_keeps_the_updates_of_warmup_and_takes_the_root_of_k():
    recipes = plan08.ladder(FULL, 0.125)
    assert {recipe.warmup_steps for recipe in recipes} == {16.0}
    assert [recipe.rate for recipe in recipes] == [0.125 * 2.0**n for n in range(4)]


def test_warmups_differ_only_in_how_they_reach_the_peak():
    none, constant, gradual = (plan08.warmups(FULL, kind)[-1] for kind in plan08.WARMUPS)
    assert none.rate == constant.rate == gradual.rate == 1.0
    assert [shape.schedule()(0) for shape in (none, constant, gradual)] == [1.0, 1 / 64, 1 / 64]
    assert constant.schedule()(19) == 1 / 64 and 0.5 < gradual.schedule()(19) < 1.0
    assert [shape.schedule()(20) for shape in (none, constant, gradual)] == [1.0] * 3


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(RequestError, match="increasing"):
        profiles.resolve("08", "full", {"batches": [64, 16]})
    with pytest.raises(RequestError, match="training images"):
        profiles.resolve("08", "full", {"batches": [16, 8192]})


# ----------------------------------------------------------------------------- the claim rules, on made-up runs


def run_of(recipe, test: float, validation: float | None = None, repeat: int = 0) -> Run:
    config = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(recipe).items()}
    if not config["callbacks"]:
        del config["callbacks"]  # a run's identity leaves it out where it is not used
    values = {"validation_accuracy": test if validation is None else validation, "test_accuracy": test}
    rows = [Row(recipe.steps, recipe.epochs, 0, 1.0, name, value) for name, value in values.items()]
    sworn = {name: claim.hash for name, claim in CLAIMS.items()}
    header = Header("08", config, repeat, claims=sworn, began=f"2024-01-01T00:00:0{repeat}")
    return Run(header, rows=rows, status="finished")


def sweep(model: str, best: dict, **rest) -> list[Run]:
    """Every solver of R07 over its seven rates: `best` accuracy at the middle rate, .5 elsewhere; five seeds there."""
    found = []
    for solver, accuracy in best.items():
        rates = plan08.rates(model, solver, 7)
        for place, rate in enumerate(rates):
            recipe = plan08.recipe(FULL, model, solver, rate, 1024, **rest)
            values = [accuracy] * 5 if place == 3 else [0.5]
            found += [run_of(recipe, value, repeat=seed) for seed, value in enumerate(values)]
    return found


def verdict(id: str, runs) -> str:
    return claims.judge(CLAIMS[id], runs).verdict


@pytest.mark.parametrize("id, model", [("R07.lstm", "row-lstm"), ("R07.resnet", "resnet8")])
def test_controls_match_unless_a_layerwise_solver_is_ahead_by_the_margin(id, model):
    level = {"nesterov": 0.93, "adam": 0.95, "lars": 0.955, "lamb": 0.95}
    assert verdict(id, sweep(model, level)) == "same shape at smaller scale"
    assert verdict(id, sweep(model, {**level, "lars": 0.999})) == "contradicted"
    assert verdict(id, sweep(model, {**level, "nesterov": 0.999, "lars": 0.999})) == "same shape at smaller scale"
    assert verdict(id, sweep(model, level)[:-1]) == "not attempted"  # a rate of the last solver is missing
    assert verdict(id, [run for run in sweep(model, level) if run.header.repeat != 3]) == "not attempted"


def test_controls_are_tuned_on_validation_and_read_on_test():
    runs = sweep("resnet8", {"nesterov": 0.93, "adam": 0.95, "lars": 0.95, "lamb": 0.95})
    for run in runs:  # Adam looks best on test at a rate that validation does not choose
        if run.config["optimizer"] == "adam" and run.config["rate"] == 0.0625:
            run.rows[1] = dataclasses.replace(run.rows[1], value=0.999)
    evidence = claims.judge(CLAIMS["R07.resnet"], runs).evidence
    assert "adam 0.950 (2^-5)" in evidence


def test_unequal_budgets_are_not_judged():
    rule = {key: dict(value) for key, value in CLAIMS["R07.resnet"].parameters.items() if isinstance(value, dict)}
    rule["controls"]["adam"] = {**rule["controls"]["adam"], "rates": [0.03125]}
    runs = sweep("resnet8", {"nesterov": 0.93, "adam": 0.95, "lars": 0.95, "lamb": 0.95})
    found = rules_layerwise.controls_match(runs, **{**CLAIMS["R07.resnet"].parameters, **rule})
    assert found.outcome == "not attempted" and "equally many rates" in found.evidence


@pytest.mark.parametrize(
    "with_list, without, said",
    [
        (0.96, 0.90, "same shape at smaller scale"),
        (0.95, 0.945, "not seen"),
        (0.90, 0.96, "contradicted"),
    ],
)
def test_the_exclusion_list_is_judged_by_two_errors(with_list, without, said):
    runs = sweep("resnet8", {"lars": with_list}) + sweep("resnet8", {"lars": without}, callbacks=(plan08.ADAPT_ALL,))
    assert verdict("R03", runs) == said
    assert verdict("R03", sweep("resnet8", {"lars": with_list})) == "not attempted"


def evidence(rows, **config) -> Run:
    sworn = {name: claim.hash for name, claim in CLAIMS.items()}
    header = Header("08", {"evidence": "test", **config}, claims=sworn)
    made = [Row(0, 0.0, rest[0] if rest else 0, 0.0, metric, value) for metric, value, *rest in rows]
    return Run(header, rows=made, status="finished")


def test_identities_and_the_ramp_hold_from_the_lab_s_own_evidence():
    assert verdict("R02", [evidence(layerwise_ramp.conventions())]) == "reproduced"
    assert verdict("R08", [evidence(layerwise_ramp.increment_error())]) == "holds exactly"
    assert verdict("R09", [evidence(layerwise_ramp.correction_error()[:1])]) == "holds exactly"
    upside_down = [(metric, 1 / value, step) for metric, value, step in layerwise_ramp.conventions()]
    assert verdict("R02", [evidence(upside_down)]) == "contradicted"
    assert verdict("R02", []) == "not attempted"


def test_the_newest_version_decides_about_the_first_step():
    old, new = (
        evidence([("first_step_ratio", 86.0)], version="3.9.0"),
        evidence([("first_step_ratio", 1.0)], version="4.1.0"),
    )
    assert verdict("R04", [old]) == "reproduced"
    assert verdict("R04", [new, old]) == "not seen"


def test_a_remembered_trend_is_never_more_than_same_shape():
    def course(values):
        return [("step_without_over_with", value, t) for t, value in zip((1, 2, 3, 48, 49, 50), values, strict=True)]

    rising, flat = course((0.3, 0.4, 0.5, 1, 1, 1)), course((1, 1, 1, 1, 1, 1))
    three = list(layerwise_ramp.SETTINGS)
    assert verdict("R06", [evidence(rising, setting=name) for name in three]) == "same shape at smaller scale"
    assert (
        verdict("R06", [evidence(flat, setting=three[0])] + [evidence(rising, setting=n) for n in three[1:]])
        == "not seen"
    )


@pytest.mark.parametrize(
    "gradual, others, said",
    [(0.95, 0.80, "same shape at smaller scale"), (0.95, 0.95, "not seen"), (0.80, 0.95, "not seen")],
)
def test_gradual_warmup_is_judged_over_the_peaks(gradual, others, said):
    runs = []
    for kind in plan08.WARMUPS:
        for recipe in plan08.warmups(FULL, kind):
            value = 0.5 if recipe.rate < 1 else gradual if kind == "gradual" else others
            runs += [run_of(recipe, value, repeat=seed) for seed in range(5)]
    assert verdict("R11", runs) == said
    assert verdict("R11", runs[1:]) == "not attempted"


# ----------------------------------------------------------------------------- reading


def test_the_lab_reads_what_the_rules_read():
    runs = sweep("resnet8", {"nesterov": 0.93, "adam": 0.95, "lars": 0.955, "lamb": 0.95})
    everything = sweep("resnet8", {"lars": 0.9}, callbacks=(plan08.ADAPT_ALL,))
    arms = layerwise.arms(runs + everything, FULL, "resnet8")
    assert arms["lars"].best == 1.0 and arms["lars"].mean == pytest.approx(0.955)
    assert len(arms["lars"].values()) == 5 and len(arms["adam"].rates) == 7
    lists = layerwise.exclusion(runs + everything, FULL)
    assert (lists["excluded"].mean, lists["nothing excluded"].mean) == (pytest.approx(0.955), pytest.approx(0.9))
    for found in (({}, arms), (arms, arms)):
        fig, alt, data = layerwise_tuned.tuned(*found, "resnet8")
        assert "LARS 0.955" in alt and len(data) == sum(map(len, found))
    assert "0.955 at 2^0" in layerwise_tuned.exclusion({}, lists)[1]


def test_the_ladder_and_the_warmups_are_found_again():
    starts = [run_of(recipe, 0.9 + 0.01 * n) for n, recipe in enumerate(plan08.ladder_start(FULL))]
    rate = layerwise.ladder_rate(starts, FULL)
    assert rate == starts[-1].config["rate"]
    steps = [run_of(recipe, 0.9) for recipe in plan08.ladder(FULL, rate)]
    assert sorted(layerwise.ladder(starts + steps, FULL, rate)) == [16, 64, 256, 1024]
    runs = [run_of(recipe, 0.8) for kind in plan08.WARMUPS for recipe in plan08.warmups(FULL, kind)]
    assert {kind: len(found) for kind, found in layerwise.warmups(runs, FULL).items()} == dict.fromkeys(
        plan08.WARMUPS, 5
    )


def test_a_diverged_run_counts_as_zero_and_is_not_chosen():
    good, bad = (run_of(plan08.recipe(FULL, "resnet8", "lars", rate, 1024), 0.9) for rate in (1.0, 2.0))
    bad.rows[0] = dataclasses.replace(bad.rows[0], value=float("nan"))
    assert plan08.best([bad, good]) == [good]
    assert layerwise.Arm([good, bad], [1.0, 2.0]).best == 1.0


def test_profiles_of_the_claims_are_the_full_one():
    for id, model in (("R07.lstm", "row-lstm"), ("R07.resnet", "resnet8")):
        rule = CLAIMS[id].parameters
        for name, arm in {**rule["controls"], **rule["layerwise"]}.items():
            assert arm["rates"] == plan08.rates(model, name, FULL.octaves)
            recipe = plan08.recipe(FULL, model, name, arm["rates"][0], FULL.batches[-1])
            assert all(getattr(recipe, key) == value for key, value in {**rule["select"], **arm["is"]}.items())
        assert rule["seeds"] == FULL.final_seeds
