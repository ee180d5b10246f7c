"""Work and depth of every layer equal a scalar program that really computes the layer, and torch's counter.

The scalar program carries values (equal to torch's in float64), counts operations, and knows how deep each one lies."""

import itertools
import operator
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.errors import RequestError
from labkit.operators import work
from labkit.operators.work import Cost


class Program:
    """Scalar operations on (value, depth), counted."""

    def __init__(self):
        self.work = self.depth = 0

    def op(self, function, *numbers, counts=True):
        depth = 1 + max(number[1] for number in numbers)
        self.work, self.depth = self.work + counts, max(self.depth, depth)
        return function(*(number[0] for number in numbers)), depth

    def mul(self, a, b):
        return self.op(operator.mul, a, b)

    def add(self, a, b):
        return self.op(operator.add, a, b)

    def sub(self, a, b):
        return self.op(operator.sub, a, b)

    def tree(self, numbers, function=operator.add, counts=True):
        """Pairs are combined, the shallowest first, until one is left."""
        numbers = list(numbers)
        while len(numbers) > 1:
            numbers.sort(key=lambda number: number[1])
            a, b, *numbers = numbers
            numbers.append(self.op(function, a, b, counts=counts))
        return numbers[0]

    def dot(self, pairs, bias=None):
        """Multiply-adds: a product counts once together with the addition that takes it in."""
        return self.tree([self.mul(*pair) for pair in pairs] + ([] if bias is None else [bias]), counts=False)

    def cost(self):
        return Cost(self.work, self.depth)


def inputs(tensor):
    """A tensor as {index: (value, depth 0)}."""
    return {at: (tensor[at].item(), 0) for at in itertools.product(*map(range, tensor.shape))}


def agrees(numbers, tensor):
    assert len(numbers) == tensor.numel()
    for at, (value, _) in numbers.items():
        assert value == pytest.approx(tensor[at].item(), rel=1e-10, abs=1e-12)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 7 * len(shape)))


def gradients(output, upstream, *tensors):
    return torch.autograd.grad(output, tensors, upstream)


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def product_of_sums(triples, left, right, size):
    """Every key of `size` as the dot product of its (left, right) pairs; what is outside is counted and dropped."""
    program, pairs = Program(), defaultdict(list)
    for key, a, b in triples:
        pairs[key].append((left.get(a, (0.0, 0)), right.get(b, (0.0, 0))))
    outside = sum(len(found) for key, found in pairs.items() if key not in size)
    results = {key: program.dot(pairs[key]) if key in pairs else (0.0, 0) for key in size}
    program.work += outside
    return program, results


@pytest.mark.parametrize(("n", "ci", "co", "size", "kernel", "stride", "padding", "dilation", "groups"), [
    (2, 3, 4, (5, 4), (3, 3), (1, 1), (0, 0), (1, 1), 1),
    (1, 2, 3, (6, 5), (3, 2), (2, 1), (1, 0), (1, 1), 1),
    (2, 4, 6, (5, 5), (3, 3), (2, 2), (1, 1), (1, 1), 2),
    (1, 2, 2, (7, 6), (3, 2), (1, 2), (2, 1), (2, 3), 1),
    (3, 1, 1, (4, 4), (1, 1), (3, 3), (0, 0), (1, 1), 1),
    (1, 3, 3, (6, 6), (5, 5), (1, 1), (2, 2), (1, 1), 3),
])  # fmt: skip
def test_a_convolution_costs_what_its_scalar_program_does(n, ci, co, size, kernel, stride, padding, dilation, groups):
    x, w = draw(n, ci, *size).requires_grad_(), draw(co, ci // groups, *kernel, seed=1).requires_grad_()
    y = F.conv2d(x, w, None, stride, padding, dilation, groups)
    upstream = draw(*y.shape, seed=2)
    grad_w, grad_x = gradients(y, upstream, w, x)
    products = []
    for b, o, c, *rest in itertools.product(range(n), range(co), range(ci // groups), *map(range, y.shape[2:]),
                                            *map(range, kernel)):  # fmt: skip
        place, tap = rest[:2], rest[2:]
        read = [place[d] * stride[d] + tap[d] * dilation[d] - padding[d] for d in range(2)]
        products.append(((b, o, *place), (o, c, *tap), (b, o // (co // groups) * (ci // groups) + c, *read)))
    xs, ws, ups = inputs(x), inputs(w), inputs(upstream)
    costs = work.convolution(n, ci, co, size, kernel, stride, padding, dilation, groups)
    for cost, right, expected, triples, left, of in (
            (costs.forward, ws, y, [(o, i, w) for o, w, i in products], xs, inputs(y)),
            (costs.grad_weight, xs, grad_w, [(w, o, i) for o, w, i in products], ups, ws),
            (costs.grad_input, ws, grad_x, [(i, o, w) for o, w, i in products], ups, xs)):
        program, results = product_of_sums(triples, left, right, of)
        agrees(results, expected)
        assert cost == program.cost()


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 5), ci=st.integers(1, 4), co=st.integers(1, 4), size=st.tuples(*[st.integers(5, 9)] * 2),
       kernel=st.tuples(*[st.integers(1, 3)] * 2), stride=st.tuples(*[st.integers(1, 3)] * 2),
       padding=st.tuples(*[st.integers(0, 2)] * 2), dilation=st.integers(1, 2), groups=st.integers(1, 3))
def test_the_work_of_a_convolution_is_what_torch_counts(n, ci, co, size, kernel, stride, padding, dilation, groups):
    x = torch.empty(n, ci * groups, *size, device="meta", requires_grad=True)
    w = torch.empty(co * groups, ci, *kernel, device="meta", requires_grad=True)
    outputs = []
    forward = flops(lambda: outputs.append(F.conv2d(x, w, None, stride, padding, dilation, groups)))
    y, upstream = outputs[0], torch.empty_like(outputs[0])
    costs = work.convolution(n, ci * groups, co * groups, size, kernel, stride, padding, dilation, groups)
    assert 2 * costs.forward.work == forward
    of_input, of_weight = (flops(lambda t=t: torch.autograd.grad(y, t, upstream, retain_graph=True)) for t in (x, w))
    assert 2 * costs.grad_input.work == of_input
    # torch takes the weight's gradient of a grouped convolution for a dense one: `groups` times too much (2.13)
    assert 2 * costs.grad_weight.work in (of_weight, of_weight / groups)


def test_a_grouped_weight_gradient_is_counted_once():
    costs = work.convolution(2, 4, 6, (5, 5), 3, groups=2)
    assert costs.grad_weight.work == costs.forward.work == 2 * 6 * 3 * 3 * (4 // 2) * 3 * 3


@pytest.mark.parametrize(("n", "ci", "co"), [(1, 1, 1), (2, 3, 5), (5, 8, 4)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_fully_connected_layer_costs_what_its_scalar_program_does(n, ci, co, biased):
    x, w, b = draw(n, ci).requires_grad_(), draw(co, ci, seed=1).requires_grad_(), draw(co).requires_grad_()
    y = F.linear(x, w, b if biased else None)
    upstream = draw(n, co, seed=2)
    xs, ws, bs, ups = inputs(x), inputs(w), inputs(b), inputs(upstream)
    costs = work.fully_connected(n, ci, co, biased)
    rows, left, right = range(n), range(ci), range(co)

    program = Program()
    agrees({(r, o): program.dot([(xs[r, i], ws[o, i]) for i in left], bs[o,] if biased else None)
            for r in rows for o in right}, y)  # fmt: skip
    assert costs.forward == program.cost()
    program = Program()
    agrees({(o, i): program.dot([(xs[r, i], ups[r, o]) for r in rows]) for o in right for i in left},
           gradients(F.linear(x, w), upstream, w)[0])
    if biased:
        agrees({(o,): program.tree(ups[r, o] for r in rows) for o in right}, gradients(y, upstream, b)[0])
    assert costs.grad_weight == program.cost()
    program = Program()
    agrees({(r, i): program.dot([(ups[r, o], ws[o, i]) for o in right]) for r in rows for i in left},
           gradients(F.linear(x, w), upstream, x)[0])
    assert costs.grad_input == program.cost()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_the_work_of_a_fully_connected_layer_is_what_torch_counts(n, ci, co):
    x, w = (torch.empty(*s, device="meta", requires_grad=True) for s in ((n, ci), (co, ci)))
    costs = work.fully_connected(n, ci, co)
    assert 2 * costs.forward.work == flops(lambda: F.linear(x, w))
    y = F.linear(x, w)
    assert 2 * costs.grad_weight.work == flops(lambda: gradients(y, torch.empty_like(y), w))
    y = F.linear(x, w)
    assert 2 * costs.grad_input.work == flops(lambda: gradients(y, torch.empty_like(y), x))
    a, b = torch.empty(n, 3, ci, device="meta"), torch.empty(n, ci, co, device="meta")
    assert 2 * work.products(n * 3 * co, ci).work == flops(lambda: torch.bmm(a, b))


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "ceil"), [
    ((4, 6), (2, 2), (2, 2), 0, False), ((5, 5), (3, 3), (2, 2), 0, False), ((6, 7), (3, 2), (1, 2), 0, False),
    ((7, 5), (3, 3), (2, 2), 0, True), ((4, 4), (4, 4), (4, 4), 0, False), ((5, 4), (1, 1), (2, 2), 0, False),
])  # fmt: skip
def test_pooling_costs_what_its_scalar_program_does(kind, size, kernel, stride, padding, ceil):
    x = draw(2, 2, *size).requires_grad_()
    pool = {"max": F.max_pool2d, "avg": F.avg_pool2d}[kind]
    y = pool(x, kernel, stride, padding, ceil_mode=ceil)
    upstream = draw(*y.shape, seed=2)
    xs, ups, taps = inputs(x), inputs(upstream), kernel[0] * kernel[1]
    costs = work.pooling(kind, 2, 2, size, kernel, stride, padding, ceil)
    assert costs.grad_weight == Cost()
    if ceil:  # windows that hang over hold fewer values; the formula counts them as full
        assert costs.forward.work == y.numel() * (taps - (kind == "max")) and y.shape[2:] == (3, 2)
        return
    forward, backward, readers = Program(), Program(), defaultdict(list)
    results = {}
    for at in inputs(y):
        window = {(*at[:2], at[2] * stride[0] + dy, at[3] * stride[1] + dx)
                  for dy in range(kernel[0]) for dx in range(kernel[1])}
        found = forward.tree((xs[one] for one in window), max if kind == "max" else operator.add)
        results[at] = forward.mul(found, (1 / taps, 0)) if kind == "avg" else found
        for one in window:
            share = float(xs[one][0] == results[at][0]) if kind == "max" else 1 / taps
            readers[one].append((ups[at], (share, 0)))
    agrees(results, y)
    assert costs.forward == forward.cost()
    agrees({at: backward.dot(readers[at]) if at in readers else (0.0, 0) for at in xs}, gradients(y, upstream, x)[0])
    assert costs.grad_input == backward.cost()


@pytest.mark.parametrize(("n", "channels", "size"), [(4, 1, ()), (2, 3, (3,)), (3, 2, (2, 2))])
def test_batch_norm_costs_what_its_scalar_program_does(n, channels, size):
    x, gamma, beta = draw(n, channels, *size).requires_grad_(), draw(channels).requires_grad_(), draw(channels, seed=3)
    beta.requires_grad_()
    y = F.batch_norm(x, None, None, gamma, beta, True, eps=1e-5)
    upstream = draw(*y.shape, seed=2)
    xs, ups, gs, bs = inputs(x), inputs(upstream), inputs(gamma), inputs(beta)
    part = (1 / (x.numel() / channels), 0)
    forward, sums_, back = Program(), Program(), Program()
    results, of_gamma, of_beta, of_x = {}, {}, {}, {}
    for c in range(channels):
        mine = [at for at in xs if at[1] == c]
        mean = forward.mul(forward.tree(xs[at] for at in mine), part)
        away = {at: forward.sub(xs[at], mean) for at in mine}
        variance = forward.mul(forward.tree(forward.mul(one, one) for one in away.values()), part)
        inverse = forward.op(lambda v: v**-0.5, forward.add(variance, (1e-5, 0)))
        scale = forward.mul(inverse, gs[c,])
        results |= {at: forward.add(forward.mul(away[at], scale), bs[c,]) for at in mine}
        # backward, from the stored input, mean and 1 / deviation
        mean, inverse = (mean[0], 0), (inverse[0], 0)
        normal = {at: sums_.mul(sums_.sub(xs[at], mean), inverse) for at in mine}
        of_gamma[c,] = sums_.tree(sums_.mul(normal[at], ups[at]) for at in mine)
        of_beta[c,] = sums_.tree(ups[at] for at in mine)
        by_gamma, by_beta = (back.mul((one[c,][0], 0), part) for one in (of_gamma, of_beta))
        scale = back.mul(inverse, gs[c,])
        for at in mine:
            along = back.mul((normal[at][0], 0), by_gamma)
            of_x[at] = back.mul(back.sub(back.sub(ups[at], by_beta), along), scale)
    agrees(results, y)
    expected = gradients(y, upstream, gamma, beta, x)
    for found, tensor in zip((of_gamma, of_beta, of_x), expected, strict=True):
        agrees(found, tensor)
    costs = work.batch_norm(n, channels, size)
    assert costs == (forward.cost(), sums_.cost(), back.cost())
    assert work.batch_norm(n, channels, size, training=False).forward == Cost(2 * x.numel(), 2)


def sigmoid(program, number):
    return program.op(lambda v: torch.tensor(v, dtype=torch.float64).sigmoid().item(), number)


def tanh(program, number):
    return program.op(lambda v: torch.tensor(v, dtype=torch.float64).tanh().item(), number)


def together(numbers):
    """The same values, all as deep as the deepest: a product starts when all its operands are there."""
    deepest = max(depth for _, depth in numbers.values())
    return {at: (value, deepest) for at, (value, _) in numbers.items()}


def gates_back(slopes, x, h, widths):
    """(program, gradients) of w_i and w_h, where gates = w_i x + w_h h and `slopes` are the gradients of the gates."""
    n, ci, ch = widths
    of_weights, results = Program(), [{}, {}]
    for gate in range(len(slopes) // n):
        for values, count, found in ((x, ci, results[0]), (h, ch, results[1])):
            found |= {(gate, i): of_weights.dot([((slopes[b, gate][0], 0), values[b, i]) for b in range(n)])
                      for i in range(count)}
    return of_weights, results


@pytest.mark.parametrize(("n", "ci", "ch"), [(1, 1, 1), (2, 3, 2), (3, 2, 4)])
def test_an_lstm_cell_costs_what_its_scalar_program_does(n, ci, ch):
    cell = torch.nn.LSTMCell(ci, ch, bias=False, dtype=torch.float64)
    x, h, c = draw(n, ci).requires_grad_(), draw(n, ch, seed=1).requires_grad_(), draw(n, ch, seed=2).requires_grad_()
    h1, c1 = cell(x, (h, c))
    up_h, up_c = draw(n, ch, seed=3), draw(n, ch, seed=4)
    expected = torch.autograd.grad((h1, c1), (cell.weight_ih, cell.weight_hh, x, h, c), (up_h, up_c))
    w_i, w_h = inputs(cell.weight_ih), inputs(cell.weight_hh)
    xs, hs, cs, dhs, dcs = map(inputs, (x, h, c, up_h, up_c))
    p, back = Program(), Program()
    new_h, new_c, slopes, of_c = {}, {}, {}, {}
    for b, u in itertools.product(range(n), range(ch)):
        i, f, g, o = (p.dot([(xs[b, k], w_i[q * ch + u, k]) for k in range(ci)]
                            + [(hs[b, k], w_h[q * ch + u, k]) for k in range(ch)]) for q in range(4))
        i, f, o, g = sigmoid(p, i), sigmoid(p, f), sigmoid(p, o), tanh(p, g)
        new_c[b, u] = p.add(p.mul(f, cs[b, u]), p.mul(i, g))
        t = tanh(p, new_c[b, u])
        new_h[b, u] = p.mul(o, t)
        i, f, g, o, t = ((one[0], 0) for one in (i, f, g, o, t))  # stored
        one = (1.0, 0)
        of_cell = back.add(back.mul(back.mul(dhs[b, u], o), back.sub(one, back.mul(t, t))), dcs[b, u])
        of_c[b, u] = back.mul(of_cell, f)
        arriving = (back.mul(of_cell, g), back.mul(of_cell, cs[b, u]), back.mul(of_cell, i), back.mul(dhs[b, u], t))
        slope = (back.mul(i, back.sub(one, i)), back.mul(f, back.sub(one, f)), back.sub(one, back.mul(g, g)),
                 back.mul(o, back.sub(one, o)))
        for q in range(4):
            slopes[b, q * ch + u] = back.mul(arriving[q], slope[q])
    agrees(new_h, h1)
    agrees(new_c, c1)
    agrees(of_c, expected[4])
    slopes = together(slopes)
    of_weights, found = gates_back(slopes, xs, hs, (n, ci, ch))
    agrees(found[0], expected[0])
    agrees(found[1], expected[1])
    for weights, count, tensor in ((w_i, ci, expected[2]), (w_h, ch, expected[3])):
        agrees({(b, k): back.dot([(slopes[b, q], weights[q, k]) for q in range(4 * ch)])
                for b in range(n) for k in range(count)}, tensor)
    assert work.lstm_cell(n, ci, ch) == (p.cost(), of_weights.cost(), back.cost())
    assert flops(lambda: cell(x, (h, c))) == 2 * 4 * n * ch * (ci + ch)


@pytest.mark.parametrize(("n", "ci", "ch"), [(1, 1, 1), (2, 3, 2), (3, 2, 4)])
def test_a_gru_cell_costs_what_its_scalar_program_does(n, ci, ch):
    cell = torch.nn.GRUCell(ci, ch, bias=False, dtype=torch.float64)
    x, h = draw(n, ci).requires_grad_(), draw(n, ch, seed=1).requires_grad_()
    h1 = cell(x, h)
    upstream = draw(n, ch, seed=3)
    expected = gradients(h1, upstream, cell.weight_ih, cell.weight_hh, x, h)
    w_i, w_h = inputs(cell.weight_ih), inputs(cell.weight_hh)
    xs, hs, ups = map(inputs, (x, h, upstream))
    p, back, one = Program(), Program(), (1.0, 0)
    new_h, of_x_gates, of_h_gates, direct = {}, {}, {}, {}

    def pairs(values, weights, b, row, count):
        return [(values[b, k], weights[row, k]) for k in range(count)]

    for b, u in itertools.product(range(n), range(ch)):
        r, z = (sigmoid(p, p.dot(pairs(xs, w_i, b, q * ch + u, ci) + pairs(hs, w_h, b, q * ch + u, ch)))
                for q in range(2))
        from_x, from_h = p.dot(pairs(xs, w_i, b, 2 * ch + u, ci)), p.dot(pairs(hs, w_h, b, 2 * ch + u, ch))
        new = tanh(p, p.add(from_x, p.mul(r, from_h)))
        new_h[b, u] = p.add(p.mul(p.sub(one, z), new), p.mul(z, hs[b, u]))
        r, z, new, from_h = ((stored[0], 0) for stored in (r, z, new, from_h))
        rest, up = back.sub(one, z), ups[b, u]
        direct[b, u] = back.mul(up, z)
        of_new = back.mul(back.mul(up, rest), back.sub(one, back.mul(new, new)))
        of_z = back.mul(back.mul(up, back.sub(hs[b, u], new)), back.mul(z, rest))
        of_r = back.mul(back.mul(of_new, from_h), back.mul(r, back.sub(one, r)))
        for q, (of_x, of_h) in enumerate(((of_r, of_r), (of_z, of_z), (of_new, back.mul(of_new, r)))):
            of_x_gates[b, q * ch + u], of_h_gates[b, q * ch + u] = of_x, of_h
    agrees(new_h, h1)
    both = together({**of_x_gates, **{(*at, "h"): number for at, number in of_h_gates.items()}})
    of_x_gates, of_h_gates = ({at: both[at] for at in of_x_gates}, {at: both[*at, "h"] for at in of_h_gates})
    weights_x, found = gates_back(of_x_gates, xs, hs, (n, ci, 0))
    agrees(found[0], expected[0])
    weights_h, found = gates_back(of_h_gates, xs, hs, (n, 0, ch))
    agrees(found[1], expected[1])
    rows = range(3 * ch)
    agrees({(b, k): back.dot([(of_x_gates[b, q], w_i[q, k]) for q in rows]) for b in range(n) for k in range(ci)},
           expected[2])
    agrees({(b, k): back.add(back.dot([(of_h_gates[b, q], w_h[q, k]) for q in rows]), direct[b, k])
            for b in range(n) for k in range(ch)}, expected[3])  # fmt: skip
    assert work.gru_cell(n, ci, ch) == (p.cost(), weights_x.cost() | weights_h.cost(), back.cost())
    assert flops(lambda: cell(x, h)) == 2 * 3 * n * ch * (ci + ch)


@given(st.integers(1, 300))
def test_a_reduction_of_n_has_n_minus_1_operations_and_lg_n_levels(n):
    program = Program()
    program.tree([(1, 0)] * n)
    assert work.sums(1, n) == program.cost() == Cost(n - 1, work.lg(n))
    assert 2 ** work.lg(n) >= n > 2 ** (work.lg(n) - 1)


def test_costs_add_up_in_a_row_and_side_by_side():
    a, b = Cost(6, 2), Cost(10, 3)
    assert (a + b, a | b) == (Cost(16, 5), Cost(16, 3))
    assert (a.parallelism, Cost().parallelism) == (3.0, 0.0)
    assert work.activation(12) == (Cost(12, 1), Cost(), Cost(12, 1))


@pytest.mark.parametrize(("arguments", "message"), [
    (dict(groups=2), "groups 2 must divide the 3 input and 4 output"), (dict(kernel=9), "a kernel of 9 does not fit 8"),
    (dict(stride=0), "stride 0 is out of range"), (dict(padding=(1, -1)), r"padding \(1, -1\) is out of range"),
    (dict(kernel=(3, 3, 3)), "give one number, or 2"),
])  # fmt: skip
def test_an_impossible_convolution_is_refused_in_one_line(arguments, message):
    with pytest.raises(RequestError, match=message) as error:
        work.convolution(**{**dict(batch=1, inputs=3, outputs=4, size=(8, 8), kernel=3), **arguments})
    assert "\n" not in str(error.value)


def test_an_unknown_pooling_is_refused():
    with pytest.raises(RequestError, match="unknown kind of pooling 'median'; allowed: max, avg"):
        work.pooling("median", 1, 1, (4, 4), 2)


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_the_size_of_an_output_is_torchs(size, kernel, stride, padding, ceil):
    padding = min(padding, kernel // 2)
    if size + 2 * padding < kernel:
        return
    y = F.max_pool1d(torch.empty(1, 1, size, device="meta"), kernel, stride, padding, ceil_mode=ceil)
    assert y.shape[-1] == work.output_size(size, kernel, stride, padding, ceil=ceil)
