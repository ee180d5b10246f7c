"""One look for every figure, and one way to show it: with its text alternative visible and its data one click away.

The source of a series has a fixed colour: grey is the literature, blue is recorded, orange is yours. Other series get the
remaining colours, each with its own marker and line style, so no figure depends on colour alone. Only matplotlib's object
interface with the Agg renderer is used: what a notebook's inline backend sets has no effect.
"""

import base64
import html
import io
import math
import sys
from collections.abc import Sequence

import matplotlib
import pandas as pd
import seaborn
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ..errors import RequestError
from ..progress import notebook_shell

PALETTE = tuple(seaborn.color_palette("colorblind").as_hex())
RECORDED, YOURS, LITERATURE = PALETTE[0], PALETTE[1], PALETTE[7]
SERIES = tuple(PALETTE[n] for n in (2, 4, 3, 9, 5))  # green, purple, red, sky, brown: neither fixed nor too pale
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
MAX_WIDTH, MAX_HEIGHT, DPI = 6.5, 4.0, 110  # inches, inches, dots per inch
_COLOURS = 64  # of the palette PNG: enough for smooth edges
_MARKS = 15  # at most so many markers on a line without its own `markevery`
_ROWS = 40  # of the data table


def style():
    """A context in which matplotlib's defaults and ours hold, whatever was set before; `figure` and `show` use it."""
    count = math.lcm(len(SERIES), len(MARKERS), len(LINES))
    cycle = cycler(
        color=[SERIES[n % len(SERIES)] for n in range(count)],
        marker=[MARKERS[n % len(MARKERS)] for n in range(count)],
        linestyle=[LINES[n % len(LINES)] for n in range(count)],
        markersize=[4.5] * count,
    )
    ours = {
        "axes.prop_cycle": cycle,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.6,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
    }
    # The backend is left alone: setting it would import pyplot and, in a notebook, change the reader's.
    defaults = {key: matplotlib.rcParamsDefault[key] for key in matplotlib.rcParamsDefault if "backend" not in key}
    return matplotlib.rc_context({**defaults, **ours})


def figure(columns: int = 1, rows: int = 1, width: float | None = None, height: float | None = None, **subplots):
    """A figure and its axes: one Axes, or an array if there are several; `subplots` are for example `sharey=True`.

    Args:
        width, height: inches, at most 6.5 x 4; chosen from the number of columns and rows if not given.

    Raises:
        RequestError: the figure would be larger than that.
    """
    size = (width or (5.0 if columns == 1 else MAX_WIDTH), height or (3.0 if rows == 1 else MAX_HEIGHT))
    _check_size(*size)
    with style():
        fig = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(fig)
        return fig, fig.subplots(rows, columns, **subplots)


def log2_axis(ax, values: Sequence[float], label: str, axis: str = "x") -> None:
    """A base-2 logarithmic axis with a plain number at each of `values` (batch sizes, workers, bytes).

    Raises:
        RequestError: there is no value, or one is not positive.
    """
    ticks = sorted(set(values))
    if not ticks or ticks[0] <= 0:
        raise RequestError(f"a log-2 axis needs positive values; given: {ticks}")
    line = ax.xaxis if axis == "x" else ax.yaxis
    line._set_axes_scale("log", base=2)
