"""The gradient noise scale tr(Sigma) / |G|^2 from the norms of one gradient at two batch sizes, followed in training.

Sigma is the covariance of the gradient of one sample, G the gradient of the whole loss. Source: McCandlish et al.
(arXiv 1812.06162), the estimators as public code has them (gpt-neox); here both norms belong to one set of weights."""

import math
from collections.abc import Sequence

import pytorch_lightning as pl
import torch

from labkit.errors import RequestError
from labkit.optim.schedules import require_range


def noise_scale(small_sq, big_sq, b_small: float, b_big: float) -> tuple:
    """Unbiased (tr Sigma, |G|^2), from |gradient|^2 of b_small and of b_big > b_small independent samples.

    Average both over steps first, then divide: a mean of ratios is biased, and a single one may even be negative. Not
    for gradients that are no means over samples (batch normalisation, a summed loss). RequestError: sizes in no order.
    """
    if not 0 < b_small < b_big:
        raise RequestError(f"a noise scale needs two batch sizes, 0 < small < big, not {b_small} and {b_big}")
    trace = (small_sq - big_sq) / (1 / b_small - 1 / b_big)
    return trace, (b_big * big_sq - b_small * small_sq) / (b_big - b_small)


def smooth_ratio(traces: Sequence[float], squares: Sequence[float], smoothing: float = 0.9) -> list[float]:
    """The course of the noise scale: ratio of the exponential means so far (`smoothing` in [0, 1) is the weight of the
    past); NaN while the lower is not positive."""
    require_range("smoothing", smoothing, high=1.0, open_high=True)
    top, bottom, course = 0.0, 0.0, []
    for trace, square in zip(traces, squares, strict=True):
        top, bottom = smoothing * top + trace, smoothing * bottom + square
        course.append(top / bottom if bottom > 0 else math.nan)
    return course


class GradientNoise(pl.Callback):
    """Estimates tr Sigma and |G|^2 at every `every`-th optimizer step, from gradients that training computes anyway.

    Small is a micro-batch and big the step (gradient accumulation; keeps one copy of the gradients), or small is a
    rank's own gradient, seen by a communication hook, and big the average (DDP; one all-reduce of a number). Training
    needs either: batch 64 as 4 x 16, or 2 ranks. A `GradScaler` scales both alike; its factor, which changes between
    steps, is taken out. Drawn without replacement from N samples, |G|^2 is low by tr Sigma / N.

    Writes `noise_trace` and `gradient_squared_norm` per measured step (the host waits), at the end `noise_scale`: the
    ratio of their sums, every step weighing alike. `traces`, `squares` are for `smooth_ratio`; `skipped` counts steps
    with a gradient that is not finite or unequal micro-batches. Not for batch normalisation or sharded gradients.
    `size`: samples in a micro-batch, if not the first dimension of its first tensor. RequestError as training starts
    with neither accumulation nor DDP."""

    def __init__(self, writer=None, every: int = 1, size: int = 0):
        require_range("every", every, low=1)
        self.writer, self.every, self.size = writer, every, size
        self.traces, self.squares, self.skipped = [], [], 0

    def _reset(self) -> None:
        self._sizes, self._before, self._small, self._big = [], None, 0.0, None

    @property
    def noise_scale(self) -> float:
        return sum(self.traces) / sum(self.squares) if sum(self.squares) > 0 else math.nan

    def on_train_start(self, trainer, task) -> None:
        self.traces, self.squares, self.skipped = [], [], 0  # a second fit is a measurement of its own
        self._reset()
        ddp = isinstance(trainer.strategy.model, torch.nn.parallel.DistributedDataParallel)
        if not ddp and (trainer.world_size > 1 or trainer.accumulate_grad_batches < 2):
            raise RequestError("a noise scale needs two batch sizes; accumulate 2 micro-batches, or use DDP on 2 ranks")
        if ddp:
            trainer.strategy.model.register_comm_hook(self, _note_local)

    def on_train_batch_start(self, trainer, task, batch, batch_idx) -> None:
        self._sizes.append(self.size or len(torch.utils._pytree.tree_leaves(batch)[0]))

    def on_after_backward(self, trainer, task) -> None:
        if trainer.global_step % self.every == 0:
            now = [torch.zeros_like(p) if p.grad is None else p.grad for p in task.parameters() if p.requires_grad]
            self._big = _square(now)
            if trainer.world_size == 1:  # .grad accumulates: what this micro-batch added is its own gradient
                own = now if self._before is None else torch._foreach_sub(now, self._before)
                self._small, self._before = self._small + _square(own), [gradient.clone() for gradient in now]

    def on_before_optimizer_step(self, trainer, task, optimizer) -> None:
        sizes, small, big, world = self._sizes, self._small, self._big, trainer.world_size
        self._reset()
        if big is None:
            return
        if world > 1:
            torch.distributed.all_reduce(small)
        scaler, count = getattr(trainer.precision_plugin, "scaler", None), len(sizes)
        # Lightning divides each loss by the number of micro-batches that a step should have; the last may have fewer.
        factor = (trainer.accumulate_grad_batches / count / (scaler.get_scale() if scaler else 1.0)) ** 2
        parts, b_small, small = (world, sum(sizes), small / world) if world > 1 else (count, sizes[0], small * count)
        small, big = float(small) * factor, float(big) * factor
        if not math.isfinite(small + big) or len(set(sizes)) > 1 or parts < 2:
            self.skipped += 1
            return
        trace, square = noise_scale(small, big, b_small, parts * b_small)
        self.traces.append(trace)
        self.squares.append(square)
        self._write(trainer, noise_trace=trace, gradient_squared_norm=square)

    def on_train_end(self, trainer, task) -> None:
        self._write(trainer, noise_scale=self.noise_scale)

    def _write(self, trainer, **values) -> None:
        epoch = trainer.global_step * trainer.accumulate_grad_batches / trainer.num_training_batches
        for name in values if self.writer is not None and trainer.is_global_zero else ():
            self.writer.metric(name, values[name], step=trainer.global_step, epoch=epoch)


def _square(tensors: list):
    """The squared norm of all together, at least in float32."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype)).square().sum()


def _note_local(callback: GradientNoise, bucket):
    """What DDP does without a hook; before, the squared norm of this rank's own gradient is noted."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    callback._small = callback._small + _square([bucket.buffer()])
    return allreduce_hook(None, bucket)
