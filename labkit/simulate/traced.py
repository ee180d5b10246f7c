"""Message-passing programs on virtual ranks: run, traced (`labkit.simulate.trace`), and stopped when they go wrong.

Every rank is a thread of this process and exactly one runs at a time: it hands on when it waits for a message, so a
program takes the same course each time. `send` copies and never waits; `recv` waits; `sendrecv` does both at once.

When not to use it: for the speed of this machine (see `labkit.training.collectives`), or for code you do not trust: a
rank stuck in one call of C (numpy) is left behind and ends when that call returns."""

import ctypes
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from labkit.errors import RequestError
from labkit.paths import labs, root
from labkit.simulate.trace import Message, Trace, TraceError

__all__ = ["Comm", "Message", "Trace", "TraceError", "run"]


class _Stopped(BaseException):
    """Unwinds a rank of a run that is over; no Exception, so that `except Exception` lets it pass."""


class Comm:
    """What one rank sees of the others. Arrays are one-dimensional numpy arrays."""

    def __init__(self, world: "_World", rank: int):
        self._world, self.rank, self.size = world, rank, world.size

    def send(self, array: np.ndarray, dest: int) -> int:
        """Copy `array` and send it; does not wait. Returns the message's number."""
        world, index = self._world, len(self._world.sent)
        self._check(dest, "send to")
        if not isinstance(array, np.ndarray) or array.ndim != 1:
            given = f"an array of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise RequestError(f"can send a one-dimensional numpy array only, not {given}")
        world.sent.append((self.rank, int(dest), array.copy()))
        world.steps[self.rank].append(("send", index))
        world.boxes[self.rank, dest].append(index)
        if world.waiting.get(dest) == self.rank:
            del world.waiting[dest]
            world.ready.append(dest)
        return index

    def recv(self, count: int, source: int, into: np.ndarray | None = None) -> np.ndarray:
        """The next message of `source`, which has to be `count` words long; in `into`, where given."""
        world, box = self._world, self._world.boxes[source, self.rank]
        self._check(source, "receive from")
        if not box:
            world.waiting[self.rank] = source
            world.hand_on()
            world.wait(self.rank)
        index = box.popleft()
        data = world.sent[index][2]
        if len(data) != count or (into is not None and len(into) != count):
            room = "" if into is None else f" (in room for {len(into)})"
            raise RequestError(f"expects {count} words{room} from rank {source}, which sent {len(data)}")
        world.steps[self.rank].append(("until", index))
        if into is None:
            return data.copy()
        into[:] = data
        return into

    def sendrecv(self, array, dest: int, count: int, source: int, into=None) -> np.ndarray:
        """Send to `dest` and receive from `source` in the same round; over when both are."""
        index = self.send(array, dest)
        got = self.recv(count, source, into)
        self._world.steps[self.rank].append(("until", index))
        return got

    def add(self, into: np.ndarray, part: np.ndarray) -> np.ndarray:
        """`into += part`, counted as `len(part)` words added."""
        self._world.steps[self.rank].append(("add", len(part)))
        into += part
        return into

    def empty(self, count: int, like: np.ndarray | None = None) -> np.ndarray:
        """Room for `count` words of the kind of `like`; what is never written shows as nan (0 for integers)."""
        kind = np.dtype(float) if like is None else like.dtype
        return np.full(count, np.nan if kind.kind == "f" else 0, kind)

    spare = empty  # on real ranks it is the same memory each time

    def finish(self) -> None:
        """Until what was sent may be overwritten: at once here, where `send` copies."""

    def _check(self, other, what: str) -> None:
        if self._world.stopped:
            raise _Stopped
        if not isinstance(other, int | np.integer) or not 0 <= other < self.size:
            raise RequestError(f"cannot {what} rank {other}: there are ranks 0 to {self.size - 1}")
        if other == self.rank:
            raise RequestError(f"cannot {what} itself")


class _World:
    """The threads of one run, their mail, and the baton: a rank runs once its lock has been released to it."""

    def __init__(self, fn, size: int, args, kwargs):
        self.call, self.size = lambda rank: fn(Comm(self, rank), *args, **kwargs), size
        self.sent, self.steps, self.results = [], [[] for _ in range(size)], [None] * size
        self.boxes, self.waiting, self.ready, self.running = defaultdict(deque), {}, deque(range(size)), 0
        self.stopped, self.over, self.failure = False, threading.Event(), None
        self.batons = [threading.Lock() for _ in range(size)]
        self.threads = [threading.Thread(target=self.live, args=(rank,), daemon=True) for rank in range(size)]

    def live(self, rank: int) -> None:
        with suppress(_Stopped):  # it may arrive at any line, of the handler too
            try:
                self.wait(rank)
                self.results[rank] = self.call(rank)
                self.hand_on()
            except BaseException as error:  # SystemExit too: the run ends, whatever a rank does
                if not self.stopped:
                    self.failure = rank, error
                    self.over.set()

    def wait(self, rank: int) -> None:
        self.batons[rank].acquire()
        if self.stopped:
            raise _Stopped

    def hand_on(self) -> None:
        if not self.ready:
            self.over.set()  # all have finished, or all that have not wait
        elif not self.stopped:
            self.running = self.ready.popleft()
            self.batons[self.running].release()

    def start(self) -> None:
        for thread, baton in zip(self.threads, self.batons, strict=True):
            baton.acquire()
            thread.start()
        self.hand_on()

    def stop(self) -> None:
        """Unwind every thread, one in an endless loop too; give up on one that does not come back from C."""
        self.stopped = True
        for baton in [baton for baton in self.batons if baton.locked()]:
            baton.release()
        for _ in range(20):
            for thread in filter(threading.Thread.is_alive, self.threads):
                thread.join(0.005)
                if thread.is_alive():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))

    def trace(self) -> Trace:
        steps = [list(steps) for steps in self.steps]  # first: a rank may still be sending
        return Trace(self.size, self.results, self.sent[: sum(k == "send" for s in steps for k, _ in s)], steps)

    def verdict(self, limit: float) -> TraceError | None:
        """What is wrong with the run that has ended, or whose time is up."""
        trace, waiting = self.trace(), sorted(self.waiting.items())
        unread = sorted(index for box in list(self.boxes.values()) for index in list(box))
        if self.failure:
            rank, why = self.failure
            kind, name = ("call", "") if isinstance(why, RequestError) else ("raised", f"{type(why).__name__}: ")
            return TraceError(kind, f"{name}{why}{_line(traceback.extract_tb(why.__traceback__))}", rank, trace, why)
        if not self.over.is_set():
            text = f"still running after {limit:g} s{self.line(self.running)}; is there a loop without an end?"
            return TraceError("endless", text, self.running, trace)
        if waiting:
            clock, waits = trace.replay(1, 0)[1], []
            for rank, source in waiting:
                others = [str(trace.sent[index][0]) for index in unread if trace.sent[index][1] == rank]
                note = "" if source in self.waiting else ", which has finished"
                note += f" (unread: a message of rank {others[0]})" if others else ""
                waits.append(f"rank {rank} in round {clock[rank] + 1} for rank {source}{note}")
            text = f"waits for ever{self.line(waiting[0][0])}; no rank can go on: {'; '.join(waits[:8])}"
            return TraceError("deadlock", text + "; ..." * (len(waits) > 8), waiting[0][0], trace)
        if unread:
            message = trace.messages[unread[0]]
            text = f"its {message.words} words to rank {message.dest} of round {message.round} were never received"
            return TraceError("unreceived", text, message.source, trace)
        return None

    def line(self, rank: int) -> str:
        return _line(traceback.extract_stack(sys._current_frames().get(self.threads[rank].ident)))


def _line(stack: traceback.StackSummary) -> str:
    """Where the program's own code is in a stack: `` at line 7 (`x = y`)``, not the library's that it called."""
    own = [frame for frame in stack if frame.filename != __file__ and "site-packages" not in frame.filename]
    library = str(root() / "labkit"), str(labs()), threading.__file__.removesuffix("threading.py")
    own = [frame for frame in own if not frame.filename.startswith(library)] or own
    return f" at line {own[-1].lineno} (`{own[-1].line}`)" if own else ""


def run(fn: Callable, size: int, *args, limit: float = 1.0, **kwargs) -> Trace:
    """Call `fn(comm, *args, **kwargs)` on `size` virtual ranks; `size` 1 is allowed.

    `limit` is in seconds of this process's processor time, or four times as many by the clock.

    Raises:
        TraceError: the program deadlocks, raises, misuses `comm`, does not end, or leaves a message unreceived.
        RequestError: the size is no positive whole number."""
    if not isinstance(size, int | np.integer) or size < 1:
        raise RequestError(f"size is {size!r}; it has to be a whole number of ranks, at least 1")
    world, wall, clock = _World(fn, int(size), args, kwargs), time.monotonic(), time.process_time()
    deepest = sys.getrecursionlimit()
    try:
        world.start()
        while not world.over.wait(0.02):
            if time.process_time() - clock > limit or time.monotonic() - wall > 4 * limit:
                break
        wrong = world.verdict(limit)
    finally:
        world.stop()
        sys.setrecursionlimit(deepest)  # a program may have changed it
    if wrong:
        raise wrong
    return world.trace()
