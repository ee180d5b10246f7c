"""Figures of the public logs, yours and the recorded runs of lab 11 beside them: (figure, text alternative, data) each.

Grey is public, blue is recorded, orange is yours. `groups` is a list of (name, runs, colour) of your own kind of runs.
When not to use them: for runs of several recipes in one group.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.runs import Run
from labkit.teach import viz
from labkit.tta import statistics
from labs import public, times

Groups = Sequence[tuple[str, Sequence[Run], str]]
INK, PALE = viz.LITERATURE, "#c9c9c9"
SHAPES = dict(zip(public.TASKS, ("s", "o", "^")))
ROUNDS = {"v0.5": "o", "v0.6": "s", "v0.7": "^"}
ORDER = ("resnet", "ssd", "dlrm", "bert", "gnmt", "transformer", "ncf")
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
DOTS = {"linestyle": "", "markersize": 4}
DASHED = {"color": "black", "linewidth": 0.9, "linestyle": "--"}


def told(seconds: float) -> str:
    """Seconds as a person says them."""
    size, unit = next((pair for pair in UNITS if seconds >= 1.5 * pair[0]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def short(entry: str, length: int = 24) -> str:
    """The name of an entry without what repeats."""
    name = re.sub(r"_?(pytorch|resnet50|machine|modelarts|custom|BAIDU-USA-GAIT|braincloud)(?=[_-]|$)", "", entry)
    name = name.replace("tensorflow", "tf").replace("-_", "_").strip("_-")
    return name if len(name) <= length else name[: length - 1] + "…"


def progress_figure(table: pd.DataFrame):
    """Speed-up of the fastest entry so far over the seed, against date; the results post's figure as a cross."""
    best, words = public.progress(table), []
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=2.6)
    end = table["date"].max()
    for task, line in zip(public.TASKS, viz.LINES):
        rows, seed = best[best["task"] == task], None
        seed = rows.iloc[0]["seconds"]
        others = table[(table["task"] == task) & table["tta_seconds"].notna()]
        ax.plot(others["date"], seed / others["tta_seconds"], color=PALE, marker=SHAPES[task], **DOTS)
        days, height = [*rows["date"], end], [*rows["speed-up"], rows["speed-up"].iloc[-1]]
        ax.step(days, height, where="post", color=INK, marker="", linestyle=line)
        ax.plot(rows["date"], rows["speed-up"], color=INK, marker=SHAPES[task], **DOTS)
        last = rows.iloc[-1]
        viz.direct_label(ax, end, height[-1], f"{task}\n{last['speed-up']:,.0f} x", "black")
        words.append(
            f"{task}: seed {told(seed)}, fastest {told(last['seconds'])} ({last['date']:%B %Y}), a factor of "
            f"{last['speed-up']:,.0f}"
        )
    ax.plot(pd.Timestamp("2018-04-30"), 477, color="black", marker="X", linestyle="", markersize=7, zorder=4)
    at = (pd.Timestamp("2018-04-30"), 477)
    ax.annotate('"477x"\n(post)', at, (-8, 6), textcoords="offset points", ha="right", fontsize=8)
    ax.set_yscale("log")
    ax.set(ylabel="times as fast as the seed", xlim=(pd.Timestamp("2017-09-01"), end + pd.Timedelta(days=170)))
    ax.set_title("DAWNBench: fastest so far (line), every entry (pale)")
    return fig, "; ".join(words) + ".", best.assign(date=best["date"].dt.date, entry=best["entry"].map(short)).round(1)


def variation_figure(found: pd.DataFrame, more: Sequence[tuple]):
    """Variation with its interval, a column a task; `more`: (name, `Interval`, colour) of other sets of runs."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.2)
    names = [task for task in ORDER if task in set(found["task"])]
    floor = 4e-4
    for place, task in enumerate(names):
        rows = found[found["task"] == task].sort_values("variation")
        spread = np.linspace(-0.33, 0.33, len(rows)) if len(rows) > 1 else [0.0]
        for x, row in zip(spread, rows.itertuples()):
            ax.plot([place + x] * 2, [max(row.low, floor), min(row.high, 2)], color=PALE, marker="", linestyle="-")
            ax.plot(place + x, max(row.variation, floor), color=INK, marker=ROUNDS[row.round], **DOTS)
    for place, (_, spread, colour) in enumerate(more, len(names)):
        ax.plot([place] * 2, [max(spread.low, floor), min(spread.high, 2)], color=colour, marker="", linestyle="-")
        ax.plot(place, spread.value, color=colour, marker="D", **DOTS)
    ax.axhline(0.15, **DASHED)
    ax.text(1.01, 0.15, 'our bound\nfor "low"', fontsize=8, va="center", transform=ax.get_yaxis_transform())
    ax.set_xticks(range(len(names) + len(more)), [*names, *(name for name, _, _ in more)], rotation=25, ha="right")
    ax.set_yscale("log")
    ax.set(ylim=(floor, 2), ylabel="variation (sd / mean), 95 %", xlim=(-0.7, len(names) + len(more) - 0.3))
    shapes = "circle v0.5, square v0.6, triangle v0.7"
    ax.set_title(f"MLPerf systems by task ({shapes}), and others", fontsize=9)
    below, sure = (int((found[name] <= 0.15).sum()) for name in ("variation", "high"))
    medians = found.groupby("task")["variation"].median()
    alt = (
        f"{below} of {len(found)} MLPerf systems vary by at most 0.15, {sure} with their whole interval; medians "
        "by task: "
        + ", ".join(f"{task} {medians[task]:.3f}" for task in names)
        + "".join(f"; {name} {s.value:.3f} [{s.low:.3f}, {s.high:.3f}], n = {s.n}" for name, s, _ in more)
    )
    columns = ["task", "system", "reached", "variation", "low", "high"]
    return fig, alt + ".", found[columns].sort_values("variation", ascending=False).head(12)


def evaluations_figure(table: pd.DataFrame, found: pd.DataFrame, name: str):
    """Seconds against evaluations of one set (left); the share of the variance that it explains (right)."""
    fig, (left, right) = viz.figure(columns=2, height=2.4)
    rows = public.one_set(table, name)
    rows = rows[rows["converged"]]
    aside = 0.3 * np.linspace(-1, 1, len(rows)) if len(rows) > 20 else 0.0
    left.plot(rows["evaluations"] + aside, rows["seconds"], color=INK, marker="o", **DOTS)
    left.set(
        xlabel="evaluations until the run stopped", ylabel="seconds", title=name.partition(" (")[0], ylim=(0, None)
    )
    left.xaxis.get_major_locator().set_params(integer=True)
    shown = found.dropna(subset="share")
    for row in shown.itertuples():
        right.plot(row.variation, row.share, color=INK, marker=ROUNDS[row.round], **DOTS)
    low = min(shown["share"].min(), 0.0) - 0.1
    right.axhline(0, color="black", linewidth=0.7)
    right.axhline(0.9, **DASHED)
    right.text(0.195, 0.87, "90 %", fontsize=8, ha="right", va="top")
    right.set(xlabel="variation of the seconds", ylabel="only which evaluation", ylim=(low, 1.05), xlim=(0, 0.2))
    right.set_title("share of the variance")
    high, one = int((shown["share"] >= 0.9).sum()), int((found["evaluation counts"] == 1).sum())
    alt = (
        f"{name}: {rows['evaluations'].min():.0f} to {rows['evaluations'].max():.0f} evaluations, "
        f"{rows['seconds'].min():.0f} to "
        f"{rows['seconds'].max():.0f} s. Of {len(shown)} systems whose runs stopped at unequal counts, {high} owe "
        "90 % or more of "
        f"their variance to the count alone (corrected for chance; median {shown['share'].median():.0%}); in "
        f"{one} more all runs "
        "passed at the same evaluation."
    )
    columns = ["task", "system", "variation", "evaluation counts", "share"]
    return fig, alt, shown[columns].sort_values("share").head(10)


def at_threshold(grid: pd.DataFrame, official: float, task: str, moved: float) -> pd.Series:
    """Seconds by entry at the threshold of the grid that is nearest to `moved` points from the official one."""
    rows = grid[grid["task"] == task]
    values = np.sort(rows["threshold"].unique())
    wanted = official + moved / public.POINTS.get(task, 1.0)
    nearest = values[np.abs(values - wanted).argmin()]
    return rows[rows["threshold"] == nearest].set_index("entry")["seconds"].rename(nearest).sort_values()


def leaderboard_figure(grid: pd.DataFrame, table: pd.DataFrame, task: str, moved: float, count: int = 8):
    """The leader board of a task as it would be at another threshold, with each entry's rank at the official one."""
    official = table.loc[table["task"] == task, "threshold"].iloc[0]
    now, before = (at_threshold(grid, official, task, shift) for shift in (moved, 0.0))
    ranks, shown = before.rank(method="min"), now[np.isfinite(now)].head(count)
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=2.6)
    for place, (entry, seconds) in enumerate(shown.items()):
        then = f"{ranks[entry]:.0f}" if math.isfinite(before[entry]) else "miss"
        changed = then != f"{place + 1}"
        ax.plot(seconds, place, color="black" if changed else INK, marker="D" if changed else "o", **DOTS)
        ax.annotate(
            f"{told(seconds)} (was {then})",
            (seconds, place),
            (7, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    ax.set_yticks(range(len(shown)), [f"{place + 1}  {short(entry)}" for place, entry in enumerate(shown.index)])
    ax.set_xscale("log")
    ax.set(
        ylim=(len(shown) - 0.4, -0.6), xlabel="seconds to the threshold; black: another rank than at the official one"
    )
    ax.set_xlim(shown.min() * 0.7 if len(shown) else 1, shown.max() * 4 if len(shown) else 10)
    if shown.empty:
        ax.text(0.5, 0.5, "no entry reaches it", transform=ax.transAxes, ha="center", va="center")
    wanted = official + moved / public.POINTS.get(task, 1.0)
    drawn = f"{now.name:g}" + ("" if math.isclose(now.name, wanted) else f", the nearest in the table to {wanted:g}")
    ax.set_title(f"{task} at {drawn} (official {official:g})")
    missed = int(np.isinf(now).sum())
    first = f"first is {shown.index[0]} with {told(shown.iloc[0])}" if len(shown) else "no entry reaches it"
    tau = statistics.rank_agreement(now.to_dict(), before.to_dict())
    tau = "undefined" if math.isnan(tau) else f"{tau:.2f}"
    alt = (
        f"{task} at threshold {drawn}: {first}; {missed} of {len(now)} entries miss; Kendall tau with the "
        f"official ranking {tau}."
    )
    data = pd.DataFrame(
        {"entry": shown.index, "seconds": shown.to_numpy(), "official rank": ranks[shown.index].to_numpy()}
    )
    return fig, alt, data


def ranks_figure(grid: pd.DataFrame, table: pd.DataFrame, task: str = "ImageNet", count: int = 6):
    """Ranks of the officially fastest entries against the threshold (left); tau-b with the official ranking (right)."""
    fig, (left, right) = viz.figure(columns=2, height=2.6, width_ratios=[5, 4])
    rows = grid[grid["task"] == task].pivot(index="threshold", columns="entry", values="seconds")
    official = table.loc[table["task"] == task, "threshold"].iloc[0]
    ranks = rows.rank(axis=1, method="min").where(np.isfinite(rows))
    first = rows.loc[official].sort_values().index[:count]
    for place, entry in enumerate(first):
        shade, line = ("black", "-") if place < 2 else (INK, viz.LINES[place % 4])
        left.plot(ranks.index, ranks[entry], color=shade, marker="", linestyle=line, linewidth=1.2)
        viz.direct_label(left, official + 0.05, place + 1, short(entry), shade)
    left.axvline(official, **DASHED)
    left.set(
        ylim=(ranks[first].max().max() + 0.6, 0.4),
        xlabel="threshold",
        ylabel="rank",
        title=f"{task}: the {count} fastest",
    )
    left.grid(axis="y", visible=False)  # the names stand there
    left.set_xlim(rows.index.min() - 0.2, official + 3.6)
    left.set_xticks([t for t in rows.index if t <= official and t % 1 == 0])
    found = public.agreement(grid, table)
    words = []
    for name, line in zip(public.TASKS, viz.LINES):
        part = found[found["task"] == name].dropna(subset="tau")  # no tau where no entry is left
        right.plot(part["moved"], part["tau"], color=INK, marker=SHAPES[name], markersize=3.5, linestyle=line)
        viz.direct_label(right, part["moved"].iloc[-1], part["tau"].iloc[-1], name, "black")
        low = part.loc[part["tau"].idxmin()]
        words.append(
            f"{name}: lowest tau {low['tau']:.2f} at {low['threshold']:g}, where {low['reached']:.0f} of "
            f"{low['entries']:.0f} reach"
        )
    right.set(xlabel="threshold moved by (points)", ylabel="tau-b", ylim=(-0.45, 1.05), title="agreement with official")
    right.axhline(0, color="black", linewidth=0.7)
    right.set_xlim(-5.3, 5)
    movers = [f"{short(e)} {ranks[e].max():.0f} to {ranks[e].min():.0f}" for e in first[:4]]
    return (
        fig,
        f"Ranks over the thresholds, worst to best: {', '.join(movers)}. {'; '.join(words)} (misses tied for last).",
        found[found["moved"].abs() <= 1.0],
    )


def margins_figure(table: pd.DataFrame, groups: Groups):
    """Points above the target at the first hit and at the end, an entry a mark; own runs beside them (those beyond the
    axes at their edge).
    """
    fig, ax = viz.figure(height=3.0)
    known, parts, rows = table.dropna(subset=public.MARGINS), [], []
    for task, group in known.groupby("task"):
        ax.plot(group["margin at hit"], group["final margin"], color=INK, marker=SHAPES[task], alpha=0.7, **DOTS)
    for name, runs, colour in groups:
        target, pairs = times.at(runs[0])["value"], []
        for steps, values in map(times.curve, runs):
            hits = np.flatnonzero(values >= target)
            pairs += [(100 * (values[hits[0]] - target), 100 * (values[-1] - target))] if len(hits) else []
        ax.plot(
            *np.minimum(pairs or [(math.nan, math.nan)], (1.95, 6.8)).T, color=colour, marker="D", alpha=0.7, **DOTS
        )
        below = sum(end < -1e-9 for _, end in pairs)
        parts.append(f"{name}: {below} of {len(pairs)} end below")
        rows.append({"runs": name, "n": len(pairs), "ends below": below})
    ax.axhline(0, **DASHED)
    ax.text(
        0.99, 0.02, "below the line: the last row misses the target", transform=ax.transAxes, ha="right", fontsize=8
    )
    ax.set(
        xlabel="points above the target at the first hit",
        ylabel="points above it at the end",
        xlim=(-0.1, 2),
        ylim=(-2, 7),
    )
    ax.set_title("a mark is a run: square ImageNet, circle CIFAR10,\ntriangle SQuAD, diamond ours", fontsize=9)
    again, ends = (
        int(table["flags"].fillna("").str.contains(flag).sum()) for flag in ("falls-below-again", "ends-below")
    )
    alt = (
        f"Of {len(table)} DAWNBench entries {again} fall below their target again after the first hit and {ends} end "
        "below it; "
    )
    flagged = {"falls again": "falls-below-again", "ends below": "ends-below"}
    by_task = table.assign(**{name: table["flags"].fillna("").str.contains(flag) for name, flag in flagged.items()})
    by_task = by_task.groupby("task")[list(flagged)]
    data = by_task.sum().assign(n=by_task.size()).reset_index().rename(columns={"task": "runs"})
    return fig, alt + "; ".join(parts) + ".", pd.concat([data, pd.DataFrame(rows)], ignore_index=True)
