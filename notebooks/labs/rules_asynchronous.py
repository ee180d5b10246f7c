"""Rules about late gradients: functions of recorded numbers and of what the claim says. numpy only.

What they rest on (the edge of stability, the best of several rates, intervals over seeds) is here too, so that the hash
of a rule covers it. `setup` is what the configurations of its runs share. A rule answers `not attempted` unless every
case has the seeds that it asks for."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs

T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def edge(delay) -> float:
    """Largest stable rate x curvature of SGD with gradients `delay` updates old: 2 sin(pi / (2(2 delay + 1)))."""
    return 2 * np.sin(np.pi / (2 * (2 * np.asarray(delay) + 1)))


def half_width(values) -> float:
    """Half of the 95 % interval of a mean, by Student's t; infinite for a single value."""
    count = len(values)
    return math.inf if count < 2 else T95.get(count, 2.0) * float(np.std(values, ddof=1)) / math.sqrt(count)


def by_rate(runs, metric: str, select: dict) -> dict:
    """{rate: {seed: value}} of evidence that lists its `rates` in the configuration and a value for each."""
    found: dict = {}
    for run in chosen(runs, select):
        for rate, row in zip(run.config["rates"], run.series(metric), strict=False):
            found.setdefault(rate, {})[run.config["seed"]] = row.value
    return found


def tuned(found: dict, seeds: int) -> tuple | None:
    """(rate, values by seed) with the smallest geometric mean over the seeds; a rate at which one seed gave infinity is
    out, and so is one with fewer than `seeds` seeds. None if none is left."""
    means = {rate: float(np.mean(np.log(list(values.values())))) for rate, values in found.items()
             if len(values) >= seeds}
    rate = min(means, key=means.get, default=None)
    return None if rate is None or not math.isfinite(means[rate]) else (rate, found[rate])


def edges_equal_formula(runs, *, delays, tolerance) -> Finding:
    """Without momentum, edges found by running are 2 sin(pi / (2(2 delay + 1))), relative to `tolerance`."""
    found = {row.samples: row.value for run in chosen(runs, {"evidence": "edge", "momentum": 0.0})
             for row in run.series("edge")}
    if not set(delays) <= set(found):
        return needs(f"the edge at delays {delays}")
    worst = max(abs(found[delay] / edge(delay) - 1) for delay in delays)
    evidence = f"off by {worst:.1e} at most; " + ", ".join(f"delay {delay}: {found[delay]:.4f}" for delay in delays)
    return Finding("holds" if worst <= tolerance else "contradicted", evidence, len(delays))


def usable(found: dict, level: float, seeds: int) -> list | None:
    """Of each seed the largest rate whose accuracy is at least `level`; None where seeds are missing, where none is
    usable, or where the largest tried is (the true one may lie above)."""
    numbers = sorted(set.intersection(*(set(values) for values in found.values()))) if found else []
    rates = []
    for seed in numbers:
        good = [rate for rate in found if found[rate][seed] >= level]
        if not good or max(good) == max(found):
            return None
        rates.append(max(good))
    return rates if len(rates) >= seeds else None


def rate_falls_with_delay(runs, *, setup, momentum, delays, level, low, high, seeds) -> Finding:
    """Slope of log2 of the largest usable rate (validation accuracy of `level` or more, mean over seeds) against log2
    of the delay lies in [low, high]; contradicted above -0.5, which would be a square root."""
    means = []
    for delay in delays:
        select = {"evidence": "delayed", **setup, "momentum": momentum, "delay": delay}
        rates = usable(by_rate(runs, "validation_accuracy", select), level, seeds)
        if rates is None:
            return needs(f"a largest usable rate inside those tried at each of delays {delays}, {seeds} seeds")
        means.append(float(np.mean(np.log2(rates))))
    slope = float(np.polyfit(np.log2(delays), means, 1)[0])
    told = ", ".join(f"delay {delay}: {2**mean:.3g}" for delay, mean in zip(delays, means, strict=True))
    outcome = "holds" if low <= slope <= high else "contradicted" if slope > -0.5 else "not seen"
    return Finding(outcome, f"slope {slope:.2f}, allowed {low} to {high}; {told}", seeds * len(delays))


def flat_set(found: dict, images: int) -> list:
    """Rates whose mean accuracy is within one standard error (of `images` images) of the best."""
    means = {rate: float(np.mean(list(values.values()))) for rate, values in found.items()}
    top = max(means.values())
    return sorted(rate for rate, mean in means.items() if mean >= top - math.sqrt(top * (1 - top) / images))


def dividing_rescues(runs, *, setup, delays, margin, images, seeds) -> Finding:
    """At each of `delays`, rate / delay beats the rate itself by `margin` of test accuracy (lower end of a 95 %
    interval over seeds), for every base rate in the flat set of delay 0; without momentum."""
    def at(delay, metric):
        return by_rate(runs, metric, {"evidence": "delayed", **setup, "momentum": 0.0, "delay": delay})

    base = {rate: values for rate, values in at(0, "validation_accuracy").items() if len(values) >= seeds}
    tables = {delay: at(delay, "test_accuracy") for delay in delays}
    if not base:
        return needs(f"rates at delay 0, {seeds} seeds")
    flat, outcomes, told = flat_set(base, images), [], []
    for rate in flat:
        ends = []
        for delay, table in tables.items():
            kept, divided = table.get(rate, {}), table.get(rate / delay, {})
            both = sorted(set(kept) & set(divided))
            if len(both) < seeds:
                return needs(f"rates {rate:g} and {rate / delay:g} at delay {delay}, {seeds} seeds")
            gaps = [divided[seed] - kept[seed] for seed in both]
            half = half_width(gaps)
            ends.append((np.mean(gaps) - half, np.mean(gaps) + half))
            told.append(f"{rate:g} at delay {delay}: {np.mean(list(kept.values())):.3f} kept, "
                        f"{np.mean(list(divided.values())):.3f} divided")
        outcomes.append("holds" if min(low for low, _ in ends) >= margin else
                        "contradicted" if max(high for _, high in ends) < margin else "not seen")
    share = outcomes.count("holds") / len(flat)
    outcome = outcomes[0] if len(set(outcomes)) == 1 else "partly" if share else "not seen"
    return Finding(outcome, "; ".join(told), seeds * len(delays) * len(flat), share)


def momentum_pays_less(runs, *, setup, workers, low, high, seeds) -> Finding:
    """log(loss with momentum `high` / loss with momentum `low`), each at its own best rate, rises from the first to the
    last number of `workers` (paired by seed: 95 % interval above 0); contradicted if the interval is below 0."""
    gains, best = {}, {}
    for count in workers:
        losses = {}
        for momentum in sorted({run.config["momentum"] for run in chosen(runs, {"evidence": "implicit", **setup})}):
            select = {"evidence": "implicit", **setup, "workers": count, "momentum": momentum}
            found = tuned(by_rate(runs, "train_loss", select), seeds)
            if found is not None:
                losses[momentum] = found[1]
        if not {low, high} <= set(losses):
            return needs(f"losses at {count} workers with momentum {low:g} and {high:g}, {seeds} seeds")
        both = sorted(set(losses[low]) & set(losses[high]))
        gains[count] = np.array([math.log(losses[high][seed] / losses[low][seed]) for seed in both])
        best[count] = min(losses, key=lambda momentum: np.mean(np.log(list(losses[momentum].values()))))
    rise = gains[workers[-1]] - gains[workers[0]]
    mean, half = float(np.mean(rise)), half_width(rise)
    told = "; ".join(f"{count} workers: loss x {math.exp(np.mean(gains[count])):.2f}, best of the momenta tried "
                     f"{best[count]:g}" for count in workers)
    outcome = "holds" if mean - half > 0 else "contradicted" if mean + half < 0 else "not seen"
    return Finding(outcome, f"momentum {high:g} against {low:g}: {told}", len(rise) * len(workers))


def seconds(runs, setup: dict, workers: int, times: str, methods, seeds: int) -> dict | None:
    """Virtual seconds to the target by seed, of the best of `methods` at its best rate; None if one is missing."""
    best = []
    for method in methods:
        select = {"evidence": "tta", **setup, "workers": workers, "times": times, "method": method}
        found = tuned(by_rate(runs, "seconds", select), seeds)
        if found is None:
            return None
        best.append(found[1])
    return min(best, key=lambda values: np.mean(np.log(list(values.values()))))


def log_ratios(runs, setup: dict, workers: int, times: str, barrier, seeds: int):
    """log(asynchronous / best barrier method) by seed, or None."""
    late, waits = (seconds(runs, setup, workers, times, methods, seeds) for methods in (["async"], barrier))
    if late is None or waits is None:
        return None
    return np.array([math.log(late[seed] / waits[seed]) for seed in sorted(set(late) & set(waits))])


def no_variance_no_gain(runs, *, setup, workers, barrier, bound, seeds) -> Finding:
    """With constant compute times, asynchronous needs at least `bound` times the virtual seconds of the best barrier
    method (lower end of a 95 % interval over seeds, rates retuned for each), at each number of workers."""
    told, ends = [], []
    for count in workers:
        ratio = log_ratios(runs, setup, count, "constant", barrier, seeds)
        if ratio is None:
            return needs(f"seconds to the target at {count} workers, constant times, {seeds} seeds")
        mean, half = float(np.mean(ratio)), half_width(ratio)
        ends.append((math.exp(mean - half), math.exp(mean + half)))
        told.append(f"{count} workers: {math.exp(mean):.2f} times, {ends[-1][0]:.2f} to {ends[-1][1]:.2f}")
    against = min(high for _, high in ends) < bound
    outcome = "holds" if min(low for low, _ in ends) >= bound else "contradicted" if against else "not seen"
    return Finding(outcome, "; ".join(told), seeds * len(workers))


def variance_gains(runs, *, setup, workers, times, barrier, seeds) -> Finding:
    """Asynchronous over best barrier method is smaller with `times` than with constant ones (paired by seed: 95 %
    interval of the ratio of ratios below 1), at each number of workers; contradicted if it is above 1 at one."""
    told, ends = [], []
    for count in workers:
        both = [log_ratios(runs, setup, count, kind, barrier, seeds) for kind in (times, "constant")]
        if both[0] is None or both[1] is None:
            return needs(f"seconds to the target at {count} workers, {times} and constant times, {seeds} seeds")
        gain = both[0] - both[1]
        mean, half = float(np.mean(gain)), half_width(gain)
        ends.append((mean - half, mean + half))
        told.append(f"{count} workers: {math.exp(np.mean(both[0])):.2f} times the barrier's seconds, "
                    f"{math.exp(np.mean(both[1])):.2f} times with constant times")
    against = max(low for low, _ in ends) > 0
    outcome = "holds" if max(high for _, high in ends) < 0 else "contradicted" if against else "not seen"
    return Finding(outcome, "; ".join(told), seeds * len(workers))


def sparse_loses_less(runs, *, repeats) -> Finding:
    """In each repetition a smaller share of updates is lost on sparse supports than on dense ones; contradicted if a
    larger one is in each."""
    pairs = []
    for run in chosen(runs, {"evidence": "lost"}):
        pairs += zip((row.value for row in run.series("dense_lost")), (row.value for row in run.series("sparse_lost")),
                     strict=True)
    if len(pairs) < repeats:
        return needs(f"{repeats} repetitions of the race")
    dense, sparse = np.array(pairs).T
    evidence = f"lost on average {dense.mean():.2%} of the dense and {sparse.mean():.2%} of the sparse updates"
    outcome = "holds" if (sparse < dense).all() else "contradicted" if (sparse > dense).all() else "not seen"
    return Finding(outcome, evidence, len(pairs))


def server_saturates(runs, *, shards, near) -> Finding:
    """Updates a second never exceed shards x bandwidth / message, and reach `near` of it with the most workers; so S
    shards lift the limit S-fold."""
    found = {}
    for run in chosen(runs, {"evidence": "server"}):
        found[run.config["shards"]] = [row.value for row in run.series("share_of_limit")]
    if not set(shards) <= set(found):
        return needs(f"throughput with {shards} shards")
    most = max(max(found[count]) for count in shards)
    last = min(found[count][-1] for count in shards)
    evidence = f"at most {most:.4f} of shards x bandwidth / message; {last:.3f} or more with the most workers"
    return Finding("holds" if most <= 1 + 1e-9 and last >= near else "contradicted", evidence, len(shards))


RULES = (edges_equal_formula, rate_falls_with_delay, dividing_rescues, momentum_pays_less, no_variance_no_gain,
         variance_gains, sparse_loses_less, server_saturates)
