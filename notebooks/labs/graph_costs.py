"""What one dispatched torch operation costs, in the units of `labkit.operators.work`.

Convolutions, matrix products, pooling, batch norm, softmax and reductions have their formulas; copies, fills, random
masks and integers are free; **anything else counts one operation for each value of its result**, side by side. When not
to use it: for operators that hide a loop (`HIDDEN`); they are refused, write those out in smaller operations."""

from math import prod

from torch import Tensor

from labkit.errors import RequestError
from labkit.operators import work
from labkit.operators.work import Cost, each, sums

# How the names of copies, fills and random masks begin; and what the names of operators that hide a loop contain.
FREE = ("empty", "new_", "zero", "ones", "full", "fill", "copy_", "clone", "_to_copy", "cat", "stack", "roll", "flip",
        "constant_pad_nd", "slice", "select", "index_select", "gather", "bernoulli", "embedding", "im2col", "repeat")
HIDDEN = ("attention", "attn", "layer_norm", "group_norm", "lstm", "gru", "rnn", "fft", "cum", "scatter_add",
          "index_add", "index_put", "embedding_dense")
PRODUCTS = {"convolution", "convolution_grad_weight", "convolution_grad_input", "mm", "addmm", "bmm", "baddbmm"}


def window(image: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[int, ...]:
    """The window (and the stride) of adaptive pooling from `image` to `outputs`: the largest, where they differ."""
    return tuple(-(-before // after) for before, after in zip(image, outputs, strict=True))


def of(kind: str, args: tuple, result) -> list[tuple[str, Cost, tuple]]:
    """The independent parts of an operation: (kind, cost, results that it makes), for torch's own arguments.

    Raises:
        RequestError: an operator of `HIDDEN`, or a transposed convolution."""
    if any(name in kind for name in HIDDEN) or kind.startswith("convolution") and args[6 + (kind != "convolution")]:
        raise RequestError(f"no formula for the work of {kind.replace('convolution', 'transposed convolution')}; "
                           "write it in matrix products and operations on single values")
    if kind == "convolution_backward":
        names = ("convolution_grad_input", "convolution_grad_weight", "convolution_grad_bias")
        gradient, x, weight, _, stride, padding, dilation, _, _, groups, asked = args
        costs = _convolution(x, weight, stride, padding, dilation, groups)
        bias = sums(gradient.shape[1], gradient.numel() // gradient.shape[1])
        parts = zip(names, (costs.grad_input, costs.grad_weight, bias), result, asked, strict=True)
        return [(name, cost, (made,)) for name, cost, made, wanted in parts if wanted]
    made = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    return [(kind, _cost(kind, args, made), made)]


def _convolution(x: Tensor, weight: Tensor, stride, padding, dilation, groups: int, bias: bool = False) -> work.Costs:
    return work.convolution(x.shape[0], x.shape[1], weight.shape[0], tuple(x.shape[2:]), tuple(weight.shape[2:]),
                            tuple(stride), tuple(padding), tuple(dilation), groups, bias)


def _pooling(kind: str, x: Tensor, kernel, stride=(), padding=0, *rest) -> work.Costs:
    """`rest`: dilation (maximum only), then whether the last window may hang over."""
    ceil = rest[1:2] if kind == "max" else rest[:1]
    padding = padding if isinstance(padding, int) else tuple(padding)
    return work.pooling(kind, prod(x.shape[:-3]), x.shape[-3], tuple(x.shape[-2:]), tuple(kernel),
                        tuple(stride) or None, padding, *ceil)


def _cost(kind: str, args: tuple, made: tuple) -> Cost:
    values = max(tensor.numel() for tensor in made if tensor is not None)
    x = args[0] if args and isinstance(args[0], Tensor) else made[0]
    if kind.startswith(FREE) or not made[0].is_floating_point():
        return Cost()
    if kind == "convolution":
        return _convolution(x, args[1], *args[3:6], args[8], args[2] is not None).forward
    if kind in ("mm", "bmm"):
        return work.products(values, x.shape[-1])
    if kind in ("addmm", "baddbmm"):
        return work.products(values, args[1].shape[-1], bias=True)
    if kind in ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"):
        return work.batch_norm(x.shape[0], x.shape[1], tuple(x.shape[2:]), args[5]).forward
    if kind == "native_batch_norm_backward":
        costs = work.batch_norm(x.shape[0], x.shape[1], tuple(x.shape[2:]), args[7])
        return costs.grad_weight + costs.grad_input
    if kind in ("max_pool2d_with_indices", "avg_pool2d"):
        return _pooling(kind[:3], *args).forward
    if kind in ("max_pool2d_with_indices_backward", "avg_pool2d_backward"):
        return _pooling(kind[:3], *args[1:]).grad_input
    if kind in ("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"):
        image, outputs = (x, made[0]) if kind == "_adaptive_avg_pool2d" else (args[1], x)
        size = window(image.shape[-2:], outputs.shape[-2:])
        costs = _pooling("avg", image, size, size)
        return costs.forward if outputs is made[0] else costs.grad_input
    if kind in ("sum", "mean", "amax"):
        return sums(values, x.numel() // values) + (each(values, 1) if kind == "mean" else Cost())
    if kind == "nll_loss_forward":
        return sums(1, max(1, x.shape[0])) + each(1, 1)
    if kind == "nll_loss_backward":
        return each(args[1].shape[0], 1)
    if "softmax" in kind:
        return _softmax(kind, values, made[0].shape[args[2 if "backward" in kind else 1]])
    return each(values, 1)


def _softmax(kind: str, values: int, classes: int) -> Cost:
    """Along one dimension of `classes`: `_softmax`, `_log_softmax`, and their gradients from the stored result."""
    total, rows = sums(values // classes, classes), values // classes
    if kind == "_softmax_backward_data":  # y (g - sum g y)
        return each(values, 1) + total + each(values, 1, 1)
    if kind == "_log_softmax_backward_data":  # g - exp(y) sum g
        return (total | each(values, 1)) + each(values, 1, 1)
    exponentials = total + each(values, 1, 1) + total  # the maximum, subtracted before exp; the sum
    return exponentials + (each(rows, 1) if kind == "_log_softmax" else Cost()) + each(values, 1)
