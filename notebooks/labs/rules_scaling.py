"""Rules about batch size, rate and warm-up: functions of runs and of numbers written in the claim. numpy only.

A rule answers `not attempted` unless every run that it asks for is there, with the number of seeds that it asks for.
"""

import math

import numpy as np

from labs.factorial import LABELS, Table
from labkit.optim.schedules import Baseline, legw, warmup_iterations
from labkit.rules.finding import Finding, chosen, needs
from labkit.rules.general import published


def cell_values(runs, cell, metric: str):
    """The final values of a metric over the seeds of one cell of the factorial table (the newest run of a seed wins)."""
    found = {}
    for run in sorted(runs, key=lambda run: run.header.began):
        if (
            run.config["batch"] == cell.batch
            and run.config["rate"] == cell.rate
            and abs(run.config["warmup_steps"] - cell.warmup_steps) < 1e-3
        ):
            value = run.last(metric)
            found[run.header.repeat] = value if math.isfinite(value) else 0.0
    return list(found.values())


def standard_error(values, images: int) -> float:
    """Of a mean accuracy: the images of the test set are one sample shared by all seeds, the seeds another."""
    mean = float(np.clip(np.mean(values), 0.0, 1.0))
    return math.sqrt(mean * (1 - mean) / images + (np.var(values, ddof=1) / len(values) if len(values) > 1 else 0.0))


def flat_set(runs, table: Table, rates, images: int):
    """Base rates whose validation accuracy at the smallest batch lies within one standard error of the best. A
    difference of two rates on one split is what is judged.
    """
    means = {}
    for rate in rates:
        values = cell_values(runs, table.path("fixed", rate)[0], "validation_accuracy")
        if values:
            means[rate] = values
    if not means:
        return []
    best = max(means.values(), key=np.mean)
    return [rate for rate, values in means.items() if np.mean(values) >= np.mean(best) - standard_error(best, images)]


def paths_at(runs, table: Table, rates, rule: str, seeds: int, batch: int, metric="test_accuracy"):
    """{base rate: values over the seeds} of the cell that a rule visits at a batch; None if one has too few seeds."""
    at = table.batches.index(batch)
    found = {rate: cell_values(runs, table.path(rule, rate)[at], metric) for rate in rates}
    return found if all(len(values) >= seeds for values in found.values()) else None


def counted(signs, evidence: str, runs: int) -> Finding:
    """An outcome from the signs (+1 held, 0 within the margin, -1 the opposite held) over the flat set."""
    fraction = sum(sign > 0 for sign in signs) / len(signs)
    outcome = (
        "holds"
        if fraction == 1
        else "partly"
        if fraction > 0
        else "contradicted"
        if all(sign < 0 for sign in signs)
        else "not seen"
    )
    return Finding(outcome, evidence, runs, fraction)


def ordering(runs, *, select, table, rates, batch, ours, theirs, seeds, images, margin) -> Finding:
    """At `batch`, scaled without retuning: the path `ours` is more accurate than `theirs` by `margin` standard errors
    of the difference, over the flat set of base rates.
    """
    runs, table = chosen(runs, select), Table(**{**table, "batches": tuple(table["batches"])})
    flat = flat_set(runs, table, rates, images)
    first, second = (paths_at(runs, table, flat, rule, seeds, batch) for rule in (ours, theirs))
    if not flat or first is None or second is None:
        return needs(
            f"{LABELS[ours]} and {LABELS[theirs]} at batch {batch} from every flat base rate, {seeds} seeds each"
        )
    signs, parts = [], []
    for rate in flat:
        a, b = first[rate], second[rate]
        gap, bound = np.mean(a) - np.mean(b), margin * math.hypot(standard_error(a, images), standard_error(b, images))
        signs.append(1 if gap >= bound else -1 if gap <= -bound else 0)
        parts.append(f"{np.mean(a):.3f} against {np.mean(b):.3f} from 2^{math.log2(rate):g}")
    return counted(
        signs, f"{LABELS[ours]} against {LABELS[theirs]} at batch {batch}: " + "; ".join(parts), len(flat) * 2 * seeds
    )


def not_inferior(runs, *, select, table, rates, batch, path, seeds, images, margin) -> Finding:
    """The path's accuracy at `batch` is no more than `margin` standard errors of the difference below its accuracy at
    the smallest batch, over the flat set.
    """
    runs, table = chosen(runs, select), Table(**{**table, "batches": tuple(table["batches"])})
    flat = flat_set(runs, table, rates, images)
    large, small = (
        paths_at(runs, table, flat, path, seeds, batch),
        paths_at(runs, table, flat, path, seeds, table.batches[0]),
    )
    if not flat or large is None or small is None:
        return needs(
            f"{LABELS[path]} at batches {table.batches[0]} and {batch} from every flat base rate, {seeds} seeds each"
        )
    signs, parts = [], []
    for rate in flat:
        a, b = large[rate], small[rate]
        bound = margin * math.hypot(standard_error(a, images), standard_error(b, images))
        signs.append(1 if np.mean(a) >= np.mean(b) - bound else -1)
        parts.append(f"{np.mean(a):.3f} at {batch}, {np.mean(b):.3f} at {table.batches[0]} from 2^{math.log2(rate):g}")
    return counted(signs, f"{LABELS[path]}: " + "; ".join(parts), len(flat) * 2 * seeds)


def near_retuned(runs, *, select, table, rates, batch, path, seeds, images, margin) -> Finding:
    """The path's accuracy at `batch` is within `margin` standard errors of the best cell at that batch, tuned on
    validation over all rates and warm-ups.
    """
    runs, table = chosen(runs, select), Table(**{**table, "batches": tuple(table["batches"])})
    flat = flat_set(runs, table, rates, images)
    ours = paths_at(runs, table, flat, path, seeds, batch)
    cells = [cell for cell in table.factorial(rates) if cell.batch == batch]
    tuned = {cell: cell_values(runs, cell, "validation_accuracy") for cell in cells}
    if not flat or ours is None or any(len(values) < seeds for values in tuned.values()):
        return needs(f"all {len(cells)} cells at batch {batch}, {seeds} seeds each")
    winner = max(cells, key=lambda cell: np.mean(tuned[cell]))
    best = cell_values(runs, winner, "test_accuracy")
    signs, parts = [], []
    for rate in flat:
        bound = margin * math.hypot(standard_error(ours[rate], images), standard_error(best, images))
        signs.append(1 if np.mean(ours[rate]) >= np.mean(best) - bound else -1)
        parts.append(f"{np.mean(ours[rate]):.3f} from 2^{math.log2(rate):g}")
    return counted(
        signs,
        f"retuned at {batch}: {np.mean(best):.3f} (rate 2^{math.log2(winner.rate):g}, {winner.warmup_steps:g} warm-up steps); {LABELS[path]} "
        + "; ".join(parts),
        len(cells) * seeds,
    )


def adaptive_behind(runs, *, select, table, rates, batch, solver, solver_rates, path, seeds, images, margin) -> Finding:
    """At `batch`, the adaptive solver at its best rate (retuned there on validation) is less accurate than the path,
    over the flat set.
    """
    solved = [
        run for run in chosen(runs, {**select, "optimizer": solver, "options": {}}) if run.config["batch"] == batch
    ]
    runs, table = chosen(runs, {**select, "optimizer": "sgd"}), Table(**{**table, "batches": tuple(table["batches"])})
    flat = flat_set(runs, table, rates, images)
    ours = paths_at(runs, table, flat, path, seeds, batch)
    by_rate = {rate: [run for run in solved if run.config["rate"] == rate] for rate in solver_rates}
    if not flat or ours is None or any(len(found) < seeds for found in by_rate.values()):
        return needs(f"{solver} at batch {batch}, {len(solver_rates)} rates of {seeds} seeds, and {LABELS[path]}")
    best_rate = max(by_rate, key=lambda rate: np.mean([run.last("validation_accuracy") for run in by_rate[rate]]))
    theirs = [run.last("test_accuracy") for run in by_rate[best_rate]]
    signs = []
    for rate in flat:
        gap = np.mean(ours[rate]) - np.mean(theirs)
        bound = margin * math.hypot(standard_error(ours[rate], images), standard_error(theirs, images))
        signs.append(1 if gap >= bound else -1 if gap <= -bound else 0)
    parts = "; ".join(f"{np.mean(ours[rate]):.3f} from 2^{math.log2(rate):g}" for rate in flat)
    return counted(
        signs,
        f"{solver} retuned at {batch}: {np.mean(theirs):.3f} (rate 2^{math.log2(best_rate):g}); {LABELS[path]} without retuning: {parts}",
        len(flat) * seeds + len(solved),
    )


def faster(runs, *, select, table, rates, batch, path, at_least, equal_accuracy=False, images=0, margin=0.0) -> Finding:
    """Seconds of training (evaluation off the clock) at equal epochs, smallest batch against `batch`; with
    `equal_accuracy`, against the largest batch on the path that is no less accurate.
    """
    runs = [run for run in chosen(runs, select) if run.header.arms == 1]
    table = Table(**{**table, "batches": tuple(table["batches"])})
    seconds, accuracy = {}, {}
    for at, size in enumerate(table.batches):
        cells = {table.path(path, rate)[at] for rate in rates}
        found = [
            run
            for cell in cells
            for run in runs
            if (run.config["batch"], run.config["rate"]) == (cell.batch, cell.rate)
            and abs(run.config["warmup_steps"] - cell.warmup_steps) < 1e-3
        ]
        if found:
            seconds[size] = float(np.median([run.seconds("train") for run in found]))
            best = max(cells, key=lambda cell: np.mean(cell_values(runs, cell, "validation_accuracy") or [0.0]))
            accuracy[size] = cell_values(runs, best, "test_accuracy")
    base = table.batches[0]
    if base not in seconds or batch not in seconds:
        return needs(f"timed runs of {LABELS[path]} at batches {base} and {batch}")
    if equal_accuracy:

        def kept(size):
            bound = margin * math.hypot(standard_error(accuracy[size], images), standard_error(accuracy[base], images))
            return np.mean(accuracy[size]) >= np.mean(accuracy[base]) - bound

        batch = max(size for size in seconds if kept(size))
    ratio = seconds[base] / seconds[batch]
    evidence = f"{seconds[base]:.3g} s at batch {base}, {seconds[batch]:.3g} s at batch {batch}: {ratio:.2f} times" + (
        " (the largest batch that kept the accuracy)" if equal_accuracy else ""
    )
    return Finding("holds" if ratio >= at_least else "not seen", evidence, len(runs))


def running_median(values, width: int = 5):
    """The median of each window of `width` values (shorter at the ends): one probe of a curvature is too noisy to take
    an argmax of.
    """
    values, half = np.asarray(values, float), width // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def curvature_peak(run, axis: str) -> float:
    """Where the smoothed curvature along the gradient is largest, in `epoch` or `step`."""
    rows = run.series("curvature")
    return getattr(rows[int(np.argmax(running_median([row.value for row in rows])))], axis)


def peak_moves(runs, *, select, batches, axis, low, high, seeds) -> Finding:
    """Slope of log(peak position) against log(batch) lies in [low, high] for the mean over seeds."""
    runs = [run for run in chosen(runs, select) if run.series("curvature")]
    peaks = {batch: [curvature_peak(run, axis) for run in runs if run.config["batch"] == batch] for batch in batches}
    if any(len(found) < seeds for found in peaks.values()):
        return needs(f"curvature runs at batches {', '.join(map(str, batches))}, {seeds} seeds each")
    x = np.log2(batches)
    y = [np.mean(np.log2(np.maximum(peaks[batch], 1e-9))) for batch in batches]
    slope = float(np.polyfit(x, y, 1)[0])
    evidence = f"slope {slope:.2f}; peak at {axis} " + ", ".join(
        f"{np.mean(peaks[batch]):.3g} (batch {batch})" for batch in batches
    )
    return Finding("holds" if low <= slope <= high else "not seen", evidence, sum(map(len, peaks.values())))


def rises_and_falls(runs, *, select, seeds, start_below, end_below, peak_before) -> Finding:
    """Smoothed curvature starts below `start_below` of its peak, ends below `end_below` of it, and peaks within the
    first `peak_before` of the run: in every run.
    """
    runs = [run for run in chosen(runs, select) if len(run.series("curvature")) >= 8]
    if len(runs) < seeds:
        return needs(f"{seeds} curvature runs")
    held, parts = [], []
    for run in runs:
        smooth = running_median([row.value for row in run.series("curvature")])
        top = int(np.argmax(smooth))
        held.append(
            smooth[0] <= start_below * smooth[top]
            and smooth[-1] <= end_below * smooth[top]
            and top <= peak_before * len(smooth)
        )
        parts.append(f"{smooth[0]:.2g}, {smooth[top]:.2g}, {smooth[-1]:.2g} at batch {run.config['batch']}")
    return Finding(
        "holds" if all(held) else "not seen",
        f"start, peak, end in {sum(held)} of {len(held)} runs as said: " + "; ".join(parts),
        len(runs),
    )


def published_rates(runs, *, table, samples) -> Finding:
    """`legw` from the table's first row gives the peak rate of every row that follows the rule."""
    rows = published(table)
    base = Baseline(int(rows.batch[0]), float(rows.rate[0]), float(rows.warmup_epochs[0]))
    right = [math.isclose(legw(base, int(row.batch)).rate, row.rate, rel_tol=1e-9) for row in rows.itertuples()]
    return Finding(
        "holds" if all(right) else "contradicted",
        f"{sum(right)} of {len(right)} rates of the table follow from its first row",
    )


def published_warmup(runs, *, table, samples, exceptions) -> Finding:
    """Warm-up iterations are the same at every row that follows the rule; `exceptions` are the batches that the
    publisher's own table takes out of it.
    """
    rows = published(table)
    base = Baseline(int(rows.batch[0]), float(rows.rate[0]), float(rows.warmup_epochs[0]))
    differ = [
        int(row.batch)
        for row in rows.itertuples()
        if not math.isclose(legw(base, int(row.batch)).warmup_epochs, row.warmup_epochs, rel_tol=1e-9)
    ]
    constant = {round(warmup_iterations(legw(base, int(batch)), samples)) for batch in rows.batch}
    shown = {batch: round(float(rows.warmup_epochs[rows.batch == batch].iloc[0]) * samples / batch) for batch in differ}
    evidence = f"{sorted(constant)} iterations by the rule at {len(rows)} batches; rows that differ: {shown or 'none'} (iterations)"
    return Finding("holds" if len(constant) == 1 and differ == list(exceptions) else "contradicted", evidence)


RULES = (
    ordering,
    not_inferior,
    near_retuned,
    adaptive_behind,
    faster,
    peak_moves,
    rises_and_falls,
    published_rates,
    published_warmup,
)
