"""Every scaling rule is a path through one table of batch x peak rate x warm-up. numpy only.

A rule at a base rate picks one cell per batch size; two rules that pick the same cell share its run. So one factorial
sweep judges all rules at all base rates at once."""

from dataclasses import dataclass

from labkit.errors import choose
from labkit.optim.schedules import Baseline, fixed, legw, linear, linear_with_warmup, square_root, warmup_iterations

RULES = ("fixed", "square_root", "linear", "linear_with_warmup", "legw")
LABELS = {"fixed": "fixed rate", "square_root": "square root", "linear": "linear",
          "linear_with_warmup": "linear + 5 epochs", "legw": "LEGW"}


@dataclass(frozen=True, order=True)
class Cell:
    """One place in the table: batch size, peak rate, warm-up in optimizer steps."""

    batch: int
    rate: float
    warmup_steps: float


@dataclass(frozen=True)
class Table:
    """The axes: batch sizes with the baseline first, training samples, LEGW's warm-up at the baseline and the fixed
    long one, both in epochs."""

    batches: tuple
    samples: int
    warmup_epochs: float
    long_warmup_epochs: float

    def path(self, rule: str, rate: float) -> list[Cell]:
        """The cells that a rule visits from a base rate, one per batch.

        At the baseline batch itself nothing is scaled, so every rule but LEGW (whose baseline has a warm-up) starts
        from the recipe without one."""
        choose("scaling rule", rule, RULES)
        base = Baseline(self.batches[0], rate, self.warmup_epochs if rule == "legw" else 0.0)
        scale = {"fixed": fixed, "square_root": square_root, "linear": linear, "legw": legw}.get(rule)
        cells = []
        for batch in self.batches:
            if scale is not None:
                scaled = scale(base, batch)
            else:
                scaled = linear_with_warmup(base, batch, self.long_warmup_epochs if batch > self.batches[0] else 0.0)
            cells.append(Cell(batch, scaled.rate, round(warmup_iterations(scaled, self.samples), 6)))
        return cells

    def paths(self, rates, rules=RULES) -> list[Cell]:
        """All cells that the rules visit from these base rates, each once."""
        return sorted({cell for rule in rules for rate in rates for cell in self.path(rule, rate)})

    def factorial(self, rates) -> list[Cell]:
        """All octaves between the lowest base rate and linear scaling of the highest, at every batch, with no warm-up,
        LEGW's and the long one."""
        cells = set(self.paths(rates))
        for batch in self.batches:
            k = batch / self.batches[0]
            constant = warmup_iterations(legw(Baseline(self.batches[0], 1.0, self.warmup_epochs), batch), self.samples)
            long = self.long_warmup_epochs * self.samples / batch if k > 1 else constant
            rate = min(rates)
            while rate <= max(rates) * k:
                cells |= {Cell(batch, rate, round(steps, 6)) for steps in (0.0, constant, long)}
                rate *= 2
        return sorted(cells)
