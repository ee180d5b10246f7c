"""What it costs to start four ranks, after the first time in this process, and the first time itself."""

import sys
import time
from pathlib import Path
from statistics import median

from labkit.training.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workers"))
import some_ranks


def seconds() -> float:
    start = time.perf_counter()
    run_ranks(some_ranks.identity, 4)
    return time.perf_counter() - start


def bench_ranks(request):
    first = seconds()
    later = median(seconds() for _ in range(9))
    request.config.benchmarks.append(
        f"{'4 ranks start, meet and end':<66} {first:7.2f} s the first time, {later:5.3f} s later   aim <= 0.5 s"
    )
