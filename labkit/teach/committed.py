"""What a committed notebook may hold: outputs that say the same on every machine, and the form that readers rely on.

Nothing here executes a notebook.
"""

import ast
import copy
import re
import sys
import tempfile
from pathlib import Path

import nbformat

from ..errors import RequestError, WorkError
from ..paths import root
from .exercises import CHECK, find, solution_code

HEADINGS = (
    "You will be able to",
    "Set up",
    "Parameters",
    "What the literature says",
    "Intuition",
    "Predict",
    "Build it",
    "Run it",
    "Compare",
    "Where it breaks",
    "Exercises",
    "Take away",
    "Record",
)
PARAMETERS = (
    "profile: str = 'quick'",
    "seeds: str = '0'",
    "overrides: dict = {}",
    "record_to: str = ''",
    "interactive: bool = True",
)
MAX_BYTES = 300_000
_WIDGET = "application/vnd.jupyter.widget-view+json"
# Top folders of Unix, macOS and hosted notebooks, or a Windows drive; not the middle of an address or a relative path.
_TOP = "home|root|Users|tmp|var|usr|opt|mnt|srv|work|content|kaggle|private"
_ABSOLUTE = re.compile(rf"(?<![\w.:/~-])/(?:{_TOP})/[\w.]|\b[A-Z]:\\\w")
_UNSTABLE = {
    "an absolute path": _ABSOLUTE,
    "a memory address": re.compile(r"\bat 0x[0-9a-f]{6,}"),
    "a time stamp": re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d"),
}


def keep_outputs(executed: nbformat.NotebookNode, clean: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The built notebook `clean` with the outputs of its executed copy, free of paths, widgets and traces of the run.

    Cells are matched by id. What only the executed copy has (injected parameters, times, widget state) is left behind.

    Raises:
        WorkError: naming the cell: it was not executed or its source differs, it failed, it wrote a warning (standard
            error), its output would change from run to run, or the notebook is larger than 300 kB.
    """
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
        cell.outputs = [_scrub(copy.deepcopy(out)) for out in source.outputs if _WIDGET not in out.get("data", {})]
        for output in cell.outputs:
            if output.output_type == "error":
                raise WorkError(f"{cell_name(cell)} failed: {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                raise WorkError(f"{cell_name(cell)} wrote a warning: {output.text.strip().splitlines()[0]}")
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            for what in _unstable(output):
                raise WorkError(f"{cell_name(cell)} holds {what}, which changes from run to run")
    size = len(nbformat.writes(result).encode())
    if size > MAX_BYTES:
        biggest = max(result.cells, key=lambda cell: len(str(cell.get("outputs", ""))))
        limit = f"more than {MAX_BYTES // 1000}"
        raise WorkError(f"the notebook has {size // 1000} kB, {limit}; the biggest is {cell_name(biggest)}")
    return result


def contract(path: str | Path, registry=None) -> list[str]:
    """What is wrong with a notebook (`.ipynb`) from a reader's point of view, one line each; empty if nothing is.

    Title, headings, parameters, figures, exercises (hints from `registry` or the lab's module, solutions from `src/`),
    paths, widgets and size are checked.
    """
    path = Path(path)
    nb = nbformat.read(path, as_version=4)
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    problems = _headings(nb) + _parameters(code)
    for cell in code:
        problems += [f"{cell_name(cell)} {what}" for what in _code_problems(cell)]
    for cell in nb.cells:
        if _ABSOLUTE.search(cell.source):
            problems.append(f"{cell_name(cell)} holds an absolute path in its source")
    for id in sorted({id for cell in code for id in CHECK.findall(cell.source)}):
        problems += _exercise_problems(id, path, registry)
    if "widgets" in nb.metadata:
        problems.append("the notebook holds widget state")
    if path.stat().st_size > MAX_BYTES:
        problems.append(f"the notebook has {path.stat().st_size // 1000} kB, more than {MAX_BYTES // 1000}")
    return problems


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


def _unstable(output) -> list[str]:
    data = {key: value for key, value in output.get("data", {}).items() if not key.startswith("image/")}
    text = f"{output.get('text', '')}\n{data}\n{output.get('metadata', {})}"
    return [what for what, pattern in _UNSTABLE.items() if pattern.search(text)]


def _headings(nb) -> list[str]:
    prose = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    prose = re.sub(r"(?ms)^```.*?^```", "", prose)
    titles, headings = (re.findall(rf"(?m)^{marks} +(.+?)\s*$", prose) for marks in ("#", "##"))
    problems = [] if len(titles) == 1 else [f"the notebook has {len(titles)} titles (h1), not one"]
    found = [next((known for known in HEADINGS if text.startswith(known)), None) for text in headings]
    extra = [text for text, known in zip(headings, found) if known is None]
    problems += [f"heading {text!r} is not in the template; make it an h3" for text in extra]
    problems += [f"heading {known!r} is missing" for known in HEADINGS if known not in found]
    problems += [f"heading {known!r} comes {found.count(known)} times" for known in HEADINGS if found.count(known) > 1]
    order = [HEADINGS.index(known) for known in found if known]
    for before, after in zip(order, order[1:]):
        if after < before:
            problems.append(f"heading {HEADINGS[after]!r} comes after {HEADINGS[before]!r}")
    return problems


def _parameters(code) -> list[str]:
    cells = [cell for cell in code if "parameters" in cell.metadata.get("tags", ())]
    if len(cells) != 1:
        return [f"the notebook has {len(cells)} cells tagged 'parameters', not one"]
    try:
        lines = tuple(ast.unparse(statement) for statement in ast.parse(cells[0].source).body)
    except SyntaxError:
        lines = ()
    return [] if lines == PARAMETERS else [f"the parameters must be exactly: {'; '.join(PARAMETERS)}"]


def _code_problems(cell) -> list[str]:
    problems = ["uses tqdm"] if re.search(r"\btqdm\b", cell.source) else []
    try:
        last = (ast.parse(cell.source).body or [None])[-1]
    except SyntaxError:
        return [*problems, "is not plain Python"]
    bare = isinstance(last, ast.Expr) and isinstance(last.value, ast.Name) and last.value.id in ("fig", "figure")
    if bare or re.search(r"\bplt\.|pyplot|(?<!viz)\.show\(\)", cell.source):
        problems.append("shows a figure without viz.show(fig, alt=...)")
    for output in cell.outputs:
        if "image/png" in output.get("data", {}) and not output.metadata.get("image/png", {}).get("alt"):
            problems.append("has an image without a text alternative")
        if _WIDGET in output.get("data", {}):
            problems.append("holds a widget")
        problems += [f"holds {what} in its output" for what in _unstable(output)]
    return problems


def _exercise_problems(id: str, path: Path, registry) -> list[str]:
    problems = []
    try:
        find(id, registry)
    except RequestError as error:
        problems.append(f"exercise {id} has no check and hints: {error}")
    folder = path.parent.parent if path.parent.name == "solutions" else path.parent
    source = folder / "src" / f"{path.stem}.py"
    try:
        solution_code(source.read_text(encoding="utf-8"), id)
    except (OSError, RequestError, WorkError):
        problems.append(f"exercise {id} has no solution in src/{source.name}")
    return problems
