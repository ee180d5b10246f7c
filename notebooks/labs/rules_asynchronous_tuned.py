"""Rules about trainings with late gradients, whose rates are tuned. numpy only.

A seed is judged at the rate that is best on the other seeds (`labs.async_tables`), which has to lie inside the grid. A
grid without all the seeds that are asked for is not judged. A seed counts once; where it was run again, the rule judges
with each of its runs, and the worst outcome counts. `setup` is what the configurations of its runs share."""

import math

import numpy as np

from labkit.rules.finding import Finding, interval, needs
from labs.async_tables import Table, counted, judged_alone, settled, tables


def usable(table: Table, level: float) -> list | None:
    """Of each seed the largest rate whose accuracy is at least `level`; None where none is, or where the largest tried
    is (the true one may lie above)."""
    rates = []
    for row in table.values["validation_accuracy"]:
        good = np.flatnonzero(row >= level)
        if not len(good) or good[-1] == len(table.rates) - 1:
            return None
        rates.append(table.rates[good[-1]])
    return rates


def rate_falls_with_delay(runs, *, setup, momentum, delays, level, low, high, seeds) -> Finding:
    """The slope of log2 of the largest usable rate (validation accuracy of `level` or more) against log2 of the delay,
    of each seed: their 95 % interval lies in [low, high]; contradicted if it lies outside, above or below."""
    asked = needs(f"a largest usable rate inside those tried at each of delays {delays}, {seeds} seeds")
    select = {"evidence": "delayed", **setup, "momentum": momentum}
    cases = {delay: tables(runs, {**select, "delay": delay}, ("validation_accuracy",), seeds, 1.0)
             for delay in delays}
    if not all(cases.values()):
        return asked

    def judge(found) -> Finding:
        rates = {delay: usable(table, level) for delay, table in found.items()}
        common = sorted(set.intersection(*(set(table.seeds) for table in found.values())))
        if None in rates.values() or len(common) < seeds:
            return asked
        logs = np.log2([[rates[delay][table.seeds.index(seed)] for seed in common] for delay, table in found.items()])
        slope, least, most = interval(np.polyfit(np.log2(delays), logs, 1)[0])
        told = ", ".join(f"delay {delay}: {2**mean:.3g}" for delay, mean in zip(delays, logs.mean(1), strict=True))
        outcome = "holds" if low <= least and most <= high else "contradicted" if most < low or least > high else \
            "not seen"
        said = f"slope {slope:.2f} [{least:.2f}, {most:.2f}], allowed {low} to {high}; {told}"
        return Finding(outcome, said, len(common) * len(delays))

    return settled(cases, judge)


def flat_set(table: Table, images: int) -> list:
    """Rates whose mean validation accuracy is within one standard error (of `images` images) of the best."""
    means = table.values["validation_accuracy"].mean(0)
    top = means.max()
    return [rate for rate, mean in zip(table.rates, means, strict=True)
            if mean >= top - math.sqrt(top * (1 - top) / images)]


def dividing_rescues(runs, *, setup, delays, fails, near, images, seeds) -> Finding:
    """Without momentum, for every base rate in the flat set of delay 0 and at each of `delays`, in test accuracy
    against that rate without delay (95 % intervals of differences by seed): the rate kept is `fails` below or more, and
    the rate divided by the delay is at most `near` below.

    A base rate contradicts if one of the two is clearly wrong at one delay: it did not fail, or was not rescued."""
    select, metrics = {"evidence": "delayed", **setup, "momentum": 0.0}, ("validation_accuracy", "test_accuracy")
    cases = {delay: tables(runs, {**select, "delay": delay}, metrics, seeds, 1.0) for delay in (0, *delays)}
    if not all(cases.values()):
        return needs(f"trainings without momentum at delays 0 and {delays}, {seeds} seeds")

    def judge(found) -> Finding:
        flat, outcomes, told = flat_set(found[0], images), [], []
        common = sorted(set.intersection(*(set(table.seeds) for table in found.values())))
        wanted = {(delay, rate / by) for rate in flat for delay in delays for by in (1, delay)}
        if len(common) < seeds or any(rate not in found[delay].rates for delay, rate in wanted):
            return needs(f"each rate that is best without delay, kept and divided, at delays {delays}, {seeds} seeds")

        def tests(delay, rate):
            table = found[delay]
            rows = [table.seeds.index(seed) for seed in common]
            return table.values["test_accuracy"][rows, table.rates.index(rate)]

        for rate in flat:
            right, wrong, base = [], [], tests(0, rate)
            told.append(f"{rate:.3g} without delay {base.mean():.3f}")
            for delay in delays:
                kept, divided = tests(delay, rate), tests(delay, rate / delay)
                (_, lower, upper), (_, least, most) = interval(kept - base), interval(divided - base)
                right += [upper <= -fails, least >= -near]
                wrong += [lower > -fails, most < -near]
                told.append(f"at delay {delay} {kept.mean():.3f} kept, {divided.mean():.3f} divided")
            outcomes.append("holds" if all(right) else "contradicted" if any(wrong) else "not seen")
        share, kinds = outcomes.count("holds") / len(flat), set(outcomes)
        outcome = outcomes[0] if len(kinds) == 1 else "partly" if share else "not seen"
        return Finding(outcome, "; ".join(told), len(common) * (1 + len(delays)), share)

    return settled(cases, judge)


def momentum_pays_less(runs, *, setup, workers, low, high, seeds) -> Finding:
    """log(loss with momentum `high` / loss with momentum `low`), each at the rate that is best on the other seeds,
    rises from the first to the last number of `workers` (paired by seed: 95 % interval above 0); contradicted if it is
    below 0."""
    asked = needs(f"finite losses with momentum {low:g} and {high:g} at {workers} workers, {seeds} seeds, and the best "
                  "rates inside the grid")
    select = {"evidence": "implicit", **setup}
    cases = {(count, momentum): tables(runs, {**select, "workers": count, "momentum": momentum}, ("train_loss",), seeds)
             for count in workers for momentum in (low, high)}
    if not all(cases.values()):
        return asked

    def judge(found) -> Finding:
        losses = {case: judged_alone(table, "train_loss") for case, table in found.items()}
        if None in losses.values():
            return asked
        common = sorted(set.intersection(*map(set, losses.values())))
        if len(common) < seeds:
            return asked
        gains = {count: np.array([losses[count, high][seed][1] - losses[count, low][seed][1] for seed in common])
                 for count in workers}
        rise, least, most = interval(gains[workers[-1]] - gains[workers[0]])
        told = "; ".join(f"{counted(count, 'worker')}: loss x {math.exp(gain.mean()):.2f}"
                         for count, gain in gains.items())
        said = (f"momentum {high:g} against {low:g}: {told}; factor between the ends {math.exp(rise):.2f} "
                f"[{math.exp(least):.2f}, {math.exp(most):.2f}]")
        outcome = "holds" if least > 0 else "contradicted" if most < 0 else "not seen"
        return Finding(outcome, said, 2 * len(common) * len(workers))

    return settled(cases, judge)


def log_ratios(found: dict, count: int, times: str, barrier, seeds: int) -> dict | None:
    """log(asynchronous / best method with a barrier) by seed, rate and method chosen on the other seeds; or None."""
    late, *waits = (judged_alone(found[count, times, method], "seconds") for method in ("async", *barrier))
    if late is None or None in waits:
        return None
    common = sorted(set.intersection(*map(set, (late, *waits))))
    best = {seed: min((wait[seed] for wait in waits), key=lambda pair: pair[0])[1] for seed in common}
    ratios = {seed: late[seed][1] - best[seed] for seed in common}
    return ratios if len(common) >= seeds else None


def races(runs, setup: dict, workers, kinds, barrier, seeds: int) -> dict:
    return {(count, times, method): tables(runs, {"evidence": "tta", **setup, "workers": count, "times": times,
                                                  "method": method}, ("seconds",), seeds)
            for count in workers for times in kinds for method in ("async", *barrier)}


def no_variance_no_gain(runs, *, setup, workers, barrier, bound, seeds) -> Finding:
    """With constant compute times, asynchronous needs at least `bound` times the virtual seconds of the best barrier
    method (lower end of a 95 % interval over seeds), at each number of workers; rates and the method are chosen on the
    other seeds. Contradicted if the interval is below `bound` at one."""
    asked = needs(f"seconds to the target of all methods at {workers} workers, constant times, {seeds} seeds that all "
                  "reach it, and the best rates inside the grid")
    cases = races(runs, setup, workers, ["constant"], barrier, seeds)
    if not all(cases.values()):
        return asked

    def judge(found) -> Finding:
        told, ends = [], []
        for count in workers:
            ratio = log_ratios(found, count, "constant", barrier, seeds)
            if ratio is None:
                return asked
            mean, least, most = np.exp(interval(list(ratio.values())))
            ends.append((least, most))
            told.append(f"{count} workers: {mean:.2f} times [{least:.2f}, {most:.2f}]")
        against = min(most for _, most in ends) < bound
        outcome = "holds" if min(least for least, _ in ends) >= bound else "contradicted" if against else "not seen"
        return Finding(outcome, f"{'; '.join(told)}; bound {bound:g}", len(cases) * seeds)

    return settled(cases, judge)


def variance_gains(runs, *, setup, workers, times, barrier, seeds) -> Finding:
    """Asynchronous over best barrier method is smaller with `times` than with constant ones (paired by seed: 95 %
    interval of the ratio of ratios below 1), at each number of workers; contradicted if it is above 1 at one. Rates
    and the barrier method are chosen on the other seeds, for each kind of times."""
    asked = needs(f"seconds to the target of all methods at {workers} workers, {times} and constant times, {seeds} "
                  "seeds that all reach it, and the best rates inside the grid")
    cases = races(runs, setup, workers, [times, "constant"], barrier, seeds)
    if not all(cases.values()):
        return asked

    def judge(found) -> Finding:
        told, ends = [], []
        for count in workers:
            varied, still = (log_ratios(found, count, kind, barrier, seeds) for kind in (times, "constant"))
            if varied is None or still is None or set(varied) != set(still):
                return asked
            mean, least, most = np.exp(interval([varied[seed] - still[seed] for seed in varied]))
            ends.append((least, most))
            there, here = (math.exp(np.mean(list(ratios.values()))) for ratios in (varied, still))
            told.append(f"{count} workers: {there:.2f} times the barrier's seconds, {here:.2f} times with constant "
                        f"times, ratio {mean:.2f} [{least:.2f}, {most:.2f}]")
        against = max(least for least, _ in ends) > 1
        outcome = "holds" if max(most for _, most in ends) < 1 else "contradicted" if against else "not seen"
        return Finding(outcome, "; ".join(told), len(cases) * seeds)

    return settled(cases, judge)


RULES = (rate_falls_with_delay, dividing_rescues, momentum_pays_less, no_variance_no_gain, variance_gains)
