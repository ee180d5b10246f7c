"""readers.dawnbench on small entries written here, on the public ones where they are at hand, and on damage."""

import json
import math
import os
import random
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import RequestError
from readers import commands, dawnbench
from labkit.tta.clock import RULES, time_to_target
from labs import thresholds

FACTS = {"version": "v1.0", "author": "someone", "authorEmail": "", "framework": "Torch 1", "codeURL": "", "misc": {},
         "model": "Net", "hardware": "1 V100", "costPerHour": 3.0, "timestamp": "2019-02-03"}  # fmt: skip
SERVED = {**FACTS, "latency": 2.0, "cost": 1e-6, "top1Accuracy": 94.5}
ROWS = ["1\t0.1\t50.25", "2\t0.2\t94.00", "3\t0.3\t93.75", "4\t0.4\t94.50"]
HEADER = "epoch\thours\ttop1Accuracy"
TABLE = "\n".join([HEADER, *ROWS]) + "\n"
HIT = ["tta_seconds", "first_hit_epoch", "metric_at_hit", "displayed_time", "cost_usd"]


def write(folder: Path, name="an_entry_v100_torch", table: str | bytes | None = TABLE, task="CIFAR10", **facts) -> Path:
    """A training entry (an inference entry where `table` is None), as files; the path without suffix is returned."""
    stem = folder / task / ("inference" if table is None else "train") / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    content = {key: value for key, value in ((SERVED if table is None else FACTS) | facts).items() if value != "absent"}
    Path(f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    if table is not None:
        Path(f"{stem}.tsv").write_bytes(table if isinstance(table, bytes) else table.encode())
    return stem


def only(path: Path, kind="train") -> pd.Series:
    """The one entry that a path holds."""
    benchmark = dawnbench.read(path)
    assert benchmark.refused == []
    (row,) = getattr(benchmark, kind).to_dict("records")
    return row


def reason(path: Path) -> str:
    """Why the one entry of a path was refused: it is in no table and has no curve."""
    benchmark = dawnbench.read(path)
    assert len(benchmark.train) == len(benchmark.inference) == len(benchmark.curves) == 0
    ((_, why),) = benchmark.refused
    assert "\n" not in why
    return why


def swap(line: int, text: str, rows=ROWS) -> str:
    return "\n".join([HEADER, *rows[:line], text, *rows[line + 1 :]]) + "\n"


# --- what an entry says -----------------------------------------------------------------------------------------


def test_the_first_row_at_or_above_the_threshold_gives_every_column(tmp_path):
    write(tmp_path)
    row = only(tmp_path)
    assert list(row) == dawnbench.TRAIN
    assert row["tta_seconds"] == 0.2 * 3600 and row["cost_usd"] == 0.2 * 3.0
    assert (row["first_hit_epoch"], row["metric_at_hit"], row["final_metric"], row["rows"]) == (2, 94.0, 94.5, 4)
    assert (row["metric"], row["threshold"], row["displayed_time"]) == ("top1Accuracy", 94.0, "0:12:00")
    assert (row["task"], row["entry"], row["model"]) == ("CIFAR10", "an_entry_v100_torch", "Net")
    assert (row["hardware"], row["framework"], row["date"]) == ("1 V100", "Torch 1", "2019-02-03")
    assert row["flags"] == "falls-below-again;long-after-target"


def test_the_raw_value_counts_not_the_rounded_one(tmp_path):
    write(tmp_path, table=swap(1, "2\t0.2\t93.99999999999999"))
    assert only(tmp_path)["first_hit_epoch"] == 4
    write(tmp_path, table=swap(1, "2\t0.2\t94.00000000000001"))
    assert only(tmp_path)["first_hit_epoch"] == 2


@pytest.mark.parametrize("task, header, row, threshold", [
    ("ImageNet", "hours\tepoch\ttop1Accuracy\ttop5Accuracy", "0.5\t1\t70\t93", 93.0),
    ("SQuAD", "epoch\tf1Score\thours", "1\t0.75\t0.5", 0.75),
    ("CIFAR10", "top1Accuracy\thours\tepoch", "94\t0.5\t1", 94.0),
])  # fmt: skip
def test_columns_are_found_by_name_and_each_task_has_its_metric(tmp_path, task, header, row, threshold):
    write(tmp_path, table=f"{header}\n{row}\n", task=task)
    found = only(tmp_path)
    assert (found["tta_seconds"], found["first_hit_epoch"], found["metric_at_hit"]) == (1800, 1, threshold)


def test_a_run_that_stops_at_its_first_hit_needs_no_flag(tmp_path):
    write(tmp_path, table="\n".join([HEADER, *ROWS[:2]]) + "\n")
    assert only(tmp_path)["flags"] == ""


def test_a_run_that_never_reaches_has_no_time(tmp_path):
    write(tmp_path, table=f"{HEADER}\n{ROWS[0]}\n")
    row = only(tmp_path)
    assert row["flags"] == "not-reached" and row["displayed_time"] == ""
    assert all(math.isnan(row[name]) for name in ("tta_seconds", "first_hit_epoch", "metric_at_hit", "cost_usd"))


@pytest.mark.parametrize("seconds, shown", [
    (12, "0:00:12"), (12.0000000001, "0:00:12"), (12.0011, "0:00:13"), (11.9999999, "0:00:12"), (0, "0:00:00"),
    (3599.2, "1:00:00"), (3661, "1:01:01"), (360_000.5, "100:00:01"),
])  # fmt: skip
def test_displayed_time_rounds_up_but_float_noise_adds_no_second(seconds, shown):
    assert dawnbench.displayed(seconds) == shown


@pytest.mark.parametrize("price, flag", [
    ("absent", "no-cost"), (None, "no-cost"), ("3", "bad-cost"), (-1, "bad-cost"), (True, "bad-cost"),
    (math.nan, "bad-cost"), (10**400, "bad-cost"),
])  # fmt: skip
def test_without_a_price_the_time_stands(tmp_path, price, flag):
    write(tmp_path, costPerHour=price)
    row = only(tmp_path)
    assert math.isnan(row["cost_usd"]) and row["tta_seconds"] == 720 and flag in row["flags"].split(";")


def test_inference_entries_cost_ten_thousand_images(tmp_path):
    write(tmp_path, table=None)
    row = only(tmp_path, "inference")
    assert list(row) == dawnbench.INFERENCE
    assert (row["accuracy"], row["latency_ms"], row["cost_usd"], row["flags"]) == (94.5, 2.0, 1e-6, "")
    assert row["cost_usd_10000"] == pytest.approx(0.01)
    write(tmp_path / "squad", table=None, task="SQuAD", f1Score=82.5)
    percent = only(tmp_path / "squad", "inference")
    assert (percent["accuracy"], percent["flags"]) == (82.5, "f1-in-percent")


def test_every_flag_can_be_planted_and_says_what_it_means(tmp_path):
    squad = "epoch\tf1Score\thours\n1\t0.2\t 0.1\n"
    planted = {
        "crlf bom": write(tmp_path / "1", table=b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode()),
        "no-final-newline": write(tmp_path / "2", table=TABLE[:-1]),
        "unterminated not-reached": write(tmp_path / "3", table=f"{HEADER}\n{ROWS[0]}\n2\t0.2\t94.0"),
        "blank-line falls-below-again long-after-target": write(tmp_path / "4", table=TABLE + "\n"),
        "padded-fields columns-reordered": write(tmp_path / "5", table=squad, task="SQuAD"),
        "ends-below": write(tmp_path / "6", table="\n".join([HEADER, *ROWS[:3]]) + "\n"),
        "fractional-epochs": write(tmp_path / "7", table=TABLE.replace("\n4", "\n3.3")),
        "irregular-epochs": write(tmp_path / "8", table=TABLE.replace("\n4", "\n3.3")),
        "repeated-epochs": write(tmp_path / "9", table=TABLE.replace("\n4", "\n3")),
        "first-epoch-zero zero-hours-first": write(tmp_path / "10", table=f"{HEADER}\n0\t0\t10\n{ROWS[0]}\n"),
        "no-cost no-date misc-is-text": write(tmp_path / "11", costPerHour=None, timestamp="May", misc="fast"),
        "bad-cost date-unpadded stray-field": write(tmp_path / "12", costPerHour="3", timestamp="2019-2-3", mine=0.9),
        "checkpointing-claimed": write(tmp_path / "13", misc={"runtimeWithoutCheckpointing": "9 minutes"}),
        "short-name name-against-hardware": write(tmp_path / "14", name="dawn_1p100"),
        "repeat-of": write(tmp_path / "15", name="a_b_c_d_part2"),
        "unknown-task": write(tmp_path / "16", task="Fashion"),
        "task-by-columns": loose(tmp_path / "17"),
        "own-target": write(tmp_path / "19", task="Fashion", misc={"target": {"value": 0.94}}),
    }
    seen = set()
    for words, stem in planted.items():
        flags = only(stem)["flags"].split(";")
        assert set(words.split()) <= set(flags), words
        seen |= set(flags)
    served = write(tmp_path / "18", table=None, task="SQuAD", f1Score=74.0, latency=1.0)
    seen |= set(only(served, "inference")["flags"].split(";"))
    assert seen == set(dawnbench.FLAGS)


def loose(folder: Path, **content) -> Path:
    """An entry outside any task's folder."""
    stem = write(folder, **content)
    for suffix in (".json", ".tsv"):
        os.replace(f"{stem}{suffix}", folder / f"loose{suffix}")
    return folder / "loose"


@pytest.mark.parametrize("filed, day", [("2018-4-8", "2018-04-08"), ("2018-04-31", ""), ("18-4-8", ""), (20180408, "")])
def test_dates(tmp_path, filed, day):
    write(tmp_path, timestamp=filed)
    assert only(tmp_path)["date"] == day


# --- where entries are found ------------------------------------------------------------------------------------


def test_every_kind_of_path_finds_its_entries(tmp_path):
    stem, other = write(tmp_path), write(tmp_path, task="SQuAD", table="epoch\thours\tf1Score\n1\t0.5\t0.8\n")
    write(tmp_path, table=None, name="version_2.4")
    (tmp_path / "README.md").write_text("rules")
    (stem.parent / "notes.txt").write_text("no entry")
    whole = dawnbench.read(tmp_path)
    assert whole.train.task.tolist() == ["CIFAR10", "SQuAD"] and whole.inference.entry.tolist() == ["version_2.4"]
    assert len(dawnbench.read(stem.parent.parent).train) == len(dawnbench.read(stem.parent.parent).inference) == 1
    assert len(dawnbench.read(stem.parent).train) == 1 and len(dawnbench.read(stem.parent).inference) == 0
    for path in (stem, f"{stem}.json", f"{stem}.tsv"):
        assert only(path)["tta_seconds"] == 720
    assert only(other)["task"] == "SQuAD"
    assert only(stem.parent.parent / "inference" / "version_2.4", "inference")["latency_ms"] == 2.0


def test_a_loose_entry_tells_its_task_by_its_columns(tmp_path):
    row = only(loose(tmp_path / "a"))
    assert (row["task"], row["tta_seconds"], row["flags"].split(";")[0]) == ("CIFAR10", 720, "task-by-columns")
    (tmp_path / "b.json").write_text(json.dumps(SERVED))
    assert only(tmp_path / "b.json", "inference")["task"] == "CIFAR10"


def test_a_task_without_a_known_threshold_has_a_curve_but_no_time(tmp_path):
    write(tmp_path, task="Fashion")
    row, benchmark = only(tmp_path), dawnbench.read(tmp_path)
    assert row["flags"] == "unknown-task" and math.isnan(row["threshold"]) and math.isnan(row["tta_seconds"])
    assert thresholds.thresholds(benchmark, {"Fashion": [94.5]}).seconds.tolist() == [0.4 * 3600]
    assert dawnbench.runs(benchmark)[0].header.target is None


def test_an_unknown_task_is_judged_by_the_target_that_our_export_states(tmp_path):
    def judged(number, value=0.94, task="Fashion", move=write, **more):
        row = only(move(tmp_path / str(number), task=task, misc={"target": {"value": value, **more}}))
        return row["threshold"], row["tta_seconds"], row["flags"]

    assert judged(1) == (94.0, 720, "own-target;falls-below-again;long-after-target")
    assert judged(2, 0.945)[:2] == (94.5, 1440)
    threshold, seconds, flags = judged(3, 0.95)
    assert threshold == 95 and math.isnan(seconds) and flags == "not-reached;own-target"
    for number, value in enumerate((94, -1, True, "0.94", None, [0.9]), start=4):  # no fraction
        assert math.isnan(judged(number, value)[0]) and judged(number, value)[2] == "unknown-task"
    assert judged(10, 0.1, higher=False)[2] == "unknown-task"
    assert judged(11, 0.1, task="CIFAR10")[:2] == (94.0, 720)  # an official threshold stays
    # Outside any task's folder it is not taken for one of CIFAR10.
    assert judged(12, 0.945, move=loose) == (94.5, 1440, "own-target;short-name")
    assert dawnbench.read(tmp_path / "12").train.task.tolist() == ["unknown"]
    assert dawnbench.runs(dawnbench.read(tmp_path / "1"))[0].header.target["value"] == 94.0


def test_the_command_says_why_an_entry_has_no_time(tmp_path):
    write(tmp_path, name="a_hit_v100_torch")
    write(tmp_path, name="a_miss_v100_torch", table=f"{HEADER}\n{ROWS[0]}\n")
    write(tmp_path, task="Fashion")
    write(tmp_path, task="Own", misc={"target": {"value": 0.94}})
    write(tmp_path, task="Own", name="easier_v100_torch_x", misc={"target": {"value": 0.5}})
    lines = commands.dawnbench(tmp_path, None, None).splitlines()
    heads = [line for line in lines if "training (" in line or line.endswith("training")]
    assert sorted(heads) == [
        "CIFAR10, training (top1Accuracy >= 94)", "Fashion, training",
        "Own, training (top1Accuracy >= 50)", "Own, training (top1Accuracy >= 94)",
    ]  # fmt: skip
    assert [line for line in lines if line.startswith("left out: ")] == [
        f"left out: CIFAR10/train/a_miss_v100_torch: {dawnbench.FLAGS['not-reached']}",
        f"left out: Fashion/train/an_entry_v100_torch: {dawnbench.FLAGS['unknown-task']}",
    ]
    assert sum("no time" in line for line in lines) == 2 and "nan" not in "\n".join(lines)


def test_a_path_without_any_entry_is_a_wrong_request(tmp_path):
    with pytest.raises(RequestError, match="nowhere does not exist; give a folder"):
        dawnbench.read(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="holds no DAWNBench entry"):
        dawnbench.read(tmp_path)
    (tmp_path / "README.md").write_text("rules")
    with pytest.raises(RequestError, match="holds no DAWNBench entry"):
        dawnbench.read(tmp_path / "README.md")


def test_one_bad_entry_spoils_no_other(tmp_path):
    write(tmp_path)
    write(tmp_path, name="broken", table="nothing")
    benchmark = dawnbench.read(tmp_path)
    assert benchmark.train.entry.tolist() == ["an_entry_v100_torch"]
    assert [file for file, _ in benchmark.refused] == [os.path.join("CIFAR10", "train", "broken.tsv")]


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table, why", [
    (b"", "columns are no task's: ''"),
    (HEADER + "\n", "no row that is whole"),
    (HEADER + "\n94", "line 2 has 1 fields, not 3; the file may be cut"),
    ("epoch\thours\n1\t0.1\n", "columns are no task's"),
    ("epoch\thours\thours\n1\t0.1\t0.1\n", "columns are no task's"),
    ("\n".join([ROWS[0], HEADER, *ROWS[1:]]) + "\n", "columns are no task's"),
    (TABLE + HEADER + "\n", "line 6: .* is no number"),
    (TABLE + "5\t0.5\n", "line 6 has 2 fields, not 3"),
    (TABLE + "5\t0.5\t95\t99\n", "line 6 has 4 fields"),
    (swap(1, "2\t0.2\tnan"), "line 3: .*nan.* is no number of 0 or more"),
    (swap(1, "2\t0.2\tinf"), "is no number"),
    (swap(1, "2\t0.2\t9_4"), "is no number"),
    (swap(1, "2\t0.2\t٩٤"), "is no number"),
    (swap(1, "2\t-0.2\t94"), "is no number of 0 or more"),
    (swap(1, "2\t0.2\t"), "is no number"),
    (swap(1, "2\t0.2\t" + "9" * 1000), "is no number"),
    (swap(1, "2\t0.2\t1e999"), "top1Accuracy above 100"),
    (swap(1, "2\t0.2\t100.1"), "top1Accuracy above 100"),
    (swap(1, "2\t0.1\t94"), "hours do not rise"),
    (swap(1, "2\t0.05\t94"), "hours do not rise"),
    (swap(3, "4\t90000\t94"), "ten years"),
    ("\n".join([HEADER, ROWS[0], *ROWS]) + "\n", "hours do not rise"),
    ("\n".join([HEADER, *reversed(ROWS)]) + "\n", "hours do not rise"),
    (TABLE.replace("\n4", "\n2"), "epochs fall"),
    ("\n".join([HEADER, *ROWS[:1], *ROWS[2:]]) + "\n", "epochs are missing"),
    ("\n".join([HEADER, *ROWS[2:]]) + "\n", "epochs are missing"),
    (TABLE.encode("utf-16"), "no readable UTF-8"),
    (TABLE + "\0\n", "fields"),
    (TABLE + "\n" * (1 << 20), "larger than"),
])  # fmt: skip
def test_a_table_that_cannot_be_right_is_refused(tmp_path, table, why):
    assert re.search(why, reason(write(tmp_path, table=table)))


def test_metrics_of_another_task_and_impossible_pairs_are_refused(tmp_path):
    assert "not judged by f1Score" in reason(write(tmp_path / "a", table="epoch\thours\tf1Score\n1\t1\t0.8\n"))
    both = "epoch\thours\ttop1Accuracy\ttop5Accuracy\n1\t1\t94\t93\n"
    assert reason(write(tmp_path / "b", table=both, task="ImageNet")) == "top-1 above top-5 accuracy"
    assert "above 1" in reason(write(tmp_path / "c", table="epoch\thours\tf1Score\n1\t1\t80\n", task="SQuAD"))


@pytest.mark.parametrize("text, why", [
    ("", "no JSON, or cut"),
    (json.dumps(FACTS)[:-1], "no JSON, or cut"),
    (json.dumps(FACTS) * 2, "no JSON, or cut"),
    ("[]", "no object of version"),
    ('{"version": "v1.0", "version": "v1.0"}', "a key comes twice"),
    (json.dumps(FACTS | {"version": "v2.0"}), "no object of version"),
    (json.dumps(FACTS | {"hardware": None}), "hardware is missing or no text"),
    ("[" * 200_000, "no JSON, or cut"),
    ('{"misc": ' + "9" * 5000 + "}", "no JSON, or cut"),
])  # fmt: skip
def test_json_that_cannot_be_trusted_is_refused(tmp_path, text, why):
    stem = write(tmp_path)
    Path(f"{stem}.json").write_text(text)
    assert why in reason(stem)


@pytest.mark.parametrize("facts", [{"latency": 0.0}, {"latency": "absent"}, {"latency": "2"}, {"top1Accuracy": 101.0},
                                   {"top1Accuracy": "absent"}, {"top1Accuracy": True}])  # fmt: skip
def test_inference_that_cannot_be_right_is_refused(tmp_path, facts):
    assert "top1Accuracy or latency is missing or impossible" in reason(write(tmp_path, table=None, **facts))


def test_half_a_pair_and_what_is_no_file_is_refused(tmp_path):
    for suffix in (".json", ".tsv"):
        stem = write(tmp_path / suffix)
        os.remove(f"{stem}{suffix}")
        assert reason(tmp_path / suffix) == "missing: an entry needs it"
        os.mkdir(f"{stem}{suffix}")
        assert reason(tmp_path / suffix) == "not a regular file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    stem = write(tmp_path)
    os.remove(f"{stem}.tsv")
    os.mkfifo(f"{stem}.tsv")  # opening it would wait for ever
    assert reason(tmp_path) == "not a regular file"


def test_text_that_no_csv_can_hold_is_replaced(tmp_path):
    write(tmp_path, model="Net \ud800")
    assert dawnbench.read(tmp_path).train.to_csv().encode().count(b"Net ?") == 1


# --- files cut within the last number ---------------------------------------------------------------------------


def test_a_number_cut_at_the_end_of_the_file_is_not_used(tmp_path):
    """"94.5" of "94.50" and "9" of "94.50": the row is left out, what came before stands, nothing follows from it."""
    for lost in (1, 2, 3, 4):
        row = only(write(tmp_path / str(lost), table=TABLE[: -1 - lost]))
        assert "unterminated" in row["flags"] and math.isnan(row["final_metric"])
        assert (row["tta_seconds"], row["rows"]) == (720, 4)
    hit_last = f"{HEADER}\n{ROWS[0]}\n2\t0.2\t94.37"
    assert only(write(tmp_path / "whole", table=hit_last))["metric_at_hit"] == 94.37
    cut = only(write(tmp_path / "cut", table=hit_last[:-1]))
    assert cut["flags"] == "not-reached;unterminated" and math.isnan(cut["tta_seconds"])


@pytest.mark.parametrize("rows, whole", [
    (["50.25", "60.5", "70.25", "80.25", "94.25"], True),  # a trailing zero was dropped once
    (["50.25", "60.5", "94.2"], False),
    (["50.25", "60.123", "94.25"], False),  # others have more
    (["50.25", "60", "70", "94.25"], False),  # no usual number of decimals
    (["50", "60", "94"], False),  # may have been 94.25
    (["5.00e1", "9.40e1"], False),
    (["94.25"], False),  # nothing to compare with
    (["50.25", "94.25 "], True),  # a blank follows: the number ended
    (["50", "94\r"], True),
])  # fmt: skip
def test_decimals_or_a_blank_tell_whether_the_last_number_is_whole(tmp_path, rows, whole):
    table = HEADER + "".join(f"\n{number}\t0.{number}\t{value}" for number, value in enumerate(rows, 1))
    if len(rows) == 1:
        assert reason(write(tmp_path, table=table)) == "no row that is whole"
    else:
        assert ("unterminated" not in only(write(tmp_path, table=table))["flags"]) == whole


# --- damage: the intact file's value or a reason ----------------------------------------------------------------


def same_or_reason(path: Path, true: dict, names=HIT) -> None:
    benchmark = dawnbench.read(path)
    assert len(benchmark.train) + len(benchmark.refused) == 1
    for row in benchmark.train.to_dict("records"):
        for name in names:
            assert row[name] == true[name] or row[name] == "" or row[name] != row[name], (path, name)
        assert row["displayed_time"] or "not-reached" in row["flags"]


@settings(max_examples=60, deadline=None)
@given(table=st.binary(max_size=60), facts=st.binary(max_size=60))
def test_arbitrary_bytes_never_become_a_number(table, facts, tmp_path_factory):
    stem = write(tmp_path_factory.mktemp("bytes"))
    Path(f"{stem}.tsv").write_bytes(table)
    assert reason(stem)
    Path(f"{stem}.tsv").write_text(TABLE)
    Path(f"{stem}.json").write_bytes(facts)
    assert reason(stem)


@settings(max_examples=40, deadline=None)
@given(text=st.text("0123456789.\t\n\re+- ", max_size=80), last=st.sampled_from(["", "\n"]))
def test_arbitrary_tables_end_in_a_row_of_the_file_or_a_reason(text, last, tmp_path_factory):
    stem = write(tmp_path_factory.mktemp("table"), table=f"{HEADER}\n{text}{last}")
    benchmark = dawnbench.read(stem)
    assert len(benchmark.train) + len(benchmark.refused) == 1
    for row in benchmark.train.to_dict("records"):
        values = [[float(cell) for cell in line.split("\t")] for line in text.split("\n") if line.strip()]
        hits = [value for value in values if value[2] >= 94]
        assert row["rows"] == len(values)
        assert not row["displayed_time"] or row["tta_seconds"] == hits[0][1] * 3600


@settings(max_examples=60, deadline=None)
@given(data=st.data(), metrics=st.lists(st.floats(80, 99), min_size=2, max_size=12), decimals=st.integers(0, 4))
def test_a_cut_shuffled_or_doubled_table_gives_the_intact_value_or_a_reason(data, metrics, decimals, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    lines = [HEADER, *(f"{i}\t{i / 8}\t{value:.{decimals}f}" for i, value in enumerate(metrics, 1))]
    whole = "\n".join(lines) + "\n"
    true = only(write(folder, table=whole))
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    same_or_reason(write(folder, table=cut), true)
    shuffled = data.draw(st.permutations(lines))
    same_or_reason(write(folder, table="\n".join(shuffled) + "\n"), true, [*HIT, "final_metric", "rows"])
    again = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines)))
    assert reason(write(folder, table="\n".join([*lines[:place], lines[again], *lines[place:]]) + "\n"))


# --- runs and thresholds ----------------------------------------------------------------------------------------


def test_runs_answer_the_dawnbench_clock_and_no_other(tmp_path):
    write(tmp_path)
    write(tmp_path, name="a_miss_v100_torch", table=f"{HEADER}\n{ROWS[0]}\n")
    benchmark = dawnbench.read(tmp_path)
    missed, reached = dawnbench.runs(benchmark)
    assert [time_to_target(run, "dawnbench").seconds for run in (reached, missed)] == [720, math.inf]
    for rule in set(RULES) - {"dawnbench"}:
        assert "not answerable" in str(time_to_target(reached, rule))
    assert (reached.header.source, reached.header.lab, reached.status) == ("public-log", "public", "finished")
    assert [row.value for row in reached.series("top1Accuracy")] == [50.25, 94.0, 93.75, 94.5]
    assert [row.epoch for row in reached.rows] == [1, 2, 3, 4]


def test_a_run_is_identified_by_its_content(tmp_path):
    def identity(folder, table):
        write(tmp_path / folder, table=table)
        return dawnbench.runs(dawnbench.read(tmp_path / folder))[0].header.identity

    assert identity("a", TABLE) == identity("b", TABLE.replace("\n", "\r\n"))
    assert identity("a", TABLE) != identity("c", TABLE.replace("94.50", "94.51"))


def test_thresholds_are_crossed_on_the_same_curve(tmp_path):
    write(tmp_path)
    table = thresholds.thresholds(dawnbench.read(tmp_path), {"CIFAR10": [50.0, 94.0, 94.25, 99.0], "SQuAD": [0.75]})
    assert table.columns.tolist() == ["task", "entry", "threshold", "seconds"]
    assert table.seconds.tolist() == [0.1 * 3600, 0.2 * 3600, 0.4 * 3600, math.inf]


def test_reading_needs_neither_torch_nor_scipy(python):
    code = "import sys, labkit.paths; labkit.paths.lab_part('dawnbench', 'readers'); print({'torch', 'scipy', 'matplotlib'} & set(sys.modules))"
    assert python("-c", code).communicate()[0].strip() == "set()"


# --- the public entries -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public(public_logs):
    return dawnbench.read(public_logs / "dawnbench")


def flagged(table: pd.DataFrame, word: str) -> set[str]:
    return {f"{row.task} {row.entry}" for row in table.itertuples() if word in row.flags.split(";")}


def test_all_public_entries_are_read(public):
    assert public.refused == []
    assert public.train.groupby("task").size().to_dict() == {"CIFAR10": 31, "ImageNet": 27, "SQuAD": 11}
    assert public.inference.groupby("task").size().to_dict() == {"CIFAR10": 21, "ImageNet": 22, "SQuAD": 6}
    assert public.train.tta_seconds.notna().all() and public.train.final_metric.notna().all()
    assert public.train.groupby("task").cost_usd.count().to_dict() == {"CIFAR10": 20, "ImageNet": 17, "SQuAD": 7}
    assert public.inference.groupby("task").cost_usd.count().to_dict() == {"CIFAR10": 13, "ImageNet": 10, "SQuAD": 3}


def test_public_times_are_those_of_another_parser(public, public_logs):
    for row in public.train.itertuples():
        file = public_logs / "dawnbench" / row.task / "train" / f"{row.entry}.tsv"
        table = pd.read_csv(file, sep=r"\s*\t\s*", engine="python", encoding="utf-8-sig", dtype=float)
        hit = table[table[row.metric] >= row.threshold].iloc[0]
        assert (row.tta_seconds, row.first_hit_epoch) == (hit.hours * 3600, hit.epoch)
        assert row.metric_at_hit == hit[row.metric]
        assert (row.rows, row.final_metric) == (len(table), table[row.metric].iloc[-1])


def test_public_quirks_are_flagged(public):
    train = public.train
    exact = train[train.metric_at_hit == train.threshold]
    assert set(exact.entry) == {"google_resnet50_tpupod_tensorflow18", "dawn_resnet164_nb_1k80-gc_pytorch"}
    sizes = {"no-final-newline": 9, "blank-line": 4, "bom": 1, "padded-fields": 1, "first-epoch-zero": 21,
             "fractional-epochs": 9, "repeated-epochs": 1, "zero-hours-first": 1, "misc-is-text": 1, "repeat-of": 1,
             "columns-reordered": 8, "unterminated": 0, "not-reached": 0}  # fmt: skip
    assert {word: len(flagged(train, word)) for word in sizes} == sizes
    assert flagged(train, "checkpointing-claimed") >= {"ImageNet google_resnet50_tpupod_tensorflow18"}
    assert flagged(public.inference, "f1-in-percent") == {"SQuAD dawn_fastfusionnet-1080ti"}
    assert len(flagged(public.inference, "date-unpadded")) == 5
    assert public.inference.date.str.fullmatch(r"\d{4}-\d{2}-\d{2}").all()


def test_public_runs_give_the_same_times(public):
    times = [time_to_target(run, "dawnbench").seconds for run in dawnbench.runs(public)]
    assert times == public.train.tta_seconds.tolist()


@pytest.mark.parametrize("task, entry", [
    ("CIFAR10", "davidcpage_resnet9_1v100-ec2_pytorch"), ("CIFAR10", "lambda_BaiduNet9_lambda_cloud_single_pytorch"),
    ("ImageNet", "alibabacloud_resnet50_gn6e_1_machine_tensorflow"), ("SQuAD", "dawn_drqa_1k80-ec2"),
])  # fmt: skip
def test_public_entries_cut_shuffled_or_doubled(public_logs, tmp_path, task, entry):
    source = public_logs / "dawnbench" / task / "train" / entry
    whole, facts = (Path(f"{source}{suffix}").read_bytes() for suffix in (".tsv", ".json"))
    true, stem, dice = only(source), write(tmp_path, name=entry, task=task), random.Random(0)
    Path(f"{stem}.json").write_bytes(facts)
    last_row = whole.rstrip().rfind(b"\n") + 1
    for end in [*range(0, last_row - 60, 7), *range(last_row - 60, len(whole))]:
        Path(f"{stem}.tsv").write_bytes(whole[:end])
        same_or_reason(stem, true, [*HIT, "final_metric", "rows"] if end > last_row else HIT)
    lines = whole.split(b"\n")
    for _ in range(20):
        Path(f"{stem}.tsv").write_bytes(b"\n".join(dice.sample(lines, len(lines))))
        same_or_reason(stem, true, [*HIT, "final_metric", "rows"])
        line = dice.choice([line for line in lines if line])
        Path(f"{stem}.tsv").write_bytes(b"\n".join([*lines, line]))
        assert reason(stem)
    Path(f"{stem}.tsv").write_bytes(whole)
    for end in range(0, len(facts.rstrip()), 7):
        Path(f"{stem}.json").write_bytes(facts[:end])
        assert reason(stem)
