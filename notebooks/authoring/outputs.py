"""What the authors keep of executed notebooks: small outputs in committed copies, figures, costs and packed runs."""

import base64
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat

from labkit import doctor, lab, machine, paths
from labkit.errors import RequestError
from labkit.runs import Store, pack
from runner import batch, report

from . import builder
from .committed import keep_outputs


def record(path: str) -> Path:
    """Pack the runs that an executed notebook used into `data/results/NN.jsonl.gz`, to be committed with the kit.

    Raises:
        RequestError: not an executed lab, or its runs are no longer in the store."""
    notebook = Path(path)
    if not notebook.is_file() or notebook.suffix != ".ipynb":
        raise RequestError(f"{path} is not a notebook; give an executed one, "
                           "such as results/<time>/07_large_batches.ipynb")
    found = report.records(notebook)
    if not found:
        raise RequestError(f"{path} holds no record; execute it to its end with: "
                           "python -m labkit run LAB --profile full")
    wanted, number = set(found[-1]["runs"]), lab.find(found[-1]["lab"]).number
    if not wanted:
        raise RequestError(f"{path} used no runs; there is nothing to record")
    runs = {f"{run.header.identity}-{run.header.machine}": run for run in Store(paths.store()).runs(number)}
    runs = [run for key, run in runs.items() if key in wanted]
    if len(runs) < len(wanted):
        raise RequestError(f"{path} used {len(wanted)} runs, of which the store holds {len(runs)}; run it again")
    target = paths.data() / "results" / f"{number}.jsonl.gz"
    kept = getattr(paths.lab_part(f"plan{number}"), "kept", None)  # how a plan makes a large record smaller
    pack(map(kept, runs) if kept else runs, target)
    return target


def refresh(names: Sequence[str] = ()) -> list[Path]:
    """Run readers' copies at `quick` (all, or the labs named), keep their small outputs in the committed notebooks, the
    figures of cells tagged `figure:NAME` in `data/figures`, and the measured cost in `data/results/costs.json`."""
    facts, kept = machine.hardware(), []
    place = {"cpu": facts["cpu"], "threads": facts["threads"], "gflops": round(doctor.matrix_multiply(1024, 5), 1)}
    for entry in [lab.find(name) for name in names] or [entry for entry in lab.course().values() if entry.exists]:
        with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
            target, begin = Path(scratch) / "executed.ipynb", time.perf_counter()
            request = {"profile": "quick", "seeds": "0", "overrides": {}, "record_to": str(Path(scratch) / "runs")}
            batch.execute(entry.notebook, target, request)
            seconds = time.perf_counter() - begin
            clean = builder.build(paths.notebooks() / "src" / f"{entry.stem}.py", solutions=False)
            notebook = keep_outputs(nbformat.read(target, as_version=4), clean)
        entry.notebook.write_text(builder.dumps(notebook), encoding="utf-8", newline="\n")
        kept += [entry.notebook, *keep_figures(notebook)]
        costs = lab.costs()
        costs.setdefault(entry.number, {})["quick"] = {"seconds": round(seconds, 1), **place}
        path = paths.data() / "results" / "costs.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(costs, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return kept


def keep_figures(notebook) -> list[Path]:
    """Write the last figure of each cell tagged `figure:NAME` to `data/figures/NAME.png`, for the README."""
    kept = []
    for cell in notebook.cells:
        images = [o["data"]["image/png"] for o in cell.get("outputs", ()) if "image/png" in o.get("data", {})]
        for tag in cell.metadata.get("tags", ()):
            if tag.startswith("figure:") and images:
                path = paths.data() / "figures" / f"{tag.removeprefix('figure:')}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(images[-1]))
                kept.append(path)
    return kept
