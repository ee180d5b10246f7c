"""The small network and the batches of lab 04, and batch normalisation in three ways: of the samples at hand
(`torch.nn.BatchNorm2d`), of all ranks' samples, and of parts of one process's batch. All in float64."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

SHAPE, CLASSES = (1, 8, 8), 4


class AllReduce(torch.autograd.Function):
    """The sum over ranks; as every rank's result holds every rank's input, the gradient is a sum over ranks too."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        distributed.all_reduce(gradient)
        return gradient


class SynchronisedNorm(nn.BatchNorm2d):
    """Batch normalisation of [n, channels, h, w] with the statistics of all ranks' samples, whatever n each has.

    `torch.nn.SyncBatchNorm` is this for GPUs. Costs two all-reduces of `channels` words or so in each direction, that
    nothing can overlap: the next layer waits for them."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        mine = torch.cat([x.sum((0, 2, 3)), x.new_tensor([x.numel() / x.shape[1]])])
        total = AllReduce.apply(mine)
        count = total[-1]
        mean = (total[:-1] / count).view(-1, 1, 1)
        variance = AllReduce.apply((x - mean).square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * (variance + self.eps).rsqrt()
        return (x - mean) * scale.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


class GhostNorm(nn.BatchNorm2d):
    """One process that normalises as ranks with local statistics do: each of `counts` samples by itself. The running
    statistics are the first part's, as those that DistributedDataParallel keeps are rank 0's."""

    def __init__(self, channels: int, counts: Sequence[int]):
        super().__init__(channels)
        self.counts = list(counts)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        first, *rest = x.split(self.counts)
        own = [F.batch_norm(part, None, None, self.weight, self.bias, True, 0.0, self.eps) for part in rest]
        return torch.cat([super().forward(first), *own])


def network(norm: Callable[[int], nn.Module] | None = None, seed: int = 0) -> nn.Sequential:
    """Two convolutions, each with `norm(channels)` behind it, and a fully connected layer: about 1,700 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, channels in ((SHAPE[0], 6), (6, 12)):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), norm(channels) if norm else nn.Identity(), nn.Tanh()]
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 2 * 2, CLASSES)).double()


def samples(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images [count, 1, 8, 8] of four kinds of stripes in noise, the kinds in order of a shuffle; and their kinds.

    Kinds also differ in brightness, so that batches differ in their statistics, as real ones do."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64)
    phase = torch.arange(8, dtype=torch.float64) * torch.pi / 4
    stripes = torch.sin(phase * (1 + y.view(-1, 1, 1, 1))) + 0.5 * y.view(-1, 1, 1, 1)
    return noise + stripes, y
