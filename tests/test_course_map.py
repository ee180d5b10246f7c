"""The map of the course says what the course's data say: levels, routes, costs, and what is planned."""

import math

import pytest

from labkit import course
from labkit.errors import WorkError
from labkit.teach import viz
from labs import course_map


class Written(course.Entry):
    exists = True


class Planned(course.Entry):
    exists = False


def lab(number, needs=(), kind=Written, routes=("semester",)):
    return kind(number, f"name_{number}", "A question?", tuple(needs), routes)


def labs(*entries):
    return {entry.number: entry for entry in entries}


COSTS = {
    "00": {"quick": {"seconds": 20.0, "cpu": "A", "threads": 1, "gflops": 100.0}},
    "01": {"quick": {"seconds": 30.0, "cpu": "B", "threads": 1}},
    "02": {"quick": {"seconds": 99.0, "cpu": "A", "threads": 1}},
}
SMALL = labs(lab("00"), lab("01", ["00"]), lab("02", ["01"], Planned), lab("03", ["00"]), lab("04"))


def test_a_lab_stands_right_of_all_that_it_needs_and_one_that_needs_nothing_comes_last():
    everything = course.course()
    column = course_map.levels(everything)
    assert column["00"] == 0 and column["16"] == max(column.values())
    assert all(column[need] < column[number] for number, entry in everything.items() for need in entry.needs)
    assert course_map.levels(SMALL) == {"00": 0, "01": 1, "02": 2, "03": 1, "04": 3}


def test_a_circle_is_refused():
    with pytest.raises(WorkError, match="labs 01, 02 can never start"):
        course_map.levels(labs(lab("00"), lab("01", ["02"]), lab("02", ["01"])))


def test_the_routes_are_those_of_the_course():
    everything = course.course()
    for route, numbers in course_map.routes(everything).items():
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) == {number for number, entry in everything.items() if route in entry.routes}


def test_no_route_takes_a_lab_before_one_that_it_needs():
    everything = course.course()
    for numbers in course_map.routes(everything).values():
        for place, number in enumerate(numbers):
            assert not set(everything[number].needs) & set(numbers[place:])


def test_seconds_are_scaled_only_where_the_other_machines_peak_is_recorded():
    rows = course_map.table(SMALL, COSTS, "quick", gflops=50.0).set_index("lab")
    assert rows.loc["00", "cost"] == "about 40 s" and rows.loc["00", "scaled"]
    assert rows.loc["01", "cost"] == "30 s" and not rows.loc["01", "scaled"]
    assert rows.loc["02", "cost"] == "planned" and math.isnan(rows.loc["02", "seconds"])  # whatever costs.json says
    assert rows.loc["03", "cost"] == "no time yet"
    assert course_map.table(SMALL, COSTS, "quick").set_index("lab").loc["00", "cost"] == "20 s"


def test_the_routes_seconds_are_those_of_the_measured_labs():
    everything = {n: Written(e.number, e.name, e.question, e.needs, e.routes) for n, e in course.course().items()}
    costs = {"11": {"quick": {"seconds": 40.2, "cpu": "A"}}, "04": {"quick": {"seconds": 7.0, "cpu": "A"}}}
    rows = course_map.table(everything, costs, "quick")
    found = course_map.summary(everything, rows).set_index("route")
    assert list(found["seconds of those"]) == [40, 47, 47]
    assert list(found["measured"]) == ["1 of 4", "2 of 8", "2 of 17"]
    smoke = course_map.summary(everything, course_map.table(everything, costs, "smoke"))
    assert set(smoke["seconds of those"]) == {"not measured yet"}


def test_the_map_draws_every_lab_once_and_an_arrow_for_every_need():
    everything = course.course()
    rows = course_map.table(everything, {}, "quick")
    fig, alt, data = course_map.draw(everything, rows)
    ax = fig.axes[0]
    drawn = [text.get_text().replace("\n", " ") for text in ax.texts if text.get_text()]
    for row in rows.itertuples():
        assert drawn.count(f"{row.lab} {row.name} {row.cost}") == 1
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == sum(len(entry.needs) for entry in everything.values())
    assert "not measured yet" in alt and len(data) == len(everything)
    viz.render(fig)


def test_boxes_do_not_overlap():
    places = list(course_map._places(course.course()).values())
    for n, (x, y) in enumerate(places):
        assert all(x != other or abs(y - height) >= course_map._HEIGHT for other, height in places[n + 1 :])
