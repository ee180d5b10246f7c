"""Compressed gradients by name: `labkit.training.compression.hook_of`."""

import inspect
import math
from collections.abc import Callable
from dataclasses import fields, replace

from labs.compressors import NAMES

from labkit.errors import RequestError, choose
from labkit.training.compression import Memory, State, hook
from labkit.training.wrapper import check_finite, check_number

WHOLE = {"levels": (1, 127), "rank": (1, 1024), "start": (2,), "bits": (1, 8), "stage": (0,), "bucket": (0,)}
REAL = {"density": (1e-9, 1), "momentum": (0, 1), "norm": (1, math.inf)}  # all others are switches


def hook_of(name: str, seed: int = 0, group=None, worker: int | None = None, **options) -> tuple[object, Callable]:
    """(state, hook) of a method in `labs.compressors`: none, fp16, onebit, qsgd, terngrad, topk, randomk,
    randomk_scaled, dgc, dorefa, powersgd. A gradient that is not finite is a WorkError that names the rank, before
    anything is sent.

    Args:
        options: arguments of the compressor, or fields of `Memory`, each with the method's own default.

    Raises:
        RequestError: no such method or option, or a value of another type or out of range."""
    choose("compression", name, NAMES)
    check_number("seed", seed, 0)
    check_number("worker", 0 if worker is None else worker, 0)
    make, memory = NAMES[name]
    own = {field.name for field in fields(Memory)} if isinstance(memory, Memory) else set()
    for option, value in options.items():
        choose(f"option of {name}", option, [*inspect.signature(make).parameters, *sorted(own)])
        if option in WHOLE or option in REAL:
            check_number(option, value, *(WHOLE | REAL)[option], whole=option in WHOLE)
        elif not isinstance(value, bool):
            raise RequestError(f"{option} must be True or False, not {value!r}")
    made = make(**{option: value for option, value in options.items() if option not in own})
    if not own:
        made.process_group = group

        def checked(state, bucket):  # torch's own does not look
            check_finite(bucket.buffer(), "gradients")
            return memory(state, bucket)

        return made, checked
    memory = replace(memory, **{option: value for option, value in options.items() if option in own})
    return State(made, memory, seed, worker, group), hook
