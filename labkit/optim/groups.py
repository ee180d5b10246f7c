"""Parameter groups of the layer-wise optimizers, and the optimizer class that walks them.

LARS and LAMB treat a group as excluded when its key ``adapt`` is False: no trust ratio there."""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.errors import RequestError, choose
from labkit.optim.fused import PLAIN, Scratch
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


class Bucket(NamedTuple):
    """Parameters that have a gradient and share options, device, dtype and sharding (DTensor: mesh, placements)."""
    options: dict[str, Any]
    parameters: list[Tensor]
    sharding: tuple[Any, Any] | None

    @property
    def fusible(self) -> bool:
        """Whether fused kernels may be tried: they cannot wait for a sharded tensor's norm, nor decay tensors apart."""
        return self.options["fused"] and not self.sharding and self.options["zero_norm"] not in ("skip", "none")

    def local(self, tensors: list[Tensor]) -> list[Tensor]:
        """What this process holds of the tensors: all of them, unless they are sharded."""
        if self.sharding is None:
            return tensors
        _, placed = self.sharding
        return [(t if t.placements == placed else t.redistribute(placements=placed)).to_local() for t in tensors]

    def grads(self) -> list[Tensor]:
        """The gradients, local, in the dtype of the state: the very tensors where they have it."""
        dtype = state_dtype(self.parameters[0].dtype)
        return [g if g.dtype is dtype else g.to(dtype) for g in self.local([p.grad for p in self.parameters])]

    def norms(self, *lists: list[Tensor]) -> tuple[Tensor, ...]:
        """Euclidean norms of whole tensors, a vector per list, on their device; shards cost one reduction in all."""
        values = torch.stack(torch._foreach_norm(list(chain(*lists))))
        if self.sharding is not None:
            mesh, placements = self.sharding
            squares = values.double().square()
            for dim, placement in enumerate(placements):
                if not placement.is_replicate():
                    torch.distributed.all_reduce(squares, group=mesh.get_group(dim))
            values = squares.sqrt().to(values)
        return values.split([len(tensors) for tensors in lists])


class Layerwise(torch.optim.Optimizer):
    """What LARS and LAMB share: checked groups, a step over buckets, exact reloading. Not for use by itself.

    State is held, and the step computed, in float32 for half-precision parameters; the new weight is rounded to the
    parameter's dtype, so steps below its resolution are lost (keep the weights in float32 under autocast instead).
    DTensor parameters (``fully_shard``) are measured whole. FSDP1's flat parameters are not: their tensors are gone."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; options that it does not name, or gives as None, are the optimizer's.

        Raises:
            RequestError: names the option and what is allowed."""
        if "dialect" in param_group:
            raise RequestError("dialect is of the whole optimizer; give a group the options themselves")
        options = {**self.defaults, **{name: value for name, value in param_group.items() if value is not None}}
        params = options["params"]
        if not isinstance(params, (Tensor, set)):  # torch itself refuses a set, which has no order
            params = options["params"] = list(params)  # a generator can be read only once
        rate = options["lr"]
        if not (isinstance(rate, Tensor) and rate.numel() == 1):
            require_range("lr", rate)
        for name in ("weight_decay", "eps"):
            require_range(name, options[name])
        choose("exclude", options["exclude"], ("flag", "undecayed", "vectors"))
        require_bounds("trust_bounds", options["trust_bounds"])
        for name in ("adapt", "fused"):
            if not isinstance(options[name], bool):
                raise RequestError(f"{name} must be True or False, not {options[name]!r}")
        for parameter in [params] if isinstance(params, Tensor) else params:
            tensor = parameter[1] if isinstance(parameter, tuple) else parameter
            if isinstance(tensor, Tensor) and not tensor.is_floating_point():
                raise RequestError(f"params must be real floating-point tensors, not {tensor.dtype}")
        self._check(options)
        super().add_param_group(options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on every parameter that has a gradient; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        buckets = self._buckets()
        shared = self._prepare(buckets)
        for bucket in buckets:
            parameters = bucket.local(bucket.parameters)
            dtype = state_dtype(parameters[0].dtype)
            wide = parameters[0].dtype is dtype
            weights = parameters if wide else [p.to(dtype) for p in parameters]
            self._update(bucket, weights, bucket.grads(), shared)
            if not wide:
                torch._foreach_copy_(parameters, weights)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, exactly: float32 state of half-precision parameters stays float32.

        torch casts loaded state to the parameter's dtype, which would cut the float32 state of a bfloat16 parameter
        and make the resumed run differ from the one that was not interrupted."""
        super().load_state_dict(state_dict)
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, parameter in zip(saved, parameters, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                dtype = state_dtype(parameter.dtype)
                self.state[parameter][name] = value.to(device=parameter.device, dtype=dtype, copy=True)

    @property
    def _scratch(self) -> Scratch:
        return self.__dict__.setdefault("_kept", Scratch())  # not saved, and so not there after unpickling

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a checkpoint can be older than an option
            group.update({name: value for name, value in self.defaults.items() if group.get(name) is None})

    def _prepare(self, buckets: list[Bucket]) -> Any:
        """What `_update` must know of all buckets. A subclass has `_update`, and `_check` of a group's options."""

    def _held(self, bucket: Bucket, name: str) -> list[Tensor]:
        """The bucket's local state of that name, one tensor per parameter, 0 where it has none yet."""
        states = [self.state[parameter] for parameter in bucket.parameters]
        for parameter, state in zip(bucket.parameters, states, strict=True):
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=state_dtype(parameter.dtype), requires_grad=False)
        return bucket.local([state[name] for state in states])

    def _buckets(self) -> list[Bucket]:
        """All of them at once, so that a refusal leaves no half-made step.

        Raises:
            RequestError: a sparse gradient."""
        buckets = []
        for group in self.param_groups:
            by_kind: dict[tuple[Any, ...], list[Tensor]] = {}
            vectors = group["exclude"] == "vectors"
            for parameter in group["params"]:
                if (grad := parameter.grad) is None:
                    continue
                if grad.layout is not torch.strided:
                    name, shape = type(self).__name__, tuple(parameter.shape)
                    raise RequestError(f"{name} takes dense gradients, {shape} has a sparse one; use sparse=False")
                sharding = None
                if type(parameter) not in PLAIN and hasattr(parameter, "placements"):
                    sharding = (parameter.device_mesh, parameter.placements)
                kind = (parameter.device, parameter.dtype, vectors and parameter.dim() < 2, sharding)
                by_kind.setdefault(kind, []).append(parameter)
            for (_, _, excluded, sharding), parameters in by_kind.items():
                decay = 0.0 if excluded else group["weight_decay"]
                adapt = group["adapt"] and not excluded and (group["exclude"] != "undecayed" or decay != 0)
                options = {**group, "adapt": adapt, "weight_decay": decay}
                buckets.append(Bucket(options, parameters, sharding))
        return buckets


def require_bounds(name: str, bounds: tuple[float, float]) -> None:
    """Refuse what is not (low, high) with 0 <= low <= high.

    Raises:
        RequestError: names the option."""
    if len(bounds) != 2 or not 0.0 <= bounds[0] <= bounds[1]:
        raise RequestError(f"{name} must be (low, high) with 0 <= low <= high, not {tuple(bounds)}")


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of optimizer state and arithmetic: float32 for half precisions, otherwise the parameter's."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def rate_on(rate: float | Tensor, tensor: Tensor) -> float | Tensor:
    """A float rate as is; one held in a tensor (a captured graph can read it) as a 0-d tensor beside `tensor`."""
    return rate.reshape(()).to(tensor) if isinstance(rate, Tensor) else rate
