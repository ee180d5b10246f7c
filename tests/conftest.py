"""Shared by all tests: one quiet thread, an empty store for each test, a recipe that trains in a tenth of a second."""

import os

# Before torch is imported: a thread that spins while it waits makes a step of a shared core take seconds.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def store_folder(tmp_path, monkeypatch) -> Path:
    """Where this test's runs go, through `LABKIT_STORE`; it does not exist yet."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("LABKIT_STORE", str(folder))
    return folder


@pytest.fixture
def store(store_folder):
    """The empty store of this test."""
    from labkit.runs import Store

    return Store(store_folder)


@pytest.fixture
def tiny():
    """A recipe of 16 optimizer steps on generated digits; keyword arguments change it."""
    from labkit.experiment import Recipe

    recipe = Recipe(
        data="procedural",
        train=128,
        validation=32,
        test=64,
        pool=2,
        sizes={"width": 16, "depth": 2},
        batch=16,
        rate=0.05,
        epochs=2,
        evaluate_every=8,
    )
    return lambda **changes: dataclasses.replace(recipe, **changes)


@pytest.fixture(scope="module")
def python():
    """Start a Python with the environment of the moment: `python("-c", code)` or `python(script, ...)`."""
    children = []

    def start(*arguments, env=None) -> subprocess.Popen:
        child = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.fixture(scope="session")
def public_logs() -> Path:
    """The folder of public benchmark logs (`dawnbench/`, `mlperf_v0.5/`, ...), which this repository does not hold."""
    folder = Path(os.environ.get("LABKIT_LOGS") or ROOT.parent / "shared" / "data" / "public_logs")
    if not folder.is_dir():
        pytest.skip(f"no public logs in {folder}; set LABKIT_LOGS to their folder")
    return folder
