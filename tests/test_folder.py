"""Images of a folder: what is read is the picture, whatever its format; every sample once; bad folders are refused."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from labkit.errors import RequestError, WorkError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "notebooks" / "recipes"))
import folder  # noqa: E402


def ramp(width: int, height: int) -> Image.Image:
    """Red grows to the right and green downwards, so that a pixel tells where it comes from."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([across, down, np.full_like(across, 128)], 2).round().astype(np.uint8))


def saved(folder_, image: Image.Image, name: str, **options) -> str:
    image.save(folder_ / name, **options)
    return str(folder_ / name)


def tree(root: Path, **classes) -> Path:
    for part in ("train", "val"):
        for name, count in classes.items():
            (root / part / name).mkdir(parents=True)
            for at in range(count):
                ramp(20 + at, 16).save(root / part / name / f"{at}.png")
    return root


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).int()


@pytest.mark.parametrize("width, height", [(300, 200), (200, 300), (64, 64), (33, 90)])
def test_the_evaluation_crop_is_a_resize_of_the_short_side_to_256_of_224_and_its_centre(tmp_path, width, height):
    image, size = ramp(width, height), 56  # 64 along the short side
    scale = 64 / min(width, height)
    wide, tall = round(width * scale), round(height * scale)
    left, upper = (wide - size) / 2, (tall - size) / 2
    whole = image.resize((wide, tall), Image.Resampling.BILINEAR)
    expected = whole.crop((round(left), round(upper), round(left) + size, round(upper) + size))
    found = folder.picture(saved(tmp_path, image, "a.png"), size, None).int()
    # half a pixel where the centre lies between two, which is 2 in the steepest ramp, and 1 for rounding
    assert (found - pixels(expected)).abs().max() <= 3


def test_random_crops_have_the_area_and_ratio_that_they_should_and_lie_inside():
    draw, areas, ratios = random.Random(0), [], []
    for _ in range(4000):
        left, upper, w, h = folder.crop(400, 300, draw)
        assert left >= 0 and upper >= 0 and left + w <= 400 + 1e-9 and upper + h <= 300 + 1e-9
        areas.append(w * h / (400 * 300))
        ratios.append(np.log(w / h))
    assert 0.08 <= min(areas) < 0.1 and 0.9 < max(areas) <= 1
    assert -np.log(4 / 3) - 1e-9 <= min(ratios) < -0.25 and 0.25 < max(ratios) <= np.log(4 / 3) + 1e-9
    # a thin image has no such crop: the largest of the centre
    assert folder.crop(1000, 10, draw) == pytest.approx((1000 / 2 - 20 / 3, 0, 40 / 3, 10))


@pytest.mark.parametrize("width, height", [(96, 64), (1600, 1200)])
def test_a_jpeg_decoded_small_shows_what_the_whole_one_shows(tmp_path, width, height):
    image, size, read = ramp(width, height), 32, 0
    path = saved(tmp_path, image, "a.jpg", quality=95)
    for seed in range(20):
        left, upper, w, h = folder.crop(width, height, random.Random(seed))
        whole = Image.open(path).resize((size, size), Image.Resampling.BILINEAR, (left, upper, left + w, upper + h))
        draw = random.Random(seed)
        found = folder.picture(path, size, draw).int()
        straight, mirrored = pixels(whole), pixels(ImageOps.mirror(whole))
        apart = [(found - one).abs().max().item() for one in (straight, mirrored)]
        assert min(apart) <= 4 < max(apart)
        read += apart[1] < apart[0]
    assert 3 < read < 17  # half of them are mirrored


def test_gray_palette_cmyk_alpha_and_16_bits_become_rgb(tmp_path):
    image = ramp(64, 64)
    gray = np.asarray(image.convert("L"))
    wide = Image.fromarray((gray.astype(np.uint16) << 8) + 7)
    expected = {"rgb": folder.picture(saved(tmp_path, image, "rgb.png"), 32, None).int()}
    expected["gray"] = folder.picture(saved(tmp_path, image.convert("L").convert("RGB"), "g3.png"), 32, None).int()
    for kind, name, form, near in [
        ("rgb", "a.webp", image, 8),
        ("rgb", "a.bmp", image, 0),
        ("rgb", "rgba.png", image.convert("RGBA"), 0),
        ("rgb", "palette.png", image.quantize(256), 12),
        ("rgb", "cmyk.jpg", image.convert("CMYK"), 8),
        ("gray", "gray.png", image.convert("L"), 0),
        ("gray", "gray.jpg", image.convert("L"), 4),
        ("gray", "la.png", image.convert("LA"), 0),
        ("gray", "wide.png", wide, 0),
    ]:
        found = folder.picture(saved(tmp_path, form, name), 32, None)
        assert found.shape == (3, 32, 32) and found.dtype == torch.uint8
        assert (found.int() - expected[kind]).abs().max() <= near, name


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_photograph_that_lies_on_its_side_is_put_upright(tmp_path, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    image = ramp(96, 64)
    found = folder.picture(saved(tmp_path, image, "a.png", exif=exif), 32, None).int()
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "a.png"))
    expected = folder.picture(saved(tmp_path, upright, "b.png"), 32, None).int()
    assert (found - expected).abs().max() <= 1
    assert turn == 1 or (found - folder.picture(saved(tmp_path, image, "c.png"), 32, None).int()).abs().max() > 50


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_file_is_named_in_one_line(tmp_path, damage):
    path = Path(saved(tmp_path, ramp(200, 200), "broken.jpg"))
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "text": b"no image at all", "empty": b""}[damage])
    with pytest.raises(WorkError, match=r"broken\.jpg cannot be read as an image") as caught:
        folder.picture(str(path), 32, None)
    assert "\n" not in str(caught.value)


def test_classes_and_files_come_sorted_and_the_checksum_tells_sizes_and_names(tmp_path):
    root = tree(tmp_path / "a", dog=2, cat=3)
    for junk in ("train/.hidden", "val/.hidden"):
        (root / junk).mkdir()
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    (root / "train" / "cat" / "._0.png").write_bytes(b"")
    (root / "train" / "readme.txt").write_text("not a class")
    classes, train, val, checksum = folder.scan(root)
    assert classes == ["cat", "dog"]
    assert [name.decode() for name in train.files] == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1] and len(val.files) == 5
    assert folder.scan(tree(tmp_path / "b", dog=2, cat=3))[3] == checksum
    (root / "val" / "dog" / "1.png").rename(root / "val" / "dog" / "2.png")
    assert folder.scan(root)[3] != checksum


def test_folders_that_are_no_data_set_are_refused(tmp_path):
    with pytest.raises(RequestError, match="train is no folder"):
        folder.scan(tmp_path)
    root = tree(tmp_path / "a", cat=1, dog=1)
    (root / "train" / "fox").mkdir()
    with pytest.raises(RequestError, match="same class folders; only one of them has fox"):
        folder.scan(root)
    (root / "val" / "fox").mkdir()
    with pytest.raises(RequestError, match="fox holds no image"):
        folder.scan(root)
    for part in ("train", "val"):
        (tmp_path / "b" / part).mkdir(parents=True)
    with pytest.raises(RequestError, match="they hold none"):
        folder.scan(tmp_path / "b")


def test_the_ranks_read_together_what_one_process_reads_in_the_same_micro_batches_and_no_sample_twice():
    alone = list(folder.epoch_order(103, 24, 4, 0, 1, 5, 2))
    assert len(alone) == 4 * 6 and all(len(batch) == 4 for batch in alone)  # 4 steps of 24; the last 7 are dropped
    assert len({key for batch in alone for key in batch}) == 96 and {epoch for row in alone for _, epoch in row} == {2}
    ranks = [list(folder.epoch_order(103, 24, 4, rank, 3, 5, 2)) for rank in range(3)]
    assert [batch for group in zip(*ranks, strict=True) for batch in group] == alone
    assert list(folder.epoch_order(103, 24, 4, 1, 3, 5, 2, 3)) == ranks[1][3:]
    dropped = [
        set(range(103)) - {index for row in folder.epoch_order(103, 24, 4, 0, 1, 5, epoch) for index, _ in row}
        for epoch in (2, 3)
    ]
    assert len(dropped[0]) == len(dropped[1]) == 7 and dropped[0] != dropped[1]


@pytest.mark.parametrize("samples, world", [(7, 2), (8, 2), (1, 4), (50, 3)])
def test_an_evaluation_has_every_sample_once_and_as_many_batches_on_each_rank(samples, world):
    ranks = [folder.evaluation_order(samples, 4, rank, world) for rank in range(world)]
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    seen = [index for rank in ranks for batch in rank for index, _ in batch]
    assert sorted(index for index in seen if index != folder.PADDING) == list(range(samples))
    assert seen.count(folder.PADDING) < world


def test_a_sample_depends_on_seed_epoch_and_file_and_not_on_who_reads_it(tmp_path):
    _, part, _, _ = folder.scan(tree(tmp_path, cat=6))

    def read(seed, epoch, workers=0):
        order = folder.epoch_order(6, 6, 3, 0, 1, 0, epoch)
        return [x for x, _ in DataLoader(folder.Images(part, 16, seed), batch_sampler=order, num_workers=workers)]

    first = read(1, 0)
    for again in (read(1, 0), read(1, 0, workers=2)):
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    one, other = (folder.Images(part, 16, seed)[0, epoch][0] for seed, epoch in ((1, 0), (1, 1)))
    assert not torch.equal(one, other)
    assert not torch.equal(one, folder.Images(part, 16, 2)[0, 0][0])
    padding, label = folder.Images(part, 16)[folder.PADDING, 0]
    assert not padding.any() and padding.shape == (3, 16, 16) and label == folder.PADDING
