"""Figures of lab 03 about time: the cost model by size and ranks, and what was timed. Each returns (figure, text
alternative, data). A word is a float32, 4 bytes; constants are in s, s per word sent, s per word added."""

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.ticker import LogLocator, NullLocator

from labkit.simulate import cost
from labkit.teach import viz
from labs import cost_fit

NAMES = ("butterfly", "rabenseifner", "ring", "hierarchical", "tree")
COLOURS = dict(zip(NAMES, viz.SERIES, strict=True))
MARKS = dict(zip((*NAMES, "gloo"), viz.MARKERS, strict=False))
LINES = {"butterfly": "-", "rabenseifner": "--", "ring": "-.", "tree": ":", "hierarchical": (0, (5, 1))}
SIZES = [4**k for k in range(13)]  # words: 4 bytes to 64 MiB
SHOWN = ("butterfly", "rabenseifner", "ring", "tree")


def size_of(words: float) -> str:
    """Bytes in words, powers of 1024."""
    value = 4.0 * words
    for unit in ("B", "KiB", "MiB"):
        if value < 1024 or unit == "MiB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024


def time_of(seconds: float) -> str:
    unit, factor = ("us", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1)
    return f"{factor * seconds:.3g} {unit}"


def bytes_axis(ax, low: float, high: float) -> None:
    ticks = [words for words in (1, 16, 256, 4096, 65536, 1048576, 16777216) if low <= words <= high]
    ax.set_xscale("log", base=2)
    ax.set_xlim(low, high)
    ax.xaxis.set_ticks(ticks, labels=[size_of(words) for words in ticks])
    ax.xaxis.set_ticks([], minor=True)
    ax.set_xlabel("size of the array")


def time_axis(ax) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(lambda value, _: time_of(value))
    ax.set_ylabel("seconds of one all-reduce")


def leaders(size: int, alpha: float, beta: float, gamma: float, names=SHOWN) -> list[tuple[str, float]]:
    """(algorithm, the smallest array in words for which it is the fastest), from small to large, in the model."""
    found, before = [], 0
    for words in np.unique(np.geomspace(1, SIZES[-1], 400).astype(int)).tolist():
        name = cost.best(words, size, alpha, beta, gamma, names)
        if not found or found[-1][0] != name:
            low, high = before, words  # the lead changes between the two
            while high - low > 1:
                middle = (low + high) // 2
                there = cost.best(middle, size, alpha, beta, gamma, names) == name
                low, high = (low, middle) if there else (middle, high)
            found.append((name, float(high)))
        before = words
    return found


def curves(size: int, alpha: float, beta: float, gamma: float = 0.0, mark: int | None = None, title: str = ""):
    """The model's seconds against the size of the array; vertical lines where the lead changes; dotted grey: what no
    all-reduce undercuts. `mark` is a size in words to read off."""
    fig, ax = viz.figure(height=3.2, width=6.2)
    words = np.array(SIZES)
    table = {name: [cost.seconds(name, int(n), size, alpha, beta, gamma) for n in words] for name in SHOWN}
    bound = [cost.lower_bound(int(n), size, alpha, beta, gamma) for n in words]
    ax.plot(words, bound, color=viz.LITERATURE, linestyle=":", marker="", linewidth=1.2)
    for name, values in table.items():
        ax.plot(words, values, color=COLOURS[name], linestyle=LINES[name], marker="")
    bytes_axis(ax, 1, SIZES[-1] * 40)
    time_axis(ax)
    ends = sorted([(values[-1], name) for name, values in table.items()] + [(bound[-1], "bound")], reverse=True)
    at, (bottom, top) = np.inf, ax.get_ylim()
    for value, name in ends:  # labels a line's height apart
        at = min(value, at / (top / bottom) ** 0.06)
        viz.direct_label(ax, words[-1], at, name, COLOURS.get(name, "#555555"))
    leads = leaders(size, alpha, beta, gamma)
    for _, start in leads[1:]:
        ax.axvline(start, color="#999999", linewidth=0.8)
        ax.text(start, ax.get_ylim()[1], f" {size_of(start)}", fontsize=7.5, color="#555555", va="top")
    said = "; ".join(f"{name} from {size_of(start)} on" for name, start in leads)
    if mark is not None:
        fastest = min(SHOWN, key=lambda name: cost.seconds(name, mark, size, alpha, beta, gamma))
        taken = cost.seconds(fastest, mark, size, alpha, beta, gamma)
        ax.plot([mark], [taken], color="black", marker="o", linestyle="none", markersize=6)
        said += f". At {size_of(mark)}: {fastest}, {time_of(taken)}"
    ax.set_title(title or f"{size} ranks, alpha {time_of(alpha)}, {4e-9 / beta:.3g} GB/s" if beta else title)
    data = pd.DataFrame({"bytes": 4 * words, **table, "lower bound": bound})
    return fig, f"Fastest in the model on {size} ranks: {said}.", data


def winners(alpha: float, beta: float, gamma: float = 0.0, most: int = 64, names=NAMES):
    """Which algorithm is the fastest, by the size of the array and the number of ranks."""
    ranks, words = list(range(2, most + 1)), np.unique(np.geomspace(1, SIZES[-1], 160).astype(int))
    model = alpha, beta, gamma
    grid = np.array([[names.index(cost.best(int(n), size, *model, names)) for n in words] for size in ranks])
    fig, ax = viz.figure(height=3.6, width=6.2)
    edges = np.concatenate([words, [words[-1] * 1.1]])
    ax.pcolormesh(edges, [*(np.array(ranks) - 0.5), most + 0.5], grid, vmin=-0.5, vmax=len(names) - 0.5, alpha=0.55,
                  cmap=ListedColormap([COLOURS[name] for name in names]), rasterized=True)  # fmt: skip
    bytes_axis(ax, 1, SIZES[-1])
    viz.log2_axis(ax, [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64], "ranks", axis="y")
    ax.grid(False)
    for at, name in enumerate(names):
        rows, columns = np.nonzero(grid == at)
        if len(rows) > 0.02 * grid.size:
            row = rows[np.argmin(np.abs(np.log(rows + 2.0) - np.median(np.log(rows + 2.0))))]
            spot = np.median(columns[rows == row])
            ax.text(words[int(spot)], ranks[row], name, fontsize=9, ha="center", va="center",
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5})  # fmt: skip
    table = []
    for size in (p for p in (2, 3, 4, 6, 7, 8, 12, 16, 31, 32, 64) if p <= most):
        leads = leaders(size, *model, names)
        table.append({"ranks": size, "fastest, from": ", ".join(f"{name} {size_of(w)}" for name, w in leads)})
    said = "; ".join(f"{row['ranks']} ranks: {row['fastest, from']}" for row in table if row["ranks"] in (4, 6, 32))
    return fig, f"Fastest in the model, with the size from which on. {said}.", pd.DataFrame(table)


def fit_words(fit: cost_fit.Fit) -> str:
    error = f" (+/- {time_of(fit.errors[0])})" if np.isfinite(fit.errors[0]) else ""
    speed = f" ({4e-9 / fit.beta:.3g} GB/s)" if fit.beta else ""
    return (f"alpha {time_of(fit.alpha)}{error}, beta {1e9 * fit.beta:.3g} ns a word{speed}, gamma "
            f"{1e9 * fit.gamma:.3g} ns a word added, typically off by {fit.rms:.0%}")  # fmt: skip


def calibration(fits: dict):
    """Timed messages (points) and the fitted line: {"recorded" or "yours": (fit, rows of `calibration.calibrate`)}."""
    fig, ax = viz.figure(height=3.0, width=5.6)
    for name, (fit, rows) in fits.items():
        colour = viz.RECORDED if name == "recorded" else viz.YOURS
        shown = rows[rows["kind"] == "message"]
        grid = np.geomspace(shown["words"].min(), shown["words"].max(), 60)
        ax.plot(grid, fit.alpha + fit.beta * grid, color=colour, marker="", linestyle="-")
        ax.plot(shown["words"], shown["seconds"], color=colour, marker="o" if name == "recorded" else "s",
                linestyle="none", label=f"{name}: alpha {time_of(fit.alpha)}")  # fmt: skip
    every = pd.concat([rows["words"] for _, rows in fits.values()])
    bytes_axis(ax, every.min() * 0.7, every.max() * 1.5)
    time_axis(ax)
    ax.set_ylabel("seconds of one message")
    ax.legend()
    said = "; ".join(f"{name}: {fit_words(fit)}" for name, (fit, _) in fits.items())
    return fig, f"Ping-pong between two processes. {said}.", pd.concat(
        [rows.assign(source=name) for name, (_, rows) in fits.items()])  # fmt: skip


def timed(table: pd.DataFrame, fit: cost_fit.Fit, source: str = "yours"):
    """The fastest of the timings of each algorithm by size (columns algorithm, ranks, words, seconds): points; lines:
    the model with constants of the ping-pong. One panel for each number of ranks."""
    groups = list(table.groupby("ranks"))
    fig, axes = viz.figure(len(groups), 1, height=3.1, sharey=True, squeeze=False)
    for ax, (ranks, rows) in zip(axes.flat, groups, strict=True):
        for name, own in rows.groupby("algorithm"):
            colour = COLOURS.get(name, "black")
            ax.plot(own["words"], own["seconds"], color=colour, marker=MARKS.get(name, "*"), linestyle="none",
                    label=name, markersize=4.5)  # fmt: skip
            if name in COLOURS:
                grid = np.geomspace(own["words"].min(), own["words"].max(), 40)
                model = [cost.seconds(name, int(n), ranks, *fit[:3]) for n in grid]
                ax.plot(grid, model, color=colour, marker="", linestyle=LINES[name], linewidth=1)
        bytes_axis(ax, rows["words"].min() * 0.6, rows["words"].max() * 1.7)
        time_axis(ax)
        ax.set_title(f"{ranks} processes")
        ax.label_outer()
    for ax in axes.flat:
        ax.xaxis.set_tick_params(labelsize=7, rotation=30)
    axes.flat[0].legend(fontsize=6.5, handletextpad=0.2, borderpad=0.1)
    said = []
    for (ranks, words), rows in table[table["algorithm"] != "gloo"].groupby(["ranks", "words"]):
        best = rows.loc[rows["seconds"].idxmin()]
        said.append(f"{ranks} processes, {size_of(words)}: {best['algorithm']} {time_of(best['seconds'])}")
    return fig, f"All-reduce timed ({source}), fastest of the hand-written: {'; '.join(said)}.", table


def agreement(table: pd.DataFrame, ways: dict):
    """Fitted against measured seconds, for counts on the critical path and summed over all ranks."""
    fig, axes = viz.figure(len(ways), 1, height=3.1, sharex=True, sharey=True, squeeze=False)
    edges = [table["seconds"].min() * 0.5, table["seconds"].max() * 2]
    for ax, (way, (fit, said)) in zip(axes.flat, ways.items(), strict=True):
        ax.plot(edges, edges, color="#999999", marker="", linestyle="-", linewidth=0.8)
        for ranks, marker, colour in zip(sorted(set(table["ranks"])), viz.MARKERS, viz.SERIES, strict=False):
            chosen = (table["ranks"] == ranks).to_numpy()
            ax.plot(said[chosen], table["seconds"][chosen], marker=marker, color=colour, linestyle="none",
                    markersize=4.5, label=f"{ranks} processes")  # fmt: skip
        time_axis(ax)
        ax.set_xscale("log")
        ax.set_xlabel(f"seconds fitted, counts of {way}")
        ax.xaxis.set_major_formatter(lambda value, _: time_of(value))
        ax.set_ylabel("seconds measured")
        ax.set_title(f"{way}: off by {fit.rms:.0%}")
        ax.label_outer()
    axes.flat[0].legend()
    alt = "; ".join(f"counts of {way}: {fit_words(fit)}" for way, (fit, _) in ways.items())
    data = table.assign(**{f"fitted, {way}": said for way, (_, said) in ways.items()})
    return fig, f"Fitted against measured. {alt}.", data
