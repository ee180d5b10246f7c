"""The graph of a network: every operation of a pass, its work and depth, and what it waits for.

`capture(model, shape, batch, training)` runs the module on shapes alone (meta tensors: no memory, no arithmetic, any
batch) and records each operation that torch dispatches, in the backward pass too. Use:

    step = graph.capture(model, (3, 32, 32), batch=64)               # forward, loss and backward
    served = graph.capture(model, (3, 32, 32), training=False)       # inference: forward alone
    step.work, step.depth, step.parallelism, step.macs, len(step.nodes)

What one operation costs is in `graph_costs.py`, schedules on p processors (`tasks`, `levels`, `bounds`) in
`graph_schedule.py`, memory and checkpointing in `graph_memory.py`.

Dependencies are true ones: an operation waits for the last writer of each storage that it reads. Overwriting in place
is no dependency, since a result could have gone elsewhere. The optimizer's update is not part of a step. When not to
use it: modules whose path depends on values; on shapes alone those raise torch's own error."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.errors import RequestError
from labkit.operators.work import Cost
from labs import graph_costs


@dataclass(frozen=True)
class Node:
    """One operation: `kind` as torch names it, `cost`, and `after`: numbers of the nodes that it waits for."""

    kind: str
    cost: Cost
    after: tuple[int, ...]
    backward: bool = False


@dataclass(frozen=True)
class Graph:
    """Operations in an order in which they can run: every node comes after those that it waits for."""

    nodes: tuple[Node, ...]

    @property
    def work(self) -> int:
        """W: all operations, a multiply-add of a sum of products counted once."""
        return sum(node.cost.work for node in self.nodes)

    @property
    def macs(self) -> int:
        """Multiply-adds of convolutions and matrix products alone."""
        return sum(node.cost.work for node in self.nodes if node.kind in graph_costs.PRODUCTS)

    @property
    def depth(self) -> int:
        """D: the longest chain of operations."""
        return max(self.finishes(), default=0)

    @property
    def parallelism(self) -> float:
        """W / D."""
        return Cost(self.work, self.depth).parallelism

    def finishes(self) -> list[int]:
        """When each node would finish with processors without end."""
        ends: list[int] = []
        for node in self.nodes:
            ends.append(node.cost.depth + max((ends[at] for at in node.after), default=0))
        return ends

    def critical_path(self) -> list[int]:
        """Numbers of the nodes of one longest chain, first to last; nodes without depth are left out."""
        ends = self.finishes()
        path, at = [], max(range(len(ends)), key=ends.__getitem__, default=None)
        while at is not None:
            path.append(at)
            at = max(self.nodes[at].after, key=ends.__getitem__, default=None)
        return [at for at in reversed(path) if self.nodes[at].cost.depth]


class _Recorder(TorchDispatchMode):
    """Appends a node for each operation; views are no operation, since they share the storage of their base."""

    def __init__(self):
        super().__init__()
        self.nodes: list[Node] = []
        self.writers: dict[int, int] = {}
        self.kept: list[torch.UntypedStorage] = []  # one that is freed could give its number to another
        self.backward = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **(kwargs or {}))
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.kept += [tensor.untyped_storage() for tensor in read + written]
        known = {_storage(tensor) for tensor in read}
        if func._schema.is_mutable or {_storage(tensor) for tensor in written} - known:
            after = tuple(sorted({self.writers[storage] for storage in known if storage in self.writers}))
            for kind, cost, made in graph_costs.of(func._schema.name.removeprefix("aten::"), args, result):
                for tensor in made:
                    if tensor is not None:
                        self.writers[_storage(tensor)] = len(self.nodes)
                self.nodes.append(Node(kind, cost, after, self.backward))
        return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Pass(nn.Module):
    """`body(model)` as a module, so that torch can swap the parameters while it runs."""

    def __init__(self, model: nn.Module, body: Callable):
        super().__init__()
        self.model, self.body = model, body

    def forward(self):
        return self.body(self.model)


def on_shapes(model: nn.Module, body: Callable, training: bool):
    """`body(model)` with meta parameters and tensors, with gradients only when `training`.

    The model's own parameters, statistics and modes stay as they are. Returns: what `body` returns."""
    modes = {module: module.training for module in model.modules()}
    run = _Pass(model, body)
    tensors = {name: torch.empty_like(p, device="meta").requires_grad_(p.requires_grad and training)
               for name, p in run.named_parameters()}
    tensors |= {name: torch.empty_like(b, device="meta") for name, b in run.named_buffers()}
    model.train(training)
    try:
        with torch.device("meta"), torch.set_grad_enabled(training):
            return torch.func.functional_call(run, tensors, ())
    finally:
        for module, mode in modes.items():
            module.training = mode


def loss_of(scores: Tensor) -> Tensor:
    """Cross entropy of scores [batch, classes] with classes of any kind; of any other shape the sum."""
    if scores.ndim != 2:
        return scores.sum()
    return F.cross_entropy(scores, torch.empty(len(scores), dtype=torch.long, device=scores.device))


def capture(model: nn.Module, shape: tuple[int, ...], batch: int = 1, training: bool = True) -> Graph:
    """The graph of one pass over `batch` samples of `shape` (without the batch), float32.

    Args:
        model: one input, one output; nothing in it is changed.
        training: forward in training mode, loss (`loss_of`) and backward; otherwise forward in evaluation mode.

    Raises:
        RequestError: `batch` below 1, an operator without a formula, or a model that shapes alone cannot run."""
    if batch < 1:
        raise RequestError(f"batch {batch} is out of range; it must be 1 or more")
    recorder = _Recorder()

    def body(model: nn.Module) -> None:
        with recorder:
            scores = model(torch.empty(batch, *shape))
            if training:
                loss = loss_of(scores)
                recorder.backward = True
                loss.backward()

    try:
        on_shapes(model, body, training)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError) as error:
        raise RequestError(f"this model cannot be run on shapes alone ({str(error).splitlines()[0]}); it needs one float "
                           "input of that shape, one output, and a path that does not depend on values") from None
    return Graph(tuple(recorder.nodes))
