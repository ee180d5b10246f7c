"""Rules about synchronous training: equal parameters on real processes, and step times that are order statistics.

A rule answers `not attempted` unless every case that it names is there with rows of every metric; every run that fits a
case is judged. Comparisons are written so that NaN fails."""

import math

from labkit.rules.finding import Finding, chosen, needs


def values(run, metric: str) -> list[float]:
    return [row.value for row in run.series(metric)]


def worst(numbers, high: bool = True) -> float:
    """The largest (or smallest) number, NaN if there is one."""
    numbers = list(numbers)
    return math.nan if any(map(math.isnan, numbers)) else (max if high else min)(numbers)


def of_case(runs, select: dict, ranks: int, metrics) -> list:
    """Runs of a case on `ranks` real processes or more; empty unless every rank of each of them gave every metric (the
    rank is a row's `samples`)."""
    found = [run for run in chosen(runs, select) if run.config["ranks"] >= ranks]
    whole = [run for run in found if all(
        sorted(row.samples for row in run.series(metric)) == list(range(run.config["ranks"])) for metric in metrics)]
    return whole if len(whole) == len(found) else []


def training_agrees(runs, *, cases, ranks, steps, error, moved) -> Finding:
    """In each of `cases` (values of `way`), on `ranks` processes or more, after `steps` updates or more: no parameter
    of any rank is further than `error` from that of one process with the whole batch, relative to the largest; and the
    parameters have `moved` from the start by that much at least, or equality would say nothing."""
    told, off, count = [], [], 0
    for way in cases:
        found = [run for run in of_case(runs, {"evidence": "equal", "way": way}, ranks, ("error", "moved"))
                 if run.config["steps"] >= steps]  # fmt: skip
        if not found:
            return needs(f"{way} on {ranks} real processes, {steps} steps")
        far = worst(value for run in found for value in values(run, "error"))
        least = worst((value for run in found for value in values(run, "moved")), high=False)
        if not far <= error or not least >= moved:
            off.append(way)
        counts = sorted({run.config["ranks"] for run in found})
        told.append(f"{way} on {', '.join(map(str, counts))} ranks: {far:.1g}")
        count += len(found)
    evidence = f"largest relative difference of a parameter: {'; '.join(told)}; bound {error:g}"
    return Finding("contradicted" if off else "holds", evidence + (f"; off: {', '.join(off)}" if off else ""), count)


def statistics_decide(runs, *, ranks, error, differs) -> Finding:
    """With batch normalisation, on `ranks` processes or more: local statistics end further than `differs` from one
    process with the whole batch, synchronised statistics within `error` of it, and local statistics within `error` of
    one process whose batch is cut into ghost batches, one for each rank."""
    asked = {"local": "whole error", "synchronised": "whole error", "ghost": "ghost error"}
    found, count = {}, 0
    for case, metric in asked.items():
        kind = "local" if case == "ghost" else case
        part = of_case(runs, {"evidence": "normalised", "statistics": kind}, ranks, (metric,))
        if not part:
            return needs(f"{kind} statistics on {ranks} real processes")
        found[case] = [value for run in part for value in values(run, metric)]
        count += len(part) if case != "ghost" else 0
    least, synchronised, ghost = worst(found["local"], high=False), worst(found["synchronised"]), worst(found["ghost"])
    right = least >= differs and synchronised <= error and ghost <= error
    evidence = (
        f"from one process with the whole batch: local statistics {least:.2g} or more (asked {differs:g}), "
        f"synchronised at most {synchronised:.1g}; local from ghost batches at most {ghost:.1g} (bound {error:g})"
    )
    return Finding("holds" if right else "contradicted", evidence, count)


def weights_decide(runs, *, ranks, error, differs) -> Finding:
    """With shards of different sizes, on `ranks` processes or more: the plain mean over ranks ends further than
    `differs` from one process with the whole batch, the mean weighted by shard sizes within `error`."""
    found, count = {}, 0
    for kind in ("plain", "weighted"):
        part = of_case(runs, {"evidence": "uneven", "mean": kind}, ranks, ("error",))
        if not part:
            return needs(f"a {kind} mean over uneven shards on {ranks} real processes")
        found[kind] = [value for run in part for value in values(run, "error")]
        count += len(part)
    plain, weighted = worst(found["plain"], high=False), worst(found["weighted"])
    evidence = f"plain mean off by {plain:.2g} or more (asked {differs:g}), weighted by {weighted:.1g} at most"
    return Finding("holds" if plain >= differs and weighted <= error else "contradicted", evidence, count)


def harmonic(count: int) -> float:
    """1 + 1/2 + ... + 1/count."""
    return math.fsum(1 / n for n in range(1, count + 1))


def away(mean: float, spread: float, count: int, right: float) -> float:
    """Standard errors between a mean over `count` draws and what it should be; infinite where nothing varied."""
    return abs(mean - right) / (spread / math.sqrt(count)) if not spread <= 0 else math.inf


def step_time_as_formula(runs, *, workers, backups, errors, steps) -> Finding:
    """With exponential compute times of mean 1 the mean step of a barrier that does without the `backup` slowest of P
    workers is H_P - H_backup, for each P of `workers` and each of `backups` below P, within `errors` standard errors.

    The runs of a case are pooled, a seed once (its longest run), and have `steps` steps or more together. Every single
    run, a repeated seed's too, has to be within `errors` + 2 of its own standard errors."""
    off, count, distances, told = [], 0, [], []
    for size, backup in ((size, backup) for size in workers for backup in backups if backup < size):
        case, right = f"{size} workers, {backup} backup{'s' * (backup != 1)}", harmonic(size) - harmonic(backup)
        found, longest = [], {}
        select = {"evidence": "step time", "kind": "exponential", "workers": size, "backup": backup}
        for run in chosen(runs, select):
            means, spreads = run.series("mean"), values(run, "spread")
            if not means or not spreads:
                return needs(f"mean and spread of every run with {case}")
            found.append((means[-1].samples, means[-1].value, spreads[-1]))
            seed = run.config["seed"]
            longest[seed] = max(longest.get(seed, found[-1]), found[-1], key=lambda part: part[0])
        total = sum(part[0] for part in longest.values())
        if total < steps:
            return needs(f"{steps} simulated steps of {case}")
        mean = math.fsum(part[0] * part[1] for part in longest.values()) / total
        spread = math.sqrt(math.fsum(part[0] * part[2] ** 2 for part in longest.values()) / total)
        distances.append(away(mean, spread, total, right))
        alone = worst(away(one, own, draws, right) for draws, one, own in found)
        if not distances[-1] <= errors or not alone <= errors + 2:
            off.append(case)
        count += len(found)
        if size == workers[-1]:
            told.append(f"{case}: {mean:.3f} for {right:.3f}")
    evidence = f"{'; '.join(told)}; largest of all differences {worst(distances):.1f} standard errors, bound {errors:g}"
    return Finding("contradicted" if off else "holds", evidence + (f"; off: {', '.join(off)}" if off else ""), count)


RULES = (training_agrees, statistics_decide, weights_decide, step_time_as_formula)
