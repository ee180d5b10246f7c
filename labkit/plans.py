"""What each lab trains, as lists of recipes that follow from its profile. The notebook trains them; nothing else does.
"""

from labkit.experiment import Recipe
from labkit.optim.factorial import RULES, Cell, Table
from labkit.profiles import Profile07, Profile11


def table(settings: Profile07, batches=None) -> Table:
    """The axes of lab 07's table."""
    return Table(
        tuple(batches or settings.batches), settings.train, settings.warmup_epochs, settings.long_warmup_epochs
    )


def _recipe(settings: Profile07, cell: Cell, **rest) -> Recipe:
    per_epoch = settings.train // cell.batch
    options = {
        "data": settings.data,
        "train": settings.train,
        "epochs": settings.epochs,
        "evaluate_every": 2 * per_epoch,
        **rest,
    }
    return Recipe(batch=cell.batch, rate=cell.rate, warmup_steps=cell.warmup_steps, **options)


def mlp(settings: Profile07) -> dict:
    return {"model": "deep-mlp", "sizes": {"width": settings.mlp_width, "depth": settings.mlp_depth}}


def lstm(settings: Profile07) -> dict:
    return {
        "model": "row-lstm",
        "sizes": {"projection": settings.lstm_width, "hidden": settings.lstm_width},
        "pool": settings.lstm_pool,
    }


def mlp_table(settings: Profile07) -> list[Recipe]:
    """The deep MLP over the table: all of it, or the cells on the rules' paths."""
    axes = table(settings)
    cells = axes.factorial(settings.mlp_rates) if settings.factorial else axes.paths(settings.mlp_rates)
    return [_recipe(settings, cell, **mlp(settings)) for cell in cells]


def lstm_table(settings: Profile07) -> list[Recipe]:
    """The row-LSTM over the table, at its own batch sizes and rules."""
    axes = table(settings)
    cells = (
        axes.factorial(settings.lstm_rates)
        if settings.factorial
        else axes.paths(settings.lstm_rates, [rule for rule in RULES if rule in settings.lstm_rules])
    )
    return [_recipe(settings, cell, **lstm(settings)) for cell in cells if cell.batch in settings.lstm_batches]


def adaptive(settings: Profile07) -> list[Recipe]:
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


def equal_steps(settings: Profile07) -> list[Recipe]:
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


def curvature(settings: Profile07) -> list[Recipe]:
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


def repeated(settings: Profile11) -> Recipe:
    """Lab 11's recipe: one cycle of warm-up and cosine, trained to the end with an evaluation every few steps, so that
    the same run can be read as if it had been evaluated less often.
    """
    steps = settings.epochs * (settings.train // settings.batch)
    return Recipe(
        data=settings.data,
        train=settings.train,
        pool=settings.pool,
        validation=settings.validation or None,
        test=settings.test or None,
        evaluate_on=("validation",),
        model=settings.model,
        sizes=settings.sizes,
        batch=settings.batch,
        rate=settings.rate,
        epochs=settings.epochs,
        warmup_steps=round(steps / 10),
        decay="cosine",
        options={"momentum": 0.9, "nesterov": True},
        evaluate_every=settings.evaluate_every,
        target={"metric": "validation_accuracy", "value": settings.target, "higher": True},
    )
