"""LARS against a literal transcription of its rule in float64, convention by convention; parameter groups."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from labkit.errors import RequestError
from labkit.optim import LARS
from labkit.optim.groups import parameter_groups
from labkit.optim.schedules import Schedule, momentum_correction, to_torch

SHAPES = [(7, 5), (5,), (3, 2, 4), (), (1, 1), (6, 6), (4, 3)]
RATE = Schedule(peak=8.0, total_steps=200, warmup_steps=40.0, decay="poly", power=2.0)


def literal_lars(weights, gradient_at, rates, *, m=0.9, beta=1e-4, eta=1e-3, eps=0.0, convention="A", decay="ratio",
                 zero_norm="one", nesterov=False, bounds=(0.0, math.inf), clip=False, adapt=None):  # fmt: skip
    """The rule, one tensor and one sentence at a time, in numpy."""
    weights = [w.copy() for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    adapt = adapt or [True] * len(weights)
    for t, rate in enumerate(rates):
        for i, w in enumerate(weights):
            g = gradient_at(t, i, w)
            w_norm, g_norm = math.sqrt((w * w).sum()), math.sqrt((g * g).sum())
            b = beta if adapt[i] else 0.0
            if decay == "sum":
                g_norm = math.sqrt(((g + b * w) ** 2).sum())
            denominator = g_norm + (b * w_norm if decay == "ratio" else 0.0) + eps
            trust = 1.0
            sound = {"quotient": w_norm > 0 and denominator > 0, "none": True}.get(zero_norm, w_norm > 0 and g_norm > 0)
            if adapt[i] and sound:
                trust = min(max(eta * w_norm / denominator, bounds[0]), bounds[1])
                trust = min(trust / rate if rate else math.inf, 1.0) if clip else trust
            elif adapt[i] and zero_norm == "skip":
                b = 0.0
            d = g if decay == "outside" else g + b * w
            into_velocity = {"A": rate * trust, "B": trust, "C": 1.0}[convention]
            outside = {"A": 1.0, "B": rate, "C": rate * trust}[convention]
            velocities[i] = m * velocities[i] + into_velocity * d
            along = into_velocity * d + m * velocities[i] if nesterov else velocities[i]
            apart = rate * b * w if decay == "outside" else 0.0
            weights[i] = w - outside * along - apart
    return weights


def problem(seed=0):
    """Noisy quadratics: gradient h (w - c) + noise; tensor 4 starts at 0, tensor 5 has no gradient at first.

    Single numbers get a slope that stays away from 0: at 1 / |g| with g near 0 convention C magnifies rounding.
    """
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    weights[4] = np.zeros(SHAPES[4])
    curvature = [rng.uniform(0.2, 2.0, size=shape) for shape in SHAPES]
    curvature[6] *= 0.02  # excluded from the ratio below: plain momentum SGD at LARS rates
    noise = [[0.3 * rng.normal(size=shape) for shape in SHAPES] for _ in range(200)]

    def gradient_at(t, i, w):
        if w.size == 1:
            return noise[t][i] - 1.5
        return np.zeros(SHAPES[i]) if i == 5 and t < 25 else curvature[i] * (w - 0.5) + noise[t][i]

    return weights, gradient_at


def run(optimizer, parameters, gradient_at, rates, start=0):
    """Steps `start`.. with the given rates; yields nothing, moves the parameters."""
    for t, rate in enumerate(rates, start):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for i, p in enumerate(parameters):
            p.grad = torch.as_tensor(gradient_at(t, i, p.detach().double().numpy())).to(p.dtype)
        optimizer.step()


def tensors(weights, dtype=torch.float64):
    return [nn.Parameter(torch.tensor(w, dtype=dtype)) for w in weights]


def largest_difference(parameters, weights):
    return max(np.abs(p.detach().numpy() - w).max() for p, w in zip(parameters, weights, strict=True))


RATES = [RATE(t) for t in range(200)]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "convention, decay, zero_norm, nesterov",
    [
        *itertools.product("ABC", ("ratio", "gradient", "sum", "outside"), ("one", "skip"), (False, True)),
        *itertools.product("ABC", ("ratio",), ("quotient", "none"), (False, True)),
    ],
)
def test_equals_the_literal_rule(convention, decay, zero_norm, nesterov, fused):
    weights, gradient_at = problem()
    options = {"convention": convention, "decay": decay, "zero_norm": zero_norm, "nesterov": nesterov}
    parameters = tensors(weights)
    groups = [{"params": parameters[:6]}, {"params": parameters[6:], "adapt": False, "weight_decay": 0.0}]
    optimizer = LARS(groups, lr=1.0, weight_decay=0.05, trust_coefficient=0.005, fused=fused, **options)
    run(optimizer, parameters, gradient_at, RATES)
    expected = literal_lars(weights, gradient_at, RATES, beta=0.05, eta=0.005, adapt=[True] * 6 + [False], **options)
    assert largest_difference(parameters, expected) < 1e-10
    assert all(np.isfinite(w).all() for w in expected)


@pytest.mark.parametrize(
    "options, literal",
    [
        ({"momentum": 0.0}, {"m": 0.0}),
        ({"momentum": 0.0, "convention": "B", "fused": False}, {"m": 0.0}),
        ({"trust_clip": True, "trust_coefficient": 0.05}, {"clip": True, "eta": 0.05}),
        ({"trust_clip": True, "trust_coefficient": 0.05, "fused": False}, {"clip": True, "eta": 0.05}),
        ({"eps": 0.3}, {"eps": 0.3}),
        ({"trust_bounds": (0.004, 0.02)}, {"bounds": (0.004, 0.02)}),
        ({"weight_decay": 0.0}, {"beta": 0.0}),
        ({"trust_coefficient": 0.01}, {"eta": 0.01}),
    ],
)
def test_equals_the_literal_rule_for_the_numbers(options, literal):
    weights, gradient_at = problem(1)
    parameters = tensors(weights)
    run(LARS(parameters, lr=1.0, **options), parameters, gradient_at, RATES)
    expected = literal_lars(weights, gradient_at, RATES, **literal)
    assert largest_difference(parameters, expected) < 1e-10
    if options != {"trust_coefficient": 0.001}:
        assert largest_difference(parameters, literal_lars(weights, gradient_at, RATES)) > 1e-6


@pytest.mark.parametrize("fused", [True, False])
def test_zero_norm_rules_part_only_where_a_norm_is_zero(fused):
    def after_one_step(zero_norm, weight, grad):
        p = nn.Parameter(torch.tensor([weight], dtype=torch.float64))
        p.grad = torch.tensor([grad], dtype=torch.float64)
        LARS([p], lr=1.0, weight_decay=0.25, trust_coefficient=0.5, zero_norm=zero_norm, fused=fused).step()
        return p.item()

    rules = ("one", "skip", "quotient", "none")
    assert [after_one_step(rule, 0.0, 2.0) for rule in rules] == [-2.0, -2.0, -2.0, 0.0]
    assert [after_one_step(rule, 2.0, 0.0) for rule in rules] == [1.5, 2.0, 1.0, 1.0]  # 1.0: r = 0.5 * 2 / (0.25 * 2)
    assert [after_one_step(rule, 0.0, 0.0) for rule in rules[:3]] == [0.0, 0.0, 0.0]
    assert math.isnan(after_one_step("none", 0.0, 0.0))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "exclude, decay, excluded",
    [("flag", 0.0, []), ("undecayed", 0.0, range(7)), ("undecayed", 0.05, []), ("vectors", 0.05, [1, 3])],
)
def test_what_is_excluded_beside_the_flag(exclude, decay, excluded, fused):
    weights, gradient_at = problem(8)
    rates = [rate / 100 for rate in RATES]
    parameters = tensors(weights)
    optimizer = LARS(parameters, lr=1.0, weight_decay=decay, trust_coefficient=0.5, exclude=exclude, fused=fused)
    run(optimizer, parameters, gradient_at, rates)
    adapt = [i not in excluded for i in range(7)]
    expected = literal_lars(weights, gradient_at, rates, beta=decay, eta=0.5, adapt=adapt)
    assert largest_difference(parameters, expected) < 1e-10


def trajectories(rates):
    """Weights after every step under conventions A and B."""
    paths = {}
    for convention in "AB":
        weights, gradient_at = problem(2)
        parameters = tensors(weights[:3])
        optimizer = LARS(parameters, lr=1.0, trust_coefficient=0.02, convention=convention)
        path = [torch.cat([p.detach().flatten() for p in parameters])]
        for t, rate in enumerate(rates):
            run(optimizer, parameters, gradient_at, [rate], start=t)
            path.append(torch.cat([p.detach().flatten() for p in parameters]))
        paths[convention] = torch.stack(path)
    return paths["A"], paths["B"]


def test_conventions_a_and_b_agree_at_a_constant_rate_and_part_under_a_ramp():
    a, b = trajectories([1.7] * 200)
    assert (a - b).abs().max() < 1e-6 * a.abs().max()
    a, b = trajectories(RATES)
    assert (a[-1] - b[-1]).norm() > 1e-3 * a[-1].norm()
    step_a, step_b = a.diff(dim=0).norm(dim=1), b.diff(dim=0).norm(dim=1)
    assert step_b[5] > 1.2 * step_a[5]  # ahead on the ramp: B applies today's rate to yesterday's gradients
    assert step_b[190] < 0.6 * step_a[190]  # and behind as the rate decays


def test_step_ratio_of_b_to_a_is_the_rate_over_its_momentum_average():
    m, p = 0.9, {c: nn.Parameter(torch.zeros(1, dtype=torch.float64)) for c in "AB"}
    optimizers = {c: LARS([{"params": [p[c]], "adapt": False}], lr=1.0, weight_decay=0.0, convention=c) for c in "AB"}
    before = {c: 0.0 for c in "AB"}
    for t in range(200):
        step = {}
        for c in "AB":
            run(optimizers[c], [p[c]], lambda *_: np.ones(1), [RATE(t)])
            step[c], before[c] = p[c].item() - before[c], p[c].item()
        powers = [m**j for j in range(t + 1)]
        average = sum(w * RATE(t - j) for j, w in enumerate(powers)) / sum(powers)
        if t:
            assert step["B"] / step["A"] == pytest.approx(RATE(t) / average, rel=1e-9)


def test_momentum_correction_makes_a_follow_b():
    rates = [Schedule(2.0, 200, 40, decay="poly", ramp="first-step")(t) for t in range(200)]
    rates[100:] = [r / 10 for r in rates[100:]]
    results = []
    for convention in "AB":
        weights, gradient_at = problem(3)
        parameters = tensors(weights)
        optimizer = LARS(parameters, lr=1.0, convention=convention, trust_coefficient=0.02)
        for t, rate in enumerate(rates):
            if convention == "A" and t:
                optimizer.param_groups[0]["momentum"] = 0.9 * momentum_correction(rates[t - 1], rate)
            run(optimizer, parameters, gradient_at, [rate], start=t)
        results.append([p.detach().numpy() for p in parameters])
    assert max(np.abs(a - b).max() for a, b in zip(*results, strict=True)) < 1e-10


@pytest.mark.parametrize("nesterov, decay", [(False, 0.0), (True, 0.1), (False, 0.1)])
def test_excluded_parameters_follow_torch_sgd(nesterov, decay):
    for convention, rates in (("B", [r / 100 for r in RATES]), ("A", [0.05] * 200)):
        weights, gradient_at = problem(4)
        ours, theirs = tensors(weights), tensors(weights)
        lars = LARS([{"params": ours, "adapt": False}], 1.0, 0.9, decay, convention=convention, nesterov=nesterov)
        run(lars, ours, gradient_at, rates)
        sgd = torch.optim.SGD(theirs, 1.0, 0.9, weight_decay=decay, nesterov=nesterov)
        run(sgd, theirs, gradient_at, rates)
        assert largest_difference(ours, [p.detach().numpy() for p in theirs]) < 1e-12


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_first_step_does_not_see_the_scale_of_the_gradient(gradient_scale, weight_scale):
    w = torch.linspace(0.5, 2.0, 6, dtype=torch.float64) * weight_scale
    g = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64) * gradient_scale
    p = nn.Parameter(w.clone())
    p.grad = g.clone()
    LARS([p], lr=2.0, weight_decay=0.0, trust_coefficient=0.01).step()
    assert (p.detach() - w).norm().item() == pytest.approx(0.02 * w.norm().item(), rel=1e-9)
    assert torch.equal(p.grad, g)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_resume_is_bit_equal_and_half_precision_keeps_float32_state(dtype):
    weights, gradient_at = problem(5)
    parameters = tensors(weights, dtype)
    optimizer = LARS(parameters, lr=1.0)
    run(optimizer, parameters, gradient_at, RATES[30:42])
    saved = copy.deepcopy(optimizer.state_dict())
    again = [nn.Parameter(p.detach().clone()) for p in parameters]
    resumed = LARS(again, lr=1.0)
    resumed.load_state_dict(saved)
    assert {s["momentum_buffer"].dtype for s in resumed.state.values()} == {
        torch.float64 if dtype == torch.float64 else torch.float32
    }
    run(optimizer, parameters, gradient_at, RATES[42:60], start=12)
    run(resumed, again, gradient_at, RATES[42:60], start=12)
    assert all(p.dtype == dtype and torch.equal(p, q) for p, q in zip(parameters, again, strict=True))
    buffers = [[s["momentum_buffer"] for s in o.state.values()] for o in (optimizer, resumed)]
    assert all(torch.equal(a, b) for a, b in zip(*buffers, strict=True))


def test_half_precision_weights_take_one_rounding_of_the_float32_step():
    weights, gradient_at = problem(6)
    half = tensors(weights, torch.bfloat16)
    single = [nn.Parameter(p.detach().float()) for p in half]
    for parameters in (half, single):
        for i, p in enumerate(parameters):
            p.grad = torch.as_tensor(gradient_at(0, i, weights[i])).bfloat16().to(p.dtype)
        LARS(parameters, lr=10.0, trust_coefficient=0.05).step()
    assert all(torch.equal(h, s.bfloat16()) for h, s in zip(half, single, strict=True))


def test_nothing_is_read_back_to_the_host():
    # Tensors of the meta device have no values: whatever asks for one fails.
    for rate in (0.1, torch.tensor(0.1, device="meta")):
        parameters = [nn.Parameter(torch.ones(3, 2, device="meta")), nn.Parameter(torch.ones(4, device="meta"))]
        optimizer = LARS(parameters, lr=rate, zero_norm="skip", decay="outside", nesterov=True)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert optimizer.state[parameters[0]]["momentum_buffer"].shape == (3, 2)


def test_a_rate_in_a_tensor_gives_the_same_steps():
    weights, gradient_at = problem(7)
    plain, held = tensors(weights), tensors(weights)
    run(LARS(plain, lr=1.0, convention="C", decay="outside"), plain, gradient_at, RATES[:60])
    rate = torch.tensor(0.0, dtype=torch.float64)
    optimizer = LARS(held, lr=rate, convention="C", decay="outside")
    for t in range(60):
        rate.fill_(RATES[t])
        run(optimizer, held, gradient_at, [rate], start=t)
    assert all(torch.allclose(p, q, rtol=1e-12, atol=1e-14) for p, q in zip(plain, held, strict=True))


def test_closure_schedule_missing_gradients_and_added_groups():
    moving, still = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = LARS([moving, still], lr=RATE.peak)
    late = nn.Parameter(torch.full((2,), 3.0))
    optimizer.add_param_group({"params": [late], "adapt": False})
    scheduler = to_torch(optimizer, RATE)

    def closure():
        optimizer.zero_grad()
        loss = (moving**2).sum() + (late**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 20.0
    assert torch.equal(moving, torch.ones(2))  # the rate of step 0 is 0
    scheduler.step()
    optimizer.step(closure)
    assert moving[0] < 1 and late[0] < 3 and torch.equal(still, torch.ones(2)) and still not in optimizer.state


def test_a_sparse_gradient_is_refused_before_anything_moves():
    embedding, weight = nn.Embedding(10, 3, sparse=True), nn.Parameter(torch.ones(3))
    optimizer = LARS([{"params": [weight]}, {"params": embedding.parameters()}], lr=0.1)
    (embedding(torch.tensor([1, 2])) * weight).sum().backward()
    with pytest.raises(RequestError, match=r"LARS takes dense gradients, \(10, 3\) has a sparse one; use sparse=False"):
        optimizer.step()
    assert torch.equal(weight, torch.ones(3))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr": -1.0}, r"lr must be a number in \[0, inf\), not -1.0"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\), not 1.0"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"trust_coefficient": 0.0}, r"trust_coefficient must be a number in \(0, inf\)"),
        ({"eps": -1e-9}, "eps must be"),
        ({"convention": "D"}, "unknown convention 'D'; allowed: A, B, C"),
        ({"decay": "inside"}, "unknown decay 'inside'; allowed: ratio, gradient, sum, outside"),
        ({"exclude": "biases"}, "unknown exclude 'biases'; allowed: flag, undecayed, vectors"),
        ({"dialect": "adam"}, "unknown dialect 'adam'; allowed: paper, tpu, mlperf"),
        ({"fused": 1}, "fused must be True or False, not 1"),
        ({"zero_norm": "zero"}, "unknown zero_norm 'zero'; allowed: one, skip, quotient, none"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs a momentum above 0"),
        ({"trust_bounds": (2.0, 1.0)}, "trust_bounds must be"),
    ],
)
def test_what_lars_refuses(options, message):
    with pytest.raises(RequestError, match=message) as refusal:
        LARS([nn.Parameter(torch.ones(2))], **{"lr": 0.1, **options})
    assert "\n" not in str(refusal.value)


def test_a_bad_added_group_is_refused_and_not_added():
    optimizer = LARS([nn.Parameter(torch.ones(2))], lr=0.1)
    for group, message in [
        ({"adapt": 1}, "adapt must be True or False, not 1"),
        ({"params": [torch.ones(2, dtype=torch.complex64)]}, "real floating-point tensors, not torch.complex64"),
    ]:
        with pytest.raises(RequestError, match=message):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], **group})
    assert len(optimizer.param_groups) == 1


class RootNorm(nn.Module):
    """A norm layer of the reader's own."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 4, bidirectional=True)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), RootNorm(),
                                    nn.InstanceNorm1d(4, affine=True), nn.RMSNorm(4)])  # fmt: skip
        self.out = nn.Linear(4, 9)
        self.out.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


def test_parameter_groups_name_every_parameter_once():
    model = Everything()
    names = {p: name for name, p in model.named_parameters()}
    adapted, excluded = parameter_groups(model, 0.1)
    assert (adapted["weight_decay"], adapted["adapt"]) == (0.1, True)
    assert (excluded["weight_decay"], excluded["adapt"]) == (0.0, False)
    both = adapted["params"] + excluded["params"]
    assert len(both) == len(set(both)) == len(names)
    lstm = [f"lstm.weight_{kind}_l0{end}" for end in ("", "_reverse") for kind in ("ih", "hh")]
    expected = {"embedding.weight", "frozen", "attention.in_proj_weight", "attention.out_proj.weight", *lstm}
    assert {names[p] for p in adapted["params"]} == expected
    LARS([adapted, excluded], lr=0.1)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_parameter_tied_to_a_norm_is_excluded_whichever_owner_comes_first(norm_first):
    norm, other = RootNorm(), nn.Module()
    other.scale = norm.gain
    adapted, excluded = parameter_groups(nn.ModuleList([norm, other] if norm_first else [other, norm]), 0.1)
    assert adapted["params"] == [] and len(excluded["params"]) == 1


def test_parameter_groups_exclude_what_is_asked():
    model = Everything()
    names = {p: name for name, p in model.named_parameters()}
    only_norms = {names[p] for p in parameter_groups(model, 0.1, exclude=("norm",))[1]["params"]}
    assert only_norms == {name for name in names.values() if name.startswith("norms.")}
    assert parameter_groups(model, 0.1, exclude=())[1]["params"] == []
    with pytest.raises(RequestError, match="unknown exclusion 'bn'; allowed: bias, norm"):
        parameter_groups(model, 0.1, exclude=("bn",))
    with pytest.raises(RequestError, match="weight_decay must be"):
        parameter_groups(model, -0.1)
