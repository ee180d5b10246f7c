"""What the planner speaks of: units of a network, a machine, a placement, and the plan that a placement gives."""

from dataclasses import dataclass

from labkit.errors import RequestError

LETTERS = {"d": "data", "s": "spatial", "c": "columns", "r": "rows"}
NEEDS = {"d": "samples", "s": "height", "r": "channels"}  # `c` takes everything
GIVES = {"d": "samples", "s": "height", "c": "channels"}  # `r` gives what the next one asks for


@dataclass(frozen=True)
class Unit:
    """A layer with weights and the weightless ones behind it; words are per sample."""

    name: str
    kind: str  # conv or fc
    weights: int
    inputs: int  # words into it
    own: int  # words out of the layer with weights
    outputs: int  # words out of the last layer of the unit
    saved: int  # words kept for the backward pass: the inputs of all its layers
    macs: int
    cin: int
    cout: int
    rows: int = 0  # fewest rows of any of its layers' images; 0: there is no image
    halo: int = 0  # words of rows of the image that cross one border between neighbours in a step, there and back
    hops: int = 0  # messages that carry them


@dataclass(frozen=True)
class Machine:
    """One device and its link: FLOP/s, bytes/s, seconds a message, bytes of memory; bytes a word; words of optimizer
    state a weight (1: momentum)."""

    flops: float = 10e12
    bandwidth: float = 10e9
    latency: float = 5e-6
    memory: float = 16e9
    word: int = 4
    optimizer: int = 1

    def __post_init__(self):
        for name, value in vars(self).items():
            least = 0 if name in ("latency", "optimizer") else 1e-300
            if not least <= value:
                raise RequestError(f"{name} {value} of a machine is out of range; it must be {'0 or more' if not least else 'above 0'}")

    def seconds(self, words: float, messages: float) -> float:
        """Time to send so many words in so many messages, one after the other."""
        return words * self.word / self.bandwidth + messages * self.latency


@dataclass(frozen=True)
class Placement:
    """`stages`: a text of letters for each stage, one a unit; `micro`: microbatches; `sharded`: see the module."""

    stages: tuple[str, ...]
    micro: int = 1
    sharded: bool = False

    def __str__(self) -> str:
        text = " | ".join(self.stages) + (f", M = {self.micro}" if self.micro > 1 else "")
        return text + (", sharded" if self.sharded else "")


@dataclass(frozen=True)
class Stage:
    """What the devices of one stage do: seconds, words and messages of one microbatch, and once at the end of a step;
    bytes of memory; words of a step by unit."""

    compute: float
    even: float  # the same, were the work divided evenly
    words: float
    messages: float
    end_words: float
    end_messages: float
    memory: float
    by_unit: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """A placement with its cost: seconds a step (the sum of the three below), words and messages that the busiest
    device sends, bytes by stage, whether they fit, words by unit."""

    placement: Placement
    seconds: float
    compute: float  # of all devices, evenly divided
    communication: float  # of the slowest stage
    waiting: float  # filling and draining the pipeline, and uneven pieces
    words: float
    messages: float
    memory: tuple[float, ...]
    fits: bool
    by_unit: tuple[float, ...]
