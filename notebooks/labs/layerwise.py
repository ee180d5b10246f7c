"""Lab 08's reading of its runs: every solver over its rates at the largest batch, tuned on validation with one seed and
read on the test images; the exclusion list; the images' ladder; three warm-ups. Figures are in `layerwise_figures`.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from labkit.rules.general import published
from labs import plan08
from labs.rules_layerwise import finite
from labs.rules_scaling import standard_error

FIELDS = ("data", "train", "model", "sizes", "pool", "epochs", "batch", "optimizer", "options", "decay")
LABELS = {
    "sgd": "SGD",
    "nesterov": "Nesterov",
    "lars": "LARS",
    "lamb": "LAMB",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
}


def matching(runs: Iterable, recipe, *beside: str) -> list:
    """Finished runs of this recipe, whatever their rate and whatever the fields named in `beside`."""
    wanted = {name: getattr(recipe, name) for name in FIELDS if name not in beside}
    wanted["callbacks"] = list(recipe.callbacks) or None
    found = [run for run in runs if all(run.config.get(key) == value for key, value in wanted.items())]
    return [
        run
        for run in found
        if run.status == "finished" and ("batch" in beside or run.config["warmup_steps"] == recipe.warmup_steps)
    ]


def by_seed(runs: Iterable) -> dict:
    """{seed: its newest run}."""
    return {run.header.repeat: run for run in sorted(runs, key=lambda run: run.header.began)}


class Arm:
    """The runs of one recipe over its rates.

    Args:
        runs: its runs, as from `matching`.
        rates: those that were to be tried.
        images: test images, for standard errors.
    """

    def __init__(self, runs: Iterable, rates, images: int = 452):
        runs = list(runs)
        self.rates, self.images = sorted(rates), images
        self.runs = {rate: by_seed(run for run in runs if run.config["rate"] == rate) for rate in self.rates}
        self.runs = {rate: found for rate, found in self.runs.items() if found}

    def validation(self) -> dict:
        """{rate: validation accuracy of the first seed}."""
        return {rate: finite(found[min(found)].last("validation_accuracy")) for rate, found in self.runs.items()}

    @property
    def best(self) -> float | None:
        """The rate with the highest validation accuracy, the lower of equals."""
        tried = self.validation()
        return max(tried, key=tried.get) if tried else None

    def values(self, metric: str = "test_accuracy") -> list[float]:
        """Final values at the best rate, over the seeds."""
        return [finite(run.last(metric)) for run in self.runs[self.best].values()] if self.runs else []

    @property
    def mean(self) -> float:
        return float(np.mean(self.values())) if self.runs else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean: test images and seeds."""
        return standard_error(self.values(), self.images) if self.runs else math.nan

    @property
    def seconds(self) -> float:
        """Median seconds of training over all rates."""
        found = [run.seconds("train") for runs in self.runs.values() for run in runs.values()]
        return float(np.median(found)) if found else math.nan

    def row(self) -> dict:
        """What a table says of the arm."""
        at_end = len(self.rates) > 1 and self.best in (self.rates[0], self.rates[-1])
        best = "" if self.best is None else f"2^{math.log2(self.best):g}" + (", an end of its rates" if at_end else "")
        return {
            "best rate": best,
            "rates tried": len(self.runs),
            "seeds": len(self.values()),
            "test accuracy": self.mean,
            "s.e.": self.error,
            "seconds": self.seconds,
        }


def arms(runs: Iterable, settings, model: str) -> dict[str, Arm]:
    """{solver: its arm} of a model at the largest batch; solvers without runs are left out."""
    runs, found = list(runs), {}
    for solver in plan08.MIDDLE[model]:
        recipe = plan08.recipe(settings, model, solver, 1.0, settings.batches[-1])
        arm = Arm(matching(runs, recipe), plan08.rates(model, solver, 13))
        if arm.runs:
            arm.rates = sorted(arm.runs)
            found[solver] = arm
    return found


def exclusion(runs: Iterable, settings) -> dict[str, Arm]:
    """{"excluded", "nothing excluded"}: LARS on ResNet-8 with and without its exclusion list."""
    runs, found = list(runs), {}
    for name, callbacks in (("excluded", ()), ("nothing excluded", (plan08.ADAPT_ALL,))):
        recipe = plan08.recipe(settings, "resnet8", "lars", 1.0, settings.batches[-1], callbacks=callbacks)
        arm = Arm(matching(runs, recipe), plan08.rates("resnet8", "lars", 13))
        if arm.runs:
            arm.rates = sorted(arm.runs)
            found[name] = arm
    return found


def ladder(runs: Iterable, settings, rate: float | None) -> dict[int, list]:
    """{batch: runs of its seeds} of LARS on ResNet-8, scaled by LEGW from this base rate."""
    found = {}
    for recipe in plan08.ladder(settings, rate) if rate else ():
        same = [run for run in matching(runs, recipe, "batch") if run.config["batch"] == recipe.batch]
        mine = [run for run in same if math.isclose(run.config["rate"], recipe.rate)]
        if mine:
            found[recipe.batch] = list(by_seed(mine).values())
    return found


def ladder_rate(runs: Iterable, settings) -> float | None:
    """The base rate of the ladder: the best on validation at the smallest batch among those tried there."""
    recipe = plan08.ladder_start(settings)[0]
    tried = [
        run for run in matching(runs, recipe) if run.config["rate"] in [r.rate for r in plan08.ladder_start(settings)]
    ]
    chosen = plan08.best(tried)
    return chosen[0].config["rate"] if chosen else None


def warmups(runs: Iterable, settings) -> dict[str, dict]:
    """{kind: {peak rate: test accuracies over the seeds}} of the deep MLP."""
    runs, found = list(runs), {}
    for kind in plan08.WARMUPS:
        for recipe in plan08.warmups(settings, kind):
            same = [
                run
                for run in matching(runs, recipe)
                if run.config["rate"] == recipe.rate and run.config["decay_options"] == recipe.decay_options
            ]
            values = [finite(run.last("test_accuracy")) for run in by_seed(same).values()]
            if values:
                found.setdefault(kind, {})[recipe.rate] = values
    return found


def convergence_points() -> pd.DataFrame:
    """MLPerf's reference convergence points of LARS on ResNet-50, with what their warm-up is in updates."""
    rows = published("mlperf_rcp_resnet.csv")
    return rows.assign(**{"warm-up updates": (rows["warmup_epochs"] * 1281167 / rows["batch"]).round().astype(int)})


ABLATION = pd.DataFrame(  # PaddlePaddle/Paddle issue 26733: ResNet-50 on ImageNet, top-1
    {
        "batch": [2048, 8192, 16384],
        "nothing excluded": [75.34, 74.28, 75.4],
        "batch norm and biases excluded": [76.51, 76.14, 76.14],
    }
)


def dialect_table(table: dict) -> pd.DataFrame:
    """The dialects of `labkit.optim.dialects.LARS` or `.LAMB`: what each names, and how it differs from the paper's."""
    rows = []
    for name, dialect in table.items():
        given = table["paper"].options if name == "paper" else dialect.options
        differs = "(the rule)" if name == "paper" else ", ".join(f"{k} {v}" for k, v in given.items()) or "no option"
        rows.append({"dialect": name, "names": dialect.names, "options that differ": differs, "beyond": dialect.beyond})
    return pd.DataFrame(rows)
