"""What a message-passing program did, and how long that takes in a model of messages.

Time is virtual. Each rank has one port out and one port in (single-ported, full duplex). A message of `w` words takes
`alpha + beta w` seconds, from when it is sent, its receiver waits for it and its sender's port out is free. A **round**
is one tick of this clock at alpha = 1, beta = 0: in one round a rank sends at most one message and receives at most
one. `Trace.rounds` is the last tick, the latencies on the critical path; `Trace.words` is the same clock at alpha = 0,
beta = 1. Adding up (`comm.add`) takes `gamma` per word, nothing in either count."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from labkit.errors import WorkError


class Message(NamedTuple):
    """From rank `source` to `dest`, carried in `round` (from 1); `data` is a copy of its `words` words."""

    source: int
    dest: int
    words: int
    round: int
    data: np.ndarray


class TraceError(WorkError):
    """A program went wrong at `rank` in `round`; `trace` is what had happened until then.

    `kind` is deadlock, call (a message to no rank or itself, of a wrong length or type), unreceived, endless or raised;
    what the program raised is the `__cause__`."""

    def __init__(self, kind: str, text: str, rank: int, trace: "Trace", cause: BaseException | None = None):
        self.kind, self.rank, self.trace, self.round = kind, rank, trace, int(trace.replay(1, 0)[1][rank]) + 1
        super().__init__(f"rank {rank}, round {self.round}: {text}")
        self.__cause__ = cause


@dataclass
class Trace:
    """What `size` ranks did: their `results`, every (source, dest, data) sent, and the steps of each in order."""

    size: int
    results: list
    sent: list[tuple[int, int, np.ndarray]]
    steps: list[list[tuple[str, int]]]

    @cached_property
    def messages(self) -> list[Message]:
        """In the order of sending."""
        spans = self.replay(1, 0)[0]
        return [Message(a, b, len(data), int(spans[i][0]) + 1, data) for i, (a, b, data) in enumerate(self.sent)]

    @property
    def rounds(self) -> int:
        return int(self.seconds(1, 0))

    @property
    def words(self) -> int:
        """Words on the critical path, not the sum over all messages."""
        return int(self.seconds(0, 1))

    def seconds(self, alpha: float, beta: float, gamma: float = 0, link: Callable | None = None) -> float:
        """When the last rank ends: `alpha` s per message, `beta` s per word sent, `gamma` s per word added.

        `link(source, dest) -> (alpha, beta)` takes their place where links differ, as inside and between machines."""
        spans, clock = self.replay(alpha, beta, gamma, link)
        return max([*clock, *(end for _, end in spans)])

    def replay(self, alpha: float, beta: float, gamma: float = 0, link: Callable | None = None) -> tuple[list, list]:
        """(start, end) of every message, in the order of `sent`, and the clock of every rank at its end."""
        clock, port, position = [0] * self.size, [0] * self.size, [0] * self.size
        offered, awaited, spans, heap = {}, {}, {}, []

        def match(index):
            if index in offered and index in awaited:
                start = max(offered[index], awaited[index], port[self.sent[index][0]])
                heapq.heappush(heap, (start, index))

        def advance(rank):
            while position[rank] < len(self.steps[rank]):
                kind, value = self.steps[rank][position[rank]]
                if kind == "add":
                    clock[rank] += gamma * value
                elif kind == "send":
                    offered[value] = clock[rank]
                    match(value)
                elif value in spans:
                    clock[rank] = max(clock[rank], spans[value][1])
                else:
                    if rank == self.sent[value][1] and value not in awaited:
                        awaited[value] = clock[rank]
                        match(value)
                    return
                position[rank] += 1

        for rank in range(self.size):
            advance(rank)
        while heap:
            start, index = heapq.heappop(heap)
            source, dest, data = self.sent[index]
            if port[source] > start:  # another message took the port meanwhile
                match(index)
                continue
            latency, per_word = link(source, dest) if link else (alpha, beta)
            port[source] = start + latency + per_word * len(data)
            spans[index] = start, port[source]
            advance(source)
            advance(dest)
        return [spans.get(i, (offered.get(i, 0), offered.get(i, 0))) for i in range(len(self.sent))], clock
