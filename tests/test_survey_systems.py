"""The systems that the survey names: each there once, and shown by something that exists and that its lab uses."""

import ast
import functools

import pytest
from labs import talking_tables

from labkit.course import course
from labkit.paths import notebooks, root

FIRST = """\
Tree all-reduce; Butterfly all-reduce; Ring all-reduce; Rabenseifner's all-reduce; Collective costs of Chan;
DistributedDataParallel; Horovod; FireCaffe; S-Caffe; Brent's bound; cuDNN; im2col; FFT convolution; Winograd;
Parameter Server; DistBelief; Project Adam; GeePS; Downpour; Stale-synchronous; Petuum; HOGWILD!; Dogwild!; 1-bit SGD
(CNTK); QSGD; TernGrad; DoReFa; Top-k; Deep Gradient Compression; AdaComp; Strom; SparCML; GPipe; AMPNet; PipeDream;
Fully connected layers split by columns or rows; Cannon; Model parallelism by redundant computation; EASGD; SparkNet;
BMUF; Averaging once at the end (Zinkevich; D-PSGD; AD-PSGD; GossipGraD; Gossiping SGD; Goyal; LARS; Smith; Hoffer;
Shallue; One weird trick; Hybrid parallelism"""
SECOND = """\
K-FAC; mu-cuDNN; Paleo; Yan; Oyama; Poseidon (HybComm); Sufficient factor broadcasting (SFB); Backup workers;
Heterogeneity-aware parameter server; Staleness-aware; Krum; Checkpointing; Backpropagation through time;
Population-based training; Evolution; Genetic algorithms; ESGD; Spatial convolution with halos; Wavefront; Persistent
RNN; Rudra; Hierarchical parameter server; SVRG; L-BFGS; ADMM; Dekel; Distillation; TreeNets; Ensembles; PNAS; ENAS;
DARTS; SMASH; Architecture search by reinforcement learning; Gaia; LBANN; Limited precision (Gupta; Flexpoint; Tensor
cores; Mixed precision"""


def names(text: str) -> list[str]:
    return [" ".join(name.split()) for name in text.split(";")]


@pytest.fixture(scope="module")
def table():
    return talking_tables.systems()


@pytest.mark.parametrize("name", names(FIRST) + names(SECOND))
def test_a_system_is_there_once(table, name):
    found = [system for system in table["system"] if system.startswith(name)]
    assert len(found) == 1, found


def test_what_comes_first_in_the_course_is_shown_by_code(table):
    first = table[table["system"].map(lambda system: any(system.startswith(name) for name in names(FIRST)))]
    assert set(first["shown"]) <= {"run", "simulated", "cost model"}


def test_the_columns_hold_what_they_may(table):
    assert table["system"].is_unique and set(table["category"]) <= {"operator", "network", "training"}
    assert set(table["shown"]) <= {"run", "simulated", "cost model", "table"}
    for row in table.itertuples():
        assert row.reference in ("not in the survey", "not numbered here") or 1 <= int(row.reference) <= 280, row.system
        assert (row.shown == "table") == (row.lab == "") == (row.where == ""), row.system
        assert row.note or row.shown != "table", f"{row.system}: say why it is not shown"
        assert "by proxy" not in row.note or (row.note.startswith("by proxy: ") and row.shown != "table"), row.system


def path_of(module: str):
    base = root() / ("" if module.startswith("labkit") else "notebooks") / module.replace(".", "/")
    return base / "__init__.py" if base.is_dir() else base.with_name(base.name + ".py")


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported(path) -> frozenset:
    """Modules of this repository that a file names in its imports, also inside functions, or as text."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value, node.value.rpartition(".")[0], f"labs.{node.value}"}  # callbacks, and `lab_part`
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"labkit.{node.value.id}.{node.attr.lower()}")  # optim.LARS, loaded when it is asked for
    return frozenset(module for module in found if module.replace(".", "").isidentifier() and path_of(module).is_file())


@functools.cache
def used(lab: str) -> frozenset:
    """All modules that a lab's notebook and its parts reach."""
    [source] = (notebooks() / "src").glob(f"{lab}_*.py")
    reached, todo = set(), [source, *(notebooks() / "labs").glob(f"*{lab}.py")]
    while todo:
        new = imported(todo.pop()) - reached
        reached |= new
        todo += [path_of(module) for module in new]
    return frozenset(reached)


def test_what_shows_a_system_exists_and_its_lab_uses_it(table):
    for row in table[table["shown"] != "table"].itertuples():
        assert row.lab in course(), row.system
        module, name = row.where.split(":")
        here = set()
        for node in parsed(path_of(module)).body:
            here |= {node.name} if hasattr(node, "name") else set()
            here |= {part.id for part in getattr(node, "targets", ()) if isinstance(part, ast.Name)}
        assert name in here, f"{row.system}: {row.where}"
        assert module in used(row.lab), f"{row.system}: lab {row.lab} does not use {module}"
