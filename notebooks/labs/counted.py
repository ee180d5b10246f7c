"""Every kind of layer written out operation by operation, to be counted: the other side of `labkit.operators.work`.

Nothing is computed. A value here is the length of the longest chain of operations behind it, and a `Tally` counts the
operations. Slow and literal on purpose: for shapes of a few hundred numbers."""

import itertools
import random
from collections import defaultdict
from functools import partial

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.operators import work


class Tally:
    """Counts operations; every method takes depths and returns the depth of its result."""

    def __init__(self):
        self.work, self.deepest = 0, 0

    def op(self, *depths: int, counts: bool = True) -> int:
        """One scalar operation on values of these depths."""
        self.work += counts
        self.deepest = max(self.deepest, 1 + max(depths))
        return 1 + max(depths)

    def tree(self, depths: list[int], counts: bool = True) -> int:
        """The sum of values, level by level: neighbours in pairs, an odd one is carried on."""
        while len(depths) > 1:
            pairs = [depths[n : n + 2] for n in range(0, len(depths), 2)]
            depths = [self.op(*pair, counts=counts) if len(pair) == 2 else pair[0] for pair in pairs]
        return depths[0]

    def dot(self, terms: int, depth: int = 0) -> int:
        """A sum of products. Each product counts once, with the addition that takes it in (a multiply-add)."""
        return self.tree([self.op(depth) for _ in range(terms)], counts=False)


def convolution_products(batch, inputs, outputs, size, kernel, stride, padding, groups):
    """(output, weight, input) of every single product of a convolution on square images; inputs outside the image are
    zeros, and marked None."""
    side, each = work.output_size(size, kernel, stride, padding), inputs // groups
    for n, co, c, y, x, ky, kx in itertools.product(range(batch), range(outputs), range(each), range(side), range(side),
                                                    range(kernel), range(kernel)):  # fmt: skip
        at = (y * stride + ky - padding, x * stride + kx - padding)
        inside = all(0 <= v < size for v in at)
        source = (n, co // (outputs // groups) * each + c, *at) if inside else None
        yield (n, co, y, x), (co, c, ky, kx), source


def dense_products(batch, inputs, outputs):
    """The same of a fully connected layer."""
    for n, o, i in itertools.product(range(batch), range(outputs), range(inputs)):
        yield (n, o), (o, i), (n, i)


def three_directions(products) -> list[work.Cost]:
    """[forward, grad_weight, grad_input]: the same products, summed over what shares an output, a weight, an input."""
    groups = [defaultdict(int) for _ in range(3)]
    for triple in products:
        for group, key in zip(groups, triple, strict=True):
            group[key] += 1
    found = []
    for group in groups:
        tally = Tally()
        outside = group.pop(None, 0)  # a product with a zero of the padding: done, and then cropped away
        for terms in group.values():
            tally.dot(terms)
        found.append(work.Cost(tally.work + outside, tally.deepest))
    return found


def _tallied(program) -> work.Cost:
    tally = Tally()
    program(tally)
    return work.Cost(tally.work, tally.deepest)


def pooled(kind, batch, channels, size, kernel, stride) -> list[work.Cost]:
    """[forward, grad_input] of pooling without padding."""
    side, readers = work.output_size(size, kernel, stride), defaultdict(int)

    def forward(t):
        for _ in range(batch * channels * side**2):
            found = t.tree([0] * kernel**2)
            if kind == "avg":
                t.op(found)

    for at in itertools.product(range(batch), range(channels), range(side), range(side), range(kernel), range(kernel)):
        readers[(*at[:2], at[2] * stride + at[4], at[3] * stride + at[5])] += 1

    def backward(t):
        for windows in readers.values():
            t.dot(windows)

    return [_tallied(forward), _tallied(backward)]


def normalised(values: int, channels: int) -> list[work.Cost]:
    """[forward, grad_weight, grad_input] of batch norm with `values` numbers a channel."""

    def forward(t):
        for _ in range(channels):
            mean = t.op(t.tree([0] * values))
            centred = [t.op(mean) for _ in range(values)]
            variance = t.op(t.tree([t.op(v) for v in centred]))
            scale = t.op(t.op(t.op(variance)))  # + epsilon, 1 / root, x gamma
            for v in centred:
                t.op(t.op(v, scale))

    def grad_weight(t):
        for _ in range(channels):
            t.tree([t.op(t.op(t.op(0))) for _ in range(values)])  # (x - mean) / deviation, x dy
            t.tree([0] * values)

    def grad_input(t):
        for _ in range(channels):
            of_gamma, of_beta, scale = t.op(0), t.op(0), t.op(0)
            for _ in range(values):
                t.op(t.op(t.op(of_gamma), t.op(of_beta)), scale)

    return [_tallied(forward), _tallied(grad_weight), _tallied(grad_input)]


def lstm(batch: int, inputs: int, hidden: int) -> list[work.Cost]:
    """[forward, grad_weight, grad_input] of one LSTM cell without bias."""

    def forward(t):
        for _ in range(batch * hidden):
            i, f, o, g = (t.op(t.dot(inputs + hidden)) for _ in range(4))
            cell = t.op(t.op(f), t.op(i, g))
            t.op(o, t.op(cell))

    def grad_weight(t):
        for _ in range(4 * hidden * (inputs + hidden)):
            t.dot(batch)

    def grad_input(t):
        deep = 0
        for _ in range(batch * hidden):
            slopes = [t.op(t.op(0)) for _ in range(4)]  # s (1 - s) of three gates, 1 - g^2
            through = t.op(t.op(t.op(0), t.op(t.op(0))))  # dh o (1 - tanh^2) + dc
            t.op(through)  # to the cell before
            arriving = [t.op(through), t.op(through), t.op(through), t.op(0)]  # i, f, g; o from dh alone
            deep = max(deep, *(t.op(*pair) for pair in zip(arriving, slopes, strict=True)))
        for _ in range(batch * (inputs + hidden)):
            t.dot(4 * hidden, deep)

    return [_tallied(forward), _tallied(grad_weight), _tallied(grad_input)]


def gru(batch: int, inputs: int, hidden: int) -> list[work.Cost]:
    """The same of one GRU cell, n = tanh(W x + r (U h))."""

    def forward(t):
        for _ in range(batch * hidden):
            reset, update = (t.op(t.dot(inputs + hidden)) for _ in range(2))
            new = t.op(t.op(t.op(reset, t.dot(hidden)), t.dot(inputs)))
            t.op(t.op(t.op(update), new), t.op(update))

    def grad_weight(t):
        for _ in range(3 * hidden * (inputs + hidden)):
            t.dot(batch)

    def grad_input(t):
        deep = 0
        for _ in range(batch * hidden):
            rest, kept = t.op(0), t.op(0)  # 1 - z, which serves twice, and dh z
            slopes = [t.op(t.op(0)), t.op(rest), t.op(t.op(0))]
            of_new = t.op(t.op(rest), slopes[0])  # dh (1 - z), times the slope
            of_update = t.op(t.op(t.op(0)), slopes[1])  # dh (h - n)
            of_reset = t.op(t.op(of_new), slopes[2])  # times U h
            deep = max(deep, of_update, of_reset, t.op(of_new), kept)
        for n in range(batch * (inputs + hidden)):
            found = t.dot(3 * hidden, deep)
            if n < batch * hidden:
                t.op(found)  # + dh z

    return [_tallied(forward), _tallied(grad_weight), _tallied(grad_input)]


def flops(forward, *operands) -> list[int]:
    """FLOPs by torch's counter: [forward, gradient of the second operand (weights), of the first (input)]."""
    with FlopCounterMode(display=False) as counter:
        out = forward(*operands)
    found = [counter.get_total_flops()]
    for operand in reversed(operands):
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(out, operand, torch.ones_like(out), retain_graph=True)
        found.append(counter.get_total_flops())
    return found


def operators(shapes: int, seed: int = 0) -> list[tuple]:
    """(layer, direction, W, D by formula, W, D counted, W by torch's counter or None), `shapes` random ones a kind."""
    draw, rows = random.Random(seed), []

    def compare(name, formulas, counted, torchs=(None, None, None)):
        for direction, ours, theirs, seen in zip(("forward", "grad_weight", "grad_input"), formulas, counted, torchs,
                                                 strict=True):  # fmt: skip
            rows.append((name, direction, ours.work, ours.depth, theirs.work, theirs.depth, seen))

    for _ in range(shapes):
        n, a, b = draw.randint(1, 4), draw.randint(1, 9), draw.randint(1, 9)
        x, w = torch.ones(n, a, requires_grad=True), torch.ones(b, a, requires_grad=True)
        seen = [total // 2 for total in flops(F.linear, x, w)]
        compare("fully connected", work.fully_connected(n, a, b), three_directions(dense_products(n, a, b)), seen)

        groups, k, stride, padding = draw.choice((1, 2)), draw.choice((1, 3)), draw.choice((1, 2)), draw.choice((0, 1))
        ci, co, side = groups * draw.randint(1, 2), groups * draw.randint(1, 2), draw.randint(4, 6)
        x, w = torch.ones(n, ci, side, side, requires_grad=True), torch.ones(co, ci // groups, k, k, requires_grad=True)
        there = partial(F.conv2d, bias=None, stride=stride, padding=padding, groups=groups)
        seen = [total // 2 for total in flops(there, x, w)]
        if groups > 1:  # torch 2.13 counts the weight gradient of a grouped convolution `groups` times
            seen[1] = None
        compare("convolution", work.convolution(n, ci, co, (side, side), k, stride, padding, 1, groups),
                three_directions(convolution_products(n, ci, co, side, k, stride, padding, groups)), seen)

        kind, k = draw.choice(("max", "avg")), draw.choice((2, 3))
        stride = draw.choice((1, k))
        pool = work.pooling(kind, n, a, (side, side), k, stride)
        there, back = pooled(kind, n, a, side, k, stride)
        compare("pooling", pool, [there, work.Cost(), back])
        compare("batch norm", work.batch_norm(n + 1, a, (side,)), normalised((n + 1) * side, a))
        compare("LSTM cell", work.lstm_cell(n, a, b), lstm(n, a, b))
        compare("GRU cell", work.gru_cell(n, a, b), gru(n, a, b))
        one = _tallied(lambda t, values=n * a: [t.op(0) for _ in range(values)])
        compare("activation", work.activation(n * a), [one, work.Cost(), one])
    return rows
