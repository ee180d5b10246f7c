"""A folder of class folders as images, for worker processes: FOLDER/train/<class>/*.jpg and FOLDER/val/<class>/*.jpg.

A sample depends on seed, epoch and file only: not on the number of workers, ranks or restarts. Source of the two crops:
the usual ones of ImageNet, 8 to 100 % of the area for training, size * 256 / 224 and its centre for judging."""

import hashlib
import math
import os
import random
from pathlib import Path
from typing import Iterator, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from labkit.errors import RequestError, WorkError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
FORMATS = ("BMP", "JPEG", "PNG", "WEBP")  # by content: ImageNet has a PNG that is called JPEG
PADDING = -1  # index and class of what fills an evaluation's last batches and counts for nothing


class Part(NamedTuple):
    """Files (bytes, below `root`) and their classes: arrays, as lists would be copied in every worker process."""
    root: str
    files: np.ndarray
    labels: np.ndarray


def scan(folder: Path) -> tuple[list[str], Part, Part, str]:
    """(class names, train, val, checksum), in sorted order; the checksum is of names and sizes, not of content.

    Raises:
        RequestError: a folder is missing or empty, or train and val have different classes."""
    digest, names, parts = hashlib.sha256(), {}, []
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise RequestError(f"{folder / part} is no folder; FOLDER must hold train/<class>/ and val/<class>/")
        names[part] = sorted(one.name for one in os.scandir(folder / part) if one.is_dir() and one.name[0] != ".")
    different = ", ".join(sorted(set(names["train"]) ^ set(names["val"]))[:3])
    if different or not names["train"]:
        raise RequestError(f"{folder}: train and val must hold the same class folders; "
                           f"{f'only one of them has {different}' if different else 'they hold none'}")
    for part in names:
        files, labels = [], []
        for label, name in enumerate(names[part]):
            found = sorted((one.name, one.stat().st_size) for one in os.scandir(folder / part / name)
                           if one.name[0] != "." and one.name.lower().endswith(SUFFIXES) and one.is_file())
            if not found:
                raise RequestError(f"{folder / part / name} holds no image; allowed: *{', *'.join(SUFFIXES)}")
            files += [os.fsencode(f"{name}/{file}") for file, _ in found]
            labels += [label] * len(found)
            digest.update(os.fsencode(f"{part}/{name}: {found}\n"))
        parts.append(Part(str(folder / part), np.array(files), np.array(labels)))
    return names["train"], *parts, digest.hexdigest()[:16]


def crop(width: int, height: int, draw: random.Random | None) -> tuple[float, float, float, float]:
    """(left, upper, w, h): by chance (ratio 3/4 to 4/3, log-uniform), or without `draw` the central square."""
    for _ in range(10 if draw else 0):
        area, ratio = width * height * draw.uniform(0.08, 1.0), math.exp(draw.uniform(-1, 1) * math.log(4 / 3))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            return draw.uniform(0, width - w), draw.uniform(0, height - h), w, h
    side = min(width, height) * 224 / 256
    # Ten misses leave the largest crop of the centre.
    w, h = (min(width, height * 4 / 3), min(height, width * 4 / 3)) if draw else (side, side)
    return (width - w) / 2, (height - h) / 2, w, h


def picture(path: str, size: int, draw: random.Random | None) -> torch.Tensor:
    """The file as RGB bytes [3, size, size], upright by its EXIF tag: a random crop, mirrored half the time, or without
    `draw` the centre. Raises a WorkError that names the file where it cannot be read."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            (width, height), (left, upper, w, h) = image.size, crop(*image.size, draw)
            shrink = min(w, h) / size
            if draw and shrink >= 2:  # a JPEG is decoded at 1/2, 1/4 or 1/8, no smaller than the crop is needed
                image.draft("RGB", (math.ceil(width / shrink), math.ceil(height / shrink)))
            rgb = image.convert("RGB")
            if image.mode.startswith("I;16"):  # Pillow would cut off what is above 255
                rgb = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        across, down = rgb.width / width, rgb.height / height
        box = left * across, upper * down, min((left + w) * across, rgb.width), min((upper + h) * down, rgb.height)
        small = ImageOps.exif_transpose(rgb.resize((size, size), Image.Resampling.BILINEAR, box))
    except Exception as error:  # of half a dozen kinds where a file is damaged
        raise WorkError(f"{path} cannot be read as an image ({error}); mend it or take it out") from None
    mirrored = draw and draw.random() < 0.5
    return torch.from_numpy(np.array(ImageOps.mirror(small) if mirrored else small)).permute(2, 0, 1)


class Images(Dataset):
    """Items by (index, epoch): (bytes [3, size, size], class). With a seed: for training; without: for judging."""

    def __init__(self, part: Part, size: int, seed: int | None = None):
        self.part, self.size, self.seed = part, size, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, int]:
        index, epoch = key
        if index == PADDING:
            return torch.zeros(3, self.size, self.size, dtype=torch.uint8), PADDING
        draw = None if self.seed is None else random.Random(f"{self.seed}/{epoch}/{index}")
        path = os.path.join(self.part.root, os.fsdecode(self.part.files[index]))
        return picture(path, self.size, draw), int(self.part.labels[index])


def epoch_order(samples, batch, per_device, rank, world, seed: int = 0, epoch: int = 0, done: int = 0) -> Iterator:
    """This rank's shuffled micro-batches of (index, epoch) after the first `done`, in whole optimizer steps of `batch`;
    the rest of the epoch is dropped. Together the ranks read what one process does, in the same micro-batches."""
    order = np.random.default_rng([seed, epoch]).permutation(samples)[: samples // batch * batch]
    for row in order.reshape(-1, world, per_device)[done:, rank].tolist():
        yield [(index, epoch) for index in row]


def evaluation_order(samples: int, per_device: int, rank: int, world: int) -> list[list[tuple[int, int]]]:
    """Every sample once over all ranks, in as many batches on each; what is missing at the end is `PADDING`."""
    row = [index if index < samples else PADDING for index in range(rank, -(-samples // world) * world, world)]
    return [[(index, 0) for index in row[start:start + per_device]] for start in range(0, len(row), per_device)]
