"""The table of batch x rate x warm-up holds every rule's path; the noise of a gradient is what the closed form says."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from labkit.errors import RequestError
from labs.factorial import LABELS, RULES, Cell, Table
from labs import noise

TABLE = Table((16, 64, 256, 1024), samples=4096, warmup_epochs=10 / 64, long_warmup_epochs=5.0)
BASE = 2.0**-8


def test_rates_at_k_times_the_batch():
    for batch in TABLE.batches:
        k, at = batch / 16, TABLE.batches.index(batch)
        rates = {rule: TABLE.path(rule, BASE)[at].rate for rule in RULES}
        assert rates == {
            "fixed": BASE,
            "square_root": BASE * math.sqrt(k),
            "linear": BASE * k,
            "linear_with_warmup": BASE * k,
            "legw": BASE * math.sqrt(k),
        }


def test_warm_up_steps_at_k_times_the_batch():
    for rule in ("fixed", "square_root", "linear"):
        assert {cell.warmup_steps for cell in TABLE.path(rule, BASE)} == {0.0}
    # LEGW: k times the epochs at 1 / k of the steps an epoch is one number of iterations
    assert {cell.warmup_steps for cell in TABLE.path("legw", BASE)} == {4096 / 16 * 10 / 64} == {40.0}
    # five epochs, from the first batch above the baseline on
    assert [cell.warmup_steps for cell in TABLE.path("linear_with_warmup", BASE)] == [0.0, 320.0, 80.0, 20.0]


def test_at_the_baseline_all_rules_but_legw_are_one_run():
    first = {rule: TABLE.path(rule, BASE)[0] for rule in RULES}
    assert {cell for rule, cell in first.items() if rule != "legw"} == {Cell(16, BASE, 0.0)}
    assert first["legw"] == Cell(16, BASE, 40.0)
    assert [cell.batch for cell in TABLE.path("legw", BASE)] == list(TABLE.batches)


def test_the_number_of_cells_of_the_paths():
    # one base rate: baseline plain and warmed; above it fixed, square root, LEGW, linear and linear with warm-up
    assert len(TABLE.paths([BASE])) == 2 + 3 * 5
    # two base rates a factor of 4 apart share cells: fixed from the higher is linear from the lower at k = 4 and the
    # square root at k = 16, where the square root from the higher is linear from the lower
    both = TABLE.paths([BASE, 4 * BASE])
    assert len(both) == len(set(both)) == 2 * 17 - 1 - 2
    assert both == sorted(both)


def test_the_number_of_cells_of_the_factorial():
    rates = [2.0**-e for e in range(10, 5, -1)]
    cells = TABLE.factorial(rates)
    # at k times the batch: five base octaves and log2 k more, three warm-ups (the baseline has two of them)
    expected = 2 * 5 + sum(3 * (5 + int(math.log2(k))) for k in (4, 16, 64))
    assert len(cells) == len(set(cells)) == expected == 91
    assert len([cell for cell in cells if cell.batch == 1024]) == 3 * 11
    assert max(cell.rate for cell in cells) == 2.0**-6 * 64


@given(
    base=st.sampled_from([8, 16, 32]),
    doublings=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    warmup=st.floats(0, 2),
    long=st.floats(0, 6),
    exponents=st.sets(st.integers(-10, -4), min_size=1, max_size=4),
)
def test_every_rules_path_lies_inside_the_factorial(base, doublings, warmup, long, exponents):
    batches = [base]
    for doubling in doublings:
        batches.append(batches[-1] * 2**doubling)
    table, rates = Table(tuple(batches), 4096, warmup, long), [2.0**e for e in exponents]
    inside = set(table.factorial(rates))
    for rule in RULES:
        for rate in rates:
            path = table.path(rule, rate)
            assert set(path) <= inside
            assert [cell.batch for cell in path] == batches
        assert set(table.paths(rates, [rule])) <= inside


def test_an_unknown_rule_is_refused_and_every_rule_has_a_label():
    with pytest.raises(RequestError, match="unknown scaling rule 'lineal'; allowed: fixed, square_root, linear"):
        TABLE.path("lineal", BASE)
    assert set(LABELS) == set(RULES)


SAMPLES, CLASSES = 60, 3


@pytest.fixture(scope="module")
def problem():
    """A linear classifier on 2 x 2 images, and the exact gradient of every sample: (softmax - one-hot) x image."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, CLASSES)).double()
    images, classes = torch.randn(SAMPLES, 1, 2, 2, dtype=torch.float64), torch.arange(SAMPLES) % CLASSES
    with torch.no_grad():
        error = model(images).softmax(1) - F.one_hot(classes, CLASSES)
        weights = error[:, :, None] * images.flatten(1)[:, None, :]
        gradients = torch.cat([weights.flatten(1), error], 1)
    return model, images, classes, gradients


def test_the_gradient_of_a_batch_is_the_mean_of_its_samples(problem):
    model, images, classes, gradients = problem
    torch.testing.assert_close(noise.gradient(model, images[:7], classes[:7]), gradients[:7].mean(0))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_the_covariance_trace_is_unbiased_and_falls_as_one_over_the_batch(problem, batch):
    model, images, classes, gradients = problem
    # with replacement, a batch's gradient has 1 / batch of the variance of one sample drawn from the set
    exact = float((gradients - gradients.mean(0)).square().sum(1).mean()) / batch
    estimates = torch.tensor(
        [noise.gradient_covariance_trace(model, images, classes, batch, draws=16, seed=seed) for seed in range(40)]
    )
    error = float(estimates.std()) / math.sqrt(len(estimates))
    assert abs(float(estimates.mean()) - exact) < 3.5 * error
    assert error < 0.1 * exact  # fine enough to tell a power of the batch, or a factor of two
    assert noise.gradient_covariance_trace(model, images, classes, batch, seed=1) == (
        noise.gradient_covariance_trace(model, images, classes, batch, seed=1)
    )


def test_two_draws_are_the_textbook_sample_variance(problem):
    """n - 1, not n: with two draws a biased estimate would be half."""
    model, images, classes, gradients = problem
    generator = torch.Generator().manual_seed(5)
    first, second = (gradients[torch.randint(SAMPLES, (4,), generator=generator)].mean(0) for _ in range(2))
    expected = float((first - second).square().sum()) / 2
    assert noise.gradient_covariance_trace(model, images, classes, 4, draws=2, seed=5) == pytest.approx(expected)
