"""One look for every figure, and one way to show it: with its text alternative visible and its data one click away.

The source of a series has a fixed colour: grey is the literature, blue is recorded, orange is yours. Other series get
the remaining colours, each with its own marker and line style, so no figure depends on colour alone. Only matplotlib's
object interface with the Agg renderer is used: what a notebook's inline backend sets has no effect."""

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
    cycle = cycler(color=[SERIES[n % len(SERIES)] for n in range(count)],
                   marker=[MARKERS[n % len(MARKERS)] for n in range(count)],
                   linestyle=[LINES[n % len(LINES)] for n in range(count)], markersize=[4.5] * count)
    ours = {"axes.prop_cycle": cycle, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
            "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9,
            "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False}
    # The backend is left alone: setting it would import pyplot and, in a notebook, change the reader's.
    defaults = {key: matplotlib.rcParamsDefault[key] for key in matplotlib.rcParamsDefault if "backend" not in key}
    return matplotlib.rc_context({**defaults, **ours})


def figure(columns: int = 1, rows: int = 1, width: float | None = None, height: float | None = None, **subplots):
    """A figure and its axes: one Axes, or an array if there are several; `subplots` are for example `sharey=True`.

    Args:
        width, height: inches, at most 6.5 x 4; chosen from the number of columns and rows if not given.

    Raises:
        RequestError: the figure would be larger than that."""
    size = (width or (5.0 if columns == 1 else MAX_WIDTH), height or (3.0 if rows == 1 else MAX_HEIGHT))
    _check_size(*size)
    with style():
        fig = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(fig)
        return fig, fig.subplots(rows, columns, **subplots)


def log2_axis(ax, values: Sequence[float], label: str, axis: str = "x") -> None:
    """A base-2 logarithmic axis with a plain number at each of `values` (batch sizes, workers, bytes).

    Raises:
        RequestError: there is no value, or one is not positive."""
    ticks = sorted(set(values))
    if not ticks or ticks[0] <= 0:
        raise RequestError(f"a log-2 axis needs positive values; given: {ticks}")
    set_scale, line = (ax.set_xscale, ax.xaxis) if axis == "x" else (ax.set_yscale, ax.yaxis)
    set_scale("log", base=2)
    line.set_ticks(ticks, labels=[f"{tick:.0f}" if float(tick).is_integer() else f"{tick:g}" for tick in ticks])
    line.set_ticks([], minor=True)
    line.set_label_text(label)


def direct_label(ax, x: float, y: float, text: str, color: str) -> None:
    """Write a series' name beside its point (`x`, `y`), in its colour, instead of a legend."""
    ax.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", color=color, va="center", fontsize=8)


def show(fig: Figure, alt: str, data=None) -> None:
    """Show the figure, then its text alternative as a visible line with the data folded below; close the figure.

    Outside a notebook nothing is displayed.

    Args:
        alt: what the figure says, in words and numbers.
        data: a data frame, or what makes one, with the numbers that were drawn; at most 40 rows are shown.

    Raises:
        RequestError: the text alternative is empty, or the figure is larger than 6.5 x 4 inches."""
    if not isinstance(alt, str) or not alt.strip():
        raise RequestError('a figure needs a text alternative: show(fig, alt="what the figure says")')
    alt = " ".join(alt.split())
    png = render(fig)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(fig)  # else the inline backend would show it a second time
    if notebook_shell() is None:
        return
    from IPython.display import display

    image = {"image/png": base64.b64encode(png).decode("ascii"), "text/plain": alt}
    display(image, metadata={"image/png": {"alt": alt}}, raw=True)
    display({"text/html": caption(alt, data)}, raw=True)


def render(fig: Figure) -> bytes:
    """The figure as a palette PNG: the same figure gives the same bytes, with no date or program in them.

    Raises:
        RequestError: the figure is larger than 6.5 x 4 inches."""
    _check_size(*fig.get_size_inches())
    for ax in fig.axes:
        ax.title.set_fontsize(10)  # `set_title` takes its size from the settings in force when it is called
        for line in ax.lines:
            points, joined = len(line.get_xdata()), str(line.get_linestyle()).lower() not in ("none", "", " ")
            # Only where a line joins them may markers be thinned out: alone, each is a datum.
            if joined and points > _MARKS and line.get_markevery() is None:
                line.set_markevery(math.ceil(points / _MARKS))
    drawn, packed = io.BytesIO(), io.BytesIO()
    with style():
        FigureCanvasAgg(fig)
        fig.savefig(drawn, format="png", dpi=DPI, facecolor="white")
    # Packing anew drops what matplotlib noted in the file: only pixels remain.
    image = Image.open(drawn).convert("RGB").quantize(_COLOURS, kmeans=3, dither=Image.Dither.NONE)
    image.save(packed, format="PNG", optimize=True)
    return packed.getvalue()


def caption(alt: str, data=None) -> str:
    """The visible line under a figure, as HTML, with the rounded data table folded below if there is data."""
    line = f"<p><em>{html.escape(alt)}</em></p>"
    if data is None:
        return line
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(data)
    named = any(name is not None for name in frame.index.names)
    table = frame.head(_ROWS).to_html(index=named or not isinstance(frame.index, pd.RangeIndex), border=0,
                                      float_format=lambda v: f"{v:.4g}")
    more = f"<p>and {len(frame) - _ROWS} more rows</p>" if len(frame) > _ROWS else ""
    table = "".join(part.strip() for part in table.splitlines())  # indents are a third of a notebook's tables
    return f"{line}\n<details><summary>data</summary>\n{table}\n{more}</details>"


def _check_size(width: float, height: float) -> None:
    if width > MAX_WIDTH + 1e-6 or height > MAX_HEIGHT + 1e-6:
        raise RequestError(f"a figure is at most {MAX_WIDTH} x {MAX_HEIGHT} inches, to fit beside text; given: "
                           f"{width:g} x {height:g}")
