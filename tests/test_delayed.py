"""Late gradients: the edge on the quadratic, and the network that is trained with them, against literal ones."""

import math

import numpy as np
import pytest
import torch
from labs import delayed, plan05
from labs.rules_asynchronous import edge
from torch import nn
from torch.nn import functional as F

from labkit.errors import RequestError


def digits(pixels=12, classes=3, images=40):
    generator = torch.Generator().manual_seed(5)
    images = [torch.randn(images, pixels, generator=generator) for _ in range(4)]
    parts = [(x, x[:, :classes].argmax(1)) for x in images]
    return delayed.Digits(*parts)


def test_a_path_is_the_recursion_and_starts_with_the_oldest_there_is():
    assert delayed.path(0, 0.5, steps=3).tolist() == [1, 0.5, 0.25, 0.125]
    assert delayed.path(2, 0.25, steps=5).tolist() == [1, 0.75, 0.5, 0.25, 0.25 - 0.25 * 0.75, 0.0625 - 0.25 * 0.5]
    assert delayed.path(0, 0.5, momentum=0.5, steps=2).tolist() == [1, 0.5, 0.5 - (0.5 * 0.5 + 0.5 * 0.5)]
    assert delayed.path(1, 5.0, steps=60)[-1] == math.inf


@pytest.mark.parametrize("momentum", [0.0, 0.3])
def test_edges_found_by_running_are_those_of_theory(momentum):
    delays = [0, 1, 2, 5]
    found = delayed.found_edges(delays, momentum, steps=3000)
    assert found == pytest.approx([delayed.edge_of(delay, momentum) for delay in delays], rel=1e-3)


def test_the_formula_is_where_the_largest_root_leaves_the_unit_circle():
    for delay in range(20):
        assert delayed.radius(delay, float(edge(delay)) * 0.999) < 1 < delayed.radius(delay, float(edge(delay)) * 1.001)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("delay", [0, 1, 4])
def test_the_roots_are_the_eigenvalues_of_the_update(delay, momentum):
    rate, size = 0.07, max(delay, 1) + 1
    update = np.eye(size, k=-1)
    update[0, 0] += 1 + momentum
    update[0, 1] -= momentum
    update[0, delay] -= rate
    assert delayed.radius(delay, rate, momentum) == pytest.approx(np.abs(np.linalg.eigvals(update)).max(), rel=1e-9)


def test_without_delay_the_edge_with_momentum_is_the_textbooks():
    assert delayed.edge_of(0, 0.9) == pytest.approx(2 * 1.9, rel=1e-6)


def test_random_delays_give_on_average_momentum_one_minus_one_over_p():
    for workers in (2, 5):
        momentum, rate = delayed.implicit_momentum(workers, 0.1, runs=20000)
        assert momentum == pytest.approx(1 - 1 / workers, abs=0.01)
        assert rate == pytest.approx(0.1 / workers, rel=0.02)


def test_too_few_updates_to_see_a_swing_are_refused():
    with pytest.raises(RequestError, match="steps 100 are too few for delay 16"):
        delayed.found_edges([16], steps=100)


def literal(data, read, rate, momentum, batch, seed):
    """One network by autograd, with every version of its parameters kept."""
    start = delayed.Arms(data, [rate], [momentum], seed).weights
    w = [start[0].clone(), start[1][0].clone(), start[2][0].clone(), start[3][0, 0].clone()]
    rows = torch.randint(len(data.train[1]), (len(read), batch), generator=torch.Generator().manual_seed(seed))
    versions, velocity = [w], [torch.zeros_like(part) for part in w]
    for step, version in enumerate(read):
        old = [part.clone().requires_grad_() for part in versions[version]]
        x, y = data.train[0][rows[step]], data.train[1][rows[step]]
        scores = F.relu(x @ old[0] + old[1]) @ old[2] + old[3]
        gradient = torch.autograd.grad(F.cross_entropy(scores, y), old)
        velocity = [momentum * v + g for v, g in zip(velocity, gradient, strict=True)]
        versions.append([part - rate * v for part, v in zip(versions[-1], velocity, strict=True)])
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3))
    for p, value in zip(model.parameters(), (versions[-1][0].T, versions[-1][1], versions[-1][2].T, versions[-1][3]),
                        strict=True):
        p.data = value
    return model


@pytest.mark.parametrize("read", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3], [0, 0, 2, 1, 0, 5]])
def test_arms_trained_side_by_side_are_networks_trained_one_by_one(read):
    data, pairs = digits(), [(0.1, 0.0), (0.3, 0.9), (0.05, 0.5)]
    run = delayed.train(data, read, [rate for rate, _ in pairs], [m for _, m in pairs], batch=8, seed=3, every=2)
    for arm, (rate, momentum) in enumerate(pairs):
        model = literal(data, read, rate, momentum, 8, 3)
        loss = float(F.cross_entropy(model(data.probe[0]), data.probe[1]).detach())
        assert run.losses[-1, arm] == pytest.approx(loss, rel=1e-4)
        assert run.test[arm] == pytest.approx(float((model(data.test[0]).argmax(1) == data.test[1]).double().mean()))


def test_an_arm_that_diverges_leaves_the_others_alone():
    data, read = digits(), delayed.constant(1, 40)
    alone = delayed.train(data, read, [0.05], batch=8, every=4)
    beside = delayed.train(data, read, [0.05, 500.0], batch=8, every=4)
    assert beside.losses[:, 0] == pytest.approx(alone.losses[:, 0], rel=1e-4)
    assert beside.losses[-1, 1] == math.inf and beside.test[1] == 0


def test_an_arm_that_reached_the_target_stops_and_its_crossing_is_interpolated():
    run = delayed.Trained(np.array([0, 10, 20]), np.array([[2.0, 1.0], [1.0, 0.5], [0.25, math.nan]]), None, None)
    assert run.crossing(0.5).tolist() == [15.0, 10.0]
    assert run.crossing(0.01).tolist() == [math.inf, math.inf]
    assert run.crossing(1.0).tolist() == [10.0, 0.0] and run.crossing(2.5).tolist() == [0.0, 0.0]
    found = delayed.train(digits(), delayed.constant(0, 60), [0.5], batch=8, every=5, target=0.8)
    assert len(found.steps) < 13 and found.losses[-1, 0] <= 0.8 < found.losses[-2, 0]


def test_parameters_that_do_not_exist_yet_cannot_be_read():
    with pytest.raises(RequestError, match="do not exist yet"):
        delayed.train(digits(), [0, 2], [0.1])


def test_every_rate_divided_by_a_delay_was_tried_at_that_delay():
    for momentum in (0.0, 0.9):
        for per_octave in (1, 2):
            for delay in (1, 2, 4, 8, 16, 32):
                tried = plan05.rates(delay, momentum, per_octave)
                assert {rate / delay for rate in plan05.rates(0, momentum, per_octave)} <= set(tried)


@pytest.mark.parametrize("delay", [-1, 0.5, math.nan])
def test_a_delay_is_a_whole_number_of_updates(delay):
    for use in (lambda: delayed.edge_of(delay), lambda: delayed.edge_of(delay, 0.9), lambda: delayed.radius(delay, 0.1),
                lambda: delayed.path(delay, 0.1), lambda: delayed.found_edges([0, delay], steps=2000),
                lambda: delayed.constant(delay, 10)):
        with pytest.raises(RequestError, match=f"delay {delay} must be a whole number of updates, 0 or more"):
            use()
