"""Rules about the DAWNBench entries, judged on the tables of `data/published`. numpy and pandas only.

The margins stand in the claims; they were written before a number was derived. No rule needs a run of yours.
"""

import math

import numpy as np
import pandas as pd

from labkit.rules.finding import Finding, needs
from labkit.rules.general import published
from labkit.tta import statistics


def first_row_at_target(runs, *, table, thresholds, entries, exact) -> Finding:
    """Every entry's time is that of the first row with metric >= target: nothing below the target was timed, the grid
    of thresholds gives the same seconds at the target, and the entries named in `exact`, which meet it exactly, count.
    """
    rows, grid = published(table), published(thresholds)
    if len(rows) < entries:
        return needs(f"all {entries} training entries")
    at_target = rows.merge(grid, on=["task", "entry", "threshold"], how="left")
    seconds = at_target.tta_seconds.fillna(math.inf)
    hit = rows.tta_seconds.notna()
    wrong = {
        "timed below the target": int((rows.metric_at_hit[hit] < rows.threshold[hit]).sum()),
        "other seconds on the grid": int((seconds != at_target.seconds).sum()),
        "exact hits not counted": sum(
            not (rows.metric_at_hit == rows.threshold)[rows.entry == name].any() for name in exact
        ),
    }
    evidence = f"{len(rows)} entries, {int(hit.sum())} with a time; " + ", ".join(
        f"{n} {what}" for what, n in wrong.items()
    )
    return Finding("contradicted" if any(wrong.values()) else "holds", evidence)


def rounded_up(runs, *, table) -> Finding:
    """The time that is displayed lies 0 to 1 second (1 excluded, to the millisecond) above the time that was filed."""
    rows = published(table).dropna(subset="tta_seconds")
    shown = [60 * (60 * int(h) + int(m)) + int(s) for h, m, s in rows.displayed_time.str.split(":")]
    above = np.array(shown) - rows.tta_seconds.round(3).to_numpy()
    nearest = int((np.round(rows.tta_seconds) != shown).sum())
    evidence = (
        f"{len(rows)} times, 0 to {above.max():.3f} s above; rounded to the nearest second {nearest} would show less"
    )
    return Finding("holds" if (above >= -1e-9).all() and (above < 1).all() else "contradicted", evidence)


def fastest_under(runs, *, table, task, bound) -> Finding:
    """The fastest entry of a task took less than `bound` seconds."""
    rows = published(table)
    rows = rows[(rows.task == task) & rows.tta_seconds.notna()]
    if rows.empty:
        return needs(f"{task} entries")
    best = rows.loc[rows.tta_seconds.idxmin()]
    under = int((rows.tta_seconds < bound).sum())
    evidence = f"{best.entry} ({best.date}): {best.tta_seconds:.1f} s; {under} of {len(rows)} entries under {bound} s"
    return Finding("holds" if best.tta_seconds < bound else "contradicted", evidence)


def seeds_and_best(rows: pd.DataFrame, task: str, seed: str, until: str) -> tuple:
    """Seed entries (their names begin with `seed`), fastest first, and the fastest entry, all filed by `until`."""
    rows = rows[(rows.task == task) & rows.tta_seconds.notna() & rows.date.notna() & (rows.date.fillna("9") <= until)]
    rows = rows.sort_values("tta_seconds")
    return rows[rows.entry.str.startswith(seed)], rows.head(1)


def faster_than_seed(runs, *, table, task, seed, until, at_least) -> Finding:
    """By `until`, the fastest entry was `at_least` times as fast as the fastest seed entry; contradicted below half of
    that.
    """
    rows = published(table)
    seeds, best = seeds_and_best(rows, task, seed, until)
    if seeds.empty:
        return needs(f"seed entries of {task}")
    times, ratio = seeds.tta_seconds, float(seeds.tta_seconds.iloc[0] / best.tta_seconds.iloc[0])
    last = seeds_and_best(rows, task, seed, "9")[1]
    evidence = (
        f"{best.entry.iloc[0]} against the seeds by {until}: {ratio:.0f} times (fastest seed), "
        f"{times.iloc[-1] / best.tta_seconds.iloc[0]:.0f} times (slowest); "
        f"by the last entry {times.iloc[0] / last.tta_seconds.iloc[0]:.0f} times"
    )
    return Finding("holds" if ratio >= at_least else "contradicted" if ratio < at_least / 2 else "not seen", evidence)


def quoted_speedup(runs, *, table, task, seed, until, quoted, tolerance, far, quoted_hours) -> Finding:
    """Fastest seed over fastest entry by `until` is the `quoted` ratio within `tolerance`; contradicted beyond the
    relative distance `far`. What the quoted hours of the seed would give stands beside it.
    """
    seeds, best = seeds_and_best(published(table), task, seed, until)
    if seeds.empty:
        return needs(f"seed entries of {task}")
    slow, fast = float(seeds.tta_seconds.iloc[0]), float(best.tta_seconds.iloc[0])
    ratio, off = slow / fast, quoted_hours * 3600 / fast
    evidence = (
        f"{seeds.entry.iloc[0]} {slow / 3600:.3f} h over {best.entry.iloc[0]} {fast / 60:.2f} min: "
        f"{ratio:.1f} times; the post's "
        f"{quoted_hours:g} h for its seed would give {off:.1f} and differ from "
        f"the filed time by {quoted_hours - slow / 3600:+.2f} h"
    )
    gap = abs(ratio - quoted)
    return Finding("holds" if gap <= tolerance else "contradicted" if gap > far * quoted else "not seen", evidence)


def ranks_move(runs, *, table, targets, within, tau, entries, tasks) -> Finding:
    """Kendall's tau-b between the ranks at a task's target and at a threshold at most `within` of it away, among the
    `entries` or more that reach both, is `tau` or less somewhere in at least `tasks` tasks; contradicted if in none.
    """
    grid, worst = published(table), {}
    for task, target in targets.items():
        wide = grid[grid.task == task].pivot(index="entry", columns="threshold", values="seconds")
        for threshold in wide.columns:
            if not 0 < abs(threshold - target) <= within[task] + 1e-9:
                continue
            both = wide[[target, threshold]].replace(math.inf, math.nan).dropna()
            if len(both) >= entries:
                found = statistics.rank_agreement(both[target], both[threshold])
                worst[task] = min(worst.get(task, (2.0,)), (found, threshold, len(both)))
    if len(worst) < len(targets):
        return needs(f"{entries} entries that reach two thresholds, in each task")
    moved = sum(found <= tau for found, *_ in worst.values())
    told = [f"{task}: {found:.3f} at {threshold:g} ({n} entries)" for task, (found, threshold, n) in worst.items()]
    evidence = f"smallest tau-b against the target's ranks: {'; '.join(told)}; bound {tau}"
    return Finding("holds" if moved >= tasks else "not seen" if moved else "contradicted", evidence)


def fall_below(runs, *, table, entries, least) -> Finding:
    """At least `least` curves fall below the target again after they met it; contradicted if none does."""
    rows = published(table)
    if len(rows) < entries:
        return needs(f"all {entries} training entries")
    count = int(rows.falls_below_again.sum())
    end = int(rows["flags"].map(lambda flags: "ends-below" in str(flags).split(";")).sum())
    evidence = f"{count} of {len(rows)} curves fall below the target again, {end} end below it"
    return Finding("holds" if count >= least else "not seen" if count else "contradicted", evidence)


def price_times_latency(runs, *, table, train, tolerance, least) -> Finding:
    """Cost over latency is an hourly price that training entries filed for the same hardware, within `tolerance`; where
    no training entry names the hardware nothing can be said. Contradicted if fewer than half of the rest agree.
    """
    rows, filed = published(table).dropna(subset=["cost_usd"]), published(train).dropna(subset=["cost_usd"])
    filed = filed.assign(
        price=filed.cost_usd / filed.tta_seconds * 3600, kit=filed.hardware.str.lower().str.split().str.join(" ")
    )
    known = filed.groupby("kit").price.apply(list).to_dict()
    agree, asked, off = 0, 0, []
    for row in rows.itertuples():
        price = row.cost_usd / row.latency_ms * 3.6e6
        others = known.get(" ".join(row.hardware.lower().split()), [])
        asked += bool(others)
        if any(abs(price - other) <= tolerance * other for other in others):
            agree += 1
        elif others:
            off.append(
                f"{row.entry} ${price:.3g}/h, filed {', '.join(f'{other:.3g}' for other in sorted(set(others)))}"
            )
    if asked < least:
        return needs(f"{least} inference entries on hardware with a filed price ({asked} of {len(rows)} priced ones)")
    evidence = (
        f"{agree} of {asked} agree with a filed price ({len(rows) - asked} on hardware without one); "
        f"off: {'; '.join(off) or 'none'}"
    )
    return Finding("holds" if agree == asked else "contradicted" if agree < asked / 2 else "not seen", evidence)


RULES = (
    first_row_at_target,
    rounded_up,
    fastest_under,
    faster_than_seed,
    quoted_speedup,
    ranks_move,
    fall_below,
    price_times_latency,
)
