"""From which kernel size on is another convolution faster than `F.conv2d`: measured, and as the counts foretell.

Timings are interleaved, as of `utilisation.paired`. When not to use it: to carry a crossover to another machine, number
of threads or number of channels; measure there."""

from collections.abc import Callable, Sequence

import pandas as pd

from labkit.errors import RequestError
from labkit.operators import convolution
from labkit.tta import statistics
from labs import utilisation


def interleaved(a: Callable, b: Callable, rounds: int, device: str = "cpu", least: float = 0.01):
    """Median of seconds(b) / seconds(a) over interleaved rounds, an `Interval`: above 1 a is the faster one."""
    timings = utilisation.paired({"a": a, "b": b}, rounds, device, least)
    table = timings.pivot(index="round", columns="name", values="seconds")
    return statistics.median(table["b"] / table["a"])


def ratios(timings: pd.DataFrame, method: str = "fft", against: str = "library") -> pd.DataFrame:
    """Columns kernel, ratio, low, high: median of the paired seconds(against) / seconds(method), with 95 % limits.

    Args:
        timings: columns kernel, round, name, seconds.

    Raises:
        RequestError: one of the two was not timed."""
    if missing := {method, against} - set(timings["name"]):
        raise RequestError(f"there are no timings of {', '.join(sorted(missing))}; time it in the same rounds")
    rows = []
    for kernel, part in timings.groupby("kernel"):
        table = part.pivot(index="round", columns="name", values="seconds")
        found = statistics.median(table[against] / table[method])
        rows.append((int(kernel), found.value, found.low, found.high))
    return pd.DataFrame(rows, columns=["kernel", "ratio", "low", "high"])


def crossover(timings: pd.DataFrame, method: str = "fft", against: str = "library") -> int | None:
    """The smallest timed kernel from which on `method` is faster at every timed one (the whole interval above 1)."""
    first = None
    for row in ratios(timings, method, against).sort_values("kernel", ascending=False).itertuples():
        if row.low <= 1:
            break
        first = int(row.kernel)
    return first


def counted_crossover(kernels: Sequence[int], images: int, channels: int, side: int, method: str = "fft") -> int | None:
    """The same by multiplications, transforms included, against direct convolution with "same" padding."""
    def saves(kernel: int) -> bool:
        direct, other = (convolution.cost(name, images, channels, channels, side, side, kernel, padding=kernel // 2)
                         for name in ("direct", method))
        return other.multiplications + other.transforms < direct.multiplications

    first = None
    for kernel in sorted(kernels, reverse=True):
        if not saves(kernel):
            break
        first = kernel
    return first
