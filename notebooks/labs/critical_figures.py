"""The figures of lab 10's table and noise scale. Each function returns (figure, text alternative, data).

Recorded runs are blue, yours orange; a study is a `labs.critical.Study`.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.optim.noise import smooth_ratio
from labkit.teach import viz
from labs.critical import Study, gain
from labs.rules_critical import crossing

WORKERS = [2**n for n in range(0, 11)]


def looks(recorded, yours) -> tuple:
    """(name, what was given, colour, line and marker) of both sources, recorded first."""
    return ("recorded", recorded, viz.RECORDED, "-", "o"), ("yours", yours, viz.YOURS, "--", "s")


def sources(recorded: Study, yours: Study) -> list:
    """The looks of those that reached the target somewhere."""
    return [look for look in looks(recorded, yours) if look[1].best]


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}".replace(",", " ")


def ticks(batches: Sequence[int]) -> list[int]:
    """At most six batch sizes for an axis."""
    batches = sorted(set(batches))
    return batches[:: math.ceil(len(batches) / 6)]


def workers(knee: float, images: int):
    """Times fewer steps and times as many examples against workers, from the fit's formula."""
    fewer, dearer = gain(knee, images, WORKERS)
    fig, ax = viz.figure(height=2.9)
    ax.plot(WORKERS, WORKERS, color=viz.LITERATURE, marker="", linestyle=":")
    ax.plot(WORKERS, fewer, color=viz.SERIES[0], marker="o", linestyle="-")
    ax.plot(WORKERS, dearer, color=viz.SERIES[2], marker="^", linestyle="--")
    limit = knee / images
    if WORKERS[0] < limit < WORKERS[-1]:
        ax.axvline(limit, color=viz.LITERATURE, linewidth=0.8)
        ax.text(limit, ax.get_ylim()[1], " workers x images = critical batch", fontsize=8, color="#555555", va="top")
    ax.set_yscale("log", base=2)
    viz.log2_axis(ax, WORKERS[::2], f"workers, {images} images each")
    viz.log2_axis(ax, [1, 4, 16, 64, 256, 1024], "times", axis="y")
    viz.direct_label(ax, WORKERS[-4], fewer[-4] * 0.8, "fewer steps", viz.SERIES[0])
    viz.direct_label(ax, WORKERS[4], dearer[4] * 0.72, "more examples", viz.SERIES[2])
    ax.annotate("perfect", (WORKERS[5], WORKERS[5]), xytext=(-6, 4), textcoords="offset points", ha="right",
                fontsize=8, color="#555555")  # fmt: skip
    said = "; ".join(f"{w} workers: {short(f)} times fewer steps, {short(d)} times the examples"
                     for w, f, d in list(zip(WORKERS, fewer, dearer))[2::3])  # fmt: skip
    alt = f"Critical batch {knee}, {images} images a worker, against one worker. {said}."
    return fig, alt, pd.DataFrame({"workers": WORKERS, "times fewer steps": fewer, "times the examples": dearer})


def steps(recorded: Study, yours: Study, title: str = ""):
    """Steps and examples to the target against batch, each at its best rate, with the fit."""
    fig, axes = viz.figure(2, 1, height=3.0)
    rows, said, every = [], [], []
    for name, found, colour, line, marker in sources(recorded, yours):
        batches, count = np.array(found.batches, float), np.array([steps for _, steps in found.best.values()])
        every += found.batches
        for ax, factor in zip(axes, (np.ones_like(batches), batches)):
            ax.plot(batches, count * factor, color=colour, marker=marker, linestyle="none")
        if math.isfinite(found.knee):
            grid = np.geomspace(batches[0], batches[-1], 80)
            shape = found.floor * (1 + found.knee / grid)
            for ax, curve in zip(axes, (shape, shape * grid)):
                ax.plot(grid, curve, color=colour, marker="", linestyle=line, linewidth=1.2)
                ax.axvline(found.knee, color=colour, linewidth=0.7, linestyle=line)
                if found.high > 1.001 * found.low:
                    ax.axvspan(found.low, found.high, color=colour, alpha=0.15, linewidth=0)
        said.append(f"{name}: " + ", ".join(f"batch {b} {short(s)} steps" for b, (_, s) in found.best.items())
                    + f"; {found.words()}")  # fmt: skip
        rows += [{"source": name, "batch": b, "best rate": r, "steps": s, "examples": s * b, "seeds": found.seeds}
                 for b, (r, s) in found.best.items()]  # fmt: skip
    if not rows:
        return empty("no run reached the target")
    lead = sources(recorded, yours)[0][1]
    if math.isfinite(lead.knee):
        grid = np.geomspace(min(every), max(every), 40)
        axes[0].plot(grid, lead.floor * lead.knee / grid, color=viz.LITERATURE, marker="", linestyle=":")
        axes[0].axhline(lead.floor, color=viz.LITERATURE, linestyle=":")
        axes[0].set_ylim(lead.floor * 0.6, None)
    for ax, label in zip(axes, ("steps to the target", "examples to the target")):
        viz.log2_axis(ax, ticks(every), "batch size")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", " "))
        ax.set_ylabel(label)
    if title:
        fig.suptitle(title, fontsize=10)
    return fig, "Steps to the target by batch, each at its best rate. " + ". ".join(said) + ".", pd.DataFrame(rows)


def rates(recorded: Study, yours: Study):
    """Every rate that was tried (a cross where a seed missed the target) and the best one at each batch."""
    fig, ax = viz.figure(height=3.0)
    rows, said, every = [], [], []
    for name, found, colour, line, marker in sources(recorded, yours):
        shift = 1.0 if name == "recorded" else 1.08
        tried = [(batch, rate, float(np.exp(np.mean(np.log(steps))))) for batch, cells in found.table.items()
                 for rate, steps in cells.items()]  # fmt: skip
        for reached, look in ((True, "."), (False, "x")):
            points = [(batch * shift, rate) for batch, rate, s in tried if math.isfinite(s) == reached]
            if points:
                ax.plot(*zip(*points), color=colour, marker=look, linestyle="none", alpha=0.45, markersize=4)
        chosen = [rate for rate, _ in found.best.values()]
        at = [batch * shift for batch in found.batches]
        ax.plot(at, chosen, color=colour, marker=marker, linestyle="none", markersize=6)
        if math.isfinite(found.rate_knee):
            grid = np.geomspace(min(found.batches), max(found.batches), 60)
            curve = found.top / (1 + found.rate_knee / grid)
            ax.plot(grid, curve, color=colour, marker="", linestyle=line, linewidth=1.2)
        every += list(found.table)
        edge = f"; at an edge of those tried at {found.edges}" if found.edges else ""
        said.append(f"{name}: " + ", ".join(f"batch {b} {r:.3g}" for b, r in zip(found.batches, chosen))
                    + f"; fit {found.top:.2g} / (1 + {found.rate_knee:.0f} / B){edge}")  # fmt: skip
        rows += [{"source": name, "batch": batch, "rate": rate, "steps": s} for batch, rate, s in tried]
    if not rows:
        return empty("no run reached the target")
    lead = sources(recorded, yours)[0][1]
    first, (rate, _) = next(iter(lead.best.items()))
    end = first * max(max(cells) for cells in lead.table.values()) / rate
    ax.plot([first, end], [rate, rate * end / first], color=viz.LITERATURE, marker="", linestyle=":")
    ax.annotate("linear scaling", (end, rate * end / first), xytext=(4, -2), textcoords="offset points", fontsize=8,
                color="#555555", va="top")  # fmt: skip
    viz.log2_axis(ax, ticks(every), "batch size")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    ax.set_ylabel("rate (large mark: best)")
    return fig, "Best rate by batch. " + ". ".join(said) + ".", pd.DataFrame(rows)


def noise_course(recorded: Study, yours: Study):
    """The noise scale along training (smoothed), its ratio of sums, and the critical batch of the fit."""
    fig, ax = viz.figure(height=3.1)
    rows, said = [], []
    for name, found, colour, line, _ in looks(recorded, yours):
        for seed, run in found.noise_runs.items():
            traces, squares = (run.series(metric) for metric in ("noise_trace", "gradient_squared_norm"))
            smooth = smooth_ratio([row.value for row in traces], [row.value for row in squares], 0.95)
            at, end = np.array([row.step + 1 for row in traces]), crossing(run, found.target)
            ax.plot(at[4:], smooth[4:], color=colour, marker="", linestyle=line, linewidth=1.0, alpha=0.8)
            if math.isfinite(end):
                ax.plot([end], [np.interp(end, at, smooth)], color=colour, marker="v", markersize=6, linestyle="none")
            rows.append({"source": name, "seed": seed, "steps to target": end, "start": smooth[min(9, len(smooth) - 1)],
                         "at target": float(np.interp(end, at, smooth)), "critical batch": found.knee,
                         "ratio of sums": found.scales.get(seed, math.nan)})  # fmt: skip
        if found.scales:
            ax.axhline(found.scale, color=colour, linestyle=line, linewidth=1.6)
            said.append(f"{name}: {found.scale:.0f} as ratio of sums over the path to the target, critical batch of "
                        f"the fit {found.knee:.0f}, so {found.scale / found.knee:.2f} times")  # fmt: skip
    if not rows:
        return empty("no noise scale was measured")
    lead = recorded if math.isfinite(recorded.knee) and recorded.scales else yours
    if math.isfinite(lead.knee):
        ax.axhspan(lead.knee / 3, lead.knee * 3, color=viz.LITERATURE, alpha=0.2, linewidth=0)
        ax.text(ax.get_xlim()[1], lead.knee / 2.9, "within 3 times the critical batch ", fontsize=8, color="#555555",
                va="bottom", ha="right")  # fmt: skip
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    ax.set_xlabel("step (triangle: target reached)")
    ax.set_ylabel("noise scale, samples")
    span = "; ".join(f"{row['source']}, seed {row['seed']}: {row['start']:.0f} at the start, {row['at target']:.0f} at "
                     "the target" for row in rows)  # fmt: skip
    return fig, f"Noise scale along training. {'. '.join(said)}. {span}.", pd.DataFrame(rows)


def empty(reason: str):
    """A figure that says why there is nothing to draw."""
    fig, ax = viz.figure(height=1.2)
    ax.set_axis_off()
    ax.text(0.5, 0.5, reason, ha="center", va="center", fontsize=9, color="#555555")
    return fig, f"Nothing to draw: {reason}.", pd.DataFrame()
