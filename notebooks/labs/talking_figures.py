"""Figures of lab 06. Each function returns (figure, text alternative, data); recorded runs are blue, yours orange."""

import math

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from labkit.teach import viz
from labkit.training import gossip
from labs import compression_extras, compressors, mix_ranks, phase, talking

COLOURS = {"recorded": viz.RECORDED, "yours": viz.YOURS}


def amount(count: float) -> str:
    """Bytes in words: 830 B, 3.5 kB, 102 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def seconds(value: float) -> str:
    """With its unit: 3.4 ms."""
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if value >= size), ("us", 1e-6))
    return f"{value / size:.3g} {unit}"


def said(density: float, tau: int, levels: int, megabytes_a_second: float, workers: int, job: phase.Job | None = None):
    """Bytes that a worker sends per step, and the seconds that they take."""
    job = job or phase.Job()
    n, rows = job.words, []
    wires = {"dense": (4 * n, True, 1), "fp16": (2 * n, True, 1),
             "1-bit": (compressors.size("onebit", n, job.rows), False, 1),
             f"QSGD, {levels} levels": (compressors.size("qsgd", n, levels=levels), False, 1),
             "TernGrad": (compressors.size("terngrad", n), False, 1),
             f"top-k {100 * density:g} %": (compressors.size("topk", n, density=density), False, 1),
             f"local SGD, tau {tau}": (4 * n, True, tau)}
    for name, (wire, closed, period) in wires.items():
        sent = talking.on_wire(wire, workers, closed) / period
        rows.append({"method": name, "wire": wire, "bytes a step": sent})
    table = pd.DataFrame([*rows, {"method": "gossip, one-peer", "wire": 4 * n, "bytes a step": 4 * n}])
    table["seconds a step"] = table["bytes a step"] / (1e6 * megabytes_a_second)
    fig, ax = viz.figure(width=6.5, height=3.0)
    spots = np.arange(len(table))[::-1]
    ax.barh(spots, table["bytes a step"], color=viz.SERIES[0], height=0.62)
    for spot, row in zip(spots, table.itertuples(), strict=True):
        ax.text(row[3] * 1.12, spot, f"{amount(row[3])}, {seconds(row[4])}", va="center", fontsize=8)
    ax.set_yticks(spots, table["method"])
    ax.set(xscale="log", xlim=(table["bytes a step"].min() / 3, table["bytes a step"].max() * 12),
           xlabel="bytes that a worker sends per step")
    ax.grid(axis="y", visible=False)
    told = "; ".join(f"{row.method} {amount(row[3])}, {seconds(row[4])}" for row in table.itertuples())
    head = f"{n / 1e6:.3g} million words, {workers} workers, {megabytes_a_second:g} MB/s: per step and worker"
    return fig, f"{head} {told}.", table


def place_labels(fig, ax, entries) -> None:
    """A label beside each of `entries` (x, y, text, colour), where it covers no line, no other label and no border: of
    some places around the point the one that covers least, with a thin line to it if it is far."""
    fig.draw_without_rendering()
    boxes = [Bbox.from_extents(*(part.min(0) - 4), *(part.max(0) + 4))
             for part in (ax.transData.transform(line.get_xydata()) for line in ax.lines)]
    inside, near = ax.get_window_extent(), [(side * 7, 0.0) for side in (1, -1)] + [(0, 11), (0, -11)]
    places = near + [(side * 9 * step, up * 11 * step) for step in (1, 2, 3) for up in (1, -1) for side in (1, -1)]
    for x, y, text, colour in entries:
        best = None
        for right, up in places:
            label = ax.annotate(text, (x, y), xytext=(right, up), textcoords="offset points", fontsize=7.5,
                                color=colour, va="center", ha={0: "center", 1: "left", -1: "right"}[np.sign(right)],
                                arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6}
                                if abs(up) > 15 else None)
            label.update_positions(fig.canvas.get_renderer())
            box = Text.get_window_extent(label).padded(2)  # without the line to the point
            covered = sum(_common(box, other) for other in boxes) + 10 * (box.width * box.height - _common(box, inside))
            if best is None or covered < best[0] - 1e-6:
                if best:
                    best[1].remove()
                best = (covered, label, box)
            else:
                label.remove()
            if best[0] <= 0:
                break
        boxes.append(best[2])


def _common(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return both.width * both.height if both else 0.0


def accuracy_bytes(tables: dict[str, pd.DataFrame]):
    """Test accuracy at the tuned rate against bytes a step, of every compressor: {"recorded" or "yours": table}."""
    fig, ax = viz.figure(width=6.5, height=4.0)
    parts, names = [], {}
    for source, table in tables.items():
        for row in table.rename(columns={"bytes a step": "sent"}).itertuples():
            ax.plot([row.sent] * 2, [100 * row.low, 100 * row.high], color=COLOURS[source], linewidth=1, marker="",
                    linestyle="-")
            ax.plot([row.sent], [100 * row.test], color=COLOURS[source], marker="o" if source == "recorded" else "s",
                    linestyle="")
            names.setdefault(row.case, (row.sent, 100 * row.test, row.case, COLOURS[source]))
        parts.append(f"{source}: " + "; ".join(f"{row.case} {100 * row.test:.1f} % at {amount(row[-1])}"
                                               for row in table[["case", "test", "bytes a step"]].itertuples()))
    for at, source in enumerate(tables):
        ax.text(0.98, 0.04 + 0.06 * at, source, color=COLOURS[source], fontsize=8, ha="right", transform=ax.transAxes)
    both = pd.concat([table.assign(source=source) for source, table in tables.items()])
    ax.set(xscale="log", xlabel="bytes that a worker sends per step", ylabel="test accuracy, %",
           xlim=(both["bytes a step"].min() / 3, both["bytes a step"].max() * 3))
    ax.margins(y=0.12)
    place_labels(fig, ax, sorted(names.values(), key=lambda entry: -entry[1]))
    return fig, f"Accuracy against bytes, rates tuned. {'. '.join(parts)}.", both


def periods(tables: dict[str, pd.DataFrame]):
    """Test accuracy at the tuned rate against the period, of averaging and of the elastic centre."""
    fig, ax = viz.figure(width=5.6, height=3.2)
    told, last = [], []
    for source, table in tables.items():
        for way, line, marker in (("averaging", "-", "o"), ("elastic", "--", "s")):
            rows = table[table["case"] == way].sort_values("tau")
            ax.plot(rows["tau"], 100 * rows["test"], color=COLOURS[source], linestyle=line, marker=marker)
            told.append(f"{source}, {way}: " + ", ".join(f"tau {row.tau:g} {100 * row.test:.1f} %"
                                                         for row in rows.itertuples()))
            last.append((100 * rows["test"].iloc[-1], rows["tau"].iloc[-1], f"{way}, {source}", COLOURS[source]))
    gap, below = 0.05 * max(1.0, np.ptp([y for line in ax.lines for y in line.get_ydata()])), -math.inf
    for y, x, text, colour in sorted(last):
        below = max(y, below + gap * 1.3)
        ax.annotate(text, (x, y), xytext=(x * 1.12, below), textcoords="data", fontsize=8, va="center", color=colour)
    taus = sorted({tau for table in tables.values() for tau in table["tau"]})
    viz.log2_axis(ax, taus, "steps between two averages, tau")
    ax.set(ylabel="test accuracy, %", xlim=(taus[0] / 1.15, taus[-1] * 4.5))
    frames = [table.assign(source=source) for source, table in tables.items()]
    return fig, f"Rates tuned at each period. {'; '.join(told)}.", pd.concat(frames)


def union(table: pd.DataFrame, density: float, real: pd.DataFrame | None = None, real_density: float = 0.01):
    """The union of sparse gradients: by formula, counted with independent places, and of real gradients."""
    fig, ax = viz.figure(width=5.6, height=3.1)
    sizes = np.geomspace(2, 128, 60)
    for each, colour in ((density, viz.LITERATURE), (real_density, viz.LITERATURE)):
        ax.plot(sizes, compression_extras.union_density(each, sizes), color=colour, marker="", linestyle="-")
        viz.direct_label(ax, 128, compression_extras.union_density(each, 128), f"formula, {100 * each:g} %", colour)
    ax.plot(table["P"], table["union"], color=viz.YOURS, marker="s", linestyle="")
    ax.text(table["P"].iloc[-2] * 1.12, table["union"].iloc[-2] - 0.05, f"counted, {100 * density:g} %", fontsize=8,
            color=viz.YOURS)
    ax.axhline(0.5, color="#999999", linewidth=0.8, linestyle=":", marker="")
    ax.text(2, 0.515, "above: dense is fewer bytes", fontsize=8, color="#555555")
    border = compression_extras.dense_from(density)
    alt = (f"With {100 * density:g} % each, P* = {border:.1f}. Counted: "
           + ", ".join(f"P = {row.P:g}: {row.union:.3f}" for row in table.itertuples()) + ".")
    if real is not None and len(real):
        means = real.groupby("P", as_index=False)["union"].mean()
        ax.plot(means["P"], means["union"], color=viz.YOURS, marker="^", linestyle="")
        viz.direct_label(ax, means["P"].iloc[-1], means["union"].iloc[-1] - 0.015, "real gradients, 1 %", viz.YOURS)
        alt += f" Real gradients at {100 * real_density:g} %: " + ", ".join(
            f"P = {row.P:g}: {row.union:.3f}" for row in means.itertuples()) + "."
    viz.log2_axis(ax, [2, 4, 8, 16, 32, 64, 128], "workers P")
    ax.set(ylabel="share of entries in the sum", xlim=(1.8, 420), ylim=(0, 1))
    return fig, alt, table


def disagreement(size: int = 16, rounds: int = 24):
    """How far workers are from their mean, round by round without gradients, on every graph."""
    fig, ax = viz.figure(width=5.6, height=3.2)
    rows = []
    for at, (name, make) in enumerate(gossip.TOPOLOGIES.items()):
        matrices = make(size) if name == "one-peer" else [make(size)]
        path = np.array(mix_ranks.decay_alone(matrices, rounds))
        path = np.maximum(path / path[0], 1e-16)
        keep = np.arange(len(path)) <= (int((path > 1e-15).argmin()) if path.min() <= 1e-15 else len(path))
        colour, marker, line = viz.SERIES[at], viz.MARKERS[at], viz.LINES[at % 4]
        ax.plot(np.flatnonzero(keep), path[keep], color=colour, marker=marker, linestyle=line, markevery=4)
        eigenvalue = "" if name == "one-peer" else f"{gossip.second_eigenvalue(matrices[0]):.3f}"
        exact = next((n for n, value in enumerate(path) if value < 1e-12), None)
        rows.append({"graph": name, "neighbours": int((matrices[0][:, 0] > 0).sum()) - 1,
                     "second eigenvalue": eigenvalue, f"left after {rounds} rounds": path[-1],
                     "exact after": "" if exact is None else exact})
        end = int(np.flatnonzero(keep)[-1])
        shift = 0.15 if name == "exponential" else 1.0 if path[end] > 1e-14 else 0.05 ** (at - 3)
        viz.direct_label(ax, end, path[end] * shift, name, colour)
    ax.set(yscale="log", xlabel="rounds", ylabel="disagreement, start = 1", xlim=(0, rounds * 1.28), ylim=(1e-18, 3))
    table = pd.DataFrame(rows)
    told = "; ".join(f"{row.graph}: second eigenvalue {row[3] or 'none (in turns)'}, {row[4]:.1g} left"
                     for row in table.itertuples())
    return fig, f"{size} workers, {rounds} rounds. {told}.", table


def map_of(job: phase.Job, factors: dict[str, float]):
    """The fastest way over bandwidth and workers: per step, and to the target with the measured `factors`."""
    fig, axes = viz.figure(2, 1, width=6.5, height=3.6, sharey=True)
    names, rows = list(phase.WAYS), []
    colours = [viz.PALETTE[n] for n in (7, 0, 4, 2, 1)]
    letters = ["D", "1", "K", "L", "G"]
    for ax, title, by in zip(axes, ("per step", "to the target"), ({}, factors), strict=True):
        best = phase.diagram(job, by).argmin(0)
        ax.pcolormesh(np.arange(best.shape[1] + 1), np.arange(best.shape[0] + 1), best, cmap=ListedColormap(colours),
                      vmin=-0.5, vmax=len(names) - 0.5, edgecolors="white", linewidth=0.5, alpha=0.45)
        for (row, column), which in np.ndenumerate(best):
            ax.text(column + 0.5, row + 0.5, letters[which], ha="center", va="center", fontsize=8)
        ax.set_xticks(np.arange(0, best.shape[1], 2) + 0.5, ["1M", "10M", "100M", "1G", "10G", "100G"])
        ax.set_yticks(np.arange(best.shape[0]) + 0.5, [str(size) for size in phase.WORKERS])
        ax.set(title=title, xlabel="bandwidth, bytes a second")
        ax.grid(visible=False)
        for row, size in enumerate(phase.WORKERS):
            rows.append({"map": title, "workers": size, "fastest, from slow to fast links":
                         " ".join(letters[which] for which in best[row])})
    axes[0].set_ylabel("workers")
    key = ", ".join(f"{letter} {name}" for letter, name in zip(letters, names, strict=True))
    fig.supxlabel(key, fontsize=7.5)
    table = pd.DataFrame(rows)
    told = "; ".join(f"{row.map}, {row.workers} workers: {row[3]}" for row in table.itertuples()
                     if row.workers in (4, 32, 128))
    return fig, f"{key}. Fastest at rising bandwidth, 1 MB/s to 100 GB/s: {told}.", table


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
    ax.set_xticks([1e6, 1e7, 1e8, 1e9, 1e10, 1e11], ["1M", "10M", "100M", "1G", "10G", "100G"])
    ax.minorticks_off()
    low, high = np.log(ax.get_ylim())
    below = -math.inf
    for y, way, colour in sorted(ends):
        below = max(math.log(y), below + 0.06 * (high - low))
        ax.annotate(way, (bandwidths[-1], y), xytext=(bandwidths[-1] * 1.5, math.exp(below)), textcoords="data",
                    fontsize=8, va="center", color=colour)
    alt = "; ".join(f"{amount(row.bandwidth)}/s, {row.way}: predicted {1e3 * row.predicted:.3g} ms, measured "
                    f"{1e3 * row.measured:.3g}" for row in table.itertuples())
    return fig, f"{size} ranks. Lines: the map's model; markers: measured ({source}). {alt}.", table
