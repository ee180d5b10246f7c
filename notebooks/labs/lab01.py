"""Exercises of lab 01: im2col, work and depth by hand, the limiting roof, and a convolution that beats F.conv2d."""

import math
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

from labkit.operators import work
from labkit.teach.exercises import exercise
from labs.answers import number
from labs.beat_conv import beats_conv2d

# 01.1: shape of x, shape of w, padding
SHAPES = [((1, 1, 5, 5), (1, 1, 3, 3), 0), ((2, 3, 8, 6), (4, 3, 3, 3), 1), ((2, 2, 9, 7), (3, 2, 5, 3), 2)]


def columns_and_product(answer: Callable) -> str | None:
    """Spec of 01.1: `answer(x, w, padding)` gives (y, columns [N, Ci Ky Kx, H'W'])."""
    numbers = torch.Generator().manual_seed(0)
    for x_shape, w_shape, padding in SHAPES:
        x, w = (torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in (x_shape, w_shape))
        y = F.conv2d(x, w, padding=padding)
        columns = F.unfold(x, w_shape[2:], padding=padding)
        where = f"for x {x_shape}, w {w_shape}, padding {padding}"
        given = answer(x, w, padding)
        if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(map(torch.is_tensor, given)):
            return "return two tensors: the output, and the matrix of columns"
        found, made = given
        if made.shape != columns.shape:
            slips = {tuple(columns.mT.shape): " It is lying on its side: a column is one window.",
                     tuple(F.unfold(x, w_shape[2:]).shape): " Pad the image first.",
                     (*columns.shape[:1], columns.shape[2]): " All channels of a window go into its column."}
            return (f"{where} your columns are {tuple(made.shape)}, not {tuple(columns.shape)}."
                    + slips.get(tuple(made.shape), " One column a position, Ci Ky Kx numbers in it."))
        if not torch.allclose(made, columns):
            return f"{where} the columns have other numbers: in a column the channel comes first, then ky, then kx"
        if found.shape != y.shape:
            return f"{where} your output is {tuple(found.shape)}, not {tuple(y.shape)}: fold H'W' back into H', W'"
        if not torch.allclose(found, y):
            flipped = torch.allclose(found, F.conv2d(x, w.flip(2, 3), padding=padding))
            slip = "you flipped the kernel; deep learning's convolution does not"
            return f"{where} the output is wrong: {slip if flipped else 'multiply w as a matrix'}"
    return None


# 01.2: one convolution, counted by hand.
LAYER = {"batch": 8, "inputs": 16, "outputs": 32, "size": (14, 14), "kernel": 3, "padding": 1}


def by_hand(answer: Mapping) -> str | None:
    """Spec of 01.2: {"W": ..., "D forward": ..., "D grad_weight": ..., "D grad_input": ...} of `LAYER`."""
    costs = work.convolution(**LAYER)
    n, ci, co, places, taps = 8, 16, 32, 14 * 14, 9
    lg = work.lg
    right = {"W": costs.forward.work, "D forward": costs.forward.depth, "D grad_weight": costs.grad_weight.depth,
             "D grad_input": costs.grad_input.depth}
    slips = {
        "W": [(2 * right["W"], "those are FLOPs; a multiply-add counts once here"),
              (right["W"] // n, "each image of the batch needs them"),
              (n * co * ci * 144 * taps, "with a padding of 1 the output is 14 x 14 again"),
              (n * co * ci * places, "a window has 3 x 3 positions"),
              (n * co * places * taps, "each output sums over all 16 input channels")],
        "D forward": [(lg(ci * taps), "the products come first: one level more"),
                      (1 + lg(ci), "the tree runs over the window as well, 16 x 9 products"),
                      (1 + lg(ci) + 2 * lg(3), "one tree over all 144 products: lg 144, not lg 16 + lg 3 + lg 3"),
                      (ci * taps, "that is one addition after the other; a tree halves the terms at each level")],
        "D grad_weight": [(right["D forward"], "a weight's gradient sums over the batch and all positions"),
                          (1 + lg(places), "over the batch too"), (1 + lg(n), "over all positions too"),
                          (lg(n * places), "the products come first: one level more")],
        "D grad_input": [(right["D forward"], "an input is read by all *output* channels: sum over those"),
                         (1 + lg(co), "and by up to 9 windows for each"),
                         (lg(co * taps), "the products come first: one level more")],
    }
    if not isinstance(answer, Mapping):
        return f"give a dictionary with {', '.join(right)}"
    for part, wanted in right.items():
        given = number(answer.get(part))
        if math.isnan(given):
            return f"give a number for {part!r}"
        if given != wanted:
            near = next((why for value, why in slips[part] if given == value and value != wanted), None)
            return f"{part} is not {given:g}: {near}" if near else f"{part} is not {given:g}"
    return None


# 01.3: a machine, and layers as (FLOPs, bytes) in float32, each tensor moved once.
MACHINE = {"peak": 100e9, "bandwidth": 10e9}


def _fully_connected(n, a, b):
    return 2 * n * a * b, 4 * (n * a + a * b + n * b)


def _convolution(n, ci, co, side, k, groups=1):
    return (2 * n * co * side**2 * (ci // groups) * k**2,
            4 * (n * ci * side**2 + co * (ci // groups) * k**2 + n * co * side**2))


LAYERS = {
    "ReLU, 64 x 256 x 28 x 28": (64 * 256 * 28**2, 8 * 64 * 256 * 28**2),
    "fully connected, 4096 to 4096, batch 1": _fully_connected(1, 4096, 4096),
    "fully connected, 4096 to 4096, batch 256": _fully_connected(256, 4096, 4096),
    "convolution 3 x 3, 64 to 64 channels, 56 x 56, batch 1": _convolution(1, 64, 64, 56, 3),
    "depthwise convolution 3 x 3, 256 channels, 28 x 28, batch 64": _convolution(64, 256, 256, 28, 3, 256),
}


def roofs(answer: Mapping) -> str | None:
    """Spec of 01.3: {layer: ("memory" or "arithmetic", least milliseconds)} for `LAYERS` on `MACHINE`."""
    if not isinstance(answer, Mapping):
        return "give a dictionary: {layer: (roof, milliseconds)}"
    for name, (flops, moved) in LAYERS.items():
        given = answer.get(name)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            return f"{name}: give two things, the roof and the milliseconds"
        times = {"arithmetic": 1e3 * flops / MACHINE["peak"], "memory": 1e3 * moved / MACHINE["bandwidth"]}
        right = max(times, key=times.get)
        if str(given[0]).lower() not in times:
            return f"{name}: the roof is 'memory' or 'arithmetic', not {given[0]!r}"
        if str(given[0]).lower() != right:
            why = f"{flops / moved:.3g} FLOPs per byte; the balance is {MACHINE['peak'] / MACHINE['bandwidth']:g}"
            return f"{name}: {given[0]} is not what limits it. It does {why}"
        ms = number(given[1])
        if not math.isclose(ms, times[right], rel_tol=0.01):
            slips = [(times[right] / 1e3, "those are seconds"),
                     (min(times.values()), "the *slower* of the two limits it"),
                     (sum(times.values()), "that is one after the other; the roofline overlaps them"),
                     (times["memory"] / 4, "a float32 has 4 bytes"),
                     (times["arithmetic"] / 2, "a multiply-add is two FLOPs")]
            near = next((f": {why}" for value, why in slips if math.isclose(ms, value, rel_tol=0.01)), "")
            return f"{name}: it is not {ms:.4g} ms{near}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise("01.1", "im2col and one matrix product", columns_and_product,
                 ("Pad; then for each (ky, kx) take the slice of all positions, x[:, :, ky : ky + H', kx : kx + W'].",
                  "torch.stack them in dimension 2: [N, Ci, Ky Kx, H', W'], reshape; then w.flatten(1) @ columns.")),
        exercise("01.2", "work and depth by hand", by_hand,
                 ("W: one multiply-add for each output, input channel and window position. The same in all directions.",
                  "D = 1 + lg(terms). Terms: of an output 16 x 9; of a weight 8 x 196; of an input 32 x 9.")),
        exercise("01.3", "the limiting roof", roofs,
                 ("Compare FLOPs / bytes with the balance, peak / bandwidth = 10 FLOPs per byte.",
                  "time = max(FLOPs / peak, bytes / bandwidth); 1 ms is 1e-3 s.")),
        exercise("01.4", "beat F.conv2d", beats_conv2d,
                 ("The FFT's work hardly depends on the size of the kernel; direct methods do Ky Kx products.",
                  "Take a kernel nearly as large as the image, a few channels, and method \"fft\".")),
    )
}
