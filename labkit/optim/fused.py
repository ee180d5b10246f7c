"""How LARS and LAMB use torch's fused kernels on a CPU: which tensors they take, and in what helpings.

A kernel call costs more than a small tensor's arithmetic, so small tensors of one shape are stacked. A large one is
measured just before its kernel runs, which then finds in the cache what the norms have read."""

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

LARGE = 2**14  # numbers; above, a tensor is worth its own calls
STACK = 2**19  # most numbers of a stack
PLAIN = frozenset((Tensor, nn.Parameter))


class Scratch:
    """Buffers kept from step to step, as fresh memory costs a page fault per page and a view of it a call: at most two
    copies of the small tensors and one of the largest."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[Any, ...], tuple[Tensor, Tensor, tuple[Tensor, ...]]] = {}
        self.flat: dict[torch.dtype, Tensor] = {}

    def stack(self, name: str, like: list[Tensor], fill: bool = True) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A matrix with a row for each tensor of one shape, a copy of them if asked; the rows in that shape."""
        key, count = (name, like[0].dtype, like[0].shape), len(like)
        if key not in self.stacks or len(self.stacks[key][2]) != count:
            whole = like[0].new_empty(count, *like[0].shape)
            self.stacks[key] = whole, whole.view(count, -1), whole.unbind()
        whole, rows, pieces = self.stacks[key]
        if fill:
            torch.stack(like, out=whole)
        return rows, pieces

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of that shape, whatever it holds."""
        if tensor.dtype not in self.flat or self.flat[tensor.dtype].numel() < tensor.numel():
            self.flat[tensor.dtype] = tensor.new_empty(tensor.numel())
        return self.flat[tensor.dtype][:tensor.numel()].view(tensor.shape)


def in_memory_order(*columns: list[Tensor]) -> list[list[Tensor]] | None:
    """The columns (weights, gradients, state) as tensors that lie contiguously, or None where the kernels must not go:
    off the CPU, other than float32 and float64, subclasses, odd strides, under torch.compile.

    A channels-last row comes back as permuted views of the same storage."""
    first = columns[0][0]
    if first.device.type != "cpu" or first.dtype not in (torch.float32, torch.float64):
        return None
    if torch.compiler.is_compiling() or not PLAIN.issuperset(map(type, columns[0])):
        return None
    if not all(map(Tensor.is_contiguous, columns[0])):
        rows = [[t.permute(0, 2, 3, 1) for t in row] if row[0].dim() == 4 and not row[0].is_contiguous() else row
                for row in zip(*columns, strict=True)]
        columns = tuple(list(column) for column in zip(*rows, strict=True))
    return list(columns) if all(map(Tensor.is_contiguous, chain(*columns))) else None


def helpings(*columns: list[Tensor]) -> Iterator[tuple[bool, list[list[Tensor]]]]:
    """(whether to stack, aligned pieces of the columns): small tensors of one shape together, a large one alone."""
    by_shape: dict[torch.Size, list[int]] = {}
    for i, tensor in enumerate(columns[0]):
        by_shape.setdefault(tensor.shape, []).append(i)
    for shape, indices in by_shape.items():
        size = max(1, shape.numel())
        most = max(1, STACK // size) if size <= LARGE else 1
        for start in range(0, len(indices), most):
            yield size <= LARGE, [[column[i] for i in indices[start:start + most]] for column in columns]


def norm(tensor: Tensor) -> float:
    """Euclidean norm of a contiguous tensor. A dot product rounds less than torch's norm."""
    flat = tensor.view(-1)
    return math.sqrt(torch.dot(flat, flat).item())


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms of the rows of a matrix, as a column."""
    return torch.linalg.vector_norm(rows, dim=1, keepdim=True)
