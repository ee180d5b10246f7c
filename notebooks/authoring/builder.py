"""From one source to the notebooks: `notebooks/src/NN_name.py` (jupytext percent) makes a reader's and a solution copy.

A solution lies between `# BEGIN SOLUTION` and `# END SOLUTION`. What the reader gets instead is in `# STUB: <code>`
lines just before or after it (none: `...  # your answer`). A cell tagged `solution` without such markers is in the
solution copy only. The set-up cell is generated here, the same for all notebooks. Building twice gives the same bytes.
"""

import copy
import hashlib
import re
import tomllib
from pathlib import Path

import jupytext
import nbformat

from labkit.errors import RequestError, WorkError
from labkit.teach.exercises import BEGIN, END, STUB

ANSWER = "...  # your answer"
METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python",
                      "pygments_lexer": "ipython3"},
}
_BLOCK = re.compile(
    rf"(?m)(?P<before>(?:^[ \t]*{STUB}.*\n)*)^(?P<indent>[ \t]*){BEGIN}[ \t]*\n"
    rf"(?P<code>(?:.*\n)*?)[ \t]*{END}[ \t]*$(?P<after>(?:\n[ \t]*{STUB}.*)*)"
)
_SETUP = '''
# The same in every notebook: find the course, install what is missing, say what this machine is.
import importlib.util, os, pathlib, platform, re, subprocess, sys, tomllib

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # both are read once, when torch is imported
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))

def project(folder):
    file = folder / "pyproject.toml"
    about = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.is_file() else {}
    return about if about.get("name") == "labkit" and (folder / "notebooks").is_dir() else None

repository, here = "@REPOSITORY@", pathlib.Path.cwd()
places = [here, *here.parents, here / "labkit-course"]
if repository and not any(map(project, places)):
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", repository, "labkit-course"], check=True)
root = next(filter(project, places), None)
if root is None:
    sys.exit("The course is not here: open this notebook from its folder in a copy of the repository.")
sys.path[:0] = [str(place) for place in (root, root / "notebooks") if str(place) not in sys.path]
needs = {re.match(r"[\\w-]+", need)[0]: need for need in project(root)["dependencies"] if "jupyterlab" not in need}
modules = {name: {"pyyaml": "yaml"}.get(name, name.replace("-", "_")) for name in needs}
missing = [name for name in needs if importlib.util.find_spec(modules[name]) is None]
if {"torch", "numpy"} & set(missing):  # the right build depends on the machine: never installed from here
    sys.exit("Install torch and numpy first: pip install -r requirements.txt")
if missing:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *map(needs.get, missing)], check=True)
import torch
device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} thread(s)"
print(f"Python {platform.python_version()}, torch {torch.__version__}, labkit {project(root)['version']}, {device}")
'''


def setup_cell(repository: str) -> str:
    """The source of the set-up cell; `repository` is the address to clone from, empty if there is none."""
    return _SETUP.replace("@REPOSITORY@", repository).strip()


def build(source_path: str | Path, solutions: bool) -> nbformat.NotebookNode:
    """The notebook of one source, without outputs: the solution copy or the reader's.

    A cell's id follows from the notebook's name, the cell's type, its first line (or its `key="..."`) and how often
    that came before, so a new cell leaves the other ids alone, and both copies share them.

    Raises:
        RequestError: the source does not exist.
        WorkError: solution markers do not match, or there is not exactly one set-up cell."""
    path = Path(source_path)
    if not path.is_file():
        raise RequestError(f"there is no notebook source {path.name!r} in {path.parent.name}/")
    parsed = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    cells, taken = [], set()
    for cell in parsed.cells:
        tags = cell.metadata.get("tags", [])
        identity = _identity(path.stem, cell, taken)
        if cell.cell_type == "raw" or ("solution" in tags and BEGIN not in cell.source and not solutions):
            continue
        text = setup_cell(repository(path)) if "setup" in tags else _answered(cell.source, solutions, path.name)
        new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        dropped = ("key", "lines_to_next_cell", "lines_to_end_of_cell_marker")
        metadata = {name: value for name, value in cell.metadata.items() if name not in dropped}
        cells.append(new(text, id=identity, metadata=metadata))
    if sum("setup" in cell.metadata.get("tags", ()) for cell in cells) != 1:
        raise WorkError(f"{path.name} must have one cell tagged 'setup'")
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(METADATA))
    notebook.nbformat_minor = 5
    nbformat.validate(notebook)
    return notebook


def write(source_dir: str | Path, out_dir: str | Path) -> list[Path]:
    """Build every `NN_*.py` of `source_dir` into `out_dir` and `out_dir/solutions`; return the files that changed.

    Outputs are carried over while the code is unchanged, so a correction of the prose costs no run.

    Raises:
        RequestError: there is no source in `source_dir`."""
    sources = sorted(Path(source_dir).glob("[0-9][0-9]_*.py"))
    if not sources:
        raise RequestError(f"there is no notebook source NN_name.py in {Path(source_dir).name}/")
    changed = []
    for source in sources:
        for solutions in (False, True):
            target = Path(out_dir) / ("solutions" if solutions else "") / f"{source.stem}.ipynb"
            notebook = build(source, solutions)
            if target.is_file():
                _carry_outputs(nbformat.read(target, as_version=4), notebook)
            text = dumps(notebook)
            if not target.is_file() or target.read_text(encoding="utf-8") != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8", newline="\n")
                changed.append(target)
    return changed


def dumps(notebook: nbformat.NotebookNode) -> str:
    """The text of a notebook file, the same for the same notebook."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def _identity(stem: str, cell, taken: set[str]) -> str:
    first = cell.metadata.get("key") or (cell.source.strip().splitlines() or [""])[0]
    for occurrence in range(len(taken) + 1):
        text = "\n".join((stem, cell.cell_type, first, str(occurrence)))
        identity = hashlib.sha256(text.encode()).hexdigest()[:8]
        if identity not in taken:
            break
    taken.add(identity)
    return identity


def _answered(source: str, solutions: bool, name: str) -> str:
    """A cell's source with its solutions, or with the stubs in their place."""

    def replaced(block: re.Match) -> str:
        if solutions:
            return block["code"].rstrip("\n")
        stubs = re.findall(rf"(?m)^([ \t]*){STUB} ?(.*)$", block["before"] + block["after"])
        return "\n".join(indent + code for indent, code in stubs or [(block["indent"], ANSWER)])

    text = _BLOCK.sub(replaced, source)
    for marker in (BEGIN, END, STUB):
        if marker in text:
            raise WorkError(f"{name}: a {marker!r} without its partner in the cell {source.strip().splitlines()[0]!r}")
    return text


def _carry_outputs(old: nbformat.NotebookNode, new: nbformat.NotebookNode) -> None:
    before, after = ([cell for cell in notebook.cells if cell.cell_type == "code"] for notebook in (old, new))
    # The set-up cell knows the repository's address, which changes no result.
    same = [c.id for c in before] == [c.id for c in after] and all(
        a.source == b.source or "setup" in b.metadata.get("tags", ()) for a, b in zip(before, after)
    )
    for a, b in zip(before, after) if same else ():
        b.outputs, b.execution_count = a.outputs, a.execution_count


def repository(source: Path) -> str:
    """The course's public address, from the nearest `pyproject.toml` above the source; empty while it has none."""
    for folder in source.resolve().parents:
        file = folder / "pyproject.toml"
        if file.is_file():
            project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
            return project.get("urls", {}).get("Repository", "")
    return ""
