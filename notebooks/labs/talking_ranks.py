"""What each real rank of lab 06 does, for `run_ranks(talking_ranks.trained, 4, "1-bit")`: the trainings of
`labs.talking` again, on processes that talk, and methods on a link that is slowed down."""

import math
import time

import torch
from torch import distributed

from labkit.training.averaging import ElasticAveraging, LocalSGD
from labkit.training.compression import exchange, hook_of
from labkit.training.gossip import Gossip, one_peer
from labkit.training.wrapper import flatten, world
from labs import compression_ranks, mix_ranks, talking


def trained(label: str, rate: float, steps: int, seed: int = 0, samples: int = 1024, batch: int = 16) -> dict:
    """`talking.compressed` at one rate, this rank's part of it.

    Returns:
        weights [6634]; sent: bytes as `State` counts them."""
    method, digits = talking.METHODS[label], talking.Digits.load(samples)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    state = hook_of(method.name, seed, **method.options)[0]
    nets, rows = talking.Nets(1, seed), talking.draws(samples, size, steps, batch, seed)
    for step in range(steps):
        at = rows[step, rank][None]
        gradients = [part[0] for part in nets.gradient(digits.train[0][at], digits.train[1][at])]
        exchange(gradients, state)
        nets.weights = [part - rate * mean for part, mean in zip(nets.weights, gradients, strict=True)]
    return {"weights": flatten(nets.weights), "sent": state.sent}


def compared(labels: list[str], rate: float, steps: int, seed: int = 0) -> dict[str, dict]:
    """Several methods in one launch."""
    return {label: trained(label, rate, steps, seed) for label in labels}


def mixed(way: str, tau: int, rate: float, steps: int, seed: int = 0, samples: int = 1024, batch: int = 16):
    """`talking.averaged` ("averaging", "elastic") or `talking.gossiped` (a graph) at one rate, by labkit's optimizers:
    this rank's parameters at the end, or the elastic centre before its last pull, [6634]."""
    digits, (rank, size) = talking.Digits.load(samples), world()
    nets, rows = talking.Nets(1, seed), talking.draws(samples, size, steps, batch, seed)
    nets.weights = [torch.nn.Parameter(part) for part in nets.weights]
    make = {"averaging": LocalSGD, "elastic": ElasticAveraging}.get(way, Gossip)
    optimizer = make(torch.optim.SGD(nets.weights, rate), way if make is Gossip else tau)
    for step in range(steps):
        at = rows[step, rank][None]
        with torch.no_grad():
            gradients = nets.gradient(digits.train[0][at], digits.train[1][at])
        for part, gradient in zip(nets.weights, gradients, strict=True):
            part.grad = gradient
        optimizer.step()
    return optimizer.centre if way == "elastic" else flatten(nets.weights)


def synchronous_error(steps: int = 8, rate: float = 0.1, momentum: float = 0.0) -> float:
    """Largest difference, relative to the largest weight, between parameters averaged every step and gradients averaged
    every step, after `steps` steps in float64 from the same start."""
    ends = []
    for begin in (0, steps):  # as local SGD with period 1, and before its beginning: synchronous
        model = compression_ranks.network("float64")
        optimizer = LocalSGD(torch.optim.SGD(model.parameters(), rate, momentum), period=1, begin=begin)
        for step in range(steps):
            x, y = compression_ranks.batch(step, distributed.get_rank(), "float64")
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        ends.append(flatten(optimizer.parameters))
    return float((ends[0] - ends[1]).abs().max() / ends[1].abs().max())


def several(rounds: int = 12) -> dict:
    """Gossip without gradients on the ring (its disagreement after every round) and on the one-peer graph, factors of
    fully connected layers, and local SGD against synchronous SGD."""
    size = distributed.get_world_size()
    cases = [(4, 64, 32), (8, 64, 32), (32, 64, 32), (64, 16, 16)]
    return {"ring": mix_ranks.decay("ring", rounds)["disagreement"],
            "one-peer": mix_ranks.decay(one_peer(size), len(one_peer(size)))["disagreement"],
            "factors": [(case, compression_ranks.factors(*case)) for case in cases],
            "synchronous": synchronous_error()}


WAYS = ("dense", "1-bit", "top-k 1 %", "local SGD, tau 16", "gossip, one-peer")
SLOW = (256, 256)  # the gradient that is sent over slow links: large enough for encoding to take time


def throttled(bandwidths: list[float], steps: int, repeats: int = 2, compute: float = 0.004, seed: int = 0) -> list:
    """Seconds per step of `WAYS`, the fastest of some `repeats` in turn, for each of `bandwidths` in bytes a second:
    whoever has sent n bytes sleeps n / bandwidth. `compute` seconds of sleep stand for a gradient on a processor of
    one's own; encoding, decoding and gloo's own work are real."""
    found: list[dict] = [{} for _ in bandwidths]
    for _ in range(repeats):
        for way in WAYS:
            for row, bandwidth in zip(found, bandwidths, strict=True):
                row[way] = min(row.get(way, math.inf), _one(way, bandwidth, steps, compute, seed))
    return found


def _one(way: str, bandwidth: float, steps: int, compute: float, seed: int) -> float:
    size, method = distributed.get_world_size(), talking.METHODS.get(way)
    noise = [torch.randn(SLOW, generator=torch.Generator().manual_seed(seed))]
    state = hook_of(method.name, seed, **method.options)[0] if method else None
    mixer = Gossip(torch.optim.SGD([torch.nn.Parameter(part) for part in noise], 0.0), one_peer(size))
    distributed.barrier()
    begin = time.perf_counter()
    for step in range(steps):
        time.sleep(compute)
        sent = 0.0
        if state:
            before = state.sent
            exchange([part.clone() for part in noise], state)
            sent = state.sent - before
        elif way.startswith("gossip"):
            before = mixer.words
            mixer.step()
            sent = 4 * (mixer.words - before)
        elif (step + 1) % 16 == 0 or step + 1 == steps:
            distributed.all_reduce(flatten(noise))
            sent = talking.on_wire(4 * math.prod(SLOW), size, True)
        time.sleep(sent / bandwidth)
    distributed.barrier()
    return (time.perf_counter() - begin) / steps
