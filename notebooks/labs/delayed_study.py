"""Lab 05's sweeps over constant and random delays: they train, record evidence, and read it back as tables.

Real networks, constant rates; every delay has its own grid of rates (`labs.plan05`)."""

import math

import numpy as np
import pandas as pd

from labkit.simulate import events
from labs import delayed, plan05
from labs.rules_asynchronous import by_rate, flat_set, usable

LEVEL = 0.88  # validation accuracy from which on a rate is called usable
SCORES = ("validation_accuracy", "test_accuracy", "train_loss")


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


def usable_rates(runs, momentum: float) -> dict:
    """{delay: geometric mean over seeds of the largest usable rate}; a delay at which none is usable, or the largest
    tried still is, is left out."""
    found = {}
    for delay in delays(runs, momentum):
        rates = usable(accuracies(runs, momentum, delay), LEVEL, 1)
        if rates:
            found[delay] = float(np.exp(np.mean(np.log(rates))))
    return found


def delays(runs, momentum: float) -> list[int]:
    return sorted({run.config["delay"] for run in runs
                   if run.config.get("evidence") == "delayed" and run.config["momentum"] == momentum})


def accuracies(runs, momentum: float, delay: int, part: str = "validation") -> dict:
    """{rate: {seed: accuracy}}."""
    return by_rate(runs, f"{part}_accuracy", {"evidence": "delayed", "momentum": momentum, "delay": delay})


def middle(found: dict) -> pd.Series:
    """Mean over the seeds, by rate."""
    means = {rate: float(np.mean(list(values.values()))) for rate, values in sorted(found.items())}
    return pd.Series(means, dtype=float)


def kept_and_divided(runs, images: int = 452) -> pd.DataFrame:
    """Test accuracy by delay of the best rate of delay 0 and of that rate / delay; of the flat set's rates the largest,
    which is the one that a delay hurts most."""
    base = accuracies(runs, 0.0, 0)
    if not base:
        return pd.DataFrame()
    rate, rows = flat_set(base, images)[-1], []
    for delay in delays(runs, 0.0):
        tests = middle(accuracies(runs, 0.0, delay, "test"))
        rows.append({"delay": delay, "rate": rate, "kept": tests.get(rate, math.nan),
                     "divided": tests.get(rate / max(delay, 1), math.nan), "best": tests.max()})
    return pd.DataFrame(rows)


def losses(runs) -> pd.DataFrame:
    """Final training loss by number of workers and momentum, each at its own best rate (geometric mean over seeds)."""
    rows = []
    cases = [run.config for run in runs if run.config.get("evidence") == "implicit"]
    for workers, momentum in sorted({(case["workers"], case["momentum"]) for case in cases}):
        found = by_rate(runs, "train_loss", {"evidence": "implicit", "workers": workers, "momentum": momentum})
        means = {rate: float(np.exp(np.mean(np.log(list(values.values()))))) for rate, values in found.items()}
        rate = min(means, key=means.get)
        rows.append({"workers": workers, "momentum": momentum, "best rate": rate, "loss": means[rate],
                     "at edge": rate in (min(means), max(means))})
    return pd.DataFrame(rows)
