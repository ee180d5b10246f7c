"""Figures of one training step: where its time goes, its roofline, its share of the peak.

Each function returns (figure, text alternative, data). Versions and machines: `labs.utilisation_scaling`.

`groups` is a list of (name, data, colour): yours first, then what was recorded, where there is any.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labs.roofline import Roofline
from labkit.teach import viz
from labs.trace import KINDS, Trace

_GREY = "#8c8c8c"
LOOKS = {
    "gemm/conv": (viz.SERIES[0], ""),
    "norm": (viz.SERIES[1], "/"),
    "pooling": ("#222222", ""),
    "reduction/loss": (viz.SERIES[3], ""),
    "elementwise": (viz.SERIES[2], "\\"),
    "data movement": (viz.SERIES[4], "-"),
    "optimizer": ("#555555", ""),
    "other": ("#ffffff", ""),
    "overhead": ("#cfcfcf", ""),
}


def kinds_table(traces: Mapping[str, Trace]) -> pd.DataFrame:
    """One row a model and kind that takes time: ms, share, FLOPs, bytes, FLOPs per byte, GFLOP/s."""
    rows = []
    for name, trace in traces.items():
        for kind in KINDS:
            k = trace.kinds[kind]
            if k.seconds > 0:
                rows.append(
                    {
                        "model": name,
                        "kind": kind,
                        "ms": 1e3 * k.seconds,
                        "share": k.seconds / trace.profiled,
                        "FLOPs": k.flops,
                        "bytes": k.bytes,
                        "FLOPs per byte": k.flops / k.bytes if k.bytes else math.nan,
                        "GFLOP/s": k.flops / k.seconds / 1e9,
                    }
                )
    return pd.DataFrame(rows)


def where_figure(traces: Mapping[str, Trace], batch: int):
    """Share of the profiled step by kind of kernel, a bar a model."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=0.62 * len(traces) + 1.5)
    table, words, shown = kinds_table(traces), [], set()
    for place, (name, trace) in enumerate(traces.items()):
        left, parts = 0.0, []
        for kind, (colour, hatch) in LOOKS.items():
            share = trace.kinds[kind].seconds / trace.profiled
            if share <= 0.002:
                continue
            label = "" if kind in shown else kind
            shown.add(kind)
            ax.barh(place, share, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
            if share >= 0.07:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                ax.text(left + share / 2, place, f"{share:.0%}", ha="center", va="center", fontsize=8, bbox=box)
            left += share
            parts.append(f"{kind} {share:.0%}")
        slower = trace.profiled / trace.seconds
        text = f"{1e3 * trace.seconds:.3g} ms\nprofiled x {slower:.1f}"
        ax.text(1.02, place, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8)
        words.append(f"{name} ({1e3 * trace.seconds:.3g} ms a step): {', '.join(parts)}")
    ax.set_yticks(range(len(traces)), list(traces))
    ax.set(ylim=(len(traces) - 0.5, -0.5), xlim=(0, 1), xlabel="share of one training step (under the profiler)")
    ax.grid(False)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    return (
        fig,
        f"Where a step at batch {batch} goes, measured here. {'; '.join(words)}.",
        table[["model", "kind", "ms", "share"]],
    )


def roofline_figure(roof: Roofline, name: str, trace: Trace):
    """The measured roofline with the kinds of kernel of one step on it, and the whole step as a star."""
    table = kinds_table({name: trace})
    # Moving data does no FLOPs, and what takes no time has no speed worth a mark.
    table = table[(table["FLOPs"] > 0) & (table["share"] >= 0.01) & (table["kind"] != "data movement")]
    flops, moved = (sum(getattr(k, what) for k in trace.kinds.values()) for what in ("flops", "bytes"))
    spots = [
        (r.kind, r[4], r[5])
        for r in table.rename(columns={"FLOPs per byte": "x", "GFLOP/s": "y"})[
            ["kind", "share", "ms", "x", "y"]
        ].itertuples()
    ]
    spots.append(("whole step", flops / moved, flops / trace.seconds / 1e9))
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.4)
    x = np.geomspace(1 / 32, 1024, 200)
    ax.plot(x, [roof.attainable(v) / 1e9 for v in x], color=_GREY, marker="", linestyle="-")
    ax.axvline(roof.balance, color="#bbbbbb", linewidth=0.8)
    lowest = min([roof.attainable(1 / 32) / 1e9, *(y for _, _, y in spots)])
    ax.annotate(
        f"balance {roof.balance:.2g}", (roof.balance, lowest), xytext=(4, 0), textcoords="offset points", fontsize=8
    )
    tall = 4 * roof.peak / 1e9 / lowest
    heights = _apart([y for _, _, y in spots], gap=tall ** (1 / 14))
    for (kind, at, speed), height in zip(spots, heights):
        colour = LOOKS[kind][0] if kind in LOOKS else "black"
        marker = "*" if kind == "whole step" else viz.MARKERS[list(LOOKS).index(kind) % len(viz.MARKERS)]
        ax.plot(at, speed, color=colour, marker=marker, markersize=9 if marker == "*" else 6, linestyle="")
        line = {"arrowstyle": "-", "color": "#aaaaaa", "linewidth": 0.6}
        ax.annotate(
            f"{kind} ({speed:.2g})",
            (at, speed),
            xytext=(at * 1.8, height),
            color=colour,
            fontsize=8,
            va="center",
            arrowprops=line,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # no line strikes through a name
        )
    ax.set(
        xscale="log",
        yscale="log",
        ylim=(lowest / 1.6, 2.5 * roof.peak / 1e9),
        xlim=(1 / 32, 1024),
        xlabel="intensity (FLOPs per byte)",
        ylabel="GFLOP/s",
        title=f"{name} on this device: {roof.peak / 1e9:.3g} GFLOP/s, {roof.bandwidth / 1e9:.3g} GB/s ({roof.dtype})",
    )
    plain_axis(ax)
    parts = [
        f"{kind} {speed:.3g} GFLOP/s at {at:.2g} FLOPs per byte, {speed * 1e9 / roof.attainable(at):.0%} of its roof"
        for kind, at, speed in spots
    ]
    alt = f"Measured roofline: peak {roof.peak / 1e9:.3g} GFLOP/s, memory {roof.bandwidth / 1e9:.3g} GB/s, "
    alt += f"balance at {roof.balance:.2g} FLOPs per byte."
    return fig, f"{alt} {name}: {'; '.join(parts)}.", table


def plain_axis(ax) -> None:
    """Plain numbers on a logarithmic vertical axis, three within a power of ten where that is all there is."""
    low, high = ax.get_ylim()
    few = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=few))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """The values, moved up where needed so that each is at least `gap` times the one below it."""
    placed, last = [0.0] * len(values), 0.0
    for at in np.argsort(values):
        placed[at] = last = max(values[at], last * gap)
    return placed


def peak_figure(groups: Sequence[tuple], bound: float):
    """What a whole step reaches of the matrix-multiply peak, a dot a round; data of a group: tables by model."""
    names = list(dict.fromkeys(name for _, tables, _ in groups for name in tables))
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=0.45 * len(names) + 1.3)
    words, rows = [], []
    for n, (group, tables, colour) in enumerate(groups):
        for name, table in tables.items():
            values, y = table["of_peak"].to_numpy(), names.index(name) + 0.26 * n
            spread = y + 0.07 * np.resize([-1, 0, 1], len(values))
            ax.plot(values, spread, color=colour, marker="os"[n % 2], linestyle="", alpha=0.5, markersize=3.5)
            ax.plot(np.median(values), y, color="black", marker="D", linestyle="", markersize=5)
            words.append(f"{group}, {name} {np.median(values):.2f} (from {values.min():.2f} to {values.max():.2f})")
            rows.append({"group": group, "model": name, "median": np.median(values), "rounds": len(values)})
    ax.axvline(bound, color="black", linewidth=0.9, linestyle="--")
    ax.set_yticks(range(len(names)), names)
    right = max(1.0, 1.05 * max(float(table["of_peak"].max()) for _, tables, _ in groups for table in tables.values()))
    ax.set(
        xlim=(0, right),
        ylim=(len(names) - 0.4, -0.5),
        title="a dot is a round, a diamond the median",
        xlabel="FLOP/s of the whole step / FLOP/s of a matrix product in the same round",
    )
    return (
        fig,
        f"Share of the matrix-multiply peak, measured here, bound {bound:g}: {'; '.join(words)}.",
        pd.DataFrame(rows),
    )
