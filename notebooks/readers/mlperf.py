"""MLPerf Training results: folders of logs become runs, systems and scores, under the rule of each round.

Score: drop the fastest and the slowest run, mean of the rest; recommendation in v0.5: of the first 50 converged of 100
runs, in numeric file order. A log without a number is a miss, and so is one that the rules ask for and that is not
there. One miss is the slowest run; with two or more there is no score.

Source: training rules of v0.5 to v0.7 as the fact that they are public states them. When not to use it: for later
rounds' convergence points, windows of runs and scaling of scores, which are not applied here."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.curve import Header, Row, Run
from labkit.errors import RequestError
from readers import mlperf_log
from readers.mlperf_lines import canonical

RUN_COLUMNS = (
    "round", "system", "benchmark", "file", "format", "run_start", "run_stop", "tta_seconds", "converged", "last_value",
    "target", "evaluations", "last_epoch", "flags",
)  # fmt: skip
SYSTEM_COLUMNS = (
    "round", "system", "benchmark", "runs", "parsed", "converged", "mean_seconds", "sd_seconds", "cov_percent",
    "score_seconds", "score_rule", "status", "flags",
)  # fmt: skip
VISION, TRANSLATION = ("resnet", "ssd", "maskrcnn"), ("gnmt", "transformer")
RUNS = {  # how many runs a round asks for, where its rules are known
    "v0.5": {**dict.fromkeys(VISION, 5), **dict.fromkeys(TRANSLATION, 10), "ncf": 100, "minigo": 20},
    "v0.6": {**dict.fromkeys(VISION, 5), **dict.fromkeys(TRANSLATION, 10)},
    "v0.7": {**dict.fromkeys(VISION, 5), **dict.fromkeys(TRANSLATION, 10), "bert": 10, "dlrm": 5, "minigo": 10},
}
FLAGS = {
    "refused": "the log gives no number; its reason follows",
    "logs-missing": "fewer logs than the round asks for; each that is missing counts as a miss",
    "logs-more-than-asked": "more logs than the round asks for; all are in the score",
    "runs-not-checked": "how many runs the round asks for on this benchmark is not known here",
    "miss-before-v0.7": "one miss was dropped as the slowest run, though the round's own rules do not say that it may",
}
ROUNDS = ("v0.7", "v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1")
COPY = "the same run as "
ALIKE = 0.9  # of the median of its neighbours' last values: a success below that is not believed
RESULT = re.compile(r"result_?(\d+)(?:\.(?:txt|log|out))?(?:\.gz)?", re.IGNORECASE)
ROUND = re.compile(r"(?:.*(?:mlperf|training|results)\w*?[_-]*)?v(\d\.\d)(?:\.\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Results:
    """Runs and systems as tables, the logs that gave no number with their reasons, and every log as it was read."""

    runs: pd.DataFrame
    systems: pd.DataFrame
    refused: list[tuple[str, str]]
    logs: list[dict]


def read(path) -> Results:
    """Read every result log under a folder (or one log), all three formats.

    `system` is the folder of the logs, relative to `path`.

    Raises:
        RequestError: there is no such path, or no log in it."""
    root = Path(path)
    if not str(path) or not root.exists():
        raise RequestError(f"no such file or folder: {path!r}; give a folder of MLPerf result logs (result_0.txt, ...)")
    if root.is_file() and not RESULT.fullmatch(root.name) and not tagged(root):
        raise RequestError(f"{path} is no MLPerf result log: no line of it begins with :::ML")
    by_folder, unseen = found(root)
    logs = [log for folder, files in sorted(by_folder.items()) for log in read_folder(root, folder, files)]
    if not logs:
        raise RequestError(f"no MLPerf result log in {path}; logs are result_N.txt, or .txt and .log with :::ML lines")
    groups: dict = {}
    for log in logs:
        groups.setdefault((log["round"], log["system"], log["benchmark"]), []).append(log)
    systems = [system_row(*key, group) for key, group in sorted(groups.items())]
    rows = [{**log, "flags": f"refused: {log['reason']}" if log["reason"] else ";".join(log["flags"])} for log in logs]
    refused = [(log["path"], log["reason"]) for log in logs if log["reason"]] + unseen
    runs = pd.DataFrame(rows, columns=RUN_COLUMNS).astype({"evaluations": "Int64"})
    return Results(runs, pd.DataFrame(systems, columns=SYSTEM_COLUMNS), refused, logs)


def found(root: Path) -> tuple[dict[Path, list[Path]], list]:
    """Logs by folder, in numeric order: all result_N files or, in a folder that has none, texts with tagged lines. And
    the folders that cannot be listed, with the reason. Links to folders are followed, each folder is read once."""
    if root.is_file():
        return {root.parent: [root]}, []
    by_folder, unseen, visited = {}, [], set()
    for folder, below, names in os.walk(root, onerror=unseen.append, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            below.clear()
            continue
        visited.add(real)
        numbered = [name for name in names if RESULT.fullmatch(name)]
        others = [name for name in names if Path(name).suffix.lower() in (".txt", ".log", ".out")]
        chosen = numbered or [name for name in others if Path(folder, name).is_file() and tagged(Path(folder, name))]
        if chosen:
            by_folder[Path(folder)] = [Path(folder, name) for name in sorted(chosen, key=numeric)]
    return by_folder, [(plain(error.filename), f"cannot be listed: {error.strerror}") for error in unseen]


def plain(name) -> str:
    """A file's name as text that can be written: bytes that are no UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def numeric(name: str) -> list:
    """Sorts result_10 after result_9, and a result_1.log that copies it after result_1.txt."""
    parts = re.split(r"(\d+)", name.removesuffix(".txt"), flags=re.ASCII)
    return [(int(part), "") if part.isascii() and part.isdigit() and len(part) < 19 else (-1, part) for part in parts]


def tagged(path: Path) -> bool:
    """Whether a text file holds an MLPerf line, as far as it is read at all."""
    try:
        with path.open("rb") as stream:
            return b":::ML" in stream.read(mlperf_log.LARGEST)
    except OSError:
        return False


def read_folder(root: Path, folder: Path, files: list[Path]) -> list[dict]:
    """The logs of one folder. One that does not say what it is belongs to what most of its neighbours are."""
    system = "." if root.is_file() else plain(folder.relative_to(root).as_posix())
    logs, seen = [], {}
    for path in files:
        log = {"path": plain(path.as_posix()), "file": plain(path.name), "system": system, **mlperf_log.read(path)}
        key = (log["run_start"], log["run_stop"])
        if not log["reason"] and seen.setdefault(key, log["file"]) != log["file"]:
            refuse(log, f"{COPY}{seen[key]}: start and stop are equal")
        logs.append(log)
    for log in logs:  # all runs of a task stop at one target, which later rounds do not log
        alike = [other["last_value"] for other in logs
                 if (other["converged"], other["benchmark"]) == (True, log["benchmark"])
                 and isinstance(other["last_value"], float)]
        middle = float(np.median(alike)) if len(alike) > 2 else 0.0
        if log["converged"] and isinstance(log["last_value"], float) and log["last_value"] < ALIKE * middle:
            refuse(log, f"says success at {log['last_value']:g}, its neighbours at {middle:g}")
    known = [(round_of(log["format"], folder), log["benchmark"]) for log in logs if log["format"] and log["benchmark"]]
    usual = max(known, key=known.count) if known else (round_of("", folder), "")
    fallback = canonical(folder.name)
    for log in logs:
        log["round"] = round_of(log["format"], folder) if log["format"] else usual[0]
        name = log["benchmark"] or usual[1]
        log["benchmark"] = name or (fallback if any(fallback in names for names in RUNS.values()) else "unknown")
    return logs


def refuse(log: dict, reason: str) -> None:
    log.update({**mlperf_log.blank(), "format": log["format"], "benchmark": log["benchmark"], "reason": reason})


def round_of(format: str, folder: Path) -> str:
    """The round of a log. Only the first two formats name it; later ones go by a folder such as
    `training_results_v1.0`, and count as v0.7 where there is none."""
    if format not in ("", "v0.7"):
        return format
    rounds = (ROUND.fullmatch(part) for part in reversed(folder.resolve().parts))
    named = [f"v{match[1]}" for match in rounds if match]
    named = [name for name in named if name in (ROUNDS if format else (*ROUNDS, "v0.5", "v0.6"))]
    return named[0] if named else format or "unknown"


def system_row(round: str, system: str, benchmark: str, logs: list[dict]) -> dict:
    """One system on one benchmark: spread of its converged runs, and its score or why it has none. A copy of a log is
    no run."""
    logs = [log for log in logs if not log["reason"].startswith(COPY)]
    times = [log["tta_seconds"] if log["converged"] else math.inf for log in logs]
    reached = [t for t in times if math.isfinite(t)]
    asked = RUNS.get(round, {}).get(benchmark)
    names = [flag for log in logs for flag in (["refused"] if log["reason"] else log["flags"])]
    flags = [f"{name}:{names.count(name)}" for name in sorted(set(names))]
    missing = max(0, (asked or 0) - len(logs))
    told = [f"{log['file']}: {log['reason'] or 'not converged'}" for log in logs if not log["converged"]]
    if missing:
        flags.append(f"logs-missing:{missing}")
        told.append(f"{missing} of {asked} logs are missing")
    if asked is None:
        flags.append("runs-not-checked")
    if asked and len(logs) > asked:
        flags.append("logs-more-than-asked")
    score, rule, why = scored(round, benchmark, times + [math.inf] * missing)
    if math.isfinite(score) and len(told) and round < "v0.7" and benchmark != "ncf":
        flags.append("miss-before-v0.7")
    told = told[:5] + ["..."] * (len(told) > 5)
    mean = sum(reached) / len(reached) if reached else math.nan
    sd = float(np.std(reached, ddof=1)) if len(reached) > 1 else math.nan
    return {
        "round": round, "system": system, "benchmark": benchmark, "runs": len(logs),
        "parsed": sum(not log["reason"] for log in logs), "converged": len(reached), "mean_seconds": mean,
        "sd_seconds": sd, "cov_percent": 100 * sd / mean, "score_seconds": score if math.isfinite(score) else math.nan,
        "score_rule": rule, "flags": ";".join(flags),
        "status": "scored" if math.isfinite(score) else f"no score: {why}" + f" ({'; '.join(told)})" * bool(told),
    }  # fmt: skip


def scored(round: str, benchmark: str, times: list[float]) -> tuple[float, str, str]:
    """(seconds or inf, the rule in words, why there is no score) of times in file order, a miss infinite."""
    from labkit.tta.statistics import drop_extremes_mean

    if round == "v0.5" and benchmark == "ncf":
        rule = "of the first 50 converged in file order, drop fastest and slowest, mean of 48"
        first = [t for t in times if math.isfinite(t)][:50]
        if len(first) < 50:
            return math.inf, rule, f"only {len(first)} runs converged; the rule asks for 50"
        return drop_extremes_mean(first)[0], rule, ""
    drop = 4 if benchmark == "unet3d" else 1
    kept = len(times) - 2 * drop
    rule = f"drop {drop} fastest and {drop} slowest of {len(times)}, mean of {max(kept, 0)}"
    if kept < 1:
        return math.inf, rule, f"of {len(times)} runs none is left"
    seconds, why = drop_extremes_mean(times, drop)
    misses = sum(map(math.isinf, times))
    return seconds, rule, why and f"{misses} of {len(times)} runs missed, and at most one may"


def runs(results: Results) -> list[Run]:
    """The logs that gave a number or say that they missed, as runs of source `public-log`. They carry the mlperf clock
    only; their target is to have converged, which is what that clock times."""
    made = []
    for log in results.logs:
        if log["reason"]:
            continue
        config = {key: log[key] for key in ("round", "system", "benchmark", "file")}
        target = {"metric": "converged", "value": 1.0, "higher": True}
        data = {"checksum": f"{log['run_start']!r}-{log['run_stop']!r}"}
        header = Header("public", config, source="public-log", clock="mlperf", target=target, data=data)
        rows = [Row(0, epoch or 0.0, 0, seconds, "eval_accuracy", value) for seconds, epoch, value in log["course"]
                if not isinstance(value, dict)]
        seconds = log["run_stop"] - log["run_start"]
        rows.append(Row(0, log["last_epoch"] or 0.0, 0, seconds, "converged", float(log["converged"])))
        made.append(Run(header, [], rows, "finished"))
    return made
