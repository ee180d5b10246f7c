"""The rules of lab 06: what holds, each way of being wrong, NaN, what is missing, and one bad run among good ones."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from labs import rules_talking, rules_talking_counts, talking_tables

from labkit import claims
from labkit.runs import Header, Store

COUNTER = itertools.count()


@pytest.fixture
def made(tmp_path):
    """A function: entries (rows, config) -> runs."""

    def make(entries):
        store, runs = Store(tmp_path / str(next(COUNTER))), []
        for at, (rows, config) in enumerate(entries):
            with store.write(Header("06", {"copy": at, **config}, hardware={}, software={}, claims={})) as writer:
                for metric, value, *samples in rows:
                    writer.metric(metric, value, samples=samples[0] if samples else 0)
            runs.append(writer.run)
        return runs

    return make


@pytest.fixture
def judged(made):
    """A function: rule, entries, parameters -> outcome, the same in every order of the runs."""

    def judge(rule, entries, **parameters):
        runs = made(entries)
        found = {rule(order, **parameters).outcome for order in (runs, runs[::-1], runs[1:] + runs[:1])}
        assert len(found) == 1, found
        return found.pop()

    return judge


def arm(seed, test, best=1, rates=(0.1, 0.2, 0.4), sent=100.0, **config):
    validation = [0.5] * len(rates)
    validation[best] = 0.9
    scores = [0.4] * len(rates)
    scores[best] = test
    rows = [("validation", value) for value in validation] + [("test", value) for value in scores] + [("sent", sent)]
    return rows, {"seed": seed, "rates": list(rates), **config}


def signs(gaps, **more):
    return [arm(seed, 0.8 + (gap if label == "1-bit" else 0.0), evidence="compressed", method=label, **more)
            for seed, gap in enumerate(gaps) for label in ("1-bit", "1-bit, no feedback")]


def test_feedback_needs_seeds_one_grid_and_a_rate_inside(judged):
    def judge(entries, seeds=3):
        return judged(rules_talking.feedback_helps, entries, select={}, seeds=seeds)

    gaps = [0.05, 0.04, 0.06]
    assert judge(signs(gaps)) == "holds" and judge(signs([-gap for gap in gaps])) == "contradicted"
    assert judge(signs([0.05, -0.05, 0.01])) == "not seen"
    assert judge(signs(gaps), 4) == judge(signs(gaps, best=2)) == judge(signs(gaps[:1]) * 3) == "not attempted"
    assert judge(signs(gaps) + signs(gaps[:1], rates=(0.1, 0.2, 0.3))) == "not attempted"
    assert judge(signs([0.05, math.nan, 0.06])) == "not attempted"


def test_a_seed_that_was_run_again_counts_once_and_every_run_of_it_is_judged(judged):
    def judge(entries):
        return judged(rules_talking.feedback_helps, entries, select={}, seeds=3)

    good = signs([0.05, 0.04, 0.06])
    assert judge(good + good) == "holds" and judge(good + signs([-0.3])) == "not seen"
    assert judge(signs([-0.05, -0.04, -0.06]) + signs([0.3])) == "not seen"


def periods(drop, power=1.0, taus=(1, 2, 4, 8), **more):
    return [arm(seed, 0.9 - drop * at + 0.001 * seed, sent=1000 / tau**power, evidence="periods", way="averaging",
                tau=tau, **more) for seed in range(3) for at, tau in enumerate(taus)]


def test_periods_want_bytes_as_one_over_tau_and_less_accuracy(judged):
    def judge(entries):
        return judged(rules_talking.period_costs, entries, select={}, periods=[1, 2, 4, 8], seeds=3, error=0.01,
                      correlation=-0.7)

    assert judge(periods(0.01)) == "holds" and judge(periods(-0.01)) == "contradicted"
    assert judge(periods(0.01, power=0.5)) == judge(periods(0.01, power=1.1)) == "contradicted"
    assert judge(periods(0.01, taus=(1, 2, 8))) == "not attempted"
    for sent in (math.nan, 130.0):  # 1000 / 8 is right
        bad = arm(1, 0.871, sent=sent, evidence="periods", way="averaging", tau=8)
        assert judge([*periods(0.01), bad]) == "contradicted"
    assert judge([*periods(0.01), arm(1, 0.95, sent=125, evidence="periods", way="averaging", tau=8)]) == "not seen"


def test_the_elastic_centre_is_compared_on_one_grid(judged):
    def judge(gap, **more):
        entries = [arm(seed, 0.8 + (way == "elastic") * gap, evidence="periods", way=way, tau=tau,
                       **(more if way == "elastic" else {}))
                   for seed in range(3) for way in ("elastic", "averaging") for tau in (16, 32)]
        return judged(rules_talking.elastic_tolerates, entries, select={}, periods=[16, 32], seeds=3)

    assert judge(0.02) == "holds" and judge(-0.02) == "contradicted" and judge(0.0) == "not seen"
    assert judge(0.02, rates=(0.1, 0.2, 0.3)) == judge(math.nan) == "not attempted"


def test_what_was_worse_is_called_so(made):
    for gap, worse in ((-0.02, True), (0.02, False), (0.0, False)):
        runs = made([arm(seed, 0.8 + (way == "elastic") * gap, evidence="periods", way=way, tau=16)
                     for seed in range(3) for way in ("elastic", "averaging")])
        found = rules_talking.elastic_tolerates(runs, select={}, periods=[16], seeds=3)
        assert ("was worse here" in found.evidence) == worse


def test_the_text_says_whether_the_elastic_centre_was_worse():
    def told(gap, seeds=3, tau=16):
        rows = [{"case": way, "tau": tau, "test": 0.8 + (way == "elastic") * gap, "seeds": seeds}
                for way in ("elastic", "averaging")]
        return talking_tables.elastic_against_averaging({"yours": pd.DataFrame(rows)})

    assert "yours (3 seeds) 2.0 points below" in told(-0.02)
    assert "yours (1 seed) 1.5 points above" in told(0.015, 1)
    assert told(0.1, tau=8) == "No period of 16 or more was run."


def test_places_are_judged_in_every_run_and_for_every_number_of_workers(judged):
    def judge(*tables):
        entries = [([("ratio", value, size) for size, value in table.items()], {"evidence": "supports", "seed": seed})
                   for seed, table in enumerate(tables)]
        return judged(rules_talking.supports_overlap, entries, select={}, ranks=[4, 16], ratio=0.9, seeds=2)

    good = {4: 0.8, 16: 0.6}
    assert judge(good, good) == judge(good, good, good) == "holds"
    assert judge(good, {4: 0.95, 16: 0.6}, good) == "not seen"
    assert judge(good, good, {4: 1.02, 16: 0.6}) == judge(good, {4: math.nan, 16: 0.6}) == "contradicted"
    assert judge(good, {4: 0.8}) == judge(good) == "not attempted"


def lies(seeds=2, **changed):
    """Losses of every rule and lie, those of honest ranks 1; changed: rule_lie=loss of the last seed."""
    usual = {"mean": 3.0, "median": 1.1, "krum": 1.2}
    for seed, rule, lie in itertools.product(range(seeds), usual, ("honest", "noise", "nan")):
        loss = 1.0 if lie == "honest" else usual[rule]
        loss = changed.get(f"{rule}_{lie}", loss) if seed == seeds - 1 else loss
        yield [("loss", loss)], {"evidence": "liar", "rule": rule, "lie": lie, "seed": seed}


def test_a_liar_has_to_break_the_mean_and_nothing_else(judged):
    def judge(entries):
        return judged(rules_talking.survives_a_liar, [*entries], lies=["noise", "nan"], broken=2.0, near=1.25, seeds=2)

    assert judge(lies()) == judge(lies(mean_nan=math.inf)) == "holds"
    assert judge(lies(median_noise=1.6)) == judge(lies(mean_noise=1.6)) == "not seen"
    assert judge(lies(median_noise=2.5)) == judge(lies(mean_noise=1.1)) == "contradicted"
    assert judge(lies(krum_nan=math.nan)) == judge(lies(mean_honest=math.nan)) == "contradicted"
    assert judge(lies(seeds=1)) == judge(entry for entry in lies() if entry[1]["lie"] != "nan") == "not attempted"
    again = [([("loss", 2.5)], {"evidence": "liar", "rule": "krum", "lie": "nan", "seed": 0})]
    assert judge([*lies(), *again]) == judge([*again, *lies()]) == "contradicted"


WAYS = ["dense", "1-bit", "gossip"]


def link(point, says, took, ways=WAYS):
    rows = [("predicted", value) for value in says] + [("measured", value) for value in took]
    return rows, {"evidence": "throttled", "bandwidth": point, "ways": ways}


def test_links_have_to_turn_the_order_round(judged):
    def judge(*entries):
        return judged(rules_talking.links_as_predicted, entries, points=[1.0, 2.0], ways=WAYS, level=0.25)

    slow, fast = link(1.0, [9, 3, 2], [8, 4, 3]), link(2.0, [1, 3, 2], [1.5, 3.5, 2])
    assert judge(slow, fast) == judge(slow, link(2.0, [1, 3, 1.2], [1.5, 3, 1])) == "holds"  # 1.2 is not set apart
    assert judge(slow, link(2.0, [1, 3, 2], [1.5, 3, 1.4])) == "not seen"
    assert judge(slow, link(2.0, [3, 1, 2], [1, 3, 2])) == "not seen"  # the model is wrong, the statement is not
    assert judge(slow, fast, link(2.0, [1, 3, 2], [3, 1, 2])) == judge(link(1.0, [9, 3, 2], [3, 9, 2]), fast)
    for bad in ([3, 1, 2], [1, math.nan, 2], [1, math.inf, 2], [0, 3, 2]):
        assert judge(slow, fast, link(2.0, [1, 3, 2], bad)) == "contradicted"
    assert judge(slow, fast, link(2.0, [math.nan, 3, 2], [1, 3, 2])) == "contradicted"
    assert judge(slow) == judge(slow, link(2.0, [1, 3], [1, 3], WAYS[:2])) == "not attempted"
    assert judge(slow, fast, link(2.0, [1, 3, 2], [1, 3])) == "not attempted"


def test_1_bit_and_dense_are_told_as_predicted_and_as_measured(made):
    runs = made([link(4e6, [0.009, 0.003, 0.002], [0.008, 0.004, 0.003]),
                 link(1e9, [0.001, 0.003, 0.002], [0.0015, 0.0035, 0.002])])
    told = rules_talking.links_as_predicted(runs, points=[4e6, 1e9], ways=WAYS, level=0.25).evidence
    assert "4 MB/s: 1-bit against dense predicted 3 to 9 ms, measured 4 to 8" in told
    assert "1000 MB/s: 1-bit against dense predicted 3 to 1 ms, measured 3.5 to 1.5" in told


def test_the_eigenvalue_of_the_ring(judged):
    def judge(*entries, ranks=(4, 8)):
        return judged(rules_talking_counts.decays_as_eigenvalue, entries, ranks=list(ranks), error=1e-3)

    config = {"evidence": "decay", "graph": "ring"}
    ring = [("decay", 1 / 3 + 2 / 3 * math.cos(2 * math.pi / size), size) for size in (4, 8)], config
    assert judge(ring) == "holds" and judge(ring, ranks=[16]) == "not attempted"
    for value in (math.nan, 0.79, 0.82):
        assert judge(ring, ([("decay", value, 8)], {**config, "real": True}), ring) == "contradicted"


def test_the_one_peer_graph_leaves_nothing(judged):
    def judge(*values):
        entries = [([("left", value, size)], {"evidence": "mixes"}) for size, value in values]
        return judged(rules_talking_counts.mixes_exactly, entries, ranks=[2, 4], bound=1e-12)

    good = [(2, 1e-17), (4, 0.0)]
    assert judge(*good) == "holds" and judge(*good[:1]) == "not attempted"
    assert judge((4, 1e-3), *good) == judge(*good, (4, math.nan)) == "contradicted"


def real(**changed):
    parts = {"error": [1e-7, 0.0], "moved": [0.05, 0.05], "sent": [5.0, 5.0], "sent_alone": [5.0], **changed}
    rows = [(name, value) for name, values in parts.items() for value in values]
    return rows, {"evidence": "real", "method": "x", "ranks": 2}


def test_real_ranks_have_to_move_and_to_agree(judged):
    def judge(*entries, methods=("x",), rounding=None):
        return judged(rules_talking_counts.ranks_say_the_same, entries, methods=list(methods), error=1e-5,
                      rounding=rounding or {}, moved=0.01)

    assert judge(real()) == "holds" and judge(real(), methods=["x", "y"]) == "not attempted"
    for bad in ({"error": [1e-4, 0.0]}, {"error": [math.nan, 0.0]}, {"moved": [0.0, 0.0]}, {"moved": [0.05, math.nan]},
                {"moved": [0.05, math.inf]}, {"sent": [5.0, 6.0]}, {"sent": [0.0, 0.0], "sent_alone": [0.0]}):
        assert judge(real(), real(**bad), real()) == "contradicted", bad
    assert judge(real(error=[0.0])) == judge(real(moved=[])) == judge(real(sent_alone=[])) == "not attempted"
    half = real(error=[2e-4, 2e-4])
    assert judge(half) == "contradicted" and judge(half, rounding={"x": 1e-3}) == "holds"
    assert judge(real(error=[2e-3, 0.0]), rounding={"x": 1e-3}) == "contradicted"


def test_averaging_every_step_is_judged_on_every_rank(judged):
    def judge(*tables, ranks=2):
        entries = [([(name, value, rank) for name, values in (("synchronous_error", errors), ("moved", moved))
                     for rank, value in enumerate(values)], {"evidence": "equal", "ranks": ranks})
                   for errors, moved in tables]
        return judged(rules_talking_counts.averaging_is_synchronous, entries, least=2, bound=1e-7, moved=0.01)

    good = [1e-16, 0.0], [0.1, 0.1]
    assert judge(good) == "holds" and judge() == judge(good, ranks=3) == "not attempted"
    assert judge(([0.0], [0.1]), ranks=1) == "not attempted"
    for bad in (([0.0, 1e-3], [0.1, 0.1]), ([math.nan, 0.0], [0.1, 0.1]), ([0.0, 0.0], [0.0, 0.1]),
                ([0.0, 0.0], [0.1, math.nan])):
        assert judge(good, bad, good) == "contradicted"


def sums(density=0.03, count=10_000, **changed):
    """What sums of sparse arrays should count; changed: union_8=..., sparse_8=..., switched_8=..."""
    rows = []
    for size in (8, 16, 32, 64):
        unions = [1 - (1 - density) ** (2**turn) for turn in range(size.bit_length())]
        usual = {"union": unions[-1], "sparse": sum(1 + 2 * count * part for part in unions[:-1]),
                 "switched": sum(1 + count * min(1, 2 * part) for part in unions[:-1])}
        rows += [(name, changed.get(f"{name}_{size}", value), size) for name, value in usual.items()]
    return rows, {"evidence": "union", "density": density, "words": count}


def test_sparse_sums_are_judged_by_all_of_their_words(judged):
    def judge(*entries, ranks=(8, 16, 32, 64)):
        return judged(rules_talking_counts.union_as_formula, entries, ranks=list(ranks), errors=4.0, words=0.02)

    assert judge(sums()) == "holds" and judge(sums(), ranks=[128]) == judge() == "not attempted"
    assert judge(sums(density=0.001)) == "not attempted"  # P* is beyond all ranks
    right = {(name, size): value for name, value, size in sums()[0]}
    for bad in ({"union_16": 0.45}, {"union_32": 0.49}, {"union_8": math.nan}, {"sparse_8": math.nan},
                {"sparse_16": 0.9 * right["sparse", 16]}, {"switched_64": right["sparse", 64]},
                {"switched_32": 1.1 * right["switched", 32]}):
        assert judge(sums(), sums(**bad), sums()) == "contradicted", bad


def test_bias_is_found_in_what_rounds_down(judged):
    vector, generator = torch.randn(2000, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    cases = {}
    for name, keep in (("right", 1.0), ("down", 0.9)):
        heard = torch.stack([keep * vector * (torch.rand(2000, generator=generator) < 0.5) * 2 for _ in range(200)])
        each = (heard - vector).square().sum(1).mean()
        bias = float((heard.mean(0) - vector).square().sum() / (each / 200))
        cases[name] = [("bias", bias), ("variance", float(each / vector.square().sum()))]

    def judge(*tables, compressor="q"):
        config = {"evidence": "moments", "compressor": compressor, "levels": 1, "draws": 200}
        entries = [(rows, config) for rows in tables]
        return judged(rules_talking_counts.unbiased_within, entries, compressor=compressor, levels=[1], bias=1.25,
                      draws=100)

    assert judge(cases["right"]) == "holds"
    assert judge(cases["right"], cases["down"], cases["right"]) == "contradicted"
    for bias, variance in ((1.0, math.nan), (math.nan, 1.0), (1.0, math.inf)):
        assert judge(cases["right"], [("bias", bias), ("variance", variance)]) == "contradicted"
    bound = [("bias", 1.0), ("variance", 2.0)]
    assert judge(bound, compressor="qsgd") == "not attempted"
    assert judge([*bound, ("bound", 3.0)], compressor="qsgd") == "holds"
    assert judge([*bound, ("bound", 1.0)], compressor="qsgd") == "contradicted"


def test_the_toy_stands_still_without_feedback_only(judged):
    def judge(*tables):
        entries = [([("without", value) for value in without] + [("with", value) for value in fed], {"evidence": "toy"})
                   for without, fed in tables]
        return judged(rules_talking_counts.toy_needs_feedback, entries, still=1e-3, moved=0.1, rates=2)

    good = [1.0, 1.0], [0.3, 0.05]
    assert judge(good) == "holds" and judge(([1.0], [0.05])) == judge() == "not attempted"
    assert judge(([1.0], [0.05]), ([1.0], [0.05])) == "not attempted"  # two runs of one rate are not two rates
    for bad in (([1.0, 0.9], [0.3, 0.05]), ([1.0, 1.1], [0.3, 0.05]), ([1.0, 1.0], [0.3, 0.2]),
                ([1.0, math.nan], [0.3, 0.05]), ([1.0, 1.0], [math.nan, 0.05])):
        assert judge(good, bad, good) == "contradicted"


def test_factors_are_judged_on_every_rank(judged):
    def case(batch, error=0.0, factors=None, ranks=2):
        counted = factors or [20 * batch] * ranks
        rows = [("error", error)] * ranks + [("matrices", 100.0)] * ranks + [("factors", value) for value in counted]
        return rows, {"evidence": "factors", "batch": batch, "inputs": 10, "outputs": 10, "ranks": 2}

    def judge(*entries):
        return judged(rules_talking_counts.factors_pay_as_formula, entries, error=1e-9)

    assert judge(case(4), case(6)) == "holds" and judge(case(4)) == judge(case(4), case(6, ranks=1)) == "not attempted"
    for bad in (case(4, error=1e-3), case(4, error=math.nan), case(4, factors=[80, 120]),
                case(6, factors=[math.nan] * 2)):
        assert judge(case(4), bad, case(6)) == "contradicted"


def test_every_claim_of_the_lab_has_a_rule_and_no_remembered_figure():
    found = {claim.id: claim for claim in claims.load("06")}
    assert set(found) >= {f"S{number}" for number in range(34, 45)} and all(claim.rule for claim in found.values())
    assert found["S43"].grade == "remembered" and not found["S43"].literature


def test_the_tuned_table_takes_the_mean_over_seeds(made):
    rows = [("validation", 0.5), ("validation", 0.9), ("test", 0.4), ("test", 0.8), ("reached", math.inf),
            ("reached", 8), ("spread", 0), ("spread", 0), ("sent", 640.0)]
    configs = [{"evidence": "compressed", "method": "dense", "rates": [1, 2], "seed": seed, "steps": 64}
               for seed in (0, 1)]
    table = talking_tables.best(made([(rows, config) for config in configs]), "compressed")
    row = table.iloc[0]
    assert (row["rate"], row["test"], row["reached"], row["bytes a step"], row["seeds"]) == (2, 0.8, 8, 10, 2)
    assert np.isclose(row["low"], 0.8) and row["at end"]
