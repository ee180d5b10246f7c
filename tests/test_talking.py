"""Saying less: workers in one process against autograd, formulas and real ranks."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from labs import phase, talking, talking_arms, talking_ranks

from labkit.errors import RequestError
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
    for label in ("top-k 1 %", "QSGD 4 levels", "DGC 1 %", "PowerSGD rank 1"):  # an arm that is lost is counted on
        sent = [talking.compressed(digits, talking.METHODS[label], rates, steps=10).sent for rates in ([0.1], [1e6])]
        assert sent[0] == sent[1] > 0
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


def test_powersgd_is_torchs_own(digits):
    """The hook of torch under DDP on real ranks, four exchanges after the two whole ones."""
    alone = talking.compressed(digits, talking.METHODS["PowerSGD rank 1"], [0.25], workers=2, steps=6)
    vector = torch.cat([part.flatten() for part in alone.weights])
    for report in run_ranks(talking_ranks.trained, 2, "PowerSGD rank 1", 0.25, 6):
        assert report["moved"] > 0.05 and (report["weights"] - vector).abs().max() < 1e-6
        words = 2 * 6634 + 4 * (32 + 196 + 32 + 10 + 32 + 10)
        assert report["sent"] == alone.sent == 4 * words  # 2 (P-1) / P is 1
    whole = talking.Method("whole", "powersgd", {"start": 6})
    away = talking.compressed(digits, whole, [0.25], workers=2, steps=6).weights
    assert (torch.cat([part.flatten() for part in away]) - vector).abs().max() > 1e-3


def test_powersgd_keeps_what_is_left_and_is_exact_at_full_rank():
    gradients = [torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(at)) for at in range(5)]
    low, full = (talking_arms.arm("powersgd", 3, [(6, 5)], rank=rank, start=0) for rank in (2, 100))
    heard = []
    for each in gradients:
        heard.append(low.mean(0, each))
        torch.testing.assert_close(full.mean(0, each), each.mean(0))
        assert np.linalg.matrix_rank(heard[-1].numpy(), tol=1e-4) == 2
        low.next()
    torch.testing.assert_close(sum(heard) + low.rest[0].mean(0), sum(each.mean(0) for each in gradients))
    assert low.payload == 5 * 4 * 2 * (6 + 5) and full.payload == 5 * 4 * 30
    for options, words in (({"rank": 0}, "from 1 on"), ({"start": 0.5}, "whole number"), ({"ran": 1}, "rank, start")):
        with pytest.raises(RequestError, match=words):
            talking_arms.arm("powersgd", 3, [(6, 5)], **options)


def test_the_map_is_the_cost_model():
    free = {"1-bit": (0.0, 0.0), "top-k 1 %": (0.0, 0.0)}
    job = phase.Job(words=1_000_000, rows=1000, compute=0.1, sigma=0.0, alpha=0.0, encode=free)
    found = phase.step_seconds(4, 1e8, job)
    assert found["dense"] == pytest.approx(0.1 + 1.5 * 4e6 / 1e8)
    assert found["local SGD, tau 16"] == pytest.approx(0.1 + 1.5 * 4e6 / 1e8 / 16)
    assert found["top-k 1 %"] == pytest.approx(0.1 + 3 * 8e4 / 1e8)
    assert found["gossip, one-peer"] == pytest.approx(0.1 + 4e6 / 1e8)
    coded = dataclasses.replace(job, encode=free | {"1-bit": (2e-8, 1e-8)}, beta=1e-8, collective="naive")
    again = phase.step_seconds(4, 1e8, coded)  # twice the seconds a byte; packed once, unpacked from four
    more = (2e-8 + 4 * 1e-8) * 1e6 + 3 * phase.wire("1-bit", job) / 1e8
    assert again["1-bit"] - found["1-bit"] == pytest.approx(more)
    assert again["dense"] == pytest.approx(0.1 + 6 * 4e6 / 0.5e8)
    slow, fast = phase.diagram(phase.Job(), {"local SGD, tau 16": math.inf}, (4,), (1e6, 1e12)).argmin(0)[0]
    assert list(phase.WAYS)[slow] == "top-k 1 %" and list(phase.WAYS)[fast] in ("dense", "gossip, one-peer")


def test_a_job_is_calibrated_from_parts_that_real_ranks_have_measured():
    parts = {"gradient": 0.003, "message of 1 word": 0.001, "message": 0.001 + 4 * 65536 * 1e-9,
             "packing, 1-bit": 0.65536, "unpacking, 1-bit": 0.065536, "packing, top-k 1 %": 0.0,
             "unpacking, top-k 1 %": 0.0}
    job = phase.calibrated(parts)
    assert (job.words, job.rows, job.compute, job.alpha) == (65536, 256, 0.003, 0.001)
    assert job.beta == pytest.approx(1e-9) and job.encode["1-bit"] == pytest.approx((1e-5, 1e-6))
    assert phase.step_seconds(2, 1e12, job)["gossip, one-peer"] == pytest.approx(0.004 + 262144e-9, rel=1e-3)
    report = run_ranks(talking_ranks.slowed, 2, [4e6], 16, 1)[0]
    assert set(report["parts"]) == set(parts) and all(value > 0 for value in report["parts"].values())
    took = report["took"][0]  # who sends n bytes sleeps n / bandwidth at least
    assert set(took) == set(phase.WAYS) and took["dense"] > 262144 / 4e6 and took["local SGD, tau 16"] > 262144 / 64e6


@pytest.mark.parametrize("bandwidth", [0, -1e6, math.nan])
def test_a_link_without_bandwidth_is_refused(bandwidth):
    for way in phase.WAYS:
        with pytest.raises(RequestError, match=f"bandwidth {bandwidth} must be above 0"):
            phase.exchange(way, 4, bandwidth, phase.Job())
