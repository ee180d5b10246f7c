"""One MLPerf Training result log, read: v0.5 (`:::MLPv0.5.0`), v0.6 (`:::MLL`), v0.7 and later (`:::MLLOG`).

A log yields the official time, `run_stop - run_start` of a converged run, or a reason why it does not; never a guess.
Nothing depends on the order of lines: several ranks write into one file, buffers flush late, and some lines carry time
zero. What must agree does so in time: epochs may not run backwards, a success may not lie below its logged target.
Values are parsed as JSON, never evaluated.
"""

import json
import math
import re
from pathlib import Path

LARGEST = 64 * 2**20  # bytes; public logs are about 1 MB at most
LONGEST = 366 * 86400.0  # seconds of a run
TOGETHER = 1.0  # seconds within which several ranks may print one tag
SLACK = 0.05  # seconds by which the last evaluation may be stamped after the stop that it caused
KEYS = ("run_start", "run_stop", "eval_accuracy", "eval_target", "submission_benchmark")
OTHER = rb'LOG \{[^{}]*?"key": *"(?!%s)\w+"' % "|".join(KEYS).encode()  # most lines of v0.7: they need no parsing
LINE = re.compile(rb":::ML(?!%s)(?:LOG|L|Pv)[^\r\n:]*(?::(?!::ML)[^\r\n:]*)*(?:\r?\n|\r|(?=:::ML))?" % OTHER)
TRUE = re.compile(rb'"time_ms": *([1-9]\d{9})\d{3}\b|:::ML(?:L|P\S+ \S+) ([1-9]\d{9})\b')
V05 = re.compile(r":::MLP(v\d+\.\d+)(?:\.\d+)? (\S+) (\S+) \(.*?\) (\w+)(?:: (.*))?")
V06 = re.compile(r":::MLL (\S+) (\w+): (\{.*)")
KEY = re.compile(rb':::MLP\S+ \S+ \S+ \([^\n]*?\) (\w+)\b.|:::MLL \S+ (\w+):|"key": *"(\w+)"')
TARGETS = {("v0.5", "resnet"): 0.749, ("v0.5", "ssd"): 0.212, ("v0.5", "gnmt"): 21.8, ("v0.5", "transformer"): 25.0}
TARGETS[("v0.5", "ncf")] = 0.635
FLAGS = {
    "clock-origin": "start and stop have another origin than 1970; lines with true times confirm their unit",
    "clock-stepped-and-returned": "the clock was set back and later forward by as much; start and stop are not touched",
    "evaluation-outside": "evaluations after run_stop or at time zero, which are ignored",
    "garbled-lines": "tagged lines that cannot be read: what they hid of the evaluations is left empty",
    "last-evaluation-missing": "the evaluation that stopped the run is not in the log: what it said is left empty",
    "lines-repeated": "several ranks printed run_start or run_stop; the last start and the first stop count",
    "target-unlike-round": "the logged target is not the one that the round's logs are known to have",
    "not-converged": "the log says that the run missed its target",
    "success-inferred": "run_stop does not say how it ended; the last evaluation meets the logged target or not",
    "target-met-earlier": "an evaluation met the target before the one at which the run stopped",
}


class Unreadable(ValueError):
    """Why a log gives no number."""


def read(path: Path) -> dict:
    """What one log says.

    Returns:
        `format, benchmark` (as the log names it, or ""), `run_start, run_stop` (seconds as logged), `tta_seconds` (NaN
        for a miss), `converged, last_value, target, evaluations, last_epoch, flags` (a list), `reason` (why there is no
        number; else ""), `course` (seconds since run_start, epoch, value of each evaluation).
    """
    record = blank()
    try:
        if path.stat().st_size > LARGEST or not path.is_file():
            raise Unreadable(f"no plain file, or larger than {LARGEST >> 20} MiB")
        judge(*events(path.read_bytes(), record), record)
    except (OSError, Unreadable) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return {**blank(), "format": record["format"], "benchmark": record["benchmark"], "reason": reason}
    return record


def blank() -> dict:
    return {
        "format": "", "benchmark": "", "run_start": math.nan, "run_stop": math.nan, "tta_seconds": math.nan,
        "converged": False, "last_value": None, "target": None, "evaluations": None, "last_epoch": None, "flags": [],
        "reason": "", "course": [],
    }  # fmt: skip


def events(content: bytes, record: dict) -> tuple[dict, bool, float]:
    """The tagged lines that matter, by key, as (seconds, value, metadata), each once; whether some before the stop are
    garbled; and, if the start has another origin, the seconds between the first and the last line with a true time.
    """
    found: dict = {key: {} for key in KEYS}
    formats, names, garbled, stop_at = set(), set(), math.inf, math.inf
    if b":::MLLOG {" in content:
        formats.add("v0.7")
    for match in LINE.finditer(content):
        line = match[0]
        try:
            kind, name, seconds, key, value, metadata = parsed(line)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            key = KEY.search(line)
            key = next(filter(None, key.groups())).decode() if key else ""
            if key in ("run_start", "run_stop"):
                where = content.count(b"\n", 0, match.start()) + 1
                raise Unreadable(f"line {where} is damaged or cut off: {line[:60].decode('latin-1')!r}") from None
            if key in (*KEYS, ""):
                garbled = min(garbled, match.start())
            continue
        formats.add(kind)
        names |= {name} - {""}
        if key == "submission_benchmark" and isinstance(value, str):
            names.add(value)
        elif key in KEYS:
            found[key][line.strip()] = (seconds, value, metadata)
            stop_at = min(stop_at, match.start()) if key == "run_stop" else stop_at
    if not formats:
        raise Unreadable("holds no line of an MLPerf log")
    for what, several in (("mixes the formats", formats), ("contradicts itself: it names the benchmarks", names)):
        if len(several) > 1:
            raise Unreadable(f"{what} {' and '.join(sorted(several))}")
    record["format"], record["benchmark"] = formats.pop(), names.pop() if names else ""
    lines = {key: list(several.values()) for key, several in found.items()}
    other = any(when < 1e9 for when, *_ in lines["run_start"])
    true = [int(ms or seconds) for ms, seconds in TRUE.findall(content)] if other else []
    return lines, garbled < stop_at, max(true) - min(true) if true else 0


def parsed(line: bytes) -> tuple:
    """(format, benchmark, seconds, key, value, metadata) of one tagged line; ValueError if it is none."""
    text = line.decode("latin-1")
    whole = text.endswith(("\n", "\r"))
    text = text.rstrip()
    if text.startswith(":::MLLOG"):
        entry = first_json(text[8:].lstrip())
        return "v0.7", "", number(entry["time_ms"]) / 1000, entry["key"], entry.get("value"), mapping(entry)
    if text.startswith(":::MLL "):
        match = V06.fullmatch(text)
        entry = first_json(match[3] if match else "")
        return "v0.6", "", number(match[1]), match[2], entry.get("value"), mapping(entry)
    match = V05.fullmatch(text)
    # Only JSON in braces shows that it was not cut off, so anything else must end with its line.
    if not match or not (whole or (match[5] or "").endswith("}")):
        raise ValueError("not a whole line")
    value = json.loads(match[5]) if match[4] in KEYS and match[5] else None
    return match[1], match[2], number(match[3]), match[4], value, {}


def first_json(text: str) -> dict:
    """The JSON object with which a text starts; other output may follow it on the line."""
    entry, _ = json.JSONDecoder().raw_decode(text)
    if not isinstance(entry, dict):
        raise ValueError("no object")
    return entry


def mapping(entry: dict) -> dict:
    metadata = entry.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(entry.get("key", ""), str):
        raise ValueError("metadata or key of another type")
    return metadata


def number(value) -> float:
    """A finite number, also where it is written as a text; ValueError for anything else."""
    known = isinstance(value, (int, float, str)) and not isinstance(value, bool) and "_" not in str(value)
    if not known or not abs(float(value)) < math.inf:
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def judge(lines: dict, garbled: bool, span: float, record: dict) -> None:
    """Fill in the record from the lines, or say why that cannot be done."""
    start, stop, success = interval(lines, span, record)
    record["run_start"], record["run_stop"] = start, stop
    target = target_of(lines)
    course = evaluations(lines, start, stop, record)
    check_epochs(course, record)
    record["course"] = [(seconds - start, epoch, value) for seconds, epoch, value in course]
    record["target"] = shown(target)
    last = course[-1][2] if course else None
    if success is None:
        if target is None or last is None:
            raise Unreadable("run_stop does not say how the run ended, and there is no logged target to infer it from")
        success = meets(last, target)
        record["flags"].append("success-inferred")
    elif success and not course:
        raise Unreadable("contradicts itself: run_stop says success, and there is no evaluation before it")
    elif target is not None and last is not None and meets(last, target) != success and (success or not garbled):
        said = "success" if success else "no success"
        raise Unreadable(f"contradicts itself: run_stop says {said} at {shown(last)}, the target is {shown(target)}")
    if target is not None and success and any(meets(value, target) for _, _, value in course[:-1]):
        record["flags"].append("target-met-earlier")
    record["converged"] = success
    if success:
        record["tta_seconds"] = stop - start
    else:
        record["flags"].append("not-converged")
    gaps = [b[0] - a[0] for a, b in zip(course, course[1:])] or [stop - start]
    if target is not None and target != TARGETS.get((record["format"], record["benchmark"]), target):
        record["flags"].append("target-unlike-round")
    if garbled:
        record["flags"].append("garbled-lines")
    elif not course:
        record["evaluations"] = 0
    elif success and stop - course[-1][0] > max(TOGETHER, sorted(gaps)[len(gaps) // 2] / 2):
        record["flags"].append("last-evaluation-missing")
    else:
        record["last_value"], record["last_epoch"] = shown(last), course[-1][1]
        record["evaluations"] = len(course)


def interval(lines: dict, span: float, record: dict) -> tuple[float, float, bool | None]:
    """Start and stop in seconds as logged, and whether run_stop says success (None: it says nothing)."""
    starts, stops = (sorted(seconds for seconds, *_ in lines[key]) for key in ("run_start", "run_stop"))
    if not starts:
        raise Unreadable("no run_start")
    if not stops:
        raise Unreadable("no run_stop: cut off, or it never ended")
    for key, times in (("run_start", starts), ("run_stop", stops)):
        if times[-1] - times[0] > TOGETHER:
            raise Unreadable(f"contradicts itself: {len(times)} {key} lines, {times[-1] - times[0]:.0f} s apart")
        if len(times) > 1:
            record["flags"].append("lines-repeated")
    said = {outcome(value, metadata) for _, value, metadata in lines["run_stop"]}
    if len(said) > 1:
        raise Unreadable("contradicts itself: run_stop lines with different outcomes")
    start, stop = starts[-1], stops[0]
    if not TOGETHER / 1000 < stop - start <= LONGEST:
        raise Unreadable(f"its clock cannot be right: run_stop {stop - start:.6g} s after run_start")
    # Another origin is believed where lines with true times leave room for the run, and no room for it in seconds.
    if start > 1e11 or start < 1e9 and not stop - start <= span < 1000 * (stop - start):
        raise Unreadable(f"its clock cannot be right: run_start {start:.6g} s after 1970, which no line confirms")
    if start < 1e9:
        record["flags"].append("clock-origin")
    return start, stop, said.pop()


def outcome(value, metadata: dict) -> bool | None:
    """Whether a run_stop says success; anything but success that it does say is a miss."""
    said = metadata.get("status")
    if said is None:
        said = value.get("success", value.get("status")) if isinstance(value, dict) else value
    return None if said is None else str(said).lower() in ("true", "success")


def target_of(lines: dict):
    """The logged target, a number or numbers by name; None if none is logged."""
    try:
        targets = [measured(value) for _, value, _ in lines["eval_target"] if value is not None]
    except (ValueError, OverflowError):
        raise Unreadable("its eval_target is no number") from None
    if any(target != targets[0] for target in targets):
        raise Unreadable("contradicts itself: it names two targets")
    return targets[0] if targets else None


def evaluations(lines: dict, start: float, stop: float, record: dict) -> list[tuple]:
    """(seconds, epoch, value) of the evaluations from start to stop, in time; several ranks may print one."""
    found, course = [], []
    for seconds, value, metadata in lines["eval_accuracy"]:
        inner = value if isinstance(value, dict) and "value" in value else {}
        epoch = inner.get("epoch", metadata.get("epoch_num"))
        try:
            epoch = None if epoch is None else number(epoch)
            found.append((seconds, epoch, measured(inner.get("value", value))))
        except (ValueError, OverflowError):
            raise Unreadable(f"an evaluation is no number: {str(value)[:40]}") from None
    for one in sorted(found, key=lambda one: (one[0], -math.inf if one[1] is None else one[1], str(one[2]))):
        if 0 < one[0] < start:
            raise Unreadable(f"contradicts itself: an evaluation {start - one[0]:.6g} s before run_start")
        if not start <= one[0] <= stop + SLACK:
            record["flags"] += ["evaluation-outside"] * ("evaluation-outside" not in record["flags"])
        elif not course or one[1:] != course[-1][1:] or one[0] - course[-1][0] > TOGETHER:
            course.append(one)
    return course


def measured(value):
    """A metric: a float, or floats by name (box and mask of Mask R-CNN)."""
    if isinstance(value, dict) and value:
        return {str(name): number(part) for name, part in sorted(value.items())}
    return number(value)


def meets(value, target) -> bool:
    if isinstance(value, dict) and isinstance(target, dict):
        return all(value.get(name, -math.inf) >= bound for name, bound in target.items())
    if isinstance(value, dict) or isinstance(target, dict):
        raise Unreadable("contradicts itself: target and evaluation are of different kinds")
    return value >= target


def check_epochs(course: list[tuple], record: dict) -> None:
    """Refuse a log whose epochs run backwards in time, unless its clock stepped back and later forward by as much (an
    hour that was lived through twice): then start and stop agree with each other.
    """
    epochs = [epoch for _, epoch, _ in course if epoch is not None]
    if epochs == sorted(epochs):
        return
    times = [seconds for seconds, epoch, _ in sorted(course, key=lambda one: (one[1] is not None, one[1] or 0.0))]
    gaps = [b - a for a, b in zip(times, times[1:])]
    usual = sorted(gaps)[len(gaps) // 2]
    steps = [gap - usual for gap in gaps if abs(gap - usual) > usual / 2]
    if usual > 0 and len(steps) == 2 and steps[0] < 0 and abs(sum(steps)) < usual / 10:
        record["flags"].append("clock-stepped-and-returned")
        course.sort(key=lambda one: -math.inf if one[1] is None else one[1])
        return
    raise Unreadable("its clock cannot be right: a later epoch has an earlier time")


def shown(value):
    """A metric as one cell of a table."""
    return "; ".join(f"{name} {part:g}" for name, part in value.items()) if isinstance(value, dict) else value
