"""Networks: sizes the literature states, shapes, and what each construction promises."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from labkit import models
from labkit.errors import RequestError
from labkit.models.lstm import RowLSTM
from labkit.models.mlp import DeepMLP
from labkit.models.resnet import Block, PaddedShortcut, cifar_resnet, imagenet_resnet

SMALL = [name for name in models.NAMES if name not in ("resnet18", "resnet50")]


def parameters(network: nn.Module) -> int:
    return sum(part.numel() for part in network.parameters())


@pytest.mark.parametrize(
    "network, count",
    [
        (lambda: RowLSTM(28, 28, 128, 128), 137_098),
        (lambda: RowLSTM(28, 28, 64, 64), 35_786),
        (lambda: cifar_resnet(20), 269_722),
        (lambda: cifar_resnet(56), 853_018),
        (lambda: imagenet_resnet(18), 11_689_512),
        (lambda: imagenet_resnet(50), 25_557_032),
    ],
)
def test_parameter_counts_are_the_published_ones(network, count):
    assert parameters(network()) == count


@pytest.mark.parametrize("name", models.NAMES)
def test_every_model_takes_its_image_and_trains_every_parameter(name):
    shape = (3, 32, 32)
    network = models.build(name, shape, 7)
    scores = network(torch.randn(4, *shape))
    assert scores.shape == (4, 7)
    nn.functional.cross_entropy(scores, torch.arange(4)).backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in network.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_grey_and_pooled_images_fit(name):
    for side in (28, 14):
        assert models.build(name, (1, side, side), 10)(torch.randn(2, 1, side, side)).shape == (2, 10)


def test_row_lstm_reads_rows_in_order():
    """The recurrence written out by hand from the layer's own weights gives the same scores."""
    torch.manual_seed(0)
    network = RowLSTM(rows=5, columns=4, projection=3, hidden=6, classes=2).double()
    x = torch.randn(7, 1, 5, 4, dtype=torch.float64)
    hidden = cell = torch.zeros(7, 6, dtype=torch.float64)
    weights = network.lstm
    for row in range(5):
        step = network.projection(x[:, 0, row])
        gates = (
            step @ weights.weight_ih_l0.T + weights.bias_ih_l0 + hidden @ weights.weight_hh_l0.T + weights.bias_hh_l0
        )
        enter, forget, new, leave = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
    torch.testing.assert_close(network(x), network.classifier(hidden))
    torch.testing.assert_close(network(x[:, 0]), network(x))


def test_row_lstm_sees_every_channel_of_a_row_together():
    network = RowLSTM(rows=4, columns=3, channels=2, projection=5, hidden=5)
    x = torch.randn(1, 2, 4, 3)
    rows = torch.cat([x[:, 0], x[:, 1]], dim=-1)  # [1, rows, channels x columns]
    steps, _ = network.lstm(network.projection(rows))
    torch.testing.assert_close(network(x), network.classifier(steps[:, -1]))


def test_deep_mlp_layers_and_initial_scale():
    network = DeepMLP(784, width=64, depth=6)
    linear = [part for part in network.modules() if isinstance(part, nn.Linear)]
    assert [part.out_features for part in linear] == [64] * 6 + [10]
    assert parameters(network) == 784 * 64 + 64 + 5 * (64 * 64 + 64) + 64 * 10 + 10
    assert all((part.bias == 0).all() for part in linear)
    for part in linear[:-1]:  # Kaiming: variance 2 / fan-in; 4096 weights or more leave 5 standard errors of 1.1 %
        assert part.weight.std().item() == pytest.approx(math.sqrt(2 / part.in_features), rel=0.06)


def test_padded_shortcut_subsamples_and_adds_no_parameters():
    shortcut = PaddedShortcut(2, 6, 2)
    x = torch.randn(3, 2, 5, 5)
    y = shortcut(x)
    assert parameters(shortcut) == 0 and y.shape == (3, 6, 3, 3)
    assert torch.equal(y[:, 2:4], x[:, :, ::2, ::2])
    assert y[:, :2].abs().sum() == y[:, 4:].abs().sum() == 0


@pytest.mark.parametrize(
    "build", [lambda zero: cifar_resnet(8, zero_gamma=zero), lambda zero: imagenet_resnet(50, zero_gamma=zero)]
)
def test_zero_gamma_makes_every_residual_start_at_zero(build):
    x = torch.randn(2, 3, 32, 32)
    for zero, expected in ((True, True), (False, False)):
        network = build(zero)
        blocks = [part for part in network if isinstance(part, Block)]
        seen = []
        hooks = [
            block.residual.register_forward_hook(lambda _, __, out: seen.append(bool((out == 0).all())))
            for block in blocks
        ]
        network(x)
        assert len(seen) == len(hooks) == len(blocks) and all(zeros == expected for zeros in seen)


def test_depth_counts_the_weighted_layers():
    for depth in (8, 20, 56):
        weighted = [part for part in cifar_resnet(depth).modules() if isinstance(part, (nn.Conv2d, nn.Linear))]
        assert len(weighted) == depth
    for depth in (18, 50):
        layers = list(imagenet_resnet(depth).named_modules())
        main = [part for name, part in layers if isinstance(part, (nn.Conv2d, nn.Linear)) and "shortcut" not in name]
        assert len(main) == depth


@pytest.mark.parametrize(
    "request_, message",
    [
        (lambda: models.build("resnet21"), "unknown model 'resnet21'; allowed: row-lstm, deep-mlp"),
        (lambda: models.build("row-lstm", width=3), "unknown size of row-lstm 'width'; allowed: projection, hidden"),
        (lambda: models.build("deep-mlp", depth=0), "depth must be a whole number, 1 or more, not 0"),
        (lambda: models.build("deep-mlp", width=True), "width must be a whole number"),
        (lambda: models.build("resnet20", zero_gamma=1), "zero_gamma must be True or False"),
        (lambda: models.build("resnet9", (1, 7, 7)), "needs 8 x 8 or more, not 7 x 7"),
        (lambda: models.build("deep-mlp", (28, 28)), "image_shape must be (channels, height, width)"),
        (lambda: models.build("deep-mlp", classes=0), "classes must be a whole number"),
        (lambda: cifar_resnet(19), "6 n + 2 layers"),
        (lambda: imagenet_resnet(34), "allowed: 18, 50"),
        (lambda: models.source_modules("vgg"), "unknown model 'vgg'"),
    ],
)
def test_wrong_requests_name_what_is_allowed(request_, message):
    with pytest.raises(RequestError) as caught:
        request_()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_source_modules_can_be_read():
    assert models.source_modules("row-lstm") == ["labkit.models.lstm"]
    for name in models.NAMES:
        assert all(__import__(module, fromlist=["_"]).__file__ for module in models.source_modules(name))


def test_names_come_without_torch():
    code = "import labkit.models as m, sys; m.NAMES; m.source_modules('resnet20'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
