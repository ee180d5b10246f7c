"""Lab 09's reading of its runs: what each rule and solver ends with, by study. The judge's own functions decide what is
flat and what an end is worth; figures are in `language_figures`."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from labkit import claims
from labs import plan09
from labs.factorial import LABELS, Cell
from labs.rules_language import at_cell, best_of, better, error, flat_rates

CLAIMS = {"markov": "L08.markov", "prose": "L08.prose", "words": "L10.words"}  # whose judge is the study's
TITLES = {"markov": "Markov text", "words": "number words", "prose": "prose"}


def judge_of(name: str) -> dict:
    """How the claims judge a study: metric, its direction, one standard error of a test part, what a miss counts."""
    rule = next(claim.rule for claim in claims.load("09") if claim.id == CLAIMS[name])
    return {key: rule["judge"][key] for key in ("metric", "higher", "noise", "worst")}


class Study:
    """The finished runs of one study; other runs are left out.

    Args:
        settings: a `plan09.Profile`; what a run of the study looks like.
        tuning: the seed that tunes."""

    def __init__(self, runs: Iterable, settings, name: str, tuning: int = 0):
        self.name, self.title, self.settings = name, TITLES[name], settings
        self.application, self.table = plan09.application(settings, name), plan09.table(settings, name)
        self.judge = {**judge_of(name), "tuning": tuning, "seeds": 1, "margin": 2.0}
        own = self.application.recipe
        wanted = {"data": own.data, "train": own.train, "epochs": own.epochs, "sizes": own.sizes,
                  "data_options": own.data_options}
        self.all = [run for run in runs if run.status == "finished"
                    and all(run.config.get(key) == value for key, value in wanted.items())]
        self.runs = [run for run in self.all if run.config["optimizer"] == "sgd"]
        self.smallest, self.largest = self.table.batches[0], self.table.batches[-1]
        self.rates = sorted({run.config["rate"] for run in self.runs if run.config["batch"] == self.smallest})

    def updates(self, batch: int) -> int:
        return self.application.at(batch).steps

    def cell(self, rule: str, rate: float, batch: int) -> Cell:
        at = self.table.batches.index(batch)
        return self.table.path(rule if at else "legw", rate)[at]

    def flat(self) -> list:
        return flat_rates(self.runs, self.table, self.rates, self.judge)

    def ends(self, rule: str, rate: float, batch: int, part: str = "test") -> list:
        return list(at_cell(self.runs, self.cell(rule, rate, batch), part, self.judge).values())

    def shown(self, value: float) -> float:
        """As people read it: the perplexity of a loss, or the BLEU."""
        return value if self.judge["higher"] else math.exp(value)

    @property
    def unit(self) -> str:
        return "BLEU" if self.judge["higher"] else "perplexity"

    def rows(self) -> pd.DataFrame:
        """One row a rule, flat base rate and batch: mean end (perplexity or BLEU), seeds, seconds of training."""
        rows = []
        for rate in self.flat():
            for rule in self.settings.rules:
                for batch in self.table.batches:
                    found = self.ends(rule, rate, batch)
                    if found:
                        rows.append({"study": self.title, "rule": LABELS[rule], "base rate": rate, "batch": batch,
                                     "updates": self.updates(batch), "end": self.shown(np.mean(found)),
                                     "unit": self.unit, "seeds": len(found),
                                     "seconds": self.seconds(rule, rate, batch)})
        return pd.DataFrame(rows)

    def seconds(self, rule: str, rate: float, batch: int) -> float:
        cell = self.cell(rule, rate, batch)
        own = [run for run in self.runs if at_cell([run], cell, "test", self.judge)]
        return float(np.median([run.seconds("train") for run in own]))

    def duel(self, theirs: str, rate: float, batch: int | None = None) -> str:
        """`LEGW`, the other rule's name, or `tie`, by two standard errors of the difference; empty without runs."""
        batch = self.largest if batch is None else batch
        a, b = self.ends("legw", rate, batch), self.ends(theirs, rate, batch)
        if not a or not b:
            return ""
        bound = self.judge["margin"] * math.hypot(error(a, self.judge), error(b, self.judge))
        gap = better(np.mean(a), np.mean(b), self.judge)
        return "LEGW" if gap >= bound else LABELS[theirs] if gap <= -bound else "tie"

    def winner(self) -> str:
        """The rule with the best mean end at the largest batch from every flat base rate; that it depends; or `a tie`
        where at some base rate the best is less than two standard errors ahead of LEGW, or LEGW of the next."""
        best = set()
        for rate in self.flat():
            ends = {rule: np.mean(found) for rule in self.settings.rules
                    if (found := self.ends(rule, rate, self.largest))}
            order = sorted(ends, key=lambda rule: better(ends[rule], 0.0, self.judge), reverse=True)
            if order:
                rival = next((rule for rule in order if rule != "legw"), None)
                close = rival and "legw" in order[:2] and self.duel(rival, rate) == "tie"
                best.add("a tie" if close else LABELS[order[0]])
        return best.pop() if len(best) == 1 else "it depends on the base rate"

    def solver_curve(self, solver: str) -> dict:
        """{rate: mean end on the test part} of a solver without a warm-up at the largest batch, over its octaves."""
        cells = {rate: Cell(self.largest, rate, 0.0) for rate in plan09.rates(solver, 7)}
        runs = [run for run in self.all if run.config["optimizer"] == solver]
        found = {rate: list(at_cell(runs, cell, "test", self.judge).values()) for rate, cell in cells.items()}
        return {rate: float(np.mean(values)) for rate, values in found.items() if values}

    def best(self, solver: str) -> tuple | None:
        """(rate, test values, rates tried) of a solver, its rate tuned by the tuning seed on the validation part."""
        return best_of(self.all, solver, self.largest, self.judge)

    def confirmations(self) -> list:
        """Each solver at its best rate: what the other seeds have to train."""
        return [plan09.solver(self.settings, self.name, solver, found[0]) for solver in self.settings.solvers
                if (found := self.best(solver))]
