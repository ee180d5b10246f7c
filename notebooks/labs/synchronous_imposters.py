"""Three runs that were meant to equal one process with the whole batch, for the exercise that tells them apart.

Computed in one process, the ranks' gradients one after the other; each run is deterministic by its seed. The network
has batch normalisation, synchronised where that is not what is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from labs.synchronous_nets import GhostNorm, network, samples

FAULTS = ("local statistics", "wrong normalisation", "uneven shards")
RIGHT = "nothing wrong"
RANKS, BATCH, STEPS = 4, 32, 20


@dataclass(frozen=True)
class Run:
    """What was recorded of a training on W ranks, with n parameters.

    Attributes:
        losses: [steps] mean loss over the whole batch, before the update.
        applied: [steps, n] the gradient that the optimizer was given, the same on all ranks.
        ranks: [steps, W, n] the gradient of the mean loss over each rank's own samples.
        reference: [steps, n] the gradient of one process, at the same parameters, for all samples at once."""

    losses: np.ndarray
    applied: np.ndarray
    ranks: np.ndarray
    reference: np.ndarray


def run(fault: str, seed: int, counts: Sequence[int] = (5, 7, 8, 12), scale: float = BATCH / RANKS,
        steps: int = STEPS) -> Run:  # fmt: skip
    """One training with a `fault`, or with nothing wrong; `counts` matter for uneven shards only, `scale` for a wrong
    normalisation: BATCH / RANKS where each rank sums its loss, 1 / RANKS where it divides by the whole batch."""
    counts = list(counts) if fault == "uneven shards" else [BATCH // RANKS] * RANKS
    whole, apart = (network(lambda channels, c=c: GhostNorm(channels, c), seed) for c in ([BATCH], counts))
    model = apart if fault == "local statistics" else whole
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.05, 0.9)
    found: dict[str, list] = {"losses": [], "applied": [], "ranks": [], "reference": []}
    for step in range(steps):
        x, y = samples(BATCH, seed=10_000 * (seed + 1) + step)
        whole.load_state_dict(model.state_dict())
        reference, loss = gradient(whole, whole(x), y)
        shares = zip(model(x).split(counts), y.split(counts), strict=True)
        parts = torch.stack([gradient(model, scores, own)[0] for scores, own in shares])
        mean = parts.mean(0) * (scale if fault == "wrong normalisation" else 1.0)
        for name, value in (("losses", loss), ("applied", mean), ("ranks", parts), ("reference", reference)):
            found[name].append(value.numpy())
        for parameter, part in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
    return Run(**{name: np.stack(values) for name, values in found.items()})


def gradient(model: nn.Module, scores: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of the mean loss, flat; that loss)."""
    loss = F.cross_entropy(scores, kinds)
    parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts]), loss.detach()


def lineup(seed: int = 0) -> dict[str, Run]:
    """The three runs of the exercise, by letter, in an order that the seed decides; `culprits` knows it."""
    return {letter: run(fault, seed) for letter, fault in culprits(seed).items()}


def culprits(seed: int = 0) -> dict[str, str]:
    order = np.random.default_rng(400 + seed).permutation(len(FAULTS))
    return {letter: FAULTS[place] for letter, place in zip("ABC", order, strict=True)}


def confusion(true: str, given: str, made: Run) -> str:
    """What in the data speaks against `given`."""
    applied, right = made.applied[0], made.reference[0]
    length = float(np.linalg.norm(applied) / np.linalg.norm(right))
    cosine = float(applied @ right / np.linalg.norm(applied) / np.linalg.norm(right))
    weights = np.linalg.lstsq(made.ranks[0].T, right, rcond=None)[0]
    rest = float(np.linalg.norm(made.ranks[0].T @ weights - right) / np.linalg.norm(right))
    if not isinstance(given, str) or given not in (*FAULTS, RIGHT):
        return f"{given!r} is none of: {', '.join((*FAULTS, RIGHT))}"
    if true == RIGHT:
        return "its applied gradient is the reference, to the last digits"
    if true == FAULTS[1]:
        return f"applied and reference are parallel (cosine {cosine:.6f}); only the length is off, {length:.3g} times"
    if given == RIGHT:
        return f"applied and reference differ: cosine {cosine:.3f}, lengths {length:.3g} to 1"
    if given == FAULTS[1]:
        return f"a wrong factor would leave the direction alone; cosine with the reference {cosine:.3f}"
    if true == FAULTS[2]:
        return f"some weighted sum of the ranks' gradients is the reference (rest {rest:.0e}); what were the weights?"
    return f"no weighted sum of the ranks' gradients is the reference ({rest:.0%} is left), so no weights are at fault"


def told_apart(answer: Callable) -> str | None:
    """Spec of 04.5: `answer(run)` names the fault of a run; first of A, B and C, then of others."""
    known = [(f"run {letter}", fault, {}) for letter, fault in culprits().items()]
    others = [
        (RIGHT, {}),
        (FAULTS[1], {"scale": 1 / RANKS}),
        (FAULTS[2], {"counts": (7, 8, 8, 9)}),
        (FAULTS[0], {}),
        (FAULTS[1], {}),
    ]
    cases = [(0, *case) for case in known]
    cases += [(seed, f"another run (seed {seed})", *case) for seed, case in enumerate(others, 11)]
    for seed, name, true, options in cases:
        made = run(true, seed, steps=4, **options)
        given = answer(made)
        if not isinstance(given, str) or given != true:
            return f"{name} is not {given!r}: {confusion(true, given, made)}"
    return None
