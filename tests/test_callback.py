"""The clock's callback, in a plain Trainer with a module of the user's own."""

import time
from itertools import pairwise

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from labkit import runs
from labkit.runs import Header, RunWriter
from labkit.tta.callback import TimeToAccuracy
from labkit.tta.clock import time_to_target

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
PAUSE = 0.03  # seconds, so that a phase is longer than the clock's noise


class Own(pl.LightningModule):
    """A user's module: a line fitted to numbers, one metric that falls and a count of the evaluations."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.evaluations = 0

    def training_step(self, batch, index):
        x, y = batch
        return F.mse_loss(self.line(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("error", F.mse_loss(self.line(x), y))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.evaluations += 1
            time.sleep(PAUSE)
        self.log("evaluations", float(self.evaluations))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Saving(pl.Callback):
    """Saves a checkpoint that takes a while, inside one hook, once."""

    def __init__(self, path, hook: str):
        self.path, self.saved = path, 0
        setattr(self, hook, self.save)

    def save(self, trainer, *rest):
        if trainer.global_step == 6 and not self.saved:
            self.saved += 1
            trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, trainer, task, checkpoint):
        time.sleep(PAUSE)


@pytest.fixture
def loader():
    x = torch.linspace(-1, 1, 40).view(-1, 1)
    return DataLoader(TensorDataset(x, 3 * x), 10)  # four steps an epoch


@pytest.fixture
def writer(tmp_path):
    target = {"metric": "evaluations", "value": 3, "higher": True}
    with RunWriter(Header("test", {}, target=target), tmp_path / "run.jsonl") as writer:
        yield writer


def fit(clock, loader, steps=20, module=None, callbacks=(), **options):
    module = module or Own()
    options = {"enable_checkpointing": False, "val_check_interval": 2, "check_val_every_n_epoch": None, **options}
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=steps, callbacks=[clock, *callbacks], **QUIET, **options
    )
    trainer.fit(module, loader, loader)
    return trainer


def test_a_plain_trainer_and_a_module_of_ones_own(writer, loader, tmp_path):
    trainer = fit(TimeToAccuracy(writer, samples_per_step=10), loader)
    run = writer.finish()
    assert trainer.global_step == 20
    assert [(row.step, row.epoch, row.samples) for row in run.series("error")] == [
        (step, step / 4, step * 10) for step in range(2, 21, 2)
    ]
    assert [row.value for row in run.series("evaluations")] == list(range(1, 11))
    assert run.last("error") < run.series("error")[0].value
    assert {row.name for row in run.rows} == {"error", "evaluations"}
    kinds = [span.kind for span in run.spans]
    assert kinds[:20] == ["train", "evaluate"] * 10 and set(kinds[20:]) <= {"train"}
    assert all(span.end - span.start >= PAUSE for span in run.spans if span.kind == "evaluate")
    assert runs.read(tmp_path / "run.jsonl").rows == [
        runs.Row(row.step, row.epoch, row.samples, round(row.when, 6), row.name, row.value) for row in run.rows
    ]


def test_each_phase_begins_where_the_one_before_it_ended(writer, loader, tmp_path):
    fit(TimeToAccuracy(writer), loader, callbacks=[Saving(tmp_path / "a.ckpt", "on_train_batch_end")])
    assert len(writer.run.spans) > 20
    for before, after in pairwise(writer.run.spans):
        assert before.end == after.start


def test_the_target_stops_training_at_the_first_evaluation_that_meets_it(writer, loader):
    trainer = fit(TimeToAccuracy(writer, stop_at_target=True), loader)
    assert trainer.global_step == 6
    assert [row.value for row in writer.run.series("evaluations")] == [1, 2, 3]
    assert writer.run.header.target["value"] == 3


def test_the_target_is_only_watched_unless_asked_to_stop(writer, loader):
    assert fit(TimeToAccuracy(writer, stop_at_target=False), loader).global_step == 20


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_no_longer_finite_ends_training(writer, loader, value):
    class Lost(Own):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            self.log("lost", value if self.evaluations == 4 else 0.0)

    assert fit(TimeToAccuracy(writer), loader, module=Lost()).global_step == 8
    assert [row.value for row in writer.run.series("lost")][:3] == [0.0, 0.0, 0.0]


def test_the_validation_that_checks_sanity_leaves_no_trace(writer, loader):
    steps = []

    class Watch(pl.Callback):
        def on_sanity_check_end(self, trainer, task):
            steps.append((len(writer.run.rows), len(writer.run.spans)))

    fit(TimeToAccuracy(writer), loader, steps=2, callbacks=[Watch()], num_sanity_val_steps=2)
    assert steps == [(0, 0)]
    assert [row.step for row in writer.run.series("error")] == [2]
    assert writer.run.spans[0].kind == "train"


def seconds(run, rule):
    return time_to_target(run, rule).seconds


def test_a_checkpoint_in_training_is_a_span_of_its_own_that_rules_count_or_not(writer, loader, tmp_path):
    saving = Saving(tmp_path / "a.ckpt", "on_train_batch_end")
    trainer = fit(TimeToAccuracy(writer, stop_at_target=True), loader, callbacks=[saving])
    assert saving.saved == 1 and (tmp_path / "a.ckpt").exists()
    run = writer.run
    kinds = [span.kind for span in run.spans]
    assert kinds[:8] == ["train", "evaluate"] * 2 + ["train", "checkpoint", "train", "evaluate"]
    (checkpoint,) = [span for span in run.spans if span.kind == "checkpoint"]
    took = checkpoint.end - checkpoint.start
    assert took >= PAUSE
    when = run.series("evaluations")[-1].when
    inside = [span for span in run.spans if span.end <= when]
    assert seconds(run, "dawnbench") == pytest.approx(sum(s.end - s.start for s in inside if s.kind == "train"))
    assert seconds(run, "mlperf") == pytest.approx(when - run.spans[0].start)
    assert seconds(run, "wall") == pytest.approx(when)
    # the same run without that span: it was on two of the clocks and not on the third
    rest = runs.Run(run.header, [span for span in run.spans if span is not checkpoint], run.rows)
    assert seconds(rest, "dawnbench") == pytest.approx(seconds(run, "dawnbench"))
    assert seconds(run, "mlperf") - seconds(run, "dawnbench") >= took + 3 * PAUSE
    assert trainer.save_checkpoint.__func__ is pl.Trainer.save_checkpoint


def test_lightnings_own_checkpoints_are_timed_too(writer, loader, tmp_path):
    keep = pl.callbacks.ModelCheckpoint(tmp_path / "kept", every_n_train_steps=5, save_top_k=-1)
    fit(TimeToAccuracy(writer), loader, callbacks=[keep], enable_checkpointing=True)
    kinds = [span.kind for span in writer.run.spans]
    assert kinds.count("checkpoint") == len(list((tmp_path / "kept").iterdir())) == 4
    assert all(kind in ("train", "evaluate", "checkpoint") for kind in kinds)


def test_a_checkpoint_inside_an_evaluation_splits_the_evaluation(writer, loader, tmp_path):
    saving = Saving(tmp_path / "a.ckpt", "on_validation_epoch_end")
    fit(TimeToAccuracy(writer), loader, steps=8, callbacks=[saving])
    kinds = [span.kind for span in writer.run.spans]
    assert saving.saved == 1
    assert kinds[:8] == ["train", "evaluate"] * 2 + ["train", "evaluate", "checkpoint", "evaluate"]
    for before, after in pairwise(writer.run.spans):
        assert before.end == after.start


def test_a_closing_evaluation_goes_on_from_the_last_row(writer, loader):
    clock = TimeToAccuracy(writer, samples_per_step=10)
    trainer = fit(clock, loader, steps=10, val_check_interval=4)
    assert [row.step for row in writer.run.series("error")] == [4, 8]
    assert clock.evaluated_at == 8
    for _ in range(2):
        time.sleep(3 * PAUSE)
        trainer.validate(trainer.lightning_module, loader, verbose=False)
    assert [(row.step, row.epoch, row.samples) for row in writer.run.series("error")[2:]] == [(10, 2.5, 100)]
    closing = writer.run.spans[-2:]
    assert [span.kind for span in closing] == ["evaluate", "evaluate"]
    assert closing[0].end + 3 * PAUSE <= closing[1].start  # the caller's own time is in neither


def test_after_a_failure_the_clock_can_be_used_again(writer, loader):
    class Broken(Own):
        def training_step(self, batch, index):
            if self.trainer.global_step == 3:
                raise ValueError("broken")
            return super().training_step(batch, index)

    clock = TimeToAccuracy(writer)
    with pytest.raises(ValueError, match="broken"):
        fit(clock, loader, module=Broken())
    assert [span.kind for span in writer.run.spans] == ["train", "evaluate"]  # whole phases only
    fit(clock, loader, steps=2)
    assert [span.kind for span in writer.run.spans][2:4] == ["train", "evaluate"]
    for before, after in pairwise(writer.run.spans):
        assert before.end <= after.start


def test_progress_is_told_the_step_and_the_loss(writer, loader):
    told = []

    class Progress:
        def update(self, step, **numbers):
            told.append((step, numbers["loss"]))

    fit(TimeToAccuracy(writer, progress=Progress()), loader, steps=4)
    assert told and told[0][0] == 1 and told[0][1] > 0
