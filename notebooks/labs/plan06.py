"""Lab 06 by profile: how long the small trainings are, which rates they are tuned over, what real ranks repeat."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 06: what may be left unsaid. The network is 196-32-10, on the bundled digits."""

    steps: int = setting(128, "steps of every training, a multiple of all periods", least=16, most=4096)
    octaves: list[int] = setting([-3, -2, -1, 0], "rates 2^k that every method is tuned over", least=-12, most=6)
    seeds: int = setting(1, "seeds of every training", least=1, most=20)
    train: int = setting(4096, "training images", least=512, most=4096)
    target: float = setting(0.85, "validation accuracy whose first step is noted", above=0.0, most=1.0)
    periods: list[int] = setting([1, 4, 16, 64], "steps between two averages", least=1, most=1024)
    graphs: list[str] = setting(["ring", "torus", "exponential", "one-peer", "complete"], "graphs of gossip",
                                among=["ring", "torus", "exponential", "one-peer", "complete"])
    graph_workers: int = setting(16, "workers of gossip", least=4, most=64)
    draws: int = setting(200, "wires drawn of one vector, for bias and variance", least=20, most=10**5)
    ranks: int = setting(4, "real processes", least=2, most=8)
    rank_steps: int = setting(8, "steps that real processes repeat", least=4, most=512)
    throttled_steps: int = setting(16, "steps of each method on a slow link, a multiple of 16", least=16, most=512)
    liar_seeds: int = setting(1, "seeds of the trainings with a liar", least=1, most=20)

    def __post_init__(self):
        if odd := [tau for tau in self.periods if self.steps % tau]:
            raise RequestError(f"steps {self.steps} are no multiple of the periods {odd}; choose a multiple of all")
        if self.throttled_steps % 16:
            raise RequestError(f"throttled_steps {self.throttled_steps} is no multiple of 16; choose one")


def rates(settings: Profile, scale: float = 1.0) -> list[float]:
    """Rates in rising order: the octaves, times the scale of a method with momentum."""
    return [scale * 2.0**octave for octave in sorted(settings.octaves)]
