"""The figures of lab 07 that need no trained accuracy: published settings, the rules as paths, seconds at equal epochs.

Each function returns (figure, text alternative, data).
"""

import math
from collections.abc import Mapping

import pandas as pd

from labs.factorial import LABELS, RULES, Table
from labkit.optim.schedules import Baseline, Schedule, legw
from labkit.teach import viz
from labs.scaling import power
from labs.scaling_figures import STYLES

ABSTRACT = 5.3  # times faster, the average of four LSTM applications: abstract of arXiv 1901.08256


def published_settings(resnet: pd.DataFrame, mlperf: pd.DataFrame):
    """Published peak rates and warm-ups of ResNet-50 by batch size, with LEGW from the first row of `resnet` as a line.

    Args:
        resnet, mlperf: `labkit.rules.general.published` tables with columns batch, rate, warmup_epochs.
    """
    base = Baseline(int(resnet.batch[0]), float(resnet.rate[0]), float(resnet.warmup_epochs[0]))
    batches = [2**exponent for exponent in range(9, 17)]
    scaled = {batch: legw(base, batch) for batch in batches}
    fig, axes = viz.figure(2, 1, height=2.7)
    columns = {"rate": ("peak rate", range(2, 7)), "warmup_epochs": ("warm-up, epochs", range(-3, 6))}
    for ax, (column, (label, ticks)) in zip(axes, columns.items(), strict=True):
        rule = [getattr(point, column) for point in scaled.values()]
        ax.plot(batches, rule, color=STYLES["legw"][0], marker="", linestyle="-")
        ax.plot(resnet.batch, resnet[column], color=viz.LITERATURE, marker="o", linestyle="none")
        ax.plot(mlperf.batch, mlperf[column], color=viz.LITERATURE, marker="x", linestyle="none")
        viz.log2_axis(ax, [512, 2048, 8192, 32768], "batch size")
        viz.log2_axis(ax, [2.0**exponent for exponent in ticks], label, axis="y")
    text = "line: LEGW from batch 512\no  authors' lab\nx  MLPerf, tuned by vendors"
    axes[0].text(0.05, 0.95, text, fontsize=8, color="#444444", va="top", transform=axes[0].transAxes)
    last = resnet.iloc[-1]
    alt = (
        f"Published ResNet-50 settings. The authors' lab raises the rate from {resnet.rate[0]:g} at batch 512 to "
        f"{last.rate:g} at 32768, on the square root; its warm-up follows LEGW up to 16384 and is "
        f"{last.warmup_epochs:g} epochs at 32768, where the rule says {scaled[int(last.batch)].warmup_epochs:g} (L03). "
        "MLPerf's warm-ups grow with the batch too, while its rates flatten (L22)."
    )
    data = pd.concat([resnet.assign(table="authors' lab"), mlperf.assign(table="MLPerf reference points")])
    return fig, alt, data[["table", "batch", "rate", "warmup_epochs"]]


def rule_schedules(table: Table, rate: float, updates: int):
    """Every rule from one base rate: its peak rate by batch, and its rate by update in a run at the largest batch.

    Args:
        updates: of the run at the largest batch.
    """
    largest, rows = table.batches[-1], []
    fig, axes = viz.figure(2, 1, height=2.9)
    for rule in RULES:
        path, (colour, marker) = table.path(rule, rate), STYLES[rule]
        line = "--" if rule in ("legw", "linear_with_warmup") else "-"
        shape = Schedule(peak=path[-1].rate, total_steps=updates, warmup_steps=path[-1].warmup_steps)
        axes[0].plot(table.batches, [cell.rate for cell in path], color=colour, marker=marker, linestyle=line)
        rates = [shape(step) for step in range(updates)]
        axes[1].plot(range(updates), rates, color=colour, marker="", linestyle=line, label=LABELS[rule])
        rows.append({"rule": LABELS[rule], "peak rate": path[-1].rate, "warm-up updates": path[-1].warmup_steps})
    viz.log2_axis(axes[0], table.batches, "batch size")
    axes[0].set_yscale("log", base=2)
    axes[0].set_ylabel("peak rate")
    axes[1].set_xlabel(f"update, of {updates} at batch {largest}")
    axes[1].set_ylabel("rate")
    handles = axes[1].get_legend_handles_labels()
    with viz.style():
        fig.legend(*handles, loc="outside lower center", ncols=5, handlelength=1.5, columnspacing=1.2)
    said = "; ".join(f"{row['rule']} {row['peak rate']:.3g} after {row['warm-up updates']:g}" for row in rows)
    alt = f"Peak rate and the updates before it, at batch {largest} from base rate {power(rate)}: {said}."
    return fig, alt, pd.DataFrame(rows)


def speed(recorded: Mapping[int, float], yours: Mapping[int, float]):
    """How many times faster an epoch gets with the batch, each source against its own smallest batch.

    Args:
        recorded, yours: seconds of an epoch by batch size, NaN where there are none; `yours` has some.
    """
    fig, ax = viz.figure()
    rows, smallest = [], min(yours)
    for source, colour, offset in ((recorded, viz.RECORDED, 8), (yours, viz.YOURS, -11)):
        seconds = {batch: value for batch, value in source.items() if math.isfinite(value)}
        faster = {batch: seconds[min(seconds)] / value for batch, value in seconds.items()}
        label = "yours" if source is yours else "recorded"
        if faster:
            ax.plot(list(faster), list(faster.values()), color=colour, marker="o", linestyle="-")
            batch = sorted(faster)[1] if label == "recorded" and len(faster) > 2 else max(faster)
            spot = {"xytext": (-4, offset), "textcoords": "offset points", "ha": "right"}
            ax.annotate(label, (batch, faster[batch]), color=colour, fontsize=8, **spot)
        rows += [
            {"source": label, "batch": batch, "seconds per epoch": seconds[batch], "times faster": faster[batch]}
            for batch in seconds
        ]
    ax.axhline(ABSTRACT, color=viz.LITERATURE, linestyle="--")
    note = f"{ABSTRACT}: average of four LSTM applications (abstract)"
    ax.text(smallest, ABSTRACT + 0.1, note, color=viz.LITERATURE, fontsize=8, va="bottom")
    viz.log2_axis(ax, sorted({row["batch"] for row in rows}), "batch size")
    ax.set_ylabel(f"times faster than batch {smallest}")
    ax.set_ylim(0, max([6.4, *(row["times faster"] * 1.1 for row in rows)]))
    said = [
        f"{row['source']} {row['seconds per epoch']:.3g} s at batch {row['batch']} "
        f"({row['times faster']:.2f} times faster)"
        for row in rows
    ]
    alt = f"Row-LSTM, seconds of an epoch: {'; '.join(said)}. The abstract reports {ABSTRACT} times on average."
    return fig, alt, pd.DataFrame(rows)
