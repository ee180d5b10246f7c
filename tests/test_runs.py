"""Runs on disk: what is written is read back, whatever cuts or corrupts the file, and identity is what makes the
science.
"""

import dataclasses
import json
import math
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import runs
from labkit.errors import RequestError, WorkError
from labkit.runs import SPAN_KINDS, Header, Row, Run, RunWriter, Span, Store

HERE = {"cpu": "a", "cpus": 2, "threads": 1, "device": "cpu"}
plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(plain | st.text(), lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))
mappings = st.dictionaries(st.text(), values, max_size=4)
headers = st.builds(
    Header,
    lab=st.text("0123456789abc", min_size=1, max_size=4),
    config=mappings,
    repeat=st.integers(0, 2**31),
    source=st.sampled_from(runs.SOURCES),
    data=st.fixed_dictionaries({"checksum": st.text()}),
    code=st.text(),
    target=st.none() | mappings,
    hardware=mappings,
    claims=st.dictionaries(st.text(), st.text(), max_size=3),
    clock=st.none() | st.text(),
    arms=st.integers(1, 50),
)
seconds = st.floats(0, 1e6)
spans = st.builds(lambda kind, a, b: Span(kind, min(a, b), max(a, b)), st.sampled_from(SPAN_KINDS), seconds, seconds)
rows = st.builds(
    Row, st.integers(0, 2**40), st.floats(), st.integers(0, 2**40), st.floats(0, 1e6), st.text(), st.floats()
)


def write(run: Run, path: Path) -> Run:
    with RunWriter(run.header, path) as writer:
        for span in run.spans:
            writer.span(span.kind, span.start, span.end)
        for row in run.rows:
            options = {key: getattr(row, key) for key in ("step", "epoch", "samples", "when")}
            writer.metric(row.name, row.value, **options)
    return writer.run


def same(a: Run, b: Run) -> bool:
    """Equal in every field; one NaN is like another."""
    return repr(dataclasses.asdict(a)) == repr(dataclasses.asdict(b))


def planted(lab="07", repeat=0, rate=0.1, **header) -> Run:
    top = Header(lab, {"rate": rate, "batch": 16}, repeat, hardware=HERE, **header)
    spans = [Span("init", 0.0, 0.5), Span("train", 0.5, 1.25)]
    rows = [Row(1, 0.5, 16, 0.75, "accuracy", 0.25), Row(2, 1.0, 32, 1.25, "accuracy", math.nan)]
    return Run(top, spans, rows, "finished")


@settings(max_examples=60, deadline=None)
@given(headers, st.lists(spans, max_size=4), st.lists(rows, max_size=4))
def test_a_run_is_read_back_as_it_was_written(header, spans, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        written = write(Run(header, spans, rows), path)
        assert same(runs.read(path), written)
        assert written.header == header and written.status == "finished"
        microseconds = [Span(span.kind, round(span.start, 6), round(span.end, 6)) for span in spans]
        assert written.spans == microseconds
        assert repr([dataclasses.replace(row, when=0.0) for row in written.rows]) == repr(
            [dataclasses.replace(row, when=0.0) for row in rows]
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1 + 0.2, -0.0, 5e-324])
def test_no_value_of_a_metric_is_lost(tmp_path, value):
    with RunWriter(Header("07", {}), tmp_path / "run.jsonl") as writer:
        writer.metric("loss", value)
    assert repr(runs.read(tmp_path / "run.jsonl").last("loss")) == repr(value)
    assert math.isnan(runs.read(tmp_path / "run.jsonl").last("no such metric"))
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_file_cut_at_any_byte_loses_at_most_its_last_line(tmp_path):
    whole = write(planted(), tmp_path / "run.jsonl")
    content = (tmp_path / "run.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        lines = content[:size].count(b"\n")
        run = runs.read(cut)
        if not lines:
            assert run is None
            continue
        assert run.header == whole.header
        assert repr(run.spans + run.rows) == repr((whole.spans + whole.rows)[: lines - 1])
        assert run.status == ("finished" if size == len(content) else "unfinished")


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[1]\n",
        b"7\n",
        b"\xff\xfe\n",
        b'{"type":"metric","step":1,"epoch":0,"samples":0,"when":0,"name":"a"}\n',
        b'{"type":"metric","step":1.5,"epoch":0,"samples":0,"when":0,"name":"a","value":1}\n',
        b'{"type":"metric","step":1e999,"epoch":0,"samples":0,"when":0,"name":"a","value":1}\n',
        b'{"type":"metric","step":1,"epoch":0,"samples":0,"when":0,"name":"a","value":1' + b"0" * 400 + b"}\n",
        b'{"type":"metric","step":1,"epoch":0,"samples":0,"when":0,"name":7,"value":1}\n',
        b'{"type":"metric","step":1,"epoch":0,"samples":0,"when":0,"name":"a","value":true}\n',
        b'{"type":"metric","step":1,"epoch":0,"samples":0,"when":0,"name":"a","value":"12"}\n',
        b'{"type":"span","kind":"lunch","start":0,"end":1}\n',
        b'{"type":"span","kind":["train"],"start":0,"end":1}\n',
        b'{"type":"span","kind":"train","start":2,"end":1}\n',
        b'{"type":"span","kind":"train","start":0,"end":"inf"}\n',
        b'{"type":"end","status":"perhaps"}\n',
        b'{"type":"run","schema":2,"lab":"07","config":{}}\n',
        b'{"type":"run","schema":1,"lab":"07"}\n',
        b'{"type":"run","schema":1,"lab":"07","config":[]}\n',
        b'{"type":"run","schema":1,"lab":"07","config":{"rate":NaN}}\n',
        b'{"type":"run","schema":1,"lab":"07","config":{},"colour":"red"}\n',
        b'{"type":"run","schema":1,"lab":"07","config":{},"arms":"2"}\n',
        b'{"type":' + b"[" * 100_000 + b"\n",
    ],
    ids=lambda line: line[:60].decode(errors="replace").strip() or "empty",
)
def test_a_corrupt_line_is_named_with_its_file_and_number(tmp_path, line):
    write(planted(), tmp_path / "some run.jsonl")
    lines = (tmp_path / "some run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "some run.jsonl").write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(
        WorkError, match=r"some run\.jsonl, line 4: not a line of a run .*restore the file or delete it"
    ):
        with open(tmp_path / "some run.jsonl", "rb") as file:
            list(runs.parse(file, "some run.jsonl"))


def test_a_damaged_pack_is_named(tmp_path):
    runs.pack([planted()], tmp_path / "07.jsonl.gz")
    content = (tmp_path / "07.jsonl.gz").read_bytes()
    for damaged in (content[:-9], b"not a pack", content[:40] + bytes(40) + content[80:]):
        (tmp_path / "07.jsonl.gz").write_bytes(damaged)
        with pytest.raises(WorkError, match=r"07\.jsonl\.gz: not a packed file of runs"):
            runs.read_many(tmp_path / "07.jsonl.gz")


records = st.dictionaries(
    st.sampled_from(
        [
            "type",
            "schema",
            "lab",
            "config",
            "repeat",
            "kind",
            "start",
            "end",
            "step",
            "epoch",
            "samples",
            "when",
            "name",
        ]
        + ["value", "status", "arms", "clock", "data", "target"]
    ),
    values | st.sampled_from(["run", "span", "metric", "end", "train", "finished", "nan", 1, {}]),
    max_size=8,
)
lines = st.binary(max_size=40).map(lambda text: text + b"\n") | records.map(lambda r: json.dumps(r).encode() + b"\n")


@settings(max_examples=150, deadline=None)
@given(st.lists(lines, max_size=5), st.booleans())
def test_arbitrary_lines_are_runs_or_a_work_error(content, begun):
    first = [b'{"type":"run","schema":1,"lab":"07","config":{}}\n'] if begun else []
    try:
        found = list(runs.parse([*first, *content]))
    except WorkError as error:
        assert str(error).startswith("run, line ") and "\n" not in str(error)
    else:
        for run in found:  # what was let through can be used
            assert len(run.header.identity) == 16 and len(run.header.machine) == 8
            assert run.seconds("train") >= 0 and run.status in runs.STATES


def test_identity_is_configuration_repeat_data_and_code():
    base = Header("07", {"rate": 0.1, "batch": 16}, 1, data={"checksum": "c"}, code="f", hardware=HERE)
    assert len(base.identity) == 16
    for change in ({"config": {"rate": 0.2, "batch": 16}}, {"repeat": 2}, {"data": {"checksum": "d"}}, {"code": "g"}):
        assert dataclasses.replace(base, **change).identity != base.identity, change
    elsewhere = {**HERE, "cpu": "b"}
    for change in ({"claims": {"L01": "x"}}, {"hardware": elsewhere}, {"software": {"torch": "9"}}, {"began": "now"}):
        assert dataclasses.replace(base, **change).identity == base.identity, change
    assert dataclasses.replace(base, config={"batch": 16, "rate": 0.1}).identity == base.identity
    assert dataclasses.replace(base, data={"checksum": "c", "name": "renamed"}).identity == base.identity


@pytest.mark.parametrize("part", ["cpu", "cpus", "threads", "device"])
def test_machines_and_thread_caps_are_kept_apart(part):
    base = Header("07", {}, hardware=HERE)
    other = dataclasses.replace(base, hardware={**HERE, part: "other"})
    assert (other.machine != base.machine) and other.identity == base.identity
    assert dataclasses.replace(base, hardware={**HERE, "memory_gib": 1}).machine == base.machine


@pytest.mark.parametrize("config", [{"rate": math.nan}, {"rate": [math.inf]}, {"rate": object()}, {("a",): 1}])
def test_a_configuration_that_has_no_identity_writes_nothing(store, config):
    with pytest.raises(RequestError, match="finite numbers"):
        store.write(Header("07", config))
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "kind, start, end", [("lunch", 0, 1), ("train", 2, 1), ("train", -1, 1), ("train", 0, math.inf)]
)
def test_a_span_that_cannot_be_is_refused_and_not_written(store, kind, start, end):
    with store.write(Header("07", {})) as writer, pytest.raises(RequestError, match="unknown span kind|a span from"):
        writer.span(kind, start, end)
    assert runs.read(writer.path).spans == []


def test_pack_keeps_six_digits_and_its_bytes_do_not_depend_on_the_order(tmp_path):
    many = [planted(repeat=repeat, rate=rate, code=code) for repeat in (1, 0) for rate in (0.1, 0.3) for code in "ab"]
    many[0].rows.append(Row(3, 1.23456789, 48, 12.3456789, "loss", 123456.789))
    many[1].rows.append(Row(3, 1.5, 48, 1.5, "loss", math.inf))
    runs.pack(many, tmp_path / "new" / "07.jsonl")
    runs.pack(many[::-1], tmp_path / "again.jsonl")
    content = (tmp_path / "new" / "07.jsonl").read_bytes()
    assert content == (tmp_path / "again.jsonl").read_bytes()
    back = runs.read_many(tmp_path / "new" / "07.jsonl")
    assert [run.header.repeat for run in back] == [0, 0, 1, 1] * 2
    assert {run.header.identity for run in back} == {run.header.identity for run in many}
    row = next(row for run in back for row in run.rows if row.value == 123457.0)
    assert (row.epoch, row.when) == (1.23457, 12.3457)
    assert sum(math.isinf(row.value) for run in back for row in run.rows) == 1
    runs.pack(back, tmp_path / "again.jsonl")
    assert content == (tmp_path / "again.jsonl").read_bytes()
    assert os.listdir(tmp_path / "new") == ["07.jsonl"]
    assert runs.read_many(tmp_path / "absent.jsonl") == []
    runs.pack([], tmp_path / "none.jsonl")
    assert runs.read_many(tmp_path / "none.jsonl") == []


def test_the_store_finds_only_what_answers_the_question(store):
    header = Header("07", {"rate": 0.1}, hardware=HERE, claims={"L01": "x"})
    assert store.find(header) is None
    write(Run(header, [Span("train", 0, 1)]), store.path(header))
    assert store.find(header).seconds("train") == 1
    assert store.find(dataclasses.replace(header, hardware={**HERE, "cpu": "b"})) is None
    assert store.find(dataclasses.replace(header, repeat=1)) is None
    assert store.find(dataclasses.replace(header, code="changed")) is None
    assert store.find(dataclasses.replace(header, claims={"L01": "rewritten"})) is None
    assert store.find(dataclasses.replace(header, claims={"L01": "x", "L02": "new"})) is None
    assert store.find(dataclasses.replace(header, claims={})) is not None
    assert len(store.runs()) == len(store.runs("07")) == 1 and store.runs("11") == []


def test_a_run_that_owns_its_seconds_serves_for_arms_but_not_the_other_way_round(store):
    alone = Header("07", {"rate": 0.1}, hardware=HERE)
    together = dataclasses.replace(alone, arms=4)
    write(Run(together), store.path(together))
    assert store.find(alone) is None and store.find(together).header.arms == 4
    write(Run(alone), store.path(alone))
    assert store.find(alone).header.arms == 1
    store.path(together).unlink()
    assert store.find(together).header.arms == 1


def test_a_failed_run_is_kept_apart_and_another_attempt_replaces_it(store):
    header = Header("07", {}, hardware=HERE)
    with pytest.raises(ZeroDivisionError), store.write(header) as writer:
        writer.metric("loss", 1.0)
        raise ZeroDivisionError
    assert store.find(header) is None and store.runs() == []
    (left,) = store.unfinished("07")
    assert (left.status, left.last("loss")) == ("failed", 1.0)
    with store.write(header) as writer:
        pass
    assert store.find(header).header.began == writer.header.began != ""
    assert store.unfinished() == []


def test_a_finished_run_stands_until_the_next_one_has_finished(store):
    header = Header("07", {}, hardware=HERE)
    for value in (1.0, 2.0):
        with store.write(header) as writer:
            writer.metric("loss", value)
            assert store.runs() == [] if value == 1.0 else store.find(header).last("loss") == 1.0
    assert store.find(header).last("loss") == 2.0


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX paths")
def test_a_store_that_cannot_be_written_is_a_wrong_request(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RequestError, match="set LABKIT_STORE to another folder"):
        Store(tmp_path / "file").write(Header("07", {}))


FULL = """
import resource, sys
from pathlib import Path
from labkit.errors import WorkError
from labkit.runs import Header, Store
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # as if the disk were full after so many bytes
try:
    with Store(Path(sys.argv[1])).write(Header("07", {})) as writer:
        while True:
            try:
                writer.metric("loss", 1.0, when=1.0)
            except WorkError as error:
                print(error)
                raise
except WorkError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_full_disk_is_a_work_error_and_never_a_finished_run(python, store):
    child = python("-c", FULL, store.folder)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    first, second = out.splitlines()
    assert "partial cannot be written (the last " in first and "cannot be written (File too large)" in second
    (run,) = store.unfinished("07")
    assert run.status == "unfinished" and run.rows and store.runs() == []


CHILD = """
import sys, time
from pathlib import Path
from labkit.runs import Header, Store
folder, me, others, rows = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
with Store(folder / "runs").write(Header("07", {"rate": 0.1})) as writer:
    for step in range(rows):
        writer.metric("mark", float(me), step=step, when=step / 4)
        if step == rows // 2:  # both are in the middle of it before either ends
            (folder / me).touch()
            while not all((folder / other).exists() for other in others):
                time.sleep(0.001)
"""


def test_two_processes_that_write_one_run_leave_one_whole_file(python, store, tmp_path):
    writers = [python("-c", CHILD, tmp_path, me, "12", 200) for me in "12"]
    for writer in writers:
        assert writer.wait(60) == 0, writer.stderr.read()
    (run,) = store.runs("07")
    assert [row.step for row in run.rows] == list(range(200)) and len({row.value for row in run.rows}) == 1
    assert [path.suffix for path in store.folder.glob("07/*")] == [".jsonl"]


def test_a_writer_that_is_killed_loses_at_most_a_line_and_its_rest_is_swept(python, store, tmp_path):
    writer = python("-c", CHILD, tmp_path, "1", "1", 10**9)
    while not any(path.stat().st_size > 20_000 for path in store.folder.glob("07/*.partial")):
        assert writer.poll() is None, writer.stderr.read()
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(60) == -signal.SIGKILL
    (partial,) = store.folder.glob("07/*.partial")
    (run,) = store.unfinished("07")
    assert run.status == "unfinished" and [row.step for row in run.rows] == list(range(len(run.rows)))
    assert len(run.rows) == partial.read_bytes().count(b"\n") - 1 > 100
    assert store.runs() == [] and store.find(run.header) is None
    stranger = partial.with_name(partial.name.replace(str(writer.pid), "not-a-number"))
    stranger.write_bytes(b"")
    with store.write(dataclasses.replace(run.header, began="")):
        pass
    assert not partial.exists() and stranger.exists() and store.find(run.header) is not None
