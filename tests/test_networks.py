"""Split training steps on real ranks equal one process, and send exactly the messages and words of the formulas."""

import functools
import types

import numpy as np
import pytest
import torch
from labs import cannon, pipeline_ranks, planner, planner_networks, split_ranks, splitting, zoo
from torch import nn
from workers import network_ranks

from labkit.errors import RequestError
from labkit.networks import spatial, tensor
from parallel import words
from parallel.words import Traffic
from labkit.simulate import traced
from labkit.training.ranks import RanksError, run_ranks

N = 16
W = [4 * 8 * 9 + 8, 8 * 8 * 25 + 8, 128 * 24 + 24, 24 * 8 + 8]  # parameters of the four layers
IMAGE, ROW = [4 * 256, 8 * 64, 128, 24, 8], [4 * 16, 8 * 8]  # words a sample into each layer and out; an image row
OWN = [8 * 256, 8 * 64, 24, 8]  # words out of each layer itself
WHOLE = sum(W)


@functools.cache
def steps(size: int) -> dict[str, list]:
    """Every scheme on `size` ranks, by name, in one launch."""
    schemes = {"data": ("data", N), "data, float32": ("data", N, "float32"), "uneven": ("data", 7), "few": ("data", 2),
               "sharded": ("sharded", N), "pair": ("tensor_pair", N), "pair, float32": ("tensor_pair", N, "float32")}
    letters = ("dddd", "ssdd", "cccc", "rrrr", "crcr", "ddcc", "scrd", "dsrc", "rscd", "csdr")
    schemes |= {text: ("placed", text, N) for text in letters}
    schemes |= {"ssdd, float32": ("placed", "ssdd", N, "float32"), "crcr, float32": ("placed", "crcr", N, "float32")}
    if size == 4:
        schemes |= {"fsdp": ("fsdp", N), "ddp": ("ddp", N), "product": ("product", 12, 8, 20)}
    ranks = run_ranks(split_ranks.several, size, schemes)
    return {name: [rank[name] for rank in ranks] for name in schemes}


def sent(reports) -> Traffic:
    return Traffic(sum(report["messages"] for report in reports), sum(report["words"] for report in reports))


def halos(size: int) -> Traffic:
    """Of both convolutions by rows; the images need no gradient, and pooling 2 by 2 looks over no border."""
    return words.halo(size, N * ROW[0], 1, 1, gradient=False) + words.halo(size, N * ROW[1], 2, 2)


@pytest.mark.parametrize("size", [2, 4])
def test_every_split_gives_the_gradients_of_one_process(size):
    for name, reports in steps(size).items():
        bound = 1e-5 if "float32" in name else 1e-10
        assert max(report["error"] for report in reports) <= bound, name


def test_the_parts_of_the_loss_add_up():
    units, (x, y) = split_ranks.network(), split_ranks.batch(N)
    alone = nn.functional.cross_entropy(nn.Sequential(*units)(x), y).item()
    for text in ("dddd", "ssdd", "crcr", "rscd"):
        assert sum(report["loss"] for report in steps(4)[text]) == pytest.approx(alone, abs=1e-12)


FORMULAS = {
    "data": lambda p: words.all_reduce(p, WHOLE),
    "uneven": lambda p: words.all_reduce(p, WHOLE),
    "sharded": lambda p: words.sharded(p, *W),
    "pair": lambda p: words.all_reduce(p, N * IMAGE[2]) + words.all_reduce(p, N * IMAGE[4]),
    "dddd": lambda p: words.all_reduce(p, WHOLE),
    "ssdd": lambda p: halos(p) + words.exchange(p, N * IMAGE[2]) + words.exchange(p, N * IMAGE[2])
    + words.all_reduce(p, WHOLE),
    "ddcc": lambda p: words.all_reduce(p, W[0] + W[1]) + words.all_reduce(p, N * IMAGE[2])
    + words.all_reduce(p, N * IMAGE[3]) + words.exchange(p, N * IMAGE[4]) + words.exchange(p, N * IMAGE[4]),
    "crcr": lambda p: words.all_reduce(p, N * OWN[1]) + words.all_reduce(p, N * IMAGE[2])
    + words.all_reduce(p, N * OWN[3]),
    "rrrr": lambda p: sum((words.all_reduce(p, N * own) for own in OWN), Traffic(0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("size", [2, 4])
def test_messages_and_words_are_those_of_the_formula(name, size):
    assert sent(steps(size)[name]) == FORMULAS[name](size)


@pytest.mark.parametrize("size", [2, 4])
def test_per_worker_the_words_are_the_ones_of_the_literature(size):
    every = (size - 1) / size
    for name, expected in {"data": 2 * WHOLE * every, "sharded": 3 * WHOLE * every}.items():
        assert [report["words"] for report in steps(size)[name]] == [expected] * size


@pytest.mark.parametrize("size", [2, 4])
def test_the_planner_counts_what_ranks_send(size):
    layers = zoo.layers(nn.Sequential(*split_ranks.network("float32")), split_ranks.SHAPE)
    units = planner_networks.units_of(layers)
    for text in ("dddd", "ssdd", "cccc", "rrrr", "crcr", "ddcc", "scrd", "dsrc", "rscd", "csdr"):
        plan = planner.score(units, planner.Machine(), size, N, planner.Placement((text,)))
        counted = [max(report[what] for report in steps(size)[text]) for what in ("messages", "words")]
        assert counted == [plan.messages, plan.words], text


def test_fsdp_sends_three_halves_of_ddp():
    fsdp, ddp = steps(4)["fsdp"], steps(4)["ddp"]
    assert fsdp[0]["calls"] == {("all_gather", w): 2 for w in W} | {("reduce_scatter", w): 1 for w in W}
    assert ddp[0]["calls"] == {("all_reduce", WHOLE): 1}
    assert sent(fsdp) == words.sharded(4, *W) == sent(steps(4)["sharded"])
    assert sent(ddp) == words.all_reduce(4, WHOLE) == sent(steps(4)["data"])
    assert 2 * sent(fsdp).words == 3 * sent(ddp).words


def test_a_sharded_unit_drops_its_parameters_between_the_passes():
    ranks = run_ranks(network_ranks.dropped, 3)
    assert all(gone == [True] * 4 for gone, _ in ranks)
    assert [sum(held) for held in zip(*(held for _, held in ranks), strict=True)] == W
    assert all(report["gathers"] == [2, 2, 2, 2] for report in steps(2)["sharded"])


def test_the_pair_equals_torch_tensor_parallelism():
    for report in run_ranks(network_ranks.dtensor, 2):
        assert report["error"] <= 1e-12
        assert report["calls"] == {("all_reduce", N * IMAGE[2]): 1, ("all_reduce", N * IMAGE[4]): 1}
        assert report["sent"] == sent(steps(2)["pair"])


def test_every_communication_has_its_transpose_as_gradient():
    ranks = run_ranks(network_ranks.all_products, 4)
    for name in network_ranks.MAPS:
        forward, backward = (sum(rank[name][n] for rank in ranks) for n in (0, 1))
        assert forward == pytest.approx(backward, rel=1e-12), name


LAYERS = [  # layer, rows that it needs above and below
    (nn.Conv2d(2, 4, 3, padding=1), 1, 1),
    (nn.Conv2d(2, 3, 5, padding=2, bias=False), 2, 2),
    (nn.Conv2d(2, 4, (7, 3), padding=(3, 1), groups=2), 3, 3),
    (nn.Conv2d(2, 4, 1), 0, 0),
    (nn.AvgPool2d(3, 1, 1), 1, 1),
    (nn.MaxPool2d(3, 1, 1), 1, 1),
]
STRIDED = [
    (nn.Conv2d(2, 3, 7, stride=2, padding=3), 3, 2),
    (nn.Conv2d(2, 3, 3, stride=2, padding=1), 1, 0),
    (nn.Conv2d(2, 3, 1, stride=2), 0, 0),
    (nn.MaxPool2d(3, 2, 1), 1, 0),
    (nn.MaxPool2d(2), 0, 0),
]


@pytest.mark.parametrize("size, layers, height", [(3, LAYERS, 13), (2, STRIDED, 12), (4, STRIDED, 16)])
def test_layers_by_rows_equal_the_whole_and_send_their_halo(size, layers, height):
    """13 rows on 3 ranks: 4, 4 and 5."""
    shape = (3, 2, height, 6)
    ranks = run_ranks(network_ranks.rows, size, [layer for layer, *_ in layers], shape)
    for n, (layer, above, below) in enumerate(layers):
        assert max(max(rank[n]["errors"]) for rank in ranks) <= 1e-10, layer
        for what, gradient in (("forward", False), ("sent", True)):
            counted = Traffic(*(sum(rank[n][what][m] for rank in ranks) for m in (0, 1)))
            assert counted == words.halo(size, 3 * 2 * 6, above, below, gradient), (layer, what)


@pytest.mark.parametrize("mistake", ["gradients not added up", "halo gradients dropped", "mean of unequal means"])
def test_a_planted_mistake_shows_in_the_gradients(mistake):
    assert max(run_ranks(network_ranks.wrong, 2, mistake)) > 1e-3


def test_what_cannot_be_counted_is_said():
    with pytest.raises(RanksError, match="cannot count c10d.broadcast_"):
        run_ranks(network_ranks.uncounted, 2)


THREE = types.SimpleNamespace(rank=0, size=3)


@pytest.mark.parametrize("call, message", [
    (lambda: tensor.part(nn.Linear(4, 8), "columns", THREE), "columns a multiple of 3"),
    (lambda: tensor.part(nn.Linear(4, 9), "rows", THREE), "rows a multiple of 3"),
    (lambda: tensor.part(nn.Conv2d(6, 6, 3, groups=2), "rows", THREE), "cannot split Conv2d"),
    (lambda: tensor.part(nn.BatchNorm2d(6), "columns", THREE), "allowed: Linear, Conv2d"),
    (lambda: tensor.scatter_sum(torch.ones(4, 3), 0, THREE), "must be a multiple of 3"),
    (lambda: spatial.by_rows(nn.Conv2d(1, 1, 3), torch.ones(1, 1, 4, 4), THREE), "does not map 4 rows"),
    (lambda: spatial.by_rows(nn.MaxPool2d(2), torch.ones(1, 1, 5, 4), THREE), "multiple of the stride"),
    (lambda: spatial.by_rows(nn.Conv2d(1, 1, 9, padding=4), torch.ones(1, 1, 3, 9), THREE), "a neighbour needs 4"),
    *((lambda layer=layer: spatial.by_rows(layer, torch.ones(1, 1, 6, 6), THREE), "cannot be split by rows")
      for layer in (nn.Conv2d(1, 1, 3, padding="same"), nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
                    nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.AvgPool2d(2, divisor_override=3))),
    (lambda: tensor.part(nn.Linear(3, 3), "collumns", THREE), "unknown cut 'collumns'; allowed: columns, rows"),
    (lambda: splitting.Split(split_ranks.network(), "dd", THREE), "2 letters for 4 units"),
    (lambda: splitting.Split(split_ranks.network(), "ddxd", THREE), "unknown letter 'x'"),
    (lambda: splitting.Split(split_ranks.network(), "ddsd", THREE), "no rows of an image"),
    (lambda: cannon.block(torch.ones(4, 4), THREE), "square number of ranks, not 3"),
    (lambda: cannon.block(torch.ones(4, 5), types.SimpleNamespace(rank=0, size=4)), "4 x 5 matrix has no 2 x 2 equal"),
])  # fmt: skip
def test_refusals_say_what_is_allowed(call, message):
    with pytest.raises(RequestError, match=message):
        call()


def _product(comm, a, b):
    return cannon.product(cannon.block(a, comm), cannon.block(b, comm), comm)


@pytest.mark.parametrize("size", [1, 4, 9, 16])
def test_cannon_on_traced_ranks(size):
    q = int(size**0.5)
    a, b = np.random.default_rng(size).normal(size=(2, 24, 12))
    b = b.T.copy()
    trace = traced.run(_product, size, a, b)
    whole = np.block([trace.results[i * q : (i + 1) * q] for i in range(q)])
    assert np.abs(whole - a @ b).max() <= 1e-12
    counted = len(trace.messages), sum(message.words for message in trace.messages)
    assert counted == cannon.sent(size, 24, 12, 24)
    gathered = words.gather(size, 12 * 24).words  # b whole on every rank, a by rows
    assert counted[1] * q == 2 * gathered


def test_a_pipeline_sends_activations_one_way_and_gradients_the_other():
    ranks = run_ranks(pipeline_ranks.by_hand, 3, 4, 24)
    assert sent(ranks) == words.pipeline(3, 24 * pipeline_ranks.WIDTH, 4)


def test_cannon_on_real_ranks_with_gradients():
    reports = steps(4)["product"]
    parts = [cannon.sent(4, 12, 8, 20), cannon.sent(4, 12, 20, 8), cannon.sent(4, 8, 12, 20),
             cannon.transposing(4, 8, 20), cannon.transposing(4, 12, 8)]  # fmt: skip
    assert sent(reports) == tuple(map(sum, zip(*parts, strict=True)))
