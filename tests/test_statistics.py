"""labkit.tta.statistics against textbook values, scipy, brute force and simulation (all seeds fixed)."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit.errors import RequestError
from labkit.tta import statistics as tta
from labs.thresholds import threshold_sensitivity

TIME = st.floats(min_value=0.5, max_value=1e4)
MAYBE_MISS = st.one_of(TIME, st.just(math.inf))


# --- reach rate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reached, runs", [(35, 50), (33, 50), (0, 5), (5, 5), (1, 1)])
def test_reach_rate_is_wilsons_interval(reached, runs):
    interval = tta.reach_rate([1.0] * reached + [math.inf] * (runs - reached))
    oracle = stats.binomtest(reached, runs).proportion_ci(0.95, method="wilson")
    assert (interval.value, interval.n) == (reached / runs, runs)
    assert [interval.low, interval.high] == pytest.approx([oracle.low, oracle.high], abs=1e-12)


def test_reach_rate_of_35_in_50_by_hand():
    # z = 1.959964: centre (.7 + .038415)/1.076829 = .685730, half-width 1.820125 sqrt(.0042 + .000384146)
    interval = tta.reach_rate([60.0] * 35 + [math.inf] * 15)
    assert interval.low == pytest.approx(0.5625, abs=5e-5)
    assert interval.high == pytest.approx(0.8090, abs=5e-5)


def test_wilson_ends_exactly_at_zero_and_one():
    for runs in range(1, 60):
        assert tta.reach_rate([math.inf] * runs).low == 0.0
        assert tta.reach_rate([1.0] * runs).high == 1.0


def test_wilson_covers_the_true_rate():
    rng = np.random.default_rng(1)
    covered = 0
    for reached in rng.binomial(50, 0.7, size=1000):
        interval = tta.reach_rate([1.0] * reached + [math.inf] * (50 - reached))
        covered += interval.low <= 0.7 <= interval.high
    assert 0.92 < covered / 1000 < 0.98


# --- coefficient of variation -----------------------------------------------------------------------------------


def test_cov_is_sd_over_mean_of_the_runs_that_reached():
    interval = tta.coefficient_of_variation([10.0, 12.0, 14.0, math.inf])
    assert interval.value == pytest.approx(2 / 12)
    assert interval.n == 3
    assert interval.low < interval.value < interval.high


def test_cov_limits_at_small_k_are_the_chi_square_limits_of_the_sd():
    # As K goes to 0 the mean is known exactly, and K sqrt(v / chi2) is the textbook interval of a standard deviation.
    times = 1e4 + np.array([-1.0, 0.5, 0.0, 0.25, 1.0])
    interval = tta.coefficient_of_variation(times)
    chi2 = stats.chi2.ppf([0.975, 0.025], 4)
    assert [interval.low, interval.high] == pytest.approx(list(interval.value * np.sqrt(4 / chi2)), rel=1e-4)


def test_cov_limits_at_large_k_are_close_to_the_exact_normal_ones():
    # Exactly, sqrt(n)/K follows a noncentral t with noncentrality sqrt(n)/(true K); the limits are its 2.5 % points.
    interval = tta.coefficient_of_variation([70.0, 85.0, 100.0, 115.0, 130.0])
    observed = math.sqrt(5) / interval.value
    tails = [stats.nct.cdf(observed, 4, math.sqrt(5) / limit) for limit in (interval.low, interval.high)]
    assert tails == pytest.approx([0.025, 0.975], abs=0.002)


@pytest.mark.parametrize("true_cov, runs", [(0.05, 5), (0.2, 10)])
def test_cov_interval_covers_under_normal_times(true_cov, runs):
    rng = np.random.default_rng(2)
    intervals = [tta.coefficient_of_variation(row) for row in rng.normal(100, 100 * true_cov, size=(1000, runs))]
    covered = np.mean([interval.low <= true_cov <= interval.high for interval in intervals])
    assert 0.92 < covered < 0.98


def test_cov_of_equal_times_is_exactly_zero_and_of_wild_ones_unbounded():
    equal = tta.coefficient_of_variation([0.1] * 7)
    assert (equal.value, equal.low, equal.high) == (0.0, 0.0, 0.0)
    assert tta.coefficient_of_variation([1.0, 1.0, 30.0]).high == math.inf


@pytest.mark.parametrize("times", [[5.0], [5.0, math.inf], [math.inf] * 3, [0.0, 0.0]])
def test_cov_refuses_what_has_none(times):
    with pytest.raises(RequestError, match="2 runs that reached|sd / mean is undefined"):
        tta.coefficient_of_variation(times)


# --- median -----------------------------------------------------------------------------------------------------


def test_median_counts_misses_as_infinity():
    assert tta.median([1.0, 2.0, math.inf]).value == 2.0
    assert tta.median([1.0, math.inf, math.inf]).value == math.inf
    assert tta.median([1.0, 2.0, 3.0, math.inf, math.inf]).high == math.inf
    all_missed = tta.median([math.inf] * 4)
    assert (all_missed.value, all_missed.low, all_missed.high) == (math.inf,) * 3


def test_median_interval_covers_the_true_median_of_skewed_times():
    rng = np.random.default_rng(3)
    samples = rng.lognormal(mean=2.0, sigma=0.5, size=(300, 25))
    intervals = [tta.median(row, seed=rng, resamples=400) for row in samples]
    covered = np.mean([interval.low <= math.exp(2.0) <= interval.high for interval in intervals])
    assert 0.89 < covered < 0.99


def test_median_is_repeatable_and_one_run_bounds_nothing():
    times = [3.0, 5.0, 4.0, 9.0, 6.0]
    assert tta.median(times, seed=4) == tta.median(times, seed=np.random.default_rng(4))
    assert tta.median(times, confidence=0.5).high <= tta.median(times, confidence=0.99).high
    assert tta.median([7.0]) == tta.Interval(7.0, 0.0, math.inf, 1)


# --- expected time ----------------------------------------------------------------------------------------------


def test_fixed_schedule_costs_t_over_p():
    times = [60.0] * 35 + [math.inf] * 15
    assert tta.expected_time(times, budget=60.0) == pytest.approx(60.0 / 0.7)


def test_expected_time_is_what_retrying_costs():
    times, budgets = [30.0, 50.0, math.inf, math.inf, math.inf], [1.0, 1.0, 80.0, 100.0, 60.0]
    rng = np.random.default_rng(5)
    spent = []
    for _ in range(20_000):
        total = 0.0
        while True:
            i = rng.integers(5)
            if times[i] < math.inf:
                break
            total += budgets[i]
        spent.append(total + times[i])
    # 20 000 totals with sd about 155: four standard errors are 4.4.
    assert tta.expected_time(times, budgets) == pytest.approx(np.mean(spent), abs=4.4)


@given(st.lists(MAYBE_MISS, min_size=1, max_size=20), TIME)
def test_expected_time_is_never_below_the_mean_success(times, budget):
    expected = tta.expected_time(times, budget)
    reached = [t for t in times if t < math.inf]
    if not reached:
        assert expected == math.inf
    else:
        assert expected >= np.mean(reached) * (1 - 1e-12)
        # Everything spent, divided by the number of successes.
        assert expected * len(reached) == pytest.approx(sum(reached) + budget * (len(times) - len(reached)))


@pytest.mark.parametrize("budget", [None, math.inf, [10.0], [10.0, math.inf], [10.0, math.nan], -1.0])
def test_expected_time_with_a_miss_needs_its_budget(budget):
    with pytest.raises(RequestError, match="budget"):
        tta.expected_time([5.0, math.inf], budget)


def test_expected_time_without_misses_needs_no_budget():
    assert tta.expected_time([4.0, 6.0]) == 5.0


# --- the mean against a target ----------------------------------------------------------------------------------


@pytest.mark.parametrize("higher, alternative", [(True, "greater"), (False, "less")])
def test_mean_meets_target_is_the_one_sided_t_test(higher, alternative):
    values = np.random.default_rng(6).normal(3.279, 0.001, size=40)
    result = tta.mean_meets_target(values, 3.28, higher_is_better=higher)
    assert result.p_value == pytest.approx(stats.ttest_1samp(values, 3.28, alternative=alternative).pvalue, rel=1e-9)
    assert (result.n, result.mean, result.passes) == (40, values.mean(), result.p_value < 0.01)
    assert result.passes == (not higher)  # the values lie below the target: a pass only for a loss


def test_mean_at_the_target_gives_one_half():
    assert tta.mean_meets_target([0.93, 0.95], 0.94).p_value == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("values", [[0.9], [0.9, 0.9], [0.9, math.inf]])
def test_mean_meets_target_refuses_what_has_no_error_estimate(values):
    with pytest.raises(RequestError, match="t-test"):
        tta.mean_meets_target(values, 0.8)


# --- best of n --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, maximum", [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi))])
def test_expected_maximum_of_normals(n, maximum):
    assert tta.best_of_n_bias(1.0, n) == pytest.approx(maximum, abs=1e-9)
    assert tta.best_of_n_bias(2.5, n) == pytest.approx(2.5 * maximum, abs=1e-9)


def test_expected_maximum_of_many_normals_by_its_density():
    x = np.linspace(-12, 12, 200_001)
    for n in (30, 1000):
        density = n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1)
        assert tta.best_of_n_bias(1.0, n) == pytest.approx(np.trapezoid(x * density, x), abs=1e-7)


@given(st.lists(MAYBE_MISS, min_size=1, max_size=7), st.data())
def test_expected_best_of_is_the_mean_over_all_draws(times, data):
    n = data.draw(st.integers(1, len(times)))
    naive = np.mean([min(draw) for draw in itertools.combinations(times, n)])
    assert tta.expected_best_of(times, n) == pytest.approx(naive)


def test_resampled_bias_agrees_with_the_normal_formula():
    times = np.random.default_rng(7).normal(100, 5, size=2000)
    bias = times.mean() - tta.expected_best_of(times, 5)
    assert bias == pytest.approx(tta.best_of_n_bias(times.std(ddof=1), 5), rel=0.05)


def test_expected_best_of_is_infinite_however_unlikely_a_draw_of_misses_is():
    # One draw in C(1200, 600), about 1e360: its share is below the smallest double.
    assert tta.expected_best_of([1.0] * 600 + [math.inf] * 600, 600) == math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: tta.expected_best_of([1.0, 2.0], 3),
        lambda: tta.expected_best_of([1.0], 0),
        lambda: tta.best_of_n_bias(1.0, 0),
        lambda: tta.best_of_n_bias(math.nan, 2),
    ],
)
def test_best_of_refuses_impossible_draws(call):
    with pytest.raises(RequestError):
        call()


# --- which evaluation passed ------------------------------------------------------------------------------------


def test_evaluation_share_is_one_when_time_is_the_evaluation_and_zero_when_unrelated():
    assert tta.evaluation_share([10.0, 10.0, 20.0, 20.0, math.inf], [1, 1, 2, 2, 99]) == 1.0
    assert tta.evaluation_share([9.0, 11.0, 9.0, 11.0], [1, 1, 2, 2]) == 0.0


def test_evaluation_share_by_hand():
    # Group means 10 and 20; within 4 x 1, between 4 x 25.
    assert tta.evaluation_share([9.0, 11.0, 19.0, 21.0], ["second", "second", "third", "third"]) == pytest.approx(
        100 / 104
    )


def test_evaluation_share_is_large_for_rare_evaluations_and_small_for_unrelated_groups():
    rng = np.random.default_rng(8)
    true, jitter = rng.normal(1000, 100, size=200), rng.normal(0, 3, size=200)

    evaluation = np.ceil(true / 200).astype(int)
    assert 0.99 < tta.evaluation_share(evaluation * 200 + jitter, evaluation) <= 1.0
    # Five groups drawn at random explain (5-1)/(200-1) = .02 of the variance on average.
    unrelated = [tta.evaluation_share(true + jitter, rng.integers(0, 5, size=200)) for _ in range(200)]
    assert np.mean(unrelated) == pytest.approx(4 / 199, abs=0.004)


def test_evaluation_share_says_nothing_without_variance():
    assert math.isnan(tta.evaluation_share([5.0, 5.0, 5.0], [1, 1, 1]))
    assert math.isnan(tta.evaluation_share([5.0, math.inf], [1, 2]))
    with pytest.raises(RequestError, match="one evaluation per run"):
        tta.evaluation_share([5.0, 6.0], [1])


# --- thresholds and ranks ---------------------------------------------------------------------------------------


def test_first_crossing_is_at_or_above_on_the_raw_value():
    assert tta.first_crossing([1, 2, 3], [92.99999999999999, 93.0, 94.0], 93.0) == 2.0
    assert tta.first_crossing([1, 2, 3, 4], [0.5, 0.95, 0.9, 0.96], 0.95) == 2.0  # a later dip does not undo it
    assert tta.first_crossing([1, 2], [math.nan, 0.5], 0.6) == math.inf


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_first_crossing_is_monotone_in_the_target(values, a, b):
    times = np.arange(len(values)) * 2.0
    crossing = tta.first_crossing(times, values, a)
    assert tta.first_crossing(times, values, min(a, b)) <= tta.first_crossing(times, values, max(a, b))
    assert crossing == next((t for t, v in zip(times, values) if v >= a), math.inf)


def test_first_crossing_refuses_unequal_columns():
    with pytest.raises(RequestError, match="one value per time"):
        tta.first_crossing([1.0, 2.0], [0.5], 0.4)
    with pytest.raises(RequestError, match="target nan"):
        tta.first_crossing([1.0], [0.5], math.nan)


def test_threshold_sensitivity_can_turn_a_ranking_round():
    curves = {"hare": ([1, 2, 3], [0.90, 0.91, 0.92]), "tortoise": ([2, 4, 6], [0.90, 0.93, 0.95])}
    table = threshold_sensitivity(curves, [0.90, 0.92, 0.93])
    assert table == {
        0.90: {"hare": 1, "tortoise": 2},
        0.92: {"hare": 3, "tortoise": 4},
        0.93: {"hare": math.inf, "tortoise": 4},
    }
    assert tta.rank_agreement(table[0.90], table[0.92]) == 1.0
    assert tta.rank_agreement(table[0.90], table[0.93]) == -1.0


def test_tau_b_by_counting_pairs():
    a, b = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, math.inf, math.inf]
    # Five concordant pairs, none discordant, one tied in b: 5 / sqrt(6 x 5).
    assert tta.rank_agreement(a, b) == pytest.approx(5 / math.sqrt(30))
    # Names, not positions, pair two tables.
    assert tta.rank_agreement({"x": 1.0, "y": 2.0}, {"y": 5.0, "x": 4.0}) == 1.0


def test_rank_agreement_refuses_different_entries():
    with pytest.raises(RequestError, match="unmatched: .*'y'"):
        tta.rank_agreement({"x": 1.0, "y": 2.0}, {"x": 1.0, "z": 2.0})
    with pytest.raises(RequestError, match="same 2 or more"):
        tta.rank_agreement([1.0, 2.0], [1.0, 2.0, 3.0])


# --- scaling, cost, front ---------------------------------------------------------------------------------------


def test_scaling_by_hand():
    # 16 times the workers, 10 times the epochs per second, but twice the epochs.
    result = tta.scaling(1000.0, 200.0, 32, 512, 40.0, 80.0)
    assert result == tta.Scaling(tta_speedup=5.0, throughput_speedup=10.0, epochs_ratio=2.0, efficiency=5 / 16)


@given(TIME, TIME, st.integers(1, 64), st.integers(1, 64), TIME, TIME)
def test_scaling_identity(small, large, few, many, epochs_small, epochs_large):
    result = tta.scaling(small, large, few, many, epochs_small, epochs_large)
    assert result.tta_speedup == pytest.approx(result.throughput_speedup / result.epochs_ratio)
    assert result.efficiency == pytest.approx(result.tta_speedup * few / many)


def test_scaling_refuses_a_miss():
    with pytest.raises(RequestError, match="positive and finite"):
        tta.scaling(10.0, math.inf, 1, 2, 1, 1)


def test_cost_is_hours_times_price():
    assert tta.cost(1800.0, 24.48) == pytest.approx(12.24)
    assert tta.cost(math.inf, 0.0) == math.inf
    for seconds, price in [(-1.0, 1.0), (1.0, math.nan), (math.nan, 1.0), (1.0, -1.0)]:
        with pytest.raises(RequestError):
            tta.cost(seconds, price)


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.integers(0, 5), st.just(math.inf))), min_size=1, max_size=12))
def test_pareto_front_by_brute_force(points):
    def beats(p, q):
        return p[0] <= q[0] and p[1] <= q[1] and p != q

    naive = [i for i, q in enumerate(points) if q[1] < math.inf and not any(beats(p, q) for p in points)]
    front = tta.pareto_front(points)
    assert sorted(front) == naive
    assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)


# --- MLPerf's score ---------------------------------------------------------------------------------------------


def test_one_miss_is_dropped_as_the_slowest_and_two_end_it():
    assert tta.drop_extremes_mean([5.0, 1.0, 3.0, 4.0, 100.0]) == (4.0, "")
    assert tta.drop_extremes_mean([5.0, 1.0, 3.0, 4.0, math.inf]) == (4.0, "")
    score, reason = tta.drop_extremes_mean([5.0, 1.0, 3.0, math.inf, math.inf])
    assert (score, reason) == (math.inf, "2 of 5 runs missed the target; at most 1 may")
    assert tta.drop_extremes_mean([5.0, 1.0, math.inf], allowed_misses=0)[0] == math.inf


@given(st.lists(MAYBE_MISS, min_size=5, max_size=20), st.integers(0, 2))
def test_drop_extremes_equals_the_naive_score(times, drop):
    score, reason = tta.drop_extremes_mean(times, drop=drop)
    rest = list(times)
    for _ in range(drop):
        rest.remove(min(rest))
        rest.remove(max(rest))
    if times.count(math.inf) > min(1, drop):
        assert (score, bool(reason)) == (math.inf, True)
    else:
        assert (score, reason) == (pytest.approx(sum(rest) / len(rest)), "")


def test_dropping_everything_is_refused():
    with pytest.raises(RequestError, match="needs 3 runs; got 2"):
        tta.drop_extremes_mean([1.0, 2.0])
    with pytest.raises(RequestError, match="must be >= 0"):
        tta.drop_extremes_mean([1.0, 2.0, 3.0], drop=-1)


# --- the table row and the guard --------------------------------------------------------------------------------


def test_summary_collects_the_numbers_of_the_single_functions():
    times = [50.0, 60.0, 55.0, math.inf]
    row = tta.summary(times, budget=70.0)
    assert (row["n"], row["reached"], row["reach_rate"]) == (4, 3, 0.75)
    assert (row["median"], row["median_high"]) == (57.5, math.inf)
    assert row["cov"] == pytest.approx(5 / 55)
    assert row["expected"] == pytest.approx(55 + 70 / 3)
    assert row["reach_low"] < 0.75 < row["reach_high"] and row["cov_low"] < row["cov"] < row["cov_high"]


def test_summary_leaves_unknown_what_the_runs_cannot_say():
    assert math.isnan(tta.summary([50.0, math.inf])["expected"])
    assert math.isnan(tta.summary([50.0, math.inf])["cov"])
    assert tta.summary([math.inf, math.inf])["expected"] == math.inf


@pytest.mark.parametrize("times", [[], [1.0, math.nan], [1.0, -2.0], [[1.0, 2.0]], ["fast"], None])
@pytest.mark.parametrize(
    "function",
    [
        tta.reach_rate,
        tta.coefficient_of_variation,
        tta.median,
        tta.expected_time,
        tta.drop_extremes_mean,
        tta.summary,
        lambda t: tta.expected_best_of(t, 1),
        lambda t: tta.evaluation_share(t, [1, 2]),
        lambda t: tta.first_crossing(t, [1, 2], 1),
        lambda t: tta.rank_agreement(t, t),
    ],
)
def test_unusable_times_are_refused_in_one_line(function, times):
    with pytest.raises(RequestError) as refusal:
        function(times)
    assert "\n" not in str(refusal.value)


@settings(max_examples=30)
@given(st.floats(allow_nan=True).filter(lambda c: not 0 < c < 1))
def test_confidence_must_be_a_probability(confidence):
    for function in (tta.reach_rate, tta.coefficient_of_variation, tta.median):
        with pytest.raises(RequestError, match="confidence"):
            function([1.0, 2.0, 3.0], confidence)
