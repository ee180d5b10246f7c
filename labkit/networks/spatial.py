"""Splitting images by rows: rank r owns neighbouring rows of each [N, C, h, W]. A layer whose window reaches over their
border first gets the rows it lacks, the halo, from the neighbours.

Rows per rank may differ. Weights are replicated: `tensor.all_reduce_gradients` adds up their gradients. When not to use
it: where a rank would own few rows of many channels, as in late layers."""

import torch
from torch import nn
from torch.nn import functional as F

from labkit.errors import RequestError
from labkit.networks.tensor import LinearMap


def _swap(up, down, comm) -> list:
    """Send `up` to the rank above, `down` to the one below; what they send here, None where there is nothing."""
    sides = (comm.rank - 1, up, down), (comm.rank + 1, down, up)
    sides = [side for side in sides if 0 <= side[0] < comm.size]
    for other, out, _ in sides:
        if out.numel():
            comm.send(out.flatten(), other)
    got = {other: comm.recv(like.numel(), other, into=like.new_empty(like.numel())).view(like.shape)
           for other, _, like in sides if like.numel()}
    comm.finish()
    return [got.get(comm.rank - 1), got.get(comm.rank + 1)]


def _extend(x, above, below, comm, fill):
    up, down = x[:, :, :below], x[:, :, x.shape[2] - above :]
    before, after = _swap(up, down, comm)
    before = torch.full_like(down, fill) if before is None else before
    return torch.cat([before, x, torch.full_like(up, fill) if after is None else after], 2)


def _return(gradient, above, below, comm, _):
    """The transposed map: gradients of borrowed rows go back to their owners, who add them."""
    end = gradient.shape[2] - below
    mine = gradient[:, :, above:end].clone()
    before, after = _swap(gradient[:, :, :above], gradient[:, :, end:], comm)
    if before is not None:
        mine[:, :, :below] += before
    if after is not None:
        mine[:, :, end - 2 * above :] += after
    return mine


def halo(x: torch.Tensor, above: int, below: int, comm, fill: float = 0.0) -> torch.Tensor:
    """[N, C, h, W] to [N, C, above + h + below, W], with the neighbours' rows, or `fill` outside of the image.
    Raises RequestError where this rank owns fewer rows than a neighbour needs."""
    if x.shape[2] < max(above, below):
        raise RequestError(f"rank {comm.rank} owns {x.shape[2]} rows, a neighbour needs {max(above, below)}; use fewer ranks")
    return LinearMap.apply(x, _extend, _return, above, below, comm, fill)


def by_rows(layer: nn.Module, x: torch.Tensor, comm) -> torch.Tensor:
    """`layer` on this rank's rows: Conv2d, MaxPool2d or AvgPool2d; any other layer has to treat pixels one by one.

    Raises:
        RequestError: the rows of a rank are no multiple of the stride, or the layer makes more or fewer of them."""
    if not isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        return layer(x)
    usual = {"padding_mode": "zeros", "count_include_pad": True, "divisor_override": None, "return_indices": False}
    if isinstance(layer.padding, str) or any(getattr(layer, name, value) != value for name, value in usual.items()):
        raise RequestError(f"{layer} cannot be split by rows; allowed: padding by numbers, filled with zeros and counted")
    (k, _), (stride, _), (pad, wide), (dilation, _) = (
        value if isinstance(value, tuple) else (value, value)
        for value in (getattr(layer, name, 1) for name in ("kernel_size", "stride", "padding", "dilation")))
    if dilation != 1 or x.shape[2] % stride or getattr(layer, "ceil_mode", False) or not k - stride <= 2 * pad < k:
        raise RequestError(f"{layer} does not map {x.shape[2]} rows to {x.shape[2]}/{stride} of them; choose "
                           "padding (K-1)/2, and rows that are a multiple of the stride")
    x = halo(x, pad, max(0, k - stride - pad), comm, -torch.inf if isinstance(layer, nn.MaxPool2d) else 0.0)
    if isinstance(layer, nn.Conv2d):
        return F.conv2d(x, layer.weight, layer.bias, layer.stride, (0, wide), groups=layer.groups)
    pool = F.max_pool2d if isinstance(layer, nn.MaxPool2d) else F.avg_pool2d
    return pool(x, layer.kernel_size, layer.stride, (0, wide))
