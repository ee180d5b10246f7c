"""Rules about saying less: functions of recorded numbers and of what the claim says. numpy and scipy only.

Of trainings, a rate is chosen by the mean validation accuracy over seeds, and what is compared is the test accuracy at
it. Each seed of a case counts once; where it was run more than once, every run is judged: what is to be shown has to
hold with the least favourable of them. A case without all the seeds that are asked for, or whose best rate lies at an
end of its grid, is not judged. NaN never passes a bound."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from labkit.rules.finding import Finding, chosen, interval, needs
from labs.rules_talking_counts import by_key, values


def tuned(runs, select: dict, seeds: int) -> tuple | None:
    """(rates, best rate, {seed: test accuracies of its runs at it}) of one case; None where seeds or numbers are
    missing or not finite, grids differ, or the best rate lies at an end."""
    found = by_key(chosen(runs, select), "seed")
    every = [run for group in found.values() for run in group]
    grids = {tuple(run.config["rates"]) for run in every}
    if len(found) < seeds or len(grids) != 1 or len(rates := grids.pop()) < 3:
        return None
    tables = {name: [[row.value for row in run.series(name)] for run in every] for name in ("validation", "test")}
    if any(len(row) != len(rates) or not np.isfinite(row).all() for rows in tables.values() for row in rows):
        return None
    means = [np.mean([[row.value for row in run.series("validation")] for run in group], 0) for group in found.values()]
    best = int(np.mean(means, 0).argmax())
    if best in (0, len(rates) - 1):
        return None
    return rates, rates[best], {seed: [run.series("test")[best].value for run in group]
                                for seed, group in found.items()}


def compared(first: Sequence[dict], second: Sequence[dict], seeds: int) -> tuple[str, str, int] | None:
    """(outcome, words, seeds) of "the mean over cases of first minus second, in points, lies above 0" in the interval
    over the seeds that all have; holds with the lowest of first and the highest of second where a seed was run more
    than once, contradicted the other way round. None: fewer than `seeds` seeds."""
    common = sorted(set.intersection(*(set(arm) for arm in (*first, *second))))
    if len(common) < seeds:
        return None
    found = []
    for here, there in ((min, max), (max, min)):
        gaps = [100 * (np.mean([here(arm[seed]) for arm in first]) - np.mean([there(arm[seed]) for arm in second]))
                for seed in common]
        found.append(interval(gaps))
    outcome = "holds" if found[0][1] > 0 else "contradicted" if found[1][2] < 0 else "not seen"
    mean, low, high = found[0]
    return outcome, f"{mean:.2f} points [{low:.2f}, {high:.2f}]", len(common)


def feedback_helps(runs, *, select, seeds) -> Finding:
    """Test accuracy of 1-bit with feedback minus without, both tuned on one grid, by seed: the interval is above 0."""
    arms = [tuned(runs, {"evidence": "compressed", "method": label, **select}, seeds)
            for label in ("1-bit", "1-bit, no feedback")]
    if None in arms or arms[0][0] != arms[1][0]:
        return needs(f"1-bit with and without feedback, {seeds} seeds each on one grid with the best rate inside")
    if (found := compared([arms[0][2]], [arms[1][2]], seeds)) is None:
        return needs(f"{seeds} seeds that both have")
    outcome, told, count = found
    return Finding(outcome, f"with minus without feedback {told}, rates {arms[0][1]:g} and {arms[1][1]:g}", 2 * count)


def supports_overlap(runs, *, select, ranks, ratio, seeds) -> Finding:
    """Union of the top-k places of real gradients over that of independent places: at most `ratio` in every run of
    `seeds` seeds and for each number of `ranks`; contradicted if one is 1 or more, or NaN."""
    found = by_key(chosen(runs, {"evidence": "supports", **select}), "seed")
    tables = [values([run], "ratio") for group in found.values() for run in group]
    if len(found) < seeds or any(not set(ranks) <= {size for size, _ in table} for table in tables):
        return needs(f"{seeds} seeds of real gradients of {ranks} workers")
    ratios = [value for table in tables for _, value in table]
    good, none = all(value <= ratio for value in ratios), any(not value < 1 for value in ratios)
    outcome = "holds" if good else "contradicted" if none else "not seen"
    return Finding(outcome, f"{min(ratios):.2f} to {max(ratios):.2f} of the independent union", len(tables))


def period_costs(runs, *, select, periods, seeds, error, correlation) -> Finding:
    """Averaging: bytes times the period are the same in every run (relative `error`); test accuracy, tuned, falls: its
    rank correlation with the period is `correlation` or less, and the shortest period's is above the longest's in the
    interval over seeds. Contradicted if that interval lies below 0, or bytes do not fall so."""
    select = {"evidence": "periods", "way": "averaging", **select}
    arms = {tau: tuned(runs, {**select, "tau": tau}, seeds) for tau in periods}
    if missing := [tau for tau, arm in arms.items() if arm is None]:
        return needs(f"averaging with periods {missing}, {seeds} seeds each with the best rate inside one grid")
    sent = [(tau, value) for tau in periods for _, value in values(chosen(runs, {**select, "tau": tau}), "sent")]
    found = compared([arms[periods[0]][2]], [arms[periods[-1]][2]], seeds)
    if {tau for tau, _ in sent} != set(periods) or found is None:
        return needs("bytes of every period, and seeds that all have")
    off = max((abs(tau * value / (sent[0][0] * sent[0][1]) - 1) for tau, value in sent),
              key=lambda value: math.inf if math.isnan(value) else value)
    scores = [float(np.mean([np.mean(tests) for tests in arms[tau][2].values()])) for tau in periods]
    order = float(stats.spearmanr(periods, scores).statistic)
    outcome, told, _ = found
    if outcome == "holds" and not order <= correlation:
        outcome = "not seen"
    if not off <= error:
        outcome = "contradicted"
    evidence = (f"bytes times tau differ by {off:.1g}; period {periods[0]} minus {periods[-1]}: {told}, rank "
                f"correlation {order:.2f}")
    return Finding(outcome, evidence, sum(len(tests) for arm in arms.values() for tests in arm[2].values()))


def elastic_tolerates(runs, *, select, periods, seeds) -> Finding:
    """Test accuracy of the elastic centre minus that of averaging, both tuned on one grid, mean over long `periods`, by
    seed: the interval is above 0."""
    arms = {(way, tau): tuned(runs, {"evidence": "periods", "way": way, "tau": tau, **select}, seeds)
            for way in ("elastic", "averaging") for tau in periods}
    if missing := [case for case, arm in arms.items() if arm is None]:
        return needs(f"{missing}, {seeds} seeds each with the best rate inside the grid")
    if len({arm[0] for arm in arms.values()}) != 1:
        return needs("one grid of rates for both")
    first, second = ([arms[way, tau][2] for tau in periods] for way in ("elastic", "averaging"))
    if (found := compared(first, second, seeds)) is None:
        return needs(f"{seeds} seeds that all have")
    outcome, told, count = found
    worse = "; the elastic centre was worse here" if outcome == "contradicted" else ""
    return Finding(outcome, f"elastic minus averaging at periods {periods}: {told}{worse}", count * len(arms))


def survives_a_liar(runs, *, lies, broken, near, seeds) -> Finding:
    """With one liar the mean's loss is at least `broken` times that of the honest mean of its seed, for each of `lies`,
    and Krum's and the median's at most `near` times, in every run of `seeds` seeds. Contradicted if somewhere the mean
    stays within `near`, or Krum or the median reaches `broken` or NaN. A mean that diverged is broken."""
    table = {}
    for run in chosen(runs, {"evidence": "liar"}):
        key = (run.config["rule"], run.config["lie"], run.config["seed"])
        table.setdefault(key, []).extend(value for _, value in values([run], "loss"))
    numbers = sorted({seed for *_, seed in table})
    cases = [(rule, lie, seed) for rule in ("mean", "median", "krum") for lie in lies for seed in numbers]
    honest = [("mean", "honest", seed) for seed in numbers]
    if len(numbers) < seeds or any(not table.get(case) for case in (*cases, *honest)):
        return needs(f"all rules and lies for {seeds} seeds")
    over = [(rule, loss / base) for rule, lie, seed in cases for loss in table[rule, lie, seed]
            for base in table["mean", "honest", seed]]
    if any(not math.isfinite(base) for case in honest for base in table[case]):
        return Finding("contradicted", "the mean of honest ranks has no finite loss", len(over))
    mean, robust = ([ratio for rule, ratio in over if (rule == "mean") == here] for here in (True, False))
    good = all(not ratio < broken for ratio in mean) and all(ratio <= near for ratio in robust)
    wrong = any(ratio <= near for ratio in mean) or any(not ratio < broken for ratio in robust)
    outcome = "holds" if good else "contradicted" if wrong else "not seen"
    return Finding(outcome, f"loss over that of honest ranks: mean {min(mean):.3g} or more, Krum and median at most "
                   f"{max(robust, key=lambda ratio: math.inf if math.isnan(ratio) else ratio):.3g}", len(over))


def links_as_predicted(runs, *, points, ways, level) -> Finding:
    """At each of `points` (bytes a second, slow and fast), in every run: of each two of `ways` that the model sets
    apart by more than `level`, the one that it says is faster was measured to be; and 1-bit is ahead of dense at the
    slow point and behind at the fast one. Contradicted where dense and 1-bit were measured the other way round, or a
    number is not finite."""
    found = chosen(runs, {"evidence": "throttled"})
    tables = [(point, run) for point in points for run in chosen(found, {"bandwidth": point})]
    if missing := set(points) - {point for point, _ in tables}:
        return needs(f"real ranks at {sorted(missing)} bytes a second")
    told, pairs, off, wrong, worst = [], 0, 0, False, 1.0
    for point, run in tables:
        names = run.config["ways"]
        says, took = ([value for _, value in values([run], name)] for name in ("predicted", "measured"))
        if not set(ways) <= set(names) or len(says) != len(names) or len(took) != len(names):
            return needs(f"predicted and measured seconds of {', '.join(ways)}")
        says, took = dict(zip(names, says, strict=True)), dict(zip(names, took, strict=True))
        if not all(0 < value < math.inf for part in (says, took) for value in part.values()):
            return Finding("contradicted", f"a time at {point:.3g} B/s is no positive number", len(tables))
        for one, other in itertools.permutations(ways, 2):
            if says[other] > (1 + level) * says[one]:
                pairs, off = pairs + 1, off + (not took[one] < took[other])
        ahead, behind = ("1-bit", "dense") if point == min(points) else ("dense", "1-bit")
        wrong |= not took[ahead] < took[behind]
        off += not says[ahead] < says[behind]
        worst = max(worst, *(max(took[way] / says[way], says[way] / took[way]) for way in ways))
        told.append(f"{point / 1e6:g} MB/s: 1-bit against dense predicted {1e3 * says['1-bit']:.3g} to "
                    f"{1e3 * says['dense']:.3g} ms, measured {1e3 * took['1-bit']:.3g} to {1e3 * took['dense']:.3g}")
    outcome = "contradicted" if wrong else "not seen" if off else "holds"
    return Finding(outcome, f"{'; '.join(dict.fromkeys(told))}; {pairs} orders predicted, {off} missed, times off by "
                   f"up to {worst:.2f} x", len(tables))


RULES = (feedback_helps, supports_overlap, period_costs, elastic_tolerates, survives_a_liar,
         links_as_predicted)
