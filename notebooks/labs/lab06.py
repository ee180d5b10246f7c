"""The exercises of lab 06: signs, bytes by hand, error feedback, a mixing matrix, and a budget of 10 kB."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from labkit.teach.exercises import exercise
from labs import budget, compressors, talking
from labs.answers import array, number

NEAR = 0.002  # relative
WORKERS, ROWS, WORDS = 4, 100, 100_000  # of 06.1


def sent(wire: float, closed: bool) -> float:
    return talking.on_wire(wire, WORKERS, closed)


_TOP, _BITS = compressors.size("topk", WORDS, density=0.01), compressors.size("onebit", WORDS, ROWS)
_BY_HAND = {
    "dense": (sent(4 * WORDS, True), (
        (4 * WORDS, "that is the gradient; a ring all-reduce sends 2 (P-1) / P of it"),
        (sent(4 * WORDS, False), "that is an all-gather; sums can be added on the way, so a ring sends 2 (P-1) / P"),
        (sent(WORDS, True), "those are words; a word is 4 bytes"))),
    "fp16": (sent(2 * WORDS, True), (
        (2 * WORDS, "that is the wire; a ring all-reduce sends 2 (P-1) / P of it"),
        (sent(2 * WORDS, False), "halves can be added up, so they are all-reduced, not all-gathered"))),
    "1-bit": (sent(_BITS, False), (
        (_BITS, "that is the wire of one worker; it is all-gathered, so each worker sends P - 1 wires"),
        (sent(WORDS / 8, False), "each of the 100 rows needs its two means as well, 8 bytes"),
        (sent(_BITS, True), "signs cannot be added up on the way: all-gather"))),
    "top-k": (sent(_TOP, False), (
        (_TOP, "that is the wire of one worker; it is all-gathered, so each worker sends P - 1 wires"),
        (sent(_TOP, True), "an entry is a value and its place, 4 + 4 bytes, and entries at different places cannot be "
                           "added up on the way: all-gather"))),
    "local SGD": (sent(4 * WORDS, True) / 16, (
        (sent(4 * WORDS, True), "that is what an average costs; it is asked per step"),
        (4 * WORDS / 16, "an average is an all-reduce: 2 (P-1) / P of the parameters"))),
    "gossip": (8.0 * WORDS, (
        (4.0 * WORDS, "a worker on a ring has two neighbours"),
        (12.0 * WORDS, "nobody sends to oneself"))),
    "P of equal bytes": (100.0, (
        (50.0, "2 (P-1) / P x 4 n = (P-1) x 8 k: P - 1 cancels"),
        (69.0, "that is where the union is half full; here all wires are gathered as they are"),
        (25.0, "8 bytes an entry against 2 x 4 a word: the eights cancel"))),
}  # fmt: skip


def by_hand(answer):
    """A dictionary of `_BY_HAND`."""
    if not isinstance(answer, Mapping) or set(answer) != set(_BY_HAND):
        return f"give a dictionary with {', '.join(_BY_HAND)}"
    for key, (right, slips) in _BY_HAND.items():
        value = number(answer[key])
        if not math.isclose(value, right, rel_tol=NEAR):
            near = (why for wrong, why in slips if math.isclose(value, wrong, rel_tol=NEAR))
            why = next(near, "take the bytes of the wire, times P - 1 if all-gathered, 2 (P-1) / P if all-reduced")
            return f"{key}, {answer[key]!r}, is not right: {why}"
    return None


def _tensor(value, like: torch.Tensor):
    """As a tensor of that shape, or what is wrong with it."""
    found = array(value)
    if found is None or found.shape != tuple(like.shape):
        shape = f"a {type(value).__name__}" if found is None else list(found.shape)
        return f"return a tensor of the shape of what was given, {list(like.shape)}; yours: {shape}"
    return torch.tensor(found, dtype=like.dtype)


def signs(answer):
    """A function rows [r, n] -> what others hear of them."""
    generator = torch.Generator().manual_seed(1)
    for shape in ((3, 8), (1, 5), (4, 100)):
        rows = torch.randn(shape, generator=generator) + 0.3
        rows[0, 0] = 0.0
        method = compressors.onebit()
        right = method.decode(method.encode(rows), rows)
        heard = _tensor(answer(rows.clone()), rows)
        if isinstance(heard, str):
            return heard
        if torch.allclose(heard, right, atol=1e-6):
            continue
        positive, size = rows >= 0, rows.abs().mean(1, keepdim=True)
        slips = ((rows.sign(), "those are bare signs; others also hear the mean of either half of the row"),
                 (size * rows.sign(), "that is one size for a row; the two halves have a mean each"),
                 (halves(rows, rows > 0), "an entry of 0 belongs to the upper half: rows >= 0, not rows > 0"),
                 (halves(rows.T, positive.T).T, "those are the means of the columns; each row has its own two"),
                 (torch.where(positive, rows[positive].mean(), rows[~positive].mean()) if (~positive).any() else rows,
                  "those are the means of all rows together; each row has its own two"),
                 (torch.where(positive, right, -right), "the mean of the entries below 0 is below 0 already"))
        why = next((why for wrong, why in slips if torch.allclose(heard, wrong, atol=1e-6)), None)
        row, column = divmod(int((heard - right).abs().argmax()), shape[1])
        return why or (f"{shape[0]} x {shape[1]} entries: row {row}, column {column} (from 0) is heard as "
                       f"{heard[row, column]:.4g}, not {right[row, column]:.4g}")
    return None


def halves(rows: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """Each entry as the mean of those of its row that are in its half; `upper` says in which."""
    means = [torch.where(half, rows, 0).sum(1, keepdim=True) / half.sum(1, keepdim=True).clamp(min=1)
             for half in (upper, ~upper)]
    return torch.where(upper, *means)


def largest(vector: torch.Tensor) -> torch.Tensor:
    """The largest two entries, zeros elsewhere: the compressor of 06.2's check."""
    keep = vector.abs() >= vector.abs().sort().values[-2]
    return torch.where(keep, vector, 0.0)


def with_feedback(compress, gradients, rest_of=lambda full, gradient, sent: full - sent, sign: float = 1.0) -> list:
    """What is sent, step by step; `rest_of` makes what is kept."""
    rest, sent = torch.zeros_like(gradients[0]), []
    for gradient in gradients:
        full = gradient + sign * rest
        sent.append(compress(full))
        rest = rest_of(full, gradient, sent[-1])
    return sent


def feedback(answer):
    """A function (compress, gradients) -> list of what is sent."""
    generator = torch.Generator().manual_seed(2)
    for steps, size in ((6, 8), (1, 4), (20, 30)):
        gradients = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(steps)]
        kept = [part.clone() for part in gradients]
        found = answer(largest, gradients)
        if any(not torch.equal(now, before) for now, before in zip(gradients, kept, strict=True)):
            return "the gradients that were given are changed: add into a new tensor, not in place"
        found = list(found) if getattr(found, "shape", ()) else found  # stacked
        if not isinstance(found, (list, tuple)) or len(found) != steps:
            return f"return a list of what is sent, step by step: its length is that of the gradients, here {steps}"
        found, near = [_tensor(part, gradients[0]) for part in found], {"atol": 1e-5}  # float32 will do
        if wrong := next((part for part in found if isinstance(part, str)), None):
            return wrong
        right = with_feedback(largest, gradients)
        if all(torch.allclose(mine, truth, **near) for mine, truth in zip(found, right, strict=True)):
            continue
        slips = (
            (gradients, "these are the gradients as they are, nothing is compressed: what is sent must be "
                        "compress(gradient + rest)"),
            ([largest(part) for part in gradients], "nothing is remembered: what was left out never comes back"),
            (with_feedback(largest, gradients, lambda full, gradient, sent: gradient - sent),
             "what was kept before is forgotten: the new rest is (gradient + old rest) - sent"),
            (with_feedback(largest, gradients, lambda full, gradient, sent: full),
             "the rest still holds what was sent: subtract it"),
            (with_feedback(largest, gradients, sign=-1.0), "the rest is taken away from the next gradient: add it"))
        for wrong, why in slips:
            if all(torch.allclose(mine, other, **near) for mine, other in zip(found, wrong, strict=True)):
                return why
        first = next(at for at, part in enumerate(found) if not torch.allclose(part, right[at], **near))
        lost = ("" if torch.allclose(sum(found), sum(gradients), **near) else
                ", and all gradients minus all that was sent must be the last rest")
        return f"step {first} (from 0) is the first that differs: what is sent must be compress(gradient + rest){lost}"
    return None


def ring(size: int, stay: float) -> np.ndarray:
    """The mixing matrix of 06.3."""
    turn = np.roll(np.eye(size), 1, axis=0)
    return stay * np.eye(size) + (1 - stay) / 2 * (turn + turn.T)


def mixing(answer):
    """A function (P, stay) -> W [P, P]."""
    for size, stay in ((8, 1 / 3), (5, 0.5), (3, 0.2), (2, 0.5)):
        given, right = answer(size, stay), ring(size, stay)
        found, asked = array(given), f"P = {size}, stay = {stay:.3g}"
        if found is None or found.shape != right.shape:
            yours = f"is a {type(given).__name__}" if found is None else f"has shape {found.shape}"
            return f"{asked}: return a matrix {size} x {size}; yours {yours}"
        if np.allclose(found, right):
            continue
        turn = np.roll(np.eye(size), 1, axis=0)
        open_ring = right.copy()
        open_ring[0, -1] = open_ring[-1, 0] = 0.0
        both = stay * np.eye(size) + (1 - stay) * (turn + turn.T)
        slips = (((turn, turn.T), stay, "only one of the two neighbours is heard"),
                 ((open_ring,), None, "the ring is not closed: worker 0 and the last are neighbours"),
                 ((both,), None, "each neighbour has all of 1 - stay: rows have to sum to 1"))
        for wrongs, share, why in slips:
            wrongs = wrongs if share is None else [share * np.eye(size) + (1 - share) * one for one in wrongs]
            if size > 2 and any(np.allclose(found, wrong) for wrong in wrongs):
                return why
        if size == 2:
            return f"{asked}: both neighbours are the same worker, so its weight is 1 - stay: add, do not overwrite"
        for axis, what in ((1, "row"), (0, "column")):
            if not np.allclose(found.sum(axis), 1):
                at = int(np.abs(found.sum(axis) - 1).argmax())
                return f"{asked}: {what} {at} sums to {found.sum(axis)[at]:.3g}, not 1: the mean of all would drift"
        at = np.unravel_index(np.abs(found - right).argmax(), right.shape)
        return f"{asked}: W[{at[0]}, {at[1]}] is {found[at]:.3g}, not {right[at]:.3g}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise("06.b1", "one bit an entry", signs, (
            "positive = rows >= 0. The mean of a row's positive part is (rows * positive).sum(1) / positive.sum(1).",
            "Keep dimensions (keepdim=True), guard a division by 0 by clamp(min=1), choose by torch.where.")),
        exercise("06.1", "bytes by hand", by_hand, (
            "First the wire: 4, 2, 1/8 (+ 8 a row), 8 k bytes. Then: all-reduce 2 (P-1) / P, all-gather P - 1 of it.",
            "The last: (P-1) x 8 k = 2 (P-1) / P x 4 n, with k = n / 100.")),
        exercise("06.2", "error feedback", feedback, (
            "Keep one tensor, the rest, zero at first. Send compress(gradient + rest).",
            "The new rest is (gradient + rest) - sent, before you go on to the next gradient.")),
        exercise("06.3", "a mixing matrix", mixing, (
            "Row i: stay on the diagonal, (1 - stay) / 2 at columns (i - 1) % P and (i + 1) % P.",
            "Use += for the neighbours: with P = 2 both are the same column.")),
        exercise("06.4", "a 10 kB budget", budget.kept, (
            "A dense average costs 40 kB: you can afford none. Count what one exchange costs, in wires to three "
            "others, then how many you can afford.",
            "All wires of a worker may have 3,333 bytes together, half a byte a parameter. Choose the compressor by "
            "the bytes of an exchange, tau by how many exchanges you can afford, then the rate, by octaves.")),
    )
}  # fmt: skip
