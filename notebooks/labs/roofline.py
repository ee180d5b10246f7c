"""The roofline of this device: how fast an operation can be, given the FLOPs that it does on each byte it moves.

Source: Williams, Waterman and Patterson (2009). attainable = min(peak, bandwidth x intensity). Both roofs are measured
here, by a matrix product and by a copy, with torch and the thread cap that is set. When not to use it: as a forecast.
It bounds one large operation; many small ones are limited by the cost of starting each, and data that stays in a cache
moves faster than the slanted roof says."""

from dataclasses import dataclass

from labkit import doctor
from labkit.errors import RequestError, WorkError, choose

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Roofline:
    """`peak` in FLOP/s (a multiplication and an addition are two), `bandwidth` in bytes/s (read and written)."""

    peak: float
    bandwidth: float
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self):
        if not (self.peak > 0 and self.bandwidth > 0):
            raise RequestError(f"peak {self.peak} and bandwidth {self.bandwidth} must both be more than 0")

    @property
    def balance(self) -> float:
        """FLOPs per byte at which both roofs allow the same speed."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s at most for an operation of `intensity` FLOPs per byte."""
        return min(self.peak, self.bandwidth * intensity)


def measure(dtype: str = "float32", device: str = "cpu", side: int = 1024, mib: int = 256,
            repeats: int = 5) -> Roofline:
    """Measure both roofs.

    Args:
        dtype: of the matrices, one of `DTYPES`; the copy moves float32.
        side: of the square matrices. mib: MiB copied.
        repeats: timings of which the fastest counts: a roof is what can be reached, and interruptions only add.

    Raises:
        RequestError: unknown dtype, or a size below 1.
        WorkError: this device does not multiply matrices of that dtype."""
    choose("dtype", dtype, DTYPES)
    for name, value in (("side", side), ("mib", mib), ("repeats", repeats)):
        if value < 1:
            raise RequestError(f"{name} {value} is out of range; it must be 1 or more")
    plain = (dtype, device) == ("float32", "cpu")
    peaks, bandwidths = [], []
    for _ in range(repeats):
        peaks.append(1e9 * doctor.matrix_multiply(side, 1) if plain else multiply(dtype, device, side))
        bandwidths.append(1e9 * doctor.memory_bandwidth(mib, 1) if device == "cpu" else copy(device, mib))
    return Roofline(max(peaks), max(bandwidths), dtype, device)


def multiply(dtype: str, device: str, side: int) -> float:
    """FLOP/s of a square matrix product, 2 side^3 operations, in any dtype on any device.

    Raises:
        WorkError: this device does not multiply matrices of that dtype."""
    import torch

    numbers = torch.Generator().manual_seed(0)
    left, right = (torch.rand(side, side, generator=numbers).to(device, getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(left)
    try:
        torch.mm(left, right, out=out)
    except RuntimeError as error:
        raise WorkError(f"{device} does not multiply {dtype} matrices ({str(error).splitlines()[0]})") from None
    return 2 * side**3 / doctor.median_seconds(lambda: waited(device, torch.mm, left, right, out=out), 1)


def copy(device: str, mib: int) -> float:
    """Bytes/s of a copy within an accelerator's memory, read and written both counted."""
    import torch

    source = torch.ones(mib << 18, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    return 2 * (mib << 20) / doctor.median_seconds(lambda: waited(device, target.copy_, source), 1)


def waited(device: str, work, *args, **kwargs):
    """Call `work` and wait until the device has done it: an accelerator answers before it is ready."""
    import torch

    result = work(*args, **kwargs)
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return result
