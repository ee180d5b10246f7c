"""The README says what the project is now: its generated blocks are fresh, its commands exist, its figures are there."""

import re
import shutil
import subprocess
import sys

import pytest

from labkit import cli, paths, readme
from labkit.errors import RequestError
from labkit.teach import notebooks

TEXT = (paths.root() / "README.md").read_text(encoding="utf-8")


def test_generated_blocks_are_fresh():
    assert readme.render(TEXT) == TEXT, "stale: run python -m labkit notebooks --sources-only"


def test_every_figure_is_there_and_described():
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", TEXT):
        if not target.startswith("http"):
            assert (paths.root() / target).is_file() and len(alt) > 20, target


def test_every_local_link_leads_somewhere():
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#]+)\)", TEXT):
        if not target.startswith("http"):
            assert (paths.root() / target).exists(), target


def test_every_command_of_the_table_exists():
    named = set(re.findall(r"`labkit (\w+)", TEXT))
    (verbs,) = [action.choices for action in cli.parser()._actions if getattr(action, "choices", None)]
    assert named and named <= set(verbs)


def test_no_dead_badge_while_there_is_no_address():
    if not notebooks.repository(paths.root() / "README.md"):
        assert "mybinder.org" not in TEXT and "colab.research" not in TEXT
        assert "fork" in TEXT


@pytest.mark.parametrize("name", ["", "labkit", "a/b/c", "../x", "a/..", "https://github.com/a/b", "a b/c", 'a/b"; rm'])
def test_a_repository_that_is_none_is_refused(name):
    with pytest.raises(RequestError, match="owner/name"):
        readme.set_repository(name)


def test_one_command_carries_the_address_everywhere(tmp_path):
    copy = tmp_path / "a copy"
    ignore = shutil.ignore_patterns(".git", ".venv", "results", "__pycache__", "*.egg-info")
    shutil.copytree(paths.root(), copy, ignore=ignore)
    for _ in range(2):
        command = [sys.executable, "-m", "labkit", "badges", "ada/some-kit"]
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, env={"PATH": "", "PYTHONPATH": str(copy)}
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "", "the second time nothing is left to write"
    assert (copy / "pyproject.toml").read_text().count("https://github.com/ada/some-kit") == 1
    assert "mybinder.org/v2/gh/ada/some-kit" in (copy / "README.md").read_text()
    for notebook in (copy / "notebooks").glob("*.ipynb"):
        assert "https://github.com/ada/some-kit" in notebook.read_text()
