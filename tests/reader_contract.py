"""What the tests ask of a notebook file: that it equals its source, and that it has the form that readers rely on."""

import ast
import re
from pathlib import Path

import nbformat
from authoring.builder import build
from authoring.committed import ABSOLUTE, MAX_BYTES, WIDGET, cell_name, unstable

from labkit.errors import RequestError, WorkError
from labkit.teach.exercises import CHECK, find, solution_code

HEADINGS = ("You will be able to", "Set up", "Parameters", "What the literature says", "Intuition", "Predict",
            "Build it", "Run it", "Compare", "Where it breaks", "Exercises", "Take away", "Record")
PARAMETERS = ("profile: str = 'quick'", "seeds: str = '0'", "overrides: dict = {}", "record_to: str = ''",
              "interactive: bool = True")


def contract(path: str | Path, registry=None) -> list[str]:
    """What is wrong with a notebook (`.ipynb`) from a reader's point of view, one line each; empty if nothing is.

    Title, headings, parameters, figures, exercises (hints from `registry` or the lab's module, solutions from `src/`),
    paths, widgets and size are checked."""
    path = Path(path)
    nb = nbformat.read(path, as_version=4)
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    problems = _headings(nb) + _parameters(code)
    for cell in code:
        problems += [f"{cell_name(cell)} {what}" for what in _code_problems(cell)]
    for cell in nb.cells:
        if ABSOLUTE.search(cell.source):
            problems.append(f"{cell_name(cell)} holds an absolute path in its source")
    for id in sorted({id for cell in code for id in CHECK.findall(cell.source)}):
        problems += _exercise_problems(id, path, registry)
    if "widgets" in nb.metadata:
        problems.append("the notebook holds widget state")
    if path.stat().st_size > MAX_BYTES:
        problems.append(f"the notebook has {path.stat().st_size // 1000} kB, more than {MAX_BYTES // 1000}")
    return problems


def sources_differ(py_path: str | Path, ipynb_path: str | Path, solutions: bool) -> list[str]:
    """Where a notebook file differs from its source, one line each; outputs are not looked at."""
    path = Path(ipynb_path)
    if not path.is_file():
        return [f"{path.name} is missing; build the notebooks"]
    wanted, found = build(py_path, solutions), nbformat.read(path, as_version=4)
    ours, theirs = ({cell.id: cell for cell in notebook.cells} for notebook in (wanted, found))
    differences = [f"{path.name}: {cell_name(cell)} is missing" for id, cell in ours.items() if id not in theirs]
    differences += [f"{path.name}: {cell_name(theirs[id])} is not in the source" for id in theirs if id not in ours]
    for id in [id for id in ours if id in theirs]:
        for field in ("cell_type", "source", "metadata"):
            if ours[id][field] != theirs[id][field]:
                differences.append(f"{path.name}: {cell_name(ours[id])} differs in its {field.replace('_', ' ')}")
    if not differences and list(ours) != list(theirs):
        differences.append(f"{path.name}: the cells are in another order")
    if wanted.metadata != found.metadata:
        differences.append(f"{path.name}: the notebook's metadata differ")
    return differences


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
        if WIDGET in output.get("data", {}):
            problems.append("holds a widget")
        problems += [f"holds {what} in its output" for what in unstable(output)]
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
