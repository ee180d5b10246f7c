"""Batches: what a results folder holds, what a failure leaves, and that a killed batch goes on where it stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import nbformat
import pytest
from authoring import builder, outputs

from labkit import lab, paths
from runner import batch, report
from runner import results as folders
from labkit.errors import RequestError, WorkError
from labkit.runs import read_many

METADATA = builder.METADATA
PARAMETERS = """profile: str = "quick"
seeds: str = "0"
overrides: dict = {}
record_to: str = ""
interactive: bool = True"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of small notebooks in a folder with a space in its name; returns a function that writes one."""
    folder = tmp_path / "the notebooks"
    folder.mkdir()
    monkeypatch.setattr(paths, "notebooks", lambda: folder)
    monkeypatch.setattr(paths, "results", lambda: tmp_path / "results")
    monkeypatch.setenv("LABKIT_STORE", str(tmp_path / "runs"))

    def write(stem, code):
        cells = [
            nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
            nbformat.v4.new_code_cell(code),
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=METADATA), folder / f"{stem}.ipynb")

    return write


class Images(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.alts = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.alts.append(dict(attributes).get("alt"))


def test_a_batch_writes_notebooks_pages_and_an_index(course, tmp_path):
    course("00_start_here", "assert interactive is False and profile == 'smoke' and record_to\n'all well'")
    outcome = batch.run([], "smoke")
    assert outcome.report == outcome.notebooks[0].parent / "index.html" and not outcome.failed
    index = outcome.report.read_text(encoding="utf-8")
    assert "Scoreboard" in index and "00_start_here.html" in index and "torch" in index
    assert "all well" in outcome.notebooks[0].with_suffix(".html").read_text(encoding="utf-8")
    assert folders.read_manifest(outcome.report.parent)["finished"]


def test_twice_into_one_folder_is_as_good_as_once(course, tmp_path):
    course("00_start_here", "1 + 1")
    for _ in range(2):
        outcome = batch.run(["00"], "smoke", out=str(tmp_path / "out"))
    assert [path.name for path in outcome.notebooks] == ["00_start_here.ipynb"]


def test_one_failing_lab_is_named_and_the_others_go_on(course, tmp_path):
    course("00_start_here", "raise ArithmeticError('planted')")
    course("11_time_to_accuracy", "2 + 2")
    outcome = batch.run([], "smoke", out=str(tmp_path / "out"))
    assert list(outcome.failed) == ["00_start_here"] and "ArithmeticError: planted" in outcome.failed["00_start_here"]
    assert [path.stem for path in outcome.notebooks] == ["11_time_to_accuracy"]
    assert "planted" in outcome.report.read_text(encoding="utf-8")
    with pytest.raises(WorkError, match="cell 2.*planted"):
        batch.run(["00"], "smoke", out=str(tmp_path / "other"))
    assert (tmp_path / "other" / "00_start_here.ipynb").exists(), "the traceback is kept"


def test_a_kernel_that_dies_is_a_failure_with_a_reason(course, tmp_path):
    course("00_start_here", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(WorkError, match="(?i)kernel died"):
        batch.run(["00"], "smoke", out=str(tmp_path / "out"))


def test_resume_goes_on_after_the_labs_that_are_done(course, tmp_path):
    marks = tmp_path / "marks"
    course("00_start_here", f"open({str(marks)!r}, 'a').write('first ')")
    course("11_time_to_accuracy", "raise RuntimeError('not yet')")
    folder = batch.run([], "smoke").report.parent
    manifest = folders.read_manifest(folder)
    folders.write_manifest(folder, {**manifest, "finished": None})  # as a kill would leave it
    course("11_time_to_accuracy", f"open({str(marks)!r}, 'a').write('second ')")
    outcome = batch.run([], "smoke", resume=True)
    assert outcome.report.parent == folder and not outcome.failed
    assert marks.read_text() == "first second "
    with pytest.raises(RequestError, match="nothing to resume"):
        batch.run([], "smoke", resume=True)


def test_resume_refuses_another_request(course):
    course("00_start_here", "1")
    folder = batch.run([], "smoke").report.parent
    folders.write_manifest(folder, {**folders.read_manifest(folder), "finished": None})
    with pytest.raises(RequestError, match="nothing to resume"):
        batch.run([], "smoke", seeds="0,1", resume=True)


def test_fresh_runs_reach_the_store_even_when_the_batch_is_stopped(course, tmp_path):
    code = """import labkit
lab = labkit.start("00", profile, seeds, overrides, record_to, interactive)
lab.evidence("first", [("number", 1.0)])
"""
    course("00_start_here", code + "raise RuntimeError('stopped')")
    with pytest.raises(WorkError):
        batch.run(["00"], "smoke", out=str(tmp_path / "out"), fresh=True)
    assert [run.config["evidence"] for run in lab.Store(paths.store()).runs("00")] == ["first"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []


def test_a_failed_lab_is_tried_again_by_resume(course):
    course("00_start_here", "raise RuntimeError('not yet')")
    course("11_time_to_accuracy", "1")
    folder = batch.run([], "smoke").report.parent
    course("00_start_here", "2")
    outcome = batch.run([], "smoke", resume=True)
    assert outcome.report.parent == folder and not outcome.failed and len(outcome.notebooks) == 2


def test_one_damaged_run_is_named_in_the_report_and_spoils_nothing(course):
    course("00_start_here", "1")
    (paths.store() / "07").mkdir(parents=True)
    (paths.store() / "07" / "bad.jsonl").write_text("garbage\n")
    page = batch.run(["00"], "smoke").report.read_text(encoding="utf-8")
    assert "left out: " in page and "bad.jsonl" in page and "Scoreboard" in page


def test_the_files_of_others_are_not_overwritten(course, tmp_path):
    course("00_start_here", "1")
    own = tmp_path / "own"
    own.mkdir()
    (own / "index.html").write_text("mine")
    for place in (str(own), "", str(paths.root() / "labkit"), str(paths.root()), "/dev/null/x", "x" * 5000):
        with pytest.raises(RequestError):
            batch.run(["00"], "smoke", out=place)
    assert [path.name for path in own.iterdir()] == ["index.html"] and (own / "index.html").read_text() == "mine"
    with pytest.raises(RequestError, match="must be a new file that ends in .html"):
        report.scoreboard(own / "index.html")


def test_a_store_that_cannot_be_written_is_refused_before_a_kernel_starts(course, tmp_path, monkeypatch):
    course("00_start_here", "1")
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("LABKIT_STORE", str(tmp_path / "a file" / "runs"))
    with pytest.raises(RequestError, match="the store of runs .* cannot be written to"):
        batch.run(["00"], "smoke", out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_relative_store_is_the_same_for_the_kernel(course, tmp_path, monkeypatch):
    course("00_start_here", "import os; assert os.path.isabs(record_to), record_to")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_STORE", "relative")
    batch.run(["00"], "smoke")
    assert (tmp_path / "relative").is_dir()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"cells": [{"outputs": [{"data": {"%s": 3}}]}]}' % lab.RECORD_MIME]
)
def test_a_notebook_without_a_sound_record_is_refused(tmp_path, content):
    (tmp_path / "some.ipynb").write_text(content)
    with pytest.raises(RequestError, match="holds no record"):
        outputs.record(str(tmp_path / "some.ipynb"))


def test_a_record_of_no_lab_or_of_no_runs_is_refused(tmp_path):
    for number, words in (("../../evil", "unknown lab"), ("07", "used no runs")):
        record = {"lab": number, "runs": [], "verdicts": {}}
        cell = {"outputs": [{"data": {lab.RECORD_MIME: record}}]}
        (tmp_path / "some.ipynb").write_text(json.dumps({"cells": [cell]}))
        with pytest.raises(RequestError, match=words):
            outputs.record(str(tmp_path / "some.ipynb"))


def test_out_may_not_be_a_file_nor_the_course_itself(course, tmp_path):
    course("00_start_here", "1")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", paths.notebooks(), paths.notebooks() / "deeper"):
        with pytest.raises(RequestError, match="--out"):
            batch.run(["00"], "smoke", out=str(place))
    assert not (paths.notebooks() / "deeper").exists()


def test_what_an_executed_notebook_used_is_packed_and_nothing_else(course, tmp_path, monkeypatch):
    code = """import labkit
lab = labkit.start("00", profile, seeds, overrides, record_to, interactive)
lab.evidence("kept", [("number", 1.5)])
lab.record()"""
    course("00_start_here", code)
    executed = batch.run(["00"], "smoke").notebooks[0]
    course("00_start_here", code.replace("kept", "another"))
    batch.run(["00"], "smoke")
    shutil.copytree(paths.data(), tmp_path / "data")
    monkeypatch.setattr(paths, "data", lambda: tmp_path / "data")
    packed = read_many(outputs.record(str(executed)))
    assert [(run.config["evidence"], run.last("number")) for run in packed] == [("kept", 1.5)]
    with pytest.raises(RequestError, match="holds no record"):
        outputs.record(str(paths.notebooks() / "00_start_here.ipynb"))
    shutil.rmtree(paths.store())
    with pytest.raises(RequestError, match="of which the store holds 0"):
        outputs.record(str(executed))


def test_jobs_side_by_side(course, tmp_path):
    course("00_start_here", "1")
    course("11_time_to_accuracy", "2")
    assert len(batch.run([], "smoke", out=str(tmp_path / "out"), jobs=2).notebooks) == 2


def test_figures_keep_their_words_on_the_page(tmp_path):
    code = "from labkit.teach import viz\nfig, ax = viz.figure()\nax.plot([1, 2])\nviz.show(fig, alt='a line that \"rises\" from 1 to 2')"
    cells = [nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell(code)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    nbformat.write(notebook, tmp_path / "in.ipynb")
    batch.execute(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"profile": "smoke"})
    page = report.notebook_page(tmp_path / "out.ipynb").read_text(encoding="utf-8")
    assert 'a line that "rises" from 1 to 2' in Images(page).alts
    assert "No description has been provided" not in page
    assert "<script" not in page


def test_a_killed_batch_leaves_readable_state_and_no_kernel(tmp_path):
    """A real kill -9 of `labkit reproduce` while a notebook runs."""
    environment = {**os.environ, "LABKIT_STORE": str(tmp_path / "runs")}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "labkit", "reproduce", "--profile", "smoke", "--labs", "11", "--out", str(out)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "runs").glob("11/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not folders.read_manifest(out)["finished"]
    environment["LABKIT_STORE"] = str(tmp_path / "runs")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (out / "index.html").exists()
    store = lab.Store(tmp_path / "runs")
    assert store.runs("11") and not store.unfinished("11")
