"""Tables of a notebook: numbers short, texts whole."""

import numbers

import pandas as pd
from IPython.display import HTML, display


def short(value, digits: int = 4):
    """A cell: 1.2e-16, 0.05, 20,250; whole numbers whole, as long as they are below 1e12. Blank where nothing is
    (None, NaN); texts and truth values as they are."""
    if value is None or value is pd.NA or value is pd.NaT or isinstance(value, numbers.Number) and value != value:
        return ""
    if isinstance(value, bool | complex) or not isinstance(value, numbers.Real):  # numpy's bool is no Real
        return value
    size = abs(value)
    if size < 1e-4 and value:
        return f"{value:.{max(1, digits - 2)}g}"
    if size < 10 ** (digits - 1) and value % 1:
        return f"{value:.{digits}g}"
    if size >= 1e12:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}" if round(size) >= 10_000 else f"{value + 0:.0f}"  # years and small counts without a comma


def show_table(rows, digits: int = 4) -> None:
    """Display rows, a data frame or dictionaries: each number by `short`."""
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    with pd.option_context("display.max_colwidth", None):
        cells = table.astype(object).map(lambda value: short(value, digits))
        display(HTML(cells.to_html(index=False, border=0, justify="left")))
