"""Lab 08's figures about trained networks, recorded runs with yours laid over: solvers tuned at the largest batch, the
exclusion list, the images' ladder, three warm-ups. Each function returns (figure, text alternative, data).
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from labkit.teach import viz
from labs.layerwise import LABELS, Arm
from labs.rules_layerwise import finite
from labs.rules_scaling import standard_error
from labs.scaling_figures import accuracy_axis, hollow, legend

LOOKS = {
    "sgd": ("#404040", "v"),
    "nesterov": (viz.SERIES[0], "o"),
    "lars": (viz.SERIES[1], "s"),
    "lamb": (viz.SERIES[2], "^"),
    "adam": (viz.SERIES[3], "D"),
    "adamw": (viz.SERIES[4], "P"),
    "rmsprop": ("#707070", "X"),
    "adagrad": ("#8a6d00", "<"),
    "adadelta": ("#00695c", ">"),
}


def floor(values) -> float:
    """Where an accuracy axis begins: below the lowest of the values that are worth drawing."""
    values = [value for value in values if math.isfinite(value) and value > 0]
    return min([0.85, *(0.85 * value for value in values)]) if values else 0.5


def by_shape(fig, ax, looks: Mapping[str, tuple], recorded: bool) -> None:
    """A legend of (colour, marker, line) by name; where nothing is recorded, of the orange shapes that are drawn."""
    lines = {name: {"color": look[0], "marker": look[1], "linestyle": look[2]} for name, look in looks.items()}
    entries = [(name, line if recorded else hollow(line["marker"])) for name, line in lines.items()]
    legend(fig, ax, [*entries, ("yours, by shape", hollow("o"))] if recorded else entries, 5)


def tuned(recorded: Mapping[str, Arm], yours: Mapping[str, Arm], model: str):
    """Left: validation accuracy over each solver's rates. Right: test accuracy at the best rate against seconds."""
    fig, axes = viz.figure(2, 1, width=6.5, height=3.7)
    rows = []
    for source, found in (("recorded", recorded), ("yours", yours)):
        for solver, arm in found.items():
            colour, marker = LOOKS[solver]
            own = source == "yours"
            tried = arm.validation()
            look = hollow(marker) if own else {"color": colour, "marker": marker, "linestyle": "-", "linewidth": 1.0}
            axes[0].plot(list(tried), list(tried.values()), **look)
            axes[1].errorbar(
                [arm.seconds], [arm.mean], yerr=[arm.error], elinewidth=0.8, **{**look, "linestyle": "none"}
            )
            rows.append({"source": source, "solver": LABELS[solver], **arm.row()})
    axes[0].set_xscale("log", base=2)
    axes[0].set_xlabel("peak rate (each solver has its own unit)")
    accuracies = [row["test accuracy"] for row in rows]
    accuracy_axis(axes[0], "validation accuracy", low=0.05, high=0.985)
    accuracy_axis(axes[1], "test accuracy at the best rate", low=floor(accuracies), high=0.985)
    axes[1].set_xlabel("seconds of training")
    axes[0].set_title(model)
    names = {LABELS[solver]: (*LOOKS[solver], "none") for solver in recorded or yours}
    by_shape(fig, axes[0], names, bool(recorded))
    said = "; ".join(
        f"{row['solver']} {row['test accuracy']:.3f} +/- {row['s.e.']:.3f} at {row['best rate']}"
        f" in {row['seconds']:.3g} s ({row['source']}, {row['seeds']} seeds)"
        for row in sorted(rows, key=lambda row: -row["test accuracy"])
    )
    return fig, f"{model} at the largest batch, test accuracy: {said or 'nothing trained yet'}.", pd.DataFrame(rows)


def exclusion(recorded: Mapping[str, Arm], yours: Mapping[str, Arm]):
    """Validation accuracy against the rate of LARS with its exclusion list and without."""
    looks = {"excluded": (viz.SERIES[0], "o", "-"), "nothing excluded": (viz.SERIES[2], "^", "--")}
    fig, ax = viz.figure(width=5.0, height=2.8)
    rows = []
    for source, found in (("recorded", recorded), ("yours", yours)):
        for name, arm in found.items():
            colour, marker, line = looks[name]
            tried = arm.validation()
            look = hollow(marker) if source == "yours" else {"color": colour, "marker": marker, "linestyle": line}
            ax.plot(list(tried), list(tried.values()), **look)
            rows.append({"source": source, "arm": name, **arm.row()})
    ax.set_xscale("log", base=2)
    ax.set_xlabel("peak rate")
    accuracy_axis(ax, "validation accuracy", low=0.05, high=0.985)
    by_shape(fig, ax, {name: looks[name] for name in recorded or yours}, bool(recorded))
    said = "; ".join(f"{row['arm']} {row['test accuracy']:.3f} at {row['best rate']} ({row['source']})" for row in rows)
    return (
        fig,
        f"LARS on ResNet-8, test accuracy at the best rate: {said or 'nothing trained yet'}.",
        pd.DataFrame(rows),
    )


def ladder(recorded: Mapping[int, list], yours: Mapping[int, list], images: int = 452):
    """Test accuracy and seconds of training against the batch, LARS scaled by LEGW from one base rate."""
    fig, axes = viz.figure(2, 1, height=2.7)
    rows = []
    for source, found in (("recorded", recorded), ("yours", yours)):
        for batch, runs in sorted(found.items()):
            values = [finite(run.last("test_accuracy")) for run in runs]
            rows.append(
                {
                    "source": source,
                    "batch": batch,
                    "peak rate": runs[0].config["rate"],
                    "seeds": len(values),
                    "test accuracy": float(np.mean(values)),
                    "s.e.": standard_error(values, images),
                    "seconds": float(np.median([run.seconds("train") for run in runs])),
                }
            )
    frame = pd.DataFrame(rows)
    for source, part in frame.groupby("source") if rows else ():
        look = hollow("o") if source == "yours" else {"color": viz.RECORDED, "marker": "o", "linestyle": "-"}
        axes[0].errorbar(part["batch"], part["test accuracy"], yerr=part["s.e."], elinewidth=0.8, **look)
        axes[1].plot(part["batch"], part["seconds"], **look)
    for ax in axes:
        viz.log2_axis(ax, sorted({*frame["batch"]}) if rows else [16], "batch size")
    accuracy_axis(axes[0], low=floor(row["test accuracy"] for row in rows), high=0.985)
    axes[1].set_yscale("log")
    axes[1].set_ylabel("seconds of training")
    said = "; ".join(
        f"batch {row['batch']}: {row['test accuracy']:.3f} +/- {row['s.e.']:.3f} in {row['seconds']:.3g} s"
        f" ({row['source']})"
        for row in rows
    )
    return fig, f"ResNet-8 with LARS, scaled by LEGW. {said or 'Nothing trained yet'}.", frame


def warmups(recorded: Mapping[str, dict], yours: Mapping[str, dict]):
    """Mean test accuracy of the deep MLP against the peak rate for three kinds of warm-up."""
    looks = {
        "none": ("#404040", "v", ":"),
        "constant": (viz.SERIES[2], "^", "--"),
        "gradual": (viz.SERIES[0], "o", "-"),
    }
    fig, ax = viz.figure(width=5.0, height=2.8)
    rows = []
    for source, found in (("recorded", recorded), ("yours", yours)):
        for kind, by_rate in found.items():
            colour, marker, line = looks[kind]
            means = {rate: float(np.mean(values)) for rate, values in sorted(by_rate.items())}
            look = hollow(marker) if source == "yours" else {"color": colour, "marker": marker, "linestyle": line}
            ax.plot(list(means), list(means.values()), **look)
            rows += [
                {
                    "source": source,
                    "warm-up": kind,
                    "peak rate": rate,
                    "test accuracy": mean,
                    "seeds": len(by_rate[rate]),
                }
                for rate, mean in means.items()
            ]
    ax.set_xscale("log", base=2)
    ax.set_xlabel("peak rate")
    accuracy_axis(ax, low=0.05, high=0.985)
    by_shape(fig, ax, {kind: looks[kind] for kind in recorded or yours}, bool(recorded))
    frame = pd.DataFrame(rows)
    said = "; ".join(
        f"{kind} " + ", ".join(f"{row['test accuracy']:.3f} at {row['peak rate']:g}" for _, row in part.iterrows())
        for (source, kind), part in (frame.groupby(["source", "warm-up"]) if rows else ())
        if source == ("recorded" if recorded else "yours")
    )
    return fig, f"Deep MLP at the largest batch by kind of warm-up: {said or 'nothing trained yet'}.", frame
