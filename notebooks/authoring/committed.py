"""What a committed notebook may hold: outputs that say the same on every machine. Nothing here executes a notebook."""

import copy
import re
import sys
import tempfile
from pathlib import Path

import nbformat

from labkit.errors import WorkError
from labkit.paths import root

MAX_BYTES = 300_000
WIDGET = "application/vnd.jupyter.widget-view+json"
# Top folders of Unix, macOS and hosted notebooks, or a Windows drive; not the middle of an address or a relative path.
_TOP = "home|root|Users|tmp|var|usr|opt|mnt|srv|work|content|kaggle|private"
ABSOLUTE = re.compile(rf"(?<![\w.:/~-])/(?:{_TOP})/[\w.]|\b[A-Z]:\\\w")
UNSTABLE = {"an absolute path": ABSOLUTE, "a memory address": re.compile(r"\bat 0x[0-9a-f]{6,}"),
             "a time stamp": re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d")}


def keep_outputs(executed: nbformat.NotebookNode, clean: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The built notebook `clean` with the outputs of its executed copy, free of paths, widgets and traces of the run.

    Cells are matched by id. What only the executed copy has (injected parameters, times, widget state) is left behind.

    Raises:
        WorkError: naming the cell: it was not executed or its source differs, it failed, it wrote a warning (standard
            error), its output would change from run to run, or the notebook is larger than 300 kB."""
    result, ran = copy.deepcopy(clean), {cell.id: cell for cell in executed.cells}
    count = 0
    for cell in result.cells:
        if cell.cell_type != "code":
            continue
        source = ran.get(cell.id)
        if source is None or source.source != cell.source:
            raise WorkError(f"{cell_name(cell)} is not the one that was executed; build, execute and keep again")
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        cell.outputs = [_scrub(copy.deepcopy(out)) for out in source.outputs if WIDGET not in out.get("data", {})]
        for output in cell.outputs:
            if output.output_type == "error":
                raise WorkError(f"{cell_name(cell)} failed: {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                raise WorkError(f"{cell_name(cell)} wrote a warning: {output.text.strip().splitlines()[0]}")
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            for what in unstable(output):
                raise WorkError(f"{cell_name(cell)} holds {what}, which changes from run to run")
    size = len(nbformat.writes(result).encode())
    if size > MAX_BYTES:
        biggest = max(result.cells, key=lambda cell: len(str(cell.get("outputs", ""))))
        limit = f"more than {MAX_BYTES // 1000}"
        raise WorkError(f"the notebook has {size // 1000} kB, {limit}; the biggest is {cell_name(biggest)}")
    return result


def cell_name(cell: nbformat.NotebookNode) -> str:
    """How a message names a cell: its id and first line."""
    return f"cell {cell.id} ({(cell.source.strip().splitlines() or ['empty'])[0][:60]!r})"


def _scrub(value):
    """Paths of this machine by neutral words, in every text of an output; images are left alone."""
    if isinstance(value, str):
        return _neutral(value)
    if isinstance(value, list):
        return [_scrub(part) for part in value]
    if isinstance(value, dict):
        for key in value:
            if not key.startswith("image/") or not isinstance(value[key], str):
                value[key] = _scrub(value[key])
    return value


def _neutral(text: str) -> str:
    names = {sys.prefix: "python", sys.base_prefix: "python", str(root()): ".", str(Path.home()): "~"}
    for folder in sorted(names, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w/]){re.escape(folder)}(?![\w-])", names[folder], text)
    # The first folder below the temporary one has a random name, or one with a process number.
    return re.sub(rf"(?<![\w/]){re.escape(tempfile.gettempdir())}/[\w.-]+", "temporary", text)


def unstable(output) -> list[str]:
    """What an output holds that would change from run to run, in words; images are not looked at."""
    data = {key: value for key, value in output.get("data", {}).items() if not key.startswith("image/")}
    text = f"{output.get('text', '')}\n{data}\n{output.get('metadata', {})}"
    return [what for what, pattern in UNSTABLE.items() if pattern.search(text)]
