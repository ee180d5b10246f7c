"""Rules about auto-tuners against LEGW and about AdaScale. Recipes and choices are those of `labs.tuners`.

A rule finds the runs that a plan asks for by their configuration; it answers `not attempted` while one is missing.
"""

import dataclasses
import math

import numpy as np

from labkit.experiment import Recipe
from labkit.rules.finding import Finding, chosen, needs
from labs import tuners
from labs.rules_scaling import standard_error

# Fields of a recipe that do not decide what it learns.
BESIDE = ("device", "evaluate_every", "evaluate_on", "curvature_every", "validation", "test", "target")


def run_of(runs, recipe, repeat: int):
    """The newest run of a recipe and repeat, or None."""
    wanted = {name: value for name, value in dataclasses.asdict(recipe).items() if name not in BESIDE}
    for run in sorted(runs, key=lambda run: run.header.began, reverse=True):
        found = ((run.config.get(name) or (), value or ()) for name, value in wanted.items())
        if run.header.repeat == repeat and all(
            (list(a) == list(b)) if isinstance(b, tuple) else a == b for a, b in found
        ):
            return run
    return None


def all_of(runs, recipes, repeats):
    """The runs of all recipes and repeats, recipe by recipe; None if one is missing."""
    found = []
    for recipe in recipes:
        for repeat in repeats:
            found.append(run_of(runs, recipe, repeat))
    return None if None in found else found


def finals(runs, metric: str = "test_accuracy"):
    """Final values; one that is not finite counts as 0."""
    values = [run.last(metric) for run in runs]
    return [value if math.isfinite(value) else 0.0 for value in values]


def tuned(runs, name: str, base, batch: int, budget: int, seed: int, seeds: int):
    """(runs of the plan, final runs) of a tuner; None if one is missing."""
    tried = all_of(runs, *tuners.plan(name, base, batch, budget, seed))
    if tried is None:
        return None
    last = all_of(runs, [tuners.final(name, base, batch, tried, budget, seed)], range(seed, seed + seeds))
    return None if last is None else (tried, last)


def flat_rates(runs, base, count: int, seed: int, images: int):
    """Base rates whose validation accuracy at the small batch is within one standard error of the best, all with one
    seed; None if a run is missing.
    """
    found = all_of(runs, tuners.base_ladder(base, count), [seed])
    if found is None:
        return None
    values = finals(found, "validation_accuracy")
    least = max(values) - standard_error([max(values)], images)
    return [run.config["rate"] for run, value in zip(found, values, strict=True) if value >= least]


def tuner_behind(runs, *, base, batch, tuner, budget, seed, seeds, images, margin) -> Finding:
    """At `batch`, LEGW is more accurate than the tuner by `margin` standard errors of the difference; both choose on
    validation, within a total budget of examples, and are read on test images.
    """
    runs, base = chosen(runs, {"model": base["model"]}), Recipe(**base)
    first = tuned(runs, "legw", base, batch, budget, seed, seeds) if runs else None
    second = tuned(runs, tuner, base, batch, budget, seed, seeds) if runs else None
    if first is None or second is None:
        return needs(
            f"LEGW and {tuners.LABELS[tuner]} at batch {batch} with a budget of {budget} runs, {seeds} final seeds each"
        )
    (tried, last), used = second, first + second
    ours, theirs = finals(first[1]), finals(last)
    gap = np.mean(ours) - np.mean(theirs)
    bound = margin * math.hypot(standard_error(ours, images), standard_error(theirs, images))
    spent = sum(map(tuners.examples, tried)) + np.mean(list(map(tuners.examples, last)))
    evidence = (
        f"LEGW {np.mean(ours):.3f}, {tuners.LABELS[tuner]} {np.mean(theirs):.3f} at batch {batch} "
        f"(margin {bound:.3f}; {spent / (base.steps * base.batch):.1f} of {budget} runs' examples spent)"
    )
    outcome = "holds" if gap >= bound else "contradicted" if gap <= -bound else "not seen"
    return Finding(outcome, evidence, sum(map(len, used)))


def linear_collapses(runs, *, base, batch, rates, seed, seeds, images, fall) -> Finding:
    """At `batch`, linear scaling with a warm-up falls more than `fall` below its base run's test accuracy and AdaScale
    does not, over the flat set of base rates; the opposite contradicts.
    """
    runs, base = chosen(runs, {"model": base["model"]}), Recipe(**base)
    flat = flat_rates(runs, base, rates, seed, images) if runs else None
    found = flat and all_of(runs, tuners.collapse(base, batch, flat), range(seed, seed + seeds))
    if not found:
        return needs(f"linear scaling and AdaScale at batch {batch} from every flat base rate, {seeds} seeds each")
    signs, parts = [], []
    for at, rate in enumerate(flat):
        start = finals([run_of(runs, dataclasses.replace(base, rate=rate), seed)])[0]
        mine = found[2 * at * seeds : 2 * (at + 1) * seeds]
        lin, ada = np.mean(finals(mine[:seeds])), np.mean(finals(mine[seeds:]))
        lost = [bool(start - value > fall) for value in (lin, ada)]
        signs.append(lost[0] - lost[1])
        parts.append(f"{lin:.3f} and {ada:.3f} from {rate:.4g} ({start:.3f} at batch {base.batch})")
    fraction = sum(sign > 0 for sign in signs) / len(signs)
    mixed = "contradicted" if all(sign < 0 for sign in signs) else "not seen"
    outcome = "holds" if fraction == 1 else "partly" if fraction else mixed
    return Finding(outcome, "linear and AdaScale: " + "; ".join(parts), len(found), fraction)


def more_iterations(runs, *, base, batch, rates, seed, seeds, images, at_least) -> Finding:
    """At `batch`, AdaScale's optimizer steps over those of linear scaling are `at_least` or more in every run, from
    every flat base rate; at equal epochs the latter are a fixed number.
    """
    runs, base = chosen(runs, {"model": base["model"]}), Recipe(**base)
    flat = flat_rates(runs, base, rates, seed, images) if runs else None
    starts = [dataclasses.replace(base, rate=rate) for rate in flat or ()]
    found = all_of(runs, [tuners.adascale(start, batch) for start in starts], range(seed, seed + seeds))
    if not found:
        return needs(f"AdaScale at batch {batch} from every flat base rate, {seeds} seeds each")
    steps, fixed = [run.rows[-1].step for run in found], tuners.at(base, batch).steps
    ratios = [count / fixed for count in steps]
    evidence = f"{min(steps)} to {max(steps)} steps against {fixed}: {min(ratios):.2f} to {max(ratios):.2f} times"
    least, most = min(ratios) >= at_least, max(ratios) < 1
    return Finding("holds" if least else "contradicted" if most else "not seen", evidence, len(found))


def gain_between(runs, *, scale, tolerance) -> Finding:
    """Every recorded gain of AdaScale lies in [1, its scale]; in the evidence run, gains at falling noise fall, from
    `scale` for noise alone to 1 without noise, each within the relative `tolerance`.
    """
    course = [run for run in chosen(runs, {"evidence": "adascale_gain", "scale": scale}) if run.rows]
    if not course:
        return needs("the evidence of gains at falling noise")
    limits = [row.value for row in course[-1].rows]
    held = abs(limits[0] / scale - 1) <= tolerance and abs(limits[-1] - 1) <= tolerance
    held = held and all(a >= b for a, b in zip(limits, limits[1:], strict=False))
    seen = [
        (row.value, entry["scale"])
        for run in runs
        for entry in run.config.get("callbacks") or ()
        if entry["name"].endswith(".AdaScale")
        for row in run.series("gain")
    ]
    held = held and all(1 <= value <= most for value, most in seen)
    evidence = f"{limits[0]:.3g} for noise alone to {limits[-1]:.3g} without noise at scale {scale}"
    if seen:
        values = [value for value, _ in seen]
        evidence += f"; {min(values):.3g} to {max(values):.3g} in {len(seen)} recorded steps"
    return Finding("holds" if held else "contradicted", evidence, len(runs))


RULES = (tuner_behind, linear_collapses, more_iterations, gain_between)
