"""Splitting layers: communications between ranks as differentiable operators, and the parts of a layer.

A communication is a linear map of what all ranks hold; its gradient is the transposed map, a communication too:

| forward | backward | where |
|-|-|-|
| `copy`: nothing | all-reduce | what every rank has enters a column split |
| `total`: all-reduce | nothing | partial sums leave a row split, for every rank |
| `gather`: all-gather | reduce-scatter | pieces enter a column split |
| `scatter_sum`: reduce-scatter | all-gather | partial sums leave a row split, in pieces |
| `exchange`: all-to-all | all-to-all | pieces along one dimension become pieces along another |

`copy` and `total` are Megatron-LM's f and g (Shoeybi et al.): activations outside are the same on every rank. With the
others they are in pieces, and the ranks' losses add up to the loss.
When not to use it: to train (see `torch.distributed.tensor.parallel`); for batch normalisation, which mixes samples."""

from copy import deepcopy

import torch
from torch import nn

from labkit.errors import RequestError, choose
from labkit.training import collectives


class LinearMap(torch.autograd.Function):
    """y = go(x, *how), with gradient back(dy, *how): a linear map between ranks and its transpose."""

    @staticmethod
    def forward(ctx, x, go, back, *how):
        ctx.back, ctx.how = back, how
        return go(x, *how)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, *ctx.how), None, None, *[None] * len(ctx.how)


def _same(x, comm):
    return x.view_as(x)


def _sum(x, comm):
    return collectives.all_reduce_ring(x.flatten().clone(), comm).view_as(x)


def _pieces(x, dim, comm) -> torch.Tensor:
    if x.shape[dim] % comm.size:
        raise RequestError(f"dimension {dim} of {tuple(x.shape)} must be a multiple of {comm.size}, the ranks")
    return torch.stack(x.chunk(comm.size, dim))


def _gather(x, dim, comm):
    every = x.new_empty(comm.size, *x.shape)
    every[comm.rank] = x
    collectives.all_gather(every.view(-1), comm)
    return torch.cat(every.unbind(), dim)


def _scatter_sum(x, dim, comm):
    pieces = _pieces(x, dim, comm)
    return collectives.reduce_scatter(pieces.view(-1), comm).view_as(pieces[0])


def _exchange(x, old, new, comm):
    pieces = _pieces(x, new, comm)
    return torch.cat(collectives.all_to_all(pieces.view(-1), comm).view_as(pieces).unbind(), old)


def copy(x, comm):
    """The same tensor, used by every rank for its own part: their gradients add up."""
    return LinearMap.apply(x, _same, _sum, comm)


def total(x, comm):
    """The sum of all ranks' tensors, on every rank."""
    return LinearMap.apply(x, _sum, _same, comm)


def gather(x, dim, comm):
    """The ranks' equal pieces along `dim` put together, on every rank."""
    return LinearMap.apply(x, _gather, _scatter_sum, dim, comm)


def scatter_sum(x, dim, comm):
    """This rank's piece along `dim` of the sum of all ranks' tensors. Raises RequestError unless P divides it."""
    return LinearMap.apply(x, _scatter_sum, _gather, dim, comm)


def exchange(x, old, new, comm):
    """From pieces along dimension `old` to pieces along `new`. Raises as `scatter_sum`."""
    return LinearMap.apply(x, _exchange, lambda dy, a, b, comm: _exchange(dy, b, a, comm), old, new, comm)


def own(x: torch.Tensor, dim: int, comm) -> torch.Tensor:
    """This rank's block of `x` along `dim`, a view; lengths may differ by one."""
    block = collectives.blocks(x.shape[dim], comm.size)[comm.rank]
    return x.narrow(dim, block.start, block.stop - block.start)


def held(name: str, value: torch.Tensor, cut: str, comm) -> torch.Tensor | None:
    """What this rank holds of a `weight` [out, in, ...] or `bias` [out], or of its gradient, cut by "columns" (output
    channels) or "rows" (input channels, where rank 0 alone has the bias)."""
    if cut == "rows" and name == "bias":
        return value if comm.rank == 0 else None
    return own(value, int(cut == "rows"), comm)


def part(layer: nn.Module, cut: str, comm) -> nn.Module:
    """This rank's part of an `nn.Linear` or `nn.Conv2d`, a layer of its own; see `held`.

    Raises:
        RequestError: another layer, groups, or channels that P does not divide."""
    choose("cut", cut, ("columns", "rows"))
    plain = isinstance(layer, nn.Linear | nn.Conv2d) and getattr(layer, "groups", 1) == 1
    if not plain or layer.weight.shape[cut == "rows"] % comm.size:
        raise RequestError(f"cannot split {layer}; allowed: Linear, Conv2d, {cut} a multiple of {comm.size}, one group")
    mine = deepcopy(layer)
    for name, value in layer.named_parameters():
        value = held(name, value.detach(), cut, comm)
        setattr(mine, name, None if value is None else nn.Parameter(value.clone()))
    return mine


def all_reduce_gradients(parameters, comm) -> None:
    """Data parallelism: sum the gradients of replicated parameters over the ranks, all in one collective."""
    gradients = [parameter.grad for parameter in parameters]
    whole = collectives.all_reduce_ring(torch.cat([gradient.flatten() for gradient in gradients]), comm)
    for gradient, summed in zip(gradients, whole.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
