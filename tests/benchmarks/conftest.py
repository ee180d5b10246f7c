"""Benchmarks are ratios of two ways to do the same work, measured in one run on one thread; nothing is asserted.

The two ways take turns and the median over the pairs is shown, on the wall clock and in processor time: on a shared
machine the second is the steadier one.
"""

import os

# Before torch is imported.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"

import time
from statistics import median

import pytest


def pytest_configure(config):
    config.benchmarks = []


def pytest_terminal_summary(terminalreporter, config):
    for line in config.benchmarks:
        terminalreporter.write_line(line)


@pytest.fixture
def clocks():
    """Seconds of a call: (wall, processor)."""

    def measure(call) -> tuple[float, float]:
        wall, processor = time.perf_counter(), time.process_time()
        call()
        return time.perf_counter() - wall, time.process_time() - processor

    return measure


@pytest.fixture
def compare(request):
    """`compare(what, aim, ours, theirs)`: the calls return (wall, processor) seconds; the ratio is ours over theirs.

    With `speedup` it is theirs over ours.
    """

    def run(what: str, aim: str, ours, theirs, *, pairs: int = 7, speedup: bool = False):
        ours(), theirs()  # what is slow only once is in no ratio
        ratios = []
        for pair in range(pairs):
            first, second = (ours, theirs) if pair % 2 else (theirs, ours)
            one, two = first(), second()
            one, two = (one, two) if pair % 2 else (two, one)
            ratios.append([b / a if speedup else a / b for a, b in zip(one, two, strict=True)])
        wall, processor = (median(column) for column in zip(*ratios, strict=True))
        lowest, highest = (f(row[1] for row in ratios) for f in (min, max))
        request.config.benchmarks.append(
            f"{what:<66} {wall:7.3f} wall {processor:7.3f} processor ({lowest:.3f} to {highest:.3f})   aim {aim}"
        )

    return run
