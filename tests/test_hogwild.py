"""Processes without locks: what they lose is counted, one alone loses nothing, and sparse supports lose little."""

import math

import numpy as np
import pytest
import torch
from labs import hogwild, server_ranks
from torch.nn import functional as F


def test_a_count_without_a_lock_loses_increments_and_one_process_alone_none():
    assert hogwild.race(1, 50) == (50, 50)
    expected, found = hogwild.race(4, 50, pause=1e-3)
    assert expected == 200 and found < 190


def test_samples_have_the_support_asked_for_and_can_be_separated():
    places, values, labels = hogwild.samples(300, 40, 5)
    counts = torch.bincount(hogwild.samples(8000, 40, 5, seed=2)[0].reshape(-1), minlength=40)
    assert counts.double().numpy() == pytest.approx(1000, abs=5 * math.sqrt(1000 * 7 / 8))  # each place equally likely
    assert places.shape == values.shape == (300, 5) and set(labels.tolist()) == {-1.0, 1.0}
    assert all(len(set(row)) == 5 for row in places.tolist())
    assert (values**2).sum(1).mean().item() == pytest.approx(1, abs=0.15)
    assert hogwild.loss(torch.zeros(40), places, values, labels) == pytest.approx(math.log(2), abs=1e-6)


def test_one_process_is_plain_sgd_and_loses_nothing():
    mine = hogwild.lost(1, 3, features=20, steps=40, rate=0.5)
    assert mine["attempted"] == mine["found"] == 120 and mine["lost"] == 0
    weights = np.zeros(20)
    for where, x, label in zip(*(part.numpy() for part in hogwild.samples(40, 20, 3, seed=1)), strict=True):
        weights[where] += 0.5 * label * x / (1 + np.exp(label * (weights[where] @ x)))
    places, values, labels = (part.numpy() for part in hogwild.samples(512, 20, 3))  # others, of the same plane
    scores = labels * (weights[places] * values).sum(1)
    assert mine["after"] == pytest.approx(np.log1p(np.exp(-scores)).mean(), rel=1e-5)
    assert mine["after"] < mine["before"]


def test_sparse_supports_lose_less_than_dense_ones_and_no_more_than_the_bound():
    dense, sparse = (hogwild.lost(4, support, steps=100, pause=1e-3) for support in (256, 4))
    assert dense["lost"] > 0.5 and dense["after"] < dense["before"]
    assert (hogwild.most_lost(4, 256), hogwild.most_lost(4, 16), hogwild.most_lost(1, 4)) == (1.0, 3 / 16, 0.0)
    bound = hogwild.most_lost(4, 4)
    assert bound == 3 * 4 / 256
    assert sparse["lost"] < bound + 4 * math.sqrt(bound / sparse["attempted"]) < dense["lost"] / 4
    assert sparse["after"] < sparse["before"]


def test_a_network_in_shared_memory_is_plain_sgd_with_one_process_and_learns_with_four():
    model = server_ranks.network(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(10):
        inputs, classes = server_ranks.batch(step, 16, torch.float32)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
    assert torch.equal(hogwild.train_network(1, 10), torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    inputs, classes = server_ranks.batch(10**6, 512, torch.float32)

    def loss(flat):
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        return F.cross_entropy(model(inputs), classes).item()

    start = torch.cat([p.detach().reshape(-1) for p in server_ranks.network(torch.float32).parameters()])
    assert loss(hogwild.train_network(4, 50)) < 0.9 * loss(start)
