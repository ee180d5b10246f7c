"""What each real rank of lab 06 does, for `run_ranks(talking_ranks.trained, 4, "1-bit")`: the trainings of
`labs.talking` again, on processes that talk, and methods on a link that is slowed down."""

import math
import time

import torch
from torch import distributed

from labkit.training.averaging import ElasticAveraging, LocalSGD
from labkit.training.collectives import ProcessComm
from labkit.training.compression import State, exchange, hook_of
from labkit.training.gossip import Gossip, one_peer
from labkit.training.wrapper import flatten, world
from labs import compression_ranks, mix_ranks, talking


def trained(label: str, rate: float, steps: int, seed: int = 0, samples: int = 1024, batch: int = 16) -> dict:
    """`talking.compressed` at one rate, this rank's part of it; PowerSGD by torch's own hook, under DDP.

    Returns:
        weights [6634]; moved: the farthest that one of them went; sent: bytes, as `State` or torch counts them."""
    method, digits = talking.METHODS[label], talking.Digits.load(samples)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    nets, rows = talking.Nets(1, seed), talking.draws(samples, size, steps, batch, seed)
    start = flatten(nets.weights)
    state, hook = hook_of(method.name, seed, **method.options)
    if not isinstance(state, State):
        parts = [(digits.train[0][at], digits.train[1][at]) for at in rows[:, rank]]
        end = _under_ddp(nets, state, hook, parts, rate)
        words = min(steps, state.start_powerSGD_iter) * talking.WORDS + state.total_numel_after_compression
        sent = talking.on_wire(4 * words, size, True)
        return {"weights": end, "moved": float((end - start).abs().max()), "sent": sent}
    for step in range(steps):
        at = rows[step, rank][None]
        gradients = [part[0] for part in nets.gradient(digits.train[0][at], digits.train[1][at])]
        exchange(gradients, state)
        nets.weights = [part - rate * mean for part, mean in zip(nets.weights, gradients, strict=True)]
    end = flatten(nets.weights)
    return {"weights": end, "moved": float((end - start).abs().max()), "sent": state.sent}


def _under_ddp(nets, state, hook, batches, rate: float) -> torch.Tensor:
    """The weights after SGD on `batches`, as a module under DDP with a hook of torch's."""
    model = torch.nn.Sequential(torch.nn.Linear(talking.PIXELS, talking.HIDDEN), torch.nn.ReLU(),
                                torch.nn.Linear(talking.HIDDEN, talking.CLASSES))
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), nets.weights, strict=True):
            parameter.copy_(part[0])
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
    return flatten(model.parameters()).detach()


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


def synchronous_error(steps: int = 8, rate: float = 0.1, momentum: float = 0.0) -> tuple[float, float]:
    """(largest difference, relative to the largest weight, between parameters averaged every step and gradients
    averaged every step, after `steps` steps in float64 from the same start; the farthest that a parameter moved)."""
    ends, start = [], flatten(compression_ranks.network("float64").parameters())
    for begin in (0, steps):  # as local SGD with period 1, and before its beginning: synchronous
        model = compression_ranks.network("float64")
        optimizer = LocalSGD(torch.optim.SGD(model.parameters(), rate, momentum), period=1, begin=begin)
        for step in range(steps):
            x, y = compression_ranks.batch(step, distributed.get_rank(), "float64")
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        ends.append(flatten(optimizer.parameters))
    return float((ends[0] - ends[1]).abs().max() / ends[1].abs().max()), float((ends[0] - start).abs().max())


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
SLOW = (256, 256)  # the matrix whose gradient is sent over slow links: large enough for encoding to take time


class Part:
    """This rank's part of a training of one matrix: `gradient()` really computes, on 64 samples of its own."""

    def __init__(self, seed: int = 0, samples: int = 64):
        generator = torch.Generator().manual_seed(100 * seed + distributed.get_rank())
        self.x = torch.randn(samples, SLOW[1], generator=generator)
        self.y = torch.randint(SLOW[0], (samples,), generator=generator)
        self.weight = torch.zeros(SLOW, requires_grad=True)

    def gradient(self) -> torch.Tensor:
        return torch.autograd.grad(torch.nn.functional.cross_entropy(self.x @ self.weight.T, self.y), self.weight)[0]


def slowed(bandwidths: list[float], steps: int, repeats: int = 2, seed: int = 0) -> dict:
    """`parts`: the seconds of the parts of a step, with all ranks at work at once on the cores that there are and no
    link slowed down; `took`: for each of `bandwidths`, in bytes a second, the seconds per step of `WAYS`. Of each the
    least of some `repeats`, taken in turn (of the parts, three times as many steps: they are shorter)."""
    parts: dict[str, float] = {}
    took: list[dict] = [{} for _ in bandwidths]
    for _ in range(repeats):
        for name, value in _parts(3 * steps, seed).items():
            parts[name] = min(parts.get(name, math.inf), value)
        for way in WAYS:
            for row, bandwidth in zip(took, bandwidths, strict=True):
                row[way] = min(row.get(way, math.inf), _one(way, bandwidth, steps, seed))
    return {"parts": parts, "took": took}


def _timed(work, steps: int) -> float:
    """Seconds of one `work()`, with all ranks at it at once."""
    distributed.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    distributed.barrier()
    return (time.perf_counter() - begin) / steps


def _parts(steps: int, seed: int) -> dict[str, float]:
    part, comm = Part(seed), ProcessComm(torch.float32)
    gradient = part.gradient()
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    found = {"gradient": _timed(part.gradient, steps)}
    for name, words in (("message of 1 word", gradient.new_zeros(1)), ("message", gradient.flatten())):
        found[name] = _timed(lambda words=words: comm.sendrecv(words, after, len(words), before), steps)
    for way in ("1-bit", "top-k 1 %"):
        method = talking.METHODS[way]
        state = hook_of(method.name, seed, **method.options)[0]
        wire = state.wire(0, gradient)
        found[f"packing, {way}"] = _timed(lambda state=state: state.wire(0, gradient), steps)
        found[f"unpacking, {way}"] = _timed(lambda s=state, w=wire: s.now().decode(w, gradient), steps)
    return found


def _one(way: str, bandwidth: float, steps: int, seed: int) -> float:
    """Seconds per step of a way: a gradient, the exchange, and whoever has sent n bytes sleeps n / bandwidth."""
    size, method, part, done = distributed.get_world_size(), talking.METHODS.get(way), Part(seed), 0
    state = hook_of(method.name, seed, **method.options)[0] if method else None
    mixer = Gossip(torch.optim.SGD([torch.nn.Parameter(torch.zeros(SLOW))], 0.0), one_peer(size))

    def step():
        nonlocal done
        gradient, sent, done = part.gradient(), 0.0, done + 1
        if state:
            before = state.sent
            exchange([gradient], state)
            sent = state.sent - before
        elif way.startswith("gossip"):
            before = mixer.words
            mixer.step()
            sent = 4 * (mixer.words - before)
        elif done % 16 == 0:
            distributed.all_reduce(gradient)
            sent = talking.on_wire(gradient.nbytes, size, True)
        time.sleep(sent / bandwidth)

    return _timed(step, steps)
