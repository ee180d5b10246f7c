"""Batches from a data set that stays on the device: no worker processes, no copy per step.

Shapes: n samples, b rows of a batch on this rank, c channels, h rows, w columns.

What makes it fast: normalise once, keep the mirrored copy beside the original, read a shifted window as one
`index_select` on an overlapping view (flip and crop then cost no pass of their own), and build several batches at once.
"""

from typing import Iterator, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.errors import RequestError, choose

AUGMENTATIONS = ("flip", "crop", "cutout")
SAMPLINGS = ("shuffle", "replacement")
RESIDENT = 512 << 20  # bytes of normalised data kept on a CPU; above it the raw bytes stay and each batch is normalised
CHUNK = {"cpu": 1 << 20, "other": 128 << 20}  # bytes built at once: on a CPU what the cache holds, else fewer launches


class Plan(NamedTuple):
    """What one rank reads in one epoch, one entry per sample read; None where the augmentation is off.

    Attributes:
        order: index of the sample. flip: 1 where mirrored. down, right: corner of the window in the padded image.
        hole_top, hole_left: corner of the square that is blanked."""

    order: Tensor
    flip: Tensor | None
    down: Tensor | None
    right: Tensor | None
    hole_top: Tensor | None
    hole_left: Tensor | None


def padding(size: int) -> int:
    """Pixels added on each side before a random crop: an eighth of the size, down to an even number, at least 1.

    28 -> 2, 32 -> 4, 14 -> 1, 224 -> 28."""
    return max(1, size // 8 // 2 * 2)


def reflect_pad(x: Tensor, pad: int) -> Tensor:
    """[n, c, h, w] -> [n, c, h + 2 pad, w + 2 pad] by mirroring without repeating the edge; any dtype."""
    def mirrored(size: int) -> Tensor:
        place = torch.arange(-pad, size + pad, device=x.device).abs()
        return torch.where(place < size, place, 2 * (size - 1) - place)
    return x.index_select(2, mirrored(x.shape[2])).index_select(3, mirrored(x.shape[3]))


def windows(x: Tensor, rows: Tensor, down: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """The window of x[rows] [b, c, height, width] whose corner is at (down, right); x [n, c, H, W] contiguous."""
    if x.device.type not in ("cpu", "cuda"):
        return gathered_windows(x, rows, down, right, height, width)  # others would copy the whole overlapping view
    _, channels, tall, wide = x.shape
    # entry k of the view is the window that begins at element k of x; nothing is copied before the select
    extent = (channels - 1) * tall * wide + (height - 1) * wide + width
    view = x.as_strided((x.numel() - extent + 1, channels, height, width), (1, tall * wide, wide, 1))
    return view.index_select(0, rows * (channels * tall * wide) + down * wide + right)


def gathered_windows(x: Tensor, rows: Tensor, down: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """`windows` by the address of every pixel: four times slower, and right on any device."""
    _, channels, tall, wide = x.shape
    channel, row, column = (torch.arange(size, device=x.device) for size in (channels, height, width))
    offset = channel[:, None, None] * (tall * wide) + row[:, None] * wide + column
    return x.view(-1)[(rows * (channels * tall * wide) + down * wide + right)[:, None, None, None] + offset]


def blank(x: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Set a side x side square of each image of x [b, c, h, w] to 0, the training mean, in place."""
    along = torch.arange(side, device=x.device)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    x[image, :, (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]] = 0
    return x


def normalise(x: Tensor, mean: float, std: float, dtype: torch.dtype) -> Tensor:
    """(x - mean) / std in `dtype`; bytes are divided by 255 first, so mean and std are in units of full brightness."""
    unit = x.float() / 255 if x.dtype == torch.uint8 else x.to(torch.promote_types(x.dtype, torch.float32))
    return ((unit - mean) / std).to(dtype)


def _tensors(x, y, device) -> tuple[Tensor, Tensor]:
    x, y = (torch.tensor(part) if isinstance(part, np.ndarray) else part for part in (x, y))
    if len(x) == 0 or len(x) != len(y):
        raise RequestError(f"batches need as many labels as samples, at least one: {len(x)} samples, {len(y)} labels")
    return x.to(device), y.to(device)


def _rank(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise RequestError(f"give rank and world together, not rank={rank} and world={world}")
    if rank is None:
        active = torch.distributed.is_available() and torch.distributed.is_initialized()
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if active else (0, 1)
    if not 0 <= rank < world:
        raise RequestError(f"rank {rank} is not one of world {world}; allowed: 0 to {world - 1}")
    return rank, world


class DeviceBatches:
    """Shuffled, augmented batches of a set that lies on the device; each `iter` is the next epoch.

    Randomness depends on (seed, epoch, device type) only: an epoch is the same after a restart and for any number of
    ranks. Under data parallelism `batch` is the global batch and every rank reads its equal slice of it, with the very
    augmentations one process would have drawn, so W ranks see together what one process sees.

    Order of augmentations: flip, crop, cutout. "crop" reflects `padding` pixels on each side and takes a random window
    of the old size; "cutout" blanks a square of h // 4 (of w, if that is less) that lies wholly inside the image (the
    original lets it hang over the edge).

    When not to use it: data larger than the device's memory, images of different sizes, or augmentations that a
    tensor operation does not express.

    Args:
        x: [n, c, h, w] numpy array or tensor, bytes or floats (any further shape without augmentation).
        y: [n] labels.
        batch: global batch size, 1 to n.
        augment: any of "flip", "crop", "cutout".
        sampling: "shuffle" reads each sample once an epoch; "replacement" draws every row independently.
        drop_last: leave out the last, smaller batch.
        mean, std: see `normalise`.
        rank, world: this process and how many there are; None asks torch.distributed.
        resident: bytes of normalised data that may stay on the device; None is 512 MiB on a CPU and a quarter of the
            free memory on a GPU. More than that and the bytes stay as they are: smaller, a little slower, same values.

    Raises:
        RequestError: a batch outside 1 to n or not divisible by world, unequal x and y, an unknown augmentation or
            sampling, augmentation of something that is no image, std of 0 or less, a negative seed."""

    def __init__(self, x, y, batch: int, *, seed: int = 0, augment: tuple[str, ...] = (), sampling: str = "shuffle",
                 drop_last: bool = True, mean: float = 0.0, std: float = 1.0, device="cpu",
                 dtype: torch.dtype = torch.float32, rank: int | None = None, world: int | None = None,
                 resident: int | None = None):
        for name in augment:
            choose("augmentation", name, AUGMENTATIONS)
        choose("sampling", sampling, SAMPLINGS)
        self.rank, self.world = _rank(rank, world)
        if not 1 <= batch <= len(x):
            raise RequestError(f"batch {batch} is outside 1 to {len(x)}, the number of samples")
        tail = 0 if drop_last else len(x) % batch
        if batch % self.world or tail % self.world:
            part = f"the last batch of {tail}" if batch % self.world == 0 else f"batch {batch}"
            raise RequestError(f"{part} cannot be shared equally by {self.world} ranks; choose a multiple of it")
        if augment and (x.ndim != 4 or min(x.shape[2:]) < 4):
            raise RequestError(f"{', '.join(augment)} needs images [n, c, h, w] of 4 x 4 or more, not {tuple(x.shape)}")
        if not std > 0 or seed < 0:
            raise RequestError(f"std must be above 0 and seed 0 or more, not {std} and {seed}")
        self.batch, self.seed, self.sampling, self.augment = batch, seed, sampling, frozenset(augment)
        self.device, self.dtype, self.epoch = torch.device(device), dtype, 0
        self._mean, self._std, self._shape = mean, std, tuple(x.shape[1:])
        x, self._y = _tensors(x, y, self.device)
        self._samples, self._length = len(x), (len(x) - tail) // batch * batch + tail
        # mirroring after padding is mirroring before it, as the padding is symmetric
        pad = padding(min(x.shape[2:])) if "crop" in augment else 0
        grown = (2 if "flip" in augment else 1) * (self._shape[1] + 2 * pad) * (self._shape[2] + 2 * pad) / (
            self._shape[1] * self._shape[2]) if x.ndim == 4 else 1
        self._lazy = x.dtype == torch.uint8 and x.numel() * grown * dtype.itemsize > self._room(resident)
        if not self._lazy:
            x = normalise(x, mean, std, dtype)
        if pad:
            x = reflect_pad(x, pad)
        self._x = torch.cat([x, x.flip(3)]) if "flip" in augment else x.contiguous()
        self._pad, self._side = pad, min(self._shape[1:], default=0) // 4

    def _room(self, resident: int | None) -> float:
        if resident is not None:
            return resident
        return torch.cuda.mem_get_info(self.device)[0] / 4 if self.device.type == "cuda" else RESIDENT

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self._length // self.batch)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter` yields epoch `epoch` (0 is the first)."""
        self.epoch = epoch

    def plan(self, epoch: int) -> Plan:
        """Which samples this rank reads in `epoch`, and how each is changed."""
        state = np.random.SeedSequence([self.seed, epoch + 1]).generate_state(1, np.uint64)[0]
        generator = torch.Generator(self.device).manual_seed(int(state) >> 1)

        def draw(limit: int) -> Tensor:
            return torch.randint(limit, (self._length,), generator=generator, device=self.device)

        if self.sampling == "shuffle":
            order = torch.randperm(self._samples, generator=generator, device=self.device)[:self._length]
        else:
            order = draw(self._samples)
        drawn = [order] + [None] * 5
        if "flip" in self.augment:
            drawn[1] = draw(2)
        if "crop" in self.augment:
            drawn[2], drawn[3] = draw(2 * self._pad + 1), draw(2 * self._pad + 1)
        if "cutout" in self.augment:
            drawn[4], drawn[5] = (draw(size - self._side + 1) for size in self._shape[1:])
        return Plan(*(None if part is None else self._share(part) for part in drawn))

    def _share(self, part: Tensor) -> Tensor:
        """This rank's entries of a global sequence: its slice of each batch, one after the other."""
        if self.world == 1:
            return part
        whole = self._length // self.batch * self.batch
        rows = part[:whole].view(-1, self.world, self.batch // self.world)[:, self.rank].reshape(-1)
        return torch.cat([rows, part[whole:].view(self.world, -1)[self.rank]])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # A generator: an epoch begins when its first batch is read, however often a training loop opens the loader.
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from self._batches(epoch)

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        plan, local = self.plan(epoch), self.batch // self.world
        size = CHUNK.get(self.device.type, CHUNK["other"])
        step = local * max(1, size // (local * int(np.prod(self._shape)) * self.dtype.itemsize))
        for start in range(0, len(plan.order), step):
            part = Plan(*(None if entry is None else entry[start:start + step] for entry in plan))
            labels = self._y.index_select(0, part.order)
            yield from zip(self._build(part).split(local), labels.split(local))

    def _build(self, plan: Plan) -> Tensor:
        rows = plan.order if plan.flip is None else plan.order + plan.flip * self._samples
        x = (self._x.index_select(0, rows) if plan.down is None
             else windows(self._x, rows, plan.down, plan.right, *self._shape[1:]))
        if self._lazy:
            x = normalise(x, self._mean, self._std, self.dtype)
        return x if plan.hole_top is None else blank(x, plan.hole_top, plan.hole_left, self._side)


class InOrder(list):
    """A list of batches (x, y) that Lightning takes for one loader; a plain list it would take for many."""


def evaluation_batches(x, y, batch: int = 1024, *, mean: float = 0.0, std: float = 1.0, device="cpu",
                       dtype: torch.dtype = torch.float32) -> InOrder:
    """All samples in order, without augmentation, the last batch smaller: a list, to be read any number of times.

    Every rank gets the whole set.

    Raises:
        RequestError: batch below 1, no samples, unequal x and y, or std of 0 or less."""
    if batch < 1 or not std > 0:
        raise RequestError(f"batch must be 1 or more and std above 0, not {batch} and {std}")
    x, y = _tensors(x, y, device)
    return InOrder(zip(normalise(x, mean, std, dtype).split(batch), y.split(batch)))
