"""Lab 09 by profile: what it trains, as lists of recipes. The notebook trains them; nothing else does."""

import dataclasses
from dataclasses import dataclass

from workloads import applications
from workloads.applications import Application
from labkit.errors import RequestError
from labkit.experiment import Recipe
from labkit.profiles import setting
from labs.factorial import RULES, Table

STUDIES = ("markov", "words", "prose")
# The seven octaves of each solver end at this power of two; fewer are the middle ones.
HIGHEST = {"sgd": 4, "lars": 8, "lamb": -1, "adam": -3, "adamw": -3, "rmsprop": -3, "adagrad": 0, "adadelta": 5}
OPTIONS = {"sgd": {"momentum": 0.9}, "lars": {"momentum": 0.9}}


@dataclass(frozen=True)
class Profile:
    """Lab 09: scaling rules and solvers on a Markov text, number words and prose."""

    markov_train: int = setting(40_000, "training tokens of the Markov text", least=100)
    markov_epochs: float = setting(8.0, "epochs on the Markov text", above=0)
    markov_batches: list[int] = setting([8, 128], "its batches, in streams of text, the baseline first", least=1)
    markov_rates: list[float] = setting([0.5, 1.0], "its base rates", above=0)
    markov_hidden: int = setting(64, "width of its two LSTM layers", least=1)
    words_train: int = setting(1408, "training pairs of the number words", least=16)
    words_epochs: float = setting(8.0, "epochs on the number words", above=0)
    words_batches: list[int] = setting([8, 128], "their batches, in pairs, the baseline first", least=1)
    words_rates: list[float] = setting([0.25], "their base rates", above=0)
    words_hidden: int = setting(64, "width of the encoder's and decoder's layers", least=1)
    prose_train: int = setting(60_000, "training tokens of the prose", least=100)
    prose_epochs: float = setting(3.0, "epochs on the prose", above=0)
    prose_batches: list[int] = setting([8, 128], "its batches, the baseline first", least=1)
    prose_rates: list[float] = setting([], "its base rates; none: it is not trained", above=0, empty=True)
    rules: list[str] = setting(["legw", "square_root", "linear", "linear_with_warmup"], "scaling rules", among=RULES)
    solvers: list[str] = setting(["adam"], "solvers that are tuned at the largest batch", among=tuple(HIGHEST),
                                 empty=True)
    octaves: int = setting(2, "octaves of rates that each solver is tuned over", least=1, most=7)
    repeats: int = setting(1, "seeds of what is judged; the first of them tunes", least=1)
    trap_steps: int = setting(240, "updates of the runs that show the summed loss and the dropped state", least=2)

    def __post_init__(self):
        for study in STUDIES:
            batches = getattr(self, f"{study}_batches")
            if batches != sorted(batches):
                raise RequestError(f"{study}_batches {batches} must be increasing, the baseline first")
            application(self, study)  # refuses a batch that is too large for the data


def application(settings: Profile, study: str) -> Application:
    """The application as this profile runs it."""
    known = applications.get({"words": "number-words"}.get(study, "markov"))
    ladder = tuple(getattr(settings, f"{study}_batches"))
    changes = {"train": getattr(settings, f"{study}_train"), "epochs": getattr(settings, f"{study}_epochs")}
    if study == "prose":
        changes |= {"data": "prose", "data_options": {"vocabulary": 1000}, "validation": 8192, "test": 8192}
    else:
        changes["sizes"] = {**known.recipe.sizes, "hidden": getattr(settings, f"{study}_hidden")}
    own = dataclasses.replace(known, ladder=ladder, recipe=dataclasses.replace(
        known.recipe, batch=ladder[0], evaluate_on=(), **changes))
    for batch in ladder:
        own.at(batch)
    return own


def table(settings: Profile, study: str) -> Table:
    """The axes of a study: the cells that `Application.at` visits are those of this table."""
    own = application(settings, study)
    samples = own.recipe.batch * own.recipe.workload.steps_per_epoch(own.recipe)
    return Table(own.ladder, samples, own.warmup_epochs, 5.0)


def tuning(settings: Profile, study: str) -> list[Recipe]:
    """The baseline at every base rate."""
    own = application(settings, study)
    return [own.at(own.recipe.batch, "legw", rate) for rate in getattr(settings, f"{study}_rates")]


def scaling(settings: Profile, study: str, flat) -> list[Recipe]:
    """The baseline at every flat base rate, and each rule from there to every larger batch; on prose LEGW alone."""
    own = application(settings, study)
    rules = [rule for rule in settings.rules if study != "prose" or rule == "legw"]
    return [own.at(batch, rule, rate) for rate in flat for batch in own.ladder
            for rule in (rules if batch > own.recipe.batch else ["legw"])]


def rates(solver: str, octaves: int) -> list[float]:
    """The middle `octaves` of the seven rates of a solver."""
    skip = (7 - octaves) // 2
    return [2.0 ** (HIGHEST[solver] - 6 + skip + at) for at in range(octaves)]


def solver(settings: Profile, study: str, name: str, rate: float) -> Recipe:
    """A solver at the largest batch, without a warm-up, everything else as in the baseline."""
    own = application(settings, study)
    recipe = dataclasses.replace(own.at(own.ladder[-1], "fixed"), optimizer=name, options=OPTIONS.get(name, {}))
    return dataclasses.replace(recipe, rate=rate, warmup_steps=0.0)


def solvers(settings: Profile, study: str) -> list[Recipe]:
    return [solver(settings, study, name, rate) for name in settings.solvers
            for rate in rates(name, settings.octaves)]
