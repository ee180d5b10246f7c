"""Parameter groups of the layer-wise optimizers: building them, and walking them dtype by dtype.

LARS and LAMB treat a group as excluded when its key ``adapt`` is False: no trust ratio there."""

import re
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import RequestError, choose
from labkit.optim.schedules import require_range

# By class name along the inheritance line, so that a norm layer of the reader's own (LlamaRMSNorm) counts as well.
_NORM_CLASS = re.compile(r"Norm(\d+d)?$")


def parameter_groups(model: nn.Module, weight_decay: float,
                     exclude: tuple[str, ...] = ("bias", "norm")) -> list[dict[str, Any]]:
    """Two groups: the adapted and decayed parameters, then the excluded ones (``weight_decay`` 0, ``adapt`` False).

    "bias" excludes every parameter whose own name has the word bias (``bias``, an LSTM's ``bias_ih_l0``,
    ``in_proj_bias``); "norm" the scale and shift of every normalization layer, known by the type of its module.
    Every parameter appears exactly once, a tied one too, frozen ones included; it is excluded if any owner excludes
    it. Either group may be empty. Source of the list: the TPU LARS code skips batch norm and biases.
    Not for torch's own optimizers when the exclusion must mean more than no decay: they ignore ``adapt``.

    Raises:
        RequestError: a negative weight_decay, or an exclusion that is neither "bias" nor "norm"."""
    require_range("weight_decay", weight_decay)
    for kind in exclude:
        choose("exclusion", kind, ("bias", "norm"))
    parameters: dict[Tensor, bool] = {}
    for module in model.modules():
        is_norm = any(_NORM_CLASS.search(cls.__name__) for cls in type(module).__mro__)
        for name, parameter in module.named_parameters(recurse=False):
            out = ("norm" in exclude and is_norm) or ("bias" in exclude and "bias" in name.split("_"))
            parameters[parameter] = parameters.get(parameter, False) or out
    return [{"params": [p for p, out in parameters.items() if not out], "weight_decay": weight_decay, "adapt": True},
            {"params": [p for p, out in parameters.items() if out], "weight_decay": 0.0, "adapt": False}]


def completed(group: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The group with the defaults filled in, its parameters and the options that LARS and LAMB share checked.

    Raises:
        RequestError: names the option and what is allowed."""
    options = {**defaults, **group}
    params = options["params"]
    if not isinstance(params, (Tensor, set)):  # torch itself refuses a set, which has no order
        params = options["params"] = list(params)  # a generator can be read only once
    rate = options["lr"]
    if not (isinstance(rate, Tensor) and rate.numel() == 1):
        require_range("lr", rate)
    require_range("weight_decay", options["weight_decay"])
    require_range("eps", options["eps"])
    choose("decay", options["decay"], ("ratio", "outside"))
    choose("zero_norm", options["zero_norm"], ("one", "skip"))
    if not isinstance(options["adapt"], bool):
        raise RequestError(f"adapt must be True or False, not {options['adapt']!r}")
    for parameter in [params] if isinstance(params, Tensor) else params:
        tensor = parameter[1] if isinstance(parameter, tuple) else parameter
        if isinstance(tensor, Tensor) and not tensor.is_floating_point():
            raise RequestError(f"params must be real floating-point tensors, not {tensor.dtype}")
    return options


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of optimizer state and arithmetic: float32 for half precisions, otherwise the parameter's."""
    return torch.float32 if torch.finfo(dtype).bits < 32 else dtype


def dense_buckets(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], list[Tensor]]]:
    """(group, parameters that have a gradient), split further so that a bucket has one device and one dtype.

    Everything is looked at before anything is returned, so a refusal leaves no half-made step.

    Raises:
        RequestError: a sparse gradient."""
    buckets: list[tuple[dict[str, Any], list[Tensor]]] = []
    for group in optimizer.param_groups:
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.layout != torch.strided:
                name = type(optimizer).__name__
                shape = tuple(parameter.shape)
                raise RequestError(f"{name} takes dense gradients, {shape} has a sparse one; use sparse=False")
            by_kind.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        buckets += [(group, parameters) for parameters in by_kind.values()]
    return buckets


def in_state_dtype(tensors: list[Tensor]) -> list[Tensor]:
    """The very tensors, or float32 copies where they are of half precision."""
    return [tensor.to(state_dtype(tensor.dtype)) for tensor in tensors]


def rate_on(rate: float | Tensor, tensor: Tensor) -> float | Tensor:
    """A float rate as is; one held in a tensor (a captured graph can read it) as a 0-d tensor beside `tensor`."""
    return rate.reshape(()).to(tensor) if isinstance(rate, Tensor) else rate


def norms(tensors: list[Tensor]) -> Tensor:
    """Euclidean norms, one per tensor, as one vector on the tensors' device."""
    return torch.stack(torch._foreach_norm(tensors))


def reload_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """After ``load_state_dict``: put the saved state back in its own precision, as copies.

    torch casts loaded state to the parameter's dtype, which would cut the float32 state of a bfloat16 parameter
    and make the resumed run differ from the one that was not interrupted."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for key, parameter in zip(saved, parameters, strict=True):
        for name, value in state_dict["state"].get(key, {}).items():
            dtype = state_dtype(parameter.dtype)
            optimizer.state[parameter][name] = value.to(device=parameter.device, dtype=dtype, copy=True)
