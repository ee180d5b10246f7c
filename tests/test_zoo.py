"""The networks have the parameters and multiply-adds that torchvision's have; layers are listed as they run."""

from math import prod

import pytest
import torch
from torch import nn

from labkit.errors import RequestError
from labkit.models.resnet import cifar_resnet, imagenet_resnet
from labs import graph, zoo

# Counted in torchvision 0.28 on the meta device: parameters (millions), multiply-adds at 224 x 224 (millions), layers.
TORCHVISION = {
    "AlexNet": (61.10, 714, 8), "VGG-16": (138.36, 15470, 16), "GoogLeNet": (6.62, 1498, 58),
    "ResNet-18": (11.69, 1814, 21), "ResNet-50": (25.56, 4089, 54), "ResNet-152": (60.19, 11514, 156),
    "DenseNet-121": (7.98, 2834, 121), "DenseNet-161": (28.68, 7728, 161), "DenseNet-201": (20.01, 4291, 201),
    "SqueezeNet": (1.25, 819, 26),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCHVISION)
def test_a_network_has_the_size_that_torchvisions_has(name):
    model, shape = zoo.build(name), zoo.NETWORKS[name].shape
    rows = zoo.layers(model, shape)
    parameters, macs = sum(p.numel() for p in model.parameters()), sum(row.macs for row in rows)
    counted = sum(row.kind in ("conv", "fc") for row in rows)
    assert (round(parameters / 1e6, 2), round(macs / 1e6), counted) == TORCHVISION[name]
    assert sum(row.parameters for row in rows) == parameters
    assert graph.capture(model, shape, training=False).macs == macs


def test_lenet_is_the_one_of_1998_with_a_full_second_convolution():
    rows = zoo.layers(zoo.build("LeNet-5"), (1, 32, 32))
    assert [row.kind for row in rows if row.kind not in ("activation", "other")] == \
        ["conv", "pool", "conv", "pool", "conv", "fc", "fc"]
    # the paper's 60,000 trainable numbers leave out 600 weights here and count other pooling and output layers
    assert [row.parameters for row in rows if row.parameters] == [156, 2416, 48120, 10164, 850]
    assert [row.macs for row in rows if row.macs] == [117600, 240000, 48000, 10080, 840]


def test_a_layer_says_what_it_reads_writes_and_computes():
    first, relu, pool, *_ = zoo.layers(zoo.build("AlexNet"), (3, 224, 224))
    assert (first.kind, first.parameters, first.shape_in, first.shape_out) == \
        ("conv", 64 * (3 * 11 * 11 + 1), (3, 224, 224), (64, 55, 55))
    assert (first.words_in, first.words_out) == (3 * 224 * 224, 64 * 55 * 55)
    assert (first.kernel, first.stride, first.padding) == ((11, 11), (4, 4), (2, 2))
    assert first.macs == first.forward.work == first.grad_input.work == 64 * 55 * 55 * 3 * 11 * 11
    assert (relu.kind, relu.macs, relu.forward.work) == ("activation", 0, 64 * 55 * 55)
    assert (pool.kind, pool.kernel, pool.stride, pool.shape_out) == ("pool", (3, 3), (2, 2), (64, 27, 27))


@pytest.mark.parametrize("name", ["AlexNet", "VGG-16", "SqueezeNet"])
def test_without_functions_in_between_the_layers_are_all_the_work(name):
    model, shape = zoo.build(name), zoo.NETWORKS[name].shape
    rows, served = zoo.layers(model, shape), graph.capture(model, shape, training=False)
    assert sum(row.forward.work for row in rows) == served.work
    if name != "SqueezeNet":  # which has branches
        assert sum(row.forward.depth for row in rows) == served.depth
        assert all(a.shape_out == b.shape_in or prod(a.shape_out) == prod(b.shape_in)
                   for a, b in zip(rows, rows[1:], strict=False))


def test_listing_layers_leaves_a_model_as_it_was():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Identity(), nn.Dropout(), nn.Flatten(),
                          nn.Linear(2 * 36, 3))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = zoo.layers(model, (1, 8, 8))
    assert [row.name for row in rows] == ["0", "1", "3", "4", "5"]
    assert [row.kind for row in rows] == ["conv", "bn", "other", "other", "fc"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and not model[1].training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_runs_twice_is_listed_twice():
    shared = nn.Linear(4, 4)
    assert len(zoo.layers(nn.Sequential(shared, nn.Tanh(), shared), (4,))) == 3


@pytest.mark.parametrize("depth", [18, 50])
def test_the_residual_networks_are_the_packages(depth):
    with torch.device("meta"):
        ours = imagenet_resnet(depth)
    named = zoo.build(f"ResNet-{depth}")
    assert [(n, p.shape) for n, p in named.named_parameters()] == [(n, p.shape) for n, p in ours.named_parameters()]


def test_googlenet_has_no_kernel_of_5_where_the_paper_has():
    kernels = {row.kernel for row in zoo.layers(zoo.build("GoogLeNet"), (3, 224, 224)) if row.kind == "conv"}
    assert kernels == {(1, 1), (3, 3), (7, 7)}


def test_the_table_is_by_network_and_independent_of_the_batch():
    table = zoo.table(("LeNet-5", "AlexNet", "ResNet-18")).set_index("network")
    assert list(table["year"]) == [1998, 2012, 2015] and list(table["layers"]) == [5, 8, 21]
    assert table.loc["AlexNet", "parameters"] == 61_100_840
    assert table.loc["AlexNet", "macs_per_parameter"] == pytest.approx(714_188_480 / 61_100_840)
    assert (table["inference_parallelism"] == table["inference_work"] / table["inference_depth"]).all()
    assert (table["share"] == table["inference_work"] / table["step_work"]).all()
    larger = zoo.table(("LeNet-5",), batch=8).set_index("network").loc["LeNet-5"]
    small = table.loc["LeNet-5"]
    assert (larger["macs"], larger["inference_work"]) == (small["macs"], 8 * small["inference_work"])
    assert larger["inference_depth"] == small["inference_depth"]  # samples do not wait for each other


def test_an_unknown_network_is_refused():
    with pytest.raises(RequestError, match="unknown network 'LeNet'; allowed: LeNet-5, AlexNet"):
        zoo.build("LeNet")


@pytest.mark.parametrize(("layer", "message"), [
    (nn.Conv2d(3, 4, 3, padding="same"), "padding 'same' is not counted"),
    (nn.LSTM(8, 8), r"layer 0 \(LSTM\) gives more than one tensor"),
])  # fmt: skip
def test_what_cannot_be_listed_is_refused_in_one_line(layer, message):
    with pytest.raises(RequestError, match=message) as error:
        zoo.layers(nn.Sequential(layer), (3, 8, 8) if isinstance(layer, nn.Conv2d) else (8, 8))
    assert "\n" not in str(error.value)


def test_layers_lists_the_models_of_the_package_too():
    rows = zoo.layers(cifar_resnet(8), (3, 32, 32))
    assert sum(row.parameters for row in rows) == sum(p.numel() for p in cifar_resnet(8).parameters())
