"""The figures of lab 00: roofline, a step against its estimate, guesses against measurements, a disturbed timing.

Each function returns (figure, text alternative, data).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from labkit.teach import viz

_INK, _LINE = "#222222", "#bbbbbb"


def roofline(rows: Sequence[Mapping], peak: float, bandwidth: float):
    """Attainable speed over intensity on an imaginary machine, with at most five operations on the line.

    Args:
        rows: each with `operation`, `FLOPs per byte` and `GFLOP/s at most`; the last one is labelled above its point.
        peak: GFLOP/s.
        bandwidth: GB/s.
    """
    balance, last = peak / bandwidth, len(rows) - 1
    fig, ax = viz.figure()
    ax.plot([1 / 32, balance, 1024], [bandwidth / 32, peak, peak], color="#888888", marker="", linestyle="-")
    for n, row in enumerate(rows):
        x, y = row["FLOPs per byte"], row["GFLOP/s at most"]
        ax.plot([x], [y], color=viz.SERIES[n], marker=viz.MARKERS[n], markersize=7)
        place = {"xytext": (8, -10), "ha": "left"} if n < last else {"xytext": (0, 9), "ha": "center"}
        ax.annotate(row["operation"], (x, y), textcoords="offset points", color=viz.SERIES[n], fontsize=8, **place)
    ax.axvline(balance, color=_LINE, linewidth=0.8)
    spot = {"xytext": (5, 0), "textcoords": "offset points", "fontsize": 8}
    ax.annotate(f"balance: {balance:g} FLOPs per byte", (balance, bandwidth / 32), **spot)
    ax.set(
        xscale="log",
        yscale="log",
        ylim=(bandwidth / 45, 4 * peak),
        xlabel="intensity (FLOPs per byte)",
        ylabel="GFLOP/s at most",
        title=f"An imaginary machine: {peak:g} GFLOP/s, {bandwidth:g} GB/s",
    )
    ends = [f"{row['operation']} at most {row['GFLOP/s at most']:.4g} GFLOP/s" for row in rows]
    alt = f"Roofline of an imaginary machine: {peak:g} GFLOP/s, {bandwidth:g} GB/s, balance at {balance:g} FLOPs"
    return fig, f"{alt} per byte; {'; '.join(ends)}.", pd.DataFrame(rows)


def steps(rows: pd.DataFrame):
    """Estimated and measured milliseconds of a training step by batch size.

    Args:
        rows: columns `batch`, `estimated ms`, `measured ms`, `times the estimate`, in this order.
    """
    fig, ax = viz.figure()
    looks = {"estimated ms": (viz.SERIES[0], "s", "--"), "measured ms": (viz.YOURS, "o", "-")}
    batches = list(rows["batch"])
    for name, (colour, marker, line) in looks.items():
        ax.plot(rows["batch"], rows[name], color=colour, marker=marker, linestyle=line)
        viz.direct_label(ax, batches[-1], rows[name].iloc[-1], name.split()[0], colour)
    viz.log2_axis(ax, batches, "batch (samples in one step)")
    ax.set(
        yscale="log",
        ylabel="ms per training step",
        xlim=(12, 12000),
        title="A step of the deep MLP: FLOPs / peak, and the truth",
    )
    ends = [
        f"at batch {batch} estimated {estimate:.3g} ms, measured here {value:.3g} ms, {times:.1f} times as much"
        for batch, estimate, value, times in rows.iloc[[0, -1]].itertuples(index=False)
    ]
    return fig, f"A step of the deep MLP: {'; '.join(ends)}.", rows


def guesses(measured: Sequence[tuple], guessed: Sequence, recorded: Sequence[Sequence[float]] = ()):
    """The reader's guesses beside the measurements, each number in its own unit.

    Args:
        measured: (name, value, unit) each, as `labkit.doctor.measure` returns them.
        guessed: one `labkit.teach.predict` result each; an answer that is empty or not positive counts as none.
        recorded: the same numbers on other machines, one sequence a machine.

    Returns:
        (figure, text alternative, data); data column `log10 error` is empty where nothing was guessed.
    """
    rows = []
    for n, ((name, value, unit), guess) in enumerate(zip(measured, guessed, strict=True)):
        answered = (guess.answer or 0) > 0
        rows.append(
            {
                "number": name,
                "unit": unit,
                "measured": value,
                "guess": guess.answer if answered else None,
                "log10 error": guess.log_error(value) if answered else None,
                "recorded": [round(other[n], 3) for other in recorded],
            }
        )
    fig, ax = viz.figure(width=6.5, height=3.2)
    for n, row in enumerate(rows):
        value, guess, others = row["measured"], row["guess"], row["recorded"]
        ax.plot(others, [0.2 - n] * len(others), color=viz.RECORDED, marker="s", linestyle="", markersize=4.5)
        if guess:
            hollow = {"color": _INK, "marker": "o", "markerfacecolor": "white", "linestyle": "", "markersize": 6}
            ax.plot([guess, value], [-n, -n], color=_LINE, marker="", linestyle="-")
            ax.plot([guess], [-n], **hollow)
        ax.plot([value], [-n], color=viz.YOURS, marker="o", linestyle="", markersize=6)
        _centred(ax, f"{value:.3g} {row['unit']}", value, -n, -11)
    answers = [row for row in rows if row["guess"]]
    key = ["orange: measured here", "white: your guess" if answers else "no guesses yet"]
    key += ["blue: recorded"] if recorded else []
    ax.set(xscale="log", xlabel="each number in its own unit", ylim=(0.4 - len(rows), 0.6), title="; ".join(key))
    ax.set_yticks([-n for n in range(len(rows))], [f"{row['number']} ({row['unit']})" for row in rows])
    drawn = [value for row in rows for value in (row["measured"], row["guess"], *row["recorded"]) if value]
    _log_x(ax, min(drawn) / 3, max(drawn) * 3)
    here = ", ".join(f"{name} {value:.3g} {unit}" for name, value, unit in measured)
    guess = "; ".join(f"{r['number']} {r['guess']:.4g}, log10 error {r['log10 error']:.2f}" for r in answers)
    others = "; ".join(f"{row['number']} {', '.join(map(str, row['recorded']))}" for row in rows if recorded)
    alt = f"Measured here: {here}. Guesses: {guess or 'none'}. Recorded: {others or 'none'}."
    return fig, alt, pd.DataFrame(rows)


def noise(timings: Mapping[str, Sequence[float]], side: int, cpus: int):
    """Every timing of one matrix product in several settings, with the medians.

    Args:
        timings: GFLOP/s by setting, equally many in each.
        side: of the two square matrices.
        cpus: of this machine.
    """
    table = pd.DataFrame(
        [
            {"setting": name, "slowest": min(values), "median": median(values), "fastest": max(values)}
            for name, values in timings.items()
        ]
    )
    times = len(next(iter(timings.values())))
    fig, ax = viz.figure(height=2.6)
    for n, values in enumerate(timings.values()):
        ax.plot(values, [-n] * times, color=viz.YOURS, marker="|", linestyle="", markersize=14, markevery=1)
        _centred(ax, f"median {median(values):.3g}", median(values), -n, 11)
    ax.set_yticks([-n for n in range(len(timings))], list(timings))
    ax.set(
        xscale="log",
        ylim=(0.5 - len(timings), 0.6),
        xlabel="GFLOP/s of one timing",
        title=f"The same {side} x {side} product, {_counted(times, 'timing')} each",
    )
    _log_x(ax, table["slowest"].min() / 2, table["fastest"].max() * 2)
    lines = [
        f"{name}: median {middle:.3g} GFLOP/s, from {slow:.3g} to {fast:.3g}"
        for name, slow, middle, fast in table.itertuples(index=False)
    ]
    alt = f"{_counted(times, 'timing')} of a {side} x {side} matrix product on {_counted(cpus, 'CPU')}. "
    alt += f"{'; '.join(lines)}."
    return fig, alt, table


def _centred(ax, text: str, x: float, y: float, points: int) -> None:
    ax.annotate(text, (x, y), xytext=(0, points), textcoords="offset points", ha="center", fontsize=8)


def _log_x(ax, low: float, high: float) -> None:
    """A logarithmic axis from `low` to `high` with plain labels that do not touch.

    Ticks are powers of ten, at most eight; where fewer than two lie inside, the steps 1, 2 and 5 of each.
    """
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = [10.0**power for power in powers[:: math.ceil(len(powers) / 8) or 1]]
    if len(ticks) < 2:
        near = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**power for power in near for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    ax.set_xlim(low, high)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
