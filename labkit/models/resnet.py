"""Residual networks: the CIFAR family, a short one for speed, and the ImageNet pair.

Source: He et al., Deep residual learning for image recognition (2016), for the two families; `zero_gamma` is Goyal et
al. (2017): the last scale of each block starts at 0, so that every block starts as the identity. Shapes: [N, C, H, W].
"""

from torch import Tensor, nn
from torch.nn import functional as F

from labkit.errors import RequestError, choose


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Convolution that keeps the size at stride 1, without bias (BatchNorm follows), Kaiming normal (fan out)."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class PaddedShortcut(nn.Module):
    """Option A of He et al.: every `stride`-th pixel, missing channels filled with zeros; no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.stride, self.missing = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride], rounded up."""
        before = self.missing // 2
        return F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, before, self.missing - before))


def projected_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option B of He et al.: a 1 x 1 convolution and a BatchNorm."""
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """ReLU(shortcut(x) + residual(x)); the residual is `kernels` convolutions, each with a BatchNorm.

    (3, 3) is the basic block and (1, 3, 1) the bottleneck, which is four times narrower inside. The stride is on the
    first 3 x 3 convolution; the original bottleneck has it on the first 1 x 1 (same parameters)."""

    def __init__(self, inputs: int, outputs: int, stride: int, kernels: tuple[int, ...], shortcut, zero_gamma: bool):
        super().__init__()
        inner = outputs // 4 if kernels[0] == 1 else outputs
        widths = [inputs] + [inner] * (len(kernels) - 1) + [outputs]
        strided = kernels.index(3)
        layers: list[nn.Module] = []
        for at, kernel in enumerate(kernels):
            layers += [convolution(widths[at], widths[at + 1], kernel, stride if at == strided else 1),
                       nn.BatchNorm2d(widths[at + 1]), nn.ReLU(inplace=True)]
        self.residual = nn.Sequential(*layers[:-1])
        if zero_gamma:
            nn.init.zeros_(self.residual[-1].weight)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride], rounded up."""
        return F.relu(self.shortcut(x) + self.residual(x))


def _stages(inputs: int, widths, counts, kernels, shortcut, zero_gamma: bool) -> list[Block]:
    """Blocks of each stage; every stage after the first begins by halving the image."""
    blocks = []
    for stage, (width, count) in enumerate(zip(widths, counts)):
        for at in range(count):
            stride = 2 if stage and at == 0 else 1
            blocks.append(Block(inputs, width, stride, kernels, shortcut, zero_gamma))
            inputs = width
    return blocks


def cifar_resnet(depth: int, channels: int = 3, classes: int = 10, zero_gamma: bool = False) -> nn.Sequential:
    """The family of 6 n + 2 layers for small images: widths 16, 32, 64, option A shortcuts.

    [N, channels, H, W] -> scores [N, classes]. ResNet-20 has 269,722 parameters (three channels, ten classes),
    ResNet-56 853,018.

    Raises:
        RequestError: `depth` is not 6 n + 2 with n >= 1."""
    if depth < 8 or depth % 6 != 2:
        raise RequestError(f"a CIFAR ResNet has 6 n + 2 layers (8, 14, 20, ... 56, ...), not {depth}")
    blocks = _stages(16, (16, 32, 64), [(depth - 2) // 6] * 3, (3, 3), PaddedShortcut, zero_gamma)
    return nn.Sequential(convolution(channels, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def imagenet_resnet(depth: int, channels: int = 3, classes: int = 1000, zero_gamma: bool = False) -> nn.Sequential:
    """ResNet-18 (basic blocks) or ResNet-50 (bottlenecks) with projected shortcuts.

    [N, channels, H, W] -> scores [N, classes]; made for 224 x 224, of which it keeps 7 x 7. With three channels and
    1000 classes they have 11,689,512 and 25,557,032 parameters.

    When not to use it: on 28 or 32 pixels its stem throws away most of the image; use `cifar_resnet`.

    Raises:
        RequestError: another depth."""
    choose("depth of an ImageNet ResNet", depth, (18, 50))
    widths, counts, kernels = {18: ((64, 128, 256, 512), (2, 2, 2, 2), (3, 3)),
                               50: ((256, 512, 1024, 2048), (3, 4, 6, 3), (1, 3, 1))}[depth]
    return nn.Sequential(convolution(channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                         nn.MaxPool2d(3, 2, 1), *_stages(64, widths, counts, kernels, projected_shortcut, zero_gamma),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class _Add(nn.Module):
    """x + layers(x): a shortcut around whole layers, with no activation after the sum."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class _Scaled(nn.Module):
    """Multiply the scores by a constant, so that the loss starts flat."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def resnet9(channels: int = 3, classes: int = 10, width: int = 64) -> nn.Sequential:
    """A short residual network for speed: eight convolutions and a classifier, after David Page's DAWNBench entry.

    [N, channels, H, W] -> scores [N, classes]; H and W of 8 or more. Widths are `width` x 1, 2, 4, 8."""
    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [convolution(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    def halved(inputs: int, outputs: int) -> list[nn.Module]:
        # pooling straight after the convolution leaves BatchNorm and ReLU a quarter of the work; max commutes with ReLU
        first, *rest = layer(inputs, outputs)
        return [first, nn.MaxPool2d(2), *rest]

    wide = [width * factor for factor in (1, 2, 4, 8)]
    return nn.Sequential(
        *layer(channels, wide[0]),
        *halved(wide[0], wide[1]), _Add(*layer(wide[1], wide[1]), *layer(wide[1], wide[1])),
        *halved(wide[1], wide[2]),
        *halved(wide[2], wide[3]), _Add(*layer(wide[3], wide[3]), *layer(wide[3], wide[3])),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(wide[3], classes), _Scaled(0.125))
