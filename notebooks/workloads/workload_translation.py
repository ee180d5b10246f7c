"""Translation by an LSTM encoder and decoder with attention: number words, or two line-aligned files.

`train`, `validation`, `test` and `batch` of a recipe count pairs of sentences. Options of the data are those of
`workloads.pairs.OPTIONS` and, for all of them, `label_smoothing` of the training loss and, for the
translations at the end, `beam` (1: greedy), `length_penalty`, and `sentences` (translate so many of each part at most;
0: all). The end gives `<part>_bleu` (sacrebleu's corpus BLEU, 0 to 100) and `<part>_exact` (share of translations that
are the reference letter for letter). The BLEU of number words counts runs of characters, not of words: a German number
below a million is one word. It is no paper's BLEU of words, and high long before `exact` is."""

from workloads import pairs
from labkit.errors import RequestError, choose

NAMES, MODELS = pairs.NAMES, ("gnmt",)
DEFAULTS = {"label_smoothing": 0.1, "beam": 4, "length_penalty": 0.0, "sentences": 0}
SIZES = {"hidden": (int, 1, 1 << 16), "layers": (int, 2, 64), "dropout": (float, 0.0, 0.99), "init": (float, 0.0, 10.0)}
RANGES = {**SIZES, "vocabulary": (int, 5, 1 << 24), "max_length": (int, 1, 1 << 16), "limit": (int, 1, 10**12),
          "seed": (int, 0, 1 << 62), "label_smoothing": (float, 0.0, 0.99), "beam": (int, 1, 1024),
          "length_penalty": (float, 0.0, 10.0), "sentences": (int, 0, 10**9)}
TOKENIZERS = ("13a", "char", "intl", "none")  # sacrebleu's that need nothing else
AT_ONCE = 256  # pairs of an evaluation's batch


def option(recipe, name: str):
    return recipe.data_options.get(name, DEFAULTS[name])


def check(recipe) -> None:
    for name in recipe.data_options:
        choose(f"option of {recipe.data}", name, (*DEFAULTS, *pairs.OPTIONS[recipe.data]))
    for name in recipe.sizes:
        choose("size of gnmt", name, SIZES)
    choose("tokenize", recipe.data_options.get("tokenize", "char"), TOKENIZERS)
    for name, value in [*recipe.data_options.items(), *recipe.sizes.items()]:
        kind, low, high = RANGES.get(name, (type(value), value, value))
        if type(value) not in (int, kind) or not low <= value <= high:
            raise RequestError(f"{name} must be a {'whole ' if kind is int else ''}number from {low} to {high}, not "
                               f"{value!r}")
    if (recipe.augment or recipe.noise is not None or recipe.pool != 1 or recipe.sampling != "shuffle"
            or recipe.curvature_every):
        raise RequestError("augment, noise, pool, sampling and curvature_every are for images; leave them out for "
                           f"{recipe.data}")
    if recipe.batch > recipe.train:
        raise RequestError(f"batch {recipe.batch} is larger than the {recipe.train} training pairs; "
                           f"choose a batch of at most {recipe.train}")


def steps_per_epoch(recipe) -> int:
    return recipe.train // recipe.batch


def load(recipe) -> pairs.Pairs:
    own = {name: value for name, value in recipe.data_options.items() if name not in DEFAULTS}
    return pairs.load(recipe.data, train=recipe.train, validation=recipe.validation, test=recipe.test, options=own)


def loaders(recipe, data, seed: int):
    """Training batches, and evaluation batches by part (a probe of at most 1024 training pairs among them)."""
    from labkit.datasets.memory import InOrder

    parts = {"train": (data.train, 1024), "validation": (data.validation, None), "test": (data.test, None)}
    evaluations = {name: InOrder(pairs.batches(part, AT_ONCE, most, recipe.device))
                   for name, (part, most) in parts.items() if len(part.source)}
    return pairs.PairBatches(data.train, recipe.batch, accumulate=recipe.accumulate, seed=seed,
                             device=recipe.device), evaluations


def build(recipe, data):
    from workloads.seq2seq import GNMT

    return GNMT(len(data.subwords), **recipe.sizes)


def task(recipe, data, model, evaluations):
    from workloads.task_translation import Translation

    return Translation(model, recipe.optimizer, recipe.schedule(), evaluations,
                       label_smoothing=option(recipe, "label_smoothing"), optimizer_options=recipe.options)


def final(recipe, data, task) -> dict[str, float]:
    """BLEU and exact matches of the validation and test part, translated by beam search."""
    import sacrebleu

    from workloads.seq2seq import translate

    model, metrics = task.to(recipe.device).model.eval(), {}
    for name, part in (("validation", data.validation), ("test", data.test)):
        made = []
        for source, _ in pairs.batches(part, AT_ONCE, option(recipe, "sentences") or None, recipe.device):
            units, _ = translate(model, source, beam=option(recipe, "beam"), max_length=data.options["max_length"] + 1,
                                 length_penalty=option(recipe, "length_penalty"))
            made += data.subwords.decode(units.tolist())
        if made:
            meant = part.text[:len(made)]
            metrics[f"{name}_bleu"] = sacrebleu.corpus_bleu(made, [meant], tokenize=data.options["tokenize"],
                                                            force=True).score
            metrics[f"{name}_exact"] = sum(map(str.__eq__, made, meant)) / len(made)
    return metrics


def source_modules(recipe) -> list[str]:
    return [__name__, "workloads.task_translation", "workloads.seq2seq", "workloads.pairs"]
