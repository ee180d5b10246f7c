"""Lab 06's maps of the fastest way over bandwidth and workers, and one row of them against real ranks. Each function
returns (figure, text alternative, data)."""

import math

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap

from labkit.teach import viz
from labs import phase
from labs.talking_figures import amount

AXIS = ("1M", "10M", "100M", "1G", "10G", "100G")  # bytes a second, of `phase.DECADES`


def map_of(job: phase.Job, factors: dict[str, float]):
    """The fastest way over bandwidth and workers and how many times faster than dense it is: per step, to the target
    with the measured `factors`, and to the target among the ways that keep all workers equal."""
    fig, axes = viz.figure(3, 1, width=6.5, height=3.9, sharey=True)
    names, rows = list(phase.WAYS), []
    colours, letters = [viz.PALETTE[n] for n in (7, 0, 4, 2, 1)], ["D", "1", "K", "L", "G"]
    for ax, (title, by, ways) in zip(axes, (("per step", {}, names), ("to the target", factors, names),
                                            ("target, equal workers", factors, phase.EQUAL)), strict=True):
        times = phase.diagram(job, by, bandwidths=phase.DECADES)
        best = times[: len(ways)].argmin(0)
        faster = times[0] / times[: len(ways)].min(0)
        ax.pcolormesh(np.arange(best.shape[1] + 1), np.arange(best.shape[0] + 1), best, cmap=ListedColormap(colours),
                      vmin=-0.5, vmax=len(names) - 0.5, edgecolors="white", linewidth=0.5, alpha=0.45)
        for (row, column), which in np.ndenumerate(best):
            told = f"{letters[which]}\n{times_of(faster[row, column])}"
            ax.text(column + 0.5, row + 0.5, told, ha="center", va="center", fontsize=6.5, linespacing=0.95)
        ax.set_xticks(np.arange(best.shape[1]) + 0.5, AXIS, fontsize=6.5)
        ax.set_yticks(np.arange(best.shape[0]) + 0.5, [str(size) for size in phase.WORKERS])
        ax.set_title(title, fontsize=8.5)
        ax.grid(visible=False)
        for row, size in enumerate(phase.WORKERS):
            told = [f"{letters[which]} {times_of(ratio)}" for which, ratio in zip(best[row], faster[row], strict=True)]
            rows.append({"map": title, "workers": size, **dict(zip(AXIS, told, strict=True))})
    axes[0].set_ylabel("workers")
    axes[1].set_xlabel("bandwidth, bytes a second")
    key = ", ".join(f"{letter} {name}" for letter, name in zip(letters, names, strict=True))
    fig.supxlabel(f"{key}; the number: how many times faster than dense", fontsize=7.5)
    table = pd.DataFrame(rows)
    told = "; ".join(f"{row[1]}, {row[2]} workers: {', '.join(row[3:])}" for row in table.itertuples()
                     if row[2] in (4, 128))
    return fig, f"{key}; times faster than dense. From 1 MB/s to 100 GB/s: {told}.", table


def times_of(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def in_words(table: pd.DataFrame) -> str:
    """How far `map_of`'s maps of the step and of the target differ, and by how much the target's winners are ahead."""
    here, there = (table.loc[table["map"] == title, [*AXIS]] for title in ("per step", "to the target"))
    first, second = ([cell.split()[0] for cell in part.to_numpy().flatten()] for part in (here, there))
    changed = sum(one != other for one, other in zip(first, second, strict=True))
    ahead = {name: [float(cell.split()[1]) for cell in there[name]] for name in (AXIS[0], AXIS[-1])}
    spans = (f"{min(times):g} to {max(times):g} times at {name} bytes a second" for name, times in ahead.items())
    return (f"The left map and the middle one differ in {changed} of {len(first)} cells. Local SGD is the fastest in "
            f"{second.count('L')} of the middle one's. The fastest way is ahead of dense {', '.join(spans)}.")


def row_of(size: int, job: phase.Job, table: pd.DataFrame, source: str):
    """One row of the map, for `size` real ranks: the seconds per step that the model predicts with the constants of
    `job`, against bandwidth, and what was measured at some points."""
    fig, ax = viz.figure(width=6.5, height=3.6)
    bandwidths, ways = np.geomspace(1e6, 1e11, 41), list(phase.WAYS)
    waits = phase.waiting(size, job)
    paths = [phase.step_seconds(size, bandwidth, job, waits) for bandwidth in bandwidths]
    ends = []
    for at, way in enumerate(ways):
        colour = viz.SERIES[at]
        path = [1e3 * point[way] for point in paths]
        ax.plot(bandwidths, path, color=colour, linestyle=viz.LINES[at % 4], marker="")
        rows = table[table["way"] == way]
        ax.plot(rows["bandwidth"], 1e3 * rows["measured"], color=colour, marker=viz.MARKERS[at], linestyle="")
        ends.append((path[-1], way, colour))
    ax.set(xscale="log", yscale="log", xlim=(bandwidths[0], bandwidths[-1] * 120), ylabel="ms a step",
           xlabel=f"bandwidth, bytes a second ({size} ranks)")
    ax.set_xticks(phase.DECADES, AXIS)
    ax.minorticks_off()
    ax.text(0.98, 0.97, "lines: the model\nmarkers: measured", transform=ax.transAxes, ha="right", va="top", fontsize=8,
            color="#555555")
    low, high = np.log(ax.get_ylim())
    below = -math.inf
    for y, way, colour in sorted(ends):
        below = max(math.log(y), below + 0.06 * (high - low))
        ax.annotate(way, (bandwidths[-1], y), xytext=(bandwidths[-1] * 1.5, math.exp(below)), textcoords="data",
                    fontsize=8, va="center", color=colour)
    alt = "; ".join(f"{amount(row.bandwidth)}/s, {row.way}: predicted {1e3 * row.predicted:.3g} ms, measured "
                    f"{1e3 * row.measured:.3g}" for row in table.itertuples())
    return fig, f"{size} ranks. Lines: the map's model; markers: measured ({source}). {alt}.", table
