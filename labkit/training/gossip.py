"""Decentralised SGD: w_i <- sum_j W_ij w_j - the optimizer's step of the gradient at the old w_i, where W_ij > 0 for
neighbours only (D-PSGD, Lian et al.). W is doubly stochastic: its rows and columns sum to 1, so the mean of the ranks
moves as if all were averaged, and a round multiplies their disagreement by `second_eigenvalue(W)` at most.

When not to use it: where an all-reduce is fast; for many ranks on a ring, where mixing takes about P^2 rounds."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, distributed

from labkit.errors import RequestError, choose
from labkit.simulate.cost import group_size
from labkit.training.wrapper import Wrapper, assign, check_finite, flatten, world


def _shifts(size: int, *steps: int) -> np.ndarray:
    """The mean of the ranks that are `steps` before one, round a circle."""
    return sum(np.roll(np.eye(size), step, axis=0) for step in steps) / len(steps)


def _powers(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def ring(size: int) -> np.ndarray:
    """W [P, P]: a third each of oneself and both neighbours. Second eigenvalue 1/3 + 2/3 cos(2 pi / P)."""
    return _shifts(size, 0, 1, -1)


def torus(size: int, rows: int | None = None) -> np.ndarray:
    """A fifth each of oneself and four neighbours, on a grid of `rows`: a divisor of P, or the one nearest its root."""
    rows = group_size(size, rows)
    columns = size // rows
    around = np.kron(_shifts(rows, 1, -1), np.eye(columns)) + np.kron(np.eye(rows), _shifts(columns, 1, -1))
    return (np.eye(size) + 2 * around) / 5


def exponential(size: int) -> np.ndarray:
    """Oneself and the ranks 1, 2, 4, ... before, with equal weight: lg P messages a round."""
    return _shifts(size, 0, *_powers(size))


def one_peer(size: int) -> list[np.ndarray]:
    """Half of oneself and half of the rank 1, 2, 4, ... before, in turn: one message a round. The product of lg P such
    rounds is the exact mean where P is a power of 2."""
    return [_shifts(size, 0, step) for step in _powers(size)] or [np.eye(size)]


def complete(size: int) -> np.ndarray:
    return np.full((size, size), 1 / size)


TOPOLOGIES = {"ring": ring, "torus": torus, "exponential": exponential, "one-peer": one_peer, "complete": complete}


def second_eigenvalue(matrix: np.ndarray) -> float:
    """The second largest modulus: 0 mixes at once, 1 never. Bounds each round's decay for normal W, as these are."""
    return float(np.sort(np.abs(np.linalg.eigvals(matrix)))[-2]) if len(matrix) > 1 else 0.0


class Gossip(Wrapper):
    """D-PSGD around an optimizer; `topology`: one of `TOPOLOGIES`, a W [P, P], or several to be taken in turn. A step
    sends n words to each neighbour and holds as many; `messages` and `words` count what was sent."""

    kept = ("steps", "messages", "words")

    def __init__(self, inner, topology: str | np.ndarray | Sequence[np.ndarray] = "ring", buffers=()):
        super().__init__(inner, buffers)
        (self.rank, size), self.messages, self.words = world(), 0, 0
        if isinstance(topology, str):
            choose("topology", topology, TOPOLOGIES)
            topology = TOPOLOGIES[topology](size)
        self.rounds = np.array(topology, float, ndmin=3)
        sums = [self.rounds.sum(axis) for axis in (1, 2)]
        if self.rounds.shape[1:] != (size, size) or (self.rounds < 0).any() or not np.allclose(sums, 1):
            raise RequestError(f"a topology of {size} ranks is {size} x {size} weights of 0 or more, rows and columns "
                               f"of which sum to 1; given: {' x '.join(map(str, self.rounds.shape[1:]))}, with sums of "
                               f"{np.min(sums):.3g} to {np.max(sums):.3g}")

    def before(self):
        assign(self.mixed, self.mix(flatten(self.mixed), self.rounds[self.steps % len(self.rounds)]))

    def mix(self, vector: Tensor, matrix: np.ndarray) -> Tensor:
        """sum_j W_ij w_j, added in the order of ranks. WorkError: this rank's vector is not finite."""
        check_finite(vector, "parameters")
        others = [rank for rank in range(len(matrix)) if rank != self.rank]
        to = [rank for rank in others if matrix[rank, self.rank]]
        held = {rank: torch.empty_like(vector) for rank in others if matrix[self.rank, rank]}
        moves = [distributed.P2POp(distributed.irecv, room, rank) for rank, room in held.items()]
        moves += [distributed.P2POp(distributed.isend, vector, rank) for rank in to]
        for work in distributed.batch_isend_irecv(moves) if moves else ():
            work.wait()
        self.messages, self.words = self.messages + len(to), self.words + len(to) * len(vector)
        held[self.rank] = vector
        return sum(matrix[self.rank, rank] * held[rank] for rank in sorted(held))
