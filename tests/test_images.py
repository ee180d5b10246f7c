"""Image sets: splits, sizes, pooling, the generator, and readers that survive any bytes."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.datasets import download, images, procedural
from labkit.datasets.images import CIFAR_MEMBERS, cifar_members, load, parse_cifar, parse_idx
from labkit.errors import RequestError, WorkError


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


def archive(members: dict[str, bytes], level: int = 1) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=level) as out:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def rows(x: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in x}


# the bundled digits


def test_mnist5k_is_split_without_overlap_and_without_loss():
    data = load("mnist5k")
    parts = [(data.train_x, data.train_y), (data.validation_x, data.validation_y), (data.test_x, data.test_y)]
    assert [x.shape for x, _ in parts] == [(4096, 1, 28, 28), (452, 1, 28, 28), (452, 1, 28, 28)]
    assert all(x.dtype == np.uint8 and y.dtype == np.int64 and len(x) == len(y) for x, y in parts)
    assert np.bincount(np.concatenate([y for _, y in parts])).tolist() == [500] * 10
    whole = [rows(x) for x, _ in parts]
    assert not (whole[0] & whole[1] or whole[0] & whole[2] or whole[1] & whole[2])
    assert sum(map(len, whole)) == 5000
    assert data.shape == (1, 28, 28) and data.classes == 10


def test_mnist5k_parts_keep_their_place_when_others_change():
    whole, less = load("mnist5k"), load("mnist5k", train=100, validation=10)
    assert np.array_equal(less.train_x, whole.train_x[:100])
    assert np.array_equal(less.test_x, whole.test_x)
    assert np.array_equal(less.validation_x, whole.validation_x[-10:])
    assert len(load("mnist5k", validation=0, test=904).test_x) == 904


def test_mean_and_std_are_those_of_the_training_pixels():
    data = load("mnist5k", train=500)
    pixels = data.train_x / 255
    assert data.mean == pytest.approx(pixels.mean(), rel=1e-12) and data.std == pytest.approx(pixels.std(), rel=1e-12)


def test_checksum_follows_content_shape_and_split():
    first = load("mnist5k", train=64)
    assert first.checksum == load("mnist5k", train=64).checksum
    others = [load("mnist5k", train=65), load("mnist5k", train=64, test=451), load("mnist5k", train=64, pool=2)]
    assert len({first.checksum, *(other.checksum for other in others)}) == 4
    digest = hashlib.sha256()
    for array in (first.train_x, first.train_y, first.validation_x, first.validation_y, first.test_x, first.test_y):
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    assert first.checksum == digest.hexdigest()


@pytest.mark.parametrize("pool", [2, 4, 7])
def test_pooling_is_the_mean_of_each_square(pool):
    raw, pooled = load("mnist5k", train=20), load("mnist5k", train=20, pool=pool)
    assert pooled.shape == (1, 28 // pool, 28 // pool)
    for image, small in zip(raw.train_x[:, 0], pooled.train_x[:, 0]):
        for i in range(28 // pool):
            for j in range(28 // pool):
                mean = image[i * pool : (i + 1) * pool, j * pool : (j + 1) * pool].astype(float).mean()
                assert small[i, j] == np.floor(mean + 0.5)


@pytest.mark.parametrize(
    "asked, message",
    [
        (dict(train=4097), "mnist5k has 5000 images for this and train 4097 + validation 452 + test 452 = 5001"),
        (dict(test=5000), "mnist5k has 5000 images"),
        (dict(train=0), "train must be a whole number, 1 or more, not 0"),
        (dict(train=2.5), "train must be a whole number, 1 or more, not 2.5"),
        (dict(validation=-1), "validation must be a whole number, 0 or more, not -1"),
        (dict(test=True), "test must be a whole number"),
        (dict(pool=3), "pool 3 does not divide 28 x 28; allowed: 1, 2, 4, 7, 14, 28"),
        (dict(noise=0.1), "noise and seed belong to 'procedural'"),
        (dict(seed=1), "noise and seed belong to 'procedural'"),
    ],
)
def test_wrong_requests_say_what_is_allowed(asked, message):
    with pytest.raises(RequestError) as caught:
        load("mnist5k", **asked)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_name_lists_the_names():
    with pytest.raises(RequestError, match="unknown dataset 'cifar'; allowed: mnist5k, procedural, mnist"):
        load("cifar")


# generated images


def test_procedural_is_a_function_of_its_seed():
    one, same, other = (load("procedural", train=300, test=50, seed=seed) for seed in (3, 3, 4))
    assert one.checksum == same.checksum != other.checksum
    assert one.train_x.shape == (300, 1, 28, 28) and one.test_x.shape == (50, 1, 28, 28)


def test_procedural_prefix_does_not_depend_on_the_count():
    few, many = procedural.generate(1030, seed=1), procedural.generate(2500, seed=1)
    assert np.array_equal(few[0], many[0][:1030]) and np.array_equal(few[1], many[1][:1030])


def test_procedural_parts_are_fresh_draws_of_the_same_classes():
    data = load("procedural", train=1024, validation=1024, test=1024, noise=0.0)
    assert not rows(data.train_x) & rows(data.test_x) and not rows(data.train_x) & rows(data.validation_x)
    assert np.ptp(np.bincount(data.train_y, minlength=10)) <= 1
    for digit in range(10):
        mean = [
            x[y == digit].mean(axis=0).ravel() for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y))
        ]
        assert np.corrcoef(mean)[0, 1] > 0.95


def nearest_mean_accuracy(noise: float) -> float:
    data = load("procedural", train=2048, test=1024, noise=noise)
    means = np.stack([data.train_x[data.train_y == digit].mean(axis=0).ravel() for digit in range(10)])
    flat = data.test_x.reshape(len(data.test_x), -1).astype(float)
    distance = (means**2).sum(axis=1) - 2 * flat @ means.T
    return (distance.argmin(axis=1) == data.test_y).mean()


def test_noise_makes_the_task_harder():
    clean, loud = nearest_mean_accuracy(0.0), nearest_mean_accuracy(2.0)
    assert clean > loud + 0.2 and loud > 0.15  # chance is 0.10


def test_noise_has_the_standard_deviation_asked_for():
    quiet, loud = (procedural.generate(1024, noise=noise)[0] / 255 for noise in (0.0, 0.1))
    middle = (quiet > 0.35) & (quiet < 0.65)  # far enough from black and white not to be clipped
    assert (loud - quiet)[middle].std() == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize("asked", [dict(noise=-1), dict(noise=float("nan")), dict(noise="loud"), dict(seed=-1)])
def test_procedural_refuses_what_is_no_noise_or_seed(asked):
    with pytest.raises(RequestError, match="must be a"):
        load("procedural", train=10, **asked)


# official sets, through real files


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Write files, register their sums, and point LABKIT_DATA at them."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))

    def place(name: str, contents: dict[str, bytes]):
        for file, data in contents.items():
            (tmp_path / file).write_bytes(data)
        monkeypatch.setitem(
            download.FILES,
            name,
            tuple(download.DataFile(file, (), hashlib.sha256(data).hexdigest()) for file, data in contents.items()),
        )

    return place


def test_mnist_layout(local):
    train_y, test_y = np.arange(60000) % 10, np.arange(10000) % 10
    contents = {}
    for stem, y in (("train", train_y), ("t10k", test_y)):
        x = np.zeros((len(y), 28, 28), np.uint8)
        x[:, 0, 0], x[:, 0, 1], x[:, 0, 2] = y, np.arange(len(y)) % 256, np.arange(len(y)) // 256
        contents[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(idx(x), 1)
        contents[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(idx(y), 1)
    local("mnist", contents)
    data = load("mnist", train=3000, validation=500, test=100)
    assert (len(data.train_x), len(data.validation_x), len(data.test_x)) == (3000, 500, 100)
    for x, y in ((data.train_x, data.train_y), (data.validation_x, data.validation_y), (data.test_x, data.test_y)):
        assert np.array_equal(x[:, 0, 0, 0], y)  # each image keeps its label
    number = data.train_x[:, 0, 0, 1].astype(int) + 256 * data.train_x[:, 0, 0, 2].astype(int)
    order = np.random.default_rng(0).permutation(60000)
    assert np.array_equal(number, order[:3000])
    held = data.validation_x[:, 0, 0, 1].astype(int) + 256 * data.validation_x[:, 0, 0, 2].astype(int)
    assert np.array_equal(held, order[-500:])
    assert len(load("mnist", validation=5000).train_x) == 55000
    with pytest.raises(RequestError, match=r"mnist \(training part\) has 60000 images"):
        load("mnist", train=60000, validation=1)


def test_mnist_of_the_wrong_size_is_refused(local):
    small = {
        f"{stem}-{kind}-ubyte.gz": gzip.compress(idx(np.zeros(shape)))
        for stem in ("train", "t10k")
        for kind, shape in (("images-idx3", (3, 28, 28)), ("labels-idx1", (3,)))
    }
    local("mnist", small)
    with pytest.raises(WorkError, match="expected 60000 of 28 x 28"):
        load("mnist")


def test_cifar_layout(local):
    members = {}
    for at, member in enumerate(CIFAR_MEMBERS):
        batch = np.zeros((10000, 3073), np.uint8)
        batch[:, 0] = np.arange(10000) % 10
        batch[:, 1] = batch[:, 0]  # first red pixel
        batch[:, 1 + 1024] = at  # first green pixel: which file
        batch[:, 1 + 2 * 1024 + 33] = 200  # blue, second row, second column
        members[member] = batch.tobytes()
    local("cifar10", {"cifar-10-binary.tar.gz": archive(members)})
    data = load("cifar10", validation=1000)
    assert data.train_x.shape == (49000, 3, 32, 32) and data.test_x.shape == (10000, 3, 32, 32)
    assert np.array_equal(data.train_x[:, 0, 0, 0], data.train_y)
    assert set(np.unique(data.train_x[:, 1, 0, 0])) == {0, 1, 2, 3, 4} and set(data.test_x[:, 1, 0, 0]) == {5}
    assert (data.train_x[:, 2, 1, 1] == 200).all()


# readers


@given(st.binary(max_size=200), st.sampled_from([1, 3]))
def test_idx_reader_never_crashes(data, dimensions):
    try:
        assert parse_idx(data, dimensions).size == len(data) - 4 - 4 * dimensions
    except WorkError as error:
        assert "file" in str(error) and "\n" not in str(error)


@given(st.lists(st.integers(1, 5), min_size=3, max_size=3), st.data())
def test_idx_reads_what_was_written_and_nothing_longer_or_shorter(shape, data):
    count = int(np.prod(shape))
    array = np.frombuffer(data.draw(st.binary(min_size=count, max_size=count)), np.uint8).reshape(shape)
    raw = idx(array)
    assert np.array_equal(parse_idx(raw, 3), array)
    cut = data.draw(st.integers(0, len(raw) - 1))
    for wrong in (raw[:cut], raw + b"\0"):
        with pytest.raises(WorkError):
            parse_idx(wrong, 3)
    with pytest.raises(WorkError, match="starts with"):
        parse_idx(raw, 1)


@settings(deadline=None)
@given(st.integers(0, 4), st.integers(-2, 2), st.integers(0, 255))
def test_cifar_reader_takes_whole_records_with_ten_labels(count, extra, label):
    data = bytes([label]) + bytes(3072)
    data = (data * count)[: max(0, count * 3073 + min(extra, 0))] + bytes(max(extra, 0))
    if count and extra == 0 and label <= 9:
        x, y = parse_cifar(data)
        assert x.shape == (count, 3, 32, 32) and (y == label).all()
    else:
        with pytest.raises(WorkError, match="3073|label"):
            parse_cifar(data)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_archives_of_any_bytes_are_refused_with_a_reason(data):
    for read in (download.gunzip, cifar_members):
        with pytest.raises(WorkError, match="file is not a sound"):
            read(data)


GOOD = {member: bytes([at]) + bytes(3072) for at, member in enumerate(CIFAR_MEMBERS)}


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_damaged_archive_gives_its_members_or_a_reason(data):
    raw = bytearray(archive(GOOD))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(cifar_members(bytes(raw))) == 6
    except WorkError as error:
        assert "CIFAR-10" in str(error)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_damaged_header_inside_the_archive_gives_members_or_a_reason(data):
    """The damage sits under the compression, where no gzip sum can catch it."""
    raw = bytearray(gzip.decompress(archive(GOOD)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 511))] = data.draw(st.integers(0, 255))
    try:
        assert len(cifar_members(gzip.compress(bytes(raw), 1))) == 6
    except WorkError as error:
        assert "CIFAR-10" in str(error)


def test_archive_members_are_read_in_order_and_links_are_refused():
    shuffled = dict(sorted(GOOD.items(), reverse=True))
    assert [data[0] for data in cifar_members(archive(shuffled))] == list(range(6))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for member in CIFAR_MEMBERS:
            entry = tarfile.TarInfo(member)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
            out.addfile(entry)
    with pytest.raises(WorkError, match="not a regular file"):
        cifar_members(buffer.getvalue())


def test_gunzip_refuses_more_than_its_limit():
    bomb = gzip.compress(bytes(download.LARGEST + 1), 9)
    with pytest.raises(WorkError, match="more than"):
        download.gunzip(bomb)


def test_images_do_not_import_torch():
    code = "import labkit.datasets.images as d, sys; d.load('mnist5k'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names():
    assert images.BUNDLED == ("mnist5k", "procedural")
    assert set(images.NAMES) == {"mnist5k", "procedural", "mnist", "fashion-mnist", "cifar10"}
    assert all(images.available(name) and images.require(name) is None for name in images.BUNDLED)
