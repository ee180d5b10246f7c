"""The dynamic programme finds the optimum of an exhaustive search, and a divided batch gives the same convolution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from labkit.errors import RequestError
from labkit.operators import convolution
from labs import microbatch
from labs.microbatch import Option


def sums(n, sizes):
    """Every ordered list of sizes that sum to n."""
    if n == 0:
        yield ()
    for size in sizes:
        if size <= n:
            yield from ((size, *rest) for rest in sums(n - size, sizes))


def exhaustive(batch, choices, limit):
    """Cost of the best of all divisions, with the best algorithm for each part; None where there is none."""
    fits = [option for option in choices if option.workspace <= limit]
    sizes = {option.size for option in fits}
    cheapest = {size: min(option.cost for option in fits if option.size == size) for size in sizes}
    return min((sum(cheapest[size] for size in parts) for parts in sums(batch, sizes)), default=None)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 9),
    limit=st.integers(0, 20),
    choices=st.lists(st.builds(Option, st.integers(1, 9), st.sampled_from("abc"), st.integers(1, 50),
                               st.integers(0, 25)), max_size=12),
)  # fmt: skip
def test_the_optimum_is_that_of_an_exhaustive_search(batch, limit, choices):
    best = exhaustive(batch, choices, limit)
    if best is None:
        with pytest.raises(RequestError, match=f"no division of a batch of {batch} fits a workspace of {limit} words"):
            microbatch.split(batch, choices, limit)
        return
    plan = microbatch.split(batch, choices, limit)
    assert plan.cost == best == sum(option.cost for option in plan.parts)
    assert sum(option.size for option in plan.parts) == batch
    assert all(option in choices and option.workspace <= limit for option in plan.parts)


def test_a_division_is_never_dearer_than_one_algorithm_and_pays_where_the_fast_one_does_not_fit():
    choices = microbatch.options(16, 64, 64, 28)
    needed = {option.method: option.workspace for option in choices if option.size == 16}
    tight = needed["winograd4"] - 1
    assert microbatch.whole(16, choices, tight).parts[0].method != "winograd4"
    assert {option.method for option in microbatch.split(16, choices, tight).parts} == {"winograd4"}
    for limit in (0, tight // 4, tight, needed["winograd4"], 10 * tight):
        assert microbatch.split(16, choices, limit).cost <= microbatch.whole(16, choices, limit).cost
    assert microbatch.split(16, choices, 10 * tight).parts == microbatch.whole(16, choices, 10 * tight).parts


def test_methods_that_cannot_are_no_options():
    assert {option.method for option in microbatch.options(2, 4, 4, 16, 5, 2)} == {"direct", "im2col", "fft"}


def test_a_divided_batch_is_the_same_convolution():
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
            for shape in ((5, 2, 8, 8), (3, 2, 3, 3)))
    parts = [Option(2, "winograd", 0.0, 0), Option(2, "fft", 0.0, 0), Option(1, "direct", 0.0, 0)]
    found, right = microbatch.run(microbatch.Plan(0.0, tuple(parts)), x, w), F.conv2d(x, w, padding=1)
    assert torch.allclose(found, right, atol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(y.pow(2).sum(), (x, w)) for y in (found, right)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)
    with pytest.raises(RequestError, match="the plan is for 5 samples and x has 4"):
        microbatch.run(microbatch.Plan(0.0, tuple(parts)), x[:4], w)


def test_the_evidence_has_both_costs_at_each_workspace():
    """With room for everything both are the fastest method for the whole batch."""
    rows = microbatch.study([1, 64], batch=8, inputs=64, outputs=64, side=14)
    assert [(name, size) for name, _, size in rows] == [(n, s) for s in (1, 64) for n in ("planned", "whole")]
    counts = [convolution.cost(method, 8, 64, 64, 14, 14, 3, padding=1) for method in convolution.METHODS]
    assert rows[2][1] == rows[3][1] == min(count.multiplications + count.transforms for count in counts)
