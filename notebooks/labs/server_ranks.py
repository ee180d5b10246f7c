"""What each rank does in lab 05's experiments with a parameter server: the first `servers` ranks serve a shard each,
all others are workers, by `run_ranks(server_ranks.train, servers + workers, folder, ...)`.

The job is small: a multi-layer perceptron on Gaussian data, the batch of a
step cut into one part for each worker. `sleeps` are seconds that a worker spends on each gradient beside computing it;
`faults` say what goes wrong: {worker: (step, "kill" | "hang" | "stop" | "nan" | "raise" | "leave")}."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from parallel import server

INPUTS, HIDDEN, CLASSES = 12, 16, 4


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).to(dtype)


def batch(step: int, samples: int, dtype: torch.dtype = torch.float64):
    """The whole batch of a step: inputs [samples, INPUTS] and classes [samples]."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), inputs[:, :CLASSES].argmax(1)


def sgd(rate: float = 0.2, momentum: float = 0.0):
    """What `serve` makes its optimizer with."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum)


def one_process(steps: int, samples: int, *, rate: float = 0.2, momentum: float = 0.0, parts: int = 1,
                dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The parameters after `steps` of plain SGD here, each on the sum of the gradients of `parts` equal parts of the
    batch, added in their order and divided by `parts`: the literal synchronous server."""
    model = network(dtype)
    optimizer = sgd(rate, momentum)(list(model.parameters()))
    for step in range(steps):
        totals = [torch.zeros_like(p) for p in model.parameters()]
        for inputs, classes in zip(*(part.chunk(parts) for part in batch(step, samples, dtype)), strict=True):
            gradients = torch.autograd.grad(F.cross_entropy(model(inputs), classes), list(model.parameters()))
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient
        for p, total in zip(model.parameters(), totals, strict=True):
            p.grad = total / parts
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def work(address, worker: int, workers: int, steps: int, samples: int, *, dtype: torch.dtype = torch.float64,
         sleep: float = 0.0, fault: tuple[int, str] | None = None, first: int = 0, until: int | None = None,
         **options) -> dict:
    """`steps` gradients of one worker, each on its part of the batch.

    Args:
        first: number of the first batch. until: leave once the server has made so many steps.

    Returns:
        the parameters that it holds at the end, and bytes sent and received."""
    model = network(dtype)
    with server.Client(address, worker, **options) as client:
        optimizer = server.ServerOptimizer(model.parameters(), client)
        for step in range(steps):
            inputs, classes = (part.chunk(workers)[worker] for part in batch(first + step, samples, dtype))
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), classes).backward()
            time.sleep(sleep)
            if fault is not None and fault[0] == step:
                if fault[1] == "leave":
                    break
                _go_wrong(fault[1], model)
            optimizer.step()
            if until is not None and client.steps >= until:
                break
        return {"parameters": [p.detach() for p in model.parameters()], "sent": client.sent,
                "received": client.received}


def _go_wrong(how: str, model: nn.Module) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":  # as a debugger or a full disk would: the process is there and does nothing
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "hang":
        time.sleep(3600)
    elif how == "nan":
        next(model.parameters()).grad.view(-1)[0] = torch.nan
    else:
        raise ValueError("the data is broken")


def train(folder: str, steps: int, samples: int, *, servers: int = 1, rate: float = 0.2, momentum: float = 0.0,
          dtype: torch.dtype = torch.float64, sleeps: dict | None = None, faults: dict | None = None,
          patience: float = 30.0, first: int = 0, until: int | None = None, state: list | None = None, **options):
    """The life of one rank. `options` are those of `parallel.server.Server`; `patience` is its timeout (that of
    `run_ranks` is for the whole run), and `state` has one for each shard.

    Returns:
        a server's `Report`, or what `work` returns."""
    rank, workers = dist.get_rank(), dist.get_world_size() - servers
    addresses = [str(Path(folder) / f"{number}.socket") for number in range(servers)]
    if rank < servers:
        parameters = list(network(dtype).parameters())
        if servers > 1:
            parameters = server.shard(parameters, servers)[rank]
        return server.serve(parameters, sgd(rate, momentum), workers, addresses[rank],
                            state=state[rank] if state else None, timeout=patience, **options)
    worker = rank - servers
    return work(addresses, worker, workers, steps, samples, dtype=dtype, sleep=(sleeps or {}).get(worker, 0.0),
                fault=(faults or {}).get(worker), first=first, until=until)


def stopped(*arguments, **options):
    """`train`, where a server that has to stop returns (what it said, its report)."""
    try:
        return train(*arguments, **options)
    except server.ServerError as error:
        return str(error), error.report
