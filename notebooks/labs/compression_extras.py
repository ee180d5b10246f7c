"""Extra compressors whose wires differ in length, the sum of sparse tensors (SparCML), the factors of a fully connected
layer (SFB), ranks in one process, and a problem on which signs without feedback stand still.

When not to use it: `threshold` and `adacomp` where a fixed budget of bytes is asked for (what they send depends on the
gradient, and every rank waits for the longest wire)."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from labkit.errors import RequestError
from labkit.training.collectives import ProcessComm
from labkit.training.compression import Compressor, Memory, State
from labs import compressors


def _sparse(choose_places) -> Compressor:
    """float32 values and int32 indices of the entries that `choose_places(flat)` marks; any number of them."""

    def encode(tensor, generator=None):
        index = choose_places(tensor.flatten()).nonzero().flatten()
        return tensor.flatten()[index].float(), index.int()

    def decode(wire, like):
        values = wire[0].to(like.dtype)
        return values.new_zeros(like.numel()).scatter(0, wire[1].long(), values).view_as(like)

    return compressors.sure(Compressor(encode, decode, fixed=False))


def threshold(tau: float) -> Compressor:
    """+tau or -tau where |g| > tau, as one int32 each: 2 index + (1 if negative). After Strom; needs feedback. `tau`
    has the unit of a gradient."""
    if not 0 < tau < math.inf:
        raise RequestError(f"tau {tau} must be above 0 and finite")

    def encode(tensor, generator=None):
        flat = tensor.flatten()
        if not flat.isfinite().all():  # +-tau would hide it
            return (torch.full((1,), -1, dtype=torch.int32, device=flat.device),)
        index = (flat.abs() > tau).nonzero().flatten()
        return ((2 * index + (flat[index] < 0)).int(),)

    def decode(wire, like):
        if len(wire[0]) and wire[0][0] < 0:
            return torch.full_like(like, math.nan)
        signs = (1 - 2 * (wire[0] % 2)).to(like.dtype)
        return signs.new_zeros(like.numel()).scatter(0, wire[0].long() // 2, tau * signs).view_as(like)

    return compressors.sure(Compressor(encode, decode, fixed=False))


class AdaComp(State):
    """Chen et al.: in every bin of `width` entries, with G = residual + g and H = G + g, send G where |H| >= max |G| of
    the bin: one entry a bin or more. Here as float32 and int32; its quantisation of the values is left out."""

    def __init__(self, width: int = 50, seed: int = 0, worker: int | None = None, group=None):
        self.width = compressors.whole("width", width, 1)
        super().__init__(_sparse(lambda flat: flat != 0), Memory(feedback=True), seed, worker, group)

    def wire(self, key, gradient):
        kept = self.kept.setdefault(key, {})
        full = self.memory.add(kept, gradient)
        ahead, flat = (full + gradient).flatten().abs(), full.flatten()
        bins = torch.nn.functional.pad(flat.abs(), (0, -len(flat) % self.width)).view(-1, self.width)
        chosen = ~(ahead < bins.max(1).values.repeat_interleave(self.width)[: len(flat)])
        wire = self.compressor.encode(flat.where(chosen, 0).view_as(full))
        self.memory.keep(kept, full, self.compressor.decode(wire, full))
        self.payload += sum(part.nbytes for part in wire)
        return wire


def together(states: Sequence[State], gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """What `exchange` gives to each of P ranks, with all of them in this process: `gradients[rank][tensor]` -> means.

    Equal to real ranks bit for bit, except for all-reduced wires (none, fp16), which are added up in another order."""
    means = []
    for place, same in enumerate(zip(*gradients, strict=True)):
        heard = [state.now().decode(state.wire(place, gradient), gradient)
                 for state, gradient in zip(states, same, strict=True)]
        means.append(sum(heard) / len(heard))
    for state in states:
        state.step += 1
    return means


def moments(compressor: Compressor, n: int = 2000, times: int = 400, seed: int = 0) -> tuple[float, float]:
    """Of `times` readings of one Gaussian gradient g of n entries: (squared distance of their mean from g over what
    chance alone would leave, variance / `times`: about 1 if unbiased; variance over |g|^2)."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(n, generator=generator, dtype=torch.float64)
    seen = torch.stack([compressor.decode(compressor.encode(g, generator), g) for _ in range(times)])
    variance = seen.var(0).sum()
    return float((seen.mean(0) - g).square().sum() * times / variance), float(variance / (g @ g))


def union_density(density: float, ranks: int) -> float:
    """Of the sum of sparse tensors with independent places: 1 - (1 - d)^P."""
    return 1 - (1 - density) ** ranks


def dense_from(density: float, value: int = 4, index: int = 4) -> float:
    """P* above which the sum is smaller as a dense tensor, k > n v / (v + c) with v bytes a value and c an index: the P
    of 1 - (1 - d)^P = v / (v + c), no whole number as a rule."""
    return math.log(1 - value / (value + index)) / math.log(1 - density)


def sparse_sum(array: np.ndarray, comm, switch: bool = True) -> tuple[np.ndarray, list[int]]:
    """The sum of `array`, float32 [n] and mostly 0, over the ranks of `comm` (traced or real ones): recursive doubling
    of streams of (index, value), dense from where that is no larger (`switch`). After SparCML (Renggli et al.).

    Returns:
        the sum, and the words of 4 bytes that this rank sent in each of its lg P rounds: 1 for the length, and 2 k for
        k entries or n for all.

    Raises:
        RequestError: P is no power of 2."""
    if comm.size & (comm.size - 1):
        raise RequestError(f"{comm.size} ranks: recursive doubling needs a power of 2")
    total, words, span = array.copy(), [], 1
    while span < comm.size:
        index = np.flatnonzero(total).astype(np.int32)
        dense = switch and 2 * len(index) >= len(total)
        mine = total.view(np.int32) if dense else np.concatenate([index, total[index].view(np.int32)])
        length = _trade(np.array([len(mine)], dtype=np.int32), 1, comm.rank ^ span, comm)[0]
        heard = _trade(mine, int(length), comm.rank ^ span, comm)
        words.append(1 + len(mine))
        if switch and length == len(total):
            total += heard.view(np.float32)
        else:
            total[heard[: length // 2]] += heard[length // 2 :].view(np.float32)
        span *= 2
    return total, words


def _trade(array: np.ndarray, count: int, other: int, comm) -> np.ndarray:
    """`array` for the `count` int32 of rank `other`."""
    if isinstance(comm, ProcessComm):
        return comm.sendrecv(torch.from_numpy(array), other, count, other).numpy()
    return comm.sendrecv(array, other, count, other)


def factors_pay(batch: int, inputs: int, outputs: int) -> bool:
    """Whether the factors of the gradient of a fully connected layer, [batch, inputs] and [batch, outputs], are fewer
    words than the matrix itself (sufficient factor broadcasting, Xie et al.)."""
    return batch * (inputs + outputs) < inputs * outputs


def signs_alone(feedback: bool, rate: float, steps: int = 400, seed: int = 0) -> float:
    """|x1 - x2| after SGD with `onebit`, from 1: minimising (x1 - x2)^2 / 2 in 4 dimensions, with noise that decides
    the signs, +-4 (1, 1, -1, -1).

    Without feedback the means of the two halves hold no trace of x1 - x2: it stays 1 at every rate. With it, what the
    signs leave out adds up until it shows. Exact gradients reach 0 (rates below 1)."""
    state = State(compressors.onebit(), Memory(feedback), worker=0)
    signs = torch.randint(2, (steps,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1
    x, apart = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), torch.tensor([1.0, -1, 0, 0], dtype=torch.float64)
    noise = 4 * torch.tensor([1.0, 1, -1, -1], dtype=torch.float64)
    for sign in signs:
        gradient = apart * (apart @ x) + sign * noise
        x = x - rate * state.compressor.decode(state.wire("x", gradient), gradient)
    return abs(float(apart @ x))
