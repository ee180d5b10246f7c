"""Rules about optimisations that are switched on and off, and about accuracy on a fresh draw; and the statistics that
they rest on. numpy and pandas only.

A rule answers `not attempted` unless every run that it asks for is there, with the number of seeds that it asks for.
"""

import itertools
import math

import numpy as np
import pandas as pd

from labkit.errors import RequestError
from labkit.rules.finding import Finding, chosen, needs
from labkit.tta import clock, statistics

RESAMPLES = 4000


def contrasts(letters) -> dict:
    """{(kind, term): {cell: weight}}: every effect of a 2^k factorial as a sum over the cells of weight x log time.

    A cell is named by the letters that are on, "" is all off. `exp` of a sum is a factor of speed, above 1 is faster:

    - single, lesion: of one letter, from all off, and with all others on.
    - main: the geometric mean over all settings of the others. share: the mean over all orders of switching on
      (Shapley's value); the shares multiply to the joint speed-up.
    - interaction: of X and Y, by what factor the speed-up of X grows when Y is on; of three, that factor of a factor;
      averaged over the settings of the letters that are not in it.
    - joint; product of singles, product of lesions; each of the two over joint.
    """
    letters, full = tuple(letters), "".join(letters)
    subsets = ["".join(part) for size in range(len(letters) + 1) for part in itertools.combinations(letters, size)]
    found = {}
    for letter in letters:
        rest = full.replace(letter, "")
        contexts = [cell for cell in subsets if letter not in cell]
        shapley = [math.factorial(len(cell)) * math.factorial(len(rest) - len(cell)) for cell in contexts]
        for kind, before, weights in (
            ("single", [""], [1.0]),
            ("lesion", [rest], [1.0]),
            ("share", contexts, [weight / math.factorial(len(full)) for weight in shapley]),
            ("main", contexts, [1.0 / len(contexts)] * len(contexts)),
        ):
            weight = dict.fromkeys(subsets, 0.0)
            for cell, part in zip(before, weights):
                weight[cell] += part
                weight["".join(sorted(cell + letter, key=letters.index))] -= part
            found[kind, letter] = weight
    for term in (cell for cell in subsets if len(cell) > 1):
        others = 2 ** (len(full) - len(term))
        off = {cell: sum(letter not in cell for letter in term) for cell in subsets}
        found["interaction", term] = {cell: -((-1.0) ** off[cell]) / others for cell in subsets}
    joint = {cell: float(cell == "") - float(cell == full) for cell in subsets}
    found["joint", full] = joint
    for kind in ("single", "lesion"):
        total = {cell: sum(found[kind, letter][cell] for letter in letters) for cell in subsets}
        found[f"product of {kind}s", full] = total
        found[f"{kind}s over joint", full] = {cell: total[cell] - joint[cell] for cell in subsets}
    return found


def factorial_effects(times_by_cell: dict, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Effects, interactions and products of a 2^k factorial on the log scale, with a bootstrap over seeds.

    Args:
        times_by_cell: {"": times, "A": times, ..., "ABC": times}, all 2^k cells, each with the times of the same
            seeds in the same order. A miss is infinite: its seed is left out of *all* cells and counted as missed.

    Returns:
        One row an effect: kind, term (see `contrasts`), factor of speed, its limits low and high, log, seeds that
        count, missed ones. The interval resamples whole seeds (one less than there are, which makes its variance that
        of the mean); NaN for fewer than two.

    Raises:
        RequestError: a cell is missing, the lists differ in length, or a time is not above 0.

    When not to use it: percentile intervals of fewer than about ten seeds are too short; where many seeds miss, those
    that are left are the lucky ones.
    """
    letters = sorted(set("".join(times_by_cell)))
    weights = contrasts(letters)
    cells = sorted(next(iter(weights.values()), {}))
    if not letters or sorted(times_by_cell) != cells:
        raise RequestError(f"these letters make the cells {cells}, at least one letter; given: {sorted(times_by_cell)}")
    if len({len(times_by_cell[cell]) for cell in cells}) > 1 or not len(times_by_cell[""]):
        raise RequestError("every cell needs the times of the same seeds, at least one, in the same order")
    times = np.array([times_by_cell[cell] for cell in cells], float).T
    if not (times > 0).all():
        raise RequestError("times must be above 0; a miss is math.inf")
    complete = np.log(times[np.isfinite(times).all(axis=1)])
    n, rows = len(complete), []
    draws = np.random.default_rng(seed).integers(0, max(n, 1), (RESAMPLES, max(n - 1, 1)))
    for (kind, term), weight in weights.items():
        values = complete @ np.array([weight[cell] for cell in cells])
        low = high = math.nan
        if n > 1:
            low, high = np.quantile(values[draws].mean(axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
        log = float(values.mean()) if n else math.nan
        rows.append((kind, term, math.exp(log), math.exp(low), math.exp(high), log, n, len(times) - n))
    return pd.DataFrame(rows, columns=["kind", "term", "factor", "low", "high", "log", "seeds", "missed"])


def readings(cells: dict, what: str) -> dict:
    """{cell: one number a seed} for `factorial_effects`, from {cell: runs}: seconds under dawnbench to the run's
    target, steps to it, or seconds per step; the seeds that all cells have, in their order; infinite for a miss.
    """
    by_seed = {cell: {run.header.repeat: run for run in reversed(runs)} for cell, runs in cells.items()}
    common = sorted(set.intersection(*(set(runs) for runs in by_seed.values())))
    found = {}
    for cell, runs in by_seed.items():
        found[cell] = []
        for repeat in common:
            run = runs[repeat]
            row = clock.first_crossing(run, run.header.target)
            seconds = clock.time_to_target(run, "dawnbench").seconds
            number = {
                "seconds": seconds,
                "steps": row and float(row.step),
                "seconds per step": row and seconds / row.step,
            }
            found[cell].append(math.inf if row is None else number[what])
    return found


def blocks(runs, draw: str) -> np.ndarray:
    """Accuracy [seeds, blocks of images] on a draw, seeds ascending: the rows that `labs.lesion.Draws` wrote."""
    by_seed = {run.header.repeat: [row.value for row in run.series(f"{draw}_block")] for run in reversed(list(runs))}
    return np.array([by_seed[repeat] for repeat in sorted(by_seed)])


def paired_interval(fast, long, draw: str, against: str | None = None, seed: int = 0) -> tuple[float, float, float]:
    """Mean of (fast - long) accuracy on a draw and its 95 % limits; with `against`, less that on another draw.

    Blocks of images and seeds are both resampled, one less than there are of each (of one seed: blocks alone); fast
    and long share both, which is what pairs them. Two draws share seeds, not images.
    """
    random = np.random.default_rng(seed)
    parts = {}
    for name in (draw, against) if against else (draw,):
        parts[name] = blocks(fast, name) - blocks(long, name)
    count = len(parts[draw])
    seeds = random.integers(0, count, (RESAMPLES, max(count - 1, 1)))
    total, value = np.zeros(RESAMPLES), 0.0
    for name, part in parts.items():
        images = random.integers(0, part.shape[1], (RESAMPLES, max(part.shape[1] - 1, 1)))
        sign = 1.0 if name == draw else -1.0
        value += sign * float(part.mean())
        total += sign * np.array([part[np.ix_(s, i)].mean() for s, i in zip(seeds, images)])
    return value, *(float(limit) for limit in np.quantile(total, [0.025, 0.975]))


def reuse(runs, images: int) -> dict:
    """What choosing the best of the candidates on a small set does, played once for each set of `images` (a multiple
    of the block) into which the fresh draw divides: `optimism` is the winner's accuracy on its set less that on all
    other images, `tau` Kendall's tau-b between the candidates' accuracies on the set and on the others.

    One candidate a run; what is found holds for these trained models. The sets' own luck cancels: a candidate's mean
    optimism over all sets is exactly 0.
    """
    accuracy = np.array([[row.value for row in run.series("fresh_block")] for run in runs])
    size = [row.samples for row in runs[0].series("fresh_block")][0]
    each = images // size
    optimism, tau, sets = [], [], accuracy.shape[1] // each
    for place in range(sets):
        inside = np.zeros(accuracy.shape[1], bool)
        inside[place * each : (place + 1) * each] = True
        rest = np.arange(accuracy.shape[1]) < sets * each
        on_set, on_rest = accuracy[:, inside].mean(axis=1), accuracy[:, rest & ~inside].mean(axis=1)
        optimism.append(float((on_set - on_rest)[on_set == on_set.max()].mean()))  # of winners that tie, the mean
        tau.append(statistics.rank_agreement(on_set, on_rest))
    return {"optimism": optimism, "tau": tau}


def mean_interval(values) -> tuple[float, float, float]:
    """Mean and 95 % limits by Student's t; NaN limits for fewer than two values."""
    from scipy import stats

    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), math.nan, math.nan
    half = float(stats.t.isf(0.025, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def do_not_compose(runs, *, cells, what, kind, factor, seeds, misses) -> Finding:
    """The product of single speed-ups (or of lesions) differs from the joint speed-up by `factor` or more, either way.

    Holds if the 95 % interval of product over joint lies wholly outside (1/factor, factor), contradicted if wholly
    inside. `cells` is {cell: what its configuration holds}; up to `misses` seeds may be left out for a miss.
    """
    by_cell = {cell: chosen(runs, select) for cell, select in cells.items()}
    if not all(by_cell.values()):
        return needs(f"all {len(cells)} cells, {seeds} seeds each")
    table = factorial_effects(readings(by_cell, what))
    row = table[table["kind"] == f"{kind}s over joint"].iloc[0]
    if row["seeds"] + row["missed"] < seeds:
        return needs(f"all {len(cells)} cells, {seeds} seeds each")
    total = int(row["seeds"] + row["missed"])
    if row["missed"] > misses or row["seeds"] < 2:
        words = f"{row['missed']} of {total} seeds miss the target in a cell; {misses} may"
        return Finding("not seen", words, total * len(cells))
    sides = {name: table[table["kind"] == name].iloc[0]["factor"] for name in (f"product of {kind}s", "joint")}
    outside = row["low"] >= factor or row["high"] <= 1 / factor
    inside = row["low"] > 1 / factor and row["high"] < factor
    evidence = (
        f"{what}: product of {kind}s {sides[f'product of {kind}s']:.2f}, joint {sides['joint']:.2f}, ratio "
        f"{row['factor']:.2f} [{row['low']:.2f}, {row['high']:.2f}] over {row['seeds']} seeds, {row['missed']} missed"
    )
    return Finding("holds" if outside else "contradicted" if inside else "not seen", evidence, total * len(cells))


def nearly_as_well(runs, *, fast, long, draw, margin, seeds, against=None) -> Finding:
    """(fast - long) accuracy on a draw, less that on the draw `against` where one is named, is above -`margin`: holds
    if its whole 95 % interval over seeds and images is, contradicted if none of it is.
    """
    read = [run for run in runs if run.series(f"{draw}_block")]
    fast, long = chosen(read, fast), chosen(read, long)
    common = {run.header.repeat for run in fast} & {run.header.repeat for run in long}
    if len(common) < seeds:
        return needs(f"the fast and the long recipe on the {draw} draw, {seeds} seeds each")
    fast, long = ([run for run in part if run.header.repeat in common] for part in (fast, long))
    value, low, high = paired_interval(fast, long, draw, against)
    means = [float(blocks(part, draw).mean()) for part in (fast, long)]
    evidence = f"{draw}: fast {means[0]:.4f}, long {means[1]:.4f}; difference"
    evidence += f" less that on {against}" if against else ""
    evidence += f" {100 * value:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}], margin {-100 * margin:g}"
    evidence += f", {len(common)} seeds"
    outcome = "holds" if low > -margin else "contradicted" if high <= -margin else "not seen"
    return Finding(outcome, evidence, 2 * len(common))


def reused_and_fresh(runs, *, select, candidates, images, what, bound) -> Finding:
    """Over the sets of `images`: the mean of the winner's `optimism`, or of Kendall's `tau` (see `reuse`), is above
    `bound`: holds if its whole 95 % interval is, contradicted if none of it is.
    """
    found = [run for run in chosen(runs, select) if run.series("fresh_block")]
    first = min((run.header.repeat for run in found), default=0)
    found = [run for run in found if run.header.repeat == first]
    if len(found) < candidates:
        return needs(f"{candidates} candidates on the fresh draw")
    values = reuse(found, images)[what]
    value, low, high = mean_interval(values)
    evidence = (
        f"mean {what} {value:.4f} [{low:.4f}, {high:.4f}] over {len(values)} sets of {images}, {len(found)} candidates"
    )
    return Finding("holds" if low > bound else "contradicted" if high <= bound else "not seen", evidence, len(found))


RULES = (do_not_compose, nearly_as_well, reused_and_fresh)
