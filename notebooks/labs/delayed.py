"""Late gradients: the edge of stability on a quadratic, found by running it, and a small network trained with them.

The *delay* (or staleness) of an update is the number of updates that took effect between the reading of the parameters
and the writing of the gradient. The recursion is w <- w - v, v <- momentum v + rate gradient(w some updates ago)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import RequestError
from labs.rules_asynchronous import edge

GONE = 100.0  # a training loss above this, and a quadratic grown by this factor, are counted as diverged


def late(delay):
    """`delay`, or a RequestError where it is no whole number of updates."""
    if not (delay >= 0 and delay % 1 == 0):
        raise RequestError(f"delay {delay} must be a whole number of updates, 0 or more")
    return delay


def path(delay: int, rate: float, momentum: float = 0.0, steps: int = 120) -> np.ndarray:
    """Distances [steps + 1] from the minimum of a quadratic of curvature 1, started at 1; infinite once beyond 1e6."""
    w, velocity, delay = [1.0], 0.0, late(delay)
    for step in range(steps):
        velocity = momentum * velocity + rate * w[max(step - delay, 0)]
        w.append(w[-1] - velocity if abs(w[-1]) < 1e6 else math.inf)
    return np.array(w)


def grows(delays: np.ndarray, rates: np.ndarray, momentum: float, steps: int) -> np.ndarray:
    """Whether w of each pair (delay, rate x curvature) is larger at the end than in the middle; all are run at once."""
    window = 8 * (int(delays.max()) + 1)  # longer than a period at the edge, 4 delay + 2
    if steps < 4 * window:
        raise RequestError(f"steps {steps} are too few for delay {delays.max()}; at least {4 * window}")
    arms, size = np.arange(len(rates)), int(delays.max()) + 1
    past, w, velocity = np.ones((size, len(rates))), np.ones(len(rates)), np.zeros(len(rates))
    middle, end = np.zeros(len(rates)), np.zeros(len(rates))
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(steps):
            velocity = momentum * velocity + rates * past[(step - delays) % size, arms]
            w = w - velocity
            past[(step + 1) % size] = w
            if steps // 2 - window <= step < steps // 2:
                middle = np.maximum(middle, np.abs(w))
            elif step >= steps - window:
                end = np.maximum(end, np.abs(w))
    return ~(end <= middle)  # an overflow has grown


def found_edges(delays: Sequence[int], momentum: float = 0.0, steps: int = 8000, halvings: int = 22) -> np.ndarray:
    """Largest stable rate x curvature for each delay: bisection, every trial a run of `steps` updates."""
    delays = np.asarray([late(delay) for delay in delays])
    low, high = np.zeros(len(delays)), np.full(len(delays), 2.0 * (1 + momentum) + 0.1)
    for _ in range(halvings):
        trial = (low + high) / 2
        grown = grows(delays, trial, momentum, steps)
        low, high = np.where(grown, low, trial), np.where(grown, trial, high)
    return (low + high) / 2


def radius(delay: int, rate: float, momentum: float = 0.0) -> float:
    """Largest modulus of the roots of z^n - (1 + m) z^(n-1) + m z^(n-2) + rate z^(n-1-delay), n = max(delay, 1) + 1: by
    how much w grows per update, on curvature 1. Stable below 1."""
    n = max(late(delay), 1) + 1
    polynomial = np.array([1.0, -(1 + momentum), momentum, *[0.0] * (n - 2)])
    polynomial[1 + delay] += rate
    return float(np.abs(np.roots(polynomial)).max())


def edge_of(delay: int, momentum: float = 0.0) -> float:
    """The edge from theory: the formula without momentum, else where the radius leaves 1."""
    if momentum == 0:
        return float(edge(late(delay)))
    low, high = 0.0, 2.0 * (1 + momentum) + 0.1
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if radius(delay, middle, momentum) < 1 + 1e-12 else (low, middle)
    return low


def implicit_momentum(workers: int, rate: float, runs: int = 4000, steps: int = 60, seed: int = 0) -> tuple:
    """(momentum, rate x curvature) that explain the mean path of asynchronous SGD on a quadratic.

    Exponential compute times: after each update, whose worker comes next is uniformly random, independent of the past.
    The path's mean over `runs` is fitted by mean(t+1) - mean(t) = momentum (mean(t) - mean(t-1)) - rate mean(t)."""
    random, w = np.random.default_rng(seed), np.ones(runs)
    read, rows, mean = np.ones((runs, workers)), np.arange(runs), [1.0]
    for _ in range(steps):
        worker = random.integers(workers, size=runs)
        w = w - rate * read[rows, worker]
        read[rows, worker] = w
        mean.append(float(w.mean()))
    mean, change = np.array(mean), np.diff(mean)
    fit, *_ = np.linalg.lstsq(np.stack([change[:-1], -mean[1:-1]], 1), change[1:], rcond=None)
    return float(fit[0]), float(fit[1])


@dataclass(frozen=True)
class Digits:
    """Normalised images [n, pixels] and classes [n]; losses are read on `probe`, a part of the training set."""

    train: tuple
    probe: tuple
    validation: tuple
    test: tuple

    @classmethod
    def load(cls, train: int = 4096, probe: int = 512) -> "Digits":
        import torch

        from labkit.datasets import images

        data, parts = images.load("mnist5k", train=train), []
        for x, y in ((data.train_x, data.train_y), (data.validation_x, data.validation_y), (data.test_x, data.test_y)):
            x = (torch.from_numpy(x).flatten(1).float() / 255 - data.mean) / data.std
            parts.append((x, torch.from_numpy(y)))
        return cls(parts[0], tuple(part[:probe] for part in parts[0]), *parts[1:])


class Arms:
    """Networks that differ in rate and momentum only, side by side: the first weights are [pixels, arms * hidden]."""

    def __init__(self, digits: Digits, rates, momenta, seed: int, hidden: int = 64):
        import torch

        self.torch, self.hidden, self.count = torch, hidden, len(rates)
        generator = torch.Generator().manual_seed(seed)
        pixels, classes = digits.train[0].shape[1], int(digits.train[1].max()) + 1
        shapes = ((pixels, hidden), (1, hidden), (hidden, classes), (1, classes))
        bounds = (pixels**-0.5, pixels**-0.5, hidden**-0.5, hidden**-0.5)
        start = [(2 * torch.rand(shape, generator=generator) - 1) * bound
                 for shape, bound in zip(shapes, bounds, strict=True)]
        self.weights = [start[0].repeat(1, self.count), start[1].repeat(1, self.count),
                        start[2].repeat(self.count, 1, 1), start[3].repeat(self.count, 1, 1)]
        self.velocity = [torch.zeros_like(part) for part in self.weights]
        self.rates, self.momenta = (torch.tensor(list(part), dtype=torch.float32) for part in (rates, momenta))

    def wide(self, values):
        """A number for each arm, in the shapes of the four weights."""
        long = values.repeat_interleave(self.hidden)
        return long, long, values[:, None, None], values[:, None, None]

    def forward(self, x):
        """(hidden [arms, n, hidden], scores [arms, n, classes])."""
        first = self.torch.addmm(self.weights[1], x, self.weights[0]).relu_()
        first = first.view(len(x), self.count, self.hidden).transpose(0, 1)
        return first, self.torch.baddbmm(self.weights[3], first, self.weights[2])

    def gradient(self, x, y) -> list:
        """Of the mean cross-entropy of each arm, by hand: in the shapes of the weights."""
        first, scores = self.forward(x)
        error = scores.softmax(2)
        error[:, self.torch.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ self.weights[2].transpose(1, 2)) * (first > 0)
        back = back.transpose(0, 1).reshape(len(x), -1)
        return [x.T @ back, back.sum(0, keepdim=True), first.transpose(1, 2) @ error, error.sum(1, keepdim=True)]

    def apply(self, gradient: list) -> None:
        """v <- momentum v + g, w <- w - rate v."""
        rates, momenta, plain = self.wide(self.rates), self.wide(self.momenta), not bool(self.momenta.any())
        for w, v, g, rate, momentum in zip(self.weights, self.velocity, gradient, rates, momenta, strict=True):
            w.addcmul_(g if plain else v.mul_(momentum).add_(g), rate, value=-1)

    def losses(self, part) -> np.ndarray:
        scores = self.forward(part[0])[1]
        picked = scores.gather(2, part[1].expand(self.count, -1)[..., None])[..., 0]
        return (scores.logsumexp(2) - picked).mean(1).double().numpy()

    def accuracy(self, part) -> np.ndarray:
        return (self.forward(part[0])[1].argmax(2) == part[1]).double().mean(1).numpy()

    def keep(self, stay: np.ndarray, queues: list) -> None:
        """Drop arms, from the weights, the velocities and the gradients that are on their way."""
        arms = self.torch.from_numpy(np.flatnonzero(stay))
        columns = self.torch.from_numpy(np.flatnonzero(np.repeat(stay, self.hidden)))
        for parts in (self.weights, self.velocity, *queues):
            parts[:] = [parts[0][:, columns], parts[1][:, columns], parts[2][arms], parts[3][arms]]
        self.rates, self.momenta, self.count = self.rates[arms], self.momenta[arms], int(stay.sum())


@dataclass(frozen=True)
class Trained:
    """What came of each arm: `losses` [evaluations, arms] on the probe after `steps` [evaluations] updates (infinite
    once it has diverged, NaN once it has reached the target); accuracies [arms] at the end, 0 if diverged."""

    steps: np.ndarray
    losses: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def crossing(self, target: float) -> np.ndarray:
        """Updates until the probe's loss is at the target, log-linear in between; 0 if it begins there, inf: a miss."""
        found = np.where(self.losses[0] <= target, 0.0, math.inf)
        for arm, column in enumerate(self.losses.T):
            below = np.flatnonzero(column <= target)
            if len(below) and (at := below[0]) > 0:
                share = math.log(column[at - 1] / target) / math.log(column[at - 1] / column[at])
                found[arm] = self.steps[at - 1] + share * (self.steps[at] - self.steps[at - 1])
        return found


def train(digits: Digits, read: Sequence[int], rates: Sequence[float], momenta: Sequence[float] | float = 0.0, *,
          batch: int = 32, seed: int = 0, every: int = 32, target: float | None = None) -> Trained:
    """Train arms along an order of updates; all see the same batches, drawn with replacement.

    Args:
        read: updates that the parameters of update t held, 0 to t (else a RequestError); so t - read[t] is its delay.
        momenta: one for each rate, or one for all.
        every: updates between two evaluations on the probe. target: an arm whose loss there is this or less stops."""
    import torch

    read = np.asarray(read)
    if (read > np.arange(len(read))).any() or (read < 0).any():
        raise RequestError("an update reads parameters that do not exist yet; read[t] must lie in 0 .. t")
    momenta = [momenta] * len(rates) if isinstance(momenta, (int, float)) else list(momenta)
    rows = torch.randint(len(digits.train[1]), (len(read), batch), generator=torch.Generator().manual_seed(seed))
    arms, alive, readers = Arms(digits, rates, momenta, seed), np.arange(len(rates)), defaultdict(list)
    for step, version in enumerate(read.tolist()):
        readers[version].append(step)
    steps, losses, scores, queue = [0], [arms.losses(digits.probe)], np.zeros((2, len(rates))), {}
    for step in range(len(read)):
        for reader in readers[step]:  # whoever read these parameters computes now, and writes later
            queue[reader] = arms.gradient(digits.train[0][rows[reader]], digits.train[1][rows[reader]])
        arms.apply(queue.pop(step))
        if (step + 1) % every and step + 1 < len(read):
            continue
        now, row = arms.losses(digits.probe), np.where(np.isfinite(losses[-1]), math.nan, losses[-1])
        row[alive] = np.where(now < GONE, now, math.inf)
        steps.append(step + 1)
        losses.append(row)
        stay = now < GONE if target is None else (now < GONE) & (now > target)
        if not stay.all():
            alive = alive[stay]
            if not len(alive):
                break
            arms.keep(stay, list(queue.values()))
    if len(alive):
        scores[:, alive] = arms.accuracy(digits.validation), arms.accuracy(digits.test)
    return Trained(np.array(steps), np.stack(losses), *scores)


def constant(delay: int, steps: int) -> np.ndarray:
    """What updates read if each gradient is `delay` updates old (at the start, as old as can be)."""
    return np.maximum(np.arange(steps) - late(delay), 0)
