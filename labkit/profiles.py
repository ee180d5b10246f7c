"""Profiles: how large a lab runs, as data. `data/profiles/NN.yaml` is checked against the dataclass `Profile` of
`notebooks/labs/planNN.py`, and so is every `--set field=value`.

A lab's cells never differ between profiles; only these numbers do."""

import ast
import dataclasses
import math
import types
import warnings
from reprlib import repr  # shortens what is long

from labkit import paths
from labkit.errors import RequestError, WorkError, choose

NAMES = ("smoke", "quick", "full")
WORDS = {  # how a message says a type, and one value of it
    int: ("a whole number", 16), float: ("a finite number", 0.5), bool: ("True or False", True),
    str: ("a text", "name"), dict: ("a mapping such as {'width': 8}", {"width": 8}),
}  # fmt: skip


def setting(default, doc: str, *, least=None, most=None, above=None, among=None, empty=False):
    """A field of a profile: its default, what it means, and what is allowed (of a list: of each of its items, and
    whether there may be none)."""
    rules = {"doc": doc, "least": least, "most": most, "above": above, "among": among, "empty": empty}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=rules)
    return dataclasses.field(default=default, metadata=rules)


def plan(lab: str) -> type:
    """The dataclass that holds a lab's settings: `Profile` of `notebooks/labs/planNN.py`.

    Raises:
        RequestError: the lab has no plan."""
    choose("lab with a profile", lab, [name.removeprefix("plan") for name in paths.lab_parts("plan[0-9]")])
    return paths.lab_part(f"plan{lab}").Profile


def resolve(lab: str, profile: str = "quick", overrides: dict | None = None):
    """The settings of a lab (its two digits) at a profile, with overrides laid over them.

    Raises:
        RequestError: unknown profile or field, or a value outside what the field allows.
        WorkError: the profile file itself does not fit its dataclass."""
    choose("profile", profile, NAMES)
    cls = plan(lab)
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
            hint = "; names in it need quotes" if str(value).startswith("[") and kind is str else ""
            raise RequestError(f"{name} must be a list such as [{WORDS[kind][1]!r}], not {repr(value)}{hint}")
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
    bounds = (("least", lambda bound: value < bound, "at least"), ("most", lambda bound: value > bound, "at most"),
              ("above", lambda bound: not value > bound, "more than"))
    for key, broken, words in bounds:
        if rules[key] is not None and kind in (int, float) and broken(rules[key]):
            raise RequestError(f"{name} {repr(value)} is out of range; it must be {words} {rules[key]}")
    return value


def parse_seeds(text: str) -> list[int]:
    """`"0,1,2"` as numbers.

    Raises:
        RequestError: not a comma-separated list of distinct whole numbers of 0 or more."""
    parts = [part.strip() for part in str(text).split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) <= 10]
    if len(numbers) < len(parts) or len(set(numbers)) < len(numbers) or max(numbers) >= 2**31:
        raise RequestError(f"seeds {str(text)!r} not understood; "
                           "write distinct whole numbers from 0 to 2147483647 with commas between them, such as 0,1,2")
    return numbers


def parse_setting(text: str) -> tuple[str, object]:
    """`"field=value"` with the value as a Python literal; anything that is not one is a text.

    Raises:
        RequestError: there is no `=` in it."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise RequestError(f"--set {text!r} not understood; write --set field=value")
    try:
        with warnings.catch_warnings(action="ignore"):  # a text that is nearly a literal is still only a text
            return name, ast.literal_eval(value) if len(value) < 3000 else value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return name, value
