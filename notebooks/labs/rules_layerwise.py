"""Rules about the layer-wise optimizers and what they are compared with: functions of runs and of numbers written in
the claim. numpy only.

A rule answers `not attempted` unless every run that it asks for is there. A solver's rate is the one with the highest
validation accuracy of one seed; verdicts are read on the test images, over several seeds at that rate.
"""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs
from labs.rules_scaling import standard_error


def finite(value: float) -> float:
    """An accuracy that is no number counts as none."""
    return value if math.isfinite(value) else 0.0


def tuned(runs, arm: dict, rates, seeds: int):
    """(rate, test accuracies of `seeds` seeds) of an arm at the rate that is best on validation with the first seed,
    the lower of equals; None where a rate or a seed is missing. `arm` is what the configuration must hold.
    """
    by_rate: dict = {}
    for run in sorted(chosen(runs, {"callbacks": None, **arm}), key=lambda run: run.header.began):
        by_rate.setdefault(run.config["rate"], {})[run.header.repeat] = run
    first = {rate: by_rate.get(rate, {}).get(0) for rate in sorted(rates)}
    if any(run is None for run in first.values()):
        return None
    best = max(first, key=lambda rate: finite(first[rate].last("validation_accuracy")))
    found = by_rate[best]
    if any(seed not in found for seed in range(seeds)):
        return None
    return best, [finite(found[seed].last("test_accuracy")) for seed in range(seeds)]


def told(name: str, rate: float, values, rates) -> str:
    """One arm in words; a rate at an end of its grid is said to be one."""
    edge = ", an end of its rates" if rate in (min(rates), max(rates)) and len(rates) > 1 else ""
    return f"{name} {np.mean(values):.3f} (2^{math.log2(rate):g}{edge})"


def controls_match(runs, *, select, controls, layerwise, seeds, images, margin) -> Finding:
    """The better of the tuned `controls` is no more than `margin` standard errors of the difference below each of the
    `layerwise` solvers, all tuned over equally many rates. Arms are {name: {"is": configuration, "rates": [...]}}.
    """
    arms = {**controls, **layerwise}
    if len({len(arm["rates"]) for arm in arms.values()}) > 1:
        return needs("equally many rates for every solver")
    found = {name: tuned(runs, {**select, **arm["is"]}, arm["rates"], seeds) for name, arm in arms.items()}
    missing = [name for name, result in found.items() if result is None]
    if missing:
        return needs(f"all rates of {', '.join(missing)}, and {seeds} seeds at the best one")
    best = max(controls, key=lambda name: np.mean(found[name][1]))
    behind, parts = [], []
    for name in layerwise:
        gap = np.mean(found[best][1]) - np.mean(found[name][1])
        bound = margin * math.hypot(standard_error(found[best][1], images), standard_error(found[name][1], images))
        behind.append(gap < -bound)
        parts.append(f"{best} minus {name} {gap:+.3f} (bound {bound:.3f})")
    words = [told(name, *found[name], arms[name]["rates"]) for name in arms]
    return Finding("contradicted" if any(behind) else "holds", "; ".join(words + parts), seeds * len(arms))


def exclusion_ahead(runs, *, select, rates, everything, seeds, images, margin) -> Finding:
    """With biases and normalisation excluded the solver is more accurate by `margin` standard errors of the difference
    than with nothing excluded (`everything` is the callback that does it); both at their own best rate.
    """
    with_list = tuned(runs, select, rates, seeds)
    without = tuned(runs, {**select, "callbacks": [everything]}, rates, seeds)
    if with_list is None or without is None:
        return needs(f"LARS with and without its exclusion list at {len(rates)} rates, {seeds} seeds at the best")
    gap = np.mean(with_list[1]) - np.mean(without[1])
    bound = margin * math.hypot(standard_error(with_list[1], images), standard_error(without[1], images))
    outcome = "holds" if gap >= bound else "contradicted" if gap <= -bound else "not seen"
    words = f"{told('excluded', *with_list, rates)}, {told('nothing excluded', *without, rates)}"
    return Finding(outcome, f"{words}; difference {gap:+.3f}, bound {bound:.3f}", 2 * seeds)


def conventions_part(runs, *, metric, constant, tolerance, above, below) -> Finding:
    """Convention B's step over A's: 1 within `tolerance` at a constant rate (metric `constant`); under the schedule
    (`metric`) above 1 at the steps `above` and below 1 at the steps `below`.
    """
    flat = [row.value for run in runs for row in run.series(constant)]
    ratios = {row.samples: row.value for run in runs for row in run.series(metric)}
    if not flat or any(step not in ratios for step in (*above, *below)):
        return needs("the two conventions on the quadratic, at a constant rate and under the schedule")
    worst = max(abs(value - 1.0) for value in flat)
    held = [ratios[step] > 1.0 for step in above] + [ratios[step] < 1.0 for step in below]
    words = ", ".join(f"{ratios[step]:.2f} at t = {step}" for step in (*above, *below))
    outcome = "holds" if worst <= tolerance and all(held) else "contradicted"
    return Finding(outcome, f"constant rate: within {worst:.1g} of 1; under the schedule {words}", len(ratios))


def first_step_long(runs, *, metric, at_least) -> Finding:
    """The first step of a public library's LARS is at least so many times the rule's; the newest version measured."""
    found = [run for run in runs if run.series(metric)]
    if not found:
        return needs("the public library, installed beside this one")
    newest = max(found, key=lambda run: tuple(int(part) for part in run.config["version"].split(".")))
    ratio = newest.last(metric)
    outcome = "holds" if ratio >= at_least else "not seen"
    return Finding(outcome, f"version {newest.config['version']}: {ratio:.3g} times the rule's first step", len(found))


def like_warmup(runs, *, metric, settings, early, late, start_at_most, end_within) -> Finding:
    """The step without bias correction over the step with it starts at `start_at_most` or below, and ends within
    `end_within` of 1: in every one of the `settings`. Values are means over the steps `early` and `late`.
    """
    held, parts = [], []
    for setting in settings:
        rows = {row.samples: row.value for run in chosen(runs, {"setting": setting}) for row in run.series(metric)}
        if any(step not in rows for step in (*early, *late)):
            return needs(f"steps of LAMB with and without bias correction in the settings {', '.join(settings)}")
        start, end = (float(np.mean([rows[step] for step in steps])) for steps in (early, late))
        held.append(start <= start_at_most and abs(end - 1.0) <= end_within)
        parts.append(f"{setting}: {start:.2f}, then {end:.2f}")
    return Finding("holds" if all(held) else "not seen", f"{sum(held)} of {len(held)}: " + "; ".join(parts), len(held))


def gradual_ahead(runs, *, select, peaks, gradual, others, seeds, images, margin) -> Finding:
    """Gradual warm-up is more accurate than each of the `others` by `margin` standard errors of the difference at one
    peak rate or more, and behind by as much at none. Kinds of warm-up are what the configuration must hold.
    """
    ahead, behind, parts = [], [], []
    for peak in peaks:
        values = {}
        for name, kind in {"gradual": gradual, **others}.items():
            found = {run.header.repeat: run for run in chosen(runs, {**select, **kind, "rate": peak})}
            if any(seed not in found for seed in range(seeds)):
                return needs(f"three kinds of warm-up at {len(peaks)} peak rates, {seeds} seeds each")
            values[name] = [finite(found[seed].last("test_accuracy")) for seed in range(seeds)]
        gaps = []
        for name in others:
            error = math.hypot(standard_error(values["gradual"], images), standard_error(values[name], images))
            gaps.append((np.mean(values["gradual"]) - np.mean(values[name])) / max(error, 1e-12))
        ahead.append(min(gaps) >= margin)
        behind.append(min(gaps) <= -margin)
        means = ", ".join(f"{name} {np.mean(found):.3f}" for name, found in values.items())
        parts.append(f"2^{math.log2(peak):g}: {means}")
    outcome = "holds" if any(ahead) and not any(behind) else "not seen"
    words = f"ahead of both at {sum(ahead)}, behind at {sum(behind)} of {len(peaks)} peak rates; " + "; ".join(parts)
    return Finding(outcome, words, seeds * len(peaks) * (1 + len(others)), sum(ahead) / len(peaks))


RULES = (controls_match, exclusion_ahead, conventions_part, first_step_long, like_warmup, gradual_ahead)
