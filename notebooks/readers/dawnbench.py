"""DAWNBench entries: JSON and TSV pairs become tables and runs; what cannot be trusted is refused.

Rule (the entries' own tests): time to accuracy is the hours of the first row, in file order, whose raw metric is `>=`
the threshold. Never a wrong number: an entry that is unreadable, cut, or contradicts itself is named with its reason; a
field that the file cannot tell is empty, and a flag says why. No reader sees whole rows lost at the end."""

import hashlib
import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.curve import Header, Row, Run
from labkit.errors import RequestError

LIMIT, LONGEST = 1 << 20, 10 * 366 * 24.0  # bytes of a file; hours of a run. The largest public ones: 12 KB, 17 days
KINDS, SUFFIXES = ("train", "inference"), (".json", ".tsv")
TASKS = {"CIFAR10": ("top1Accuracy", 94.0), "ImageNet": ("top5Accuracy", 93.0), "SQuAD": ("f1Score", 0.75)}
METRICS = {"top5Accuracy": 100.0, "top1Accuracy": 100.0, "f1Score": 1.0}  # largest value; the first present is judged
COLUMNS = [{"epoch", "hours", *names} for names in (["top1Accuracy"], ["top1Accuracy", "top5Accuracy"], ["f1Score"])]
KNOWN = {*METRICS, *"version author authorEmail framework codeURL model hardware costPerHour timestamp misc".split()}
KNOWN |= {"commitHash", "usedBlacklist", "logFilename", "latency", "cost"}
ABOUT = ["task", "entry", "model", "hardware", "framework", "date", "metric"]
HIT = dict.fromkeys(("first_hit_epoch", "tta_seconds", "metric_at_hit", "cost_usd"), math.nan) | {"displayed_time": ""}
TRAIN = [*ABOUT, "threshold", "rows", *list(HIT)[:3], "final_metric", "cost_usd", "displayed_time", "flags"]
INFERENCE = [*ABOUT, "accuracy", "latency_ms", "cost_usd", "cost_usd_10000", "flags"]
NUMBER = re.compile(r"(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)", re.ASCII)
CHECKPOINTS = re.compile(r"time[\w ]{0,40}checkpoint|checkpoint[\w ]{0,40}time", re.IGNORECASE)
CHIPS = re.compile(r"(?:k80|m60|p100|p4|t4|v100|1080ti|2080)(?!\d)")
FLAGS = {
    "not-reached": "no row reaches the threshold: a miss, time and cost are empty",
    "unterminated": "no final newline and the last number may be cut: its row is left out, the final metric is empty",
    "unknown-task": "no threshold is known; `thresholds` takes yours", "own-target": "judged by the target in misc",
    "task-by-columns": "in no task's folder: by its columns", "falls-below-again": "a row after the first hit is below",
    "ends-below": "the last row is", "long-after-target": "at least twice the time to the first hit",
    "below-threshold": "inference, too inaccurate", "f1-in-percent": "F1 filed in percent: kept as filed",
    "no-cost": "no price filed", "bad-cost": "the price is no number of 0 or more: left empty, the time stands",
    "checkpointing-claimed": "the JSON says whether its time includes checkpoints; the time here is the TSV's",
    "repeat-of": "named part<n>: another, independent run of the entry without that ending",
    "name-against-hardware": "the file's name names another accelerator than the JSON",
    "short-name": "fewer parts than author_model_hardware_framework", "no-date": "the timestamp is no date: left empty",
    "date-unpadded": "a date without leading zeros", "stray-field": "fields unknown to the format",
    "misc-is-text": "misc is no object", "bom": "a byte order mark", "crlf": "CR LF lines", "blank-line": "blank lines",
    "no-final-newline": "but the TSV's last number is whole: a blank follows it, or its decimals tell",
    "padded-fields": "blanks in TSV fields", "columns-reordered": "the second TSV column is not hours",
    "first-epoch-zero": "epochs count from 0", "fractional-epochs": "epochs are not whole numbers",
    "repeated-epochs": "an epoch number twice, at different hours", "zero-hours-first": "no time at the first row",
    "irregular-epochs": "epochs unevenly spaced, so a missing row need not show",
}


class _Refused(ValueError):
    """(file, reason)"""


def _require(holds: bool, file: Path, reason: str) -> None:
    if not holds:
        raise _Refused(file, reason)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Tables, one row an entry (empty: NaN or ""; `flags`: words of `FLAGS`); what was refused, as (file, reason); and
    {(task, entry): (hours, metric, epochs)}, three float arrays with one value a row of the TSV."""

    train: pd.DataFrame
    inference: pd.DataFrame
    refused: list[tuple[str, str]]
    curves: dict[tuple[str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]


def read(path: Path | str) -> Benchmark:
    """Read a checkout of the entries, one task's folder, one train or inference folder, or one entry (either file or
    their path without suffix). Not for ranking systems: each entry is one run, chosen by its submitter.

    Raises:
        RequestError: `path` does not exist or holds no entry at all."""
    path, found, refused, curves = Path(os.path.abspath(path)), {kind: [] for kind in KINDS}, [], {}
    for stem in _stems(path):
        flags, (about, log) = {}, (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
        task, kind = stem.parts[-3:-1] if stem.parent.name in KINDS else (None, None)
        try:
            facts = _json(about, flags)
            kind = kind or ("inference" if "latency" in facts and not log.exists() else "train")
            row, *curve = (_train if kind == "train" else _inference)(task, about, log, facts, flags)
        except _Refused as error:
            file, reason = error.args
            file = os.path.relpath(file, path if path.is_dir() else path.parent)
            refused.append((os.fsencode(file).decode(errors="replace"), reason))
            continue
        found[kind].append(row | {"flags": ";".join(word for word in FLAGS if flags.get(word))})
        if curve:
            curves[row["task"], row["entry"]] = tuple(curve)
    tables = [pd.DataFrame(found[kind], columns=names) for kind, names in zip(KINDS, (TRAIN, INFERENCE))]
    return Benchmark(*tables, refused, curves)


def runs(benchmark: Benchmark) -> list[Run]:
    """Each training curve as a `Run` that answers the dawnbench clock only, `when` in seconds; no target where the task
    is unknown. Steps and samples were not filed: 0. Not for other clocks: the logs do not tell their evaluations."""
    made = []
    for entry in benchmark.train.itertuples():
        hours, metric, epochs = curve = benchmark.curves[entry.task, entry.entry]
        target = {"metric": entry.metric, "value": entry.threshold, "higher": True}
        header = Header("public", {name: getattr(entry, name) for name in ABOUT[:3] + ABOUT[5:6]}, source="public-log",
                        data={"checksum": hashlib.sha256(np.stack(curve).tobytes()).hexdigest(), "flags": entry.flags},
                        target=None if math.isnan(entry.threshold) else target, clock="dawnbench",
                        hardware={"device": entry.hardware}, software={"framework": entry.framework})
        points = zip(epochs.tolist(), (hours * 3600).tolist(), metric.tolist())
        rows = [Row(0, epoch, 0, when, entry.metric, value) for epoch, when, value in points]
        made.append(Run(header, rows=rows, status="finished"))
    return made


def displayed(seconds: float) -> str:
    """h:mm:ss as the leaderboard showed it, rounded up; first to ms, so that float noise does not add a second."""
    whole = math.ceil(round(seconds, 3))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _stems(path: Path) -> list[Path]:
    """The entries at a path, without suffix."""
    if os.path.isdir(path):
        near, far = ([file for kind in KINDS for file in path.glob(f"{up}{kind}/*")] for up in ("", "*/"))
        files = near or far or list(path.glob("*"))
    else:
        files = [Path(f"{path}{suffix}") for suffix in ("", *SUFFIXES) if os.path.exists(f"{path}{suffix}")]
    stems = {file.with_name(file.stem) for file in files if file.suffix in SUFFIXES}
    if not stems:
        what = "holds no DAWNBench entry that can be seen" if os.path.exists(path) else "does not exist"
        raise RequestError(f"{path} {what}; give a folder with train/ or inference/ in it, or an entry's .json or .tsv")
    return sorted(stems)


def _text(file: Path, flags: dict) -> str:
    _require("".join(file.parts[-3:]).isprintable(), file, "its name is no printable text")
    try:
        _require(file.is_file(), file, "not a regular file" if file.exists() else "missing: an entry needs it")
        with open(file, "rb") as opened:
            raw = opened.read(LIMIT + 1)
        _require(len(raw) <= LIMIT, file, f"larger than {LIMIT} bytes")
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _Refused(file, f"no readable UTF-8 text ({getattr(error, 'strerror', None) or error.reason})") from None
    flags |= {"bom": flags.get("bom") or text[:1] == "\ufeff", "crlf": flags.get("crlf") or "\r\n" in text}
    return text.removeprefix("\ufeff")


def _json(file: Path, flags: dict) -> dict:
    def once(pairs):
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a key comes twice")
        return found

    text = _text(file, flags)
    try:
        facts = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _Refused(file, f"no JSON, or cut ({str(error)[:80]})") from None
    _require(isinstance(facts, dict) and facts.get("version") == "v1.0", file, "no object of version v1.0")
    for name in ABOUT[2:5]:
        _require(isinstance(facts.get(name), str), file, f"{name} is missing or no text")
        facts[name] = facts[name].encode("utf-8", "replace").decode()  # no CSV can hold a lone surrogate
    flags |= {"stray-field": facts.keys() - KNOWN, "misc-is-text": not isinstance(facts.get("misc", {}), dict)}
    flags["checkpointing-claimed"] = CHECKPOINTS.search(text)
    return facts


def _amount(value) -> float:
    """A finite JSON number of 0 or more; NaN for anything else."""
    return float(value) if type(value) in (int, float) and 0 <= value < 1e300 else math.nan


def _about(task: str | None, name: str, metric: str, facts: dict, price, flags: dict) -> tuple[dict, float]:
    """The columns that both tables share, and the threshold."""
    flags |= {"no-cost": price is None, "bad-cost": price is not None and math.isnan(_amount(price))}
    goal = misc.get("target") if isinstance(misc := facts.get("misc"), dict) else None
    goal = _amount(goal.get("value")) if isinstance(goal, dict) and goal.get("higher", True) is True else math.nan
    stated = task not in TASKS and metric == "top1Accuracy" and goal <= 1  # a fraction, by `readers.export`
    flags |= {"own-target": stated, "task-by-columns": not (task or stated)}
    task = task or ("unknown" if stated else next(known for known, (judged, _) in TASKS.items() if judged == metric))
    flags |= {"unknown-task": not (stated or task in TASKS), "repeat-of": re.search(r"part\d+$", name)}
    named, filed = (set(CHIPS.findall(text.lower().replace(" ", ""))) for text in (name, facts["hardware"]))
    flags |= {"name-against-hardware": named and filed and not named & filed, "short-name": name.count("_") < 3}
    try:
        day = date(*map(int, DATE.fullmatch(facts["timestamp"]).groups())).isoformat()
    except (KeyError, TypeError, AttributeError, ValueError):
        day = ""
    flags |= {"no-date": not day, "date-unpadded": day and facts["timestamp"] != day}
    about = zip(ABOUT, (task, name, *(facts[part] for part in ABOUT[2:5]), day, metric))
    return dict(about), TASKS.get(task, (metric, float(Decimal(repr(goal)).scaleb(2)) if stated else math.nan))[1]


def _inference(task: str | None, about: Path, _: Path, facts: dict, flags: dict) -> tuple[dict]:
    metric = TASKS[task][0] if task in TASKS else next((name for name in METRICS if name in facts), "accuracy")
    accuracy, latency, cost = (_amount(facts.get(name)) for name in (metric, "latency", "cost"))
    _require(accuracy <= 100 and 0 < latency <= LONGEST * 3.6e6, about, f"{metric} or latency is missing or impossible")
    row, threshold = _about(task, about.stem, metric, facts, facts.get("cost"), flags)
    percent = accuracy > METRICS[metric]
    flags |= {"f1-in-percent": percent, "below-threshold": accuracy < threshold * (100 if percent else 1)}
    return (row | dict(zip(INFERENCE[7:], (accuracy, latency, cost, cost * 1e4))),)


def _cut(cells: list[str], last: str) -> bool:
    """Whether the last field of a file that ends in it may have lost digits. A cut number has fewer decimals than the
    `cells` above it: as many as most of them, and as any, is whole."""
    decimals, most = [len(cell.strip().partition(".")[2]) for cell in cells], len(last.partition(".")[2])
    usual = most > 0 and max(decimals, default=0) == most and decimals.count(most) >= 0.75 * len(decimals)
    return last[-1] not in " \r" and (not usual or "e" in "".join([*cells, last]).lower())


def _columns(file: Path, flags: dict) -> tuple[dict[str, np.ndarray], bool]:
    """The columns of a TSV by name, and whether its last number may be cut."""
    text = _text(file, flags)
    lines = [(number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1) if line.strip(" \r")]
    names = [name.strip(" \r") for name in lines[0][1]] if lines else []
    _require(sorted(names) in map(sorted, COLUMNS), file, f"its columns are no task's: {' '.join(names)[:80]!r}")
    for number, cells in lines[1:]:
        found = f"line {number} has {len(cells)} fields, not {len(names)}; the file may be cut"
        _require(len(cells) == len(names), file, found)
        wrong = [cell[:20] for cell in cells if len(cell) > 60 or not NUMBER.fullmatch(cell.strip(" \r"))]
        _require(not wrong, file, f"line {number}: {wrong[:1]} is no number of 0 or more")
    table, whole = [cells for _, cells in lines[1:]], text.rstrip(" \r")[-1:] == "\n"
    cut = bool(table) and not whole and _cut([cells[-1] for cells in table[:-1]], table[-1][-1])
    _require(len(table) > cut, file, "no row that is whole")
    flags |= {"unterminated": cut, "no-final-newline": not (whole or cut), "padded-fields": " " in text}
    flags |= {"blank-line": text.count("\n") >= len(lines) + whole, "columns-reordered": names[1] != "hours"}
    return dict(zip(names, np.array([list(map(float, cells)) for cells in table]).T)), cut


def _plausible(file: Path, columns: dict[str, np.ndarray], metric: str, flags: dict) -> None:
    """Refuse columns that cannot be the whole log of one run."""
    epoch, hours, steps = columns["epoch"], columns["hours"], np.diff(columns["epoch"]).round(3)
    _require((np.diff(hours) > 0).all(), file, "hours do not rise from row to row: lines out of order, or there twice")
    _require((steps >= 0).all(), file, "epochs fall: lines out of order")
    _require(hours[-1] <= LONGEST and epoch[-1] <= 1e6, file, "hours beyond ten years, or a million epochs")
    _require(columns[metric].max() <= METRICS[metric], file, f"{metric} above {METRICS[metric]:g}")
    _require((columns.get("top1Accuracy", 0) <= columns[metric]).all(), file, "top-1 above top-5 accuracy")
    count = Counter(steps[steps > 0].tolist())
    usual = min(count, key=lambda step: (-count[step], step), default=1.0)
    times = steps / usual
    # One row an epoch is the rule: two steps or more at once, on a regular grid, are rows that are missing.
    gap = ((times > 1.5) & (abs(times - times.round()) < 0.02)).any() or epoch[0] > 1.5 * max(usual, 1)
    _require(not gap, file, "epochs are missing: lines were lost")
    flags |= {"first-epoch-zero": epoch[0] == 0, "zero-hours-first": hours[0] == 0, "repeated-epochs": not steps.all()}
    flags |= {"fractional-epochs": (epoch % 1).any(), "irregular-epochs": ((times != 1) & (steps > 0)).any()}


def _train(task: str | None, _: Path, log: Path, facts: dict, flags: dict) -> tuple[dict, *tuple[np.ndarray, ...]]:
    columns, cut = _columns(log, flags)
    metric = next(name for name in METRICS if name in columns)
    _require(TASKS.get(task, (metric,))[0] == metric, log, f"{task} is not judged by {metric}")
    _plausible(log, columns, metric, flags)
    epoch, hours, values = (columns[name][: len(columns[name]) - cut] for name in ("epoch", "hours", metric))
    price = facts.get("costPerHour")
    row, threshold = _about(task, log.stem, metric, facts, price, flags)
    final = math.nan if cut else values[-1]
    row |= HIT | {"threshold": threshold, "rows": len(values) + cut, "final_metric": final}
    hits = np.flatnonzero(values >= threshold)
    flags |= {"not-reached": not hits.size and threshold == threshold, "ends-below": hits.size and final < threshold}
    if hits.size:
        hour, after = float(hours[hits[0]]), values[hits[0] :]
        _require(hour * 3600 >= 1e-3, log, "it reaches the threshold at no time")
        row |= zip(HIT, (epoch[hits[0]], hour * 3600, after[0], hour * _amount(price), displayed(hour * 3600)))
        flags |= {"falls-below-again": (after < threshold).any(), "long-after-target": hours[-1] >= 2 * hour}
    return row, hours, values, epoch
