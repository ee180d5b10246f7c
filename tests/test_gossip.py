"""Mixing matrices against closed forms, gossip on real and virtual ranks against matrix products, D-PSGD against its
transcription."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labkit.errors import RequestError
from labkit.simulate import traced
from labkit.training import gossip
from labkit.training.ranks import run_ranks
from labs import mix_extras, mix_ranks

sys.path.insert(0, str(Path(__file__).parent / "workers"))
import mixing_ranks  # noqa: E402


def each(name, size):
    found = gossip.TOPOLOGIES[name](size)
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("name", gossip.TOPOLOGIES)
def test_rows_and_columns_sum_to_one(name):
    for size in range(1, 20):
        for matrix in each(name, size):
            assert matrix.shape == (size, size) and (matrix >= 0).all()
            np.testing.assert_allclose([matrix.sum(0), matrix.sum(1)], 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name, neighbours", [("ring", 2), ("torus", 4), ("exponential", 4), ("one-peer", 1),
                                              ("complete", 15)])
def test_neighbours_of_sixteen_ranks(name, neighbours):
    for matrix in each(name, 16):
        assert ((matrix > 0).sum(1) == neighbours + 1).all() and ((matrix > 0).sum(0) == neighbours + 1).all()


def test_the_ring_has_its_second_eigenvalue():
    for size in range(3, 41):
        right = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / size)
        assert gossip.second_eigenvalue(gossip.ring(size)) == pytest.approx(right, abs=1e-9)
    assert gossip.second_eigenvalue(gossip.ring(8)) == pytest.approx(0.805, abs=5e-4)
    rounds = [math.ceil(math.log(1000) / -math.log(gossip.second_eigenvalue(gossip.ring(size)))) for size in (8, 32)]
    assert rounds == [32, 536]


def test_the_torus_has_its_second_eigenvalue():
    for rows, columns in ((3, 3), (4, 4), (3, 5), (5, 6)):
        angles = [(2 * math.pi * a / rows, 2 * math.pi * b / columns) for a in range(rows) for b in range(columns)]
        moduli = sorted(abs(1 + 2 * math.cos(a) + 2 * math.cos(b)) / 5 for a, b in angles)
        assert gossip.second_eigenvalue(gossip.torus(rows * columns, rows)) == pytest.approx(moduli[-2], abs=1e-9)


@pytest.mark.parametrize("power", range(1, 8))
def test_exponential_graphs_of_a_power_of_two(power):
    size = 2**power
    assert gossip.second_eigenvalue(gossip.exponential(size)) == pytest.approx((power - 1) / (power + 1), abs=1e-9)
    product = np.eye(size)
    for matrix in gossip.one_peer(size):
        product = matrix @ product
    assert len(gossip.one_peer(size)) == power and (product == 1 / size).all()  # exactly: powers of two do not round


def test_one_peer_is_not_exact_for_other_numbers():
    product = np.eye(6)
    for matrix in gossip.one_peer(6):
        product = matrix @ product
    assert np.abs(product - 1 / 6).max() > 0.05


def test_second_eigenvalue_of_the_extremes():
    assert gossip.second_eigenvalue(np.eye(4)) == 1.0 and gossip.second_eigenvalue(gossip.complete(7)) < 1e-12
    assert gossip.second_eigenvalue(np.eye(1)) == 0.0


def test_disagreement_decays_at_the_second_eigenvalue():
    for matrix in (gossip.ring(8), gossip.torus(12), gossip.exponential(8)):
        found, rate = mix_ranks.decay_alone([matrix], 40), gossip.second_eigenvalue(matrix)
        assert all(after <= rate * before * (1 + 1e-9) + 1e-13 for before, after in zip(found, found[1:], strict=False))
        assert (found[30] / found[20]) ** 0.1 == pytest.approx(rate, rel=0.01)


def test_virtual_ranks_do_as_the_matrix():
    steps, rounds = 12, [gossip.ring(8)]
    trace = traced.run(mix_ranks.rounds_over, 8, rounds, steps)
    found = [mix_ranks.spread(np.stack([rank[step] for rank in trace.results])) for step in range(steps)]
    np.testing.assert_allclose(found, mix_ranks.decay_alone(rounds, steps)[1:], rtol=1e-12)
    assert len(trace.messages) == 8 * 2 * steps


@pytest.fixture(scope="module")
def real():
    """Four real ranks: their rounds without gradients, by topology."""
    return run_ranks(mix_ranks.several, 4, {"decay": [(name, 6) for name in gossip.TOPOLOGIES]})


@pytest.mark.parametrize("at, name", [*enumerate(gossip.TOPOLOGIES)])
def test_real_ranks_do_as_the_matrix(real, at, name):
    rounds = each(name, 4)
    for rank in real:
        found = rank["decay"][at]
        np.testing.assert_allclose(found["disagreement"], mix_ranks.decay_alone(rounds, 6), rtol=1e-9, atol=1e-12)
        neighbours = [(matrix > 0).sum(1)[0] - 1 for matrix in rounds]
        sent = sum(neighbours[step % len(rounds)] for step in range(6))
        assert (found["messages"], found["words"]) == (sent, sent * 64)


def literal(rounds, steps, momentum):
    """D-PSGD on the ranks' quadratics: [steps, ranks, size]."""
    targets = torch.stack([mixing_ranks.numbers(rank, steps) for rank in range(len(rounds[0]))], 1)
    weights = speed = torch.zeros_like(targets[0])
    path = []
    for step, target in enumerate(targets):
        speed = momentum * speed + weights - target
        weights = torch.from_numpy(rounds[step % len(rounds)]) @ weights - 0.3 * speed
        path.append(weights)
    return torch.stack(path)


def test_dpsgd_equals_its_transcription_and_its_mean_moves_as_under_averaging():
    mine = [np.array([[0.5, 0.3, 0, 0.2], [0.3, 0.7, 0, 0], [0, 0, 0.7, 0.3], [0.2, 0, 0.3, 0.5]])]
    for topology, momentum in (("ring", 0.9), ("one-peer", 0.0), (mine, 0.9)):
        rounds = each(topology, 4) if isinstance(topology, str) else topology
        ranks = run_ranks(mixing_ranks.gossiped, 4, topology, 7, momentum)
        path = torch.stack([rank[0] for rank in ranks], 1)
        torch.testing.assert_close(path, literal(rounds, 7, momentum), rtol=0, atol=1e-12)
        averaged = literal([gossip.complete(4)], 7, momentum)
        torch.testing.assert_close(path.mean(1), averaged.mean(1), rtol=0, atol=1e-12)


def test_a_topology_that_loses_weight_is_refused():
    inner = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)
    for given, words in (("star", "unknown topology 'star'; allowed: ring, torus, exponential, one-peer, complete"),
                         (np.array([[0.5]]), "given: 1 x 1, with sums of 0.5 to 0.5"), (np.eye(3), "given: 3 x 3")):
        with pytest.raises(RequestError, match=words):
            gossip.Gossip(inner, given)
    with pytest.raises(RequestError, match="4 ranks do not fill groups of 3"):
        gossip.torus(4, 3)


def test_pairs_decay_as_expected_on_average():
    ranks, meetings, trials, random = 6, 8, 4000, np.random.default_rng(0)
    ratios = np.empty(trials)
    for trial in range(trials):
        vectors = random.standard_normal((ranks, 1))
        before = mix_ranks.spread(vectors) ** 2
        for _ in range(meetings):
            pair = random.choice(ranks, 2, replace=False)
            vectors[pair] = vectors[pair].mean(0)
        ratios[trial] = mix_ranks.spread(vectors) ** 2 / before
    error = ratios.std() / math.sqrt(trials)
    assert abs(ratios.mean() - mix_extras.pairwise_rate(ranks) ** meetings) < 4 * error and error < 0.01


def test_real_ranks_meet_in_pairs_without_losing_anything(tmp_path):
    table = torch.zeros(4, 64, dtype=torch.float64)
    found = run_ranks(mix_ranks.pairwise, 4, 40, str(tmp_path), shared={"table": table})
    began = np.stack([mix_ranks.start(rank, 64) for rank in range(4)])
    assert found == [40] * 4
    np.testing.assert_allclose(table.mean(0), began.mean(0), rtol=0, atol=1e-12)  # no meeting was torn by another
    assert mix_ranks.spread(table.numpy()) < 1e-6 * mix_ranks.spread(began)
    assert not [*tmp_path.glob("*.lock")]


def test_nobody_waits_for_a_partner_that_does_nothing(tmp_path):
    table = torch.zeros(3, 4)
    assert run_ranks(mix_ranks.pairwise, 3, 20, str(tmp_path), idle=True, shared={"table": table}) == [20] * 3


def test_a_table_of_another_shape_is_refused(tmp_path):
    inner = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)
    with pytest.raises(RequestError, match=r"make it \(1, 2\)"):
        mix_extras.Pairwise(inner, torch.zeros(2, 2), tmp_path)


def test_a_bare_loop_over_ranks_reports_what_it_did():
    found = run_ranks(mixing_ranks.looped, 2)
    assert [len(rank["losses"]) for rank in found] == [6, 6] and len(found[0]["disagreement"]) == 3
    np.testing.assert_allclose(found[0]["mean"], (found[0]["own"] + found[1]["own"]) / 2, atol=1e-6)
    assert found[0]["disagreement"] == found[1]["disagreement"] and found[0]["messages"] == 6
