"""Language models: shapes, the carried state, the summed loss, resuming, and the treebank's configurations."""

import dataclasses
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

from workloads import applications
from workloads import text
from labkit.errors import RequestError
from labkit.experiment import Recipe, train
from workloads.lstm_lm import LSTMLanguageModel
from labkit.optim.schedules import Schedule
from labkit.runs import Store
from workloads.task_language import LanguageModel

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
         "max_epochs": -1, "accelerator": "cpu", "limit_val_batches": 0}
TINY = Recipe(data="markov", train=900, validation=300, test=300, model="lstm-lm", options={}, batch=4, rate=2.0,
              data_options={"vocabulary": 6, "branching": 2, "window": 10}, sizes={"hidden": 16, "layers": 1},
              epochs=2.0, clip=1.0)


def model(dtype=torch.float32, vocabulary=6, dropout=0.0):
    torch.manual_seed(0)
    return LSTMLanguageModel(vocabulary, hidden=8, layers=2, dropout=dropout).to(dtype)


def test_the_model_has_the_parameters_of_the_formula_and_starts_within_its_bounds():
    net = LSTMLanguageModel(50, hidden=20, layers=2, init=0.04)
    lstm = 2 * (4 * 20 * (20 + 20) + 2 * 4 * 20)
    assert sum(p.numel() for p in net.parameters()) == 50 * 20 + lstm + 20 * 50 + 50
    for name, parameter in net.named_parameters():
        assert 0.5 * 0.04 < parameter.abs().max() <= 0.04, name
    scores, state = net(torch.zeros(3, 7, dtype=torch.int64))
    assert scores.shape == (3, 7, 50) and [part.shape for part in state] == [(2, 3, 20)] * 2


def test_windows_with_a_carried_state_are_one_long_read():
    tokens = torch.randint(6, (3, 20), generator=torch.Generator().manual_seed(0))
    net = model(torch.float64)
    whole, _ = net(tokens)
    state, parts = None, []
    for window in tokens.split(5, dim=1):
        scores, state = net(window, state)
        parts.append(scores)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    restarted = torch.cat([net(window)[0] for window in tokens.split(5, dim=1)], 1)
    assert (restarted - whole)[:, 5:].abs().max() > 1e-6


def test_an_evaluation_at_one_stream_is_the_sum_over_the_whole_text():
    tokens = np.random.default_rng(0).integers(6, size=101)
    task = LanguageModel(model(torch.float64))
    with torch.no_grad():
        totals = sum(task.sums(batch) for batch in text.Streams(tokens, 1, 7, tail=True))
    with torch.no_grad():
        scores, _ = task.model(torch.as_tensor(tokens[None, :-1]))
    literal = F.cross_entropy(scores[0], torch.as_tensor(tokens[1:]), reduction="sum")
    assert totals.tolist() == pytest.approx([float(literal), 100.0], rel=1e-6)
    summary = task.summary(totals)
    assert float(summary["perplexity"]) == pytest.approx(math.exp(float(literal) / 100), rel=1e-6)


def test_the_state_is_carried_through_training_and_dropped_at_an_epoch():
    """Two epochs of plain SGD, written out literally."""
    tokens, rate = np.random.default_rng(1).integers(6, size=64), 0.5
    streams = text.Streams(tokens, 2, 10)
    task = LanguageModel(model(torch.float64), "sgd", Schedule(peak=rate, total_steps=2 * len(streams)))
    pl.Trainer(max_steps=2 * len(streams), **QUIET).fit(task, streams)
    net, rows = model(torch.float64), torch.as_tensor(tokens.reshape(2, 32))
    for _ in range(2):
        state = None
        for at in range(0, 30, 10):
            scores, state = net(rows[:, at:at + 10], state)
            state = [part.detach() for part in state]
            F.cross_entropy(scores.flatten(0, 1), rows[:, at + 1:at + 11].flatten()).backward()
            for parameter in net.parameters():
                parameter.data -= rate * parameter.grad
                parameter.grad = None
    for mine, literal in zip(task.model.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine, literal, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum, clip, tolerance", [(0.0, None, 1e-10), (0.9, None, 1e-10), (0.0, 0.3, 1e-5)])
def test_the_summed_loss_is_a_hidden_factor_of_the_window(momentum, clip, tolerance):
    """R28. Where the norm is clipped, torch adds 1e-6 to it, so the two agree to about that."""
    tokens, window = np.random.default_rng(1).integers(6, size=200), 20

    def end(loss, rate, clip):
        streams = text.Streams(tokens, 2, window)
        task = LanguageModel(model(torch.float64), "sgd", Schedule(peak=rate, total_steps=12), loss=loss,
                             optimizer_options={"momentum": momentum})
        pl.Trainer(max_steps=12, gradient_clip_val=clip, **QUIET).fit(task, streams)
        return torch.cat([p.detach().flatten() for p in task.model.parameters()])

    summed = end("sum-over-time", 0.02, clip)
    rescaled = end("mean", 0.02 * window, clip and clip / window)
    untouched = end("mean", 0.02, clip)
    assert (summed - rescaled).abs().max() < tolerance
    assert (summed - untouched).abs().max() > 1e3 * tolerance


def test_a_run_resumed_in_the_middle_of_an_epoch_is_bit_for_bit_the_same(tmp_path):
    tokens = np.random.default_rng(2).integers(6, size=300)

    def parts():
        return (LanguageModel(model(), "sgd", Schedule(peak=1.0, total_steps=24), optimizer_options={"momentum": 0.9}),
                text.Streams(tokens, 3, 10))  # nine windows an epoch

    straight, streams = parts()
    pl.Trainer(max_steps=24, **QUIET).fit(straight, streams)
    first, streams = parts()
    boss = pl.Trainer(max_steps=13, **QUIET)
    boss.fit(first, streams)
    boss.save_checkpoint(tmp_path / "middle.ckpt")
    second, streams = parts()
    boss = pl.Trainer(max_steps=24, **QUIET)
    boss.fit(second, streams, ckpt_path=tmp_path / "middle.ckpt", weights_only=False)
    assert boss.global_step == 24
    for name, weight in straight.state_dict().items():
        assert torch.equal(second.state_dict()[name], weight), name
    assert not torch.equal(first.state_dict()["model.scores.bias"], straight.state_dict()["model.scores.bias"])


def test_an_evaluation_leaves_the_training_state_alone(tmp_path):
    often = dataclasses.replace(TINY, evaluate_every=3)
    one, other = (train(recipe, Store(tmp_path), lab="t") for recipe in (TINY, often))
    assert len(other.series("validation_loss")) > 2
    assert one.last("test_loss") == other.last("test_loss")


def test_a_tiny_model_comes_near_the_floor(tmp_path):
    recipe = dataclasses.replace(TINY, train=9000, rate=4.0, epochs=3.0)
    run, data = train(recipe, Store(tmp_path), lab="t"), recipe.load()
    assert data.floor - 0.05 < run.last("test_loss") < data.floor + 0.15 < math.log(6) - 0.3
    assert run.last("test_perplexity") == pytest.approx(math.exp(run.last("test_loss")), rel=1e-5)
    assert run.status == "finished" and run.header.data["checksum"] == data.checksum
    assert recipe.steps == 3 * ((9000 // 4 - 1) // 10)


def test_a_diverged_run_ends_with_a_finite_perplexity(tmp_path):
    run = train(dataclasses.replace(TINY, rate=1e6, clip=0.0, evaluate_every=2), Store(tmp_path), lab="t")
    assert run.last("validation_loss") > 80 or not math.isfinite(run.last("validation_loss"))
    assert run.last("validation_perplexity") == pytest.approx(math.exp(80), rel=1e-3) or math.isnan(
        run.last("validation_perplexity"))


@pytest.mark.parametrize("change, message", [
    ({"batch": 90}, "batch 90 leaves no window of 10 tokens"),
    ({"accumulate": 2}, "accumulate must be 1"),
    ({"augment": ("flip",)}, "are for images"),
    ({"data_options": {"windows": 3}}, "unknown option of markov 'windows'"),
    ({"data_options": {"window": 0}}, "window must be a whole number, 1 or more, not 0"),
    ({"data_options": {"loss": "sum"}}, "unknown loss 'sum'; allowed: mean, sum-over-time"),
    ({"sizes": {"width": 3}}, "unknown size of lstm-lm 'width'"),
    ({"sizes": {"hidden": 0.5}}, "hidden must be a whole number from 1"),
    ({"sizes": {"dropout": 1.5}}, "dropout must be a number from 0.0 to 0.99"),
    ({"model": "deep-mlp"}, "unknown model 'deep-mlp'; allowed: lstm-lm"),
])
def test_what_a_language_model_cannot_do_is_refused(change, message):
    with pytest.raises(RequestError, match=message):
        dataclasses.replace(TINY, **change)


@pytest.mark.parametrize("name, steps, parameters", [("ptb-small", 2, 4_651_600), ("ptb-large", 1, 66_022_000)])
def test_the_treebanks_configurations_take_real_steps(tmp_path, name, steps, parameters):
    """On a Markov text of as many words, at a small batch and a short window, everything else as it is."""
    own = applications.get(name).recipe
    recipe = dataclasses.replace(
        own, data="markov", train=4 * (4 * steps + 1), validation=40, test=40, batch=4, epochs=1.0, evaluate_on=(),
        evaluate_every=0, decay="constant", decay_options={},
        data_options={"vocabulary": 10_000, "window": 4, "loss": "sum-over-time"})
    net = recipe.workload.build(recipe, recipe.load())
    hidden = own.sizes["hidden"]
    # The tutorial's LSTM has one bias vector a layer, torch's two.
    assert sum(p.numel() for p in net.parameters()) == parameters + 2 * 4 * hidden
    run = train(recipe, Store(tmp_path), lab="t")
    assert run.rows[-1].step == steps == recipe.steps
    assert run.last("test_loss") == pytest.approx(math.log(10_000), rel=0.25)
