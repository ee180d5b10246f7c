"""Tables of notebooks: what a reader sees of a number."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from labs import tables


@pytest.mark.parametrize(
    "value, text",
    [
        (2.025e4, "20,250"), (3.98e5, "398,000"), (1234567, "1,234,567"), (np.int64(45000), "45,000"),
        (-20250.4, "-20,250"), (9999.7, "10,000"), (2016, "2016"), (1234.56, "1235"), (4.0, "4"),
        (0.0, "0"), (-0.0, "0"), (-3, "-3"),
        (0.05, "0.05"), (1.23456, "1.235"), (999.96, "1000"), (0.00012345, "0.0001234"), (np.float32(0.25), "0.25"),
        (1.2345e-16, "1.2e-16"), (-3.05e-5, "-3e-05"), (2e15, "2e+15"), (math.inf, "inf"), (-math.inf, "-inf"),
        (math.nan, ""), (None, ""), (pd.NA, ""), (pd.NaT, ""), (np.float64("nan"), ""),
    ],
)  # fmt: skip
def test_a_number_is_short_and_what_is_missing_is_blank(value, text):
    assert tables.short(value) == text


@pytest.mark.parametrize("value", [True, False, np.True_, "1e5", "nan", "20250.0", ""])
def test_truth_values_and_texts_stay(value):
    assert tables.short(value) is value


def test_more_digits_can_be_had():
    assert tables.short(1.23456789, 6) == "1.23457" and tables.short(12345.678, 3) == "12,346"


def test_a_table_shows_cells_by_kind_and_texts_whole(monkeypatch):
    shown = []
    monkeypatch.setattr(tables, "display", shown.append)
    long = "a text that is longer than the fifty characters at which pandas would cut it"
    rows = [(20250, 1.5, True, long), (None, math.nan, False, "<b>")]
    tables.show_table([dict(zip(("n", "x", "ok", "text"), row, strict=True)) for row in rows])
    cells = re.findall(r"<td>(.*?)</td>", shown[0].data)
    assert cells == ["20,250", "1.5", "True", long, "", "", "False", "&lt;b&gt;"]
    tables.show_table(pd.DataFrame({"share": [0.5]}))
    assert "0.5" in shown[1].data and "NaN" not in shown[0].data
