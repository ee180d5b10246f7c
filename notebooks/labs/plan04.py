"""Lab 04 by profile: what runs on real processes, what is simulated, what is timed."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 04: synchronous SGD."""

    ranks: list[int] = setting([1, 2, 4], "numbers of real processes", least=1, most=8)
    lightning: list[int] = setting([2, 4], "of these, those on which Lightning trains too", least=1, most=8)
    steps: int = setting(8, "updates after which parameters are compared", least=1, most=1000)
    batch: int = setting(24, "samples of an update, a multiple of every number of ranks", least=2, most=4096)
    draws: int = setting(400, "dropout masks drawn on every rank", least=2, most=100_000)
    padded: int = setting(10, "samples of the data set that does not divide", least=1, most=10_000)
    workers: list[int] = setting([1, 2, 4, 8, 16, 32], "numbers of simulated workers", least=1, most=1024)
    backups: list[int] = setting([1, 2, 4], "numbers of slowest workers that are not waited for", least=1, most=512)
    sim_steps: int = setting(4000, "simulated steps of each case and seed", least=2, most=10**6)
    sim_seeds: int = setting(1, "seeds of the simulator", least=1)
    sigma: float = setting(0.3, "spread of log-normal times (of their logarithm)", least=0.0, most=3.0)
    gauss: float = setting(0.15, "standard deviation of Gaussian times of mean 1", above=0.0, most=0.24)
    timed: int = setting(400, "gradients of a small network that are timed here", least=10, most=10**6)
    price: int = setting(32, "workers at which the price of backups is drawn", least=2, most=1024)
    bucket_samples: int = setting(8, "images of the backward that is timed", least=1, most=1024)
    bucket_repeats: int = setting(7, "backwards that are timed", least=1, most=1000)
    bucket_caps: list[float] = setting(
        [0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0], "bucket sizes, MB", above=0.0
    )
    bucket_ddp: list[float] = setting([0.1, 0.25, 1.0, 2.0, 25.0], "bucket_cap_mb whose buckets are counted", above=0.0)
    link_ranks: int = setting(8, "ranks of the imaginary ring", least=2, most=1024)
    link_shares: list[float] = setting(
        [0.3, 0.8, 2.0], "time of all words on the link, in backwards; the middle one is drawn", above=0.0
    )
    link_latency: float = setting(0.02, "time of one all-reduce of next to nothing, in backwards", least=0.0)
    norm_samples: list[int] = setting([64, 8, 4, 2], "samples that share batch statistics", least=2)
    norm_batch: int = setting(64, "samples of an update there", least=2, most=4096)
    norm_rate: float = setting(0.05, "its rate, the same for all", above=0.0)
    norm_epochs: int = setting(2, "epochs there", least=1)
    norm_seeds: int = setting(1, "seeds there", least=1)

    def __post_init__(self):
        if max(self.ranks) < 2:
            raise RequestError(f"ranks {self.ranks} must hold a number of 2 or more: one has nobody to talk to")
        for size in self.ranks:
            if self.batch % size:
                raise RequestError(f"batch {self.batch} is no multiple of {size} ranks; choose one that is")
            if self.batch // size < 2 or self.batch < size * (size + 1):
                raise RequestError(f"batch {self.batch} is too small for uneven shards on {size} ranks; "
                                   f"choose {size * (size + 1)} or more")  # fmt: skip
        for each in self.norm_samples:
            if self.norm_batch % each:
                raise RequestError(f"norm_batch {self.norm_batch} is no multiple of {each} samples; choose one that is")
        if not set(self.lightning) <= set(self.ranks):
            raise RequestError(f"lightning {self.lightning} must be some of ranks {self.ranks}")
