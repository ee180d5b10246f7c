"""One run that is to be made, and its making here or on another machine, where only labkit itself can be imported."""

import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from labkit.runs import Store


@dataclass(frozen=True)
class Trial:
    """One run to be made of a `labkit.experiment.Recipe`. `claims`: hashes of the rules that will judge it."""

    lab: str
    recipe: object
    repeat: int = 0
    name: str = ""
    claims: dict = field(default_factory=dict)


def attempt(trial: Trial, store: Store, progress=None) -> str | None:
    """Train it into the store; what failed, if it did."""
    from labkit import experiment

    try:
        experiment.train(trial.recipe, store, lab=trial.lab, repeat=trial.repeat, claims=trial.claims,
                         progress=progress)
    except Exception:  # whatever it is, the other trials go on and it is reported at the end
        return traceback.format_exc()
    return None


def elsewhere(trial: Trial) -> bytes | str:
    """On a machine of a cluster: the lines of the run, or what failed. Nothing is left there."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        return attempt(trial, Store(folder)) or next(Path(folder).glob("*/*.jsonl")).read_bytes()
