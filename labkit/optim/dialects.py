"""What public codes called LARS and LAMB really compute, as bundles of the options of `optim.LARS` and `optim.LAMB`.

The bundles are data: `data/dialects.yaml` says what each names and what it leaves unsaid."""

from dataclasses import dataclass, field
from math import inf
from typing import Any

import yaml

from labkit import paths
from labkit.errors import choose

NONE = (0.0, inf)  # bounds that bound nothing


@dataclass(frozen=True)
class Dialect:
    """One public implementation: what it is, its options beside the paper's, and what the options leave unsaid."""

    names: str
    options: dict[str, Any] = field(default_factory=dict)
    beyond: str = ""

    def __post_init__(self) -> None:
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}
        object.__setattr__(self, "options", plain)


SHA256 = "20b5d42d539e"  # of the bundles: so a change of theirs changes this code, by whose fingerprint runs are known
LARS, LAMB = ({name: Dialect(**entry) for name, entry in bundles.items()} for bundles in
              yaml.safe_load((paths.data() / "dialects.yaml").read_text(encoding="utf-8")).values())


def resolved(dialects: dict[str, Dialect], name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All options of a dialect; those `given` that are not None stand before the dialect's.

    Raises:
        RequestError: there is no dialect of that name."""
    choose("dialect", name, dialects)
    explicit = {option: value for option, value in given.items() if value is not None}
    return {**dialects["paper"].options, **dialects[name].options, **explicit}
