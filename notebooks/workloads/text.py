"""Text as plain numpy arrays of token numbers: a Markov chain of known entropy, English prose, the Penn Treebank.

Only the iteration of `Streams`, the windows that a recurrent network reads, needs torch."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from labkit.datasets.download import require
from workloads.markov import Chain
from labkit.errors import RequestError, choose

# name: options that it takes
OPTIONS = {"markov": ("vocabulary", "order", "branching", "seed"), "prose": ("vocabulary",), "ptb": ("vocabulary",)}
NAMES = tuple(OPTIONS)
PARTS, UNKNOWN, END = ("train", "validation", "test"), "<unk>", "<eos>"
EVALUATED = 8192  # tokens of the validation and test parts of a Markov text where no number is given
TOKEN = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]")


@dataclass(frozen=True, eq=False)
class Text:
    """One corpus, split.

    Attributes:
        train, validation, test: int64 [tokens], 0 to vocabulary - 1.
        words: the token of each number; empty for a Markov text.
        chain: what a Markov text was drawn from, else None.
        checksum: sha256 (hexadecimal) of the tokens and the words."""

    name: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    vocabulary: int
    words: tuple
    checksum: str
    chain: Chain | None = None

    @property
    def floor(self) -> float | None:
        """The least expected loss of any model, nats per token: the entropy rate of the chain, else None."""
        return None if self.chain is None else self.chain.entropy_rate


def load(name: str, *, train: int, validation: int | None = None, test: int | None = None, **options) -> Text:
    """A corpus by name.

    Args:
        name: `markov`: generated, the three parts drawn independently from one chain. `prose`: the help texts of
            CPython's `pydoc`, lower-cased words and punctuation, topics in one fixed random order: training takes the
            front, test the last tenth, validation the tenth before it. `ptb`: the Penn Treebank's own parts.
        train, validation, test: tokens, from the front of the part; None is all there are (of markov 8192).
        options: for markov those of `Chain`; for the others `vocabulary` (10 000), at most so many tokens, the most
            frequent of the training part. The rest becomes `<unk>`.

    Raises:
        RequestError: unknown name or option, more tokens than there are, or the Penn Treebank is not here.
        WorkError: its files are damaged."""
    choose("text", name, NAMES)
    for option in options:
        choose(f"option of {name}", option, OPTIONS[name])
    asked = dict(zip(PARTS, (train, validation, test), strict=True))
    for part, count in asked.items():
        if count is not None and (type(count) is not int or count < (part == "train")):
            raise RequestError(f"{part} must be a whole number of tokens, not {count!r}")
    if name == "markov":
        chain, words = Chain(**options), ()
        parts = [chain.sample(EVALUATED if count is None else count, np.random.default_rng([chain.seed, place]))
                 for place, count in enumerate(asked.values(), start=1)]
    else:
        chain, most = None, options.get("vocabulary", 10_000)
        if type(most) is not int or most < 2:
            raise RequestError(f"vocabulary of {name} must be a whole number, 2 or more, not {most!r}")
        texts = _prose() if name == "prose" else _treebank()
        for part, text in zip(PARTS, texts, strict=True):
            if (asked[part] or 0) > len(text):
                raise RequestError(f"{name} has {len(text)} {part} tokens, not {asked[part]}; ask for no more")
        texts = [text[:asked[part]] for part, text in zip(PARTS, texts, strict=True)]
        counts = Counter(texts[0])
        ranked = sorted(counts.keys() - {UNKNOWN}, key=lambda word: (-counts[word], word))
        words = (UNKNOWN, *ranked[:most - 1])
        number = {word: at for at, word in enumerate(words)}
        parts = [np.array([number.get(word, 0) for word in text], dtype=np.int64) for text in texts]
    digest = hashlib.sha256("\n".join(words).encode())
    for part in parts:
        digest.update(f"{part.shape}".encode() + part.astype("<i8").tobytes())
    return Text(name, *parts, len(words) or chain.vocabulary, words, digest.hexdigest(), chain)


@lru_cache(maxsize=1)
def _prose() -> tuple:
    """Tokens of the parts; topics in the order of their names' hashes, the same in every version of Python."""
    from pydoc_data.topics import topics

    order = sorted(topics, key=lambda topic: hashlib.sha256(topic.encode()).hexdigest())
    tokens = [token for topic in order for token in (*TOKEN.findall(topics[topic].lower()), END)]
    tenth = len(tokens) // 10
    return tokens[:-2 * tenth], tokens[-2 * tenth:-tenth], tokens[-tenth:]


def _treebank() -> list:
    folder = require("ptb")
    texts = [(folder / f"ptb.{part}.txt").read_text(encoding="utf-8") for part in ("train", "valid", "test")]
    return [text.replace("\n", f" {END} ").split() for text in texts]


class Streams:
    """A text cut into `batch` parallel streams, read in windows of `window` tokens, one window of every stream a batch.

    Iterating gives (inputs [batch, window], targets [batch, window], first): a target is the token after its input;
    `first` is True where the streams begin, and there the state of a recurrent network starts from nothing. Each epoch
    reads the same windows in the same order, so that a state can be carried on; a checkpoint keeps the place.

    What is left over of tokens / `batch` is not read; nor is the last, shorter window, unless `tail` is set, as for an
    evaluation. More streams make that faster and a little pessimistic: each begins without a state."""

    def __init__(self, tokens, batch: int, window: int, *, tail: bool = False, device="cpu"):
        length = len(tokens) // batch
        if length < 2 or (not tail and length - 1 < window):
            raise RequestError(f"{len(tokens)} tokens are too few for {batch} streams in windows of {window}; "
                               f"give at least {batch * (2 if tail else window + 1)}")
        self._rows, self._place = tokens[:batch * length].reshape(batch, length), 0
        self._window, self._device = window, device
        self._windows = -(-(length - 1) // window) if tail else (length - 1) // window

    def __len__(self) -> int:
        return self._windows

    def __iter__(self):
        import torch

        rows = torch.as_tensor(self._rows, device=self._device)
        start, self._place = self._place % len(self), 0
        for at in range(start, len(self)):
            left, self._place = at * self._window, at + 1
            right = min(left + self._window, rows.shape[1] - 1)
            yield rows[:, left:right], rows[:, left + 1:right + 1], at == 0

    def state_dict(self) -> dict:
        return {"place": self._place}

    def load_state_dict(self, state: dict) -> None:
        self._place = state["place"]
