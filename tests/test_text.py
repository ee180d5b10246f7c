"""Texts: a chain whose entropy is known, prose, the Penn Treebank's form, and the windows that a network reads."""

import hashlib
import math

import numpy as np
import pytest

from labkit.datasets import download
from workloads import text
from workloads.markov import Chain
from labkit.errors import RequestError, WorkError


def transition(chain: Chain) -> np.ndarray:
    """The dense matrix [state, next state], written out."""
    states = chain.vocabulary**chain.order
    matrix = np.zeros((states, states))
    for state in range(states):
        for branch, token in enumerate(chain.successors[state]):
            matrix[state, (state * chain.vocabulary + token) % states] += chain.probabilities[state, branch]
    return matrix


@pytest.mark.parametrize("sizes", [{}, {"vocabulary": 8, "order": 2, "branching": 3}, {"vocabulary": 5, "seed": 3}])
def test_the_entropy_rate_is_that_of_the_stationary_chain(sizes):
    chain = Chain(**sizes)
    matrix = transition(chain)
    values, vectors = np.linalg.eig(matrix.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    np.testing.assert_allclose(chain.stationary, stationary, atol=1e-10)
    rate = -sum(stationary[i] * p * math.log(p) for i, row in enumerate(matrix) for p in row if p > 0)
    assert chain.entropy_rate == pytest.approx(rate, rel=1e-9)
    assert 0 < chain.entropy_rate <= math.log(sizes.get("branching", 4))


def test_a_periodic_chain_has_its_stationary_shares_all_the_same():
    chain = Chain(vocabulary=2, branching=2)
    chain.probabilities[:] = [[0.0, 1.0], [0.0, 1.0]]
    chain.successors[:] = [[0, 1], [1, 0]]  # 0 goes to 1 and 1 to 0, for ever
    chain._next = chain.successors.copy()
    np.testing.assert_allclose(chain._stationary(), [0.5, 0.5])


def test_no_model_beats_the_floor_and_the_true_one_meets_it():
    data = text.load("markov", train=200_000, vocabulary=8, order=2, branching=3)
    surprise = data.chain.nats(data.train)
    error = surprise.std() / math.sqrt(len(surprise))
    assert abs(surprise.mean() - data.floor) < 6 * error  # neighbours are correlated
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (data.train[:-1], data.train[1:]), 1)  # the best that a memory of one token can do
    conditional = -(pairs * np.log(np.maximum(pairs / pairs.sum(1, keepdims=True), 1e-300))).sum() / pairs.sum()
    assert conditional > data.floor + 0.1


def test_the_parts_are_independent_fronts():
    less, more = (text.load("markov", train=n, validation=50, test=60) for n in (100, 200))
    assert np.array_equal(more.train[:100], less.train) and np.array_equal(more.test, less.test)
    assert (len(less.validation), len(less.test), less.vocabulary) == (50, 60, 64)
    assert not np.array_equal(less.train[:50], less.validation)
    others = [text.load("markov", train=100, validation=50, test=60, seed=1), more]
    assert len({less.checksum, *(other.checksum for other in others)}) == 3
    assert text.load("markov", train=100, validation=50, test=60).checksum == less.checksum


@pytest.mark.parametrize("options, message", [
    ({"vocabulary": 1}, "vocabulary of a Markov text must be a whole number, 2 or more, not 1"),
    ({"branching": 65}, "at most as many branches as words"),
    ({"order": 5}, "at most 262144 states"),
    ({"order": True}, "order of a Markov text must be"),
    ({"noise": 1}, "unknown option of markov 'noise'"),
])
def test_a_chain_that_cannot_be_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        text.load("markov", train=10, **options)


def test_prose_is_split_and_its_rare_words_are_unknown():
    data = text.load("prose", train=20_000, vocabulary=500)
    assert data.vocabulary == len(data.words) == len(set(data.words)) == 500 and data.floor is None
    assert data.train.max() < 500 and len(data.train) == 20_000 and len(data.validation) == len(data.test) > 5000
    rare = {part: np.mean(getattr(data, part) == data.words.index("<unk>")) for part in text.PARTS}
    assert 0 < rare["train"] < rare["test"]  # the vocabulary was chosen on the training part
    counts = np.bincount(data.train, minlength=500)
    assert all(counts[1:-1] >= counts[2:]) and counts[-1] > 0
    assert " ".join(data.words[n] for n in data.train[:50]) == " ".join(data.words[n] for n in data.train[:50]).lower()
    with pytest.raises(RequestError, match=r"prose has \d+ train tokens, not 10000000"):
        text.load("prose", train=10**7)


def treebank(folder, monkeypatch, **parts):
    """Three files of the treebank's form, registered with their own checksums."""
    folder.mkdir(exist_ok=True)
    files = []
    for part, content in parts.items():
        (folder / f"ptb.{part}.txt").write_bytes(content)
        files.append(download.DataFile(f"ptb.{part}.txt", (), hashlib.sha256(content).hexdigest()))
    monkeypatch.setitem(download.FILES, "ptb", tuple(files))
    monkeypatch.setenv("LABKIT_CACHE", str(folder / "cache"))


def test_the_treebank_is_read_from_the_readers_folder(tmp_path, monkeypatch):
    train, valid = b" the cat <unk> \n the N cats \n", b" the dog \n"
    treebank(tmp_path / "ptb", monkeypatch, train=train, valid=valid, test=b" N \n")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    data = text.load("ptb", train=8)
    assert [data.words[n] for n in data.train] == ["the", "cat", "<unk>", "<eos>", "the", "N", "cats", "<eos>"]
    assert [data.words[n] for n in data.validation] == ["the", "<unk>", "<eos>"]
    assert data.words == ("<unk>", "<eos>", "the", "N", "cat", "cats")
    (tmp_path / "ptb" / "ptb.test.txt").write_bytes(b" N \n N \n")
    with pytest.raises(WorkError, match=r"ptb\.test\.txt has the wrong checksum"):
        text.load("ptb", train=8)


def test_a_missing_treebank_says_where_to_put_which_files(tmp_path, monkeypatch):
    treebank(tmp_path / "elsewhere", monkeypatch, train=b"a\n", valid=b"a\n", test=b"a\n")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with pytest.raises(RequestError, match=r"markov and prose need no download, or set LABKIT_DATA to a folder with "
                                           r"ptb\.train\.txt, ptb\.valid\.txt, ptb\.test\.txt"):
        text.load("ptb", train=8)


def test_streams_are_read_in_windows_that_follow_one_another():
    tokens = np.arange(47)
    streams = text.Streams(tokens, 3, 4)
    windows = list(streams)
    assert len(windows) == len(streams) == ((47 // 3) - 1) // 4 == 3
    for at, (inputs, targets, first) in enumerate(windows):
        assert inputs.tolist() == [[15 * row + 4 * at + i for i in range(4)] for row in range(3)]
        assert targets.tolist() == [[token + 1 for token in row] for row in inputs.tolist()]
        assert first == (at == 0)
    assert [first for *_, first in streams] == [True, False, False]  # the next epoch is the same


def test_an_evaluation_reads_the_last_short_window_too():
    read = [targets for _, targets, _ in text.Streams(np.arange(47), 1, 4, tail=True)]
    assert [n for targets in read for n in targets[0].tolist()] == list(range(1, 47))
    assert sum(targets.numel() for _, targets, _ in text.Streams(np.arange(47), 5, 4, tail=True)) == 5 * (47 // 5 - 1)


def test_streams_keep_their_place():
    streams, resumed = (text.Streams(np.arange(100), 2, 7) for _ in range(2))
    reader = iter(streams)
    next(reader), next(reader)
    resumed.load_state_dict(streams.state_dict())
    rest = [inputs.tolist() for inputs, _, _ in reader]
    again = [(inputs.tolist(), first) for inputs, _, first in resumed]
    assert [inputs for inputs, _ in again] == rest and not any(first for _, first in again) and rest
    assert len(list(resumed)) == len(resumed)  # a whole epoch follows


def test_too_few_tokens_for_the_streams_is_said():
    with pytest.raises(RequestError, match="30 tokens are too few for 10 streams in windows of 4; give at least 50"):
        text.Streams(np.arange(30), 10, 4)
