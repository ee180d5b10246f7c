"""Figures of pipeline schedules: who computes what when, and what every stage holds meanwhile.

Each function takes {name: Timetable}, from `labs.pipeline_timetable`, and returns (figure, text alternative, data).
"""

from collections.abc import Mapping

import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from labkit.errors import RequestError
from labs.pipeline_timetable import Action, Timetable
from labkit.teach import viz

KINDS = {
    "F": ("forward", viz.SERIES[0]),
    "B": ("backward", viz.SERIES[1]),
    "I": ("backward, input only", viz.SERIES[4]),
    "W": ("backward, weights only", viz.SERIES[3]),
}
_LETTER = 0.05  # inches a character takes in a cell


def timetable(tables: Mapping[str, Timetable]):
    """When every stage does what, a panel for each of 1 to 3 schedules; white is idle."""
    if not 1 <= len(tables) <= 3:
        raise RequestError(f"a figure holds 1 to 3 timetables; given: {len(tables)}")
    stages = sum(table.stages for table in tables.values())
    height = min(viz.MAX_HEIGHT, 0.9 + 0.45 * len(tables) + 0.22 * stages)
    fig, axes = viz.figure(1, len(tables), width=viz.MAX_WIDTH, height=height, sharex=True, squeeze=False)
    end = max(table.makespan for table in tables.values())
    for ax, (name, table) in zip(axes[:, 0], tables.items(), strict=True):
        for stage, action, start, stop in table.slots:
            width = stop - start
            colour = _colour(action, table.chunks)
            ax.barh(stage, width, left=start, height=0.9, color=colour, edgecolor="black", lw=0.4)
            room = 5.9 * width / end / _LETTER
            label = f"{action.kind}{action.microbatch}" if room > 2.8 else str(action.microbatch)
            if len(label) <= room:
                ax.text(start + width / 2, stage, label, ha="center", va="center", fontsize=6.5)
        words = f"{name}: bubble {table.bubble:.1%}, at most {max(table.peak):g} microbatches held"
        ax.set_title(words, loc="left")
        ax.set(yticks=range(table.stages), ylim=(table.stages - 0.4, -0.6), xlim=(0, end), ylabel="stage")
        ax.grid(False)
    dark = "; dark: a stage's later parts of the network" if any(t.chunks > 1 for t in tables.values()) else ""
    axes[-1, 0].set_xlabel(f"time (in the unit of the durations){dark}")
    used = {slot.action.kind for table in tables.values() for slot in table.slots}
    looks = [(kind, *KINDS[kind]) for kind in KINDS if kind in used]
    patches = [Patch(fc=_mix(c, 0.55), ec="black", lw=0.4, label=f"{kind} {words}") for kind, words, c in looks]
    fig.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize=8, frameon=False)
    rows = [(name, stage, *action, start, stop) for name, t in tables.items() for stage, action, start, stop in t.slots]
    data = pd.DataFrame(rows, columns=["schedule", "stage", "kind", "microbatch", "chunk", "start", "end"])
    words = [f"{name} ends at {t.makespan:g} with a bubble of {t.bubble:.1%}" for name, t in tables.items()]
    return fig, "Timetables by stage; numbers are microbatches. " + "; ".join(words) + ".", data


def held(tables: Mapping[str, Timetable]):
    """Microbatches whose activations a stage holds, over time: a panel for each of 1 to 3 schedules."""
    if not 1 <= len(tables) <= 3:
        raise RequestError(f"a figure holds 1 to 3 schedules; given: {len(tables)}")
    fig, axes = viz.figure(len(tables), width=viz.MAX_WIDTH, height=2.7, sharey=True, squeeze=False)
    rows = []
    for ax, (name, table) in zip(axes[0], tables.items(), strict=True):
        for stage in range(table.stages):
            times, counts = zip(*table.held(stage), strict=True)
            look = {"ls": viz.LINES[stage % len(viz.LINES)], "color": viz.SERIES[stage % len(viz.SERIES)], "marker": ""}
            ax.step(times, counts, where="post", label=f"stage {stage}", **look)
            rows += [(name, stage, time, count) for time, count in table.held(stage)]
        ax.set_title(name)
        ax.set(xlabel="time", ylim=(0, None), xlim=(0, None))
    axes[0, 0].set_ylabel("microbatches held")
    stages = max(table.stages for table in tables.values())
    longest = max(axes[0], key=lambda ax: len(ax.lines))
    handles = longest.get_legend_handles_labels()
    fig.legend(*handles, loc="outside upper center", ncols=min(stages, 6), fontsize=8, frameon=False)
    most = {name: ", ".join(f"{peak:g}" for peak in table.peak) for name, table in tables.items()}
    words = [f"{name} at most {peaks} on stages 0 to {tables[name].stages - 1}" for name, peaks in most.items()]
    alt = f"Microbatches whose activations each stage holds over time: {'; '.join(words)}."
    return fig, alt, pd.DataFrame(rows, columns=["schedule", "stage", "from", "held"])


def _colour(action: Action, chunks: int):
    return _mix(KINDS[action.kind][1], 0.55 + 0.4 * action.chunk / max(1, chunks - 1))


def _mix(colour: str, share: float):
    """The colour on white, so that black text stays readable on it."""
    return tuple(share * part + 1 - share for part in to_rgb(colour))
