"""The survey's networks as plain modules: [N, C, H, W] -> scores [N, classes].

Sources: LeCun et al. (1998), Krizhevsky et al. (2012), Simonyan and Zisserman (2014), Szegedy et al. (2014), He et al.
(2015), Huang et al. (2016), Iandola et al. (2016), in the shapes that today's libraries give them: AlexNet is the later
single tower, GoogLeNet has BatchNorm, no auxiliary heads, and 3 x 3 kernels where the paper has 5 x 5 (torchvision's
well-known deviation; the widths are the paper's). When not to use it: to reproduce accuracies; weights are not the
authors' initialisation. Build under `with torch.device("meta"):` to count without memory."""

import torch
from torch import Tensor, nn

from labkit.models.resnet import Block, convolution, imagenet_resnet, projected_shortcut


class Concat(nn.Module):
    """The channels of every branch side by side: [N, C_i, H, W] each -> [N, sum C_i, H, W]."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _relu(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU(inplace=True)]


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [convolution(inputs, outputs, kernel, stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _before(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    """BatchNorm and ReLU before the convolution."""
    return [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), convolution(inputs, outputs, kernel)]


def _head(inputs: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]


def lenet5(classes: int = 10) -> nn.Sequential:
    """1 x 32 x 32 images. The second convolution reads all six maps, where the paper leaves some out; the pooling has
    no weights, and the last layer is linear, where the paper's is a radial basis function."""
    return nn.Sequential(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
                         nn.AvgPool2d(2), nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten(), nn.Linear(120, 84), nn.Tanh(),
                         nn.Linear(84, classes))


def alexnet(classes: int = 1000) -> nn.Sequential:
    """3 x 224 x 224 images; one tower, without local response normalisation."""
    return nn.Sequential(
        *_relu(3, 64, 11, 4, 2), nn.MaxPool2d(3, 2), *_relu(64, 192, 5, 1, 2), nn.MaxPool2d(3, 2),
        *_relu(192, 384, 3, 1, 1), *_relu(384, 256, 3, 1, 1), *_relu(256, 256, 3, 1, 1), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, classes))


def vgg16(classes: int = 1000) -> nn.Sequential:
    """3 x 224 x 224 images."""
    layers, inputs = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += _relu(inputs, width, 3, 1, 1)
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(),
                         nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, classes))


def _inception(inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> Concat:
    return Concat(nn.Sequential(*_normed(inputs, one, 1)),
                  nn.Sequential(*_normed(inputs, three[0], 1), *_normed(*three, 3)),
                  nn.Sequential(*_normed(inputs, five[0], 1), *_normed(*five, 3)),
                  nn.Sequential(nn.MaxPool2d(3, 1, 1), *_normed(inputs, pooled, 1)))


def googlenet(classes: int = 1000) -> nn.Sequential:
    """3 x 224 x 224 images; nine inception modules, no auxiliary heads."""
    return nn.Sequential(
        *_normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), *_normed(64, 64, 1), *_normed(64, 192, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _inception(192, 64, (96, 128), (16, 32), 32), _inception(256, 128, (128, 192), (32, 96), 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _inception(480, 192, (96, 208), (16, 48), 64), _inception(512, 160, (112, 224), (24, 64), 64),
        _inception(512, 128, (128, 256), (24, 64), 64), _inception(512, 112, (144, 288), (32, 64), 64),
        _inception(528, 256, (160, 320), (32, 128), 128), nn.MaxPool2d(2, 2, ceil_mode=True),
        _inception(832, 256, (160, 320), (32, 128), 128), _inception(832, 384, (192, 384), (48, 128), 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1024, classes))


def resnet(depth: int, classes: int = 1000) -> nn.Sequential:
    """3 x 224 x 224 images; 18 and 50 are the package's, 152 has the blocks of 50 and more of them."""
    if depth != 152:
        return imagenet_resnet(depth, classes=classes)
    blocks, inputs = [], 64
    for stage, (width, count) in enumerate(((256, 3), (512, 8), (1024, 36), (2048, 3))):
        for at in range(count):
            blocks.append(Block(inputs, width, 2 if stage and at == 0 else 1, (1, 3, 1), projected_shortcut, False))
            inputs = width
    return nn.Sequential(*_normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *_head(2048, classes))


def densenet(depth: int, classes: int = 1000) -> nn.Sequential:
    """3 x 224 x 224 images; 121, 161 or 201. Every layer reads all earlier ones of its block."""
    growth, counts = {121: (32, (6, 12, 24, 16)), 161: (48, (6, 12, 36, 24)), 201: (32, (6, 12, 48, 32))}[depth]
    width = 2 * growth
    layers = [*_normed(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for block, count in enumerate(counts):
        if block:
            layers += [*_before(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(count):
            layers.append(Concat(nn.Identity(), nn.Sequential(*_before(width, 4 * growth, 1),
                                                              *_before(4 * growth, growth, 3))))
            width += growth
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True), *_head(width, classes))


def _fire(inputs: int, squeezed: int, expanded: int) -> list[nn.Module]:
    return [*_relu(inputs, squeezed, 1), Concat(nn.Sequential(*_relu(squeezed, expanded, 1)),
                                                nn.Sequential(*_relu(squeezed, expanded, 3, 1, 1)))]


def squeezenet(classes: int = 1000) -> nn.Sequential:
    """3 x 224 x 224 images; version 1.0. No fully connected layer."""
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        *_relu(3, 96, 7, 2), pool(), *_fire(96, 16, 64), *_fire(128, 16, 64), *_fire(128, 32, 128), pool(),
        *_fire(256, 32, 128), *_fire(256, 48, 192), *_fire(384, 48, 192), *_fire(384, 64, 256), pool(),
        *_fire(512, 64, 256), nn.Dropout(), *_relu(512, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
