"""Parameter server: `serve` keeps the parameters; workers push gradients and pull parameters by a `ServerOptimizer`.

One rule for all modes: **what has arrived is applied, in the order of workers and as one step of the server's
optimizer, when somebody is let on.** A worker begins its gradient number c (from 0) once every other has pushed c - s
or more. So clocks (gradients begun) are at most s apart, and s = 0 is lockstep. After Li et al. (parameter server),
Dean et al. (Downpour) and Ho et al. (SSP). Workers are independent processes that know an address and an authkey. Of V
bytes of parameters (frozen ones stay out) each of S servers (`shard`) moves 2 (V / S + FRAME) per worker and step.

When not to use it: workers of equal speed; an all-reduce moves as many bytes per worker and has no bottleneck."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing import connection

import torch

from parallel import client as wire
from parallel.checks import both, place, serving
from parallel.kept import Kept, shard, sound
from parallel.report import Report, ServerError, Update

FRAME, Client, ServerOptimizer = wire.FRAME, wire.Client, wire.ServerOptimizer
__all__ = ["Client", "FRAME", "Report", "Server", "ServerError", "ServerOptimizer", "Update", "serve", "shard"]
STALLED = 5.0  # seconds within which a message that has begun must go on


@dataclass(eq=False)
class _Member:
    """A worker as the server sees it. It waits while it has a `row`; its `gradient` is there until it is applied."""

    since: float  # when it was let on
    pipe = row = gradient = base = None
    clock = read = steps = place = rate = 0


@dataclass
class Server:
    """The options of `serve`. `after` is called with it at every step: `steps` and `report()` tell how it stands."""

    parameters: list  # to start from, in the order in which the workers' optimizers hold them; frozen ones stay out
    optimizer: Callable  # called with copies of them, e.g. lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
    workers: int  # numbered from 0
    mode: str = "synchronous"  # mean; "ssp": sum, divided by the workers there are; "asynchronous": one by one
    bound: float = 0  # s of ssp
    backup: int = 0  # synchronous: a step counts all but so many gradients; what arrives later is dropped
    authkey: bytes | None = None  # None: that of multiprocessing, which children share
    timeout: float = 30.0  # seconds in which a worker has to connect, and to push again
    finite: bool = True  # a worker that sends NaN or infinity, or makes the server's so, has failed; see `Kept.step`
    aware: bool = False  # divide a gradient by its staleness
    compensate: float = 0.0  # lambda of delay compensation: g + lambda g g (w - w read)
    state: dict | None = None  # of a `Report`, to go on from
    after: Callable = lambda server: None

    def __post_init__(self):
        serving(self.mode, self.workers, self.bound, self.backup, self.compensate)
        both(self.timeout, self.authkey)
        self.kept = Kept(self.parameters, self.optimizer, self.state, self.finite)
        self.seen, self.began = Report(updates=[], gone=[], refused=[], received=0, sent=0, gap=0), time.monotonic()
        self.members, self.met = {worker: _Member(self.began) for worker in range(self.workers)}, deque()
        self.bound = {"synchronous": 0, "ssp": self.bound, "asynchronous": inf}[self.mode]

    @property
    def steps(self) -> int:
        return self.kept.steps

    def report(self) -> Report:
        self.seen.parameters, self.seen.state = [p.detach().clone() for p in self.kept.parameters], self.kept.state()
        return self.seen

    def run(self, listener: socket.socket, heard) -> Report:
        """`heard` is the end of a pipe at which `bell` is heard, rung when somebody new is in `met`."""
        while self.members:
            pipes = {member.pipe: worker for worker, member in self.members.items() if member.pipe}
            due = min(member.since for member in self.members.values() if not member.row) + self.timeout
            ready = connection.wait([listener, heard, *pipes], max(0.0, due - time.monotonic()))
            for source in sorted(ready, key=lambda source: source not in pipes):  # first whom we know
                if source is listener:
                    with suppress(OSError):  # gone again
                        threading.Thread(target=self._meet, args=(listener.accept()[0], self.bell), daemon=True).start()
                elif source is heard:
                    heard.recv_bytes()
                    self._admit(*self.met.popleft())
                elif pipes[source] in self.members:
                    self._receive(pipes[source], self.members[pipes[source]])
            for worker, member in list(self.members.items()):
                late = not member.row and time.monotonic() >= member.since + self.timeout
                if late and not (member.pipe and member.pipe.poll()):
                    self._lose(worker, f"{'sent nothing' if member.pipe else 'did not connect'} for {self.timeout:g} s")
        return self.report()

    def close(self, why: str = "it has ended") -> None:
        for pipe in [member.pipe for member in self.members.values()] + [pipe for pipe, _ in self.met]:
            if pipe:
                wire.dismiss(pipe, wire.REFUSED, why)
        self.members, self.bell = {}, None

    def _meet(self, sock: socket.socket, bell) -> None:
        """Authenticate; in a thread of its own, as a stranger may be silent and must not hold up those at work."""
        self.met.append(found := wire.meet(sock, self.authkey, STALLED))
        try:
            bell.send_bytes(b"")
        except OSError:  # the server has ended
            if found[0]:
                found[0].close()

    def _admit(self, pipe, first) -> None:
        if pipe is None:
            return self.seen.refused.append(first)
        kind, worker, words, _, dtype = first
        member, flat = self.members.get(worker), self.kept.flat()
        theirs, ours = f"{words} words of {dtype.decode(errors='replace')}", f"{len(flat)} words of {flat.dtype}"
        wrong = (f"a first message is of kind {kind}, not {wire.JOIN}: to join" if kind != wire.JOIN else
                 f"there are workers 0 to {self.workers - 1}, and no {worker}" if not 0 <= worker < self.workers else
                 f"worker {worker} was here before and is gone" if member is None else
                 f"worker {worker} is connected already; give each its own number" if member.pipe else
                 f"the worker has {theirs}, the server {ours}; build the same model" if theirs != ours else "")
        if wrong:
            self.seen.refused.append(wrong)
            return wire.dismiss(pipe, wire.REFUSED, wrong)
        member.pipe, member.clock = pipe, -1
        self._let_on({worker: member})

    def _receive(self, worker: int, member: _Member) -> None:
        dtype, size = self.kept.dtype, self.kept.nbytes
        try:
            kind, _, _, member.rate, body = wire.receive(member.pipe, max(size, 1000))
        except wire.BROKEN as error:
            cut = isinstance(error, EOFError | ConnectionError)
            what = "was cut off: killed, or it ended" if cut else "sent a message that cannot be read, or half of one"
            return self._lose(worker, f"{what} ({type(error).__name__} {error})")
        if kind == wire.LEAVE and not body:
            self.members.pop(worker).pipe.close()
            return self._go_on()
        if kind == wire.LEAVE:
            return self._lose(worker, f"stopped: {body.decode(errors='replace')}")
        most = torch.finfo(dtype).max / 1000  # a step may divide by what is left of a bias correction
        wrong = (f"a message of kind {kind}, where a gradient ({wire.GRADIENT}) may come" if kind != wire.GRADIENT else
                 "a second gradient before the answer to its first" if member.row else
                 f"a gradient of {len(body)} bytes; the parameters have {size}" if len(body) != size else
                 "" if 0 <= member.rate <= most else f"the rate {member.rate:g}; allowed: 0 to {most:g}")
        if wrong:
            return self._lose(worker, f"broke the protocol: it sent {wrong}")
        gradient = torch.frombuffer(body, dtype=dtype)
        if self.finite and not sound(gradient):
            return self._lose(worker, f"sent NaN or infinity as its gradient {member.clock}")
        self.seen.received, member.place = self.seen.received + FRAME + len(body), len(self.seen.updates)
        member.row = Update(worker, member.clock, member.read, time.monotonic() - self.began, None)
        self.seen.updates.append(member.row)
        member.gradient = None if self.backup and member.steps < self.steps else gradient  # late ones are dropped
        self._go_on()

    def _lose(self, worker: int, why: str) -> None:
        """Go on without this worker, or stop where the mode cannot."""
        member, text = self.members.pop(worker, None), f"worker {worker} of {self.workers} {why}"
        if member is None:
            return
        self.seen.gone.append((worker, time.monotonic() - self.began, why))
        if member.pipe:
            wire.dismiss(member.pipe, wire.REFUSED, text)
        if len(self.seen.gone) > (self.backup if self.mode == "synchronous" else self.workers - 1):
            self.close(text)
            error = ServerError(f"{text}; the {self.mode} server stopped after {self.steps} steps; "
                                "serve(..., state=error.report.state) goes on from there")
            error.report = self.report()
            raise error
        self._go_on()

    def _slowest(self) -> int:
        """How many gradients the slowest worker has pushed, not counting the `backup` slowest."""
        pushed = sorted(member.clock + bool(member.row) for member in self.members.values())
        return pushed[min(max(0, self.backup - len(self.seen.gone)), len(pushed) - 1)]

    def _go_on(self) -> None:
        """Let on whom the bound allows; before that, apply what has arrived."""
        waiting = {worker: member for worker, member in sorted(self.members.items()) if member.row}
        if not waiting:
            return
        reach = self._slowest() + self.bound
        on = {worker: member for worker, member in waiting.items() if member.clock < reach}
        group = [member for member in waiting.values() if member.gradient is not None]
        only_late = self.backup and all(member.gradient is None for member in on.values())
        if on and group and not only_late and not self._apply(group):
            size, worker = max((member.gradient.abs().max().item(), member.row.worker) for member in group)
            return self._lose(worker, f"sent the largest gradient, {size:g}, of a step at rate {group[0].rate:g} that "
                              "led to NaN or infinity and was undone")
        self._let_on(on)

    def _apply(self, group: list[_Member]) -> bool:
        """One step; False if it was undone."""
        total = torch.zeros_like(flat := self.kept.flat())
        for member in group:
            gradient = member.gradient
            if self.compensate:
                gradient = gradient + self.compensate * gradient**2 * (flat - member.base)
            total += gradient / max(1, self.steps - member.steps) if self.aware else gradient
        total /= {"synchronous": len(group), "ssp": len(self.members), "asynchronous": 1}[self.mode]
        steps = self.steps
        if not self.kept.step(total, group[0].rate):
            return False
        for member in group:
            self.seen.updates[member.place] = member.row._replace(staleness=steps - member.steps)
            member.gradient = None
        self.after(self)
        return True

    def _let_on(self, members: dict[int, _Member]) -> None:
        flat = self.kept.flat()
        newest = max(member.clock for member in self.members.values()) if self.backup else 0  # a late one skips steps
        for member in members.values():
            member.clock, member.row, member.since = max(member.clock + 1, newest), None, time.monotonic()
            member.read, member.steps, member.base = len(self.seen.updates), self.steps, flat
        clocks = [member.clock for member in self.members.values()]
        self.seen.gap = max(self.seen.gap, max(clocks) - min(clocks))
        rate, lost = self.kept.rate, {}
        for worker, member in members.items():
            try:
                self.seen.sent += wire.send(member.pipe, wire.PARAMETERS, flat, words=self.steps, rate=rate)
            except OSError as error:
                member.pipe.close()  # no last word: it would be read as the rest of the parameters
                member.pipe, lost[worker] = None, f"did not take its parameters ({error})"
        for worker, why in lost.items():  # last, as the others may now make a step
            self._lose(worker, why)


def serve(parameters, optimizer: Callable, workers: int, address, **options) -> Report:
    """Serve at `address` (a path for a socket file, or host and port) until every worker has left; blocks.

    A worker that fails is `gone`: an asynchronous and an ssp server go on without it, a synchronous one while no more
    than `backup` are gone. The rate of a step is what its first worker's optimizer says. `options`: see `Server`.

    Raises:
        RequestError: an option or the address cannot be used. ServerError: too few workers are left."""
    address, server = place(address), Server(parameters, optimizer, workers, **options)
    with wire.listening(address, workers) as listener:
        try:
            heard, server.bell = connection.Pipe(duplex=False)
            with heard:
                return server.run(listener, heard)
        finally:
            server.close()
            if not isinstance(address, tuple):
                with suppress(OSError):
                    os.unlink(address)
