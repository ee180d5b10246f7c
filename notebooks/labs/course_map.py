"""The map of the course: which lab needs which, which route it lies on, and what it cost where it was measured."""

import textwrap
from collections.abc import Mapping

import pandas as pd

from labkit.errors import WorkError

# In this order; each route holds the one before it. `data/labs.yaml` says the same as sets.
EVENING = ("00", "11", "10", "07")
WEEK = ("00", "11", "10", "07", "04", "05", "12", "16")
_WIDTH, _HEIGHT = 0.84, 0.78  # of a box, in columns and rows
_KEY = ("an evening", "+ a week", "+ a semester", "not written yet")
_INK, _FAINT = "#222222", "#767676"
_SHORT = {"sgd": "SGD", "lars": "LARS", "lamb": "LAMB"}
_STYLES = {"evening": ("#bfe3d5", 2.0), "week": ("#e6f4ee", 1.3), "semester": ("#ffffff", 0.7)}  # fill, line width


def levels(labs: Mapping) -> dict[str, int]:
    """Column of each lab: one more than the furthest lab that it needs; a lab after 00 that names none comes last.

    Raises:
        WorkError: labs need each other in a circle, or one needs a lab that is not in the course.
    """
    first, found = min(labs), {}
    waiting = {number for number, entry in labs.items() if entry.needs or number == first}
    while waiting:
        ready = {number for number in waiting if all(need in found for need in labs[number].needs)}
        if not ready:
            raise WorkError(f"labs {', '.join(sorted(waiting))} can never start: what they need is missing or a circle")
        for number in ready:
            found[number] = 1 + max((found[need] for need in labs[number].needs), default=-1)
        waiting -= ready
    last = 1 + max(found.values())
    return {number: found.get(number, last) for number in labs}


def routes(labs: Mapping) -> dict[str, list[str]]:
    """The three ways through the course, each in an order in which to take it; the semester follows the arrows."""
    column = levels(labs)
    return {"evening": list(EVENING), "week": list(WEEK), "semester": sorted(labs, key=lambda n: (column[n], n))}


def table(labs: Mapping, costs: Mapping, profile: str, gflops: float | None = None) -> pd.DataFrame:
    """One row a lab: number, name, route, needs, whether it is written, seconds and in words what it costs.

    Args:
        labs: `labkit.course.course()`.
        costs: `labkit.course.costs()`; an entry may hold `gflops`, the matrix-multiply peak of its machine.
        gflops: the reader's peak. Seconds whose entry has a peak are scaled by the ratio; others are left as measured.
    """
    rows = []
    for number, entry in labs.items():
        cost = costs.get(number, {}).get(profile, {}) if entry.exists else {}
        scale = cost["gflops"] / gflops if gflops and cost.get("gflops") else None
        seconds = cost["seconds"] * (scale or 1) if cost else None
        words = f"{'about ' if scale else ''}{seconds:.0f} s" if cost else "no time yet"
        words = words if entry.exists else "planned"
        name = " ".join(_SHORT.get(word, word) for word in entry.name.split("_"))
        route = next(route for route in _STYLES if route in entry.routes)
        needs = " ".join(entry.needs)
        rows.append(
            {
                "lab": number,
                "name": name,
                "route": route,
                "needs": needs,
                "written": entry.exists,
                "seconds": seconds,
                "scaled": scale is not None,
                "cost": words,
                "cpu": cost.get("cpu", ""),
            }
        )
    return pd.DataFrame(rows)


def summary(labs: Mapping, rows: pd.DataFrame) -> pd.DataFrame:
    """One row a route: its labs in order, how many are written, how many of those are measured, their seconds."""
    by_number, result = rows.set_index("lab"), []
    for route, numbers in routes(labs).items():
        part = by_number.loc[numbers]
        measured = int(part["seconds"].notna().sum())
        result.append(
            {
                "route": f"{'an' if route == 'evening' else 'a'} {route}",
                "labs, in order": " ".join(numbers),
                "written": f"{part['written'].sum()} of {len(part)}",
                "measured": f"{measured} of {len(part)}",
                "seconds of those": round(part["seconds"].sum()) if measured else "not measured yet",
            }
        )
    return pd.DataFrame(result)


def draw(labs: Mapping, rows: pd.DataFrame):
    """The map as (figure, text alternative, data): arrows from a lab to those that need it, planned labs dashed."""
    from matplotlib.patches import FancyBboxPatch

    from labkit.teach import viz

    place = _places(labs)
    fig, ax = viz.figure(width=6.5, height=4.0)
    for entry in labs.values():
        for need in entry.needs:
            (x0, y0), (x1, y1) = place[need], place[entry.number]
            arrow = {"arrowstyle": "-|>", "color": "#a8a8a8", "lw": 0.7, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (x1 - _WIDTH / 2, y1), (x0 + _WIDTH / 2, y0), zorder=1, arrowprops=arrow)

    def box(x, y, route, planned, text, height=_HEIGHT):
        fill, line = _STYLES[route]
        edge, ink, dash = (_FAINT, _FAINT, "--") if planned else (viz.SERIES[0], _INK, "-")
        look = {"facecolor": fill, "edgecolor": edge, "linewidth": line, "linestyle": dash, "zorder": 2}
        corner = (x - _WIDTH / 2, y - height / 2)
        ax.add_patch(FancyBboxPatch(corner, _WIDTH, height, boxstyle="round,pad=0,rounding_size=0.08", **look))
        ax.text(x, y, text, ha="center", va="center", fontsize=6.5, color=ink, zorder=3, linespacing=1.05)

    for row in rows.itertuples():
        name = "\n".join(textwrap.wrap(f"{row.lab} {row.name}", 14))
        box(*place[row.lab], row.route, not row.written, f"{name}\n{row.cost}")
    for n, (route, text) in enumerate(zip((*_STYLES, "semester"), _KEY, strict=True)):
        box(0, -1.9 - 0.42 * n, route, text == _KEY[-1], text, height=0.32)
    xs, ys = zip(*place.values())
    ax.set(xlim=(min(xs) - 0.5, max(xs) + 0.5), ylim=(min(*ys, -3.2) - 0.45, max(ys) + 0.45))
    ax.set_axis_off()
    return fig, _alternative(labs, rows), rows[["lab", "name", "route", "needs", "cost"]]


def _places(labs: Mapping) -> dict[str, tuple[float, float]]:
    """Centre of each box: columns by level, rows so that a lab is near those that it needs."""
    column, place = levels(labs), {}
    for level in range(max(column.values()) + 1):
        members = [number for number in labs if column[number] == level]
        heights = {n: [place[need][1] for need in labs[n].needs] or [0.0] for n in members}
        members.sort(key=lambda n: (-sum(heights[n]) / len(heights[n]), n))
        step = max(1.0, min(2.0, 5 / max(1, len(members) - 1)))
        for n, number in enumerate(members):
            place[number] = (float(level), step * ((len(members) - 1) / 2 - n))
    return place


def _alternative(labs: Mapping, rows: pd.DataFrame) -> str:
    planned = rows.loc[~rows["written"], "lab"]
    text = f"Map of the {len(rows)} labs, {rows['written'].sum()} written; arrows lead to a lab from those it needs."
    for route, numbers, written, measured, seconds in summary(labs, rows).itertuples(index=False):
        time = f"{measured} measured: {seconds} s" if isinstance(seconds, int) else seconds
        text += f" {route.capitalize()} is {numbers} ({written} written; {time})."
    return text + (f" Planned: {' '.join(planned)}." if len(planned) else "")
