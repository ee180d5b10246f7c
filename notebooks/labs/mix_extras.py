"""More ways to mix replicas: block momentum, elastic averaging without waiting (a centre at a parameter server), and
pairwise gossip without waiting (replicas in shared memory). Each is a `labkit.training.wrapper.Wrapper`."""

import weakref
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed

from labkit.errors import RequestError
from labkit.training.averaging import LocalSGD
from labkit.training.wrapper import Wrapper, assign, check_finite, check_number, flatten, world


class BlockMomentum(LocalSGD):
    """Local SGD whose mean is not the next start but a gradient of a kind: with d = mean w_i - start, v <- momentum v +
    rate d and W <- W + v; ranks start from W, or with `nesterov` from W + momentum v. After Chen and Huo (BMUF).

    Args:
        momentum: None is their 1 - 1 / P. 0 at rate 1 is local SGD.

    When not to use it: with few averages in the whole training; the block's momentum needs some to build up."""

    kept = ("steps", "block", "speed", "start")

    def __init__(self, inner, period: int = 8, momentum: float | None = None, rate: float = 1.0, nesterov: bool = False,
                 buffers=()):
        super().__init__(inner, period, buffers=buffers)
        self.momentum = 1 - 1 / world()[1] if momentum is None else momentum
        check_number("momentum", self.momentum, 0, whole=False)
        check_number("rate", rate, 0, whole=False)
        if not 0 <= self.momentum < 1 or not 0 < rate < float("inf"):
            raise RequestError(f"momentum {self.momentum} must be in [0, 1) and rate {rate} above 0")
        self.rate, self.nesterov, self.block, self.speed, self.start = rate, nesterov, None, None, None

    def before(self):
        if self.block is None:
            self.block = self.start = flatten(self.mixed)
            self.speed = torch.zeros_like(self.block)
        self.check_size(len(self.block))

    def after(self):
        super().after()
        if self.steps % self.period == 0:
            self.speed = self.momentum * self.speed + self.rate * (flatten(self.mixed) - self.start)
            self.block = self.block + self.speed
            self.start = self.block + self.momentum * self.speed if self.nesterov else self.block
            assign(self.mixed, self.start)


class Centre(torch.optim.Optimizer):
    """What the server of `AsynchronousElastic` does with what it gets: c <- c + rate (w - c)."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.lerp_(p.grad, group["lr"])


class AsynchronousElastic(Wrapper):
    """EASGD as Zhang et al. first give it: every `period` of its own steps a worker and the centre draw each other by
    alpha, one worker at a time, and nobody waits for another:
    `serve(parameters, Centre, workers, address, mode="asynchronous")` and, on each worker,
    `AsynchronousElastic(optimizer, Client(address, worker), period, alpha)`.

    The worker sends w, the server moves c and answers with it; what c was before follows from the two. 2 n words each
    `period` steps. A worker that dies is dropped by the server and the others go on."""

    def __init__(self, inner, client, period: int = 8, alpha: float = 0.1, buffers=()):
        super().__init__(inner, buffers)
        check_number("period", period, 1)
        check_number("alpha", alpha, 0, whole=False)
        if not 0 < alpha < 1:
            raise RequestError(f"alpha {alpha} must be between 0 and 1")
        start = flatten(self.mixed)
        self.client, self.period, self.alpha, self.size = client, period, alpha, len(start)
        assign(self.mixed, client.join(start.cpu()))

    def __getstate__(self):
        raise RequestError("this worker's client of the server cannot be copied; make another of the copied optimizer")

    def before(self):
        if self.steps and self.steps % self.period == 0:
            self.check_size(self.size)
            here = flatten(self.mixed)
            moved = self.client.exchange(here.clone().cpu(), self.alpha).to(here)
            assign(self.mixed, here.lerp((moved - self.alpha * here) / (1 - self.alpha), self.alpha))


class Pairwise(Wrapper):
    """AD-PSGD (Lian et al.): before each step a rank draws a partner and both take the mean of their parameters, while
    the partner goes on computing. The replicas are the rows of `table` [P, n], one memory that
    `run_ranks(..., shared={"table": ...})` gives to all; the parameters here become views of row `rank`. Files in
    `folder` are the locks (POSIX): two rows are changed together or not at all. All ranks make theirs together; once
    everyone holds them open, their names are taken away again, and the locks go when the ranks end.

    A gradient may have been computed while its parameters changed: that is the method. When not to use it: with frozen
    or non-float32 parameters unless `table` has their dtype; across machines."""

    def __init__(self, inner, table: Tensor, folder: str | Path, seed: int = 0):
        super().__init__(inner)
        self.rank, size = world()
        self.table, self.draw, self.met = table, np.random.default_rng([seed, self.rank]), 0
        if table.shape != (size, count := sum(p.numel() for p in self.parameters)):
            raise RequestError(f"table is {tuple(table.shape)}; for {size} ranks of {count} parameters make it "
                               f"({size}, {count})")
        names = [Path(folder) / f"{rank}.lock" for rank in range(size)]
        self.locks = [open(name, "w") for name in names]  # noqa: SIM115 - held open
        weakref.finalize(self, _close, self.locks)
        if size > 1:
            distributed.barrier()
        names[self.rank].unlink()
        row = table[self.rank].copy_(flatten(self.parameters))
        for p, part in zip(self.parameters, row.split([p.numel() for p in self.parameters]), strict=True):
            p.data = part.view_as(p)

    def __getstate__(self):
        raise RequestError("a row of the shared table and its locks cannot be copied; make another on each rank")

    def _hold(self, ranks, how: str) -> None:
        import fcntl

        for rank in sorted(ranks):  # always in this order, so that no two wait for each other
            fcntl.flock(self.locks[rank], fcntl.LOCK_EX if how == "take" else fcntl.LOCK_UN)

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        self.check_size(self.table.shape[1])
        check_finite(self.table[self.rank], "parameters")
        others = [rank for rank in range(len(self.table)) if rank != self.rank]
        pair = {self.rank, int(self.draw.choice(others))} if others else {self.rank}
        self._hold(pair, "take")
        with torch.no_grad():
            self.table[list(pair)] = self.table[list(pair)].mean(0)
            self.inner.step()
        self._hold(pair, "leave")
        self.steps, self.met = self.steps + 1, self.met + len(pair) - 1
        return loss


def _close(files) -> None:
    for file in files:
        file.close()


def pairwise_rate(size: int) -> float:
    """By how much one meeting of a random pair of P ranks multiplies the squared disagreement, on average: 1 - 1/(P-1).
    Each of the P (P - 1) / 2 pairs takes away half of (w_i - w_j)^2."""
    return 1 - 1 / (size - 1) if size > 1 else 0.0
