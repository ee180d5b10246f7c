"""What lab 01 finds out about its convolutions: that they are equal, what they multiply and hold, how exact and how
fast they are. Rows for `lab.evidence`, and tables for its figures."""

from collections.abc import Sequence
from fractions import Fraction

import pandas as pd
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.operators import convolution
from labkit.rules.finding import chosen
from labs import utilisation

DIRECTIONS = ("forward", "grad_input", "grad_weight")
NAMES = {"winograd": "F(2,3)", "winograd4": "F(4,3)"}


def images(shape: Sequence[int], kernel: int, outputs: int, seed: int = 0, dtype=torch.float32):
    """(x, w) of standard normal numbers; w is divided by the root of its products, so that outputs are about 1."""
    numbers = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=numbers, dtype=torch.float64)
    w = torch.randn(outputs, shape[1], kernel, kernel, generator=numbers, dtype=torch.float64)
    return x.to(dtype), (w / (shape[1] * kernel**2) ** 0.5).to(dtype)


def all_three(function, x, w) -> list[torch.Tensor]:
    """[output, gradient of x, gradient of w], for the same gradient of the output whatever the function."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y)
    return [y.detach(), *torch.autograd.grad(y, (x, w), gradient)]


def equality(shape=(2, 4, 14, 14), outputs: int = 6, kernel: int = 3, padding: int = 1) -> pd.DataFrame:
    """The largest difference from `F.conv2d` in float32, relative to its largest value: method by direction."""
    x, w = images(shape, kernel, outputs)
    right = all_three(lambda x, w: F.conv2d(x, w, padding=padding), x, w)
    rows = {}
    for method in convolution.METHODS:
        found = all_three(lambda x, w, m=method: convolution.conv2d(x, w, m, padding=padding), x, w)
        rows[method] = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, right, strict=True)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(DIRECTIONS)).rename_axis("method")


def savings(shape=(2, 8, 12, 12), outputs: int = 16) -> pd.DataFrame:
    """Multiplications of the products, those of the transforms, and the saving beside (m r / (m + r - 1))^2.

    Twelve is a multiple of both tiles. `counted off`: how far torch's FLOP counter over the whole run, half of it, is
    from products and transforms."""
    x, w = images(shape, 3, outputs)
    sizes = (shape[0], shape[1], outputs, *shape[2:], 3)
    direct = convolution.cost("direct", *sizes, padding=1).multiplications
    rows = []
    for method, m in {"winograd": 2, "winograd4": 4}.items():
        cost = convolution.cost(method, *sizes, padding=1)
        with FlopCounterMode(display=False) as counter:
            convolution.conv2d(x, w, method, padding=1)
        expected = Fraction(m * 3, m + 2) ** 2
        saving = Fraction(direct, cost.multiplications)
        rows.append((NAMES[method], direct, cost.multiplications, float(saving), float(abs(saving - expected)),
                     cost.transforms, abs(counter.get_total_flops() / 2 - cost.multiplications - cost.transforms)))
    columns = ["method", "direct", "products", "saving", "saving off", "transforms", "counted off"]
    return pd.DataFrame(rows, columns=columns)


def columns_memory(shapes=((1, 3, 14, 14), (2, 4, 9, 12), (1, 2, 16, 16)), kernel: int = 3) -> pd.DataFrame:
    """Words of the matrix of im2col over those of the images, counted in the matrix itself, without padding."""
    rows = []
    for shape in shapes:
        x = torch.zeros(shape)
        g = convolution.geometry("im2col", x.shape, (1, shape[1], kernel, kernel))
        made = convolution.columns(x.unsqueeze(1), g).numel()
        (h, w), (out_h, out_w) = shape[2:], g.out
        formula = Fraction(kernel**2 * out_h * out_w, h * w)
        rows.append((f"{h} x {w}", made / x.numel(), float(formula), float(abs(Fraction(made, x.numel()) - formula))))
    return pd.DataFrame(rows, columns=["image", "times as many words", "Ky Kx H'W' / (H W)", "off"])


def errors(seeds: Sequence[int], shape=(1, 32, 28, 28), outputs: int = 32) -> pd.DataFrame:
    """Root mean square error of float32 against float64, relative: columns seed, method, error."""
    rows = []
    for seed in seeds:
        x, w = images(shape, 3, outputs, seed, torch.float64)
        exact = F.conv2d(x, w, padding=1)
        for method in convolution.METHODS:
            found = convolution.conv2d(x.float(), w.float(), method, padding=1).double()
            square = float((found - exact).pow(2).mean() / exact.pow(2).mean())
            rows.append((seed, NAMES.get(method, method), square**0.5))
    return pd.DataFrame(rows, columns=["seed", "method", "error"])


def kernels(settings, device: str = "cpu") -> pd.DataFrame:
    """`F.conv2d` ("library"), im2col and FFT by kernel size, "same" padding, interleaved: `paired`, and kernel."""
    shape = (settings.kernel_images, settings.kernel_channels, settings.kernel_side, settings.kernel_side)
    found = []
    for kernel in settings.kernels:
        x, w = (tensor.to(device) for tensor in images(shape, kernel, settings.kernel_channels))
        pad = kernel // 2
        work = {"library": lambda x=x, w=w, p=pad: F.conv2d(x, w, padding=p)}
        for method in ("im2col", "fft"):
            work[method] = lambda x=x, w=w, p=pad, m=method: convolution.conv2d(x, w, m, padding=p)
        with torch.inference_mode():
            found.append(utilisation.paired(work, settings.kernel_rounds, device).assign(kernel=kernel))
    return pd.concat(found, ignore_index=True)


def about_kernels(settings) -> dict:
    """What identifies the timings of `kernels` in a record."""
    return {"images": settings.kernel_images, "channels": settings.kernel_channels, "side": settings.kernel_side,
            "largest": max(settings.kernels)}


def recorded_kernels(runs, settings) -> pd.DataFrame | None:
    """The last recorded timings of `kernels` on these images, in the same form; None where there are none."""
    found = chosen(runs, {"evidence": "kernels", **about_kernels(settings)})
    if not found:
        return None
    table = pd.DataFrame([(row.name, row.value, row.samples) for row in found[-1].rows],
                         columns=["name", "seconds", "kernel"])
    return table.assign(round=table.groupby(["name", "kernel"]).cumcount())
