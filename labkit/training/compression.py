"""Gradients in fewer bytes: a compressor (what goes on the wire), a memory (what becomes of the rest), and an exchange:
`hook` for DDP, `exchange` for a bare loop. `state, hook = hook_of("topk", density=0.01)`.

Each tensor is compressed by itself. A wire that is closed under addition (float16) is all-reduced. Signs, levels and
sparse tensors are not: their wires are all-gathered as bytes, and every rank adds up all of them in the order of ranks,
so ranks stay equal bit for bit, and on many ranks dense is cheaper again. The compressors are in
`notebooks/labs/compressors.py`, `hook_of` in `notebooks/parallel/hooks.py`. A memory belongs to its rank: save each
rank's `State.state_dict`, as `HookedDDPStrategy` does.

When not to use it: where the network is no bottleneck, as encoding takes time; a biased compressor (1-bit, top-k)
without feedback; a loss scaler that skips steps: a gradient that is not finite is a WorkError, before it is sent."""

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from labkit.paths import lab_part
from labkit.training.wrapper import check_finite


class Compressor(NamedTuple):
    """Pure functions: `encode(tensor, generator)` -> wire, a tuple of tensors; `decode(wire, like)` -> as `like`.

    closed: wires may be added up. fixed: their sizes follow from the tensor's shape; if not, they are vectors, whose
    lengths are sent first. at(step): the compressor of that step, where it changes."""

    encode: Callable[..., tuple[Tensor, ...]]
    decode: Callable[[tuple[Tensor, ...], Tensor], Tensor]
    closed: bool = False
    fixed: bool = True
    at: Callable[[int], "Compressor"] | None = None


@dataclass(frozen=True)
class Memory:
    """`feedback`: what was not sent is added to the next gradient, so all that was sent + the rest = all gradients.

    `momentum` > 0 is Deep Gradient Compression (Lin et al.): u <- m u + g takes the gradient's place, and where
    something was sent u starts anew (`masking`; at density 1 no momentum is left then). The optimizer's own momentum
    has to be 0, else momentum acts twice."""

    feedback: bool = False
    momentum: float = 0.0
    masking: bool = True

    def add(self, kept: dict, gradient: Tensor) -> Tensor:
        """What to encode, with what is `kept` of this tensor."""
        kept.update({name: part.to(gradient.device) for name, part in kept.items()})  # a checkpoint's may lie elsewhere
        if self.momentum:
            kept["u"] = gradient = gradient + self.momentum * kept.get("u", 0)
        return gradient + kept["rest"] if "rest" in kept else gradient

    def keep(self, kept: dict, full: Tensor, sent: Tensor) -> None:
        """`sent`: what the others will read of `full`."""
        if self.feedback:
            kept["rest"] = full - sent
        if self.momentum and self.masking:
            kept["u"] = kept["u"].where(sent == 0, 0)


class State:
    """One rank's part of the exchanges.

    `payload`: bytes that it encoded; `sent`: bytes that ring collectives send for them, the mean of the ranks; `step`:
    exchanges so far; `kept`: its memory, by number of the tensor: its place in `exchange`, or under DDP in the first
    buckets, which follow from the model. worker: whose random numbers; None: this rank's in `group`."""

    saved = ("kept", "step", "payload", "sent")

    def __init__(self, compressor: Compressor, memory: Memory | None = None, seed: int = 0, worker: int | None = None,
                 group=None):
        self.compressor, self.memory, self.group, self.kept = compressor, memory or Memory(), group, {}
        self.step, self.payload, self.sent, self.numbers = 0, 0, 0.0, {}
        self._generator = self._drawn = None
        self._seed = 1_000_003 * seed + (distributed.get_rank(group) if worker is None else worker)

    def now(self) -> Compressor:
        """The compressor of this step."""
        return self.compressor.at(self.step) if self.compressor.at else self.compressor

    def wire(self, key: Hashable, gradient: Tensor) -> tuple[Tensor, ...]:
        """What goes out for `gradient`; `key` is its place in the memory. For ranks that live in one process, too."""
        if self._generator is None:
            self._generator = torch.Generator(gradient.device).manual_seed(self._seed)
            if self._drawn is not None:
                self._generator.set_state(self._drawn)
        kept, compressor = self.kept.setdefault(key, {}), self.now()
        full = self.memory.add(kept, gradient)
        wire = compressor.encode(full, self._generator)
        self.memory.keep(kept, full, compressor.decode(wire, full))
        self.payload += sum(part.nbytes for part in wire)
        return wire

    def state_dict(self) -> dict:
        """A rank goes on exactly from it, in `exchange` and in `HookedDDPStrategy`. DDP by itself fills its buckets
        anew after the first step, so that random methods draw in another order there."""
        drawn = self._drawn if self._generator is None else self._generator.get_state()
        return copy.deepcopy({name: getattr(self, name) for name in self.saved}) | {"drawn": drawn}

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(copy.deepcopy({name: state[name] for name in self.saved}))
        self._generator, self._drawn = None, state["drawn"]


def _gather(mine: Tensor, state: State, size: int):
    """(`mine` of each rank [size, n], the work to wait for)."""
    everyone = mine.new_empty(size * len(mine))
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # before torch 2.13
    state.sent += (size - 1) * mine.nbytes
    return everyone.view(size, -1), gather(everyone, mine, group=state.group, async_op=True)


def _start(state: State, keys: Sequence, gradients: Sequence[Tensor], result) -> torch.futures.Future:
    """Begins to replace `gradients` by their means over the ranks; `result`, of the same memory, is the future's value:
    that is what a GPU's streams wait for."""
    wires = [state.wire(key, gradient) for key, gradient in zip(keys, gradients, strict=True)]
    parts, size = [part.flatten() for wire in wires for part in wire], distributed.get_world_size(state.group)
    compressor, lengths = state.now(), [[part.nbytes for part in parts]] * size
    if compressor.closed:
        mine = torch.cat(parts).div_(size)  # before it is added up: a sum of float16 may overflow
        everyone, work = mine[None], distributed.all_reduce(mine, group=state.group, async_op=True)
        state.sent += 2 * (size - 1) / size * mine.nbytes
    else:
        mine = torch.cat([part.view(torch.uint8) for part in parts])
        if not compressor.fixed:
            told, work = _gather(torch.tensor(lengths[0], device=mine.device), state, size)
            work.wait()
            lengths = told.tolist()
            mine = F.pad(mine, (0, max(1, *map(sum, lengths)) - len(mine)))
        everyone, work = _gather(mine, state, size)

    def finish(arrived):
        arrived.value()  # raises what went wrong; without it, nobody would look whether anything came
        pieces = [iter(row.view(torch.uint8)[: sum(each)].split(each))
                  for row, each in zip(everyone, lengths, strict=False)]  # all-reduced: one row
        for gradient, wire in zip(gradients, wires, strict=True):  # clone: bytes have to lie as the dtype wants
            heard = [tuple(next(row).clone().view(part.dtype).view(-1, *part.shape[1:]) for part in wire)
                     for row in pieces]
            mean = sum(compressor.decode(each, gradient) for each in heard)
            gradient.copy_(mean if compressor.closed else mean / size)
        return result

    return work.get_future().then(finish)


def exchange(gradients: Sequence[Tensor], state: State) -> None:
    """Replace each of `gradients`, the same list every time, by its mean over the ranks, in place."""
    for gradient in gradients:
        check_finite(gradient, "gradients")
    _start(state, range(len(gradients)), gradients, [*gradients]).wait()
    state.step += 1


def hook(state: State, bucket) -> torch.futures.Future[Tensor]:
    """For `DistributedDataParallel.register_comm_hook(state, hook)`; memory is by parameter, as buckets change."""
    check_finite(bucket.buffer(), "gradients")
    keys = [state.numbers.setdefault(parameter, len(state.numbers)) for parameter in bucket.parameters()]
    future = _start(state, keys, bucket.gradients(), bucket.buffer())
    state.step += bucket.is_last()
    return future


def __getattr__(name: str):
    if name == "hook_of":
        return lab_part("hooks", "parallel").hook_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
