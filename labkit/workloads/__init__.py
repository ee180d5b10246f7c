"""What a recipe trains on, by kind of data. Importing this does not import torch.

A workload is a module with: `NAMES` of its data and `MODELS` that train on it; `check(recipe)`, which refuses what it
cannot do; `steps_per_epoch(recipe)`; `load(recipe)`, the data with its name and checksum; `loaders(recipe, data,
seed)`, the training batches and the evaluation batches by part; `build(recipe, data)`, the network; `task(recipe, data,
model, evaluations)`, the Lightning module; `source_modules(recipe)`, whose code makes the result; where they apply,
`probe(recipe, data)`, a batch for the curvature, and `final(recipe, data, task)`, metrics of the end alone.

Images are here; others, and yours, are modules `workload_NAME.py` of `notebooks/workloads`."""

from types import ModuleType

from labkit import paths
from labkit.errors import choose
from labkit.workloads import images


def names() -> dict[str, ModuleType]:
    """The workload of each data set's name."""
    others = [paths.lab_part(name, "workloads") for name in paths.lab_parts("workload_", "workloads")]
    return {name: module for module in (images, *others) for name in module.NAMES}


def find(data: str) -> ModuleType:
    """The workload of a data set.

    Raises:
        RequestError: no workload knows that name."""
    found = names()
    choose("dataset", data, found)
    return found[data]
