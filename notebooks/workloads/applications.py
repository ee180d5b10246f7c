"""The applications of *Large-batch training for LSTM and beyond*, as data: baseline recipe, ladder, target.

Imports without torch. The image side of the paper's largest application, ResNet-50 on ImageNet, is a script of its own
and has no recipe here; its seven published settings are in `data/published/resnet50_legw.csv`."""

import dataclasses
from dataclasses import dataclass

from labkit.errors import choose
from labkit.experiment import Recipe
from labkit.optim.schedules import RULES, Baseline, warmup_iterations


@dataclass(frozen=True)
class Application:
    """One application.

    Attributes:
        recipe: the baseline, without a warm-up; its batch is the first of the ladder.
        ladder: batch sizes.
        warmup_epochs: of the baseline under LEGW.
        target: {"metric", "value", "higher"}: the source's, or ours; what the baseline here should reach.
        note: what is whose."""

    name: str
    recipe: Recipe
    ladder: tuple
    warmup_epochs: float
    target: dict
    note: str

    def at(self, batch: int, rule: str = "legw", rate: float | None = None, timed: bool = False) -> Recipe:
        """The recipe at another batch by one of `labkit.optim.schedules.RULES`: peak rate, warm-up steps, and decay
        milestones that stay at their epochs.

        Args:
            rate: base rate; None is the baseline's.
            timed: the runs carry the target, so that clocks can answer when it was met.

        Raises:
            RequestError: unknown rule, a rate that is not positive, or a batch that the recipe cannot have.
        When not to use it: to find the best rate at a batch; a rule is for when that cannot be afforded."""
        choose("scaling rule", rule, RULES)
        base, own = self.recipe, Baseline(self.recipe.batch, rate or self.recipe.rate, self.warmup_epochs)
        if rule != "legw":
            own = Baseline(own.batch, own.rate)
        # At the baseline itself nothing is scaled, so the long warm-up of the linear rule is none.
        scaled = RULES["linear" if batch == base.batch and rule == "linear_with_warmup" else rule](own, batch)
        recipe = dataclasses.replace(base, batch=batch, rate=scaled.rate)
        before, per_epoch = (one.workload.steps_per_epoch(one) for one in (base, recipe))
        decay = dict(base.decay_options)
        if "milestones" in decay:
            decay["milestones"] = [step / before * per_epoch for step in decay["milestones"]]
        return dataclasses.replace(
            recipe, decay_options=decay, target=self.target if timed else None,
            warmup_steps=round(warmup_iterations(scaled, base.batch * before), 6),
            evaluate_every=base.evaluate_every and max(1, round(base.evaluate_every / before * per_epoch)))


def _treebank(name, window, hidden, dropout, init, clip, constant, total, gamma, value) -> Application:
    """The tutorial's configurations, with its loss: summed over the window, so that a rate of 1 is one of 20 or 35."""
    tokens, batch = 929_589, 20
    per_epoch = (tokens // batch - 1) // window
    recipe = Recipe(
        data="ptb", train=tokens, model="lstm-lm", options={}, evaluate_every=per_epoch,
        data_options={"window": window, "evaluation_streams": 1, "loss": "sum-over-time"},
        sizes={"hidden": hidden, "layers": 2, "dropout": dropout, "init": init},
        batch=batch, rate=1.0, epochs=float(total), clip=clip, decay="multistep",
        decay_options={"gamma": gamma, "milestones": [per_epoch * epoch for epoch in range(constant, total)]},
        evaluate_on=("validation",))
    return Application(name, recipe, (20, 40, 80, 160, 320, 640), 0.1,
                       {"metric": "test_perplexity", "value": value, "higher": False},
                       "Recipe and target: tensorflow/models tutorials/rnn/ptb. The ladder and the warm-up are ours.")


def _small(name, batch, ladder, warmup_epochs, target, note, **recipe) -> Application:
    metric, value = target
    return Application(name, Recipe(batch=batch, **recipe), ladder, warmup_epochs,
                       {"metric": metric, "value": value, "higher": not metric.endswith("perplexity")},
                       note)


_DIGITS = {"data": "mnist5k", "train": 4096, "epochs": 25.0, "batch": 16, "ladder": (16, 64, 256, 1024),
           "warmup_epochs": 10 / 64}
_ALL = (
    _small("mnist-lstm", target=("test_accuracy", 0.95), model="row-lstm", sizes={"projection": 64, "hidden": 64},
           pool=2, rate=2.0**-5, **_DIGITS,
           note="Lab 07's: 5000 of MNIST's images at 14 x 14. The paper's own has all of them and ends at batch 8192."),
    _small("deep-mlp", target=("test_accuracy", 0.92), model="deep-mlp", sizes={"width": 64, "depth": 8},
           rate=2.0**-7, **_DIGITS,
           note="Ours, in lab 07: a plain deep network that is touchy about its rate."),
    _treebank("ptb-small", 20, 200, 0.0, 0.1, 5.0, 4, 13, 0.5, 115.91),
    _treebank("ptb-large", 35, 1500, 0.65, 0.04, 10.0, 14, 55, 1 / 1.15, 78.29),
    _small("markov", 8, (8, 32, 128), 0.08, ("validation_perplexity", 2.5), data="markov", train=40_000,
           validation=8192, test=8192, model="lstm-lm", data_options={"vocabulary": 8, "order": 2, "branching": 3},
           sizes={"hidden": 64, "layers": 2},
           rate=0.5, epochs=8.0, clip=1.0, evaluate_on=("validation",),
           note="Ours, in lab 09: a text whose least perplexity, 2.38, is known exactly; the target is 5 % above."),
    _small("number-words", 8, (8, 32, 128), 0.16, ("test_bleu", 95.0), data="number-words", train=1408, model="gnmt",
           data_options={"limit": 2000, "vocabulary": 128, "label_smoothing": 0.0},
           sizes={"hidden": 64, "layers": 2, "dropout": 0.0, "init": 0.7}, rate=0.25, epochs=8.0, clip=1.0,
           decay="poly", decay_options={"power": 1.0}, evaluate_on=("validation",),
           note="Ours, in lab 09: English to German number words, in the shape of GNMT. BLEU comes at the end only."),
    _small("cifar-resnet", 128, (128, 256, 512, 1024, 2048, 4096), 0.5, ("test_accuracy", 0.91), data="cifar10",
           train=50_000, model="resnet20", options={"momentum": 0.9, "weight_decay": 1e-4}, rate=0.1, epochs=60.0,
           decay="poly", decay_options={"power": 2.0}, augment=("flip", "crop"), evaluate_on=("test",),
           note="Ours: a common recipe, not tuned here."),
)
NAMES = tuple(application.name for application in _ALL)


def get(name: str) -> Application:
    """The application of this name, one of `NAMES`.

    Raises:
        RequestError: there is none."""
    choose("application", name, NAMES)
    return _ALL[NAMES.index(name)]
