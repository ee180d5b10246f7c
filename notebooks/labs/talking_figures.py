"""Figures of lab 06. Each function returns (figure, text alternative, data); recorded runs are blue, yours orange."""

import math
from numbers import Real

import numpy as np
import pandas as pd

from labkit.errors import RequestError
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
    """Bytes that a worker sends per step, and the seconds that they take.

    Raises:
        RequestError: one of the numbers is out of range."""
    for name, value, low, high, whole in (("percent", density, 0, 1, False), ("tau", tau, 1, math.inf, True),
                                          ("levels", levels, 1, 127, True), ("workers", workers, 2, math.inf, True),
                                          ("megabytes_a_second", megabytes_a_second, 0, math.inf, False)):
        scale = 100 if name == "percent" else 1
        good = isinstance(value, Real) and low <= value <= high and 0 < value < math.inf
        if not good or whole and value != round(value):
            kind = "a whole number" if whole else "a number above 0,"
            span = f"from {low} to {scale * high:g}" if high < math.inf else f"from {low} on"
            shown = f"{scale * value:g}" if isinstance(value, Real) else repr(value)
            raise RequestError(f"{name} {shown} is out of range; choose {kind} {span}")
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


def accuracy_bytes(tables: dict[str, pd.DataFrame]):
    """Bytes a step and test accuracy at the tuned rate of every compressor, one row each, the most bytes on top:
    {"recorded" or "yours": table}. Two sources of one method lie one above the other."""
    both = pd.concat([table.assign(source=source) for source, table in tables.items()])
    order = both.groupby("case")["bytes a step"].min().sort_values(kind="stable").index
    fig, (left, right) = viz.figure(2, 1, width=6.5, height=4.0, sharey=True, width_ratios=(1, 1.25))
    for source, table in tables.items():
        shift = 0.0 if len(tables) == 1 else 0.16 if source == "recorded" else -0.16
        for row in table.rename(columns={"bytes a step": "sent"}).itertuples():
            y, mark = order.get_loc(row.case) + shift, "o" if source == "recorded" else "s"
            left.plot([row.sent], [y], color=COLOURS[source], marker=mark, linestyle="")
            right.plot([100 * row.low, 100 * row.high], [y, y], color=COLOURS[source], linewidth=1, linestyle="-",
                       marker="")
            right.plot([100 * row.test], [y], color=COLOURS[source], marker=mark, linestyle="")
    for y, case in enumerate(order):
        sent = both.loc[both["case"] == case, "bytes a step"]
        told = dict.fromkeys(amount(value) for value in sorted(sent))
        left.annotate(" / ".join(told), (sent.max(), y), xytext=(7, 0), textcoords="offset points", fontsize=7.5,
                      va="center")
    left.set_yticks(range(len(order)), order)
    left.set(xscale="log", xlabel="bytes that a worker sends per step", ylim=(-0.6, len(order) - 0.4),
             xlim=(both["bytes a step"].min() / 2, both["bytes a step"].max() * 12))
    right.set(xlabel="test accuracy, %")
    for at, source in enumerate(tables):
        mark = "\u25cf" if source == "recorded" else "\u25a0"
        right.text(0.35 * at, 1.02, f"{mark} {source}", color=COLOURS[source], fontsize=8, transform=right.transAxes)
    parts = [f"{source}: " + "; ".join(f"{row.case} {100 * row.test:.1f} % at {amount(row[-1])}"
                                       for row in table[["case", "test", "bytes a step"]].itertuples())
             for source, table in tables.items()]
    return fig, f"Accuracy and bytes, rates tuned; lines: lowest to highest seed. {'. '.join(parts)}.", both


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
