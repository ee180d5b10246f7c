"""Lab 07's reading of its runs: the table of batch x peak rate x warm-up, the scaling rules as paths through it, and the figures of both.

Accuracies are means over seeds, read on the test images; base rates are tuned on the validation images. A run that diverged has the accuracy that it ends with and an infinite loss.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from labkit import plans
from labkit.errors import choose
from labkit.optim.factorial import LABELS, RULES, Cell, Table
from labkit.rules.scaling import flat_set, standard_error
from labkit.teach import viz

MODELS = {"deep-mlp": plans.mlp, "row-lstm": plans.lstm}
METRICS = {"test accuracy": "test_accuracy", "training loss": "train_loss"}
STYLES = dict(zip(RULES, zip((viz.SERIES[4], viz.SERIES[3], viz.SERIES[2], viz.SERIES[1], viz.SERIES[0]), ("v", "s", "^", "D", "o"))))
SLICES = ("no warm-up", "LEGW's warm-up", "long warm-up")
SLICE_OF_RULE = {rule: {"legw": 1, "linear_with_warmup": 2}.get(rule, 0) for rule in RULES}
MARGIN = 2.0  # standard errors of a difference: as on the board


def power(rate: float) -> str:
    """A rate as a power of two: `2^-5`."""
    return f"2^{math.log2(rate):.3g}"


@dataclass(frozen=True)
class Duel:
    """Two rules from one base rate at one batch: mean accuracies, `bound` = 2 standard errors of their difference, and who is ahead by more than that (`tie` if neither)."""

    ours: float
    theirs: float
    bound: float
    winner: str


class Map:
    """Runs of one model on the table; `runs` may hold others, which are left out.

    Args:
        settings: a `Profile07`: the axes, the base rates and what a run of the table looks like.
        model: `deep-mlp` or `row-lstm`.
        images: test images, for standard errors.
    """

    def __init__(self, runs: Iterable, settings, model: str, images: int = 452):
        choose("model of lab 07", model, MODELS)
        self.settings, self.model, self.images = settings, model, images
        wanted = {"data": settings.data, "train": settings.train, "pool": 1, "optimizer": "sgd", "epochs": settings.epochs, "curvature_every": 0, **MODELS[model](settings)}
        self.runs = [run for run in runs if run.status == "finished" and all(run.config.get(key) == value for key, value in wanted.items())]
        self.table = plans.table(settings, sorted({*settings.batches, *(run.config["batch"] for run in self.runs)}))
        self.rates = tuple(sorted(settings.mlp_rates if model == "deep-mlp" else settings.lstm_rates))
        self._cells: dict = {}
        for run in sorted(self.runs, key=lambda run: run.header.began):
            self._cells.setdefault(self.key(Cell(*(run.config[name] for name in ("batch", "rate", "warmup_steps")))), {})[run.header.repeat] = run

    @staticmethod
    def key(cell: Cell) -> tuple:
        return cell.batch, cell.rate, round(cell.warmup_steps, 3)

    @property
    def largest(self) -> int:
        return self.table.batches[-1]

    def updates(self, batch: int) -> int:
        """Optimizer steps of a run at equal epochs."""
        return round(self.settings.epochs * (self.settings.train // batch))

    def found(self, cell: Cell) -> list:
        """The runs of a cell, one a seed."""
        return list(self._cells.get(self.key(cell), {}).values())

    def values(self, cell: Cell, metric: str = "test_accuracy") -> list[float]:
        """Final values over the seeds."""
        worst = math.inf if metric.endswith("loss") else 0.0
        return [value if math.isfinite(value) else worst for value in (run.last(metric) for run in self.found(cell))]

    def mean(self, cell: Cell, metric: str = "test_accuracy") -> float:
        """Mean over the seeds; NaN where the cell was not trained."""
        values = self.values(cell, metric)
        return float(np.mean(values)) if values else math.nan

    def at(self, rule: str, rate: float, batch: int) -> Cell:
        """The cell that a rule visits at a batch."""
        return self.table.path(rule, rate)[self.table.batches.index(batch)]

    def cells(self) -> list[Cell]:
        """The cells with runs."""
        return sorted(Cell(*key) for key in self._cells)

    def slice_of(self, cell: Cell) -> list[int]:
        """In which of the three slices of the table a cell lies; the untouched baseline stands in the third as well, since the path starts there."""
        constant = self.settings.warmup_epochs * self.settings.train / self.table.batches[0]
        if cell.warmup_steps == 0:
            return [0, 2] if cell.batch == self.table.batches[0] else [0]
        return [1] if abs(cell.warmup_steps - constant) < 1e-2 else [2]

    def flat(self) -> list[float]:
        """Base rates within one standard error of the best validation accuracy at the smallest batch; every base rate where that batch was not trained."""
        return flat_set(self.runs, self.table, self.rates, self.images) or list(self.rates)

    @property
    def has_baseline(self) -> bool:
        return any(self.found(self.at("fixed", rate, self.table.batches[0])) for rate in self.rates)

    def duel(self, rate: float, ours: str = "legw", theirs: str = "linear", batch: int | None = None) -> Duel | None:
        """One comparison at `batch` (the largest if not given); None where one of the two cells was not trained."""
        cells = [self.at(rule, rate, batch or self.largest) for rule in (ours, theirs)]
        a, b = (self.values(cell) for cell in cells)
        if not a or not b:
            return None
        bound = MARGIN * math.hypot(standard_error(a, self.images), standard_error(b, self.images))
        gap = float(np.mean(a) - np.mean(b))
        return Duel(float(np.mean(a)), float(np.mean(b)), bound, ours if gap >= bound else theirs if gap <= -bound else "tie")

    def verdicts(self, ours: str = "legw", theirs: str = "linear") -> pd.DataFrame:
        """One row per base rate: is it flat, what both rules reach at the largest batch, and who wins."""
        flat, rows = self.flat(), []
        for rate in self.rates:
            duel = self.duel(rate, ours, theirs)
            if duel is not None:
                base = self.mean(self.at("fixed", rate, self.table.batches[0]), "validation_accuracy")
                rows.append({"base rate": power(rate), "flat": "yes" if rate in flat else "", "validation at baseline": base, LABELS[ours]: duel.ours, LABELS[theirs]: duel.theirs,
                             "2 s.e.": duel.bound, "winner": LABELS.get(duel.winner, "tie")})
        return pd.DataFrame(rows)

    def winner(self) -> str:
        """Which rule is most accurate at the largest batch: one label if it is the same from every flat base rate, else `it depends on the base rate`."""
        best = set()
        for rate in self.flat():
            means = {rule: self.mean(self.at(rule, rate, self.largest)) for rule in RULES}
            means = {rule: value for rule, value in means.items() if math.isfinite(value)}
            if means:
                best.add(LABELS[max(means, key=means.get)])
        return best.pop() if len(best) == 1 else "it depends on the base rate"

    def retuned(self, batch: int) -> Cell | None:
        """The cell of a batch with the best validation accuracy, over all its rates and warm-ups."""
        return max((cell for cell in self.cells() if cell.batch == batch), key=lambda cell: self.mean(cell, "validation_accuracy"), default=None)

    def paths(self, metric: str = "test_accuracy", rules: Sequence[str] = RULES, rates: Sequence[float] | None = None) -> pd.DataFrame:
        """The numbers along the paths: one row per rule and base rate, one column per batch."""
        rows = []
        for rule in rules:
            for rate in rates or self.rates:
                numbers = {f"batch {cell.batch}": self.mean(cell, metric) for cell in self.table.path(rule, rate)}
                rows.append({"rule": LABELS[rule], "base rate": power(rate), **numbers})
        return pd.DataFrame(rows)


def accuracy_at_loss(run, loss: float) -> float:
    """Test accuracy at the first evaluation whose training loss is at most `loss`; NaN if there is none."""
    reached = [row.step for row in run.series("train_loss") if row.value <= loss]
    return next((row.value for row in run.series("test_accuracy") if reached and row.step == reached[0]), math.nan)


def shade(value: float, metric: str) -> float:
    """0 (bad) to 1 (good): the error rate or the loss on a log scale, since a point matters more at .95 than at .50."""
    low, high, bad = (0.03, 0.9, 1 - value) if metric == "test_accuracy" else (2e-3, 2.5, value)
    bad = min(max(bad, low), high) if math.isfinite(bad) else high
    return math.log(high / bad) / math.log(high / low)


def number(value: float, metric: str) -> str:
    """A value as a cell holds it: `.935`, `.081`; `inf` after a divergence."""
    return f"{value:.3f}".removeprefix("0") if math.isfinite(value) and value < 10 else "inf" if not value < 10 else "1"


def heat_map(recorded: Map, yours: Map, rules: Sequence[str] = RULES, rate: float | None = None, metric: str = "test accuracy"):
    """The table as three slices by warm-up, with the paths of `rules` from one base rate.

    A cell is the recorded mean, with yours as an orange strip at its right; where nothing is recorded, yours alone in an orange frame.

    Returns:
        (figure, text alternative, data).
    """
    choose("metric", metric, METRICS)
    name, main = METRICS[metric], recorded if recorded.runs else yours
    rate = main.flat()[-1] if rate is None else rate
    fig, axes = viz.figure(3, 1, width=6.5, height=4.0, sharey=True, sharex=True)
    # The palette holds the three fixed colours, so the heat is a neutral green-grey ramp that is none of them.
    with viz.style():
        colours = viz.matplotlib.colormaps["bone_r"]
        for source, orange in ((recorded, False), (yours, True)):
            for cell in source.cells():
                value = source.mean(cell, name)
                x, y, covered = math.log2(cell.batch), math.log2(cell.rate), orange and bool(recorded.found(cell))
                for place in source.slice_of(cell):
                    box = (x + 0.55, y - 0.44, 0.38, 0.88) if covered else (x - 0.95, y - 0.47, 1.9, 0.94)
                    tone = 0.05 + 0.65 * shade(value, name)
                    axes[place].add_patch(Rectangle(box[:2], *box[2:], facecolor=colours(tone), edgecolor=viz.YOURS if orange else "white", linewidth=1.1 if orange else 0.4, zorder=2 + orange))
                    if not covered:
                        axes[place].text(x, y, number(value, name), ha="center", va="center", fontsize=6.2, color="white" if tone > 0.5 else "black", zorder=6)
        for rule in rules:
            colour, marker = STYLES[rule]
            path = main.table.path(rule, rate)
            x, y = [math.log2(cell.batch) - 0.72 for cell in path], [math.log2(cell.rate) for cell in path]
            axes[SLICE_OF_RULE[rule]].plot(x, y, color=colour, marker=marker, linestyle="-", linewidth=1.6, markersize=5, markeredgecolor="white", markeredgewidth=0.6, zorder=5)
            axes[SLICE_OF_RULE[rule]].annotate(LABELS[rule], (x[-1], y[-1]), xytext=(-4, 5), textcoords="offset points", color=colour, fontsize=7.5, ha="right", zorder=7,
                                               bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85})
        constant = main.settings.warmup_epochs * main.settings.train / main.table.batches[0]
        ticks = [math.log2(batch) for batch in main.table.batches]
        for ax, title in zip(axes, (SLICES[0], f"{constant:g} iterations (LEGW)", f"{main.settings.long_warmup_epochs:g} epochs")):
            ax.set_title(title)
            ax.grid(False)
            ax.set_xticks(ticks, [f"{batch}\n{main.updates(batch)}" for batch in main.table.batches])
            ax.set_xlim(ticks[0] - 1.2, ticks[-1] + 1.2)
        exponents = [math.log2(cell.rate) for source in (recorded, yours) for cell in source.cells()] or [math.log2(rate)]
        axes[0].set_yticks(range(math.floor(min(exponents)), math.ceil(max(exponents)) + 1), [f"$2^{{{e}}}$" for e in range(math.floor(min(exponents)), math.ceil(max(exponents)) + 1)])
        axes[0].set_ylabel("peak rate")
        axes[1].set_xlabel("batch size, and updates in the run below it")
        fig.suptitle(f"{main.model}: {metric}, base rate {power(rate)}", fontsize=10)
    data = main.paths(name, rules, [rate])
    said = "; ".join(f"{row['rule']} " + ", ".join(f"{value:.3f} at {column.removeprefix('batch ')}" for column, value in row.items() if column.startswith("batch") and not math.isnan(value))
                     for row in data.to_dict("records"))
    return fig, f"{main.model}, {metric} along the paths from base rate {power(rate)} ({'recorded' if recorded.runs else 'yours'}): {said or 'nothing trained yet'}.", data


def by_base_rate(ax, source: Map, yours: bool, metric: str = "test_accuracy", rules: Sequence[str] = RULES) -> None:
    """One line a rule: the metric at the largest batch against the base rate that was scaled; yours as orange markers of the rule's shape. Shaded: the flat set."""
    for rule in rules:
        colour, marker = STYLES[rule]
        points = [(rate, source.mean(source.at(rule, rate, source.largest), metric)) for rate in source.rates]
        points = [(rate, value) for rate, value in points if math.isfinite(value)]
        if points:
            x, y = zip(*points)
            ax.plot(x, y, color=viz.YOURS if yours else colour, marker=marker, linestyle="none" if yours else "-", markersize=6.5 if yours else 4.5, fillstyle="none" if yours else "full", zorder=4 if yours else 3)
    if not yours and source.runs:
        flat = source.flat()
        ax.axvspan(min(flat) / 1.3, max(flat) * 1.3, color="#eeeeee", zorder=0)
    viz.log2_axis(ax, source.rates, "base rate at the smallest batch")
    ax.set_xticks(source.rates, [f"$2^{{{math.log2(rate):g}}}$" for rate in source.rates])
