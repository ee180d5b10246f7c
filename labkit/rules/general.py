"""Rules about a single recorded number, and about figures that others published. numpy and pandas only."""

import math

import numpy as np
import pandas as pd

from labkit import paths
from labkit.rules.finding import Finding, chosen, needs


def at_most(runs, *, metric, bound, select=None) -> Finding:
    """The largest recorded value of a metric is at most `bound`."""
    values = [row.value for run in chosen(runs, select or {}) for row in run.series(metric)]
    if not values:
        return needs(f"a run that records {metric}")
    worst = max(values, key=lambda value: math.inf if math.isnan(value) else value)
    return Finding("holds" if worst <= bound else "contradicted", f"largest {metric} {worst:.2g}, bound {bound:g}",
                   len(values))


def slope_within(runs, *, metric, low, high) -> Finding:
    """Log-log slope of a metric against the batch size, written in the rows' `samples`, lies in [low, high]."""
    rows = [row for run in runs for row in run.series(metric)]
    if len({row.samples for row in rows}) < 3:
        return needs(f"{metric} at three batch sizes or more")
    slope = float(np.polyfit(np.log([row.samples for row in rows]), np.log([row.value for row in rows]), 1)[0])
    return Finding("holds" if low <= slope <= high else "contradicted", f"slope {slope:.3f}, allowed {low} to {high}",
                   len(rows))


def published(name: str) -> pd.DataFrame:
    """A table of published figures with its source column."""
    return pd.read_csv(paths.data() / "published" / name, comment="#")


def published_trend(runs, *, table, x, y, low, high, from_x=0, below=None) -> Finding:
    """Log-log slope of column `y` against column `x` lies in [low, high], with its standard error beside it."""
    rows = published(table)
    rows = rows[rows[x] >= from_x]
    design = np.log(rows[x].to_numpy(float))
    (slope, _), covariance = np.polyfit(design, np.log(rows[y].to_numpy(float)), 1, cov=True)
    evidence = (f"slope of log {y} against log {x}: "
                f"{slope:.2f} +/- {math.sqrt(covariance[0, 0]):.2f} over {len(rows)} rows")
    return Finding("holds" if low <= slope <= high else "not seen", evidence)


def published_misses(runs, *, table, low, high) -> Finding:
    """Every published recipe missed its target in a share of its runs between `low` and `high`; Wilson intervals
    beside the shares."""
    from labkit.tta.statistics import reach_rate

    parts, inside = [], []
    for row in published(table).itertuples():
        rate = reach_rate([1.0] * int(row.reached) + [math.inf] * int(row.runs - row.reached))
        inside.append(low <= 1 - rate.value <= high)
        parts.append(f"{row.recipe} {int(row.reached)}/{int(row.runs)} [{rate.low:.2f}, {rate.high:.2f}]")
    return Finding("holds" if all(inside) else "partly" if any(inside) else "not seen", "; ".join(parts))


RULES = (at_most, slope_within, published_trend, published_misses)
