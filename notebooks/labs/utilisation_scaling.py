"""Figures of versions of a step, of batch sizes and of numbers of workers: (figure, text alternative, data) each.

`groups` is a list of (name, data, colour): yours first, then what was recorded, where there is any.
"""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.teach import viz
from labs.utilisation_figures import plain_axis


def speed_ups_figure(groups: Sequence[tuple], left_out: Mapping[str, str], title: str):
    """Paired speed-ups with their intervals on a log axis; data of a group: the table of `utilisation.speed_ups`."""
    names = list(dict.fromkeys(name for _, table, _ in groups for name in table["name"]))
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=0.36 * len(names) + 1.3)
    words, tables = [], []
    for n, (group, table, colour) in enumerate(groups):
        for row in table.itertuples():
            y = names.index(row.name) + 0.22 * n
            ratio, low, high = row[2], row.low, row.high
            ax.plot([low, high], [y, y], color=colour, marker="", linestyle="-", linewidth=1.6)
            ax.plot(ratio, y, color=colour, marker=("o", "s")[n % 2], linestyle="")
            if n == 0:
                ax.text(
                    1.02,
                    y,
                    f"x {ratio:.2f}, {1e3 * row.seconds:.3g} ms",
                    transform=ax.get_yaxis_transform(),
                    va="center",
                    fontsize=8,
                )
        parts = [f"{row.name} x {row[2]:.2f} [{row.low:.2f}, {row.high:.2f}]" for row in table.itertuples()]
        words.append(f"{group}: {', '.join(parts)}")
        tables.append(table.assign(group=group))
    ax.axvline(1, color="black", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(names)), names)
    ends = [v for _, table, _ in groups for v in (*table["low"], *table["high"]) if 0 < v < math.inf]
    low, high = min([0.8, *ends]) / 1.2, max([1.3, *ends]) * 1.2
    ticks = [v for v in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1.5, 2, 4, 8) if low <= v <= high]
    ax.set(
        xscale="log",
        xlim=(low, high),
        ylim=(len(names) - 0.4, -0.6),
        title=title,
        xlabel="times as fast as float32 (median of paired ratios, 95 % interval)",
    )
    ax.xaxis.set_ticks(ticks, labels=[f"{v:g}" for v in ticks])
    ax.xaxis.set_ticks([], minor=True)
    out = f" Left out: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}." if left_out else ""
    return fig, f"{title}. {'; '.join(words)}.{out}", pd.concat(tables, ignore_index=True)


def batch_figure(groups: Sequence[tuple], model: str):
    """Images per second by batch size, and the latency of one inference; data of a group: `utilisation.batch_table`."""
    fig, axes = viz.figure(columns=2, height=3.0)
    words, tables = [], []
    for group, table, colour in groups:
        for what, rows in table.groupby("what"):
            look = {
                "color": colour,
                "marker": "o" if what == "inference" else "s",
                "linestyle": "-" if what == "inference" else "--",
            }
            axes[0].plot(rows["batch"], rows["images/s"], **look)
            if group == groups[0][0]:
                viz.direct_label(axes[0], rows["batch"].iloc[-1], rows["images/s"].iloc[-1], what, colour)
            ends = rows.iloc[[0, -1]]
            words.append(
                f"{group}, {what}: "
                + ", ".join(f"batch {r.batch} {r.ms:.3g} ms and {r[4]:.3g} images/s" for r in ends.itertuples())
            )
        rows = table[table["what"] == "inference"]
        axes[1].plot(rows["batch"], rows["ms"], color=colour, marker="o", linestyle="-")
        lower = 1 if group == groups[0][0] else 1.35  # the two may lie on each other
        viz.direct_label(axes[1], rows["batch"].iloc[-1], rows["ms"].iloc[-1] / lower, group, colour)
        tables.append(table.assign(group=group))
    batches = sorted({int(b) for table in tables for b in table["batch"]})
    for ax, label, title in zip(axes, ("images per second", "ms"), ("throughput", "latency of one inference")):
        viz.log2_axis(ax, batches, "batch size")
        ax.set(yscale="log", ylabel=label, title=title, xlim=(batches[0] / 1.3, batches[-1] * 6))
        plain_axis(ax)
    fig.suptitle(model, fontsize=10)
    return fig, f"{model} by batch size. {'; '.join(words)}.", pd.concat(tables, ignore_index=True)


def communication_figure(table: pd.DataFrame, title: str, both: bool = True):
    """The ring model by number of workers: share of the step that waits, and speed-up (left out unless `both`)."""
    fig, axes = viz.figure(columns=1 + both, height=2.9, squeeze=False)
    share, faster = axes[0, 0], axes[0, -1]
    words, workers = [], sorted(set(table["workers"]))
    for n, (what, rows) in enumerate(table.groupby("what", sort=False)):
        look = {"color": viz.SERIES[n], "marker": viz.MARKERS[n], "linestyle": viz.LINES[n]}
        share.plot(rows["workers"], rows["share"], label=what, **look)
        last = rows.iloc[-1]
        half = rows[rows["share"] > 0.5]["workers"]
        words.append(
            f"{what}: at {last['workers']} workers {last['share']:.0%} of the step waits, speed-up "
            f"{last['speed-up']:.3g}; more than half waits "
            + (f"from {half.iloc[0]} workers on" if len(half) else "nowhere")
        )
        if both:
            faster.plot(rows["workers"], rows["speed-up"], **look)
    share.axhline(0.5, color="black", linewidth=0.8, linestyle=":")
    for ax in axes[0]:
        viz.log2_axis(ax, workers, "workers")
    if both:
        faster.plot(workers, workers, color="#bbbbbb", marker="", linestyle=":")
        faster.set(yscale="log", ylabel="images/s over one worker's")
        plain_axis(faster)
    share.set(ylim=(-0.03, 1.03), ylabel="share of the step that waits")
    fig.legend(*share.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    fig.suptitle(title, fontsize=10)
    return fig, f"Model, not a measurement: {title}. {'; '.join(words)}.", table


def entries_figure(table: pd.DataFrame, predicted: pd.DataFrame):
    """Scaling efficiency of public entries (images per worker and second, over the family's smallest entry), with the
    ring model's prediction for the calibrated family.
    """
    fig, ax = viz.figure(width=viz.MAX_WIDTH)
    parts, rows = [], []
    for n, (family, found) in enumerate(table.groupby("family", sort=False)):
        found = found.sort_values("workers")
        speed = found["samples"] / found["workers"] / found["seconds"]
        ax.plot(found["workers"], speed / speed.iloc[0], color=viz.LITERATURE, marker=viz.MARKERS[n], linestyle="-")
        viz.direct_label(ax, found["workers"].iloc[-1], speed.iloc[-1] / speed.iloc[0], family, "#555555")
        rows.append(found.assign(efficiency=speed / speed.iloc[0]))
        parts.append(
            f"{family} " + ", ".join(f"{w} workers {e:.2f}" for w, e in zip(found["workers"], speed / speed.iloc[0]))
        )
    base = predicted.iloc[0]
    model = predicted["samples"] / predicted["workers"] / predicted["predicted"]
    model = model / (base["samples"] / base["workers"] / base["seconds"])
    ax.plot(predicted["workers"], model, color=viz.SERIES[0], marker="x", linestyle="--")
    viz.direct_label(ax, predicted["workers"].iloc[-1], model.iloc[-1] + 0.03, "ring model", viz.SERIES[0])
    workers = sorted(set(table["workers"]))
    viz.log2_axis(ax, workers, "workers (GPUs; nodes for Intel)")
    ax.set(
        ylim=(0, 1.3),
        xlim=(workers[0] / 1.2, workers[-1] * 2),
        ylabel="images/s per worker, relative",
        title="Public ImageNet entries that differ mainly in machines",
    )
    last = predicted.iloc[-1]
    alt = (
        f"Scaling efficiency of public entries: {'; '.join(parts)}. The ring model, calibrated on the others of "
        f"{last['family']}, predicts {last['predicted']:.0f} s at {last['machines']} machines (published "
        f"{last['seconds']:.0f} s), {last['communication']:.0%} of it communication."
    )
    return fig, alt, pd.concat(rows, ignore_index=True)
