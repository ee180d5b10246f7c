"""Every convolution equals the written-out sums and `F.conv2d`, with both gradients; counts equal instrumented runs."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import winograd
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.errors import RequestError
from labkit.operators import convolution
from labkit.operators.convolution import METHODS, conv2d, cost

KERNEL_FREE = ("direct", "im2col", "fft")


def literal(x, w, stride, padding, dilation, groups):
    """The sums of the definition, one product at a time."""
    (n, _, h, width), (co, inner, ky, kx) = x.shape, w.shape
    (sy, sx), (py, px), (dy, dx) = stride, padding, dilation
    out = ((h + 2 * py - dy * (ky - 1) - 1) // sy + 1, (width + 2 * px - dx * (kx - 1) - 1) // sx + 1)
    y = np.zeros((n, co, *out))
    for b, o, i, j in np.ndindex(y.shape):
        for c, u, v in np.ndindex(inner, ky, kx):
            row, column = i * sy + u * dy - py, j * sx + v * dx - px
            if 0 <= row < h and 0 <= column < width:
                y[b, o, i, j] += x[b, o // (co // groups) * inner + c, row, column] * w[o, c, u, v]
    return y


def numbers(seed, *shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def all_three(function, x, w):
    """Output and both gradients, for one gradient of the output whatever the function."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w)
    (dy,) = numbers(7, y.shape, dtype=y.dtype)
    return [y.detach(), *torch.autograd.grad(y, (x, w), dy)]


def assert_equal(found, right, tolerance):
    for name, a, b in zip(("output", "gradient of x", "gradient of w"), found, right, strict=True):
        assert a.shape == b.shape, name
        off = float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-9))
        assert off <= tolerance, f"{name} is off by {off:.1e}"


@pytest.mark.parametrize("method", KERNEL_FREE)
def test_the_definition(method):
    shape = dict(stride=(2, 1), padding=(1, 3), dilation=(1, 2), groups=2)
    x, w = numbers(0, (2, 4, 6, 5), (6, 2, 3, 2))
    assert np.allclose(conv2d(x, w, method, **shape).numpy(), literal(x.numpy(), w.numpy(), **shape), atol=1e-12)


@st.composite
def convolutions(draw, method):
    """(shape of x, shape of w, options) that the method can do."""
    small, any3 = method in winograd.TILES, st.tuples(st.integers(1, 3), st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    kernel = (3, 3) if small else draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride, dilation = ((1, 1), (1, 1)) if small else (draw(any3), draw(any3))
    padding = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    size = [draw(st.integers(n, n + 9)) for n in least]
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    options = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    return (draw(st.integers(1, 3)), groups * inputs, *size), (groups * outputs, inputs, *kernel), options


@pytest.mark.parametrize("method", METHODS)
def test_output_and_gradients_equal_the_library(method):
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(case=convolutions(method))
    def check(case):
        x_shape, w_shape, options = case
        x, w = numbers(1, x_shape, w_shape)
        right = all_three(lambda x, w: F.conv2d(x, w, **options), x, w)
        assert_equal(all_three(lambda x, w: conv2d(x, w, method, **options), x, w), right, 1e-10)

    check()


@pytest.mark.parametrize("method", METHODS)
def test_float32_within_a_ten_thousandth(method):
    x, w = numbers(2, (2, 16, 19, 17), (8, 16, 3, 3), dtype=torch.float32)
    right = all_three(lambda x, w: F.conv2d(x, w, padding=1), x.double(), w.double())
    assert_equal(all_three(lambda x, w: conv2d(x, w, method, padding=1), x, w), right, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", KERNEL_FREE)
def test_few_bits_err_by_their_rounding(method, dtype):
    x, w = numbers(3, (2, 4, 9, 9), (4, 4, 3, 3), dtype=dtype)
    right = all_three(lambda x, w: F.conv2d(x, w, padding=1), x.double(), w.double())
    found = all_three(lambda x, w: conv2d(x, w, method, padding=1), x, w)
    assert {tensor.dtype for tensor in found} == {dtype}
    assert_equal(found, right, 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("method", METHODS)
def test_any_memory_order(method):
    x, w = numbers(4, (2, 6, 12, 20), (4, 4, 3, 3))
    x, w = x.to(memory_format=torch.channels_last)[:, 1:5, 2:, ::2], w.transpose(2, 3)
    right = all_three(F.conv2d, x, w)
    assert_equal(all_three(lambda x, w: conv2d(x, w, method), x, w), right, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_the_gradient_has_a_gradient(method):
    x, w = (t.requires_grad_() for t in numbers(5, (1, 2, 4, 5), (2, 2, 3, 3)))
    assert torch.autograd.gradgradcheck(lambda x, w: conv2d(x, w, method, padding=1), (x, w))


@pytest.mark.parametrize("method", METHODS)
def test_autocast_leaves_the_number_format_alone(method):
    x, w = numbers(6, (1, 2, 6, 6), (2, 2, 3, 3), dtype=torch.float32)
    plain = conv2d(x, w, method)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(conv2d(x, w, method), plain)


X, W = torch.zeros(2, 4, 8, 8), torch.zeros(6, 4, 3, 3)


@pytest.mark.parametrize(("x", "w", "options", "message"), [
    (X, W, {"method": "winogard"}, "unknown method 'winogard'; allowed: direct, im2col, fft, winograd, winograd4"),
    (X[0], W, {}, "x must be a tensor of floats with 4 dimensions"),
    (X, W.int(), {}, "w must be a tensor of floats"),
    (X, W.double(), {}, "convert one with w.to"),
    (X, W, {"groups": 2}, "does not go with"),
    (X, W, {"groups": 0}, "must be a whole number that divides Ci = 4 and Co = 6"),
    (X, W, {"groups": 3}, "must be a whole number that divides Ci = 4 and Co = 6"),
    (X[:0], W, {}, "every size 1 or more"),
    (X, W, {"padding": "same"}, "padding 'same' must be a whole number of 0 or more, or a pair"),
    (X, W, {"padding": -1}, "padding -1 must be"),
    (X, W, {"stride": (1, 0)}, "stride .1, 0. must be a whole number of 1 or more"),
    (X, W, {"dilation": 4}, "the kernel reaches over .9, 9. pixels and the padded image has .8, 8."),
    (X, W, {"method": "winograd", "stride": 2}, "winograd needs a 3x3 kernel, stride 1 and dilation 1"),
    (X, W, {"method": "winograd4", "dilation": 2}, "use direct, im2col or fft"),
    (X, W[..., :2], {"method": "winograd"}, "not kernel .3, 2."),
])  # fmt: skip
def test_what_is_refused_and_how(x, w, options, message):
    with pytest.raises(RequestError, match=message) as refused:
        conv2d(x, w, **options)
    assert "\n" not in str(refused.value)


class Counted:
    """Multiplications that were done (a complex one is four), and words that were stored."""

    def __init__(self):
        self.multiplications = {"products": 0, "transforms": 0}
        self.words = 0

    def mul(self, a, b, kind="products"):
        found = a * b
        self.multiplications[kind] += found.size * (4 if np.iscomplexobj(found) else 1)
        return found

    def matmul(self, a, b, kind="transforms"):
        """[i, k] times [..., k, j], every product on its own."""
        return self.mul(a[:, :, None], b[..., None, :, :], kind).sum(-2)

    def both(self, matrix, fields):
        """matrix fields matrix', as two dense products."""
        half = self.matmul(matrix, fields)
        return self.matmul(matrix, half.swapaxes(-1, -2)).swapaxes(-1, -2)

    def store(self, array):
        self.words += array.size * (2 if np.iscomplexobj(array) else 1)
        return array

    def fourier(self, a):
        """Radix 2 along the last dimension, every twiddle factor multiplied."""
        if a.shape[-1] == 1:
            return a
        even, odd, half = self.fourier(a[..., ::2]), self.fourier(a[..., 1::2]), a.shape[-1] // 2
        turned = self.mul(np.exp(-1j * np.pi * np.arange(half) / half), odd, "transforms")
        return np.concatenate([even + turned, even - turned], -1)

    def half_spectrum(self, x):
        """[..., Sy, Sx / 2 + 1] of real x: two rows in one complex transform, then the columns."""
        two = self.fourier(x[..., ::2, :] + 1j * x[..., 1::2, :])
        mirrored = np.roll(two[..., ::-1], 1, -1).conj()
        rows = np.stack([(two + mirrored) / 2, (two - mirrored) / 2j], -2).reshape(x.shape)[..., : x.shape[-1] // 2 + 1]
        return self.store(self.fourier(rows.swapaxes(-1, -2)).swapaxes(-1, -2))

    def real_fields(self, spectrum):
        """The inverse: columns, then two rows in one."""
        sy, side = spectrum.shape[-2], 2 * (spectrum.shape[-1] - 1)
        rows = self.fourier(spectrum.conj().swapaxes(-1, -2)).conj().swapaxes(-1, -2)
        rows = np.concatenate([rows, rows[..., 1:-1][..., ::-1].conj()], -1)
        two = self.fourier((rows[..., ::2, :] + 1j * rows[..., 1::2, :]).conj()).conj()
        return np.stack([two.real, two.imag], -2).reshape(*spectrum.shape[:-1], side) / (sy * side)


def run_direct(ops, x, w):
    y = np.zeros((len(x), len(w), x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1))
    for n, o, i, j in np.ndindex(y.shape):
        y[n, o, i, j] = ops.mul(x[n, :, i : i + w.shape[2], j : j + w.shape[3]], w[o]).sum()
    return y


def run_im2col(ops, x, w):
    (ky, kx), (h, width) = w.shape[2:], (x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1)
    windows = [x[:, :, i : i + ky, j : j + kx].reshape(len(x), -1) for i in range(h) for j in range(width)]
    columns = ops.store(np.stack(windows, -1))
    return ops.matmul(w.reshape(len(w), -1), columns, "products").reshape(len(x), len(w), h, width)


def run_winograd(ops, x, w, m):
    a, b, g = winograd.matrices(m)
    out = (x.shape[2] - 2, x.shape[3] - 2)
    rows, columns = (-(-side // m) for side in out)
    x = np.pad(x, [(0, 0), (0, 0), (0, rows * m - out[0]), (0, columns * m - out[1])])
    tiles = [x[:, :, i * m : i * m + m + 2, j * m : j * m + m + 2] for i in range(rows) for j in range(columns)]
    images = ops.store(ops.both(b.T, np.stack(tiles)))  # [tiles, n, ci, a, a]
    kernels = ops.store(ops.both(g, w))
    products = ops.store(ops.mul(images[:, :, None], kernels).sum(3))
    y = ops.both(a.T, products).reshape(rows, columns, len(x), len(w), m, m)
    return y.transpose(2, 3, 0, 4, 1, 5).reshape(len(x), len(w), rows * m, columns * m)[..., : out[0], : out[1]]


def run_fft(ops, x, w):
    size = x.shape[2:]
    padding = [(0, n - k) for n, k in zip(x.shape, w.shape, strict=True)]
    kernels = ops.half_spectrum(np.pad(w, [(0, 0), (0, 0), *padding[2:]]))
    images = ops.half_spectrum(x)
    fields = ops.real_fields(ops.store(ops.mul(images[:, None], kernels.conj()).sum(2)))
    return fields[..., : size[0] - w.shape[2] + 1, : size[1] - w.shape[3] + 1]


RUNS = {"direct": run_direct, "im2col": run_im2col, "fft": run_fft,
        "winograd": partial(run_winograd, m=2), "winograd4": partial(run_winograd, m=4)}  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3, 4, 16, 8, 3), (1, 2, 3, 8, 16, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_counts_are_those_of_an_instrumented_run(method, shape):
    n, ci, co, h, w, k = shape
    ops, (x, kernel) = Counted(), numbers(8, (n, ci, h, w), (co, ci, k, k))
    y = RUNS[method](ops, x.numpy(), kernel.numpy())
    assert np.allclose(y, F.conv2d(x, kernel).numpy(), atol=1e-12)
    assert cost(method, *shape) == (*ops.multiplications.values(), ops.words)


@pytest.mark.parametrize("method", ["direct", "im2col", "winograd", "winograd4"])
def test_counts_are_what_torch_runs(method):
    """torch's own counter over our code: matrix products alone, padding multiplied like any other pixel."""
    x, w = numbers(9, (2, 4, 9, 13), (6, 2, 3, 3))
    with FlopCounterMode(display=False) as counter:
        conv2d(x, w, method, padding=1, groups=2)
    found = cost(method, 2, 4, 6, 9, 13, 3, padding=1, groups=2)
    assert counter.get_total_flops() == 2 * (found.multiplications + found.transforms)


def test_the_multiplications_of_winograd():
    """14 x 14, 3 x 3, Ci Co = 256: 2.25 and 4 times fewer than direct; the saving is (m r / (m + r - 1))^2."""
    direct, two, four = (cost(method, 1, 16, 16, 14, 14, 3).multiplications
                         for method in ("direct", "winograd", "winograd4"))  # fmt: skip
    assert (direct, two, four) == (331776, 147456, 82944)
    assert (direct / two, direct / four) == ((2 * 3 / 4) ** 2, (4 * 3 / 6) ** 2) == (2.25, 4.0)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(h=st.integers(3, 20), w=st.integers(3, 20), k=st.sampled_from([1, 2, 3]), s=st.integers(1, 2))
def test_im2col_stores_every_window(h, w, k, s):
    g = convolution.geometry("im2col", (2, 4, h, w), (6, 2, k, k), stride=s, groups=2)
    made = convolution.columns(torch.zeros(2, 2, 2, h, w), g).numel()
    assert made == cost("im2col", 2, 4, 6, h, w, k, stride=s, groups=2).workspace == 2 * 4 * k * k * math.prod(g.out)


def test_im2col_of_a_small_image_needs_6_6_times_the_memory():
    ratio = cost("im2col", 3, 5, 7, 14, 14, 3).workspace / (3 * 5 * 14 * 14)
    assert ratio == 9 * 12 * 12 / 14**2 == pytest.approx(6.61, abs=0.01)


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (3, 2), (2, 5)])
def test_minimal_filtering_is_correlation(m, r):
    a, b, g = winograd.matrices(m, r)
    d, w = (part.numpy() for part in numbers(10, m + r - 1, r))
    assert np.allclose(a.T @ ((g @ w) * (b.T @ d)), np.correlate(d, w, "valid"), atol=1e-12)


def test_the_error_of_winograd_grows_with_the_tile():
    """Against float64, over ten draws; F(6, 3) as well, which is no method here."""
    errors = {2: [], 4: [], 6: []}
    for seed in range(10):
        x, w = numbers(seed, (1, 1, 16, 26, 26), (1, 16, 16, 3, 3))
        g = convolution.geometry("winograd", (1, 16, 26, 26), (16, 16, 3, 3))
        exact = F.conv2d(x[0], w[0])
        for m, found in errors.items():
            found.append(float((winograd.forward(x.float(), w.float(), g, m)[0] - exact).pow(2).mean().sqrt()))
    assert max(errors[2]) < min(errors[4]) and max(errors[4]) < min(errors[6])


@pytest.mark.parametrize("kernel", [5, 9])
def test_the_fft_does_not_depend_on_the_size_of_the_kernel(kernel):
    """At equal padded sides; direct work grows with the square."""
    counts = [cost("fft", 2, 3, 4, 32, 32, k) for k in (3, kernel)]
    assert counts[0] == counts[1]
    direct = cost("direct", 2, 3, 4, 32, 32, kernel, padding=kernel // 2)
    assert direct.multiplications == 2 * 3 * 4 * (32 * kernel) ** 2
