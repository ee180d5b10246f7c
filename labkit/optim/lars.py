"""LARS: momentum SGD with one trust ratio per tensor (You, Gitman, Ginsburg, arXiv 1708.03888, Algorithm 1)."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import torch
from torch import Tensor

from labkit.errors import RequestError, choose
from labkit.optim.groups import completed, dense_buckets, in_state_dtype, norms, rate_on, reload_state
from labkit.optim.schedules import require_range

_OPTIONS = ("lr", "momentum", "weight_decay", "trust_coefficient", "eps", "convention", "decay", "zero_norm",
            "nesterov", "trust_bounds", "adapt")

Factor = float | Tensor | list[Tensor]


def _scaled(tensors: list[Tensor], factor: Factor) -> list[Tensor]:
    return tensors if isinstance(factor, float) and factor == 1.0 else list(torch._foreach_mul(tensors, factor))


def lars_update(weights: list[Tensor], grads: list[Tensor], velocities: list[Tensor], *, lr: float | Tensor,
                momentum: float, weight_decay: float, trust_coefficient: float, eps: float, convention: str, decay: str,
                zero_norm: str, nesterov: bool, trust_bounds: tuple[float, float], adapt: bool) -> None:
    """One LARS step on lists of equally long, equally typed tensors; options as in `LARS`.

    Changes `weights` and `velocities` in place (`velocities` is not read when momentum is 0) and leaves `grads` alone.
    Nothing is read back to the host. This is the seam: whatever replaces it must give the same numbers."""
    lr = rate_on(lr, weights[0])
    trust: Tensor | float = 1.0
    decays: Factor = weight_decay
    if adapt:
        weight_norms, grad_norms = norms(weights), norms(grads)
        measurable = (weight_norms > 0) & (grad_norms > 0)
        inside_ratio = weight_decay if decay == "ratio" else 0.0
        ratios = trust_coefficient * weight_norms / (grad_norms + inside_ratio * weight_norms + eps)
        trust = torch.where(measurable, ratios.clamp(*trust_bounds), 1.0)
        if zero_norm == "skip":
            decays = list((weight_decay * measurable.to(trust)).unbind())

    directions = grads
    if decay == "ratio" and weight_decay:
        directions = list(torch._foreach_add(grads, _scaled(weights, decays)))
    # Where the rate and the trust ratio meet the velocity is all that separates the three conventions.
    before, after = {"A": (lr * trust, 1.0), "B": (trust, lr), "C": (1.0, lr * trust)}[convention]
    directions = _scaled(directions, _per_tensor(before))
    if momentum:
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, directions)
        directions = list(torch._foreach_add(directions, velocities, alpha=momentum)) if nesterov else velocities
    steps = _scaled(directions, _per_tensor(after))
    if decay == "outside" and weight_decay:
        steps = list(torch._foreach_add(steps, _scaled(_scaled(weights, decays), lr)))
    torch._foreach_sub_(weights, steps)


def _per_tensor(factor: float | Tensor) -> Factor:
    return list(factor.unbind()) if isinstance(factor, Tensor) and factor.dim() else factor


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling: each tensor's step is scaled by |w| / (|g| + weight_decay |w|).

    With trust ratio r, gradient g, decay b, momentum m and rate n, a step with the defaults is::

        r = trust_coefficient |w| / (|g| + b |w| + eps);   v <- m v + n r (g + b w);   w <- w - v

    A group with ``adapt=False`` (see `groups.parameter_groups`) has r = 1: plain momentum SGD, with its own decay.
    State is held, and the step computed, in float32 for half-precision parameters; the new weight is rounded to the
    parameter's dtype, so steps below its resolution are lost (keep the weights in float32 under autocast instead).

    When not to use it: where a tuned Nesterov SGD reaches the target, which Nado et al. (arXiv 2102.06356) report even
    at large batches; with a rate tuned for SGD, as the trust ratio changes its unit; on tensors of one or few numbers.

    Args:
        params: tensors, named tensors or groups. Every option below may be set per group.
        lr: rate, a float or a tensor of one element (then a captured graph follows its changes).
        momentum: in [0, 1).
        weight_decay: b.
        trust_coefficient: the paper's eta.
        eps: added to the ratio's denominator.
        convention: "A", rate and ratio inside the velocity: the paper, and the TF/TPU, MLPerf and optax codes.
            "B", ratio inside, rate outside: timm, bolts, apex LARC and most PyTorch codes. "C", both outside: the
            NUS ResNet-50 code. At a constant rate A and B are the same; under a ramp or a decay they part.
        decay: "ratio", decay in the ratio's denominator and in the gradient (paper); "outside", decoupled:
            neither in the ratio nor in the velocity, w <- w - step - n b w.
        zero_norm: what to do where |w| or |g| is 0. "one": r = 1. "skip": r = 1 and no decay either (apex LARC,
            bolts); the two differ only where the gradient is exactly 0.
        nesterov: step along the new direction plus m times the velocity.
        trust_bounds: (low, high) between which a computed ratio is clipped; a zero-norm 1 is left alone.

    Raises:
        RequestError: an option outside its range; at `step`, a sparse gradient (before anything has changed)."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor, momentum: float = 0.9, weight_decay: float = 1e-4,
                 trust_coefficient: float = 1e-3, eps: float = 0.0, *, convention: str = "A", decay: str = "ratio",
                 zero_norm: str = "one", nesterov: bool = False,
                 trust_bounds: tuple[float, float] = (0.0, inf)) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                    "trust_coefficient": trust_coefficient, "eps": eps, "convention": convention, "decay": decay,
                    "zero_norm": zero_norm, "nesterov": nesterov, "trust_bounds": trust_bounds, "adapt": True}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; options that it does not name are the optimizer's. See the class for `Raises`."""
        options = completed(param_group, self.defaults)
        require_range("momentum", options["momentum"], high=1.0, open_high=True)
        require_range("trust_coefficient", options["trust_coefficient"], open_low=True)
        choose("convention", options["convention"], ("A", "B", "C"))
        if options["nesterov"] and not options["momentum"]:
            raise RequestError("nesterov needs a momentum above 0")
        bounds = tuple(options["trust_bounds"])
        if len(bounds) != 2 or not 0.0 <= bounds[0] <= bounds[1]:
            raise RequestError(f"trust_bounds must be (low, high) with 0 <= low <= high, not {bounds}")
        super().add_param_group(options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on every parameter that has a gradient; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, parameters in dense_buckets(self):
            weights = in_state_dtype(parameters)
            grads = in_state_dtype([p.grad for p in parameters])
            velocities = self._velocities(parameters, weights) if group["momentum"] else []
            lars_update(weights, grads, velocities, **{name: group[name] for name in _OPTIONS})
            if weights[0] is not parameters[0]:
                torch._foreach_copy_(parameters, weights)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, exactly: float32 state of half-precision parameters stays float32."""
        super().load_state_dict(state_dict)
        reload_state(self, state_dict)

    def _velocities(self, parameters: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        for parameter, weight in zip(parameters, weights, strict=True):
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(weight)
        return [self.state[parameter]["momentum_buffer"] for parameter in parameters]
