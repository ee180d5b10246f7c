"""The published figures parse, say where they are from, show nothing only remembered, and follow from the logs."""

import importlib.util

import pandas as pd
import pytest

from labkit import paths
from labkit.errors import RequestError
from labkit.rules.general import published

FOLDER = paths.data() / "published"
TABLES = sorted(path.name for path in FOLDER.glob("*.csv"))


@pytest.fixture(scope="module")
def script():
    """`data/published/derive.py` as a module."""
    spec = importlib.util.spec_from_file_location("derive", FOLDER / "derive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def heading(name):
    return [line for line in (FOLDER / name).read_text(encoding="utf-8").splitlines() if line.startswith("#")]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_parses_whole_and_says_where_it_is_from(name):
    table, text = published(name), (FOLDER / name).read_text(encoding="utf-8")
    assert len(table) == len(text.splitlines()) - len(heading(name)) - 1 > 0
    if "source" in table:
        assert table.source.notna().all()
    else:  # one place for all of its rows
        assert any(line.lower().startswith("# source: ") for line in heading(name))
    assert "remembered" not in text and len(text) < 120_000


def test_only_targets_that_were_logged_are_in_the_runs():
    runs = published("mlperf_runs.csv")
    assert runs.target[runs["round"] != "v0.5"].isna().all()
    assert runs.target[runs["round"] == "v0.5"].notna().all()


def test_entries_without_a_licence_are_published_without_their_curves():
    for name in ("dawnbench_train.csv", "dawnbench_thresholds.csv", "dawnbench_inference.csv"):
        assert any("licence: none stated" in line for line in heading(name))
    assert not published("dawnbench_train.csv").duplicated(["task", "entry"]).any()
    grid = published("dawnbench_thresholds.csv")
    assert not grid.duplicated(["task", "entry", "threshold"]).any()
    assert grid.groupby(["task", "entry"]).seconds.apply(lambda times: times.is_monotonic_increasing).all()


def test_schedules_are_those_of_entries():
    assert set(published("dawnbench_schedules.csv").entry) <= set(published("dawnbench_train.csv").entry)


def test_names_tell_the_size_or_nothing(script):
    sizes = {"v0.5/Google/tpuv2-8": 8, "v0.6/Google/tpu-v3-2048": 2048, "v0.7/Google/gpu-v100-8-TF2.0": 8,
             "v0.5/Intel/skx_8180_4s_4x": 16, "v0.7/NVIDIA/dgxa100_ngc20.06_merlin_hugectr": 8,
             "v0.5/NVIDIA/dgx1_ngc18.11_mxnet": 8, "v0.5/Intel/skx8180": None}  # fmt: skip
    assert {name: script.chips(name) for name in sizes} == sizes
    assert script.short("v0.6", "mlperf_v0.6/Google/results/tpu-v3-32/resnet") == "v0.6/Google/tpu-v3-32"
    hidden = "mlperf_v0.5/v0.5.0/google/cloud_v3.8/gnmt-tpuv3-8/results/tpu/gnmt"
    assert script.short("v0.5", hidden) == "v0.5/Google/tpuv3-8"


def test_a_folder_that_is_missing_is_named(script, tmp_path):
    with pytest.raises(RequestError, match="no folder dawnbench"):
        script.derive(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_derived_again_every_table_is_the_same(script, public_logs, tmp_path):
    written = script.derive(public_logs, tmp_path)
    assert len(written) == 9
    for path in written:
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_counts_are_those_of_the_logs(public_logs):
    folder = public_logs / "dawnbench"
    assert len(published("dawnbench_train.csv")) == len(list(folder.glob("*/train/*.tsv")))
    assert len(published("dawnbench_inference.csv")) == len(list(folder.glob("*/inference/*.json")))
    apple = published("cifar10_faster.csv")
    text = (public_logs / "other" / "apple_cifar10_faster_run_log.txt").read_text(encoding="utf-8")
    assert apple.n.tolist() == [text.count("wall time"), text.count("wall time") - 1]
    curves = pd.read_csv(public_logs / "other" / "ffcv_imagenet_agg.csv")
    recipes = published("ffcv_resnet50.csv")
    assert len(recipes) == curves.uid.nunique()
    assert recipes.final_top1.round(1).sub(recipes.readme_top1).abs().max() < 0.15
