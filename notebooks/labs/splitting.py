"""A training step of a chain of layers on real ranks, each layer split as its letter says: the placements of
`labs.planner`, executed.

| letter | split by | a rank takes | and gives |
|-|-|-|-|
| d data | samples | its samples | its samples |
| s spatial | rows of the image | its rows | its rows |
| c columns | output channels | everything | its channels |
| r rows | input channels | its channels | pieces of what is asked for next |

All `d` is data parallelism; convolutions `d` and fully connected layers `c` is Krizhevsky's "one weird trick". Every
activation lies on the ranks in pieces along one dimension: 0 samples, 1 channels, 2 rows. Where the next layer takes
other pieces, an exchange makes them.

*When not to use it*: to train (nothing overlaps); with layers that draw random numbers or look across samples (dropout,
batch normalisation)."""

from collections.abc import Sequence

import torch
from torch import nn

from labkit.errors import RequestError, choose
from labkit.networks import spatial, tensor

TAKES = {"d": 0, "s": 2, "r": 1, "c": None}
CUTS = {"c": "columns", "r": "rows"}


class Split(nn.Module):
    """This rank's part of a chain of `units`: each one layer with weights, with weightless layers around it.

    Raises:
        RequestError: letters that do not fit the units; see also `labkit.networks.tensor.part`."""

    def __init__(self, units: Sequence[nn.Sequential], letters: str, comm):
        super().__init__()
        if len(letters) != len(units):
            raise RequestError(f"{len(letters)} letters for {len(units)} units; give one for each")
        for letter in letters:
            choose("letter", letter, TAKES)
        self.letters, self.comm, self.units = letters, comm, nn.ModuleList()
        for unit, letter in zip(units, letters, strict=True):
            self.units.append(nn.Sequential(*(self._mine(layer, letter) for layer in unit)))

    def _mine(self, layer: nn.Module, letter: str) -> nn.Module:
        if letter == "s" and isinstance(layer, nn.Linear | nn.Flatten):
            raise RequestError(f"a {type(layer).__name__} has no rows of an image to split; choose d, c or r")
        return tensor.part(layer, CUTS[letter], self.comm) if letter in CUTS and len([*layer.parameters()]) else layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The whole batch [N, ...], of which a rank reads what it needs, to the outputs of this rank's samples.

        Raises:
            RequestError: pieces change their dimension, and the ranks do not divide N."""
        if set(self.letters) != {"d"} and len(x) % self.comm.size:
            raise RequestError(f"{len(x)} samples on {self.comm.size} ranks: other letters than d need a multiple of them")
        at = None  # the dimension along which the ranks hold pieces
        for unit, letter, after in zip(self.units, self.letters, self.letters[1:] + "d", strict=True):
            x, at = self._bring(x, at, TAKES[letter]), TAKES[letter]
            for layer in unit:
                x = spatial.by_rows(layer, x, self.comm) if letter == "s" else layer(x)
                if isinstance(layer, nn.Linear | nn.Conv2d) and letter in CUTS:
                    at = 1 if letter == "c" or TAKES[after] is None else TAKES[after]
                    x = tensor.scatter_sum(x, at, self.comm) if letter == "r" else x
        return self._bring(x, at, 0)

    def _bring(self, x: torch.Tensor, at: int | None, to: int | None) -> torch.Tensor:
        if at == to:
            return x
        if at is None:
            return tensor.own(x, to, self.comm)
        return tensor.gather(x, at, self.comm) if to is None else tensor.exchange(x, at, to, self.comm)

    def step(self, x: torch.Tensor, y: torch.Tensor, loss) -> torch.Tensor:
        """Gradients of the mean over the batch of `loss`, a sum over samples; returns this rank's part of that mean."""
        part = loss(self(x), tensor.own(y, 0, self.comm)) / len(x)
        part.backward()
        shared = [p for unit, letter in zip(self.units, self.letters, strict=True) if letter not in CUTS
                  for p in unit.parameters()]  # fmt: skip
        if shared:
            tensor.all_reduce_gradients(shared, self.comm)
        return part.detach()
