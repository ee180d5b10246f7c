"""Tables of a notebook: numbers short, texts whole."""

import pandas as pd
from IPython.display import HTML, display


def show_table(rows, digits: int = 4) -> None:
    """Display rows, a data frame or dictionaries, with so many significant digits; what is missing is left empty."""
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    with pd.option_context("display.max_colwidth", None):
        short = f"{{:.{digits}g}}".format
        display(HTML(table.to_html(index=False, border=0, justify="left", na_rep="", float_format=short)))
