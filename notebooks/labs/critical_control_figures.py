"""The figures of lab 10's noise knob and controls; as in `critical_figures`.

Each function returns (figure, text alternative, data).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.teach import viz
from labs.critical import Study
from labs.critical_figures import empty, looks, sources, ticks
from labs.rules_critical_noise import ends, shares


def knob(recorded: Mapping[float, Study], yours: Mapping[float, Study]):
    """Critical batch with its interval, and noise scale, against the noise level of the images."""
    fig, ax = viz.figure(height=3.0)
    rows, said = [], []
    for name, studies, colour, line in (("recorded", recorded, viz.RECORDED, "-"), ("yours", yours, viz.YOURS, "--")):
        known = {level: s for level, s in studies.items() if math.isfinite(s.knee)}
        if not known:
            continue
        levels, knees = list(known), [s.knee for s in known.values()]
        spread = [[max(0, s.knee - s.low) for s in known.values()], [max(0, s.high - s.knee) for s in known.values()]]
        ax.errorbar(levels, knees, yerr=spread, color=colour, marker="o", linestyle=line, linewidth=1.2, capsize=2)
        hollow = {"marker": "D", "linestyle": ":", "markerfacecolor": "none"}
        ax.plot(levels, [s.scale for s in known.values()], color=colour, **hollow)
        said.append(f"{name}: " + "; ".join(f"noise {level:g} critical batch {s.knee:.0f}, noise scale {s.scale:.0f}"
                                            for level, s in known.items()))  # fmt: skip
        rows += [{"source": name, "noise": level, "critical batch": s.knee, "low": s.low, "high": s.high,
                  "noise scale": s.scale, "least steps": s.floor} for level, s in known.items()]  # fmt: skip
    if not rows:
        return empty("no noise level has a fit")
    key = "filled, o: critical batch\nhollow, diamond: noise scale"
    ax.text(0.03, 0.97, key, transform=ax.transAxes, fontsize=8, va="top", color="#444444")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    ax.set_ylim(None, ax.get_ylim()[1] * 2)
    ax.set_xlabel("noise level of the images")
    ax.set_ylabel("samples")
    return fig, "Knee and noise scale by noise level. " + ". ".join(said) + ".", pd.DataFrame(rows)


def equal_loss(recorded: Study, yours: Study):
    """Test accuracy at the moment when the training loss meets the target, by batch."""
    fig, ax = viz.figure(height=2.8)
    rows, said = [], []
    for name, found, colour, line, marker in sources(recorded, yours):
        values = {batch: found.at_target(batch, "test_accuracy") for batch in found.batches}
        mean = [float(np.mean(v)) for v in values.values()]
        error = [2 * float(np.std(v, ddof=1)) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for v in values.values()]
        look = {"color": colour, "marker": marker, "linestyle": line, "linewidth": 1.0, "capsize": 2}
        ax.errorbar(found.batches, mean, yerr=error, **look)
        said.append(f"{name}: " + ", ".join(f"batch {b} {m:.3f}" for b, m in zip(found.batches, mean)))
        rows += [{"source": name, "batch": b, "test accuracy": m, "two standard errors": e, "seeds": len(values[b])}
                 for b, m, e in zip(found.batches, mean, error)]  # fmt: skip
    if not rows:
        return empty("no run reached the target")
    middle = float(np.mean([row["test accuracy"] for row in rows]))
    ax.set_ylim(middle - 0.04, middle + 0.04)
    viz.log2_axis(ax, ticks([row["batch"] for row in rows]), "batch size")
    ax.set_ylabel(f"test accuracy at loss {sources(recorded, yours)[0][1].target:g}")
    return fig, "Test accuracy at equal training loss. " + ". ".join(said) + ".", pd.DataFrame(rows)


def controls(recorded: Mapping[str, Sequence], yours: Mapping[str, Sequence], title: str):
    """The final test accuracy of each arm, with two standard errors over seeds and the updates that it took.

    Args:
        recorded, yours: {arm: runs}.
    """
    names, apart = list(dict.fromkeys([*yours, *recorded])), 0.12 * any(recorded.values())
    fig, ax = viz.figure(width=6.5, height=0.9 + 0.34 * len(names))
    rows, places = [], names
    for source, arms, colour, marker, shift in (("recorded", recorded, viz.RECORDED, "o", apart),
                                                ("yours", yours, viz.YOURS, "s", -apart)):  # fmt: skip
        for place, name in enumerate(names):
            runs = arms.get(name, [])
            values = list(ends(runs, {}, "test_accuracy").values())
            if not values:
                continue
            mean = float(np.mean(values))
            half = 2 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            updates = max(row.step for run in runs for row in run.rows)
            ax.errorbar([mean], [-place + shift], xerr=[half], color=colour, marker=marker, capsize=2, linestyle="none")
            rows.append({"source": source, "arm": name, "test accuracy": mean, "two standard errors": half,
                         "training loss": float(np.mean(list(ends(runs, {}, "train_loss").values()))),
                         "updates": updates, "seeds": len(values)})  # fmt: skip
    if not rows:
        return empty("no arm was trained")
    updates = {}
    for row in rows:
        updates.setdefault(row["arm"], {})[row["source"]] = row["updates"]
    names = [name for name in names if name in updates]
    words = {name: " / ".join(f"{count}" for count in dict.fromkeys(updates[name].values())) for name in names}
    ax.set_yticks([-places.index(name) for name in names], labels=[f"{name} ({words[name]} updates)" for name in names])
    ax.set_xlabel("test accuracy")
    ax.set_title(title)
    ax.margins(y=0.25)
    middle, span = sum(ax.get_xlim()) / 2, max(0.04, ax.get_xlim()[1] - ax.get_xlim()[0])
    ax.set_xlim(middle - span / 2, middle + span / 2)  # a point of accuracy must not fill the figure
    said = "; ".join(f"{row['arm']} {row['test accuracy']:.3f}, training loss {row['training loss']:.2g}, after "
                     f"{row['updates']} updates ({row['source']})" for row in rows)  # fmt: skip
    return fig, f"{title}: {said}.", pd.DataFrame(rows)


def distance(recorded: Study, yours: Study):
    """The distance of the weights from their start against steps, on a logarithmic axis of steps."""
    fig, ax = viz.figure(height=2.8)
    rows, last = [], 1
    for name, found, colour, line, marker in looks(recorded, yours):
        for seed, run in found.noise_runs.items():
            points = run.series("distance")
            x, y = [row.step for row in points], [row.value for row in points]
            ax.plot(x, y, color=colour, marker=marker, linestyle=line, linewidth=1.0, markersize=3.5)
            log, power = shares(run, 8)
            last = max(last, *x)
            rows.append({"source": name, "seed": seed, "end": y[-1], "R2 of log t": log, "R2 of a power": power})
    if not rows:
        return empty("no run followed the distance")
    viz.log2_axis(ax, [2**n for n in range(0, int(math.log2(last)) + 1, 2)], "step t")
    ax.set_ylabel("distance from the start")
    said = "; ".join(f"{row['source']}, seed {row['seed']}: {row['end']:.2f} at the end, R2 {row['R2 of log t']:.3f} "
                     f"for a + b log t, {row['R2 of a power']:.3f} for a power of t" for row in rows)  # fmt: skip
    return fig, f"Distance of the weights from their start. {said}.", pd.DataFrame(rows)
