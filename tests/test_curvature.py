"""Curvature along the gradient: exact on quadratics, equal to finite differences, and without side effects."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from labkit.errors import RequestError
from labs.curvature import curvature_along_gradient, finite_difference_curvature, running_median


class Point(nn.Module):
    """A bare vector of weights, whatever the input."""

    def __init__(self, *values):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, inputs):
        return self.w


def quadratic(outputs, targets):
    return 0.5 * outputs @ targets @ outputs


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 4)

    def forward(self, inputs):
        return self.out(self.lstm(inputs)[0][:, -1])


def networks():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    data = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    lstm, sequences = LastState().double(), (torch.randn(7, 6, 3, dtype=torch.float64), torch.randint(4, (7,)))
    return {"mlp": (mlp, *data), "lstm": (lstm, *sequences)}


@pytest.mark.parametrize(
    "diagonal, expected", [((2.0, 2.0), 2.0), ((1.0, 3.0), 2.8), ((4.0, -4.0), 0.0), ((-1.0, -3.0), -2.8)]
)
def test_a_known_quadratic_exactly(diagonal, expected):
    # At w = (1, 1) the gradient is the diagonal d itself, and the quotient is sum d^3 / sum d^2.
    hessian = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    assert curvature_along_gradient(Point(1.0, 1.0), quadratic, None, hessian).item() == expected


def test_equals_the_full_hessian():
    torch.manual_seed(1)
    w, hessian = torch.randn(6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
    hessian = hessian + hessian.T
    g = hessian @ w
    measured = curvature_along_gradient(Point(*w.tolist()), quadratic, None, hessian)
    assert measured.item() == pytest.approx((g @ hessian @ g / (g @ g)).item(), rel=1e-12)
    assert measured.dim() == 0 and not measured.requires_grad


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_double_backward_equals_the_finite_difference(name):
    model, inputs, targets = networks()[name]
    exact = curvature_along_gradient(model, F.cross_entropy, inputs, targets)
    naive = finite_difference_curvature(model, F.cross_entropy, inputs, targets)
    assert exact.item() == pytest.approx(naive.item(), rel=1e-6)
    rough = finite_difference_curvature(model, F.cross_entropy, inputs, targets, width=0.5)
    assert rough.item() != pytest.approx(exact.item(), rel=1e-6)


@pytest.mark.parametrize("measure", [curvature_along_gradient, finite_difference_curvature])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(measure, training):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4)).double()
    model.train(training)
    inputs, targets = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    marker = torch.full((8, 6), 3.0, dtype=torch.float64)
    model[0].weight.grad = marker.clone()
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    first = measure(model, F.cross_entropy, inputs, targets)
    second = measure(model, F.cross_entropy, inputs, targets)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), random) and model.training == training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, marker) and model[4].weight.grad is None


def test_both_see_the_same_dropout_mask():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4)).double()
    data = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    exact = curvature_along_gradient(model, F.cross_entropy, *data)
    assert exact.item() == pytest.approx(finite_difference_curvature(model, F.cross_entropy, *data).item(), rel=1e-6)


class Partial(nn.Module):
    """One frozen layer, one that the output does not depend on."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.spare = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(2, 2)
        self.first.requires_grad_(False)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)))


def test_frozen_and_unused_parameters_and_a_caller_without_gradients():
    torch.manual_seed(4)
    model = Partial().double()
    inputs, targets = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    with torch.no_grad():
        exact = curvature_along_gradient(model, F.cross_entropy, inputs, targets)
        naive = finite_difference_curvature(model, F.cross_entropy, inputs, targets)
    assert exact.item() > 0 and exact.item() == pytest.approx(naive.item(), rel=1e-6)
    hidden = torch.tanh(model.first(inputs)).detach()
    assert curvature_along_gradient(model.last, F.cross_entropy, hidden, targets).item() == pytest.approx(exact.item())


def test_a_linear_loss_has_none_and_a_stationary_point_has_no_answer():
    slope = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert curvature_along_gradient(Point(1.0, 1.0), torch.dot, None, slope).item() == 0.0
    assert torch.isnan(curvature_along_gradient(Point(0.0, 0.0), quadratic, None, torch.eye(2, dtype=torch.float64)))


def test_the_weights_come_back_after_a_failure():
    model = Point(1.0, 2.0)
    calls = []

    def fails_when_moved(outputs, targets):
        calls.append(outputs.detach().clone())
        if len(calls) > 1:
            raise ArithmeticError("moved")
        return (outputs**2).sum()

    with pytest.raises(ArithmeticError, match="moved"):
        finite_difference_curvature(model, fails_when_moved, None, None)
    assert not torch.equal(calls[1], calls[0])
    assert model.w.tolist() == [1.0, 2.0]


def test_a_width_must_be_positive():
    with pytest.raises(RequestError, match=r"width must be a number in \(0, inf\), not 0.0"):
        finite_difference_curvature(Point(1.0), quadratic, None, torch.eye(1, dtype=torch.float64), width=0.0)


def test_running_median_removes_a_spike():
    assert running_median([1, 2, 39, 4, 5]).tolist() == [2, 3, 4, 4.5, 5]
    assert running_median([1, 2, 39, 4, 5], width=3).tolist() == [1.5, 2, 4, 5, 4.5]


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.sampled_from([1, 3, 5, 7]))
def test_running_median_stays_within_its_window(values, width):
    smooth = running_median(values, width)
    assert len(smooth) == len(values)
    for i, value in enumerate(smooth):
        window = values[max(0, i - width // 2) : i + width // 2 + 1]
        assert min(window) <= value <= max(window)
    if width == 1:
        assert np.array_equal(smooth, values)


def test_what_running_median_refuses():
    for width in (0, 4, 2.5):
        with pytest.raises(RequestError, match="width must be an odd whole number"):
            running_median([1.0], width)
    with pytest.raises(RequestError, match=r"one row of numbers, not an array of shape \(1, 2\)"):
        running_median([[1.0, 2.0]])
