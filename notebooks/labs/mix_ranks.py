"""What each rank does where a lab mixes parameters: for `run_ranks(mix_ranks.decay, 4, "ring", 12)` and the like.

All of it works on plain vectors or on a kit's model in a bare loop; the strategies of `parallel.strategies` do
the same inside a Trainer."""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed, nn

from labkit.training import gossip
from parallel import server
from labkit.training.averaging import mean
from labkit.training.wrapper import Wrapper, flatten, world
from labs import mix_extras


def disagreement(tensors: Iterable[Tensor]) -> float:
    """Root of the mean over ranks of |w_i - mean w|^2, the same number on every rank; two all-reduces."""
    vector = flatten(tensors).double()
    far = (vector - mean([vector])).square().sum()
    return math.sqrt(mean([far]).item())


def spread(vectors: np.ndarray) -> float:
    """The same of the vectors [P, n] of all ranks, in one process."""
    return float(np.sqrt(((vectors - vectors.mean(0)) ** 2).sum(1).mean()))


def start(rank: int, count: int) -> np.ndarray:
    """The vector with which rank `rank` begins: [count], the same for real, virtual and numpy's ranks."""
    return np.random.default_rng([11, rank]).standard_normal(count)


def decay_alone(rounds: list[np.ndarray], steps: int, count: int = 64) -> list[float]:
    """The disagreement after 0, 1, ... `steps` rounds, by matrix products; `rounds` are taken in turn."""
    vectors = np.stack([start(rank, count) for rank in range(len(rounds[0]))])
    found = [spread(vectors)]
    for step in range(steps):
        vectors = rounds[step % len(rounds)] @ vectors
        found.append(spread(vectors))
    return found


def decay(topology, steps: int, count: int = 64) -> dict:
    """Gossip without gradients on real ranks.

    Returns:
        disagreement after 0, 1, ... `steps` rounds, this rank's messages and words sent, and its vector."""
    weight = nn.Parameter(torch.from_numpy(start(world()[0], count)))
    wrapper = gossip.Gossip(torch.optim.SGD([weight], lr=0.0), topology)
    found = [disagreement([weight])]
    for _ in range(steps):
        wrapper.step()
        found.append(disagreement([weight]))
    vector = weight.detach().numpy()
    return {"disagreement": found, "messages": wrapper.messages, "words": wrapper.words, "vector": vector}


def rounds_over(comm, rounds: list[np.ndarray], steps: int, count: int = 64) -> list[np.ndarray]:
    """The same on virtual ranks, `traced.run(mix_ranks.rounds_over, 8, [ring(8)], 20)`, or over a `ProcessComm` of
    numpy's arrays: this rank's vector after every round."""
    vector, found = start(comm.rank, count), []
    for step in range(steps):
        weights = rounds[step % len(rounds)]
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        for rank in others:
            if weights[rank, comm.rank]:
                comm.send(vector, rank)
        mixed = weights[comm.rank, comm.rank] * vector
        for rank in others:
            if weights[comm.rank, rank]:
                comm.add(mixed, weights[comm.rank, rank] * comm.recv(count, rank))
        vector = mixed
        found.append(vector)
    return found


def train(wrap: Callable[[torch.optim.Optimizer], Wrapper], model: nn.Module, loss: Callable, batches, *, rate: float,
          momentum: float = 0.0, every: int = 0) -> dict:
    """A bare loop on this rank: SGD wrapped by `wrap` over `batches` (this rank's), loss(model, batch).

    Returns:
        losses of this rank's batches, disagreement (after every `every` steps; 0: at the end), `mean`, the mean of the
        replicas as one vector, `own`, this rank's; what was sent (`messages`, `words`) where the method counts it."""
    optimizer = wrap(torch.optim.SGD(model.parameters(), rate, momentum))
    losses, apart = [], []
    for step, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if every and step % every == 0:
            apart.append(disagreement(optimizer.parameters))
    apart = apart if every else [disagreement(optimizer.parameters)]
    sent = {name: getattr(optimizer, name) for name in ("messages", "words") if hasattr(optimizer, name)}
    return {"losses": losses, "disagreement": apart, "mean": mean(optimizer.parameters).numpy(),
            "own": flatten(optimizer.parameters).numpy(), **sent}


def pairwise(steps: int, folder: str, table: Tensor, idle: bool = False) -> int:
    """Meetings of random pairs without gradients, by `mix_extras.Pairwise`; the replicas end in `table`. With `idle`,
    rank 0 makes its first step when all others have made their last. Returns how often this rank drew a partner."""
    rank, size = world()
    weight = nn.Parameter(torch.from_numpy(start(rank, table.shape[1])).to(table.dtype))
    wrapper = mix_extras.Pairwise(torch.optim.SGD([weight], lr=0.0), table, folder)
    distributed.barrier()
    while idle and rank == 0 and len([*Path(folder).glob("*.done")]) < size - 1:
        time.sleep(0.01)
    for _ in range(steps):
        wrapper.step()
    (Path(folder) / f"{rank}.done").touch()
    return wrapper.met


def elastic_without_waiting(address: str, steps: int, period: int = 1, alpha: float = 0.2, rate: float = 0.3,
                            count: int = 5) -> dict:
    """Rank 0 serves the centre, the others are drawn to targets of their own (`start`) by SGD and to the centre.

    Returns:
        `path`, this worker's vector after every step; from rank 0 the `centre` and how many `updates` it made."""
    rank, size = world()
    weight = nn.Parameter(torch.zeros(count, dtype=torch.float64))
    if rank == 0:
        report = server.serve([weight.detach()], mix_extras.Centre, size - 1, address, mode="asynchronous", timeout=20)
        return {"centre": report.parameters[0].numpy(), "updates": len(report.updates)}
    target, path = torch.from_numpy(start(rank, count)), []
    with server.Client(address, rank - 1, timeout=20) as client:
        wrapper = mix_extras.AsynchronousElastic(torch.optim.SGD([weight], rate), client, period, alpha)
        for _ in range(steps):
            weight.grad = weight.detach() - target
            wrapper.step()
            path.append(weight.detach().numpy().copy())
    return {"path": np.stack(path)}


def several(calls: dict[str, list[tuple]]) -> dict[str, list]:
    """Functions of this module by name, each for every tuple of arguments, in one launch of the ranks."""
    return {name: [globals()[name](*args) for args in each] for name, each in calls.items()}
