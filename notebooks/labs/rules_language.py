"""Rules of lab 09: language models (loss, nats per token) and translation (BLEU) under batch scaling. numpy only.

Base rates are tuned on the validation part with one seed; verdicts are read on the test part, over the flat set of base
rates, with all seeds. What decides is written in the claim as `judge`: `metric` without its part, `higher` (is more
better?), `noise` (one standard error of the metric on one test part, in its unit: the part is a sample), `worst` (what
a run that diverged, or does worse than that, counts as), `tuning` (the seed that tunes), `seeds` and `margin` (standard
errors of a difference)."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs
from labs.factorial import LABELS, Cell, Table
from labs.rules_scaling import counted

ADAPTIVE = ("adam", "adamw", "rmsprop", "adagrad", "adadelta")


def bounded(value: float, judge: dict) -> float:
    """A final value, no worse than `worst`."""
    if not math.isfinite(value):
        return judge["worst"]
    return max(value, judge["worst"]) if judge["higher"] else min(value, judge["worst"])


def at_cell(runs, cell: Cell, part: str, judge: dict) -> dict:
    """{seed: final value of the metric on a part} of the runs of one cell; of a seed that ran twice, the newest."""
    return {
        run.header.repeat: bounded(run.last(f"{part}_{judge['metric']}"), judge)
        for run in sorted(runs, key=lambda run: run.header.began)
        if (run.config["batch"], run.config["rate"]) == (cell.batch, cell.rate)
        and abs(run.config["warmup_steps"] - cell.warmup_steps) < 1e-3
    }


def better(a: float, b: float, judge: dict) -> float:
    """By how much `a` is better than `b`, in the metric's unit."""
    return a - b if judge["higher"] else b - a


def error(values, judge: dict) -> float:
    """Standard error of a mean over seeds: the test part is one sample shared by all, the seeds are another."""
    spread = np.var(values, ddof=1) / len(values) if len(values) > 1 else 0.0
    return math.sqrt(judge["noise"] ** 2 + spread)


def axes(table: dict) -> Table:
    return Table(**{**table, "batches": tuple(table["batches"])})


def flat_rates(runs, table: Table, rates, judge: dict) -> list:
    """Base rates whose validation value of the tuning seed at the smallest batch is within one `noise` of the best;
    none unless every base rate was tried."""
    found = {}
    for rate in rates:
        value = at_cell(runs, table.path("legw", rate)[0], "validation", judge).get(judge["tuning"])
        if value is None:
            return []
        found[rate] = value
    best = (max if judge["higher"] else min)(found.values(), default=0.0)
    return [rate for rate, value in found.items() if better(best, value, judge) <= judge["noise"]]


def along(runs, table: Table, rates, rule: str, batch: int, judge: dict) -> dict | None:
    """{base rate: test values over the seeds} where a rule arrives at a batch; None if one has too few seeds.

    At the smallest batch every rule starts from the recipe that LEGW starts from, its warm-up included."""
    at = table.batches.index(batch)
    found = {rate: list(at_cell(runs, table.path(rule if at else "legw", rate)[at], "test", judge).values())
             for rate in rates}
    return found if rates and all(len(values) >= judge["seeds"] for values in found.values()) else None


def signs_of(pairs, judge: dict) -> list[int]:
    """+1 where the first values are better by the margin, -1 where the second are, 0 between."""
    signs = []
    for a, b in pairs:
        gap = better(np.mean(a), np.mean(b), judge)
        bound = judge["margin"] * math.hypot(error(a, judge), error(b, judge))
        signs.append(1 if gap >= bound else -1 if gap <= -bound else 0)
    return signs


def missing(what: str, judge: dict) -> Finding:
    return needs(f"{what} from every flat base rate, {judge['seeds']} seeds each")


def ahead(runs, *, select, table, rates, batch, ours, theirs, judge) -> Finding:
    """At `batch`, scaled without retuning, one rule is better than another by the margin."""
    runs, table = chosen(runs, select), axes(table)
    flat = flat_rates(runs, table, rates, judge)
    first, second = (along(runs, table, flat, rule, batch, judge) for rule in (ours, theirs))
    if first is None or second is None:
        return missing(f"{LABELS[ours]} and {LABELS[theirs]} at batch {batch}", judge)
    said = "; ".join(f"{np.mean(first[rate]):.4g} against {np.mean(second[rate]):.4g} from {rate:g}" for rate in flat)
    return counted(signs_of([(first[rate], second[rate]) for rate in flat], judge),
                   f"{judge['metric']} of {LABELS[ours]} against {LABELS[theirs]} at batch {batch}: {said}",
                   2 * len(flat) * judge["seeds"])


def kept(runs, *, select, table, rates, batch, path, judge) -> Finding:
    """The path's value at `batch` is not worse than at the smallest batch by more than the margin, at equal epochs."""
    runs, table = chosen(runs, select), axes(table)
    flat = flat_rates(runs, table, rates, judge)
    large, small = (along(runs, table, flat, path, at, judge) for at in (batch, table.batches[0]))
    if large is None or small is None:
        return missing(f"{LABELS[path]} at batches {table.batches[0]} and {batch}", judge)
    signs = [1 if sign < 1 else -1 for sign in signs_of([(small[rate], large[rate]) for rate in flat], judge)]
    said = "; ".join(f"{np.mean(large[rate]):.4g} at {batch}, {np.mean(small[rate]):.4g} at {table.batches[0]} from "
                     f"{rate:g}" for rate in flat)
    return counted(signs, f"{judge['metric']} of {LABELS[path]}: {said}", 2 * len(flat) * judge["seeds"])


def best_of(runs, solver: str, batch: int, judge: dict) -> tuple | None:
    """(rate, test values over the seeds) of a solver at a batch: the rate that is best for the tuning seed on the
    validation part, without a warm-up."""
    runs = chosen(runs, {"optimizer": solver, "batch": batch, "warmup_steps": 0.0})
    found = {rate: at_cell(runs, Cell(batch, rate, 0.0), "validation", judge) for rate in
             {run.config["rate"] for run in runs}}
    found = {rate: values[judge["tuning"]] for rate, values in found.items() if judge["tuning"] in values}
    if not found:
        return None
    rate = (max if judge["higher"] else min)(sorted(found), key=found.get)
    values = list(at_cell(runs, Cell(batch, rate, 0.0), "test", judge).values())
    return (rate, values, len(found)) if len(values) >= judge["seeds"] else None


def solvers_behind(runs, *, select, table, rates, batch, path, octaves, judge) -> Finding:
    """Every adaptive solver, its rate tuned at `batch` over so many octaves, is worse than the path, which is not
    retuned, by the margin. The signs are counted over solvers and flat base rates."""
    runs, table = chosen(runs, select), axes(table)
    plain = chosen(runs, {"optimizer": "sgd"})
    flat = flat_rates(plain, table, rates, judge)
    ours = along(plain, table, flat, path, batch, judge)
    theirs = {solver: best_of(runs, solver, batch, judge) for solver in ADAPTIVE}
    if ours is None or any(found is None or found[2] < octaves for found in theirs.values()):
        return missing(f"{', '.join(ADAPTIVE)} over {octaves} octaves at batch {batch}, and {LABELS[path]}", judge)
    signs = signs_of([(ours[rate], values) for _, values, _ in theirs.values() for rate in flat], judge)
    said = ", ".join(f"{name} {np.mean(values):.4g} (rate {rate:.3g})" for name, (rate, values, _) in theirs.items())
    mine = ", ".join(f"{np.mean(ours[rate]):.4g} from {rate:g}" for rate in flat)
    return counted(signs, f"{judge['metric']} at batch {batch}, retuned: {said}; {LABELS[path]}, not retuned: {mine}",
                   judge["seeds"] * (len(flat) + len(theirs)))


def sooner(runs, *, select, table, rates, batch, path, at_least, iso, judge) -> Finding:
    """Seconds of training at equal epochs (median), the smallest batch over `batch`, are at least so many; with `iso`,
    over the largest batch at which the path keeps the value from every flat base rate."""
    runs, table = [run for run in chosen(runs, select) if run.header.arms == 1], axes(table)
    flat, first, seconds, values = flat_rates(runs, table, rates, judge), table.batches[0], {}, {}
    for at, size in enumerate(table.batches):
        found = along(runs, table, flat, path, size, judge)
        if found is not None:
            cells = [table.path(path, rate)[at] for rate in flat]
            seconds[size] = float(np.median([run.seconds("train") for run in runs if any(
                at_cell([run], cell, "test", judge) for cell in cells)]))
            values[size] = [found[rate] for rate in flat]
    if first not in seconds or batch not in seconds:
        return missing(f"timed runs of {LABELS[path]} at batches {first} and {batch}", judge)
    if iso:
        batch = max(size for size, ends in values.items()
                    if max(signs_of(zip(values[first], ends, strict=True), judge)) < 1)
    ratio = seconds[first] / seconds[batch]
    said = f"{seconds[first]:.3g} s at batch {first}, {seconds[batch]:.3g} s at batch {batch}: {ratio:.2f} times"
    return Finding("holds" if ratio >= at_least else "not seen",
                   said + " (the largest batch that kept the value)" * iso, judge["seeds"] * len(flat) * len(seconds))


RULES = (ahead, kept, solvers_behind, sooner)
