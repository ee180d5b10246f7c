"""Averages that survive a lying rank: by their definitions, and in a training with one liar of five."""

import functools
import itertools

import numpy as np
import pytest
import torch
from labs import robust

from labkit.errors import RequestError
from labkit.training.ranks import run_ranks


def gradients(ranks: int = 5, n: int = 30, seed: int = 0) -> torch.Tensor:
    return 1 + torch.randn(ranks, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_rank_can_make_the_mean_anything():
    given, wanted = gradients(), torch.full((30,), -7.0, dtype=torch.float64)
    given[4] = 5 * wanted - given[:4].sum(0)
    assert robust.mean(given).allclose(wanted)


@pytest.mark.parametrize("liars", list(itertools.combinations(range(5), 2)))
def test_the_median_stays_within_the_honest_range(liars):
    given = gradients()
    honest = given[[rank for rank in range(5) if rank not in liars]]
    for lie in (1e9, -1e9, torch.inf, -torch.inf, torch.nan):
        given[list(liars)] = lie
        middle = robust.median(given)
        assert (middle >= honest.min(0).values).all() and (middle <= honest.max(0).values).all()


def test_the_median_of_honest_ranks_is_numpys():
    for ranks in (4, 5):
        assert np.array_equal(robust.median(gradients(ranks)), np.median(gradients(ranks), axis=0))


@pytest.mark.parametrize("ranks, liars", [(5, 1), (7, 2), (9, 1)])
def test_krum_by_its_definition(ranks, liars):
    given, scores = gradients(ranks), []
    for rank in range(ranks):
        apart = [sum((a - b) ** 2 for a, b in zip(given[rank].tolist(), given[other].tolist(), strict=True))
                 for other in range(ranks) if other != rank]
        scores.append(sum(sorted(apart)[: ranks - liars - 2]))
    assert robust.krum_scores(given, liars).tolist() == pytest.approx(scores, rel=1e-12)
    assert robust.krum(given, liars).equal(given[min(range(ranks), key=scores.__getitem__)])


@pytest.mark.parametrize("liar", range(5))
def test_krum_returns_what_an_honest_rank_sent(liar):
    for lie in (1e3, -1e9, torch.inf, torch.nan):
        given = gradients()
        given[liar] = lie
        chosen = robust.krum(given)
        assert any(chosen.equal(given[rank]) for rank in range(5) if rank != liar)


def test_krum_refuses_too_few_ranks():
    with pytest.raises(RequestError, match="Krum needs 5 ranks or more against 1 liars; there are 4"):
        robust.krum(gradients(4))


@functools.cache
def final(rule: str, lie: str) -> float:
    return robust.train(rule, lie, steps=60)[-1]


@pytest.mark.parametrize("lie", ["noise", "reversed", "nan"])
def test_one_liar_breaks_the_mean_and_neither_median_nor_krum(lie):
    start = robust.train("mean", steps=1)[0]
    assert not final("mean", lie) < start
    for rule in ("median", "krum"):
        assert final(rule, lie) < 1.3 * final("mean", "honest") < start


def test_the_lie_is_the_only_difference():
    assert robust.train("krum", "noise", steps=3) == robust.train("krum", "nan", steps=3)


@pytest.mark.parametrize("lie", ["honest", "noise", "nan"])
def test_real_ranks_combine_as_one_process_does(lie):
    ranks = run_ranks(robust.on_rank, 5, lie)
    for rule in robust.RULES:
        moved = [report[rule] for report in ranks]
        assert all(torch.equal(each.nan_to_num(1e99), moved[0].nan_to_num(1e99)) for each in moved)
    honest = run_ranks(robust.on_rank, 5, "honest")[0]
    near = (ranks[0]["krum"] - honest["mean"]).norm() < 2 * honest["mean"].norm()
    assert near and (lie == "honest") == torch.equal(ranks[0]["mean"], honest["mean"])


def test_unknown_rules_and_lies_are_named():
    with pytest.raises(RequestError, match="unknown rule 'mode'; allowed: mean, median, krum"):
        robust.train("mode")
    with pytest.raises(RequestError, match="unknown lie 'white'; allowed: honest, noise, reversed, nan"):
        robust.train("mean", "white")


@pytest.mark.parametrize("liars", [-1, 0.5, float("nan")])
def test_krum_refuses_what_is_no_number_of_liars(liars):
    with pytest.raises(RequestError, match=f"liars {liars} must be a whole number, 0 or more"):
        robust.krum(gradients(9), liars)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_gradients_of_few_bits_are_judged_as_exactly_as_small_ones(dtype):
    """Squares of 1e4 overflow float16, and so does the sum of the middle two. The first rank is the liar."""
    given = (1e4 * gradients(6)).clamp(-3e4, 6e4).to(dtype)
    given[0] = -3e4
    chosen = robust.krum(given)
    assert chosen.dtype == dtype and any(chosen.equal(given[rank]) for rank in range(1, 6))
    assert robust.krum_scores(given).isfinite().all()
    assert robust.median(torch.full((4, 3), 6e4, dtype=torch.float16)).tolist() == [6e4] * 3
