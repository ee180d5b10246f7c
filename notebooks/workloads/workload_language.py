"""Language modelling: LSTMs on a Markov text, English prose, the Penn Treebank.

`train`, `validation` and `test` of a recipe count tokens, `batch` counts parallel streams of text, and the options of
the data are those of `workloads.text.load` and, for all of them,

- `window` (20): tokens that a step reads of each stream, and through which it backpropagates;
- `evaluation_streams` (8): streams of an evaluation. One is the exact way, token by token; more are faster and a little
  pessimistic, as each starts from an empty state;
- `loss` (`mean`, or `sum-over-time`): see `workloads.task_language`."""

from workloads import text
from labkit.errors import RequestError, choose

NAMES, MODELS = text.NAMES, ("lstm-lm",)
DEFAULTS = {"window": 20, "evaluation_streams": 8, "loss": "mean"}
LOSSES = ("mean", "sum-over-time")
SIZES = {"hidden": (int, 1, 1 << 16), "layers": (int, 1, 64), "dropout": (float, 0.0, 0.99), "init": (float, 0.0, 10.0)}


def option(recipe, name: str):
    return recipe.data_options.get(name, DEFAULTS[name])


def check(recipe) -> None:
    for name in recipe.data_options:
        choose(f"option of {recipe.data}", name, (*DEFAULTS, *text.OPTIONS[recipe.data]))
    choose("loss", option(recipe, "loss"), LOSSES)
    for name in ("window", "evaluation_streams"):
        if type(option(recipe, name)) is not int or option(recipe, name) < 1:
            raise RequestError(f"{name} must be a whole number, 1 or more, not {option(recipe, name)!r}")
    for name, value in recipe.sizes.items():
        choose("size of lstm-lm", name, SIZES)
        kind, low, high = SIZES[name]
        if type(value) not in (int, kind) or not low <= value <= high:
            raise RequestError(f"{name} must be a {'whole ' * (kind is int)}number from {low} to {high}, not {value!r}")
    if (recipe.augment or recipe.noise is not None or recipe.pool != 1 or recipe.sampling != "shuffle"
            or recipe.curvature_every):
        raise RequestError("augment, noise, pool, sampling and curvature_every are for images; leave them out for "
                           f"{recipe.data}")
    if recipe.accumulate != 1:
        raise RequestError("a language model carries one state from step to step; accumulate must be 1")
    if steps_per_epoch(recipe) < 1:
        raise RequestError(f"batch {recipe.batch} leaves no window of {option(recipe, 'window')} tokens to a stream of "
                           f"the {recipe.train} training tokens; choose a smaller batch or window")


def steps_per_epoch(recipe) -> int:
    return (recipe.train // recipe.batch - 1) // option(recipe, "window")


def load(recipe) -> text.Text:
    own = {name: value for name, value in recipe.data_options.items() if name not in DEFAULTS}
    return text.load(recipe.data, train=recipe.train, validation=recipe.validation, test=recipe.test, **own)


def loaders(recipe, data, seed: int):
    """Training windows, and evaluation windows by part. The seed changes nothing: an epoch reads the text in order."""
    window, device = option(recipe, "window"), recipe.device
    parts = {"train": data.train[:max(len(data.validation), 1024)], "validation": data.validation, "test": data.test}
    return text.Streams(data.train, recipe.batch, window, device=device), {
        name: text.Streams(tokens, option(recipe, "evaluation_streams"), window, tail=True, device=device)
        for name, tokens in parts.items() if len(tokens)}


def build(recipe, data):
    from workloads.lstm_lm import LSTMLanguageModel

    return LSTMLanguageModel(data.vocabulary, **recipe.sizes)


def task(recipe, data, model, evaluations):
    from workloads.task_language import LanguageModel

    return LanguageModel(model, recipe.optimizer, recipe.schedule(), evaluations, loss=option(recipe, "loss"),
                         optimizer_options=recipe.options)


def source_modules(recipe) -> list[str]:
    return [__name__, "workloads.task_language", "workloads.lstm_lm", "workloads.text",
            "workloads.markov"]
