"""The tagged lines of an MLPerf Training log: v0.5 (`:::MLPv0.5.0`), v0.6 (`:::MLL`), v0.7 and later (`:::MLLOG`).

Lines are found wherever a token stands, whatever was printed before it. Values are parsed as JSON, never evaluated."""

import json
import math
import re
from dataclasses import dataclass

KEYS = ("run_start", "run_stop", "eval_accuracy", "eval_target", "submission_benchmark")
# Most lines of v0.7 have another key, and the usual order of fields: they need no parsing.
OTHER = (
    rb'LOG \{"namespace": *"\w*", *"time_ms": *\d+,(?: *"event_type": *"\w+",)? *"key": *"(?!%s)\w+"'
    % "|".join(KEYS).encode()
)
LINE = re.compile(rb":::ML(?!%s)(?:LOG|L|Pv)[^\r\n:]*+(?::(?!::ML)[^\r\n:]*+)*+(?:\r?\n|\r|(?=:::ML))?" % OTHER)
TRUE = re.compile(rb'"time_ms": *([1-9]\d{9})\d{3}\b|:::ML(?:L|P\S{1,80} \S{1,80}) ([1-9]\d{9})\b')
WORK = re.compile(
    rb":::ML(?:P\S{1,80} \S{1,80}|L) (\d{1,17}(?:\.\d{1,9})?)(?: \([^)\r\n]{0,300}\))? "
    rb"(train_epoch|(?:epoch|block|eval)_start)\b"
)
BEGIN = re.compile(
    rb'"time_ms": ?(\d{1,17}),(?: ?"event_type": ?"INTERVAL_START",)? ?"key": ?"((?:epoch|block|eval)_start)"'
)
DECODER = json.JSONDecoder()
V05 = re.compile(r":::MLP(v\d+\.\d+)(?:\.\d+)? (\S+) (\S+) \(.*?\) (\w+)(?:: (.*))?")
V06 = re.compile(r":::MLL (\S+) (\w+): (\{.*)")
KEY = re.compile(rb':::MLP\S{1,80} \S{1,80} \S{1,80} \([^\n]{0,300}?\) (\w+)\b.|:::MLL \S{1,80} (\w+):|"key": *"(\w+)"')
NAMES = {
    "imageclassification": "resnet", "resnet50": "resnet", "resnet50v15": "resnet", "rn50": "resnet", "nmt": "gnmt",
    "singlestagedetector": "ssd", "rnntranslator": "gnmt", "translation": "transformer", "objectdetection": "maskrcnn",
    "mask": "maskrcnn", "heavymaskrcnn": "maskrcnn", "recommendation": "ncf", "reinforcement": "minigo",
}  # fmt: skip


class Unreadable(ValueError):
    """Why a log gives no number."""


@dataclass
class Lines:
    """What a log holds: by key, (seconds, value, metadata) of each line once; `work`: (seconds, tag) of the beginnings
    of epochs, blocks and evaluations; whether tagged lines before the stop are `garbled`; `span`: if the start has
    another origin than 1970, the seconds between the first and the last line with a true time."""

    format: str
    benchmark: str
    found: dict
    work: list
    garbled: bool
    span: float


def canonical(name: str) -> str:
    """One name for one benchmark."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return NAMES.get(plain, plain)


def events(content: bytes) -> Lines:
    """The tagged lines that matter.

    Raises:
        Unreadable: there are none, a start or stop is damaged, or formats or benchmarks mix."""
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
        if name:
            names |= {canonical(name)} - {""}
        if key == "submission_benchmark" and isinstance(value, str):
            names |= {canonical(value)} - {""}
        elif key in KEYS:
            found[key][line.strip()] = (seconds, value, metadata)
            stop_at = min(stop_at, match.start()) if key == "run_stop" else stop_at
    if not formats:
        raise Unreadable("holds no line of an MLPerf log")
    for what, several in (("mixes the formats", formats), ("contradicts itself: it names the benchmarks", names)):
        if len(several) > 1:
            raise Unreadable(f"{what} {' and '.join(sorted(several))}")
    by_key = {key: list(several.values()) for key, several in found.items()}
    other = any(when < 1e9 for when, *_ in by_key["run_start"])
    true = [int(ms or seconds) for ms, seconds in TRUE.findall(content)] if other else []
    work = [(float(when), tag.decode()) for when, tag in WORK.findall(content)]
    if "v0.7" in formats:
        work += [(int(when) / 1000, tag.decode()) for when, tag in BEGIN.findall(content)]
    span = max(true) - min(true) if true else 0
    return Lines(formats.pop(), names.pop() if names else "", by_key, work, garbled < stop_at, span)


def parsed(line: bytes) -> tuple:
    """(format, benchmark, seconds, key, value, metadata) of one tagged line; ValueError if it is none."""
    text = line.decode("latin-1")
    whole = text.endswith(("\n", "\r"))
    text = text.rstrip()
    if text.startswith(":::MLLOG"):
        entry = first_json(text[8:].lstrip())
        seconds = number(entry["time_ms"]) / 1000 if "time_ms" in entry else number(entry["time_s"])
        return "v0.7", "", seconds, entry["key"], entry.get("value"), mapping(entry)
    if text.startswith(":::MLL "):
        match = V06.fullmatch(text)
        entry = first_json(match[3] if match else "")
        return "v0.6", "", number(match[1]), match[2], entry.get("value"), mapping(entry)
    match = V05.fullmatch(text)
    # Only JSON in braces shows that it was not cut off, so anything else must end with its line.
    if not match or not (whole or (match[5] or "").endswith("}")):
        raise ValueError("not a whole line")
    spoken = re.fullmatch(r"\{\W*success\W+(true|false)\W*\}", match[5] or "", re.IGNORECASE)  # as Python writes it
    if spoken:
        return match[1], match[2], number(match[3]), match[4], {"success": spoken[1].lower()}, {}
    value = json.loads(match[5]) if match[4] in KEYS and match[5] else None
    return match[1], match[2], number(match[3]), match[4], value, {}


def first_json(text: str) -> dict:
    """The JSON object with which a text starts; other output may follow it on the line."""
    entry, _ = DECODER.raw_decode(text)
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
    known = type(value) in (int, float) or type(value) is str and "_" not in value
    found = float(value) if known else math.nan
    if not abs(found) < math.inf:
        raise ValueError(f"{value!r} is no finite number")
    return found
