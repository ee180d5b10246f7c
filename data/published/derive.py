"""Derive this folder's figures from the public logs: `python data/published/derive.py LOGS [--out DIR]`.

LOGS holds `dawnbench/` (a checkout of the entries), `mlperf_v0.5/`, `mlperf_v0.6/`, `mlperf_v0.7/` (result logs) and
`other/` (three single files). Every table says what it is, from where, and under which licence.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "notebooks")]

from labkit.errors import RequestError
from labkit.tta import statistics
from labs import thresholds
from readers import dawnbench, mlperf

ENTRIES = "stanford-futuredata/dawn-bench-entries@fb27b82"
ROUNDS = {
    "v0.5": "mlcommons/training_results_v0.5@c71f2e7",
    "v0.6": "mlcommons/training_results_v0.6@f312518",
    "v0.7": "mlcommons/training_results_v0.7@0a8a85a",
}
APPLE, FFCV, NANOGPT = "apple/ml-cifar-10-faster", "libffcv/ffcv-imagenet", "KellerJordan/modded-nanogpt"
NO_LICENCE = "licence: none stated, so only figures derived from each entry are here, not its curve"
APACHE = "licence: Apache-2.0"
GRID = {
    "CIFAR10": np.arange(90, 95.01, 0.5).round(2).tolist(),
    "ImageNet": np.arange(90, 94.01, 0.25).round(2).tolist(),
    "SQuAD": np.arange(0.70, 0.775, 0.01).round(2).tolist(),
}
SUBMITTERS = {"google": "Google", "intel": "Intel", "nvidia": "NVIDIA"}
CHIPS = (  # what a system's name says of its size: TPU cores, GPUs, CPU sockets
    (re.compile(r"tpu-?v\d-(\d+)"), lambda match: int(match[1])),
    (re.compile(r"gpu-v100-(\d+)"), lambda match: int(match[1])),
    (re.compile(r"_(\d+)s_(\d+)x"), lambda match: int(match[1]) * int(match[2])),
    (re.compile(r"dgxa?1(?:00)?_"), lambda match: 8),
)
FINISHED = re.compile(rb"Finish training in (\d+) seconds")
APPLE_RUN = re.compile(r"validation acc (\d\.\d+) loss \d\.\d+ wall time (\d+\.\d+)s")
APPLE_README_COUNT = 41
FFCV_README_TOP1 = {16: 73.8, 24: 75.6, 32: 76.6, 40: 77.2, 56: 78.0, 88: 78.4}


def dawnbench_tables(logs: Path) -> dict:
    """Training entries, their seconds to each threshold of a grid, inference entries."""
    found = dawnbench.read(logs / "dawnbench")
    entries = [found.curves[row.task, row.entry][1] for row in found.train.itertuples()]
    flags = found.train["flags"].str.split(";")
    train = found.train.assign(
        best_metric=[values.max() for values in entries],
        falls_below_again=["falls-below-again" in words for words in flags],
        source=ENTRIES,
    )
    return {
        "dawnbench_train.csv": (
            train, "DAWNBench training entries, one run each as its submitter chose it", ENTRIES, NO_LICENCE,
        ),
        "dawnbench_thresholds.csv": (
            thresholds.thresholds(found, GRID).assign(source=ENTRIES),
            "Seconds to the first row at or above a threshold, inf for a miss; DAWNBench training entries",
            ENTRIES, NO_LICENCE,
        ),
        "dawnbench_inference.csv": (
            found.inference.assign(source=ENTRIES),
            "DAWNBench inference entries: latency of one image, its cost, and the cost of 10,000", ENTRIES, NO_LICENCE,
        ),
    }  # fmt: skip


def short(round: str, system: str) -> str:
    """`v0.6/Google/tpu-v3-32` of `mlperf_v0.6/Google/results/tpu-v3-32/resnet`; v0.5 hides some names one folder up."""
    parts = system.split("/")
    submitter = next(SUBMITTERS[part.lower()] for part in parts if part.lower() in SUBMITTERS)
    at = parts.index("results")
    name = parts[at - 1].partition("-")[2] if parts[at + 1] == "tpu" else parts[at + 1]
    return f"{round}/{submitter}/{name}"


def chips(system: str) -> int | None:
    """The size that a system's name tells; None where it tells none."""
    sizes = (size(match) for pattern, size in CHIPS if (match := pattern.search(system)))
    return next(sizes, None)


def mlperf_tables(logs: Path) -> dict:
    """Runs and systems of the result logs, and the two clocks of Intel's NCF runs."""
    found = mlperf.read(logs)
    tables = []
    for table in (found.runs, found.systems):
        names = [short(row.round, row.system) for row in table.itertuples()]
        tables.append(table.assign(system=names, submitter=[name.split("/")[1] for name in names],
                                   source=table["round"].map(ROUNDS)))  # fmt: skip
    runs, systems = tables
    systems.insert(3, "chips", pd.array([chips(name) for name in systems.system], dtype="Int64"))
    if systems.duplicated(["round", "system", "benchmark"]).any():
        raise RequestError("two systems would share a short name; give them longer ones in `short`")
    everywhere = ", ".join(ROUNDS.values())
    sizes = "chips: what the name counts (TPU cores, GPUs, CPU sockets; DGX-1, DGX A100: 8); empty where it counts none"
    return {
        "mlperf_runs.csv": (runs, "MLPerf Training result logs: seconds are run_stop - run_start", everywhere, APACHE),
        "mlperf_systems.csv": (
            systems, f"MLPerf Training systems, scored by the rule of their round; {sizes}", everywhere, APACHE,
        ),
        "ncf_clocks.csv": (
            ncf_clocks(found.logs),
            "Intel's NCF runs of v0.5, scored by two clocks over the first 50 converged runs", ROUNDS["v0.5"], APACHE,
        ),
    }  # fmt: skip


def ncf_clocks(logs: list[dict]) -> pd.DataFrame:
    """Score (fastest and slowest of the first 50 converged left out) by run_stop - run_start, and by the whole seconds
    that the submitter's own program prints.
    """
    mine = [log for log in logs if log["benchmark"] == "ncf" and "intel" in log["system"] and log["converged"]][:50]
    own = [float(FINISHED.search(Path(log["path"]).read_bytes())[1]) for log in mine]
    row = {
        "system": short("v0.5", mine[0]["system"]), "runs": len(mine),
        "mlperf_score_seconds": statistics.drop_extremes_mean([log["tta_seconds"] for log in mine])[0],
        "own_score_seconds": statistics.drop_extremes_mean(own)[0], "source": ROUNDS["v0.5"],
    }  # fmt: skip
    return pd.DataFrame([row])


def cifar10_faster(logs: Path) -> dict:
    """Apple's 50 runs, with and without the cold first one; accuracies were printed to three decimals."""
    text = (logs / "other" / "apple_cifar10_faster_run_log.txt").read_text(encoding="utf-8")
    runs = np.array(APPLE_RUN.findall(text), dtype=float)
    rows = []
    for name, (accuracy, seconds) in (("all runs", runs.T), ("without the cold first run", runs[1:].T)):
        spread = statistics.coefficient_of_variation(seconds)
        rows.append({
            "set": name, "n": len(seconds), "mean_seconds": seconds.mean(), "sd_seconds": seconds.std(ddof=1),
            "cov": spread.value, "cov_low": spread.low, "cov_high": spread.high,
            "printed_at_target": int((accuracy >= 0.94).sum()), "printed_above_target": int((accuracy >= 0.941).sum()),
            "readme_count": APPLE_README_COUNT if len(seconds) == len(runs) else None, "source": APPLE,
        })  # fmt: skip
    table = pd.DataFrame(rows).astype({"readme_count": "Int64"})
    what = "50 runs of one CIFAR-10 recipe: wall time; runs at 94 % by the rounded accuracies and by the README"
    return {
        "cifar10_faster.csv": (
            table,
            what,
            f"{APPLE}, its run log and README",
            "licence: Apple sample code; only figures derived from it are here",
        )
    }


def ffcv_resnet50(logs: Path) -> dict:
    """Six recipes: the last epoch is logged twice (the second time without a training loss), which is left out."""
    table = pd.read_csv(logs / "other" / "ffcv_imagenet_agg.csv", index_col=0)
    table = table.sort_values(["uid", "relative_time"], kind="stable").drop_duplicates(["uid", "epoch"])
    rows = []
    for epochs, curve in table.groupby("training.epochs"):
        when, top1 = curve.relative_time.to_numpy(), 100 * curve.top_1.to_numpy()
        rows.append({
            "epochs": int(epochs), "final_top1": top1[-1], "seconds": when[-1],
            "seconds_to_75": statistics.first_crossing(when, top1, 75.0),
            "seconds_to_75.9": statistics.first_crossing(when, top1, 75.9),
            "readme_top1": FFCV_README_TOP1.get(int(epochs), math.nan), "source": FFCV,
        })  # fmt: skip
    what = (
        "FFCV ResNet-50 recipes, 8 A100, one run each; seconds from start of training, with validation; inf for a miss"
    )
    return {"ffcv_resnet50.csv": (pd.DataFrame(rows), what, f"{FFCV}, its published curves and README", APACHE)}


def nanogpt_record(logs: Path) -> dict:
    """Final losses of 80 runs of one record against the speed-run's target."""
    record = json.loads((logs / "other" / "nanogpt_softcap_80_losses.json").read_text(encoding="utf-8"))
    losses, target = np.array(record["val_loss"], dtype=float), float(record["target"])
    test = statistics.mean_meets_target(losses, target, higher_is_better=False)
    row = {
        "n": test.n, "mean": test.mean, "sd": test.sd, "target": target,
        "t": float(stats.ttest_1samp(losses, target).statistic), "p": test.p_value, "source": NANOGPT,
    }  # fmt: skip
    what = "Final losses of repeated runs of one speed-run record: one-sided t-test that their mean is below the target"
    return {"nanogpt_record.csv": (pd.DataFrame([row]), what, record["source"], "licence: MIT")}


def derive(logs: Path, out: Path) -> list[Path]:
    """Write every table that follows from the logs; the paths written.

    Raises:
        RequestError: a folder of the logs is missing.
        OSError: a file cannot be read or written.
    """
    for name in ("dawnbench", *(f"mlperf_{round}" for round in ROUNDS), "other"):
        if not (logs / name).is_dir():
            raise RequestError(
                f"{logs} has no folder {name}; give the folder that holds dawnbench, mlperf_v0.5 ... and other"
            )
    tables: dict = {}
    for part in (dawnbench_tables, mlperf_tables, cifar10_faster, ffcv_resnet50, nanogpt_record):
        tables |= part(logs)
    out.mkdir(parents=True, exist_ok=True)
    for name, (table, what, source, licence) in tables.items():
        head = f"# {what}.\n# source: {source}\n# {licence}\n"
        (out / name).write_text(head + table.to_csv(index=False, lineterminator="\n"), encoding="utf-8", newline="\n")
    return [out / name for name in tables]


def main() -> int:
    parser = argparse.ArgumentParser(description="Derive the figures of data/published from the public logs.")
    parser.add_argument("logs", type=Path, help="the folder that holds dawnbench, mlperf_v0.5 ... and other")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="where to (here)")
    asked = parser.parse_args()
    try:
        print(*derive(asked.logs, asked.out), sep="\n")
    except (OSError, RequestError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
