"""Our convolutions against `F.conv2d`, float32, one thread: im2col on shapes of image networks, FFT with large kernels,
Winograd with many channels."""

import pytest
import torch
from torch.nn import functional as F

from labkit.operators.convolution import conv2d

TYPICAL = [(8, 64, 32, 64, 3), (32, 3, 32, 64, 3), (4, 64, 56, 64, 3), (16, 128, 14, 128, 3), (8, 256, 7, 256, 3),
           (8, 128, 28, 128, 1), (4, 3, 112, 32, 7)]  # fmt: skip
CASES = (
    [("im2col", "<= 3", shape) for shape in TYPICAL]
    + [("fft", "< 1", (*shape, kernel)) for kernel in (15, 31) for shape in [(4, 8, 64, 8), (1, 1, 256, 1)]]
    + [("winograd4", "to see", (8, 128, 28, 128, 3))]
)


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "forward and gradients"])
@pytest.mark.parametrize(("method", "aim", "shape"), CASES)
def bench_convolution(compare, clocks, method, aim, shape, gradients):
    n, inputs, side, outputs, kernel = shape
    numbers = torch.Generator().manual_seed(0)
    x, w = (torch.randn(size, generator=numbers).requires_grad_(gradients)
            for size in ((n, inputs, side, side), (outputs, inputs, kernel, kernel)))

    def timed(function):
        def work():
            y = function(x, w, padding=kernel // 2)
            if gradients:
                torch.autograd.grad(y, (x, w), y.detach())

        return lambda: clocks(work)

    what = f"{method} / F.conv2d, {n}x{inputs}x{side}x{side}, {outputs} of {kernel}x{kernel}"
    what += ", and gradients" if gradients else ""
    compare(what, aim, timed(lambda x, w, padding: conv2d(x, w, method, padding=padding)), timed(F.conv2d))
