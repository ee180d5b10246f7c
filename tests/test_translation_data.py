"""Pairs of sentences: what number words are, how files are read and refused, and what a batch holds."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from labkit import paths
from workloads import pairs as translation
from workloads.pairs import BEGIN, END, PAD, PairBatches, Subwords, batches, load
from labkit.errors import RequestError

SMALL = {"limit": 5000, "vocabulary": 128}


@pytest.fixture(scope="module")
def words():
    return load("number-words", train=400, validation=50, test=60, options=SMALL)


def source_lines(part, subwords) -> list[str]:
    return subwords.decode(part.source.tolist())


def files(folder, source: bytes, target: bytes) -> dict:
    (folder / "a.txt").write_bytes(source)
    (folder / "b.txt").write_bytes(target)
    return {"source": str(folder / "a.txt"), "target": str(folder / "b.txt"), "vocabulary": 40}


def text(lines) -> bytes:
    return "\n".join(lines).encode() + b"\n"


# 30 sentences of three words, in two made-up languages: 1 2 3 -> c b a
ENGLISH = [f"word{n} stone{n % 7} tree{n % 5}" for n in range(30)]
GERMAN = [f"baum{n % 5} stein{n % 7} wort{n}" for n in range(30)]


def test_number_words_are_the_german_of_the_english():
    """German says the units before the tens, in one word."""
    pairs = dict(translation._number_words(200, 200, 0))
    assert len(pairs) == 200
    assert pairs["twenty-one"] == "einundzwanzig"
    assert pairs["one hundred and ninety-eight"] == "einhundertachtundneunzig"
    assert pairs["seven"] == "sieben"


def test_parts_share_no_number_and_are_as_many_as_asked(words):
    parts = [source_lines(part, words.subwords) for part in (words.train, words.validation, words.test)]
    assert [len(part) for part in parts] == [400, 50, 60]
    assert len(set().union(*parts)) == 510


def test_the_same_request_is_the_same_data_and_another_seed_is_not(words):
    translation._number_words.cache_clear()
    again = load("number-words", train=400, validation=50, test=60, options=SMALL)
    assert again.checksum == words.checksum
    assert np.array_equal(again.train.source, words.train.source)
    for change in ({"seed": 1}, {"limit": 6000}, {"vocabulary": 120}):
        other = load("number-words", train=400, validation=50, test=60, options=SMALL | change)
        assert other.checksum != words.checksum


def test_the_data_are_the_same_in_another_process(words):
    code = ("from workloads.pairs import load; print(load('number-words', train=400, validation=50, "
            f"test=60, options={SMALL}).checksum)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.notebooks())
    assert done.stdout.strip() == words.checksum, done.stderr


def test_more_training_pairs_leave_validation_and_test_alone(words):
    larger = load("number-words", train=900, validation=50, test=60, options=SMALL)
    assert larger.validation.text == words.validation.text and larger.test.text == words.test.text
    assert set(words.train.text) < set(larger.train.text)


def test_all_numbers_below_the_limit_can_be_had_and_no_more():
    every = load("number-words", train=60, validation=20, test=20, options={"limit": 100, "vocabulary": 50})
    lines = [line for part in (every.train, every.validation, every.test) for line in part.text]
    assert len(set(lines)) == 100 and {"null", "neunundneunzig"} <= set(lines)
    with pytest.raises(RequestError, match="below 100 give 100 pairs, not 101; raise data_options' limit"):
        load("number-words", train=61, validation=20, test=20, options={"limit": 100})


def test_units_begin_end_and_are_padded_at_the_end_only(words):
    for side, start in ((words.train.source, []), (words.train.target, [BEGIN])):
        for row in side:
            real = row[row != PAD].tolist()
            assert row[:len(real)].tolist() == real and real[: len(start)] == start
            assert real[-1] == END and real.count(END) == 1 and BEGIN not in real[1:]
    assert words.subwords.decode(words.test.target[:, 1:].tolist()) == list(words.test.text)


def test_units_are_learnt_from_the_training_pairs_alone(tmp_path):
    options = files(tmp_path, text(ENGLISH[:-3] + ["xxxxx qqqqq"] * 3), text(GERMAN))
    data = load("pairs", train=24, validation=3, test=3, options=options)
    letters = {piece for piece in map(data.subwords.model.id_to_piece, range(len(data.subwords)))}
    assert "w" in letters and not letters & {"x", "q"}
    assert translation.UNKNOWN in data.test.source and translation.UNKNOWN not in data.train.source


def test_learning_units_says_nothing_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert len(Subwords(ENGLISH + GERMAN, 40)) == 40
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("size, why", [(5, "smaller than required_chars"), (4000, "too high")])
def test_a_vocabulary_that_the_lines_do_not_allow_is_refused_in_one_line(size, why, capfd):
    with pytest.raises(RequestError, match=f"{size} subword units cannot be learnt .*{why}") as refused:
        Subwords(ENGLISH + GERMAN, size)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 250
    assert capfd.readouterr().err == ""


def test_lines_of_two_files_are_pairs_in_order(tmp_path):
    data = load("pairs", train=20, validation=4, test=6, options=files(tmp_path, text(ENGLISH), text(GERMAN)))
    assert data.train.text == tuple(GERMAN[:20])
    assert data.validation.text == tuple(GERMAN[20:24]) and data.test.text == tuple(GERMAN[24:])
    assert source_lines(data.train, data.subwords) == ENGLISH[:20]
    assert data.options["tokenize"] == "13a"


def test_what_lies_between_training_and_validation_is_left_out_and_a_seed_shuffles_pairs_together(tmp_path):
    options = files(tmp_path, text(ENGLISH), text(GERMAN))
    data = load("pairs", train=24, validation=2, test=2, options=options | {"seed": 3})
    meant = dict(zip(ENGLISH, GERMAN, strict=True))
    assert data.train.text != tuple(GERMAN[:24])
    for part in (data.train, data.validation, data.test):
        assert [meant[line] for line in source_lines(part, data.subwords)] == list(part.text)


def test_windows_line_ends_and_a_byte_order_mark_are_no_content(tmp_path):
    sizes = {"train": 20, "validation": 4, "test": 6}
    plain = load("pairs", **sizes, options=files(tmp_path, text(ENGLISH), text(GERMAN)))
    other = files(tmp_path, b"\xef\xbb\xbf" + text(ENGLISH).replace(b"\n", b"\r\n"), text(GERMAN)[:-1])
    assert load("pairs", **sizes, options=other).checksum == plain.checksum
    # a line separator inside a sentence is no end of line
    broken = files(tmp_path, text([line.replace(" ", "\u2028", 1) for line in ENGLISH]), text(GERMAN))
    assert len(load("pairs", **sizes, options=broken).train.text) == 20


def test_a_relative_path_lies_in_labkit_data(tmp_path, monkeypatch):
    files(tmp_path, text(ENGLISH), text(GERMAN))
    options = {"source": "a.txt", "target": "b.txt", "vocabulary": 40}
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert load("pairs", train=20, validation=5, test=5, options=options).test.text == tuple(GERMAN[25:])
    monkeypatch.delenv("LABKIT_DATA")
    with pytest.raises(RequestError, match=f"source {paths.root()}/a.txt cannot be read .No such file"):
        load("pairs", train=20, validation=5, test=5, options=options)


@pytest.mark.parametrize("source, target, message", [
    (text(ENGLISH), text(GERMAN[:-1]), "source has 30 lines and target 29; line n of one must translate"),
    (text(ENGLISH[:4] + [" "] + ENGLISH[5:]), text(GERMAN), "source .*a.txt has an empty line 5; drop that pair"),
    (text(ENGLISH), text(GERMAN[:2]) + b"gr\xfcn\n" + text(GERMAN[3:]), "target .*b.txt is not UTF-8 in line 3"),
    (text(ENGLISH[:9]), text(GERMAN[:9]), "pairs has 9 pairs; train 20 . validation 4 . test 6 = 30 were asked for"),
    (b"", b"", "source .*a.txt has an empty line 1"),
])
def test_files_that_are_no_pairs_are_refused(tmp_path, source, target, message):
    with pytest.raises(RequestError, match=message) as refused:
        load("pairs", train=20, validation=4, test=6, options=files(tmp_path, source, target))
    assert "\n" not in str(refused.value)


def test_other_wrong_requests_are_refused(tmp_path):
    for arguments, message in [
        ({"name": "pears"}, "unknown dataset 'pears'; allowed: number-words, pairs"),
        ({"name": "pairs", "options": {"limit": 9}}, "unknown option of pairs 'limit'"),
        ({"name": "pairs", "options": {"target": "b"}}, "source and target, the paths of two files; source is missing"),
        ({"name": "number-words", "test": -1}, "whole numbers, 0 or more, not"),
    ]:
        with pytest.raises(RequestError, match=message):
            load(train=20, **arguments)


def test_a_long_sentence_is_cut_and_its_text_is_not(tmp_path):
    options = files(tmp_path, text(ENGLISH), text(GERMAN)) | {"max_length": 4}
    data = load("pairs", train=20, validation=5, test=5, options=options)
    assert data.train.source.shape == (20, 5) and data.train.target.shape == (20, 6)
    assert (data.train.source[:, 4] == END).all() and (data.train.target[:, 5] == END).all()
    assert data.train.text == tuple(GERMAN[:20])


def test_an_epoch_reads_every_pair_once_each_beside_its_own(words):
    rows = {tuple(row[row != PAD].tolist()): tuple(other[other != PAD].tolist())
            for row, other in zip(words.train.source, words.train.target, strict=True)}
    read = {}
    for source, target in PairBatches(words.train, 40, seed=1):
        assert source.shape[0] == target.shape[0] == 40 and source.dtype == target.dtype == torch.int64
        for side in (source, target):
            assert (side != PAD).sum(1).max() == side.shape[1], "wider than the longest sentence"
        read |= {tuple(a[a != PAD].tolist()): tuple(b[b != PAD].tolist()) for a, b in zip(source, target, strict=True)}
    assert read == rows


def test_order_depends_on_seed_and_epoch_alone(words):
    def epoch(loader) -> torch.Tensor:
        return torch.cat([source.sum(1) for source, _ in loader])

    one, two = PairBatches(words.train, 32, seed=1), PairBatches(words.train, 32, seed=1)
    first, second = epoch(one), epoch(one)
    assert not torch.equal(first, second)
    two.set_epoch(1)
    assert torch.equal(epoch(two), second)
    assert not torch.equal(epoch(PairBatches(words.train, 32, seed=2)), first)
    assert torch.equal(epoch(PairBatches(words.train, 32, seed=1)), first)


@pytest.mark.parametrize("batch, accumulate", [(32, 1), (32, 4), (150, 5), (400, 2)])
def test_micro_batches_of_a_step_are_the_rows_of_that_step(words, batch, accumulate):
    whole, split = (PairBatches(words.train, batch, accumulate=parts) for parts in (1, accumulate))
    assert len(split) == 400 // batch * accumulate
    rows = [[int(row.sum()) for row in source] for source, _ in split]
    steps = [sum(rows[start:start + accumulate], []) for start in range(0, len(rows), accumulate)]
    assert steps == [[int(row.sum()) for row in source] for source, _ in whole]


def test_evaluation_batches_are_all_pairs_in_order_or_the_first_ones(words):
    for most, count in ((None, 50), (17, 17), (80, 50)):
        read = batches(words.validation, 20, most)
        assert [len(source) for source, _ in read] == [20] * (count // 20) + [count % 20]
        lines = [line for _, target in read for line in words.subwords.decode(target[:, 1:].tolist())]
        assert lines == list(words.validation.text[:count])


def test_importing_it_imports_neither_torch_nor_the_text_packages():
    code = ("import sys, workloads.pairs, labkit.workloads; "
            "print({'torch', 'sentencepiece', 'num2words', 'sacrebleu'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.notebooks())
    assert done.stdout.strip() == "set()", done.stderr
