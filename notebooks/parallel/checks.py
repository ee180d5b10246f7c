"""What the two ends of a parameter server (`parallel.server`, `parallel.client`) refuse before anything starts."""

import os
from math import inf
from numbers import Integral, Real

import torch

from labkit.errors import RequestError, choose

MOST_WORKERS, LONGEST_PATH = 10_000, 103  # the latter in bytes: what every system takes for a socket file


def number(name: str, given, low, high, kind: type = Real) -> None:
    """RequestError unless `given` is a number of this kind from low to high."""
    if not isinstance(given, kind) or isinstance(given, bool) or not low <= given <= high:
        what = "a whole number" if kind is Integral else "a number"
        raise RequestError(f"{name} {given!r} cannot be used; it has to be {what} from {low:g} to {high:g}")


def both(timeout, authkey) -> None:
    """RequestError unless these options of either end can be used; 0 or infinity would wait for ever."""
    number("timeout (seconds)", timeout, 0.001, 1e6)
    if not isinstance(authkey, bytes | None):
        raise RequestError(f"authkey is a {type(authkey).__name__}; it has to be bytes, or None: multiprocessing's own")


def serving(mode: str, workers: int, bound, backup: int, compensate: float) -> None:
    """RequestError unless these options of a server can be used together."""
    choose("mode", mode, ("synchronous", "ssp", "asynchronous"))
    number("workers", workers, 1, MOST_WORKERS, Integral)
    number(f"backup (synchronous, less than the {workers} workers)", backup, 0,
           workers - 1 if mode == "synchronous" else 0, Integral)
    number("bound", bound, 0, inf, Real if bound == inf else Integral)
    number("compensate", compensate, 0, 1e9)


def place(address):
    """An address as a socket takes it: a path as text, or (host, port). RequestError: it is neither."""
    if isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str):
        number(f"address {address}: port", address[1], 1, 65535, Integral)
        return address
    path = os.fspath(address) if isinstance(address, str | os.PathLike) else ""
    if not path or isinstance(path, bytes) or "\0" in path:
        raise RequestError(f"address {address!r} cannot be used; it has to be the path of a socket file or a tuple "
                           "(host, port); a list of addresses is for the client of several servers")
    if (size := len(os.fsencode(path))) > LONGEST_PATH:
        raise RequestError(f"address {path} has {size} bytes; the path of a socket file may have {LONGEST_PATH}: take "
                           "a shorter one, for instance a relative one")
    return path


def trained(parameters) -> list[torch.Tensor]:
    """Those that server and workers hold and send: all but `nn.Parameter`s with requires_grad=False.

    RequestError: none is left, or they are not dense floating-point words of one type."""
    tensors = [torch.as_tensor(p) for p in parameters]
    held = [p for p in tensors if p.requires_grad or not isinstance(p, torch.nn.Parameter)]
    kinds = {str(p.dtype) if p.layout == torch.strided else str(p.layout) for p in held}
    if not sum(p.numel() for p in held):
        raise RequestError("there is no parameter to train: the list is empty, or all are empty or frozen; give those "
                           "of a model with requires_grad=True")
    if len(kinds) > 1 or not held[0].is_floating_point() or held[0].layout != torch.strided:
        raise RequestError(f"the parameters are of {', '.join(sorted(kinds))}; all have to be dense and of the same "
                           "floating-point type, as they travel as one vector: convert the model, e.g. model.float()")
    return held
