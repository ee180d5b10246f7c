"""What a pass keeps in memory, counted on shapes alone, and checkpoints: less memory for work done again.

    saved_bytes(model, shape, batch)                   # stored for the backward pass; 0 with training=False
    memory(model, shape, batch, training)              # held between the passes, and at the peak
    checkpointing(layers, width, batch, segments)      # a chain with its activations dropped and computed again

Parameters, statistics and gradients of parameters are not counted: only what depends on the batch. When not to use it:
as a device's memory. Workspaces of kernels, the allocator's gaps and the optimizer's state come on top.
Source of checkpointing: Chen et al., Training deep nets with sublinear memory cost (2016)."""

import weakref
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.errors import RequestError
from labs import graph


def saved_bytes(model: nn.Module, shape: tuple[int, ...], batch: int = 1, training: bool = True) -> int:
    """Bytes of the different tensors that the forward pass and the loss store for the backward pass; 0 for inference.

    Counted by torch's saved-tensor hooks, a storage once. Checkpoints hide from them what they keep: use `memory`."""
    stored: dict[int, Tensor] = {}

    def body(model: nn.Module) -> int:
        own = _own(model)

        def pack(tensor: Tensor) -> Tensor:
            stored[tensor.untyped_storage()._cdata] = tensor  # kept alive, so that the number stays its own
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            scores = model(torch.empty(batch, *shape))
            if training:
                graph.loss_of(scores)
        return sum(tensor.untyped_storage().nbytes() for key, tensor in stored.items() if key not in own)

    return graph.on_shapes(model, body, training)


def _own(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}


class Memory(NamedTuple):
    """Bytes: `held` after the forward pass, with its result, and its input where that is stored; `peak` at the worst
    moment, with the input, which the caller keeps until the forward pass is over."""

    held: int
    peak: int


class _Live(TorchDispatchMode):
    """Bytes of the storages that exist: each counts from the operation that makes it until nobody refers to it.

    `ignored`: keys of storages that were there before. `gradients`: storages, by the order in which they are made, that
    do not count either."""

    def __init__(self, ignored: set[int], gradients: set[int]):
        super().__init__()
        self.known, self.gradients = dict.fromkeys(ignored, -1), gradients
        self.made = self.now = self.peak = 0

    def _gone(self, key: int, size: int) -> None:
        self.known.pop(key)
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self.known:
                size = 0 if self.made in self.gradients else storage.nbytes()
                self.known[storage._cdata] = self.made
                self.made += 1
                self.now += size
                weakref.finalize(storage, self._gone, storage._cdata, size)
        self.peak = max(self.peak, self.now)
        return result


def memory(model: nn.Module, shape: tuple[int, ...], batch: int = 1, training: bool = True) -> Memory:
    """Memory of one pass over `batch` samples of `shape`, as `graph.capture` runs it."""
    gradients: set[int] = set()

    def body(model: nn.Module) -> Memory:
        with _Live(_own(model), gradients) as live:
            scores = model(torch.empty(batch, *shape))
            held = live.now
            if training:
                graph.loss_of(scores).backward()
            given = [p.grad for p in model.parameters() if p.grad is not None]
            gradients.update(live.known[gradient.untyped_storage()._cdata] for gradient in given)
        return Memory(held, live.peak)

    # Which storages are gradients of parameters is known at the end: the first pass of a step finds them.
    return [graph.on_shapes(model, body, training) for _ in range(1 + training)][-1]


class Checkpointed(nn.Module):
    """A sequence of layers in `segments` as equal as possible: between the passes only the input of each segment is
    kept, and the backward pass runs each segment forward again. Same results; layers must not draw random numbers.

    Raises:
        RequestError: fewer than 1 segment, or more than layers."""

    def __init__(self, layers: nn.Sequential, segments: int):
        super().__init__()
        if not 1 <= segments <= len(layers):
            raise RequestError(f"segments {segments} is out of range; {len(layers)} layers make 1 to {len(layers)}")
        cuts = [len(layers) * n // segments for n in range(segments + 1)]
        self.segments = nn.ModuleList(layers[a:b] for a, b in zip(cuts, cuts[1:], strict=False))

    def forward(self, x: Tensor) -> Tensor:
        # Early stop would skip what a segment computes after its last stored tensor; "one more forward" is the rule.
        with checkpoint.set_checkpoint_early_stop(False):
            for segment in self.segments:
                x = checkpoint.checkpoint(segment, x, use_reentrant=False, preserve_rng_state=False)
        return x


def chain(layers: int, width: int) -> nn.Sequential:
    """`layers` equal layers, [N, width] -> [N, width], each a product and a tanh; on the meta device."""
    with torch.device("meta"):
        return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


class Tradeoff(NamedTuple):
    """`segments` 0: nothing is dropped. Bytes `held` and at the `peak`, the same in activations of one layer
    (`activations`, of the peak), and work done again in forward passes."""

    layers: int
    segments: int
    held: int
    peak: int
    activations: float
    forwards_again: float


def checkpointing(layers: int, width: int = 16, batch: int = 64, segments: int = 0) -> Tradeoff:
    """Memory and extra work of a chain of equal layers with `segments` checkpoints (0: without)."""
    plain = chain(layers, width)
    if not segments:
        return Tradeoff(layers, 0, *_in_activations(plain, width, batch), 0.0)
    dropped = Checkpointed(plain, segments)
    forward, before, after = (graph.capture(model, (width,), batch, training).work
                              for model, training in ((plain, False), (plain, True), (dropped, True)))
    return Tradeoff(layers, segments, *_in_activations(dropped, width, batch), (after - before) / forward)


def _in_activations(model: nn.Module, width: int, batch: int) -> tuple[int, int, float]:
    found = memory(model, (width,), batch)
    return *found, found.peak / (4 * batch * width)


def best_segments(layers: int, width: int = 16, batch: int = 64) -> Tradeoff:
    """The chain at the number of segments with the smallest peak: n inputs kept and one segment, n + ceil(L / n)."""
    return checkpointing(layers, width, batch, min(range(1, layers + 1), key=lambda n: n - (-layers // n)))
