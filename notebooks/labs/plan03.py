"""Lab 03 by profile: which sizes are counted on virtual ranks, and what is timed on real ones."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 03: what an all-reduce costs. A word is one float32, 4 bytes."""

    sizes: list[int] = setting(
        [2, 3, 4, 5, 6, 7, 8, 12, 16], "numbers of virtual ranks on which messages are counted", least=2, most=64
    )
    words: int = setting(1680, "words reduced there; 1680 is divisible by 2 to 8, 12, 16", least=1, most=10**6)
    draws: int = setting(20, "random pairs of ranks and words held against the bounds", least=1, most=1000)
    ranks: list[int] = setting([2, 3, 4], "numbers of real processes", least=2, most=16)
    ping_words: list[int] = setting(
        [1, 64, 1024, 8192, 65536, 524288], "words of a ping-pong between two processes", least=1, most=2**26
    )
    ping_repeats: int = setting(15, "round trips of each size, of which the fastest is taken", least=1)
    time_words: list[int] = setting(
        [64, 4096, 65536, 524288], "words of the all-reduces that are timed", least=1, most=2**26
    )
    time_repeats: int = setting(5, "interleaved rounds of timings", least=1)
    calibrations: int = setting(3, "how often the ping-pong is measured and fitted", least=1, most=50)

    def __post_init__(self):
        for name in ("ping_words", "time_words"):
            if len(getattr(self, name)) < 2:
                raise RequestError(f"{name} {getattr(self, name)} is one size; a fit needs two or more")
