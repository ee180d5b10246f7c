"""What goes on the wire: compressors for `labkit.training.compression`, by name in `NAMES`.

Codes are packed: with c codes as many digits of base c to a byte as fit, so 8 signs, 5 ternary digits, 2 of base 9,
1 above base 16. Bytes on the wire of a float32 tensor of n entries in r rows (see `size`):

    none 4 n (float32)    onebit    ceil(n / 8) + 8 r                        topk, dgc 8 k, k = max(1, round(density n))
    fp16 2 n              terngrad  ceil(n / 5) + 4                                    4 n where that is less
    dorefa ceil(n / m) + 4          qsgd ceil(n / m) + 4 ceil(n / bucket)    randomk   4 k + 8

m: codes of base 2s + 1 (2^bits) that fit a byte. When not to use what: fp16 without looking at the size of gradients;
onebit and topk without feedback; qsgd with few levels and large buckets (its variance grows like their root); topk with
many ranks; dgc with an optimizer that has momentum; powersgd for a model of vectors. Where a finite gradient would not
be read as finite numbers, `encode` raises a WorkError; an empty tensor has an empty wire (see `sure`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn import functional as F

from labkit.errors import RequestError, WorkError
from labkit.training.compression import Compressor, Memory


def per_byte(base: int) -> int:
    """Digits below `base` that fit a byte."""
    return int(math.log(256, base) + 1e-9)


def pack(digits: Tensor, base: int) -> Tensor:
    """n integers in [0, base) as uint8 [ceil(n / per_byte(base))]."""
    powers = base ** torch.arange(per_byte(base), device=digits.device)
    padded = F.pad(digits.flatten().long(), (0, -digits.numel() % len(powers)))
    return (padded.view(-1, len(powers)) * powers).sum(1).to(torch.uint8)


def unpack(packed: Tensor, base: int, count: int) -> Tensor:
    """The first `count` of what `pack` packed: int64 [count]."""
    powers = base ** torch.arange(per_byte(base), device=packed.device)
    return (packed.long()[:, None] // powers % base).flatten()[:count]


def whole(name: str, value, least: int, most: float = math.inf) -> int:
    """An option that counts something, as an int; RequestError: a fraction, or out of range."""
    if not least <= value <= most or value % 1:
        raise RequestError(f"{name} {value!r} must be a whole number, from {least} to {most:g}")
    return int(value)


def sure(compressor: Compressor) -> Compressor:
    """`compressor`, for any tensor: what is empty has an empty wire, and a finite tensor that others would not read as
    finite numbers, beyond the range of float32 on the wire or of its own dtype, is a WorkError."""

    def encode(tensor, generator=None):
        if not tensor.numel():
            return (tensor.new_empty(0, dtype=torch.uint8),)
        half = tensor.element_size() < 4  # computed in float32; what does not fit shows where it is read
        wire = compressor.encode(tensor.float() if half else tensor, generator)
        read = [compressor.decode(wire, tensor)] if half else [part for part in wire if part.is_floating_point()]
        if not all(part.isfinite().all() for part in read) and tensor.isfinite().all():
            raise WorkError(f"a gradient of up to {tensor.abs().max():.3g} in {tensor.dtype} cannot be read from its "
                            "wire in finite numbers; lower the loss scale or the rate, or do not compress")
        return wire

    def decode(wire, like):
        return compressor.decode(wire, like) if like.numel() else torch.empty_like(like)

    return compressor._replace(encode=encode, decode=decode)


def cast(dtype: torch.dtype | None) -> Compressor:
    """All entries in `dtype` (None: as they are). In float16 what is below 3e-8 becomes 0; a finite entry that does not
    fit (65520 and more) is a WorkError."""

    def encode(tensor, generator=None):
        wire = tensor.to(dtype or tensor.dtype)
        if dtype and not wire.isfinite().all() and tensor.isfinite().all():
            raise WorkError(f"a gradient of {tensor.abs().max():.3g} overflows {dtype} (largest "
                            f"{torch.finfo(dtype).max:.5g}); lower the loss scale or the rate, or do not compress")
        return (wire,)

    return Compressor(encode, lambda wire, like: wire[0].to(like.dtype).view_as(like), closed=True)


def onebit() -> Compressor:
    """Signs, and two float32 a row: the means of its entries >= 0 and < 0, so the errors of either half add up to 0.
    A row is one output of a matrix or convolution, or a vector. Biased. After Seide et al. (1-bit SGD)."""

    def encode(tensor, generator=None):
        rows = tensor.reshape(len(tensor) if tensor.dim() > 1 else 1, -1)
        halves = rows >= 0, ~(rows >= 0)  # NaN is in the second, and makes its mean NaN
        counts = [half.sum(1).clamp(min=1) for half in halves]
        means = [torch.where(half, rows, 0).sum(1) / n for half, n in zip(halves, counts, strict=True)]
        if not all(mean.isfinite().all() for mean in means):  # a sum may overflow where its mean does not
            means = [(torch.where(half, rows, 0) / n[:, None]).sum(1) for half, n in zip(halves, counts, strict=True)]
        return pack(halves[0], 2), torch.stack(means, 1).float()

    def decode(wire, like):
        positive = unpack(wire[0], 2, like.numel()).view(len(wire[1]), -1).bool()
        return torch.where(positive, wire[1][:, :1], wire[1][:, 1:]).to(like.dtype).view_as(like)

    return sure(Compressor(encode, decode))


def quantized(levels: int = 4, bucket: int = 512, norm: float = 2.0) -> Compressor:
    """|g| / norm in s = `levels` steps, rounded up or down at random, so unbiased; a float32 norm for every `bucket`
    entries (0: one for all).

    For n entries a norm, QSGD (Alistarh et al.; 2-norm) has a variance of at most min(n / s^2, sqrt(n) / s) norm^2.
    TernGrad (Wen et al.) is s = 1 with the maximum, for a whole tensor; its clipping is left out."""
    levels, bucket = whole("levels", levels, 1, 127), whole("bucket", bucket, 0)

    def rows_of(flat):
        width = bucket or len(flat)
        return F.pad(flat, (0, -len(flat) % width)).view(-1, width)

    def encode(tensor, generator=None):
        rows = rows_of(tensor.flatten())
        norms = unit = torch.linalg.vector_norm(rows, norm, 1, keepdim=True).float()
        if not (levels * norms).isfinite().all():  # squares may overflow where their root does not
            scale = rows.abs().amax(1, keepdim=True)
            rows = rows / scale.where(scale != 0, 1.0)
            unit = torch.linalg.vector_norm(rows, norm, 1, keepdim=True).float()
            norms = (scale * unit).float()
        place = levels * rows.abs() / unit.where(unit != 0, 1.0)
        up = torch.rand(place.shape, generator=generator, dtype=place.dtype, device=place.device) < place % 1
        level = (place.floor() + up).clamp(max=levels)  # float32 may have rounded the norm down
        codes = (level * rows.sign()).nan_to_num(0.0) + levels  # where it is NaN, so is the norm
        return pack(codes.flatten()[: tensor.numel()], 2 * levels + 1), norms

    def decode(wire, like):
        codes = unpack(wire[0], 2 * levels + 1, like.numel()).to(like.dtype) - levels
        return (rows_of(codes) / levels * wire[1]).to(like.dtype).flatten()[: like.numel()].view_as(like)

    return sure(Compressor(encode, decode))


def topk(density: float = 0.01, stage: int = 0) -> Compressor:
    """The largest k of n: float32 values and int32 indices; all n values where that is fewer bytes, k > 4 n / (4 + 4)
    (SparCML's switch). Biased. stage > 0: the steps of each stage of Deep Gradient Compression's warm-up, with
    sparsity 75 %, 93.75 %, 98.4 %, 99.6 %, ... until that of `density` is reached; 0: none."""
    stage = whole("stage", stage, 0)

    def encode(tensor, generator=None):
        flat, k = tensor.flatten(), max(1, round(density * tensor.numel()))
        if 8 * k > 4 * len(flat):
            return (flat.float(),)
        index = flat.abs().topk(k, sorted=False).indices
        return flat[index].float(), index.int()

    def decode(wire, like):
        values, *index = wire[0].to(like.dtype), *wire[1:]
        return (values.new_zeros(like.numel()).scatter(0, index[0].long(), values) if index else values).view_as(like)

    at = (lambda step: topk(max(density, 4.0 ** -min(1 + step // stage, 99)))) if stage else None
    return sure(Compressor(encode, decode, at=at))


def drawn(scale: bool, density: float = 0.01) -> Compressor:
    """k of n at random: their values, and the int64 seed from which the reader draws the same indices: `randomk`.
    `scale`: the values times n / k, unbiased, of variance (n / k - 1) norm^2, for use without feedback only."""

    def places(seed, like):
        order = torch.randperm(like.numel(), generator=torch.Generator().manual_seed(int(seed)))
        return order[: max(1, round(density * like.numel()))].to(like.device)

    def encode(tensor, generator):
        seed = torch.randint(2**62, (1,), generator=generator, device=tensor.device)
        values = tensor.flatten()[places(seed, tensor)]
        return (values * (tensor.numel() / len(values)) if scale else values).float(), seed

    def decode(wire, like):
        values = wire[0].to(like.dtype)
        return values.new_zeros(like.numel()).scatter(0, places(wire[1], like), values).view_as(like)

    return sure(Compressor(encode, decode))


def dorefa(bits: int = 2) -> Compressor:
    """Extra. 2^bits levels evenly from -M to M, M the largest |g|, rounded at random by noise of half a step: unbiased.
    0 is no level: even an entry of 0 is sent as +-M / (2^bits - 1). After Zhou et al. (DoReFa-Net)."""
    steps = 2 ** whole("bits", bits, 1, 8) - 1

    def encode(tensor, generator=None):
        largest = tensor.abs().max().float()
        place = steps * (tensor.flatten() / largest.where(largest != 0, 1.0) / 2 + 0.5)
        noise = torch.rand(place.shape, generator=generator, dtype=place.dtype, device=place.device) - 0.5
        codes = (place + noise).round().clamp(0, steps).nan_to_num(0.0)
        return pack(codes, steps + 1), largest[None]

    def decode(wire, like):
        codes = unpack(wire[0], steps + 1, like.numel()).to(like.dtype)
        return ((2 * codes / steps - 1) * wire[1]).to(like.dtype).view_as(like)

    return sure(Compressor(encode, decode))


def size(name: str, n: int, rows: int = 1, *, levels: int = 4, bucket: int = 512, density: float = 0.01,
         bits: int = 2) -> int:
    """Bytes of the wire of a float32 tensor of n entries in `rows` rows, by the formulas above; 0 if it is empty."""
    k = max(1, round(density * n))
    return n and {"none": 4 * n, "fp16": 2 * n, "onebit": -(-n // 8) + 8 * rows, "terngrad": -(-n // 5) + 4,
            "qsgd": -(-n // per_byte(2 * levels + 1)) + 4 * -(-n // (bucket or n)), "topk": min(8 * k, 4 * n),
            "dgc": min(8 * k, 4 * n), "dorefa": -(-n // per_byte(2**bits)) + 4,
            "randomk": 4 * k + 8, "randomk_scaled": 4 * k + 8}[name]


def powersgd_size(shapes: Sequence[Sequence[int]], rank: int = 1) -> int:
    """Bytes that `powersgd` all-reduces in a step, of float32 tensors of these shapes, once it has begun."""
    words = 0
    for rows, *rest in shapes:
        columns = math.prod(rest)
        low = min(rank, rows, columns) * (rows + columns)
        words += low if rest and low < rows * columns else rows * columns
    return 4 * words


def powersgd(rank: int = 1, start: int = 2) -> power.PowerSGDState:
    """torch's own, by DDP only: from step `start`, matrices in low `rank`, all-reduced, with feedback: r (rows +
    columns) words each where that is fewer, vectors whole. It counts nothing: see `powersgd_size`."""
    rank, start = whole("rank", rank, 1), whole("start", start, 2)
    return power.PowerSGDState(None, rank, start, 1, orthogonalization_epsilon=1e-8)


@dataclass(frozen=True)
class Forgetful(Memory):
    """The memory of what must not have feedback."""

    def __post_init__(self):
        if self.feedback:
            raise RequestError("randomk_scaled is for use without feedback: its rests would grow; choose randomk")


NAMES = {  # a maker and the memory that the method comes with; for torch's, its hook
    "none": (partial(cast, None), Memory()),
    "fp16": (partial(cast, torch.float16), Memory()),
    "onebit": (onebit, Memory(feedback=True)),
    "qsgd": (quantized, Memory()),
    "terngrad": (partial(quantized, 1, 0, math.inf), Memory()),
    "topk": (topk, Memory(feedback=True)),
    "randomk": (partial(drawn, False), Memory(feedback=True)),
    "randomk_scaled": (partial(drawn, True), Forgetful()),
    "dgc": (partial(topk, density=0.001), Memory(feedback=True, momentum=0.9)),
    "dorefa": (dorefa, Memory()),
    "powersgd": (powersgd, power.powerSGD_hook),
}
