"""Real gradients in virtual time: trains a model along the updates that `labkit.simulate.events` has put in order.

- asynchronous, stale-synchronous: an update is the gradient at the parameters that its worker had read before;
- synchronous, backup workers: the mean of the members' gradients;
- local SGD, gossip (`labs.virtual_gossip`): every worker has a replica of the parameters, and momentum of its own.

Gradients that do not wait for one another are computed at once, as one batched call.
When not to use it: for buffers of single workers (BatchNorm's statistics are one set here), or dropout that repeats.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from labkit.errors import RequestError, choose
from labkit.simulate.events import Updates

ALONE = (nn.RNNBase, nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)  # no batched call computes these
AT_ONCE = 64  # gradients in one batched call; more take more memory, and no less time each


@dataclass(frozen=True)
class Batches:
    """`size` samples a gradient, drawn with replacement; every worker has a stream of its own, whatever others do.

    Args:
        inputs: [N, ...]. labels: [N]. seed: of the streams.
    """

    inputs: Tensor
    labels: Tensor
    size: int
    seed: int = 0

    def begin(self, workers: int) -> Callable[[list[int]], tuple[Tensor, Tensor]]:
        """From a list of W workers to their next batches, inputs [W, size, ...] and labels [W, size]."""
        streams = [np.random.default_rng([self.seed, worker]) for worker in range(workers)]

        def draw(chosen):
            rows = np.stack([streams[worker].integers(len(self.labels), size=self.size) for worker in chosen])
            rows = torch.from_numpy(rows)
            return self.inputs[rows], self.labels[rows]

        return draw


@dataclass(frozen=True)
class Curve:
    """What the probe said after some of the updates; the first row is from before all of them.

    Attributes:
        update: how many were applied. seconds: in virtual time. loss, accuracy: on the probe, of the parameters'
            mean over workers; accuracy is nan for labels that are no classes.
        spread: root of the mean square of the distance of replicas from their mean.
        reached: seconds at which the target was met, nan if it never was.
        parameters: the last ones, one vector [n] of those that are not frozen.
    """

    update: np.ndarray
    seconds: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    spread: np.ndarray
    reached: float
    parameters: Tensor


class Gradients:
    """The gradient of `loss(model(inputs), labels)`, a mean over samples, in parameters that are one vector; those that
    are frozen (requires_grad False) are not in it.

    Args:
        model: is copied. vectorised: several at once by torch.func; by default where all of its modules allow it.
    """

    def __init__(self, model: nn.Module, loss: Callable, vectorised: bool | None = None):
        self.model, self.loss = copy.deepcopy(model).train(), loss
        named = {name: part for name, part in self.model.named_parameters() if part.requires_grad}  # others are frozen
        if not named:
            raise RequestError("all parameters of the model are frozen; train one at least (requires_grad)")
        self.names, self.parameters = list(named), list(named.values())
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.start = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.own_statistics = any(True for _ in self.model.buffers())
        able = not any(isinstance(module, ALONE) for module in self.model.modules())
        self._many = vmap(grad(self._value)) if (able if vectorised is None else vectorised) else None

    def _shaped(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split(self.sizes)
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def _value(self, vector: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        named = dict(zip(self.names, self._shaped(vector), strict=True))
        return self.loss(functional_call(self.model, named, (inputs,)), labels)

    def _load(self, vector: Tensor) -> None:
        for parameter, part in zip(self.parameters, self._shaped(vector), strict=True):
            parameter.data = part

    def one(self, vector: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """At the parameters `vector` [n], on one batch."""
        self._load(vector)
        value = self.loss(self.model(inputs), labels)
        parts = torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def many(self, vectors: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """At the parameters [W, n], each on its own batch, [W, n]."""
        if self._many is not None and len(vectors) > 1:
            return self._many(vectors, inputs, labels)
        return torch.stack([self.one(*row) for row in zip(vectors, inputs, labels, strict=True)])

    def mean(self, vector: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """At `vector` [n], the mean over W batches [W, size, ...]; by one call, unless samples of a batch interact."""
        if self.own_statistics:
            return self.many(vector.expand(len(labels), -1), inputs, labels).mean(0)
        return self.one(vector, inputs.flatten(0, 1), labels.flatten(0, 1))

    @torch.no_grad()
    def probe(self, vector: Tensor, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
        """(loss, accuracy)."""
        self._load(vector)
        self.model.eval()
        scores = self.model(inputs)
        self.model.train()
        classes = labels.dtype == torch.long
        right = (scores.argmax(1) == labels).double().mean().item() if classes else float("nan")
        return self.loss(scores, labels).item(), right


def train(updates: Updates, model: nn.Module, loss: Callable, batches: Batches, rate: float | Callable,
          probe: tuple[Tensor, Tensor], *, momentum: float = 0.0, every: int = 10,
          target: tuple[str, float] | None = None) -> Curve:
    """SGD along `updates`; v = momentum v + g, w = w - rate v, once an update (a local step with replicas).

    Args:
        model: left as it is. loss: of (outputs, labels), a mean over samples.
        rate: number, or a function of (update, its staleness), for schedules and staleness-aware rates.
        probe: (inputs, labels) for the curve, looked at after `every` updates and after the last.
        target: ("loss", at most) or ("accuracy", at least); training stops there, and where the loss is not finite.

    Raises:
        RequestError: an unknown kind of target, `every` below 1, or nothing to train.
    """
    if target is not None:
        choose("target", target[0], ("loss", "accuracy"))
    if every < 1:
        raise RequestError(f"every must be 1 or more updates, not {every}")
    gradients, draw = Gradients(model, loss), batches.begin(len(updates.idle))
    if not callable(rate):
        rate = _constant(rate)
    local = updates.periods is not None and (updates.periods > 1).any()
    way = _single if updates.members is None else _replicas if local or updates.mixing is not None else _together
    rows, reached = [(0, 0.0, *gradients.probe(gradients.start, *probe), 0.0)], float("nan")
    for count, parameters in enumerate(way(updates, gradients, draw, rate, momentum), start=1):
        if count % every and count < len(updates.when):
            continue
        mean = parameters.mean(0) if parameters.dim() == 2 else parameters
        spread = (parameters - mean).square().sum(-1).mean().sqrt().item() if parameters.dim() == 2 else 0.0
        rows.append((count, float(updates.when[count - 1]), *gradients.probe(mean, *probe), spread))
        value, accuracy = rows[-1][2:4]
        if target is not None and (value <= target[1] if target[0] == "loss" else accuracy >= target[1]):
            reached = rows[-1][1]
        if reached == reached or not np.isfinite(value):
            break
    return Curve(*map(np.array, zip(*rows, strict=True)), reached, mean)


def _constant(rate: float) -> Callable:
    return lambda update, staleness: rate


def _single(updates, gradients, draw, rate, momentum):
    """One worker's gradient at a time, at the parameters it had read: yields the newest [n]."""
    read, workers, staleness = updates.read.tolist(), updates.worker.tolist(), updates.staleness.tolist()
    needed = np.bincount(updates.read, minlength=len(read) + 1)
    versions, velocity = {0: gradients.start}, torch.zeros_like(gradients.start)
    newest, done = gradients.start, 0
    while done < len(read):
        # Everything in a row that was read by now is computed at once.
        stop = done + 1
        while stop < min(done + AT_ONCE, len(read)) and read[stop] <= done:
            stop += 1
        at = torch.stack([versions[version] for version in read[done:stop]])
        for version in read[done:stop]:
            needed[version] -= 1
            if not needed[version]:
                del versions[version]
        for gradient in gradients.many(at, *draw(workers[done:stop])):
            velocity = momentum * velocity + gradient if momentum else gradient
            newest = newest - rate(done, staleness[done]) * velocity
            done += 1
            if needed[done]:
                versions[done] = newest
            yield newest


def _together(updates, gradients, draw, rate, momentum):
    """The mean of the members' gradients: yields the parameters [n]."""
    newest, velocity = gradients.start, torch.zeros_like(gradients.start)
    for count, members in enumerate(updates.members):
        velocity = momentum * velocity + gradients.mean(newest, *draw(np.flatnonzero(members)))
        newest = newest - rate(count, 0) * velocity
        yield newest


def _replicas(updates, gradients, draw, rate, momentum):
    """Local steps, then the members' average; or neighbours' parameters mixed, then a step: yields all [P, n]."""
    workers = range(updates.members.shape[1])
    own = gradients.start.repeat(len(workers), 1)
    velocity = torch.zeros_like(own)
    mixing = None if updates.mixing is None else torch.tensor(updates.mixing, dtype=own.dtype)
    for count, members in enumerate(updates.members):
        for _ in range(1 if updates.periods is None else updates.periods[count]):
            velocity = momentum * velocity + gradients.many(own, *draw(workers))
            before = own if mixing is None else mixing[count % len(mixing)] @ own
            own = before - rate(count, 0) * velocity
        if mixing is None:
            own = own[members].mean(0).repeat(len(workers), 1)
        yield own
