"""Rules about saying less: functions of recorded numbers and of what the claim says. numpy only.

Of trainings, a rate is chosen by the mean validation accuracy over seeds, and what is compared is the test accuracy at
it. Each seed of a case counts once; a case without all the seeds that are asked for, or whose best rate lies at an end
of its grid, is not judged. Every matching run is judged, and NaN never passes a bound."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs
from labs.rules_talking_counts import values

T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def tuned(runs, select: dict, seeds: int) -> tuple | None:
    """(rates, best rate, {seed: test accuracy at it}) of one case; None where seeds are missing, grids differ, or the
    best rate lies at an end."""
    found = {run.config["seed"]: run for run in chosen(runs, select)}
    grids = {tuple(run.config["rates"]) for run in found.values()}
    if len(found) < seeds or len(grids) != 1:
        return None
    rates = grids.pop()
    scores = np.array([[row.value for row in run.series("validation")] for run in found.values()])
    if scores.shape != (len(found), len(rates)) or not np.isfinite(scores).all():
        return None
    best = int(scores.mean(0).argmax())
    if len(rates) < 3 or best in (0, len(rates) - 1):
        return None
    return rates, rates[best], {seed: run.series("test")[best].value for seed, run in found.items()}


def interval(differences) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % interval of a mean by Student's t; infinite for a single value."""
    mean, count = float(np.mean(differences)), len(differences)
    half = math.inf if count < 2 else T95.get(count, 2.0) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return mean, mean - half, mean + half


def outcome_of(low: float, high: float) -> str:
    return "holds" if low > 0 else "contradicted" if high < 0 else "not seen"


def feedback_helps(runs, *, select, seeds) -> Finding:
    """Test accuracy of 1-bit with feedback minus without, both tuned on one grid, by seed: the interval is above 0."""
    arms = [tuned(runs, {"evidence": "compressed", "method": label, **select}, seeds)
            for label in ("1-bit", "1-bit, no feedback")]
    if None in arms or arms[0][0] != arms[1][0]:
        return needs(f"1-bit with and without feedback, {seeds} seeds each on one grid with the best rate inside")
    common = sorted(set(arms[0][2]) & set(arms[1][2]))
    if len(common) < seeds:
        return needs(f"{seeds} seeds that both have")
    mean, low, high = interval([100 * (arms[0][2][seed] - arms[1][2][seed]) for seed in common])
    return Finding(outcome_of(low, high), f"with minus without feedback {mean:.2f} points [{low:.2f}, {high:.2f}], "
                   f"rates {arms[0][1]:g} and {arms[1][1]:g}", 2 * len(common))


def supports_overlap(runs, *, select, ratio, seeds) -> Finding:
    """Union of the top-k places of real gradients over that of independent places: at most `ratio` in every seed and
    for every number of ranks; contradicted if it is 1 or more everywhere."""
    found = {run.config["seed"]: run for run in chosen(runs, {"evidence": "supports", **select})}
    ratios = [value for _, value in values(found.values(), "ratio")]
    if len(found) < seeds or not ratios:
        return needs(f"{seeds} seeds of real gradients")
    good = all(value <= ratio for value in ratios)
    outcome = "holds" if good else "contradicted" if min(ratios) >= 1 else "not seen"
    return Finding(outcome, f"{min(ratios):.2f} to {max(ratios):.2f} of the independent union", len(found))


def period_costs(runs, *, select, periods, seeds, slope) -> Finding:
    """Averaging: log2 of bytes against log2 of the period has slope -1 within `slope`; test accuracy, tuned, falls: its
    rank correlation with the period is -0.7 or less, and the shortest period's is above the longest's in the interval
    over seeds. Contradicted if the interval lies below 0, or bytes do not fall so."""
    select = {"evidence": "periods", "way": "averaging", **select}
    arms = {tau: tuned(runs, {**select, "tau": tau}, seeds) for tau in periods}
    if missing := [tau for tau, arm in arms.items() if arm is None]:
        return needs(f"averaging with periods {missing}, {seeds} seeds each with the best rate inside one grid")
    sent = [np.mean([value for _, value in values(chosen(runs, {**select, "tau": tau}), "sent")]) for tau in periods]
    fall = float(np.polyfit(np.log2(periods), np.log2(sent), 1)[0])
    scores = [float(np.mean(list(arms[tau][2].values()))) for tau in periods]
    ranks = [np.argsort(np.argsort(part)) for part in (periods, scores)]
    correlation = float(np.corrcoef(*ranks)[0, 1])
    first, last = arms[periods[0]][2], arms[periods[-1]][2]
    mean, low, high = interval([100 * (first[seed] - last[seed]) for seed in sorted(set(first) & set(last))])
    outcome = outcome_of(low, high) if correlation <= -0.7 or high < 0 else "not seen"
    if not abs(fall + 1) <= slope:
        outcome = "contradicted"
    evidence = (f"bytes: slope {fall:.2f}; period {periods[0]} minus {periods[-1]}: {mean:.2f} points "
                f"[{low:.2f}, {high:.2f}], rank correlation {correlation:.2f}")
    return Finding(outcome, evidence, sum(len(arm[2]) for arm in arms.values()))


def elastic_tolerates(runs, *, select, periods, seeds) -> Finding:
    """Test accuracy of the elastic centre minus that of averaging, both tuned on one grid, mean over long `periods`, by
    seed: the interval is above 0."""
    arms = {(way, tau): tuned(runs, {"evidence": "periods", "way": way, "tau": tau, **select}, seeds)
            for way in ("elastic", "averaging") for tau in periods}
    if missing := [case for case, arm in arms.items() if arm is None]:
        return needs(f"{missing}, {seeds} seeds each with the best rate inside the grid")
    if len({arm[0] for arm in arms.values()}) != 1:
        return needs("one grid of rates for both")
    common = sorted(set.intersection(*(set(arm[2]) for arm in arms.values())))
    if len(common) < seeds:
        return needs(f"{seeds} seeds that all have")
    gaps = [np.mean([100 * (arms["elastic", tau][2][seed] - arms["averaging", tau][2][seed]) for tau in periods])
            for seed in common]
    mean, low, high = interval(gaps)
    return Finding(outcome_of(low, high), f"elastic minus averaging at periods {periods}: {mean:.2f} points "
                   f"[{low:.2f}, {high:.2f}]", len(common) * len(arms))


def survives_a_liar(runs, *, lies, broken, near, seeds) -> Finding:
    """With one liar the mean's loss is at least `broken` times that of the honest mean, for each of `lies`, and Krum's
    and the median's at most `near` times, in each of `seeds` seeds."""
    found = chosen(runs, {"evidence": "liar"})
    table = {(run.config["rule"], run.config["lie"], run.config["seed"]): values([run], "loss")[-1][1]
             for run in found if values([run], "loss")}
    numbers = sorted({seed for *_, seed in table})
    cases = [(rule, lie, seed) for rule in ("mean", "median", "krum") for lie in lies for seed in numbers]
    honest = {seed: table.get(("mean", "honest", seed)) for seed in numbers}
    if len(numbers) < seeds or None in honest.values() or any(case not in table for case in cases):
        return needs(f"all rules and lies for {seeds} seeds")
    over = {case: table[case] / honest[case[2]] for case in cases}
    mean = [over[case] for case in cases if case[0] == "mean"]
    robust = [over[case] for case in cases if case[0] != "mean"]
    stands, falls = all(value <= near for value in robust), all(value >= broken or value != value for value in mean)
    broken_all = not any(value <= near for value in robust)
    outcome = "holds" if stands and falls else "contradicted" if broken_all else "partly"
    return Finding(outcome, f"loss over that of honest ranks: mean {min(mean):.3g} or more, Krum and median at most "
                   f"{max(robust):.3g}", len(table))


def links_as_predicted(runs, *, points, level) -> Finding:
    """At each of `points` (bytes a second): where the model says that dense and a compressor differ by more than
    `level`, measured seconds are in the same order; and what it calls fastest takes at most `level` more than the
    fastest. By the model, 1-bit is ahead of dense at one point and behind at another, by more than `level`."""
    found = chosen(runs, {"evidence": "throttled"})
    tables = {point: chosen(found, {"bandwidth": point}) for point in points}
    if missing := [point for point in points if not tables[point]]:
        return needs(f"real ranks at {missing} bytes a second")
    told, wrong, signs = [], [], set()
    for point, group in tables.items():
        for run in group:
            ways = run.config["ways"]
            says, took = ([value for _, value in values([run], name)] for name in ("predicted", "measured"))
            if len(says) != len(ways) or len(took) != len(ways):
                return needs("predicted and measured seconds of every way")
            says, took = dict(zip(ways, says, strict=True)), dict(zip(ways, took, strict=True))
            fastest = min(says, key=says.get)
            good = took[fastest] <= (1 + level) * min(took.values())
            for way in ("1-bit", "top-k 1 %"):
                ratio = says[way] / says["dense"]
                if max(ratio, 1 / ratio) > 1 + level:
                    good &= (took[way] > took["dense"]) == (ratio > 1)
                    signs |= {ratio > 1} if way == "1-bit" else set()
            wrong += [point] * (not good)
            told.append(f"{point:.3g} B/s: {fastest} predicted, {min(took, key=took.get)} measured")
    count = sum(map(len, tables.values()))
    if len(signs) < 2:
        return needs("one point at which dense is ahead of 1-bit and one at which it is behind")
    outcome = "contradicted" if len(wrong) == count else "not seen" if wrong else "holds"
    return Finding(outcome, "; ".join(dict.fromkeys(told)), count)


RULES = (feedback_helps, supports_overlap, period_costs, elastic_tolerates, survives_a_liar,
         links_as_predicted)
