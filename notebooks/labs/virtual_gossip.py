"""Gossip in virtual time: a worker waits for its neighbours only. A method added to `labkit.simulate.events`."""

from collections.abc import Callable

import numpy as np

from labkit.errors import RequestError
from labkit.simulate.events import Compute, Link, Updates, rounds

NO_MESSAGE = -1e300  # a delay that nobody waits for
AT_ONCE = Link()


def gossip(mixing: np.ndarray, steps: int, compute: Compute, *, link: Callable[[int, int], Link] = AT_ONCE,
           size: float = 0.0, seed: int = 0) -> Updates:
    """After each step a worker sends `size` bytes of parameters to its neighbours, one after the other from the next
    higher rank on, and waits for theirs, for nobody else's. Update k takes effect when the last worker has mixed.

    When not to use it: for gossip that overlaps sending with computing, or that pairs workers as they come.

    Args:
        mixing: (P, P), or (rounds, P, P) in turns; worker i waits for every j with mixing[i, j] != 0.
        link: between all pairs, or a function of (sender, receiver).

    Raises:
        RequestError: rows of mixing that do not sum to 1, a size that is negative or not finite, or a dead worker: its
            neighbours wait for good.
    """
    mixing = np.array(mixing, float, ndmin=3)
    workers = mixing.shape[1]
    if mixing.shape[1:] != (workers, workers) or not np.allclose(mixing.sum(2), 1):
        raise RequestError(f"mixing must be square, with rows that sum to 1; this one has shape {mixing.shape}")
    if not 0 <= size < np.inf:
        raise RequestError(f"size {size} is out of range; it must be 0 or more bytes, and finite")
    table = delays(mixing, link, size)

    def release(step, ready):
        return (ready + table[step % len(table)]).max(1), slice(None)

    return rounds(*compute.table(workers, steps, seed), release, mixing=mixing)


def delays(mixing: np.ndarray, link: Callable[[int, int], Link], size: float) -> np.ndarray:
    """Seconds from a sender's readiness to a message's arrival, [round, receiver, sender]; 0 from oneself."""
    workers = mixing.shape[1]
    table = np.where(np.eye(workers), 0.0, np.full(mixing.shape, NO_MESSAGE))
    for turn, sender in np.ndindex(len(mixing), workers):
        sent = 0.0
        for hop in np.flatnonzero(np.roll(mixing[turn, :, sender], -sender)[1:]) + 1:
            receiver = (sender + int(hop)) % workers
            sent += size * link(sender, receiver).beta  # the port carries one message at a time
            table[turn, receiver, sender] = link(sender, receiver).alpha + sent
    return table
