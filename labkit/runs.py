"""Run: one training curve, its spans of time, and what produced it. Everything else reads or writes this.

A run is a file of JSON Lines, one record a line, append-only: a `run` line (what was asked, on what), then `span` and `metric` lines as they happen, and an `end` line.
A process killed at any byte loses at most its last line. While a run is being written its file ends in `.partial`; it takes its name when it has ended.

Identity is what makes the science: configuration, repeat, checksum of the data, fingerprint of the modules that computed it. Timings belong to a machine too, so a store looks
a run up by identity *and* machine. Public logs are identified by their content.
"""

import dataclasses
import datetime
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import RequestError, WorkError
from labkit.machine import machine_key

SPAN_KINDS = ("init", "data", "compile", "warm-up", "train", "evaluate", "checkpoint")
SOURCES = ("measured", "public-log", "simulated")


@dataclass(frozen=True)
class Span:
    """A phase of a run (never a single step), in seconds from the start of the run; the device was synchronised at both edges."""

    kind: str
    start: float
    end: float


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
    """What produced a run; `arms` is how many runs were trained together (their seconds are shared, so no clock rule can answer for one of them)."""

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
        if self.source not in SOURCES:
            raise RequestError(f"unknown source {self.source!r} of a run; allowed: {', '.join(SOURCES)}")

    @property
    def identity(self) -> str:
        """Sixteen hex digits of configuration, repeat, data checksum and code fingerprint."""
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
    """One text for one value: sorted keys, no spaces; what hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(record: dict) -> str:
    """A JSON line. Infinity and NaN, which JSON lacks, become the strings `inf`, `-inf`, `nan`."""
    safe = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(safe, separators=(",", ":"), allow_nan=False)


class RunWriter:
    """Appends one run to one file; use as a context manager. An exception inside writes `failed` and leaves the file as a partial.

    `write` is a single unbuffered system call per line, so a kill can cut at most the line being written.
    """

    def __init__(self, header: Header, path: Path):
        self.header, self.path = header, path
        self.partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        self.start = time.perf_counter()
        self.run = Run(header)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.partial, "wb", buffering=0)
        self._line({"type": "run", "schema": 1, "id": header.identity, **dataclasses.asdict(header)})

    def now(self) -> float:
        """Seconds since this run began (monotonic)."""
        return time.perf_counter() - self.start

    def _line(self, record: dict) -> None:
        self._file.write(encode(record).encode() + b"\n")

    def span(self, kind: str, start: float, end: float) -> None:
        """Record a phase, in seconds from the start of the run.

        Raises:
            RequestError: the kind is not one of `SPAN_KINDS`, or it ends before it starts.
        """
        if kind not in SPAN_KINDS:
            raise RequestError(f"unknown span kind {kind!r}; allowed: {', '.join(SPAN_KINDS)}")
        if not 0 <= start <= end:
            raise RequestError(
                f"a span from {start} s to {end} s; it must start at 0 or later and end no earlier than it starts"
            )
        self.run.spans.append(Span(kind, start, end))
        self._line({"type": "span", "kind": kind, "start": round(start, 6), "end": round(end, 6)})

    def metric(
        self, name: str, value: float, *, step: int = 0, epoch: float = 0.0, samples: int = 0, when: float | None = None
    ) -> None:
        """Record one value of one metric; `when` defaults to now."""
        row = Row(int(step), float(epoch), int(samples), self.now() if when is None else when, name, float(value))
        self.run.rows.append(row)
        self._line({"type": "metric", **dataclasses.asdict(row), "when": round(row.when, 6)})

    def finish(self, status: str = "finished") -> Run:
        """Write the end line; a finished run takes its final name."""
        self._line({"type": "end", "status": status, "when": round(self.now(), 6)})
        self._file.close()
        self.run.status = status
        if status == "finished":
            os.replace(self.partial, self.path)
        return self.run

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if not self._file.closed:
            self.finish("finished" if kind is None else "failed")


def parse(lines: Iterable[bytes], name: str = "run") -> Iterator[Run]:
    """Read runs from lines; several may follow one another. A last line without its newline is what a kill leaves: it is dropped.

    Raises:
        WorkError: a complete line that cannot be understood, with its place.
    """
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
                if record.pop("schema") != 1:
                    raise ValueError("unknown schema")
                record.pop("id", None)
                run = Run(Header(**record))
            elif run is None:
                raise ValueError("no run line before it")
            elif kind == "span":
                run.spans.append(Span(record["kind"], float(record["start"]), float(record["end"])))
            elif kind == "metric":
                numbers = {key: float(record[key]) for key in ("epoch", "when", "value")}
                run.rows.append(
                    Row(int(record["step"]), samples=int(record["samples"]), name=str(record["name"]), **numbers)
                )
            elif kind == "end":
                run.status = str(record["status"])
            else:
                raise ValueError(f"unknown record type {kind!r}")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise WorkError(
                f"{name}, line {number}: not a line of a run ({error}); restore the file or delete it"
            ) from None
    if run is not None:
        yield run


def read(path: Path) -> Run | None:
    """The run in a file, or None when it was killed before its first line was whole."""
    with open(path, "rb") as file:
        return next(parse(file, str(path.name)), None)


def read_many(path: Path) -> list[Run]:
    """All runs of a packed file, as `pack` writes it; an absent file holds none."""
    if not Path(path).exists():
        return []
    with open(path, "rb") as file:
        return list(parse(file, str(Path(path).name)))


def pack(runs: Iterable[Run], path: Path) -> None:
    """Write finished runs one after the other into one small file, numbers rounded to six significant digits, in a stable order."""
    lines = []
    for run in sorted(runs, key=lambda run: (canonical(run.config), run.header.repeat, run.header.machine)):
        lines.append(encode({"type": "run", "schema": 1, **dataclasses.asdict(run.header)}))
        lines += [
            encode({"type": "span", **{k: short(v) for k, v in dataclasses.asdict(span).items()}}) for span in run.spans
        ]
        lines += [
            encode({"type": "metric", **{k: short(v) for k, v in dataclasses.asdict(row).items()}}) for row in run.rows
        ]
        lines.append(encode({"type": "end", "status": run.status}))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n" if lines else "")
    os.replace(temporary, path)


def short(value):
    """A float to six significant digits; anything else as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


class Store:
    """A folder of runs, one file a run: `<lab>/<identity>-<machine>.jsonl`."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def path(self, header: Header) -> Path:
        """The file of a run; runs trained together are kept apart from runs that own their seconds."""
        return (
            self.folder / header.lab / f"{header.identity}-{header.machine}{'-arms' if header.arms > 1 else ''}.jsonl"
        )

    def find(self, header: Header) -> Run | None:
        """The finished run with this identity on this machine, else None. Where arms would do, a run that was trained alone does too.

        A run made under another version of a rule that would judge it now does not count: the rule has to be written first.
        """
        for path in dict.fromkeys(
            (
                self.path(header),
                self.path(dataclasses.replace(header, arms=1)) if header.arms > 1 else self.path(header),
            )
        ):
            run = read(path) if path.exists() else None
            if run is not None and run.status == "finished" and header.claims.items() <= run.header.claims.items():
                return run
        return None

    def write(self, header: Header) -> RunWriter:
        """Start a run; a finished one of the same identity is replaced only when the new one has finished."""
        path = self.path(header)
        for partial in path.parent.glob(f"{path.name}.*.partial"):
            if not alive(int(partial.suffixes[-2][1:])):
                partial.unlink(missing_ok=True)
        stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return RunWriter(dataclasses.replace(header, began=stamp), path)

    def unfinished(self, lab: str | None = None) -> list[Run]:
        """What killed or failed runs left behind: readable up to their last whole line."""
        return [run for run in map(read, sorted(self.folder.glob(f"{lab or '*'}/*.partial"))) if run is not None]

    def runs(self, lab: str | None = None) -> list[Run]:
        """All finished runs, of one lab when it is named."""
        files = sorted(self.folder.glob(f"{lab or '*'}/*.jsonl"))
        return [run for run in map(read, files) if run is not None and run.status == "finished"]


def alive(pid: int) -> bool:
    """Whether a process with this number exists (on a platform that cannot tell, assume that it does)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OSError):
        return True
    return True
