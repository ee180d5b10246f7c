"""Auto-tuners beside LEGW at equal total cost: what each tries, what it then trains, and what it spent.

Cost is examples processed, tuning included, in units of one run of the base recipe's epochs. Every tuner has the same
budget of such runs and its choices are made on validation images, with one seed; the final runs take several seeds (one
of them is accounted, even where its first is a tuning run over again), and only their test accuracy is reported. Rules
that were fixed before any run:

- LEGW tries `budget - 1` base rates, octaves around the base recipe's, at the *small* batch, and scales the best.
- The range test is run with `budget - 1` seeds at the large batch, from the lowest of those base rates to linear
  scaling of the highest; each test is read by `range_test.steepest`, and the geometric median is taken.
- Random search trains `budget - 1` rates at the large batch, log-uniform over the same span.
- YellowFin tries `budget - 1` factors of its rate, octaves around 1. Its averages reach back a tenth of the run (its
  authors had runs of many thousand steps in mind); at least its window.
- AdaScale tunes the base rate as LEGW does, over half the budget, and may spend the other half in its final run, which
  needs more examples than one run and ends there even if its gains do not suffice.

Range test, random search and YellowFin keep all else of the base recipe, in epochs, at the large batch.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.errors import RequestError, choose
from labkit.experiment import Recipe
from labkit.optim.schedules import Baseline, legw, linear, warmup_iterations
from labs.rules_scaling import standard_error

LABELS = {
    "legw": "LEGW",
    "range_test": "range test",
    "random_search": "random search",
    "yellowfin": "YellowFin",
    "adascale": "AdaScale",
}
NAMES = tuple(LABELS)
REPLICAS = 8  # micro-batches that AdaScale compares in a step


def octaves(centre: float, count: int) -> list[float]:
    """`count` values a factor of two apart; the one at `count // 2` is `centre`."""
    return [centre * 2.0 ** (at - count // 2) for at in range(count)]


def draws(low: float, high: float, count: int, seed: int) -> list[float]:
    """Log-uniform rates, to four digits."""
    exponents = np.random.default_rng(seed).uniform(math.log(low), math.log(high), count)
    return [float(f"{math.exp(exponent):.4g}") for exponent in exponents]


def at(base: Recipe, batch: int, **changes) -> Recipe:
    """The base recipe at another batch, with its epochs, warm-up and milestones unchanged in epochs."""
    scale = batch / base.batch
    options = dict(base.decay_options)
    if "milestones" in options:
        options["milestones"] = [step / scale for step in options["milestones"]]
    every = max(1, round(base.evaluate_every / scale)) if base.evaluate_every else 0
    own = {"warmup_steps": base.warmup_steps / scale, "decay_options": options, "evaluate_every": every}
    return dataclasses.replace(base, **{"batch": batch, **own, **changes})


def base_ladder(base: Recipe, count: int) -> list[Recipe]:
    """The base recipe at `count` rates, octaves around its own."""
    return [dataclasses.replace(base, rate=rate) for rate in octaves(base.rate, count)]


def scaled(base: Recipe, batch: int, rule=legw, warmup_share: float | None = None) -> Recipe:
    """The base recipe at `batch` by a scaling rule of `labkit.optim.schedules`.

    Args:
        warmup_share: warm-up as a share of the run instead of the rule's own (linear scaling: 0.055 is what AdaScale's
            authors compare with).
    """
    samples = base.train
    start = Baseline(base.batch, base.rate, base.warmup_steps * base.batch / samples)
    found = rule(start, batch)
    moved = at(base, batch, rate=found.rate, warmup_steps=round(warmup_iterations(found, samples), 6))
    if warmup_share is None:
        return moved
    return dataclasses.replace(moved, warmup_steps=round(warmup_share * moved.steps, 6))


def adascale(base: Recipe, batch: int, runs: int | None = None) -> Recipe:
    """AdaScale from this base recipe: its schedule in its own steps, as many of them as it takes.

    Args:
        runs: end after the examples of so many runs of the base recipe; None: batch / base.batch runs at most, which
            is where gains of 1 would end.
    """
    plain = at(base, batch)
    entry: dict = {"name": "labs.adascale.AdaScale", "scale": batch / base.batch}
    if runs is not None:
        entry["most"] = runs * plain.steps
    return dataclasses.replace(
        base,
        batch=batch,
        epochs=base.steps / plain.workload.steps_per_epoch(plain),
        accumulate=math.gcd(REPLICAS, batch),
        evaluate_every=plain.evaluate_every,
        callbacks=(entry,),
    )


def plan(name: str, base: Recipe, batch: int, budget: int = 6, seed: int = 0) -> tuple[list[Recipe], list[int]]:
    """What a tuner tries: (recipes, repeats), every recipe with every repeat.

    Args:
        base: recipe at the small batch, its rate the middle of the ladder.
        batch: the large one. budget: runs in all, the final one included, 2 or more.

    Raises:
        RequestError: an unknown tuner, a budget below 2, or a batch no larger than the base's.
    """
    choose("tuner", name, NAMES)
    if budget < 2 or batch <= base.batch:
        raise RequestError(
            f"a budget of {budget} runs at batch {batch}; a tuner needs 2 runs or more and a batch above {base.batch}"
        )
    count = budget - 1
    if name == "legw":
        return base_ladder(base, count), [seed]
    if name == "adascale":
        return base_ladder(base, budget - budget // 2), [seed]
    rates = octaves(base.rate, count)
    low, high = rates[0], rates[-1] * batch / base.batch
    if name == "random_search":
        return [at(base, batch, rate=rate) for rate in draws(low, high, count, seed)], [seed]
    if name == "range_test":
        entry = {"name": "labs.range_test.RangeTest", "low": low, "high": high}
        plain = {"warmup_steps": 0.0, "decay": "constant", "decay_options": {}, "evaluate_every": 0}
        return [at(base, batch, rate=high, **plain, callbacks=(entry,))], list(range(seed, seed + count))
    memory = max(20, at(base, batch).steps // 10)
    entry = {"name": "labs.yellowfin.YellowFin", "memory": memory, "slow_start": min(200, memory)}
    plain = {"rate": 1.0, "warmup_steps": 0.0, "decay": "constant", "decay_options": {}}
    recipes = [at(base, batch, **plain, callbacks=({**entry, "factor": factor},)) for factor in octaves(1.0, count)]
    return recipes, [seed]


def best(runs: Sequence) -> int:
    """Which run has the best final validation accuracy; one that diverged counts as 0, the first of equals wins."""
    values = [run.last("validation_accuracy") for run in runs]
    return int(np.argmax([value if math.isfinite(value) else 0.0 for value in values]))


def range_rate(runs: Sequence) -> float:
    """The geometric median of the rates that `range_test.steepest` reads off the tests, to four digits."""
    from labs.range_test import steepest

    read = [
        steepest(*([row.value for row in run.series(name)] for name in ("range_rate", "range_loss"))) for run in runs
    ]
    return float(f"{math.exp(np.median(np.log(read))):.4g}")


def final(name: str, base: Recipe, batch: int, tried: Sequence, budget: int = 6, seed: int = 0) -> Recipe:
    """What a tuner trains in the end, from the runs of its `plan`, in their order."""
    if name == "range_test":
        return at(base, batch, rate=range_rate(tried))
    chosen = plan(name, base, batch, budget, seed)[0][best(tried)]
    if name == "legw":
        return scaled(chosen, batch)
    return adascale(chosen, batch, runs=budget // 2) if name == "adascale" else chosen


def examples(run) -> int:
    """Training examples that a run processed."""
    return max((row.samples for row in run.rows), default=0)


def compare(lab, base: Recipe, batch: int, names: Sequence[str] = NAMES, budget: int = 6, seeds: int = 3):
    """Tune and train by every tuner; a data frame with one row a tuner.

    Columns: tuner; setting (the rate, the base rate or the factor chosen); runs of examples spent on tuning, on one
    final run and in all; `baseline given`, the same without tuning for those that tune at the small batch, where
    somebody may have done it already; steps of the final run; mean test accuracy over the seeds, its standard error.

    Args:
        lab: a `labkit.lab.Lab`; its first seed is the one that tuning uses.
    """
    rows, unit = [], base.steps * base.batch
    for name in names:
        label, seed = LABELS.get(name, name), lab.seeds[0]
        tried = lab.train(*plan(name, base, batch, budget, seed), label=f"{label}: tuning")
        recipe = final(name, base, batch, tried, budget, seed)
        runs = lab.train([recipe], lab.repeats(seeds), label=f"{label}: final")
        tuning, last = sum(map(examples, tried)) / unit, float(np.mean(list(map(examples, runs)))) / unit
        finals = [value if math.isfinite(value) else 0.0 for value in (run.last("test_accuracy") for run in runs)]
        chosen = tried[best(tried)].config["rate"] if name == "legw" else recipe.rate
        if name == "yellowfin":
            chosen = recipe.callbacks[0]["factor"]
        images = recipe.test or len(recipe.load().test_y)
        rows.append(
            {
                "tuner": label,
                "setting": {"legw": "base rate", "adascale": "base rate", "yellowfin": "factor"}.get(name, "rate")
                + f" {chosen:.4g}",
                "tuning": tuning,
                "final": last,
                "in all": tuning + last,
                "baseline given": last if name in ("legw", "adascale") else tuning + last,
                "steps": round(last * unit / batch),
                "test accuracy": float(np.mean(finals)),
                "s.e.": standard_error(finals, images),
            }
        )
    return pd.DataFrame(rows)


def collapse(base: Recipe, batch: int, rates: Sequence[float]) -> list[Recipe]:
    """Linear scaling with a warm-up of 5.5 % of the run, and AdaScale without a limit, from each base rate."""
    starts = [dataclasses.replace(base, rate=rate) for rate in rates]
    return [recipe for start in starts for recipe in (scaled(start, batch, linear, 0.055), adascale(start, batch))]
