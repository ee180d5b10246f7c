"""Work and depth of each kind of layer: forward, gradient of the weights, gradient of the input.

Work W is the number of operations, depth D the longest chain of them. Every output of a matrix product or convolution
is one tree: its products side by side, then additions in lg levels. Sums of products count multiply-adds (2 FLOPs);
everything else counts scalar operations (+, x, comparison, exp, ...). Depth counts scalar operations throughout: n
products and their sum take 1 + lg n. Copies are free.

Source: the taxonomy of operators is the survey's (Ben-Nun and Hoefler); the formulas are derived here and counted in
the tests. lg n is ceil(log2 n). When not to use it: as a forecast of time. Moving data costs nothing here."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from labkit.errors import RequestError, choose


def lg(n: int) -> int:
    """ceil(log2 n) for n >= 1: levels of a balanced tree over n values."""
    return max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Cost:
    """`work` operations of which the longest chain has `depth`: a + b is a, then b; a | b is both side by side."""

    work: int = 0
    depth: int = 0

    def __add__(self, after: "Cost") -> "Cost":
        return Cost(self.work + after.work, self.depth + after.depth)

    def __or__(self, beside: "Cost") -> "Cost":
        return Cost(self.work + beside.work, max(self.depth, beside.depth))

    @property
    def parallelism(self) -> float:
        """W / D: processors that can be kept busy on average."""
        return self.work / self.depth if self.depth else 0.0


class Costs(NamedTuple):
    """Of one layer. Without weights, `grad_weight` is nothing."""

    forward: Cost
    grad_weight: Cost
    grad_input: Cost


def products(outputs: int, terms: int, bias: bool = False) -> Cost:
    """`outputs` sums of `terms` products each. A bias is the addition that each first product lacks: no more work."""
    return Cost(outputs * terms, 1 + lg(terms + bias))


def sums(outputs: int, terms: int) -> Cost:
    """`outputs` sums (or maxima) of `terms` values each."""
    return Cost(outputs * (terms - 1), lg(terms))


def each(values: int, *chain: int) -> Cost:
    """Operations on each of `values` alone: `chain[i]` of them side by side in step i."""
    return Cost(values * sum(chain), len(chain))


def activation(values: int) -> Costs:
    """ReLU, or any function that counts as one operation, and a product (or a choice) with its stored slope."""
    return Costs(each(values, 1), Cost(), each(values, 1))


def fully_connected(batch: int, inputs: int, outputs: int, bias: bool = False) -> Costs:
    """[batch, inputs] -> [batch, outputs]; with `bias`, `grad_weight` includes its gradient."""
    of_weights = products(inputs * outputs, batch) | (sums(outputs, batch) if bias else Cost())
    return Costs(products(batch * outputs, inputs, bias), of_weights, products(batch * inputs, outputs))


def output_size(size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1,
                ceil: bool = False) -> int:
    """Positions of a window along one dimension; with `ceil` also a last one that hangs over the end."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if room < 0:
        raise RequestError(f"a kernel of {kernel} does not fit {size} pixels; use a smaller kernel or more padding")
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def reach(size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, ceil: bool = False) -> int:
    """The most windows that read one input position, along one dimension; at least 1."""
    windows = range(output_size(size, kernel, stride, padding, dilation, ceil))
    starts = ([at + padding - tap * dilation for tap in range(kernel)] for at in range(size))
    return max(1, max(sum(s % stride == 0 and s // stride in windows for s in of_one) for of_one in starts))


def _windows(size, kernel, stride, padding, dilation=1, ceil: bool = False) -> list[tuple]:
    """Arguments of `output_size` and `reach` for each dimension of `size`."""
    dims, found = len(size), [tuple(size)]
    for name, value, least in (("kernel", kernel, 1), ("stride", stride, 1), ("padding", padding, 0),
                               ("dilation", dilation, 1)):
        found.append((value,) * dims if isinstance(value, int) else tuple(value))
        if len(found[-1]) != dims or min(found[-1]) < least:
            raise RequestError(f"{name} {value} is out of range; give one number, or {dims}, of {least} or more")
    return list(zip(*found, (ceil,) * dims, strict=True))


def convolution(batch: int, inputs: int, outputs: int, size, kernel, stride=1, padding=0, dilation=1,
                groups: int = 1, bias: bool = False) -> Costs:
    """Direct convolution, [batch, inputs, *size] -> [batch, outputs, *size']; kernel, ...: one number, or one each.

    W is the same in all three directions: batch outputs |size'| (inputs / groups) |kernel|, products with the zeros of
    the padding included. The tree of a weight runs over the batch and all positions, that of an input over the outputs
    of its group and the windows that read it. With `bias`, `grad_weight` includes its gradient.

    Raises:
        RequestError: a number out of range, a kernel that does not fit, channels that `groups` does not divide."""
    if groups < 1 or inputs % groups or outputs % groups:
        raise RequestError(f"groups {groups} must divide the {inputs} input and {outputs} output channels")
    windows = _windows(size, kernel, stride, padding, dilation)
    places, taps = prod(output_size(*one) for one in windows), prod(one[1] for one in windows)
    forward = products(batch * outputs * places, inputs // groups * taps, bias)
    of_weights = products(outputs * inputs // groups * taps, batch * places)
    of_input = Cost(forward.work, products(1, outputs // groups * prod(reach(*one) for one in windows)).depth)
    return Costs(forward, of_weights | (sums(outputs, batch * places) if bias else Cost()), of_input)


def pooling(kind: str, batch: int, channels: int, size, kernel, stride=None, padding=0, ceil: bool = False) -> Costs:
    """Pooling "max" or "avg", [batch, channels, *size] -> [batch, channels, *size'], padding counted as any position.

    An input gathers the gradients of the windows that read it, each times its share (avg) or whether it was the maximum
    (max): depth 1 where windows do not overlap. Raises: RequestError: unknown kind, or a number out of range."""
    choose("kind of pooling", kind, ("max", "avg"))
    windows = _windows(size, kernel, kernel if stride is None else stride, padding, ceil=ceil)
    outputs, taps = batch * channels * prod(output_size(*one) for one in windows), prod(one[1] for one in windows)
    forward = sums(outputs, taps) + (each(outputs, 1) if kind == "avg" else Cost())
    return Costs(forward, Cost(), Cost(outputs * taps, 1 + lg(prod(reach(*one) for one in windows))))


def batch_norm(batch: int, channels: int, size=(), training: bool = True) -> Costs:
    """Batch normalisation with scale and shift, [batch, channels, *size], in two passes: mean, then variance.

    The sums run over the batch. `grad_input` needs the two sums of `grad_weight` and comes after it. Stored: input,
    mean, 1 / deviation. Without `training` forward is one scale and one shift, both known beforehand."""
    values, one_sum = batch * channels * prod(size), sums(channels, batch * prod(size))
    mean, two_sums = one_sum + each(channels, 1), each(values, 1, 1, 1) + one_sum | one_sum
    if not training:
        return Costs(each(values, 1, 1), two_sums, each(values, 1))
    # the mean; deviations and their squares; the variance; + epsilon, 1 / root, x scale; scaled and shifted deviations
    forward = mean + each(values, 1, 1) + mean + each(channels, 1, 1, 1) + each(values, 1, 1)
    return Costs(forward, two_sums, each(channels, 3) + each(values, 2, 1, 1))


def lstm_cell(batch: int, inputs: int, hidden: int, bias: bool = False) -> Costs:
    """One step: the four gates are one product, [batch, inputs + hidden] x [inputs + hidden, 4 hidden].

    `grad_input`: of input and states; its part down to the gates, which all end before a product starts, comes before
    `grad_weight` too. Beside the products, 9 operations per value of the state forward and 22 back."""
    gates, state = fully_connected(batch, inputs + hidden, 4 * hidden, bias), batch * hidden
    # side by side: 3 sigma, 1 tanh; f c, i g; their sum; tanh; x o
    forward = gates.forward + each(state, 4, 2, 1, 1, 1)
    # 7 and 5 are dh o, dh tanh c and the slopes; d tanh c, the slope of o; + dc; its four products; three slopes
    return Costs(forward, gates.grad_weight, each(state, 7, 5, 2, 1, 4, 3) + gates.grad_input)


def gru_cell(batch: int, inputs: int, hidden: int, bias: bool = False) -> Costs:
    """One step, with the reset inside the last product as cuDNN and torch have it: n = tanh(W x + r (U h)).
    As `lstm_cell`, with three gates; 9 operations per value of the state forward and 16 back."""
    gates, state = fully_connected(batch, inputs + hidden, 3 * hidden, bias), batch * hidden
    # side by side: 2 sigma; r (U h), 1 - z; + W x; tanh; (1 - z) n, z h; their sum
    forward = gates.forward + each(state, 2, 2, 1, 1, 2, 1)
    # 5 and 5 are dn, dz, z dh and the slopes; slopes of n and z; dr, d(U h); slope of r; and at the end + z dh
    return Costs(forward, gates.grad_weight, each(state, 5, 5, 2, 2, 1) + gates.grad_input + each(state, 1))
