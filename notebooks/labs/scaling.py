"""Lab 07's reading of its runs: the table of batch x peak rate x warm-up, and the scaling rules as paths through it.

Accuracies are means over seeds, read on the test images; base rates are chosen on the validation images. A run that
diverged counts with the accuracy that it ends with and an infinite loss. Figures are in `scaling_figures`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.errors import choose
from labs.factorial import LABELS, RULES, Cell
from labs import plan07
from labs.rules_scaling import flat_set, standard_error

MODELS = {"deep-mlp": plan07.mlp, "row-lstm": plan07.lstm}
MARGIN = 2.0  # standard errors of a difference, as on the board
UNDECIDED = "it depends on the base rate"


def power(rate: float) -> str:
    """A rate as a power of two: `2^-5`."""
    return f"2^{math.log2(rate):.3g}"


@dataclass(frozen=True)
class Duel:
    """Two rules from one base rate: mean accuracies, `bound` = 2 standard errors of their difference, and the winner.

    `winner` is the rule that is ahead by the bound or more, else `tie`.
    """

    ours: float
    theirs: float
    bound: float
    winner: str


class Map:
    """The runs of one model on the table; other runs are left out.

    Args:
        runs: finished runs of any kind.
        settings: a `plan07.Profile`: the axes, the base rates, and what a run of the table looks like.
        model: `deep-mlp` or `row-lstm`.
        images: test images, for standard errors.
    """

    def __init__(self, runs: Iterable, settings, model: str, images: int = 452):
        choose("model of lab 07", model, MODELS)
        self.settings, self.model, self.images = settings, model, images
        runs = [run for run in runs if run.status == "finished" and run.config.get("curvature_every") == 0]
        self.equal_epochs = [run for run in runs if self._is(run, **self._wanted(), epochs=settings.epochs)]
        self.longer = [
            run for run in runs if self._is(run, **self._wanted()) and run.config["epochs"] > settings.epochs
        ]
        self.runs = [run for run in self.equal_epochs if run.config["optimizer"] == "sgd"]
        batches = {*settings.batches, *(run.config["batch"] for run in self.runs)}
        self.table = plan07.table(settings, sorted(batches))
        self.rates = tuple(sorted(settings.mlp_rates if model == "deep-mlp" else settings.lstm_rates))
        self._cells: dict = {}
        for run in sorted(self.runs, key=lambda run: run.header.began):
            cell = Cell(run.config["batch"], run.config["rate"], run.config["warmup_steps"])
            self._cells.setdefault(self._key(cell), {})[run.header.repeat] = run

    def _wanted(self) -> dict:
        settings = self.settings
        return {"data": settings.data, "train": settings.train, "pool": 1, **MODELS[self.model](settings)}

    @staticmethod
    def _is(run, **wanted) -> bool:
        return all(run.config.get(key) == value for key, value in wanted.items())

    @staticmethod
    def _key(cell: Cell) -> tuple:
        return cell.batch, cell.rate, round(cell.warmup_steps, 3)

    @property
    def smallest(self) -> int:
        return self.table.batches[0]

    @property
    def largest(self) -> int:
        return self.table.batches[-1]

    @property
    def constant_warmup(self) -> float:
        """LEGW's warm-up in optimizer steps, the same at every batch."""
        return self.settings.warmup_epochs * self.settings.train / self.smallest

    def updates(self, batch: int) -> int:
        """Optimizer steps of a run at equal epochs."""
        return round(self.settings.epochs * (self.settings.train // batch))

    def found(self, cell: Cell) -> list:
        """The runs of a cell, the newest of each seed."""
        return list(self._cells.get(self._key(cell), {}).values())

    def values(self, cell: Cell, metric: str = "test_accuracy") -> list[float]:
        """Final values over the seeds."""
        worst = math.inf if metric.endswith("loss") else 0.0
        finals = [run.last(metric) for run in self.found(cell)]
        return [value if math.isfinite(value) else worst for value in finals]

    def mean(self, cell: Cell, metric: str = "test_accuracy") -> float:
        """Mean over the seeds; NaN where the cell was not trained."""
        values = self.values(cell, metric)
        return float(np.mean(values)) if values else math.nan

    def error(self, cell: Cell) -> float:
        """Standard error of the mean accuracy of a trained cell: test images and seeds."""
        return standard_error(self.values(cell), self.images)

    def at(self, rule: str, rate: float, batch: int) -> Cell:
        """The cell that a rule visits at a batch."""
        return self.table.path(rule, rate)[self.table.batches.index(batch)]

    def cells(self) -> list[Cell]:
        """The cells with runs."""
        return sorted(Cell(*key) for key in self._cells)

    def slices(self, cell: Cell) -> list[int]:
        """In which slices of the table a cell lies: 0 no warm-up, 1 LEGW's, 2 the long one.

        The baseline without warm-up is in the third as well, since the path with the long warm-up starts there.
        """
        if cell.warmup_steps == 0:
            return [0, 2] if cell.batch == self.smallest else [0]
        return [1] if abs(cell.warmup_steps - self.constant_warmup) < 1e-2 else [2]

    def flat(self) -> list[float]:
        """Base rates within one standard error of the best validation accuracy at the smallest batch.

        Every base rate where the smallest batch was not trained: then nothing tells them apart.
        """
        return flat_set(self.runs, self.table, self.rates, self.images) or list(self.rates)

    def duel(self, rate: float, ours: str = "legw", theirs: str = "linear") -> Duel | None:
        """Two rules from one base rate at the largest batch; None where one of the cells was not trained."""
        cells = [self.at(rule, rate, self.largest) for rule in (ours, theirs)]
        if not all(map(self.found, cells)):
            return None
        bound = MARGIN * math.hypot(*map(self.error, cells))
        a, b = map(self.mean, cells)
        return Duel(a, b, bound, ours if a - b >= bound else theirs if b - a >= bound else "tie")

    def verdicts(self, ours: str = "legw", theirs: str = "linear") -> pd.DataFrame:
        """One row per base rate: is it flat, what both rules reach at the largest batch, and who wins."""
        flat, rows = self.flat(), []
        for rate in self.rates:
            duel = self.duel(rate, ours, theirs)
            if duel is not None:
                base = self.mean(self.at("fixed", rate, self.smallest), "validation_accuracy")
                rows.append(
                    {
                        "base rate": power(rate),
                        "flat": rate in flat,
                        f"validation at {self.smallest}": base,
                        LABELS[ours]: duel.ours,
                        LABELS[theirs]: duel.theirs,
                        "2 s.e.": duel.bound,
                        "winner": LABELS.get(duel.winner, duel.winner),
                    }
                )
        return pd.DataFrame(rows)

    def winner(self) -> str:
        """The most accurate rule at the largest batch if it is the same from every flat base rate, else `UNDECIDED`."""
        best = set()
        for rate in self.flat():
            cells = {rule: self.at(rule, rate, self.largest) for rule in RULES}
            means = {rule: self.mean(cell) for rule, cell in cells.items() if self.found(cell)}
            if means:
                best.add(LABELS[max(means, key=means.get)])
        return best.pop() if len(best) == 1 else UNDECIDED

    def retuned(self, batch: int) -> Cell | None:
        """The cell of a batch with the best validation accuracy over all its rates and warm-ups."""
        cells = [cell for cell in self.cells() if cell.batch == batch]
        return max(cells, key=lambda cell: self.mean(cell, "validation_accuracy"), default=None)

    def solver(self, name: str, batch: int) -> tuple | None:
        """(rate, mean test accuracy) of an adaptive solver at a batch, the rate with the best validation accuracy."""
        runs = [run for run in self.equal_epochs if self._is(run, optimizer=name, batch=batch)]
        by_rate = {
            rate: [run for run in runs if run.config["rate"] == rate] for rate in {r.config["rate"] for r in runs}
        }
        if not by_rate:
            return None
        mean = {rate: np.mean([run.last("validation_accuracy") for run in found]) for rate, found in by_rate.items()}
        rate = max(mean, key=mean.get)
        return rate, float(np.mean([run.last("test_accuracy") for run in by_rate[rate]]))

    def seconds(self, batch: int) -> float:
        """Median seconds of training per epoch over the runs of a batch that own their seconds; NaN if none does."""
        runs = [run for run in self.runs if run.config["batch"] == batch and run.header.arms == 1]
        return float(np.median([run.seconds("train") for run in runs])) / self.settings.epochs if runs else math.nan

    def paths(self, metric: str, rules: Sequence[str], rates: Sequence[float]) -> pd.DataFrame:
        """The numbers along the paths: one row per rule and base rate, one column per batch."""
        rows = []
        for rule in rules:
            for rate in rates:
                numbers = {f"batch {cell.batch}": self.mean(cell, metric) for cell in self.table.path(rule, rate)}
                rows.append({"rule": LABELS[rule], "base rate": power(rate), **numbers})
        return pd.DataFrame(rows)


def accuracy_at_loss(run, loss: float) -> float:
    """Test accuracy at the first evaluation whose training loss is at most `loss`; NaN if there is none."""
    step = next((row.step for row in run.series("train_loss") if row.value <= loss), None)
    return next((row.value for row in run.series("test_accuracy") if row.step == step), math.nan)
