"""Reading public logs: both readers over all of them, start-up included, and ours against the official parser."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from readers import mlperf_log

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def public_logs() -> Path:
    folder = Path(os.environ.get("LABKIT_LOGS") or ROOT.parent / "shared" / "data" / "public_logs")
    if not folder.is_dir():
        pytest.skip(f"no public logs in {folder}; set LABKIT_LOGS to their folder")
    return folder


def bench_commands(request, public_logs):
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        for verb, folder in (("mlperf", public_logs), ("dawnbench", public_logs / "dawnbench")):
            command = [sys.executable, "-m", "labkit", "tta", verb, folder]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    request.config.benchmarks.append(
        f"{'labkit tta mlperf + dawnbench over all public logs':<66} {median(seconds):7.3f} s wall "
        f"({min(seconds):.3f} to {max(seconds):.3f})   aim <= 3 s"
    )


def bench_official_parser(compare, clocks, public_logs):
    """The same fields of each v0.7 log: start, stop, success, and the evaluations between them."""
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser")
    summariser = pytest.importorskip("mlperf_logging.result_summarizer.result_summarizer")
    files = sorted((public_logs / "mlperf_v0.7").rglob("result_*.txt"))

    def official():
        for file in files:
            lines, _ = parser.parse_file(str(file), ruleset="0.7.0")
            start, stop = summariser._query_run_start_stop(lines)
            [line.value["metadata"]["status"] for line in lines if line.key == "run_stop"]
            [line.value for line in lines if line.key == "eval_accuracy" and start <= line.timestamp <= stop]

    def ours():
        for file in files:
            mlperf_log.read(file)

    compare(
        f"our reader over mlperf_logging's parser, {len(files)} v0.7 logs",
        ">= 10",
        lambda: clocks(ours),
        lambda: clocks(official),
        speedup=True,
    )
