"""Your own runs in the public formats: DAWNBench's JSON and TSV, and MLPerf Training's `:::MLLOG` lines (v0.7 on).

When not to use it: for a submission. These are the kit's small tasks, not the benchmarks' own: what is written says so,
names no official task and claims no price. Sources: the files of stanford-futuredata/dawn-bench-entries, and the checks
of the package `mlperf-logging`."""

import datetime
import hashlib
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from labkit.curve import Row, Run, canonical
from labkit.errors import RequestError
from labkit.tta.clock import clock_rule, counted_seconds, first_crossing, unanswerable

COLUMNS = "epoch\thours\ttop1Accuracy"


def sets(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Repeats of one recipe on one machine, in order, by a name that is safe and no other's: model, batch and rate;
    where these are equal (to a file system that ignores case), a digest of the rest too."""
    found: dict[str, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.header.repeat):
        kind = canonical([run.config, run.header.data, run.header.code, run.header.machine])
        if found.setdefault(kind, {}).setdefault(run.header.repeat, run) is not run:
            raise RequestError(f"run {run.header.identity} is given twice; name it once")
    plain = {}
    for kind, repeats in found.items():
        config = next(iter(repeats.values())).config
        plain[kind] = safe(f"{config.get('model')}-batch-{config.get('batch')}-rate-{config.get('rate')}")
    alike = Counter(map(str.lower, plain.values()))
    named = {}
    for kind, name in plain.items():
        digest = f"-{hashlib.sha256(kind.encode()).hexdigest()[:8]}"
        named[name + digest * (alike[name.lower()] > 1)] = list(found[kind].values())
    return named


def dawnbench(runs: Sequence[Run], folder: Path, *, task="", author="anonymous", email="") -> list[Path]:
    """A pair `<task>/train/<author>_<recipe>_<hardware>.json` and `.tsv` for each run, its repeat number appended where
    a recipe (`sets`) has several. `task` defaults to the name of the data. TSV: epoch, hours on the DAWNBench clock,
    accuracy in percent, for each evaluation of the target's metric (or `validation_accuracy`).

    Raises:
        RequestError: a run that cannot be exported, with the reason, or is given twice; a file that exists."""
    files = {}
    for recipe, run, tail in [(name, run, len(found) > 1) for name, found in sets(runs).items() for run in found]:
        name = "_".join([safe(author), recipe, safe(hardware(run)), *[str(run.header.repeat)] * tail])
        rows = evaluations(run, "dawnbench")
        versions = [f"{package} {run.header.software.get(package, '?')}" for package in ("torch", "pytorch-lightning")]
        entry = {"version": "v1.0", "author": author, "authorEmail": email, "framework": ", ".join(versions)}
        entry |= {"codeURL": None, "model": str(run.config.get("model")), "hardware": hardware(run)}
        entry |= {"costPerHour": None, "timestamp": str(began(run).date()), "misc": facts(run, "dawnbench")}
        # Percent by moving the decimal point: a product would round some values across their target.
        lines = [f"{row.epoch}\t{at / 3600}\t{Decimal(repr(row.value)).scaleb(2):f}" for row, at in rows]
        place = f"{safe(task or run.config.get('data'))}/train/{name}"
        files |= {f"{place}.json": json.dumps(entry, indent=2), f"{place}.tsv": "\n".join([COLUMNS, *lines])}
    return write(Path(folder), files)


def mlperf(runs: Sequence[Run], folder: Path, *, benchmark="", org="labkit") -> list[Path]:
    """The logs `<recipe>/result_0.txt`, `result_1.txt`, ... in the order of repeats: readers take a folder for one of
    the `sets`.

    Stamps are the MLPerf clock; a log cannot pause it, so all that is off the clock stands before `run_start`, wherever
    it happened. `run_stop` is at the first evaluation that meets the target (`success`) or at the last one (`aborted`);
    what came later is left out. A block is the training between two evaluations, in passes over the data. `benchmark`
    defaults to `labkit-<data>-<model>`; an official task's name would be a false claim.

    Raises:
        RequestError: as `dawnbench`; no target."""
    numbered = [(name, number, run) for name, found in sets(runs).items() for number, run in enumerate(found)]
    logs = ["\n".join(log(run, evaluations(run, "mlperf"), benchmark, org)) for *_, run in numbered]
    return write(Path(folder), {f"{name}/result_{number}.txt": text for (name, number, _), text in zip(numbered, logs)})


def log(run: Run, rows: list[tuple[Row, float]], benchmark: str, org: str) -> Iterable[str]:
    """The lines of one MLPerf log; `rows` are the evaluations with their seconds on the clock."""
    config, rule, hit = run.config, clock_rule("mlperf"), first_crossing(run, run.header.target)
    rows = [(row, at) for row, at in rows if hit is None or row.when <= hit.when]
    opened = round(began(run).timestamp() * 1000)
    start = opened + round((rows[-1][0].when - rows[-1][1]) * 1000)

    def line(at: float | None, key: str, value=None, **metadata) -> str:
        """`at`: seconds on the clock; None: before it starts."""
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.split("_")[-1], "POINT_IN_TIME")
        record = {"namespace": "", "time_ms": opened if at is None else start + round(at * 1000), "event_type": kind}
        return ":::MLLOG " + json.dumps({**record, "key": key, "value": value, "metadata": metadata})

    part = rows[0][0].name.removesuffix("_accuracy")
    benchmark = benchmark or f"labkit-{safe(config.get('data'))}-{safe(config.get('model'))}"
    top = {"labkit_export": facts(run, "mlperf"), "submission_benchmark": benchmark, "submission_org": org}
    top |= {"submission_division": "open", "submission_status": "research", "submission_platform": hardware(run)}
    top |= {"cache_clear": False, "seed": run.header.repeat, "global_batch_size": config.get("batch")}
    # Accuracy on the training images is taken on some of them only.
    top |= {"train_samples": config.get("train"), "eval_samples": config.get(part) if part != "train" else None}
    yield from (line(None, key, value) for key, value in top.items() if value is not None)
    yield from (line(None, "init_start"), line(0.0, "init_stop"), line(0.0, "run_start"))
    when, epoch = -math.inf, 0.0  # of the evaluation before
    for row, at in rows:
        spans = [span for span in run.spans if when <= span.start < row.when]
        trained, evaluated = ([span.start for span in spans if span.kind == kind] for kind in ("train", "evaluate"))
        edge = counted_seconds(run, rule, min([*evaluated, row.when]))
        if trained and row.epoch > epoch:
            size = row.epoch - epoch
            yield line(counted_seconds(run, rule, min(trained)), "block_start", first_epoch_num=epoch, epoch_count=size)
            yield line(edge, "block_stop", first_epoch_num=epoch)
        yield line(edge, "eval_start", epoch_num=row.epoch)
        yield line(at, "eval_stop", epoch_num=row.epoch)
        yield line(at, "eval_accuracy", row.value, epoch_num=row.epoch)
        when, epoch = row.when, row.epoch
    yield line(rows[-1][1], "run_stop", status="aborted" if hit is None else "success")


def evaluations(run: Run, rule: str) -> list[tuple[Row, float]]:
    """The evaluations of a run with their seconds on the clock of `rule`, or why it cannot be exported."""
    head, target = run.header, run.header.target or {"metric": "validation_accuracy", "value": 1.0}
    rows = run.series(target.get("metric"))
    times = [counted_seconds(run, clock_rule(rule), row.when) for row in rows]
    value = target.get("value")
    accuracy = str(target.get("metric")).endswith("accuracy") and target.get("higher", True) is True
    accuracy = accuracy and type(value) in (int, float) and 0 <= value <= 1
    proper = all(0 <= row.value <= 1 and 0 <= row.epoch < math.inf and math.isfinite(row.when) for row in rows)
    unclear = unanswerable(run, clock_rule(rule))
    reasons = {
        f"its source is {head.source}, and only measured runs can be": head.source != "measured",
        f"it is {run.status}": run.status != "finished", unclear: unclear,
        "without a target no log can say whether it converged": rule == "mlperf" and head.target is None,
        f"its target {target} is not an accuracy to be reached": not accuracy,
        f"{target.get('metric')} was never evaluated": not rows,
        f"a value of {target.get('metric')}, or its time, is out of range": not proper,
        f"its evaluations do not follow one another on the {rule} clock": any(a >= b for a, b in pairwise(times)),
        "it does not say when it began": began(run) is None,
    }
    for reason, wrong in reasons.items():
        if wrong:
            raise RequestError(f"run {head.identity} ({head.lab}, repeat {head.repeat}) cannot be exported: {reason}")
    return list(zip(rows, times))


def began(run: Run) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(run.header.began)
    except ValueError:
        return None


def facts(run: Run, rule: str) -> dict:
    """What the public formats have no field for."""
    note = "a small course task, measured and exported by labkit; not a submission to any benchmark"
    kept = {name: getattr(run.header, name) for name in ("lab", "repeat", "target", "data", "code", "config")}
    return {"note": note, "clock": f"{rule}: {clock_rule(rule).says}", **kept}


def hardware(run: Run) -> str:
    """Accelerator where there is one, logical CPUs, cap on threads."""
    found = {"cpus": "?", "cpu": "unknown CPU", "device": "cpu", **run.header.hardware}
    parts = [found["device"]] if found["device"] != "cpu" else []
    return ", ".join([*parts, f"{found['cpus']} x {found['cpu']}", f"threads {found.get('threads') or 'not capped'}"])


def safe(text: object) -> str:
    """A part of a file name: everything but ASCII letters, digits, `.` and `+` becomes `-`."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", str(text)).strip("-.")[:60] or "unknown"


def write(folder: Path, files: dict[str, str]) -> list[Path]:
    """Write these texts, each whole or not at all; a file that is there is not replaced."""
    paths = [folder / name for name in files]
    if taken := [path for path in paths if path.exists()]:
        raise RequestError(f"{taken[0]} is already there; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as drafts:
            for number, (path, text) in enumerate(zip(paths, files.values())):
                Path(drafts, str(number)).write_text(text + "\n", encoding="utf-8", newline="\n")
            for number, path in enumerate(paths):
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(drafts, str(number)), path)
    except OSError as error:
        raise RequestError(f"nothing can be written into {folder} ({error.strerror}); choose another folder") from None
    return paths
