"""Rules about steps to a target against batch and rate: functions of runs and of numbers in the claim. numpy only.

The measurements that they rest on (crossings, the fit, its bootstrap) are here too, so that the hash of a rule covers
them. A rule answers `not attempted` unless every batch has the seeds that it asks for.
"""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs

GRID = np.arange(-4.0, 17.0, 0.02)  # log2 of the critical batch sizes that are tried


def crossing(run, target: float) -> float:
    """Steps until the training loss is at the target, log-linear between evaluations; infinity for a miss."""
    before = None
    for row in run.series("train_loss"):
        if row.value <= target:
            if before is None or not before.value > row.value > 0:
                return float(row.step)
            part = math.log(before.value / target) / math.log(before.value / row.value)
            return before.step + part * (row.step - before.step)
        before = row
    return math.inf


def value_at(run, step: float, metric: str) -> float:
    """A metric at a step, linear between evaluations."""
    rows = run.series(metric)
    return float(np.interp(step, [row.step for row in rows], [row.value for row in rows])) if rows else math.nan


def by_cell(runs) -> dict:
    """{batch: {rate: {seed: run}}}; of two runs of one seed the newest."""
    found: dict = {}
    for run in sorted(runs, key=lambda run: run.header.began):
        found.setdefault(run.config["batch"], {}).setdefault(run.config["rate"], {})[run.header.repeat] = run
    return found


def steps_table(runs, target: float) -> dict:
    """{batch: {rate: [steps to the target of each seed]}}, in order of batch, rate and seed."""
    cells = by_cell(runs)
    return {batch: {rate: [crossing(cells[batch][rate][seed], target) for seed in sorted(cells[batch][rate])]
                    for rate in sorted(cells[batch])} for batch in sorted(cells)}  # fmt: skip


def best(table: dict) -> dict:
    """{batch: (rate, steps)} of the rate with the fewest steps, as a geometric mean over the seeds; a rate at which one
    seed missed the target is out. Batches at which all are out are left out."""
    found = {}
    for batch, cells in table.items():
        means = {rate: float(np.exp(np.mean(np.log(steps)))) for rate, steps in cells.items()}
        rate = min(means, key=means.get)
        if math.isfinite(means[rate]):
            found[batch] = (rate, means[rate])
    return found


def knee_fit(batches, values):
    """Least squares in log(values) of floor (1 + knee / B): (floor, knee, rms of the residuals in log).

    Args:
        batches: [b]. values: [..., b] positive; leading axes are fitted one by one and kept.
    """
    y = np.log(np.asarray(values, float))[..., None, :]
    shape = np.log1p(2.0 ** GRID[:, None] / np.asarray(batches, float))
    residual = y - shape
    residual = residual - residual.mean(-1, keepdims=True)
    errors = (residual**2).mean(-1)
    at = np.clip(errors.argmin(-1), 1, len(GRID) - 2)
    low, mid, high = (np.take_along_axis(errors, (at + shift)[..., None], -1)[..., 0] for shift in (-1, 0, 1))
    bend = low - 2 * mid + high
    knee = 2.0 ** (GRID[at] + np.where(bend > 0, 0.5 * (low - high) / np.where(bend > 0, bend, 1.0), 0.0) * 0.02)
    left = y[..., 0, :] - np.log1p(knee[..., None] / np.asarray(batches, float))
    return np.exp(left.mean(-1)), knee, left.std(-1)


def resampled(table: dict, draws: int = 400, seed: int = 0):
    """Bootstrap over the seeds of every cell: (batches, steps [draws, b], best rates [draws, b]). The best rate is
    chosen again in every draw, so its uncertainty is in. With one seed all draws are equal."""
    random, batches = np.random.default_rng(seed), list(best(table))
    steps, rates = np.empty((draws, len(batches))), np.empty((draws, len(batches)))
    for n, batch in enumerate(batches):
        kept = {rate: values for rate, values in table[batch].items() if np.all(np.isfinite(values))}
        count = min(map(len, kept.values()))
        pick = random.integers(count, size=(draws, count))
        logs = np.stack([np.log(values)[pick].mean(1) for values in kept.values()], 1)
        at = logs.argmin(1)
        steps[:, n] = np.exp(logs[np.arange(draws), at])
        rates[:, n] = np.asarray(list(kept))[at]
    return batches, steps, rates


def interval(values) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def complete(runs, target: float, batches, seeds: int):
    """(table, best) of these batches over the rates that have `seeds` seeds, if each batch has one that reached the
    target, else None."""
    table = {batch: {rate: steps for rate, steps in cells.items() if len(steps) >= seeds}
             for batch, cells in steps_table(runs, target).items()}  # fmt: skip
    table = {batch: table[batch] for batch in batches if table.get(batch)}
    found = best(table)
    return (table, found) if len(found) == len(batches) else None


def at_edge(table: dict, found: dict) -> list:
    """Batches whose best rate is the lowest or highest that was tried: the true one may lie outside."""
    return [batch for batch, (rate, _) in found.items() if rate in (min(table[batch]), max(table[batch]))]


def slope(found: dict, batches, part: int) -> float:
    """Log-log slope of the best rate (part 0) or of the steps (part 1) over these batches."""
    return float(np.polyfit(np.log(batches), [math.log(found[batch][part]) for batch in batches], 1)[0])


def three_regimes(runs, *, select, target, batches, seeds, steep, flat) -> Finding:
    """Steps fall at least as fast as B^steep over the three smallest batches, and no faster than B^flat over the three
    largest. Steps that still fall so at the largest, or hardly at the smallest, contradict it."""
    ready = complete(chosen(runs, select), target, batches, seeds)
    if ready is None:
        return needs(f"steps to loss {target:g} at batches {batches}, {seeds} seeds each")
    first, last = (slope(ready[1], part, 1) for part in (batches[:3], batches[-3:]))
    evidence = (f"log-log slope of steps {first:.2f} over batches {batches[0]} to {batches[2]} (at most {steep:g}), "
                f"{last:.2f} over {batches[-3]} to {batches[-1]} (at least {flat:g})")  # fmt: skip
    against = last <= steep or first >= flat
    outcome = "holds" if first <= steep and last >= flat else "contradicted" if against else "not seen"
    return Finding(outcome, evidence, len(batches) * seeds)


def equal_loss(runs, *, select, target, small, large, seeds, margin) -> Finding:
    """At equal training loss large batches lose at most `margin` of test accuracy against small ones, each at its best
    rate: the lower end of a 95 % interval over seeds (normal, both groups' own variance), for this test set."""
    runs = chosen(runs, select)
    ready, cells = complete(runs, target, [*small, *large], seeds), by_cell(runs)
    if ready is None:
        return needs(f"steps to loss {target:g} at batches {[*small, *large]}, {seeds} seeds each")
    groups = []
    for batches in (small, large):
        mine = [run for batch in batches for run in cells[batch][ready[1][batch][0]].values()]
        groups.append([value_at(run, crossing(run, target), "test_accuracy") for run in mine])
    gap, half = difference(groups[1], groups[0])
    evidence = (f"test accuracy at training loss {target:g}: {np.mean(groups[1]):.3f} at batches {large}, "
                f"{np.mean(groups[0]):.3f} at {small}: {100 * gap:+.2f} +/- {100 * half:.2f} points")  # fmt: skip
    outcome = "holds" if gap - half >= -margin else "contradicted" if gap + half < -margin else "not seen"
    return Finding(outcome, evidence, sum(map(len, groups)))


def difference(a, b) -> tuple[float, float]:
    """(mean a - mean b, two standard errors of it)."""
    parts = [np.var(values, ddof=1) / len(values) if len(values) > 1 else math.inf for values in (a, b)]
    return float(np.mean(a) - np.mean(b)), 2 * math.sqrt(sum(parts))


def no_single_rule(runs, *, select, target, batches, seeds, low, high, linear, flat) -> Finding:
    """The best rate grows at least as B^linear over the batches `low`, and at most as B^flat over `high`."""
    ready = complete(chosen(runs, select), target, batches, seeds)
    if ready is None:
        return needs(f"steps to loss {target:g} at batches {batches}, {seeds} seeds each")
    edge = at_edge(*ready)
    first, last = slope(ready[1], low, 0), slope(ready[1], high, 0)
    evidence = (f"log-log slope of the best rate {first:.2f} over batches {low} (at least {linear:g}), {last:.2f} over "
                f"{high} (at most {flat:g}); best at the edge of the rates tried at {edge or 'no batch'}")  # fmt: skip
    wide = len(edge) <= len(batches) / 4
    return Finding("holds" if wide and first >= linear and last <= flat else "not seen", evidence, len(batches) * seeds)


def hyperbola(runs, *, select, target, batches, seeds, rms) -> Finding:
    """S = S_min (1 + B_crit / B), which is (S / S_min - 1)(E / E_min - 1) = 1, fits log S to within `rms`."""
    ready = complete(chosen(runs, select), target, batches, seeds)
    if ready is None:
        return needs(f"steps to loss {target:g} at batches {batches}, {seeds} seeds each")
    floor, knee, error = knee_fit(batches, [steps for _, steps in ready[1].values()])
    low, high = interval(knee_fit(batches, resampled(ready[0])[1])[1])
    evidence = (f"S_min {floor:.0f} steps, B_crit {knee:.0f} [{low:.0f}, {high:.0f}], "
                f"rms of log S {error:.3f}, allowed {rms:g}")  # fmt: skip
    return Finding("holds" if error <= rms else "not seen", evidence, len(batches) * seeds)


def saturating_rate(runs, *, select, target, batches, seeds, rms) -> Finding:
    """Best rate = top / (1 + B_noise / B) to within `rms` of its natural logarithm."""
    ready = complete(chosen(runs, select), target, batches, seeds)
    if ready is None:
        return needs(f"steps to loss {target:g} at batches {batches}, {seeds} seeds each")
    inverse, knee, error = knee_fit(batches, [1 / rate for rate, _ in ready[1].values()])
    low, high = interval(knee_fit(batches, 1 / resampled(ready[0])[2])[1])
    evidence = (f"top rate {1 / inverse:.2f}, B_noise {knee:.0f} [{low:.0f}, {high:.0f}], "
                f"rms of log rate {error:.2f}, allowed {rms:g}; edges at {at_edge(*ready) or 'no batch'}")  # fmt: skip
    wide = len(at_edge(*ready)) <= len(batches) / 4
    return Finding("holds" if wide and error <= rms else "not seen", evidence, len(batches) * seeds)


RULES = (three_regimes, equal_loss, no_single_rule, hyperbola, saturating_rate)
