"""Figures of lab 04. Each function returns (figure, text alternative, data)."""

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

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
    """The explorer: one worker's times beside those of a step, and the mean step by number of workers."""
    compute, backup = TIMES[times], min(backup, workers - 1)
    own = compute.table(workers, steps, 0)[0].ravel()
    step = synchronous.step_times(compute, workers, backup, steps, 0)
    fig, (left, right) = viz.figure(columns=2, height=2.8)
    top = max(1.5, float(np.quantile(step, 0.995)), float(np.quantile(own, 0.995))) * 1.05
    edges = np.linspace(0, top, 45)
    for values, colour, name in ((own, "#999999", "one gradient"), (step, viz.SERIES[0], "a step")):
        left.hist(np.minimum(values, top), edges, density=True, color=colour, alpha=0.55, label=name)
        left.axvline(values.mean(), color=colour, linewidth=1.6)
    left.set(xlabel="seconds (lines: means)", yticks=[], ylabel="how often", title=f"{workers} workers")
    left.set_ylim(0, 1.45 * left.get_ylim()[1])
    left.legend(loc="upper right")
    rows = []
    for count in COUNTS:
        waits = [synchronous.step_times(compute, count, min(b, count - 1), 1000, 1).mean() for b in (0, backup)]
        rows.append((count, *waits))
    data = pd.DataFrame(rows, columns=["workers", "all", f"without {backup} slowest"])
    right.plot(data["workers"], data["all"], color=viz.SERIES[1], linestyle="--", label="waits for all")
    if backup:
        label = f"without {backup} slowest"
        right.plot(data["workers"], data.iloc[:, 2], color=viz.SERIES[0], linestyle="-", label=label)
    viz.log2_axis(right, COUNTS, "workers P")
    right.set(ylim=(0, max(data.iloc[:, 1]) * 1.35), ylabel="mean step, s", title=f"{backup / workers:.0%} dropped")
    right.legend(loc="upper left")
    used = (workers - backup) / step.mean()
    alt = (
        f"Times of a gradient: {times}, mean {own.mean():.2f} s. {workers} workers, {backup} slowest not waited for: "
        f"mean step {step.mean():.2f} s, its standard deviation {step.std():.2f}; {backup / workers:.0%} of the "
        f"gradients are dropped; {used:.1f} gradients a second count, {workers / own.mean():.1f} without any waiting."
    )
    return fig, alt, data


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
    most, low = max(end[0] for end in ends), -9.0
    for end in sorted(ends):  # labels that would touch move up
        low = max(end[0], low + 0.075 * most)
        viz.direct_label(ax, workers[-1], low, end[1], end[2])
    viz.log2_axis(ax, workers, "workers P")
    ax.set(xlim=(workers[0] / 1.1, workers[-1] * 2.6), ylim=(0, most * 1.12), ylabel="mean step, in mean gradients")
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
                    f"backups{edge}, {gain:.2f} times those of none")  # fmt: skip
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
    ax.axvline(1, color="black", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(cases) + 1), ["backward", *cases])
    most = max(made[-1].end for made in cases.values()) / whole
    ax.set(ylim=(len(cases) + 0.6, -0.6), xlim=(0, most * 1.08), xlabel="time / backward (numbers in bars: MB)")
    ax.grid(visible=False)
    data = pd.DataFrame(rows, columns=["buckets", "number", "bytes", "ready", "start", "end"])
    return fig, f"Gradients on a link while others are computed, in backwards: {'; '.join(said)}.", data


def cap_curves(studies: dict[str, pd.DataFrame], caps, shares, ranks: int, latency: float):
    """Time until all gradients are summed, in backwards, by bucket size: one panel a share of the link; `studies` hold
    gradients' times by source (yours, recorded)."""
    fig, axes = viz.figure(columns=len(shares), height=2.9, squeeze=False)
    rows, said = [], []
    for ax, share in zip(axes.flat, shares, strict=True):
        for source, table in studies.items():
            whole, size = float(table["ready"].max()), float(table["bytes"].sum())
            link = buckets.relative(ranks, whole, size, share, latency)
            found = buckets.sweep(table["ready"], table["bytes"], caps, link)
            found["seconds"] /= whole
            colour = viz.YOURS if source == "yours" else viz.RECORDED
            ax.plot(
                found["bucket MB"], found["seconds"], color=colour, marker=viz.MARKERS[source != "yours"], label=source
            )
            rows += [
                (source, share, *row) for row in found[["bucket MB", "buckets", "seconds"]].itertuples(index=False)
            ]
            best = found.loc[found["seconds"].idxmin()]
            said.append(f"{source}, words take {share:g}: best {best['seconds']:.2f} at {best['bucket MB']:g} MB, "
                        f"largest bucket {found['seconds'].iloc[-1]:.2f}")  # fmt: skip
        ax.axhline(1 + share + latency, color="black", linestyle=":", linewidth=0.9)
        ax.text(caps[0], 1 + share + latency, " no overlap", fontsize=7, va="bottom")
        ax.axhline(max(1, share), color="black", linestyle="-", linewidth=0.9)
        ax.text(caps[0], max(1, share), " no less is possible", fontsize=7, va="top")
        viz.log2_axis(ax, list(caps)[::2], "bucket, MB")
        ax.tick_params(axis="x", labelrotation=60, labelsize=7)
        ax.set(ylim=(0.7 * max(1, share), 1.12 * (1 + share + latency)), title=f"words take {share:g} backwards")
    axes.flat[0].set_ylabel("all summed after, in backwards")
    axes.flat[-1].legend(fontsize=7, loc="lower right")
    return fig, f"{'; '.join(said)}.", pd.DataFrame(rows, columns=["source", "share", "MB", "buckets", "backwards"])


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
