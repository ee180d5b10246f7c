"""The translation task and its workload: what the loss and the metrics are, and a run from recipe to BLEU."""

import collections
import dataclasses
import math

import pytest
import torch

from labkit import workloads
from workloads.pairs import BEGIN, END, PAD, batches, load
from labkit.errors import RequestError
from labkit.experiment import Recipe, train
from workloads.seq2seq import GNMT, translate
from workloads.task_translation import Translation
from workloads import workload_translation as translation

TINY = {"data": "number-words", "train": 64, "validation": 12, "test": 12, "model": "gnmt", "clip": 1.0,
        "data_options": {"limit": 120, "vocabulary": 80, "label_smoothing": 0.0, "beam": 2},
        "sizes": {"hidden": 32, "dropout": 0.0, "init": 0.7}, "batch": 16, "epochs": 2, "rate": 0.5}


def recipe(**changes) -> Recipe:
    return Recipe(**{**TINY, **changes})


def values(run) -> dict:
    return {row.name: row.value for row in run.rows}


@pytest.fixture(scope="module")
def tiny():
    return recipe().load()


def toy(vocabulary: int = 9):
    torch.manual_seed(0)
    model = GNMT(vocabulary, 5, 2, dropout=0.0, init=0.8).double()
    batch = (torch.tensor([[5, 4, END, PAD], [7, 8, 6, END], [6, END, PAD, PAD]]),
             torch.tensor([[BEGIN, 4, 5, 8, END], [BEGIN, 6, END, PAD, PAD], [BEGIN, 8, 7, END, PAD]]))
    return model, batch


def targets(model, batch):
    """(log probabilities of the vocabulary, the unit that comes) of every real target unit, one sentence at a time."""
    for source, target in zip(*batch, strict=True):
        source, target = (side[side != PAD].unsqueeze(0) for side in (source, target))
        for row, unit in zip(model(source, target[:, :-1])[0].log_softmax(1), target[0, 1:], strict=True):
            yield row, int(unit)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_loss_is_the_mean_over_real_target_units(smoothing):
    model, batch = toy()
    with torch.no_grad():
        losses = [-(1 - smoothing) * float(row[unit]) - smoothing * float(row.mean())
                  for row, unit in targets(model, batch)]
        found = Translation(model, label_smoothing=smoothing).training_step(batch, 0)
    assert len(losses) == 9
    assert float(found) == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_the_metrics_are_of_units_without_smoothing_however_they_are_cut_into_batches():
    model, batch = toy()
    pairs = list(targets(model, batch))
    task = Translation(model, label_smoothing=0.3)
    parts = [task.sums([side[rows] for side in batch]) for rows in ([0, 1], [2])]
    for totals in (task.sums(batch), sum(parts)):
        metrics = task.summary(totals.detach())
        expected = -sum(row[unit].item() for row, unit in pairs) / 9
        assert float(metrics["loss"]) == pytest.approx(expected, abs=1e-6)
        right = sum(int(row.argmax()) == unit for row, unit in pairs)
        assert float(metrics["token_accuracy"]) == pytest.approx(right / 9)
    with torch.no_grad():
        model.classifier.bias[PAD] += 100.0  # padding that is predicted at padding is not right, it is not counted
    assert float(task.summary(task.sums(batch).detach())["token_accuracy"]) == 0.0


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_outside_its_range_is_refused(smoothing):
    with pytest.raises(RequestError, match="label_smoothing .* must lie in"):
        Translation(toy()[0], label_smoothing=smoothing)


def test_a_run_records_losses_and_at_its_end_bleu(store):
    run = train(recipe(evaluate_every=4), store, lab="09")
    numbers = values(run)
    parts = ("train", "validation", "test")
    assert set(numbers) == {f"{part}_{what}" for part in parts for what in ("loss", "token_accuracy")} | {
        f"{part}_{what}" for part in parts[1:] for what in ("bleu", "exact")}
    losses = [row.value for row in run.rows if row.name == "train_loss"]
    assert len(losses) == 2 and losses[1] < losses[0] < math.log(80) + 1
    assert all(row.step == 8 and row.epoch == 2.0 for row in run.rows if "bleu" in row.name)
    assert all(0.0 <= numbers[f"{part}_bleu"] <= 100.0 for part in parts[1:])


def test_steps_and_epochs_count_optimizer_steps(store):
    for accumulate in (1, 4):
        asked = recipe(batch=12, accumulate=accumulate, epochs=1.4)
        assert translation.steps_per_epoch(asked) == 5 and asked.steps == 7
        loader, parts = translation.loaders(asked, asked.load(), 0)
        assert len(loader) == 5 * accumulate and {len(source) for source, _ in loader} == {12 // accumulate}
        assert [(name, sum(len(source) for source, _ in part)) for name, part in parts.items()] == [
            ("train", 64), ("validation", 12), ("test", 12)]
    assert train(asked, store, lab="09").rows[-1].step == 7


def test_without_test_pairs_there_is_no_test(store):
    numbers = values(train(recipe(test=0, epochs=1), store, lab="09"))
    assert "validation_bleu" in numbers and not [name for name in numbers if name.startswith("test")]


def character_bleu(made, meant) -> float:
    """Corpus BLEU over characters (spaces are none), from its definition; for texts that share some of every length."""
    made, meant = ([line.replace(" ", "") for line in lines] for lines in (made, meant))
    logs = []
    for size in range(1, 5):
        hits = count = 0
        for line, reference in zip(made, meant, strict=True):
            runs, allowed = (collections.Counter(text[at:at + size] for at in range(len(text) - size + 1))
                             for text in (line, reference))
            hits, count = hits + (runs & allowed).total(), count + runs.total()
        logs.append(math.log(hits / count))
    written, wanted = (sum(map(len, lines)) for lines in (made, meant))
    return 100 * math.exp(sum(logs) / 4 + min(0.0, 1 - wanted / written))


def learnt(data, steps: int):
    """A network that has read the training pairs so many times."""
    torch.manual_seed(0)
    asked = recipe()
    task = translation.task(asked, data, translation.build(asked, data), ())
    adam = torch.optim.Adam(task.parameters(), 1e-2)
    batch = batches(data.train, 64)[0]
    for _ in range(steps):
        adam.zero_grad()
        task.training_step(batch, 0).backward()
        adam.step()
    return asked, task


def test_what_is_learnt_by_heart_is_translated_letter_for_letter_and_has_bleu_100(tiny):
    known = dataclasses.replace(tiny, validation=tiny.train)
    asked, task = learnt(known, 100)
    metrics = translation.final(asked, known, task)
    assert metrics["validation_exact"] == 1.0 and metrics["validation_bleu"] == pytest.approx(100.0)
    assert 0.0 <= metrics["test_exact"] <= 1.0 and 0.0 < metrics["test_bleu"] < 100.0


def test_bleu_is_over_characters_of_the_translations_of_the_asked_sentences(tiny):
    _, task = learnt(tiny, 30)
    asked = recipe(data_options={**TINY["data_options"], "beam": 1, "sentences": 10})
    metrics = translation.final(asked, tiny, task)
    made = []
    with torch.no_grad():
        for row in tiny.validation.source[:10]:
            units, source = [], torch.from_numpy(row[row != PAD]).long().unsqueeze(0)
            while END not in units and len(units) < 51:
                scores = task.model(source, torch.tensor([[BEGIN, *units]]))[0, -1]
                scores[[PAD, BEGIN]] = -math.inf
                units.append(int(scores.argmax()))
            made += tiny.subwords.decode([units])
    meant = tiny.validation.text[:10]
    assert metrics["validation_bleu"] == pytest.approx(character_bleu(made, meant), abs=1e-6)
    assert metrics["validation_exact"] == sum(a == b for a, b in zip(made, meant, strict=True)) / 10
    # and the asked beam and length penalty make them
    wide = {**asked.data_options, "beam": 6, "length_penalty": 2.0}
    units, _ = translate(task.model, batches(tiny.validation, 10)[0][0], beam=6, length_penalty=2.0)
    found = translation.final(recipe(data_options=wide), tiny, task)["validation_bleu"]
    assert found == pytest.approx(character_bleu(tiny.subwords.decode(units.tolist()), meant), abs=1e-6)
    for change in ({"beam": 1}, {"length_penalty": 0.0}):
        assert translation.final(recipe(data_options=wide | change), tiny, task)["validation_bleu"] != found


def test_words_are_counted_where_the_data_say_so(tmp_path):
    """One wrong word of five costs far more by words than by characters."""
    import sacrebleu

    for name, lines in (("a", ["one two three four five"]), ("b", ["eins zwei drei vier elf"])):
        (tmp_path / name).write_text("\n".join(lines * 40), encoding="utf-8")
    data = load("pairs", train=30, validation=5, test=5,
                options={"source": str(tmp_path / "a"), "target": str(tmp_path / "b"), "vocabulary": 30})
    asked, task = learnt(data, 60)
    asked = recipe(data="pairs", data_options={"beam": 1})
    assert translation.final(asked, data, task)["test_bleu"] == pytest.approx(100.0)
    other = dataclasses.replace(data, test=dataclasses.replace(data.test, text=("eins zwei drei vier zehn",) * 5))
    expected = sacrebleu.corpus_bleu(["eins zwei drei vier elf"] * 5, [["eins zwei drei vier zehn"] * 5]).score
    assert translation.final(asked, other, task)["test_bleu"] == pytest.approx(expected) and expected < 70


def test_a_model_that_diverged_still_gets_a_number(tiny):
    asked, task = learnt(tiny, 1)
    with torch.no_grad():
        task.model.classifier.bias.fill_(math.nan)
    for name, value in translation.final(asked, tiny, task).items():
        assert 0.0 <= value < 20.0, name


def test_mixed_precision_trains(store):
    numbers = values(train(recipe(precision="bf16-mixed", clip=0.0, rate=0.1, epochs=1), store, lab="09"))
    assert all(math.isfinite(value) for value in numbers.values())


@pytest.mark.parametrize("changes, message", [
    ({"batch": 65}, "batch 65 is larger than the 64 training pairs"),
    ({"data_options": {"window": 20}}, "unknown option of number-words 'window'"),
    ({"data_options": {"source": "a.txt"}}, "unknown option of number-words 'source'"),
    ({"data_options": {"beam": 0}}, "beam must be a whole number from 1 to 1024, not 0"),
    ({"data_options": {"vocabulary": 96.5}}, "vocabulary must be a whole number"),
    ({"data_options": {"label_smoothing": 1.0}}, "label_smoothing must be a number from 0.0 to 0.99, not 1.0"),
    ({"data_options": {"tokenize": "ja-mecab"}}, "unknown tokenize 'ja-mecab'; allowed: 13a, char"),
    ({"sizes": {"layers": 1}}, "layers must be a whole number from 2 to 64, not 1"),
    ({"sizes": {"width": 64}}, "unknown size of gnmt 'width'; allowed: hidden, layers, dropout, init"),
    ({"model": "deep-mlp"}, "unknown model 'deep-mlp'; allowed: gnmt"),
    ({"pool": 2}, "are for images; leave them out for number-words"),
    ({"curvature_every": 5}, "are for images; leave them out for number-words"),
])
def test_a_recipe_that_cannot_be_is_refused_in_one_line(changes, message):
    with pytest.raises(RequestError, match=message) as refused:
        recipe(**changes)
    assert "\n" not in str(refused.value)


def test_the_code_that_makes_a_translation_is_in_its_fingerprint():
    assert workloads.find("number-words") is workloads.find("pairs") is translation
    assert {"workloads.pairs", "workloads.seq2seq", "workloads.task_translation",
            "workloads.workload_translation"} <= set(translation.source_modules(recipe()))
    assert len(recipe().code()) == 12
