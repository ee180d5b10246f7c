"""The public logs as tables: DAWNBench entries and MLPerf runs, as `data/published/derive.py` derives them.
Every table names its source.

When not to use it: to compare systems across tasks, targets, rounds or clock rules; a number here belongs to all four.
"""

import math

import numpy as np
import pandas as pd

from labkit import paths
from labkit.rules.general import published
from labkit.teach import viz
from labkit.tta import statistics
from labs import times

TABLES = (
    "dawnbench_train", "dawnbench_thresholds", "dawnbench_inference", "mlperf_runs", "mlperf_systems", "ncf_clocks",
    "cifar10_faster", "ffcv_resnet50", "nanogpt_record",
)  # fmt: skip
TASKS = ("ImageNet", "CIFAR10", "SQuAD")
POINTS = {"SQuAD": 100.0}  # F1 is a fraction there; percentages elsewhere
SETS = {  # sets of repeated runs with something to argue about: (system, benchmark)
    "NCF, Intel Xeon (v0.5)": ("v0.5/Intel/skx8180", "ncf"),
    "NCF, DGX-1 (v0.5)": ("v0.5/NVIDIA/dgx1_ngc18.11_pytorch", "ncf"),
    "Transformer, TPU v3 x 32 (v0.6)": ("v0.6/Google/tpu-v3-32", "transformer"),
    "ResNet-50, TPU v3 x 2048 (v0.6)": ("v0.6/Google/tpu-v3-2048", "resnet"),
    "ResNet-50, DGX-1 (v0.7)": ("v0.7/NVIDIA/dgx1_ngc20.06_mxnet", "resnet"),
    "GNMT, TPU v4 x 512 (v0.7)": ("v0.7/Google/tpu-v4-512-TF", "gnmt"),
}
MARGINS = ["margin at hit", "final margin"]


def sources() -> pd.DataFrame:
    """Every table of this lab: its rows, where its figures come from, under which licence."""
    rows = []
    for name in TABLES:
        lines = (paths.data() / "published" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        licence = next(line.partition("licence: ")[2] for line in lines if line.startswith("# licence: "))
        table = published(f"{name}.csv")
        rows.append((name, len(table), ", ".join(sorted(set(table["source"]))), licence))
    return pd.DataFrame(rows, columns=["table", "rows", "source", "licence"])


def entries() -> pd.DataFrame:
    """Training entries of DAWNBench; dates as dates, margins above the target in points."""
    table = published("dawnbench_train.csv")
    scale = table["task"].map(POINTS).fillna(1.0)
    margins = [(table[name] - table["threshold"]) * scale for name in ("metric_at_hit", "final_metric")]
    return table.assign(date=pd.to_datetime(table["date"]), **dict(zip(MARGINS, margins)))


def progress(table: pd.DataFrame) -> pd.DataFrame:
    """The entries that were the fastest of their task when they came, with their speed-up over the *seed*: the fastest
    entry of the task's first month. Entries of one day count in order of time.
    """
    rows = []
    for task, group in table.dropna(subset=["tta_seconds", "date"]).groupby("task"):
        first = group["date"].min() + pd.Timedelta(days=30)
        seed = best = group.loc[group["date"] <= first, "tta_seconds"].min()
        for row in group.sort_values(["date", "tta_seconds"], ascending=[True, False]).itertuples():
            if row.tta_seconds < best or row.tta_seconds == seed:
                best = row.tta_seconds
                rows.append((task, row.entry, row.date, best, seed / best))
    return pd.DataFrame(rows, columns=["task", "entry", "date", "seconds", "speed-up"])


def runs() -> pd.DataFrame:
    """MLPerf runs; `seconds` is infinite for a miss, `spent` is what the run cost, success or not."""
    table = published("mlperf_runs.csv")
    reached = table["converged"].astype(bool)
    spent = table["run_stop"] - table["run_start"]
    return table.assign(seconds=table["tta_seconds"].where(reached, math.inf), spent=spent, converged=reached)


def one_set(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The runs of one of `SETS`, in the order of their files."""
    system, benchmark = SETS[name]
    return table[(table["system"] == system) & (table["benchmark"] == benchmark)]


def variations(table: pd.DataFrame) -> pd.DataFrame:
    """Per round, system and task: reach, variation with its interval, and the share of the variance that is only which
    evaluation passed, corrected for what as many groups explain by chance; NaN where all passed at one, or where that
    leaves fewer than two runs to judge by.
    """
    rows = []
    for (round, system, benchmark), group in table.groupby(["round", "system", "benchmark"]):
        if group["converged"].sum() < 2:
            continue
        spread = statistics.coefficient_of_variation(group["seconds"])
        known = group[group["converged"] & group["evaluations"].notna()]
        n, groups, share = len(known), known["evaluations"].nunique(), math.nan
        if 1 < groups <= n - 2:
            raw = statistics.evaluation_share(known["seconds"], known["evaluations"])
            share = 1 - (1 - raw) * (n - 1) / (n - groups)
        found = (spread.value, spread.low, spread.high, groups, share)
        rows.append((benchmark, round, system, len(group), spread.n, *found))
    names = ["task", "round", "system", "runs", "reached", "variation", "low", "high", "evaluation counts", "share"]
    return pd.DataFrame(rows, columns=names).sort_values(["task", "round", "system"], ignore_index=True)


def agreement(grid: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Kendall's tau-b between the ranking at each threshold and the one at the official target (`moved`: in points);
    how many entries reach the threshold at all.
    """
    official, rows = table.groupby("task")["threshold"].first(), []
    for task, group in grid.groupby("task"):
        wide = group.pivot(index="entry", columns="threshold", values="seconds")
        for threshold in wide:
            tau = statistics.rank_agreement(wide[threshold], wide[official[task]])
            moved = (threshold - official[task]) * POINTS.get(task, 1.0)
            rows.append((task, threshold, round(moved, 3), tau, int(np.isfinite(wide[threshold]).sum()), len(wide)))
    return pd.DataFrame(rows, columns=["task", "threshold", "moved", "tau", "reached", "entries"])


def ladder(table: pd.DataFrame, resamples: int, seed: int) -> pd.DataFrame:
    """The v0.6 TPU v3 ResNet-50 systems by number of cores: their score (mean seconds without the fastest and the
    slowest run), mean epochs of all runs; the speed-up over the smallest one split into throughput x epochs, as claim
    D14 splits it, with 95 % bootstrap intervals over whole runs.
    """
    rows = table[(table["round"] == "v0.6") & (table["benchmark"] == "resnet") & table["converged"]]
    cores = rows["system"].str.extract(r"tpu-v3-(\d+)", expand=False)
    sets = {int(n): group[["seconds", "last_epoch"]].to_numpy(float) for n, group in rows.groupby(cores)}
    random, found, small = np.random.default_rng(seed), [], min(sets)

    def scored(values: np.ndarray):
        """Score and mean epochs; runs are the last axis but one."""
        return np.sort(values[..., 0], -1)[..., 1:-1].mean(-1), values[..., 1].mean(-1)

    def split(one: np.ndarray, many: np.ndarray):
        """Speed-up in TTA, in throughput, ratio of epochs."""
        (t1, e1), (t2, e2) = scored(one), scored(many)
        return t1 / t2, (e2 / t2) / (e1 / t1), e2 / e1

    def drawn(values: np.ndarray) -> np.ndarray:
        return values[random.integers(0, len(values), (resamples, len(values)))]

    for n, values in sorted(sets.items()):
        parts, bands = split(sets[small], values), split(drawn(sets[small]), drawn(values))
        row = {"cores": n, "runs": len(values), **dict(zip(("seconds", "epochs"), scored(values)))}
        for name, part, band in zip(("tta", "throughput", "epochs ratio"), parts, bands):
            low, high = np.quantile(band, [0.025, 0.975]) if n > small else (1.0, 1.0)
            row |= {name: part, f"{name} low": low, f"{name} high": high}
        found.append(row)
    return pd.DataFrame(found)


def reach(table: pd.DataFrame, groups) -> pd.DataFrame:
    """Sets in which a run missed (MLPerf, READMEs), and `groups` of your own kind: reach rate with Wilson's interval,
    mean seconds of a success, expected seconds to the first one with the failures paid.
    """
    cases = {}
    for (system, benchmark), rows in table.groupby(["system", "benchmark"]):
        if not rows["converged"].all():
            cases[f"{benchmark}, {system}"] = rows["seconds"].tolist(), rows["spent"].tolist()
    for row in published("reach_rates.csv").itertuples():
        cases[f"CIFAR-10, {row.recipe}"] = [1.0] * int(row.reached) + [math.inf] * int(row.runs - row.reached), None
    for name, group, _ in groups:
        cases[name] = times.seconds_to_target(group, "dawnbench"), times.full_cost(group, "dawnbench")
    found = []
    for name, (seconds, cost) in cases.items():
        rate, ok = statistics.reach_rate(seconds), [t for t in seconds if math.isfinite(t)]
        row = {
            "set": name,
            "reached": f"{len(ok)} of {rate.n}",
            "rate [95 %]": f"{rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}]",
        }
        known = cost is not None and ok
        row["mean success s"] = f"{np.mean(ok):.4g}" if known else "not published"
        row["expected s"] = f"{statistics.expected_time(seconds, cost):.4g}" if known else "not published"
        found.append(row)
    return pd.DataFrame(found)


def spreads(groups) -> list[tuple]:
    """(name, variation with interval, colour) of the 50 Apple runs, with and without the cold one, and of `groups`."""
    grey, found = viz.LITERATURE, []
    for row in published("cifar10_faster.csv").itertuples():
        name = f"CIFAR-10 x {row.n}" + (" (warm)" if "without" in row.set else "")
        found.append((name, statistics.Interval(row.cov, row.cov_low, row.cov_high, int(row.n)), grey))
    for name, group, colour in groups[::-1]:
        seconds = times.seconds_to_target(group, "dawnbench")
        if sum(map(math.isfinite, seconds)) > 1:
            found.append((name, statistics.coefficient_of_variation(seconds), colour))
    return found
