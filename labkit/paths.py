"""Where things are in a checkout. Everything follows from the folder that holds the package, so any working directory
will do."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from labkit.errors import WorkError


def root() -> Path:
    """The checkout: the folder that holds `labkit/`, `notebooks/` and `data/`."""
    return Path(__file__).resolve().parent.parent


def data() -> Path:
    """Claims, profiles, published figures and recorded runs (all small, all in the repository)."""
    return root() / "data"


def notebooks() -> Path:
    """Readers' notebooks; `src/` and `solutions/` lie below."""
    return root() / "notebooks"


def results() -> Path:
    """Local results, ignored by git."""
    return root() / "results"


def store() -> Path:
    """The folder of your own runs: `LABKIT_STORE`, else `results/runs`."""
    return Path(os.environ.get("LABKIT_STORE") or results() / "runs").expanduser().resolve()


def labs() -> Path:
    """The modules that belong to single labs: plans, rules, exercises, figures."""
    return root() / "notebooks" / "labs"


def lab_parts(prefix: str, package: str = "labs") -> list[str]:
    """Names of the modules of the folder `notebooks/<package>` that begin so; `prefix` may be a pattern, such as
    `plan[0-9]`."""
    return sorted(path.stem for path in (labs().parent / package).glob(f"{prefix}*.py"))


def lab_part(name: str, package: str = "labs") -> ModuleType:
    """The module `<package>.<name>` of the folder `notebooks/`, which is put on `sys.path`.

    Raises:
        WorkError: there is no such module."""
    if str(labs().parent) not in sys.path:
        sys.path.insert(0, str(labs().parent))
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.{name}"):
            raise
        raise WorkError(f"notebooks/{package}/{name}.py is not there; use labkit from a whole checkout") from None
