"""Lab 06's figures and tables: numbers are the model's, names are there and do not lie on each other."""

import itertools

import pandas as pd
import pytest
from labs import phase, talking_figures, talking_maps, talking_tables

from labkit.errors import RequestError


def shown(names, sent, test, **more):
    numbers = {"bytes a step": sent, "test": test, "low": test, "high": test, "seeds": 1}
    return pd.DataFrame({"case": names, **numbers, **more})


def test_every_method_has_a_row_of_its_own_with_both_sources():
    names = ["dense", "1-bit", "1-bit, no feedback", "DGC"]
    tables = {"recorded": shown(names, [40e3, 3546, 3546, 3112], [0.91, 0.9, 0.88, 0.89]),
              "yours": shown([*names, "PowerSGD"], [40e3, 3546, 3546, 4593, 2465], [0.89, 0.88, 0.885, 0.85, 0.89])}
    for given in (tables, {"yours": tables["yours"]}):
        fig, alt, data = talking_figures.accuracy_bytes(given)
        left, right = fig.axes
        fig.draw_without_rendering()
        assert {label.get_text() for label in left.get_yticklabels()} == {*names, "PowerSGD"}
        boxes = [text.get_window_extent() for text in left.texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(box.x1 <= left.get_window_extent().x1 for box in boxes)
        points = [tuple(line.get_xydata()[0]) for line in right.lines if len(line.get_xdata()) == 1]
        assert len(points) == len(set(points)) == len(data)  # none hides another
    assert "3.11 kB / 4.59 kB" in [text.get_text() for text in talking_figures.accuracy_bytes(tables)[0].axes[0].texts]


def test_the_maps_say_by_how_much():
    job = phase.Job()
    fig, _, table = talking_maps.map_of(job, {"local SGD, tau 16": 1e3, "gossip, one-peer": 1e3})
    times = phase.diagram(job, workers=(4,), bandwidths=phase.DECADES)[:, 0]
    step, target, equal = (table[(table["map"] == name) & (table["workers"] == 4)].iloc[0]
                           for name in table["map"].unique())
    for at, bandwidth in enumerate(talking_maps.AXIS):
        assert step[bandwidth].split()[1] == talking_maps.times_of(times[0, at] / times[:, at].min())
        assert target[bandwidth] == equal[bandwidth]  # the two ways that keep workers apart are out of the race
        assert equal[bandwidth][0] in "D1K"
    assert "differ in " in talking_maps.in_words(table) and "fastest in 0 of the middle" in talking_maps.in_words(table)
    _, _, same = talking_maps.map_of(job, {})
    assert "differ in 0 of 42 cells" in talking_maps.in_words(same)


def test_the_spread_is_told_with_its_rate_and_in_order():
    table = shown(["complete", "ring", "torus"], [3.0, 1.0, 2.0], [0.9, 0.9, 0.9], spread=[0.3, 0.5, 0.2], lowest=0.125,
                  rate=0.25)
    rows, order = talking_tables.partners(table)
    assert [*rows["graph"]] == ["torus", "complete", "ring"] and order == "torus 0.2 < complete 0.3 < ring 0.5"
    assert "spread at rate 0.125" in rows and "best rate" in rows


@pytest.mark.parametrize("changed, words", [
    ({"tau": 0}, "tau 0 is out of range; choose a whole number from 1 on"),
    ({"tau": 1.5}, "tau 1.5"), ({"levels": 128}, "from 1 to 127"), ({"workers": 1}, "from 2 on"),
    ({"density": 0}, "percent 0"), ({"density": 1.5}, "percent 150"), ({"megabytes_a_second": 0}, "a number above 0"),
    ({"megabytes_a_second": float("nan")}, "megabytes_a_second nan"), ({"tau": float("inf")}, "tau inf"),
    ({"tau": "16"}, "tau '16' is out of range"),
])  # fmt: skip
def test_odd_numbers_of_the_explorer_are_refused(changed, words):
    usual = {"density": 0.01, "tau": 16, "levels": 4, "megabytes_a_second": 100, "workers": 4}
    talking_figures.said(**usual)
    with pytest.raises(RequestError, match=words):
        talking_figures.said(**{**usual, **changed})
