"""The noise scale: unbiased where the noise is known; the same by accumulation, by DDP and written out by hand."""

import math
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from labkit.errors import RequestError
from labkit.optim.noise import GradientNoise, noise_scale, smooth_ratio
from labkit.runs import Header, RunWriter

sys.path.insert(0, str(Path(__file__).parent / "workers"))
from noise_ddp import STEPS, Pull, fit, samples  # noqa: E402

WORKER = Path(__file__).parent / "workers" / "noise_ddp.py"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore:.*LeafSpec.*")


def test_both_estimates_are_unbiased_on_a_quadratic_with_known_noise():
    # The gradient of 0.5 |w - x|^2 is w - x: G = w - mean, the covariance that of x.
    random, spread, away = np.random.default_rng(0), np.array([0.5, 1.0, 3.0]), np.array([0.3, -0.2, 0.1])
    draws = away + spread * random.standard_normal((20000, 4, 2, 3))  # [draw, micro-batch, row, width]
    parts = draws.mean(2)
    found = noise_scale((parts**2).sum(-1).mean(1), (parts.mean(1) ** 2).sum(-1), 2, 8)
    for values, truth in zip(found, ((spread**2).sum(), (away**2).sum()), strict=True):
        assert abs(values.mean() - truth) < 3 * values.std(ddof=1) / math.sqrt(len(values))
    # The naive norm of a gradient is not: it holds the noise of its batch.
    assert (parts.mean(1) ** 2).sum(-1).mean() > 10 * (away**2).sum()


def test_a_mean_of_ratios_is_biased_where_the_ratio_of_means_is_not():
    random = np.random.default_rng(1)
    parts = (1.0 + 2.0 * random.standard_normal((4000, 4, 2, 3))).mean(2)
    traces, squares = noise_scale((parts**2).sum(-1).mean(1), (parts.mean(1) ** 2).sum(-1), 2, 8)
    assert traces.mean() / squares.mean() == pytest.approx(4.0, rel=0.05)
    assert abs(np.mean(traces / squares) - 4.0) > 0.4


@pytest.mark.parametrize("sizes", [(4, 4), (8, 2), (0, 4), (-1, 1)])
def test_two_batch_sizes_have_to_differ(sizes):
    with pytest.raises(RequestError, match="two batch sizes"):
        noise_scale(1.0, 1.0, *sizes)


def test_smoothing_takes_numerator_and_denominator_apart():
    traces, squares = [4.0, 8.0, 0.0], [1.0, -3.0, 4.0]
    assert smooth_ratio(traces, squares, 0.0)[0] == 4.0 and math.isnan(smooth_ratio(traces, squares, 0.0)[1])
    tops, bottoms = [4.0, 10.0, 5.0], [1.0, -2.5, 2.75]
    found = smooth_ratio(traces, squares, 0.5)
    assert found[2] == pytest.approx(tops[2] / bottoms[2]) and math.isnan(found[1])
    assert smooth_ratio([6.0] * 9, [2.0] * 9) == pytest.approx([3.0] * 9)  # no bias at the start
    with pytest.raises(RequestError, match="smoothing"):
        smooth_ratio(traces, squares, 1.0)


def literal(batches, rate=0.1, every=1):
    """(traces, squares) of training on [step, part, row, width], written out in numpy."""
    w, found = np.zeros(batches.shape[-1]), []
    for step, parts in enumerate(batches.numpy()):
        gradients = w - parts.mean(1)
        small, big = (gradients**2).sum(1).mean(), (gradients.mean(0) ** 2).sum()
        b, m = parts.shape[1], len(parts)
        if step % every == 0:
            found.append(((small - big) / (1 / b - 1 / (m * b)), (m * b * big - b * small) / (m * b - b)))
        w = w - rate * gradients.mean(0)
    return np.array(found).T


def accumulated(callback, batches=None, **options):
    batches = samples() if batches is None else batches
    return fit(batches.flatten(0, 1), callback, accumulate_grad_batches=batches.shape[1], **options)


@pytest.mark.parametrize("every", [1, 2])
def test_accumulation_gives_the_literal_estimates(every):
    callback = GradientNoise(every=every)
    accumulated(callback)
    assert np.allclose([callback.traces, callback.squares], literal(samples(), every=every), rtol=1e-10)
    assert callback.noise_scale == pytest.approx(sum(callback.traces) / sum(callback.squares)) and not callback.skipped


def test_two_ranks_give_what_accumulation_gives(python, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [python(WORKER, tmp_path / "out.pt", env={**base, "RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(2)]
    for rank in ranks:
        output = rank.communicate(timeout=120)
        assert rank.returncode == 0, output
    found, callback = torch.load(tmp_path / "out.pt"), GradientNoise()
    module = accumulated(callback)
    assert np.allclose([found["traces"], found["squares"]], [callback.traces, callback.squares], rtol=1e-10)
    assert torch.allclose(found["far"], module.far, rtol=1e-12)  # the hook leaves the averaging as it is


def test_training_is_not_changed_by_being_measured():
    plain = fit(samples().flatten(0, 1), pl.Callback(), accumulate_grad_batches=2)
    assert torch.equal(plain.far, accumulated(GradientNoise()).far)


def test_a_gradient_scaler_is_taken_out():
    from pytorch_lightning.plugins import MixedPrecision

    plain, scaled = GradientNoise(), GradientNoise()
    accumulated(plain)
    # Its scale grows by 4 after every second step: the raw norms of two steps could not be added.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_factor=4.0, growth_interval=2)
    accumulated(scaled, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    assert scaler.get_scale() > 2.0**10
    assert np.allclose([scaled.traces, scaled.squares], [plain.traces, plain.squares], rtol=1e-9)


def test_a_step_without_all_its_parts_or_with_unequal_ones_is_left_out():
    whole = samples()
    short = GradientNoise()
    fit(whole.flatten(0, 1)[:-1], short, accumulate_grad_batches=2)
    assert len(short.traces) == STEPS - 1 and short.skipped == 1
    unequal = GradientNoise()
    fit([part[: 4 - (n == 3)] for n, part in enumerate(whole.flatten(0, 1))], unequal, accumulate_grad_batches=2)
    assert len(unequal.traces) == STEPS - 1 and unequal.skipped == 1


def test_a_gradient_that_is_not_finite_is_left_out():
    batches = samples()
    batches[-1, 0, 0, 0] = math.inf
    callback = GradientNoise()
    accumulated(callback, batches)
    assert callback.skipped == 1 and math.isfinite(callback.noise_scale)


def test_one_batch_size_is_refused_before_a_step():
    module = Pull()
    with pytest.raises(RequestError, match="accumulate 2 micro-batches, or use DDP"):
        fit(samples().flatten(0, 1), GradientNoise(), module)
    assert not module.far.any()


def test_the_writer_gets_a_row_per_measured_step_and_the_ratio_of_sums(tmp_path):
    with RunWriter(Header("10", {}), tmp_path / "run.jsonl") as writer:
        callback = GradientNoise(writer, every=2)
        accumulated(callback)
    steps = [row.step for row in writer.run.series("noise_trace")]
    assert steps == [0, 2, 4] and writer.run.last("noise_scale") == callback.noise_scale
    assert [row.value for row in writer.run.series("gradient_squared_norm")] == callback.squares


def test_the_size_of_a_micro_batch_may_be_given_in_another_unit():
    by_row, by_token = GradientNoise(), GradientNoise(size=40)
    accumulated(by_row)
    accumulated(by_token)
    assert by_token.noise_scale == pytest.approx(10 * by_row.noise_scale)


def test_a_second_fit_is_a_measurement_of_its_own():
    callback = GradientNoise()
    accumulated(callback)
    first = list(callback.traces), list(callback.squares)
    accumulated(callback)
    assert (callback.traces, callback.squares) == first and callback.skipped == 0
