"""Runs in files: written as they happen, read back, packed, kept in a store. What a run is: `labkit.curve`.

A run is a file of JSON Lines, one record a line, append-only: a `run` line (what was asked, on what), then `span` and
`metric` lines as they happen, and an `end` line. A process killed at any byte loses at most its last line. While a run
is being written its file ends in `.partial`; it takes its name when it has ended."""

import contextlib
import dataclasses
import datetime
import gzip
import io
import math
import os
import re
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from labkit.curve import SOURCES, SPAN_KINDS, STATES, Header, Row, Run, Span, canonical, encode, parse
from labkit.errors import RequestError, WorkError, choose

__all__ = ["SOURCES", "SPAN_KINDS", "STATES", "Header", "Row", "Run", "RunWriter", "Span", "Store", "canonical",
           "encode", "pack", "parse", "read", "read_many"]


class RunWriter:
    """Appends one run to one file; use as a context manager. An exception inside writes `failed` and leaves the file as
    a partial.

    A line is a single unbuffered system call, so a kill can cut at most the line being written. `run` is what reading
    the file gives.

    Raises:
        RequestError: the header holds what JSON cannot, or the folder cannot be written to.
        WorkError: later, when a line cannot be written, as on a full disk."""

    def __init__(self, header: Header, path: Path):
        first = {"type": "run", "schema": 1, "id": header.identity, **dataclasses.asdict(header)}
        canonical(first)  # refuses before there is a file
        self.run = next(parse([encode(first).encode() + b"\n"]))
        self.header, self.path = self.run.header, path
        self.partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        self.start = time.perf_counter()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.partial, "wb", buffering=0)
        except OSError as error:
            raise RequestError(f"runs cannot be kept in {path.parent} ({error.strerror}); "
                               "set LABKIT_STORE to another folder") from None
        self._line(first)

    def now(self) -> float:
        """Seconds since this run began (monotonic)."""
        return time.perf_counter() - self.start

    def _line(self, record: dict) -> None:
        line = encode(record).encode() + b"\n"
        try:
            missing = len(line) - self._file.write(line)
        except OSError as error:
            raise WorkError(f"{self.partial} cannot be written ({error.strerror})") from None
        if missing:
            raise WorkError(f"{self.partial} cannot be written (the last {missing} bytes were refused; "
                            "is the disk full?)")

    def span(self, kind: str, start: float, end: float) -> None:
        """Record a phase, in seconds from the start of the run, to the microsecond.

        Raises:
            RequestError: the kind is not one of `SPAN_KINDS`, or it ends before it starts."""
        span = Span(kind, round(float(start), 6), round(float(end), 6))
        self.run.spans.append(span)
        self._line({"type": "span", **dataclasses.asdict(span)})

    def metric(self, name: str, value: float, *, step: int = 0, epoch: float = 0.0, samples: int = 0,
               when: float | None = None) -> None:
        """Record one value of one metric; `when` (to the microsecond) defaults to now."""
        when = round(self.now() if when is None else float(when), 6)
        row = Row(int(step), float(epoch), int(samples), when, str(name), float(value))
        self.run.rows.append(row)
        self._line({"type": "metric", **dataclasses.asdict(row)})

    def finish(self, status: str = "finished") -> Run:
        """Write the end line; a finished run takes its final name."""
        choose("status of a run", status, STATES[1:])
        try:
            self._line({"type": "end", "status": status, "when": round(self.now(), 6)})
        finally:
            self._file.close()
        self.run.status = status
        if status == "finished":
            os.replace(self.partial, self.path)
        return self.run

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self._file.closed:
            return
        if isinstance(error, RequestError) and not self.run.rows:
            # What was asked turned out to be wrong before anything was measured: nothing half-written stays behind.
            self._file.close()
            self.partial.unlink()
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()
                self.path.parent.parent.rmdir()
        else:
            self.finish("finished" if kind is None else "failed")


def read(path: Path) -> Run | None:
    """The run in a file, or None when it was killed before its first line was whole."""
    with open(path, "rb") as file:
        return next(parse(file, str(path)), None)


def read_many(path: Path) -> list[Run]:
    """All runs of a packed file, as `pack` writes it; an absent file holds none.

    Raises:
        WorkError: the file is damaged."""
    if not Path(path).exists():
        return []
    try:
        content = gzip.decompress(Path(path).read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise WorkError(f"{path}: not a packed file of runs ({error}); restore it") from None
    return list(parse(io.BytesIO(content), str(path)))


def pack(runs: Iterable[Run], path: Path) -> None:
    """Write runs one after the other into one small gzip file, numbers rounded to six significant digits, in an order
    that does not depend on the one given."""
    lines = []
    for run in runs:
        records = [{"type": "run", "schema": 1, **dataclasses.asdict(run.header)}]
        records += [{"type": "span", **dataclasses.asdict(span)} for span in run.spans]
        records += [{"type": "metric", **dataclasses.asdict(row)} for row in run.rows]
        records.append({"type": "end", "status": run.status})
        key = (canonical(run.config), run.header.repeat, run.header.machine)
        content = "".join(encode({k: short(v) for k, v in record.items()}) + "\n" for record in records)
        lines.append((key, content))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    # Without a time inside, equal runs give equal bytes.
    temporary.write_bytes(gzip.compress("".join(content for _, content in sorted(lines)).encode(), mtime=0))
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
        arms = "-arms" if header.arms > 1 else ""
        return self.folder / header.lab / f"{header.identity}-{header.machine}{arms}.jsonl"

    def find(self, header: Header, anywhere: bool = False) -> Run | None:
        """The finished run with this identity on this machine (or `anywhere`), else None. Where arms would do, a run
        that was trained alone does too.

        A run made under another version of a rule that would judge it now does not count: the rule has to be written
        first."""
        for arms in sorted({header.arms, 1}, reverse=True):
            path = self.path(dataclasses.replace(header, arms=arms))
            name = path.name.replace(f"-{header.machine}", "-" + "?" * len(header.machine)) if anywhere else path.name
            for made in sorted(path.parent.glob(name)):
                run = read(made)
                if run is not None and run.status == "finished" and header.claims.items() <= run.header.claims.items():
                    return run
        return None

    def keep(self, content: bytes) -> Run:
        """Add a finished run that was written elsewhere, given as the lines of its file."""
        run = next(parse(content.splitlines(keepends=True)))
        path = self.path(run.header)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        os.replace(partial, path)
        clear(path)
        return run

    def write(self, header: Header) -> RunWriter:
        """Start a run; a finished one of the same identity is replaced only when the new one has finished.

        What killed processes left of this run is removed."""
        path = self.path(header)
        clear(path)
        stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return RunWriter(dataclasses.replace(header, began=stamp), path)

    def unfinished(self, lab: str | None = None) -> list[Run]:
        """What killed or failed runs left behind: readable up to their last whole line."""
        return [run for run in map(read, sorted(self.folder.glob(f"{lab or '*'}/*.partial"))) if run is not None]

    def runs(self, lab: str | None = None, damaged: list[str] | None = None) -> list[Run]:
        """All finished runs, of one lab when it is named.

        Args:
            damaged: if given, what cannot be read is left out and said here; else it raises."""
        found = []
        for path in sorted(self.folder.glob(f"{lab or '*'}/*.jsonl")):
            try:
                run = read(path)
            except (WorkError, OSError) as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
                continue
            if run is not None and run.status == "finished":
                found.append(run)
        return found


def clear(path: Path) -> None:
    """Remove what killed processes left of a run."""
    for partial in path.parent.glob(f"{path.name}.*.partial"):
        owner = re.fullmatch(r"(\d{1,9})\.partial", partial.name.removeprefix(f"{path.name}."), re.ASCII)
        if owner and not alive(int(owner[1])):
            partial.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process with this number exists. Only POSIX can ask without harm; elsewhere assume that it does."""
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
