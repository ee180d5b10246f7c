"""LAMB: Adam's direction with one trust ratio per tensor (You et al., arXiv 1904.00962)."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from labkit.errors import RequestError
from labkit.optim.groups import completed, dense_buckets, in_state_dtype, norms, rate_on, reload_state
from labkit.optim.schedules import require_range

_OPTIONS = ("lr", "betas", "eps", "weight_decay", "bias_correction", "decay", "phi_bounds", "zero_norm", "adapt")


def lamb_update(weights: list[Tensor], grads: list[Tensor], first_moments: list[Tensor], second_moments: list[Tensor],
                steps: list[Tensor], *, lr: float | Tensor, betas: tuple[float, float], eps: float, weight_decay: float,
                bias_correction: bool, decay: str, phi_bounds: tuple[float, float] | None, zero_norm: str,
                adapt: bool) -> None:
    """One LAMB step on lists of equally long, equally typed tensors; options as in `LAMB`.

    Changes `weights`, both moments and `steps` (0-d tensors: the steps made so far) in place and leaves `grads`
    alone. Nothing is read back to the host. This is the seam: whatever replaces it must give the same numbers."""
    lr = rate_on(lr, weights[0])
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(first_moments, grads, 1.0 - betas[0])
    torch._foreach_mul_(second_moments, betas[1])
    torch._foreach_addcmul_(second_moments, grads, grads, 1.0 - betas[1])

    directions, spread = first_moments, second_moments
    if bias_correction:
        directions = torch._foreach_div(directions, _bias(steps, betas[0]))
        spread = torch._foreach_div(spread, _bias(steps, betas[1]))
    spread = torch._foreach_sqrt(spread)
    torch._foreach_add_(spread, eps)
    directions = torch._foreach_div(directions, spread)

    decays: float | list[Tensor] = weight_decay
    if adapt and zero_norm == "skip":
        measurable = (norms(weights) > 0) & (norms(directions) > 0)
        decays = list((weight_decay * measurable.to(weights[0])).unbind())
    decay_steps = torch._foreach_mul(weights, decays)
    if decay == "ratio":
        torch._foreach_add_(directions, decay_steps)
    if adapt:
        torch._foreach_mul_(directions, list(_trust(norms(weights), norms(directions), phi_bounds).unbind()))
    if decay == "outside":
        torch._foreach_add_(directions, decay_steps)
    torch._foreach_mul_(directions, lr)
    torch._foreach_sub_(weights, directions)


def _bias(steps: list[Tensor], beta: float) -> list[Tensor]:
    # 1 - beta^t loses digits in float32 for beta near 1; expm1 with the logarithm taken on the host does not.
    exponent = math.log(beta) if beta else -math.inf
    return list((-torch.expm1(torch.stack(steps) * exponent)).unbind())


def _trust(weight_norms: Tensor, direction_norms: Tensor, phi_bounds: tuple[float, float] | None) -> Tensor:
    phi = weight_norms if phi_bounds is None else weight_norms.clamp(*phi_bounds)
    return torch.where((weight_norms > 0) & (direction_norms > 0), phi / direction_norms, 1.0)


class LAMB(torch.optim.Optimizer):
    """Layer-wise adaptive moments: each tensor moves by lr times phi(|w|), along Adam's direction plus decay.

    With Adam's de-biased moments m and v, decay b and rate n, a step with the defaults is::

        u = m / (sqrt(v) + eps) + b w;   w <- w - n phi(|w|) / |u| u

    A group with ``adapt=False`` (see `groups.parameter_groups`) has ratio 1, which is AdamW with its own decay.
    State is held, and the step computed, in float32 for half-precision parameters; the new weight is rounded to the
    parameter's dtype, so steps below its resolution are lost (keep the weights in float32 under autocast instead).

    When not to use it: where a tuned Adam reaches the target, which Nado et al. (arXiv 2102.06356) report even at
    large batches; with a rate tuned for Adam, whose unit is different (LAMB's rate is the relative
    change of a tensor per step). Beware that with any weight decay a tensor whose gradient is always 0 shrinks by
    the factor 1 - lr per step, however small the decay: ``zero_norm="skip"`` holds it still.

    Args:
        params: tensors, named tensors or groups. Every option below but max_grad_norm may be set per group.
        lr: rate, a float or a tensor of one element (then a captured graph follows its changes).
        betas: decay rates of the two moments, in [0, 1).
        eps: added to sqrt(v).
        weight_decay: b.
        bias_correction: de-bias the moments, as the final algorithm does; the author's TensorFlow code does not.
        decay: "ratio", b w is part of u (paper); "outside", the ratio is phi(|w|) over Adam's direction alone, and
            n b w is subtracted beside it, as in AdamW.
        phi_bounds: None, phi(z) = z as in the public codes the paper names; (low, high), phi clips to them. The
            paper leaves the values open.
        zero_norm: "one", ratio 1 where |w| or |u| is 0. "skip", the same, and no decay where |w| or Adam's
            direction is 0.
        max_grad_norm: None, or a bound on the norm of all gradients together; above it they are scaled down to it
            for this step (the author's code and apex: 1.0). ``p.grad`` itself is never changed. Do not clip twice.

    Raises:
        RequestError: an option outside its range; at `step`, a sparse gradient (before anything has changed)."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, *, bias_correction: bool = True, decay: str = "ratio",
                 phi_bounds: tuple[float, float] | None = None, zero_norm: str = "one",
                 max_grad_norm: float | None = None) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                    "bias_correction": bias_correction, "decay": decay, "phi_bounds": phi_bounds,
                    "zero_norm": zero_norm, "max_grad_norm": max_grad_norm, "adapt": True}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; options that it does not name are the optimizer's. See the class for `Raises`."""
        options = completed(param_group, self.defaults)
        if len(options["betas"]) != 2:
            raise RequestError(f"betas must be two numbers, not {options['betas']!r}")
        for beta in options["betas"]:
            require_range("betas", beta, high=1.0, open_high=True)
        bounds = options["phi_bounds"]
        if bounds is not None and (len(bounds) != 2 or not 0.0 <= bounds[0] <= bounds[1]):
            raise RequestError(f"phi_bounds must be None or (low, high) with 0 <= low <= high, not {bounds!r}")
        limit = options["max_grad_norm"]
        if limit is not None:
            require_range("max_grad_norm", limit, open_low=True)
        if limit != self.defaults["max_grad_norm"]:
            raise RequestError("max_grad_norm bounds all gradients together; set it for the optimizer, not for a group")
        super().add_param_group(options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on every parameter that has a gradient; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        buckets = dense_buckets(self)
        clip = _clip(buckets, self.param_groups[0]["max_grad_norm"])
        for group, parameters in buckets:
            weights = in_state_dtype(parameters)
            grads = in_state_dtype([p.grad for p in parameters])
            if clip is not None:
                grads = torch._foreach_mul(grads, clip.to(grads[0]))
            state = [self._state(p, w) for p, w in zip(parameters, weights, strict=True)]
            first, second, steps = ([s[name] for s in state] for name in ("exp_avg", "exp_avg_sq", "step"))
            lamb_update(weights, grads, first, second, steps, **{name: group[name] for name in _OPTIONS})
            if weights[0] is not parameters[0]:
                torch._foreach_copy_(parameters, weights)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, exactly: float32 state of half-precision parameters stays float32."""
        super().load_state_dict(state_dict)
        reload_state(self, state_dict)

    def _state(self, parameter: Tensor, weight: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            # On the parameter's device: a count on the host would have to be read back in a captured graph.
            state["step"] = torch.zeros((), dtype=weight.dtype, device=weight.device)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        return state


def _clip(buckets: list[tuple[dict[str, Any], list[Tensor]]], limit: float | None) -> Tensor | None:
    if limit is None or not buckets:
        return None
    device = buckets[0][1][0].device
    parts = [norms(in_state_dtype([p.grad for p in parameters])).to(device) for _, parameters in buckets]
    return (limit / torch.linalg.vector_norm(torch.cat(parts))).clamp(max=1.0)
