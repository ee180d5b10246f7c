"""Images per second of `DeviceBatches`, against two other ways to feed the same augmented batches."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from labkit.datasets.memory import DeviceBatches, padding

BATCH, MEAN, STD = 128, 0.5, 0.3


class WholeEpoch:
    """A batched loader as hand-written ones are: one normalised, padded tensor, shuffled and augmented epoch by epoch.

    The windows come from one gather over the whole epoch (`gather`), or from one masked copy for each of the shifts
    (`shifts`).
    """

    def __init__(self, x, y, windows: str):
        self.height, self.width = x.shape[2:]
        self.pad = padding(min(x.shape[2:]))
        scaled = (torch.tensor(x).float() / 255 - MEAN) / STD
        self.x, self.y = F.pad(scaled, (self.pad,) * 4, mode="reflect"), torch.tensor(y)
        self.windows = getattr(self, windows)

    def gather(self, order, down, right):
        rows, columns = down[:, None] + torch.arange(self.height), right[:, None] + torch.arange(self.width)
        channels = torch.arange(self.x.shape[1])
        return self.x[
            order[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]

    def shifts(self, order, down, right):
        x = self.x[order]
        made = x.new_empty(len(x), x.shape[1], self.height, self.width)
        for top in range(2 * self.pad + 1):
            for left in range(2 * self.pad + 1):
                chosen = (down == top) & (right == left)
                made[chosen] = x[chosen, :, top : top + self.height, left : left + self.width]
        return made

    def __iter__(self):
        n = len(self.x)
        order = torch.randperm(n)
        down, right = (torch.randint(2 * self.pad + 1, (n,)) for _ in range(2))
        epoch = self.windows(order, down, right)
        epoch = torch.where((torch.rand(n) < 0.5).view(-1, 1, 1, 1), epoch.flip(3), epoch)
        yield from zip(epoch.split(BATCH), self.y[order].split(BATCH), strict=True)


class ImageByImage(Dataset):
    """The textbook data set: each image is normalised, padded, cropped and mirrored on its own."""

    def __init__(self, x, y):
        self.x, self.y = torch.tensor(x), torch.tensor(y)
        self.height, self.width = x.shape[2:]
        self.pad = padding(min(x.shape[2:]))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        image = (self.x[index].float() / 255 - MEAN) / STD
        image = F.pad(image[None], (self.pad,) * 4, mode="reflect")[0]
        down, right = torch.randint(2 * self.pad + 1, (2,)).tolist()
        image = image[:, down : down + self.height, right : right + self.width]
        return (image.flip(2) if torch.rand(()) < 0.5 else image), self.y[index]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def bench_loader(compare, clocks, shape):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (8192, *shape), dtype=np.uint8), generator.integers(0, 10, 8192)
    ours = DeviceBatches(x, y, BATCH, augment=("flip", "crop"), mean=MEAN, std=STD)
    one_by_one = DataLoader(ImageByImage(x, y), BATCH, shuffle=True, drop_last=True)

    def epochs(loader, count=1):
        def read():
            for _ in range(count):
                for images, _ in loader:
                    images[0, 0, 0, 0].item()

        return lambda: tuple(seconds / count for seconds in clocks(read))

    size = "x".join(map(str, shape))
    for windows in ("gather", "shifts"):
        by_hand = WholeEpoch(x, y, windows)
        compare(
            f"DeviceBatches over a whole epoch by {windows}, {size}",
            ">= 1.0",
            epochs(ours, 4),
            epochs(by_hand, 2),
            pairs=5,
            speedup=True,
        )
    compare(
        f"DeviceBatches over a DataLoader image by image, {size}",
        ">= 5",
        epochs(ours, 8),
        epochs(one_by_one),
        pairs=3,
        speedup=True,
    )
