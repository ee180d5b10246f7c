"""Every notebook runs: solution copies at `smoke`, with their record, spans, identities and no warning; readers' copies with nothing answered."""

import json
import math

import nbformat
import pytest

from labkit import claims, lab, paths
from labkit.runs import Store
from labkit.workloads.images import NAMES as IMAGES
from reader_contract import contract, sources_differ
from runner import batch

BUILT = [entry for entry in lab.course().values() if entry.exists]
IDS = [entry.number for entry in BUILT]


def executed(entry, folder, solutions):
    """The path of a copy executed at smoke, and the store it wrote to."""
    source = paths.notebooks() / ("solutions" if solutions else "") / f"{entry.stem}.ipynb"
    target, store = folder / f"{entry.stem}.ipynb", folder / "runs"
    batch.execute(source, target, {"profile": "smoke", "seeds": "0", "overrides": {}, "record_to": str(store)})
    return target, Store(store)


def complaints(path):
    """Everything that cells wrote to standard error, and every error output."""
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error" or output.get("name") == "stderr":
                yield "".join(output.get("text", output.get("evalue", "")))


@pytest.mark.parametrize("entry", BUILT, ids=IDS)
def test_solution_copy_runs_at_smoke_and_leaves_its_record(entry, tmp_path):
    path, store = executed(entry, tmp_path, solutions=True)
    assert not list(complaints(path))
    from runner import report

    (record,) = report.records(path)
    assert (record["lab"], record["profile"], record["seeds"]) == (entry.number, "smoke", [0])
    assert record["claims"] == claims.hashes(entry.number)
    for claim in claims.load(entry.number):
        # Identities are small and robust, so a smoke run has to show them all, from its own runs alone.
        if claim.kind == "identity" and claim.rule and "select" not in claim.rule:
            assert record["verdicts"][claim.id] == "holds exactly", claim.id
    runs = store.runs(entry.number)
    assert {f"{run.header.identity}-{run.header.machine}" for run in runs} == set(record["runs"])
    assert runs
    for run in runs:
        assert run.status == "finished" and run.header.claims == record["claims"]
        if "evidence" in run.config:
            continue
        assert run.seconds("train") > 0 and run.seconds("evaluate") > 0
        edges = sorted((span.start, span.end) for span in run.spans)
        assert all(end <= start + 1e-4 for (_, end), (start, _) in zip(edges, edges[1:], strict=False)), "spans overlap"
        assert math.isfinite(run.last("test_accuracy" if run.config["data"] in IMAGES else "test_loss"))


@pytest.mark.parametrize("entry", BUILT, ids=IDS)
def test_readers_copy_runs_with_nothing_answered(entry, tmp_path):
    path, _ = executed(entry, tmp_path, solutions=False)
    assert not list(complaints(path))
    text = path.read_text(encoding="utf-8")
    assert "not answered yet" in text


@pytest.mark.parametrize("solutions", [False, True], ids=["readers", "solutions"])
@pytest.mark.parametrize("entry", BUILT, ids=IDS)
def test_notebook_equals_its_source(entry, solutions):
    source = paths.notebooks() / "src" / f"{entry.stem}.py"
    built = paths.notebooks() / ("solutions" if solutions else "") / f"{entry.stem}.ipynb"
    assert not sources_differ(source, built, solutions)


@pytest.mark.parametrize("entry", BUILT, ids=IDS)
def test_committed_notebook_keeps_the_reader_contract(entry):
    assert not contract(entry.notebook)


@pytest.mark.parametrize("entry", BUILT, ids=IDS)
def test_committed_notebook_shows_real_small_outputs(entry):
    content = json.loads(entry.notebook.read_text(encoding="utf-8"))
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert "widgets" not in content["metadata"]
    assert "has not been measured yet" not in json.dumps(content), "its cost is known now: build the notebooks again"
    assert entry.notebook.stat().st_size <= 300_000


def test_no_notebook_is_left_without_a_source():
    stems = {path.stem for path in (paths.notebooks() / "src").glob("*.py")}
    assert {path.stem for path in paths.notebooks().glob("*.ipynb")} == stems
    assert {path.stem for path in (paths.notebooks() / "solutions").glob("*.ipynb")} == stems
