"""The README says what the project is now: its generated blocks are fresh, its commands exist, its figures are there."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from authoring import builder, readme

from labkit import cli, paths
from labkit.errors import RequestError

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
    if not builder.repository(paths.root() / "README.md"):
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


def test_the_recipe_for_your_own_model_runs_as_it_stands():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    names = {"model": model, "train_set": range(65536)}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.S).group(1), names)
    rates, spared = [], names["optimizer"].param_groups[1]["params"]
    for _ in range(257):
        rates.append(names["optimizer"].param_groups[0]["lr"])
        names["optimizer"].step()
        names["scheduler"].step()
    assert rates[0] == 0.0 and rates[256] == pytest.approx(4 * 0.1)  # 8 epochs of 32 steps: as many as 0.5 of 512
    assert rates[128] == pytest.approx(0.2) and len(spared) == 4 and names["optimizer"].param_groups[1]["weight_decay"] == 0


def test_the_script_for_several_workers_runs_as_it_stands(tmp_path):
    """By torchrun, as the text says: each rank prints what it learnt, near the ones that are right."""
    script = tmp_path / "gossip.py"
    script.write_text(next(code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "Gossip(" in code))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
               "--nproc-per-node", "2", str(script)]
    interface = {"linux": "lo", "darwin": "lo0"}.get(sys.platform, "")
    environment = os.environ | {"PYTHONPATH": str(paths.root()), "GLOO_SOCKET_IFNAME": interface}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    weights = [float(number) for number in re.findall(r"\d\.\d{3,}", done.stdout)]
    assert len(weights) == 2 * 8 and all(abs(weight - 1) < 0.2 for weight in weights), done.stdout


def test_the_sweep_of_the_readme_is_one(tmp_path):
    from sweeps import sweep

    path = tmp_path / "ladder.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", TEXT, re.S).group(1), encoding="utf-8")
    trials = sweep.load(path)
    assert [(trial.recipe.batch, trial.recipe.rate, trial.recipe.warmup_steps) for trial in trials[::5]] == [
        (16, 2**-7, 40.0), (64, 2**-6, 40.0), (256, 2**-5, 40.0), (1024, 2**-4, 40.0)
    ]
