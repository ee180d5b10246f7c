"""Pairs of sentences in two languages, as subword units, and the batches that feed a model: English and German number
words, or any line-aligned files. Neither torch nor the text packages are imported before they are needed."""

import functools
import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit import paths
from labkit.errors import RequestError, choose

PAD, UNKNOWN, BEGIN, END = range(4)
HELD_OUT = 256  # validation pairs and test pairs where no number is given
# what `load` takes, by name, with the defaults
OPTIONS = {"number-words": {"vocabulary": 192, "max_length": 50, "tokenize": "char", "seed": 0, "limit": 1_000_000},
           "pairs": {"vocabulary": 32_000, "max_length": 50, "tokenize": "13a", "seed": None, "source": "",
                     "target": ""}}
NAMES = tuple(OPTIONS)


class Subwords:
    """Units of byte pair encoding, one vocabulary for both languages, learnt from `lines`: the same of the same lines.

    Raises:
        RequestError: the lines do not allow `size` units."""

    def __init__(self, lines, size: int):
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=size,
                character_coverage=1.0, normalization_rule_name="identity", pad_id=PAD, unk_id=UNKNOWN, bos_id=BEGIN,
                eos_id=END, num_threads=1, minloglevel=3)
        except (RuntimeError, OSError) as error:
            why = str(error).rpartition("] ")[2].partition(". Increase")[0].rstrip(".")
            raise RequestError(f"{size} subword units cannot be learnt from these training pairs ({why}); change "
                               "data_options' vocabulary") from None
        self.model = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    def __len__(self) -> int:
        return self.model.get_piece_size()

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Text of rows of units, each up to its first END."""
        return self.model.decode([row[:row.index(END)] if END in row else row for row in rows])


@dataclass(frozen=True, eq=False)
class Part:
    """n pairs. source [n, S]: units, END, PAD ...; target [n, T]: BEGIN, units, END, PAD ... (int32); text: of target.
    """

    source: np.ndarray
    target: np.ndarray
    text: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pairs:
    """A data set, split. options: of `load`, the defaults among them; checksum: sha256 of all text and units."""

    name: str
    train: Part
    validation: Part
    test: Part
    subwords: Subwords
    options: dict
    checksum: str


def load(name: str, *, train: int, validation: int | None = None, test: int | None = None,
         options: dict | None = None) -> Pairs:
    """Pairs by name, in subword units that are learnt from the training pairs alone.

    Args:
        name: ``number-words``: English to German, different numbers below `limit`, drawn by `seed`; more training
            pairs leave validation and test as they are. ``pairs``: line n of the file `target` translates line n of
            `source`; training takes the first lines, test the last, validation those before (of lines shuffled by
            `seed`, where it is given). A relative path lies in the folder LABKIT_DATA, or, without it, the checkout.
        validation, test: pairs; None means 256.
        options: those of `OPTIONS`. vocabulary: number of units. max_length: units; of a longer sentence the rest is
            cut off (of its text it is not). tokenize: what sacrebleu counts, see its documentation.

    When not to use ``number-words``: to learn how a model copes with ambiguity; every number has one right answer.

    Raises:
        RequestError: unknown name or option, more pairs than there are, files that are missing, of unequal length,
            not UTF-8 or with an empty line, or a vocabulary that the training pairs do not allow."""
    choose("dataset", name, NAMES)
    for key in options or {}:
        choose(f"option of {name}", key, OPTIONS[name])
    options = {**OPTIONS[name], **(options or {})}
    sizes = [train, *(HELD_OUT if size is None else size for size in (validation, test))]
    if any(type(size) is not int or size < 0 for size in sizes):
        raise RequestError(f"train, validation and test must be whole numbers, 0 or more, not {sizes}")
    lines = _number_words(sum(sizes), options["limit"], options["seed"]) if name == "number-words" else _files(options)
    if sum(sizes) > len(lines):
        raise RequestError(f"{name} has {len(lines)} pairs; train {sizes[0]} + validation {sizes[1]} + test {sizes[2]} "
                           f"= {sum(sizes)} were asked for")
    end = len(lines) - sizes[2]
    chosen = lines[:train], lines[end - sizes[1]:end], lines[end:]
    subwords = Subwords([line for pair in chosen[0] for line in pair], options["vocabulary"])
    parts = [Part(_block([pair[0] for pair in part], subwords, options["max_length"], []),
                  _block([pair[1] for pair in part], subwords, options["max_length"], [BEGIN]),
                  tuple(pair[1] for pair in part)) for part in chosen]
    digest = hashlib.sha256(repr(chosen).encode())
    for side in (side for part in parts for side in (part.source, part.target)):
        digest.update(f"{side.dtype.str}{side.shape}".encode() + side.tobytes())
    return Pairs(name, *parts, subwords, options, digest.hexdigest())


@functools.lru_cache(maxsize=4)  # a sweep asks for the same ones at every run, and German takes 0.3 ms each
def _number_words(count: int, limit: int, seed: int) -> tuple[tuple[str, str], ...]:
    from num2words import num2words

    if count > limit:
        raise RequestError(f"number-words below {limit} give {limit} pairs, not {count}; raise data_options' limit")
    random, drawn = np.random.default_rng([seed, limit]), {}
    while len(drawn) < count:  # the order of first appearance: a longer list begins with the shorter one
        drawn.update(dict.fromkeys(random.integers(limit, size=1024).tolist()))
    # test and validation come first in the draw and last in the list
    return tuple((num2words(number), num2words(number, lang="de")) for number in reversed(list(drawn)[:count]))


def _files(options: dict) -> list[tuple[str, str]]:
    sides = [_lines(side, options[side]) for side in ("source", "target")]
    if len(sides[0]) != len(sides[1]):
        raise RequestError(f"source has {len(sides[0])} lines and target {len(sides[1])}; line n of one must translate "
                           "line n of the other")
    seed, count = options["seed"], len(sides[0])
    order = range(count) if seed is None else np.random.default_rng(seed).permutation(count)
    return [(sides[0][place], sides[1][place]) for place in order]


def _lines(side: str, name) -> list[str]:
    if not isinstance(name, str) or not name:
        raise RequestError(f"pairs need data_options' source and target, the paths of two files; {side} is missing")
    path = Path(os.environ.get("LABKIT_DATA") or paths.root(), Path(name).expanduser())
    try:
        lines = [line.strip() for line in path.read_bytes().decode("utf-8-sig").rstrip("\r\n").split("\n")]
    except OSError as error:
        raise RequestError(f"{side} {path} cannot be read ({error.strerror}); a relative path lies in LABKIT_DATA, or "
                           "in the checkout where that is not set") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{side} {path} is not UTF-8 in line {line}; convert the file") from None
    if "" in lines:
        raise RequestError(f"{side} {path} has an empty line {lines.index('') + 1}; drop that pair from both files")
    return lines


def _block(lines: list[str], subwords: Subwords, most: int, before: list[int]) -> np.ndarray:
    rows = [[*before, *units[:most], END] for units in subwords.model.encode(lines)]
    block = np.full((len(rows), max(map(len, rows), default=0)), PAD, np.int32)
    for place, row in enumerate(rows):
        block[place, :len(row)] = row
    return block


def tensors(part: Part, rows, device="cpu") -> tuple:
    """The pairs `rows` of a part as int64 tensors [b, S] and [b, T], each as wide as its longest."""
    import torch

    blocks = (side[np.asarray(rows)] for side in (part.source, part.target))
    return tuple(torch.from_numpy(block[:, :(block != PAD).sum(1).max()]).long().to(device) for block in blocks)


def batches(part: Part, batch: int, most: int | None = None, device="cpu") -> list[tuple]:
    """The first `most` pairs (None: all) in order, `batch` at a time, the last batch smaller."""
    rows = range(len(part.source))[:most]
    return [tensors(part, rows[start:start + batch], device) for start in range(0, len(rows), batch)]


class PairBatches:
    """Shuffled batches of one part, padded to the longest sentence of each; every `iter` is the next epoch.

    The order depends on (seed, epoch) alone. Every pair is as likely beside any other: batches are not gathered by
    length, which would save padding and change the noise of the gradient.
    When not to use it: with several processes; each would read all of every batch.

    Args:
        batch: pairs of an optimizer step, read in `accumulate` equal parts; pairs that fill no step are left out."""

    def __init__(self, part: Part, batch: int, *, accumulate: int = 1, seed: int = 0, device="cpu"):
        self.part, self.batch, self.accumulate = part, batch, accumulate
        self.seed, self.device, self.epoch = seed, device, 0

    def __len__(self) -> int:
        """Batches that are read in an epoch: optimizer steps x accumulate."""
        return len(self.part.source) // self.batch * self.accumulate

    def set_epoch(self, epoch: int) -> None:
        """The next `iter` yields epoch `epoch` (0 is the first)."""
        self.epoch = epoch

    def __iter__(self):
        epoch, self.epoch = self.epoch, self.epoch + 1
        order, size = np.random.default_rng([self.seed, epoch]).permutation(len(self.part.source)), len(self)
        for rows in order[:size * (self.batch // self.accumulate)].reshape(size, -1):
            yield tensors(self.part, rows, self.device)
