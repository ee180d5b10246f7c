"""Lab 05 by profile: delays, rates and seeds of the trainings, and how much is done with real processes."""

import math
from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 05: what a late gradient costs. The network is 784-64-10, on the bundled digits."""

    train: int = setting(4096, "training images", least=512, most=4096)
    edge_delays: list[int] = setting([0, 1, 2, 4, 8, 16], "delays on the quadratic", least=0, most=64)
    edge_steps: int = setting(8000, "updates of each trial of the bisection", least=1000)
    delays: list[int] = setting([0, 1, 2, 4, 8, 16], "constant delays of the network", least=0, most=64)
    momenta: list[float] = setting([0.0, 0.9], "momenta of the network with constant delay", least=0.0, most=0.99)
    steps: int = setting(1280, "updates of a training with constant delay", least=64)
    per_octave: int = setting(1, "rates tried for each doubling", least=1, most=4)
    seeds: int = setting(1, "seeds of every training", least=1, most=20)
    workers: list[int] = setting([1, 4, 16], "workers whose order is that of exponential times", least=1, most=64)
    implicit_momenta: list[float] = setting(
        [0.0, 0.3, 0.6, 0.9], "momenta with those workers, each at its own best rate", least=0.0, most=0.99
    )
    implicit_steps: int = setting(320, "updates of a training with random delay", least=32)
    race_workers: list[int] = setting([4, 16], "workers of the race to the target", among=[4, 8, 16, 32])
    race_times: list[str] = setting(
        ["constant", "lognormal", "straggler"], "kinds of compute time of the race",
        among=["constant", "lognormal", "straggler", "exponential"],
    )
    race_bounds: list[int] = setting([1, 3, 8], "bounds of stale-synchronous in the race", least=0, most=64, empty=True)
    race_rates: int = setting(5, "rates, an octave apart, of each method of the race", least=2, most=8)
    target: float = setting(0.3, "training loss, on 512 images, that ends the race", above=0.0, most=2.0)
    shards: list[int] = setting([1, 2, 4], "shards of the simulated server", least=1, most=64)
    shard_workers: list[int] = setting([1, 4, 16, 64, 128], "workers of the simulated server", least=1, most=512)
    ranks: int = setting(4, "real workers beside the server", least=2, most=8)
    rank_updates: int = setting(60, "gradients of each real worker", least=4)
    lost_repeats: int = setting(1, "how often the race of lost updates is run", least=1)

    def __post_init__(self):
        for name in ("delays", "momenta", "implicit_momenta"):
            given = getattr(self, name)
            if 0 not in given:
                raise RequestError(f"{name} {given} must hold 0, which all others are compared with")
        if {*range(1, 33)} <= {*self.delays}:
            raise RequestError("delays must leave out one of 1 to 32, which exercise 05.3 predicts")
        least = 32 * (max(self.edge_delays) + 1)
        if self.edge_steps < least:
            raise RequestError(f"edge_steps {self.edge_steps} is too few for the longest of edge_delays, "
                               f"{max(self.edge_delays)}; it must be at least {least}")


def rates(delay: int, momentum: float, per_octave: int = 1) -> list[float]:
    """Rates that are tried with a constant delay: from 1 (momentum 0.9: 1/8) down to 1/8 of the largest that a delay of
    that length might bear, 1 / delay; all powers of two are among them, so rate / delay is for every power of two."""
    top = 3 * (momentum > 0)
    octaves = 3 + math.ceil(math.log2(max(delay, 1)))
    return [2.0 ** -(top + n / per_octave) for n in range(octaves * per_octave + 1)]


def implicit_rates(momentum: float, workers: int) -> list[float]:
    """Five octaves below about the largest that so many workers and this momentum might bear."""
    top = math.floor(math.log2((1 - momentum) / max(1, workers / 4)))
    return [2.0 ** (top - n) for n in range(5)]
