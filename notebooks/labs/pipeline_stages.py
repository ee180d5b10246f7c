"""A pipeline's training step on real ranks: by hand over send and receive, and by `torch.distributed.pipelining`.

The schedules are those of `labs.pipeline_timetable`. Both ways give the gradients of one process, up to rounding, if
the loss is a mean over samples. *Not to train faster on one machine with few cores, nor for batch normalisation.*"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from labkit.errors import RequestError, choose
from labs.pipeline_timetable import Action

CLASSES = {"GPipe": "ScheduleGPipe", "1F1B": "Schedule1F1B", "interleaved 1F1B": "ScheduleInterleaved1F1B",
           "zero bubble": "ScheduleInterleavedZeroBubble"}


def by_hand(actions: Sequence[Action], part: nn.Module, shape: Sequence[int], inputs: Tensor, targets: Tensor,
            loss: Callable, comm) -> list[float]:
    """Do this rank's `actions` (F and B) over `comm`; the gradients of its part of the network are added to `.grad`.

    Args:
        shape: of one microbatch of the part's input, where it comes from another rank.
        inputs, targets: the whole batch [N, ...] on every rank. loss: (output, target) -> mean over samples.

    Returns:
        On the last rank, the loss of each microbatch.

    Raises:
        RequestError: an action is neither F nor B, or the microbatches are not of equal size."""
    count, first, last = 1 + max(a.microbatch for a in actions), comm.rank == 0, comm.rank == comm.size - 1
    _check_batch(inputs, count)
    xs, goals, held, losses = inputs.chunk(count), targets.chunk(count), {}, []
    for kind, m, _ in actions:
        choose("action by hand", kind, "FB")
        if kind == "F":
            x = xs[m] if first else comm.recv(torch.Size(shape).numel(), comm.rank - 1).view(shape).requires_grad_()
            y = loss(part(x), goals[m]) / count if last else part(x)
            held[m] = x, y  # x and, through y, all that its backward needs
            if last:
                losses.append(count * y.item())
            else:
                comm.send(y.detach().flatten(), comm.rank + 1)
        else:
            x, y = held.pop(m)
            y.backward(None if last else comm.recv(y.numel(), comm.rank + 1).view_as(y))
            if not first:
                comm.send(x.grad.flatten(), comm.rank - 1)
    return losses


def by_torch(name: str, parts: Sequence[nn.Module], inputs: Tensor, targets: Tensor, loss: Callable,
             microbatches: int, watch: Callable | None = None) -> list[float]:
    """The same step by torch's own schedule: rank r of S runs the parts r, r + S, ... of the network.

    Args:
        name: one of `CLASSES`. parts: all of the network, in order, on every rank; `.grad` is added to in this rank's.
        inputs, targets, loss: as for `by_hand`. watch: called as watch(stage, chunk) for each torch stage, first.

    Raises:
        RequestError: parts, ranks, batch and microbatches do not fit together, or torch refuses them."""
    choose("pipeline schedule", name, CLASSES)
    rank, size, single = dist.get_rank(), dist.get_world_size(), name in ("GPipe", "1F1B")
    _check_batch(inputs, microbatches)
    if len(parts) % size or (single and len(parts) != size):
        raise RequestError(f"{name} needs one part a rank{'' if single else ', or several'}; given: {len(parts)} "
                           f"parts, {size} ranks")
    cpu = torch.device("cpu")
    stages = [pipelining.PipelineStage(parts[n], n, len(parts), cpu) for n in range(rank, len(parts), size)]
    for chunk, stage in enumerate(stages):
        if watch:
            watch(stage, chunk)
    try:
        schedule = getattr(pipelining, CLASSES[name])(stages[0] if single else stages, microbatches, loss_fn=loss)
    except ValueError as error:
        raise RequestError(f"torch refuses {name}, {microbatches} microbatches on {size} ranks: {error}") from None
    losses: list[Tensor] = []
    last = {"target": targets, "losses": losses} if rank == size - 1 else {}
    schedule.step(*([inputs] if rank == 0 else []), **last)
    return [value.item() for value in losses]


def _check_batch(inputs, microbatches):
    if microbatches < 1 or len(inputs) % microbatches:
        raise RequestError(f"the microbatches must divide the batch, or its loss is not their mean; given: "
                           f"{len(inputs)} samples, {microbatches} microbatches")
