"""What each way of splitting a network sends in one training step: closed forms, exact for these implementations.

A `Traffic` is the total over all P ranks, of ring collectives; divided by P it is what a rank sends on average. Sizes
are words of the whole batch. When not to use it: for seconds, see `labkit.simulate.cost`; for other collectives."""

from typing import NamedTuple


class Traffic(NamedTuple):
    """Sent by all ranks together."""
    messages: int
    words: int

    def __add__(self, other):
        return Traffic(self.messages + other.messages, self.words + other.words)


def gather(ranks: int, words: int) -> Traffic:
    """All-gather of `words` in all, or reduce-scatter of as many."""
    return Traffic(ranks * (ranks - 1), words * (ranks - 1))


def exchange(ranks: int, words: int) -> Traffic:
    """All-to-all: every rank keeps 1/P of its share of `words`; P squared divides them."""
    return Traffic(ranks * (ranks - 1), words * (ranks - 1) // ranks)


def all_reduce(ranks: int, words: int) -> Traffic:
    """Reduce-scatter and all-gather: of w for data parallelism; of inputs for columns, of outputs for rows."""
    return gather(ranks, words) + gather(ranks, words)


def sharded(ranks: int, *units: int) -> Traffic:
    """Parameters of each unit gathered for the forward and again for the backward pass, gradients reduce-scattered."""
    return Traffic(3 * len(units) * ranks * (ranks - 1), 3 * sum(units) * (ranks - 1))


def halo(ranks: int, row: int, above: int, below: int, gradient: bool = True) -> Traffic:
    """A window over an image cut by rows of N C W words; the input needs a `gradient` or not."""
    crossings = (2 if gradient else 1) * (ranks - 1)
    return Traffic(crossings * ((above > 0) + (below > 0)), crossings * row * (above + below))


def pipeline(stages: int, border: int, microbatches: int) -> Traffic:
    """Activations forward and gradients back over each border, of `border` words."""
    return Traffic(2 * microbatches * (stages - 1), 2 * border * (stages - 1))
