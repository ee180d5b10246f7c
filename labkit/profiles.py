"""Profiles: how large a lab runs, as data. `data/profiles/NN.yaml` is checked against the lab's dataclass here, and so
is every `--set field=value`.

A lab's cells never differ between profiles; only these numbers do.
"""

import ast
import dataclasses
import math
import types
import warnings
from dataclasses import dataclass
from reprlib import repr  # shortens what is long

from labkit import paths
from labkit.errors import RequestError, WorkError, choose

NAMES = ("smoke", "quick", "full")
WORDS = {  # how a message says a type, and one value of it
    int: ("a whole number", 16),
    float: ("a finite number", 0.5),
    str: ("a text", "name"),
    dict: ("a mapping such as {'width': 8}", {"width": 8}),
    bool: ("True or False", True),
}


def setting(default, doc: str, *, least=None, most=None, above=None, among=None, empty=False):
    """A field of a profile: its default, what it means, and what is allowed (of a list: of each of its items, and
    whether there may be none).
    """
    rules = {"doc": doc, "least": least, "most": most, "above": above, "among": among, "empty": empty}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=rules)
    return dataclasses.field(default=default, metadata=rules)


@dataclass(frozen=True)
class Profile00:
    """Lab 00: the doctor measures the machine."""

    gemm: int = setting(1024, "side of the square matrices that are multiplied", least=16, most=16384)
    copy_mib: int = setting(256, "size of the memory copy in MiB", least=1, most=4096)
    repeats: int = setting(5, "measurements of which the median is taken", least=1)


@dataclass(frozen=True)
class Profile07:
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


@dataclass(frozen=True)
class Profile11:
    """Lab 11: train to a target, many times."""

    data: str = setting("mnist5k", "dataset", among=("mnist5k", "procedural", "mnist", "fashion-mnist"))
    train: int = setting(4096, "training images", least=1, most=60000)
    pool: int = setting(1, "mean-pool the images by this factor", among=(1, 2))
    validation: int = setting(0, "validation images; 0: what the dataset gives", least=0)
    test: int = setting(0, "test images, seen at the end only; 0: what the dataset gives", least=0)
    model: str = setting("deep-mlp", "model", among=("deep-mlp", "resnet8", "resnet20", "resnet9", "row-lstm"))
    sizes: dict = setting({"width": 64, "depth": 2}, "keyword arguments of the model")
    batch: int = setting(64, "batch size", least=1)
    rate: float = setting(0.05, "peak rate", above=0)
    epochs: float = setting(16.0, "epochs at most", above=0)
    runs: int = setting(12, "independent runs, seeds counted from the first of `seeds`", least=2, most=10000)
    target: float = setting(0.93, "validation accuracy to reach", above=0, most=1)
    evaluate_every: int = setting(8, "optimizer steps between evaluations", least=1)
    coarse_every: list[int] = setting(
        [8, 64, 256], "evaluation intervals at which the same runs are read again", least=1
    )

    def __post_init__(self):
        if self.batch > self.train:
            raise RequestError(
                f"batch {self.batch} is larger than the {self.train} training images; choose a batch of at most {self.train}"
            )
        for every in self.coarse_every:
            if every % self.evaluate_every:
                raise RequestError(
                    f"coarse_every holds {every}, which is not a multiple of evaluate_every ({self.evaluate_every})"
                )


DATACLASSES = {"00": Profile00, "07": Profile07, "11": Profile11}


def resolve(lab: str, profile: str = "quick", overrides: dict | None = None):
    """The settings of a lab (its two digits) at a profile, with overrides laid over them.

    Raises:
        RequestError: unknown profile or field, or a value outside what the field allows.
        WorkError: the profile file itself does not fit its dataclass.
    """
    choose("profile", profile, NAMES)
    choose("lab with a profile", lab, DATACLASSES)
    cls = DATACLASSES[lab]
    try:
        values = fitted(cls, lab, stored(lab)[profile] or {})
        cls(**values)
    except RequestError as error:
        raise WorkError(f"profile {profile} in {lab}.yaml does not fit: {error}") from None
    return cls(**{**values, **fitted(cls, lab, overrides or {})})


def stored(lab: str) -> dict:
    """What the profile file of a lab holds, by profile."""
    import yaml

    path = paths.data() / "profiles" / f"{lab}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise WorkError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(content, dict) or set(content) != set(NAMES):
        raise WorkError(f"{path.name} must hold exactly the profiles {', '.join(NAMES)}")
    return content


def fitted(cls, lab: str, values) -> dict:
    """The values as the fields of the dataclass want them, or a RequestError."""
    if not isinstance(values, dict):
        raise RequestError(f"fields of lab {lab} must be a mapping such as {{'field': value}}, not {repr(values)}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in values:
        choose(f"field of lab {lab}", name, fields)
    return {name: checked(name, value, fields[name].type, fields[name].metadata) for name, value in values.items()}


def checked(name: str, value, kind, rules):
    """The value as the field's type, or a RequestError that says what is allowed."""
    if isinstance(kind, types.GenericAlias):
        kind = kind.__args__[0]
        if not isinstance(value, (list, tuple)):
            raise RequestError(f"{name} must be a list such as [{WORDS[kind][1]!r}], not {repr(value)}")
        items = [checked(name, item, kind, rules) for item in value]
        if not items and not rules["empty"]:
            raise RequestError(f"{name} is empty; it must hold at least one value")
        for place, item in enumerate(items):
            if item in items[:place]:
                raise RequestError(f"{name} holds {item!r} twice; each value may come once")
        return items
    if kind is float and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise RequestError(f"{name} must be {WORDS[kind][0]}, not {repr(value)}")
    if kind is dict and not all(isinstance(key, str) for key in value):
        raise RequestError(f"{name} must be {WORDS[kind][0]}, with texts as keys, not {repr(value)}")
    if rules["among"] is not None:
        choose(name, value, rules["among"])
    bounds = (
        ("least", lambda bound: value < bound, "at least"),
        ("most", lambda bound: value > bound, "at most"),
        ("above", lambda bound: not value > bound, "more than"),
    )
    for key, broken, words in bounds:
        if rules[key] is not None and kind in (int, float) and broken(rules[key]):
            raise RequestError(f"{name} {repr(value)} is out of range; it must be {words} {rules[key]}")
    return value


def parse_seeds(text: str) -> list[int]:
    """`"0,1,2"` as numbers.

    Raises:
        RequestError: not a comma-separated list of distinct whole numbers of 0 or more.
    """
    parts = [part.strip() for part in str(text).split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) <= 10]
    if len(numbers) < len(parts) or len(set(numbers)) < len(numbers) or max(numbers) >= 2**31:
        raise RequestError(
            f"seeds {str(text)!r} not understood; "
            "write distinct whole numbers from 0 to 2147483647 with commas between them, such as 0,1,2"
        )
    return numbers


def parse_setting(text: str) -> tuple[str, object]:
    """`"field=value"` with the value as a Python literal; anything that is not one is a text.

    Raises:
        RequestError: there is no `=` in it.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise RequestError(f"--set {text!r} not understood; write --set field=value")
    try:
        with warnings.catch_warnings(action="ignore"):  # a text that is nearly a literal is still only a text
            return name, ast.literal_eval(value) if len(value) < 3000 else value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return name, value
