"""The figures of lab 01 about what was timed. Each function returns (figure, text alternative, data)."""

import numpy as np
import pandas as pd

from labkit.teach import viz
from labs import conv_timing
from labs.roofline import Roofline
from labs.utilisation_figures import plain_axis

_GREY = "#888888"


def kernels(groups):
    """Left: milliseconds of each method by kernel (the last group's). Right: `F.conv2d` over FFT, a line a group.

    Args:
        groups: (name, timings with columns round, name, seconds, kernel, colour) each."""
    fig, (left, right) = viz.figure(2, height=3.0)
    timings = groups[-1][1]
    middle = 1e3 * timings.groupby(["name", "kernel"])["seconds"].median().unstack(0)
    looks = {"library": ("F.conv2d", viz.SERIES[1], "s", "--"), "im2col": ("im2col", viz.SERIES[2], "^", "-."),
             "fft": ("FFT", viz.SERIES[0], "o", "-")}
    for name, (label, colour, marker, line) in looks.items():
        left.plot(middle.index, middle[name], color=colour, marker=marker, linestyle=line, label=label)
    left.legend(loc="upper left", fontsize=8, frameon=False)
    viz.log2_axis(left, list(middle.index), "side of the kernel")
    left.set(yscale="log", ylabel=f"ms ({groups[-1][0]})", ylim=(middle.min().min() / 2, middle.max().max() * 6))
    words = []
    for name, found, colour in groups:
        table = conv_timing.ratios(found)
        low, high = table["ratio"] - table["low"], table["high"] - table["ratio"]
        right.errorbar(table["kernel"], table["ratio"], [low.clip(lower=0), high.clip(lower=0)], color=colour,
                       marker="o", linestyle="-", capsize=2, label=name)
        first = conv_timing.crossover(found)
        words.append(f"{name}: " + ", ".join(f"{r.ratio:.2f} at {r.kernel}" for r in table.itertuples())
                     + (f"; FFT is faster from {first} on" if first else "; FFT is never clearly faster"))
    right.axhline(1, color="black", linewidth=0.8)
    viz.log2_axis(right, list(middle.index), "side of the kernel")
    right.set(yscale="log", ylabel="F.conv2d / FFT (seconds)")
    right.legend(loc="lower right", fontsize=8, frameon=False)  # the lines meet, so that names beside them would too
    for ax in (left, right):
        plain_axis(ax)
    return fig, f"Seconds of F.conv2d over seconds of FFT by kernel. {'. '.join(words)}.", conv_timing.ratios(timings)


def batches(groups, roof: Roofline, width: int):
    """Left: microseconds a sample by batch. Right: the same passes on the roofline that was measured here.

    Args:
        groups: (name, table of `cost_of_step.batch_table`, colour) each; the last one is marked on the roofline."""
    fig, (left, right) = viz.figure(2, height=3.2)
    words = []
    for name, table, colour in groups:
        left.plot(table["batch"], table["us a sample"], color=colour, marker="o", linestyle="-", label=name)
        first, last = table.iloc[0], table.iloc[-1]
        worst = (table["seconds"] / table["roofline"]).max()
        words.append(f"{name}: {first['us a sample']:.4g} us a sample at batch {first['batch']:.0f}, "
                     f"{last['us a sample']:.4g} at {last['batch']:.0f}; at most {worst:.2g} times the roofline's time")
    table = groups[-1][1]
    left.plot(table["batch"], 1e6 * table["roofline"] / table["batch"], color=_GREY, marker="", linestyle="-",
              label="least that your roofs allow")
    left.legend(loc="upper right", fontsize=8, frameon=False)
    viz.log2_axis(left, list(table["batch"]), "batch size")
    left.set_xticks(list(table["batch"])[::2])
    highest = max(table["us a sample"].max() for _, table, _ in groups)
    left.set(yscale="log", ylim=(None, 4 * highest), ylabel="microseconds a sample",
             title=f"{width} x {width}, forward")
    x = np.geomspace(table["intensity"].min() / 2, 2 * max(table["intensity"].max(), roof.balance), 100)
    right.plot(x, [roof.attainable(v) / 1e9 for v in x], color=_GREY, marker="", linestyle="-")
    right.plot(table["intensity"], table["GFLOP/s"], color=groups[-1][2], marker="o", linestyle="-")
    for row in table.iloc[:: max(1, len(table) // 4)].itertuples():
        right.annotate(f"batch {row.batch}", (row.intensity, row[6]), xytext=(5, -9), textcoords="offset points",
                       fontsize=8)
    lowest = min(table["GFLOP/s"].min(), roof.attainable(x[0]) / 1e9) / 1.6
    right.axvline(roof.balance, color="#bbbbbb", linewidth=0.8)
    right.annotate(f"balance {roof.balance:.2g}", (roof.balance, lowest), xytext=(3, 3),
                   textcoords="offset points", fontsize=8)
    right.set(xscale="log", yscale="log", ylim=(lowest, 2 * roof.peak / 1e9), xlabel="intensity (FLOPs per byte)",
              ylabel="GFLOP/s", title=f"{roof.peak / 1e9:.3g} GFLOP/s, {roof.bandwidth / 1e9:.3g} GB/s")
    for ax in (left, right):
        plain_axis(ax)
    memory = table.loc[table["bound"] == "memory", "batch"]
    bound = f"Memory is the lower roof up to batch {memory.max()}." if len(memory) else "Arithmetic is the lower roof."
    return fig, f"Forward pass through square layers of {width}. {'; '.join(words)}. {bound}", table


def inference(table: pd.DataFrame, name: str):
    """Latency against throughput, training beside inference; columns what, batch, ms, samples/s."""
    fig, ax = viz.figure()
    words = []
    for what, colour, marker, line in (("training", viz.SERIES[1], "s", "--"), ("inference", viz.SERIES[0], "o", "-")):
        part = table[table["what"] == what]
        ax.plot(part["ms"], part["samples/s"], color=colour, marker=marker, linestyle=line)
        for n, row in enumerate(part.itertuples()):
            ax.annotate(f"{what}, batch {row.batch}" if n == 0 else str(row.batch), (row.ms, row[4]), fontsize=8,
                        xytext=(6, -9 if what == "training" else 5), textcoords="offset points", color=colour)
        first, last = part.iloc[0], part.iloc[-1]
        words.append(f"{what} {first['ms']:.3g} ms and {first['samples/s']:.4g} samples/s at batch {first['batch']}, "
                     f"{last['ms']:.3g} ms and {last['samples/s']:.4g} at {last['batch']}")
    ax.set(xscale="log", yscale="log", xlabel="latency: ms of one batch", ylabel="throughput: samples/s", title=name)
    ax.margins(x=0.15, y=0.15)
    plain_axis(ax)
    pairs = table.pivot(index="batch", columns="what", values="ms")
    ratio = pairs["training"] / pairs["inference"]
    alt = f"{name}, measured here: {'; '.join(words)}."
    alt += f" Training takes {ratio.min():.2g} to {ratio.max():.2g} times as long."
    return fig, alt, table
