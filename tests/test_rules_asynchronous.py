"""Lab 05's rules about what is counted: each outcome from evidence that should give it, and none from NaN."""

import math

import pytest
from labs import rules_asynchronous as rules

from labkit import claims
from labkit.curve import Header, Row, Run


def run(name, rows, **config):
    """A run of evidence `name`; rows are (metric, value) or (metric, value, samples)."""
    rows = [Row(0, 0.0, row[2] if len(row) > 2 else 0, 0.0, row[0], row[1]) for row in rows]
    return Run(Header("05", {"evidence": name, **config}), rows=rows)


def test_the_edge_is_that_of_the_quadratics_textbook_values():
    assert rules.edge([0, 1, 2]) == pytest.approx([2, 1, (math.sqrt(5) - 1) / 2])


def edges(factor=1.0, delays=(0, 1, 2)):
    return run("edge", [("edge", float(rules.edge(delay)) * factor, delay) for delay in delays], momentum=0.0)


@pytest.mark.parametrize("factor, outcome", [(1.0005, "holds"), (1.002, "contradicted"), (0.998, "contradicted"),
                                             (math.nan, "contradicted"), (math.inf, "contradicted")])
def test_every_run_of_the_edge_is_judged(factor, outcome):
    ask = {"delays": [0, 1, 2], "tolerance": 1e-3}
    for runs in ([edges(factor)], [edges(factor), edges()], [edges(), edges(factor)]):
        assert rules.edges_equal_formula(runs, **ask).outcome == outcome
    assert rules.edges_equal_formula([edges()], **{**ask, "delays": [0, 4]}).outcome == "not attempted"


def locked(value=0.0, moved=0.5, ranks=4):
    return run("lockstep", [("difference", value), ("moved", moved)], ranks=ranks)


def equal(runs, cases=(4,)):
    return rules.each_at_most(runs, evidence="lockstep", key="ranks", cases=list(cases), most={"difference": 0.0},
                              least={"moved": 0.01}).outcome


@pytest.mark.parametrize("bad", [locked(1e-12), locked(math.nan), locked(moved=0.0), locked(moved=math.nan),
                                 locked(1.0, ranks=3)])
def test_one_bad_run_in_any_place_is_found(bad):
    assert equal([locked(), locked(ranks=3)]) == "holds"
    for runs in ([bad, locked()], [locked(), bad], [locked(), bad, locked()]):
        assert equal(runs) == "contradicted"


def test_named_cases_and_every_metric_have_to_be_there():
    assert equal([]) == equal([locked(ranks=3)]) == equal([locked()], [4, 8]) == "not attempted"
    assert equal([locked(), run("lockstep", [("difference", 0.0)], ranks=4)]) == "not attempted"


def test_cases_may_be_those_of_rows_and_runs_may_be_selected():
    ask = {"evidence": "edge", "key": "samples", "cases": [1, 2], "most": {"off": 0.1}, "select": {"momentum": 0.9}}
    right = run("edge", [("off", 0.05, 1), ("off", 0.05, 2)], momentum=0.9)
    other = run("edge", [("off", 7.0, 1)], momentum=0.0)
    assert rules.each_at_most([right, other], **ask).outcome == "holds"
    assert rules.each_at_most([run("edge", [("off", 0.05, 1)], momentum=0.9)], **ask).outcome == "not attempted"


def gaps(one=(1, 3), other=(1, 3), more=()):
    runs = [run(name, [("gap", 0.0), ("gap", gap)], bound=bound)
            for name, both in (("real gap", one), ("simulated gap", other))
            for bound, gap in zip((1, 3), both, strict=True)]
    return [*runs, *more]


def test_gaps_stay_within_their_bound_in_every_run_of_both_kinds_and_come_up_to_it():
    ask = {"evidences": ["real gap", "simulated gap"], "bounds": [1, 3]}
    assert rules.bounds_hold(gaps(), **ask).outcome == "holds"
    for bad in ((2, 3), (1, 4), (1, math.nan), (math.inf, 3)):
        assert rules.bounds_hold(gaps(one=bad), **ask).outcome == "contradicted"
        assert rules.bounds_hold(gaps(other=bad), **ask).outcome == "contradicted"
    late = run("real gap", [("gap", 4)], bound=3)
    assert rules.bounds_hold(gaps(more=[late]), **ask).outcome == "contradicted"
    assert rules.bounds_hold([late, *gaps()], **ask).outcome == "contradicted"
    silent = run("real gap", [], bound=1)
    for lame in (gaps(one=(1, 2)), gaps(other=(0, 3)), gaps()[:2], gaps()[:3], gaps(more=[silent])):
        assert rules.bounds_hold(lame, **ask).outcome == "not attempted"


def lost(dense, sparse, turn):
    return run("lost", [("dense_lost", dense), ("sparse_lost", sparse)], turn=turn, dense=256, sparse=4)


def test_sparse_updates_lose_less_in_each_repetition_or_it_is_not_said():
    def outcome(*pairs, turns=(0, 1, 2), repeats=2):
        runs = [lost(*pair, turn) for pair, turn in zip(pairs, turns, strict=False)]
        return rules.sparse_loses_less(runs, dense=256, sparse=4, repeats=repeats).outcome

    assert outcome((0.5, 0.1), (0.4, 0.1)) == "holds"
    assert outcome((0.1, 0.5), (0.1, 0.4)) == "contradicted"
    assert outcome((0.0, 0.0), (0.0, 0.0)) == "not seen"
    for pairs in (((0.1, 0.5), (0.5, 0.1), (0.5, 0.1)), ((0.5, 0.1), (0.5, 0.1), (0.1, 0.5))):
        assert outcome(*pairs) == outcome(*pairs, turns=(0, 1, 1)) == "not seen"
    assert outcome((0.5, 0.1), (math.nan, 0.1)) == outcome((0.5, 0.1), (0.5, -0.1)) == "not attempted"
    assert outcome((0.5, 0.1), (0.4, 0.1), turns=(0, 0)) == "not attempted"  # one repetition, seen twice
    other = run("lost", [("dense_lost", 0.5), ("sparse_lost", 0.1)], turn=1, dense=256, sparse=16)
    ask = {"dense": 256, "sparse": 4, "repeats": 2}
    assert rules.sparse_loses_less([lost(0.5, 0.1, 0), other], **ask).outcome == "not attempted"


def served(shards, most=0.99, low=0.1):
    return run("server", [("share_of_limit", low, 1), ("share_of_limit", most, 128)], shards=shards)


@pytest.mark.parametrize("bad", [served(1, 1.01), served(1, 0.9), served(2, math.nan), served(2, low=1.5),
                                 served(1, low=math.nan), served(4, 2.0)])
def test_no_run_of_the_server_may_pass_the_limit_or_stay_far_below_it(bad):
    ask = {"shards": [1, 2], "workers": 128, "near": 0.95}
    fine = [served(1), served(2)]
    assert rules.server_saturates(fine, **ask).outcome == "holds"
    for runs in ([bad, *fine], [*fine, bad]):
        assert rules.server_saturates(runs, **ask).outcome == "contradicted"
    few = run("server", [("share_of_limit", 0.99, 64)], shards=2)
    assert rules.server_saturates([served(1)], **ask).outcome == "not attempted"
    assert rules.server_saturates([served(1), few], **ask).outcome == "not attempted"


def test_the_claims_of_the_lab_fit_their_rules_and_those_seen_at_one_scale_say_so():
    mine = [claim for claim in claims.load("05") if "05" in claim.labs]
    assert {"S26", "S27", "S28", "S29", "S30", "S31", "S32", "S33"} <= {claim.id for claim in mine}
    assert all(claim.scale_gap for claim in mine if claim.about in ("accuracy", "waiting"))
    assert not any(claim.rule["name"] == "at_most" for claim in mine)  # it names no cases
