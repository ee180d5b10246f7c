"""Saying less: workers in one process against autograd, formulas and real ranks; the rules of lab 06; the systems."""

import ast
import math

import numpy as np
import pytest
import torch
from labs import phase, rules_talking, rules_talking_counts, talking, talking_ranks, talking_study

from labkit import claims
from labkit.errors import RequestError
from labkit.lab import course
from labkit.paths import root
from labkit.runs import Header, Store
from labkit.training.ranks import run_ranks


@pytest.fixture(scope="module")
def digits():
    return talking.Digits.load(1024)


def test_the_gradient_by_hand_is_that_of_autograd(digits):
    nets, rows = talking.Nets(3, 5, torch.float64), talking.draws(1024, 3, 1, 8, 0)[0]
    x, y = digits.train[0][rows].double(), digits.train[1][rows]
    for part in nets.weights:
        part.add_(0.01 * torch.randn(part.shape, generator=torch.Generator().manual_seed(1))).requires_grad_()
    loss = sum(map(torch.nn.functional.cross_entropy, nets.forward(x)[1], y))
    right = torch.autograd.grad(loss, nets.weights)
    with torch.no_grad():
        for mine, other in zip(nets.gradient(x, y), right, strict=True):
            torch.testing.assert_close(mine, other)


def test_workers_draw_from_shares_that_do_not_overlap():
    rows = talking.draws(1024, 4, 50, 16, 0)
    assert all((rows[:, worker] % 4 == worker).all() for worker in range(4)) and rows.max() < 1024


def test_dense_equals_plain_sgd_on_the_union_of_batches(digits):
    run = talking.compressed(digits, talking.METHODS["dense"], [0.1], workers=4, steps=5)
    nets, rows = talking.Nets(1, 0), talking.draws(1024, 4, 5, 16, 0)
    for step in range(5):
        at = rows[step].flatten()[None]
        gradient = nets.gradient(digits.train[0][at], digits.train[1][at])
        nets.weights = [part - 0.1 * own for part, own in zip(nets.weights, gradient, strict=True)]
    for mine, other in zip(run.weights, nets.weights, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)


def test_a_period_of_one_is_synchronous_and_sums_of_gradients_are_averages_of_parameters(digits):
    dense = talking.compressed(digits, talking.METHODS["dense"], [0.1], steps=8)
    same = talking.averaged(digits, "averaging", 1, [0.1], steps=8)
    local = talking.compressed(digits, talking.Method("local", tau=4), [0.1], steps=8)
    mean = talking.averaged(digits, "averaging", 4, [0.1], steps=8)
    for one, other in ((dense, same), (local, mean)):
        assert one.sent == other.sent
        for mine, theirs in zip(one.weights, other.weights, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert local.sent == dense.sent / 4


@pytest.mark.parametrize("label, wire, closed", [
    ("dense", 4 * 6634, True), ("fp16", 2 * 6634, True),
    ("1-bit", sum(-(-n // 8) + 8 * rows for n, rows in ((6272, 32), (32, 1), (320, 10), (10, 1))), False),
    ("TernGrad", sum(-(-n // 5) + 4 for n in (6272, 32, 320, 10)), False),
    ("top-k 1 %", 8 * (63 + 1 + 3 + 1), False),
])  # fmt: skip
def test_bytes_are_those_of_the_wire_times_who_hears_it(digits, label, wire, closed):
    for workers in (2, 4):
        run = talking.compressed(digits, talking.METHODS[label], [0.1, 0.2], workers=workers, steps=2)
        assert run.sent == 2 * wire * (2 * (workers - 1) / workers if closed else workers - 1)


def test_a_rate_that_diverges_counts_as_nothing_right(digits):
    run = talking.compressed(digits, talking.METHODS["top-k 1 %"], [0.1, 1e6], steps=16)
    assert run.validation[0] > 0.2 and run.validation[1] < 0.2
    with pytest.raises(RequestError, match="multiple of tau"):
        talking.compressed(digits, talking.Method("local", tau=3), [0.1], steps=8)


def test_workers_in_one_process_equal_labkits_optimizers_on_real_ranks(digits):
    for way in ("averaging", "ring"):  # after 5 steps averaging takes one more mean, which is judged
        mean = sum(run_ranks(talking_ranks.mixed, 2, way, 2, 0.1, 5)) / 2
        alone = (talking.gossiped(digits, way, [0.1], workers=2, steps=5, batch=16) if way == "ring" else
                 talking.averaged(digits, way, 2, [0.1], workers=2, steps=5)).weights
        torch.testing.assert_close(mean, torch.cat([part.flatten() for part in alone]), atol=1e-6, rtol=1e-5)
    centre = run_ranks(talking_ranks.mixed, 2, "elastic", 2, 0.1, 7)  # pulled after 2, 4 and 6 steps
    alone = talking.averaged(digits, "elastic", 2, [0.1], workers=2, steps=6).weights
    torch.testing.assert_close(centre[0], torch.cat([part.flatten() for part in alone]), atol=1e-6, rtol=1e-5)


def test_the_map_is_the_cost_model():
    job = phase.Job(words=1_000_000, rows=1000, compute=0.1, sigma=0.0, alpha=0.0, encode=0.0)
    found = phase.step_seconds(4, 1e8, job)
    assert found["dense"] == pytest.approx(0.1 + 1.5 * 4e6 / 1e8)
    assert found["local SGD, tau 16"] == pytest.approx(0.1 + 1.5 * 4e6 / 1e8 / 16)
    assert found["top-k 1 %"] == pytest.approx(0.1 + 3 * 8e4 / 1e8)
    assert found["gossip, one-peer"] == pytest.approx(0.1 + 4e6 / 1e8)
    slow, fast = phase.diagram(phase.Job(), {"local SGD, tau 16": math.inf}, (4,), (1e6, 1e12)).argmin(0)[0]
    assert list(phase.WAYS)[slow] == "top-k 1 %" and list(phase.WAYS)[fast] in ("dense", "gossip, one-peer")


def made(tmp_path, entries):
    """Runs of evidence: (rows, config) each."""
    store, runs = Store(tmp_path), []
    for rows, config in entries:
        with store.write(Header("06", config, hardware={}, software={}, claims={})) as writer:
            for metric, value, *samples in rows:
                writer.metric(metric, value, samples=samples[0] if samples else 0)
        runs.append(writer.run)
    return runs


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


def test_feedback_needs_seeds_one_grid_and_a_rate_inside(tmp_path):
    judge = rules_talking.feedback_helps
    gaps = [0.05, 0.04, 0.06]
    assert judge(made(tmp_path / "a", signs(gaps)), select={}, seeds=3).outcome == "holds"
    assert judge(made(tmp_path / "b", signs([-g for g in gaps])), select={}, seeds=3).outcome == "contradicted"
    assert judge(made(tmp_path / "c", signs([0.05, -0.05, 0.01])), select={}, seeds=3).outcome == "not seen"
    assert judge(made(tmp_path / "d", signs(gaps)), select={}, seeds=4).outcome == "not attempted"
    assert judge(made(tmp_path / "e", signs(gaps, best=2)), select={}, seeds=3).outcome == "not attempted"
    twice = signs(gaps[:1]) + signs(gaps[:1], steps=1) + signs(gaps[:1], steps=2)
    assert judge(made(tmp_path / "f", twice), select={}, seeds=3).outcome == "not attempted"


def test_periods_want_bytes_as_one_over_tau_and_less_accuracy(tmp_path):
    def case(name, drop, power=1.0):
        runs = [arm(seed, 0.9 - drop * at + 0.001 * seed, sent=1000 / tau**power, evidence="periods", way="averaging",
                    tau=tau) for seed in range(3) for at, tau in enumerate((1, 2, 4, 8))]
        return rules_talking.period_costs(made(tmp_path / name, runs), select={}, periods=[1, 2, 4, 8], seeds=3,
                                          slope=0.02)

    assert case("a", 0.01).outcome == "holds" and case("b", -0.01).outcome == "contradicted"
    assert case("c", 0.01, power=0.5).outcome == "contradicted"


def test_identities_reject_nan_and_planted_mistakes(tmp_path):
    ring = [("decay", 1 / 3 + 2 / 3 * math.cos(2 * math.pi / size), size) for size in (4, 8)]
    config = {"evidence": "decay", "graph": "ring"}
    judge = rules_talking_counts.decays_as_eigenvalue
    assert judge(made(tmp_path / "a", [(ring, config)]), ranks=[4, 8], error=1e-3).outcome == "holds"
    for name, value in (("b", math.nan), ("c", 0.79)):
        runs = made(tmp_path / name, [(ring, config), ([("decay", value, 8)], {**config, "real": True})])
        assert judge(runs, ranks=[4, 8], error=1e-3).outcome == "contradicted"
    assert judge(made(tmp_path / "d", [(ring, config)]), ranks=[16], error=1e-3).outcome == "not attempted"
    real = [("error", 0.0), ("sent", 5.0), ("sent", 5.0), ("sent_alone", 5.0)]
    same = rules_talking_counts.ranks_say_the_same
    for rows, outcome in ((real, "holds"), ([*real, ("sent", 6.0)], "contradicted"),
                          ([*real, ("error", math.nan)], "contradicted"), (real[:1], "not attempted")):
        folder = tmp_path / outcome / str(len(rows)) / str(rows[-1][0])
        runs = made(folder, [(rows, {"evidence": "real", "method": "x"})])
        assert same(runs, methods=["x"], error=1e-3).outcome == outcome


def test_bias_is_found_in_what_rounds_down(tmp_path):
    vector, generator = torch.randn(2000, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    for name, keep, outcome in (("right", 1.0, "holds"), ("down", 0.9, "contradicted")):
        heard = torch.stack([keep * vector * (torch.rand(2000, generator=generator) < 0.5) * 2 for _ in range(200)])
        each = (heard - vector).square().sum(1).mean()
        bias = float((heard.mean(0) - vector).square().sum() / (each / 200))
        rows = [("bias", bias), ("variance", float(each / vector.square().sum()))]
        runs = made(tmp_path / name, [(rows, {"evidence": "moments", "compressor": "q", "levels": 1, "draws": 200})])
        found = rules_talking_counts.unbiased_within(runs, compressor="q", levels=[1], bias=1.25, draws=100)
        assert found.outcome == outcome, found


def test_links_have_to_turn_the_order_round(tmp_path):
    ways = ["dense", "1-bit", "top-k 1 %"]

    def judged(name, slow, fast):
        runs = [([("predicted", v) for v in says] + [("measured", v) for v in took],
                 {"evidence": "throttled", "bandwidth": point, "ways": ways})
                for point, (says, took) in ((1.0, slow), (2.0, fast))]
        return rules_talking.links_as_predicted(made(tmp_path / name, runs), points=[1.0, 2.0], level=0.25).outcome

    slow, fast = ([9, 3, 2], [9, 3, 2]), ([1, 3, 2], [1, 3, 2])
    assert judged("a", slow, fast) == "holds" and judged("b", slow, slow) == "not attempted"
    assert judged("c", slow, (fast[0], [3, 1, 2])) == "not seen"


def test_every_claim_of_the_lab_has_a_rule_and_no_remembered_figure():
    found = {claim.id: claim for claim in claims.load("06")}
    assert set(found) >= {f"S{number}" for number in range(34, 45)} and all(claim.rule for claim in found.values())
    assert found["S43"].grade == "remembered" and not found["S43"].literature


def test_every_system_is_shown_by_something_that_exists():
    table, numbers = talking_study.systems(), course()
    assert table["system"].is_unique and len(table) >= 90
    assert set(table["category"]) <= {"operator", "network", "training"}
    assert set(table["shown"]) <= {"run", "simulated", "cost model", "table"} and set(table["lab"]) <= set(numbers)
    for row in table.itertuples():
        known = row.reference in ("not in the survey", "not numbered here")
        assert known or 1 <= int(row.reference) <= 280, row.system
        module, name = row.where.split(":")
        path = root() / ("" if module.startswith("labkit.") else "notebooks") / (module.replace(".", "/") + ".py")
        names = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names |= {node.name} if hasattr(node, "name") else set()
            names |= {part.id for part in getattr(node, "targets", ()) if isinstance(part, ast.Name)}
        assert name in names, f"{row.system}: {row.where}"


def test_the_tuned_table_takes_the_mean_over_seeds(tmp_path):
    rows = [("validation", 0.5), ("validation", 0.9), ("test", 0.4), ("test", 0.8), ("reached", math.inf),
            ("reached", 8), ("spread", 0), ("spread", 0), ("sent", 640.0)]
    configs = [{"evidence": "compressed", "method": "dense", "rates": [1, 2], "seed": seed, "steps": 64}
               for seed in (0, 1)]
    table = talking_study.best(made(tmp_path, [(rows, config) for config in configs]), "compressed")
    row = table.iloc[0]
    assert (row["rate"], row["test"], row["reached"], row["bytes a step"], row["seeds"]) == (2, 0.8, 8, 10, 2)
    assert np.isclose(row["low"], 0.8) and row["at end"]
