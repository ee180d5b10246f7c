"""Sweeps: a file becomes trials, each trial one run, whatever is killed on the way.

The sweeps that are disturbed here all have the same six trials; their numbers are compared with those of one that
nobody disturbed.
"""

import os
import secrets

# Ray reads them as it is imported: only this process and its children may use the cluster that is started here.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)

import contextlib
import dataclasses
import importlib.util
import math
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from labkit import cli, curve, runs, workloads
from labkit.errors import RequestError
from labkit.experiment import Recipe
from labkit.runs import Store
from sweeps import sweep, workers

ROOT = Path(__file__).resolve().parent.parent
BASE = "{data: procedural, train: 256, validation: 32, test: 64, pool: 2, sizes: {width: 16, depth: 2}, batch: 16"
SWEEP = f"""
lab: course
base: {BASE}, epochs: 30, evaluate_every: 60}}
grid: {{batch: [16, 32], rate: [0.02, 5e-2]}}
also: [{{batch: 64, rate: 0.1}}, {{batch: 64, rate: 0.1, options.momentum: 0.5}}]
"""
SMALL = f"lab: course\nbase: {BASE}, epochs: 1}}\n"
BROKEN = "callbacks: [{name: labkit.tta.callback.TimeToAccuracy, progress: red}]"  # known only as it trains


def file(tmp_path, text: str, name: str = "sweep.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def numbers(found: list) -> dict:
    """Everything of the runs but times and machine."""
    return {
        run.header.identity: [(row.step, row.epoch, row.samples, row.name, row.value) for row in run.rows]
        for run in found
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    outcome = sweep.run(sweep.load(file(folder, SWEEP)), Store(folder / "runs"))
    assert len(outcome.runs) == 6 and not outcome.failed
    return numbers(outcome.runs)


class Begun(threading.Thread):
    """Watches a folder for runs being written: `seen` says which processes began which run."""

    def __init__(self, folder: Path):
        super().__init__(daemon=True)
        self.folder, self.seen, self.over = folder, {}, threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def run(self):
        while not self.over.wait(0.005):
            with contextlib.suppress(FileNotFoundError):  # a folder that went while it was being listed
                for partial in self.folder.rglob("*.partial"):
                    identity, process = re.match(r"(\w{16}).*\.(\d+)\.partial", partial.name).groups()
                    self.seen.setdefault(identity, {}).setdefault(int(process), partial)

    def until(self, ready, what: str, seconds: float = 120.0):
        """The first true answer of `ready(seen)`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if answer := ready({identity: dict(processes) for identity, processes in list(self.seen.items())}):
                return answer
            time.sleep(0.01)
        raise AssertionError(f"{what} did not happen in {seconds} s; seen: {self.seen}")


def under_way(partial: Path) -> bool:
    """Whether the run has its first evaluation and is not over."""
    try:
        return b'"metric"' in partial.read_bytes()
    except OSError:
        return False


def finished(store: Store) -> dict:
    return {path.name: path.read_bytes() for path in store.folder.glob("*/*.jsonl")}


def test_a_file_becomes_recipes(tmp_path):
    text = f"""
lab: 7
base: {BASE}, evaluate_on: [test]}}
grid: {{rate: [1e-2, 0.1], options.momentum: [0.0, 0.5], sizes.depth: [3]}}
also: [{{model: row-lstm, sizes: {{}}, augment: [flip]}}]
seeds: [0, 3]
"""
    trials = sweep.load(file(tmp_path, text))
    assert len(trials) == (2 * 2 * 1 + 1) * 2
    assert [(t.recipe.rate, t.recipe.options, t.repeat) for t in trials[:4]] == [
        (0.01, {"momentum": 0.0}, 0),
        (0.01, {"momentum": 0.0}, 3),
        (0.01, {"momentum": 0.5}, 0),
        (0.01, {"momentum": 0.5}, 3),
    ]
    assert all(t.recipe.sizes == {"width": 16, "depth": 3} and t.recipe.pool == 2 for t in trials[:8])
    assert trials[-1].recipe == Recipe(
        data="procedural",
        train=256,
        validation=32,
        test=64,
        pool=2,
        model="row-lstm",
        batch=16,
        evaluate_on=("test",),
        augment=("flip",),
    )
    from labkit import claims

    assert {t.lab for t in trials} == {"07"} and trials[0].claims == claims.hashes("07") != {}
    assert trials[0].name == "rate 0.01, options.momentum 0.0, sizes.depth 3, seed 0"


def test_legw_moves_rate_and_keeps_warmup_steps_while_the_batch_grows(tmp_path):
    text = f"""
lab: course
base: {BASE}}}
grid: {{rule.name: [legw, linear], batch: [16, 64, 256]}}
also: [{{rule.base.rate: 0.2}}, {{rule: null, rate: 0.3}}]
rule: {{name: legw, base: {{batch: 16, rate: 0.1, warmup_epochs: 0.5}}}}
"""
    found = [(t.recipe.batch, t.recipe.rate, t.recipe.warmup_steps) for t in sweep.load(file(tmp_path, text))]
    steps = 0.5 * 256 / 16  # the warm-up of the base in optimizer steps
    assert found == [
        (16, 0.1, steps),
        (64, 0.1 * math.sqrt(4), steps),
        (256, 0.1 * math.sqrt(16), steps),
        (16, 0.1, steps),
        (64, pytest.approx(0.4), steps / 4),
        (256, pytest.approx(1.6), steps / 16),
        (16, 0.2, steps),
        (16, 0.3, 0.0),
    ]


def test_the_example_of_the_help_is_a_sweep(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["sweep", "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0 and "--gpus-per-trial" in shown
    example = shown.split("The file is YAML:\n")[1].split("The rule's parts")[0]
    trials = sweep.load(file(tmp_path, example))
    assert len(trials) == (3 * 2 + 1) * 2
    assert trials[-1].recipe.rate == 0.1 * math.sqrt(512 / 64)


@pytest.mark.parametrize(
    "text, says",
    [
        ("lab: [", "cannot be read as a sweep"),
        ("- 1", "what it holds must be a mapping, not [1]"),
        ("lab: a\nbase: 3\ngrid: {rate: [0.1]}", "base must be a mapping, not 3"),
        ("lab: a\ngrid: {rate: [0.1]}\nseeds: 0", "seeds must be a list, not 0"),
        ("lab: a\ngird: {rate: [1.0]}", "unknown entry of a sweep 'gird'; allowed: lab, base, grid"),
        ("lab: a", "the sweep has no points"),
        ("lab: a\ngrid: {}", "the sweep has no points"),
        ("lab: a\ngrid: {rate: []}", "no list of it empty"),
        ("lab: a\ngrid: {rate: 0.1}", "rate in grid must be a list, not 0.1"),
        ("lab: a\ngrid: {raet: [0.1]}", "raet 0.1: unknown field of a recipe 'raet'; allowed: data, train"),
        ("lab: a\ngrid: {options.momentum.x: [1]}", "momentum of options.momentum.x must be a mapping, not 0.9"),
        ("lab: a\ngrid: {rate: [much]}", "rate much: rate must be a finite number, not 'much'"),
        ("lab: a\nalso: [0.1]", "a point of also must be a mapping, not 0.1"),
        ("grid: {rate: [0.1]}", "lab must be a name of letters"),
        ("lab: ../a\ngrid: {rate: [0.1]}", "lab must be a name of letters"),
        ("lab: a\nseeds: [0, 0]\ngrid: {rate: [0.1]}", "seeds '0,0' not understood"),
        ("lab: a\nseeds: []\ngrid: {rate: [0.1]}", "seeds '' not understood"),
        ("lab: a\nrule: {name: lgew, base: {batch: 1, rate: 1.0}}\ngrid: {batch: [8]}", "unknown scaling rule 'lgew'"),
        ("lab: a\nrule: {name: legw, base: {batch: 1}}\ngrid: {batch: [8]}", "a rule must be a mapping such as"),
        ("lab: a\nrule: {name: legw}\ngrid: {batch: [8]}", "a rule must be a mapping such as"),
        (
            "lab: a\nrule: {name: legw, base: {batch: 8, rate: 1.0}}\ngrid: {rate: [8]}",
            "rate 8: rate comes from the rule; leave it away, or vary rule.base.rate",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, capsys, store, text, says):
    assert cli.main(["sweep", str(file(tmp_path, text))]) == 2
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "point, says",
    [
        ("data: mnist5k, train: 6000", "mnist5k has 5000 images"),
        ("sizes.depth: 0", "depth must be a whole number, 1 or more"),
        ("optimizer: adam", "unknown option of adam 'momentum'"),
        ("options.momentum: -1.0", "momentum"),
        ("decay: multistep", "milestones"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_first_trial(tmp_path, store, point, says):
    trials = sweep.load(file(tmp_path, SMALL + f"also: [{{rate: 0.01}}, {{{point}}}]"))
    with pytest.raises(RequestError, match=re.escape(point.partition(",")[0].replace(":", ""))) as refusal:
        sweep.run(trials, store)
    assert says in str(refusal.value)
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "options, says",
    [
        ({"gpus_per_trial": 1}, "name a cluster"),
        ({"gpus_per_trial": 1.5, "ray": "auto"}, "a fraction of one or a whole number, not 1.5"),
        ({"gpus_per_trial": 1, "ray": "auto"}, "belong together"),
    ],
)
def test_a_place_that_cannot_be_is_refused(tmp_path, store, options, says):
    trials = sweep.load(file(tmp_path, SMALL + "grid: {rate: [0.1]}"))
    with pytest.raises(RequestError, match=says):
        sweep.run(trials, store, **options)
    assert not store.folder.exists()


def test_without_ray_the_message_says_how_to_get_it(tmp_path, store, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name != "ray" and found(name, *more) or None)
    assert cli.main(["sweep", str(file(tmp_path, SMALL + "grid: {rate: [0.1]}")), "--ray", "auto"]) == 2
    assert 'Ray is not installed; run: pip install "labkit[cluster]"' in capsys.readouterr().err


def test_points_that_are_the_same_experiment_are_trained_once(tmp_path, store, capsys):
    text = SMALL + "grid: {rate: [0.1, 1e-1]}\nalso: [{rate: 0.1, options: {momentum: 0.9}}, {rate: 0.2}]"
    with Begun(store.folder) as begun:
        assert cli.main(["sweep", str(file(tmp_path, text))]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{store.folder}\n"
    assert re.fullmatch(r"sweep course: 2 runs, 0 of them from before, 0 failed, in .*\n", shown.err)
    before = finished(store)
    assert sorted(run.config["rate"] for run in store.runs("course")) == [0.1, 0.2]
    assert len(before) == 2 and all(len(processes) == 1 for processes in begun.seen.values())
    assert cli.main(["sweep", str(file(tmp_path, text))]) == 0
    assert "2 runs, 2 of them from before" in capsys.readouterr().err and finished(store) == before


def test_a_trial_that_fails_is_reported_with_its_traceback_and_stops_no_other(tmp_path, store, capsys):
    text = SMALL + f"also: [{{rate: 0.05}}, {{{BROKEN}}}, {{rate: 0.2}}]"
    assert cli.main(["sweep", str(file(tmp_path, text))]) == 1
    shown = capsys.readouterr().err
    assert "seed 0 failed:\nTraceback (most recent call last):" in shown
    assert "AttributeError: 'str' object has no attribute" in shown
    assert "2 runs, 0 of them from before, 1 failed" in shown
    assert sorted(run.config["rate"] for run in store.runs()) == [0.05, 0.2]
    # What has been done stays done; what failed is tried again.
    outcome = sweep.run(sweep.load(file(tmp_path, text)), store)
    assert len(outcome.runs) == 2 and len(outcome.failed) == 1
    assert outcome.failed[0][0].recipe.callbacks and "has no attribute" in outcome.failed[0][1]


def test_a_claim_ends_with_its_process_and_holds_for_others_until_then(tmp_path, python):
    lock, first, second = tmp_path / "lock", "0123456789abcdef", "fedcba9876543210"
    code = (
        "import sys, time; from labkit.paths import lab_part; claim = lab_part('workers', 'sweeps').claim\n"
        "file = open(sys.argv[1], 'ab')\n"
        "print(claim(file, sys.argv[2]), claim(file, sys.argv[2]), flush=True); time.sleep(600)"
    )
    child = python("-c", code, lock, first)
    assert child.stdout.readline() == "True True\n"
    with open(lock, "ab") as file:
        assert not workers.claim(file, first) and workers.claim(file, second)
        child.kill()
        child.wait()
        assert workers.claim(file, first)


def test_kill_the_sweep_and_nothing_is_lost_or_made_twice(tmp_path, store, python, undisturbed):
    path = file(tmp_path, SWEEP)
    with Begun(store.folder) as begun:
        driver = python("-m", "labkit", "sweep", path)

        def at_work(seen):
            now = [i for i, processes in seen.items() for partial in processes.values() if under_way(partial)]
            return len(finished(store)) >= 2 and now

        (lost,) = begun.until(at_work, "a trial after two")
        driver.kill()
        driver.wait()
        before = finished(store)
        assert len(before) < 6
        outcome = sweep.run(sweep.load(path), store)
    assert not outcome.failed and numbers(outcome.runs) == undisturbed
    after = finished(store)
    assert len(after) == 6 and before.items() <= after.items()
    assert {identity: len(processes) for identity, processes in begun.seen.items()} == {
        identity: 1 + (identity == lost) for identity in undisturbed
    }


def test_two_sweeps_on_one_store_share_the_work(tmp_path, store, python, undisturbed):
    path = file(tmp_path, SWEEP)
    with Begun(store.folder) as begun:
        other = python("-m", "labkit", "sweep", path)
        begun.until(lambda seen: seen, "the other's first run")
        outcome = sweep.run(sweep.load(path), store)
        assert other.wait(120) == 0
    assert not outcome.failed and numbers(outcome.runs) == undisturbed
    assert {len(processes) for processes in begun.seen.values()} == {1} and len(begun.seen) == 6
    assert len({process for processes in begun.seen.values() for process in processes}) == 2
    assert len(finished(store)) == 6 and not list(store.folder.rglob("*.partial"))


NO_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing: labkit[cluster]")


@pytest.fixture(scope="module")
def cluster():
    """Address of a Ray cluster of two CPUs; the temporary folders of its workers; both for this file alone."""
    # Not pytest's folder: Ray keeps sockets there, whose paths may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="lk-") as made,
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "workers" / "ray_cluster.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": made, "OMP_NUM_THREADS": "7"},
        ) as child,
    ):
        address = child.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield address, Path(made)
        child.stdin.close()


@NO_RAY
def test_kill_the_driver_of_a_cluster_then_a_worker_and_the_results_are_the_same(
    tmp_path, store, cluster, undisturbed, python, capfd
):
    address, made = cluster
    path = file(tmp_path, SWEEP.replace("also: [", f"also: [{{{BROKEN}}}, "))
    killed = []

    def kill(seen):
        now = [
            (process, identity)
            for identity, processes in seen.items()
            for process, partial in processes.items()
            if process not in old and under_way(partial)
        ]
        if now:
            os.kill(now[0][0], signal.SIGKILL)
            killed.append(now[0])
        return now

    with Begun(made) as begun:
        driver = python("-m", "labkit", "sweep", path, "--ray", address)
        begun.until(lambda seen: finished(store), "the first result")
        driver.kill()
        driver.wait()
        before, old = finished(store), {process for processes in begun.seen.values() for process in processes}
        assert 0 < len(before) < 6
        watch = threading.Thread(target=begun.until, args=(kill, "a trial to kill"))
        watch.start()
        outcome = sweep.run(sweep.load(path), store, ray=address)
        watch.join()
    shown = capfd.readouterr()
    assert not shown.out and re.fullmatch(r"(sweep course: .*\n)+", shown.err)  # Ray said nothing of its own
    assert numbers(outcome.runs) == undisturbed == numbers(store.runs())
    assert before.items() <= finished(store).items()
    assert {len(begun.seen[name[:16]]) for name in before} == {1}  # what had arrived was not made again
    ((victim, lost),) = killed
    assert len(begun.seen[lost].keys() - old) == 2  # and what was killed was
    ((trial, trace),) = outcome.failed
    assert trial.recipe.callbacks and "Traceback" in trace and "has no attribute" in trace
    # Trained under this process's thread cap, not the cluster's.
    assert {run.header.hardware["threads"] for run in outcome.runs} == {1}


@NO_RAY
def test_a_run_of_another_machine_counts_on_a_cluster_and_not_here(tmp_path, store, cluster):
    trials = sweep.load(file(tmp_path, SMALL + "grid: {rate: [0.1]}"))
    made = sweep.run(trials, store).runs[0]
    other = dataclasses.replace(made.header, hardware={**made.header.hardware, "cpu": "another"})
    line = curve.encode({"type": "run", "schema": 1, **dataclasses.asdict(other)}).encode() + b"\n"
    content = store.path(made.header).read_bytes()
    store.path(made.header).unlink()
    store.keep(line + content.partition(b"\n")[2])
    before = finished(store)
    found = sweep.run(trials, store, ray=cluster[0]).runs
    assert [run.header.hardware["cpu"] for run in found] == ["another"] and finished(store) == before
    assert sweep.run(trials, store).runs[0].header.hardware == made.header.hardware
    assert len(finished(store)) == 2


@NO_RAY
@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_a_wrong_request(tmp_path, store, capsys, address):
    path = file(tmp_path, SMALL + "grid: {rate: [0.1]}")
    assert cli.main(["sweep", str(path), "--ray", address]) == 2
    shown = capsys.readouterr().err
    assert f"no Ray cluster answers at '{address}'" in shown and shown.count("\n") == 1
    assert not store.folder.exists()


@NO_RAY
def test_the_workers_of_a_cluster_have_the_code_that_is_here(cluster):
    def there():
        from labkit import paths, workloads

        return sorted(workloads.names()), sorted(os.listdir()), str(paths.root())

    with workers.cluster(cluster[0], 0):
        import ray

        names, sent, root = ray.get(ray.remote(there).remote())
        assert root != str(ROOT) and names == sorted(workloads.names()) and sent == ["data", "labkit", "notebooks"]


@NO_RAY
def test_a_trial_larger_than_every_machine_of_the_cluster_is_refused(tmp_path, store, cluster, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(RequestError, match="no machine of the cluster has the 3 CPUs"):
        sweep.run(sweep.load(file(tmp_path, SMALL + "grid: {rate: [0.1]}")), store, ray=cluster[0])
    assert not store.folder.exists()


def test_what_is_kept_from_elsewhere_is_the_run_that_was_made(tiny, store, tmp_path):
    from labkit.experiment import train

    run = train(tiny(), Store(tmp_path / "there"), lab="test")
    content = next((tmp_path / "there").rglob("*.jsonl")).read_bytes()
    left = store.path(run.header).with_name(f"{store.path(run.header).name}.999999999.partial")
    left.parent.mkdir(parents=True)
    left.touch()  # by a process that was killed
    assert numbers([store.keep(content)]) == numbers([run])
    assert [path.name for path in (store.folder / "test").iterdir()] == [store.path(run.header).name]
    assert runs.read(store.path(run.header)).spans == run.spans
