"""The figures of lab 07, recorded runs with yours laid over. Each function returns (figure, text alternative, data).

Rules keep one colour and one marker throughout; recorded cells are shades of blue, yours shades of orange.
"""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from labkit.errors import choose
from labs.factorial import LABELS, RULES
from labkit.teach import viz
from labs.scaling import Map, power

METRICS = {"test accuracy": "test_accuracy", "training loss": "train_loss"}
STYLES = {
    "fixed": ("#404040", "v"),
    "square_root": (viz.SERIES[1], "s"),
    "linear": (viz.SERIES[2], "^"),
    "linear_with_warmup": (viz.SERIES[3], "D"),
    "legw": (viz.SERIES[0], "o"),
}
SLICE = {rule: {"legw": 1, "linear_with_warmup": 2}.get(rule, 0) for rule in RULES}
_SHADES = 8  # steps of the heat: a palette PNG has few colours to spend


def hollow(marker: str) -> dict:
    """How yours is drawn over a recorded line: an orange outline in the same shape."""
    return {
        "color": viz.YOURS,
        "marker": marker,
        "linestyle": "none",
        "fillstyle": "none",
        "markersize": 7,
        "zorder": 4,
    }


def accuracy_axis(ax, label: str = "test accuracy", low: float = 0.05, high: float = 0.98) -> None:
    """Accuracy on a logit axis: near the top a point counts for more, and failures still fit."""
    ax.set_yscale("logit")
    ticks = [tick for tick in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97) if low < tick < high]
    ax.set_ylim(low, high)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylabel(label)


def batch_axis(ax, source: Map) -> None:
    """Log-2 batch sizes with the number of updates below each."""
    viz.log2_axis(ax, source.table.batches, "batch size (updates below)")
    ax.set_xticks(source.table.batches, [f"{batch}\n{source.updates(batch)}" for batch in source.table.batches])


def legend(fig, ax, entries: Sequence[tuple], columns: int) -> None:
    """A legend below the axes, from (label, style)."""
    for label, look in entries:
        ax.plot([], [], label=label, **look)
    with viz.style():
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def heat(value: float, metric: str, colour: str) -> tuple:
    """(face colour, text colour): light is bad, full colour is good, on a log scale of the error rate or the loss."""
    low, high, bad = (0.03, 0.9, 1 - value) if metric == "test_accuracy" else (2e-3, 2.5, value)
    bad = min(max(bad, low), high) if math.isfinite(bad) else high
    tone = 0.06 + 0.94 * round(_SHADES * math.log(high / bad) / math.log(high / low)) / _SHADES
    face = tuple(1 - tone * (1 - part) for part in to_rgb(colour))
    return face, "white" if tone > 0.6 else "black"


def number(value: float) -> str:
    """A value as a cell holds it: `.935`, `1.2`; `div.` after a divergence."""
    if not value < 100:
        return "div."
    return f"{value:.3f}".removeprefix("0") if value < 0.9995 else f"{value:.2g}"


def heat_map(
    recorded: Map, yours: Map, rules: Sequence[str] = RULES, rate: float | None = None, metric: str = "test accuracy"
):
    """The table as three slices by warm-up, with the paths of `rules` from one base rate (None: the highest flat one).

    The darker a cell, the better; only the numbers along the paths are written. Recorded means are blue, yours an
    orange strip at the right of a cell; where nothing is recorded, yours alone.
    """
    choose("metric", metric, METRICS)
    name, main = METRICS[metric], recorded if recorded.runs else yours
    rate = main.flat()[-1] if rate is None else rate
    fig, axes = viz.figure(3, 1, width=6.5, height=3.6, sharey=True, sharex=True)
    for source, colour in ((recorded, viz.RECORDED), (yours, viz.YOURS)):
        for cell in source.cells():
            value, x, y = source.mean(cell, name), math.log2(cell.batch), math.log2(cell.rate)
            face, ink = heat(value, name, colour)
            strip = source is yours and bool(recorded.runs)
            corner, width = ((x + 0.62, y - 0.44), 0.31) if strip else ((x - 0.95, y - 0.47), 1.9)
            for place in source.slices(cell):
                box = Rectangle(corner, width, 0.88 if strip else 0.94, facecolor=face, linewidth=0, antialiased=False)
                axes[place].add_patch(box).set_zorder(3 if strip else 2)
    names = [0, 0, 0]
    for rule in rules:
        (colour, marker), path, ax = STYLES[rule], main.table.path(rule, rate), axes[SLICE[rule]]
        x, y = [math.log2(cell.batch) - 0.74 for cell in path], [math.log2(cell.rate) for cell in path]
        ax.plot(
            x,
            y,
            color=colour,
            marker=marker,
            linestyle="-",
            linewidth=1.6,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.7,
            zorder=5,
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )
        ax.text(
            0.04,
            0.97 - 0.07 * names[SLICE[rule]],
            LABELS[rule],
            color=colour,
            fontsize=8,
            fontweight="bold",
            ha="left",
            va="top",
            transform=ax.transAxes,
            zorder=7,
        )
        names[SLICE[rule]] += 1
        for cell in path:
            source, base = (recorded, viz.RECORDED) if recorded.runs else (yours, viz.YOURS)
            if source.found(cell):
                face, ink = heat(source.mean(cell, name), name, base)
                place = (math.log2(cell.batch) + 0.16, math.log2(cell.rate) - 0.3)  # below the line, right of the mark
                text = ax.text(*place, number(source.mean(cell, name)), ha="center", va="center", fontsize=7, color=ink)
                text.set(zorder=6, path_effects=[withStroke(linewidth=2, foreground=face)])
    ticks = [math.log2(batch) for batch in main.table.batches]
    slices = (
        "no warm-up",
        f"warm-up {main.constant_warmup:g} updates",
        f"warm-up {main.settings.long_warmup_epochs:g} epochs",
    )
    for ax, title in zip(axes, slices):
        ax.set_title(title)
        ax.grid(False)
        ax.set_xticks(ticks, [f"{batch}\n{main.updates(batch)}" for batch in main.table.batches])
        ax.set_xlim(ticks[0] - 1.2, ticks[-1] + 1.2)
    seen = [math.log2(cell.rate) for cell in (*recorded.cells(), *yours.cells(), *main.table.path("linear", rate))]
    exponents = range(math.floor(min(seen)), math.ceil(max(seen)) + 1)
    axes[0].set_yticks(exponents, [f"$2^{{{exponent}}}$" for exponent in exponents])
    axes[0].set_ylabel("peak rate")
    axes[1].set_xlabel("batch size (updates below)")
    fig.suptitle(
        f"{main.model}: {metric} (darker is better); paths from base rate $2^{{{math.log2(rate):.3g}}}$", fontsize=10
    )
    data = main.paths(name, rules, [rate])
    said = []
    for row in data.to_dict("records"):
        cells = [
            f"{value:.3f} at {column[6:]}"
            for column, value in row.items()
            if column[:6] == "batch " and math.isfinite(value)
        ]
        said.append(f"{row['rule']} {', '.join(cells) or 'not trained'}")
    origin = "recorded" if recorded.runs else "yours"
    head = f"{main.model}, {metric} along the paths from base rate {power(rate)} ({origin})"
    return fig, f"{head}: {'; '.join(said)}.", data


def base_rates(recorded: Mapping[str, Map], yours: Mapping[str, Map]):
    """Accuracy at the largest batch against the base rate that was scaled, one panel a model; flat rates are shaded."""
    fig, axes = viz.figure(2, 1, height=3.2, sharey=True)
    parts, tables = [], []
    for ax, model in zip(axes, recorded):
        main = recorded[model] if recorded[model].runs else yours[model]
        for source in (recorded[model], yours[model]):
            for rule in RULES:
                cells = [(rate, source.at(rule, rate, source.largest)) for rate in source.rates]
                points = [(rate, source.mean(cell)) for rate, cell in cells if source.found(cell)]
                colour, marker = STYLES[rule]
                look = (
                    hollow(marker) if source is yours[model] else {"color": colour, "marker": marker, "linestyle": "-"}
                )
                if points:
                    ax.plot(*zip(*points), **look)
        for rate in main.flat():
            ax.axvspan(rate / 2**0.5, rate * 2**0.5, color="#ececec", linewidth=0, zorder=0)
        rates = sorted({*main.rates, *yours[model].rates})
        viz.log2_axis(ax, rates, f"base rate at batch {main.smallest}")
        ax.set_xticks(rates, [f"$2^{{{math.log2(rate):g}}}$" for rate in rates])
        ax.set_title(f"{model}, batch {main.largest}")
        tables.append(main.verdicts().assign(model=model))
        rows = [
            f"from {row['base rate']}{' (flat)' if row['flat'] else ''} {row['LEGW']:.3f} and {row['linear']:.3f}"
            for row in tables[-1].to_dict("records")
        ]
        parts.append(f"{model}: {', '.join(rows) or 'not trained'}")
    accuracy_axis(axes[0])
    lines = [(LABELS[rule], {"color": STYLES[rule][0], "marker": STYLES[rule][1], "linestyle": "-"}) for rule in RULES]
    legend(fig, axes[0], [*lines, ("yours, by shape", hollow("o"))], 3)
    alt = f"Test accuracy at the largest batch, LEGW and linear scaling by base rate. {'; '.join(parts)}."
    return fig, alt, pd.concat(tables)


def ladder(recorded: Map, yours: Map):
    """Accuracy and training loss by batch, every rule from the highest flat base rate; looks as in `base_rates`."""
    main = recorded if recorded.runs else yours
    rate, rows = main.flat()[-1], []
    fig, axes = viz.figure(2, 1, height=3.2)
    for source in (recorded, yours):
        for rule in RULES:
            (colour, marker), own = STYLES[rule], source is yours
            path = [cell for cell in source.table.path(rule, rate) if source.found(cell)]
            look = hollow(marker) if own else {"color": colour, "marker": marker, "linestyle": "-"}
            for ax, metric in zip(axes, METRICS.values()):
                if path:
                    ax.plot([c.batch for c in path], [min(source.mean(c, metric), 10.0) for c in path], **look)
            numbers = {f"{name} at {c.batch}": source.mean(c, metric) for name, metric in METRICS.items() for c in path}
            if path:
                rows.append({"source": "yours" if own else "recorded", "rule": LABELS[rule], **numbers})
    accuracy_axis(axes[0])
    axes[1].set_yscale("log")
    axes[1].set_ylabel("training loss (10: diverged)")
    for ax in axes:
        batch_axis(ax, main)
    fig.suptitle(f"{main.model}, scaled from base rate $2^{{{math.log2(rate):.3g}}}$", fontsize=10)
    keys, top = [f"{name} at {main.largest}" for name in METRICS], []
    for row in rows:
        if (row["source"] == "recorded") == bool(recorded.runs) and keys[0] in row:
            top.append(f"{row['rule']} {row[keys[0]]:.3f} and {row[keys[1]]:.2g}")
    head = f"{main.model} from base rate {power(rate)}, batch {main.largest}, {main.updates(main.largest)} updates"
    return fig, f"{head}, test accuracy and training loss: {'; '.join(top) or 'not trained'}.", pd.DataFrame(rows)
