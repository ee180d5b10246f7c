"""Lab 13 by profile: which models and batches are measured, how often, and how long compiling may take."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.profiles import setting

MODELS = ("deep-mlp", "row-lstm", "resnet8", "resnet20", "resnet9")


@dataclass(frozen=True)
class Profile:
    """Lab 13: where the time of a training step goes."""

    models: list[str] = setting(["deep-mlp", "row-lstm", "resnet8"], "models whose step is traced", among=MODELS)
    model: str = setting("resnet8", "the model that is varied", among=MODELS)
    pool: int = setting(2, "side of the images is 28 over this", among=(1, 2))
    batch: int = setting(64, "batch size of the step that is traced and varied", least=1, most=4096)
    batches: list[int] = setting([1, 4, 16, 64, 256], "batch sizes that are compared", least=1, most=4096)
    repeats: int = setting(9, "profiled steps of which the fastest is kept", least=1)
    rounds: int = setting(9, "interleaved rounds of timings", least=2)
    gemm: int = setting(1024, "side of the square matrices of the measured peak", least=16, most=16384)
    copy_mib: int = setting(256, "size of the memory copy in MiB", least=1, most=4096)
    slow: float = setting(2.0, "a variant whose step takes more seconds than this is timed once only", above=0)
    compile_patience: float = setting(
        0.0, "seconds that torch.compile may take in a process of its own; 0: it is not tried", least=0
    )

    # The lesion study: eight cells, trained to a target.
    lesion_train: int = setting(4096, "training images of the lesion study, generated", least=1, most=60000)
    lesion_validation: int = setting(1024, "images on which its target is judged", least=64)
    lesion_noise: float = setting(0.4, "noise of the generated images", least=0)
    lesion_sizes: dict = setting({"projection": 64, "hidden": 64}, "sizes of the row-LSTM")
    lesion_batches: list[int] = setting([16, 128], "batch size with optimisation A off and on", least=1)
    lesion_rate: float = setting(0.2, "effective rate, rate / (1 - momentum), at the first batch", above=0, most=100)
    lesion_epochs: float = setting(20.0, "epochs at most", above=0, most=1000)
    lesion_target: float = setting(0.87, "validation accuracy that stops a run", above=0, most=1)
    lesion_seeds: int = setting(1, "seeds of each of the eight cells", least=1)

    # Fast against long training, and candidates on a reused set.
    general_target: float = setting(0.965, "target of the fast recipe", above=0, most=1)
    hasty_target: float = setting(0.95, "target of the hasty recipe, which has half the cycle", above=0, most=1)
    general_peak: float = setting(2.5, "peak of a cycle, in units of the constant rate", above=0, most=100)
    general_cycle: float = setting(12.0, "epochs of the fast recipe's cycle", above=0, most=1000)
    general_epochs: float = setting(24.0, "epochs of the long recipe's cycle", above=0, most=1000)
    general_seeds: int = setting(1, "seeds of the fast and of the long recipe", least=1)
    general_fresh: int = setting(4096, "images of the fresh draw", least=128)
    general_shift: float = setting(0.6, "noise of the shifted draw", least=0)
    tuned_factors: list[float] = setting([0.5, 1.0, 2.0], "candidates' rates, in units of the recipe's", above=0)
    tuned_batches: list[int] = setting([64], "batch sizes of the candidates", least=1)
    tuned_epochs: float = setting(4.0, "epochs of a candidate", above=0, most=1000)
    tuned_reused: int = setting(512, "images on which candidates are compared again and again", least=64)
    tuned_fresh: int = setting(8192, "fresh images for the candidates", least=128)

    def __post_init__(self):
        if self.model not in self.models:
            raise RequestError(f"model {self.model} is not among models {self.models}; add it there")
        for name, size in self.lesion_sizes.items():
            if name not in ("projection", "hidden") or type(size) is not int or not 1 <= size <= 4096:
                raise RequestError(f"lesion_sizes {self.lesion_sizes} not understood; projection and hidden, 1 to 4096")
        if len(self.lesion_batches) != 2 or self.lesion_batches[0] >= self.lesion_batches[1]:
            raise RequestError(f"lesion_batches {self.lesion_batches} must be two, the smaller first")
        if self.tuned_reused % 64 or self.tuned_fresh < 2 * self.tuned_reused:
            raise RequestError(
                f"tuned_reused {self.tuned_reused} must be a multiple of 64, and tuned_fresh {self.tuned_fresh} at least "
                "twice as many"
            )
        if max(*self.lesion_batches, *self.tuned_batches) > self.lesion_train:
            raise RequestError(f"a batch is larger than lesion_train ({self.lesion_train}); choose smaller ones")
