"""Executing notebooks by papermill: one lab or the whole course, into a results folder with a report. There is no
second path to a result."""

import base64
import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from labkit import lab as labs
from labkit import machine, paths
from labkit.errors import RequestError, WorkError
from labkit.progress import FILE_VARIABLE, follow
from labkit.results import choose_folder, now, read_manifest, writable, write_manifest
from labkit.runs import Store, pack

PLACES = ("LABKIT_DATA", "LABKIT_CACHE")


@dataclass
class Outcome:
    """What a batch did: executed notebooks, the report, and the labs that failed with the reason."""

    notebooks: list[Path] = field(default_factory=list)
    report: Path | None = None
    failed: dict = field(default_factory=dict)


def run(names: Sequence[str], profile: str = "quick", seeds: str = "0", overrides: dict | None = None,
        out: str | None = None, *, jobs: int = 1, resume: bool = False, fresh: bool = False) -> Outcome:
    """Execute labs (all that exist when none is named) and write the report.

    Every request is checked before the first kernel starts and before anything is written. A single lab that fails
    raises; in a batch it is reported and the others go on.

    Raises:
        RequestError: something in the request is wrong.
        WorkError: the one lab that was asked for failed; its notebook with the traceback is kept."""
    entries = [labs.find(name) for name in names] or [entry for entry in labs.course().values() if entry.exists]
    entries = list({entry.stem: entry for entry in entries}.values())
    for entry in entries:
        labs.request(entry.number, profile, seeds, overrides)
        if not entry.notebook.exists():
            raise RequestError(f"{entry.stem}.ipynb is not built; run: python -m labkit notebooks --sources-only")
    request = {"profile": profile, "seeds": seeds, "overrides": overrides or {}, "record_to": str(paths.store())}
    folder = choose_folder(out, resume, request)
    before = read_manifest(folder) if resume else {}
    if before and before["request"] != request:
        raise RequestError(f"{folder.name} was begun with {before['request']}; resume it with the same, "
                           "or leave --resume away")
    writable(paths.store(), "the store of runs")
    writable(folder, "the results folder")
    # Fresh runs are trained in an empty store beside their results, then replace those of the usual one.
    store = folder / "fresh runs" if fresh else paths.store()
    manifest = {"request": request, "hardware": machine.hardware(), "software": machine.software(),
                "began": before.get("began") or now(), "finished": None,
                "labs": {stem: state for stem, state in before.get("labs", {}).items() if state["status"] == "done"}}
    write_manifest(folder, manifest)
    outcome, lock = Outcome(), threading.Lock()

    def one(entry) -> None:
        target = folder / f"{entry.stem}.ipynb"
        if entry.stem in manifest["labs"] and target.exists():
            outcome.notebooks.append(target)
            return
        begin = time.perf_counter()
        try:
            execute(entry.notebook, target, {**request, "record_to": str(store)})
        except WorkError as error:
            outcome.failed[entry.stem] = str(error)
            state = {"status": "failed", "reason": str(error)}
        else:
            outcome.notebooks.append(target)
            state = {"status": "done", "seconds": round(time.perf_counter() - begin, 1)}
        with lock:
            manifest["labs"][entry.stem] = state
            write_manifest(folder, manifest)

    try:
        # One job stays in this thread, where Ctrl-C reaches it.
        if jobs == 1:
            for entry in entries:
                one(entry)
        else:
            with ThreadPoolExecutor(max_workers=jobs) as pool:
                list(pool.map(one, entries))
    finally:
        if fresh:
            keep_fresh(store)
    from labkit import report

    outcome.notebooks.sort()
    stamped = {**manifest, "finished": now()}
    outcome.report = report.write(folder, stamped)
    if not outcome.failed:
        write_manifest(folder, stamped)
    if outcome.failed and len(entries) == 1:
        raise WorkError(f"lab {entries[0].stem} failed: {next(iter(outcome.failed.values()))}; "
                        f"its notebook is kept in {folder}")
    return outcome


def execute(source: Path, target: Path, request: dict) -> None:
    """One notebook by papermill, in this Python, offline, without widgets; its progress line appears on this terminal.

    Raises:
        WorkError: a cell failed (the notebook up to there is kept), or the kernel died."""
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)  # its lines say what our one line says
    parameters = {**request, "interactive": False}
    # The kernel runs in notebooks/: what is relative to this process would be another place there.
    places = {name: str(Path(os.environ[name]).resolve()) for name in PLACES if os.environ.get(name)}
    with (tempfile.TemporaryDirectory(prefix="labkit-") as scratch,
          environment({FILE_VARIABLE: str(Path(scratch) / "line"), **places}), follow(Path(scratch) / "line")):
        for attempt in range(2):
            try:
                papermill.execute_notebook(
                    str(source),
                    str(target),
                    parameters=parameters,
                    kernel_name="python3",
                    progress_bar=False,
                    cwd=str(paths.notebooks()),
                    store_widget_state=False,
                    start_timeout=60,
                    # The kernel listens on this machine only; a warning about plain text would stand in the terminal.
                    extra_arguments=["--IPKernelApp.log_level=40"],
                )
                break
            except papermill.PapermillExecutionError as error:
                raise WorkError(f"cell {error.cell_index}: {error.ename}: {error.evalue}") from None
            except Exception as error:
                # Two kernels that start together may be given the same port: the one that lost it gets another chance.
                if attempt or "Kernel didn't respond" not in str(error):
                    raise WorkError(f"{type(error).__name__}: {error}") from None


@contextlib.contextmanager
def environment(values: dict):
    """Environment variables for the kernels that start inside (kernels of parallel jobs share them: only one can show
    its progress)."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def keep_fresh(folder: Path) -> None:
    """Move the finished runs of a fresh store into the usual one."""
    import shutil

    for path in folder.glob("*/*.jsonl"):
        target = paths.store() / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    shutil.rmtree(folder, ignore_errors=True)


def record(path: str) -> Path:
    """Pack the runs that an executed notebook used into `data/results/NN.jsonl.gz`, to be committed with the kit.

    Raises:
        RequestError: not an executed lab, or its runs are no longer in the store."""
    from labkit import report

    notebook = Path(path)
    if not notebook.is_file() or notebook.suffix != ".ipynb":
        raise RequestError(f"{path} is not a notebook; give an executed one, "
                           "such as results/<time>/07_large_batches.ipynb")
    found = report.records(notebook)
    if not found:
        raise RequestError(f"{path} holds no record; execute it to its end with: "
                           "python -m labkit run LAB --profile full")
    wanted, lab = set(found[-1]["runs"]), labs.find(found[-1]["lab"]).number
    if not wanted:
        raise RequestError(f"{path} used no runs; there is nothing to record")
    runs = {f"{run.header.identity}-{run.header.machine}": run for run in Store(paths.store()).runs(lab)}
    runs = [run for key, run in runs.items() if key in wanted]
    if len(runs) < len(wanted):
        raise RequestError(f"{path} used {len(wanted)} runs, of which the store holds {len(runs)}; run it again")
    target = paths.data() / "results" / f"{lab}.jsonl.gz"
    pack(runs, target)
    return target


def refresh_outputs(names: Sequence[str] = ()) -> list[Path]:
    """Run readers' copies at `quick` (all, or the labs named), keep their small outputs in the committed notebooks, the
    figures of cells tagged `figure:NAME` in `data/figures`, and the measured cost in `data/results/costs.json`."""
    import nbformat

    from labkit import doctor
    from labkit.teach import notebooks

    facts, kept = machine.hardware(), []
    place = {"cpu": facts["cpu"], "threads": facts["threads"], "gflops": round(doctor.matrix_multiply(1024, 5), 1)}
    for entry in [labs.find(name) for name in names] or [entry for entry in labs.course().values() if entry.exists]:
        with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
            target, begin = Path(scratch) / "executed.ipynb", time.perf_counter()
            request = {"profile": "quick", "seeds": "0", "overrides": {}, "record_to": str(Path(scratch) / "runs")}
            execute(entry.notebook, target, request)
            seconds = time.perf_counter() - begin
            clean = notebooks.build(paths.notebooks() / "src" / f"{entry.stem}.py", solutions=False)
            notebook = notebooks.keep_outputs(nbformat.read(target, as_version=4), clean)
        entry.notebook.write_text(notebooks.dumps(notebook), encoding="utf-8", newline="\n")
        kept += [entry.notebook, *keep_figures(notebook)]
        costs = labs.costs()
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


if sys.platform == "win32":  # papermill's kernel client needs a selector loop there
    import asyncio

    asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
