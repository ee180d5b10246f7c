"""A planner: what a partitioning of a network over P devices costs per training step, in seconds, words and bytes.

The network is a chain of units, each a layer with weights and the weightless ones behind it. A placement says for each
unit how the devices of its stage share it, by a letter:

| letter | split by | a device takes | and gives | words that a device sends for it, D devices, n samples |
|-|-|-|-|-|
| d data | samples | its samples | its samples | once a step, ring all-reduce of the gradients: 2 w (D-1)/D |
| s spatial | rows of the image | its rows | its rows | the same, and halos: 2 n C W (K - stride), half if D = 2 |
| c columns | output channels | everything | its channels | gather inputs, reduce-scatter gradients: 2 n in (D-1)/D |
| r rows | input channels | its channels | what is asked for | reduce-scatter, gather gradients: 2 n out (D-1)/D |

Where one unit gives another layout than the next one takes, an all-to-all moves it: n words (D-1)/D^2, there and back.
The data of the first unit come from the loader in the layout that is needed, and need no gradient. Units may be cut
into stages (a pipeline) that pass activations on, and the batch into M microbatches. Sharded: a device keeps 1/D of
the weights of `d` and `s` units and gathers them, layer by layer, for each pass of each microbatch: 3 w (D-1)/D.

Forward and backward are 6 FLOPs for each multiply-add. Nothing overlaps, links are private and full duplex.
*Not a measurement*: caches, kernels that are slow on small pieces, stragglers and shared links are not in it, and in a
network with branches only the chain of layers is. The search over placements is in `labs.planner_search`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from labkit.errors import RequestError, choose
from labs.planner_types import GIVES, LETTERS, NEEDS, Machine, Placement, Plan, Stage, Unit


def share(unit: Unit, letter: str, samples: int, devices: int) -> float:
    """The part of a unit's work that its slowest device does: 1/D, or more where the pieces cannot be even.

    Raises:
        RequestError: there are fewer pieces than devices."""
    pieces = {"d": samples, "s": unit.rows, "c": unit.cout, "r": unit.cin}[letter]
    if pieces < devices:
        what = {"d": "samples", "s": "rows of an image", "c": "output channels", "r": "input channels"}[letter]
        raise RequestError(
            f"{unit.name} by {LETTERS[letter]}: {pieces} {what} for {devices} devices; choose another "
            "letter, or fewer devices for its stage"
        )
    return math.ceil(pieces / devices) / pieces


def moved(before: str | None, letter: str, unit: Unit, samples: int, devices: int) -> tuple[float, int]:
    """(words, messages) that a device sends to bring the inputs of a unit, and later their gradients, into place.

    `before` is the letter of the unit before; None: the first unit, whose data the loader brings."""
    if before is None or devices == 1:
        return 0.0, 0
    words, messages = 2 * samples * unit.inputs * (devices - 1) / devices, 2 * (devices - 1)
    if letter == "c":
        return words, messages
    return (0.0, 0) if before == "r" or GIVES[before] == NEEDS[letter] else (words / devices, messages)


def inside(unit: Unit, letter: str, samples: int, devices: int) -> tuple[float, int]:
    """(words, messages) that a device sends within a unit for each microbatch: partial sums, or halos."""
    if letter == "r":
        return 2 * samples * unit.own * (devices - 1) / devices, 2 * (devices - 1)
    if letter == "s" and devices > 1:
        borders = min(devices - 1, 2)  # each side of a border sends half of what crosses it
        return borders * samples * unit.halo / 2, math.ceil(borders * unit.hops / 2)
    return 0.0, 0


class Piece(NamedTuple):
    """What one device does for one unit: of each microbatch seconds, words, messages and bytes kept; words at the end
    of the step; bytes of weights, gradients and optimizer state, and of what it gathers of them for a moment."""

    compute: float
    words: float
    messages: float
    end_words: float
    state: float
    kept: float
    gathered: float


def piece(unit: Unit, letter: str, samples: int, devices: int, machine: Machine, sharded: bool) -> Piece:
    """A unit under a letter, without what moves its inputs into place.

    Raises:
        RequestError: there are fewer pieces than devices."""
    part, every = share(unit, letter, samples, devices), (devices - 1) / devices
    words, messages = inside(unit, letter, samples, devices)
    kept = machine.word * samples * (unit.inputs * (1 if letter == "c" else part) + (unit.saved - unit.inputs) * part)
    end_words = gathered = 0.0
    split = devices
    if letter in "ds" and sharded:
        words, messages = words + 3 * unit.weights * every, messages + 3 * (devices - 1)
        gathered = 2 * machine.word * unit.weights if devices > 1 else 0.0
    elif letter in "ds":
        end_words, split = 2 * unit.weights * every, 1
    state = machine.word * (2 + machine.optimizer) * unit.weights / split
    return Piece(6 * unit.macs * samples * part / machine.flops, words, messages, end_words, state, kept, gathered)


def border(units: Sequence[Unit], letter: str, samples: int, devices: int, first: bool, last: bool):
    """(words, messages) that a device sends at the two ends of a stage, whose last unit has this letter."""
    words, messages = moved(letter, "d", replace(units[-1], inputs=units[-1].outputs), samples, devices)
    for crosses, size in ((not last, units[-1].outputs), (not first, units[0].inputs)):
        words, messages = words + crosses * samples * size / devices, messages + crosses
    return words, messages


def stage_cost(
    units: Sequence[Unit],
    letters: str,
    samples: int,
    devices: int,
    machine: Machine,
    *,
    micro: int = 1,
    sharded: bool = False,
    flying: int = 1,
    first: bool = True,
    last: bool = True,
) -> Stage:
    """The cost of one stage. `samples`: of a microbatch; `flying`: microbatches whose activations it holds at once;
    `first`, `last`: whether it is the network's. A stage receives and sends samples."""
    pieces = [piece(u, letter, samples, devices, machine, sharded) for u, letter in zip(units, letters, strict=True)]
    changes = [
        moved(before, letter, unit, samples, devices)
        for before, letter, unit in zip([None if first else "d", *letters], letters, units)
    ]
    some, many = border(units, letters[-1], samples, devices, first, last)
    by_unit = [micro * (p.words + c[0]) + p.end_words for p, c in zip(pieces, changes, strict=True)]
    by_unit[-1] += micro * some
    state, kept = sum(p.state for p in pieces), sum(p.kept for p in pieces)
    reduced = devices > 1 and not sharded and any(letter in "ds" for letter in letters)
    return Stage(
        compute=sum(p.compute for p in pieces),
        even=sum(6 * unit.macs * samples for unit in units) / devices / machine.flops,
        words=some + sum(p.words + c[0] for p, c in zip(pieces, changes)),
        messages=many + sum(p.messages + c[1] for p, c in zip(pieces, changes)),
        end_words=sum(p.end_words for p in pieces),
        end_messages=2 * (devices - 1) * reduced,  # one all-reduce for all of its units
        memory=state + max(p.gathered for p in pieces) + flying * kept,
        by_unit=tuple(by_unit),
    )


def total(stages: Sequence[Stage], placement: Placement, devices: int, machine: Machine) -> Plan:
    """The plan of stages that work as a pipeline: the first microbatch passes through all of them, every further one
    adds the time of the slowest; then the longest all-reduce. A stage holds min(S - s, M) microbatches (1F1B)."""
    micro = placement.micro
    slots = [stage.compute + machine.seconds(stage.words, stage.messages) for stage in stages]
    ends = [machine.seconds(stage.end_words, stage.end_messages) for stage in stages]
    seconds = sum(slots) + (micro - 1) * max(slots) + max(ends)
    compute = micro * sum(stage.even for stage in stages) / len(stages)
    talk = [micro * machine.seconds(stage.words, stage.messages) for stage in stages]
    communication = talk[slots.index(max(slots))] + max(ends)
    words = max(micro * stage.words + stage.end_words for stage in stages)
    messages = max(micro * stage.messages + stage.end_messages for stage in stages)
    memory = tuple(stage.memory for stage in stages)
    return Plan(
        placement,
        seconds,
        compute,
        communication,
        max(0.0, seconds - compute - communication),
        words,
        messages,
        memory,
        max(memory) <= machine.memory,
        sum((stage.by_unit for stage in stages), ()),
    )


def score(units: Sequence[Unit], machine: Machine, devices: int, batch: int, placement: Placement) -> Plan:
    """What a placement costs.

    Raises:
        RequestError: letters, stages, devices and microbatches do not fit the network or each other."""
    count, letters = len(placement.stages), "".join(placement.stages)
    for letter in letters:
        choose("letter", letter, LETTERS)
    if len(letters) != len(units):
        raise RequestError(f"{len(letters)} letters for {len(units)} layers; give one for each")
    if not all(placement.stages) or devices % count:
        raise RequestError(f"{count} stages on {devices} devices; each needs a layer, and all equally many devices")
    if placement.micro < 1 or batch % placement.micro:
        raise RequestError(f"{placement.micro} microbatches of a batch of {batch}; choose a divisor of it")
    stages, at, many = [], 0, devices // count
    for s, text in enumerate(placement.stages):
        stages.append(
            stage_cost(
                units[at : at + len(text)],
                text,
                batch // placement.micro,
                many,
                machine,
                micro=placement.micro,
                sharded=placement.sharded,
                flying=min(count - s, placement.micro),
                first=s == 0,
                last=s == count - 1,
            )
        )
        at += len(text)
    return total(stages, placement, devices, machine)
