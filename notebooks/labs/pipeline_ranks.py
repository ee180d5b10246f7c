"""What each rank does in lab 02's pipelines: for `run_ranks(pipeline_ranks.by_torch, S, "1F1B", 8)` and the like.

Every rank builds the same small network and batch from a seed, computes the whole step alone, then its part of it in
the pipeline, and reports how far its gradients are from those of one process.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn

from labkit.training.collectives import ProcessComm
from labs import pipeline_stages as pipeline
from labs.pipeline_timetable import gpipe
from labs.pipeline_watch import Watch

WIDTH, CLASSES = 12, 5
LOSS = nn.functional.cross_entropy


def network(parts: int, seed: int = 0) -> list[nn.Module]:
    """A multi-layer perceptron in float64, cut into `parts`: each boundary is `WIDTH` words a sample."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ends = [WIDTH] * parts + [CLASSES]
        layers = [(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, end)) for end in ends[1:]]
        return [nn.Sequential(*part).double() for part in layers]


def batch(samples: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """inputs [samples, WIDTH] in float64 and classes [samples]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


def one_process(parts: list[nn.Module], inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, list[nn.Module]]:
    """(loss, copies of the parts with their gradients) of the whole step in this process."""
    alone = copy.deepcopy(parts)
    loss = LOSS(nn.Sequential(*alone)(inputs), targets)
    loss.backward()
    return loss.item(), alone


def _difference(mine: list[nn.Module], alone: list[nn.Module]) -> float:
    """The largest difference of two gradients, relative to the largest gradient."""
    both = zip(nn.ModuleList(mine).parameters(), nn.ModuleList(alone).parameters(), strict=True)
    pairs = [(p.grad, q.grad) for p, q in both]
    return max((p - q).abs().max().item() for p, q in pairs) / max(q.abs().max().item() for _, q in pairs)


def by_torch(name: str, microbatches: int, samples: int = 24, chunks: int = 1) -> dict:
    """One step by torch's schedule `name` ("GPipe", "1F1B", "interleaved 1F1B", "zero bubble").

    Returns:
        loss and losses (by microbatch, on the last rank), `error` of the gradients, and of this rank its actions,
        messages and words sent, peak (microbatches held; a chunk counts 1/chunks) and peak_words (activations)."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts, (inputs, targets) = network(size * chunks), batch(samples)
    loss, alone = one_process(parts, inputs, targets)
    watch = Watch(p for part in parts for p in part.parameters())
    losses = pipeline.by_torch(name, parts, inputs, targets, LOSS, microbatches, watch.attach)
    error = _difference(parts[rank::size], alone[rank::size])
    result = {"loss": loss, "losses": losses, "error": error, "messages": watch.messages, "words": watch.words}
    return result | {"actions": watch.actions, "peak": max(watch.held) / chunks, "peak_words": watch.peak_words}


def by_hand(microbatches: int, samples: int = 24, schedule=gpipe) -> dict:
    """The same step by `labs.pipeline_stages.by_hand`, over `comm`: loss, losses, error, messages, words."""
    comm = ProcessComm(torch.float64)
    parts, (inputs, targets) = network(comm.size), batch(samples)
    loss, alone = one_process(parts, inputs, targets)
    actions, shape = schedule(comm.size, microbatches)[comm.rank], (samples // microbatches, WIDTH)
    losses = pipeline.by_hand(actions, parts[comm.rank], shape, inputs, targets, LOSS, comm)
    comm.finish()
    error = _difference([parts[comm.rank]], [alone[comm.rank]])
    return {"loss": loss, "losses": losses, "error": error, "messages": comm.messages, "words": comm.words}


def several(names: dict[str, int], microbatches: int, samples: int = 24) -> dict[str, dict]:
    """`by_torch` for each schedule and its number of chunks, in one launch of the ranks."""
    return {name: by_torch(name, microbatches, samples, chunks) for name, chunks in names.items()}
