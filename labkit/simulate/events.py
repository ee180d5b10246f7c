"""Distributed training in virtual time: who computes when, who waits, and how old each gradient is. numpy only.

A method returns its `Updates` in the order in which they take effect, which a trainer can follow with real gradients.
Equal seeds give equal results, and a worker's n-th gradient takes equally long in every method. A number out of range,
or waiting for good for a dead worker, is a RequestError.
When not to use it: as evidence about accuracy, or to forecast a cluster on which nothing was calibrated. Links share no
switches, computing does not slow down sending, and towards a server only its own ports are ever busy."""

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf

import numpy as np

from labkit.errors import RequestError, choose


def _need(right: bool, otherwise: str, *whole) -> None:
    if not (right and all(hasattr(number, "__index__") for number in whole)):
        raise RequestError(otherwise)


@dataclass(frozen=True)
class Compute:
    """Seconds a gradient takes: constant, exponential or lognormal with a `mean` (`sigma`: standard deviation of the
    logarithm), or measured: drawn from `samples`. slow: {worker: factor}. dies: {worker: second}."""

    kind: str = "constant"
    mean: float = 1.0
    sigma: float = 0.3
    samples: Sequence[float] = ()
    slow: dict[int, float] = field(default_factory=dict)
    dies: dict[int, float] = field(default_factory=dict)

    def __post_init__(self):
        choose("kind of compute time", self.kind, ("constant", "exponential", "lognormal", "measured"))
        _need(all(0 < number < inf for number in (self.mean, *self.slow.values(), *self.samples)) and
              0 <= self.sigma < inf and all(second >= 0 for second in self.dies.values()),
              "mean, slow and samples must be above 0 and finite, sigma and dies 0 or more")
        _need((self.kind == "measured") == (len(self.samples) > 0), "samples belong to kind measured: give it some")

    def blocks(self, worker: int, seed: int, length: int) -> Iterator[np.ndarray]:
        """The seconds of a worker's gradients in order, `length` at a time, without end."""
        rng = np.random.default_rng([seed, worker])
        draw = {"constant": lambda: np.full(length, self.mean),
                "exponential": lambda: rng.exponential(self.mean, length),
                "lognormal": lambda: self.mean * rng.lognormal(-self.sigma**2 / 2, self.sigma, length),
                "measured": lambda: rng.choice(np.asarray(self.samples, float), length)}[self.kind]
        while True:
            yield draw() * self.slow.get(worker, 1.0)

    def table(self, workers: int, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(seconds (steps, workers), second of each worker's death)."""
        _need(min(workers, steps, seed + 1) >= 1, f"workers {workers} and steps {steps} must be 1 or more, seed {seed} "
              "0 or more, and all whole", workers, steps, seed)
        _need({*self.slow, *self.dies} <= {*range(workers)}, f"slow and dies may name workers 0 to {workers - 1} only")
        times = np.stack([next(self.blocks(worker, seed, steps)) for worker in range(workers)], axis=1)
        return times, np.array([self.dies.get(worker, inf) for worker in range(workers)])


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes `alpha + n beta` seconds, and keeps a port busy for n beta. Called: equal for all."""

    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self):
        _need(0 <= self.alpha < inf and 0 <= self.beta < inf, f"alpha and beta of a link must be 0 or more, not {self}")

    def __call__(self, *between: int) -> "Link":
        return self


@dataclass(frozen=True)
class Updates:
    """Updates in the order in which they take effect, at `when` seconds.

    worker: whose gradient it is; -1 where it is all `members`' (updates, workers), which else is None.
    read: how many updates the parameters held on which the gradient was computed.
    began, ended: seconds between which it was computed; (updates, workers) with members.
    idle: share of the time until the last update in which each worker computed nothing.
    periods: with members, local steps before each update. mixing: of gossip, its matrices (rounds, P, P)."""

    when: np.ndarray
    worker: np.ndarray
    read: np.ndarray
    began: np.ndarray
    ended: np.ndarray
    idle: np.ndarray
    members: np.ndarray | None = None
    periods: np.ndarray | None = None
    mixing: np.ndarray | None = None

    @property
    def staleness(self) -> np.ndarray:
        """Updates that took effect between the reading of the parameters and the writing of the gradient."""
        return np.arange(len(self.when)) - self.read


def rounds(times: np.ndarray, deaths: np.ndarray, release: Callable, **more) -> Updates:
    """All compute, then `release(step, ready)` says when each begins the next round, and whose work counted."""
    begin, when, steps = np.zeros(len(deaths)), [], len(times)
    began, ended, members = np.empty(times.shape), np.empty(times.shape), np.zeros(times.shape, bool)
    for step, seconds in enumerate(times):
        began[step], ready = begin, np.where(begin + seconds > deaths, inf, begin + seconds)
        begin, counted = release(step, ready)
        when.append(begin.max())
        _need(when[-1] < inf, f"step {step} waits for workers that are dead: {np.flatnonzero(ready == inf).tolist()}")
        members[step, counted] = True
        ended[step] = np.minimum(np.minimum(ready, begin), np.maximum(began[step], deaths))
    idle = 1 - (ended - began).sum(0) / when[-1]
    return Updates(np.array(when), np.full(steps, -1), np.arange(steps), began, ended, idle, members, **more)


def local_sgd(workers: int, periods: Sequence[int], compute: Compute, *, backup: int = 0, exchange: float = 0.0,
              seed: int = 0) -> Updates:
    """Parameters are averaged, in `exchange` seconds, after each of the numbers of local steps in `periods`: [tau] * n,
    or post-local [1] * m + [tau] * n. An update is one average, which leaves out the `backup` slowest."""
    _need(min(periods, default=0) >= 1 and 0 <= backup < workers and 0 <= exchange < inf,
          f"local steps must be 1+, backup {backup} 0 to {workers - 1}, whole; exchange 0 or more s", backup, *periods)
    times, deaths = compute.table(workers, sum(periods), seed)

    def release(step, ready):
        counted = np.argsort(ready, kind="stable")[: workers - backup]
        return np.full(workers, ready[counted[-1]] + exchange), counted

    times = np.add.reduceat(times, np.cumsum(periods) - periods)
    return rounds(times, deaths, release, periods=np.array(periods))


def synchronous(workers: int, steps: int, compute: Compute, **options) -> Updates:
    """A barrier at every step; options as in `local_sgd`. The `backup` slowest gradients are dropped, and their workers
    begin anew with all others; `labkit.simulate.cost` has the `exchange` seconds of every all-reduce."""
    _need(True, f"steps {steps} must be whole, local steps of one each", steps)
    return local_sgd(workers, [1] * steps, compute, **options)


def asynchronous(workers: int, updates: int, compute: Compute, *, bound: float = inf,
                 link: Callable[[int], Link] = Link(), size: float = 0.0, shards: int = 1, seed: int = 0) -> Updates:
    """Each worker on its own pushes a gradient of `size` bytes to a server, which answers with the newest parameters.

    With a finite `bound` s it is stale-synchronous: a worker begins its gradient number c (from 0) when every living
    worker has pushed at least c - s. So it sees all gradients numbered below c - s, the numbers being computed at one
    time differ by s at most, and s = 0 is lockstep (others count pushed gradients: those differ by s + 1 at most).
    A server has one port in and one out, first come, first served (of those let go at one time, as by the real server,
    in the order of workers); each of the `shards` carries size / shards bytes. An answer holds what was applied when
    the worker got leave to go on, then queues. A death is noticed when the message on the port is through."""
    _need(bound >= 0 and bound in (inf, bound // 1) and 0 <= size < inf and min(shards, updates) >= 1,
          f"bound {bound} and size {size} must be 0 or more (size: finite, bound: whole or inf), shards {shards} and "
          f"updates {updates} whole and 1 or more", shards, updates)
    last, links = compute.table(workers, 1, seed)[1].tolist(), [link(worker) for worker in range(workers)]
    take = [chain.from_iterable(b.tolist() for b in compute.blocks(w, seed, 256)).__next__ for w in range(workers)]
    start, end, version, pushed = ([0] * workers for _ in range(4))
    port = [one.beta * size / shards for one in links]
    slowest, level, blocked = 0, Counter({0: workers}), defaultdict(list)
    done, alive, free_in, free_out, rows, heap = 0, workers, 0.0, 0.0, array("d"), []

    def begin(worker: int, second: float) -> None:
        version[worker], start[worker], end[worker] = done, second, second + take[worker]()
        dead = end[worker] > last[worker]
        event = (max(second, last[worker]), ~worker) if dead else (end[worker] + links[worker].alpha, worker)
        heapq.heappush(heap, event)

    def leave(worker: int) -> list[int]:
        """Who may go on now that `worker` has pushed, or, as ~worker, is dead."""
        nonlocal slowest
        clock, free = pushed[max(worker, ~worker)], []
        level[clock] -= 1
        if worker >= 0:
            pushed[worker] = clock = clock + 1
            level[clock] += 1
            (free if clock <= slowest + bound else blocked[clock]).append(worker)
        while not level[slowest]:
            slowest += 1
            free += blocked.pop(slowest + bound, ())
        return free

    for worker in range(workers):
        begin(worker, 0.0)
    while done < updates:
        now, who = heapq.heappop(heap)
        now = now if now > free_in else free_in
        if who >= 0:
            free_in = now = now + port[who]
            rows.extend((now, who, version[who], start[who], end[who]))
            start[who], done = inf, done + 1
        else:
            alive -= 1
            _need(alive > 0, f"all workers are dead after {done} of {updates} updates")
        for worker in sorted(leave(who)) if bound < inf else [who] * (who >= 0):
            free_out = (now if now > free_out else free_out) + port[worker]
            begin(worker, free_out + links[worker].alpha)
    when, workers_of, read, began, ended = np.array(rows).reshape(-1, 5).T.copy()
    busy = np.bincount(workers_of.astype(int), ended - began, workers)
    busy += np.maximum(np.minimum(np.minimum(end, when[-1]), last) - start, 0)
    return Updates(when, workers_of.astype(int), read.astype(int), began, ended, 1 - busy / when[-1])
