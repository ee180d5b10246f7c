"""The best placements of a network by the cost model of `labs.planner`.

- `letters_for`: one stage, dynamic programming over the letters of all units: a unit's cost depends on its letter and
  on that of the unit before.
- `stages_for`: a pipeline with one device a stage, the best cut.
- `optimum`: stages, letters, microbatches and sharding together under the memory cap, by trying everything; for
  networks of about eight units (4^8 texts of letters).
- `schemes`: the partitionings that have a name, side by side."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from labkit.errors import RequestError, WorkError
from labs.planner import Machine, Placement, Plan, Unit, border, moved, piece, score

SCHEMES = ("data", "sharded", "model", "spatial", "pipeline", "hybrid")
MICRO = (1, 2, 4, 8, 16, 32, 64)  # microbatches that are tried, where they divide the batch


def letters_for(units: Sequence[Unit], machine: Machine, devices: int, batch: int, allowed: str) -> Plan | None:
    """The fastest placement in one stage with `allowed` letters, whatever memory it needs; None if none is possible.

    The start of the one all-reduce is shared by all units that need it. So that the rest stays a sum over units, the
    best placement of all is compared with the best one without such units."""
    found = []
    for some in {allowed, "".join(letter for letter in allowed if letter in "cr")} - {""}:
        best = {None: (0.0, "")}  # by the letter of the unit before: seconds and letters so far
        for unit in units:
            after = {}
            for letter in some:
                try:
                    alone = piece(unit, letter, batch, devices, machine, False)
                except RequestError:
                    continue
                cost = alone.compute + machine.seconds(alone.words + alone.end_words, alone.messages)
                after[letter] = min(
                    (seconds + cost + machine.seconds(*moved(before, letter, unit, batch, devices)), letters + letter)
                    for before, (seconds, letters) in best.items()
                )
            best = after
            if not best:
                break
        ends = [
            (seconds + machine.seconds(*border(units, letter, batch, devices, True, True)), letters)
            for letter, (seconds, letters) in best.items()
        ]
        if ends:
            found.append(score(units, machine, devices, batch, Placement((min(ends)[1],))))
    return min(found, key=lambda plan: plan.seconds, default=None)


def stages_for(units: Sequence[Unit], machine: Machine, stages: int, batch: int, micro: int) -> Plan | None:
    """The fastest pipeline with one device a stage, among those that fit if any does; None: fewer units than stages.

    Seconds are sum + (M - 1) x slowest. Under a bound on the slowest the smallest sum is a shortest path; tried are the
    bounds from the smallest possible one to where even the smallest sum of all would be too slow."""
    if len(units) < stages:
        return None
    pieces = [piece(unit, "d", batch // micro, 1, machine, False) for unit in units]
    compute, state, kept = (
        np.concatenate([[0.0], np.cumsum([getattr(p, part) for p in pieces])]) for part in ("compute", "state", "kept")
    )
    words = batch // micro * np.array([units[0].inputs, *(unit.outputs for unit in units)])
    enter = np.array([0.0, *(machine.seconds(batch // micro * unit.inputs, 1) for unit in units[1:]), 0.0])
    leave = np.array([0.0, *(machine.seconds(size, 1) for size in words[1:-1]), 0.0])
    order = np.arange(len(units) + 1)
    slots = np.where(order[:, None] < order, compute - compute[:, None] + enter[:, None] + leave, np.inf)
    flying = np.minimum(stages - np.arange(stages), micro)[:, None, None]
    fits = state - state[:, None] + flying * (kept - kept[:, None]) <= machine.memory
    found = _cut(np.where(fits, slots, np.inf), micro) or _cut(np.broadcast_to(slots, fits.shape), micro)
    ends = [0, *found, len(units)]
    texts = tuple("d" * (j - i) for i, j in itertools.pairwise(ends))
    return score(units, machine, stages, batch, Placement(texts, micro))


def _cut(slots: np.ndarray, micro: int) -> list[int] | None:
    """Inner borders of the best contiguous cut; `slots[s, i, j]`: seconds of stage s if it holds units i to j - 1."""

    def under(bound: float):
        """(sum, slowest, borders) of the smallest sum with no stage slower than `bound`."""
        best, came = np.full(slots.shape[1], np.inf), []
        best[0] = 0.0
        for stage in np.where(slots <= bound, slots, np.inf):
            reached = best[:, None] + stage
            came.append(reached.argmin(axis=0))
            best = reached.min(axis=0)
        at, borders = slots.shape[1] - 1, []
        for previous in reversed(came):
            borders.append(at := int(previous[at]))
        borders = borders[::-1]
        slowest = max(slots[s, i, j] for s, (i, j) in enumerate(itertools.pairwise([*borders, slots.shape[1] - 1])))
        return float(best[-1]), float(slowest), borders[1:]

    bounds = np.unique(slots[np.isfinite(slots)])
    if not len(bounds) or not np.isfinite((loosest := under(bounds[-1]))[0]):
        return None
    low, high = 0, len(bounds) - 1
    while low < high:  # the smallest bound under which there is a cut
        middle = (low + high) // 2
        low, high = (low, middle) if np.isfinite(under(bounds[middle])[0]) else (middle + 1, high)
    best = min((total + (micro - 1) * slowest, cut) for total, slowest, cut in (loosest, under(bounds[low])))
    for bound in bounds[low:]:
        if loosest[0] + (micro - 1) * bound >= best[0]:
            break
        total, slowest, cut = under(bound)
        best = min(best, (total + (micro - 1) * slowest, cut))
    return best[1]


def schemes(
    units: Sequence[Unit], machine: Machine, devices: int, batch: int, names: Sequence[str] = SCHEMES
) -> dict[str, Plan | None]:
    """The fastest placement of each scheme of `names`; None where the network does not allow it.

    `model`: columns and rows, layer by layer; `hybrid`: these and data; `spatial`: rows of the image for the
    convolutions as long as there are enough of them, then data; `pipeline`: the best cut and the best M."""
    data, enough = "d" * len(units), [unit.kind == "conv" and unit.rows >= devices for unit in units]
    split = "".join("s" * e for e in itertools.takewhile(bool, enough))

    def one(text: str, sharded: bool = False) -> Plan | None:
        allowed = batch >= devices or "d" not in text
        return score(units, machine, devices, batch, Placement((text,), 1, sharded)) if allowed and text else None

    def pipeline() -> Plan | None:
        plans = [stages_for(units, machine, devices, batch, micro) for micro in MICRO if batch % micro == 0]
        return min(filter(None, plans), key=lambda plan: (not plan.fits, plan.seconds), default=None)

    makers = {
        "data": lambda: one(data),
        "sharded": lambda: one(data, True),
        "pipeline": pipeline,
        "spatial": lambda: one(split and split + data[len(split) :]),
        "model": lambda: letters_for(units, machine, devices, batch, "cr"),
        "hybrid": lambda: letters_for(units, machine, devices, batch, "dcr"),
    }
    return {name: makers[name]() for name in names}


def optimum(
    units: Sequence[Unit],
    machine: Machine,
    devices: int,
    batch: int,
    allowed: str = "dscr",
    micros: Sequence[int] = MICRO,
) -> Plan:
    """The fastest placement that fits, over all stages, letters, microbatches, sharded or not.

    Raises:
        RequestError: the network has more than nine units.
        WorkError: none fits."""
    if len(units) > 9:
        raise RequestError(f"{len(units)} units are too many to try everything; use at most nine")
    best = None
    for count in (n for n in range(1, len(units) + 1) if devices % n == 0):
        for micro, sharded in itertools.product((m for m in micros if batch % m == 0), (False, True)):
            if sharded and count == devices:
                continue  # one device a stage: nothing to share

            @functools.cache
            def stage(i, j, s, count=count, micro=micro, sharded=sharded):
                ends = {"first": s == 0, "last": s == count - 1}
                return _front(
                    units[i:j],
                    batch // micro,
                    devices // count,
                    machine,
                    allowed,
                    micro,
                    sharded,
                    min(count - s, micro),
                    **ends,
                )

            for cut in itertools.combinations(range(1, len(units)), count - 1):
                spans = list(itertools.pairwise((0, *cut, len(units))))
                for chosen in itertools.product(*(stage(i, j, s) for s, (i, j) in enumerate(spans))):
                    slots, ends, texts = zip(*chosen, strict=True)
                    seconds = sum(slots) + (micro - 1) * max(slots) + max(ends)
                    if best is None or seconds < best[0]:
                        best = (seconds, Placement(texts, micro, sharded))
    if best is None:
        raise WorkError("no placement of this network fits into the memory of these devices")
    return score(units, machine, devices, batch, best[1])


def _front(units, samples, devices, machine, allowed, micro, sharded, flying, first, last):
    """(seconds a microbatch, seconds at the end, letters) of every text of letters for one stage that fits, except
    those that another one beats in both."""
    digits = np.indices((len(allowed),) * len(units)).reshape(len(units), -1)
    parts, gathered, letters = np.zeros((5, digits.shape[1])), np.zeros(digits.shape[1]), list(allowed)
    for u, unit in enumerate(units):
        table, most = np.full((5, len(letters)), np.inf), np.zeros(len(letters))
        for n, letter in enumerate(letters):
            try:
                p = piece(unit, letter, samples, devices, machine, sharded)
            except RequestError:
                continue
            table[:, n] = p.compute + machine.seconds(p.words, p.messages), p.end_words, p.state, p.kept, 0.0
            most[n] = p.gathered
            table[4, n] = devices > 1 and not sharded and letter in "ds"
        parts += table[:, digits[u]]
        gathered = np.maximum(gathered, most[digits[u]])
        if u:
            change = [[machine.seconds(*moved(b, now, unit, samples, devices)) for now in letters] for b in letters]
            parts[0] += np.array(change)[digits[u - 1], digits[u]]
        else:
            change = [machine.seconds(*moved(None if first else "d", now, unit, samples, devices)) for now in letters]
            parts[0] += np.array(change)[digits[0]]
    leave = [machine.seconds(*border(units, letter, samples, devices, first, last)) for letter in letters]
    parts[0] += np.array(leave)[digits[-1]]
    ends = machine.seconds(parts[1], 2 * (devices - 1) * (parts[4] > 0))
    keep = np.flatnonzero((parts[2] + gathered + flying * parts[3] <= machine.memory) & np.isfinite(parts[0]))
    keep = keep[np.lexsort((ends[keep], parts[0, keep]))]
    lowest = np.minimum.accumulate(np.concatenate([[np.inf], ends[keep]]))[:-1]
    keep = keep[ends[keep] < lowest]
    return [(float(parts[0, k]), float(ends[k]), "".join(letters[d] for d in digits[:, k])) for k in keep]
