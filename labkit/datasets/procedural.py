"""Generated 10-class images: an unlimited data set with a noise knob, and no download.

A class is a fixed picture of smooth strokes and a blob. An image is that picture shifted, scaled and dimmed at random,
plus Gaussian noise. Useful where the amount of data or its difficulty is the question; *not* a stand-in for natural
images: accuracies on it compare with nothing outside this package."""

import numpy as np

from labkit.errors import RequestError, choose

STREAMS = {"prototypes": 0, "train": 1, "validation": 2, "test": 3}  # independent of each other at any seed
BLOCK = 1024  # images drawn per random stream, so that the first n images do not depend on how many follow
STROKES = 3
SHIFT = 3.0  # pixels of 28, each way
SCALE = (0.8, 1.2)
BRIGHTNESS = (0.6, 1.0)


def prototypes(seed: int = 0, size: int = 28, classes: int = 10) -> np.ndarray:
    """The noiseless picture of each class, float64 [classes, size, size] in [0, 1]."""
    rng = np.random.default_rng([seed, STREAMS["prototypes"]])
    grid = (np.arange(size) + 0.5) / size
    along = np.linspace(0, 1, 24)[:, None]
    pictures = np.zeros((classes, size, size))
    for picture in pictures:
        for _ in range(STROKES):
            start, bend, end = rng.uniform(0.2, 0.8, (3, 2))
            curve = (1 - along) ** 2 * start + 2 * along * (1 - along) * bend + along**2 * end
            _stamp(picture, grid, curve, width=rng.uniform(0.025, 0.05))
        _stamp(picture, grid, rng.uniform(0.25, 0.75, (1, 2)), width=rng.uniform(0.05, 0.1))
    return pictures / pictures.max(axis=(1, 2), keepdims=True)


def _stamp(picture: np.ndarray, grid: np.ndarray, points: np.ndarray, width: float) -> None:
    """Draw round Gaussian dots at `points` [n, 2] into `picture` [size, size], the brightest winning."""
    down = np.exp(-((grid - points[:, :1]) ** 2) / (2 * width**2))
    across = np.exp(-((grid - points[:, 1:]) ** 2) / (2 * width**2))
    np.maximum(picture, (down[:, :, None] * across[:, None, :]).max(axis=0), out=picture)


def generate(count: int, *, noise: float = 0.25, seed: int = 0, stream: str = "train", size: int = 28,
             classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Draw the first `count` images of a stream.

    Args:
        count: how many, 0 or more.
        noise: standard deviation of the Gaussian noise, in units of full brightness.
        seed: chooses the classes' pictures and every image.
        stream: train, validation or test: the same classes, fresh images.
        size: pixels a side.

    Returns:
        images uint8 [count, 1, size, size] and labels int64 [count]; each 1024 images hold every class about equally.

    Raises:
        RequestError: a negative count, seed or noise, or an unknown stream."""
    choose("stream", stream, [key for key in STREAMS if key != "prototypes"])
    if count < 0 or seed < 0 or not 0 <= noise < np.inf:
        raise RequestError(f"procedural images need count, seed and noise of 0 or more, not {count}, {seed}, {noise}")
    pictures = prototypes(seed, size, classes)
    images = np.empty((count, 1, size, size), np.uint8)
    labels = np.empty(count, np.int64)
    for block, start in enumerate(range(0, count, BLOCK)):
        rng = np.random.default_rng([seed, STREAMS[stream], block])
        drawn = rng.permutation(BLOCK) % classes
        x = _place(pictures[drawn], rng) + noise * rng.standard_normal((BLOCK, size, size))
        stop = min(start + BLOCK, count)
        images[start:stop, 0] = np.rint(255 * np.clip(x[:stop - start], 0, 1))
        labels[start:stop] = drawn[:stop - start]
    return images, labels


def _place(pictures: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shift, scale and dim each of `pictures` [n, size, size], reading between pixels; dark outside."""
    n, size, _ = pictures.shape
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1)))
    scale = rng.uniform(*SCALE, (n, 1))
    centre = (size - 1) / 2
    image = np.arange(n)[:, None, None]
    whole, part = [], []
    for _ in ("down", "across"):
        shift = rng.uniform(-SHIFT, SHIFT, (n, 1)) * size / 28
        place = np.clip((np.arange(size) - centre - shift) / scale + centre + 1, 0, size + 1 - 1e-9)
        whole.append(place.astype(np.int64))
        part.append(place - whole[-1])
    rows, columns = whole[0][:, :, None], whole[1][:, None, :]
    down, across = part[0][:, :, None], part[1][:, None, :]
    top = padded[image, rows, columns] * (1 - across) + padded[image, rows, columns + 1] * across
    bottom = padded[image, rows + 1, columns] * (1 - across) + padded[image, rows + 1, columns + 1] * across
    return (top * (1 - down) + bottom * down) * rng.uniform(*BRIGHTNESS, (n, 1, 1))
