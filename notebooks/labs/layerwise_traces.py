"""Five anonymous optimizers, one trace each: the puzzle of lab 08. Nothing here is random.

A trace is what a log of a training run could hold: for each update the rate, the length of the gradient and the length
of the step, of one layer and of a tensor that starts at 0. Three things happen: the rate ramps up, falls to a tenth at
update `FALL`, and the gradient falls to a tenth at update `DROP`.
"""

import numpy as np
import pandas as pd
import torch

from labkit import optim
from labkit.teach import viz

RAMP, FALL, DROP, STEPS = 20, 40, 60, 80
PEAK, COEFFICIENT = 4.0, 1e-4  # so small that the layer hardly changes its length
# Which dialect wrote which trace; solve the puzzle before you read on.
WROTE = {"P": "timm", "Q": "noahgolmant", "R": "apex", "S": "paper", "T": "nus"}
NAMES = sorted(WROTE.values())

_FADES = "fades over the next twenty updates (old rates live on in the velocity)"
_FALLS = "falls to a tenth at once (the rate is applied outside the velocity)"
# What each dialect does at the three places where they part.
FEATURES = {
    "paper": {"fall": _FADES, "drop": "stays as it is", "zero": "moves"},
    "timm": {"fall": _FALLS, "drop": "stays as it is", "zero": "moves"},
    "nus": {"fall": _FALLS, "drop": "leaps and then fades (old gradients get the new, larger ratio)", "zero": "moves"},
    "noahgolmant": {"fall": _FADES, "drop": "stays as it is", "zero": "never moves"},
    "apex": {
        "fall": "falls to a tenth and climbs back (min(r, rate) is r: the rate cancels)",
        "drop": "stays as it is",
        "zero": "moves",
    },
}
PLACES = {
    "fall": f"when the rate falls at update {FALL}, the layer's step",
    "drop": f"when the gradient falls at update {DROP}, the layer's step",
    "zero": "the tensor that starts at 0",
}


def rate(step: int) -> float:
    """The rate of an update, counted from 0."""
    return PEAK * min(1.0, (step + 1) / RAMP) * (0.1 if step >= FALL else 1.0)


def trace(dialect: str) -> pd.DataFrame:
    """One row an update: update, rate, gradient (length), layer step, zero tensor step (lengths)."""
    generator = torch.Generator().manual_seed(8)
    direction = torch.randn(30, 20, generator=generator, dtype=torch.float64)
    direction /= direction.norm()
    layer = torch.randn(30, 20, generator=generator, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        layer *= 20.0 / layer.norm()
    zero = torch.zeros(10, 10, dtype=torch.float64, requires_grad=True)
    upward = torch.full((10, 10), 1e-3, dtype=torch.float64)
    optimizer = optim.LARS([layer, zero], lr=PEAK, weight_decay=1e-4, trust_coefficient=COEFFICIENT, dialect=dialect)
    rows = []
    for step in range(STEPS):
        size = 0.1 if step >= DROP else 1.0
        layer.grad, zero.grad = size * direction, size * upward
        optimizer.param_groups[0]["lr"] = rate(step)
        before = layer.detach().clone(), zero.detach().clone()
        optimizer.step()
        lengths = [float((now.detach() - then).norm()) for now, then in zip((layer, zero), before, strict=True)]
        rows.append((step, rate(step), size, *lengths))
    return pd.DataFrame(rows, columns=["update", "rate", "gradient", "layer step", "zero tensor step"])


def traces() -> dict[str, pd.DataFrame]:
    """{letter: its trace}."""
    return {letter: trace(dialect) for letter, dialect in WROTE.items()}


def at_the_places(frame: pd.DataFrame) -> dict:
    """The numbers to look at: the layer's step around both events, and whether the zero tensor ever moves."""
    layer = frame["layer step"]
    return {
        "early in the ramp": layer[2],
        "before the fall": layer[FALL - 1],
        "after it": layer[FALL],
        "before the drop": layer[DROP - 1],
        "after the drop": layer[DROP],
        "zero tensor": "moves" if (frame["zero tensor step"] > 0).any() else "never moves",
    }


def figure():
    """The five layer steps against the update, one panel each; (figure, text alternative, data)."""
    found = traces()
    fig, axes = viz.figure(5, 1, width=6.5, height=2.4, sharey=True)
    rows = []
    for ax, (letter, frame) in zip(axes, found.items(), strict=True):
        ax.plot(frame["update"], frame["layer step"], color=viz.RECORDED, marker="", linestyle="-")
        moving = frame[frame["zero tensor step"] > 0]
        ax.plot(moving["update"], moving["zero tensor step"], color=viz.SERIES[1], marker="", linestyle="--")
        for event in (FALL, DROP):
            ax.axvline(event, color=viz.LITERATURE, linewidth=0.8, linestyle=":")
        ax.set_yscale("log")
        ax.set_title(letter)
        ax.set_xticks([0, FALL, DROP])
        rows.append({"trace": letter, **at_the_places(frame)})
    axes[0].set_ylabel("length of the step")
    axes[2].set_xlabel("update (solid: the layer; dashed: the tensor that starts at 0)")
    said = "; ".join(
        f"{row['trace']}: {row['before the fall']:.3g} to {row['after it']:.3g} at the fall, "
        f"{row['before the drop']:.3g} to {row['after the drop']:.3g} at the drop, zero tensor {row['zero tensor']}"
        for row in rows
    )
    return fig, f"The layer's step in five traces. {said}.", pd.DataFrame(rows)


def parted(given: str, right: str) -> str:
    """The first place at which two dialects differ: (what was seen, what the given one would do)."""
    place = next(place for place in PLACES if FEATURES[given][place] != FEATURES[right][place])
    return f"{PLACES[place]} {FEATURES[right][place]}; in {given} it {FEATURES[given][place]}"


def leap(frame: pd.DataFrame) -> float:
    """The layer's largest step in the ten updates from the drop of the gradient on, over the one before."""
    layer = np.asarray(frame["layer step"])
    return float(layer[DROP : DROP + 10].max() / layer[DROP - 1])
