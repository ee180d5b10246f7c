"""`labkit tta ...` as a command: what it prints, what it writes and where, and how it ends."""

import json
import os
import threading

import pandas as pd
import pytest
from workers.mlperf_text import log

from labkit import cli
from readers import dawnbench, mlperf

START = 1_530_000_000
JSON = {"version": "v1.0", "author": "a", "authorEmail": "", "framework": "f", "model": "m", "hardware": "1 V100",
        "timestamp": "2018-01-02", "costPerHour": 3.0, "misc": {}}  # fmt: skip


@pytest.fixture
def logs(tmp_path):
    """Five runs of one system, and an entry of DAWNBench, in one folder."""
    folder = tmp_path / "with a space" / "resnet"
    folder.mkdir(parents=True)
    for number, seconds in enumerate((100, 130, 110, 150, 120)):
        text = log("v0.7", (0.3, 0.76), (seconds - 0.01) / 2, since=START + 1000 * number)
        (folder / f"result_{number}.txt").write_text(text)
    entry = tmp_path / "entries" / "CIFAR10" / "train"
    entry.mkdir(parents=True)
    (entry / "one.json").write_text(json.dumps(JSON))
    (entry / "one.tsv").write_text("epoch\thours\ttop1Accuracy\n1\t0.1\t90.5\n2\t0.2\t94.5\n")
    return tmp_path


def run(*arguments) -> int:
    return cli.main(["tta", *map(str, arguments)])


def test_scores_and_what_was_left_out_are_printed(logs, capsys):
    (logs / "with a space" / "resnet" / "result_3.txt").write_text("cut")
    assert run("mlperf", logs / "with a space") == 0
    out = capsys.readouterr().out
    assert "120.00 s" in out and "left out: " in out and "result_3.txt: holds no line" in out


def test_tables_are_written_whole_and_read_back_equal(logs, capsys):
    systems, runs = logs / "s.csv", logs / "r.csv"
    for _ in range(2):  # a second time replaces them
        assert run("mlperf", logs / "with a space", "--csv", systems, "--runs-csv", runs) == 0
    found = mlperf.read(logs / "with a space")
    assert tuple(pd.read_csv(systems).columns) == mlperf.SYSTEM_COLUMNS
    assert tuple(pd.read_csv(runs).columns) == mlperf.RUN_COLUMNS
    assert pd.read_csv(runs).tta_seconds.tolist() == found.runs.tta_seconds.tolist()
    assert sorted(path.name for path in logs.iterdir()) == ["entries", "r.csv", "s.csv", "with a space"]
    assert run("dawnbench", logs / "entries", "--csv", systems) == 0
    assert list(pd.read_csv(systems).columns) == dawnbench.TRAIN


@pytest.mark.parametrize(
    "first, second, words",
    [
        ("x.csv", "x.csv", "two tables cannot go to one file"),
        ("x.csv", "entries/../x.csv", "two tables cannot go to one file"),
        ("x.csv", "none/x.csv", "its folder does not exist"),
        ("entries", "x.csv", "it is a folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(logs, capsys, first, second, words):
    assert run("mlperf", logs / "with a space", "--csv", logs / first, "--runs-csv", logs / second) == 2
    assert words in capsys.readouterr().err and not (logs / "x.csv").exists()


def test_a_link_is_written_through_and_two_names_of_one_file_are_one(logs, capsys):
    (logs / "link.csv").symlink_to(logs / "real.csv")
    assert run("mlperf", logs / "with a space", "--csv", logs / "link.csv", "--runs-csv", logs / "real.csv") == 2
    assert run("mlperf", logs / "with a space", "--csv", logs / "link.csv") == 0
    assert (logs / "link.csv").is_symlink() and len(pd.read_csv(logs / "real.csv")) == 1


def test_a_pipe_is_written_to_and_not_replaced(logs, capsys):
    pipe = logs / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    assert run("mlperf", logs / "with a space", "--csv", pipe) == 0
    reader.join(20)
    assert got[0].startswith("round,system,benchmark") and pipe.is_fifo()


@pytest.mark.skipif(os.name == "nt", reason="names there are text")
def test_a_name_that_is_no_text_stops_nothing(logs, capsys):
    os.rename(logs / "with a space", os.fsencode(logs) + b"/sys\xff")
    table = logs / "t.csv"
    assert run("mlperf", logs, "--csv", table) == 0
    assert pd.read_csv(table).score_seconds.notna().all()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_what_may_not_be_read_or_written_is_named(logs, capsys):
    closed = logs / "with a space" / "closed"
    closed.mkdir()
    closed.chmod(0)
    assert run("mlperf", logs / "with a space") == 0
    assert "closed: cannot be listed" in capsys.readouterr().out
    closed.chmod(0o755)
    (logs / "t.csv").touch()
    (logs / "t.csv").chmod(0o444)
    assert run("mlperf", logs / "with a space", "--csv", logs / "t.csv") == 2


@pytest.mark.parametrize("source", ["mlperf", "dawnbench"])
def test_where_there_is_no_log_nothing_is_written(logs, capsys, source):
    (logs / "empty").mkdir()
    for path in (logs / "empty", logs / "not there", ""):
        assert run(source, path, "--csv", logs / "t.csv") == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (logs / "t.csv").exists()


def test_an_entry_without_a_time_says_why(logs, capsys):
    table = logs / "entries" / "CIFAR10" / "train" / "one.tsv"
    table.write_text("epoch\thours\ttop1Accuracy\n1\t0.1\t90.5\n2\t0.2\t93.5\n")
    assert run("dawnbench", logs / "entries") == 0
    assert "left out: CIFAR10/train/one: no row reaches the threshold" in capsys.readouterr().out
    table.write_text("epoch\thours\ttop1Accuracy\n1\t0\t94.5\n")
    assert run("dawnbench", logs / "entries") == 0
    assert "at no time" in capsys.readouterr().out
