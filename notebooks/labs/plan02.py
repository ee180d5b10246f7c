"""Lab 02 by profile: what runs on real processes, which schedules are simulated, which networks are planned."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting

NETWORKS = (
    "LeNet-5",
    "AlexNet",
    "VGG-16",
    "GoogLeNet",
    "ResNet-18",
    "ResNet-50",
    "ResNet-152",
    "SqueezeNet",
    "DenseNet-121",
    "DenseNet-161",
    "DenseNet-201",
)


@dataclass(frozen=True)
class Profile:
    """Lab 02: splitting a network."""

    ranks: int = setting(4, "real processes that share one training step", among=(2, 4))
    batch: int = setting(16, "samples of their step, a multiple of the ranks", least=2, most=1024)
    stages: int = setting(4, "stages of the timetables that are drawn", least=2, most=8)
    microbatches: int = setting(8, "microbatches of the timetables that are drawn", least=1, most=16)
    bubble_stages: list[int] = setting([2, 4, 8], "stages whose bubble is counted", least=1, most=64)
    bubble_microbatches: list[int] = setting([1, 4, 16, 32], "microbatches whose bubble is counted", least=1, most=256)
    devices: int = setting(8, "imaginary devices of the planner", least=1, most=1024)
    plan_batch: int = setting(256, "samples of a planned step, on all devices together", least=1, most=2**20)
    batches: list[int] = setting([64, 256, 1024, 4096], "other batches that are planned", least=1, most=2**20)
    bandwidths: list[float] = setting([1e9, 1e10, 1e11], "bytes a second of the links that are planned", above=0)
    network: str = setting("AlexNet", "the network whose every choice is scored", among=("LeNet-5", "AlexNet"))
    networks: list[str] = setting(list(NETWORKS[1:]), "networks that are planned, by year", among=NETWORKS)

    def __post_init__(self):
        if self.batch % self.ranks:
            raise RequestError(f"batch {self.batch} is no multiple of ranks {self.ranks}; choose one that is")
        if self.batch % self.microbatches or self.microbatches < self.ranks:
            raise RequestError(f"microbatches {self.microbatches} must divide batch {self.batch}, and be ranks {self.ranks} or "
                               "more: a schedule of torch wants one for each stage")
        for batch in (self.plan_batch, *self.batches):
            if batch % self.devices:
                raise RequestError(f"a planned batch of {batch} is no multiple of devices {self.devices}; choose others")
