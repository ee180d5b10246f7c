"""Ranks start, talk and end: results by rank, and every way to fail is told with the rank and leaves nothing behind."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
import torch

from labkit.errors import RequestError
from labkit.training import lives, ranks
from labkit.training.ranks import Failure, RanksError, run_ranks

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
import some_ranks  # noqa: E402

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def descendants(root: int) -> set[int]:
    """Every process below `root`, by /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found, new = set(), {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def sockets() -> int:
    """Sockets held open by this process and by those below it."""
    found = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                found += os.readlink(path).startswith("socket:")
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def nothing_left():
    """The server of forks may stay; no rank may, nor a socket."""
    run_ranks(some_ranks.identity, 1)
    before, open_before = descendants(os.getpid()), sockets()
    yield
    for _ in range(40):
        left = descendants(os.getpid()) - before
        if not left:
            break
        time.sleep(0.05)
    assert not left and sockets() <= open_before


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_rank_runs_the_function_and_results_come_by_rank(size):
    assert run_ranks(some_ranks.identity, size, value="x") == [(rank, size, 1, "x") for rank in range(size)]


@linux
def test_ranks_talk_have_their_own_copies_and_leave_nothing(nothing_left):
    mine = torch.zeros(3)
    results = run_ranks(some_ranks.total, 3, mine)
    assert all(torch.equal(result, torch.full((3,), 3.0)) for result in results) and torch.equal(mine, torch.zeros(3))


def test_a_result_larger_than_any_pipe_comes_back():
    assert run_ranks(some_ranks.total, 2, torch.zeros(3_000_000))[1].sum() == 3_000_000


def test_partial_functions_run():
    assert run_ranks(functools.partial(some_ranks.identity, value=5), 1)[0][3] == 5


def test_the_environment_is_that_of_the_call(monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_WORD", "now")
    assert run_ranks(some_ranks.environment, 2, "LABKIT_TEST_WORD") == ["now", "now"]
    assert run_ranks(some_ranks.environment, 1, "LABKIT_TEST_WORD", env={"LABKIT_TEST_WORD": "given"}) == ["given"]
    monkeypatch.delenv("LABKIT_TEST_WORD")
    assert run_ranks(some_ranks.environment, 1, "LABKIT_TEST_WORD") == [None]


def test_an_edited_module_counts_at_the_next_call(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_ranks.py"
    path.write_text("def version():\n    return 1\n")
    import edited_ranks

    assert run_ranks(edited_ranks.version, 1) == [1]
    path.write_text("def version():\n    return 'two'\n")
    assert run_ranks(edited_ranks.version, 1) == ["two"]


def test_what_ranks_print_is_printed_here_in_their_order(capfd):
    run_ranks(some_ranks.says, 3, "hello")
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"[rank {r}] hello {r}" for r in range(3)]
    assert err.splitlines() == [f"[rank {r}] trouble {r}" for r in range(3)]


@linux
@pytest.mark.parametrize(("fn", "said"), [
    (some_ranks.raises, "rank 2 of 3 failed: ArithmeticError: nothing works on 2; all ranks were stopped"),
    (some_ranks.exits, "rank 2 of 3 failed: SystemExit: 3; all ranks were stopped"),
    (some_ranks.dies, "rank 2 of 3 failed: it was killed by SIGKILL; all ranks were stopped")])
def test_a_rank_that_fails_is_named_and_the_others_are_stopped(fn, said, nothing_left):
    with pytest.raises(RanksError) as caught:
        run_ranks(fn, 3, 2)
    assert str(caught.value).splitlines()[0] == said
    assert 2 in caught.value.reports and "labkit/training/ranks.py" not in str(caught.value)
    if fn is some_ranks.raises:
        assert 'raise ArithmeticError(f"nothing works on {who}")' in caught.value.reports[2]
    if fn is some_ranks.dies:
        assert "last words" in caught.value.reports[2]


@linux
def test_a_rank_that_hangs_is_named_with_its_line(nothing_left):
    with pytest.raises(RanksError, match=r"after 2 s rank 1 of 3 had not finished and was stopped") as caught:
        run_ranks(some_ranks.hangs, 3, 1, timeout=2)
    assert list(caught.value.reports) == [1] and "in hangs" in caught.value.reports[1]


@linux
def test_a_collective_that_one_rank_leaves_out_ends_within_the_timeout(nothing_left):
    with pytest.raises(RanksError) as caught:
        run_ranks(some_ranks.waits_in_a_collective, 3, 0, timeout=3)
    assert "in waits_in_a_collective" in str(caught.value)
    assert "rank 0 had ended: do all have as many batches? See labkit.training.even_steps" in str(caught.value)


@linux
def test_the_rank_that_hangs_is_told_from_those_that_wait_for_it(nothing_left):
    with pytest.raises(RanksError, match="rank 1 of 3 had not finished and was stopped; rank 0, 2 waited for it; look"):
        run_ranks(some_ranks.sleeps_while_others_wait, 3, 1, timeout=3)


SLEEPS, WAITS = '  File "mine.py", line 3 in work', '  File "/x/torch/distributed/c10d.py", line 9 in recv'
BACKWARD = '  File "/x/torch/autograd/graph.py", line 9 in _engine_run_backward'


@pytest.mark.parametrize(("places", "ended", "said"), [
    ([SLEEPS, WAITS, BACKWARD], [], "rank 0 of 4 had not finished and was stopped; rank 1, 2 waited for it"),
    ([SLEEPS, WAITS, "an unknown place"], [], "rank 0, 1, 2 of 4 had not finished and was stopped"),
    ([WAITS, WAITS], [], "rank 0, 1 of 4 had not finished and was stopped"),
    ([SLEEPS, SLEEPS], [2], "rank 0, 1 of 4 had not finished and was stopped"),
    ([WAITS, "an unknown place"], [2], "rank 0, 1 of 4 had not finished and was stopped"),
    ([WAITS], [1, 2], "rank 0 of 4 had not finished and was stopped; rank 1, 2 had ended: do all have as many batches? "
                      "See labkit.training.even_steps")])
def test_nobody_is_blamed_where_it_is_not_clear(places, ended, said):
    assert lives._late(dict(enumerate(places)), ended, 4) == said


@linux
def test_ranks_end_when_their_launcher_is_killed(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = f"import sys; sys.path[:0] = [{str(WORKERS)!r}]\nimport some_ranks\nfrom labkit.training.ranks import run_ranks\n"
    launcher = subprocess.Popen([sys.executable, "-c", script + f"run_ranks(some_ranks.leaves_pids, 2, {str(tmp_path)!r})"],
                                env=os.environ | {"TMPDIR": str(temporary)})
    for _ in range(400):
        pids = [int(path.read_text() or 0) for path in tmp_path.glob("*.pid")]
        if len(pids) == 2 and all(pids):
            break
        time.sleep(0.05)
    assert len(pids) == 2 and len([*temporary.glob("labkit-ranks-*")]) == 1
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    for _ in range(100):
        if not any(map(alive, pids)):
            break
        time.sleep(0.05)
    assert not any(map(alive, pids)) and not [*temporary.glob("labkit-ranks-*")]


@linux
def test_an_interrupt_stops_every_rank(tmp_path, nothing_left):
    def interrupt():
        while len(list(tmp_path.glob("*.pid"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_ranks(some_ranks.leaves_pids, 2, str(tmp_path))


def test_shared_tensors_are_one_memory():
    counter = torch.zeros(3)
    assert run_ranks(some_ranks.adds_to, 3, shared={"counter": counter}) == [6.0] * 3
    assert counter.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("how", "reason"), [
    ("raise", "ArithmeticError: nothing works on 1"), ("die", "it was killed by SIGKILL"),
    ("hang", "it had not finished after 3 s")])
def test_survivors_go_on(how, reason):
    assert run_ranks(some_ranks.one_fails, 3, how, survivors=True, timeout=3) == [0, Failure(1, reason), 2]


def test_a_result_that_cannot_travel_is_told_as_that():
    with pytest.raises(RanksError, match="rank 0 of 1 failed: TypeError: what .*unpicklable.* returned cannot be sent"):
        run_ranks(some_ranks.unpicklable, 1)


def test_what_ranks_printed_before_a_failure_is_printed_too(capfd):
    with pytest.raises(RanksError):
        run_ranks(some_ranks.says_and_raises, 2, "hello")
    assert capfd.readouterr().out.splitlines() == ["[rank 0] hello 0", "[rank 1] hello 1"]


def test_a_result_that_this_process_cannot_load_is_told_as_that(tmp_path, monkeypatch):
    with pytest.raises(RanksError, match="rank 0 of 1 failed: its result cannot be read here: ModuleNotFoundError"):
        run_ranks(some_ranks.of_a_module_of_its_own, 1)


def test_too_short_a_time_is_told_as_that():
    with pytest.raises(RanksError, match="had not finished and was stopped"):
        run_ranks(some_ranks.identity, 2, timeout=1e-3)


def test_other_imports_outlive_a_start(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with ranks._main_of(b""):
        import colorsys
    assert sys.modules["colorsys"] is colorsys


@linux
def test_what_a_rank_has_started_ends_with_it(nothing_left):
    (pid,) = run_ranks(some_ranks.starts_another, 1)
    for _ in range(40):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)


@linux
def test_ranks_that_wait_for_each_other_are_all_told_with_their_line(nothing_left):
    with pytest.raises(RanksError) as caught:
        run_ranks(some_ranks.wait_for_each_other, 3, timeout=2)
    assert all("in wait_for_each_other" in caught.value.reports[rank] for rank in range(3))


def test_a_rank_may_close_its_standard_output():
    assert run_ranks(some_ranks.closes_its_output, 1) == [1]


@linux
def test_an_interrupt_while_the_server_starts_breaks_no_later_call():
    code = (f"import sys, threading, os, signal, time; sys.path[:0] = [{str(WORKERS)!r}]\nimport some_ranks\n"
            "from labkit.training.ranks import run_ranks\n"
            "threading.Timer(0.3, lambda: os.killpg(0, signal.SIGINT)).start()\n"
            "try:\n    run_ranks(some_ranks.hangs, 1, 0)\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
            "print(run_ranks(some_ranks.identity, 1))\n")
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, start_new_session=True)
    assert child.stdout == "interrupted\n[(0, 1, 1, None)]\n", child.stderr


@pytest.mark.parametrize(("size", "options", "said"), [
    (1, {"env": {"A": 1}}, "'A': 1 is no environment variable"), (1, {"env": {"A=": "x"}}, "no = in a name"),
    (1, {"timeout": float("inf")}, "timeout inf"), (1, {"threads": 1.5}, "threads 1.5"),
    (2, {"shared": {"x": [1.0]}}, "shared must be CPU tensors"), (2, {"shared": {"value": torch.zeros(1)}, "value": 1}, "no name"),
    (0, {}, "world_size 0 is out of range"), (2.0, {}, "world_size 2.0 is out of range"),
    (True, {}, "world_size True is out of range"), (2, {"timeout": 0}, "timeout 0 and threads 1 are out of range"),
    (2, {"timeout": float("nan")}, "timeout nan"), (2, {"threads": 0}, "threads 0 are out of range")])
def test_a_request_out_of_range_is_refused(size, options, said):
    with pytest.raises(RequestError, match=said):
        run_ranks(some_ranks.identity, size, **options)


def test_what_other_processes_cannot_import_is_refused():
    def local():
        return 1

    with pytest.raises(RequestError, match="local is defined inside a function"):
        run_ranks(local, 1)
    with pytest.raises(RequestError, match="cannot be sent to other processes"):
        run_ranks(some_ranks.identity, 1, threading.Lock())
    with pytest.raises(RequestError, match="fn must be a function; given: 3"):
        run_ranks(3, 1)


SCRIPT = """
import torch
import torch.distributed as dist
from labkit.training.ranks import run_ranks

def worker(x):
    dist.all_reduce(x)
    return x.item()

if __name__ == "__main__":
    print(run_ranks(worker, 2, torch.ones(1)))
"""


def test_a_script_may_define_its_own_function_and_run_under_torchrun(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    script = folder / "my script.py"
    script.write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, timeout=120)
    assert alone.stdout == "[2.0, 2.0]\n", alone.stderr
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node"]
    env["GLOO_SOCKET_IFNAME"] = {"linux": "lo", "darwin": "lo0"}.get(sys.platform, "")
    both = subprocess.run([*launch, "2", script], capture_output=True, text=True, env=env, timeout=120)
    assert both.stdout.count("[2.0, 2.0]") == 2, both.stderr  # the two may write into one line
    wrong = subprocess.run([*launch, "3", script], capture_output=True, text=True, env=env, timeout=120)
    assert wrong.returncode and "torchrun started 3 ranks, 2 are asked for" in wrong.stderr


def test_ranks_in_a_notebook_kernel_again_and_again_after_a_backward(tmp_path):
    from nbclient import NotebookClient

    cells = [
        f"import sys; sys.path[:0] = [{str(WORKERS)!r}]\nimport torch, some_ranks\n"
        "from labkit.training.ranks import run_ranks\ntorch.set_num_threads(2)",
        "x = torch.rand(512, 512, requires_grad=True); (x @ x).sum().backward()",  # the kernel now has worker threads
        "first = run_ranks(some_ranks.product, 2, 256)\nx.grad = None; (x @ x).sum().backward()\n"
        "assert first == run_ranks(some_ranks.product, 2, 256) == [256.0**3] * 2",
        "def cell_function():\n    return 1\ntry:\n    run_ranks(cell_function, 2)\nexcept ValueError as error:\n    print(error)",
        "class Mine: pass\ntry:\n    run_ranks(some_ranks.identity, 2, Mine())\nexcept ValueError as error:\n    print(error)",
        f"%%writefile {tmp_path}/cell_ranks.py\ndef hello(x):\n    return 2 * x",
        f"sys.path[:0] = [{str(tmp_path)!r}]\nimport cell_ranks\nprint(run_ranks(cell_ranks.hello, 2, 4))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    said = ["".join(out.get("text", "") for out in cell.outputs) for cell in notebook.cells]
    assert said[3].startswith("cell_function is defined in this notebook or on") and "%%writefile my_ranks.py" in said[3]
    assert said[4].startswith("something that identity is given is defined in this notebook")
    assert said[6] == "[8, 8]\n"
