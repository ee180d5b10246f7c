"""HOGWILD!: processes train parameters in shared memory without a lock, and the updates that they lose are counted.

Logistic regression on samples that have `support` of `features` non-zero values. To write, a process loads the weights
of its sample's support, adds, and stores them: whoever else wrote one of them in between has written for nothing.
Beside each weight lies the number of writes that it has seen, added to by the same load and store; what is missing
there in the end was lost. A race that lasts nanoseconds is rare, and on one core depends on when the system changes
processes; so each one gives way between its load and its store (`give_way`), which shows a danger that is always there.

Processes, not threads: threads that share a module crash in `backward`, where one frees a gradient that another adds
to. Hence `descend_network` takes `torch.autograd.grad` and adds in place. Nothing here is for real training."""

import math
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from labkit.training.ranks import run_ranks
from labs import server_ranks


def give_way(pause: float) -> None:
    """Let another process run: `pause` seconds, or, where it is 0, as long as the system thinks right."""
    time.sleep(pause) if pause else os.sched_yield() if hasattr(os, "sched_yield") else time.sleep(0)


def count_up(times: int, pause: float = 0.0, *, counter: Tensor) -> None:
    """The whole race: add 1 to a shared number, `times` times."""
    dist.barrier()  # so that all begin together
    for _ in range(times):
        seen = counter.item()
        give_way(pause)
        counter.fill_(seen + 1)


def race(workers: int, times: int, pause: float = 0.0) -> tuple[int, int]:
    """(the expected sum, the sum found) after `workers` processes have each counted up `times` times without a lock."""
    counter = torch.zeros(1, dtype=torch.int64)
    run_ranks(count_up, workers, times, pause, shared={"counter": counter})
    return workers * times, counter.item()


def samples(count: int, features: int, support: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Linearly separable, by the same plane for every seed: the non-zero places [count, support], each equally likely,
    values there, of unit norm on average, and labels, -1 or 1."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(count, features, generator=generator).topk(support, dim=1).indices
    values = torch.randn(count, support, generator=generator) / math.sqrt(support)
    truth = torch.randn(features, generator=torch.Generator().manual_seed(features))
    return places, values, torch.where((values * truth[places]).sum(1) > 0, 1.0, -1.0)


def loss(weights: Tensor, places: Tensor, values: Tensor, labels: Tensor) -> float:
    return F.softplus(-labels * (weights[places] * values).sum(1)).mean().item()


def descend(steps: int, rate: float, support: int, pause: float = 0.0, *, table: Tensor) -> int:
    """One process: `steps` of SGD, each on a new sample. `table` [features, 2] holds weights and their writes.

    Returns:
        how many writes of a weight it made."""
    drawn = samples(steps, len(table), support, seed=1 + dist.get_rank())
    dist.barrier()
    for where, x, label in zip(*drawn, strict=True):
        held = table[where]  # the load: a copy
        step = rate * label * torch.sigmoid(-label * (held[:, 0] @ x)) * x
        give_way(pause)
        table[where] = held + torch.stack([step, torch.ones_like(step)], 1)  # the store
    return steps * support


def most_lost(workers: int, support: int, features: int = 256) -> float:
    """The largest share that can be lost on average. When a weight is stored, each other process holds at most one
    older copy of it, which it writes back only if it is in its sample's support; supports are drawn anew for each
    step, so that has the chance support / features. From support = features / (workers - 1) on it is 1: no bound."""
    return min(1.0, (workers - 1) * support / features)


def lost(workers: int, support: int, *, features: int = 256, steps: int = 200, rate: float = 1.0, pause: float = 0.0,
         timeout: float = 60.0) -> dict[str, float]:
    """Train once without locks. Of the share lost `most_lost` bounds the mean: a single race may be above it by chance.

    Returns:
        `attempted` and `found` writes of single weights, the share `lost`, and the loss `before` and `after` on samples
        that no process has trained on."""
    table = torch.zeros(features, 2)
    attempted = sum(run_ranks(descend, workers, steps, rate, support, pause, shared={"table": table}, timeout=timeout))
    found, data = int(table[:, 1].sum().item()), samples(512, features, support)
    return {"attempted": attempted, "found": found, "lost": 1 - found / attempted,
            "before": loss(torch.zeros(features), *data), "after": loss(table[:, 0], *data)}


def descend_network(steps: int, size: int, rate: float, *, flat: Tensor) -> None:
    """One process: `steps` of SGD, at batch `size`, of the network of `server_ranks` whose parameters are `flat`."""
    model, rank, ranks = server_ranks.network(flat.dtype), dist.get_rank(), dist.get_world_size()
    parameters = list(model.parameters())
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.data = part.view(p.shape)  # the shared memory itself
    dist.barrier()
    for step in range(steps):
        inputs, classes = server_ranks.batch(step * ranks + rank, size, flat.dtype)
        gradients = torch.autograd.grad(F.cross_entropy(model(inputs), classes), parameters)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(gradient, alpha=rate)


def train_network(workers: int, steps: int, size: int = 16, rate: float = 0.2) -> Tensor:
    """The flat parameters after `workers` processes made `steps` each, without a lock."""
    model = server_ranks.network(torch.float32)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    run_ranks(descend_network, workers, steps, size, rate, shared={"flat": flat})
    return flat
