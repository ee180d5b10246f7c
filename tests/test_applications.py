"""The applications as data: what a rule changes, what stays, and the counts of the published configurations."""

import dataclasses
import math
import subprocess
import sys

import pytest

from workloads import applications
from labkit import paths
from labkit.errors import RequestError


def test_they_import_without_torch():
    code = "import sys; from workloads import applications; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=paths.notebooks()).returncode == 0


@pytest.mark.parametrize("name", applications.NAMES)
def test_legw_scales_every_application(name):
    own = applications.get(name)
    base, top = own.at(own.ladder[0]), own.at(own.ladder[-1])
    k = own.ladder[-1] / own.ladder[0]
    assert base.batch == own.recipe.batch == own.ladder[0] and base.rate == own.recipe.rate
    assert top.rate == pytest.approx(base.rate * math.sqrt(k))
    assert top.warmup_steps == base.warmup_steps > 0  # a constant number of updates
    changed = {field.name for field in dataclasses.fields(base)
               if getattr(base, field.name) != getattr(top, field.name)}
    assert changed <= {"batch", "rate", "decay_options", "evaluate_every"}
    assert own.at(own.ladder[-1], "linear", rate=0.25).rate == 0.25 * k
    assert own.at(own.ladder[-1], "square_root").warmup_steps == 0


@pytest.mark.parametrize("name, batch, per_epoch", [("ptb-small", 20, 2323), ("ptb-small", 640, 72),
                                                     ("ptb-large", 20, 1327), ("ptb-large", 640, 41)])
def test_the_treebanks_steps_and_decay(name, batch, per_epoch):
    recipe = applications.get(name).at(batch)
    assert recipe.workload.steps_per_epoch(recipe) == per_epoch
    shape, total = dataclasses.replace(recipe, warmup_steps=0.0).schedule(), round(recipe.epochs)
    constant, factor = {"ptb-small": (4, 0.5), "ptb-large": (14, 1 / 1.15)}[name]
    for epoch in range(total):
        wanted = recipe.rate * factor ** max(epoch + 1 - constant, 0)
        assert shape(epoch * per_epoch) == pytest.approx(wanted) == shape((epoch + 1) * per_epoch - 1)
    assert recipe.steps == total * per_epoch


def test_the_long_warmup_is_five_epochs_and_none_at_the_baseline():
    own = applications.get("markov")
    top = own.at(128, "linear_with_warmup")
    assert top.warmup_steps / (own.recipe.workload.steps_per_epoch(own.recipe) / 16) == pytest.approx(5.0)
    assert own.at(8, "linear_with_warmup").warmup_steps == 0


def test_unknown_names_are_refused():
    with pytest.raises(RequestError, match="unknown application 'gpt'; allowed: mnist-lstm"):
        applications.get("gpt")
    with pytest.raises(RequestError, match="unknown scaling rule"):
        applications.get("markov").at(32, "cube")
