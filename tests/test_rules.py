"""The rules give the outcome that planted runs were made to show, and refuse to judge what is missing."""

import dataclasses
import itertools
import types

import pytest

from labkit import claims, rules
from labkit.errors import WorkError
from labkit.fingerprint import plain_code
from labs.factorial import Table
from labkit.runs import Header, Row, Run, Span
from labs import rules_scaling, rules_times

AXES = {"batches": [16, 64, 256, 1024], "samples": 4096, "warmup_epochs": 10 / 64, "long_warmup_epochs": 5.0}
TABLE = Table(tuple(AXES["batches"]), 4096, 10 / 64, 5.0)
RATES = [2.0**-8, 2.0**-7, 2.0**-6]


def planted(batch, rate, warmup, value, seed=0, validation=None, seconds=1.0, claim_hashes=None, **config):
    rows = [
        Row(1, 1.0, batch, 1.0, "test_accuracy", value),
        Row(1, 1.0, batch, 1.0, "validation_accuracy", value if validation is None else validation),
    ]
    full = {
        "batch": batch,
        "rate": rate,
        "warmup_steps": warmup,
        "optimizer": "sgd",
        "options": {"momentum": 0.9},
        **config,
    }
    return Run(Header("07", full, seed, claims=claim_hashes or {}), [Span("train", 0.0, seconds)], rows, "finished")


def sweep(accuracy, seeds=3):
    """The whole table, with accuracy(batch, rate, warmup)."""
    return [
        planted(c.batch, c.rate, c.warmup_steps, accuracy(c.batch, c.rate, c.warmup_steps), seed)
        for c, seed in itertools.product(TABLE.factorial(RATES), range(seeds))
    ]


def on(path, rate, batch):
    cell = TABLE.path(path, rate)[TABLE.batches.index(batch)]
    return cell.batch, cell.rate, cell.warmup_steps


ORDERING = {
    "select": {},
    "table": AXES,
    "rates": RATES,
    "batch": 1024,
    "ours": "legw",
    "theirs": "linear",
    "seeds": 3,
    "images": 452,
    "margin": 2.0,
}


@pytest.mark.parametrize(
    "winning, outcome, fraction",
    [(RATES, "holds", 1.0), (RATES[:1], "partly", 1 / 3), ([], "contradicted", 0.0)],
)
def test_ordering_is_judged_over_the_flat_set(winning, outcome, fraction):
    good = {on("legw", rate, 1024) for rate in winning} | {
        on("linear", rate, 1024) for rate in RATES if rate not in winning
    }

    def accuracy(batch, rate, warmup):
        if batch < 1024:
            return 0.95
        return 0.9 if (batch, rate, warmup) in good else 0.5

    found = rules.RULES["ordering"](sweep(accuracy), **ORDERING)
    assert (found.outcome, found.fraction) == (outcome, fraction)


def test_a_gap_inside_the_margin_is_not_seen():
    found = rules.RULES["ordering"](
        sweep(lambda batch, rate, warmup: 0.95 if batch < 1024 else 0.9 + 0.001 * warmup / 40), **ORDERING
    )
    assert found.outcome == "not seen"


def test_a_base_rate_outside_the_flat_set_is_not_asked():
    def accuracy(batch, rate, warmup):
        if batch == 16:
            return 0.95 if rate == RATES[0] else 0.80
        return 0.9 if (batch, rate, warmup) == on("legw", RATES[0], 1024) else 0.5

    found = rules.RULES["ordering"](sweep(accuracy), **ORDERING)
    assert (found.outcome, found.fraction) == ("holds", 1.0)


def test_too_few_seeds_are_not_judged():
    assert rules.RULES["ordering"](sweep(lambda *cell: 0.9, seeds=2), **ORDERING).outcome == "not attempted"


def test_not_inferior_and_near_retuned():
    shared = {
        "select": {},
        "table": AXES,
        "rates": RATES,
        "batch": 1024,
        "path": "legw",
        "seeds": 3,
        "images": 452,
        "margin": 2.0,
    }
    kept, lost = sweep(lambda *cell: 0.95), sweep(lambda batch, rate, warmup: 0.95 if batch < 1024 else 0.90)
    assert rules.RULES["not_inferior"](kept, **shared).outcome == "holds"
    assert rules.RULES["not_inferior"](lost, **shared).outcome == "contradicted"
    path = {on("legw", rate, 1024) for rate in RATES}
    behind = sweep(lambda batch, rate, warmup: 0.80 if (batch, rate, warmup) in path else 0.95)
    assert rules.RULES["near_retuned"](kept, **shared).outcome == "holds"
    assert rules.RULES["near_retuned"](behind, **shared).outcome == "contradicted"


def test_rates_are_tuned_on_validation_and_read_on_test():
    lucky = (1024, RATES[2] * 64, 0.0)
    runs = [
        dataclasses.replace(
            run, rows=[Row(1, 1.0, 16, 1.0, "test_accuracy", 0.99), Row(1, 1.0, 16, 1.0, "validation_accuracy", 0.10)]
        )
        if (run.config["batch"], run.config["rate"], run.config["warmup_steps"]) == lucky
        else run
        for run in sweep(lambda *cell: 0.95)
    ]
    found = rules.RULES["near_retuned"](
        runs, select={}, table=AXES, rates=RATES, batch=1024, path="legw", seeds=3, images=452, margin=2.0
    )
    assert "retuned at 1024: 0.950" in found.evidence


def test_speed_uses_runs_that_own_their_seconds():
    runs = [
        planted(*on("legw", RATES[0], batch), 0.9, seconds=seconds)
        for batch, seconds in zip((16, 64, 256, 1024), (8.0, 4.0, 2.0, 2.0))
    ]
    ask = {"select": {}, "table": AXES, "rates": RATES[:1], "batch": 1024, "path": "legw", "at_least": 2.0}
    assert "4.00 times" in rules.RULES["faster"](runs, **ask).evidence
    shared = [dataclasses.replace(run, header=dataclasses.replace(run.header, arms=5)) for run in runs]
    assert rules.RULES["faster"](shared, **ask).outcome == "not attempted"


def test_speed_at_kept_accuracy_goes_no_further_than_the_accuracy():
    values = dict(zip((16, 64, 256, 1024), (0.95, 0.95, 0.70, 0.70)))
    runs = [planted(*on("legw", RATES[0], batch), value, seconds=160 / batch) for batch, value in values.items()]
    found = rules.RULES["faster"](
        runs,
        select={},
        table=AXES,
        rates=RATES[:1],
        batch=1024,
        path="legw",
        at_least=2.0,
        equal_accuracy=True,
        images=452,
        margin=2.0,
    )
    assert "batch 64: 4.00 times" in found.evidence


def test_adaptive_solver_that_does_better_does_not_fall_behind():
    solver = [
        planted(1024, rate, 0.0, value, optimizer="adam", options={}) for rate, value in ((0.01, 0.94), (0.1, 0.3))
    ]
    ask = {
        "select": {},
        "table": AXES,
        "rates": RATES,
        "batch": 1024,
        "solver": "adam",
        "solver_rates": [0.01, 0.1],
        "path": "legw",
        "seeds": 1,
        "images": 452,
        "margin": 2.0,
    }
    worse = sweep(lambda batch, rate, warmup: 0.95 if batch < 1024 else 0.80)
    assert rules.RULES["adaptive_behind"]([*solver, *worse], **ask).outcome == "contradicted"
    better = sweep(lambda batch, rate, warmup: 0.99)
    assert rules.RULES["adaptive_behind"]([*solver, *better], **ask).outcome == "holds"


def curvature_run(batch, peak_step, seed=0):
    rows = [
        Row(step, step * batch / 4096, step * batch, step, "curvature", 10 - abs(step - peak_step) / 10)
        for step in range(0, 300, 10)
    ]
    return Run(Header("07", {"batch": batch}, seed), [], rows, "finished")


def test_a_peak_at_a_constant_iteration_moves_linearly_in_epochs():
    runs = [curvature_run(batch, 100, seed) for batch in (64, 256, 1024) for seed in range(2)]
    ask = {"select": {}, "batches": [64, 256, 1024], "seeds": 2}
    assert rules.RULES["peak_moves"](runs, **ask, axis="epoch", low=0.9, high=1.1).outcome == "holds"
    assert rules.RULES["peak_moves"](runs, **ask, axis="step", low=-0.1, high=0.1).outcome == "holds"
    assert rules.RULES["peak_moves"](runs, **ask, axis="step", low=0.9, high=1.1).outcome == "not seen"


def test_a_single_spike_is_not_a_peak():
    run = curvature_run(64, 100)
    spiked = dataclasses.replace(
        run, rows=[dataclasses.replace(row, value=1e6) if row.step == 250 else row for row in run.rows]
    )
    assert rules_scaling.curvature_peak(spiked, "step") == pytest.approx(100, abs=10)


def test_bounds_and_slopes():
    def run(rows):
        return Run(Header("07", {}), [], rows, "finished")

    assert (
        rules.RULES["at_most"]([run([Row(0, 0, 0, 0, "error", 1e-9)])], metric="error", bound=1e-6).outcome == "holds"
    )
    assert (
        rules.RULES["at_most"]([run([Row(0, 0, 0, 0, "error", float("nan"))])], metric="error", bound=1e-6).outcome
        == "contradicted"
    )
    falling = run([Row(0, 0, batch, 0, "trace", 7.0 / batch) for batch in (4, 16, 64)])
    assert rules.RULES["slope_within"]([falling], metric="trace", low=-1.01, high=-0.99).outcome == "holds"


def timed_run(seed, steps, every=1, target=0.9):
    rows = [
        Row(step, 0.0, 0, step * 0.1 + 0.01, "validation_accuracy", 0.95 if step >= steps else 0.1)
        for step in range(1, 21, every)
    ]
    header = Header("11", {}, seed, target={"metric": "validation_accuracy", "value": target, "higher": True})
    return Run(header, [Span("init", 0.0, 0.01), Span("train", 0.01, 2.1)], rows, "finished")


def test_variation_is_judged_by_its_interval():
    steady = [timed_run(seed, 10) for seed in range(12)]
    wild = [timed_run(seed, 2 + seed) for seed in range(12)]
    ask = {"select": {}, "clock_rule": "dawnbench", "bound": 0.15, "seeds": 10}
    assert rules.RULES["variation_at_most"](steady, **ask).outcome == "holds"
    assert rules.RULES["variation_at_most"](wild, **ask).outcome == "contradicted"
    assert rules.RULES["variation_at_most"](wild[:5], **ask).outcome == "not attempted"


def test_steps_without_timing_noise_vary_only_by_evaluation():
    runs = [timed_run(seed, 2 + seed) for seed in range(12)]
    assert rules.RULES["evaluation_decides"](runs, select={}, every=5, share=0.99, seeds=10).outcome == "holds"


def test_the_ledger_of_a_run_adds_up():
    assert rules.RULES["ledger_adds_up"]([timed_run(0, 10)], tolerance=1e-9).outcome == "holds"


def test_every_claim_of_the_board_can_be_judged_on_nothing_and_keeps_its_words():
    for row in claims.board([]).itertuples():
        assert row.verdict in claims.VERDICTS


def test_remembered_claims_never_show_a_figure_nor_more_than_a_shape():
    for claim in claims.load():
        if claim.grade == "remembered":
            assert claim.literature == ""
            assert claims.verdict_of(claim, "holds") == "same shape at smaller scale"
            assert {claims.verdict_of(claim, outcome) for outcome in ("partly", "contradicted", "not seen")} == {
                "not seen"
            }


def test_a_run_under_another_version_of_the_rule_cannot_support_it():
    claim = next(claim for claim in claims.load() if claim.id == "L17")
    rows = [Row(0, 0, 0, 0, "curvature_relative_error", 1e-9)]
    sworn = Run(Header("07", {}, claims={"L17": claim.hash}), [], rows, "finished")
    before = Run(Header("07", {}, claims={"L17": "0" * 12}), [], rows, "finished")
    assert claims.judge(claim, [sworn]).verdict == "holds exactly"
    late = claims.judge(claim, [before])
    assert late.verdict == "not attempted" and "another version" in late.evidence


def test_simulated_runs_say_nothing_about_accuracy():
    claim = next(claim for claim in claims.load() if claim.id == "L18")
    rows = [Row(0, 0, batch, 0, "gradient_covariance_trace", 1 / batch) for batch in (4, 16, 64)]
    simulated = Run(Header("07", {}, source="simulated", claims={"L18": claim.hash}), [], rows, "finished")
    assert claims.judge(claim, [simulated]).verdict == "not attempted"


def test_the_hash_changes_with_the_margin_and_with_the_code_of_a_helper(monkeypatch):
    claim = next(claim for claim in claims.load() if claim.id == "L04.lstm")
    wider = dataclasses.replace(claim, rule={**claim.rule, "margin": 3.0})
    assert wider.hash != claim.hash


@pytest.mark.parametrize(
    ("rule", "reached"),
    [
        ("ordering", ["FunctionDef(name='standard_error'", "FunctionDef(name='cell_values'"]),
        ("ordering", ["FunctionDef(name='paths_at'", "ClassDef(name='Table'"]),  # within a comprehension; of a lab
        ("three_regimes", ["FunctionDef(name='crossing'"]),
        ("hyperbola", ["[-4.0,-3.98,"]),  # a constant of its module
        ("tuner_behind", ["FunctionDef(name='plan'"]),  # by the name of another module
    ],
)
def test_the_hash_covers_all_that_a_rule_reaches(rule, reached):
    for part in reached:
        assert part in rules.code(rule), part


def test_a_syntax_tree_reads_the_same_under_every_python():
    """The text is written out here: another version of Python has to give it too."""
    source = 'def f(x, *, y: int = 2) -> str:\n    "words"\n    return f"{x:>{y}} a" if x not in (1, None) else [z for z in x]\n'
    assert plain_code(source) == (
        "Module(body=[FunctionDef(name='f',args=arguments(args=[arg(arg='x')],kwonlyargs=[arg(arg='y',annotation=Name("
        "id='int',ctx=Load()))],kw_defaults=[Constant(value=2)]),body=[Return(value=IfExp(test=Compare(left=Name(id='x',"
        "ctx=Load()),ops=[NotIn()],comparators=[Tuple(elts=[Constant(value=1),Constant()],ctx=Load())]),body=JoinedStr("
        "values=[FormattedValue(value=Name(id='x',ctx=Load()),conversion=-1,format_spec=JoinedStr(values=[Constant("
        "value='>'),FormattedValue(value=Name(id='y',ctx=Load()),conversion=-1)])),Constant(value=' a')]),orelse=ListComp("
        "elt=Name(id='z',ctx=Load()),generators=[comprehension(target=Name(id='z',ctx=Store()),iter=Name(id='x',ctx=Load())"
        ",is_async=0)])))],returns=Name(id='str',ctx=Load()))])"
    )


def test_the_rules_of_the_labs_are_found_beside_the_general_ones_and_a_name_means_one_rule():
    assert rules.RULES["ordering"] is rules_scaling.ordering and rules.RULES["best_of_n"] is rules_times.best_of_n
    assert rules.RULES["at_most"] is rules.general.at_most
    with pytest.raises(WorkError, match="labkit.rules.general and other both define at_most; rename one"):
        rules.collected(rules_times, planted_module("at_most"))
    with pytest.raises(WorkError, match="empty lists no rules; give it a tuple RULES"):
        rules.collected(types.ModuleType("empty"))


def planted_module(name):
    """A module `other` with one rule of that name."""
    module = types.ModuleType("other")
    exec(f"def {name}(runs): pass\nRULES = ({name},)", module.__dict__)
    return module
