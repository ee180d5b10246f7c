"""Convolution five ways: direct, im2col + GEMM, FFT, Winograd F(2x2, 3x3) and F(4x4, 3x3), each with both gradients.

`conv2d` is the differentiable seam, `cost` what a method multiplies and stores. As in deep learning, "convolution" is
correlation: the kernel is not flipped. Sources: im2col, Chellapilla et al. (2006); FFT, Mathieu et al. (2013);
Winograd, Lavin and Gray (2016). For any float dtype, on CPU or GPU; `F.conv2d` is the reference.
When not to use it: to train. `F.conv2d` chooses an algorithm for the device; these show what there is to choose from.
Each method is three functions of x [N, G, Ci/G, H + 2p, W + 2p] (padded), w [G, Co/G, Ci/G, Ky, Kx] and dy
[N, G, Co/G, H', W'] (G groups): forward(x, w, g), grad_x(dy, w, g), grad_w(x, dy, g)."""

import itertools
import math
from collections import namedtuple
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.errors import RequestError, choose
from labkit.paths import lab_part

winograd = lab_part("winograd")
# Sizes of one convolution, all but `groups` pairs (y, x): of the kernel, of what it touches when dilated (reach), of
# the padded image, of the output, and of Fourier transforms. Made and checked by `geometry`.
Geometry = namedtuple("Geometry", "groups stride padding dilation kernel reach padded out fourier")
# Real multiplications of the products and of the transforms; words stored beside x, its padding, w and y.
Count = namedtuple("Count", "multiplications transforms workspace")


def conv2d(x: Tensor, w: Tensor, method: str = "direct", stride=1, padding=0, dilation=1, groups: int = 1) -> Tensor:
    """`F.conv2d(x, w, ...)` by one of `METHODS`; the backward pass uses the same method, and can be differentiated.

    x: [N, Ci, H, W]. w: [Co, Ci / groups, Ky, Kx], same dtype and device. stride, padding, dilation: a number or a pair
    (y, x). The FFT computes every output and keeps those of the stride; float16 and bfloat16 it computes in float32.

    Returns: [N, Co, H', W'], H' = floor((H + 2 padding - dilation (Ky - 1) - 1) / stride) + 1.
    Raises: RequestError, for shapes that do not fit or what a method cannot do (Winograd: 3x3, stride, dilation 1)."""
    for name, tensor in (("x", x), ("w", w)):
        if not (torch.is_tensor(tensor) and tensor.ndim == 4 and tensor.is_floating_point()):
            raise RequestError(f"{name} must be a tensor of floats with 4 dimensions, such as torch.rand(2, 3, 8, 8)")
    if (x.dtype, x.device) != (w.dtype, w.device):
        raise RequestError(f"x is {x.dtype} on {x.device}, w is {w.dtype} on {w.device}; convert one with w.to(x)")
    return _Convolution.apply(x, w, method, geometry(method, x.shape, w.shape, stride, padding, dilation, groups))


def cost(method: str, N: int, Ci: int, Co: int, H: int, W: int, K, stride=1, padding=0, dilation=1,
         groups: int = 1) -> Count:
    """What a forward pass counts, exactly. K: the side of the kernel or a pair (y, x). G: groups.

    - direct and im2col: N Co H' W' (Ci/G) Ky Kx; im2col stores its columns, N Ci Ky Kx H' W'.
    - Winograd F(m, 3), a = m + 2, P tiles of m x m outputs: a^2 P Co Ci/G; transforms, as dense matrix products, 2 a^3
      for each of P Ci tiles of x, 9 a + 3 a^2 for each kernel, a^2 m + a m^2 for each of P Co tiles of y.
    - FFT of Sy x Sx points: 4 N Co Ci/G Sy (Sx/2 + 1); transforms as radix 2, all twiddle factors, two real rows in one
      complex transform: exact for powers of 2, log2 in between.

    Raises: RequestError, as of `conv2d`."""
    ky, kx = _pair("K", K, 1)
    g = geometry(method, (N, Ci, H, W), (Co, Ci // max(1, groups), ky, kx), stride, padding, dilation, groups)
    kernels = Co * (Ci // groups)
    if method in winograd.TILES:
        m = winograd.TILES[method]
        a, tiles = m + 2, N * math.prod(-(-side // m) for side in g.out)
        transforms = tiles * (Ci * 2 * a**3 + Co * (a**2 * m + a * m**2)) + kernels * (9 * a + 3 * a**2)
        return Count(a**2 * tiles * kernels, transforms, a**2 * (kernels + tiles * (Ci + Co)))
    if method == "fft":
        sy, sx = g.fourier
        frequencies, fields = sy * (sx // 2 + 1), N * Ci + kernels + N * Co
        each = sy * sx * math.log2(sx) + 2 * frequencies * math.log2(sy)
        return Count(4 * N * kernels * frequencies, round(fields * each), 2 * fields * frequencies)
    taps = math.prod(g.out) * ky * kx
    return Count(N * kernels * taps, 0, N * Ci * taps if method == "im2col" else 0)


def geometry(method: str, x_shape, w_shape, stride=1, padding=0, dilation=1, groups: int = 1) -> Geometry:
    """Check one convolution. Raises: RequestError, one line, for sizes that do not fit or a method that cannot."""
    choose("method", method, METHODS)
    s, p, d = _pair("stride", stride, 1), _pair("padding", padding, 0), _pair("dilation", dilation, 1)
    (n, ci, *size), (co, inner, *kernel) = x_shape, w_shape
    if type(groups) is not int or groups < 1 or ci % groups or co % groups:
        raise RequestError(f"groups {groups!r} must be a whole number that divides Ci = {ci} and Co = {co}")
    if inner * groups != ci or min(n, ci, co, *size, *kernel) < 1:
        raise RequestError(f"x {tuple(x_shape)} does not go with w {tuple(w_shape)} and groups {groups}; x is "
                           "[N, Ci, H, W], w is [Co, Ci / groups, Ky, Kx], every size 1 or more")
    reach, padded = ([d[i] * (kernel[i] - 1) + 1 for i in (0, 1)], [size[i] + 2 * p[i] for i in (0, 1)])
    if reach[0] > padded[0] or reach[1] > padded[1]:
        raise RequestError(f"the kernel reaches over {reach} pixels and the padded image has {padded}; use more "
                           "padding, a smaller kernel or less dilation")
    if method in winograd.TILES and (kernel, s, d) != ([3, 3], (1, 1), (1, 1)):
        raise RequestError(f"{method} needs a 3x3 kernel, stride 1 and dilation 1, not kernel {kernel}, stride {s} and "
                           f"dilation {d}; use direct, im2col or fft")
    out = [(padded[i] - reach[i]) // s[i] + 1 for i in (0, 1)]
    fourier = [next(n for n in range(side, 2 * side + 1) if pow(30, n, n) == 0) for side in padded]  # of 2, 3, 5
    return Geometry(groups, s, p, d, kernel, reach, padded, out, fourier)


def _pair(name: str, value, least: int) -> tuple[int, int]:
    found = (value, value) if type(value) is int else value
    if not (isinstance(found, (tuple, list)) and len(found) == 2 and all(type(v) is int and v >= least for v in found)):
        raise RequestError(f"{name} {value!r} must be a whole number of {least} or more, or a pair of them (y, x)")
    return tuple(found)


class _Convolution(torch.autograd.Function):
    """One convolution whose forward and backward passes are the three functions of its method."""

    @staticmethod
    def forward(ctx, x, w, method, g):
        ctx.save_for_backward(x, w)
        ctx.about = METHODS[method], g
        with torch.autocast(x.device.type, enabled=False):  # else a sum of mixed dtypes
            return ctx.about[0][0](*_grouped(x, w, g), g).flatten(1, 2)

    @staticmethod
    def backward(ctx, dy):
        (_, grad_x, grad_w), g = ctx.about
        (x, w), dy = _grouped(*ctx.saved_tensors, g), dy.unflatten(1, (g.groups, -1))
        (py, px), (h, width), (need_x, need_w, *_) = g.padding, g.padded, ctx.needs_input_grad
        dx = grad_x(dy, w, g).flatten(1, 2)[..., py : h - py, px : width - px] if need_x else None
        return dx, grad_w(x, dy, g).flatten(0, 1) if need_w else None, None, None


def _grouped(x, w, g):
    """x padded, [N, G, Ci/G, ...], and w, [G, Co/G, ...]."""
    (py, px), split = g.padding, (g.groups, -1)
    return F.pad(x, (px, px, py, py)).unflatten(1, split), w.unflatten(0, split)


def _taps(x, g):
    """The view [N, G, C, H', W'] of the pixels that a kernel offset multiplies, for every offset (ky, kx) in order."""
    (sy, sx), (dy, dx), (h, w) = g.stride, g.dilation, g.out
    for y, z in itertools.product(range(0, g.reach[0], dy), range(0, g.reach[1], dx)):
        yield x[..., y : y + (h - 1) * sy + 1 : sy, z : z + (w - 1) * sx + 1 : sx]


def direct(x, w, g):
    """One product over the channels for each kernel offset, added up; no copy of x."""
    pairs = zip(w.flatten(3).unbind(-1), _taps(x, g), strict=True)
    return sum(torch.einsum("gok,ngkyx->ngoyx", kernel, seen) for kernel, seen in pairs)


def direct_grad_x(dy, w, g):
    dx = dy.new_zeros(len(dy), g.groups, w.shape[2], *g.padded)
    for kernel, seen in zip(w.flatten(3).unbind(-1), _taps(dx, g), strict=True):
        seen += torch.einsum("gok,ngoyx->ngkyx", kernel, dy)
    return dx


def direct_grad_w(x, dy, g):
    found = [torch.einsum("ngoyx,ngkyx->gok", dy, seen) for seen in _taps(x, g)]
    return torch.stack(found, -1).unflatten(-1, g.kernel)


def columns(x, g):
    """[N, G, (Ci/G) Ky Kx, H' W']: the window of every output as a column. A view by strides, then one copy."""
    (sy, sx), (dy, dx), (*outer, down, right) = g.stride, g.dilation, x.stride()
    steps = (*outer, dy * down, dx * right, sy * down, sx * right)
    return x.as_strided((*x.shape[:3], *g.kernel, *g.out), steps).flatten(5).flatten(2, 4)


def im2col(x, w, g):
    """One matrix product for each image and group, on columns that hold every pixel up to Ky Kx times."""
    return (w.flatten(2) @ columns(x, g)).unflatten(-1, g.out)


def im2col_grad_x(dy, w, g):
    dx = dy.new_zeros(len(dy), g.groups, w.shape[2], *g.padded)
    found = (w.flatten(2).mT @ dy.flatten(3)).unflatten(-1, g.out).unflatten(2, (w.shape[2], -1))
    for received, seen in zip(found.unbind(3), _taps(dx, g), strict=True):  # col2im: a pixel sums over its copies
        seen += received
    return dx


def im2col_grad_w(x, dy, g):
    return (dy.flatten(3) @ columns(x, g).mT).sum(0).unflatten(-1, (-1, *g.kernel))


def _spectrum(x, g, step=(1, 1)):
    """Half spectrum of real fields, with `step` - 1 zeros put between neighbours (a dilated kernel, strided dy)."""
    spread = x.new_zeros(*x.shape[:3], *((n - 1) * s + 1 for n, s in zip(x.shape[3:], step, strict=True)))
    spread[..., :: step[0], :: step[1]] = x
    return torch.fft.rfft2(spread.to(torch.promote_types(x.dtype, torch.float32)), s=g.fourier)


def _fields(equation, a, b, like, g):
    return torch.fft.irfft2(torch.einsum(equation, a, b), s=g.fourier).to(like.dtype)


def fft(x, w, g):
    """Products of spectra. The conjugate turns convolution into correlation; sides >= H + 2p keep it from wrapping."""
    every = _fields("ngkyx,gokyx->ngoyx", _spectrum(x, g), _spectrum(w, g, g.dilation).conj(), x, g)
    return next(_taps(every, g))


def fft_grad_x(dy, w, g):
    dx = _fields("ngoyx,gokyx->ngkyx", _spectrum(dy, g, g.stride), _spectrum(w, g, g.dilation), dy, g)
    return dx[..., : g.padded[0], : g.padded[1]]


def fft_grad_w(x, dy, g):
    every = _fields("ngkyx,ngoyx->gokyx", _spectrum(x, g), _spectrum(dy, g, g.stride).conj(), x, g)
    return every[..., : g.reach[0] : g.dilation[0], : g.reach[1] : g.dilation[1]]


METHODS = {"direct": (direct, direct_grad_x, direct_grad_w), "im2col": (im2col, im2col_grad_x, im2col_grad_w),
           "fft": (fft, fft_grad_x, fft_grad_w),
           **{name: tuple(partial(f, m=m) for f in (winograd.forward, winograd.grad_x, winograd.grad_w))
              for name, m in winograd.TILES.items()}}
