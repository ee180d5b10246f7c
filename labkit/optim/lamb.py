"""LAMB: Adam's direction with one trust ratio per tensor (You et al., arXiv 1904.00962)."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.errors import RequestError, choose
from labkit.optim import dialects, fused
from labkit.optim.groups import Bucket, Layerwise, rate_on, require_bounds
from labkit.optim.schedules import require_range

_ENDLESS = 1e18  # steps: the fused Adam kernel always corrects its moments, and by nothing after this many


def trust_ratios(weight_norms: Tensor, direction_norms: Tensor, options: dict[str, Any]) -> Tensor:
    """phi(|w|) / |u| per tensor, 1 where a norm is 0; `options` as in `LAMB`."""
    ratios = weight_norms if options["phi_bounds"] == dialects.NONE else weight_norms.clamp(*options["phi_bounds"])
    ratios = ratios / (direction_norms + options["ratio_eps"])
    if options["trust_bounds"] != dialects.NONE:
        ratios = ratios.clamp(*options["trust_bounds"])
    return torch.where(torch.minimum(weight_norms, direction_norms) > 0, ratios, 1.0)


def trust_ratio(weight_norm: float, direction_norm: float, options: dict[str, Any]) -> float:
    """`trust_ratios` of one tensor on the host, where a dozen calls for one number are too many."""
    if not (weight_norm > 0 and direction_norm > 0):
        return 1.0
    (lowest, highest), (low, high) = options["phi_bounds"], options["trust_bounds"]
    return min(max(min(max(weight_norm, lowest), highest) / (direction_norm + options["ratio_eps"]), low), high)


def rate_corrections(steps: list[Tensor], options: dict[str, Any]) -> Tensor | float:
    """What multiplies the rate after `steps` steps, per tensor: 1 unless the bias correction is one of the rate."""
    if not isinstance(options["bias_correction"], str):
        return 1.0
    first, second = (_bias(steps, beta) for beta in options["betas"])
    return 1.0 / first if options["bias_correction"] == "rate-first" else second.sqrt() / first


def _bias(steps: list[Tensor], beta: float) -> Tensor:
    # 1 - beta^t loses digits in float32 for beta near 1; expm1 with the logarithm taken on the host does not.
    return -torch.expm1(torch.stack(steps) * (math.log(beta) if beta else -math.inf))


def lamb_update(weights: list[Tensor], grads: list[Tensor], first_moments: list[Tensor], second_moments: list[Tensor],
                steps: list[Tensor], options: dict[str, Any], norms: Callable[..., tuple[Tensor, ...]]) -> None:
    """One LAMB step on lists of equally typed tensors; `options` as in `LAMB`, `norms` as of `groups.Bucket`.

    Changes `weights` and both moments in place and leaves `grads` alone; `steps` (0-d tensors) count this one already.
    Nothing is read back to the host. This is the seam: whatever replaces it must give the same numbers."""
    lr, (beta1, beta2), decay = rate_on(options["lr"], weights[0]), options["betas"], options["decay"]
    torch._foreach_lerp_(first_moments, grads, 1.0 - beta1)
    torch._foreach_mul_(second_moments, beta2)
    torch._foreach_addcmul_(second_moments, grads, grads, 1.0 - beta2)

    directions, spread = first_moments, second_moments
    if options["bias_correction"] is True:
        directions = torch._foreach_div(directions, list(_bias(steps, beta1).unbind()))
        spread = torch._foreach_div(spread, list(_bias(steps, beta2).unbind()))
    spread = torch._foreach_sqrt(spread)
    torch._foreach_add_(spread, options["eps"])
    directions = torch._foreach_div(directions, spread)

    decays: float | list[Tensor] = options["weight_decay"]
    if options["adapt"] and options["zero_norm"] == "skip":
        weight_norms, direction_norms = norms(weights, directions)
        decays = list((decays * ((weight_norms > 0) & (direction_norms > 0)).to(weights[0])).unbind())
    decay_steps = torch._foreach_mul(weights, decays)
    if decay == "ratio":
        torch._foreach_add_(directions, decay_steps)
    else:
        torch._foreach_mul_(decay_steps, lr)
    if decay == "before":
        torch._foreach_sub_(weights, decay_steps)
    factors = lr * rate_corrections(steps, options)
    if options["adapt"]:
        factors = factors * trust_ratios(*norms(weights, directions), options)
    per_tensor = isinstance(factors, Tensor) and factors.dim()
    torch._foreach_mul_(directions, list(factors.unbind()) if per_tensor else factors)
    if decay == "outside":
        torch._foreach_add_(directions, decay_steps)
    torch._foreach_sub_(weights, directions)


def lamb_fused(weights: list[Tensor], grads: list[Tensor], first_moments: list[Tensor], second_moments: list[Tensor],
               steps: list[Tensor], options: dict[str, Any], scale: float, scratch: fused.Scratch) -> None:
    """`lamb_update` of gradients times `scale` by torch's fused kernels, for zero_norm "one"; tensors as from
    `fused.in_memory_order`. Adam's kernel takes its step from b w towards u, which is then what the weights move by."""
    lr, (beta1, beta2), decay = float(options["lr"]), options["betas"], options["weight_decay"]
    adam = partial(torch._fused_adam_, max_exp_avg_sqs=[], lr=-1.0, beta1=beta1, beta2=beta2, weight_decay=0.0,
                   eps=options["eps"], amsgrad=False, maximize=False)
    sgd = partial(torch._fused_sgd_, momentum_buffer_list=[], momentum=0.0, dampening=0.0, nesterov=False,
                  maximize=False, is_first_step=False)
    inside, apart = (decay, 0.0) if options["decay"] == "ratio" else (0.0, lr * decay)
    for stacked, (w, g, m, v, t) in fused.helpings(weights, grads, first_moments, second_moments, steps):
        counts = t if options["bias_correction"] is True else [t[0].new_tensor(_ENDLESS)] * len(t)
        if scale != 1.0:
            g = torch._foreach_mul(g, scale)
        if stacked:
            (rows, _), (moves, moved) = scratch.stack("w", w), scratch.stack("u", w, fill=False)
        else:
            moved = [moves := scratch.like(rows := w[0])]
        torch.mul(rows, inside, out=moves) if inside else moves.zero_()
        adam(moved, g, m, v, state_steps=counts)
        factors = lr * rate_corrections(t, options)
        kept = 1.0 - lr * decay if options["decay"] == "before" else 1.0
        if stacked:
            factors = factors[:, None] if isinstance(factors, Tensor) else factors
            if options["adapt"]:
                factors = factors * trust_ratios(kept * fused.row_norms(rows), fused.row_norms(moves), options)
            moves.mul_(factors)
            sgd(w, moved, lr=1.0, weight_decay=apart)
        else:
            factor = float(factors)
            if options["adapt"]:
                factor *= trust_ratio(kept * fused.norm(rows), fused.norm(moves), options)
            sgd(w, moved, lr=factor, weight_decay=apart / factor if factor else 0.0)


class LAMB(Layerwise):
    """Layer-wise adaptive moments: each tensor moves by lr times phi(|w|), along Adam's direction plus decay.

    With Adam's de-biased moments m and v, decay b and rate n, a step with the defaults is::

        u = m / (sqrt(v) + eps) + b w;   w <- w - n phi(|w|) / |u| u

    A group with ``adapt=False`` (see `groups.parameter_groups`) has ratio 1, which is AdamW with its own decay.
    `groups.Layerwise` tells how half-precision and sharded parameters are treated.

    When not to use it: where a tuned Adam reaches the target, which Nado et al. (arXiv 2102.06356) report even at
    large batches; with a rate tuned for Adam, whose unit is different (LAMB's rate is the relative
    change of a tensor per step). Beware that with any weight decay a tensor whose gradient is always 0 shrinks by
    the factor 1 - lr per step, however small the decay: ``zero_norm="skip"`` holds it still.

    Args:
        params: tensors, named tensors or groups. Every option below may be set per group, but dialect, max_grad_norm
            and pre_normalize.
        lr: rate, a float or a tensor of one element (then a captured graph follows its changes).
        betas: decay rates of the two moments, in [0, 1).
        eps: added to sqrt(v); None, here and below, is the dialect's (the paper's: the first one named).
        weight_decay: b.
        dialect: a name in `dialects.LAMB`; options given explicitly stand before it.
        bias_correction: True, de-bias the moments, as the final algorithm does. False, do not (the author's
            TensorFlow code). "rate", multiply the rate by sqrt(1 - beta2^t) / (1 - beta1^t), outside the ratio, which
            then no longer sees it; "rate-first", by 1 / (1 - beta1^t).
        decay: "ratio", b w is part of u (paper); "outside", the ratio is phi(|w|) over Adam's direction alone, and
            n b w is subtracted beside it, as in AdamW; "before", the same, but w is decayed before |w| is taken.
        phi_bounds: (low, high) that phi clips to; phi(z) = z in the public codes the paper names, and the paper leaves
            the values open.
        zero_norm: "one", ratio 1 where |w| or |u| is 0. "skip", the same, and no decay where |w| or Adam's
            direction is 0.
        exclude: which parameters have ratio 1 beside the groups with ``adapt=False`` ("flag"). "undecayed": those of
            groups without weight decay; "vectors": those of less than two dimensions, which lose their decay too.
        ratio_eps: added to |u| (0).
        trust_bounds: (low, high) between which a computed ratio is clipped.
        max_grad_norm: a bound on the norm of all gradients together; above it they are scaled down to it for this
            step (the author's code and apex: 1.0; inf: none). ``p.grad`` itself is never changed. Do not clip twice.
        pre_normalize: first divide all gradients by their common norm, whatever it is (NVLAMB).
        fused: on a CPU, use torch's fused kernels (not for zero_norm "skip"); the same numbers up to rounding.

    Raises:
        RequestError: an option outside its range; at `step`, a sparse gradient (before anything has changed)."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float | None = None, weight_decay: float = 0.01, *, dialect: str = "paper",
                 bias_correction: bool | str | None = None, decay: str | None = None,
                 phi_bounds: tuple[float, float] | None = None, zero_norm: str | None = None,
                 exclude: str | None = None, ratio_eps: float | None = None,
                 trust_bounds: tuple[float, float] | None = None, max_grad_norm: float | None = None,
                 pre_normalize: bool | None = None, fused: bool = True) -> None:
        given = {"eps": eps, "bias_correction": bias_correction, "decay": decay, "phi_bounds": phi_bounds,
                 "zero_norm": zero_norm, "exclude": exclude, "ratio_eps": ratio_eps, "trust_bounds": trust_bounds,
                 "max_grad_norm": max_grad_norm, "pre_normalize": pre_normalize}
        own = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "fused": fused}
        super().__init__(params, {**dialects.resolved(dialects.LAMB, dialect, given), **own, "adapt": True})

    def _check(self, options: dict[str, Any]) -> None:
        if len(options["betas"]) != 2:
            raise RequestError(f"betas must be two numbers, not {options['betas']!r}")
        for beta in options["betas"]:
            require_range("betas", beta, high=1.0, open_high=True)
        choose("bias_correction", options["bias_correction"], (True, False, "rate", "rate-first"))
        choose("decay", options["decay"], ("ratio", "outside", "before"))
        choose("zero_norm", options["zero_norm"], ("one", "skip"))
        require_range("ratio_eps", options["ratio_eps"])
        require_bounds("phi_bounds", options["phi_bounds"])
        limit = options["max_grad_norm"]
        if limit != math.inf:
            require_range("max_grad_norm", limit, open_low=True)
        for name in ("max_grad_norm", "pre_normalize"):
            if options[name] != self.defaults[name]:
                raise RequestError(f"{name} is about all gradients together; set it for the optimizer, not for a group")

    def _prepare(self, buckets: list[Bucket]) -> Tensor | None:
        """What the gradients are multiplied by, a 0-d tensor on the first bucket's device; None: nothing."""
        limit, unit = self.param_groups[0]["max_grad_norm"], self.param_groups[0]["pre_normalize"]
        if not buckets or (limit == math.inf and not unit):
            return None
        device = buckets[0].parameters[0].device
        total = torch.linalg.vector_norm(torch.cat([b.norms(b.grads())[0].to(device) for b in buckets]))
        return torch.where(total > 0, min(1.0, limit) / total, 1.0) if unit else (limit / total).clamp(max=1.0)

    def _update(self, bucket: Bucket, weights: list[Tensor], grads: list[Tensor], shared: Tensor | None) -> None:
        options = bucket.options
        first, second = self._held(bucket, "exp_avg"), self._held(bucket, "exp_avg_sq")
        states = [self.state[parameter] for parameter in bucket.parameters]
        for state in states:
            if "step" not in state:
                # On the weights' device: a count on the host would have to be read back in a captured graph.
                state["step"] = weights[0].new_zeros(())
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        ordered = fused.in_memory_order(weights, grads, first, second) if bucket.fusible else None
        if ordered:
            lamb_fused(*ordered, steps, options, 1.0 if shared is None else shared.item(), self._scratch)
        else:
            grads = grads if shared is None else torch._foreach_mul(grads, shared.to(grads[0]))
            lamb_update(weights, grads, first, second, steps, options, bucket.norms)
