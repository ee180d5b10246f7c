"""The figures of lab 01 about counts and schedules. Each function returns (figure, text alternative, data)."""

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

from labkit.teach import viz
from labs.utilisation_figures import plain_axis

_GREY, _INK = "#888888", "#222222"


def brent(table: pd.DataFrame, name: str, depth: int, at: int):
    """A greedy schedule between Brent's bounds.

    Args:
        table: columns processors, steps, least (max(W / p, D)), most ((W - D) / p + D).
        depth: D. at: the number of processors that is marked."""
    fig, ax = viz.figure()
    p = table["processors"]
    ax.fill_between(p, table["least"], table["most"], color=_GREY, alpha=0.25, linewidth=0)
    ax.plot(p, table["least"], color=_GREY, marker="", linestyle="-")
    ax.plot(p, table["most"], color=_GREY, marker="", linestyle="--")
    ax.plot(p, table["steps"], color=viz.SERIES[0], marker="o", linestyle="")
    chosen, first = table[p == at].iloc[0], table.iloc[0]
    ax.plot([at], [chosen["steps"]], color=viz.SERIES[2], marker="D", markersize=8, linestyle="")
    ax.axhline(depth, color=_GREY, linestyle=":", linewidth=1)
    ax.annotate(f"D = {depth:,}", (p.iloc[0], depth), xytext=(0, 4), textcoords="offset points", fontsize=8, color=_INK)
    ratio = f"W / D = {first['steps'] / depth:.3g}"
    ax.text(0.97, 0.95, ratio, transform=ax.transAxes, ha="right", va="top", color=_INK)
    viz.log2_axis(ax, list(p), "processors p")
    few = list(p)[:: 1 + len(p) // 6]
    ax.set_xticks(few, [f"$2^{{{round(np.log2(v))}}}$" for v in few])
    ax.set(yscale="log", ylabel="steps", title=f"{name}: {chosen['steps']:,.0f} steps on {at:,} processors")
    speed = first["steps"] / chosen["steps"]
    best = chosen["steps"] * at / (first["steps"] * first["processors"])
    alt = (f"{name}: {first['steps']:.4g} steps on {first['processors']:.0f} processor(s). On {at:,} a greedy schedule "
           f"takes {chosen['steps']:.4g}, between {chosen['least']:.4g} and {chosen['most']:.4g}: {speed:.3g} times as "
           f"fast, {1 / best:.0%} of what so many could do at best. Never below D = {depth:,}.")
    return fig, alt, table


NETWORK_PANELS = {"parameters": "parameters", "macs_per_parameter": "multiply-adds\na parameter",
                  "layers": "layers with\nweights", "depth": "depth D", "parallelism": "W / D"}


def networks(table: pd.DataFrame):
    """The survey's networks, a row each in the order of years; columns network, year and those of `NETWORK_PANELS`."""
    names = [f"{row.network} {row.year}" for row in table.itertuples()]
    fig, axes = viz.figure(len(NETWORK_PANELS), width=viz.MAX_WIDTH, sharey=True,
                           height=min(4.0, 1.2 + 0.25 * len(names)))
    for n, (ax, (column, label)) in enumerate(zip(axes, NETWORK_PANELS.items(), strict=True)):
        ax.plot(table[column], range(len(names)), color=viz.SERIES[n], marker=viz.MARKERS[n], linestyle="")
        low, high = table[column].min(), table[column].max()
        ax.set(xscale="log", xlabel=label, ylim=(len(names) - 0.5, -0.5), xlim=(low / 2.5, high * 2.5))
        powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
        ax.set_xticks(10.0 ** powers[:: 1 + len(powers) // 4])
        ax.minorticks_off()
        ax.tick_params(axis="x", labelsize=7)
    axes[0].set_yticks(range(len(names)), names)
    first, last = table.iloc[0], table.iloc[-1]
    alt = (f"Counted at batch 1: from {first['network']} ({first['year']}) to {last['network']} ({last['year']}), "
           f"multiply-adds a parameter {first['macs_per_parameter']:.3g} to {last['macs_per_parameter']:.3g}, layers "
           f"with weights {first['layers']} to {last['layers']}, depth {first['depth']} to {last['depth']}, "
           f"W / D {first['parallelism']:.3g} to {last['parallelism']:.3g}.")
    return fig, alt, table


def wavefront(layers: int, steps: int):
    """Cells of L recurrent layers over T steps; each holds the number of the wavefront in which it can run."""
    fig, ax = viz.figure(height=2.4)
    wave = np.add.outer(np.arange(layers), np.arange(steps)) + 1
    ax.imshow(wave, cmap="viridis", aspect="auto", origin="lower", alpha=0.75)
    for layer in range(layers):
        for step in range(steps):
            ax.text(step, layer, wave[layer, step], ha="center", va="center", fontsize=8)
    ax.grid(False)
    ax.set_xticks(range(steps), range(1, steps + 1))
    ax.set_yticks(range(layers), range(1, layers + 1))
    count, width = layers + steps - 1, min(layers, steps)
    ax.set(xlabel="time step", ylabel="layer", title=f"{count} wavefronts for {layers * steps} cells")
    alt = (f"{layers} recurrent layers over {steps} steps, {layers * steps} cells: cell (l, t) can run in wavefront "
           f"l + t - 1; there are {count} wavefronts, at most {width} cells wide: at most "
           f"{layers * steps / count:.3g} times as fast as one cell after the other.")
    return fig, alt, pd.DataFrame(wave, index=pd.RangeIndex(1, layers + 1, name="layer"), columns=range(1, steps + 1))


def checkpoints(by_length: pd.DataFrame, by_segments: pd.DataFrame, plain: float, slope: float):
    """Bytes kept for the backward pass, by layers at the best number of segments, and by segments at one length.

    Args:
        by_length: columns layers, segments, plain, bytes, forwards_again. by_segments: layers, segments, bytes.
        plain: bytes without checkpoints at that length. slope: log-log, of `bytes` over the layers."""
    fig, (left, right) = viz.figure(2, height=2.9)
    for column, label, colour, marker, line in (("plain", "keep everything", viz.SERIES[1], "s", "--"),
                                                ("bytes", "checkpoints", viz.SERIES[0], "o", "-")):
        left.plot(by_length["layers"], by_length[column] / 1024, color=colour, marker=marker, linestyle=line)
        left.annotate(label, (by_length["layers"].iloc[-1], by_length[column].iloc[-1] / 1024), xytext=(-6, 0),
                      textcoords="offset points", ha="right", va="bottom", fontsize=8, color=colour)
    viz.log2_axis(left, list(by_length["layers"]), "layers L of the chain")
    left.set(yscale="log", ylabel="KiB kept at the peak", title=f"slope {slope:.2f}")
    right.plot(by_segments["segments"], by_segments["bytes"] / 1024, color=viz.SERIES[0], marker="o", linestyle="-")
    right.axhline(plain / 1024, color=viz.SERIES[1], linestyle="--", linewidth=1)
    best = by_segments.loc[by_segments["bytes"].idxmin()]
    viz.log2_axis(right, list(by_segments["segments"]), "segments")
    right.set(yscale="log", title=f"L = {best['layers']:.0f}: least at {best['segments']:.0f} segments")
    for ax in (left, right):
        plain_axis(ax)
    last = by_length.iloc[-1]
    alt = (f"A chain of {last['layers']:.0f} layers keeps {last['plain'] / 1024:.4g} KiB for its backward pass, "
           f"{last['bytes'] / 1024:.4g} KiB in {last['segments']:.0f} segments; log-log slope {slope:.2f}. At L = "
           f"{best['layers']:.0f} {best['segments']:.0f} segments keep least, {best['bytes'] / 1024:.4g} KiB. The "
           f"price: {last['forwards_again']:.2g} forward pass done again.")
    return fig, alt, by_segments


def winograd_errors(table: pd.DataFrame):
    """Relative error of each method in float32, a dot a seed; columns seed, method, error."""
    order = list(table.groupby("method")["error"].median().sort_values().index)
    fig, ax = viz.figure(height=2.2)
    for n, method in enumerate(order):
        values, looks = table.loc[table["method"] == method, "error"], {"color": viz.SERIES[n % 5], "alpha": 0.6}
        ax.plot(values, np.full(len(values), n), marker=viz.MARKERS[n], linestyle="", **looks)
    ax.set_yticks(range(len(order)), order)
    ax.set(xscale="log", ylim=(-0.6, len(order) - 0.4), xlim=(table["error"].min() / 3, table["error"].max() * 3),
           xlabel="root mean square error in float32, relative")
    ax.xaxis.set_minor_formatter(NullFormatter())
    middle = table.groupby("method")["error"].median()
    alt = "Relative error in float32 against float64, medians: "
    return fig, alt + ", ".join(f"{name} {middle[name]:.2g}" for name in order) + ".", table


def micro_batches(table: pd.DataFrame):
    """Multiplications of one layer by workspace, split by the dynamic programme and whole; columns workspace (MiB),
    planned, whole, split."""
    fig, ax = viz.figure(height=2.6)
    for column, label, colour, marker, line in (("whole", "one method, whole batch", viz.SERIES[1], "s", "--"),
                                                ("planned", "micro-batches", viz.SERIES[0], "o", "-")):
        ax.plot(table["workspace"], table[column] / 1e6, color=colour, marker=marker, linestyle=line)
        first = (table["workspace"].iloc[0], table[column].iloc[0] / 1e6)
        ax.annotate(label, first, xytext=(4, 5 if column == "whole" else -11),
                    textcoords="offset points", fontsize=8, color=colour)
    viz.log2_axis(ax, list(table["workspace"]), "workspace allowed (MiB)")
    ax.set(ylabel="million multiplications", ylim=(0, 1.15 * table["whole"].max() / 1e6))
    words = "; ".join(f"{row.workspace:g} MiB: {row.planned / 1e6:.4g} against {row.whole / 1e6:.4g} ({row.split})"
                      for row in table.itertuples())
    return fig, f"Million multiplications, micro-batches against one method for the whole batch. {words}.", table


def rounding(curves: pd.DataFrame):
    """Loss over the steps, the median over seeds, by rounding; columns seed, rounding, step, loss."""
    fig, ax = viz.figure(height=2.6)
    curves = curves.groupby(["rounding", "step"], as_index=False)["loss"].median()
    looks = {"float64": ("#444444", ":"), "nearest": (viz.SERIES[1], "--"), "stochastic": (viz.SERIES[0], "-")}
    ends = {}
    for how, (colour, line) in looks.items():
        part = curves[curves["rounding"] == how]
        if len(part):
            ax.plot(part["step"], part["loss"], color=colour, linestyle=line, marker="")
            viz.direct_label(ax, part["step"].iloc[-1], part["loss"].iloc[-1], how, colour)
            ends[how] = part["loss"].iloc[-1]
    ax.set(yscale="log", xlabel="step", ylabel="loss")
    ax.margins(x=0.15)
    words = ", ".join(f"{how} {loss:.3g}" for how, loss in ends.items())
    return fig, f"Median loss at the end: {words}.", curves[curves["step"] % 100 == 0]
