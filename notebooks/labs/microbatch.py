"""Micro-batches: split a mini-batch so that a faster convolution's workspace fits, by dynamic programming.

The idea and the problem are those of Oyama, Ben-Nun, Hoefler and Matsuoka's mu-cuDNN (the survey cites it); the
programme is our own. Costs are counted here (`options`: real multiplications) and may as well be seconds. When not to
use it: with batch normalisation between the parts, whose statistics are those of a whole batch."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from labkit.errors import RequestError
from labkit.operators import convolution

WORD = 4  # bytes, float32


class Option(NamedTuple):
    """One algorithm for `size` samples at a time: what it costs, and the workspace in words."""

    size: int
    method: str
    cost: float
    workspace: int


class Plan(NamedTuple):
    """The cost of a mini-batch and its parts in order, each with the algorithm that does it."""

    cost: float
    parts: tuple[Option, ...]


def options(batch: int, inputs: int, outputs: int, side: int, kernel: int = 3, padding: int = 1) -> list[Option]:
    """All methods that can do this convolution (stride 1, square) for 1 .. `batch` samples: counted multiplications,
    those of the transforms included, and counted words."""
    found = []
    for method in convolution.METHODS:
        for size in range(1, batch + 1):
            try:
                count = convolution.cost(method, size, inputs, outputs, side, side, kernel, padding=padding)
            except RequestError:  # not a method for this kernel
                break
            found.append(Option(size, method, count.multiplications + count.transforms, count.workspace))
    return found


def fitting(choices: Iterable[Option], limit: float) -> dict[int, Option]:
    """The cheapest option of each size whose workspace is at most `limit` words."""
    best: dict[int, Option] = {}
    for option in choices:
        if option.workspace <= limit and (option.size not in best or option.cost < best[option.size].cost):
            best[option.size] = option
    return best


def split(batch: int, choices: Iterable[Option], limit: float) -> Plan:
    """The cheapest division of the batch into parts that run one after the other in the same workspace.

    Dynamic programme over n = 1 .. batch: cost(n) = min over sizes s of cost(n - s) + the cheapest option of size s
    that fits; batch x sizes steps. Among equals the larger part comes first.

    Raises:
        RequestError: no sum of sizes that fit makes the batch."""
    best, last = [0.0] + [math.inf] * batch, [None] * (batch + 1)
    sizes = sorted(fitting(choices, limit).items(), reverse=True)
    for n in range(1, batch + 1):
        for size, option in sizes:
            if size <= n and best[n - size] + option.cost < best[n]:
                best[n], last[n] = best[n - size] + option.cost, option
    if not math.isfinite(best[batch]):
        raise RequestError(f"no division of a batch of {batch} fits a workspace of {limit:g} words; allow more, or "
                           "add a method without workspace (direct)")
    parts, n = [], batch
    while n:
        parts.append(last[n])
        n -= last[n].size
    return Plan(best[batch], tuple(sorted(parts, key=lambda option: -option.size)))


def whole(batch: int, choices: Iterable[Option], limit: float) -> Plan:
    """The cheapest single algorithm for the whole batch. Raises: RequestError where none fits."""
    option = fitting(choices, limit).get(batch)
    if option is None:
        raise RequestError(f"no method for a whole batch of {batch} fits a workspace of {limit:g} words; allow more")
    return Plan(option.cost, (option,))


def run(plan: Plan, x: torch.Tensor, w: torch.Tensor, padding: int = 1) -> torch.Tensor:
    """The convolution of x [N, Ci, H, W], part by part. Gradients of w add up over the parts by themselves.

    Raises:
        RequestError: the plan is one of another batch size."""
    sizes = [option.size for option in plan.parts]
    if sum(sizes) != len(x):
        raise RequestError(f"the plan is for {sum(sizes)} samples and x has {len(x)}; plan for this batch size")
    pieces = zip(x.split(sizes), plan.parts, strict=True)
    return torch.cat([convolution.conv2d(piece, w, option.method, padding=padding) for piece, option in pieces])


def study(mib: Sequence[int], batch: int = 32, inputs: int = 64, outputs: int = 64, side: int = 28) -> list[tuple]:
    """Rows of evidence: `planned` (divided) and `whole` cost by workspace, in multiplications; samples: its MiB."""
    choices, rows = options(batch, inputs, outputs, side), []
    for size in mib:
        for name, made in (("planned", split), ("whole", whole)):
            rows.append((name, made(batch, choices, (size << 20) / WORD).cost, size))
    return rows
