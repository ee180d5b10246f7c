"""Folders of MLPerf logs become runs, systems and scores; then the public logs, against two other readers."""

import gzip
import json
import math
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mlperf_log import third_values
from workers.mlperf_text import SHOWN, START, log

from labkit.errors import RequestError
from readers import mlperf, mlperf_log


@pytest.fixture
def ship(tmp_path):
    """Write logs into a folder: a number is the seconds of a converged run, negative for one that missed; a text or
    bytes are the content; None is a log that is not there.
    """

    def write(runs, folder="system/resnet", format="v0.7", benchmark="resnet") -> Path:
        where = tmp_path / "shipped" / folder
        where.mkdir(parents=True, exist_ok=True)
        for number, run in enumerate(runs):
            if isinstance(run, (int, float)):
                values = (0.3, 0.76) if run > 0 else (0.3, 0.7)
                begin = START + 100_000 * number
                run = log(format, values, (abs(run) - 0.01) / 2, run > 0, benchmark=benchmark, since=begin)
            if run is not None:
                (where / f"result_{number}.txt").write_bytes(run.encode() if isinstance(run, str) else run)
        return tmp_path / "shipped"

    return write


def only_system(results) -> dict:
    assert len(results.systems) == 1
    return results.systems.iloc[0].to_dict()


def by_hand(round: str, benchmark: str, runs: list, asked: int) -> float:
    """The rule, word by word; NaN where there is no score. A miss is None."""
    runs = runs + [None] * (asked - len(runs))
    if (round, benchmark) == ("v0.5", "ncf"):
        reached = [run for run in runs if run is not None][:50]
        if len(reached) < 50:
            return math.nan
        reached.remove(min(reached))
        reached.remove(max(reached))
        return sum(reached) / 48
    reached = [run for run in runs if run is not None]
    misses = len(runs) - len(reached)
    if misses > 1 or len(runs) < 3:
        return math.nan
    reached.remove(min(reached))
    if not misses:
        reached.remove(max(reached))
    return sum(reached) / len(reached)


ASKED = [
    ("v0.5", "resnet", 5), ("v0.5", "ssd", 5), ("v0.5", "maskrcnn", 5), ("v0.5", "gnmt", 10),
    ("v0.5", "transformer", 10), ("v0.5", "ncf", 100), ("v0.5", "minigo", 20),
    ("v0.6", "resnet", 5), ("v0.6", "ssd", 5), ("v0.6", "gnmt", 10),
    ("v0.7", "resnet", 5), ("v0.7", "dlrm", 5), ("v0.7", "bert", 10), ("v0.7", "minigo", 10), ("v0.7", "gnmt", 10),
]  # fmt: skip


@pytest.mark.parametrize(("round", "benchmark", "asked"), ASKED)
def test_scores_follow_the_rule_of_their_round(ship, round, benchmark, asked):
    generator = random.Random(asked)
    for misses in (0, 1, 2, asked // 2, asked // 2 + 1):
        runs = [generator.randrange(200, 9000) / 8 for _ in range(asked)]
        for number in generator.sample(range(asked), misses):
            runs[number] = -runs[number]
        row = only_system(mlperf.read(ship(runs, "s", format=round, benchmark=benchmark)))
        expected = by_hand(round, benchmark, [run if run > 0 else None for run in runs], asked)
        assert row["score_seconds"] == pytest.approx(expected, abs=0.002, nan_ok=True)
        assert (row["runs"], row["converged"]) == (asked, asked - misses)
        assert (row["status"] == "scored") == math.isfinite(expected)
        if misses > 1 and benchmark != "ncf":
            assert f"{misses} of {asked} runs missed" in row["status"] and "not converged" in row["status"]
        assert ("miss-before-v0.7" in row["flags"]) == (misses == 1 and round < "v0.7" and benchmark != "ncf")


def test_a_score_drops_the_fastest_and_the_slowest(ship):
    row = only_system(mlperf.read(ship([100, 130, 110, 900, 120])))
    assert row["score_seconds"] == pytest.approx(120)
    assert row["mean_seconds"] == pytest.approx(272)
    assert row["sd_seconds"] == pytest.approx(math.sqrt(sum((x - 272) ** 2 for x in (100, 130, 110, 900, 120)) / 4))
    assert row["cov_percent"] == pytest.approx(100 * row["sd_seconds"] / 272)
    assert "mean of 3" in row["score_rule"] and row["flags"] == ""


def test_a_log_that_is_not_there_counts_as_a_miss(ship):
    row = only_system(mlperf.read(ship([100, 130, None, 110, 120])))
    assert row["runs"] == 4 and "logs-missing:1" in row["flags"]
    assert row["score_seconds"] == pytest.approx(120)  # the slowest of five is the one that is missing


def test_a_copy_of_a_log_under_another_name_changes_no_score(ship):
    folder = ship([100, 130, 150, 110, 120])
    before = only_system(mlperf.read(folder))
    source = next(folder.rglob("result_1.txt"))
    source.with_name("result_1.log").write_bytes(source.read_bytes())
    results = mlperf.read(folder)
    after = only_system(results)
    assert after == before and after["score_seconds"] == pytest.approx(120)
    assert [(Path(path).name, reason.split(":")[0]) for path, reason in results.refused] == [
        ("result_1.log", "the same run as result_1.txt")
    ]


def test_a_success_far_below_its_neighbours_is_not_believed(ship):
    folder = ship([100, 130, 150, 110, 120], format="v0.7")
    odd = next(folder.rglob("result_2.txt"))
    odd.write_text(log("v0.7", (0.1,), 60))
    results = mlperf.read(folder)
    assert "says success at 0.1" in results.refused[0][1] and "miss" not in only_system(results)["status"]


def test_a_benchmark_whose_count_is_not_known_says_so(ship):
    assert "runs-not-checked" in only_system(mlperf.read(ship([100, 130, 150], benchmark="rnnt")))["flags"]


def test_links_to_folders_are_followed_once_and_packed_logs_are_read(ship, tmp_path):
    folder = ship([100, 130, 150, 110, 120])
    real = next(folder.rglob("result_0.txt")).parent
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "in").symlink_to(real, target_is_directory=True)
    (real / "loop").symlink_to(real, target_is_directory=True)
    for path in list(real.glob("result_*.txt")):
        path.with_suffix(".txt.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert only_system(mlperf.read(linked))["score_seconds"] == pytest.approx(120)


def test_a_file_without_a_tagged_line_is_no_log(tmp_path):
    other = tmp_path / "README.md"
    other.write_text("no log")
    with pytest.raises(RequestError, match="is no MLPerf result log"):
        mlperf.read(other)
    with pytest.raises(RequestError, match="no such file"):
        mlperf.read("")


def test_two_missing_logs_leave_no_score(ship):
    row = only_system(mlperf.read(ship([100, 130, 110])))
    assert math.isnan(row["score_seconds"]) and "2 of 5 logs are missing" in row["status"]


def test_the_same_run_cannot_be_shipped_twice(ship):
    best = log("v0.7", (0.3, 0.76), 50, since=START)
    results = mlperf.read(ship([best, best, best + "done\n", 300, 310]))
    row = only_system(results)
    # A copy is no run: three are left of the five that the round asks for, so two are missing.
    assert (row["runs"], row["parsed"]) == (3, 3) and math.isnan(row["score_seconds"])
    assert "2 of 5 logs are missing" in row["status"]
    assert [Path(path).name for path, _ in results.refused] == ["result_1.txt", "result_2.txt"]
    assert all("same run as result_0.txt" in reason for _, reason in results.refused)


def test_recommendation_takes_the_first_fifty_converged_in_numeric_order(ship):
    runs = [1000 + number if number % 3 else -500 for number in range(100)]
    row = only_system(mlperf.read(ship(runs, "s", format="v0.5", benchmark="ncf")))
    first = [run for run in runs if run > 0][:50]
    assert row["score_seconds"] == pytest.approx(sum(sorted(first)[1:-1]) / 48)
    lexical = [runs[number] for number in sorted(range(100), key=str) if runs[number] > 0][:50]
    assert row["score_seconds"] != pytest.approx(sum(sorted(lexical)[1:-1]) / 48)
    assert list(mlperf.read(ship([], "s")).runs["file"]) == [f"result_{number}.txt" for number in range(100)]


def test_one_unreadable_log_spoils_nothing_and_two_the_score(ship):
    bad = [b"\x00\xff" * 500, b"", ":::MLLOG {", log("v0.7")[:-40], log("v0.7") + log("v0.7", since=START + 9999)]
    for content in bad:
        results = mlperf.read(ship([100, content, 130, 110, 120]))
        row = only_system(results)
        assert (row["parsed"], row["score_seconds"]) == (4, pytest.approx(120))
        assert "refused:1" in row["flags"] and row["benchmark"] == "resnet"
        ((path, reason),) = results.refused
        assert path.endswith("result_1.txt") and reason
        shown = results.runs.set_index("file").loc["result_1.txt"]
        assert shown["flags"] == f"refused: {reason}" and math.isnan(shown["tta_seconds"]) and not shown["converged"]
    row = only_system(mlperf.read(ship([100, bad[0], 130, bad[1], 120])))
    assert math.isnan(row["score_seconds"])
    assert "result_1.txt" in row["status"] and "result_3.txt" in row["status"]


def test_things_that_are_no_files_are_passed_over(ship):
    root = ship([100, 130, 110, 120, None])
    folder = root / "system/resnet"
    (folder / "result_4.txt").mkdir()
    (folder / "up").symlink_to(root, target_is_directory=True)
    row = only_system(mlperf.read(root))
    assert row["runs"] == 4 and "logs-missing:1" in row["flags"]
    (folder / "result_4.txt").rmdir()
    (folder / "result_4.txt").symlink_to("result_4.txt")
    assert only_system(mlperf.read(root))["parsed"] == 4
    (folder / "result_4.txt").unlink()
    os.mkfifo(folder / "result_4.txt")
    os.mkfifo(root / "notes.log")
    assert only_system(mlperf.read(root))["parsed"] == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_without_permission_has_a_reason(ship):
    root = ship([100, 130, 110, 120, 140])
    (root / "system/resnet/result_2.txt").chmod(0)
    ((_, reason),) = mlperf.read(root).refused
    assert "ermission" in reason


def test_two_benchmarks_in_one_folder_are_two_systems(ship):
    ship([100, 130, 110, 120, 140], "mixed")
    for number in range(5):
        text = log("v0.7", (0.1, 0.2), 400 + number, benchmark="ssd", since=START + number * 5000)
        (ship([], "mixed") / "mixed" / f"result_{5 + number}.txt").write_text(text)
    systems = mlperf.read(ship([], "mixed")).systems
    assert list(systems["benchmark"]) == ["resnet", "ssd"] and list(systems["status"]) == ["scored"] * 2
    assert list(systems["system"]) == ["mixed"] * 2


def test_systems_and_rounds_are_kept_apart(ship):
    for format in ("v0.5", "v0.6", "v0.7"):
        ship([100, 130, 110, 120, 140], f"a b/{format} x/resnet", format=format)
    results = mlperf.read(ship([], "a b"))
    assert list(results.systems["round"]) == ["v0.5", "v0.6", "v0.7"]
    assert list(results.systems["system"]) == [f"a b/{format} x/resnet" for format in ("v0.5", "v0.6", "v0.7")]
    assert results.systems["score_seconds"].to_numpy() == pytest.approx([120] * 3)
    assert tuple(results.runs.columns) == mlperf.RUN_COLUMNS and tuple(results.systems.columns) == mlperf.SYSTEM_COLUMNS


def test_a_path_may_be_one_log(ship):
    root = ship([100])
    results = mlperf.read(root / "system/resnet/result_0.txt")
    assert results.runs["tta_seconds"][0] == pytest.approx(100)
    row = only_system(results)
    assert row["system"] == "." and math.isnan(row["score_seconds"]) and "4 of 5 logs are missing" in row["status"]


def test_a_path_without_a_log_is_a_wrong_request(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    for path in (tmp_path, tmp_path / "gone", tmp_path / "new\nline"):
        with pytest.raises(RequestError) as error:
            mlperf.read(path)
        assert "log" in str(error.value)


def test_logs_of_other_names_are_found_by_their_lines(tmp_path):
    for number in range(5):
        (tmp_path / f"run-{number}.log").write_text(log("v0.6", (0.3, 0.76), 50 + number, since=START + 5000 * number))
    (tmp_path / "notes.txt").write_text("no log")
    assert only_system(mlperf.read(tmp_path))["runs"] == 5


def test_logs_become_runs_with_the_mlperf_clock_only(ship):
    from labkit.tta.clock import score, time_to_target

    root = ship([100, 130, -110, 120, 140, b""])
    made = mlperf.runs(mlperf.read(root))
    assert len(made) == 5
    assert {(run.header.source, run.header.clock) for run in made} == {("public-log", "mlperf")}
    times = [time_to_target(run, "mlperf").seconds for run in made]
    assert times == pytest.approx([100, 130, math.inf, 120, 140])
    assert time_to_target(made[0], "dawnbench").seconds is None
    assert score(made, "mlperf").seconds == pytest.approx(130)
    assert [row.value for row in made[2].series("eval_accuracy")] == [0.3, 0.7]


# The public logs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public(public_logs):
    return mlperf.read(public_logs)


def slow(path: Path) -> dict:
    """Another reader, line by line in the order of the file, for sound logs only."""
    starts, stops, evaluations, targets = [], [], [], []
    for text in re.split(r"[\r\n]+", path.read_text("latin-1")):
        if ":::ML" not in text:
            continue
        words = text[text.rindex(":::ML") :].split(" ")
        if words[0] == ":::MLLOG":
            entry = json.loads(" ".join(words[1:]))
            when, key, value, metadata = entry["time_ms"] / 1000, entry["key"], entry["value"], entry["metadata"]
        elif words[0] == ":::MLL":
            entry = json.loads(" ".join(words[3:]))
            when, key, value, metadata = float(words[1]), words[2][:-1], entry["value"], entry["metadata"]
        else:
            rest = " ".join(words[4:]).split(": ", 1)
            when, key, metadata = float(words[2]), rest[0], {}
            value = (
                json.loads(rest[1]) if len(rest) > 1 and key in ("eval_accuracy", "eval_target", "run_stop") else None
            )
            if key == "eval_accuracy":
                value, metadata = value["value"], {"epoch_num": value["epoch"]}
            if key == "run_stop" and value:
                metadata = {"status": "success" if value["success"] in (True, "true") else "no"}
        if key == "run_start":
            starts.append(when)
        elif key == "run_stop":
            stops.append((when, metadata.get("status")))
        elif key == "eval_accuracy":
            evaluations.append((when, float(metadata["epoch_num"]), float(value)))
        elif key == "eval_target":
            targets.append(value)
    ((stop, status),), (start,) = stops, starts
    inside = [one for one in evaluations if start <= one[0] <= stop + 0.01]
    last = max(inside, key=lambda one: one[0])
    target = targets[0] if targets else None
    reached = last[2] >= target if status is None else status == "success"
    return {
        "run_start": start, "run_stop": stop, "converged": reached,
        "tta_seconds": stop - start if reached else math.nan,
        "target": target, "evaluations": len(inside), "last_epoch": last[1], "last_value": last[2],
    }  # fmt: skip


def test_every_public_log_is_read_as_another_reader_reads_it(public):
    assert (len(public.logs), len(public.systems), public.refused) == (410, 35, [])
    for found in public.logs:
        other = slow(Path(found["path"]))
        seconds, expected = found["tta_seconds"], other["tta_seconds"]
        assert seconds == pytest.approx(expected, abs=1e-6, nan_ok=True), found["path"]
        rest = [key for key in SHOWN if key != "tta_seconds"]
        assert repr([found[key] for key in rest]) == repr([other[key] for key in rest]), found["path"]


def test_public_scores_are_those_of_the_rule_by_hand(public):
    for row in public.systems.to_dict("records"):
        chosen = [log for log in public.logs if (log["system"], log["benchmark"]) == (row["system"], row["benchmark"])]
        chosen.sort(key=lambda log: int(re.search(r"\d+", log["file"])[0]))
        times = [log["tta_seconds"] if log["converged"] else None for log in chosen]
        assert row["score_seconds"] == pytest.approx(by_hand(row["round"], row["benchmark"], times, len(times)))
        assert row["status"] == "scored"


def test_what_is_known_about_the_public_logs(public):
    runs = public.runs
    assert runs["round"].value_counts().to_dict() == {"v0.5": 295, "v0.6": 65, "v0.7": 50}

    def where(flag):
        chosen = runs[runs["flags"].str.contains(flag)]
        return set(zip(chosen["round"], chosen["benchmark"], strict=True))

    assert where("success-inferred") == {("v0.5", "resnet"), ("v0.5", "transformer")}
    assert where("not-converged") == {("v0.5", "ncf"), ("v0.7", "gnmt"), ("v0.7", "resnet")}
    assert where("evaluation-outside") == {("v0.6", "ssd")}
    assert where("clock-origin") == {("v0.7", "dlrm")}
    targets = runs[runs["round"] == "v0.5"].groupby("benchmark")["target"].unique()
    expected = {"resnet": 0.749, "ssd": 0.212, "gnmt": 21.8, "transformer": 25.0, "ncf": 0.635}
    assert {name: list(values) for name, values in targets.items()} == {name: [v] for name, v in expected.items()}
    assert runs[runs["round"] != "v0.5"]["target"].isna().all()
    # Intel's own integer seconds are of another clock that stops a little later.
    intel = next(log for log in public.logs if "intel_ncf" in log["path"] and log["converged"])
    said = int(re.search(r"Finish training in (\d+) seconds", Path(intel["path"]).read_text("latin-1"))[1])
    assert 0 < said - intel["tta_seconds"] + 1 < 0.02 * said


def test_the_official_parser_and_summariser_agree_on_v07(public):
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser")
    summariser = pytest.importorskip("mlperf_logging.result_summarizer.result_summarizer")
    chosen = [found for found in public.logs if found["format"] == "v0.7"]
    for found in chosen:
        lines, failed = parser.parse_file(found["path"], ruleset="0.7.0")
        assert not failed
        start, stop = summariser._query_run_start_stop(lines)
        assert (found["run_start"], found["run_stop"]) == (start / 1000, stop / 1000)
        status = next(line.value["metadata"]["status"] for line in lines if line.key == "run_stop")
        assert found["converged"] == (status == "success")
    assert len(chosen) == 50


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_damaged_public_logs_give_their_value_or_none(public, tmp_path_factory, data):
    systems = {log["system"] + log["benchmark"]: log for log in public.logs}
    found = data.draw(st.sampled_from([log for log in systems.values() if Path(log["path"]).stat().st_size < 200_000]))
    whole = Path(found["path"]).read_bytes()
    how = data.draw(st.sampled_from(["prefix", "end", "suffix", "begin", "shuffle", "duplicate", "CRLF", "CR"]))
    lines = whole.splitlines(keepends=True)
    generator = random.Random(data.draw(st.integers(0, 2**32)))
    if how in ("prefix", "end"):
        whole = whole[: generator.randrange(0 if how == "prefix" else max(0, len(whole) - 900), len(whole))]
    elif how in ("suffix", "begin"):
        whole = whole[generator.randrange(len(whole) if how == "suffix" else min(4000, len(whole))) :]
    elif how == "shuffle":
        generator.shuffle(lines)
        whole = b"".join(lines)
    elif how == "duplicate":
        told = [text for text in lines if b"run_st" in text or b"eval_" in text]
        for _ in range(5):
            lines.insert(
                generator.randrange(len(lines)), generator.choice([generator.choice(told), generator.choice(lines)])
            )
        whole = b"".join(lines)
    else:
        whole = whole.replace(b"\n", b"\r\n" if how == "CRLF" else b"\r")
    path = tmp_path_factory.mktemp("damaged") / "result_0.txt"
    path.write_bytes(whole)
    record = mlperf_log.read(path)
    path.unlink()
    assert third_values(found, record) == []
    if how in ("shuffle", "duplicate", "CRLF", "CR"):
        assert record["reason"] == ""
