"""Who is fastest where: a model of the seconds per step of methods that say less, over bandwidth and workers.

The waiting for the slowest comes from the simulator in virtual time, the exchange from the alpha-beta model and the
bytes on the wire; encoding costs seconds per word. `calibrated` makes a job of the parts that real ranks have measured.
When not to use it: as a forecast of a cluster; links share nothing here, nothing overlaps with computing, and steps to
a target were measured on 4 workers and a small network only."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labkit.errors import RequestError
from labkit.simulate import cost, events
from labkit.training.gossip import one_peer
from labs import compressors, talking_ranks, virtual_gossip

WAYS = {  # compressor with options, local steps; gossip apart
    "dense": ("none", {}, 1),
    "1-bit": ("onebit", {}, 1),
    "top-k 1 %": ("topk", {"density": 0.01}, 1),
    "local SGD, tau 16": ("none", {}, 16),
    "gossip, one-peer": (None, {}, 1),
}
BANDWIDTHS = tuple(10.0 ** (exponent / 2) for exponent in range(12, 23))  # bytes a second, 1 MB/s to 100 GB/s
DECADES = BANDWIDTHS[::2]
EQUAL = ("dense", "1-bit", "top-k 1 %")  # after every step all workers have the same parameters; the first of `WAYS`
WORKERS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Job:
    """words: of the gradient; rows: of its matrices, for 1-bit. compute: mean seconds of a gradient, log-normal with
    `sigma`. alpha: seconds a message. beta: seconds a byte that a message takes even where the link is infinitely fast.
    collective: the all-reduce in use; None: the cheapest one. encode: of each compressing way, the seconds a word to
    pack one's own wire, and to unpack one."""

    words: int = 25_560_000
    rows: int = 30_000
    compute: float = 0.1
    sigma: float = 0.2
    alpha: float = 2e-5
    beta: float = 0.0
    collective: str | None = None
    encode: Mapping[str, tuple[float, float]] = field(
        default_factory=lambda: {"1-bit": (1e-9, 1e-9), "top-k 1 %": (1e-9, 1e-9)})


def calibrated(parts: Mapping[str, float]) -> Job:
    """The job of `talking_ranks.slowed`, from the parts that it measured on free links with all ranks at work at once.

    Ranks that share cores take turns: `parts["gradient"]` is the time until all have theirs, so nothing is left to wait
    for, and sigma is 0. gloo's all-reduce is a ring."""
    words, rows = math.prod(talking_ranks.SLOW), talking_ranks.SLOW[0]
    alpha = parts["message of 1 word"]
    encode = {way: (parts[f"packing, {way}"] / words, parts[f"unpacking, {way}"] / words)
              for way in ("1-bit", "top-k 1 %")}
    beta = max(0.0, parts["message"] - alpha) / (4 * words)
    return Job(words, rows, parts["gradient"], 0.0, alpha, beta, "ring", encode)


def wire(way: str, job: Job) -> float:
    """Bytes of one rank's own wire in one exchange."""
    name, options, _ = WAYS[way]
    return 4 * job.words if name in (None, "none") else compressors.size(name, job.words, job.rows, **options)


def exchange(way: str, workers: int, bandwidth: float, job: Job) -> float:
    """Seconds of one exchange: the cheapest all-reduce, or an all-gather by a ring with its encoding and the decoding
    of everyone's wires; a message to one neighbour for gossip. RequestError: no bandwidth, of bytes a second."""
    name, *_ = WAYS[way]
    if not bandwidth > 0:
        raise RequestError(f"bandwidth {bandwidth} must be above 0 bytes a second")
    byte = 1 / bandwidth + job.beta
    if name is None:
        return job.alpha + 4 * job.words * byte
    if name == "none":
        chosen = job.collective or cost.best(job.words, workers, job.alpha, 4 * byte)
        return cost.seconds(chosen, job.words, workers, job.alpha, 4 * byte)
    pack, unpack = job.encode[way]
    return (workers - 1) * (job.alpha + wire(way, job) * byte) + (pack + workers * unpack) * job.words


def waiting(workers: int, job: Job, steps: int = 96, seed: int = 0) -> dict[str, float]:
    """Seconds per step of each way without any exchange: the slowest of all, of a neighbourhood, or of tau steps."""
    compute = events.Compute("lognormal", job.compute, job.sigma)
    each = {tau: events.local_sgd(workers, [tau] * (steps // tau), compute, seed=seed).when[-1] / steps
            for tau in {tau for _, _, tau in WAYS.values()}}
    near = virtual_gossip.gossip(np.array(one_peer(workers)), steps, compute, seed=seed).when[-1] / steps
    return {way: near if name is None else each[tau] for way, (name, _, tau) in WAYS.items()}


def step_seconds(workers: int, bandwidth: float, job: Job, waits: dict[str, float] | None = None) -> dict[str, float]:
    """Seconds per step of every way."""
    waits = waits or waiting(workers, job)
    return {way: waits[way] + exchange(way, workers, bandwidth, job) / tau for way, (_, _, tau) in WAYS.items()}


def diagram(job: Job, factors: dict[str, float] | None = None, workers=WORKERS, bandwidths=BANDWIDTHS) -> np.ndarray:
    """Seconds [way, workers, bandwidth] per step, or, with `factors` (steps to the target, dense = 1), per dense step's
    progress."""
    table = np.empty((len(WAYS), len(workers), len(bandwidths)))
    for at, size in enumerate(workers):
        waits = waiting(size, job)
        for column, bandwidth in enumerate(bandwidths):
            found = step_seconds(size, bandwidth, job, waits)
            table[:, at, column] = [found[way] * (factors or {}).get(way, 1.0) for way in WAYS]
    return table
