"""The ring's cost equals that of a ring that is really run; a calibration gives back what was planted."""

import numpy as np
import pytest

from labkit.errors import RequestError
from labs import cost


def ring(arrays):
    """A ring all-reduce, message by message: (results, rounds, words that one worker sends)."""
    p, chunks = len(arrays), [np.array_split(a.copy(), len(arrays)) for a in arrays]
    rounds = words = 0
    for phase in range(2):
        for step in range(p - 1):
            sent = [(w, (w - step + phase) % p, chunks[w][(w - step + phase) % p].copy()) for w in range(p)]
            for w, at, chunk in sent:
                to = (w + 1) % p
                chunks[to][at] = chunks[to][at] + chunk if phase == 0 else chunk
            rounds, words = rounds + 1, words + len(sent[0][2])
    return [np.concatenate(c) for c in chunks], rounds, words


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_the_formula_counts_what_a_real_ring_does(p):
    arrays = [np.random.default_rng(w).normal(size=24 * p) for w in range(p)]
    results, rounds, words = ring(arrays)
    assert all(np.allclose(result, sum(arrays)) for result in results)
    assert cost.ring_seconds(p, 24 * p, 1.0, 0.0) == rounds
    assert cost.ring_seconds(p, 24 * p, 0.0, 1.0) == pytest.approx(words)


def test_the_bytes_of_a_ring_never_pass_twice_the_gradient_and_the_messages_grow_without_end():
    many = np.array([2, 1024, 1_000_000])
    assert np.all(cost.ring_seconds(many, 100.0, 0.0, 1.0) < 200.0)
    assert cost.ring_seconds(1_000_000, 0.0, 1.0, 0.0) == 2 * 999_999


@pytest.mark.parametrize("bad", [(0, 1.0, 1.0, 1.0), (2, -1.0, 1.0, 1.0), (2, 1.0, -1.0, 1.0), (2, 1.0, 1.0, -1.0)])
def test_an_impossible_ring_is_refused(bad):
    with pytest.raises(RequestError, match="a ring needs one worker or more"):
        cost.ring_seconds(*bad)


def test_only_what_computing_does_not_hide_waits():
    assert cost.step_seconds(1.0, 0.5, 0.5) == (1.0, 0.0)
    seconds, share = cost.step_seconds(1.0, 1.5, 0.5)
    assert seconds == 2.0 and share == 0.5
    with pytest.raises(RequestError, match="overlap 1.5 is out of range"):
        cost.step_seconds(1.0, 1.0, 1.5)


def runs(compute, beta, workers=(8, 32, 128), size=5e7, alpha=1e-5):
    workers, steps = np.array(workers, float), np.array([4000.0, 3000.0, 2500.0])
    samples = 256 * workers * steps
    seconds = samples / workers * compute + steps * cost.ring_seconds(workers, size, alpha, beta)
    return samples, steps, workers, seconds


def test_calibration_gives_back_what_was_planted():
    found = cost.calibrate(*runs(1e-3, 2e-9), size=5e7, alpha=1e-5)
    assert found == pytest.approx((1e-3, 2e-9), rel=1e-6)


def test_efficiency_that_rises_leaves_no_communication_and_no_negative_price():
    samples, steps, workers, seconds = runs(1e-3, 0.0)
    compute, beta = cost.calibrate(samples, steps, workers, seconds / np.array([1.0, 1.3, 1.6]), size=5e7, alpha=1e-5)
    assert beta == 0.0 and compute > 0


def test_one_number_of_workers_cannot_be_calibrated():
    with pytest.raises(RequestError, match="two different numbers of workers"):
        cost.calibrate([1.0, 2.0], [1, 1], [8, 8], [1.0, 2.0], size=1.0, alpha=0.0)
