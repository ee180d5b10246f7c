"""Figures of lab 04. Each function returns (figure, text alternative, data)."""

import math

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle
from scipy.optimize import isotonic_regression

from labkit.errors import RequestError, choose
from labkit.simulate.events import Compute
from labkit.teach import viz
from labs import buckets, synchronous, synchronous_imposters

TIMES = {  # of the explorer; all but the last have mean 1
    "constant": Compute(),
    "Gaussian, sd 0.15": synchronous.gaussian(1.0, 0.15, 501),
    "log-normal, sigma 0.3": Compute("lognormal", sigma=0.3),
    "log-normal, sigma 1": Compute("lognormal", sigma=1.0),
    "exponential": Compute("exponential"),
    "constant, one worker 5 x slower": Compute(slow={0: 5.0}),
}
HUES = tuple(viz.SERIES[place] for place in (0, 1, 3, 4))  # the red is too near to the orange of what is yours
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def waiting(workers: int, times: str, backup: int, steps: int = 1000):
    """The explorer: one worker's times beside those of a step, simulated, and the mean step by number of workers, by
    formula; of `backup` slowest at most all but one can be left out.

    Raises:
        RequestError: there are no such times, no worker, or fewer than no backups."""
    choose("times", times, TIMES)
    if workers < 1 or backup < 0:
        raise RequestError(f"workers {workers}, backup {backup}: give 1 or more workers, and 0 or more backups")
    compute, asked, backup = TIMES[times], backup, min(backup, workers - 1)
    few = f", at most {backup} of {workers} can" if asked > backup else ""
    own = compute.table(workers, steps, 0)[0].ravel()
    step = synchronous.step_times(compute, workers, backup, steps, 0)
    fig, (left, right) = viz.figure(columns=2, height=2.8)
    top = max(1.5, float(np.quantile(step, 0.995)), float(np.quantile(own, 0.995))) * 1.05
    edges = np.linspace(0, top, 45)
    for values, colour, name in ((own, "#999999", "one gradient"), (step, viz.SERIES[0], "a step")):
        left.hist(np.minimum(values, top), edges, density=True, color=colour, alpha=0.55, label=name)
        left.axvline(values.mean(), color=colour, linewidth=1.6)
    left.set(xlabel="seconds (lines: means)", yticks=[], ylabel="how often")
    left.set_title(f"{workers} workers, {backup} dropped ({backup / workers:.0%})")
    left.set_ylim(0, 1.45 * left.get_ylim()[1])
    left.legend(loc="upper right")
    label = "without the slowest" if asked == 1 else f"without the {asked} slowest"
    rows = [(count, mean_step(compute, count, 0), mean_step(compute, count, asked) if count > asked else math.nan)
            for count in COUNTS]  # fmt: skip
    data = pd.DataFrame(rows, columns=["workers", "all", label])
    right.plot(data["workers"], data["all"], color=viz.SERIES[1], linestyle="--", label="waits for all")
    if asked:
        right.plot(data["workers"], data[label], color=viz.SERIES[0], linestyle="-", label=label)
    viz.log2_axis(right, COUNTS, "workers P")
    right.set(ylim=(0, max(data["all"]) * 1.35), ylabel="mean step, s", title="by number of workers")
    right.legend(loc="upper left")
    used = (workers - backup) / step.mean()
    alt = (
        f"Times of a gradient: {times}, mean {own.mean():.2f} s. {workers} workers, {asked} slowest not waited for{few}"
        f": mean step {step.mean():.2f} s, its standard deviation {step.std():.2f}; {backup / workers:.0%} of the "
        f"gradients are dropped; {used:.1f} gradients a second count, {workers / own.mean():.1f} without any waiting."
    )
    return fig, alt, data


def mean_step(compute: Compute, workers: int, backup: int) -> float:
    """In seconds, by formula where workers are alike; of constant times with a slow worker a few steps say all."""
    if compute.slow:
        return float(synchronous.step_times(compute, workers, backup, 10, 0).mean())
    return synchronous.expected(compute, workers, backup)


def spread(places: list[float], gap: float) -> list[float]:
    """Places for labels in the order given, from low to high, at least `gap` apart and as near as can be."""
    steps = gap * np.arange(len(places))
    return list(isotonic_regression(np.asarray(places) - steps).x + steps)


def growth(table: pd.DataFrame, known: pd.DataFrame | None = None):
    """Mean step against workers: points simulated, lines by formula; `known`: of recorded times, blue."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.0)
    said, ends = [], []
    groups = [(name, rows, None) for name, rows in table.groupby("times", sort=False)]
    if known is not None:
        groups.append(("measured, recorded", known, viz.RECORDED))
    for place, (name, rows, colour) in enumerate(groups):
        colour = colour or (viz.YOURS if name.startswith("measured") else HUES[place % len(HUES)])
        ax.plot(rows["workers"], rows["formula"], color=colour, marker="", linestyle="-", linewidth=1.1)
        ax.plot(rows["workers"], rows["mean"], color=colour, linestyle="", marker=viz.MARKERS[place % 7], markersize=5)
        ends.append([float(rows["formula"].iloc[-1]), name, colour])
        said.append(f"{name} {rows['mean'].iloc[-1]:.2f} (formula {rows['formula'].iloc[-1]:.2f})")
    workers = sorted(set(table["workers"]))
    most, ends = max(end[0] for end in ends), sorted(ends)
    wide = workers[-1] / workers[0] if len(workers) > 1 else 2
    heights = spread([end[0] for end in ends], 0.075 * (most - 0.8))
    for (at, name, colour), height in zip(ends, heights, strict=True):
        label = workers[-1] * wide**0.05
        ax.plot([workers[-1] * wide**0.012, label], [at, height], color=colour, marker="", linestyle="-", linewidth=0.6)
        viz.direct_label(ax, label, height, name, colour)
    viz.log2_axis(ax, workers, "workers P")
    ax.set(xlim=(workers[0] / wide**0.03, workers[-1] * wide**0.36), ylabel="mean step, in mean gradients")
    ax.set_ylim(min(0.9, heights[0] - 0.1 * (most - 0.8)), 1.08 * most)
    alt = f"Mean step of a barrier with {workers[-1]} workers, in mean times of one gradient: {'; '.join(said)}."
    return fig, alt, table if known is None else pd.concat([table, known], ignore_index=True)


def price(computes: dict[str, Compute], workers: int):
    """By closed form: how much faster useful gradients come, and how many are lost, when b of P are not waited for."""
    backups = sorted({0, 1, 2, 3, 4, 6, 8, 12, 16, 24} & set(range(workers))) or [0]
    fig, (left, right) = viz.figure(columns=2, height=2.9)
    rows, said = [], []
    for place, (name, compute) in enumerate(computes.items()):
        step = np.array([synchronous.expected(compute, workers, backup) for backup in backups])
        useful = (workers - np.array(backups)) / step
        rows += [(name, b, b / workers, s, u) for b, s, u in zip(backups, step, useful, strict=True)]
        colour = viz.YOURS if name.startswith("measured") else HUES[place % len(HUES)]
        look = {"color": colour, "marker": viz.MARKERS[place % 7], "linestyle": viz.LINES[place % 4]}
        left.plot(backups, step / step[0], **look)
        right.plot(backups, useful / useful[0], label=name, **look)
        best = backups[int(np.argmax(useful))]
        first = step[min(1, len(step) - 1)] / step[0]
        edge = " (the most drawn)" if best == backups[-1] else ""
        gain = useful.max() / useful[0]
        said.append(f"{name}: 1 backup cuts the step to {first:.0%}, most useful gradients a second with {best} "
                    f"backup{'s' * (best != 1)}{edge}, {gain:.2f} times those of none")  # fmt: skip
    left.set(ylim=(0, 1.05), xlabel="backups b", ylabel="mean step / that without backups")
    right.set(xlabel="backups b", ylabel="gradients that count a second,\n/ those without backups", ylim=(0, None))
    right.axhline(1, color="black", linewidth=0.8, linestyle=":")
    fig.legend(*right.get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=len(computes))
    data = pd.DataFrame(rows, columns=["times", "backups", "share dropped", "mean step", "useful a second"])
    return fig, f"{workers} workers. {'; '.join(said)}.", data


def timelines(table: pd.DataFrame, link: buckets.Link, caps: dict[str, float]):
    """Computing above, the link below, for each of `caps` (MB by name)."""
    ready, sizes, whole = table["ready"].to_numpy(), table["bytes"].to_numpy(), float(table["ready"].max())
    cases = {name: buckets.timeline(ready, sizes, cap * buckets.MB, link) for name, cap in caps.items()}
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.4)
    rows, said = [], []
    edges = [0.0, *(ready / whole)]
    for place, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
        colour = ("#bbbbbb", "#dddddd")[place % 2]
        ax.add_patch(Rectangle((low, -0.4), high - low, 0.8, facecolor=colour, edgecolor="white", linewidth=0.3))
    for line, (name, made) in enumerate(cases.items(), 1):
        for place, bucket in enumerate(made):
            left, width = bucket.start / whole, (bucket.end - bucket.start) / whole
            ax.add_patch(Rectangle((left, line - 0.33), width, 0.66, facecolor=viz.SERIES[place % 2], edgecolor="white",
                                   linewidth=0.4))  # fmt: skip
            if width > 0.09:
                ax.text(left + width / 2, line, f"{bucket.size / buckets.MB:.2g}", ha="center", va="center", fontsize=7,
                        color="white")  # fmt: skip
            rows.append((name, place, bucket.size, bucket.ready, bucket.start, bucket.end))
        end = made[-1].end / whole
        ax.text(end + 0.02, line, f"{end:.2f}", va="center", fontsize=8)
        said.append(f"{name}: {len(made)} message{'s' * (len(made) > 1)}, done at {end:.2f}")
    ax.axvline(1, color="black", linewidth=0.8, linestyle=":", zorder=0.9)
    ax.set_yticks(range(len(cases) + 1), ["backward", *cases])
    most = max(made[-1].end for made in cases.values()) / whole
    ax.set(ylim=(len(cases) + 0.6, -0.6), xlim=(0, most * 1.08), xlabel="time / backward (numbers in bars: MB)")
    ax.grid(visible=False)
    data = pd.DataFrame(rows, columns=["buckets", "number", "bytes", "ready", "start", "end"])
    return fig, f"Gradients on a link while others are computed, in backwards: {'; '.join(said)}.", data


def cap_curves(studies: dict[str, pd.DataFrame], caps, shares, ranks: int, latency: float):
    """Time until all gradients are summed, in backwards, by bucket size: one panel a share of the link; `studies` hold
    gradients' times by source (yours, recorded). The leftmost point, 0 MB in the data, is each gradient on its own."""
    fig, axes = viz.figure(columns=len(shares), height=2.9, squeeze=False)
    rows, said, caps = [], [], sorted(caps)
    places = [caps[0] / 4, *caps]  # on the axis
    for ax, share in zip(axes.flat, shares, strict=True):
        top = 1 + share + latency
        for source, table in studies.items():
            whole, size = float(table["ready"].max()), float(table["bytes"].sum())
            link = buckets.relative(ranks, whole, size, share, latency)
            found = buckets.sweep(table["ready"], table["bytes"], [0.0, *caps], link)
            found["seconds"] /= whole
            colour = viz.YOURS if source == "yours" else viz.RECORDED
            ax.plot(places, found["seconds"], color=colour, marker=viz.MARKERS[source != "yours"], label=source)
            shown = found[["bucket MB", "buckets", "left MB", "seconds"]]
            rows += [(source, share, *row) for row in shown.itertuples(index=False)]
            best, top = found.loc[found["seconds"].idxmin()], max(top, found["seconds"].max())
            where = f"at {best['bucket MB']:g} MB" if best["bucket MB"] else "so"
            said.append(f"{source}, words take {share:g}: each on its own {found['seconds'].iloc[0]:.2f}, best "
                        f"{best['seconds']:.2f} {where}, largest bucket {found['seconds'].iloc[-1]:.2f}")  # fmt: skip
        ax.axhline(1 + share + latency, color="black", linestyle=":", linewidth=0.9)
        ax.text(places[0], 1 + share + latency, " no overlap", fontsize=7, va="bottom")
        ax.axhline(max(1, share), color="black", linestyle="-", linewidth=0.9)
        ax.text(places[0], max(1, share), " no less is possible", fontsize=7, va="top")
        viz.log2_axis(ax, places, "bucket, MB")
        ax.xaxis.set_ticks([places[0], *caps[::2]], labels=["each", *(f"{cap:g}" for cap in caps[::2])])
        ax.tick_params(axis="x", labelrotation=60, labelsize=7)
        low, room = max(1, share), top - max(1, share)
        ax.set(ylim=(low - 0.2 * room, top + 0.15 * room), title=f"words take {share:g} backwards")
    axes.flat[0].set_ylabel("all summed after, in backwards")
    axes.flat[0].legend(fontsize=7, loc="center left")
    data = pd.DataFrame(rows, columns=["source", "share", "MB", "messages", "left MB", "backwards"])
    return fig, f"{'; '.join(said)}.", data


def few_samples(yours: pd.DataFrame, recorded: pd.DataFrame | None = None):
    """Test accuracy by samples that share statistics, a line a network: means, and every seed."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.0)
    said = []
    for source, table, colour in (("recorded", recorded, viz.RECORDED), ("yours", yours, viz.YOURS)):
        for place, (net, rows) in enumerate(table.groupby("network", sort=False) if table is not None else ()):
            means = rows.groupby("samples a rank")["test_accuracy"].mean()
            look = {"color": colour, "marker": viz.MARKERS[place], "linestyle": viz.LINES[place]}
            ax.plot(means.index, means.to_numpy(), label=f"{net}, {source}", **look)
            ax.plot(rows["samples a rank"], rows["test_accuracy"], color=colour, linestyle="", marker="_", markersize=9)
            told = ", ".join(f"{value:.3f} with {each}" for each, value in means.items())
            count = rows["seed"].nunique()
            said.append(f"{source}, {net} ({count} seed{'s' * (count > 1)}): {told}")
    ax.plot([], [], color="#555555", linestyle="", marker="_", markersize=9, label="one seed")
    every = yours if recorded is None else pd.concat([yours, recorded])
    viz.log2_axis(ax, sorted(set(every["samples a rank"])), "samples that share statistics")
    ax.set(ylabel="test accuracy")
    ax.legend(loc="lower right")
    return fig, f"Test accuracy by the samples that share batch statistics. {'; '.join(said)}.", yours


def suspects(runs: dict[str, "synchronous_imposters.Run"], right):
    """Loss curves of the three, and of one process."""
    fig, ax = viz.figure(height=2.8)
    curves = {"one process": right.losses} | {letter: run.losses for letter, run in runs.items()}
    for place, (name, losses) in enumerate(curves.items()):
        colour = "black" if place == 0 else viz.SERIES[place - 1]
        ax.plot(losses, color=colour, marker="" if place == 0 else viz.MARKERS[place], linestyle=viz.LINES[place % 4],
                markevery=2, label=name)  # fmt: skip
    ax.set(yscale="log", xlabel="update", ylabel="loss over the batch")
    ax.legend()
    ends = ", ".join(f"{name} {np.mean(losses[-4:]):.2g}" for name, losses in curves.items())
    return fig, f"Loss by update; mean of the last four: {ends}.", pd.DataFrame(curves)
