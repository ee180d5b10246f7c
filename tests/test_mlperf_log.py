"""One MLPerf log: every quirk of the public ones on logs written here, damage of every kind, and hostile input.

The law that damage is held to: a damaged copy gives the intact log's value, or nothing with a reason; never a third.
"""

import gzip
import json
import math
import os
import random
import re
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workers.mlperf_text import FORMATS, SHOWN, START, evaluation, line, log, name, start, stop

from readers import mlperf_log

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
every_format = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture
def read(tmp_path):
    """Read a log from its text."""

    def one(text) -> dict:
        path = tmp_path / "result_0.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return mlperf_log.read(path)

    return one


def third_values(intact: dict, damaged: dict) -> list:
    """What a damaged copy says that is neither the intact log's value nor left empty."""
    if damaged["reason"]:
        assert not damaged["converged"] and math.isnan(damaged["tta_seconds"]), "refused, and yet a number"
        return []
    empty = {key for key in SHOWN if damaged[key] is None or damaged[key] != damaged[key]}
    return [(key, intact[key], damaged[key]) for key in SHOWN if key not in empty and damaged[key] != intact[key]]


def gives(record: dict, seconds: float, *flags) -> None:
    assert record["reason"] == "" and record["converged"]
    assert record["tta_seconds"] == pytest.approx(seconds, abs=1e-6)
    assert record["flags"] == list(flags)


def refused(record: dict, *words) -> None:
    """No number at all, and a reason of one line that holds the words."""
    told = {key: record[key] for key in ("format", "benchmark", "reason")}
    assert repr(record) == repr({**mlperf_log.blank(), **told})
    assert record["reason"] and "\n" not in record["reason"]
    for word in words:
        assert word in record["reason"]


@every_format
def test_a_run_takes_from_run_start_to_run_stop(read, format):
    record = read(log(format))
    gives(record, 300.01)
    assert (record["format"], record["benchmark"]) == (format, "resnet")
    assert (record["run_start"], record["run_stop"]) == (START, START + 300.01)
    assert (record["last_value"], record["evaluations"], record["last_epoch"]) == (0.76, 3, 3.0)
    assert record["target"] == (0.749 if format == "v0.5" else None)
    assert [epoch for _, epoch, _ in record["course"]] == [1, 2, 3]


@every_format
def test_a_miss_has_no_time(read, format):
    record = read(log(format, values=(0.3, 0.6, 0.7), success=False))
    assert record["flags"] == ["not-converged"] and not record["reason"]
    assert not record["converged"] and math.isnan(record["tta_seconds"])
    assert record["last_value"] == 0.7


@pytest.mark.parametrize("status", ["abort", "aborted", "failed", "", "SUCCESSFUL?", False, 0, ["success"]])
def test_anything_but_success_is_a_miss(read, status):
    text = name("v0.7") + start("v0.7") + evaluation("v0.7", 9, 1, 0.7) + line("v0.7", 9, "run_stop", status=status)
    assert not read(text)["converged"]


def test_true_as_text_is_success(read):
    gives(read(log("v0.5", success="true")), 300.01)


def test_a_run_stop_without_value_is_judged_by_the_last_evaluation(read):
    gives(read(log("v0.5", success=None)), 300.01, "success-inferred")
    assert read(log("v0.5", (0.3, 0.749), success=None))["converged"], "the target itself counts"
    missed = read(log("v0.5", (0.76, 0.748), success=None))
    assert not missed["converged"] and missed["flags"] == ["success-inferred", "not-converged"]
    refused(read(log("v0.5", success=None, target=None)), "target")
    refused(read(log("v0.6", success=None)), "target")
    refused(read(start("v0.5") + line("v0.5", 1, "eval_target", 0.7) + stop("v0.5", 9, None)), "no evaluation")


def test_a_success_below_its_target_contradicts_itself(read):
    refused(read(log("v0.5", values=(0.3, 0.6, 0.748))), "contradicts", "0.748", "0.749")
    refused(read(log("v0.5", success=False)), "contradicts", "no success")


def test_an_earlier_evaluation_that_met_the_target_is_flagged(read):
    gives(read(log("v0.5", values=(0.3, 0.75, 0.76))), 300.01, "target-met-earlier")


def test_two_targets_contradict_each_other_and_one_may_be_repeated(read):
    again = line("v0.5", 200, "eval_target", 0.749)
    gives(read(log("v0.5") + again), 300.01)
    refused(read(log("v0.5") + line("v0.5", 200, "eval_target", 0.7)), "two targets")
    refused(read(log("v0.5", target=None) + line("v0.5", 1, "eval_target", "high")), "eval_target")


@every_format
def test_lines_at_time_zero_do_not_matter(read, format):
    zero = [line(format, 0, key, since=0) for key in ("run_clear_caches", "submission_org", "init_start")]
    gives(read("".join(zero) + log(format) + "".join(zero)), 300.01)


@every_format
def test_several_ranks_may_print_one_tag(read, format):
    others = "".join(line(format, -20 + rank / 100, "init_start") for rank in range(8))
    gives(read(others + log(format)), 300.01)
    gives(read(log(format) + log(format)), 300.01)  # the very same lines
    late = start(format, 0.4) + stop(format, 300.3)
    record = read(log(format) + late)
    gives(record, 299.61, "lines-repeated", "lines-repeated")
    again = evaluation(format, 200.2, 2, 0.6)
    assert read(log(format) + again)["evaluations"] == 3


@every_format
def test_repeated_stops_may_not_disagree(read, format):
    refused(read(log(format) + stop(format, 300.02, False)), "different outcomes")


@every_format
def test_the_order_of_lines_does_not_matter(read, format):
    lines = (log(format) + line(format, 301, "run_final")).splitlines(keepends=True)
    intact = read("".join(lines))
    gives(read("".join(lines[:-2] + lines[:-3:-1])), 300.01)  # run_final before run_stop
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        assert read("".join(lines)) == intact


@every_format
def test_what_comes_after_run_stop_is_ignored(read, format):
    later = read(log(format) + evaluation(format, 370, 4, 0.78))
    gives(later, 300.01, "evaluation-outside")
    assert (later["last_value"], later["evaluations"]) == (0.76, 3)
    one_ms = start(format) + evaluation(format, 100, 1, 0.6) + evaluation(format, 200.001, 2, 0.75) + stop(format, 200)
    assert (read(one_ms)["last_value"], read(one_ms)["evaluations"]) == (0.75, 2)


def test_values_may_be_texts_and_epochs_decimal_or_minus_one(read):
    text = start("v0.6") + evaluation("v0.6", 50, 1.5, "24.5") + evaluation("v0.6", 99, 2.75, "25.3") + stop("v0.6", 99)
    assert (read(text)["last_value"], read(text)["last_epoch"]) == (25.3, 2.75)
    before = start("v0.5") + evaluation("v0.5", 1, -1, 0.001)
    before += evaluation("v0.5", 100, 0, 0.5) + evaluation("v0.5", 200, 1, 0.75) + stop("v0.5", 200)
    assert (read(before)["evaluations"], read(before)["last_epoch"]) == (3, 1.0)


@pytest.mark.parametrize(
    "value",
    [None, True, "high", [], ["x"], -0.1, 100.5, {}, {"value": "x"}, math.inf, 10**400],
    ids=lambda value: str(value)[:9],
)
@every_format
def test_an_evaluation_that_is_no_number_is_no_evaluation(read, format, value):
    refused(read(start(format) + evaluation(format, 9, 1, value) + stop(format, 9)), "no evaluation")
    lost = read(log(format).replace(stop(format, 300.01), evaluation(format, 150, 9, value) + stop(format, 300.01)))
    gives(lost, 300.01, "garbled-lines")
    assert lost["evaluations"] is None


def test_box_and_mask_must_both_meet_their_targets(read):
    def detector(box, mask, success=True):
        values = [{"BBOX": 0.2, "SEGM": 0.2}, {"BBOX": box, "SEGM": mask}]
        return read(log("v0.5", values, success=success, target={"BBOX": 0.377, "SEGM": 0.339}, benchmark="maskrcnn"))

    record = detector(0.378, 0.339)
    gives(record, 200.01)
    assert (record["last_value"], record["target"]) == ("BBOX 0.378; SEGM 0.339", "BBOX 0.377; SEGM 0.339")
    refused(detector(0.378, 0.338), "contradicts")
    assert detector(0.378, 0.3, None)["flags"] == ["success-inferred", "not-converged"]
    refused(read(log("v0.5", (0.4,), target={"BBOX": 0.377})), "different kinds")


def other_origin(unit: float, before: float = 40.0, after: float = 20.0, since: float = START / 1000) -> str:
    """A v0.7 log whose run is stamped in another unit or from another origin, between two lines with true times."""
    run = (
        start("v0.7", since=since)
        + evaluation("v0.7", 200 * unit, 1, 0.8, since=since)
        + stop("v0.7", 200 * unit, since=since)
    )
    return line("v0.7", -before, "cache_clear") + run + line("v0.7", 200 + after, "run_final")


def test_another_origin_is_believed_when_true_times_confirm_the_unit(read):
    gives(read(other_origin(1.0)), 200.0, "clock-origin")
    refused(read(other_origin(1.0, after=-190)), "clock")  # true lines leave no room for the run
    run = start("v0.7", since=0) + stop("v0.7", 200, since=0)
    refused(read(run), "clock")
    refused(read(run + line("v0.7", 0, "cache_clear")), "clock")  # one true time confirms nothing


@pytest.mark.parametrize("true_lines", [True, False])
def test_seconds_written_as_milliseconds_make_no_run_a_thousand_times_faster(read, true_lines):
    text = other_origin(0.001)
    refused(read(text if true_lines else "".join(text.splitlines(keepends=True)[1:-1])), "clock")


@every_format
def test_a_clock_that_cannot_be_right_gives_no_number(read, format):
    for since in (START * 1000, START * 1_000_000):  # milli- and microseconds where seconds should be
        refused(read(log(format, since=since)), "clock")
    refused(read(start(format, 300) + evaluation(format, 100, 1, 0.8) + stop(format, 100)), "clock")
    refused(read(start(format) + stop(format, 0)), "clock")
    refused(read(start(format) + stop(format, 4e7)), "clock")


def local_times(begin: datetime, changes: dict[int, int], hours: int = 30, format: str = "v0.5") -> str:
    """A run with an evaluation every 20 minutes; from evaluation `n` on, the clock is off by `changes[n]` seconds."""
    since, text, off = begin.timestamp(), "", 0
    for number in range(1, 3 * hours):
        off = changes.get(number, off)
        text += evaluation(format, 1200 * number + off, number, 0.7 if number < 3 * hours - 1 else 0.75, since=since)
    return start(format, since=since) + text + stop(format, 1200 * (3 * hours - 1) + off, since=since)


@every_format
def test_an_hour_lived_twice_and_put_right_is_flagged(read, format):
    begin = datetime.fromisoformat("2018-11-03T20:00:00+00:00")
    hour = timedelta(hours=1).total_seconds()
    expected = 1200.0 * 89
    gives(read(local_times(begin, {}, format=format)), expected)
    record = read(local_times(begin, {12: -hour, 16: 0}, format=format))
    gives(record, expected, "clock-stepped-and-returned")
    assert (record["evaluations"], record["last_value"]) == (89, 0.75)
    assert [epoch for _, epoch, _ in record["course"]] == list(range(1, 90))
    for changes in ({12: -hour}, {12: -hour, 16: hour}, {12: -hour, 14: -2 * hour, 20: 0}, {12: -hour, 16: -hour / 2}):
        refused(read(local_times(begin, changes, format=format)), "clock")


@every_format
def test_epochs_that_run_backwards_are_refused(read, format):
    text = start(format) + "".join(evaluation(format, 100 * (i + 1), e, 0.5) for i, e in enumerate((1, 2, 5, 3, 4)))
    refused(read(text + stop(format, 500.01)), "clock")


@every_format
def test_missing_ends_and_two_logs_in_one_file_are_refused(read, format):
    whole = log(format)
    refused(read(whole.replace("run_start", "run_begin")), "no run_start")
    refused(read(whole.replace("run_stop", "run_end")), "no run_stop")
    second = log(format, since=START + 5000)
    refused(read(whole + second), "2 run_start lines, 5000 s apart")
    refused(read(whole + stop(format, 700)), "2 run_stop lines")
    refused(read(whole + name("v0.6", "bert") + name("v0.7", "bert")))  # another benchmark, or another format


def test_formats_and_benchmarks_may_not_mix(read):
    refused(read(log("v0.6") + line("v0.7", 5, "init_start")), "mixes the formats v0.6 and v0.7")
    refused(read(log("v0.7") + name("v0.7", "bert")), "bert and resnet")
    refused(read(log("v0.5") + line("v0.5", 5, "train_loop", benchmark="ncf")), "ncf and resnet")


@every_format
def test_progress_bars_line_ends_and_prefixes_do_not_matter(read, format):
    whole = log(format)
    bars = "".join(f" 10%|#  | 1/9\r 50%|## | 5/9\r0: {text}" for text in whole.splitlines(keepends=True))
    intact = read(whole)
    for text in (bars, whole.replace("\n", "\r\n"), whole.replace("\n", "\r"), "\ufeff" + whole, "\xe9\n" + whole):
        assert read(text) == intact
    unended = whole.rstrip("\n")
    assert read(unended) == intact  # a closed brace shows that nothing was cut


def test_a_v05_stop_that_is_cut_at_its_tag_is_no_success(read):
    whole = log("v0.5", values=(0.3, 0.75), success=None)
    gives(read(whole), 200.01, "success-inferred")
    refused(read(whole.rstrip("\n")), "cut off")
    refused(read(log("v0.5", (0.3, 0.75), success=False).partition("run_stop")[0] + "run_stop"), "cut off")


@every_format
def test_garbled_lines_hide_the_evaluations_and_not_the_time(read, format):
    lines = log(format).splitlines(keepends=True)
    at = next(i for i, text in enumerate(lines) if "eval_accuracy" in text)
    lines[at] = lines[at][:-25] + "\n"
    record = read("".join(lines))
    gives(record, 300.01, "garbled-lines")
    assert record["evaluations"] is None and record["last_value"] is None
    lines = log(format).splitlines(keepends=True)
    lines[-1] = lines[-1][: lines[-1].index("run_stop") + 12] + "\n"
    refused(read("".join(lines)), f"line {len(lines)}", "damaged")


@every_format
def test_a_start_that_was_moved_behind_an_evaluation_is_refused(read, format):
    moved = log(format).replace(start(format), "") + start(format, 250.0)
    refused(read(moved), "contradicts itself", "before run_start")


@every_format
def test_a_success_without_any_evaluation_is_refused(read, format):
    refused(read(log(format, values=())), "no evaluation before run_stop")


def test_a_garbled_line_does_not_hide_that_the_last_readable_value_is_below_the_target(read):
    lines = log("v0.5", values=(0.3, 0.6, 0.7)).splitlines(keepends=True)
    lines[2] = lines[2][:-20] + "\n"
    refused(read("".join(lines)), "contradicts itself", "0.7", "0.749")


def test_a_target_that_the_round_does_not_have_is_flagged(read):
    gives(read(log("v0.5", values=(0.3, 0.6), target=0.5)), 200.01, "target-below-round")
    gives(read(log("v0.5", values=(0.3, 0.8), target=0.78)), 200.01, "target-above-round")


def work(format, when, tag="epoch_start"):
    """The beginning of an epoch or evaluation, as each format writes it."""
    tag = "train_epoch" if (format, tag) == ("v0.5", "epoch_start") else tag
    return line(format, when, tag, **({} if format == "v0.5" else {"epoch_num": 1}))


@every_format
def test_training_before_run_start_contradicts_it_and_a_warm_up_evaluation_does_not(read, format):
    refused(read(work(format, -5.0) + log(format)), "training began 5 s before run_start")
    gives(read(work(format, -0.5) + work(format, -50.0, "eval_start") + log(format)), 300.01)


@every_format
def test_ranks_may_start_seconds_apart_and_the_last_counts(read, format):
    gives(read(start(format, -4.0) + log(format)), 300.01, "lines-repeated")
    refused(read(start(format, -40.0) + log(format)), "2 run_start lines", "40 s apart")
    gives(read(start(format, -4.0) + work(format, -3.0) + log(format)), 300.01, "lines-repeated")
    refused(read(start(format, -4.0) + work(format, -9.0) + log(format)), "before run_start")


@every_format
def test_a_last_evaluation_that_is_not_in_the_log_is_noticed_by_its_beginning(read, format):
    lost = log(format, values=(0.3, 0.6, 0.76)).splitlines(keepends=True)
    at = max(i for i, text in enumerate(lost) if "eval_accuracy" in text)
    lost[at] = work(format, 299.0, "eval_start")
    if format == "v0.5":  # the last value that is left lies below the target
        return refused(read("".join(lost)), "contradicts itself")
    record = read("".join(lost))
    gives(record, 300.01, "last-evaluation-missing")
    assert record["last_value"] is None and record["evaluations"] is None


@every_format
def test_a_stop_far_from_the_usual_pace_of_evaluations_is_flagged(read, format):
    record = read(log(format).replace(stop(format, 300.01), stop(format, 3900.0)))
    gives(record, 3900.0, "last-evaluation-missing")
    assert record["last_value"] is None
    single = read(log(format, values=(0.76,)).replace(stop(format, 100.01), stop(format, 900.0)))
    gives(single, 900.0)  # one evaluation has no pace
    assert single["last_value"] == 0.76


def test_a_stop_that_says_two_things_is_refused(read):
    both = line("v0.7", 300.01, "run_stop", {"success": False}, status="success")
    refused(read(log("v0.7").replace(stop("v0.7", 300.01), both)), "two things")


@every_format
def test_two_values_of_one_evaluation_contradict_each_other(read, format):
    refused(read(log(format) + evaluation(format, 300.0, 3, 0.2)), "for one evaluation")


@every_format
def test_a_miss_whose_last_evaluation_is_lost_leaves_its_columns_empty(read, format):
    lines = log(format, values=(0.3, 0.4, 0.5, 0.6), success=False).splitlines(keepends=True)
    assert read("".join(lines))["last_value"] == 0.6
    record = read("".join(lines[:-2] + lines[-1:]))
    assert (record["reason"], record["last_value"], record["evaluations"]) == ("", None, None)
    assert "last-evaluation-missing" in record["flags"] and not record["converged"]


@every_format
def test_a_stop_between_evaluations_leaves_their_columns_empty(read, format):
    between = read(log(format, (0.3, 0.5, 0.6, 0.76), target=None).replace(stop(format, 400.01), stop(format, 360.0)))
    gives(between, 360.0, "evaluation-outside", "last-evaluation-missing")
    assert between["last_value"] is None
    just = read(log(format, (0.3, 0.5, 0.6, 0.76), target=None).replace(stop(format, 400.01), stop(format, 399.5)))
    gives(just, 399.5, "evaluation-outside", "evaluation-after-stop")
    assert just["last_value"] is None


def test_success_as_python_writes_it_is_parsed(read):
    text = log("v0.5").replace('{"success": true}', "{'success': True}")
    gives(read(text), 300.01)
    assert not read(text.replace("True", "False").replace("0.76}", "0.6}"))["converged"]


def test_placeholders_for_epochs_reject_nothing(read):
    gives(read(re.sub(r'"epoch_num": \d', '"epoch_num": "N/A"', log("v0.7"))), 300.01)


def test_minigo_is_evaluated_after_its_stop(read):
    text = name("v0.7", "minigo") + start("v0.7") + stop("v0.7", 900.0) + evaluation("v0.7", 1500.0, 1, 0.51)
    record = read(text)
    gives(record, 900.0, "evaluation-outside", "evaluation-after-stop")
    assert record["last_value"] is None


def test_box_and_mask_may_be_a_list(read):
    record = read(name("v0.6", "mask") + start("v0.6") + evaluation("v0.6", 90, 9, [0.378, 0.342]) + stop("v0.6", 90))
    gives(record, 90.0)
    assert (record["benchmark"], record["last_value"]) == ("maskrcnn", "0 0.378; 1 0.342")


def test_times_in_seconds_have_a_name_of_their_own(read):
    text = log("v0.7")
    for when in sorted(set(re.findall(r'"time_ms": (\d+)', text))):
        text = text.replace(f'"time_ms": {when}', f'"time_s": {int(when) / 1000}')
    gives(read(text), 300.01)


@every_format
def test_a_run_that_diverges_on_its_way_may_recover_and_may_not_end_there(read, format):
    assert read(log(format, values=(math.nan, 0.6, 0.76)))["last_value"] == 0.76
    refused(read(log(format, values=(0.3, math.nan), target=None)), "no number")


@every_format
def test_a_packed_log_is_read(tmp_path, format):
    path = tmp_path / "result_0.txt.gz"
    path.write_bytes(gzip.compress(log(format).encode()))
    gives(mlperf_log.read(path), 300.01)
    path.write_bytes(path.read_bytes()[:-20])
    refused(mlperf_log.read(path), "cannot be read")


@every_format
def test_equal_values_at_one_epoch_are_one_evaluation_only_if_they_are_printed_together(read, format):
    lines = log(format).splitlines(keepends=True)
    again = evaluation(format, 100.003, 1, 0.3)
    later = evaluation(format, 150.0, 1, 0.3)
    assert read("".join([*lines[:-1], again, lines[-1]]))["evaluations"] == 3
    assert read("".join([*lines[:-1], again, later, lines[-1]]))["evaluations"] == 4


@every_format
def test_a_lost_last_evaluation_leaves_its_columns_empty(read, format):
    whole = log(format, (0.3, 0.5, 0.6, 0.76), target=None)
    record = read("".join(text for text in whole.splitlines(keepends=True) if "0.76" not in text))
    gives(record, 400.01, "last-evaluation-missing")
    assert record["evaluations"] is None and record["last_value"] is None and record["last_epoch"] is None


# Damage ------------------------------------------------------------------------------------------------------------


@st.composite
def runs_and_damage(draw):
    """A log with the habits of real ones, and a damaged copy."""
    format = draw(st.sampled_from(FORMATS))
    count, every = draw(st.integers(1, 6)), draw(st.sampled_from([0.9, 20, 1280]))
    values = sorted(draw(st.lists(st.integers(1, 748).map(lambda x: x / 1000), min_size=count, max_size=count)))
    reached = draw(st.booleans())
    values[-1] = draw(st.sampled_from([0.749, 0.7531])) if reached else values[-1]
    silent = format == "v0.5" and draw(st.booleans())
    text = log(format, values, every, None if silent else reached)
    extra = [
        line(format, -9, "run_clear_caches", since=0),
        line(format, 400 + count * every, "run_final"),
        " 10%|# |\r",
        "loss 3\n",
    ]
    lines = text.splitlines(keepends=True)
    for item in draw(st.lists(st.sampled_from(extra), max_size=4)):
        lines.insert(draw(st.integers(0, len(lines))), item)
    whole = "".join(lines).encode()
    how = draw(st.sampled_from(["prefix", "suffix", "shuffle", "duplicate", "ends"]))
    where = draw(st.integers(0, len(whole)))
    lines = whole.splitlines(keepends=True)
    if how == "prefix":
        return whole, whole[:where]
    if how == "suffix":
        return whole, whole[where:]
    if how == "shuffle":
        return whole, b"".join(draw(st.permutations(lines)))
    if how == "ends":
        return whole, whole.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b"\n\r"])))
    for _ in range(draw(st.integers(1, 4))):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines)))
    return whole, b"".join(lines)


@settings(QUICK, max_examples=400)
@given(both=runs_and_damage())
def test_damage_gives_the_intact_value_or_none(read, both):
    whole, damaged = both
    intact = read(whole)
    assert not intact["reason"]
    assert third_values(intact, read(damaged)) == []


@every_format
@pytest.mark.parametrize("success", [True, False, None])
def test_a_log_cut_at_any_byte_gives_the_intact_value_or_none(read, format, success):
    if success is None and format != "v0.5":
        return
    text = log(format, (0.3, 0.76) if success is not False else (0.3, 0.7), success=success)
    whole = text.encode()
    intact = read(whole)
    assert not intact["reason"]
    for at in range(len(whole)):
        assert third_values(intact, read(whole[:at])) == []
        assert third_values(intact, read(whole[at:])) == []
    stop_line = text.splitlines(keepends=True)[-1]
    at = len(text) - len(stop_line)
    for cut in range(at, len(text) - 2):
        refused(read(text[:cut]))  # without its stop no run has a time


@QUICK
@given(content=st.binary(max_size=400))
def test_arbitrary_bytes_give_a_reason(read, content):
    refused(read(content))


TOKENS = [
    b":::MLPv0.5.0 ncf ",
    b":::MLL ",
    b":::MLLOG {",
    b"run_start",
    b"run_stop",
    b'"time_ms": 15e11',
    b"1500000000.5 ",
    b"(a:1) ",
]
TOKENS += [
    b"\n",
    b"\r",
    b"}",
    b'"key": "run_stop", ',
    b': {"value": null, "metadata": {"status": "success"}}',
    b"\xff",
    b"\x00",
    b"[",
    b": ",
]


@settings(QUICK, max_examples=200)
@given(parts=st.lists(st.sampled_from(TOKENS) | st.binary(max_size=3), max_size=25))
def test_bytes_that_look_like_a_log_never_crash(read, parts):
    record = read(b"".join(parts))
    assert record["reason"] or record["run_stop"] > record["run_start"]


def hostile() -> dict:
    """Input of a few megabytes that would take minutes, or all memory, if work were not proportional to length."""
    mega = 2_000_000
    many = "".join(evaluation("v0.7", number / 100, number, 0.5) for number in range(20_000))
    return {
        "one line": "x" * mega,
        "one tagged line": ":::MLLOG " + "x" * mega,
        "open brackets": ':::MLLOG {"key": ' + "[" * mega,
        "open objects": ":::MLLOG " + '{"a":' * (mega // 5),
        "spaces": ':::MLLOG {"key":' + " " * mega,
        "parentheses": ":::MLPv0.5.0 ncf 1 (" + ") w: " * (mega // 5),
        "heads": ":::MLPv0.5.0 a 1 " * (mega // 17),
        "tokens": ":::ML" * (mega // 5),
        "bare objects": ":::MLLOG {" * (mega // 20),
        "starts": "".join(start("v0.6", number) for number in range(20_000)),
        "evaluations": start("v0.7") + many + stop("v0.7", 201),
        "a number of a million digits": start("v0.7") + ':::MLLOG {"time_ms": ' + "9" * mega + "}\n" + stop("v0.7", 9),
    }


@pytest.mark.parametrize("what", hostile())
def test_hostile_input_ends(read, what):
    # Nothing is timed here: with quadratic work one of these would run for many minutes.
    record = read(hostile()[what])
    if what == "evaluations":
        gives(record, 201.0, "last-evaluation-missing")
    elif what == "a number of a million digits":
        assert record["evaluations"] is None
    else:
        refused(record)


def test_values_are_parsed_and_never_evaluated(read, tmp_path):
    trap = f"__import__('pathlib').Path({str(tmp_path / 'made')!r}).touch()"
    text = log("v0.5") + f":::MLPv0.5.0 resnet {START} (a.py:1) eval_accuracy: {trap}\n"
    text += ":::MLPv0.5.0 resnet " + trap.replace(" ", "") + " (a.py:1) init_start\n"
    read(text)
    assert not (tmp_path / "made").exists()


def test_what_is_no_readable_file_gives_a_reason(tmp_path):
    folder, loop, gone, empty = (tmp_path / word for word in ("folder", "loop", "gone", "empty"))
    folder.mkdir()
    loop.symlink_to(loop)
    empty.touch()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (folder, loop, gone, empty, pipe):
        refused(mlperf_log.read(path))
    assert "no line" in mlperf_log.read(empty)["reason"]


def test_a_file_beyond_the_size_limit_is_not_read(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text(log("v0.7"))
    with path.open("r+b") as stream:
        stream.truncate(mlperf_log.LARGEST + 1)  # sparse: it takes no room
    refused(mlperf_log.read(path), "64 MiB")


def test_a_record_can_be_written_as_json(read):
    for format in FORMATS:
        json.dumps(read(log(format)), allow_nan=False)
