"""Pipeline schedules and their timetables: who computes what when, who waits, and what is held in memory meanwhile.

The network is cut into `stages * chunks` consecutive parts; part p lies on stage p mod `stages`. A schedule lists, for
each stage, its actions in order: F (forward), B (backward), or B as I (input gradient) and W (weight gradient), of one
microbatch each. A stage begins its next action when it is idle and the data is there. Derived by us, and counted.
*Not for* links that saturate: sends neither block nor slow each other down."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labkit.errors import RequestError, choose


class Action(NamedTuple):
    """One piece of work: `kind` F, B, I or W of a microbatch, on the stage's `chunk`-th part."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self):
        return f"{self.kind}{self.microbatch}" + (f" (chunk {self.chunk})" if self.chunk else "")


class Slot(NamedTuple):  # when a stage runs an action
    stage: int
    action: Action
    start: float
    end: float


Schedule = list[list[Action]]  # by stage


class Timetable(NamedTuple):
    """What `simulate` found: `slots` ordered by stage, then time; all times in the unit of its durations."""

    slots: list[Slot]
    stages: int
    chunks: int

    @property
    def makespan(self) -> float:
        return max(slot.end for slot in self.slots)

    @property
    def bubble(self) -> float:
        """Idle share of stages x makespan."""
        return 1 - sum(slot.end - slot.start for slot in self.slots) / (self.stages * self.makespan)

    def held(self, stage: int) -> list[tuple[float, float]]:
        """(time, microbatches whose activations it holds from then on): from F's start to B's or W's end.

        A chunk counts 1/chunks: the unit is what one microbatch leaves on a whole stage."""
        change = {0.0: 0}
        for _, (kind, *_), start, end in (slot for slot in self.slots if slot.stage == stage):
            time = start if kind == "F" else end
            change[time] = change.get(time, 0) + {"F": 1, "I": 0}.get(kind, -1)
        counts = np.cumsum([change[time] for time in sorted(change)]) / self.chunks
        return list(zip(sorted(change), counts.tolist(), strict=True))

    @property
    def peak(self) -> list[float]:
        """The most that each stage ever holds."""
        return [max(count for _, count in self.held(stage)) for stage in range(self.stages)]


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards: every stage holds every microbatch. *Not where memory is short.*"""
    return [[Action(kind, m) for kind in "FB" for m in range(microbatches)] for _ in range(stages)]


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B: a stage warms up, then alternates. GPipe's time, but stage s holds min(stages - s, microbatches)."""
    forwards, backwards = ([Action(kind, m) for m in range(microbatches)] for kind in "FB")
    both = [[a for pair in zip(forwards[warm:], backwards, strict=False) for a in pair] for warm in range(stages)]
    return [forwards[:warm] + both[warm] + backwards[len(both[warm]) // 2:] for warm in reversed(range(stages))]


def bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """The closed form (S-1)/(v M + S-1) of GPipe, 1F1B and interleaved 1F1B (v chunks): equal stages, free sends."""
    return (stages - 1) / (chunks * microbatches + stages - 1)


def simulate(schedule: Schedule, forward: float | Sequence[float] = 1.0, backward: float | Sequence[float] = 2.0,
             latency: float = 0.0, weight_share: float = 0.5) -> Timetable:
    """Run a schedule in virtual time.

    Args:
        forward, backward: duration of a microbatch on a whole stage (all its chunks), one number or one a stage.
        latency: from an action's end to its result's arrival at another stage. weight_share: W's share of `backward`.

    Raises:
        RequestError: an action is unknown, missing or repeated, or the stages wait for each other: which, and where."""
    chunks, stages = _check(schedule), len(schedule)
    f, b = (np.ravel(given).astype(float).tolist() * (1 if np.ndim(given) else stages) for given in (forward, backward))
    if not len(f) == len(b) == stages or min(f + b) <= 0 or latency < 0 or not 0 <= weight_share <= 1:
        raise RequestError("durations are positive, one or one a stage, latency is at least 0, weight_share in 0 .. 1; "
                           f"given: {forward}, {backward}, {latency}, {weight_share}")
    cost = {"F": (f, 1.0), "B": (b, 1.0), "I": (b, 1 - weight_share), "W": (b, weight_share)}
    ended: dict[tuple[str, int, int], float] = {}  # by (F, B or W; microbatch; part), where I counts as B
    rows: list[list[Slot]] = [[] for _ in range(stages)]
    while len(ended) < sum(map(len, schedule)):
        before, waits = len(ended), []
        for s, actions in enumerate(schedule):
            for action in actions[len(rows[s]):]:
                kind, m, part = action.kind.replace("I", "B"), action.microbatch, action.chunk * stages + s
                needs = {"F": [("F", m, part - 1)], "B": [("F", m, part), ("B", m, part + 1)], "W": [("B", m, part)]}
                needed = [need for need in needs[kind] if 0 <= need[2] < stages * chunks]
                if missing := [need for need in needed if need not in ended]:
                    need, (chunk, stage) = missing[0][:2], divmod(missing[0][2], stages)
                    first = next(a for a in schedule[stage] if (a.kind.replace("I", "B"), *a[1:]) == (*need, chunk))
                    waits.append(f"stage {s} waits at {action} for {first} of stage {stage}")
                    break
                ready = [ended[need] + latency * (need[2] % stages != s) for need in needed]
                start = max([0.0, *ready, *(slot.end for slot in rows[s][-1:])])
                ended[kind, m, part] = start + cost[action.kind][0][s] * cost[action.kind][1] / chunks
                rows[s].append(Slot(s, action, start, ended[kind, m, part]))
        if len(ended) == before:
            raise RequestError(f"deadlock in the pipeline schedule: {'; '.join(waits)}; do what is waited for earlier")
    return Timetable([slot for row in rows for slot in row], stages, chunks)


def _check(schedule: Schedule) -> int:
    """The number of chunks, if every stage does each action exactly once."""
    if not schedule or not all(schedule):
        raise RequestError("a pipeline schedule is a list of stages with at least one action each; one is empty")
    microbatches, chunks = (1 + max(action[n] for actions in schedule for action in actions) for n in (1, 2))
    for s, actions in enumerate(schedule):
        for n, action in enumerate(actions):
            choose(f"action of stage {s}", action.kind, "FBIW")
            if action in actions[:n]:
                raise RequestError(f"stage {s} does {action} twice; a stage does each action once")
        for m, chunk in np.ndindex(microbatches, chunks):
            kinds = "".join(kind for kind in "FBIW" if (kind, m, chunk) in actions)
            if kinds not in ("FB", "FIW"):
                raise RequestError(f"stage {s} does {kinds or 'nothing'} of microbatch {Action('', m, chunk)}; needed: "
                                   f"F and B, or F, I and W, of each of the {microbatches} microbatches")
    return chunks
