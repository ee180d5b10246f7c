"""Recorded values by rate and seed, and which rate a seed is judged at. numpy only; lab 05's rules and figures read it.

A case (a delay, say) has runs that each list the `rates` of a grid and a value for each rate. What is compared is the
value of a seed at the rate that is best *on the other seeds*: no number chooses the rate that it is then judged at."""

from typing import NamedTuple

import numpy as np

from labkit.rules.finding import Finding, chosen

WORST = ("contradicted", "not attempted", "not seen", "partly", "holds")


def counted(count: int, what: str) -> str:
    """1 worker, 2 workers."""
    return f"{count} {what}{'s' * (count != 1)}"


class Table(NamedTuple):
    """Of one case: `rates`, ascending; `seeds`, ascending; {metric: values [seeds, rates]}."""

    rates: tuple
    seeds: tuple
    values: dict


def tables(runs, select: dict, metrics, seeds: int, most: float = np.inf) -> list[Table]:
    """Those of each grid that has so many seeds or more: first one of the first run of each seed, then one for each
    run that repeats a seed, in its place. `most` is the largest value there may be: 1 for accuracies; losses and
    seconds are infinite for what diverged or missed.

    Raises:
        ValueError: a run has not one number, from 0 to `most`, for each rate."""
    grids: dict = {}
    for run in chosen(runs, select):
        rates, columns = run.config["rates"], [[row.value for row in run.series(metric)] for metric in metrics]
        if any(len(column) != len(rates) or not all(0 <= value <= most for value in column) for column in columns):
            raise ValueError(f"{' or '.join(metrics)} of a run is no number from 0 to {most:g}, or not there, for some "
                             "of its rates")
        order = np.argsort(rates)
        made = {metric: np.array(column)[order] for metric, column in zip(metrics, columns, strict=True)}
        grids.setdefault(tuple(sorted(rates)), {}).setdefault(run.config["seed"], []).append(made)
    found = []
    for rates, by_seed in grids.items():
        if len(by_seed) < seeds:
            continue
        first = {seed: by_seed[seed][0] for seed in sorted(by_seed)}
        again = [first | {seed: other} for seed in first for other in by_seed[seed][1:]]
        found += [Table(rates, tuple(first), {metric: np.stack([part[seed][metric] for seed in first])
                                              for metric in metrics}) for part in (first, *again)]
    return found


def settled(cases: dict, judge) -> Finding:
    """The worst of what `judge` finds of {case: table}: the first table of each case, and every other in its place."""
    first = {case: found[0] for case, found in cases.items()}
    ways = [first, *(first | {case: other} for case, found in cases.items() for other in found[1:])]
    worst = min(map(judge, ways), key=lambda finding: WORST.index(finding.outcome))
    again = f" (the worst of {len(ways)} choices among repeated runs)" if len(ways) > 1 else ""
    return Finding(worst.outcome, worst.evidence + again, worst.runs, worst.fraction)


def logs_of(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(values)


def held_out(values: np.ndarray) -> list[int]:
    """For each seed (row) the column with the smallest geometric mean over the other seeds; of a single seed, its own
    smallest."""
    logs = logs_of(values)
    others = [np.delete(logs, seed, 0) for seed in range(len(logs))] if len(logs) > 1 else [logs]
    return [int(rows.mean(0).argmin()) for rows in others]


def judged_alone(table: Table, metric: str) -> dict | None:
    """{seed: (log of the geometric mean over the other seeds, log of its own value)} at the rate that is best on the
    others; None if one of these rates is an end of the grid, or one of these values is 0 or infinite."""
    logs, found = logs_of(table.values[metric]), {}
    for row, at in enumerate(held_out(table.values[metric])):
        pair = float(np.delete(logs, row, 0).mean(0)[at]), float(logs[row, at])
        if at in (0, len(table.rates) - 1) or not np.isfinite(pair).all():
            return None
        found[table.seeds[row]] = pair
    return found
