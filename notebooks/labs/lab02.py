"""Exercises of lab 02: a layer split by columns, words of two ways, microbatches, halos, and placing a network."""

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np

from labkit.simulate import traced
from labkit.teach.exercises import exercise
from labs.answers import number
from labs.placing import place

LAYER = {"inputs": 9216, "outputs": 4096, "devices": 8}
BATCHES = (256, 8192)


def same(given, right: float, tolerance: float = 1e-6) -> bool:
    return math.isclose(number(given), right, rel_tol=tolerance)


def column_layer(answer: Callable) -> str | None:
    """Spec of 02.1: `answer(x, weight, dy, comm)` gives (y, dx, dw) of this rank."""
    generator = np.random.default_rng(0)
    for size in (1, 2, 4, 3):
        n, cin, cout = 2, 5, 3  # samples and output columns of each rank
        x, w = generator.normal(size=(n * size, cin)), generator.normal(size=(cin, cout * size))
        dy = generator.normal(size=(n * size, cout * size))
        rows = [slice(n * r, n * (r + 1)) for r in range(size)]
        cols = [slice(cout * r, cout * (r + 1)) for r in range(size)]

        def rank(comm, x=x, w=w, dy=dy, rows=rows, cols=cols):
            r = comm.rank
            return answer(x[rows[r]].copy(), w[:, cols[r]].copy(), dy[:, cols[r]].copy(), comm)

        try:
            trace = traced.run(rank, size)
        except traced.TraceError as error:
            if isinstance(error.__cause__, TypeError) and "ellipsis" in str(error.__cause__):
                raise error.__cause__ from None
            return f"on {size} rank{'s' * (size > 1)}: {error}"
        if any(result is None or result is ... for result in trace.results):
            return "return y, dx, dw"
        for r, result in enumerate(trace.results):
            if not isinstance(result, (tuple, list)) or len(result) != 3:
                return "return three arrays: y, dx, dw"
            right = {"y": (x @ w)[:, cols[r]], "dx": (dy @ w.T)[rows[r]], "dw": x.T @ dy[:, cols[r]]}
            for (name, want), got in zip(right.items(), result, strict=True):
                wrong = {
                    "y": [(x[rows[r]] @ w[:, cols[r]], "it has this rank's samples only: gather x first")],
                    "dx": [
                        (
                            (dy[:, cols[r]] @ w[:, cols[r]].T)[rows[r]],
                            "it has this rank's columns only: the other ranks' columns read x too, add theirs up",
                        ),
                        (dy @ w.T, "it is right and has all samples; return those of this rank"),
                    ],
                    "dw": [
                        (x[rows[r]].T @ dy[rows[r], cols[r]], "it has this rank's samples only"),
                        (want / size, "do not average: dy is of the whole batch's loss"),
                    ],
                }[name]
                got = np.asarray(got, float)
                if got.shape != want.shape or not np.allclose(got, want):
                    why = [text for value, text in wrong if got.shape == value.shape and np.allclose(got, value)]
                    same_shape = got.shape == want.shape
                    other = "wrong numbers" if same_shape else f"its shape is {got.shape}, not {want.shape}"
                    return f"{name} of rank {r} on {size} ranks: {(why or [other])[0]}"
        sent = max((sum(m.words for m in trace.messages if m.source == r) for r in range(size)), default=0)
        least = 2 * n * cin * (size - 1)
        if sent > least:
            return (
                f"right, but on {size} ranks one sends {sent} words; {least} are enough: a rank needs dx of its own "
                "samples only"
            )
    return None


def layer_words(batch: int) -> dict:
    """The right answer of 02.2 at a batch size."""
    every = (LAYER["devices"] - 1) / LAYER["devices"]
    data = 2 * LAYER["inputs"] * LAYER["outputs"] * every
    columns = 2 * batch * LAYER["inputs"] * every
    return {"data": data, "columns": columns, "fewer": "data" if data < columns else "columns"}


def two_ways(answer: Mapping) -> str | None:
    """Spec of 02.2: `answer[batch]` holds data, columns (words a device sends a step) and fewer."""
    devices = LAYER["devices"]
    for batch in BATCHES:
        if not isinstance(answer, Mapping) or not isinstance(answer.get(batch), Mapping):
            return f"give a dictionary with a dictionary for each batch; {batch} is missing"
        right, given = layer_words(batch), answer[batch]
        if missing := [key for key in right if given.get(key) in (None, ...)]:
            return f"batch {batch}: {' and '.join(missing)} not given yet"
        for what in ("data", "columns"):
            value, want = given.get(what), right[what]
            slips = [
                (
                    want / 2,
                    "half of it: a sum travels twice, once to be added up and once to be handed out"
                    if what == "data"
                    else "half of it: inputs go forward, their gradients come back",
                ),
                (want * devices, "that is what all devices send together; one of them is asked for"),
                (want * devices / (devices - 1), "a device need not send its own part to itself: (D - 1) / D"),
                (want * 4, "that is in bytes; give words"),
                (right["columns" if what == "data" else "data"], "that is what the other way sends"),
                (
                    2 * batch * LAYER["outputs"] * (devices - 1) / devices,
                    "that is the outputs; columns gather the inputs"
                    if what == "columns"
                    else "that is activations; by data the gradients of the weights travel",
                ),
            ]
            if not same(value, want, 0.002):
                why = [text for wrong, text in slips if not same(wrong, want, 0.002) and same(value, wrong, 0.002)]
                return f"{what} at batch {batch}: {(why or ['look again at what travels, and how often'])[0]}"
        if str(given.get("fewer")).lower() != right["fewer"]:
            return f"fewer at batch {batch}: compare your two numbers, and write data or columns"
    return None


def least_microbatches(answer: Callable) -> str | None:
    """Spec of 02.3: `answer(stages, percent)`: fewest microbatches with a bubble of at most so many percent."""
    for stages, percent in itertools.product((4, 2, 1, 8, 16), (10, 50, 33, 20, 5, 1)):
        right = max(1, -(-(stages - 1) * (100 - percent) // percent))
        given = answer(stages, percent)
        if number(given) != right:
            value, where = number(given), f"{stages} stages and {percent} %: {given!r}"
            idle = (stages - 1) / (value + stages - 1) if value + stages > 1 else math.nan
            slips = [
                (math.ceil((stages - 1) * 100 / percent), "that is (S-1) / M: divide by the whole time"),
                (math.ceil(stages * (100 - percent) / percent), "S - 1 slots are idle, not S"),
            ]
            why = [text for wrong, text in slips if wrong == value]
            if right - 1 < value < right + 1 and value != int(value):
                why = ["a number of microbatches is whole: round up"]
            elif value < 1:
                why = ["at least one microbatch has to go through"]
            elif not why and idle <= percent / 100 + 1e-12:
                why = [f"the bubble is {idle:.1%}; fewer would do"]
            return f"{where}; {(why or [f'the bubble is {idle:.1%}'])[0]}"
    return None


def halo_words(samples: int, channels: int, width: int, kernel: int, ranks: int, rank: int) -> int:
    """The right answer of 02.4."""
    neighbours = (rank > 0) + (rank < ranks - 1)
    return 2 * neighbours * (kernel - 1) // 2 * samples * channels * width


def halos(answer: Callable) -> str | None:
    """Spec of 02.4: `answer(samples, channels, height, width, kernel, ranks, rank)`: words that a rank sends a step."""
    for n, c, h, w, k, p in ((4, 3, 40, 14, 3, 4), (2, 8, 24, 36, 5, 3), (1, 2, 12, 10, 3, 1), (8, 4, 16, 20, 1, 4)):
        for rank in sorted(range(p), key=lambda r: r in (0, p - 1)):  # those in the middle first
            right = halo_words(n, c, w, k, p, rank)
            given = answer(n, c, h, w, k, p, rank)
            if number(given) == right:
                continue
            row, sides = n * c * w, (rank > 0) + (rank < p - 1)
            slips = [
                (right / 2, "forward only: the gradients of borrowed rows go back to their owner"),
                (2 * 2 * (k - 1) // 2 * row, "the first and the last rank have one neighbour only"),
                (right * 2, "what a rank receives is sent by another: count it once"),
                (2 * sides * (k // 2) * n * c * h, "it is rows that travel: a row has W words for each channel"),
                (2 * sides * k * row, "a window of K rows reaches over the border by (K - 1) / 2"),
                (2 * sides * (k - 1) * row, "(K - 1) / 2 rows over each border, not K - 1"),
                (right / n, "for every sample"),
                (right / c, "for every channel"),
            ]
            why = [text for wrong, text in slips if wrong != right and number(given) == wrong]
            where = f"{n} samples of {c} x {h} x {w}, kernel {k}, rank {rank} of {p}"
            return f"{where}: {given!r}; {(why or ['draw the rows that cross each border, there and back'])[0]}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "02.1",
            "a layer split by columns",
            column_layer,
            (
                "All samples are needed: put x.ravel() in its block of comm.empty(P x size), then all_gather. y = x w.",
                "dw: all x, transposed, times dy. dy times w transposed is a partial sum over columns: reduce_scatter "
                "adds it up and leaves each rank its own samples.",
            ),
        ),
        exercise(
            "02.2",
            "words of one layer, two ways",
            two_ways,
            (
                "By data the gradients of all weights are summed by a ring: 2 w (P - 1) / P words from each device.",
                "By columns inputs are gathered, N Ci (P - 1) / P, and their gradients reduce-scattered: as many.",
            ),
        ),
        exercise(
            "02.3",
            "how many microbatches?",
            least_microbatches,
            (
                "Solve (S - 1) / (M + S - 1) <= p / 100 for M.",
                "M >= (S - 1)(100 - p) / p, and at least 1. Of whole numbers, -(-a // b) rounds up without a slip.",
            ),
        ),
        exercise(
            "02.4",
            "words of a halo",
            halos,
            (
                "A window of K rows reaches (K - 1) / 2 rows over a border; a row of a sample: channels x width words.",
                "Each neighbour gets that many rows going forward, and as many rows of gradients going backward.",
            ),
        ),
        exercise(
            "02.5",
            "place this network",
            place,
            (
                "fc6 to fc8 hold nearly all weights: split them. Convolutions have large activations: data.",
                "Try two stages, the convolutions on one half of the devices, and more microbatches.",
            ),
        ),
    )
}
