"""Rules about the cost of operators and of one step: counts that agree, orderings over seeds or interleaved rounds.

A row's `samples` holds what was varied: batch size, kernel size, layers, processors, or workspace. Identities are
judged at every profile; timings need `seeds` interleaved rounds, which only profile full has."""

import math

import numpy as np
from scipy import stats

from labkit.rules.finding import Finding, chosen, needs
from labkit.tta import statistics


def series(runs, select: dict, metric: str) -> dict[int, list[float]]:
    """Values of a metric in the chosen runs by what was varied, in the order in which they were written."""
    found: dict[int, list[float]] = {}
    for run in chosen(runs, select):
        for row in run.series(metric):
            found.setdefault(row.samples, []).append(row.value)
    return dict(sorted(found.items()))


def none_off(runs, *, metrics, bound, cases) -> Finding:
    """Every recorded value of `metrics` (how far a count or a number is off) is at most `bound`, in `cases` or more of
    them, and of each metric there is one."""
    found = {metric: [value for part in series(runs, {}, metric).values() for value in part] for metric in metrics}
    values = [value for part in found.values() for value in part]
    if len(values) < cases or not all(found.values()):
        return needs(f"{cases} cases of {' and '.join(metrics)}; there are {', '.join(str(len(v)) for v in found.values())}")
    worst = max(values, key=lambda value: math.inf if math.isnan(value) else value)
    evidence = f"largest of {len(values)} differences {worst:.2g}, bound {bound:g}"
    return Finding("holds" if worst <= bound else "contradicted", evidence, len(values))


def wins_when_large(runs, *, select, method, against, margin, seeds) -> Finding:
    """Seconds of `against` over seconds of `method`, paired by round: with 95 % confidence above `margin` at the
    largest setting and below 1 at the smallest; contradicted if at the largest it is below 1 / `margin`."""
    ours, theirs = series(runs, select, method), series(runs, select, against)
    if not ours or set(ours) != set(theirs) or min(map(len, [*ours.values(), *theirs.values()])) < seeds:
        return needs(f"{seeds} interleaved rounds of {method} and {against} at each size")
    ratio = {at: statistics.median(np.array(theirs[at]) / np.array(ours[at])) for at in ours}
    first, last = ratio[min(ratio)], ratio[max(ratio)]
    won = [at for at in ratio if ratio[at].low > margin]
    evidence = (f"{against} / {method}: {first.value:.2f} at {min(ratio)}, {last.value:.2f} [{last.low:.2f}, "
                f"{last.high:.2f}] at {max(ratio)}; faster at {', '.join(map(str, won)) or 'none'}")
    if last.low > margin and first.high < 1:
        return Finding("holds", evidence, len(ours[max(ours)]))
    return Finding("contradicted" if last.high < 1 / margin else "not seen", evidence, len(ours[max(ours)]))


def smaller(runs, *, select, metric, than, errors, seeds) -> Finding:
    """Log of `than` over `metric`, paired by the seed (the rows' `samples`; a seed that was run again counts once): its
    mean is above 0, by `errors` standard errors or more; contradicted if so far below."""
    ours, theirs = series(runs, select, metric), series(runs, select, than)
    both = sorted(set(ours) & set(theirs))
    if len(both) < seeds:
        return needs(f"{seeds} seeds of {metric} and {than}")
    ratio = np.log([theirs[seed][-1] / ours[seed][-1] for seed in both])
    mean, error = ratio.mean(), ratio.std(ddof=1) / math.sqrt(len(ratio))
    evidence = f"{than} / {metric} {math.exp(mean):.2f} (mean of {len(ratio)}, standard error of its log {error:.2g})"
    sure = abs(mean) >= errors * error
    outcome = "holds" if mean > 0 and sure else "contradicted" if mean < 0 and sure else "not seen"
    return Finding(outcome, evidence, len(ratio))


def falls_then_flat(runs, *, select, metric, fall, flat, seeds) -> Finding:
    """Median seconds a sample over the batch size: from the first batch to the last they fall by `fall` or more, and
    between the last two they change by `flat` at most; contradicted if they do not fall at all."""
    found = series(runs, select, metric)
    if len(found) < 4 or min(map(len, found.values())) < seeds:
        return needs(f"{seeds} timings at each of four batch sizes or more")
    each = {batch: float(np.median(values)) / batch for batch, values in found.items()}
    batches = list(each)
    fell, last = each[batches[0]] / each[batches[-1]], each[batches[-2]] / each[batches[-1]]
    evidence = (f"batch {batches[0]} to {batches[-1]}: time a sample / {fell:.1f}; "
                f"from {batches[-2]} to {batches[-1]} / {last:.2f}")
    holds = fell >= fall and 1 / flat <= last <= flat
    return Finding("holds" if holds else "contradicted" if fell <= 1 else "not seen", evidence, len(found[batches[0]]))


def near_the_roof(runs, *, select, metric, bound, factor, seeds) -> Finding:
    """At every batch size the median measured seconds are within `factor` of the roofline's, either way; contradicted
    if at no batch size they are."""
    measured, least = series(runs, select, metric), series(runs, select, bound)
    if not measured or set(measured) != set(least) or min(map(len, measured.values())) < seeds:
        return needs(f"{seeds} timings at each batch size, and the roofline's seconds beside them")
    ratio = {at: float(np.median(measured[at]) / np.median(least[at])) for at in measured}
    inside = [at for at in ratio if 1 / factor <= ratio[at] <= factor]
    evidence = (f"measured / roofline from {min(ratio.values()):.2f} to {max(ratio.values()):.2f}; within "
                f"{factor:g} at {len(inside)} of {len(ratio)} batch sizes")
    outcome = "holds" if len(inside) == len(ratio) else "not seen" if inside else "contradicted"
    return Finding(outcome, evidence, min(map(len, measured.values())))


def by_year(runs, *, select, metrics, least, networks) -> Finding:
    """Spearman's rank correlation of the year with each of `metrics`, a network a point, is `least` or more;
    contradicted if for one of them it is negative."""
    found = {name: {run.config["network"]: (run.config["year"], run.series(name)[-1].value)
                    for run in chosen(runs, select) if run.series(name)} for name in metrics}
    if min(map(len, found.values())) < networks:
        return needs(f"{networks} networks counted")
    rank = {name: float(stats.spearmanr(*zip(*points.values(), strict=True)).statistic)
            for name, points in found.items()}
    evidence = f"rank correlation with the year over {len(found[metrics[0]])} networks: "
    evidence += ", ".join(f"{name} {value:.2f}" for name, value in rank.items())
    worst = float(np.min(list(rank.values())))  # NaN if one is
    outcome = "holds" if worst >= least else "contradicted" if worst < 0 else "not seen"
    return Finding(outcome, evidence, len(found[metrics[0]]))


def ratio_of_each(runs, *, select, metric, over, low, high, networks) -> Finding:
    """`metric` / `over` of every network lies in [low, high]; contradicted if of none it does."""
    found = {run.config["network"]: run.series(metric)[-1].value / run.series(over)[-1].value
             for run in chosen(runs, select) if run.series(metric) and run.series(over)}
    if len(found) < networks:
        return needs(f"{networks} networks counted")
    inside = [name for name, value in found.items() if low <= value <= high]
    ends = [min(found, key=found.get), max(found, key=found.get)]
    evidence = f"{metric} / {over} from {found[ends[0]]:.3g} ({ends[0]}) to {found[ends[1]]:.3g} ({ends[1]})"
    outcome = "holds" if len(inside) == len(found) else "not seen" if inside else "contradicted"
    return Finding(outcome, f"{evidence}; within [{low:g}, {high:g}] in {len(inside)} of {len(found)}", len(found))


def root_memory(runs, *, select, metric, low, high, extra, most, sizes) -> Finding:
    """Log-log slope of `metric` over the number of layers lies in [low, high], and `extra` (forward passes done again)
    is `most` at most."""
    held, again = series(runs, select, metric), series(runs, select, extra)
    if len(held) < sizes or set(held) != set(again):
        return needs(f"{metric} and {extra} at {sizes} numbers of layers")
    slope = float(np.polyfit(np.log(list(held)), np.log([values[-1] for values in held.values()]), 1)[0])
    worst = float(np.max([value for values in again.values() for value in values]))
    evidence = f"slope {slope:.2f}, allowed {low:g} to {high:g}; {worst:.3g} forward passes again at most"
    return Finding("holds" if low <= slope <= high and worst <= most else "contradicted", evidence, len(held))


def never_slower(runs, *, select, metric, than, gain, cases) -> Finding:
    """`metric` is at most `than` at every setting (the rows' `samples`), and at one it is `gain` times smaller or more;
    contradicted if at one it is larger."""
    ours, theirs = series(runs, select, metric), series(runs, select, than)
    if len(ours) < cases or set(ours) != set(theirs):
        return needs(f"{metric} and {than} at {cases} settings")
    ratio = {at: theirs[at][-1] / ours[at][-1] for at in ours}
    if not all(map(math.isfinite, ratio.values())):
        return Finding("not seen", f"{than} / {metric} is not a number at every setting", len(ours))
    best, worst = max(ratio, key=ratio.get), min(ratio, key=ratio.get)
    evidence = f"{than} / {metric} from {ratio[worst]:.2f} at {worst} to {ratio[best]:.2f} at {best}"
    outcome = "contradicted" if ratio[worst] < 1 - 1e-9 else "holds" if ratio[best] >= gain else "not seen"
    return Finding(outcome, evidence, len(ours))


RULES = (none_off, wins_when_large, smaller, falls_then_flat, near_the_roof, by_year, ratio_of_each, root_memory,
         never_slower)
