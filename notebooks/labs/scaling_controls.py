"""The figures of lab 07's controls: equal footing, rates retuned at each batch, curvature; as in `scaling_figures`.

Each function returns (figure, text alternative, data).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from labs.curvature import running_median
from labkit.teach import viz
from labs.rules_scaling import standard_error
from labs.scaling import Map, accuracy_at_loss, power
from labs.scaling_figures import accuracy_axis, batch_axis, hollow, legend


def equal_footing(recorded: Mapping[str, Map], yours: Mapping[str, Map]):
    """Accuracy by batch at equal epochs (retuned), at equal training loss, and at equal updates, one panel a model.

    The loss is what the best cell of the largest batch ends with; bars are one standard error.
    """
    looks = {
        "equal epochs": (viz.RECORDED, "o"),
        "equal loss": (viz.SERIES[0], "s"),
        "equal updates": (viz.SERIES[1], "^"),
    }
    fig, axes = viz.figure(2, 1, height=3.2, sharey=True)
    rows = []
    for ax, model in zip(axes, recorded):
        for source in (recorded[model], yours[model]):
            best = {batch: source.retuned(batch) for batch in source.table.batches}
            loss = source.mean(best[source.largest], "train_loss") if best[source.largest] else math.nan
            mine, points = [], dict.fromkeys(looks, ())
            for batch, cell in best.items():
                longer = [run.last("test_accuracy") for run in source.longer if run.config["batch"] == batch]
                read = [accuracy_at_loss(run, 1.001 * loss) for run in source.found(cell)] if cell else []
                values = {
                    "equal epochs": source.values(cell) if cell else [],
                    "equal updates": longer,
                    "equal loss": [value for value in read if math.isfinite(value)],
                }
                for name, found in values.items():
                    if found:
                        points[name] += ((batch, float(np.mean(found)), standard_error(found, source.images)),)
                means = {name: float(np.mean(found)) if found else math.nan for name, found in values.items()}
                if cell or longer:
                    mine.append(
                        {
                            "model": model,
                            "source": "yours" if source is yours[model] else "recorded",
                            "batch": batch,
                            **means,
                            "loss": loss,
                        }
                    )
            for name, (colour, marker) in looks.items():
                if points[name] and source is yours[model]:
                    x, y, _ = zip(*points[name])
                    ax.plot(x, y, **hollow(marker))
                elif points[name]:
                    x, y, error = zip(*points[name])
                    ax.errorbar(
                        x, y, yerr=error, color=colour, marker=marker, linestyle="-", linewidth=1.2, elinewidth=0.8
                    )
            rows += mine
        main = recorded[model] if recorded[model].runs else yours[model]
        batch_axis(ax, main)
        ax.set_title(model)
    accuracy_axis(
        axes[0], high=0.99, low=min([0.8, *(row["equal epochs"] for row in rows if row["equal epochs"] > 0.05)])
    )
    lines = [(name, {"color": colour, "marker": marker, "linestyle": "-"}) for name, (colour, marker) in looks.items()]
    legend(fig, axes[0], [*lines, ("yours, by shape", hollow("o"))], 4)
    said = []
    for row in rows:
        numbers = [f"{name} {row[name]:.3f}" for name in looks if math.isfinite(row[name])]
        said.append(f"{row['model']} ({row['source']}), batch {row['batch']}: {', '.join(numbers)}")
    return fig, f"Test accuracy. {'; '.join(said) or 'Nothing trained yet'}.", pd.DataFrame(rows)


def retuned(recorded: Map, yours: Map, solvers: Sequence[str] = ("adam", "rmsprop", "adagrad", "adadelta")):
    """The best of every solver when its rate is retuned at each batch, and LEGW scaled from each flat base rate."""
    looks = {
        "sgd": (viz.RECORDED, "o"),
        "adam": (viz.SERIES[2], "s"),
        "rmsprop": (viz.SERIES[1], "D"),
        "adagrad": (viz.SERIES[3], "v"),
        "adadelta": (viz.SERIES[4], "P"),
        "LEGW": (viz.SERIES[0], "^"),
    }
    rows = []
    for source in (recorded, yours):
        origin = "yours" if source is yours else "recorded"
        for batch in source.table.batches:
            cell = source.retuned(batch)
            if cell:
                setting = f"rate {power(cell.rate)}, warm-up {cell.warmup_steps:g}"
                rows.append((origin, "sgd", "retuned", batch, source.mean(cell), setting))
            for name in solvers:
                best = source.solver(name, batch)
                if best:
                    rows.append((origin, name, "retuned", batch, best[1], f"rate {power(best[0])}"))
            for rate in source.flat() if source.runs else ():
                cell = source.at("legw", rate, batch)
                if source.found(cell):
                    rows.append((origin, "LEGW", "scaled", batch, source.mean(cell), f"base rate {power(rate)}"))
    frame = pd.DataFrame(rows, columns=["source", "solver", "protocol", "batch", "test accuracy", "setting"])
    fig, ax = viz.figure(width=6.5, height=3.5)
    for (source, solver), group in frame.groupby(["source", "solver"], sort=False):
        colour, marker = looks[solver]
        line = {"color": colour, "marker": marker, "linestyle": "none" if solver == "LEGW" else "-"}
        ax.plot(group["batch"], group["test accuracy"], **(hollow(marker) if source == "yours" else line))
    main = recorded if recorded.runs else yours
    batch_axis(ax, main)
    accuracy_axis(ax, f"test accuracy, {main.model}", low=min([0.5, *frame["test accuracy"].clip(lower=0.05) * 0.85]))
    names = [name for name in looks if ((frame["solver"] == name) & (frame["source"] == "recorded")).any()]
    entries = [
        (
            "LEGW, scaled from each flat base rate" if name == "LEGW" else f"{name}, retuned",
            {"color": looks[name][0], "marker": looks[name][1], "linestyle": "none" if name == "LEGW" else "-"},
        )
        for name in names
    ]
    legend(fig, ax, [*entries, ("yours, by shape", hollow("o"))], 3)
    top = frame[frame["batch"] == main.largest].to_dict("records")
    said = [
        f"{row['solver']} {row['protocol']} {row['test accuracy']:.3f} ({row['setting']}, {row['source']})"
        for row in top
    ]
    scaled = frame["setting"].where(frame["protocol"] == "scaled", "rate " + frame["protocol"])
    data = frame.assign(setting=scaled).pivot(
        index=["source", "solver", "setting"], columns="batch", values="test accuracy"
    )
    return fig, f"{main.model} at batch {main.largest}: {'; '.join(said) or 'not trained'}.", data.reset_index()


def curvature(recorded: Sequence, yours: Sequence):
    """Smoothed, signed curvature along the gradient against epochs and against updates.

    Lines are the first seed of each batch, recorded in blue and yours, dotted, in orange; a triangle marks the peak of
    every seed.
    """
    fig, axes = viz.figure(2, 1, height=3.0, sharey=True)
    rows, named = [], set()
    for run, own in [*((run, False) for run in recorded), *((run, True) for run in yours)]:
        probes, batch = run.series("curvature"), run.config["batch"]
        smooth = running_median([row.value for row in probes])
        top, colour = int(np.argmax(smooth)), viz.YOURS if own else viz.RECORDED
        for ax, axis in zip(axes, ("epoch", "step")):
            x = [getattr(row, axis) for row in probes]
            ax.plot(x[top], smooth[top], color=colour, marker="v", markersize=6, markeredgecolor="white", zorder=5)
            if (own, batch, axis) not in named:
                named.add((own, batch, axis))
                again = own and (False, batch, axis) in named  # the recorded line is labelled already
                ax.plot(x[1:], smooth[1:], color=colour, marker="", linestyle=":" if own else "-", linewidth=1.2)
                ax.annotate(
                    "" if again else f"{batch}",
                    (x[top], smooth[top]),
                    xytext=(0, 6),
                    textcoords="offset points",
                    ha="center",
                    color=colour,
                    fontsize=8,
                )
        rows.append(
            {
                "source": "yours" if own else "recorded",
                "batch": batch,
                "seed": run.header.repeat,
                "start": smooth[0],
                "peak": smooth[top],
                "end": smooth[-1],
                "peak epoch": probes[top].epoch,
                "peak update": probes[top].step,
            }
        )
    for ax, label in zip(axes, ("epoch", "update")):
        ax.set_xscale("log", base=2)
        ax.set_xlabel(f"{label} (labels: batch size)")
    axes[0].margins(y=0.12)
    axes[0].set_ylabel("curvature along the gradient")
    frame = pd.DataFrame(rows)
    said = (
        [
            f"{source}, batch {batch}: epoch {group['peak epoch'].mean():.3g}, update {group['peak update'].mean():.0f}"
            for (source, batch), group in frame.groupby(["source", "batch"])
        ]
        if rows
        else []
    )
    return (
        fig,
        f"Where the smoothed curvature of the row-LSTM peaks at one rate: {'; '.join(said) or 'not run'}.",
        frame,
    )
