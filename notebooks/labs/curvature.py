"""Curvature of the loss along its own gradient, g'Hg / |g|^2, and the smoothing that a plot of it needs.

You et al. (arXiv 1901.08256) justify a warm-up that grows with the batch by this quantity, taken absolute. That and
the definition are given from memory of the paper; the values on its plot are not known here and not reproduced."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from labkit.errors import RequestError
from labkit.optim.schedules import require_range

Loss = Callable[[Tensor, Tensor], Tensor]


def curvature_along_gradient(model: nn.Module, loss_fn: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    """The signed Rayleigh quotient g'Hg / |g|^2 of the Hessian H along the gradient g, by one double backward.

    The gradient of g . stop(g) is Hg exactly; no Hessian is formed. Its inverse is the best step length of gradient
    descent on a quadratic. The model is used in the mode it is in; ``.grad``, mode, buffers and random state are left
    as they were. A single probe is noisy, and may be negative: plot `running_median` of many.

    Args:
        model: called as ``model(inputs)``; parameters that need no gradient are left out.
        loss_fn: ``loss_fn(outputs, targets)``, a scalar. A mean loss gives the curvature of the mean.
        inputs: one batch, the same at every probe if probes are to be compared.
        targets: what loss_fn takes.

    Returns:
        A 0-d tensor on the loss's device, detached; nan where the gradient is exactly 0.

    Not for fused kernels without a second derivative, such as flash attention. cuDNN's LSTM is one: it is switched
    off for the probe."""
    with _untouched(model), torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = _gradients(model, loss_fn, inputs, targets, parameters, create_graph=True)
        constants = [g.detach() for g in gradients]
        square = _dot(gradients, constants)
        if not square.requires_grad:  # the loss is linear in the parameters: H = 0
            return torch.zeros_like(square) / square
        products = torch.autograd.grad(square, parameters, materialize_grads=True)
        return _dot(list(products), constants) / square.detach()


def finite_difference_curvature(model: nn.Module, loss_fn: Loss, inputs: Tensor, targets: Tensor,
                                width: float | None = None) -> Tensor:
    """The same by central differences of the gradient at w + width g/|g| and w - width g/|g|: the naive version.

    Three gradients instead of a double backward, so any kernel will do, and two errors of which `width` trades one
    for the other; the default is the cube root of the dtype's resolution. The weights are moved and put back bit for
    bit. Use it as a check of `curvature_along_gradient`, in float64, not in its place.

    Raises:
        RequestError: a width that is not positive."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    width = torch.finfo(parameters[0].dtype).eps ** (1 / 3) if width is None else width
    require_range("width", width, open_low=True)
    before = [p.detach().clone() for p in parameters]

    def slope(shift: float) -> Tensor:
        with torch.no_grad():
            for parameter, start, along in zip(parameters, before, direction, strict=True):
                parameter.copy_(start + shift * along)
        with _untouched(model):
            return _dot(_gradients(model, loss_fn, inputs, targets, parameters, create_graph=False), direction)

    with torch.backends.cudnn.flags(enabled=False):
        with _untouched(model):
            gradients = _gradients(model, loss_fn, inputs, targets, parameters, create_graph=False)
        length = _dot(gradients, gradients).sqrt()
        direction = [g / length for g in gradients]
        try:
            return (slope(width) - slope(-width)) / (2.0 * width)
        finally:
            with torch.no_grad():
                for parameter, start in zip(parameters, before, strict=True):
                    parameter.copy_(start)


def running_median(values: Sequence[float], width: int = 5) -> np.ndarray:
    """Centred running median over `width` probes, as long as `values`; at the ends over those that there are.

    Raises:
        RequestError: an even or non-positive width, or values that are not one row of numbers."""
    if not isinstance(width, int) or width < 1 or width % 2 == 0:
        raise RequestError(f"width must be an odd whole number, at least 1, not {width!r}")
    row = np.asarray(values, dtype=float)
    if row.ndim != 1:
        raise RequestError(f"values must be one row of numbers, not an array of shape {row.shape}")
    half = width // 2
    return np.array([np.median(row[max(0, i - half) : i + half + 1]) for i in range(len(row))])


def _gradients(model: nn.Module, loss_fn: Loss, inputs: Tensor, targets: Tensor, parameters: list[Tensor],
               create_graph: bool) -> list[Tensor]:
    with torch.enable_grad():
        loss = loss_fn(model(inputs), targets)
    return list(torch.autograd.grad(loss, parameters, create_graph=create_graph, materialize_grads=True))


def _dot(left: list[Tensor], right: list[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put random state and buffers back (batch-norm statistics move in a forward pass of training mode)."""
    cuda = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
