"""Local SGD and elastic averaging on real ranks, against literal transcriptions in float64, and what may go wrong."""

import copy
import math
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labkit.errors import RequestError
from labkit.training.averaging import ElasticAveraging, LocalSGD
from labkit.training.gossip import Gossip
from labkit.training.ranks import RanksError, run_ranks
from labs import mix_extras, mix_ranks

sys.path.insert(0, str(Path(__file__).parent / "workers"))
import mixing_ranks  # noqa: E402
from mixing_ranks import SIZE, numbers  # noqa: E402

STEPS, RATE = 7, 0.3


def targets(ranks):
    return torch.stack([numbers(rank, STEPS) for rank in range(ranks)], 1)  # [steps, ranks, size]


def local(ranks, period, begin=0, momentum=0.0):
    """Literal: [steps, ranks, size]."""
    weights, speed, path = torch.zeros(ranks, SIZE).double(), torch.zeros(ranks, SIZE).double(), []
    for step, target in enumerate(targets(ranks)):
        gradients = weights - target
        if step < begin:
            gradients = gradients.mean(0).expand(ranks, -1)
        speed = momentum * speed + gradients
        weights = weights - RATE * speed
        if step + 1 > begin and (step + 1 - begin) % period == 0:
            weights = weights.mean(0).repeat(ranks, 1)
        path.append(weights)
    return torch.stack(path)


def elastic(ranks, period, alpha, momentum=0.0):
    """Literal: ([steps, ranks, size], the centre)."""
    weights, speed, path = torch.zeros(ranks, SIZE).double(), torch.zeros(ranks, SIZE).double(), []
    centre = torch.zeros(SIZE).double()
    for step, target in enumerate(targets(ranks)):
        speed = momentum * speed + weights - target
        pull = alpha * (weights - centre) if step % period == 0 else torch.zeros_like(weights)
        weights, centre = weights - pull - RATE * speed, centre + pull.sum(0)
        path.append(weights)
    return torch.stack(path), centre


@pytest.fixture(scope="module")
def paths():
    """name -> [steps, ranks, size] on four ranks, the ranks' centres and what each rank all-reduced; one launch."""
    calls = {
        "synchronous": (("local", {"period": 1}), {}),
        "synchronous, momentum": (("local", {"period": 1}), {"momentum": 0.9}),
        "Adam": (("local", {"period": 1}), {"optimizer": "Adam"}),
        "period 3": (("local", {"period": 3}), {"momentum": 0.9}),
        "post-local": (("local", {"period": 2, "begin": 3}), {"momentum": 0.9}),
        "only synchronous": (("local", {"period": 2, "begin": 99}), {"momentum": 0.9}),
        "elastic": (("elastic", {"period": 1, "alpha": 0.2}), {}),
        "elastic, period 2": (("elastic", {"period": 2, "alpha": 0.1}), {"momentum": 0.9}),
        "block": (("block", {"period": 2, "momentum": 0.6, "rate": 0.9}), {"momentum": 0.5}),
        "block, Nesterov": (("block", {"period": 2, "momentum": 0.6, "nesterov": True}), {}),
        "block without momentum": (("block", {"period": 3, "momentum": 0.0}), {"momentum": 0.9}),
    }
    ranks = run_ranks(mixing_ranks.several, 4, [*calls.values()])
    return {name: (torch.stack([rank[at][0] for rank in ranks], 1), [rank[at][1] for rank in ranks], ranks[0][at][2])
            for at, name in enumerate(calls)}


def close(found, right):
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name, momentum", [("synchronous", 0.0), ("synchronous, momentum", 0.9)])
def test_averaging_in_every_step_is_synchronous_sgd(paths, name, momentum):
    weight, speed, path = torch.zeros(SIZE).double(), torch.zeros(SIZE).double(), []
    for target in targets(4):
        speed = momentum * speed + (weight - target).mean(0)
        weight = weight - RATE * speed
        path.append(weight)
    for rank in range(4):
        close(paths[name][0][:, rank], torch.stack(path))


def test_but_not_with_adam(paths):
    weight = nn.Parameter(torch.zeros(SIZE).double())
    optimizer = torch.optim.Adam([weight], RATE)
    for target in targets(4):
        weight.grad = (weight.detach() - target).mean(0)
        optimizer.step()
    assert (paths["Adam"][0][-1, 0] - weight.detach()).abs().max() > 0.01


@pytest.mark.parametrize("name, period, begin", [("period 3", 3, 0), ("post-local", 2, 3), ("only synchronous", 2, 99)])
def test_local_sgd_equals_its_transcription(paths, name, period, begin):
    close(paths[name][0], local(4, period, begin, 0.9))


def test_ranks_differ_between_averages_and_agree_after_one(paths):
    path = paths["period 3"][0]
    apart = (path - path.mean(1, keepdim=True)).abs().amax((1, 2))
    assert (apart[[2, 5]] == 0).all() and (apart[[0, 1, 3, 4, 6]] > 1e-3).all()


@pytest.mark.parametrize("name, calls", [("synchronous", 7), ("period 3", 2), ("post-local", 3 + 2), ("elastic", 7),
                                         ("elastic, period 2", 1 + 3)])
def test_one_all_reduce_of_all_parameters_for_each_average(paths, name, calls):
    sent = {("all_reduce", SIZE): calls}
    if name == "post-local":  # three times gradients, with a word for each of the two tensors
        sent = {("all_reduce", SIZE + 2): 3, ("all_reduce", SIZE): 2}
    assert paths[name][2] == sent


@pytest.mark.parametrize("name, period, alpha, momentum", [("elastic", 1, 0.2, 0.0),
                                                           ("elastic, period 2", 2, 0.1, 0.9)])
def test_elastic_averaging_equals_its_transcription(paths, name, period, alpha, momentum):
    path, centre = elastic(4, period, alpha, momentum)
    close(paths[name][0], path)
    for found in paths[name][1]:
        close(found, centre)


def blocks(ranks, period, block_momentum, block_rate, nesterov, momentum):
    """Literal block momentum: [steps, ranks, size]."""
    weights, speed, path = torch.zeros(ranks, SIZE).double(), torch.zeros(ranks, SIZE).double(), []
    whole = begin = push = torch.zeros(SIZE).double()
    for step, target in enumerate(targets(ranks), start=1):
        speed = momentum * speed + weights - target
        weights = weights - RATE * speed
        if step % period == 0:
            push = block_momentum * push + block_rate * (weights.mean(0) - begin)
            whole = whole + push
            begin = whole + block_momentum * push if nesterov else whole
            weights = begin.repeat(ranks, 1)
        path.append(weights)
    return torch.stack(path)


def test_block_momentum_equals_its_transcription(paths):
    close(paths["block"][0], blocks(4, 2, 0.6, 0.9, False, 0.5))
    close(paths["block, Nesterov"][0], blocks(4, 2, 0.6, 1.0, True, 0.0))
    close(paths["block without momentum"][0], local(4, 3, 0, 0.9))


def test_the_elastic_centre_on_a_server_moves_as_written(tmp_path):
    centre, worker = run_ranks(mix_ranks.elastic_without_waiting, 2, str(tmp_path / "socket"), 9, 2)
    c, w, goal, path = np.zeros(5), np.zeros(5), mix_ranks.start(1, 5), []
    for step in range(9):
        step_of_gradient = 0.3 * (w - goal)
        if step and step % 2 == 0:
            w, c = w - 0.2 * (w - c), c + 0.2 * (w - c)
        w = w - step_of_gradient
        path.append(w)
    np.testing.assert_allclose(worker["path"], path, atol=1e-12)
    np.testing.assert_allclose(centre["centre"], c, atol=1e-12)
    assert centre["updates"] == 4


def test_elastic_workers_that_do_not_wait_draw_one_centre_between_their_goals(tmp_path):
    centre, *workers = run_ranks(mix_ranks.elastic_without_waiting, 4, str(tmp_path / "socket"), 200)
    goals = [mix_ranks.start(rank, 5) for rank in (1, 2, 3)]
    assert centre["updates"] == 3 * 199
    low, high = np.min(goals, 0), np.max(goals, 0)
    assert ((low - 1e-9 <= centre["centre"]) & (centre["centre"] <= high + 1e-9)).all()


def test_buffers_are_averaged_where_they_are_given():
    for given, means in ((False, [0.0, 0.1]), (True, [0.05, 0.05])):
        found = run_ranks(mixing_ranks.statistics, 2, "local", {"period": 1}, given)
        assert [mean for mean, _ in found] == [pytest.approx([value] * 3) for value in means]
        assert [count for _, count in found] == [1, 1]  # a counter is no average


@pytest.mark.parametrize("method, options", [("local", {"period": 1}), ("local", {"period": 1, "begin": 9}),
                                             ("elastic", {"period": 1}), ("gossip", {"topology": "ring"})])
def test_a_rank_with_nan_is_named_and_all_stop(method, options):
    with pytest.raises(RanksError, match="rank 1 of 3 failed: WorkError: rank 1 has .* not finite and sent nothing"):
        run_ranks(mixing_ranks.poisoned, 3, method, options, 1)


def test_unequal_shards_end_together():
    assert run_ranks(mixing_ranks.uneven, 3, [4, 2, 3], True) == [2, 2, 2]


def test_unequal_shards_would_wait_and_are_stopped():
    with pytest.raises(RanksError, match="rank 0 of 2 had not .* rank 1 had ended: do all .*even_steps") as error:
        run_ranks(mixing_ranks.uneven, 2, [3, 2], False, timeout=15)
    assert "all_reduce" in error.value.reports[0]


class Alone:
    """In the place of a client: the centre is where the worker begins."""

    def join(self, vector):
        return vector


def asynchronous(inner, **options):
    return mix_extras.AsynchronousElastic(inner, Alone(), **options)


@pytest.mark.parametrize("make", [LocalSGD, ElasticAveraging, mix_extras.BlockMomentum, asynchronous])
@pytest.mark.parametrize("period", [0, 2.5, 8.0, math.nan, math.inf, "4", None, True])
def test_a_period_is_a_whole_number(make, period):
    with pytest.raises(RequestError, match=f"period must be a whole number of 1 or more, not {period!r}"):
        make(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), period=period)


@pytest.mark.parametrize("make, options, words", [
    (LocalSGD, {"begin": -1}, "begin must be a whole number of 0 or more, not -1"),
    (LocalSGD, {"begin": math.nan}, "begin .*not nan"),
    (ElasticAveraging, {"alpha": 1.5}, "alpha must be a number from 1e-09 to 1, not 1.5"),
    (ElasticAveraging, {"alpha": 0.0}, "alpha .*not 0.0"),
    (ElasticAveraging, {"alpha": math.nan}, "alpha .*not nan"),
    (asynchronous, {"alpha": "0.1"}, "alpha .*not '0.1'"),
    (asynchronous, {"alpha": 1.0}, "alpha 1.0"),
    (mix_extras.BlockMomentum, {"momentum": 1.0}, "momentum 1.0"),
    (mix_extras.BlockMomentum, {"momentum": math.nan}, "momentum .*not nan"),
    (mix_extras.BlockMomentum, {"rate": math.nan}, "rate .*not nan"),
    (mix_extras.BlockMomentum, {"rate": math.inf}, "rate .*not inf"),
    (mix_extras.BlockMomentum, {"rate": 0}, "rate 0"),
    (mix_extras.BlockMomentum, {"rate": "1"}, "rate .*not '1'")])
def test_values_out_of_range_are_refused(make, options, words):
    with pytest.raises(RequestError, match=words):
        make(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), **options)


def test_what_steps_with_a_closure_only_is_refused():
    with pytest.raises(RequestError, match="LBFGS calls its closure as it likes"):
        LocalSGD(torch.optim.LBFGS([nn.Parameter(torch.zeros(1))]))


def test_post_local_sgd_leaves_alone_what_has_no_gradient():
    """Of one process on the mean loss: weight decay moves what has a gradient, be it 0, and nothing else."""
    frozen, unused, seldom, nothing, used = [torch.ones(2).double() for _ in range(5)]
    for _ in range(3):
        for weight, gradient in ((seldom, 1 / 3), (nothing, 0.0), (used, 1.0)):
            weight -= 0.1 * (gradient + 0.5 * weight)
    for weights, there in run_ranks(mixing_ranks.without_gradients, 3):
        close(weights, torch.stack([frozen, unused, seldom, nothing, used]))
        assert there == [False, False, True, True, True]


def problem(momentum=0.9):
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    return weight, torch.optim.SGD([weight], 0.1, momentum)


def advance(weight, optimizer, steps, scheduler=None):
    for _ in range(steps):
        weight.grad = weight.detach().clone()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return weight.detach().clone()


@pytest.mark.parametrize("wrap", [lambda inner: LocalSGD(inner, 2), lambda inner: LocalSGD(inner, 2, begin=3), Gossip])
def test_alone_it_is_the_inner_optimizer(wrap):
    expected = advance(*problem(), 5)
    weight, inner = problem()
    assert torch.equal(advance(weight, wrap(inner), 5), expected)


def test_a_closure_is_called_once_with_gradients_on():
    (weight, inner), calls = problem(), []

    def closure():
        calls.append(torch.is_grad_enabled())
        weight.grad = weight.detach().clone()
        return weight.detach().sum()

    assert LocalSGD(inner, 1).step(closure) == -1.0 and calls == [True]
    assert torch.equal(weight, advance(*problem(), 1))


MADE = [lambda inner: LocalSGD(inner, 2), lambda inner: ElasticAveraging(inner, 2, 0.5), Gossip,
        lambda inner: mix_extras.BlockMomentum(inner, 2, 0.5)]


@pytest.mark.parametrize("wrap", MADE)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_go_on_by_themselves(wrap, copied):
    weight, inner = problem()
    made = wrap(inner)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)  # it changes `step` of this object
    advance(weight, made, 3, scheduler)
    other_weight, other = copied((weight, made))
    assert other.param_groups is other.inner.param_groups and other.state is other.inner.state
    assert other.steps == 3 and not other.ready and other.parameters[0] is other_weight
    before = weight.detach().clone()
    ended = advance(other_weight, other, 3)
    assert torch.equal(weight, before) and made.steps == 3
    assert torch.equal(advance(weight, made, 3), ended)


def test_what_holds_a_connection_or_locks_is_not_copied(tmp_path):
    inner = problem()[1]
    for made in (asynchronous(inner), mix_extras.Pairwise(inner, torch.zeros(1, 2), tmp_path)):
        with pytest.raises(RequestError, match="cannot be copied"):
            copy.deepcopy(made)


@pytest.mark.parametrize("name", ["elastic", "block", "asynchronous", "pairwise"])
def test_parameters_added_to_a_method_that_keeps_vectors_of_them_are_refused(name, tmp_path):
    weight, inner = problem()
    made = {"elastic": lambda: ElasticAveraging(inner, 1), "block": lambda: mix_extras.BlockMomentum(inner, 2, 0.5),
            "asynchronous": lambda: asynchronous(inner, period=1),
            "pairwise": lambda: mix_extras.Pairwise(inner, torch.zeros(1, 2), tmp_path)}[name]()
    if name != "asynchronous":
        advance(weight, made, 1)
    else:
        made.steps = 1
    inner.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    with pytest.raises(RequestError, match="began with 2 words, now it has 5"):
        made.step()


@pytest.mark.parametrize("on", ["inner", "wrapper"])
def test_schedules_act_whichever_they_were_given(on):
    weight, inner = problem()
    expected = advance(weight, inner, 4, torch.optim.lr_scheduler.ExponentialLR(inner, 0.5))
    weight, inner = problem()
    wrapped = LocalSGD(inner, 2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(inner if on == "inner" else wrapped, 0.5)
    assert torch.equal(advance(weight, wrapped, 4, scheduler), expected)
    assert wrapped.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == 0.1 * 0.5**4


def test_groups_added_to_either_are_stepped():
    weight, inner = problem()
    wrapped, other = LocalSGD(inner, 2), nn.Parameter(torch.ones(3))
    wrapped.add_param_group({"params": [other]})
    other.grad = torch.ones(3)
    wrapped.step()
    assert inner.param_groups is wrapped.param_groups and torch.allclose(other, torch.full((3,), 0.9))
    assert [tensor.numel() for tensor in wrapped.parameters] == [2, 3]


def test_a_checkpoint_goes_on_exactly_in_a_wrapper_and_in_a_bare_optimizer():
    weight, inner = problem()
    wrapped = ElasticAveraging(inner, 2, 0.5)
    at_three = advance(weight, wrapped, 3)
    saved = copy.deepcopy(wrapped.state_dict())
    expected = advance(weight, wrapped, 3)
    weight, inner = problem()
    resumed = ElasticAveraging(inner, 2, 0.5)
    with torch.no_grad():
        weight.copy_(at_three)
    resumed.load_state_dict(saved)
    assert resumed.steps == 3 and torch.equal(advance(weight, resumed, 3), expected)
    weight, inner = problem()
    inner.load_state_dict(saved)
    assert torch.equal(inner.state[weight]["momentum_buffer"], saved["state"][0]["momentum_buffer"])
    fresh = LocalSGD(problem()[1], 2)
    fresh.load_state_dict({key: saved[key] for key in ("state", "param_groups")})
    assert fresh.steps == 0 and fresh.state is fresh.inner.state and len(fresh.state) == 1


@pytest.mark.parametrize("wrap, names", [(lambda inner: ElasticAveraging(inner, 2, 0.5), ["centre"]),
                                         (lambda inner: mix_extras.BlockMomentum(inner, 2, 0.5),
                                          ["block", "speed", "start"])])
def test_what_a_wrapper_keeps_goes_to_the_device_of_the_parameters(wrap, names):
    weight, inner = problem()
    wrapped = wrap(inner)
    advance(weight, wrapped, 3)
    there = wrap(torch.optim.SGD([nn.Parameter(torch.zeros(2, device="meta"))], 0.1, 0.9))
    there.load_state_dict(wrapped.state_dict())
    assert {getattr(there, name).device.type for name in names} == {"meta"} and there.steps == 3


def test_gossip_goes_on_counting():
    one, other = Gossip(problem()[1]), Gossip(problem()[1])
    one.messages, one.words = 6, 12
    other.load_state_dict(one.state_dict())
    assert (other.messages, other.words) == (6, 12)
