"""Workers of lab 06 in one process: the same small network trained by ranks that say less, and what they send for it.

All replicas of all rates are computed side by side; compressors are the pure functions that real ranks use
(`labs.talking_ranks` trains the same on real ones). Bytes are those that ring collectives send, per rank.
When not to use it: as evidence about time, or about large networks: 6,634 parameters on 14 x 14 digits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from labkit.datasets import images
from labkit.errors import RequestError
from labkit.training import gossip
from labs.talking_arms import arm

HIDDEN, PIXELS, CLASSES = 32, 196, 10
SHAPES = ((HIDDEN, PIXELS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
WORDS = sum(math.prod(shape) for shape in SHAPES)  # 6,634
DENSE = 4 * WORDS  # bytes


@dataclass(frozen=True)
class Method:
    """What each rank says: every `tau` steps the sum of its gradients, by compressor `name` with `options`
    (`labs.talking_arms.arm`). With tau above 1 it moves along its own gradients in between.

    scale: its rates are the common ones times this; 1/8 with momentum 0.9, which moves ten times as far."""

    label: str
    name: str = "none"
    options: dict = field(default_factory=dict)
    tau: int = 1
    scale: float = 1.0


METHODS = {method.label: method for method in (
    Method("dense"),
    Method("dense, momentum", "none", {"momentum": 0.9, "masking": False}, scale=0.125),
    Method("fp16", "fp16"),
    Method("1-bit", "onebit"),
    Method("1-bit, no feedback", "onebit", {"feedback": False}),
    Method("QSGD 4 levels", "qsgd", {"levels": 4}),
    Method("TernGrad", "terngrad"),
    Method("top-k 10 %", "topk", {"density": 0.1}),
    Method("top-k 1 %", "topk", {"density": 0.01}),
    Method("DGC 1 %", "dgc", {"density": 0.01, "stage": 8}, scale=0.125),
    Method("PowerSGD rank 1", "powersgd", {"rank": 1}),
)}  # fmt: skip


@dataclass(frozen=True)
class Digits:
    """MNIST digits, each 2 x 2 pixels averaged, as [n, 196], and classes [n]."""

    train: tuple
    validation: tuple
    test: tuple

    @classmethod
    def load(cls, train: int = 4096) -> "Digits":
        data, parts = images.load("mnist5k", train=train), []
        for x, y in ((data.train_x, data.train_y), (data.validation_x, data.validation_y), (data.test_x, data.test_y)):
            x = (torch.from_numpy(x).float().view(-1, 1, 28, 28) / 255 - data.mean) / data.std
            parts.append((torch.nn.functional.avg_pool2d(x, 2).flatten(1), torch.from_numpy(y).long()))
        return cls(*parts)


class Nets:
    """Replicas of 196-32-10 with ReLU: `weights` are four tensors [replicas, *shape]."""

    def __init__(self, replicas: int, seed: int, dtype: torch.dtype = torch.float32):
        generator = torch.Generator().manual_seed(seed)
        self.weights = []
        for shape in SHAPES:
            inputs = PIXELS if shape[0] == HIDDEN else HIDDEN
            start = (2 * torch.rand(shape, generator=generator) - 1) * inputs**-0.5
            self.weights.append(start.to(dtype).repeat(replicas, *[1] * len(shape)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [replicas or 1, n, 196] -> (hidden [replicas, n, 32], scores [replicas, n, 10])."""
        w, b, v, c = self.weights
        hidden = (x @ w.transpose(1, 2) + b[:, None]).relu_()
        return hidden, hidden @ v.transpose(1, 2) + c[:, None]

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Of each replica's mean cross-entropy on its own samples, x [replicas, n, 196], y [replicas, n]; by hand."""
        hidden, scores = self.forward(x)
        error = scores.softmax(2)
        error.scatter_add_(2, y[..., None], -torch.ones_like(error[..., :1]))
        error /= y.shape[1]
        back = (error @ self.weights[2]) * (hidden > 0)
        return [back.transpose(1, 2) @ x, back.sum(1), error.transpose(1, 2) @ hidden, error.sum(1)]

    def accuracy(self, part: tuple) -> np.ndarray:
        """[replicas]; 0 where a score is not finite."""
        scores = self.forward(part[0][None].to(self.weights[0].dtype))[1]
        right = (scores.argmax(2) == part[1]).double().mean(1)
        return right.where(scores.isfinite().all(2).all(1), 0.0).numpy()


def draws(samples: int, workers: int, steps: int, batch: int, seed: int) -> Tensor:
    """Rows [steps, workers, batch]: each worker draws, with replacement, from its own share, rows w, w + P, ..."""
    streams = [torch.Generator().manual_seed(1000 * seed + worker) for worker in range(workers)]
    own = [torch.randint(samples // workers, (steps, batch), generator=stream) for stream in streams]
    return torch.stack([rows * workers + worker for worker, rows in enumerate(own)], 1)


@dataclass(frozen=True)
class Trained:
    """Of each rate: accuracies at the end (0 where it diverged), `reached` = steps until the validation accuracy was at
    the target (infinite: never), and `sent`, the bytes that each rank sent in all, the same for every rate."""

    rates: tuple
    validation: np.ndarray
    test: np.ndarray
    reached: np.ndarray
    sent: float
    spread: np.ndarray  # root mean square distance of the workers from their mean
    weights: list[Tensor]


def on_wire(payload: float, workers: int, closed: bool) -> float:
    """Bytes that a rank sends by ring collectives for its wire: an all-reduce if `closed`, or else an all-gather."""
    return (2 * (workers - 1) / workers if closed else workers - 1) * payload


class _Curve:
    """Looks at the common model of each rate (mean over its workers) now and then."""

    def __init__(self, digits: Digits, rates, workers: int, target: float, every: int):
        self.digits, self.rates, self.workers, self.target, self.every = digits, tuple(rates), workers, target, every
        self.reached = np.full(len(rates), math.inf)

    def common(self, nets: Nets) -> Nets:
        mean = Nets(0, 0)
        mean.weights = [part.unflatten(0, (-1, self.workers)).mean(1) for part in nets.weights]
        return mean

    def look(self, step: int, nets: Nets) -> None:
        if step % self.every == 0:
            now = self.common(nets).accuracy(self.digits.validation) >= self.target
            self.reached = np.where(now & np.isinf(self.reached), step, self.reached)

    def end(self, nets: Nets, sent: float) -> Trained:
        mean = self.common(nets)
        apart = sum(((part.unflatten(0, (-1, self.workers)) - middle[:, None]) ** 2).flatten(2).sum(2)
                    for part, middle in zip(nets.weights, mean.weights, strict=True))
        return Trained(self.rates, mean.accuracy(self.digits.validation), mean.accuracy(self.digits.test), self.reached,
                       sent, apart.mean(1).sqrt().numpy(), mean.weights)


def compressed(digits: Digits, method: Method, rates: Sequence[float], *, workers: int = 4, steps: int = 256,
               batch: int = 16, seed: int = 0, target: float = 0.9, every: int = 8) -> Trained:
    """SGD at each of `rates`: all begin at the same parameters, walk `tau` steps, and exchange the sums of their
    gradients; everyone then goes on from the old common parameters minus rate x the mean of what was heard.

    Raises:
        RequestError: steps is no multiple of tau; the method or an option of it is unknown."""
    if steps % method.tau:
        raise RequestError(f"steps {steps} must be a multiple of tau {method.tau}: the last gradients would be lost")
    arms = [arm(method.name, workers, SHAPES, seed, **method.options) for _ in rates]
    nets, curve = Nets(len(rates) * workers, seed), _Curve(digits, rates, workers, target, every)
    rows = draws(len(digits.train[1]), workers, steps, batch, seed)
    rate = torch.tensor(rates).repeat_interleave(workers)
    wide = [rate.view(-1, *[1] * len(shape)) for shape in SHAPES]
    common, sums = [part.clone() for part in nets.weights], [torch.zeros_like(part) for part in nets.weights]
    for step in range(steps):
        at = rows[step].repeat(len(rates), 1)
        for place, gradient in enumerate(nets.gradient(digits.train[0][at], digits.train[1][at])):
            sums[place] += gradient
            if method.tau > 1:
                nets.weights[place] = nets.weights[place] - wide[place] * gradient
        if (step + 1) % method.tau == 0:
            for place, part in enumerate(sums):
                means = [own.mean(place, said) for own, said in zip(arms, part.split(workers), strict=True)]
                common[place] = common[place] - wide[place] * torch.stack(means).repeat_interleave(workers, 0)
                nets.weights[place] = common[place]
                part.zero_()
            for own in arms:
                own.next()
            curve.look(step + 1, nets)
    return curve.end(nets, on_wire(arms[0].payload, workers, arms[0].closed))


def averaged(digits: Digits, way: str, tau: int, rates: Sequence[float], *, workers: int = 4, steps: int = 256,
             batch: int = 16, seed: int = 0, target: float = 0.9, every: int = 8, pull: float = 0.9) -> Trained:
    """Local SGD ("averaging": the mean of parameters every tau steps, and at the end) or synchronous EASGD ("elastic",
    as `labkit.training.averaging.ElasticAveraging`, alpha = pull / P; its centre is what is judged)."""
    nets, curve = Nets(len(rates) * workers, seed), _Curve(digits, rates, workers, target, every)
    rows, judged = draws(len(digits.train[1]), workers, steps, batch, seed), Nets(0, 0)
    rate, times, centre = torch.tensor(rates).repeat_interleave(workers), 0, [part.clone() for part in nets.weights]
    for step in range(steps):
        at = rows[step].repeat(len(rates), 1)
        gradients = nets.gradient(digits.train[0][at], digits.train[1][at])
        if way == "elastic" and step and step % tau == 0:
            centre, times = _pulled(nets, centre, workers, pull), times + 1
        for place, gradient in enumerate(gradients):
            nets.weights[place] = nets.weights[place] - rate.view(-1, *[1] * (gradient.dim() - 1)) * gradient
        if way == "averaging" and ((step + 1) % tau == 0 or step + 1 == steps):
            nets.weights, times = [_mixed(part, workers) for part in nets.weights], times + 1
        judged.weights = centre if way == "elastic" else nets.weights
        if way == "elastic" or (step + 1) % tau == 0:
            curve.look(step + 1, judged)
    if way == "elastic":
        judged.weights, times = _pulled(nets, centre, workers, pull), times + 1
    return curve.end(judged, times * on_wire(DENSE, workers, True))


def _mixed(part: Tensor, workers: int) -> Tensor:
    return part.unflatten(0, (-1, workers)).mean(1).repeat_interleave(workers, 0)


def _pulled(nets: Nets, centre: list[Tensor], workers: int, pull: float) -> list[Tensor]:
    """Draws the workers to the centre, in place of nets.weights, and returns the centre, drawn to their mean."""
    middle = [_mixed(part, workers) for part in nets.weights]
    nets.weights = [part.lerp(old, pull / workers) for part, old in zip(nets.weights, centre, strict=True)]
    return [old.lerp(mean, pull) for old, mean in zip(centre, middle, strict=True)]


def gossiped(digits: Digits, graph: str, rates: Sequence[float], *, workers: int = 16, steps: int = 256, batch: int = 4,
             seed: int = 0, target: float = 0.9, every: int = 8) -> Trained:
    """D-PSGD on a graph of `labkit.training.gossip.TOPOLOGIES`: parameters are mixed with the neighbours', then a step
    along the gradient at the old ones. Judged is the mean of all; `spread` says how far they are from it."""
    rounds = torch.tensor(np.array(gossip.TOPOLOGIES[graph](workers)), dtype=torch.float32).view(-1, workers, workers)
    nets, curve = Nets(len(rates) * workers, seed), _Curve(digits, rates, workers, target, every)
    rows, sent = draws(len(digits.train[1]), workers, steps, batch, seed), 0.0
    rate = torch.tensor(rates).repeat_interleave(workers)
    for step in range(steps):
        at, mixing = rows[step].repeat(len(rates), 1), rounds[step % len(rounds)]
        gradients = nets.gradient(digits.train[0][at], digits.train[1][at])
        sent += DENSE * (int((mixing[:, 0] > 0).sum()) - 1)
        for place, (part, gradient) in enumerate(zip(nets.weights, gradients, strict=True)):
            mixed = torch.einsum("ij,aj...->ai...", mixing, part.unflatten(0, (-1, workers))).flatten(0, 1)
            nets.weights[place] = mixed - rate.view(-1, *[1] * (part.dim() - 1)) * gradient
        curve.look(step + 1, nets)
    return curve.end(nets, sent)
