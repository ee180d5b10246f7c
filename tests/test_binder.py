"""binder/: what a reader without an installation gets. Everything that can be run here is run."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
BINDER = ROOT / "binder"


def requirement_lines(path):
    """All lines of a requirements file without comments, `-r` followed from the file that names it, as pip does."""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split(" #")[0].strip()
        if line.startswith("-r "):
            yield from requirement_lines(path.parent / line[3:].strip())
        elif line and not line.startswith("#"):
            yield line


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_scripts_are_executable_bash(name):
    path = BINDER / name
    assert os.access(path, os.X_OK)
    assert path.read_bytes().startswith(b"#!/bin/bash\n")
    assert b"\r" not in path.read_bytes()
    subprocess.run(["bash", "-n", path], check=True)


def test_start_hands_over_to_the_command_with_capped_threads():
    assert (BINDER / "start").read_text(encoding="utf-8").rstrip().splitlines()[-1] == 'exec "$@"'
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY"]
    code = f"import os, sys; print(*[os.environ[n] for n in {names}], os.getpid(), sys.argv[1])"
    process = subprocess.Popen(
        [BINDER / "start", sys.executable, "-c", code, "two words"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "64", "OMP_WAIT_POLICY": "ACTIVE"},
    )
    output, _ = process.communicate(timeout=60)
    # The same process id: the script was replaced, so the server receives the container's signals itself.
    assert output.strip() == f"2 2 2 PASSIVE {process.pid} two words"


def test_start_passes_the_exit_status_on():
    assert subprocess.run([BINDER / "start", "bash", "-c", "exit 7"], check=False).returncode == 7


def post_build(cwd):
    here = Path(sys.executable).parent
    return subprocess.run(
        [BINDER / "postBuild"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
    )


def test_post_build_verifies_the_bundled_data():
    done = post_build(ROOT)
    assert done.returncode == 0, done.stderr


def test_post_build_fails_the_image_when_its_step_fails(tmp_path):
    (tmp_path / "labkit.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    assert post_build(tmp_path).returncode == 3


def test_requirements_resolve_and_bring_the_package_from_the_cpu_index():
    lines = list(requirement_lines(BINDER / "requirements.txt"))
    assert "-e ." in lines
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in lines
    pinned = {Requirement(line).name for line in lines if not line.startswith("-")}
    wanted = {Requirement(line).name for line in project()["dependencies"]}
    assert wanted <= pinned, f"not in requirements.txt: {sorted(wanted - pinned)}"


def test_cpu_wheel_satisfies_the_pin_on_torch():
    (torch,) = (
        Requirement(line) for line in requirement_lines(BINDER / "requirements.txt") if line.startswith("torch=")
    )
    (version,) = (pin.version for pin in torch.specifier if pin.operator == "==")
    assert torch.specifier.contains(f"{version}+cpu")


def test_no_requirement_is_torchvision():
    named = [*requirement_lines(BINDER / "requirements.txt"), *project()["dependencies"]]
    assert not [line for line in named if "torchvision" in line]


def test_runtime_is_a_python_that_the_package_supports():
    name, version = (BINDER / "runtime.txt").read_text(encoding="utf-8").strip().split("-")
    assert name == "python"
    assert SpecifierSet(project()["requires-python"]).contains(f"{version}.0")


def test_one_binder_folder_only():
    assert not (ROOT / ".binder").exists()
    assert not (BINDER / "environment.yml").exists()  # it would make repo2docker ignore runtime.txt


def test_licence_is_the_one_that_the_package_declares():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project()["license"] == "Apache-2.0"
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
