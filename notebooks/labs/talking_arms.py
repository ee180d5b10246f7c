"""All workers of one training in this process: what they make of each other's gradients, and how many bytes that takes.

`arm(name, workers, seed, **options)` -> something with `mean(place, gradients)`, `next()`, `payload` and `closed`.
`Workers` holds the memory of each worker as real ranks do (`labkit.training.compression`); `PowerSGD` transcribes
torch's `powerSGD_hook`, which works under DDP only. When not to use it: to train anything large or fast."""

import inspect
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from labkit.errors import RequestError, choose
from labkit.training.compression import hook_of

LARGEST = 1e4  # a gradient beyond it belongs to a rate that is too high: it is not sent


def lost(gradients: Tensor) -> bool:
    """Whether an arm has diverged."""
    return not gradients.isfinite().all() or bool(gradients.abs().max() > LARGEST)


class Workers:
    """`workers` states of `hook_of(name, **options)`. `payload`: bytes of one worker's wires so far; those of an arm
    that has diverged are counted too, as if it still spoke. closed: wires are all-reduced, not gathered."""

    def __init__(self, name: str, workers: int, seed: int = 0, **options):
        self.states = [hook_of(name, seed, worker=worker, **options)[0] for worker in range(workers)]
        self.closed = self.states[0].compressor.closed

    @property
    def payload(self) -> int:
        return self.states[0].payload

    def mean(self, place: int, gradients: Tensor) -> Tensor:
        """[workers, *shape] -> [*shape], what every rank makes of all wires; NaN if the arm has diverged."""
        if lost(gradients):
            for state in self.states:
                wire = state.now().encode(torch.zeros_like(gradients[0]), torch.Generator())
                state.payload += sum(part.nbytes for part in wire)
            return torch.full_like(gradients[0], math.nan)
        return sum(state.now().decode(state.wire(place, own), own)
                   for state, own in zip(self.states, gradients, strict=True)) / len(self.states)

    def next(self) -> None:
        for state in self.states:
            state.step += 1


def orthogonal(matrix: Tensor, epsilon: float = 1e-8) -> Tensor:
    """[n, r] -> its columns made orthonormal one by one (Gram-Schmidt); `epsilon` keeps a column of zeros 0."""
    columns: list[Tensor] = []
    for column in matrix.unbind(1):
        for earlier in columns:
            column = column - (earlier @ column) * earlier
        columns.append(column / (column.norm() + epsilon))
    return torch.stack(columns, 1)


class PowerSGD:
    """Vogels et al. (2019) as torch has it: from exchange `start` on, a matrix M_i = gradient + rest of each worker is
    heard by all as P Q^T of low `rank`: P = orthogonal(sum of M_i Q) with the Q of the exchange before (warm start),
    then Q = mean of M_i^T P, and rest_i = M_i - P Q^T. Both are all-reduced. Tensors of which that saves no words are
    averaged as they are.

    Args:
        shapes: of the tensors; the first Q are drawn as torch's hook draws them, in the order of the backward pass.

    When not to use it: for a model of vectors; where a matrix of full rank matters at every step."""

    closed = True

    def __init__(self, shapes: Sequence[Sequence[int]], rank: int = 1, start: int = 2):
        if not (isinstance(rank, int) and isinstance(start, int) and rank >= 1 and start >= 0):
            raise RequestError(f"rank {rank} must be a whole number from 1 on, and start {start} from 0 on")
        self.start, self.step, self.payload, self.rest, self.q = start, 0, 0, {}, {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
            for place, (rows, *more) in reversed([*enumerate(shapes)]):
                columns = math.prod(more)
                low = min(rank, rows, columns)
                if more and low * (rows + columns) < rows * columns:
                    self.q[place] = torch.randn(columns, low)

    def mean(self, place: int, gradients: Tensor) -> Tensor:
        """As `Workers.mean`; payload is what a rank all-reduces."""
        if self.step < self.start or place not in self.q:
            self.payload += 4 * gradients[0].numel()
            return gradients.mean(0)
        full = gradients.flatten(2) + self.rest.get(place, 0)
        self.payload += 4 * self.q[place].shape[1] * sum(full.shape[1:])
        if lost(gradients):
            return torch.full_like(gradients[0], math.nan)
        p = orthogonal((full @ orthogonal(self.q[place].to(full.dtype))).sum(0))
        self.q[place] = (full.transpose(1, 2) @ p).mean(0)
        heard = p @ self.q[place].T
        self.rest[place] = full - heard
        return heard.view_as(gradients[0])

    def next(self) -> None:
        self.step += 1


def arm(name: str, workers: int, shapes: Sequence[Sequence[int]], seed: int = 0, **options):
    """The arm of a method by name, for tensors of these shapes.

    Raises:
        RequestError: no such method or option, or a value out of range."""
    if name != "powersgd":
        return Workers(name, workers, seed, **options)
    known = [*inspect.signature(PowerSGD).parameters][1:]
    for option in options:
        choose(f"option of {name}", option, known)
    return PowerSGD(shapes, **options)


