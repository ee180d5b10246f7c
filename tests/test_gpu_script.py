"""`tests/gpu/run.py` on a CPU: every part works on small things, a bad one harms no other, refusals are plain."""

import importlib
import json
import os
import time
from pathlib import Path

import pytest
import torch

from labs.roofline import DTYPES
from labkit.runs import Store
from labkit.tta import clock

SCRIPT = Path(__file__).resolve().parent / "gpu" / "run.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, python):
    """(exit status, standard output, folder) of one run with `--tiny`."""
    folder = tmp_path_factory.mktemp("gpu")
    child = python(SCRIPT, "--device", "cpu", "--tiny", "--out", folder)
    said, complaint = child.communicate(timeout=300)
    assert not complaint
    return child.returncode, said, folder


def test_every_part_is_done_and_recorded(whole):
    status, said, folder = whole
    record = json.loads((folder / "record.json").read_text(), parse_constant=pytest.fail)
    assert status == 0 and [part["status"] for part in record["parts"]] == ["done"] * 5
    assert record["hardware"]["device"] == "cpu" and record["tiny"] and record["software"]["torch"]
    runs, kernels, roofline, precision, optimizers = (part["numbers"] for part in record["parts"])
    assert {kernels[dtype]["matrix_units"] for dtype in DTYPES} == {"not observable on a CPU"}
    assert all(sum(kernels[dtype]["shares"].values()) == pytest.approx(1) for dtype in DTYPES)
    assert {"peak", "bandwidth", "achieved"} <= roofline["float32"].keys() and precision["batches"]["rows"]
    outcomes = {name.split(", ")[1]: row["says"] for name, row in optimizers.items()}
    assert all(f"{name}: {row['says']}" in said for name, row in [*optimizers.items(), *kernels.items()])
    skipped = "skipped: needs a GPU"
    assert outcomes == {"no_wait": skipped, "as_on_cpu": skipped, "loss_scaling": "passed"}


def test_the_times_are_those_of_the_runs_that_were_kept(whole):
    numbers = json.loads((whole[2] / "record.json").read_text())["parts"][0]["numbers"]
    runs = sorted(Store(whole[2] / "runs").runs("gpu"), key=lambda run: run.header.repeat)
    assert [run.header.repeat for run in runs] == list(range(20)) and numbers["n"] == 20
    assert all(run.config["label_smoothing"] and run.config["channels_last"] for run in runs)
    for name in clock.RULES:
        row = numbers[name]
        assert float(row["seconds"]) == pytest.approx(clock.score(runs, name).seconds)
        if clock.RULES[name].per == "run":
            assert [float(time) for time in row["times"]] == [clock.time_to_target(run, name).seconds for run in runs]


def fails(left):
    yield {"half": 1}
    raise RuntimeError("planted")


def crashes(left):
    yield {"half": 1}
    os._exit(3)


def hangs(left):
    yield {"half": 1}
    time.sleep(600)


def test_a_part_that_hangs_fails_or_crashes_harms_no_other(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # the script sets it for good
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    kept, parts, shares = [], {"1": hangs, "2": fails, "3": crashes}, {"1": 0.1, "2": 0.5, "3": 0.4}
    keep, script = lambda records: kept.append(list(records)), importlib.import_module("run")
    script.perform(parts, shares, 100, keep, time.time())
    assert [len(records) for records in kept] == [1, 2, 3]
    hung, failed, crashed = kept[-1]
    assert hung["status"] == "stopped: over its time (10 s)"
    assert failed["status"] == "failed: RuntimeError: planted" and "in fails" in failed["numbers"]["traceback"]
    assert crashed["status"] == "failed: its process ended with exit code 3"
    assert all(record["numbers"]["half"] == 1 for record in kept[-1])


REFUSED = {"device cuda is not there": (), "fashion-mnist is not here": ("--device", "cpu"),
           "holds files": ("--device", "cpu", "--tiny", "--out", SCRIPT.parent)}


@pytest.mark.parametrize("says", REFUSED)
def test_refusals_are_one_line_and_exit_2(says, tmp_path, python):
    if torch.cuda.is_available() and not REFUSED[says]:
        pytest.skip("there is a GPU here")
    arguments = REFUSED[says]
    child = python(SCRIPT, *arguments, env={"LABKIT_DATA": str(tmp_path), "LABKIT_CACHE": str(tmp_path)})
    said, complaint = child.communicate(timeout=120)
    assert (child.returncode, said, complaint.count("\n")) == (2, "", 1) and says in complaint
