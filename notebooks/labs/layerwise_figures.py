"""Lab 08's figures about the rules themselves: trust ratios at the start, dialects under a ramp, bias correction.

Each function returns (figure, text alternative, data).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from labkit import optim
from labkit.optim.groups import parameter_groups
from labkit.teach import viz
from labs import layerwise_ramp
from labs.scaling_figures import legend


def layer_kinds(model: nn.Module) -> dict[str, str]:
    """{name: "weight", "norm" or "bias"} of every parameter, as the exclusion list sees them."""
    excluded = {id(p) for p in parameter_groups(model, 0.0)[1]["params"]}
    return {
        name: "weight" if id(p) not in excluded else "bias" if name.endswith("bias") else "norm"
        for name, p in model.named_parameters()
    }


def first_gradients(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> nn.Module:
    """The model with the gradient of one batch in it."""
    model.zero_grad()
    F.cross_entropy(model(images), classes).backward()
    return model


def stepped(model: nn.Module, dialect: str, rate: float) -> pd.DataFrame:
    """One first step of a dialect from the gradients in `model`, which stays as it is: the lengths of each tensor's
    weights, gradient and step. `dialect` is "SGD", "LAMB" or a name in `labkit.optim.dialects.LARS`.
    """
    kinds = layer_kinds(model)
    named = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        named[name].grad = p.grad.clone()
    groups = [
        {"params": [p for name, p in named.items() if (kinds[name] == "weight") == adapt], "adapt": adapt}
        for adapt in (True, False)
    ]
    for group in groups:
        group["weight_decay"] = 1e-4 if group["adapt"] else 0.0
    if dialect == "SGD":
        optimizer = torch.optim.SGD([p for group in groups for p in group["params"]], rate)
    elif dialect == "LAMB":
        optimizer = optim.LAMB(groups, rate)
    else:
        optimizer = optim.LARS(groups, rate, dialect=dialect)
    optimizer.step()
    rows = []
    for name, p in model.named_parameters():
        step = float((named[name] - p).detach().norm())
        rows.append((name, kinds[name], float(p.detach().norm()), float(p.grad.norm()), step))
    frame = pd.DataFrame(rows, columns=["tensor", "kind", "|w|", "|g|", "|step|"])
    norms = frame["|w|"].where(frame["|w|"] > 0)
    return frame.assign(**{"|w| / |g|": norms / frame["|g|"], "step / |w|": frame["|step|"] / norms})


def at_init(model: nn.Module, dialect: str, rate: float):
    """Per tensor, from the input on: |w| / |g|, and what a first step changes of the tensor, |step| / |w|."""
    frame = stepped(model, dialect, rate)
    looks = {"weight": (viz.SERIES[0], "o"), "norm": (viz.SERIES[1], "s")}
    fig, axes = viz.figure(2, 1, height=2.9)
    for ax, column in zip(axes, ("|w| / |g|", "step / |w|"), strict=True):
        for kind, (colour, marker) in looks.items():
            part = frame[(frame["kind"] == kind) & (frame["|w|"] > 0)]
            ax.plot(part.index, part[column], color=colour, marker=marker, linestyle="none")
        ax.set_yscale("log")
        ax.set_title(column)
        ax.set_xlabel("tensor, from the input on")
    plain = frame[frame["kind"] == "weight"]
    middle = float(plain["step / |w|"].median())
    axes[1].axhline(middle, color=viz.LITERATURE, linewidth=0.8, linestyle=":")
    lowest = min(1e-5, float(frame["step / |w|"].min()) / 2)
    axes[1].set_ylim(lowest, max(10.0, 2 * float(frame["step / |w|"].max())))
    entries = [
        (name, {"color": looks[kind][0], "marker": looks[kind][1], "linestyle": "none"})
        for kind, name in (("weight", "weights of a layer"), ("norm", "scale of a batch norm"))
    ]
    legend(fig, axes[0], entries, 2)
    spread = [float(plain[column].max() / plain[column].min()) for column in ("|w| / |g|", "step / |w|")]
    alt = (
        f"{dialect} at rate {rate:g}, first step. Over the {len(plain)} weight tensors |w| / |g| differs by a factor "
        f"of {spread[0]:.3g}, {plain['|w| / |g|'].min():.3g} to {plain['|w| / |g|'].max():.3g}; the step over |w| by "
        f"{spread[1]:.3g}, its median {middle:.2g}. {(frame['|w|'] == 0).sum()} biases start at 0 and are not drawn."
    )
    return fig, alt, frame.drop(columns="kind")


def grouped(ratios: Mapping[str, np.ndarray], within: float = 0.02) -> list[tuple[str, np.ndarray]]:
    """Dialects whose ratios never differ by more than `within` share one line: (their names, the ratios)."""
    lines: list[tuple[list, np.ndarray]] = []
    for name, values in ratios.items():
        for names, known in lines:
            if np.max(np.abs(values / known - 1)) <= within:
                names.append(name)
                break
        else:
            lines.append(([name], values))
    return [(", ".join(names), values) for names, values in lines]


def under_a_ramp(
    lars: Mapping[str, np.ndarray], lamb: Mapping[str, np.ndarray], steps: Sequence[int] = (1, 5, 20, 100, 190)
):
    """Step of each dialect over the paper's, by update: 40 up, then poly(2) down; LARS left, LAMB right."""
    fig, axes = viz.figure(2, 1, height=3.9, sharey=True)
    rows = []
    colours = [viz.LITERATURE, *viz.SERIES]
    for ax, (kind, ratios) in zip(axes, (("LARS", lars), ("LAMB", lamb)), strict=True):
        for place, (names, values) in enumerate(grouped(ratios)):
            colour, line = colours[place % len(colours)], viz.LINES[place % len(viz.LINES)]
            words = names.split(", ")
            wrapped = ",\n".join(", ".join(words[n : n + 3]) for n in range(0, len(words), 3))
            ax.plot(values, color=colour, linestyle=line, marker="", linewidth=1.5, label=wrapped)
            rows.append({"optimizer": kind, "dialects": names, **{f"t = {t}": values[t] for t in steps}})
        ax.set_yscale("log", base=2)
        ax.set_ylim(0.2, 80)
        ticks = (0.25, 0.5, 1, 2, 4, 8)
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.axvline(layerwise_ramp.STEPS / 5, color=viz.LITERATURE, linewidth=0.8, linestyle=":")
        ax.set_title(kind)
        ax.set_xlabel("update (the rate is highest at 40)")
        with viz.style():
            ax.legend(loc="upper left", fontsize=7, handlelength=1.6, borderaxespad=0.1)
    axes[0].set_ylabel("step over the paper's step")
    said = "; ".join(
        f"{row['optimizer']} as in {row['dialects']}: " + ", ".join(f"{row[f't = {t}']:.2f} at {t}" for t in steps)
        for row in rows
        if "paper" not in row["dialects"]
    )
    alt = f"Step over the paper's under a ramp of 40 updates and a poly(2) decay. {said}. The others stay within 2 %."
    return fig, alt, pd.DataFrame(rows)


def correction(rows: Mapping[str, Sequence[tuple]]):
    """LAMB's step without bias correction over the one with it, by update, for each setting."""
    fig, ax = viz.figure(width=5.5, height=2.7)
    data = []
    for place, (setting, values) in enumerate(rows.items()):
        y = [value for _, value, _ in values]
        x = [step for _, _, step in values]
        ax.plot(x, y, color=viz.SERIES[place], marker="", linestyle=viz.LINES[place])
        at = 5 if setting == "equal betas" else -1  # where it is alone
        viz.direct_label(ax, x[at], y[at], setting, viz.SERIES[place])
        data.append({"setting": setting, **{f"t = {t}": y[t - 1] for t in (1, 2, 5, 10, 50)}})
    ax.set_yscale("log", base=2)
    ticks = (0.25, 0.5, 1, 2, 4, 8)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xlim(0, 60)
    ax.set_xlabel("update")
    ax.set_ylabel("step without / with\nbias correction")
    said = "; ".join(
        f"{row['setting']} {row['t = 1']:.2f} at update 1, {row['t = 10']:.2f} at 10, {row['t = 50']:.2f} at 50"
        for row in data
    )
    return fig, f"LAMB's step without bias correction over the step with it. {said}.", pd.DataFrame(data)
