"""From a recipe to a run: what is recorded, what counts as done, and that a wrong request leaves nothing behind."""

import dataclasses
import inspect
import math
import os
import signal
import time
from itertools import pairwise

import pytest
import pytorch_lightning
import torch

from labkit import experiment, fingerprint, runs
from labkit.errors import RequestError
from labkit.experiment import Recipe, train

KILLED = """
import os, pytorch_lightning as pl
from labkit.experiment import Recipe, train
from labkit.runs import Store

class Hang(pl.Callback):
    def on_train_batch_end(self, trainer, task, outputs, batch, index):
        if trainer.global_step == 12:
            print("half", flush=True)
            import time
            time.sleep(600)

train({recipe!r}, Store(os.environ["LABKIT_STORE"]), lab="test", callbacks=[Hang()])
"""


def numbers(run):
    """Everything of a run's rows but the time."""
    return [(row.step, row.epoch, row.samples, row.name, row.value) for row in run.rows]


def file_of(store, run):
    return store.path(run.header)


def test_a_run_is_recorded_span_by_span_and_row_by_row(tiny, store):
    begin = time.perf_counter()
    run = train(tiny(), store, lab="test")
    wall = time.perf_counter() - begin
    kinds = [span.kind for span in run.spans]
    assert kinds[:4] == ["data", "init", "train", "evaluate"] and set(kinds[4:]) <= {"train", "evaluate"}
    assert kinds.count("evaluate") == 2
    for before, after in pairwise(run.spans):
        assert before.end <= after.start
    assert all(span.start <= span.end for span in run.spans)
    assert 0 < run.seconds() <= run.spans[-1].end <= wall
    names = {f"{part}_{metric}" for part in ("train", "validation", "test") for metric in ("loss", "accuracy")}
    assert {(row.step, row.epoch, row.samples) for row in run.rows} == {(8, 1.0, 128), (16, 2.0, 256)}
    assert sorted((row.step, row.name) for row in run.rows) == sorted((s, n) for s in (8, 16) for n in names)
    ends = [span.end for span in run.spans if span.kind == "evaluate"]
    assert sorted({row.when for row in run.rows}) == pytest.approx(ends)
    assert run.status == "finished"
    assert numbers(store.find(run.header)) == numbers(run)
    assert run.last("train_loss") < run.series("train_loss")[0].value


def test_parts_left_out_during_training_are_evaluated_at_the_end(tiny, store):
    run = train(tiny(evaluate_on=("validation",), evaluate_every=5), store, lab="test")
    assert [row.step for row in run.series("test_accuracy")] == [16]
    assert [row.step for row in run.series("train_loss")] == [16]
    assert sorted({row.step for row in run.series("validation_accuracy")}) == [5, 10, 15, 16]


def test_a_finished_run_is_not_trained_again_unless_asked(tiny, store):
    first = train(tiny(), store, lab="test")
    path = file_of(store, first)
    os.utime(path, (1, 1))
    before = path.read_bytes()
    again = train(tiny(), store, lab="test")
    assert numbers(again) == numbers(first) and again.spans == runs.read(path).spans
    assert path.read_bytes() == before and path.stat().st_mtime == 1
    fresh = train(tiny(), store, lab="test", fresh=True)
    assert path.stat().st_mtime > 1
    assert numbers(fresh) == numbers(first)
    assert [run.header.identity for run in store.runs()] == [first.header.identity]


def test_a_killed_run_keeps_its_whole_lines_and_the_next_one_finishes(tiny, store, python):
    child = python("-c", KILLED.format(recipe=tiny()))
    assert child.stdout.readline().strip() == "half", child.communicate()[1]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert store.runs() == []
    (partial,) = store.folder.glob("*/*.partial")
    assert partial.read_bytes().endswith(b"\n")
    (left,) = store.unfinished("test")
    assert left.status == "unfinished"
    assert [span.kind for span in left.spans] == ["data", "init", "train", "evaluate"]
    assert {row.step for row in left.rows} == {8} and len(left.rows) == 6
    with open(partial, "ab") as file:  # as if the kill had cut a line
        file.write(b'{"type":"metric","step":1')
    assert numbers(store.unfinished("test")[0]) == numbers(left)
    run = train(tiny(), store, lab="test")
    assert run.status == "finished" and not list(store.folder.glob("*/*.partial"))
    assert numbers(run)[:6] == numbers(left)  # another process computed the very same numbers
    assert numbers(store.runs()[0]) == numbers(run)


def test_another_version_of_a_rule_means_another_training(tiny, store):
    first = train(tiny(), store, lab="test", claims={"ordering": "aaaa"})
    path = file_of(store, first)
    os.utime(path, (1, 1))
    assert train(tiny(), store, lab="test", claims={"ordering": "aaaa"}).header.claims == {"ordering": "aaaa"}
    assert path.stat().st_mtime == 1
    assert train(tiny(), store, lab="test", claims={"ordering": "bbbb"}).header.claims == {"ordering": "bbbb"}
    assert path.stat().st_mtime > 1


@pytest.mark.parametrize(
    "change, says",
    [
        ({"batch": 129}, "batch 129 is larger than the 128 training images"),
        ({"batch": 0}, "batch 0 is out of range"),
        ({"rate": -0.1}, "rate -0.1 is negative"),
        ({"rate": math.nan}, "rate must be a finite number"),
        ({"batch": True}, "batch must be a whole number"),
        ({"rate": "x"}, "rate must be a finite number"),
        ({"options": None}, "options must be a mapping"),
        ({"device": "tpu"}, "unknown device 'tpu'; allowed: cpu, cuda, mps"),
        ({"rate": 0.0}, "peak must be a number"),
        ({"decay": "polly"}, "unknown decay 'polly'"),
        ({"options": {"momentun": 0.9}}, "unknown option of sgd 'momentun'"),
        ({"sizes": {"widht": 3}}, "unknown size of deep-mlp 'widht'"),
        ({"augment": ("flop",)}, "unknown augmentation 'flop'"),
        ({"sampling": "shuffled"}, "unknown sampling 'shuffled'"),
        ({"warmup_steps": -1}, "warmup_steps -1 is negative"),
        ({"epochs": 0}, "epochs 0 is out of range"),
        ({"accumulate": 3}, "cannot be split into 3 equal micro-batches"),
        ({"data": "mnist6k"}, "unknown dataset 'mnist6k'; allowed: "),
        ({"model": "resnet9000"}, "unknown model 'resnet9000'; allowed: "),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg'; allowed: "),
        ({"precision": "8-bit"}, "unknown precision '8-bit'; allowed: "),
        ({"evaluate_on": ("tset",)}, "unknown part to evaluate on 'tset'; allowed: train, validation, test"),
        ({"pool": 3}, "pool 3 does not divide 28 x 28"),
        ({"noise": -1.0}, "noise must be a number, 0 or more"),
        ({"data": "mnist5k", "train": 6000}, "mnist5k has 5000 images"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(tiny, store, change, says):
    with pytest.raises(RequestError) as refusal:
        train(tiny(**change), store, lab="test")
    assert says in str(refusal.value) and "\n" not in str(refusal.value)
    assert not store.folder.exists()


def test_a_diverging_run_ends_early_and_is_finished(tiny, store):
    run = train(tiny(rate=1e6, epochs=50, evaluate_every=8, evaluate_on=("train",)), store, lab="test")
    assert run.status == "finished"
    assert run.rows[-1].step < 400
    assert not math.isfinite(run.last("train_loss"))
    back = runs.read(file_of(store, run))
    assert back.status == "finished" and not math.isfinite(back.last("train_loss"))
    assert math.isfinite(back.last("test_accuracy"))
    assert len(back.rows) == len(run.rows)


def test_a_run_that_reaches_its_target_stops_where_it_was_told_to(tiny, store):
    target = {"metric": "train_loss", "value": 1e9, "higher": False}
    run = train(tiny(target=target, stop_at_target=True), store, lab="test")
    assert run.rows[-1].step == 8 and run.header.target == target
    assert train(tiny(target=target), store, lab="test").rows[-1].step == 16


def test_the_same_recipe_gives_the_same_numbers_bit_for_bit_and_another_repeat_does_not(tiny, store, tmp_path):
    recipe = tiny(augment=("flip", "crop", "cutout"))
    first = train(recipe, store, lab="test")
    torch.manual_seed(12345)
    torch.rand(7)  # the caller's random state is none of the run's business
    second = train(recipe, runs.Store(tmp_path / "other"), lab="test")
    assert numbers(second) == numbers(first)
    third = train(recipe, store, lab="test", repeat=1)
    assert numbers(third) != numbers(first)
    assert third.header.identity != first.header.identity


@pytest.mark.parametrize("change", [{"accumulate": 4}, {"precision": "bf16-mixed"}, {"curvature_every": 4}])
def test_what_must_not_change_the_course_of_training(tiny, store, change):
    plain, other = train(tiny(), store, lab="test"), train(tiny(**change), store, lab="test")
    assert plain.header.identity != other.header.identity
    tolerance = 0.1 if "precision" in change else 1e-5
    for name in ("train_loss", "validation_loss", "test_loss"):
        got = [(row.step, row.epoch, row.samples) for row in other.series(name)]
        assert got == [(row.step, row.epoch, row.samples) for row in plain.series(name)]
        for one, two in zip(plain.series(name), other.series(name), strict=True):
            assert two.value == pytest.approx(one.value, rel=tolerance)
    if "curvature_every" in change:
        assert [row.step for row in other.series("curvature")] == [0, 4, 8, 12, 16]
        assert other.header.code != plain.header.code


def test_your_own_model_is_trained_in_place_of_the_named_one(tiny, store):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(196, 10))
    before = model[1].weight.clone()
    run = train(tiny(sizes={"own": "linear"}), store, lab="test", model=model)
    assert run.status == "finished" and run.config["sizes"] == {"own": "linear"}
    assert not torch.equal(model[1].weight, before)
    with torch.no_grad():  # the recorded test accuracy is that of the model the caller holds
        data = tiny().load()
        images = (torch.tensor(data.test_x).float() / 255 - data.mean) / data.std
        accuracy = (model(images).argmax(1) == torch.tensor(data.test_y)).float().mean()
    assert run.last("test_accuracy") == pytest.approx(float(accuracy))


def test_the_header_says_what_produced_the_run(tiny, store):
    run = train(tiny(), store, lab="test", repeat=3)
    data = tiny().load()
    assert run.header.data == {"name": "procedural", "checksum": data.checksum}
    assert run.header.repeat == 3 and run.header.arms == 1
    assert run.header.hardware["threads"] == 1
    assert run.header.software["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert Recipe(**{k: tuple(v) if isinstance(v, list) else v for k, v in run.config.items()}) == tiny()


def test_a_comment_leaves_the_fingerprint_alone_and_code_does_not():
    source = inspect.getsource(experiment)
    plain = fingerprint.plain_code(source)
    assert fingerprint.plain_code("# a note\n\n" + source.replace('"""From a recipe', '"""Now from a recipe')) == plain
    moved = source.replace("max(1, round(self.epochs", "max( 1,round(self.epochs")
    assert moved != source and fingerprint.plain_code(moved) == plain
    other = source.replace("max(1, round(self.epochs", "max(2, round(self.epochs")
    assert other != source and fingerprint.plain_code(other) != plain
    assert fingerprint.plain_code('def f():\n    "only words"\n') == fingerprint.plain_code("def f():\n    pass\n")


def test_the_fingerprint_covers_the_code_a_recipe_uses(tiny):
    codes = [
        tiny(**change).code()
        for change in ({}, {"model": "row-lstm"}, {"optimizer": "lars"}, {"optimizer": "lamb"}, {"curvature_every": 1})
    ]
    assert len(set(codes)) == len(codes)
    assert tiny(rate=0.7).code() == codes[0]
    assert fingerprint.fingerprint(["labkit.tasks.base", "labkit.runs"]) == fingerprint.fingerprint(
        ["labkit.runs", "labkit.tasks.base"]
    )
    assert fingerprint.fingerprint(["labkit.tasks.base"]) != fingerprint.fingerprint(["labkit.runs"])


OTHER = {
    "data": "mnist5k",
    "train": 112,
    "validation": 16,
    "test": 32,
    "pool": 1,
    "noise": 0.5,
    "model": "row-lstm",
    "sizes": {"width": 8},
    "optimizer": "adam",
    "options": {"momentum": 0.5},
    "batch": 32,
    "rate": 0.1,
    "epochs": 3,
    "warmup_steps": 4.0,
    "decay": "cosine",
    "decay_options": {"ramp": "first-step"},
    "augment": ("flip",),
    "sampling": "replacement",
    "accumulate": 2,
    "precision": "bf16-mixed",
    "clip": 1.0,
    "callbacks": ({"name": "labkit.tta.callback.TimeToAccuracy"},),
    "evaluate_every": 4,
    "evaluate_on": ("test",),
    "curvature_every": 4,
    "target": {"metric": "test_accuracy", "value": 0.5, "higher": True},
    "stop_at_target": True,
    "device": "mps",
}


def test_recipes_that_differ_in_any_field_are_different_experiments(tiny):
    # data_options belong to texts: see test_language.py
    assert set(OTHER) == {field.name for field in dataclasses.fields(Recipe)} - {"data_options"}
    data = tiny().load()
    recipes = [tiny(), *(tiny(**{name: value}) for name, value in OTHER.items())]
    identities = {experiment.header(recipe, data, lab="test").identity for recipe in recipes}
    assert len(identities) == len(recipes)
    assert experiment.header(tiny(), data, lab="test", repeat=1).identity not in identities
    assert experiment.header(tiny(), data, lab="test", claims={"a": "b"}).identity in identities


def test_a_field_that_came_later_leaves_earlier_identities_alone(tiny):
    config = experiment.header(tiny(), tiny().load(), lab="test").config
    assert not set(experiment.OPTIONAL) & set(config)
    assert experiment.header(tiny(clip=0.5), tiny().load(), lab="test").config["clip"] == 0.5


class Norms(pytorch_lightning.Callback):
    """Records the global norm of the gradient that the optimizer is given."""

    def __init__(self):
        self.seen = []

    def on_before_zero_grad(self, trainer, task, optimizer) -> None:
        grads = [p.grad for p in task.parameters() if p.grad is not None]
        self.seen += [float(torch.stack([g.norm() for g in grads]).norm())] if grads else []


def test_clip_bounds_the_global_norm_of_every_gradient(tiny, store):
    free, clipped = Norms(), Norms()
    train(tiny(), store, lab="test", callbacks=[free])
    train(tiny(clip=0.1), store, lab="test", callbacks=[clipped])
    assert max(free.seen) > 0.11 and max(clipped.seen) <= 0.1 + 1e-6


def test_clip_works_under_mixed_precision(tiny, store):
    run = train(tiny(clip=0.1, precision="bf16-mixed"), store, lab="test")
    assert run.status == "finished" and math.isfinite(run.last("test_loss"))


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        ("noise", "must be a mapping"),
        ({"every": 1}, "must be a mapping"),
        ({"name": "os.system"}, "must be a mapping"),
        ({"name": "labkit.tta.callback.Nothing"}, "there is no callback labkit.tta.callback.Nothing"),
        ({"name": "labkit.tta.callback.TimeToAccuracy", "evry": 1}, "cannot take {'evry': 1}: got an unexpected"),
        ({"name": "labs.nowhere.Nothing"}, "there is no callback labs.nowhere.Nothing"),
    ],
)
def test_a_callback_that_cannot_be_is_refused(tiny, callback, says):
    with pytest.raises(RequestError, match=says):
        tiny(callbacks=(callback,))
