"""Lab 01 by profile: which networks are counted, which layers, kernels and batches are timed, and how often."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting

# Those of `labs.zoo`, which needs torch; a test compares them.
NETWORKS = ("LeNet-5", "AlexNet", "VGG-16", "GoogLeNet", "ResNet-18", "ResNet-50", "ResNet-152", "SqueezeNet",
            "DenseNet-121", "DenseNet-161", "DenseNet-201")

@dataclass(frozen=True)
class Profile:
    """Lab 01: the cost of one step."""

    # Counted, on shapes alone.
    shapes: int = setting(3, "shapes of each kind of layer that are counted", least=1, most=20)
    processors: list[int] = setting([4**n for n in range(13)], "processors of the schedules, increasing", least=1)
    networks: list[str] = setting(list(NETWORKS), "networks that are counted", among=NETWORKS)
    chain: list[int] = setting([16, 64, 144, 256], "layers of the chains with checkpoints", least=4, most=1024)

    # Convolutions.
    tiles: int = setting(5, "seeds of the error of Winograd's algorithms", least=2)
    kernel_images: int = setting(2, "images a batch where kernels are compared", least=1, most=256)
    kernel_channels: int = setting(16, "channels in and out there", least=1, most=512)
    kernel_side: int = setting(64, "side of those images", least=8, most=512)
    kernels: list[int] = setting([3, 7, 15, 31], "sides of the kernels, odd, increasing", least=1, most=127)

    # One step, measured.
    width: int = setting(2048, "inputs and outputs of the fully connected layers", least=16, most=8192)
    layers: int = setting(8, "of them in the stack", least=1, most=64)
    batches: list[int] = setting([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], "batch sizes, increasing", least=1, most=8192)
    network: str = setting("resnet8", "network whose inference is timed beside its training",
                          among=("deep-mlp", "row-lstm", "resnet8", "resnet20", "resnet9"))
    network_batches: list[int] = setting([1, 4, 16, 64, 256], "its batch sizes, increasing", least=1, most=4096)
    rounds: int = setting(5, "interleaved rounds of timings", least=2)
    kernel_rounds: int = setting(5, "the same where kernels are compared", least=2)
    gemm: int = setting(1024, "side of the square matrices of the measured peak", least=16, most=16384)
    copy_mib: int = setting(256, "size of the memory copy in MiB", least=1, most=4096)

    # Extra.
    workspaces: list[int] = setting([1, 2, 4, 8, 16, 64], "workspaces of the micro-batches in MiB, increasing", least=1)
    rounding_seeds: int = setting(5, "seeds of the weights of low precision", least=2)

    def __post_init__(self):
        for name in ("chain", "kernels", "batches", "network_batches", "processors", "workspaces"):
            values = getattr(self, name)
            if values != sorted(values) or len(values) < 2:
                raise RequestError(f"{name} {values} must be two sizes or more, increasing")
        if any(kernel % 2 == 0 or kernel > self.kernel_side for kernel in self.kernels):
            raise RequestError(f"kernels {self.kernels} must be odd, and no larger than kernel_side {self.kernel_side}")
