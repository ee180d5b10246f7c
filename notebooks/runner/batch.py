"""Executing notebooks by papermill: one lab or the whole course, into a results folder with a report. There is no
second path to a result."""

import contextlib
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
from runner.results import choose_folder, now, read_manifest, writable, write_manifest

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
    from runner import report

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
                # The kernel listens on this machine only; its warning about plain text would stand in the terminal.
                papermill.execute_notebook(str(source), str(target), parameters=parameters, kernel_name="python3",
                                           progress_bar=False, cwd=str(paths.notebooks()), store_widget_state=False,
                                           start_timeout=60, extra_arguments=["--IPKernelApp.log_level=40"])
                break
            except papermill.PapermillExecutionError as error:
                raise WorkError(f"cell {error.cell_index}: {error.ename}: {error.evalue}") from None
            except Exception as error:
                # Two kernels that start together may be given the same port: the one that lost it gets another chance.
                if attempt or "Kernel didn't respond" not in str(error):
                    raise WorkError(f"{type(error).__name__}: {error}") from None


@contextlib.contextmanager
def environment(values: dict):
    """Environment variables for the kernels that start inside (parallel jobs share them: one can show its progress)."""
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


if sys.platform == "win32":  # papermill's kernel client needs a selector loop there
    import asyncio

    asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
