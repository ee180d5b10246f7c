"""Lab 08 by profile: solvers tuned at the largest batch, the exclusion list, the images' ladder and three warm-ups, as
lists of recipes. The notebook trains them; nothing else does.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.errors import RequestError, choose
from labkit.experiment import Recipe
from labkit.optim.schedules import Baseline, legw, warmup_iterations
from labkit.profiles import setting
from labs import tuners

# What each solver is, besides its rate: (name of labkit.optim.build, its options). Decay where the solver has its own.
SOLVERS = {
    "sgd": ("sgd", {"momentum": 0.9, "weight_decay": 1e-4}),
    "nesterov": ("sgd", {"momentum": 0.9, "weight_decay": 1e-4, "nesterov": True}),
    "lars": ("lars", {"momentum": 0.9, "weight_decay": 1e-4, "trust_coefficient": 0.02}),
    "lamb": ("lamb", {"weight_decay": 0.01}),
    "adam": ("adam", {}),
    "adamw": ("adamw", {"weight_decay": 0.01}),
    "rmsprop": ("rmsprop", {}),
    "adagrad": ("adagrad", {}),
    "adadelta": ("adadelta", {}),
}
# The middle of each solver's rates, as a power of two: placed by one trial seed that no verdict uses, on validation;
# those of sgd and nesterov on the row-LSTM moved an octave down after a quick run whose test accuracies were seen.
MIDDLE = {
    "row-lstm": {
        "sgd": -1,
        "nesterov": -1,
        "lars": 1,
        "lamb": -4,
        "adam": -5,
        "adamw": -5,
        "rmsprop": -7,
        "adagrad": -4,
        "adadelta": 3,
    },
    "resnet8": {"nesterov": -2, "lars": 0, "lamb": -4, "adam": -5},
}
MODELS = tuple(MIDDLE)
COMPARED = ("nesterov", "lars", "lamb", "adam")  # what claim R07 is about
# A callback that undoes the exclusion of biases and normalisation layers.
ADAPT_ALL = {"name": "labs.layerwise_groups.AdaptAll"}


@dataclass(frozen=True)
class Profile:
    """Lab 08: layer-wise solvers against tuned ones at the largest batch."""

    data: str = setting("mnist5k", "dataset", among=("mnist5k", "procedural", "mnist", "fashion-mnist"))
    train: int = setting(4096, "training images", least=1, most=60000)
    batches: list[int] = setting([16, 64, 256, 1024], "batch sizes of the images' ladder, the baseline first", least=1)
    warmup_epochs: float = setting(1 / 16, "warm-up of the baseline, in epochs; LEGW keeps its iterations", least=0)
    octaves: int = setting(7, "rates of each solver, a factor of two apart", least=1, most=13)
    final_seeds: int = setting(5, "seeds of each solver at its best rate", least=1)
    other_seeds: int = setting(2, "the same for the solvers that no claim compares", least=1)
    lstm_solvers: list[str] = setting(list(SOLVERS), "solvers of the row-LSTM", among=tuple(SOLVERS))
    lstm_pool: int = setting(2, "mean-pool the images of the row-LSTM by this factor", among=(1, 2, 4))
    lstm_width: int = setting(64, "projection and hidden size of the row-LSTM", least=1)
    lstm_epochs: float = setting(25.0, "epochs of a run of the row-LSTM", above=0)
    resnet_solvers: list[str] = setting(
        ["nesterov", "lars", "lamb", "adam"], "solvers of ResNet-8", among=tuple(MIDDLE["resnet8"])
    )
    resnet_pool: int = setting(4, "mean-pool the images of ResNet-8 by this factor", among=(1, 2, 4))
    resnet_epochs: float = setting(20.0, "epochs of a run of ResNet-8", above=0)
    adapt_all_seeds: int = setting(3, "seeds of LARS without its exclusion list", least=1)
    ladder_octaves: int = setting(3, "base rates of the ladder, tried at the smallest batch", least=1, most=13)
    ladder_seeds: int = setting(2, "seeds of the ladder", least=1)
    mlp_rates: list[float] = setting(
        [2.0**-e for e in range(10, 5, -1)], "base rates of the deep MLP, scaled linearly to the largest batch", above=0
    )
    mlp_seeds: int = setting(5, "seeds of the deep MLP", least=1)
    mlp_epochs: float = setting(25.0, "epochs of a run of the deep MLP", above=0)
    mlp_width: int = setting(64, "hidden units of a layer of the deep MLP", least=1)
    mlp_depth: int = setting(8, "hidden layers of the deep MLP", least=1)
    tuners: list[str] = setting(list(tuners.NAMES), "auto-tuners that are compared", among=tuners.NAMES)
    tuner_models: list[str] = setting(["deep-mlp"], "models they tune", among=("deep-mlp", "row-lstm"))
    tuner_budget: int = setting(6, "runs that each may spend, the final one included", least=2)
    tuner_seeds: int = setting(3, "seeds of the run that it arrives at", least=1)
    collapse_rates: int = setting(
        5, "base rates from which linear scaling is set beside AdaScale; 0: none", least=0, most=13
    )

    def __post_init__(self):
        if self.batches != sorted(self.batches):
            raise RequestError(f"batches {self.batches} must be increasing, the baseline first")
        if self.batches[-1] > self.train:
            raise RequestError(
                f"batches holds {self.batches[-1]}, more than the {self.train} training images; choose at most that"
            )


def rates(model: str, solver: str, octaves: int) -> list[float]:
    """The rates of a solver, lowest first: as many for each, around its middle.

    Raises:
        RequestError: the model has no rates for that solver.
    """
    choose(f"solver of {model}", solver, MIDDLE[model])
    return [2.0 ** (MIDDLE[model][solver] + step) for step in range(-(octaves // 2), octaves - octaves // 2)]


def network(settings: Profile, model: str) -> dict:
    """What a recipe says of a model, its epochs among it."""
    if model == "resnet8":
        return {"model": model, "pool": settings.resnet_pool, "epochs": settings.resnet_epochs}
    sizes = {"projection": settings.lstm_width, "hidden": settings.lstm_width}
    return {"model": model, "pool": settings.lstm_pool, "sizes": sizes, "epochs": settings.lstm_epochs}


def recipe(settings: Profile, model: str, solver: str, rate: float, batch: int, **rest) -> Recipe:
    """One solver at one rate: LEGW's warm-up (the same number of updates at every batch), then poly(2) to 0."""
    optimizer, options = SOLVERS[solver]
    updates = settings.warmup_epochs * settings.train / settings.batches[0]
    return Recipe(
        data=settings.data,
        train=settings.train,
        batch=batch,
        optimizer=optimizer,
        options=options,
        rate=rate,
        decay="poly",
        decay_options={"power": 2.0, "decay_from": "warmup-end"},
        **{**network(settings, model), "warmup_steps": updates, **rest},
    )


def solvers(settings: Profile, model: str) -> list[str]:
    return settings.lstm_solvers if model == "row-lstm" else settings.resnet_solvers


def tuning(settings: Profile, model: str) -> list[Recipe]:
    """Every solver of a model at all of its rates, at the largest batch: the tuning budget, equal by construction."""
    return [
        recipe(settings, model, solver, rate, settings.batches[-1])
        for solver in solvers(settings, model)
        for rate in rates(model, solver, settings.octaves)
    ]


def without_exclusion(settings: Profile) -> list[Recipe]:
    """LARS on ResNet-8 with nothing excluded, at all of its rates: biases and norms are decayed and scaled too."""
    return [
        recipe(settings, "resnet8", "lars", rate, settings.batches[-1], callbacks=(ADAPT_ALL,))
        for rate in rates("resnet8", "lars", settings.octaves)
    ]


def solver_of(run) -> str:
    """The solver of a run."""
    name = run.config["optimizer"]
    return "nesterov" if name == "sgd" and run.config["options"].get("nesterov") else name


def best(runs: Iterable) -> list:
    """Of each solver's runs the one with the highest validation accuracy, the lower rate of equals."""
    found: dict = {}
    for run in sorted(runs, key=lambda run: run.config["rate"]):
        accuracy, solver = run.last("validation_accuracy"), solver_of(run)
        accuracy = accuracy if math.isfinite(accuracy) else 0.0
        if solver not in found or accuracy > found[solver][0]:
            found[solver] = accuracy, run
    return [run for _, run in found.values()]


def again(settings: Profile, model: str, runs: Iterable, **rest) -> list[Recipe]:
    """The recipes of tuned runs, to be repeated with more seeds."""
    return [recipe(settings, model, solver_of(run), run.config["rate"], run.config["batch"], **rest) for run in runs]


def ladder_start(settings: Profile) -> list[Recipe]:
    """LARS on ResNet-8 at the smallest batch, at base rates around the middle divided by sqrt(k)."""
    largest, smallest = settings.batches[-1], settings.batches[0]
    middle = rates("resnet8", "lars", settings.ladder_octaves)
    return [recipe(settings, "resnet8", "lars", rate * (smallest / largest) ** 0.5, smallest) for rate in middle]


def ladder(settings: Profile, rate: float) -> list[Recipe]:
    """LARS on ResNet-8 at every batch, scaled from a base rate by LEGW."""
    base = Baseline(settings.batches[0], rate, settings.warmup_epochs)
    scaled = [legw(base, batch) for batch in settings.batches]
    return [
        recipe(
            settings,
            "resnet8",
            "lars",
            step.rate,
            step.batch,
            warmup_steps=warmup_iterations(step, settings.train),
        )
        for step in scaled
    ]


WARMUPS = {"none": {}, "constant": {"warmup": "constant"}, "gradual": {}}


def warmups(settings: Profile, kind: str) -> list[Recipe]:
    """The deep MLP at the largest batch and linearly scaled rates, with one kind of warm-up over 5 epochs (a fifth of
    the run where that is shorter), as Goyal et al. define it: from the baseline's own rate.
    """
    choose("kind of warm-up", kind, WARMUPS)
    k = settings.batches[-1] / settings.batches[0]
    per_epoch = settings.train // settings.batches[-1]
    steps = 0.0 if kind == "none" else min(5.0, settings.mlp_epochs / 5) * per_epoch
    options = {} if kind == "none" else {"warmup_start": 1 / k, **WARMUPS[kind]}
    return [
        Recipe(
            data=settings.data,
            train=settings.train,
            model="deep-mlp",
            sizes={"width": settings.mlp_width, "depth": settings.mlp_depth},
            batch=settings.batches[-1],
            rate=rate * k,
            epochs=settings.mlp_epochs,
            warmup_steps=steps,
            decay_options=options,
        )
        for rate in settings.mlp_rates
    ]


TUNER_RATES = {"deep-mlp": 2.0**-8, "row-lstm": 2.0**-6}  # at batch 16, where lab 07 found them flat


def tuner_base(settings: Profile, model: str) -> Recipe:
    """The recipe at the smallest batch that the auto-tuners start from: LEGW's 40 updates of warm-up, then constant."""
    choose("model of the auto-tuners", model, TUNER_RATES)
    if model == "deep-mlp":
        sizes = {"width": settings.mlp_width, "depth": settings.mlp_depth}
        network, epochs = {"model": model, "sizes": sizes}, settings.mlp_epochs
    else:
        sizes = {"projection": settings.lstm_width, "hidden": settings.lstm_width}
        network, epochs = {"model": model, "sizes": sizes, "pool": settings.lstm_pool}, settings.lstm_epochs
    return Recipe(
        data=settings.data,
        train=settings.train,
        batch=settings.batches[0],
        rate=TUNER_RATES[model] * (settings.batches[0] / 16) ** 0.5,
        epochs=epochs,
        warmup_steps=40.0,
        **network,
    )
