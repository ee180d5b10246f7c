"""What a notebook uses to teach: figures, explorers, predictions and exercises with instant feedback.

`viz` draws and needs matplotlib, so it is imported on first use."""

import importlib

# Imported here, not on demand: a submodule of the same name would otherwise hide the function.
from .exercises import check, exercise, hint, solution
from .explore import explore
from .predict import predict

__all__ = ["check", "exercise", "explore", "hint", "predict", "solution", "viz"]


def __getattr__(name: str):
    if name == "viz":
        return importlib.import_module(".viz", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
