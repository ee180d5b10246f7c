"""LARS: momentum SGD with one trust ratio per tensor (You, Gitman, Ginsburg, arXiv 1708.03888, Algorithm 1)."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.errors import RequestError, choose
from labkit.optim import dialects, fused
from labkit.optim.groups import Bucket, Layerwise, rate_on
from labkit.optim.schedules import require_range

Factor = float | Tensor | list[Tensor]


def trust_ratios(weight_norms: Tensor, grad_norms: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(ratios, whether each could be computed), vectors; `options` as in `LARS`. A norm that is 0 has the ratio 1."""
    inside = options["weight_decay"] if options["decay"] == "ratio" else 0.0
    denominators = torch.add(grad_norms, weight_norms, alpha=inside)
    if options["eps"]:
        denominators = denominators + options["eps"]
    measurable = torch.minimum(weight_norms, denominators if options["zero_norm"] == "quotient" else grad_norms) > 0
    ratios = options["trust_coefficient"] * weight_norms / denominators
    if options["trust_bounds"] != dialects.NONE:
        ratios = ratios.clamp(*options["trust_bounds"])
    if options["trust_clip"]:
        ratios = (ratios / options["lr"]).clamp(max=1.0)
    return ratios if options["zero_norm"] == "none" else torch.where(measurable, ratios, 1.0), measurable


def trust_ratio(weight_norm: float, grad_norm: float, options: dict[str, Any]) -> float:
    """`trust_ratios` of one tensor on the host, where a dozen calls for one number are too many."""
    inside = options["weight_decay"] if options["decay"] == "ratio" else 0.0
    denominator = grad_norm + inside * weight_norm + options["eps"]
    if not (weight_norm > 0 and (denominator if options["zero_norm"] == "quotient" else grad_norm) > 0):
        return 1.0
    low, high = options["trust_bounds"]
    ratio = min(max(options["trust_coefficient"] * weight_norm / denominator, low), high)
    return (min(ratio / options["lr"], 1.0) if options["lr"] else 1.0) if options["trust_clip"] else ratio


def lars_update(weights: list[Tensor], grads: list[Tensor], velocities: list[Tensor], options: dict[str, Any],
                norms: Any) -> None:
    """One LARS step on lists of equally typed tensors; `options` as in `LARS`, `norms` as of `groups.Bucket`.

    Changes `weights` and `velocities` in place (none are read when momentum is 0) and leaves `grads` alone. Nothing is
    read back to the host. This is the seam: whatever replaces it must give the same numbers."""
    lr, momentum, decay = rate_on(options["lr"], weights[0]), options["momentum"], options["weight_decay"]
    coupled = options["decay"] != "outside"
    trust: Tensor | float = 1.0
    decays: Factor = decay
    if options["adapt"]:
        measured = torch._foreach_add(grads, weights, alpha=decay) if options["decay"] == "sum" else grads
        trust, measurable = trust_ratios(*norms(weights, measured), {**options, "lr": lr})
        if options["zero_norm"] == "skip":
            decays = list((decay * measurable.to(trust)).unbind())

    directions = grads
    if coupled and decay:
        directions = list(torch._foreach_add(grads, _scaled(weights, decays)))
    # Where the rate and the trust ratio meet the velocity is all that separates the three conventions.
    before, after = {"A": (lr * trust, 1.0), "B": (trust, lr), "C": (1.0, lr * trust)}[options["convention"]]
    directions = _scaled(directions, _per_tensor(before))
    if momentum:
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, directions)
        ahead = options["nesterov"]
        directions = list(torch._foreach_add(directions, velocities, alpha=momentum)) if ahead else velocities
    steps = _scaled(directions, _per_tensor(after))
    if not coupled and decay:
        steps = list(torch._foreach_add(steps, _scaled(_scaled(weights, decays), lr)))
    torch._foreach_sub_(weights, steps)


def _scaled(tensors: list[Tensor], factor: Factor) -> list[Tensor]:
    return tensors if isinstance(factor, float) and factor == 1.0 else list(torch._foreach_mul(tensors, factor))


def _per_tensor(factor: float | Tensor) -> Factor:
    return list(factor.unbind()) if isinstance(factor, Tensor) and factor.dim() else factor


def lars_fused(weights: list[Tensor], grads: list[Tensor], velocities: list[Tensor], options: dict[str, Any],
               scratch: fused.Scratch) -> None:
    """`lars_update` by torch's fused SGD kernel, for options that `LARS` says can be fused.

    Tensors as from `fused.in_memory_order`. Without momentum the velocities are not looked at, but must be there."""
    lr, momentum, decay = float(options["lr"]), options["momentum"], options["weight_decay"]
    options, inside = {**options, "lr": lr}, decay if options["decay"] != "outside" else 0.0
    kernel = partial(torch._fused_sgd_, momentum=momentum, nesterov=options["nesterov"], maximize=False,
                     is_first_step=False)
    for stacked, (w, g, v) in fused.helpings(weights, grads, velocities):
        v = v if momentum else []
        # Without a velocity the conventions are one, and the kernel does not look at dampening.
        convention = options["convention"] if momentum else "A" if stacked else "C"
        if stacked:
            (rows, _), (slopes, directions) = scratch.stack("w", w), scratch.stack("g", g)
        trust: Tensor | float = 1.0
        if options["adapt"] and stacked:
            trust, _ = trust_ratios(fused.row_norms(rows), fused.row_norms(slopes), options)
        elif options["adapt"]:
            trust = trust_ratio(fused.norm(w[0]), fused.norm(g[0]), options)
        factors, after = (trust, lr) if convention == "B" else (lr * trust, 1.0)
        if inside != decay:
            torch._foreach_mul_(w, 1.0 - lr * decay)
        if stacked and convention != "C":
            slopes.add_(rows, alpha=inside).mul_(factors)
            kernel(w, directions, v, weight_decay=0.0, dampening=0.0, lr=after)
            continue
        for i, factor in enumerate(factors.flatten().tolist() if isinstance(factors, Tensor) else [factors] * len(w)):
            if convention == "C":
                kernel([w[i]], [g[i]], v[i:i + 1], weight_decay=inside, dampening=0.0, lr=factor)
            elif options["nesterov"] or abs(factor) < 1e-9:  # 1 - factor would lose digits of float32
                direction = torch.add(g[i], w[i], alpha=inside, out=scratch.like(g[i])).mul_(factor)
                kernel([w[i]], [direction], v[i:i + 1], weight_decay=0.0, dampening=0.0, lr=after)
            else:
                kernel([w[i]], [g[i]], v[i:i + 1], weight_decay=inside, dampening=1.0 - factor, lr=after)


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling: each tensor's step is scaled by |w| / (|g| + weight_decay |w|).

    With trust ratio r, gradient g, decay b, momentum m and rate n, a step with the defaults is::

        r = trust_coefficient |w| / (|g| + b |w| + eps);   v <- m v + n r (g + b w);   w <- w - v

    A group with ``adapt=False`` (see `groups.parameter_groups`) has r = 1: plain momentum SGD, with its own decay.
    `groups.Layerwise` tells how half-precision and sharded parameters are treated.

    When not to use it: where a tuned Nesterov SGD reaches the target, which Nado et al. (arXiv 2102.06356) report even
    at large batches; with a rate tuned for SGD, as the trust ratio changes its unit; on tensors of one or few numbers.

    Args:
        params: tensors, named tensors or groups. Every option below but dialect may be set per group.
        lr: rate, a float or a tensor of one element (then a captured graph follows its changes).
        momentum: in [0, 1).
        weight_decay: b.
        trust_coefficient: the paper's eta; None, here and below, is the dialect's (the paper's: the first one named).
        eps: added to the ratio's denominator.
        dialect: a name in `dialects.LARS`; options given explicitly stand before it.
        convention: "A", rate and ratio inside the velocity: the paper, and the TF/TPU, MLPerf and optax codes.
            "B", ratio inside, rate outside: timm, bolts, apex LARC and most PyTorch codes. "C", both outside: the
            NUS ResNet-50 code. At a constant rate A and B are the same; under a ramp or a decay they part.
        decay: "ratio", decay in the ratio's denominator and in the gradient (paper); "gradient", in the gradient
            only; "sum", in the gradient, whose norm with it, |g + b w|, is the denominator (optax); "outside",
            decoupled: neither in the ratio nor in the velocity, w <- w - step - n b w.
        zero_norm: what to do where |w| or |g| is 0. "one": r = 1. "skip": r = 1 and no decay either (apex LARC,
            bolts); the two differ only where the gradient is exactly 0. "quotient": r = 1 only where |w| or the
            whole denominator is 0. "none": the quotient as it comes, 0 for zero weights, nan for 0 / 0.
        exclude: which parameters have r = 1 beside the groups with ``adapt=False`` ("flag"). "undecayed": those of
            groups without weight decay; "vectors": those of less than two dimensions, which lose their decay too.
        nesterov: step along the new direction plus m times the velocity.
        trust_bounds: (low, high) between which a computed ratio is clipped; a zero-norm 1 is left alone.
        trust_clip: divide a computed r by n and clip it at 1, so that a tensor's rate is min(r, n) (LARC).
        fused: on a CPU, use torch's fused kernels (not for decay "sum", zero_norm "skip" and "none").

    Raises:
        RequestError: an option outside its range; at `step`, a sparse gradient (before anything has changed)."""

    def __init__(self, params: Iterable[Any], lr: float | Tensor, momentum: float = 0.9, weight_decay: float = 1e-4,
                 trust_coefficient: float | None = None, eps: float | None = None, *, dialect: str = "paper",
                 convention: str | None = None, decay: str | None = None, zero_norm: str | None = None,
                 exclude: str | None = None, nesterov: bool = False, trust_bounds: tuple[float, float] | None = None,
                 trust_clip: bool | None = None, fused: bool = True) -> None:
        given = {"trust_coefficient": trust_coefficient, "eps": eps, "convention": convention, "decay": decay,
                 "zero_norm": zero_norm, "exclude": exclude, "trust_bounds": trust_bounds, "trust_clip": trust_clip}
        own = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov, "fused": fused}
        super().__init__(params, {**dialects.resolved(dialects.LARS, dialect, given), **own, "adapt": True})

    def _check(self, options: dict[str, Any]) -> None:
        require_range("momentum", options["momentum"], high=1.0, open_high=True)
        require_range("trust_coefficient", options["trust_coefficient"], open_low=True)
        choose("convention", options["convention"], ("A", "B", "C"))
        choose("decay", options["decay"], ("ratio", "gradient", "sum", "outside"))
        choose("zero_norm", options["zero_norm"], ("one", "skip", "quotient", "none"))
        if options["nesterov"] and not options["momentum"]:
            raise RequestError("nesterov needs a momentum above 0")

    def _update(self, bucket: Bucket, weights: list[Tensor], grads: list[Tensor], shared: None) -> None:
        velocities = self._held(bucket, "momentum_buffer") if bucket.options["momentum"] else []
        may_fuse = bucket.fusible and bucket.options["decay"] != "sum"
        ordered = fused.in_memory_order(weights, grads, velocities or grads) if may_fuse else None
        if ordered:
            lars_fused(*ordered, bucket.options, self._scratch)
        else:
            lars_update(weights, grads, velocities, bucket.options, bucket.norms)
