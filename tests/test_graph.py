"""Captured graphs: work as torch counts it, depth as the layers' formulas give it; schedules in bounds; memory."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit.errors import RequestError
from labkit.models.resnet import cifar_resnet
from labkit.operators import work
from labkit.operators.work import Cost
from labs import graph, graph_memory, graph_schedule, zoo
from labs.graph import Graph, Node


class Attention(nn.Module):
    """[N, T, C] -> scores [N, C], written in matrix products."""

    def __init__(self, width):
        super().__init__()
        self.parts = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.parts(x).chunk(3, -1)
        return (torch.bmm(q, k.transpose(1, 2)).softmax(-1) @ v).mean(1)


class Grid(nn.Module):
    """LSTM cells, layer over layer and step after step: [N, T, C] -> [N, C]."""

    def __init__(self, layers, width):
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))

    def forward(self, x):
        rows = list(x.unbind(1))
        for cell in self.cells:
            state = torch.zeros_like(rows[0]), torch.zeros_like(rows[0])
            for at, row in enumerate(rows):
                state = cell(row, state)
                rows[at] = state[0]
        return rows[-1]


def convolutional():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                         zoo.zoo_nets.Concat(nn.Identity(), nn.Conv2d(8, 4, 3, 1, 1, bias=False)), nn.AvgPool2d(2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5))


NETS = {"convolutional": (convolutional, (3, 17, 16)), "residual": (lambda: cifar_resnet(8), (3, 16, 16)),
        "attention": (lambda: Attention(6), (5, 6)), "lstm": (lambda: Grid(2, 4), (3, 4)),
        "squeezenet": (lambda: zoo.build("SqueezeNet"), (3, 224, 224))}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_the_products_of_a_captured_pass_are_what_torch_counts(name, training):
    make, shape = NETS[name]
    model = make().to("meta").train(training)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        scores = model(torch.empty(3, *shape, device="meta"))
        if training:
            graph.loss_of(scores).backward()
    assert 2 * graph.capture(model, shape, 3, training).macs == counter.get_total_flops()


def test_a_perceptron_has_the_work_and_depth_of_its_layers():
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))
    first, relu, last = work.fully_connected(5, 6, 9, True), work.activation(5 * 9), work.fully_connected(5, 9, 4, True)
    served = graph.capture(model, (6,), 5, training=False)
    forward = first.forward + relu.forward + last.forward
    assert (served.work, served.depth) == (forward.work, forward.depth)
    # the gradient of the data is not asked for, so the chain ends in the first layer's weights
    back = last.grad_input | last.grad_weight
    step = graph.capture(model, (6,), 5)
    loss = step.work - forward.work - back.work - relu.grad_input.work - first.grad_weight.work
    # log-softmax: maximum, - and exp, sum, log, -; loss: sum and mean; back: loss, exp, sum, x, -
    assert loss == 5 * (3 + 8 + 3 + 1 + 4) + (4 + 1) + 5 + 5 * (4 + 3 + 8)
    softmax_and_loss = (2 + 2 + 2 + 1 + 1) + (3 + 1) + 1 + (2 + 2)
    deepest = forward.depth + softmax_and_loss + last.grad_input.depth + 1 + first.grad_weight.depth
    assert step.depth == deepest
    assert step.parallelism == step.work / step.depth


def test_branches_run_side_by_side():
    def one(kernel):
        return nn.Conv2d(2, 3, kernel, padding=kernel // 2, bias=False)

    both = graph.capture(zoo.zoo_nets.Concat(one(1), one(5)), (2, 8, 8), training=False)
    alone = [graph.capture(one(kernel), (2, 8, 8), training=False) for kernel in (1, 5)]
    assert both.work == sum(g.work for g in alone) and both.depth == max(g.depth for g in alone)
    row = graph.capture(nn.Sequential(one(1), nn.Conv2d(3, 2, 5, padding=2, bias=False)), (2, 8, 8), training=False)
    assert row.depth == work.products(1, 2).depth + work.products(1, 75).depth


def test_working_in_place_changes_neither_work_nor_depth():
    def net(inplace):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.Linear(8, 8), nn.ReLU(inplace), nn.Linear(8, 3))

    a, b = (graph.capture(net(inplace), (4,), 2) for inplace in (True, False))
    assert (a.work, a.depth) == (b.work, b.depth)


def test_the_batch_changes_work_but_hardly_depth():
    one, many = (graph.capture(cifar_resnet(8), (3, 16, 16), batch, training=False) for batch in (1, 64))
    assert (many.work, many.depth) == (64 * one.work, one.depth)
    one, many = (graph.capture(cifar_resnet(8), (3, 16, 16), batch) for batch in (1, 64))
    assert many.depth - one.depth <= 6 * len(one.nodes) and many.parallelism > 32 * one.parallelism


@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (1, 4), (3, 1), (2, 3), (4, 4)])
def test_a_grid_of_lstm_cells_is_as_deep_as_its_wavefronts(layers, steps):
    cell = graph.capture(Grid(1, 8), (1, 8), 2, training=False).depth
    assert graph.capture(Grid(layers, 8), (steps, 8), 2, training=False).depth == cell * (layers + steps - 1)


def test_the_critical_path_is_a_path_and_the_depth():
    found = graph.capture(convolutional(), (3, 17, 16), 2)
    path = found.critical_path()
    assert sum(found.nodes[at].cost.depth for at in path) == found.depth
    ends = found.finishes()
    assert all(ends[b] - found.nodes[b].cost.depth == ends[a] for a, b in itertools.pairwise(path))
    assert all(before < at for at, node in enumerate(found.nodes) for before in node.after)


def test_capturing_leaves_a_model_as_it_was():
    model = convolutional()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph.capture(model, (3, 17, 16), 2)
    graph_memory.memory(model, (3, 17, 16), 2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and not model[1].training and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("model", "shape", "message"), [
    (nn.ConvTranspose2d(2, 2, 3), (2, 5, 5), "no formula for the work of transposed convolution"),
    (nn.LayerNorm(4), (4,), "no formula for the work of native_layer_norm"),
])  # fmt: skip
def test_an_operation_without_a_formula_is_refused_in_one_line(model, shape, message):
    with pytest.raises(RequestError, match=message) as error:
        graph.capture(model, shape)
    assert "\n" not in str(error.value)


def test_a_pass_over_no_samples_is_refused():
    with pytest.raises(RequestError, match="batch 0 is out of range"):
        graph.capture(nn.Linear(2, 2), (2,), 0)


# Schedules

@st.composite
def waits(draw, most=40):
    """Tasks that each wait for some earlier ones."""
    count = draw(st.integers(1, most))
    return [tuple(draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True))) if at else () for at in range(count)]


@given(waits(), st.integers(1, 9))
def test_a_greedy_schedule_of_unit_tasks_lies_between_the_bounds(after, processors):
    found = graph_schedule.tasks(after, processors)
    deep = graph_schedule.depth(after)
    assert max(len(after) / processors, deep) <= found.time <= (len(after) - deep) / processors + deep
    assert all(found.start[at] >= found.finish[before] for at, all_of in enumerate(after) for before in all_of)
    assert all(end == begin + 1 for begin, end in zip(found.start, found.finish, strict=True))
    assert len(set(zip(found.start, found.processor, strict=True))) == len(after)  # one task a processor and step
    assert all(0 <= p < processors for p in found.processor)
    assert graph_schedule.tasks(after, 1).time == len(after) and graph_schedule.tasks(after, 999).time == deep


def test_depth_is_the_longest_chain():
    cases = ([], [()], [(), (), ()], [(), (0,), (1,)], [(), (0,), (0,), (1, 2)])
    assert [graph_schedule.depth(after) for after in cases] == [0, 1, 1, 3, 3]


@st.composite
def costly(draw):
    """Small captured graphs: nodes that do nothing among those that do."""
    after, nodes = draw(waits(12)), []
    for before in after:
        deep = draw(st.integers(0, 4))
        nodes.append(Node("node", Cost(deep + draw(st.integers(0, 9)) if deep else 0, deep), before))
    return Graph(tuple(nodes))


@given(costly(), st.integers(1, 12))
def test_levels_schedule_the_unit_tasks_that_they_stand_for(captured, processors):
    expanded = graph_schedule.expand(captured)
    assert (len(expanded), graph_schedule.depth(expanded)) == (captured.work, captured.depth)
    found = graph_schedule.levels(captured, processors)
    assert found.time == graph_schedule.tasks(expanded, processors).time
    assert sum(steps * busy for _, steps, busy in found.used) == captured.work
    least, most = graph_schedule.bounds(captured.work, captured.depth, processors)
    assert least <= found.time <= most


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_captured_networks_are_scheduled_between_the_bounds(name, training):
    make, shape = NETS[name]
    captured = graph.capture(make(), shape, 2, training)
    for processors in (1, 2, 3, 16, 1000, 10**6, captured.work):
        found = graph_schedule.levels(captured, processors)
        least, most = graph_schedule.bounds(captured.work, captured.depth, processors)
        assert least <= found.time <= most
        assert max(busy for _, _, busy in found.used) <= processors
        assert sum(steps for _, steps, _ in found.used) == found.time == max(found.finish)
        assert all(found.start[at] >= found.finish[before]
                   for at, node in enumerate(captured.nodes) for before in node.after)
    assert found.time == captured.depth and graph_schedule.levels(captured, 1).time == captured.work


@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (1, 6), (5, 1), (2, 7), (3, 3), (4, 9)])
def test_a_recurrent_network_runs_in_wavefronts(layers, steps):
    after, width = graph_schedule.wavefront(layers, steps), min(layers, steps)
    assert len(after) == layers * steps and graph_schedule.depth(after) == layers + steps - 1
    assert max(busy for _, _, busy in graph_schedule.tasks(after, 10**6).used) == width
    assert graph_schedule.tasks(after, width).time == layers + steps - 1
    if width > 1:
        assert graph_schedule.tasks(after, width - 1).time > layers + steps - 1
    start = graph_schedule.tasks(after, 10**6).start
    assert all(start[layer * steps + t] == layer + t for layer in range(layers) for t in range(steps))


def test_a_long_chain_of_nothing_is_no_trouble():
    nodes = [Node("view", Cost(), (at - 1,) if at else ()) for at in range(5000)]
    found = graph_schedule.levels(Graph((*nodes, Node("add", Cost(3, 1), (4999,)))), 2)
    assert (found.time, found.start[4999], found.start[5000]) == (2, 0, 0)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: graph_schedule.bounds(3, 4, 1), "depth 4 is more than the work 3"),
    (lambda: graph_schedule.bounds(4, 3, 0), "0 processors are out of range"),
    (lambda: graph_schedule.tasks([(), (1,)], 2), "a task waits for a later one"),
    (lambda: graph_schedule.levels(Graph((Node("odd", Cost(1, 2), ()),)), 2), "odd has work 1 below its depth 2"),
    (lambda: graph_schedule.expand(Graph((Node("big", Cost(30_000, 2), ()),))), "30,000 operations are too many"),
])  # fmt: skip
def test_an_impossible_schedule_is_refused_in_one_line(call, message):
    with pytest.raises(RequestError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


# Memory

@pytest.mark.parametrize("layers", [1, 3, 8])
def test_a_chain_stores_one_activation_a_layer(layers):
    chain, one = graph_memory.chain(layers, 16), 4 * 64 * 16
    # and its input, and for the loss the logarithms, the classes (int64) and the sum of their weights
    assert graph_memory.saved_bytes(chain, (16,), 64) == one * (layers + 1) + one + 8 * 64 + 4
    assert graph_memory.saved_bytes(chain, (16,), 64, training=False) == 0
    assert graph_memory.memory(chain, (16,), 64).held == one * (layers + 1)
    served = graph_memory.memory(chain, (16,), 64, training=False)
    assert served.held == one
    assert served.peak == one * (3 if layers == 1 else 4)  # data, and the input, product and tanh of one layer


@pytest.mark.parametrize("name", ["LeNet-5", "AlexNet", "ResNet-18", "SqueezeNet"])
def test_what_is_held_is_what_the_hooks_see(name):
    model, shape = zoo.build(name), zoo.NETWORKS[name].shape
    saved, held = graph_memory.saved_bytes(model, shape, 2), graph_memory.memory(model, shape, 2).held
    assert saved == held + 8 * 2 + 4  # the loss keeps as much as the scores, and its classes
    served, step = (graph_memory.memory(model, shape, 2, training) for training in (False, True))
    assert graph_memory.saved_bytes(model, shape, 2, training=False) == 0
    assert served.peak < step.peak and step.held == held and served.held == 4 * 2 * (10 if name == "LeNet-5" else 1000)


def test_gradients_of_parameters_are_not_activations():
    wide = nn.Sequential(nn.Linear(8, 5000), nn.ReLU(), nn.Linear(5000, 8))
    assert graph_memory.memory(wide, (8,), 1).peak < 4 * 8 * 5000


@pytest.mark.parametrize("segments", [1, 2, 3, 7])
def test_checkpoints_change_no_gradient(segments):
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(7))).double()
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = torch.autograd.grad(layers(x).square().sum(), list(layers.parameters()))
    dropped = graph_memory.Checkpointed(layers, segments)
    found = torch.autograd.grad(dropped(x).square().sum(), list(layers.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize(("layers", "segments"), [(12, 3), (12, 12), (16, 4), (10, 1)])
def test_checkpoints_keep_their_inputs_and_one_segment_for_one_more_forward(layers, segments):
    found, plain = graph_memory.checkpointing(layers, segments=segments), graph_memory.checkpointing(layers)
    assert found.forwards_again == 1.0 and plain.forwards_again == 0.0
    assert found.held == 4 * 64 * 16 * (segments + 1)
    # three more: gradients of one layer in the making, and the last activation; eight bytes of the loss
    assert found.peak == 4 * 64 * 16 * (segments + layers // segments + 3) + 8
    assert plain.peak == 4 * 64 * 16 * (layers + 4) + 8


def test_the_best_number_of_segments_is_the_best_of_all():
    peaks = {n: graph_memory.checkpointing(12, segments=n).peak for n in range(1, 13)}
    best = graph_memory.best_segments(12)
    assert best.peak == min(peaks.values()) == peaks[best.segments]


def test_memory_with_checkpoints_grows_as_the_root_of_the_depth():
    lengths = (16, 36, 64, 144)
    peaks = [graph_memory.best_segments(length).peak for length in lengths]
    points = zip(lengths, peaks, strict=True)
    slopes = [math.log(b / a) / math.log(m / n) for (n, a), (m, b) in itertools.pairwise(points)]
    assert all(0.35 < slope < 0.5 for slope in slopes) and slopes == sorted(slopes)  # to 1/2 from below


def test_segments_must_fit_the_layers():
    with pytest.raises(RequestError, match="segments 4 is out of range; 3 layers make 1 to 3"):
        graph_memory.Checkpointed(graph_memory.chain(3, 2), 4)


def test_the_loss_is_cross_entropy_of_scores_and_the_sum_of_anything_else():
    assert graph.loss_of(torch.empty(2, 3, device="meta")).shape == ()
    x = torch.ones(2, 3, 4)
    assert graph.loss_of(x) == F.relu(x).sum() == 24
