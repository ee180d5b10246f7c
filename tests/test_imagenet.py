"""The ImageNet recipe on a tiny folder: the published ladder, real steps, an exact resume, two ranks as one process."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from labkit import models, runs
from labkit.optim.schedules import Schedule, warmup_iterations

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "notebooks" / "recipes"
sys.path.insert(0, str(RECIPES))
import folder  # noqa: E402
import imagenet  # noqa: E402

IMAGENET = 1_281_167
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore:.*LeafSpec.*")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """22 training and 7 validation images of three colours, in several formats."""
    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for part, counts in (("train", (8, 8, 6)), ("val", (3, 2, 2))):
        for label, (name, count) in enumerate(zip(("blue", "green", "red"), counts, strict=True)):
            (root / part / name).mkdir(parents=True)
            for at in range(count):
                pixels = random.integers(0, 120, (40 + at, 50 - at, 3), dtype=np.uint8)
                pixels[..., 2 - label] += 100
                image, file = Image.fromarray(pixels), root / part / name / str(at)
                kind = at % 4
                if kind == 0:
                    image.save(file.with_suffix(".png"))
                else:
                    image.convert(("RGB", "L", "CMYK")[kind - 1]).save(file.with_suffix(".jpg"))
    return root


def start(pictures: Path, out: Path, *more, batch: int = 8, model: str = "resnet8") -> int:
    small = ["--size", "32", "--workers", "0", "--epochs", "3"]
    return imagenet.main([str(pictures), "--batch", str(batch), "--model", model, "--out", str(out), *small, *more])


def last(out: Path) -> dict:
    (path,) = out.glob("imagenet/*/last.ckpt")
    return torch.load(path, weights_only=False)


def only_run(out: Path, **config) -> runs.Run:
    (run,) = [run for run in runs.Store(out).runs("imagenet") if config.items() <= run.config.items()]
    return run


def test_the_ladder_is_the_published_one_391_warm_up_iterations_at_every_batch_and_547_in_the_row_at_32k():
    table = pd.read_csv(ROOT / "data" / "published" / "resnet50_legw.csv", comment="#")
    rows = [(row.batch, row.rate, row.warmup_epochs) for row in table.itertuples()]
    assert [row[0] for row in rows] == [512, 1024, 4096, 8192, 16384, 32768]
    for batch, rate, epochs in [*rows, (2048, 8.0, 10 / 2**4)]:  # the seventh is derived from the rule
        scaled, options = imagenet.setting(batch)
        assert scaled.rate == pytest.approx(rate, rel=1e-12) and not options
        assert scaled.warmup_epochs == (epochs if batch < 32768 else 10)
        assert round(warmup_iterations(scaled, IMAGENET)) == 391
    published, options = imagenet.setting(32768, row=True)
    assert (published.batch, published.rate, published.warmup_epochs) == rows[-1] and options == {"eps": 0.0}
    assert round(warmup_iterations(published, IMAGENET)) == 547


def normal(x: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def by_hand(pictures: Path, steps: int, schedule, batch: int, per_device: int) -> dict:
    """The same training of resnet8 written out: accumulated gradients, and LARS as its paper has it, in float64."""
    classes, part, _, _ = folder.scan(pictures)
    torch.manual_seed(0)
    model = models.build("resnet8", (3, 32, 32), len(classes), zero_gamma=True).double()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    plain = {id(p) for m in norms for p in m.parameters()} | {id(p) for n, p in model.named_parameters() if "bias" in n}
    images, velocity = folder.Images(part, 32, 0), {name: 0.0 for name, _ in model.named_parameters()}
    per_epoch = len(part.files) // batch
    for step in range(steps):
        keys = list(folder.epoch_order(len(part.files), batch, per_device, 0, 1, 0, step // per_epoch))
        share = batch // per_device
        for rows in keys[step % per_epoch * share :][:share]:
            x, y = zip(*(images[key] for key in rows), strict=True)
            x = normal(torch.stack(x).double())
            (F.cross_entropy(model(x), torch.tensor(y), label_smoothing=0.1) / share).backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                g, decay, trust = p.grad, 1e-4, 1.0
                if id(p) in plain:
                    decay = 0.0
                elif p.norm() > 0 and g.norm() > 0:
                    trust = 1e-3 * p.norm() / (g.norm() + decay * p.norm())
                velocity[name] = 0.9 * velocity[name] + schedule(step) * trust * (g + decay * p)
                p -= velocity[name]
                p.grad = None
    return model.state_dict()


def same_weights(found: dict, expected: dict, rtol: float, only=lambda name: True) -> None:
    for name in filter(only, expected):
        value = found["state_dict"][f"model.{name}"]
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=rtol, atol=rtol)


def test_it_trains_as_the_paper_written_out_and_judges_with_and_without_worker_processes(pictures, tmp_path, capsys):
    assert start(pictures, tmp_path / "a", "--per-device", "4") == 0
    run, saved = only_run(tmp_path / "a"), last(tmp_path / "a")
    schedule = Schedule(**run.config["schedule"])
    assert (schedule.total_steps, schedule.decay, schedule.power, schedule.end) == (6, "poly", 2.0, 0.0)
    assert schedule.peak == pytest.approx(2**2.5 * (8 / 1024) ** 0.5) and schedule.decay_from == "warmup-end"
    expected = by_hand(pictures, 6, schedule, 8, 4)
    same_weights(saved, expected, 2e-4)
    start_weights = by_hand(pictures, 0, schedule, 8, 4)
    assert all(not torch.equal(start_weights[name], expected[name]) for name in expected)

    _, _, judged, _ = folder.scan(pictures)
    assert [row.epoch for row in run.series("validation_loss")] == [1.0, 2.0, 3.0]
    for name, value in exact_metrics(saved, judged).items():
        assert run.last(f"validation_{name}") == pytest.approx(value, rel=1e-5)
    assert {span.kind for span in run.spans} == {"data", "init", "train", "evaluate", "checkpoint"}
    assert all(a.end <= b.start for a, b in zip(run.spans, run.spans[1:], strict=False))
    assert str(tmp_path / "a") in capsys.readouterr().out

    assert start(pictures, tmp_path / "b", "--per-device", "4", "--workers", "2") == 0
    same_weights(last(tmp_path / "b"), {k[6:]: v for k, v in saved["state_dict"].items()}, 0.0)


def exact_metrics(saved: dict, judged, model: str = "resnet8") -> dict:
    """Of a checkpoint on the validation images, one by one."""
    net = models.build(model, (3, 32, 32), 3, zero_gamma=True)
    net.load_state_dict({name.removeprefix("model."): value for name, value in saved["state_dict"].items()})
    losses, right = [], []
    for at in range(len(judged.files)):
        x, y = folder.Images(judged, 32)[at, 0]
        with torch.no_grad():
            scores = net.eval()(normal(x.float())[None])[0]
        losses.append(-scores.log_softmax(0)[y].item())
        right.append(scores.argmax().item() == y)
    return {"loss": np.mean(losses), "accuracy": np.mean(right), "top5_accuracy": 1.0}


def test_an_evaluation_counts_top_1_and_top_5_and_leaves_padding_out():
    scores = torch.arange(10.0).flip(0).repeat(6, 1)  # ten classes, the first the likeliest
    task = imagenet.Classifier(torch.nn.Identity())
    totals = task.sums((scores, torch.tensor([0, 0, 4, 5, 9, folder.PADDING])))
    found = {name: float(value) for name, value in task.summary(totals).items()}
    expected = F.cross_entropy(scores[:5], torch.tensor([0, 0, 4, 5, 9])).item()
    assert found == pytest.approx({"loss": expected, "accuracy": 2 / 5, "top5_accuracy": 3 / 5})


@pytest.mark.parametrize("stop", [2, 3])  # at the end of an epoch, and in the middle of one
def test_a_resumed_run_ends_bit_for_bit_where_the_undisturbed_one_does_with_one_clock(pictures, tmp_path, stop, capsys):
    assert start(pictures, tmp_path / "a", "--per-device", "4") == 0
    assert start(pictures, tmp_path / "b", "--per-device", "4", "--limit-steps", str(stop)) == 0
    cut = only_run(tmp_path / "b", limit_steps=stop)
    capsys.readouterr()
    assert start(pictures, tmp_path / "b", "--per-device", "4") == 2
    assert "--resume" in capsys.readouterr().err
    assert start(pictures, tmp_path / "b", "--per-device", "4", "--resume") == 0
    whole, saved = last(tmp_path / "a"), last(tmp_path / "b")
    assert saved["global_step"] == 6
    same_weights(saved, {k[6:]: v for k, v in whole["state_dict"].items()}, 0.0)
    states = [one["optimizer_states"][0]["state"] for one in (whole, saved)]
    assert all(torch.equal(states[0][at]["momentum_buffer"], states[1][at]["momentum_buffer"]) for at in states[0])

    straight, resumed = only_run(tmp_path / "a"), resumed_run(tmp_path / "b")
    rows = [[(row.step, row.epoch, row.name, row.value) for row in run.rows] for run in (straight, resumed)]
    assert rows[0] == rows[1]
    assert resumed.header.identity == straight.header.identity != cut.header.identity
    assert all(a.end <= b.start for a, b in zip(resumed.spans, resumed.spans[1:], strict=False))
    assert [span.kind for span in resumed.spans].count("init") == 2
    kept = [span for span in cut.spans if span.end <= resumed.spans[-1].end][:3]
    assert resumed.spans[:3] == kept

    # asked for once more, a run that is over stays what it is
    assert start(pictures, tmp_path / "b", "--per-device", "4", "--resume") == 0
    again = resumed_run(tmp_path / "b")
    assert [(row.step, row.name, row.value) for row in again.rows] == [(step, *rest) for step, _, *rest in rows[0]]


def resumed_run(out: Path) -> runs.Run:
    (run,) = [run for run in runs.Store(out).runs() if "limit_steps" not in run.config]
    return run


def test_steps_of_resnet50_move_every_parameter(pictures, tmp_path):
    torch.manual_seed(0)
    before = models.build("resnet50", (3, 32, 32), 3, zero_gamma=True).state_dict()
    # At step 0 the rate is 0, and behind a zero scale the first real step finds no gradient: the second does.
    assert start(pictures, tmp_path, "--limit-steps", "3", "--dialect", "nus", model="resnet50") == 0
    saved, run = last(tmp_path), only_run(tmp_path)
    assert saved["global_step"] == 3 and run.config["options"]["dialect"] == "nus"
    assert all(not torch.equal(saved["state_dict"][f"model.{name}"], value) for name, value in before.items())
    optimizer = saved["optimizer_states"][0]["param_groups"]
    assert [(len(group["params"]), group["weight_decay"], group["adapt"]) for group in optimizer] == [
        (54, 1e-4, True),
        (107, 0.0, False),
    ]
    assert {group["convention"] for group in optimizer} == {"C"}


def test_two_ranks_of_torchrun_are_one_process_that_accumulates_and_judge_every_image_once(pictures, tmp_path, python):
    rank_two = python(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", RECIPES / "imagenet.py", pictures),
        *("--batch", "8", "--size", "32", "--model", "resnet8", "--workers", "0", "--epochs", "3"),
        # The last epoch is cut short, so that its evaluation comes after the training.
        *("--per-device", "4", "--limit-steps", "5", "--out", tmp_path / "two"),
    )
    assert start(pictures, tmp_path / "one", "--per-device", "4", "--limit-steps", "5") == 0
    out, err = rank_two.communicate(timeout=300)
    assert rank_two.returncode == 0, err
    assert out.count("5 of 6 steps") == 1
    one, two = last(tmp_path / "one"), last(tmp_path / "two")
    assert two["global_step"] == 5
    # The running statistics are those of one rank's micro-batches, so only what is trained is compared.
    trained = {k[6:]: v for k, v in one["state_dict"].items() if "running" not in k and "tracked" not in k}
    same_weights(two, trained, 2e-4)
    run, (_, _, judged, _) = only_run(tmp_path / "two"), folder.scan(pictures)
    assert run.config["processes"] == 2 and len(judged.files) == 7
    assert [row.step for row in run.series("validation_loss")] == [2, 4, 5]
    for name, value in exact_metrics(two, judged).items():
        assert run.last(f"validation_{name}") == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--batch", "64"], "larger than the 22 training images"),
        (["--batch", "8", "--per-device", "3"], "no multiple of 3 images"),
        (["--batch", "0"], "--batch must be"),
        (["--batch", "8", "--per-device", "-1"], "--per-device must be"),
        (["--batch", "8", "--epochs", "nan"], "--epochs must be"),
        (["--batch", "8", "--row"], "--row is for batch 32768"),
        (["--batch", "8", "--dialect", "sgd"], "invalid choice"),
        (["--batch", "many"], "invalid int"),
        ([], "--batch"),
    ],
)
def test_wrong_requests_are_one_line_and_leave_nothing(pictures, tmp_path, capsys, arguments, says):
    assert imagenet.main([str(pictures), *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_missing_folder_is_a_wrong_request_and_a_damaged_file_is_failed_work(pictures, tmp_path, capsys):
    assert start(tmp_path / "nowhere", tmp_path / "out") == 2
    assert "nowhere/train is no folder" in capsys.readouterr().err
    shutil.copytree(pictures, tmp_path / "copy")
    (tmp_path / "copy" / "val" / "red" / "1.jpg").write_bytes(b"torn")
    assert start(tmp_path / "copy", tmp_path / "out", "--workers", "1") == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("imagenet.py: ") and "val/red/1.jpg cannot be read as an image" in last_line
    (left,) = runs.Store(tmp_path / "out").unfinished()
    assert left.status == "failed"


@pytest.mark.parametrize("left", [0, 5000])
def test_a_damaged_checkpoint_is_named_in_one_line(pictures, tmp_path, left, capsys):
    assert start(pictures, tmp_path / "a", "--per-device", "4", "--limit-steps", "2") == 0
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:left])
    capsys.readouterr()
    assert start(pictures, tmp_path / "a", "--per-device", "4", "--resume") == 2
    said = capsys.readouterr().err.strip()
    assert "last.ckpt is no sound checkpoint" in said and "\n" not in said
    assert not list(tmp_path.rglob("*.partial"))
