"""Figures of the planner's model: (figure, text alternative, data) each. None of them is a measurement."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from labkit.teach import viz
from labs.planner import Machine, Plan, Unit, moved, piece

PARTS = ("compute", "communication", "waiting")
LOOKS = {"compute": (viz.SERIES[0], ""), "communication": (viz.SERIES[1], "///"), "waiting": ("#cccccc", "...")}


def megabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def schemes_figure(plans: Mapping[str, Plan | None], machine: Machine, title: str):
    """Seconds a step by scheme, in parts, with memory beside; a scheme that does not fit is pale."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=0.36 * len(plans) + 1.35)
    longest = max(plan.seconds for plan in plans.values() if plan)
    able = {name: plan for name, plan in plans.items() if plan and plan.fits}
    best = min(able, key=lambda name: able[name].seconds, default=None)
    rows, words = [], []
    for y, (name, plan) in enumerate(plans.items()):
        if plan is None:
            ax.text(
                0.01 * longest,
                y,
                "not possible for this network, batch and number of devices",
                va="center",
                fontsize=8,
                color="#555555",
            )
            words.append(f"{name} not possible")
            continue
        left = 0.0
        for part in PARTS:
            colour, hatch = LOOKS[part]
            width = 1e3 * getattr(plan, part)
            ax.barh(
                y,
                width,
                left=left,
                height=0.62,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.0,
                alpha=1.0 if plan.fits else 0.35,
            )
            left += width
        most = megabytes(max(plan.memory))
        note = f"{left:.3g} ms, {most}" + ("" if plan.fits else ": does not fit") + (", best" if name == best else "")
        ax.text(left + 8 * longest, y, note, va="center", fontsize=8)
        rows.append(
            {
                "scheme": name,
                "ms": left,
                **{part: 1e3 * getattr(plan, part) for part in PARTS},
                "MB sent": plan.words * machine.word / 1e6,
                "messages": plan.messages,
                "MB kept": max(plan.memory) / 1e6,
                "fits": plan.fits,
                "placement": _short(str(plan.placement)),
            }
        )
        words.append(
            f"{name} {left:.3g} ms, {plan.communication / plan.seconds:.0%} of it communication, {most}"
            + ("" if plan.fits else ", does not fit")
        )
    ax.set_yticks(range(len(plans)), plans)
    ax.set(xlim=(0, 1e3 * longest * 1.62), ylim=(len(plans) - 0.5, -0.5), xlabel="ms a step, by the model", title=title)
    ax.grid(visible=False, axis="y")
    patches = [Patch(fc=colour, hatch=hatch, ec="white", label=part) for part, (colour, hatch) in LOOKS.items()]
    fig.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    tail = f" The fastest that fits: {best}." if best else " None fits."
    return fig, f"Model, not a measurement. {title}: {'; '.join(words)}.{tail}", pd.DataFrame(rows)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def layers_figure(units: Sequence[Unit], letters: str, devices: int, batch: int, name: str):
    """Words that a device sends for each layer by data and by a split, and which of the two the planner takes.

    The split is by columns; for the letter `r` it is by rows."""
    machine = Machine()
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.0)
    rows = []
    for n, (unit, letter) in enumerate(zip(units, letters, strict=True)):
        before = letters[n - 1] if n else None
        split = letter if letter in "cr" else "c"
        words = moved(before, split, unit, batch, devices)[0] if n else 0.0
        words += piece(unit, split, batch, devices, machine, False).words if split == "r" else 0.0
        rows.append(
            {
                "layer": unit.name,
                "data": 2 * unit.weights * (devices - 1) / devices,
                "split": words,
                "planner": {"d": "data", "c": "columns", "r": "rows"}[letter],
            }
        )
    table = pd.DataFrame(rows)
    at = np.arange(len(table))
    for shift, what, look in ((-0.12, "data", {"marker": "o"}), (0.12, "split", {"marker": "s"})):
        colour = viz.SERIES[0] if what == "data" else viz.SERIES[1]
        shown = table[what].where(table[what] > 0)
        ax.plot(at + shift, 4 * shown / 1e6, color=colour, linestyle="", **look)
        chosen = [(row.planner == "data") == (what == "data") for row in table.itertuples()]
        ax.plot(
            (at + shift)[chosen],
            4 * shown[chosen] / 1e6,
            color=colour,
            linestyle="",
            marker="o",
            fillstyle="none",
            markersize=12,
        )
    ax.set_xticks(at, table["layer"])
    ax.set(
        yscale="log",
        ylabel="MB a device sends a step",
        xlim=(-0.6, len(table) - 0.4),
        title=f"{name}, batch {batch} on {devices} devices: what each layer costs",
    )
    handles = [
        ax.plot([], [], color=viz.SERIES[0], marker="o", linestyle="", label="by data: gradients")[0],
        ax.plot([], [], color=viz.SERIES[1], marker="s", linestyle="", label="split: activations")[0],
        ax.plot(
            [],
            [],
            color="black",
            marker="o",
            fillstyle="none",
            markersize=9,
            linestyle="",
            label="what the planner takes",
        )[0],
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    said = "; ".join(
        f"{row.layer} {4 * row.data / 1e6:.3g} MB by data, "
        + (f"{4 * row.split / 1e6:.3g} MB" if row.split else "nothing")
        + f" split: {row.planner}"
        for row in table.itertuples()
    )
    return fig, f"{name} at batch {batch} on {devices} devices, MB sent by each device a step: {said}.", table


def by_year_figure(table: pd.DataFrame, by_batch: pd.DataFrame, margin: float):
    """How many times longer data parallelism takes than the best hybrid: by network in order of years, and by batch.

    `table`: of `planner_networks.by_year`; `by_batch`: its columns network, batch, gain."""
    gain = table["data"] / table[["hybrid", "model"]].min(axis=1)
    fig, axes = viz.figure(columns=2, height=3.6, width_ratios=[1.45, 1])
    ax, at = axes[0], np.arange(len(table))
    ax.barh(at, gain - 1, left=1, height=0.6, color=[viz.SERIES[0] if g >= margin else "#bbbbbb" for g in gain])
    for y, (row, g) in enumerate(zip(table.itertuples(), gain, strict=True)):
        ax.text(max(g, margin) * 1.03, y, f"x {g:.2f}, {row[4]:.0f} MACs/param", va="center", fontsize=7)
    ax.axvline(margin, color="black", linestyle=":", linewidth=0.8)
    ax.set_yticks(at, [f"{row.year} {row.network}" for row in table.itertuples()])
    ax.set(
        xscale="log",
        xlim=(1, max(2.0, gain.max()) * 4.2),
        ylim=(len(table) - 0.4, -0.6),
        xlabel="data / best split, seconds",
        title="by year",
    )
    ticks = [v for v in (1, 1.5, 2, 3, 4) if v <= max(2.0, gain.max()) * 1.3]
    ax.xaxis.set_ticks(ticks, labels=[f"{v:g}" for v in ticks])
    ax.xaxis.set_ticks([], minor=True)
    ax.grid(visible=False, axis="y")
    words = []
    for n, (name, rows) in enumerate(by_batch.groupby("network", sort=False)):
        axes[1].plot(
            rows["batch"], rows["gain"], color=viz.SERIES[n], marker=viz.MARKERS[n], linestyle=viz.LINES[n], label=name
        )
        words.append(f"{name} " + ", ".join(f"{r.gain:.2f} at {r.batch}" for r in rows.itertuples()))
    viz.log2_axis(axes[1], sorted(set(by_batch["batch"])), "batch size")
    axes[1].axhline(margin, color="black", linestyle=":", linewidth=0.8)
    axes[1].set(title="by batch", ylabel="data / best split")
    axes[1].legend(fontsize=8, frameon=False)
    alt = (
        "Model, not a measurement: seconds of data parallelism over those of the best split. "
        + ", ".join(f"{row.network} ({row.year}) {g:.2f}" for row, g in zip(table.itertuples(), gain, strict=True))
        + f". By batch: {'; '.join(words)}. The dotted line is the margin, {margin:g}."
    )
    return fig, alt, table.assign(gain=gain)
