"""Where things are in a checkout. Everything follows from the folder that holds the package, so any working directory
will do.
"""

import os
from pathlib import Path


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
