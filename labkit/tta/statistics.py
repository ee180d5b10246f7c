"""Statistics of time-to-accuracy (TTA): how often, how fast, how repeatable, and what a benchmark's rule adds.

A time is in seconds (steps work as well); a run that never reached the target is `math.inf`. All functions raise
`RequestError`, in one line, for empty, NaN or negative times and for the cases that their docstrings name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import integrate, stats

from labkit.errors import RequestError


@dataclass(frozen=True)
class Interval:
    """An estimate, its two-sided confidence limits, and the number of runs that it rests on."""
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class TestResult:
    """A one-sided t-test of a mean against a target; `passes` is p_value < alpha."""
    p_value: float
    mean: float
    n: int
    sd: float
    passes: bool


@dataclass(frozen=True)
class Scaling:
    """A speed-up in TTA and its factors: tta_speedup = throughput_speedup / epochs_ratio."""
    tta_speedup: float
    throughput_speedup: float
    epochs_ratio: float
    efficiency: float


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RequestError(message)


def _numbers(values, name: str) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise RequestError(f"{name} must be a flat list of numbers; convert or drop the other entries") from None
    _require(array.ndim == 1 and array.size > 0, f"{name} must be a flat, non-empty list; got shape {array.shape}")
    _require(not np.isnan(array).any(), f"{name} holds NaN; write a miss as math.inf, or leave the entry out")
    return array


def _times(times, name: str = "times") -> np.ndarray:
    array = _numbers(times, name)
    _require(array.min() >= 0, f"{name} holds {array.min():g}; it must be 0 or more: check the clock's start and stop")
    return array


def _tail(confidence: float) -> float:
    _require(0 < confidence < 1, f"confidence is {confidence!r}; it must lie between 0 and 1, for example 0.95")
    return (1 - confidence) / 2


def reach_rate(times, confidence: float = 0.95) -> Interval:
    """Fraction p = k/n of runs that reached, with Wilson's (1927) score interval:
    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
    Not for runs that are not independent, nor for entries somebody picked: a chosen run tells nothing about p."""
    array, z = _times(times), stats.norm.isf(_tail(confidence))
    n, k = array.size, int(np.isfinite(array).sum())
    p, scale = k / n, 1 + z * z / n
    centre, half = (p + z * z / (2 * n)) / scale, z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    # The limits are exactly 0 and 1 at the ends; the sum alone would leave float noise there.
    return Interval(p, 0.0 if k == 0 else float(centre - half), 1.0 if k == n else float(centre + half), n)


def coefficient_of_variation(times, confidence: float = 0.95) -> Interval:
    """K = sd / mean (divisor n-1) of the runs that reached (`n` counts those); Vangel's (1996) modified McKay interval:
    K / sqrt(((u+2)/n - 1) K^2 + u/(n-1)), u a chi-square point on n-1 degrees of freedom; no real root: limit inf.
    Assumes nearly normal times and K below about 1/3. Not without the reach rate beside it, and not with rare
    evaluations: K = 0 then says only that all runs passed at the same one. Refuses fewer than 2 reached runs."""
    array, tail = _times(times), _tail(confidence)
    reached = array[np.isfinite(array)]
    n = reached.size
    _require(n >= 2, f"a coefficient of variation needs 2 runs that reached the target; got {n} of {array.size}")
    _require(reached.any(), "all times are 0, so sd / mean is undefined; check the clock's start and stop")
    # Equal times have sd 0; their computed mean may be off by a rounding, and sd with it.
    k = float(reached.std(ddof=1) / reached.mean()) if np.ptp(reached) else 0.0
    squares = [((u + 2) / n - 1) * k * k + u / (n - 1) for u in stats.chi2.isf([tail, 1 - tail], n - 1)]
    return Interval(k, *(k / math.sqrt(square) if square > 0 else math.inf for square in squares), n)


def median(times, confidence: float = 0.95, seed: int | np.random.Generator = 0, resamples: int = 4000) -> Interval:
    """Median, misses counted as infinity, and a percentile bootstrap over whole runs (Efron 1979). Not for few runs:
    the interval stays in their range, so it covers at most 1 - 2^(1-n) (.94 at n = 5). One run alone gets (0, inf)."""
    array, tail = _times(times), _tail(confidence)
    n, value = array.size, float(np.median(array))
    if n == 1:
        return Interval(value, 0.0, math.inf, n)
    medians = np.median(array[np.random.default_rng(seed).integers(0, n, size=(resamples, n))], axis=1)
    # inverted_cdf picks one of the medians; interpolating between two infinities would give NaN.
    low, high = np.quantile(medians, [tail, 1 - tail], method="inverted_cdf")
    return Interval(value, float(low), float(high), n)


def expected_time(times, budget=None) -> float:
    """Expected seconds to the first success if failures are retried: mean success + (1-p)/p x mean cost of a failure,
    since the failures before a success are geometric. `budget`: that cost, one number or one per run.
    If every run costs a fixed schedule T, success or not, this is T/p. inf if none reached. Not when a retry repeats
    the failure (same seed). Refuses misses without a finite `budget`."""
    array = _times(times)
    missed = np.isinf(array)
    if missed.all() or not missed.any():
        return float(array.mean())
    _require(budget is not None, f"{missed.sum()} of {array.size} runs missed; give budget, the seconds each cost")
    spent = _times(np.full(array.size, budget) if np.ndim(budget) == 0 else budget, "budget")
    _require(spent.size == array.size and bool(np.isfinite(spent[missed]).all()),
             f"budget must be one finite number, or one for each of the {array.size} runs; got {spent.size}")
    return float(array[~missed].mean() + missed.sum() / (~missed).sum() * spent[missed].mean())


def mean_meets_target(values, target: float, higher_is_better: bool = True, alpha: float = 0.01) -> TestResult:
    """One-sided t-test that the MEAN metric of repeated runs beats a target (the speed-run rule: p < 0.01):
    t = (mean - target) / (sd / sqrt(n)), n-1 degrees of freedom, sign turned for a loss.
    Not about single runs: near the target half of them miss. Not with runs added until p is small: fix n before.
    Refuses fewer than 2 values, infinite ones, and values that do not vary (no error estimate)."""
    array = _numbers(values, "values")
    n, sign = array.size, 1 if higher_is_better else -1
    _require(bool(np.isfinite([*array, target]).all()) and n > 1 and np.ptp(array) > 0,
             f"a t-test needs a finite target and 2 or more finite values that differ; got {n} value(s)")
    sd, mean = float(array.std(ddof=1)), float(array.mean())
    p_value = float(stats.t.sf(sign * (mean - target) / (sd / math.sqrt(n)), n - 1))
    return TestResult(p_value, mean, n, sd, p_value < alpha)


def best_of_n_bias(sd: float, n: int) -> float:
    """How far the best of `n` runs lies from their mean: sd x E[max of n standard normals], by quadrature of
    E[max] = integral over x > 0 of 1 - F(x)^n - F(-x)^n, F the normal distribution function.
    Not for skewed or quantised times: use `expected_best_of` on the runs themselves."""
    _require(n >= 1 and 0 <= sd < math.inf, f"need n >= 1 runs and a finite sd >= 0; got n = {n}, sd = {sd}")
    cdf = stats.norm.cdf
    return float(sd * integrate.quad(lambda x: 1 - cdf(x) ** n - cdf(-x) ** n, 0, 40, points=[1, 2, 4, 8])[0])


def expected_best_of(times, n: int) -> float:
    """Expected fastest of `n` of the N runs, drawn without replacement: the i-th smallest is the minimum of C(N-i, n-1)
    of the C(N, n) draws. inf if a draw may hold misses only. Not a forecast: it never beats the fastest run seen."""
    total = len(array := np.sort(_times(times)).tolist())
    _require(1 <= n <= total, f"n is {n}; draw from 1 to {total} of the {total} runs")
    ways = [math.comb(total - 1 - i, n - 1) / math.comb(total, n) for i in range(total - n + 1)]
    return math.inf if array[total - n] == math.inf else math.fsum(t * way for t, way in zip(array, ways))


def evaluation_share(times, interval_ids) -> float:
    """Share in [0, 1] of the variance of TTA that is only *which evaluation* passed first; law of total variance over
    the runs that reached: 1 - sum (t - mean of its group)^2 / sum (t - mean)^2, one group per evaluation index.
    NaN when there is no variance to share. Not with few runs per group: G groups explain (G-1)/(n-1) by chance."""
    array, ids = _times(times), list(interval_ids)
    _require(len(ids) == array.size, f"interval_ids needs one evaluation per run; got {len(ids)} for {array.size} runs")
    kept, reached = np.flatnonzero(np.isfinite(array)), array[np.isfinite(array)]
    if kept.size < 2 or not np.ptp(reached):
        return math.nan
    group = np.unique([ids[i] for i in kept], return_inverse=True)[1]
    means = np.bincount(group, weights=reached) / np.bincount(group)
    return float(np.clip(1 - ((reached - means[group]) ** 2).sum() / ((reached - reached.mean()) ** 2).sum(), 0, 1))


def first_crossing(times, values, target: float) -> float:
    """Time of the first row, in the order given, whose raw value is >= target (DAWNBench's rule); inf if none is.
    NaN values never cross. Negate a loss and its target. Not the model one keeps: the curve may fall below again."""
    clock, metric = _times(times), np.asarray(values, dtype=float)
    _require(metric.shape == clock.shape and not math.isnan(target),
             f"need one value per time and a target; got {metric.size} for {clock.size} times, target {target}")
    passed = np.flatnonzero(metric >= target)
    return float(clock[passed[0]]) if passed.size else math.inf


def rank_agreement(a, b) -> float:
    """Kendall's tau-b of two lists of times, or two {name: time}: 1 same order, -1 reversed, misses tied for last.
    NaN when a list is all ties. Not for two or three entries: tau then takes only a few values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        _require(set(a) == set(b), f"both rankings need the same names; unmatched: {sorted(map(str, set(a) ^ set(b)))}")
        a, b = list(a.values()), [b[name] for name in a]
    first, second = _times(a, "a"), _times(b, "b")
    _require(first.size == second.size > 1, f"rank the same 2 or more entries; got {first.size} and {second.size}")
    return float(stats.kendalltau(first, second, variant="b").statistic)


def scaling(tta_small, tta_large, workers_small, workers_large, epochs_small, epochs_large) -> Scaling:
    """Split a speed-up into throughput (epochs per second) and epochs needed; efficiency = tta_speedup / worker ratio.
    Not across different targets or clock rules, and not for a miss: all six must be positive and finite."""
    given = [tta_small, tta_large, workers_small, workers_large, epochs_small, epochs_large]
    _require(all(0 < x < math.inf for x in given), f"all six numbers must be positive and finite; got {given}")
    speedup, throughput = tta_small / tta_large, (epochs_large / tta_large) / (epochs_small / tta_small)
    return Scaling(speedup, throughput, epochs_large / epochs_small, speedup * workers_small / workers_large)


def cost(seconds: float, dollars_per_hour: float) -> float:
    """Dollars: seconds / 3600 x hourly price, inf for a miss. Not for spot prices, which change during the run."""
    _require(0 <= dollars_per_hour < math.inf, f"dollars_per_hour is {dollars_per_hour}; it must be finite and >= 0")
    hours = _times([seconds], "seconds")[0] / 3600
    return float(hours * dollars_per_hour) if hours < math.inf else math.inf


def pareto_front(points) -> list[int]:
    """Indices of the (time, cost) points that no other beats in one and at least equals in the other, fastest first.
    Equal points all stay; a point with an infinite coordinate never does. Not for a third objective."""
    array = np.asarray(points, dtype=float)
    _require(array.ndim == 2 and array.shape[1] == 2 and len(array) > 0 and bool((array >= 0).all()),
             f"points must be pairs (time, cost), neither NaN nor negative; got shape {array.shape}")
    beats = (array[:, None] <= array).all(axis=2) & (array[:, None] < array).any(axis=2)
    kept = np.flatnonzero(~beats.any(axis=0) & np.isfinite(array).all(axis=1))
    return kept[np.argsort(array[kept, 0], kind="stable")].tolist()


def drop_extremes_mean(times, drop: int = 1, allowed_misses: int = 1) -> tuple[float, str]:
    """MLPerf's (score, reason): mean seconds after dropping the `drop` fastest and slowest runs; a miss is slowest.
    More than `allowed_misses` (1 from v0.7, 0 before) give (inf, why), else the reason is "". Not a mean of skewed
    times: their tail is dropped."""
    array = np.sort(_times(times))
    missed, allowed = int(np.isinf(array).sum()), min(drop, allowed_misses)
    _require(drop >= 0 and allowed >= 0, f"drop and allowed_misses must be >= 0; got {drop} and {allowed_misses}")
    _require(array.size > 2 * drop, f"dropping {drop} at each end needs {2 * drop + 1} runs; got {array.size}")
    if missed > allowed:
        return math.inf, f"{missed} of {array.size} runs missed the target; at most {allowed} may"
    return float(array[drop:array.size - drop].mean()), ""


def summary(times, budget=None, confidence: float = 0.95, seed: int | np.random.Generator = 0) -> dict[str, float]:
    """One table row on repeated runs; `reached` is a count, NaN what they cannot say (cov of one run, expected without
    the misses' `budget`). Not to be cut down to one number."""
    rate, middle = reach_rate(times, confidence), median(times, confidence, seed)
    k = round(rate.value * rate.n)
    spread = coefficient_of_variation(times, confidence) if k > 1 else Interval(math.nan, math.nan, math.nan, k)
    return {"n": rate.n, "reached": k, "reach_rate": rate.value, "reach_low": rate.low, "reach_high": rate.high,
            "median": middle.value, "median_low": middle.low, "median_high": middle.high,
            "cov": spread.value, "cov_low": spread.low, "cov_high": spread.high,
            "expected": expected_time(times, budget) if budget is not None or k in (0, rate.n) else math.nan}
