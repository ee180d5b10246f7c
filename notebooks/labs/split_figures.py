"""Who computes what, and who keeps which weights, in each way of splitting a network over four devices."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from labkit.teach import viz
from labs import pipeline_timetable as pipeline

DEVICES = 4
LAYERS = ("conv", "conv", "fc", "fc")
COLOURS = viz.SERIES[:DEVICES]
ALL = tuple(range(DEVICES))

# By scheme: who keeps a layer's weights, and who works on a sample in a layer, each (devices, how the cell is cut).
SCHEMES = {
    "data": (lambda layer: ("each", None), lambda sample, layer: ((sample,), "")),
    "sharded data": (lambda layer: (ALL, "columns"), lambda sample, layer: ((sample,), "")),
    "model: columns or rows": (lambda layer: (ALL, "columns"), lambda sample, layer: (ALL, "columns")),
    "spatial": (
        lambda layer: ("each", None),
        lambda sample, layer: (ALL, "bands") if LAYERS[layer] == "conv" else ((sample,), ""),
    ),
    "pipeline": (lambda layer: ((layer,), ""), lambda sample, layer: ((layer,), "")),
    "hybrid": (
        lambda layer: ("each", None) if LAYERS[layer] == "conv" else (ALL, "columns"),
        lambda sample, layer: ((sample,), "") if LAYERS[layer] == "conv" else (ALL, "columns"),
    ),
}


def _cell(ax, x: float, y: float, who, cut: str, height: float = 0.86) -> None:
    """One cell of the picture, cut among its devices; each part carries its device's number."""
    if who == "each":
        ax.add_patch(Rectangle((x, y), 0.86, height, facecolor="#eeeeee", edgecolor="#999999", linewidth=0.6))
        ax.text(x + 0.43, y + height / 2, "each", ha="center", va="center", fontsize=5.5, color="#444444")
        return
    for n, device in enumerate(who):
        wide, high = (0.86 / len(who), height) if cut != "bands" else (0.86, height / len(who))
        left, low = (x + n * wide, y) if cut != "bands" else (x, y + n * high)
        ax.add_patch(Rectangle((left, low), wide, high, facecolor=COLOURS[device], edgecolor="white", linewidth=0.4))
        size = 6.5 if len(who) == 1 else 4.5
        ax.text(left + wide / 2, low + high / 2, device, ha="center", va="center", fontsize=size, color="white")


def who_computes():
    """Six ways to share a step of four samples through four layers: (figure, text alternative, data)."""
    fig, axes = viz.figure(columns=3, rows=2, width=viz.MAX_WIDTH, height=3.9)
    rows = []
    for ax, (scheme, (weights, work)) in zip(axes.flat, SCHEMES.items(), strict=True):
        for layer, kind in enumerate(LAYERS):
            _cell(ax, layer, -1.05, *weights(layer), height=0.6)
            ax.text(layer + 0.43, -1.2, kind, ha="center", va="bottom", fontsize=6.5)
            for sample in range(4):
                _cell(ax, layer, sample, *work(sample, layer))
            (keeps, _), (does, cut) = weights(layer), work(0, layer)
            rows.append(
                (
                    scheme,
                    layer,
                    kind,
                    "each" if keeps == "each" else " ".join(map(str, keeps)),
                    " ".join(map(str, does)) + (f" ({cut})" if cut else ""),
                )
            )
        ax.text(-0.15, -0.75, "weights", ha="right", va="center", fontsize=6.5)
        ax.text(-0.15, 1.93, "samples", ha="right", va="center", fontsize=6.5)
        ax.set(xlim=(-1.5, 4), ylim=(4, -1.75), title=scheme)
        ax.axis("off")
    alt = (
        "Four samples (rows) go through four layers (columns) on devices 0 to 3; a cell's number is the device that "
        "works there, the upper strip is who keeps the weights. Data: device i does sample i in every layer, each "
        "keeps all weights. Sharded data: the same, but each keeps a quarter of every layer's weights. Model: every "
        "layer of every sample is cut in four by channels, and so are the weights. Spatial: convolutions are cut into "
        "four bands of image rows, then as data. Pipeline: device i does layer i of every sample, and keeps "
        "only its weights. Hybrid: convolutions as data, fully connected layers cut by channels."
    )
    return (
        fig,
        alt,
        pd.DataFrame(rows, columns=["scheme", "layer", "kind", "who keeps the weights", "who does sample 0"]),
    )


def bubble_figure(table: pd.DataFrame):
    """Idle share by microbatches, counted (marks) and by the formula (lines), a line for each number of stages."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=2.7)
    words, counts = [], sorted(set(table["microbatches"]))
    for n, (stages, rows) in enumerate(table[table["schedule"] == table["schedule"].iloc[0]].groupby("stages")):
        look = {"color": viz.SERIES[n % len(viz.SERIES)], "linestyle": viz.LINES[n % len(viz.LINES)]}
        fine = np.arange(counts[0], counts[-1] + 1)
        ax.plot(fine, [pipeline.bubble(int(stages), int(m)) for m in fine], marker="", **look)
        ax.annotate(
            f"{stages} stages",
            (rows["microbatches"].iloc[0], rows["formula"].iloc[0]),
            xytext=(9, 2),
            textcoords="offset points",
            color=look["color"],
            fontsize=8,
        )
        each = ", ".join(f"{row.idle:.1%} at M = {row.microbatches}" for row in rows.itertuples())
        words.append(f"{stages} stages {each}")
    for n, (name, rows) in enumerate(table.groupby("schedule", sort=False)):
        ax.plot(
            rows["microbatches"],
            rows["idle"],
            color="black",
            linestyle="",
            marker=("o", "+")[n % 2],
            fillstyle="none",
            markersize=8,
            label=f"{name}, counted",
        )
    ax.axhline(0.1, color="black", linestyle=":", linewidth=0.8)
    viz.log2_axis(ax, counts, "microbatches M")
    ax.set(ylim=(0, 1), ylabel="idle share", xlim=(counts[0] / 1.2, counts[-1] * 1.2))
    ax.legend(fontsize=8, frameon=False)
    off = (table["idle"] - table["formula"]).abs().max()
    return fig, f"Idle share of a pipeline: {'; '.join(words)}. Largest difference from the formula: {off:.0e}.", table


def counted_table(rows: Sequence[dict]) -> pd.DataFrame:
    """What ran on real processes beside its formulas: one row a scheme, words and messages of the busiest rank."""
    table = pd.DataFrame(rows)
    equal = [(table[f"{what} counted"] == table[f"{what} by formula"]) for what in ("words", "messages")]
    table["counts"] = ["equal" if a and b else "DIFFERENT" for a, b in zip(*equal, strict=True)]
    for column in [name for name in table if name.startswith(("words", "messages"))]:
        table[column] = [f"{value:.12g}" for value in table[column]]
    table["error"] = [f"{value:.0e}" for value in table["error"]]
    return table
