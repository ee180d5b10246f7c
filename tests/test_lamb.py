"""LAMB against a literal transcription of its rule in float64, dialect by dialect."""

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
from labkit.optim import LAMB
from labkit.optim.schedules import Schedule

SHAPES = [(7, 5), (5,), (3, 2, 4), (), (1, 1), (6, 6), (4, 3)]
RATE = Schedule(peak=0.05, total_steps=200, warmup_steps=40.0, decay="poly", power=2.0)
RATES = [RATE(t) for t in range(200)]


def literal_lamb(weights, gradient_at, rates, *, betas=(0.9, 0.999), eps=1e-6, decay_rate=0.01, bias_correction=True,
                 decay="ratio", phi_bounds=None, zero_norm="one", max_grad_norm=None, unit=False, ratio_eps=0.0,
                 trust_bounds=(0.0, math.inf), adapt=None):  # fmt: skip
    """The rule, one tensor and one sentence at a time, in numpy."""
    weights = [w.copy() for w in weights]
    m, v = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    adapt = adapt or [True] * len(weights)
    for t, rate in enumerate(rates, start=1):
        grads = [gradient_at(t - 1, i, w) for i, w in enumerate(weights)]
        if max_grad_norm is not None:
            total = math.sqrt(sum((g * g).sum() for g in grads))
            grads = [g * min(1.0, max_grad_norm / total) for g in grads]
        if unit:
            total = math.sqrt(sum((g * g).sum() for g in grads))
            grads = [g / total for g in grads]
        for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g**2
            m_hat, v_hat = m[i], v[i]
            if bias_correction is True:
                m_hat, v_hat = m_hat / (1 - betas[0] ** t), v_hat / (1 - betas[1] ** t)
            r = m_hat / (np.sqrt(v_hat) + eps)
            b = decay_rate if adapt[i] else 0.0
            if decay == "before":
                w = w - rate * b * w
            w_norm = math.sqrt((w * w).sum())
            if adapt[i] and zero_norm == "skip" and (w_norm == 0 or not r.any()):
                b = 0.0
            u = r + b * w if decay == "ratio" else r
            u_norm = math.sqrt((u * u).sum())
            ratio = 1.0
            if adapt[i] and w_norm > 0 and u_norm > 0:
                phi = w_norm if phi_bounds is None else min(max(w_norm, phi_bounds[0]), phi_bounds[1])
                ratio = min(max(phi / (u_norm + ratio_eps), trust_bounds[0]), trust_bounds[1])
            factor = {"rate": math.sqrt(1 - betas[1] ** t), "rate-first": 1.0}.get(bias_correction)
            factor = rate * (1.0 if factor is None else factor / (1 - betas[0] ** t))
            weights[i] = w - factor * ratio * u - (rate * b * w if decay == "outside" else 0.0)
    return weights


def problem(seed=0):
    """Noisy quadratics; tensor 4 starts at 0, tensor 5 has no gradient during the first 25 steps."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    weights[4] = np.zeros(SHAPES[4])
    curvature = [rng.uniform(0.2, 2.0, size=shape) for shape in SHAPES]
    noise = [[0.3 * rng.normal(size=shape) for shape in SHAPES] for _ in range(200)]

    def gradient_at(t, i, w):
        if w.size == 1:
            return noise[t][i] - 1.5
        return np.zeros(SHAPES[i]) if i == 5 and t < 25 else curvature[i] * (w - 0.5) + noise[t][i]

    return weights, gradient_at


def run(optimizer, parameters, gradient_at, rates, start=0):
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


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "decay, zero_norm, bias_correction, max_grad_norm",
    [
        *itertools.product(("ratio", "outside"), ("one", "skip"), (True, False), (None, 1.0)),
        *itertools.product(("ratio", "outside", "before"), ("one",), ("rate", "rate-first", True), (None,)),
    ],
)
def test_equals_the_literal_rule(decay, zero_norm, bias_correction, max_grad_norm, fused):
    weights, gradient_at = problem()
    options = {"decay": decay, "zero_norm": zero_norm}
    options |= {"bias_correction": bias_correction, "max_grad_norm": max_grad_norm}
    parameters = tensors(weights)
    groups = [{"params": parameters[:6]}, {"params": parameters[6:], "adapt": False, "weight_decay": 0.0}]
    run(LAMB(groups, lr=1.0, weight_decay=0.1, fused=fused, **options), parameters, gradient_at, RATES)
    expected = literal_lamb(weights, gradient_at, RATES, decay_rate=0.1, adapt=[True] * 6 + [False], **options)
    assert largest_difference(parameters, expected) < 1e-10
    assert all(np.isfinite(w).all() for w in expected)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "options, literal",
    [
        ({"betas": (0.62, 0.9)}, {"betas": (0.62, 0.9)}),
        ({"betas": (0.0, 0.0)}, {"betas": (0.0, 0.0)}),
        ({"eps": 0.1}, {"eps": 0.1}),
        ({"weight_decay": 0.0}, {"decay_rate": 0.0}),
        ({"phi_bounds": (0.5, 2.0)}, {"phi_bounds": (0.5, 2.0)}),
        ({"phi_bounds": (0.0, 1.0), "zero_norm": "skip"}, {"phi_bounds": (0.0, 1.0), "zero_norm": "skip"}),
        ({"ratio_eps": 0.1}, {"ratio_eps": 0.1}),
        ({"trust_bounds": (0.0, 0.5)}, {"trust_bounds": (0.0, 0.5)}),
        ({"pre_normalize": True, "eps": 0.1}, {"unit": True, "eps": 0.1}),
        ({"exclude": "vectors"}, {"adapt": [True, False, True, False, True, True, True]}),
        ({"exclude": "undecayed", "weight_decay": 0.0}, {"adapt": [False] * 7}),
    ],
)
def test_equals_the_literal_rule_for_the_numbers(options, literal, fused):
    weights, gradient_at = problem(1)
    parameters = tensors(weights)
    run(LAMB(parameters, lr=1.0, fused=fused, **options), parameters, gradient_at, RATES)
    assert largest_difference(parameters, literal_lamb(weights, gradient_at, RATES, **literal)) < 1e-10
    assert largest_difference(parameters, literal_lamb(weights, gradient_at, RATES)) > 1e-6


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-2, 1e3), st.floats(0.0, 1.0))
def test_every_step_moves_a_tensor_by_the_rate_times_its_norm(gradient_scale, weight_scale, decay):
    p = nn.Parameter(torch.linspace(0.5, 2.0, 6, dtype=torch.float64) * weight_scale)
    optimizer = LAMB([p], lr=0.01, weight_decay=decay)
    for t in range(4):
        before = p.detach().clone()
        p.grad = torch.cos(torch.arange(6.0, dtype=torch.float64) * (t + 1)) * gradient_scale
        optimizer.step()
        assert (p.detach() - before).norm().item() == pytest.approx(0.01 * before.norm().item(), rel=1e-9)


@pytest.mark.parametrize("decay", ["ratio", "outside"])
def test_excluded_parameters_follow_torch_adamw(decay):
    weights, gradient_at = problem(2)
    ours, theirs = tensors(weights), tensors(weights)
    run(LAMB([{"params": ours, "adapt": False}], 1.0, weight_decay=0.1, decay=decay), ours, gradient_at, RATES)
    run(torch.optim.AdamW(theirs, 1.0, eps=1e-6, weight_decay=0.1), theirs, gradient_at, RATES)
    assert largest_difference(ours, [p.detach().numpy() for p in theirs]) < 1e-12


@pytest.mark.parametrize("zero_norm, expected", [("one", 0.99), ("skip", 1.0)])
def test_a_tensor_without_gradient_signal_shrinks_unless_skipped(zero_norm, expected):
    p = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    p.grad = torch.zeros_like(p)
    LAMB([p], lr=0.01, weight_decay=1e-5, zero_norm=zero_norm).step()
    assert p.norm().item() == pytest.approx(5.0 * expected, rel=1e-12)


def test_global_clipping_sees_all_groups_and_leaves_gradients_alone():
    weights, gradient_at = problem(3)
    parameters, doubled = tensors(weights), tensors(weights)
    for scale, params in ((1.0, parameters), (2.0, doubled)):
        optimizer = LAMB([{"params": params[:3]}, {"params": params[3:]}], lr=0.1, eps=1.0, max_grad_norm=1.0)
        for i, p in enumerate(params):
            p.grad = scale * torch.as_tensor(gradient_at(0, i, weights[i]))
        kept = [p.grad.clone() for p in params]
        optimizer.step()
        assert all(torch.equal(p.grad, k) for p, k in zip(params, kept, strict=True))
    assert all(torch.allclose(p, q, rtol=1e-12) for p, q in zip(parameters, doubled, strict=True))


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_gradients_below_the_bound_are_left_as_they_are(scale):
    results = []
    for limit in (None, 1e6):
        weights, gradient_at = problem(6)
        parameters = tensors(weights)
        optimizer = LAMB(parameters, lr=1.0, eps=1.0, max_grad_norm=limit)
        run(optimizer, parameters, lambda *at, real=gradient_at: scale * real(*at), RATES[30:40])
        results.append(parameters)
    assert all(torch.equal(p, q) and p.isfinite().all() for p, q in zip(*results, strict=True))


def test_bias_correction_is_accurate_in_float32():
    p, q = nn.Parameter(torch.linspace(0.5, 2.0, 8)), nn.Parameter(torch.linspace(0.5, 2.0, 8, dtype=torch.float64))
    for parameter in (p, q):
        parameter.grad = torch.linspace(-1.0, 1.0, 8).to(parameter.dtype)
        LAMB([{"params": [parameter], "adapt": False}], lr=1.0, betas=(0.9, 0.9999), eps=0.0).step()
    assert torch.allclose(p.double(), q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_resume_is_bit_equal_and_half_precision_keeps_float32_state(dtype):
    weights, gradient_at = problem(4)
    parameters = tensors(weights, dtype)
    optimizer = LAMB(parameters, lr=1.0, max_grad_norm=1.0)
    run(optimizer, parameters, gradient_at, RATES[30:42])
    saved = copy.deepcopy(optimizer.state_dict())
    again = [nn.Parameter(p.detach().clone()) for p in parameters]
    resumed = LAMB(again, lr=1.0, max_grad_norm=1.0)
    resumed.load_state_dict(saved)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert {value.dtype for state in resumed.state.values() for value in state.values()} == {wide}
    run(optimizer, parameters, gradient_at, RATES[42:60], start=12)
    run(resumed, again, gradient_at, RATES[42:60], start=12)
    assert all(p.dtype == dtype and torch.equal(p, q) for p, q in zip(parameters, again, strict=True))
    for old, new in zip(optimizer.state.values(), resumed.state.values(), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
        assert old["step"] == 30


def test_loading_copies_the_saved_state():
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    first, second = LAMB([p], lr=0.1), LAMB([p], lr=0.1)
    first.step()
    second.load_state_dict(first.state_dict())
    second.step()
    assert first.state[p]["step"] == 1 and second.state[p]["step"] == 2


def test_nothing_is_read_back_to_the_host():
    # Tensors of the meta device have no values: whatever asks for one fails.
    for rate in (0.1, torch.tensor(0.1, device="meta")):
        parameters = [nn.Parameter(torch.ones(3, 2, device="meta")), nn.Parameter(torch.ones(4, device="meta"))]
        optimizer = LAMB(parameters, lr=rate, zero_norm="skip", phi_bounds=(0.1, 2.0), max_grad_norm=1.0)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert optimizer.state[parameters[0]]["exp_avg_sq"].shape == (3, 2)


def test_a_rate_in_a_tensor_gives_the_same_steps():
    weights, gradient_at = problem(5)
    plain, held = tensors(weights), tensors(weights)
    run(LAMB(plain, lr=1.0), plain, gradient_at, RATES[:60])
    rate = torch.tensor(0.0, dtype=torch.float64)
    optimizer = LAMB(held, lr=rate)
    for t in range(60):
        rate.fill_(RATES[t])
        run(optimizer, held, gradient_at, [rate], start=t)
    assert all(torch.allclose(p, q, rtol=1e-12, atol=1e-14) for p, q in zip(plain, held, strict=True))


def test_closure_missing_gradients_and_added_groups():
    moving, still = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = LAMB([moving, still], lr=0.1, max_grad_norm=1.0)
    late = nn.Parameter(torch.full((2,), 3.0))
    optimizer.add_param_group({"params": [late], "adapt": False})
    optimizer.step()  # no gradient anywhere yet

    def closure():
        optimizer.zero_grad()
        loss = (moving**2).sum() + (late**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 20.0
    assert moving[0] < 1 and late[0] < 3 and torch.equal(still, torch.ones(2)) and still not in optimizer.state


def test_a_sparse_gradient_is_refused_before_anything_moves():
    embedding, weight = nn.Embedding(10, 3, sparse=True), nn.Parameter(torch.ones(3))
    optimizer = LAMB([{"params": [weight]}, {"params": embedding.parameters()}], lr=0.1)
    (embedding(torch.tensor([1, 2])) * weight).sum().backward()
    with pytest.raises(RequestError, match=r"LAMB takes dense gradients, \(10, 3\) has a sparse one; use sparse=False"):
        optimizer.step()
    assert torch.equal(weight, torch.ones(3)) and weight not in optimizer.state


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr": -1.0}, r"lr must be a number in \[0, inf\), not -1.0"),
        ({"betas": (0.9, 1.0)}, r"betas must be a number in \[0, 1\), not 1.0"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"eps": -1e-9}, "eps must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"decay": "inside"}, "unknown decay 'inside'; allowed: ratio, outside, before"),
        ({"bias_correction": "first"}, "unknown bias_correction 'first'; allowed: True, False, rate, rate-first"),
        ({"dialect": "lars"}, "unknown dialect 'lars'; allowed: paper, tf-author"),
        ({"ratio_eps": -1.0}, "ratio_eps must be"),
        ({"zero_norm": "zero"}, "unknown zero_norm 'zero'; allowed: one, skip"),
        ({"phi_bounds": (2.0, 1.0)}, r"phi_bounds must be \(low, high\)"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm must be a number in \(0, inf\)"),
    ],
)
def test_what_lamb_refuses(options, message):
    with pytest.raises(RequestError, match=message) as refusal:
        LAMB([nn.Parameter(torch.ones(2))], **{"lr": 0.1, **options})
    assert "\n" not in str(refusal.value)


def test_max_grad_norm_of_one_group_is_refused():
    group = {"params": [nn.Parameter(torch.ones(2))], "max_grad_norm": 2.0}
    with pytest.raises(RequestError, match="max_grad_norm is about all gradients together"):
        LAMB([group], lr=0.1, max_grad_norm=1.0)
