"""Networks of the zoo (or your own) as the planner's chain of units, and all of them beside each other, by year."""

import functools
import itertools
from collections.abc import Sequence

import pandas as pd

from labkit.errors import RequestError
from labs import zoo
from labs.planner import Machine, Placement, Unit, score
from labs.planner_search import letters_for, schemes


def units_of(layers: Sequence) -> list[Unit]:
    """Rows of `zoo.layers` as units: each convolution or fully connected layer with the weightless layers (and batch
    norms) behind it, named conv1, conv2, ... fc6; what comes before the first one joins it.

    Raises:
        RequestError: there is no such layer, or one runs more than once: it would be held once and sent twice."""
    names = [layer.name for layer in layers if layer.parameters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"layer {', '.join(twice)} runs more than once with the same weights; give a chain of layers")
    groups, ahead = [], []
    for layer in layers:
        if layer.kind in ("conv", "fc"):
            groups.append([*([] if groups else ahead), layer])
        else:
            (groups[-1] if groups else ahead).append(layer)
    if not groups:
        raise RequestError("the network has no convolution and no fully connected layer; nothing to place")
    return [_unit(n, group) for n, group in enumerate(groups, 1)]


def _unit(n: int, group: Sequence) -> Unit:
    main = next(layer for layer in group if layer.kind in ("conv", "fc"))
    windows = [layer for layer in group if layer.kernel]
    sides = [shape[1] for layer in windows for shape in (layer.shape_in, layer.shape_out)]
    halo = hops = 0
    for layer in windows:
        ways = 1 if n == 1 and layer is main else 2  # the network's own input needs no gradient
        lacks = max(0, layer.kernel[0] - layer.stride[0])
        halo += ways * layer.shape_in[0] * layer.shape_in[2] * lacks
        hops += ways * ((lacks > 0) + (lacks > layer.padding[0] > 0))
    return Unit(
        name=f"{main.kind}{n}",
        kind=main.kind,
        weights=sum(layer.parameters for layer in group),
        inputs=group[0].words_in,
        own=main.words_out,
        outputs=group[-1].words_out,
        saved=sum(layer.words_in for layer in group),
        macs=main.macs,
        cin=main.shape_in[0],
        cout=main.shape_out[0],
        rows=min(sides, default=0) if main.kind == "conv" else 0,
        halo=halo,
        hops=hops,
    )


@functools.cache
def units(name: str) -> tuple[Unit, ...]:
    """A network of `zoo.NETWORKS` as units.

    Raises:
        RequestError: unknown name."""
    return tuple(units_of(zoo.layers(zoo.build(name), zoo.NETWORKS[name].shape)))


def by_year(names: Sequence[str], machine: Machine, devices: int, batch: int) -> pd.DataFrame:
    """A row a network: year, parameters, multiply-adds for each, seconds a step of data, model and hybrid (NaN: not
    possible), and how many of its layers the hybrid splits."""
    rows = []
    for name in names:
        layers = units(name)
        weights, macs = sum(u.weights for u in layers), sum(u.macs for u in layers)
        plans = schemes(layers, machine, devices, batch, ("data", "model", "hybrid"))
        times = {scheme: plan.seconds if plan else float("nan") for scheme, plan in plans.items()}
        letters = "".join(plans["hybrid"].placement.stages) if plans["hybrid"] else ""
        rows.append(
            {
                "network": name,
                "year": zoo.NETWORKS[name].year,
                "parameters": weights,
                "MACs per parameter": macs / weights,
                **times,
                "layers": len(layers),
                "split": sum(letter in "cr" for letter in letters),
            }
        )
    return pd.DataFrame(rows).sort_values(["year", "network"], ignore_index=True)


def hybrid_rows(name: str, machine: Machine, devices: int, batch: int, allowed: str = "dcr") -> tuple[str, list[tuple]]:
    """The planner's letters for a small network, and rows for evidence: how many convolutions go by data, how many
    fully connected layers are split, its seconds, and the best of all choices scored one by one."""
    layers = units(name)
    plan = letters_for(layers, machine, devices, batch, allowed)
    texts = ["".join(letters) for letters in itertools.product(allowed, repeat=len(layers))]
    best, tried = float("inf"), 0
    for text in texts:
        try:
            best = min(best, score(layers, machine, devices, batch, Placement((text,))).seconds)
            tried += 1
        except RequestError:  # three input channels for eight devices
            continue
    letters = plan.placement.stages[0]
    kinds = [(unit.kind, letter) for unit, letter in zip(layers, letters, strict=True)]
    rows = [
        ("conv", sum(kind == "conv" for kind, _ in kinds)),
        ("fc", sum(kind == "fc" for kind, _ in kinds)),
        ("conv by data", kinds.count(("conv", "d"))),
        ("fc split", sum(kind == "fc" and letter in "cr" for kind, letter in kinds)),
        ("seconds", plan.seconds),
        ("exhaustive seconds", best),
        ("tried", tried),
    ]
    return letters, rows
