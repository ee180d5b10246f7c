"""Large-batch optimization: scaling rules and schedules, LARS, LAMB, parameter groups, curvature.

`labkit.optim.schedules` needs the standard library only. `LARS` and `LAMB` load torch when first asked for.
"""

from typing import Any

__all__ = ["LAMB", "LARS"]


def __getattr__(name: str) -> Any:
    if name == "LARS":
        from labkit.optim.lars import LARS

        return LARS
    if name == "LAMB":
        from labkit.optim.lamb import LAMB

        return LAMB
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
