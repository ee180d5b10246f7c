"""Extra: averages of gradients that survive a rank that lies, and a training in which one rank of five does.

Krum: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent". When
not to use it: among honest ranks (the median and Krum throw samples away, so their noise is larger), where ranks hold
different kinds of data (an honest rank then looks like a liar), or for speed: all gradients go to every rank, and Krum
compares each with each."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from labkit.errors import RequestError, choose


def mean(gradients: Tensor) -> Tensor:
    """[ranks, n] -> [n]. One rank can make it anything."""
    return gradients.mean(0)


def median(gradients: Tensor) -> Tensor:
    """[ranks, n] -> [n], of each entry by itself, NaN counted as the largest: while fewer than half of the ranks lie,
    each entry is within the range of the honest ones. Of an even number of ranks the mean of the middle two."""
    ordered = gradients.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).sort(0).values
    ranks = len(gradients)
    return ordered[(ranks - 1) // 2] / 2 + ordered[ranks // 2] / 2  # a sum of float16 may overflow


def krum_scores(gradients: Tensor, liars: int = 1) -> Tensor:
    """[ranks, n] -> [ranks], float64: the sum of the squared distances to the ranks - liars - 2 nearest others.

    Raises:
        RequestError: fewer than 2 liars + 3 ranks, or no whole number of liars."""
    ranks, gradients = len(gradients), gradients.double()  # squares of float16 overflow
    if liars < 0 or liars % 1:
        raise RequestError(f"liars {liars} must be a whole number, 0 or more")
    if ranks < 2 * liars + 3:
        raise RequestError(f"Krum needs {2 * liars + 3} ranks or more against {liars} liars; there are {ranks}")
    apart = (gradients[:, None] - gradients).square().sum(2).nan_to_num(nan=torch.inf)  # NaN: far from every other
    apart.fill_diagonal_(torch.inf)
    return apart.sort(1).values[:, : ranks - liars - 2].sum(1)


def krum(gradients: Tensor, liars: int = 1) -> Tensor:
    """[ranks, n] -> [n]: the gradient of the rank with the least `krum_scores`, as it is."""
    return gradients[krum_scores(gradients, liars).argmin()]


RULES: dict[str, Callable[[Tensor], Tensor]] = {"mean": mean, "median": median, "krum": krum}
LIES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "honest": lambda gradient, generator: gradient,
    "noise": lambda gradient, generator: 100 * torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype),
    "reversed": lambda gradient, generator: -10 * gradient,
    "nan": lambda gradient, generator: torch.full_like(gradient, torch.nan),
}


def problem(seed: int = 0, samples: int = 2000) -> tuple[Tensor, Tensor]:
    """Points [samples, 20] (float64) of 4 overlapping classes, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 20, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (samples,), generator=generator)
    return centres[y] + 1.5 * torch.randn(samples, 20, generator=generator, dtype=torch.float64), y


def gradient_of(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean cross-entropy of a linear classifier, [20, 4]."""
    errors = F.softmax(x @ weights, 1) - F.one_hot(y, weights.shape[1])
    return x.T @ errors / len(x)


def train(rule: str, lie: str = "honest", seed: int = 0, ranks: int = 5, steps: int = 200, batch: int = 16,
          rate: float = 0.2) -> list[float]:
    """Loss over all samples before each step and at the end [steps + 1]; the last of the ranks tells the `lie`. Every
    rank draws its own samples from `seed`, whatever the rule and the lie."""
    choose("rule", rule, RULES)
    choose("lie", lie, LIES)
    x, y = problem(seed)
    draws = [torch.Generator().manual_seed(1000 * seed + rank + 1) for rank in range(ranks)]
    liar, weights, losses = torch.Generator().manual_seed(1000 * seed), torch.zeros(20, 4, dtype=torch.float64), []
    for _ in range(steps):
        losses.append(F.cross_entropy(x @ weights, y).item())
        told = []
        for generator in draws:
            chosen = torch.randint(len(x), (batch,), generator=generator)
            told.append(gradient_of(weights, x[chosen], y[chosen]).flatten())
        told[-1] = LIES[lie](told[-1], liar)
        weights = weights - rate * RULES[rule](torch.stack(told)).view_as(weights)
    return [*losses, F.cross_entropy(x @ weights, y).item()]


def study(seeds: Sequence[int], **options) -> list[tuple[str, str, int, float]]:
    """(rule, lie, seed, final loss; infinite where it is NaN) of every pair, for `lab.evidence`."""
    rows = []
    for seed in seeds:
        for rule in RULES:
            for lie in LIES:
                loss = train(rule, lie, seed, **options)[-1]
                rows.append((rule, lie, seed, loss if loss == loss else float("inf")))
    return rows


def exchange(gradient: Tensor, rule: str, lie: str = "honest", seed: int = 0) -> Tensor:
    """On a real rank: `gradient` [n] combined by `rule` with those of the others; the last rank tells the `lie`."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if rank == size - 1:
        gradient = LIES[lie](gradient, torch.Generator().manual_seed(1000 * seed))
    told = [torch.empty_like(gradient) for _ in range(size)]
    distributed.all_gather(told, gradient.contiguous())
    return RULES[rule](torch.stack(told))


def on_rank(lie: str, seed: int = 0, batch: int = 16) -> dict[str, Tensor]:
    """The first step of `train` on real ranks, for `run_ranks(robust.on_rank, 5, "noise")`: gradients by rule."""
    (x, y), rank = problem(seed), distributed.get_rank()
    chosen = torch.randint(len(x), (batch,), generator=torch.Generator().manual_seed(1000 * seed + rank + 1))
    own = gradient_of(torch.zeros(20, 4, dtype=torch.float64), x[chosen], y[chosen]).flatten()
    return {rule: exchange(own, rule, lie, seed) for rule in RULES}
