"""The notebook builder: one source, two copies, stable ids, same bytes; and what a committed notebook may hold."""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib

import jupytext
import nbformat
import papermill
import pytest
from authoring.builder import _answered, build, setup_cell, write
from authoring.committed import keep_outputs
from hypothesis import given
from hypothesis import strategies as st
from reader_contract import HEADINGS, contract, sources_differ

from labkit.errors import RequestError, WorkError
from labkit.paths import root
from labkit.teach import exercise

REGISTRY = {"07.1": exercise("07.1", "t", lambda answer: None, ("first", "second"))}
PARAMETERS = """profile: str = "quick"  # smoke | quick | full
seeds: str = "0"
overrides: dict = {}
record_to: str = ""
interactive: bool = True"""
EXERCISE = '''def scaled(rate, k):
    """The scaled rate."""
    # BEGIN SOLUTION
    return rate * k**0.5
    # END SOLUTION


check("07.1", scaled, {"07.1": exercise("07.1", "t", lambda f: None if f(1, 4) == 2 else "no", ("a", "b"))})'''

SOLUTION = "    # BEGIN SOLUTION\n    return rate * k**0.5\n    # END SOLUTION\n"


def percent(cells):
    parts = []
    for kind, options, text in cells:
        body = "\n".join(f"# {line}".rstrip() for line in text.splitlines()) if kind == "markdown" else text
        parts.append(f"# %%{' [markdown]' if kind == 'markdown' else ''}{options}\n{body}\n")
    return "\n".join(parts)


def lesson():
    """The cells of a small notebook that keeps the reader contract."""
    cells = [("markdown", "", "# Large batches\n\nOne claim."), ("code", ' tags=["setup"]', "# set-up")]
    for heading in HEADINGS:
        cells.append(("markdown", "", f"## {heading}"))
        if heading == "Parameters":
            cells.append(("code", ' tags=["parameters"]', PARAMETERS))
        if heading == "Run it":
            imports = "import sys, tempfile\nfrom labkit.teach import check, exercise, viz\n"
            cells.append(("code", "", imports + "print(profile)"))
        if heading == "Exercises":
            cells.append(("code", "", EXERCISE))
            cells.append(("markdown", ' tags=["solution"]', "Why the root: noise adds in squares."))
    return cells


@pytest.fixture
def course(tmp_path):
    """A course of one notebook; returns a function that (re)writes its source from cells."""
    (tmp_path / "src").mkdir()

    def source(cells=None):
        path = tmp_path / "src" / "07_large_batches.py"
        path.write_text(percent(cells or lesson()), encoding="utf-8")
        return path

    return source


def sources(notebook):
    return "\n".join(cell.source for cell in notebook.cells)


def test_a_solution_is_in_its_copy_only_and_markers_in_neither(course):
    reader, solved = build(course(), False), build(course(), True)
    assert "return rate * k**0.5" in sources(solved) and "noise adds in squares" in sources(solved)
    assert "return rate * k**0.5" not in sources(reader) and "noise adds in squares" not in sources(reader)
    assert '    """The scaled rate."""\n    ...  # your answer\n' in sources(reader)
    assert "SOLUTION" not in sources(reader) + sources(solved)
    compile(next(cell.source for cell in reader.cells if "def scaled" in cell.source), "cell", "exec")


@pytest.mark.parametrize(
    "text, reader, solved",
    [
        ("# STUB: x = ...\n# BEGIN SOLUTION\nx = 1\n# END SOLUTION\ny = x", "x = ...\ny = x", "x = 1\ny = x"),
        ("# BEGIN SOLUTION\nx = 1\n# END SOLUTION\n# STUB: x = None\n", "x = None\n", "x = 1\n"),
        (
            "if a:\n    # STUB: for i in a:\n    # STUB:     ...\n    # BEGIN SOLUTION\n    b()\n    # END SOLUTION",
            "if a:\n    for i in a:\n        ...",
            "if a:\n    b()",
        ),
        (
            "# BEGIN SOLUTION\na\n# END SOLUTION\nb\n# BEGIN SOLUTION\nc\n# END SOLUTION",
            "...  # your answer\nb\n...  # your answer",
            "a\nb\nc",
        ),
    ],
)
def test_stubs_take_the_place_of_solutions(text, reader, solved):
    assert _answered(text, False, "x.py") == reader
    assert _answered(text, True, "x.py") == solved


@pytest.mark.parametrize(
    "text",
    ["# BEGIN SOLUTION\nx", "x\n# END SOLUTION", "# STUB: x\ny", "# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION"],
)
def test_a_marker_without_its_partner_is_named(text):
    with pytest.raises(WorkError, match="07_x.py: a '# (BEGIN|END|STUB)"):
        _answered(text, True, "07_x.py")


@given(st.text(alphabet="ab \n", max_size=40))
def test_a_cell_without_markers_is_left_alone(text):
    assert _answered(text, True, "x.py") == _answered(text, False, "x.py") == text


def test_the_solution_copy_goes_through_percent_format_and_back(course):
    solved = build(course(), True)
    again = jupytext.reads(jupytext.writes(solved, fmt="py:percent"), fmt="py:percent")
    first, second = ([(cell.cell_type, cell.source) for cell in notebook.cells] for notebook in (solved, again))
    assert first == second


def test_tags_and_metadata_are_kept_and_the_machine_is_not_in_them(course):
    notebook = build(course(), False)
    assert [cell.metadata.tags for cell in notebook.cells if "tags" in cell.metadata] == [["setup"], ["parameters"]]
    assert notebook.metadata.colab == {"gpuType": "T4", "provenance": []}
    assert notebook.metadata.kernelspec.name == "python3"
    assert "version" not in notebook.metadata.language_info
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)


def test_a_new_cell_leaves_all_other_ids_alone_and_both_copies_share_them(course):
    cells = lesson()
    before = [cell.id for cell in build(course(cells), False).cells]
    assert len(set(before)) == len(before) and all(re.fullmatch("[0-9a-f]{8}", id) for id in before)
    cells.insert(4, ("code", "", "new = 1"))
    after = [cell.id for cell in build(course(cells), False).cells]
    assert [id for id in after if id in before] == before and len(after) == len(before) + 1
    assert [id for id in (cell.id for cell in build(course(cells), True).cells) if id in after] == after


def test_equal_first_lines_get_different_ids_and_a_key_keeps_an_id_when_the_first_line_changes(course):
    cells = [*lesson(), ("code", "", "x = 1"), ("code", "", "x = 1"), ("code", ' key="map"', "y = 1")]
    first = build(course(cells), False)
    assert len({cell.id for cell in first.cells}) == len(first.cells)
    cells[-1] = ("code", ' key="map"', "y = 2")
    assert build(course(cells), False).cells[-1].id == first.cells[-1].id and "key" not in first.cells[-1].metadata


def test_an_unchanged_source_gives_the_same_bytes_and_writes_nothing(course, tmp_path):
    source = course()
    written = write(source.parent, tmp_path)
    assert written == [tmp_path / "07_large_batches.ipynb", tmp_path / "solutions" / "07_large_batches.ipynb"]
    before = [path.read_bytes() for path in written]
    assert write(source.parent, tmp_path) == []
    for path in written:
        path.unlink()
    write(source.parent, tmp_path)
    assert [path.read_bytes() for path in written] == before


def test_outputs_outlive_a_change_of_prose_but_not_one_of_code(course, tmp_path):
    cells = lesson()
    source = course(cells)
    path = write(source.parent, tmp_path)[0]
    notebook = nbformat.read(path, as_version=4)
    ran = next(cell for cell in notebook.cells if "print(profile)" in cell.source)
    ran.outputs, ran.execution_count = [nbformat.v4.new_output("stream", text="quick\n")], 1
    nbformat.write(notebook, path)
    cells[0] = ("markdown", "", "# Large batches\n\nA better claim.")
    course(cells)
    write(source.parent, tmp_path)
    assert "A better claim." in path.read_text() and '"quick\\n"' in path.read_text()
    course([*cells, ("code", "", "x = 1")])
    write(source.parent, tmp_path)
    assert '"quick\\n"' not in path.read_text()


def test_a_planted_difference_is_reported_by_name(course, tmp_path):
    source = course()
    path = tmp_path / "07_large_batches.ipynb"
    assert sources_differ(source, path, False) == ["07_large_batches.ipynb is missing; build the notebooks"]
    write(source.parent, tmp_path)
    assert sources_differ(source, path, False) == []
    assert sources_differ(source, tmp_path / "solutions" / path.name, True) == []
    clean = nbformat.read(path, as_version=4)

    def planted(change):
        notebook = copy.deepcopy(clean)
        change(notebook)
        nbformat.write(notebook, path)
        return sources_differ(source, path, False)

    first = clean.cells[0].id
    name = f"07_large_batches.ipynb: cell {first} ('# Large batches')"
    assert planted(lambda n: n.cells[0].update(source="# Large batches\nEdited.")) == [f"{name} differs in its source"]
    assert planted(lambda n: n.cells[0].metadata.update(tags=["x"])) == [f"{name} differs in its metadata"]
    assert planted(lambda n: n.cells.pop(0)) == [f"{name} is missing"]
    assert planted(lambda n: n.cells[0].update(id="0000aaaa")) == [
        f"{name} is missing",
        f"{name} is not in the source".replace(first, "0000aaaa"),
    ]
    assert planted(lambda n: n.cells.reverse()) == ["07_large_batches.ipynb: the cells are in another order"]
    assert planted(lambda n: n.metadata.update(widgets={})) == [f"{path.name}: the notebook's metadata differ"]
    assert planted(lambda n: n.cells[1].update(execution_count=3)) == []


def test_a_source_without_its_setup_cell_and_a_source_that_is_not_there_are_refused(course, tmp_path):
    with pytest.raises(WorkError, match="07_large_batches.py must have one cell tagged 'setup'"):
        build(course(lesson()[:1]), False)
    with pytest.raises(RequestError, match="'08_none.py' in src/"):
        build(tmp_path / "src" / "08_none.py", False)


def test_the_address_comes_from_the_project_above_the_source(course, tmp_path):
    assert 'repository, here = "",' in sources(build(course(), False))
    project = '[project]\nname = "labkit"\n[project.urls]\nRepository = "https://x.org/y"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    assert 'repository, here = "https://x.org/y",' in sources(build(course(), False))


def run_setup(folder, repository="", after=""):
    code = setup_cell(repository) + "\n" + after
    ours = ("PYTHONPATH", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment)


def test_the_setup_cell_finds_the_course_from_below_and_caps_threads_first(course):
    assert len(setup_cell("").splitlines()) <= 30
    after = "import labkit.errors; print(os.environ['OMP_WAIT_POLICY'], torch.get_num_threads())"
    done = run_setup(root() / "notebooks", after=after)
    version = tomllib.loads((root() / "pyproject.toml").read_text())["project"]["version"]
    lines = done.stdout.splitlines()
    assert done.stderr == "" and lines[0].startswith("Python 3.") and f"labkit {version}" in lines[0]
    assert lines[1].startswith("PASSIVE") and int(lines[1].split()[1]) <= max(1, (os.cpu_count() or 2) // 2)


def test_the_setup_cell_clones_the_course_once_or_says_clearly_that_it_is_not_there(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")  # somebody else's project around the reader's folder
    lost = run_setup(tmp_path)
    assert lost.returncode == 1 and lost.stderr.startswith("The course is not here:")
    origin, reader = tmp_path / "origin", tmp_path / "reader"
    (origin / "notebooks").mkdir(parents=True)
    reader.mkdir()
    (origin / "notebooks" / "x").touch()
    project = '[project]\nname = "labkit"\nversion = "7.7"\ndependencies = ["torch>=2", "pyyaml"]\n'
    (origin / "pyproject.toml").write_text(project)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "a"]):
        subprocess.run(["git", *command], cwd=origin, check=True)
    for _ in range(2):
        done = run_setup(reader, origin.as_uri())
        assert "labkit 7.7" in done.stdout and done.returncode == 0
    assert [path.name for path in reader.iterdir()] == ["labkit-course"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A small notebook that shows everything a committed one may not hold, built and executed for real."""
    folder = tmp_path_factory.mktemp("course")
    cells = lesson()
    cells[1] = ("code", ' tags=["setup"]', "# set-up")
    messy = "\n".join(
        [
            "import pathlib, ipywidgets",
            "from IPython.display import display",
            "import labkit.errors",
            "print(labkit.errors.__file__, sys.prefix, pathlib.Path.home() / 'x')",
            "display({'text/plain': tempfile.mkdtemp(), 'text/html': f'<b>{sys.executable}</b>'}, raw=True)",
            "display(ipywidgets.IntSlider())",
            "fig, ax = viz.figure(width=3, height=2)",
            "viz.show(fig, alt='an empty figure')",
            "len(profile)",
        ]
    )
    cells.insert(-2, ("code", "", messy))
    (folder / "src").mkdir()
    source = folder / "src" / "07_large_batches.py"
    source.write_text(percent(cells))
    clean = build(source, False)
    path, out = folder / "07_large_batches.ipynb", folder / "out.ipynb"
    nbformat.write(clean, path)
    papermill.execute_notebook(
        path, out, {"profile": "smoke"}, kernel_name="python3", cwd=root() / "notebooks", progress_bar=False
    )
    return clean, nbformat.read(out, as_version=4), path


def test_kept_outputs_hold_no_path_time_widget_or_injected_cell(executed):
    clean, ran, path = executed
    assert str(root()) in nbformat.writes(ran) and "papermill" in ran.metadata and "widgets" in ran.metadata
    kept = keep_outputs(ran, clean)
    text = re.sub(r'"image/png": "[^"]*"', "", nbformat.writes(kept))
    paths = (str(root()), sys.prefix, os.path.expanduser("~/"), tempfile.gettempdir())
    for trace in (*paths, "widget", "IntSlider(value", "papermill", "start_time", "iopub", "injected"):
        assert trace not in text.replace("import pathlib, ipywidgets", "").replace("ipywidgets.IntSlider()", ""), trace
    assert not any("execution" in cell.metadata for cell in kept.cells)
    assert [cell.source for cell in kept.cells] == [cell.source for cell in clean.cells]
    counts = [cell.execution_count for cell in kept.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    shown = next(cell for cell in kept.cells if "mkdtemp" in cell.source).outputs
    assert shown[0].text == "./labkit/errors.py python ~/x\n"
    assert shown[1].data["text/plain"] == "temporary"
    assert shown[1].data["text/html"].startswith("<b>python/bin/python")
    assert shown[2].metadata["image/png"]["alt"] == "an empty figure"
    assert shown[-1].data["text/plain"] == "5"
    assert any("not answered yet" in json.dumps(cell.outputs) for cell in kept.cells if cell.cell_type == "code")
    path.write_text(nbformat.writes(kept))
    assert sources_differ(path.parent / "src" / "07_large_batches.py", path, False) == []
    assert contract(path, REGISTRY) == []


@pytest.mark.parametrize(
    "output, message",
    [
        (nbformat.v4.new_output("stream", name="stderr", text="UserWarning: x\n"), "wrote a warning: UserWarning: x"),
        (nbformat.v4.new_output("error", ename="KeyError", evalue="'x'", traceback=[]), "failed: KeyError: 'x'"),
        (nbformat.v4.new_output("stream", text="/usr/local/x.py"), "holds an absolute path"),
        (nbformat.v4.new_output("stream", text="<f at 0x7f00112233>"), "holds a memory address"),
        (nbformat.v4.new_output("stream", text="2031-01-02T03:04:05"), "holds a time stamp"),
        (nbformat.v4.new_output("stream", text="x" * 400_000), "has 4.. kB, more than 300; the biggest is cell"),
    ],
)
def test_an_output_that_may_not_be_committed_is_refused_with_its_cell(executed, output, message):
    clean, ran, _ = executed
    ran = copy.deepcopy(ran)
    cell = next(cell for cell in ran.cells if "print(profile)" in cell.source)
    cell.outputs = [output]
    with pytest.raises(WorkError, match=message) as caught:
        keep_outputs(ran, clean)
    assert f"cell {cell.id} ('import sys, tempfile')" in str(caught.value)


def test_outputs_of_another_source_are_refused(executed):
    clean, ran, _ = executed
    ran = copy.deepcopy(ran)
    ran.cells[1].source += "\nx = 1"
    with pytest.raises(WorkError, match="is not the one that was executed"):
        keep_outputs(ran, clean)


def swap(old, new):
    return lambda cells: [(kind, options, text.replace(old, new)) for kind, options, text in cells]


@pytest.mark.parametrize(
    "change, message",
    [
        (swap("## Compare", "# Compare"), "2 titles"),
        (swap("## Compare", "### Compare"), "'Compare' is missing"),
        (swap("## Compare", "## Discussion"), "'Discussion' is not in the template"),
        (lambda cells: [*cells, ("markdown", "", "## Predict")], "'Predict' comes 2 times"),
        (swap("## Run it", "## Predict"), "'Run it' is missing"),
        (lambda cells: [*cells[:2], *reversed(cells[2:])], "'Take away' comes after 'Record'"),
        (swap('seeds: str = "0"', "seeds: int = 0"), "parameters must be exactly"),
        (swap('record_to: str = ""\n', ""), "parameters must be exactly"),
        (lambda cells: [c for c in cells if "parameters" not in c[1]], "0 cells tagged 'parameters'"),
        (swap("print(profile)", "from tqdm import tqdm"), "uses tqdm"),
        (swap("print(profile)", "plt.plot([1])"), "without viz.show"),
        (swap("print(profile)", "fig"), "without viz.show"),
        (swap("print(profile)", "%time x"), "not plain Python"),
        (swap("print(profile)", "open('/home/me/x')"), "absolute path in its source"),
        (swap(SOLUTION, "    pass\n"), "07.1 has no solution in src/07_large_batches.py"),
        (swap('check("07.1"', 'check("07.2"'), "07.2 has no check and hints: unknown exercise '07.2'"),
    ],
)
def test_each_breach_of_the_reader_contract_has_its_own_message(course, tmp_path, change, message):
    source = course(change(lesson()))
    reader, solved = write(source.parent, tmp_path)
    for path in (reader, solved):
        problems = contract(path, REGISTRY)
        assert any(message in problem for problem in problems), problems


def test_a_code_fence_in_prose_holds_no_headings(course, tmp_path):
    cells = [*lesson(), ("markdown", "", "```bash\n# not a title\n## nor a heading\n```")]
    reader, solved = write(course(cells).parent, tmp_path)
    assert contract(reader, REGISTRY) == contract(solved, REGISTRY) == []
