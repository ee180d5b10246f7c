"""The command line: exit codes, one line for what is wrong, nothing written by a wrong request, nothing heavy imported
for nothing.
"""

import shutil
import signal
import socket
import sys
from pathlib import Path

import nbformat
import pytest

from labkit import cli, paths
from labkit.datasets import download

BUILT = ("07_large_batches", "11_time_to_accuracy")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The package, its data, the labs' modules and what runs them, in a folder with spaces in its name, and a course in which two labs are written."""
    folder = tmp_path_factory.mktemp("a path with spaces") / "lab kit"
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("labkit", "data", "notebooks/labs", *(f"notebooks/{name}" for name in cli.PLUGINS)):
        shutil.copytree(paths.root() / part, folder / part, ignore=ignored)
    for stem in BUILT:
        nbformat.write(nbformat.v4.new_notebook(), folder / "notebooks" / f"{stem}.ipynb")
    return folder


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """No data folder, an empty cache, and a proxy at which nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY", "LABKIT_DATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
        yield tmp_path


@pytest.fixture
def labkit(checkout, offline, monkeypatch, capsys):
    """Run a command in this process, on that checkout: (exit status, standard output, standard error)."""
    monkeypatch.setattr(paths, "root", lambda: checkout)
    monkeypatch.setattr(sys, "path", [str(paths.labs().parent), *sys.path])

    def call(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return call


def files(folder: Path) -> set:
    """What is there, and when it was written."""
    return {(path, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file()}


def one_line(err: str) -> str:
    assert err.startswith("labkit: ") and err.count("\n") == 1 and err.endswith("\n"), err
    return err[len("labkit: ") : -1]


WRONG = [
    ("run 07 --set typo=1", "unknown field of lab 07 'typo'", "allowed: data, train, batches"),
    ("run 99", "unknown lab '99'", "allowed: 07_large_batches, 11_time_to_accuracy"),
    ("run 01", "lab 01_cost_of_a_step is planned but not written yet", "allowed: 07_large_batches"),
    ("run 07 --profile quik", "unknown profile 'quik'", "allowed: smoke, quick, full"),
    ("run 07 --seeds 0,0", "seeds '0,0'", "distinct whole numbers"),
    ("run 07 --seeds -1", "seeds '-1'", "such as 0,1,2"),
    ("run 07 --seeds x", "seeds 'x'", "such as 0,1,2"),
    ("run 07 --set batches=[16,999999]", "batches holds 999999", "at most 4096"),
    ("run 07 --set mlp_rates=[-1.0]", "mlp_rates -1.0", "more than 0"),
    ("run 07 --set train=4900", "mnist5k has 5000 images", "train 4900"),
    ("run 07 --set data=mnist", "dataset 'mnist' is not here", "bundled mnist5k and procedural need no download"),
    ("run 07 --set novalue", "--set 'novalue'", "write --set field=value"),
    ("run 07 --set", "argument --set: expected one argument", "labkit run --help"),
    ("run 11 --set model=resnet8", "unknown size of resnet8 'width'", "allowed: zero_gamma"),
    ("run 07 --out {file}", "is a file", "give a folder"),
    ("run 07 --out {checkout}/notebooks", "lies inside the course itself", "choose a folder"),
    ("run 07 --frobnicate", "unrecognized arguments: --frobnicate", "--help"),
    ("run", "LAB", "labkit run --help"),
    ("reproduce --jobs 0", "'0' is not a whole number from 1 to 64", "labkit reproduce --help"),
    ("reproduce --jobs two", "'two' is not a whole number", "labkit reproduce --help"),
    ("reproduce --labs 07,99", "unknown lab '99'", "allowed: 07_large_batches"),
    ("reproduce --labs ,", "--labs names no lab", "such as 07,11"),
    ("reproduce --resume", "nothing to resume", "leave --resume away"),
    ("reproduce --out {file}", "is a file", "give a folder"),
    ("record 07", "07 is not a notebook", "give an executed one"),
    ("badges somewhere", "'somewhere' is not a repository", "write owner/name"),
    ("data fetch", "needs a dataset", "allowed: mnist5k, procedural, mnist, fashion-mnist, cifar10"),
    ("data fetch mnist5k nonsense", "unknown dataset 'nonsense'", "allowed: mnist5k"),
    ("data fetch mnist", "dataset 'mnist' is not here", "set LABKIT_DATA"),
    ("data verify nonsense", "unknown dataset 'nonsense'", "allowed: mnist5k"),
    ("data verify mnist", "dataset 'mnist' is not in", "fetch it, or set LABKIT_DATA"),
    ("data list nonsense", "unknown dataset 'nonsense'", "allowed: mnist5k"),
    ("data", "action", "labkit data --help"),
    ("data eat", "invalid choice: 'eat'", "'list', 'fetch', 'verify'"),
    ("frob", "invalid choice: 'frob'", "'run', 'reproduce'"),
    ("", "required: COMMAND", "labkit --help"),
]


@pytest.mark.parametrize("command, wrong, allowed", WRONG, ids=[case[0] or "nothing" for case in WRONG])
def test_a_wrong_request_is_one_line_and_nothing_is_written(labkit, checkout, offline, command, wrong, allowed):
    file = offline / "a file"
    file.write_text("in the way")
    before = files(checkout) | files(offline)
    arguments = [part.format(file=file, checkout=checkout) for part in command.split(" ") if part]
    status, out, err = labkit(*arguments)
    message = one_line(err)
    assert (status, out) == (2, "") and wrong in message and allowed in message, message
    assert files(checkout) | files(offline) == before
    assert not (checkout / "results").exists() and not (offline / "runs").exists()


def test_work_that_fails_is_one_line_and_exit_1(labkit, offline, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(offline))
    for file in download.FILES["mnist"]:
        (offline / file.name).write_bytes(b"damaged")
    status, out, err = labkit("data", "verify", "mnist")
    assert (status, out) == (1, "") and "wrong checksum: expected sha256" in one_line(err)
    status, out, err = labkit("run", "07", "--set", "data=mnist")
    assert (status, out) == (1, "") and "wrong checksum" in one_line(err)
    (offline / "a file").write_text("in the way")
    status, out, err = labkit("report", "--html", offline / "a file" / "board.html")
    assert (status, out) == (2, "") and "a file" in one_line(err)


def test_list_says_what_is_written_and_what_is_planned(labkit):
    status, out, err = labkit("list")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    assert len(lines) == 17 and {stem for stem, state in lines.items() if state != "planned"} == set(BUILT)


def test_list_shows_the_seconds_that_were_measured(labkit, checkout):
    costs = checkout / "data" / "results" / "costs.json"
    costs.parent.mkdir(exist_ok=True)
    try:
        costs.write_text('{"07": {"quick": {"seconds": 74.6, "cpu": "x", "threads": 1}}}')
        assert "07_large_batches                 75 s   " in labkit("list")[1]
        costs.write_text('{"07": ')
        status, out, err = labkit("list")
        assert (status, out) == (1, "") and "costs.json is not sound JSON" in one_line(err)
    finally:
        costs.unlink()


def test_data_lists_and_verifies_without_a_network(labkit, offline):
    status, out, err = labkit("data", "list")
    assert (status, err) == (0, "")
    rows = [line.split(None, 2) for line in out.splitlines()]
    assert [row[:2] for row in rows] == [
        ["mnist5k", "bundled"],
        ["procedural", "bundled"],
        ["mnist", "missing"],
        ["fashion-mnist", "missing"],
        ["cifar10", "missing"],
        ["ptb", "missing"],
    ]
    assert rows[2][2] == str(offline / "cache" / "mnist")
    assert labkit("data", "list", "cifar10")[1].startswith("cifar10 ")
    status, out, err = labkit("data", "verify")
    assert (status, err) == (0, "") and "mnist5k: 4096 training and 452 test images are sound\nprocedural: " in out
    assert labkit("data", "fetch", "procedural") == (0, "procedural: ready\n", "")


@pytest.mark.parametrize("command", ["", "run", "reproduce", "data", "report"])
def test_help_is_no_failure(labkit, capsys, command):
    with pytest.raises(SystemExit) as caught:
        cli.main([*command.split(), "--help"])
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: labkit") and not err


def test_it_works_from_another_folder_and_in_a_path_with_spaces(python, checkout, offline):
    elsewhere = offline / "else where"
    elsewhere.mkdir()
    before = files(checkout)
    code = "import os, runpy, sys; os.chdir(sys.argv.pop(1)); runpy.run_module('labkit', run_name='__main__')"
    environment = {"PYTHONPATH": str(checkout)}
    listed = python("-P", "-c", code, elsewhere, "list", env=environment)
    out, err = listed.communicate(timeout=60)
    assert (listed.returncode, err) == (0, "") and out.count(" ready ") == 2
    refused = python("-P", "-c", code, elsewhere, "run", "07", "--set", "typo=1", env=environment)
    out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (2, "") and "'typo'" in one_line(err)
    assert files(checkout) == before and not list(elsewhere.iterdir()) and not (checkout / "results").exists()


def test_importing_and_listing_load_nothing_heavy(python):
    code = """
import sys
import labkit
heavy = {"torch", "pytorch_lightning", "matplotlib", "pandas", "scipy", "numpy", "IPython", "papermill"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import runpy
sys.argv = ["labkit", "list"]
try:
    runpy.run_module("labkit", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    child = python("-c", code)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "") and "00_start_here" in out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_has_gone_is_no_traceback(python, unbuffered):
    """As in `labkit list | head -1`, but the reader has surely gone: the pipe is closed before anything is said."""
    code = """
import os, runpy, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
sys.argv = ["labkit", "list"]
runpy.run_module("labkit", run_name="__main__")
"""
    child = python("-c", code, env={"PYTHONUNBUFFERED": unbuffered})
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (1, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupted_work_is_one_line_and_exit_1(python, offline):
    """Ctrl-C while a download waits for a server that never answers."""
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run in the background
from labkit.cli import main
sys.exit(main(["data", "fetch", "mnist"]))
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        child = python("-c", code, env=dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy))
        connection, _ = server.accept()
        with connection:
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (1, "") and one_line(err).startswith("stopped;")
    assert not [path for path in (offline / "cache").rglob("*") if path.is_file()]
