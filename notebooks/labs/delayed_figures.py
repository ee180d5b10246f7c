"""The figures of lab 05 about late gradients. Each function returns (figure, text alternative, data).

Recorded runs are blue, yours orange; what a formula says is grey."""

import math

import numpy as np
import pandas as pd

from labkit.errors import RequestError
from labkit.teach import viz
from labs import delayed, delayed_study
from labs.async_tables import counted
from labs.delayed_study import LEVEL

GREY = "#555555"


def looks(recorded, yours) -> list:
    """(name, runs, colour, line, marker) of both sources, recorded first."""
    return [("recorded", recorded, viz.RECORDED, "-", "o"), ("yours", yours, viz.YOURS, "--", "s")]


def empty(what: str):
    """A figure that says why it shows nothing."""
    fig, ax = viz.figure(height=1.2)
    ax.set_axis_off()
    ax.text(0.5, 0.5, what, ha="center", fontsize=9)
    return fig, f"Nothing to draw: {what}.", None


def delay_axis(ax, delays, shift: float | None = None) -> range:
    """A log-2 axis that holds these delays and 0 to 32, in octaves: of delay + `shift`, or, without one, of the delay,
    with 0 at a half. Returns all whole delays on it."""
    octaves = [0, *(2**n for n in range(math.ceil(math.log2(max([32, *delays]))) + 1))]
    viz.log2_axis(ax, [delay + shift if shift else max(delay, 0.5) for delay in octaves], "delay")
    ax.set_xticklabels(octaves)
    return range(octaves[-1] + 1)


def fraction(rate: float) -> str:
    """A rate as one over a whole number where it is one."""
    turned = 1 / rate
    return f"1/{turned:.0f}" if turned > 1.5 and abs(turned - round(turned)) < 1e-6 else f"{rate:.3g}"


def trajectory(delay: int, rate: float, momentum: float):
    """Explorer: the path on a quadratic of curvature 1, and where the choice lies against the edge.

    Raises:
        RequestError: a choice that means nothing."""
    numbers = all(isinstance(value, (int, float, np.number)) for value in (delay, rate, momentum))
    if not (numbers and delay in range(65) and 0 < rate < math.inf and 0 <= momentum < 1):
        raise RequestError(f"delay {delay!r}, rate {rate!r}, momentum {momentum!r}: the delay must be a whole number "
                           "from 0 to 64, the rate more than 0 and finite, the momentum from 0 to less than 1")
    delay = int(delay)
    limit, steps = delayed.edge_of(delay, momentum), max(40, 12 * (delay + 1))
    growth = delayed.radius(delay, rate, momentum)
    w = delayed.path(delay, rate, momentum, steps)
    fig, (left, right) = viz.figure(2, 1, height=2.9)
    side = 0 if abs(growth - 1) <= 1e-9 else 1 if growth > 1 else -1
    title, state, colour = {-1: ("converges", "inside: it converges", viz.SERIES[0]),
                            0: ("swings for ever", "on the edge: it swings for ever", viz.SERIES[1]),
                            1: ("diverges", "outside: it diverges", viz.SERIES[2])}[side]
    left.plot(np.clip(w, -3, 3), color=colour, marker="", linestyle="-")
    left.axhline(0, color=viz.LITERATURE, linewidth=0.8)
    left.set(xlabel="updates", ylabel="distance from the minimum", ylim=(-3.1, 3.1))
    left.set_title(title)
    every = delay_axis(right, [delay], 1)
    right.plot([d + 1 for d in every], [delayed.edge_of(d, momentum) for d in every], color=viz.LITERATURE, marker="",
               linestyle="-")
    right.plot([delay + 1], [rate], color=colour, marker="X", markersize=9, linestyle="none")
    viz.log2_axis(right, [2.0**n for n in range(-8, 2, 2)], "rate x curvature", axis="y")
    right.set_yticklabels([fraction(2.0**n) for n in range(-8, 2, 2)])
    right.set_title("edge of stability (grey)")
    alt = (f"Delay {delay}, rate x curvature {rate:g}, momentum {momentum:g}: the edge is at {limit:.4f}, so this "
           f"choice is {state}; in the long run the distance is multiplied by {growth:.4f} at each update.")
    return fig, alt, pd.DataFrame({"update": np.arange(len(w)), "distance": w})[:40]


def edges(found: dict):
    """Edges found by running the quadratic, {momentum: {delay: edge}}, on the formula's or the roots'."""
    fig, ax = viz.figure(height=2.9)
    every, rows, said = delay_axis(ax, set().union(*found.values()), 1), [], []
    for (momentum, points), marker in zip(found.items(), ("o", "^"), strict=False):
        ax.plot([d + 1 for d in every], [delayed.edge_of(d, momentum) for d in every], color=viz.LITERATURE, marker="",
                linestyle="-")
        ax.plot([d + 1 for d in points], list(points.values()), color=viz.YOURS, marker=marker, linestyle="none")
        last = max(points)
        ax.annotate(f"momentum {momentum:g}", (last + 1, points[last]), xytext=(6, 6), textcoords="offset points",
                    color=viz.YOURS, fontsize=8)
        rows += [{"momentum": momentum, "delay": d, "found": value, "theory": delayed.edge_of(d, momentum)}
                 for d, value in points.items()]
        said.append(f"momentum {momentum:g}: " + ", ".join(f"delay {d} {value:.4f}" for d, value in points.items()))
    viz.log2_axis(ax, [2.0**n for n in range(-8, 3, 2)], "largest stable rate x curvature", axis="y")
    ax.set_yticklabels([fraction(2.0**n) for n in range(-8, 3, 2)])
    alt = "Largest stable rate x curvature, found by running; theory is grey. " + "; ".join(said) + "."
    return fig, alt, pd.DataFrame(rows)


def by_rate(runs, source: str, momenta):
    """Validation accuracy, mean over the seeds, against rate: a line for each delay, a panel for each momentum. The
    text names the largest usable rates, those of `delayed_study.usable_rates`."""
    momenta = [momentum for momentum in momenta if delayed_study.delays(runs, momentum)]
    if not momenta:
        return empty("no training with constant delay")
    fig, axes = viz.figure(len(momenta), 1, height=3.0, width=6.5, sharey=True)
    rows, said = [], []
    for ax, momentum in zip(np.atleast_1d(axes), momenta, strict=True):
        every, largest = [], delayed_study.usable_rates(runs, momentum)
        for n, delay in enumerate(delayed_study.delays(runs, momentum)):
            means = delayed_study.accuracy(runs, momentum, delay)
            colour = (GREY, *viz.SERIES)[n % (1 + len(viz.SERIES))]
            ax.plot(means.index, means.values, color=colour, marker=viz.MARKERS[n % 7], linestyle=viz.LINES[n % 4],
                    label=f"{delay}", markersize=4)
            every += list(means.index)
            rows += [{"momentum": momentum, "delay": delay, "rate": rate, "accuracy": value}
                     for rate, value in means.items()]
            said.append(f"momentum {momentum:g}, delay {delay}: "
                        + (fraction(largest[delay]) if delay in largest else "none inside those tried"))
        ax.axhline(LEVEL, color=viz.LITERATURE, linestyle=":")
        marks = [2.0**n for n in range(math.floor(math.log2(min(every))), math.ceil(math.log2(max(every))) + 1, 2)]
        viz.log2_axis(ax, marks, "rate")
        ax.set_xticklabels([fraction(mark) for mark in marks])
        ax.set_title(f"momentum {momentum:g}")
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("validation accuracy")
    first.set_xlim(first.get_xlim()[0] / 8, None)  # room for the legend
    first.legend(title="delay", loc="center left", title_fontsize=8)
    alt = (f"Validation accuracy by rate and delay ({source}). Largest usable rate ({LEVEL:g} or more; geometric mean "
           "over seeds): " + "; ".join(said) + ".")
    return fig, alt, pd.DataFrame(rows)


def usable(recorded, yours, momenta):
    """The largest usable rate against delay, and the quadratic's edge with the same momentum, shifted to meet it."""
    fig, axes = viz.figure(len(momenta), 1, height=2.9, width=6.5, sharey=True)
    rows, said = [], []
    delays = [delay for runs in (recorded, yours) for momentum in momenta
              for delay in delayed_study.usable_rates(runs, momentum)]
    for ax, momentum in zip(np.atleast_1d(axes), momenta, strict=True):
        start, every = None, delay_axis(ax, delays)
        for name, runs, colour, line, marker in looks(recorded, yours):
            found = delayed_study.usable_rates(runs, momentum)
            if found:
                ax.plot([max(d, 0.5) for d in found], list(found.values()), color=colour, marker=marker, linestyle=line,
                        label=name)
                start = start or next(((d, rate) for d, rate in found.items() if d >= 2), None)
                said.append(f"{name}, momentum {momentum:g}: "
                            + ", ".join(f"delay {d} {fraction(rate)}" for d, rate in found.items()))
            rows += [{"source": name, "momentum": momentum, "delay": d, "rate": rate} for d, rate in found.items()]
        if start:
            scale = start[1] / delayed.edge_of(start[0], momentum)
            ax.plot([max(d, 0.5) for d in every], [scale * delayed.edge_of(d, momentum) for d in every],
                    color=viz.LITERATURE, marker="", linestyle=":", label="quadratic's edge, shifted")
        ax.set_xlim(0.4, every[-1] * 1.2)
        ax.set_title(f"momentum {momentum:g}")
    if not rows:
        return empty("no delay has a usable rate inside those that were tried")
    marks = [2.0**n for n in range(-12, 2, 2)]
    rates = [row["rate"] for row in rows]
    marks = [mark for mark in marks if min(rates) / 4 <= mark <= max(rates) * 4]
    viz.log2_axis(np.atleast_1d(axes)[0], marks, "largest usable rate", axis="y")
    np.atleast_1d(axes)[0].set_yticklabels([fraction(mark) for mark in marks])
    np.atleast_1d(axes)[0].legend(loc="lower left", borderpad=0.2)
    return fig, "The largest usable rate by delay. " + "; ".join(said) + ".", pd.DataFrame(rows)


def rescued(recorded, yours):
    """Test accuracy against delay of a rate that was tuned without delay, kept and divided by the delay."""
    fig, ax = viz.figure(height=2.9)
    rows, said, last = [], [], {}
    for name, runs, colour, _, marker in looks(recorded, yours):
        table = delayed_study.kept_and_divided(runs)
        for column, line in (("divided", "-"), ("kept", ":")) if len(table) else ():
            shown = table.dropna(subset=[column])
            label = f"{name}, rate {fraction(table['rate'].iloc[0])}" if column == "divided" else None
            places = [max(delay, 0.5) for delay in shown["delay"]]
            ax.plot(places, shown[column], color=colour, marker=marker, linestyle=line, label=label)
            last.setdefault(column, (max(shown["delay"].iloc[-1], 0.5), shown[column].iloc[-1]))
            said.append(f"{name}, {column}: " + ", ".join(f"delay {row.delay} {getattr(row, column):.3f}"
                                                          for row in shown.itertuples()))
        rows.append(table.assign(source=name))
    if not last:
        return empty("no training without delay to tune a rate on")
    for column, (x, y) in last.items():
        words = {"divided": "rate / delay", "kept": "rate kept"}[column]
        viz.direct_label(ax, x, max(y, 0.05), words, GREY)  # clear of the axis
    ax.set_xlim(0.4, 2 * delay_axis(ax, pd.concat(rows)["delay"])[-1])  # room for the labels
    ax.set_ylabel("test accuracy")
    ax.set_ylim(0, 1.0)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    alt = ("Test accuracy by delay, of the largest rate that is among the best without delay; what diverged counts as "
           "0. " + "; ".join(said) + ".")
    return fig, alt, pd.concat(rows)


def momenta(recorded, yours):
    """Loss with each momentum over that without, each tuned, against the number of workers, with its 95 % interval
    over seeds where there are several."""
    fig, ax = viz.figure(height=3.1)
    found = [(name, delayed_study.momentum_factors(runs), colour) for name, runs, colour, *_ in looks(recorded, yours)]
    rows = pd.concat([table.assign(source=name) for name, table, _ in found])
    if not len(rows):
        return empty("no training with random delays, with and without momentum")
    said, every = [], sorted(set(rows["momentum"]))
    for at, (name, table, colour) in enumerate(found):
        for momentum, part in table.groupby("momentum"):
            n = every.index(momentum)
            places = part["workers"] * 2 ** (0.09 * (2 * n + at - len(every)))  # side by side, so that bars can be read
            bars = (part["factor"] - part["low"], part["high"] - part["factor"])
            ax.errorbar(places, part["factor"], yerr=np.nan_to_num(bars), color=colour, marker=viz.MARKERS[n],
                        linestyle=viz.LINES[n % 4], linewidth=1, elinewidth=1, capsize=2, markersize=4.5,
                        label=f"{name}, momentum {momentum:g}")
            said.append(f"{name}, momentum {momentum:g}: " + ", ".join(map(_factor, part.itertuples())))
    ax.axhline(1, color=viz.LITERATURE, linestyle=":")
    viz.log2_axis(ax, sorted(set(rows["workers"])), "workers")
    viz.log2_axis(ax, [0.5, 0.8, 1, 1.2, 1.5, 2, 3], "loss, against no momentum", axis="y")
    ends = rows[["factor", "low", "high"]]
    ax.set_ylim(min(0.75, ends.min(axis=None) / 1.05), max(1.4, ends.max(axis=None) * 1.05))
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper left", ncols=2)
    alt = ("Training loss with momentum over that without, rates chosen on other seeds; in brackets 95 % intervals "
           "over seeds. " + "; ".join(said) + ".")
    return fig, alt, rows


def _factor(row) -> str:
    ends = f" [{row.low:.2f}, {row.high:.2f}]" if row.seeds > 1 else ""
    return f"{counted(row.workers, 'worker')} x {row.factor:.2f}{ends}"
