"""Steps of LARS and LAMB against torch's fused SGD and AdamW, and against the public implementations, on one thread.

Two models: the 161 tensors of a ResNet-50, where memory decides, and 150 small tensors, where the cost of a call does.
Every optimizer steps its own copy of the tensors, with gradients that stay; a reading is the fastest of a few steps.
"""

import importlib
import itertools
import sys
import time
from functools import partial
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from labkit.optim import LAMB, LARS


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of convolutions without bias, batch norms and the classifier: 161 tensors, 25 557 032 numbers."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            into_sum = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            for shape in into_sum + ([(4 * width, inputs, 1, 1)] if block == 0 else []):
                shapes += [shape, shape[:1], shape[:1]]
            inputs = 4 * width
    return shapes + [(1000, 2048), (1000,)]


MODELS = {"ResNet-50": (resnet50(), 3), "150 small": ([(64, 64), (64,)] * 75, 40)}
AIMS = {("lars", "ResNet-50"): "<= 1.7", ("lamb", "ResNet-50"): "<= 2.1", ("lars", "150 small"): "<= 2.7",
        ("lamb", "150 small"): "<= 3"}  # fmt: skip
RULES = {"lars": (LARS, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-4}),
         "lamb": (LAMB, torch.optim.AdamW, {"weight_decay": 0.01})}  # fmt: skip


def steps(make, model: str):
    """A call that steps a new optimizer of the model's tensors: the fewest (wall, processor) seconds of a step."""
    shapes, repeats = MODELS[model]
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in shapes]
    for p in parameters:
        p.grad = 0.01 * torch.randn(p.shape, generator=generator)
    optimizer = make(parameters)

    def run() -> tuple[float, float]:
        taken = []
        for _ in range(repeats):
            wall, processor = time.perf_counter(), time.process_time()
            optimizer.step()
            taken.append((time.perf_counter() - wall, time.process_time() - processor))
        return min(row[0] for row in taken), min(row[1] for row in taken)

    return run


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rule", RULES)
def bench_against_torch(compare, rule, model):
    ours, theirs, options = RULES[rule]
    compare(
        f"{rule.upper()} / {theirs.__name__}(fused=True), {model}",
        AIMS[rule, model],
        steps(lambda parameters: ours(parameters, 1e-6, **options), model),
        steps(lambda parameters: theirs(parameters, 1e-6, fused=True, **options), model),
        pairs=15,
    )


def peers(rule: str) -> dict:
    """The rule's public optimizers by package, those that are installed."""
    found = {}
    if (spec := util.find_spec("timm")) is not None:  # its optimizer files alone: timm as a whole needs torchvision
        package = ModuleType("timm_optimizer_files")
        package.__path__ = [str(Path(spec.origin).parent / "optim")]
        sys.modules[package.__name__] = package
        found["timm"] = getattr(importlib.import_module(f"{package.__name__}.{rule}"), rule.capitalize())
    if util.find_spec("pytorch_optimizer") is not None:
        import pytorch_optimizer

        found["pytorch_optimizer"] = {"lars": pytorch_optimizer.LARS, "lamb": pytorch_optimizer.Lamb}[rule]
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rule", RULES)
def bench_against_public_peers(compare, rule, model):
    ours, _, options = RULES[rule]
    for (package, theirs), foreach in itertools.product(peers(rule).items(), (False, True)):
        dialect = {"timm": "timm", "pytorch_optimizer": "kozistr"}[package]
        both = [partial(ours, lr=1e-6, dialect=dialect), partial(theirs, lr=1e-6, foreach=foreach)]
        compare(
            f"{package} {metadata.version(package)} foreach={foreach} / {rule.upper()}, {model}",
            ">= 1.5",
            *(steps(partial(make, **options), model) for make in both),
            speedup=True,
        )
