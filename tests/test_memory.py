"""Batches on the device: what is read, how it is changed, and who reads what under data parallelism."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from labkit.datasets import memory
from labkit.datasets.memory import DeviceBatches, evaluation_batches, gathered_windows, padding, reflect_pad, windows
from labkit.errors import RequestError


def numbered(count: int, shape=(1, 8, 8)) -> tuple[np.ndarray, np.ndarray]:
    """Random byte images whose label is their number."""
    x = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    return x, np.arange(count)


def labels(loader) -> list[list[int]]:
    return [y.tolist() for _, y in loader]


def images(loader) -> torch.Tensor:
    return torch.cat([x for x, _ in loader])


def slow(x: np.ndarray, loader: DeviceBatches, epoch: int, mean: float, std: float) -> torch.Tensor:
    """What the loader should yield in an epoch: its plan carried out image by image, with plain slices."""
    plan, pad, side = loader.plan(epoch), padding(min(x.shape[2:])), min(x.shape[2:]) // 4
    made = []
    for at, row in enumerate(plan.order.tolist()):
        image = (torch.tensor(x[row]).float() / 255 - mean) / std
        if plan.flip is not None and plan.flip[at]:
            image = image.flip(2)
        if plan.down is not None:
            height, width = image.shape[1:]
            down, right = int(plan.down[at]), int(plan.right[at])
            padded = F.pad(image[None], (pad,) * 4, mode="reflect")[0]
            image = padded[:, down : down + height, right : right + width]
        if plan.hole_top is not None:
            top, left = int(plan.hole_top[at]), int(plan.hole_left[at])
            image = image.clone()
            image[:, top : top + side, left : left + side] = 0
        made.append(image)
    return torch.stack(made)


@pytest.mark.parametrize("drop_last", [True, False])
def test_shuffle_reads_every_sample_once(drop_last):
    x, y = numbered(50)
    loader = DeviceBatches(x, y, 16, drop_last=drop_last)
    batches = labels(loader)
    assert [len(batch) for batch in batches] == [16] * 3 + ([] if drop_last else [2])
    assert len(loader) == len(batches)
    read = sum(batches, [])
    assert len(set(read)) == len(read) and (drop_last or sorted(read) == list(range(50)))
    assert read != sorted(read)


def test_each_image_keeps_its_label_and_is_normalised():
    x, y = numbered(40)
    for images_, numbers in DeviceBatches(x, y, 10, mean=0.3, std=0.5):
        expected = (torch.tensor(x)[numbers].double() / 255 - 0.3) / 0.5
        torch.testing.assert_close(images_.double(), expected, rtol=1e-6, atol=1e-6)
        assert images_.dtype == torch.float32 and numbers.dtype == torch.int64


def test_floats_are_not_divided_by_255():
    x = torch.randn(12, 3)
    read = torch.cat([part for part, _ in DeviceBatches(x, torch.arange(12), 4, mean=1.0, std=2.0)])
    torch.testing.assert_close(read.sort(0).values, ((x - 1) / 2).sort(0).values)


def test_replacement_draws_every_row_independently():
    x, y = numbered(64)
    loader = DeviceBatches(x, y, 64, sampling="replacement")
    draws = torch.tensor([batch for _ in range(400) for batch in labels(loader)])
    assert len(loader) == 1 and draws.shape == (400, 64)
    distinct = np.mean([len(set(row.tolist())) for row in draws]) / 64
    assert distinct == pytest.approx(1 - (1 - 1 / 64) ** 64, abs=0.01)  # 63 %; shuffling would give 100 %
    counts = torch.bincount(draws.flatten(), minlength=64).double()  # 400 each, standard deviation 20
    assert (counts - 400).abs().max() < 100


def test_an_epoch_is_a_function_of_seed_and_number():
    x, y = numbered(48)
    new = lambda seed=0: DeviceBatches(x, y, 16, seed=seed, augment=("flip", "crop", "cutout"))  # noqa: E731
    one, two = new(), new()
    epochs = [images(one) for _ in range(3)]
    assert all(torch.equal(epoch, images(two)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[1], epochs[2])
    assert not torch.equal(epochs[0], images(new(1)))
    resumed = new()
    resumed.set_epoch(2)
    assert torch.equal(images(resumed), epochs[2])
    assert resumed.epoch == 3


def test_epochs_read_in_turns_do_not_disturb_each_other():
    x, y = numbered(32)
    loader, again = DeviceBatches(x, y, 8), DeviceBatches(x, y, 8)
    first, second = iter(loader), iter(loader)
    mixed = [(next(first)[1].tolist(), next(second)[1].tolist()) for _ in range(4)]
    assert [list(epoch) for epoch in zip(*mixed)] == [labels(again), labels(again)]


@pytest.mark.parametrize("augment", [("flip",), ("crop",), ("cutout",), ("flip", "crop"), ("cutout", "crop", "flip")])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 14, 12), (1, 4, 9)])
@pytest.mark.parametrize("resident", [None, 0])
def test_augmentation_equals_plain_slices(augment, shape, resident):
    x, y = numbered(40, shape)
    loader = DeviceBatches(x, y, 8, seed=3, augment=augment, mean=0.4, std=0.3, resident=resident)
    for epoch in range(2):
        assert torch.equal(images(loader), slow(x, loader, epoch, 0.4, 0.3))


def test_every_offset_of_every_augmentation_occurs_equally_often():
    x, y = numbered(4000, (1, 32, 32))
    plan = DeviceBatches(x, y, 4000, augment=("flip", "crop", "cutout")).plan(0)
    for part, choices in ((plan.flip, 2), (plan.down, 9), (plan.right, 9), (plan.hole_top, 25), (plan.hole_left, 25)):
        counts = torch.bincount(part, minlength=choices).double()
        assert len(counts) == choices
        chi_squared = ((counts - 4000 / choices) ** 2 / (4000 / choices)).sum()
        assert chi_squared < choices - 1 + 5 * (2 * (choices - 1)) ** 0.5 + 5
    together = torch.stack([plan.down, plan.right, plan.hole_top, plan.hole_left]).double()
    assert (torch.corrcoef(together) - torch.eye(4)).abs().max() < 0.1


def test_padding_follows_the_size():
    assert [padding(side) for side in (8, 14, 16, 28, 32, 224)] == [1, 1, 2, 2, 4, 28]


@pytest.mark.parametrize("pad", [1, 2, 5])
def test_reflection_equals_torch(pad):
    x = torch.randn(2, 3, 6, 9)
    assert torch.equal(reflect_pad(x, pad), F.pad(x, (pad,) * 4, mode="reflect"))


def test_windows_reach_the_last_corner_and_agree_on_every_back_end():
    x = torch.arange(3 * 2 * 7 * 6.0).reshape(3, 2, 7, 6)
    rows, down, right = (part.flatten() for part in torch.meshgrid(*map(torch.arange, (3, 3, 3)), indexing="ij"))
    plain = torch.stack([x[r, :, d : d + 5, s : s + 4] for r, d, s in zip(rows, down, right)])
    assert torch.equal(windows(x, rows, down, right, 5, 4), plain)
    assert torch.equal(gathered_windows(x, rows, down, right, 5, 4), plain)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("sampling", memory.SAMPLINGS)
def test_ranks_together_read_the_batch_of_one_process(sampling, drop_last):
    x, y = numbered(44)
    options = dict(seed=5, augment=("flip", "crop", "cutout"), sampling=sampling, drop_last=drop_last)
    alone = DeviceBatches(x, y, 12, **options)
    ranks = [DeviceBatches(x, y, 12, rank=rank, world=4, **options) for rank in range(4)]
    for _ in range(2):
        batches = [list(loader) for loader in (alone, *ranks)]
        assert len({len(each) for each in batches}) == 1 and len(batches[0]) == len(alone) == len(ranks[0])
        for (whole_x, whole_y), *slices in zip(*batches):
            assert len({len(part) for _, part in slices}) == 1
            assert torch.equal(torch.cat([part for part, _ in slices]), whole_x)
            assert torch.equal(torch.cat([part for _, part in slices]), whole_y)


def test_rank_and_world_come_from_torch_distributed(tmp_path):
    """Two real processes; each writes what it read."""
    code = textwrap.dedent("""
        import sys, torch, numpy as np, torch.distributed as dist
        from labkit.datasets.memory import DeviceBatches
        folder, rank = sys.argv[1], int(sys.argv[2])
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
        read = [y for _, y in DeviceBatches(np.zeros((20, 1, 2, 2), np.uint8), np.arange(20), 8, seed=1)]
        torch.save(read, f"{folder}/{rank}.pt")
        dist.destroy_process_group()
    """)
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(rank)]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    alone = [y for _, y in DeviceBatches(np.zeros((20, 1, 2, 2), np.uint8), np.arange(20), 8, seed=1)]
    assert [len(part) for part in halves[0]] == [4, 4]
    assert all(torch.equal(torch.cat(parts), whole) for *parts, whole in zip(*halves, alone))


def test_batches_do_not_share_memory_with_the_data_set():
    x, y = numbered(16)
    loader = DeviceBatches(x, y, 8)
    before = images(loader)
    loader.set_epoch(0)
    for batch, _ in loader:
        batch.zero_()
    loader.set_epoch(0)
    assert torch.equal(images(loader), before)


def test_many_batches_built_at_once_equal_one_at_a_time(monkeypatch):
    x, y = numbered(300, (1, 28, 28))
    together = images(DeviceBatches(x, y, 7, augment=("crop",), drop_last=False))
    monkeypatch.setitem(memory.CHUNK, "cpu", 1)
    assert torch.equal(together, images(DeviceBatches(x, y, 7, augment=("crop",), drop_last=False)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_is_what_was_asked(dtype):
    x, y = numbered(16)
    for resident in (None, 0):
        batch, _ = next(iter(DeviceBatches(x, y, 8, dtype=dtype, augment=("flip", "cutout"), resident=resident)))
        assert batch.dtype == dtype
    assert evaluation_batches(x, y, dtype=dtype)[0][0].dtype == dtype


def test_evaluation_reads_everything_in_order_every_time():
    x, y = numbered(50)
    batches = evaluation_batches(x, y, 16, mean=0.2, std=0.5)
    for _ in range(2):
        assert [len(part) for _, part in batches] == [16, 16, 16, 2]
        assert torch.cat([part for _, part in batches]).tolist() == list(range(50))
    torch.testing.assert_close(torch.cat([part for part, _ in batches]), (torch.tensor(x) / 255 - 0.2) / 0.5)
    assert len(evaluation_batches(x, y)) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(batch=0), "batch 0 is outside 1 to 20"),
        (dict(batch=21), "batch 21 is outside 1 to 20, the number of samples"),
        (dict(batch=6, rank=0, world=4), "batch 6 cannot be shared equally by 4 ranks"),
        (dict(batch=8, rank=0, world=8, drop_last=False), "the last batch of 4 cannot be shared equally by 8 ranks"),
        (dict(rank=0), "give rank and world together"),
        (dict(rank=2, world=2), "rank 2 is not one of world 2; allowed: 0 to 1"),
        (dict(augment=("mixup",)), "unknown augmentation 'mixup'; allowed: flip, crop, cutout"),
        (dict(sampling="random"), "unknown sampling 'random'; allowed: shuffle, replacement"),
        (dict(std=0), "std must be above 0"),
        (dict(seed=-1), "seed 0 or more"),
    ],
)
def test_wrong_requests_name_what_is_allowed(options, message):
    x, y = numbered(20)
    with pytest.raises(RequestError) as caught:
        DeviceBatches(x, y, **{"batch": 4, **options})
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_shapes_are_refused():
    x, y = numbered(20)
    with pytest.raises(RequestError, match="20 samples, 19 labels"):
        DeviceBatches(x, y[:19], 4)
    with pytest.raises(RequestError, match="crop needs images"):
        DeviceBatches(x.reshape(20, -1), y, 4, augment=("crop",))
    with pytest.raises(RequestError, match="of 4 x 4 or more"):
        DeviceBatches(*numbered(20, (1, 3, 8)), 4, augment=("cutout",))
    with pytest.raises(RequestError, match="at least one: 0 samples"):
        evaluation_batches(x[:0], y[:0])
    with pytest.raises(RequestError, match="batch must be 1 or more"):
        evaluation_batches(x, y, 0)
