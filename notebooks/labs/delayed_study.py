"""Lab 05's sweeps over constant and random delays: they train, record evidence, and read it back as tables.

Real networks, constant rates; every delay has its own grid of rates (`labs.plan05`)."""

import math

import numpy as np
import pandas as pd

from labkit.rules.finding import interval
from labkit.simulate import events
from labs import delayed, plan05
from labs.async_tables import Table, held_out, logs_of, tables
from labs.rules_asynchronous_tuned import flat_set, usable

LEVEL = 0.88  # validation accuracy from which on a rate is called usable
ACCURACIES = ("validation_accuracy", "test_accuracy")
SCORES = (*ACCURACIES, "train_loss")


def _record(lab, name: str, run: delayed.Trained, rates, **config) -> None:
    last = np.where(np.isfinite(run.losses[-1]), run.losses[-1], math.inf)
    scores = dict(zip(SCORES, (run.validation, run.test, last), strict=True))
    rows = [(score, float(value)) for score, values in scores.items() for value in values]
    lab.evidence(name, rows, rates=rates, **config)


def constant_delays(lab, settings, digits: delayed.Digits, progress=None) -> None:
    """Every delay, momentum and rate, for the session's seeds."""
    seeds = lab.repeats(settings.seeds)
    cases = [(momentum, delay, seed) for momentum in settings.momenta for delay in settings.delays for seed in seeds]
    for at, (momentum, delay, seed) in enumerate(cases):
        rates = plan05.rates(delay, momentum, settings.per_octave)
        run = delayed.train(digits, delayed.constant(delay, settings.steps), rates, momentum, seed=seed, every=64)
        _record(lab, "delayed", run, rates, momentum=momentum, delay=delay, seed=seed, steps=settings.steps,
                train=settings.train)
        if progress is not None:
            progress.update(at + 1)


def random_delays(lab, settings, digits: delayed.Digits, progress=None) -> None:
    """Every number of workers, in an order that follows from exponential compute times, with every momentum at its own
    rates; few steps, as momentum shows early."""
    seeds = lab.repeats(settings.seeds)
    cases = [(workers, seed) for workers in settings.workers for seed in seeds]
    for at, (workers, seed) in enumerate(cases):
        order = events.asynchronous(workers, settings.implicit_steps, events.Compute("exponential"), seed=seed)
        grid = {momentum: plan05.implicit_rates(momentum, workers) for momentum in settings.implicit_momenta}
        pairs = [(momentum, rate) for momentum, rates in grid.items() for rate in rates]
        run = delayed.train(digits, order.read, [rate for _, rate in pairs], [momentum for momentum, _ in pairs],
                            seed=seed, every=16)
        for momentum, rates in grid.items():
            mine = [n for n, pair in enumerate(pairs) if pair[0] == momentum]
            part = delayed.Trained(run.steps, run.losses[:, mine], run.validation[mine], run.test[mine])
            _record(lab, "implicit", part, rates, workers=workers, momentum=momentum, seed=seed,
                    steps=settings.implicit_steps, train=settings.train)
        if progress is not None:
            progress.update(at + 1)


def table(runs, momentum: float, delay: int) -> Table | None:
    """Accuracies with a constant delay, of all seeds there are; None without runs."""
    select = {"evidence": "delayed", "momentum": momentum, "delay": delay}
    return next(iter(tables(runs, select, ACCURACIES, 1, 1.0)), None)


def accuracy(runs, momentum: float, delay: int, part: str = "validation") -> pd.Series:
    """Mean over the seeds, by rate."""
    found = table(runs, momentum, delay)
    return pd.Series(found.values[f"{part}_accuracy"].mean(0), found.rates) if found else pd.Series(dtype=float)


def usable_rates(runs, momentum: float) -> dict:
    """{delay: geometric mean over seeds of the largest usable rate}, what every figure and text calls the largest
    usable rate; a delay at which a seed has none, or the largest tried still is usable, is left out."""
    found = {delay: usable(table(runs, momentum, delay), LEVEL) for delay in delays(runs, momentum)}
    return {delay: float(np.exp(np.mean(np.log(rates)))) for delay, rates in found.items() if rates}


def delays(runs, momentum: float) -> list[int]:
    return sorted({run.config["delay"] for run in runs
                   if run.config.get("evidence") == "delayed" and run.config["momentum"] == momentum})


def kept_and_divided(runs, images: int = 452) -> pd.DataFrame:
    """Test accuracy by delay of the best rate of delay 0 and of that rate / delay; of the flat set's rates the largest,
    which is the one that a delay hurts most."""
    base = table(runs, 0.0, 0)
    if base is None:
        return pd.DataFrame()
    rate, rows = flat_set(base, images)[-1], []
    for delay in delays(runs, 0.0):
        tests = accuracy(runs, 0.0, delay, "test")
        rows.append({"delay": delay, "rate": rate, "kept": tests.get(rate, math.nan),
                     "divided": tests.get(rate / max(delay, 1), math.nan)})
    return pd.DataFrame(rows)


def momentum_factors(runs) -> pd.DataFrame:
    """Final training loss with momentum over that without, by number of workers: the geometric mean over seeds, and
    `low` and `high`, the ends of its 95 % interval (NaN for one seed). Each loss is that at the rate that is best on
    the other seeds (of one seed: at its own best rate); seeds without two finite losses are left out."""
    rows, logs = [], {}
    cases = [run.config for run in runs if run.config.get("evidence") == "implicit"]
    for workers, momentum in sorted({(case["workers"], case["momentum"]) for case in cases}):
        select = {"evidence": "implicit", "workers": workers, "momentum": momentum}
        found = tables(runs, select, ("train_loss",), 1)[0]
        values = found.values["train_loss"]
        picked = logs_of(values)[range(len(values)), held_out(values)]
        logs[workers, momentum] = dict(zip(found.seeds, picked.tolist(), strict=True))
    for (workers, momentum), mine in logs.items():
        base = logs.get((workers, 0.0), {})
        gains = [mine[seed] - base[seed] for seed in mine if seed in base]
        gains = [gain for gain in gains if math.isfinite(gain)]
        if momentum > 0 and gains:
            ends = np.exp(interval(gains)) if len(gains) > 1 else (math.exp(gains[0]), math.nan, math.nan)
            rows.append({"workers": workers, "momentum": momentum, "factor": ends[0], "low": ends[1], "high": ends[2],
                         "seeds": len(gains)})
    return pd.DataFrame(rows, columns=["workers", "momentum", "factor", "low", "high", "seeds"])
