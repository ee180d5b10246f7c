"""The rules about public logs give the outcome that small planted tables were made to show."""

import math

import pandas as pd
import pytest

from labkit import claims, paths, rules
from labs import rules_public, rules_public_runs

PUBLIC = {rule.__name__ for rule in (*rules_public.RULES, *rules_public_runs.RULES)}


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Write a planted table where the rules look for published ones: `plant(name, rows)`."""
    folder = tmp_path / "data" / "published"
    folder.mkdir(parents=True)
    monkeypatch.setattr(paths, "data", lambda: folder.parent)
    return lambda name, rows: pd.DataFrame(rows).to_csv(folder / name, index=False)


def outcome(name, **ask):
    return rules.RULES[name]([], **ask).outcome


def entry(name, seconds=100.0, **more):
    facts = {"task": "ImageNet", "entry": name, "threshold": 93.0, "tta_seconds": seconds, "metric_at_hit": 93.5,
             "displayed_time": "0:01:40", "date": "2018-04-01", "flags": "", "falls_below_again": False,
             "hardware": "One GPU", "cost_usd": seconds / 3600}  # fmt: skip
    return facts | more


def test_time_is_that_of_the_first_row_at_the_target(plant):
    ask = {"table": "t.csv", "thresholds": "g.csv", "entries": 2, "exact": ["b"]}
    grid = [{"task": "ImageNet", "entry": name, "threshold": 93.0, "seconds": 100.0} for name in "ab"]
    plant("g.csv", grid)
    plant("t.csv", [entry("a"), entry("b", metric_at_hit=93.0)])
    assert outcome("first_row_at_target", **ask) == "holds"
    plant("t.csv", [entry("a"), entry("b")])  # the exact hit was passed over for a later row
    assert outcome("first_row_at_target", **ask) == "contradicted"
    plant("t.csv", [entry("a", metric_at_hit=92.9), entry("b", metric_at_hit=93.0)])
    assert outcome("first_row_at_target", **ask) == "contradicted"
    plant("t.csv", [entry("a", seconds=90.0), entry("b", metric_at_hit=93.0)])
    assert outcome("first_row_at_target", **ask) == "contradicted"
    assert outcome("first_row_at_target", **ask | {"entries": 3}) == "not attempted"


@pytest.mark.parametrize(
    "shown, said", [("0:01:40", "holds"), ("0:01:39", "contradicted"), ("0:01:41", "contradicted")]
)
def test_a_displayed_time_is_rounded_up(plant, shown, said):
    plant("t.csv", [entry("a", 99.2, displayed_time=shown), entry("b", 3661.0, displayed_time="1:01:01")])
    assert outcome("rounded_up", table="t.csv") == said


def runs_of(system, times, task="resnet", round="v0.5", evaluations=None):
    return [
        {"round": round, "system": system, "benchmark": task, "file": f"result_{number}.txt", "tta_seconds": seconds,
         "converged": math.isfinite(seconds), "evaluations": evaluations[number] if evaluations else 1}
        for number, seconds in enumerate(times)
    ]  # fmt: skip


STEADY, WILD = [100, 101, 99, 100, 100], [50, 400, 60, 300, 55]
LOOSE = [100, 125, 90, 110, 95]  # at most .15, but its interval is not


def test_variation_is_low_in_most_systems(plant):
    ask = {"table": "r.csv", "rounds": ["v0.5"], "apart": ["ncf"], "bound": 0.15, "share": 0.9, "least": 5, "sets": 3}

    def judged(*sets, **more):
        plant(
            "r.csv",
            [row for number, times in enumerate(sets) for row in runs_of(f"s{number}", times)] + more.get("extra", []),
        )
        return rules.RULES["low_variation_in_most"]([], **ask)

    assert judged(*[STEADY] * 3, LOOSE).outcome == "holds"
    assert judged(*[STEADY] * 20, WILD).outcome == "not seen"  # 20 of 21, but one is surely above
    assert judged(WILD, WILD, WILD, WILD).outcome == "contradicted"
    assert judged(STEADY, STEADY).outcome == "not attempted"
    apart = judged(STEADY, STEADY, STEADY, extra=runs_of("n", WILD, task="ncf"))
    assert apart.outcome == "holds" and "apart: v0.5 n ncf" in apart.evidence
    missed = judged(STEADY, STEADY, STEADY, [50, 400, 60, 300, math.inf])  # four converged runs are too few to count
    assert missed.outcome == "holds" and "3 of 3" in missed.evidence


def test_variance_between_evaluations_is_told_from_noise_within_one(plant):
    ask = {"table": "r.csv", "apart": [], "least": 5, "share": 0.5, "systems": 0.75, "sets": 2}
    steps, mixed = [20, 20, 30, 30, 20.1], [20, 30, 20, 30, 25]
    which = [2, 2, 3, 3, 2]
    plant("r.csv", runs_of("a", steps, evaluations=which) + runs_of("b", steps, evaluations=which))
    assert outcome("evaluation_decides_in_most", **ask) == "holds"
    plant("r.csv", runs_of("a", mixed, evaluations=which) + runs_of("b", mixed, evaluations=which))
    assert outcome("evaluation_decides_in_most", **ask) == "contradicted"
    plant("r.csv", runs_of("a", steps, evaluations=which) + runs_of("b", mixed, evaluations=which))
    assert outcome("evaluation_decides_in_most", **ask) == "not seen"
    plant("r.csv", runs_of("a", steps, evaluations=[1, 2, 3, 4, 5]))  # as many groups as runs explain everything
    assert outcome("evaluation_decides_in_most", **ask) == "not attempted"


def test_the_fastest_entry_is_under_a_bound(plant):
    plant("t.csv", [entry("a", 170.0), entry("b", 900.0), entry("c", 1.0, task="CIFAR10")])
    ask = {"table": "t.csv", "task": "ImageNet"}
    assert outcome("fastest_under", **ask, bound=180) == "holds"
    assert outcome("fastest_under", **ask, bound=170) == "contradicted"


def test_speed_ups_are_of_the_fastest_seed_and_of_their_date(plant):
    seeds = [entry("dawn_slow", 9000.0), entry("dawn_fast", 5000.0, date="2017-09-01")]
    late, undated = entry("late", 1.0, date="2019-01-01"), entry("undated", 1.0, date="")
    plant("t.csv", [*seeds, entry("best", 50.0), late, undated])
    ask = {"table": "t.csv", "task": "ImageNet", "seed": "dawn_", "until": "2018-04-30"}
    assert outcome("faster_than_seed", **ask, at_least=100) == "holds"
    assert outcome("faster_than_seed", **ask, at_least=101) == "not seen"
    assert outcome("faster_than_seed", **ask, at_least=201) == "contradicted"
    quote = ask | {"tolerance": 0.5, "far": 0.05, "quoted_hours": 1.5}
    assert outcome("quoted_speedup", **quote, quoted=100) == "holds"
    assert outcome("quoted_speedup", **quote, quoted=104) == "not seen"
    assert outcome("quoted_speedup", **quote, quoted=120) == "contradicted"
    plant("t.csv", [entry("best", 50.0)])
    assert outcome("faster_than_seed", **ask, at_least=1) == "not attempted"


@pytest.mark.parametrize("many, said", [(12, "holds"), (10, "not seen"), (8, "contradicted")])
def test_epochs_that_grow_with_scale_cost_time_to_accuracy(plant, many, said):
    scores = [("tpu-v3-32", 32, 1000.0), ("tpu-v3-2048", 2048, 40.0)]
    shared = {"round": "v0.6", "benchmark": "resnet"}
    plant(
        "s.csv", [{**shared, "system": name, "chips": chips, "score_seconds": score} for name, chips, score in scores]
    )
    epochs = {"tpu-v3-32": [10, 10, 9, 11], "tpu-v3-2048": [many, many, many - 1, many + 1]}
    plant(
        "r.csv",
        [{**shared, "system": name, "converged": True, "last_epoch": e} for name in epochs for e in epochs[name]],
    )
    ask = {
        "table": "r.csv",
        "systems": "s.csv",
        "round": "v0.6",
        "benchmark": "resnet",
        "family": "tpu-v3",
        "small": 32,
    }
    found = rules.RULES["scales_worse_than_throughput"]([], **ask, large=2048)
    assert (
        found.outcome == said
        and f"25.0 times faster = throughput {2.5 * many:.1f} / epochs {many / 10:.2f}" in found.evidence
    )
    assert outcome("scales_worse_than_throughput", **ask, large=512) == "not attempted"


def test_ranks_that_turn_with_the_threshold_are_seen(plant):
    def grid(*turned):
        return [
            {"task": task, "entry": str(i), "threshold": t, "seconds": 9.0 - i if task in turned and t < 93 else i + 1.0}
            for task in ("A", "B") for i in range(6) for t in (90.0, 92.0, 93.0)
        ]  # fmt: skip

    ask = {"table": "g.csv", "targets": {"A": 93.0, "B": 93.0}, "within": {"A": 1, "B": 1}, "tau": 0.9, "tasks": 2}
    for turned, said in ((("A", "B"), "holds"), (("A",), "not seen"), ((), "contradicted")):
        plant("g.csv", grid(*turned))
        assert outcome("ranks_move", **ask, entries=5) == said
    assert outcome("ranks_move", **ask, entries=7) == "not attempted"
    plant("g.csv", [row for row in grid("A", "B") if row["threshold"] != 92])  # 90 is too far from the target
    assert outcome("ranks_move", **ask, entries=5) == "not attempted"


def test_curves_that_fall_below_again_are_counted(plant):
    falls = {"falls_below_again": True, "flags": "crlf;falls-below-again;ends-below"}
    for count, said in ((2, "holds"), (1, "not seen"), (0, "contradicted")):
        plant("t.csv", [entry(str(i), **(falls if i < count else {})) for i in range(3)])
        found = rules.RULES["fall_below"]([], table="t.csv", entries=3, least=2)
        assert found.outcome == said and f"{count} of 3 curves" in found.evidence and f"{count} end" in found.evidence
    assert outcome("fall_below", table="t.csv", entries=4, least=2) == "not attempted"


def test_a_count_on_rounded_accuracies_is_set_beside_the_quoted_one(plant):
    for printed, said in ((47, "holds"), (41, "contradicted")):
        plant("a.csv", [{"n": 50, "printed_at_target": printed, "printed_above_target": 38, "readme_count": 41}])
        assert outcome("count_differs", table="a.csv", quoted=41) == said


@pytest.mark.parametrize("score, said", [(100.0, "holds"), (100.5, "contradicted"), (math.nan, "contradicted")])
def test_scores_are_recomputed_from_the_runs(plant, score, said):
    plant("r.csv", runs_of("s", [99, 100, 101, 500, 1]))
    plant("s.csv", [{"round": "v0.5", "system": "s", "benchmark": "resnet", "score_seconds": score, "flags": ""}])
    assert outcome("scores_follow_the_rule", table="r.csv", systems="s.csv", first={}, tolerance=1e-9) == said


def test_a_missing_log_is_a_miss_and_recommendation_counts_its_first_runs_in_numeric_order(plant):
    names = {"round": "v0.5", "system": "s"}
    ask = {"table": "r.csv", "systems": "s.csv", "first": {"ncf": 3}, "tolerance": 1e-9}
    plant("r.csv", runs_of("s", [99, 100, 101, math.inf]))
    plant("s.csv", [{**names, "benchmark": "resnet", "score_seconds": math.nan, "flags": "logs-missing:1"}])
    assert outcome("scores_follow_the_rule", **ask) == "holds"
    plant("s.csv", [{**names, "benchmark": "resnet", "score_seconds": 100.5, "flags": "not-converged:1"}])
    assert outcome("scores_follow_the_rule", **ask) == "holds"
    times = [math.inf, 5, 9, *[math.inf] * 7, 7, 1000]  # by name, result_10 and result_11 would come before result_2
    ncf = sorted(runs_of("s", times, task="ncf"), key=lambda row: row["file"])
    plant("r.csv", ncf)
    plant("s.csv", [{**names, "benchmark": "ncf", "score_seconds": 7.0, "flags": "not-converged:8"}])
    assert outcome("scores_follow_the_rule", **ask) == "holds"


@pytest.mark.parametrize(
    "own, said", [(100.2, "holds"), (100.0, "contradicted"), (99.0, "contradicted"), (120.0, "contradicted")]
)
def test_two_clocks_differ_slightly_and_in_one_direction(plant, own, said):
    plant("n.csv", [{"runs": 50, "mlperf_score_seconds": 100.0, "own_score_seconds": own}])
    assert outcome("clocks_differ", table="n.csv", at_most=0.05) == said


@pytest.mark.parametrize(
    "mean, n, said",
    [(3.279, 80, "holds"), (3.2799, 80, "not seen"), (3.281, 80, "contradicted"), (3.2, 5, "not attempted")],
)
def test_a_mean_loss_is_tested_from_mean_and_sd(plant, mean, n, said):
    plant("l.csv", [{"n": n, "mean": mean, "sd": 0.002, "target": 3.28}])
    assert outcome("mean_loss_meets", table="l.csv", n=80, alpha=0.01) == said


def test_an_inference_cost_is_a_price_that_was_filed_for_the_hardware(plant):
    plant("t.csv", [entry("a")])  # one dollar an hour
    shared = {"entry": "i", "latency_ms": 3600.0}
    good, dear = (
        {**shared, "hardware": "one  gpu", "cost_usd": 1e-3},
        {**shared, "hardware": "One GPU", "cost_usd": 2e-3},
    )
    unknown, unpriced = (
        {**shared, "hardware": "?", "cost_usd": 9.0},
        {**shared, "hardware": "One GPU", "cost_usd": None},
    )
    ask = {"table": "i.csv", "train": "t.csv", "tolerance": 0.02, "least": 2}
    for rows, said in (
        ([good, good, unknown, unpriced], "holds"),
        ([good, dear], "not seen"),
        ([good, dear, dear], "contradicted"),
        ([good, unknown], "not attempted"),
    ):
        plant("i.csv", rows)
        assert outcome("price_times_latency", **ask) == said


def test_every_claim_on_the_public_tables_is_judged():
    judged = {claim.id: claims.judge(claim, []) for claim in claims.load("12")}
    ours = {claim.id for claim in claims.load("12") if claim.rule["name"] in PUBLIC}
    assert len(ours) == 16 and all(judged[name].verdict != "not attempted" for name in ours)
