"""Lab 07 by profile: what it trains, as lists of recipes. The notebook trains them; nothing else does."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.experiment import Recipe
from labs.factorial import RULES, Cell, Table
from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 07: batch x peak rate x warm-up."""

    data: str = setting("mnist5k", "dataset", among=("mnist5k", "procedural", "mnist", "fashion-mnist"))
    train: int = setting(4096, "training images", least=1, most=60000)
    batches: list[int] = setting([16, 64, 256, 1024], "batch sizes of the ladder, the baseline first", least=1)
    epochs: float = setting(25.0, "epochs of every run", above=0)
    warmup_epochs: float = setting(
        10 / 64, "warm-up of the baseline recipe, in epochs; LEGW keeps its iterations", least=0
    )
    long_warmup_epochs: float = setting(5.0, "the fixed warm-up that is compared with it, in epochs", least=0)
    mlp_width: int = setting(64, "hidden units of a layer of the deep MLP", least=1)
    mlp_depth: int = setting(8, "hidden layers of the deep MLP", least=1)
    mlp_rates: list[float] = setting(
        [2.0**-e for e in range(10, 5, -1)], "base rates of the deep MLP at the smallest batch", above=0
    )
    mlp_seeds: int = setting(3, "seeds of the deep MLP, counted from the first of `seeds`", least=1)
    lstm_pool: int = setting(2, "mean-pool the images of the row-LSTM by this factor", among=(1, 2, 4))
    lstm_width: int = setting(64, "projection and hidden size of the row-LSTM", least=1)
    lstm_rates: list[float] = setting(
        [2.0**-e for e in range(8, 3, -1)], "base rates of the row-LSTM at the smallest batch", above=0
    )
    lstm_batches: list[int] = setting([16, 1024], "batch sizes at which the row-LSTM is trained", least=1)
    lstm_seeds: int = setting(1, "seeds of the row-LSTM's table, counted from the first of `seeds`", least=1)
    lstm_rules: list[str] = setting(
        ["legw", "linear"],
        "scaling rules that the row-LSTM follows",
        among=("fixed", "square_root", "linear", "linear_with_warmup", "legw"),
    )
    adaptive: list[str] = setting(
        [], "adaptive solvers that are compared", among=("adam", "rmsprop", "adagrad", "adadelta"), empty=True
    )
    adaptive_rates: list[float] = setting([2.0**-e for e in range(10, 3, -1)], "their rates", above=0)
    adadelta_rates: list[float] = setting(
        [2.0**e for e in range(-2, 5)], "the rates of Adadelta, whose steps are small by themselves", above=0
    )
    factorial: bool = setting(
        False, "train the whole table of batch x rate x warm-up, not only the cells on the rules' paths"
    )
    equal_steps_batches: list[int] = setting(
        [64], "batches that also train for as many optimizer steps as the smallest batch does", least=1, empty=True
    )
    curvature_batches: list[int] = setting([64, 256], "batch sizes at which the curvature is followed", least=1)
    curvature_steps: int = setting(300, "optimizer steps of a curvature run at most", least=10)
    curvature_rate: float = setting(2.0**-4, "rate of the curvature runs, equal at every batch", above=0)
    curvature_seeds: int = setting(1, "seeds of the curvature runs", least=1)

    def __post_init__(self):
        for name in ("batches", "lstm_batches", "equal_steps_batches", "curvature_batches"):
            for batch in getattr(self, name):
                if batch > self.train:
                    raise RequestError(
                        f"{name} holds {batch}, more than the {self.train} training images; choose batches of at most {self.train}"
                    )
        if self.batches != sorted(self.batches):
            raise RequestError(f"batches {self.batches} must be increasing, the baseline first")
        for name in ("lstm_batches", "equal_steps_batches"):
            for batch in getattr(self, name):
                if batch not in self.batches:
                    raise RequestError(f"{name} holds {batch}, which is not one of batches {self.batches}; set both")


def table(settings: Profile, batches=None) -> Table:
    """The axes of lab 07's table."""
    return Table(
        tuple(batches or settings.batches), settings.train, settings.warmup_epochs, settings.long_warmup_epochs
    )


def _recipe(settings: Profile, cell: Cell, **rest) -> Recipe:
    per_epoch = settings.train // cell.batch
    options = {
        "data": settings.data,
        "train": settings.train,
        "epochs": settings.epochs,
        "evaluate_every": 2 * per_epoch,
        **rest,
    }
    return Recipe(batch=cell.batch, rate=cell.rate, warmup_steps=cell.warmup_steps, **options)


def mlp(settings: Profile) -> dict:
    return {"model": "deep-mlp", "sizes": {"width": settings.mlp_width, "depth": settings.mlp_depth}}


def lstm(settings: Profile) -> dict:
    return {
        "model": "row-lstm",
        "sizes": {"projection": settings.lstm_width, "hidden": settings.lstm_width},
        "pool": settings.lstm_pool,
    }


def mlp_table(settings: Profile) -> list[Recipe]:
    """The deep MLP over the table: all of it, or the cells on the rules' paths."""
    axes = table(settings)
    cells = axes.factorial(settings.mlp_rates) if settings.factorial else axes.paths(settings.mlp_rates)
    return [_recipe(settings, cell, **mlp(settings)) for cell in cells]


def lstm_table(settings: Profile) -> list[Recipe]:
    """The row-LSTM over the table, at its own batch sizes and rules."""
    axes = table(settings)
    cells = (
        axes.factorial(settings.lstm_rates)
        if settings.factorial
        else axes.paths(settings.lstm_rates, [rule for rule in RULES if rule in settings.lstm_rules])
    )
    return [_recipe(settings, cell, **lstm(settings)) for cell in cells if cell.batch in settings.lstm_batches]


def adaptive(settings: Profile) -> list[Recipe]:
    """Adaptive solvers with their own defaults, over their rates, without a warm-up: the first at every batch of the
    row-LSTM, the others at the largest.
    """
    recipes = []
    for solver in settings.adaptive:
        rates = settings.adadelta_rates if solver == "adadelta" else settings.adaptive_rates
        for batch in settings.lstm_batches if solver == settings.adaptive[0] else settings.lstm_batches[-1:]:
            recipes += [
                _recipe(settings, Cell(batch, rate, 0.0), optimizer=solver, options={}, **lstm(settings))
                for rate in rates
            ]
    return recipes


def equal_steps(settings: Profile) -> list[Recipe]:
    """The row-LSTM at square-root rates from the two highest base rates but one, for as many optimizer steps as the
    smallest batch takes: more epochs, the same number of updates.
    """
    axes, recipes = table(settings), []
    for rate in sorted(settings.lstm_rates)[-3:-1] or settings.lstm_rates:
        for cell in axes.path("square_root", rate):
            if cell.batch in settings.equal_steps_batches:
                per_epoch = settings.train // cell.batch
                steps = settings.epochs * (settings.train // axes.batches[0])
                recipes.append(
                    _recipe(
                        settings,
                        cell,
                        **{"epochs": steps / per_epoch, "evaluate_every": max(1, round(steps / 12)), **lstm(settings)},
                    )
                )
    return recipes


def curvature(settings: Profile) -> list[Recipe]:
    """The row-LSTM at one rate and every batch, for equally many steps, with the curvature probed forty times."""
    recipes = []
    for batch in settings.curvature_batches:
        epochs = settings.curvature_steps / (settings.train // batch)
        recipes.append(
            _recipe(
                settings,
                Cell(batch, settings.curvature_rate, 0.0),
                **{
                    "epochs": epochs,
                    "evaluate_every": 0,
                    "curvature_every": max(1, settings.curvature_steps // 40),
                    **lstm(settings),
                },
            )
        )
    return recipes
