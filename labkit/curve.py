"""Run: one training curve, its spans of time, and what produced it. `labkit.runs` writes and keeps them.

Identity is what makes the science: configuration, repeat, checksum of the data, fingerprint of the modules that
computed it. Timings belong to a machine too, so a store looks a run up by identity *and* machine. Public logs are
identified by their content."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from labkit.errors import RequestError, WorkError, choose
from labkit.machine import machine_key

SPAN_KINDS = ("init", "data", "compile", "warm-up", "train", "evaluate", "checkpoint")
SOURCES = ("measured", "public-log", "simulated")
STATES = ("unfinished", "finished", "failed")
NOT_FINITE = ("nan", "inf", "-inf")  # how JSON, which has no such numbers, writes them here


@dataclass(frozen=True)
class Span:
    """A phase of a run (never a single step), in seconds from the start of the run; the device was synchronised at both
    edges.

    Raises:
        RequestError: the kind is not one of `SPAN_KINDS`, it ends before it starts, or never."""

    kind: str
    start: float
    end: float

    def __post_init__(self):
        choose("span kind", self.kind, SPAN_KINDS)
        if not 0 <= self.start <= self.end < math.inf:
            raise RequestError(f"a span from {self.start} s to {self.end} s; "
                               "it must start at 0 or later and end no earlier than it starts")


@dataclass(frozen=True)
class Row:
    """One metric value: optimizer steps, epochs and samples so far, seconds from the start of the run, name, value."""

    step: int
    epoch: float
    samples: int
    when: float
    name: str
    value: float


@dataclass(frozen=True)
class Header:
    """What produced a run.

    `arms` is how many runs were trained together: their seconds are shared, so no clock rule can answer for one of
    them. `clock` names the one clock that a public log carries.

    Raises:
        RequestError: a field of another type than it is declared with, or a source that is not one of `SOURCES`."""

    lab: str
    config: dict
    repeat: int = 0
    source: str = "measured"
    data: dict = field(default_factory=dict)
    code: str = ""
    target: dict | None = None
    hardware: dict = field(default_factory=dict)
    software: dict = field(default_factory=dict)
    claims: dict = field(default_factory=dict)
    clock: str | None = None
    arms: int = 1
    began: str = ""

    def __post_init__(self):
        for part in dataclasses.fields(self):
            if not isinstance(getattr(self, part.name), part.type):
                kind = getattr(part.type, "__name__", part.type)
                raise RequestError(f"{part.name} of a run must be of type {kind}, not {getattr(self, part.name)!r}")
        choose("source of a run", self.source, SOURCES)

    @property
    def identity(self) -> str:
        """Sixteen hex digits of configuration, repeat, data checksum and code fingerprint.

        Raises:
            RequestError: the configuration holds a number that is not finite, or something that is no JSON."""
        text = canonical([self.config, self.repeat, self.data.get("checksum", ""), self.code])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def machine(self) -> str:
        return machine_key(self.hardware)


@dataclass
class Run:
    """A run as read back. `status` is `finished`, `failed` or `unfinished` (killed before its end line)."""

    header: Header
    spans: list[Span] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    status: str = "unfinished"

    @property
    def config(self) -> dict:
        return self.header.config

    def series(self, name: str) -> list[Row]:
        """All rows of one metric, in the order in which they were written."""
        return [row for row in self.rows if row.name == name]

    def last(self, name: str) -> float:
        """The final value of a metric; NaN where it was never measured."""
        series = self.series(name)
        return series[-1].value if series else math.nan

    def seconds(self, *kinds: str) -> float:
        """Total length of the spans of these kinds (all kinds when none is named), in seconds."""
        return sum(span.end - span.start for span in self.spans if not kinds or span.kind in kinds)


def canonical(value) -> str:
    """One text for one value: sorted keys, no spaces; what hashes are taken of.

    Raises:
        RequestError: the value cannot be written as JSON, which knows no NaN and no infinity."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError("a configuration may hold texts, finite numbers, true, false, none, "
                           f"lists and mappings only ({error})") from None


def encode(record: dict) -> str:
    """A JSON line. Infinity and NaN, which JSON lacks, become the strings `inf`, `-inf`, `nan`."""
    safe = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(safe, separators=(",", ":"), allow_nan=False)


def exact(kind: type, value):
    """A field of a line as the type that it is declared with, a ValueError for anything else; for `float` also a whole
    number, or one of the texts `NOT_FINITE`."""
    if type(value) is not kind and not (kind is float and (type(value) is int or value in NOT_FINITE)):
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return kind(value)


def parse(lines: Iterable[bytes], name: str = "run") -> Iterator[Run]:
    """Read runs from lines; several may follow one another. A last line without its newline is what a kill leaves: it
    is dropped.

    Raises:
        WorkError: a complete line that cannot be understood, with its place."""
    run = None
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            kind = record.pop("type")
            if kind == "run":
                if run is not None:
                    yield run
                    run = None
                if record.pop("schema") != 1:
                    raise ValueError("unknown schema")
                record.pop("id", None)
                run = Run(Header(**record))
                _ = run.header.identity, run.header.machine  # refuses what no identity can be taken of
            elif run is None:
                raise ValueError("no run line before it")
            elif kind == "span":
                run.spans.append(Span(*[exact(kind, record[name]) for name, kind in Span.__annotations__.items()]))
            elif kind == "metric":
                run.rows.append(Row(*[exact(kind, record[name]) for name, kind in Row.__annotations__.items()]))
            elif kind == "end":
                choose("status", record["status"], STATES)
                run.status = record["status"]
            else:
                raise ValueError(f"unknown record type {kind!r}")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise WorkError(f"{name}, line {number}: not a line of a run ({error}); "
                            "restore the file or delete it") from None
    if run is not None:
        yield run
