"""Lab 05's rules: each outcome from evidence that should give it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from labs import rules_asynchronous as rules

from labkit import claims


def run(name, metric, values, samples=None, **config):
    samples = samples or [0] * len(values)
    rows = [SimpleNamespace(name=metric, value=v, samples=s) for v, s in zip(values, samples, strict=True)]
    return SimpleNamespace(config={"evidence": name, "steps": 9, **config}, rows=rows,
                           series=lambda wanted: [row for row in rows if row.name == wanted])


def test_the_edge_is_that_of_the_quadratics_textbook_values():
    assert rules.edge([0, 1, 2]) == pytest.approx([2, 1, (math.sqrt(5) - 1) / 2])


def test_edges_hold_within_the_tolerance_and_not_outside():
    delays = [0, 1, 2]
    for factor, outcome in ((1.0005, "holds"), (1.002, "contradicted")):
        found = run("edge", "edge", list(rules.edge(delays) * factor), delays, momentum=0.0)
        assert rules.edges_equal_formula([found], delays=delays, tolerance=1e-3).outcome == outcome
    assert rules.edges_equal_formula([found], delays=[0, 4], tolerance=1e-3).outcome == "not attempted"


def cliffs(edges, seeds=2, metric="validation_accuracy", name="delayed", momentum=0.0):
    """Accuracy .9 up to an edge for each delay and .1 beyond, on octaves."""
    grids = {delay: [2.0**-n for n in range(9 if delay else 4)] for delay in edges}
    return [run(name, metric, [0.9 if rate <= edge else 0.1 for rate in grids[delay]], rates=grids[delay], delay=delay,
                seed=seed, momentum=momentum) for delay, edge in edges.items() for seed in range(seeds)]


def test_the_usable_rate_falls_like_one_over_the_delay_or_less():
    ask = {"setup": {"steps": 9}, "momentum": 0.0, "delays": [2, 4, 8], "level": 0.88}
    ask |= {"low": -1.25, "high": -0.75, "seeds": 2}
    for edges, outcome in (({2: 1 / 4, 4: 1 / 8, 8: 1 / 16}, "holds"),
                           ({2: 1 / 4, 4: 1 / 4, 8: 1 / 4}, "contradicted"),
                           ({2: 1 / 4, 4: 1 / 16, 8: 1 / 64}, "not seen"),
                           ({2: 1, 4: 1 / 2, 8: 1 / 4}, "not attempted"),
                           ({2: 1 / 4, 4: 1 / 8, 8: 0.0}, "not attempted")):
        assert rules.rate_falls_with_delay(cliffs(edges), **ask).outcome == outcome
    assert rules.rate_falls_with_delay(cliffs({2: 0.25, 4: 0.1, 8: 0.05}, 1), **ask).outcome == "not attempted"


def test_dividing_rescues_only_where_the_kept_rate_fails():
    ask = {"setup": {"steps": 9}, "delays": [4], "margin": 0.05, "images": 452, "seeds": 2}

    def both(edges):
        return cliffs(edges) + cliffs(edges, metric="test_accuracy")

    assert rules.dividing_rescues(both({0: 1 / 4, 4: 1 / 16}), **ask).outcome == "holds"
    found = rules.dividing_rescues(both({0: 1 / 4, 4: 1 / 8}), **ask)  # of the flat rates 1/4 breaks and 1/8 does not
    assert found.outcome == "partly" and found.fraction == 0.5
    assert rules.dividing_rescues(both({0: 1 / 4, 4: 1 / 4}), **ask).outcome == "contradicted"
    assert rules.dividing_rescues(both({4: 1 / 4}), **ask).outcome == "not attempted"


def test_runs_of_another_setup_do_not_count():
    config = {"rates": [1.0, 0.5], "delay": 2, "seed": 0, "momentum": 0.0, "steps": 8}
    others = [run("delayed", "validation_accuracy", [0.1, 0.9], **config)]
    ask = {"momentum": 0.0, "delays": [2], "level": 0.88, "low": -2, "high": 0, "seeds": 1}
    assert rules.rate_falls_with_delay(others, setup={"steps": 9}, **ask).outcome == "not attempted"


def implicit(gain, spread=0.01):
    """Losses at 1 and 16 workers, with momentum .9 `gain` times those without at 16, scattered over three seeds."""
    return [run("implicit", "train_loss", [loss * (1 + spread * seed * (workers == 16)), 9.0], rates=[0.1, 0.2],
                seed=seed, workers=workers, momentum=momentum)
            for workers in (1, 16) for momentum in (0.0, 0.9) for seed in range(3)
            for loss in [0.3 * (gain if workers == 16 and momentum else 1.0)]]


@pytest.mark.parametrize("gain, outcome", [(1.5, "holds"), (0.7, "contradicted")])
def test_momentum_pays_less_where_its_relative_loss_rises(gain, outcome):
    ask = {"setup": {"steps": 9}, "workers": [1, 16], "low": 0.0, "high": 0.9, "seeds": 3}
    assert rules.momentum_pays_less(implicit(gain), **ask).outcome == outcome
    assert rules.momentum_pays_less(implicit(gain)[:6], **ask).outcome == "not attempted"


def races(constant, varied, noise=0.02):
    """Seconds of asynchronous SGD with constant and log-normal times; the barrier takes 10, the slower one 20."""
    rows = []
    for times, late in (("constant", constant), ("lognormal", varied)):
        for seed in range(3):
            for method, value in (("async", late * (1 + noise * seed)), ("sync", 20.0), ("total", 10.0)):
                rows.append(run("tta", "seconds", [math.inf, value], rates=[1.0, 0.5], workers=4, times=times,
                                method=method, seed=seed))
    return rows


def test_no_variance_no_gain_is_judged_against_the_better_barrier():
    ask = {"setup": {"steps": 9}, "workers": [4], "barrier": ["sync", "total"], "bound": 0.8, "seeds": 3}
    for late, outcome in ((12, "holds"), (5, "contradicted"), (7.9, "not seen")):
        assert rules.no_variance_no_gain(races(late, 5), **ask).outcome == outcome
    assert rules.no_variance_no_gain(races(12, 5)[:8], **ask).outcome == "not attempted"


def test_variance_gains_where_the_ratio_falls():
    ask = {"setup": {"steps": 9}, "workers": [4], "times": "lognormal", "barrier": ["sync", "total"], "seeds": 3}
    assert rules.variance_gains(races(12, 6), **ask).outcome == "holds"
    assert rules.variance_gains(races(6, 12), **ask).outcome == "contradicted"


def test_a_rate_at_which_one_seed_missed_is_out():
    found = {1.0: {0: 1.0, 1: math.inf}, 0.5: {0: 4.0, 1: 9.0}, 0.25: {0: 1.0}}
    assert rules.tuned(found, 2) == (0.5, {0: 4.0, 1: 9.0})
    assert rules.tuned({1.0: {0: math.inf, 1: 1.0}}, 2) is None


def test_an_interval_is_students():
    values = np.array([1.0, 2.0, 4.0])
    assert rules.half_width(values) == pytest.approx(4.303 * values.std(ddof=1) / math.sqrt(3))
    assert rules.half_width([1.0]) == math.inf


def test_sparse_updates_and_the_full_server():
    def lost(dense, sparse):
        rows = [SimpleNamespace(name="dense_lost", value=dense), SimpleNamespace(name="sparse_lost", value=sparse)]
        return SimpleNamespace(config={"evidence": "lost"}, series=lambda name: [r for r in rows if r.name == name])

    assert rules.sparse_loses_less([lost(0.5, 0.1)] * 2, repeats=2).outcome == "holds"
    assert rules.sparse_loses_less([lost(0.1, 0.5)] * 2, repeats=2).outcome == "contradicted"
    assert rules.sparse_loses_less([lost(0.0, 0.0)] * 2, repeats=2).outcome == "not seen"
    full = [run("server", "share_of_limit", [0.1, 0.99], shards=shards) for shards in (1, 2)]
    assert rules.server_saturates(full, shards=[1, 2], near=0.95).outcome == "holds"
    over = [run("server", "share_of_limit", [0.1, 1.01], shards=shards) for shards in (1, 2)]
    assert rules.server_saturates(over, shards=[1, 2], near=0.95).outcome == "contradicted"


def test_the_claims_of_the_lab_fit_their_rules():
    mine = [claim for claim in claims.load("05") if "05" in claim.labs]
    assert {"S26", "S27", "S28", "S29", "S30", "S31", "S32", "S33"} <= {claim.id for claim in mine}
