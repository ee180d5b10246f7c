"""One line of progress: in a terminal, in a log, through a file, and in a notebook that is executed for real."""

import io
import time

import nbformat
import pytest
from nbclient import NotebookClient

from labkit import progress
from labkit.paths import root
from labkit.progress import Progress, duration, follow


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def no_parent(monkeypatch):
    monkeypatch.delenv(progress.FILE_VARIABLE, raising=False)


def test_the_line_names_count_numbers_time_and_the_rest_at_the_speed_so_far():
    clock, stream = Clock(), Terminal()
    with Progress(400, "train", stream, clock=clock) as line:
        clock.now += 12
        line.update(120, loss=0.3123, top_1=0.95)
        assert stream.getvalue().strip("\r") == "train: 120/400, loss 0.312, top 1 0.95, 12 s, 28 s left"


def test_a_terminal_line_is_replaced_in_place_and_throttled_and_a_shorter_one_covers_it():
    clock, stream = Clock(), Terminal()
    line = Progress(10, "x", stream, clock=clock)
    line.update(1, loss=123456.5)
    line.update(2)  # the same instant: not shown
    clock.now += 1
    line.update(3)
    line.close("done")
    states = stream.getvalue().split("\r")
    wanted = ["x: 1/10, loss 1.23e+05, 0 s, 0 s left", "x: 3/10, 1 s, 2 s left", "done"]
    assert [state.strip() for state in states[1:]] == wanted
    assert len(states[2]) >= len(states[1])
    assert stream.getvalue().endswith("\n")


def test_a_log_gets_a_line_at_most_every_half_minute_and_the_last_one_once():
    clock, stream = Clock(), io.StringIO()
    line = Progress(100, "x", stream, clock=clock)
    for step in range(1, 101):
        clock.now += 1
        line.update(step)
    line.close()
    line.close()
    lines = stream.getvalue().splitlines()
    assert [text.split(",")[0] for text in lines[:-1]] == ["x: 30/100", "x: 60/100", "x: 90/100"]
    assert lines[-1] == "x: 100/100 in 1 min 40 s"


def test_a_stopped_run_says_so_and_does_not_claim_to_be_done():
    stream = io.StringIO()
    with pytest.raises(KeyError), Progress(5, "x", stream) as line:
        line.update(2)
        raise KeyError
    assert stream.getvalue() == "x: 2/5, stopped by KeyError\n"


def test_without_a_total_there_is_no_time_left():
    stream = Terminal()
    Progress(label="x", stream=stream).update(7)
    assert stream.getvalue() == "\rx: 7, 0 s"


@pytest.mark.parametrize(
    "seconds, text", [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (3720, "1 h 02 min")]
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_the_line_reaches_a_parent_through_a_file(tmp_path, monkeypatch):
    path, stream = tmp_path / "line", io.StringIO()
    path.write_text("an old run\n")
    monkeypatch.setenv(progress.FILE_VARIABLE, str(path))
    with follow(path, stream):
        with Progress(3, "train", io.StringIO()) as line:
            line.update(1)
            line.close("train: 3/3")
    assert stream.getvalue() == "train: 3/3\n"
    assert [file.name for file in tmp_path.iterdir()] == ["line"]


def test_a_followed_terminal_shows_states_as_they_come(tmp_path):
    path, stream = tmp_path / "line", Terminal()
    with follow(path, stream):
        path.write_text("first")
        deadline = time.monotonic() + 20
        while "first" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        path.write_text("second")
    assert stream.getvalue() == "\rfirst\rsecond\n"


def test_a_folder_that_is_gone_does_not_stop_the_work(tmp_path, monkeypatch):
    monkeypatch.setenv(progress.FILE_VARIABLE, str(tmp_path / "gone" / "line"))
    stream = io.StringIO()
    Progress(1, "x", stream).close("done")
    assert stream.getvalue() == "done\n"


def test_an_executed_notebook_keeps_only_the_last_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(root()))
    monkeypatch.setenv(progress.FILE_VARIABLE, str(tmp_path / "line"))
    code = """
from labkit.progress import Progress
ticks = iter(range(100))
with Progress(3, "train", clock=lambda: next(ticks)) as line:
    for step in (1, 2, 3):
        line.update(step, loss=1 / step)
    line.close("train: 3 of 3 steps")
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data == {"text/plain": "train: 3 of 3 steps"}
    assert (tmp_path / "line").read_text() == "train: 3 of 3 steps\n"
