"""What the tests and the benchmark of the collectives run on real ranks."""

import time
from statistics import median

import torch
from torch import distributed

from labkit.training import collectives
from labkit.training.collectives import ALL_REDUCE, ProcessComm


def data(count: int, rank: int, dtype=torch.float64) -> torch.Tensor:
    """What `rank` starts with: the same wherever it is made."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=dtype)


def all_reduces(counts: list[int]) -> list[tuple]:
    """Of every all-reduce and length: (name, n, largest error relative to gloo's own, messages sent, words sent)."""
    found = []
    for count in counts:
        for name, all_reduce in ALL_REDUCE.items():
            comm = ProcessComm()
            mine, own = data(count, comm.rank), data(count, comm.rank)
            all_reduce(mine, comm)
            distributed.all_reduce(own)
            error = float(((mine - own).abs() / own.abs().clamp(min=1)).max()) if count else 0.0
            found.append((name, count, error, comm.messages, comm.words))
    return found


def others(count: int) -> dict:
    """What the collectives that are no all-reduce leave on this rank."""
    comm = ProcessComm(torch.float64)
    start = [data(count, comm.rank) for _ in range(4)]
    return {
        "reduce_scatter": collectives.reduce_scatter(start[0], comm).clone(),
        "all_gather": collectives.all_gather(start[1], comm),
        "broadcast": collectives.broadcast(start[2], comm, root=comm.size - 1),
        "all_to_all": collectives.all_to_all(start[3], comm),
    }


def shout(repeats: int) -> list[float]:
    """Every rank sends to its right before it receives anything, and overwrites what it sent; floats received."""
    comm = ProcessComm()
    array, got = torch.empty(200_000), []
    for value in range(repeats):
        array.fill_(value)
        comm.send(array, (comm.rank + 1) % comm.size)
    for _ in range(repeats):
        got.append(float(comm.recv(len(array), (comm.rank - 1) % comm.size).mean()))
    comm.finish()
    return got


def race(count: int, repeats: int) -> tuple[float, float]:
    """Median seconds of our ring and of gloo's own all-reduce over `count` float32, taken in turns."""
    comm, times = ProcessComm(), ([], [])
    array = data(count, comm.rank, torch.float32)
    for turn in range(repeats + 2):
        for kind, call in enumerate((lambda: ALL_REDUCE["ring"](array, comm), lambda: distributed.all_reduce(array))):
            array.fill_(1.0)
            distributed.barrier()
            start = time.perf_counter()
            call()
            if turn > 1:  # the first turns make connections and touch memory
                times[kind].append(time.perf_counter() - start)
    return median(times[0]), median(times[1])
