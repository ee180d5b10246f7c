"""Compressed gradients by name: `labkit.training.compression.hook_of`."""

import inspect
import math
from collections.abc import Callable
from dataclasses import fields, replace

from labs.compressors import NAMES

from labkit.errors import RequestError, choose
from labkit.training.compression import Memory, State, hook

RANGES = {"levels": (1, 127), "density": (1e-9, 1), "momentum": (0, 1), "rank": (1, 1024), "start": (2, math.inf),
          "bits": (1, 8)}


def hook_of(name: str, seed: int = 0, group=None, worker: int | None = None, **options) -> tuple[object, Callable]:
    """(state, hook) of a method in `labs.compressors`: none, fp16, onebit, qsgd, terngrad, topk, dgc, powersgd.

    Args:
        options: arguments of the compressor, or fields of `Memory`, each with the method's own default.

    Raises:
        RequestError: no such method or option, or a value out of range."""
    choose("compression", name, NAMES)
    make, memory = NAMES[name]
    own = {field.name for field in fields(Memory)} if isinstance(memory, Memory) else set()
    for option, value in options.items():
        choose(f"option of {name}", option, [*inspect.signature(make).parameters, *sorted(own)])
        low, high = RANGES.get(option, (0, math.inf))
        if not low <= value <= high:
            raise RequestError(f"{option} {value} is out of range; it must be from {low:g} to {high:g}")
    made = make(**{option: value for option, value in options.items() if option not in own})
    if not own:
        made.process_group = group
        return made, memory
    memory = replace(memory, **{option: value for option, value in options.items() if option in own})
    return State(made, memory, seed, worker, group), hook
