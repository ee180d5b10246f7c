"""Networks by year, and what each layer of a network holds, moves and computes.

`NETWORKS` names them; `build(name)` makes one (on the meta device: shapes, no memory); `layers(model, shape)` lists its
layers in the order in which they run, for planners; `table(...)` sets work, depth and parameters of all beside each
other. The modules themselves are in `zoo_nets.py`, the captured graphs in `graph.py`."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn

from labkit.errors import RequestError, choose
from labkit.operators import work
from labs import graph, graph_costs, zoo_nets


class Network(NamedTuple):
    """`year` of publication; `shape` of one sample, (C, H, W); `make()` -> module."""

    year: int
    shape: tuple[int, ...]
    make: object


_IMAGE = (3, 224, 224)
NETWORKS = {
    "LeNet-5": Network(1998, (1, 32, 32), zoo_nets.lenet5),
    "AlexNet": Network(2012, _IMAGE, zoo_nets.alexnet),
    "VGG-16": Network(2014, _IMAGE, zoo_nets.vgg16),
    "GoogLeNet": Network(2014, _IMAGE, zoo_nets.googlenet),
    "ResNet-18": Network(2015, _IMAGE, lambda: zoo_nets.resnet(18)),
    "ResNet-50": Network(2015, _IMAGE, lambda: zoo_nets.resnet(50)),
    "ResNet-152": Network(2015, _IMAGE, lambda: zoo_nets.resnet(152)),
    "SqueezeNet": Network(2016, _IMAGE, zoo_nets.squeezenet),
    "DenseNet-121": Network(2016, _IMAGE, lambda: zoo_nets.densenet(121)),
    "DenseNet-161": Network(2016, _IMAGE, lambda: zoo_nets.densenet(161)),
    "DenseNet-201": Network(2016, _IMAGE, lambda: zoo_nets.densenet(201)),
}


def build(name: str, device: str = "meta") -> nn.Module:
    """The network `name` of `NETWORKS`.

    Raises:
        RequestError: unknown name."""
    choose("network", name, NETWORKS)
    with torch.device(device):
        return NETWORKS[name].make()


@dataclass(frozen=True)
class Layer:
    """One layer for ONE sample; words are numbers of values, shapes are without the batch.

    `kind` is conv, fc, pool, bn, activation or other (costs not counted). `macs` are the multiply-adds of the forward
    pass (conv and fc; else 0), `forward`, `grad_weight` and `grad_input` its costs at batch 1 with all operations
    (`labkit.operators.work`). `kernel`, `stride` and `padding` are (rows, columns) of conv and pool, () elsewhere."""

    name: str
    kind: str
    parameters: int
    shape_in: tuple[int, ...]
    shape_out: tuple[int, ...]
    macs: int
    forward: work.Cost
    grad_weight: work.Cost
    grad_input: work.Cost
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()

    @property
    def words_in(self) -> int:
        """Activation words read per sample."""
        return prod(self.shape_in)

    @property
    def words_out(self) -> int:
        """Activation words written per sample."""
        return prod(self.shape_out)


def _window(module: nn.Module, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """(kernel, stride, padding) of a convolution or of pooling, each as (rows, columns)."""
    if isinstance(module, nn.AdaptiveAvgPool2d):
        size = graph_costs.window(before[1:], after[1:])
        return size, size, (0, 0)
    if isinstance(module.padding, str):
        raise RequestError(f"padding {module.padding!r} is not counted; give the layer its padding as a number")
    return tuple((value, value) if isinstance(value, int) else tuple(value)
                 for value in (module.kernel_size, module.stride, module.padding))


def _costs(module: nn.Module, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[str, work.Costs, tuple]:
    """Kind of the layer, costs at batch 1, and its window."""
    biased = getattr(module, "bias", None) is not None
    if isinstance(module, nn.Conv2d):
        window = _window(module, before, after)
        return "conv", work.convolution(1, before[0], after[0], before[1:], *window, module.dilation, module.groups,
                                        biased), window
    if isinstance(module, (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)):
        window, kind = _window(module, before, after), "max" if isinstance(module, nn.MaxPool2d) else "avg"
        ceil = getattr(module, "ceil_mode", False)
        return "pool", work.pooling(kind, 1, before[0], before[1:], *window, ceil), window
    if isinstance(module, nn.Linear):
        return "fc", work.fully_connected(prod(before[:-1]), before[-1], after[-1], biased), ()
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "bn", work.batch_norm(1, before[0], before[1:]), ()
    if isinstance(module, (nn.ReLU, nn.Tanh, nn.Sigmoid)):
        return "activation", work.activation(prod(before)), ()
    return "other", work.Costs(work.Cost(), work.Cost(), work.Cost()), ()


def layers(model: nn.Module, shape: tuple[int, ...]) -> list[Layer]:
    """The layers of `model` in execution order, for one sample of `shape`, found by running it on shapes alone.

    A layer is a module without children that was called; identities are left out, and so are functions called in
    between (the sum and ReLU at the end of a residual block, concatenations): `graph.capture` has those. The model may
    be on any device and is not changed.

    Raises:
        RequestError: a kernel does not fit, padding as a word, a layer (an RNN) that gives several tensors, or weights
            that no layer of a known kind uses: the list would miss them."""
    rows: list[Layer] = []
    names = {module: name for name, module in model.named_modules()}

    def record(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if not isinstance(output, torch.Tensor):
            raise RequestError(f"layer {names[module]} ({type(module).__name__}) gives more than one tensor; "
                               "list networks whose layers have one input and one output")
        before, after = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])
        kind, costs, window = _costs(module, before, after)
        rows.append(Layer(names[module], kind, sum(p.numel() for p in module.parameters()), before, after,
                          costs.forward.work if kind in ("conv", "fc") else 0, *costs, *window))

    hooks = [module.register_forward_hook(record) for module in names
             if not list(module.children()) and not isinstance(module, nn.Identity)]
    try:
        graph.on_shapes(model, lambda model: model(torch.empty(1, *shape)), training=False)
    finally:
        for hook in hooks:
            hook.remove()
    weighted = [row.name for row in rows if row.parameters]
    unknown = {row.name for row in rows if row.kind == "other"}
    lost = [name for name, value in model.named_parameters()
            if value.ndim > 1 and (name.rpartition(".")[0] not in weighted or name.rpartition(".")[0] in unknown)]
    if lost:
        raise RequestError(f"{', '.join(lost[:3])}{' and more' * (len(lost) > 3)}: no layer that is known here uses these weights; "
                           "allowed: Conv2d, Linear, batch norm, pooling, activations")
    return rows


def table(names=tuple(NETWORKS), batch: int = 1) -> pd.DataFrame:
    """Networks beside each other, by year; all of it counted here.

    Returns:
        columns network, year, parameters, layers (conv and fc), macs (forward, one sample), macs_per_parameter;
        inference_work, inference_depth, step_work, step_depth, inference_parallelism, step_parallelism (W, D, W / D of
        whole passes over `batch` samples), share (W of inference / W of a step)."""
    rows = []
    for name in names:
        model, shape = build(name), NETWORKS[name].shape
        step, served = (graph.capture(model, shape, batch, training) for training in (True, False))
        parameters = sum(p.numel() for p in model.parameters())
        macs = served.macs // batch
        rows.append({"network": name, "year": NETWORKS[name].year, "parameters": parameters,
                     "layers": sum(layer.kind in ("conv", "fc") for layer in layers(model, shape)), "macs": macs,
                     "macs_per_parameter": macs / parameters, "inference_work": served.work,
                     "inference_depth": served.depth, "inference_parallelism": served.parallelism,
                     "step_work": step.work, "step_depth": step.depth, "step_parallelism": step.parallelism,
                     "share": served.work / step.work})
    return pd.DataFrame(rows)
