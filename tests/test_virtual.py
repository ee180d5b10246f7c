"""Real gradients in virtual time, against torch's SGD, literal loops in float64, and the edge of stability."""

import math

import numpy as np
import pytest
import torch
from labs import virtual
from labs.virtual import Batches, Gradients, train
from labs.virtual_gossip import gossip
from torch import nn

from labkit.errors import RequestError
from labkit.models import build
from labkit.simulate.events import Compute, asynchronous, local_sgd, synchronous
from labkit.training.gossip import complete, one_peer, ring

EXPONENTIAL = Compute("exponential")
LOSS = nn.functional.cross_entropy


@pytest.fixture(scope="module")
def task():
    """(model, batches, probe): three classes in five dimensions, in float64."""
    torch.manual_seed(1)
    inputs = torch.randn(300, 5, dtype=torch.double)
    labels = (inputs @ torch.randn(5, 3, dtype=torch.double)).argmax(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    return model, Batches(inputs, labels, 4, seed=2), (inputs, labels)


def gradient(model, vector, inputs, labels):
    """By autograd, on a plain call of the model."""
    nn.utils.vector_to_parameters(vector, model.parameters())
    model.zero_grad()
    LOSS(model(inputs), labels).backward()
    return nn.utils.parameters_to_vector([parameter.grad for parameter in model.parameters()])


def copied(model):
    twin = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    twin.load_state_dict(model.state_dict())
    return twin, nn.utils.parameters_to_vector(twin.parameters()).detach().clone()


def close(one, other):
    assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", [asynchronous, synchronous])
def test_one_worker_is_sgd(task, make):
    model, batches, probe = task
    twin, _ = copied(model)
    optimizer, draw = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9), batches.begin(1)
    for _ in range(30):
        inputs, labels = (part[0] for part in draw([0]))
        optimizer.zero_grad()
        LOSS(twin(inputs), labels).backward()
        optimizer.step()
    found = train(make(1, 30, EXPONENTIAL), model, LOSS, batches, 0.1, probe, momentum=0.9)
    close(found.parameters, nn.utils.parameters_to_vector(twin.parameters()))
    assert found.update.tolist() == [0, 10, 20, 30]
    assert found.loss[-1] == pytest.approx(LOSS(twin(probe[0]), probe[1]).item())
    assert found.accuracy[-1] == (twin(probe[0]).argmax(1) == probe[1]).double().mean().item()


@pytest.mark.parametrize("bound", [0, 2, math.inf])
def test_a_late_gradient_is_that_of_the_parameters_read(task, bound):
    """A literal loop that keeps every version, with a rate that falls with staleness."""
    model, batches, probe = task
    updates = asynchronous(4, 60, EXPONENTIAL, bound=bound)
    (twin, vector), draw = copied(model), batches.begin(4)
    versions, velocity = [vector], 0
    for index, (worker, read) in enumerate(zip(updates.worker, updates.read, strict=True)):
        inputs, labels = (part[0] for part in draw([worker]))
        velocity = 0.5 * velocity + gradient(twin, versions[read], inputs, labels)
        versions.append(versions[-1] - 0.2 / (1 + index - read) * velocity)

    def rate(update, staleness):
        return 0.2 / (1 + staleness)

    found = train(updates, model, LOSS, batches, rate, probe, momentum=0.5)
    close(found.parameters, versions[-1])
    assert (found.seconds[1:] == updates.when[found.update[1:] - 1]).all()


def test_members_are_one_large_batch_and_dropped_gradients_are_not_in_it(task):
    model, batches, probe = task
    updates = synchronous(5, 20, EXPONENTIAL, backup=2)
    (twin, vector), draw = copied(model), batches.begin(5)
    for members in updates.members:
        inputs, labels = draw(np.flatnonzero(members))
        assert len(labels) == 3
        vector = vector - 0.3 * gradient(twin, vector, inputs.reshape(-1, 5), labels.reshape(-1))
    close(train(updates, model, LOSS, batches, 0.3, probe).parameters, vector)


def test_bound_zero_at_a_share_of_the_rate_is_synchronous(task):
    model, batches, probe = task
    lockstep = train(asynchronous(4, 80, EXPONENTIAL, bound=0), model, LOSS, batches, 0.4 / 4, probe, every=4)
    barrier = train(synchronous(4, 20, EXPONENTIAL), model, LOSS, batches, 0.4, probe, every=1)
    close(lockstep.parameters, barrier.parameters)
    assert lockstep.loss == pytest.approx(barrier.loss) and (lockstep.seconds == barrier.seconds).all()


def test_local_sgd_with_one_step_is_synchronous_and_with_more_averages_what_workers_reached(task):
    model, batches, probe = task
    options = {"momentum": 0.9, "every": 1}
    barrier = train(synchronous(3, 12, EXPONENTIAL), model, LOSS, batches, 0.1, probe, **options)
    post = train(local_sgd(3, [1] * 12 + [4], EXPONENTIAL), model, LOSS, batches, 0.1, probe, **options)
    assert post.loss[:13] == pytest.approx(barrier.loss, rel=1e-10)
    (twin, start), draw = copied(model), batches.begin(3)
    own = [start] * 3
    for _ in range(2):
        for worker in range(3):
            for _ in range(4):
                inputs, labels = (part[0] for part in draw([worker]))
                own[worker] = own[worker] - 0.1 * gradient(twin, own[worker], inputs, labels)
        own = [sum(own) / 3] * 3
    close(train(local_sgd(3, [4, 4], EXPONENTIAL), model, LOSS, batches, 0.1, probe).parameters, own[0])


def test_an_average_leaves_out_the_slowest(task):
    model, batches, probe = task
    two = train(local_sgd(2, [3] * 5, Compute()), model, LOSS, batches, 0.1, probe)
    three = train(local_sgd(3, [3] * 5, Compute(slow={2: 2.0}), backup=1), model, LOSS, batches, 0.1, probe)
    close(two.parameters, three.parameters)


@pytest.mark.parametrize("graph", [ring(4), np.stack(one_peer(4))], ids=["ring", "one peer in turns"])
def test_gossip_mixes_parameters_and_adds_the_step(task, graph):
    model, batches, probe = task
    graphs = graph if graph.ndim == 3 else graph[None]
    (twin, start), draw = copied(model), batches.begin(4)
    own = [start] * 4
    for step in range(15):
        steps = []
        for worker in range(4):
            inputs, labels = (part[0] for part in draw([worker]))
            steps.append(0.2 * gradient(twin, own[worker], inputs, labels))
        mixing = graphs[step % len(graphs)]
        own = [sum(mixing[i, j] * own[j] for j in range(4)) - steps[i] for i in range(4)]
    found = train(gossip(graph, 15, EXPONENTIAL), model, LOSS, batches, 0.2, probe)
    mean = sum(own) / 4
    close(found.parameters, mean)
    assert found.spread[-1] == pytest.approx(math.sqrt(sum((one - mean).square().sum().item() for one in own) / 4))


def test_better_connected_graphs_leave_less_spread(task):
    model, batches, probe = task
    spread = [train(gossip(graph, 40, EXPONENTIAL), model, LOSS, batches, 0.2, probe).spread[-1]
              for graph in (complete(8), ring(8))]  # fmt: skip
    assert 0 < spread[0] < spread[1]


class Square(nn.Module):
    """Loss w^2 / 2: curvature 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.double))

    def forward(self, inputs):
        return self.w * inputs


@pytest.mark.parametrize("delay", [0, 1, 2, 4, 8])
def test_p_equal_workers_are_stable_to_the_edge_of_a_delay_of_p_minus_1(delay):
    """rate x curvature < 2 sin(pi / (2 (2 tau + 1)))."""
    ones = torch.ones(10, 1, dtype=torch.double)
    updates = asynchronous(delay + 1, 30 * (delay + 1) ** 2, Compute())
    batches = Batches(ones, ones[:, 0], 1)
    edge = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    last = []
    for rate in (0.9 * edge, 1.1 * edge):
        found = train(updates, Square(), lambda scores, labels: scores.square().mean() / 2, batches, rate,
                      (ones, ones[:, 0]), every=10**6)  # fmt: skip
        last.append(found.loss[-1] / found.loss[0])
    assert last[0] < 1e-2 and last[1] > 1e2


def test_one_call_for_several_workers_equals_one_call_each(task):
    model, batches, _ = task
    inputs, labels = batches.begin(6)(range(6))
    at = Gradients(model, LOSS).start + torch.randn(6, 1, dtype=torch.double)
    together, alone = (Gradients(model, LOSS, vectorised=way).many(at, inputs, labels) for way in (True, False))
    close(together, alone)


@pytest.mark.parametrize("name, sizes", [("deep-mlp", {"depth": 1}), ("row-lstm", {"hidden": 8}), ("resnet8", {})])
@pytest.mark.parametrize("order", [
    synchronous(2, 3, EXPONENTIAL), asynchronous(2, 3, EXPONENTIAL), local_sgd(2, [2], EXPONENTIAL),
    gossip(complete(2), 3, EXPONENTIAL),
], ids=["synchronous", "asynchronous", "local", "gossip"])  # fmt: skip
def test_any_model_of_the_kit_trains_and_the_one_given_stays_as_it_was(name, sizes, order):
    torch.manual_seed(0)
    inputs, labels = torch.randn(20, 1, 8, 8), torch.randint(10, (20,))
    model = build(name, (1, 8, 8), **sizes)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = train(order, model, LOSS, Batches(inputs, labels, 4), 0.01, (inputs, labels))
    assert np.isfinite(found.loss).all() and found.loss[-1] != found.loss[0]
    assert all((value == before[key]).all() for key, value in model.state_dict().items())
    again = train(order, model, LOSS, Batches(inputs, labels, 4), 0.01, (inputs, labels))
    assert (found.loss == again.loss).all()


def test_statistics_of_a_batch_stay_each_members_own():
    """With batch normalisation the mean of the members' gradients is not the gradient of one large batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).double()
    inputs, labels = torch.randn(2, 4, 5, dtype=torch.double), torch.randint(3, (2, 4))
    gradients = Gradients(model, LOSS)
    parts = [gradients.one(gradients.start, *member) for member in zip(inputs, labels, strict=True)]
    close(gradients.mean(gradients.start, inputs, labels), sum(parts) / 2)
    whole = gradients.one(gradients.start, inputs.flatten(0, 1), labels.flatten())
    assert (whole - sum(parts) / 2).norm() > 0.01 * whole.norm()


def test_training_stops_at_the_target_and_at_a_loss_that_is_not_finite(task):
    model, batches, probe = task
    updates = asynchronous(2, 5000, EXPONENTIAL)
    found = train(updates, model, LOSS, batches, 0.2, probe, target=("loss", 0.5))
    assert found.loss[-1] <= 0.5 < found.loss[-2]
    assert found.reached == found.seconds[-1] == updates.when[found.update[-1] - 1]
    right = train(updates, model, LOSS, batches, 0.2, probe, target=("accuracy", 0.8))
    assert right.accuracy[-1] >= 0.8 > right.accuracy[-2]
    lost = train(updates, model, LOSS, batches, 1e308, probe, target=("loss", 0.5))
    assert math.isnan(lost.reached) and lost.update[-1] < 5000
    with pytest.raises(RequestError, match="unknown target 'error'; allowed: loss, accuracy"):
        train(updates, model, LOSS, batches, 0.2, probe, target=("error", 0.5))
    with pytest.raises(RequestError, match="every must be 1 or more"):
        train(updates, model, LOSS, batches, 0.2, probe, every=0)


def test_only_versions_that_will_be_read_are_kept(task):
    """With P workers at most P versions have readers to come, however many updates there are."""
    model, batches, _ = task
    updates = asynchronous(3, 200, EXPONENTIAL)
    way = virtual._single(updates, Gradients(model, LOSS), batches.begin(3), lambda update, staleness: 0.1, 0.0)
    assert max(len(way.gi_frame.f_locals["versions"]) for _ in way if way.gi_frame) <= 3


@pytest.mark.parametrize("order", [asynchronous(3, 30, EXPONENTIAL), synchronous(3, 10, EXPONENTIAL),
                                   local_sgd(3, [2] * 5, EXPONENTIAL)])  # fmt: skip
@pytest.mark.parametrize("vectorised", [True, False])
def test_what_is_frozen_stays_and_the_rest_trains_as_if_it_were_no_parameter(task, order, vectorised, monkeypatch):
    """The same network, its first layer once frozen and once a fixed function."""
    model, batches, probe = task
    monkeypatch.setattr(virtual, "ALONE", virtual.ALONE if vectorised else (nn.Module,))
    frozen, first = copied(model)[0], copied(model)[0][:2].requires_grad_(False)
    frozen[:2].requires_grad_(False)
    fixed = Batches(first(batches.inputs), batches.labels, batches.size, batches.seed)
    one = train(order, frozen, LOSS, batches, 0.1, probe, momentum=0.5)
    other = train(order, copied(model)[0][2:], LOSS, fixed, 0.1, (first(probe[0]), probe[1]), momentum=0.5)
    close(one.parameters, other.parameters)
    assert one.loss == pytest.approx(other.loss) and one.loss[-1] < one.loss[0]
    with pytest.raises(RequestError, match="all parameters of the model are frozen"):
        train(order, frozen.requires_grad_(False), LOSS, batches, 0.1, probe)
