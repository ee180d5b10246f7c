"""Rules about repeated runs in public: MLPerf logs, an Apple log, a speed-run record. numpy, pandas and scipy only.

They are judged on the tables of `data/published`, like those of `rules_public`.
"""

import math
import re

import numpy as np
import pandas as pd

from labkit.rules.finding import Finding, needs
from labkit.rules.general import published
from labkit.tta import statistics


def sets_of_times(rows: pd.DataFrame, rounds, apart, least) -> tuple[dict, dict]:
    """{name: seconds of the converged runs} of the systems with `least` or more, and the same for tasks in `apart`."""
    rows = rows[rows["round"].isin(rounds) & rows.converged]
    found: tuple[dict, dict] = {}, {}
    for (*names, task), group in rows.groupby(["round", "system", "benchmark"]):
        if len(group) >= least:
            found[task in apart][" ".join([*names, task])] = group.tta_seconds.tolist()
    return found


def low_variation_in_most(runs, *, table, rounds, apart, bound, share, least, sets) -> Finding:
    """Of the systems x tasks with `least` converged runs or more (tasks in `apart` shown, not counted), the share whose
    coefficient of variation is at most `bound`: holds if it is `share` or more and no 95 % interval lies wholly above
    the bound; contradicted if the upper Wilson limit of the share is below `share`.
    """
    counted, beside = sets_of_times(published(table), rounds, apart, least)
    if len(counted) < sets:
        return needs(f"{sets} systems with {least} converged runs")
    spread = {name: statistics.coefficient_of_variation(times) for name, times in counted.items()}
    low = [found.value <= bound for found in spread.values()]
    sure = sum(found.high <= bound for found in spread.values())
    above = [
        f"{name} {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
        for name, found in spread.items()
        if found.low > bound
    ]
    part = statistics.reach_rate([1.0 if yes else math.inf for yes in low])
    values = sorted(found.value for found in spread.values())
    evidence = (
        f"{sum(low)} of {len(low)} systems x tasks at most {bound} "
        f"({part.value:.0%} [{part.low:.0%}, {part.high:.0%}]), "
        f"{sure} with their whole interval; wholly above: {', '.join(above) or 'none'}; "
        f"median {np.median(values):.3f}, largest {values[-1]:.2f}"
    )
    for name, times in beside.items():
        found = statistics.coefficient_of_variation(times)
        evidence += f"; apart: {name} {found.value:.2f} [{found.low:.2f}, {found.high:.2f}] over {found.n} runs"
    if part.value >= share and not above:
        return Finding("holds", evidence)
    return Finding("contradicted" if part.high < share else "not seen", evidence)


def evaluation_decides_in_most(runs, *, table, apart, least, share, systems, sets) -> Finding:
    """Where a system's runs stopped at different evaluations, the share of the variance that is only which evaluation
    passed, corrected for what as many groups explain by chance, is `share` or more in at least the part `systems` of
    them; contradicted if in at most 1 - `systems`. Two more runs than groups are asked for.
    """
    rows = published(table)
    rows = rows[rows.converged & rows.evaluations.notna() & ~rows.benchmark.isin(apart)]
    found, single = {}, 0
    for key, group in rows.groupby(["round", "system", "benchmark"]):
        n, groups = len(group), group.evaluations.nunique()
        if n >= least and groups == 1:
            single += 1
        elif n >= max(least, groups + 2):
            raw = statistics.evaluation_share(group.tta_seconds, group.evaluations)
            found[" ".join(key)] = 1 - (1 - raw) * (n - 1) / (n - groups)
    if len(found) < sets:
        return needs(f"{sets} systems whose runs stopped at different evaluations")
    values = np.array(list(found.values()))
    part = float(np.mean(values >= share))
    evidence = (
        f"{share:.0%} or more in {int((values >= share).sum())} of {len(values)} systems (corrected for chance; median "
        f"{np.median(values):.0%}); in {single} more all runs stopped at one evaluation"
    )
    return Finding("holds" if part >= systems else "contradicted" if part <= 1 - systems else "not seen", evidence)


def scales_worse_than_throughput(runs, *, table, systems, round, benchmark, family, small, large) -> Finding:
    """From `small` to `large` processors of one family, the epochs needed grow, so that the speed-up in time to
    accuracy is less than that in throughput: by more than 2 standard errors of the log ratio of the mean epochs;
    contradicted if they fall by as much.
    """
    scores, logs = published(systems), published(table)
    scores = scores[(scores["round"] == round) & (scores.benchmark == benchmark) & scores.system.str.contains(family)]
    scores = scores.dropna(subset=["chips", "score_seconds"]).set_index("chips").sort_index()
    logs = logs[(logs["round"] == round) & (logs.benchmark == benchmark) & logs.converged].dropna(subset="last_epoch")
    steps = {}
    for chips, row in scores.iterrows():
        epochs = logs.last_epoch[logs.system == row.system]
        if len(epochs) > 1:
            error = epochs.std(ddof=1) / math.sqrt(len(epochs)) / epochs.mean()
            steps[int(chips)] = (row.score_seconds, epochs.mean(), error)
    if not {small, large} <= set(steps):
        return needs(f"scores and epochs of {family} at {small} and {large}")
    (slow, few, first), (fast, many, second) = steps[small], steps[large]
    split = statistics.scaling(slow, fast, small, large, few, many)
    rise, error = math.log(split.epochs_ratio), math.hypot(first, second)
    evidence = (
        f"{small} to {large}: time to accuracy {split.tta_speedup:.1f} times faster = "
        f"throughput {split.throughput_speedup:.1f} / "
        f"epochs {split.epochs_ratio:.2f} (log ratio {rise:.3f} +/- {error:.3f}); mean epochs on the ladder: "
        + ", ".join(f"{chips}: {epochs:.1f}" for chips, (_, epochs, _) in steps.items())
    )
    return Finding("holds" if rise > 2 * error else "contradicted" if rise < -2 * error else "not seen", evidence)


def scores_follow_the_rule(runs, *, table, systems, first, tolerance) -> Finding:
    """Each score is the mean without the fastest and the slowest run, recomputed here from the runs: a miss and a log
    that is missing are slowest, two have no score; of the tasks in `first`, only the first so many converged runs
    count.
    """
    logs, wrong, checked = published(table), [], published(systems)
    for row in checked.itertuples():
        group = logs[(logs["round"] == row.round) & (logs.system == row.system) & (logs.benchmark == row.benchmark)]
        group = group.assign(order=[int(re.search(r"(\d+)\D*$", name)[1]) for name in group.file]).sort_values("order")
        times = [seconds if done else math.inf for seconds, done in zip(group.tta_seconds, group.converged)]
        absent = re.search(r"logs-missing:(\d+)", str(row.flags))
        times += [math.inf] * (int(absent[1]) if absent else 0)
        if row.benchmark in first:
            times = [t for t in times if math.isfinite(t)][: first[row.benchmark]]
        middle = sorted(times)[1:-1]
        score = sum(middle) / len(middle) if middle else math.inf
        filed = math.inf if math.isnan(row.score_seconds) else row.score_seconds
        # Not one comparison: with a score that is infinite, a tolerance of infinity would let anything pass.
        if score != filed and not (math.isfinite(filed) and abs(score - filed) <= tolerance * filed):
            wrong.append(f"{row.round} {row.system} {row.benchmark}: {filed} against {score}")
    scored = int(checked.score_seconds.notna().sum())
    evidence = (
        f"{scored} scores and {len(checked) - scored} refusals recomputed; different: {'; '.join(wrong) or 'none'}"
    )
    return Finding("contradicted" if wrong else "holds", evidence)


def clocks_differ(runs, *, table, at_most) -> Finding:
    """The MLPerf clock gives a smaller score than the submitter's own, by a share of at most `at_most`."""
    row = published(table).iloc[0]
    gap = 1 - row.mlperf_score_seconds / row.own_score_seconds
    evidence = (
        f"MLPerf clock {row.mlperf_score_seconds:.2f} s, "
        f"own clock {row.own_score_seconds:.2f} s over {int(row.runs)} runs: "
        f"{gap:.2%} smaller"
    )
    return Finding("holds" if 0 < gap <= at_most else "contradicted", evidence)


def count_differs(runs, *, table, quoted) -> Finding:
    """The number of runs at the target, counted on accuracies that were printed rounded, is not the quoted one."""
    row = published(table).iloc[0]
    if row.readme_count != quoted:
        return needs(f"a README's count of {quoted}")
    evidence = (
        f"printed at .940 or more: {int(row.printed_at_target)} of {int(row.n)}, "
        f"above .940: {int(row.printed_above_target)}; "
        f"README: {quoted}"
    )
    return Finding("holds" if row.printed_at_target != quoted else "contradicted", evidence)


def mean_loss_meets(runs, *, table, n, alpha) -> Finding:
    """One-sided t-test on `n` runs or more that the mean loss is at most the target, p < `alpha`, from mean and sd."""
    from scipy import stats

    row = published(table).iloc[0]
    if row.n < n:
        return needs(f"{n} repeated runs")
    t = (row["mean"] - row.target) / (row.sd / math.sqrt(row.n))
    p = float(stats.t.cdf(t, row.n - 1))
    evidence = (
        f"mean {row['mean']:.5f}, sd {row.sd:.5f} over {int(row.n)} runs, target {row.target}: t = {t:.2f}, p = {p:.2g}"
    )
    return Finding("holds" if p < alpha else "contradicted" if t > 0 else "not seen", evidence)


RULES = (
    low_variation_in_most,
    evaluation_decides_in_most,
    scales_worse_than_throughput,
    scores_follow_the_rule,
    clocks_differ,
    count_differs,
    mean_loss_meets,
)
