"""One line of progress, where the reader looks: below the cell, in the terminal, or in the parent's terminal.

A notebook gets one display that is replaced in place, so an executed notebook keeps only the last state. A kernel that
`labkit run` started has no terminal; it writes its line to the file named by `LABKIT_PROGRESS_FILE`, and the parent
shows it with `follow`."""

import contextlib
import math
import os
import shutil
import sys
import threading
import time
from pathlib import Path

FILE_VARIABLE = "LABKIT_PROGRESS_FILE"
_QUICK = 0.25  # seconds between two states of a line that is replaced in place
_SLOW = 30.0  # seconds between two lines that stay, as in a log file


def notebook_shell():
    """The IPython shell if this code runs in a notebook kernel, else None; imports nothing to find out."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(shell, "kernel") else None


def duration(seconds: float) -> str:
    """Seconds as a reader says them: `12 s`, `3 min 05 s`, `1 h 02 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """A line `label: done/total, loss 0.31, 12 s, 28 s left` that is kept up to date while work goes on.

    The kept last line is what `close` is given. The default names the time taken; pass a text without a time where the
    notebook is committed. Not for steps of a few microseconds: `update` reads the clock each time.

    Args:
        total: how much there is to do, in any unit; None if unknown (then no time left is shown).
        label: what is being done.
        stream: where to write instead of the notebook or standard error.
        clock: seconds, monotonic."""

    def __init__(self, total: float | None = None, label: str = "", stream=None, *, clock=time.monotonic):
        self.total, self.label, self._clock = total, label, clock
        self._started, self._done, self._closed = clock(), 0, False
        notebook = stream is None and notebook_shell() is not None
        self._sinks = [_Notebook() if notebook else _Terminal(stream or sys.stderr, self._started)]
        if os.environ.get(FILE_VARIABLE):
            self._sinks.append(_File(os.environ[FILE_VARIABLE]))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.close(f"{self._counted()}, stopped by {kind.__name__}" if kind else None)

    def update(self, done: float, **numbers) -> None:
        """Say how much is done, with any numbers worth seeing (`loss=0.31`); `_` in a name is shown as a space."""
        self._done, now = done, self._clock()
        sinks = [sink for sink in self._sinks if now - sink.last >= sink.interval]
        if not sinks or self._closed:
            return
        elapsed = now - self._started
        parts = [self._counted(), *(f"{name.replace('_', ' ')} {_number(value)}" for name, value in numbers.items())]
        parts.append(duration(elapsed))
        if self.total and done > 0:
            parts.append(f"{duration(elapsed * max(0.0, self.total - done) / done)} left")
        for sink in sinks:
            sink.last = now
            sink.put(", ".join(parts))

    def close(self, text: str | None = None) -> None:
        """Leave `text` as the last line (default: label, count and time taken). A second close does nothing."""
        for sink in () if self._closed else self._sinks:
            sink.end(text or f"{self._counted()} in {duration(self._clock() - self._started)}")
        self._closed = True

    def _counted(self) -> str:
        count = _number(self._done) if self.total is None else f"{_number(self._done)}/{_number(self.total)}"
        return f"{self.label}: {count}" if self.label else count


@contextlib.contextmanager
def follow(path: str | Path, stream=None):
    """Show on `stream` (default: standard error) the lines that a kernel writes to `path` while the block runs.

    The caller sets `LABKIT_PROGRESS_FILE` to `path` in the kernel's environment. What it holds before is not shown."""
    terminal, stopped = _Terminal(stream or sys.stderr, time.monotonic()), threading.Event()
    before = _read(path)

    def watch():
        seen, stopping = before, False
        while not stopping:
            stopping = stopped.wait(_QUICK)
            text = _read(path)
            if text and text != seen:
                seen = text
                if time.monotonic() - terminal.last >= terminal.interval:
                    terminal.last = time.monotonic()
                    terminal.put(text)
        if seen != before:
            terminal.end(seen)

    thread = threading.Thread(target=watch, name="labkit-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _number(value) -> str:
    if isinstance(value, int) or not hasattr(value, "__float__"):
        return str(value)
    number = float(value)
    # Counts that happen to be floats stay readable; measured numbers keep three digits.
    return str(int(number)) if math.isfinite(number) and number.is_integer() and abs(number) < 1e9 else f"{number:.3g}"


def _read(path: str | Path) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8").strip()
    return ""


class _Notebook:
    interval, last, _handle = _QUICK, -math.inf, None

    def put(self, text: str) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)

    end = put


class _Terminal:
    """A terminal's line is replaced in place; a log's lines stay, so they come seldom."""

    def __init__(self, stream, now: float):
        self._stream, self._text, self._tty = stream, "", bool(getattr(stream, "isatty", lambda: False)())
        self.interval, self.last = (_QUICK, -math.inf) if self._tty else (_SLOW, now)

    def put(self, text: str, end: str = "") -> None:
        if self._tty:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(len(self._text)) + end)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
        self._text = text

    def end(self, text: str) -> None:
        if self._tty or text != self._text:
            self.put(text, end="\n")


class _File:
    interval, last = _QUICK, -math.inf

    def __init__(self, path: str):
        self._path = Path(path)
        self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}")

    def put(self, text: str) -> None:
        # A parent that has gone, and taken its folder along, must not end the training.
        with contextlib.suppress(OSError):
            self._part.write_text(text + "\n", encoding="utf-8")
            self._part.replace(self._path)

    end = put
