"""Crossovers of planted timings are found; the counted one is where the counts say."""

import pandas as pd
import pytest

from labkit.errors import RequestError
from labkit.operators.convolution import cost
from labs import conv_timing


def planted(fft, library, rounds=9):
    """Timings with a small drift that both share: the ratio within a round is exact."""
    rows = []
    for kernel, seconds in fft.items():
        for at in range(rounds):
            rows += [(kernel, at, "fft", seconds * (1 + at)), (kernel, at, "library", library[kernel] * (1 + at))]
    return pd.DataFrame(rows, columns=["kernel", "round", "name", "seconds"])


@pytest.mark.parametrize(("library", "expected"), [
    ({3: 1.0, 7: 1.5, 15: 3.0, 31: 9.0}, 15),
    ({3: 3.0, 7: 1.5, 15: 3.0, 31: 9.0}, 15),  # a win below a loss is no crossover
    ({3: 3.0, 7: 3.0, 15: 3.0, 31: 3.0}, 3),
    ({3: 1.0, 7: 1.0, 15: 3.0, 31: 2.0}, None),  # equal at the largest
])  # fmt: skip
def test_the_crossover_of_planted_timings(library, expected):
    timings = planted(dict.fromkeys(library, 2.0), library)
    assert conv_timing.crossover(timings) == expected
    found = conv_timing.ratios(timings).set_index("kernel")["ratio"]
    assert dict(found) == pytest.approx({kernel: seconds / 2 for kernel, seconds in library.items()})


def test_what_was_not_timed_is_named():
    with pytest.raises(RequestError, match="there are no timings of winograd; time it"):
        conv_timing.ratios(planted({3: 1.0}, {3: 1.0}), "winograd")


def test_interleaved_counts_its_rounds():
    calls = []
    found = conv_timing.interleaved(lambda: calls.append("a"), lambda: calls.append("b"), rounds=5, least=1e-7)
    assert found.n == 5 and found.low <= found.value <= found.high
    assert min(calls.count("a"), calls.count("b")) >= 7  # twice warm, then once a round or more


def test_the_counted_crossover():
    kernels = [1, 3, 5, 7, 9, 15]
    found = conv_timing.counted_crossover(kernels, 2, 16, 64)
    for kernel in kernels:
        direct, fft = (sum(cost(method, 2, 16, 16, 64, 64, kernel, padding=kernel // 2)[:2])
                       for method in ("direct", "fft"))  # fmt: skip
        assert (fft < direct) == (kernel >= found)
    assert conv_timing.counted_crossover([1], 2, 16, 64) is None
