"""The check of "Beat F.conv2d": equal results on fresh numbers, then interleaved timing with an interval.

In every round both methods get the same new images and kernels, in an order that alternates, and what was timed is
compared afterwards: a cached, a cropped or a rough answer is found out. When not to use it: as a benchmark of methods.
It says who wins at one shape on one machine at one moment."""

import secrets
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from labkit.errors import RequestError
from labkit.operators import convolution
from labkit.teach.exercises import say
from labkit.tta import statistics

MARGIN = 1.05  # the interval has to lie above this
ROUNDS, BUDGET, SLOWEST, QUICKEST = (9, 41), 1.5, 0.15, 2e-3  # (least, most); seconds
LARGEST = 2**24  # numbers in the images, or in the output
TOLERANCE = 1e-4  # of the largest value, float32
LIBRARY = torch.nn.functional.conv2d  # as it was before a learner's cell could replace it


def shown(value) -> str:
    """A value in few words: of a tensor its kind and shape only."""
    return f"a {type(value).__name__} of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)[:80]


def parsed(answer) -> tuple[tuple, tuple, int, Callable]:
    """(shape of x, shape of w, padding, method) of an answer.

    Raises:
        RequestError: one line that says what to write."""
    keys = ("x", "w", "padding", "method")
    if not isinstance(answer, Mapping) or set(answer) != set(keys):
        raise RequestError(f"give a dictionary with exactly {', '.join(keys)}")
    shapes = []
    for name, form in (("x", "(N, Ci, H, W)"), ("w", "(Co, Ci, Ky, Kx)")):
        shape = tuple(answer[name]) if isinstance(answer[name], (tuple, list, torch.Size)) else ()
        if len(shape) != 4 or not all(type(v) is int and v >= 1 for v in shape):
            raise RequestError(f"{name} is a shape of four whole numbers, {form}, not {shown(answer[name])}")
        shapes.append(shape)
    padding, method = answer["padding"], answer["method"]
    if type(padding) is not int or padding < 0:
        raise RequestError(f"padding is a whole number of 0 or more, not {padding!r}")
    if not callable(method):
        g = convolution.geometry(method, *shapes, padding=padding)
    else:
        g = convolution.geometry("direct", *shapes, padding=padding)
    if max(np.prod(shapes[0]), np.prod(shapes[1]), shapes[0][0] * shapes[1][0] * np.prod(g.out)) > LARGEST:
        raise RequestError(f"that is too large for a check of a few seconds; stay below {LARGEST} numbers a tensor")
    call = method if callable(method) else lambda x, w, padding: convolution.conv2d(x, w, method, padding=padding)
    return *shapes, padding, call


def wrong(found, right: torch.Tensor) -> str:
    """Why a result is not the convolution; empty if it is."""
    if type(found) is not torch.Tensor:  # a subclass could put the work off until after the clock
        return f"it returns {type(found).__name__}, not a torch.Tensor"
    if found.shape != right.shape:
        return (f"it returns shape {tuple(found.shape)} where F.conv2d returns {tuple(right.shape)}: "
                "two methods are compared on the same work, or not at all")
    if found.dtype != right.dtype:
        return f"it returns {found.dtype} where F.conv2d returns {right.dtype}: fewer bits are another race"
    off = float((found - right).abs().max() / right.abs().max())
    return "" if off <= TOLERANCE else f"it is off by {off:.1e} of the largest value; {TOLERANCE:g} is allowed"


def drawn(x_shape, w_shape, seed: int) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=numbers) for shape in (x_shape, w_shape)]


def race(method: Callable, x_shape, w_shape, padding: int, clock=time.perf_counter) -> list[float] | str:
    """Seconds of `F.conv2d` over seconds of the method, round by round; or why it is no fair race."""
    def one(call, calls, seed):
        pairs = [drawn(x_shape, w_shape, base + 1000 * seed + n) for n in range(calls)]
        begin = clock()
        found = [call(x, w, padding) for x, w in pairs]
        return clock() - begin, found

    def problem(found, seed):
        """Against the same numbers drawn again: a method may have written into its own."""
        right = (library(*drawn(x_shape, w_shape, base + 1000 * seed + n), padding) for n in range(len(found)))
        return next(filter(None, map(wrong, found, right)), "")

    def library(x, w, padding):
        return LIBRARY(x, w, padding=padding)

    threads, base = torch.get_num_threads(), secrets.randbits(40)  # other numbers in every check: no answer can be kept
    with torch.no_grad():
        for _ in range(2):  # the second is warm
            (theirs, _), (ours, found) = one(library, 1, 0), one(method, 1, 0)
            if what := problem(found, 0):
                return what
        slow = max(ours, theirs)
        if slow > SLOWEST:
            return f"one call takes {slow:.2g} s, too long for a check of a second or two; choose a smaller shape"
        calls = min(20, max(1, int(QUICKEST / max(slow, 1e-6))))
        rounds = int(min(max(BUDGET / (2 * calls * slow), ROUNDS[0]), ROUNDS[1]))
        ratios = []
        for n in range(1, rounds + 1):
            if n % 2:
                theirs, ours = one(library, calls, n), one(method, calls, n)
            else:
                ours, theirs = one(method, calls, n), one(library, calls, n)
            if what := problem(ours[1], n):
                return f"on new numbers {what}"
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
                return "the number of threads was changed on the way: both run with the same, or it is no fair race"
            ratios.append(theirs[0] / ours[0])
    return ratios


def beats_conv2d(answer, race=race) -> str | None:
    """Spec of the killer: {"x": shape, "w": shape, "padding": p, "method": name or function (x, w, padding)}."""
    try:
        x_shape, w_shape, padding, method = parsed(answer)
    except RequestError as error:
        return str(error)
    ratios = race(method, x_shape, w_shape, padding)
    if isinstance(ratios, str):
        return ratios
    found = statistics.median(ratios)
    words = (f"F.conv2d / yours {found.value:.2f}, 95 % interval [{found.low:.2f}, {found.high:.2f}], "
             f"{found.n} interleaved rounds, {torch.get_num_threads()} thread(s)")
    if found.low > MARGIN:
        say(f"You win at this shape, on this machine: {words}.")
        return None
    if found.high < 1:
        return f"F.conv2d wins: {words}. Where does your method save work that F.conv2d has to do?"
    return f"too close to call: {words}. The interval has to lie above {MARGIN:g}; find a shape with a larger margin"
