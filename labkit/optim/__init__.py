"""Large-batch optimization: scaling rules and schedules, LARS, LAMB, parameter groups, noise scale.

`labkit.optim.schedules` needs the standard library only. `LARS` and `LAMB` load torch when first asked for."""

from importlib import import_module

__all__ = ["LAMB", "LARS"]


def __getattr__(name: str):
    if name in __all__:
        return getattr(import_module(f"{__name__}.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
