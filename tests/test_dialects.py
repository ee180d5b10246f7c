"""Each dialect against its library: the rule as that library's code is built, and the library where it installs."""

import hashlib
import importlib
import math
import sys
from functools import partial
from importlib import metadata, util
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from labkit import paths
from labkit.optim import LAMB, LARS, dialects
from labkit.optim.schedules import Schedule

RATE = Schedule(peak=1.0, total_steps=60, warmup_steps=12.0, decay="poly", power=2.0)
SHAPES = [(7, 5), (4, 3), (6, 6), (5,)]  # the last one stands for biases: a group of its own, without decay
DECAY, MOMENTUM, BETAS = 0.05, 0.9, (0.9, 0.999)


def problem(seed: int = 0):
    """Noisy quadratics; tensor 1 starts at 0, tensor 2 has no gradient in the first five steps."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    weights[1] = np.zeros(SHAPES[1])
    curvature = [rng.uniform(0.05, 0.5, size=shape) for shape in SHAPES]
    noise = [[0.3 * rng.normal(size=shape) for shape in SHAPES] for _ in range(60)]

    def gradient_at(t, i, w):
        return np.zeros(SHAPES[i]) if i == 2 and t < 5 else curvature[i] * (w - 0.5) + noise[t][i]

    return weights, gradient_at


def walk(optimizer, parameters, gradient_at, peak):
    for t in range(60):
        for group in optimizer.param_groups:
            group["lr"] = peak * RATE(t)
        for i, p in enumerate(parameters):
            p.grad = torch.as_tensor(gradient_at(t, i, p.detach().numpy()))
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


def groups_of(weights, excluded=None):
    """Parameters and two groups; the second has no decay and what `excluded` adds."""
    parameters = [nn.Parameter(torch.tensor(w)) for w in weights]
    return parameters, [{"params": parameters[:3]}, {"params": parameters[3:], "weight_decay": 0.0, **(excluded or {})}]


def written_out(step, peak):
    """The weights after 60 steps of `step(w, g, state, rate, t, decay, vector, share)`, which returns the new w."""
    weights, gradient_at = problem()
    states = [{} for _ in weights]
    for t in range(60):
        grads = [gradient_at(t, i, w) for i, w in enumerate(weights)]
        total = math.sqrt(sum((g**2).sum() for g in grads))
        for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
            weights[i] = step(w, g, states[i], peak * RATE(t), t + 1, DECAY if i < 3 else 0.0, i == 3, total)
    return weights


def size(x):
    return math.sqrt((x * x).sum())


def sgd(w, d, state, rate):
    """What torch.optim.SGD does with a gradient that a wrapper has already scaled."""
    state["v"] = MOMENTUM * state["v"] + d if "v" in state else d.copy()
    return w - rate * state["v"]


def inside_the_velocity(ratio):
    """TF's optimizers: the scaled gradient times the rate is what the velocity takes up."""

    def step(w, g, state, rate, t, b, vector, total):
        d = g if vector else g + b * w
        r = 1.0 if vector else ratio(w, g, d, b)
        state["v"] = MOMENTUM * state.get("v", 0.0) + rate * r * d
        return w - state["v"]

    return step


def quotient(above, below):
    return above / below if above > 0 and below > 0 else 1.0


def larc(w, g, state, rate, t, b, vector, total):
    if size(w) and size(g):
        local = 0.02 * size(w) / (size(g) + b * size(w) + 1e-8)
        g = (g + b * w) * min(local / rate if rate else 1.0, 1.0)
    return sgd(w, g, state, rate)


def torchlars(w, g, state, rate, t, b, vector, total):
    r = 1e-3 * size(w) / (size(g) + b * size(w) + 1e-8) if size(w) and size(g) else 1.0
    return sgd(w, (g + b * w) * r, state, rate)


def bolts(eta):
    def step(w, g, state, rate, t, b, vector, total):
        if b and size(w) and size(g):
            g = (g + b * w) * (size(w) / (size(g) + b * size(w) + 1e-8)) * eta
        return sgd(w, g, state, rate)

    return step


def timm(w, g, state, rate, t, b, vector, total):
    return torchlars(w, g, state, rate, t, b, vector, total) if b else sgd(w, g, state, rate)


def kozistr(current):
    def step(w, g, state, rate, t, b, vector, total):
        if not vector:
            below = size(g) + DECAY * size(w) if current else size(g)
            g = (g + DECAY * w) * quotient(1e-3 * size(w), below)
        return sgd(w, g, state, rate)

    return step


def nus(w, g, state, rate, t, b, vector, total):
    r = 1.0 if vector or not (size(w) and size(g)) else 1e-3 * size(w) / (size(g) + b * size(w) + 1e-5)
    return sgd(w, g + b * w, state, rate * min(r, 50.0))


WRITTEN_LARS = {
    "paper": inside_the_velocity(lambda w, g, d, b: quotient(1e-3 * size(w), (size(g) + b * size(w)) * (size(g) > 0))),
    "mlperf": inside_the_velocity(
        lambda w, g, d, b: quotient(1e-3 * size(w), (size(g) + b * size(w) + 1e-7) * (size(g) > 0))
    ),
    "optax": inside_the_velocity(lambda w, g, d, b: quotient(1e-3 * size(w), size(d))),
    "noahgolmant": inside_the_velocity(lambda w, g, d, b: 1e-3 * size(w) / (size(g) + b * size(w))),
    "nus": nus,
    "apex": larc,
    "torchlars": torchlars,
    "timm": timm,
    "bolts": bolts(1e-3),
    "jettify": bolts(1e-2),
    "kozistr": kozistr(True),
    "kozistr-3.9": kozistr(False),
}
WRITTEN_LARS["tpu"] = WRITTEN_LARS["paper"]
# Of these the code excludes biases by a list of names or of groups; of the others by what the group or the shape is.
BY_FLAG = ("paper", "tpu", "mlperf", "optax", "noahgolmant", "nus")


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", dialects.LARS)
def test_lars_speaks_like_the_code_it_names(name, fused):
    weights, gradient_at = problem()
    parameters, groups = groups_of(weights, {"adapt": False} if name in BY_FLAG else None)
    if name.startswith("kozistr"):  # one group: what is a vector is what counts
        groups = parameters
    optimizer = LARS(groups, 1.0, MOMENTUM, DECAY, dialect=name, fused=fused)
    ours, expected = walk(optimizer, parameters, gradient_at, 0.2), written_out(WRITTEN_LARS[name], 0.2)
    assert max(np.abs(a - b).max() for a, b in zip(ours, expected, strict=True)) < 1e-10


def lamb_rule(*, corrected=True, clip=None, unit=False, skips=True, clamp=math.inf, first=False, before=False, eps=1e-6,
              below=0.0):  # fmt: skip
    def step(w, g, state, rate, t, b, vector, total):
        g = g / total if unit else g if clip is None else g / max(total / clip, 1.0)
        state["m"] = BETAS[0] * state.get("m", 0.0) + (1 - BETAS[0]) * g
        state["v"] = BETAS[1] * state.get("v", 0.0) + (1 - BETAS[1]) * g**2
        m, v = state["m"], state["v"]
        if corrected:
            m, v = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        u = m / (np.sqrt(v) + eps)
        if before:
            w = w * (1 - rate * b)
        else:
            u = u + b * w
        adapts = b > 0 or not skips
        ratio = min(size(w), clamp) / (size(u) + below) if adapts and size(w) and size(u) else 1.0
        return w - (rate / (1 - BETAS[0] ** t) if first else rate) * ratio * u

    return step


WRITTEN_LAMB = {
    "paper": lamb_rule(),
    "tfa": lamb_rule(),
    "tf-author": lamb_rule(corrected=False, clip=1.0),
    "keras": lamb_rule(before=True, skips=False, eps=1e-7),
    "apex": lamb_rule(clip=1.0),
    "timm": lamb_rule(clip=1.0),
    "nvlamb": lamb_rule(unit=True, skips=False),
    "jettify": lamb_rule(corrected=False, clamp=10.0, skips=False),
    "kozistr": lamb_rule(corrected=False, clamp=10.0, skips=False, first=True, before=True, below=1e-6),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", dialects.LAMB)
def test_lamb_speaks_like_the_code_it_names(name, fused):
    weights, gradient_at = problem()
    parameters, groups = groups_of(weights, {"adapt": False} if name in ("paper", "tfa") else None)
    optimizer = LAMB(groups, 1.0, BETAS, weight_decay=DECAY, dialect=name, fused=fused)
    ours, expected = walk(optimizer, parameters, gradient_at, 0.05), written_out(WRITTEN_LAMB[name], 0.05)
    assert max(np.abs(a - b).max() for a, b in zip(ours, expected, strict=True)) < 1e-10


def test_an_option_given_stands_before_the_dialect():
    p = nn.Parameter(torch.ones(2))
    group = LARS([p], 0.1, dialect="jettify", trust_coefficient=0.001).param_groups[0]
    assert (group["trust_coefficient"], group["convention"], group["exclude"]) == (0.001, "B", "undecayed")
    group = LAMB([p], 0.1, dialect="kozistr", phi_bounds=(0.0, math.inf), bias_correction=False).param_groups[0]
    assert (group["phi_bounds"], group["bias_correction"], group["decay"]) == ((0.0, math.inf), False, "before")
    assert LAMB([p], 0.1, dialect="tfa").param_groups[0]["max_grad_norm"] == math.inf


def test_dialects_name_only_options_that_exist():
    for table, optimizer_class in ((dialects.LARS, LARS), (dialects.LAMB, LAMB)):
        known = set(optimizer_class([nn.Parameter(torch.ones(2))], 0.1).defaults)
        for dialect in table.values():
            assert dialect.names and set(dialect.options) <= known & set(table["paper"].options)


@pytest.fixture(scope="module")
def timm_optim():
    """timm's optimizer files, loaded as a package of their own: timm as a whole needs torchvision."""
    spec = util.find_spec("timm")
    if spec is None or metadata.version("timm") != "1.0.31":
        pytest.skip("the dialects name timm 1.0.31, which is not installed")
    package = ModuleType("timm_optimizer_files")
    package.__path__ = [str(Path(spec.origin).parent / "optim")]
    sys.modules[package.__name__] = package
    yield lambda name: importlib.import_module(f"{package.__name__}.{name}")
    for name in [name for name in sys.modules if name.startswith(package.__name__)]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pytorch_optimizer():
    module = pytest.importorskip("pytorch_optimizer", reason="needs the public package pytorch_optimizer")
    if metadata.version("pytorch_optimizer") != "4.1.0":
        pytest.skip("the dialects name pytorch_optimizer 4.1.0, which is not installed")
    return module


def farthest(ours, theirs, peak):
    """The largest difference after 60 steps of two optimizers made by functions of groups."""
    ends = []
    for make in (ours, theirs):
        weights, gradient_at = problem(1)
        parameters, groups = groups_of(weights)
        ends.append(walk(make(groups), parameters, gradient_at, peak))
    return max(np.abs(a - b).max() for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("nesterov, foreach", list(product((False, True), repeat=2)))
def test_timm_lars_is_its_dialect(timm_optim, nesterov, foreach):
    theirs = timm_optim("lars").Lars
    assert farthest(
        lambda groups: LARS(groups, 1.0, 0.9, DECAY, dialect="timm", nesterov=nesterov),
        lambda groups: theirs(groups, 1.0, 0.9, weight_decay=DECAY, nesterov=nesterov, foreach=foreach),
        0.2,
    ) < 1e-12  # fmt: skip
    assert farthest(
        lambda groups: LARS(groups, 1.0, 0.9, DECAY),
        lambda groups: theirs(groups, 1.0, 0.9, weight_decay=DECAY, foreach=foreach),
        0.2,
    ) > 1e-4  # fmt: skip


def test_timm_larc_divides_the_ratio_one_of_a_zero_norm_by_the_rate(timm_optim):
    """Elsewhere it is LARC; at a rate of 8 a tensor that starts at 0 takes a step eight times shorter than apex's."""

    def move(make, weight):
        p = nn.Parameter(torch.full((2, 2), weight, dtype=torch.float64))
        p.grad = torch.ones(2, 2, dtype=torch.float64)
        make([p]).step()
        return p.detach()[0, 0].item() - weight

    def theirs(params):
        return timm_optim("lars").Lars(params, 8.0, 0.9, weight_decay=0.1, trust_clip=True, trust_coeff=0.02)

    def ours(params):
        return LARS(params, 8.0, 0.9, 0.1, dialect="apex")

    assert move(theirs, 3.0) == pytest.approx(move(ours, 3.0), rel=1e-12)
    assert move(theirs, 0.0) == pytest.approx(-1.0, rel=1e-12)
    assert move(ours, 0.0) == pytest.approx(-8.0, rel=1e-12)


@pytest.mark.parametrize("foreach", [False, True])
def test_timm_lamb_is_its_dialect(timm_optim, foreach):
    theirs = timm_optim("lamb").Lamb
    for extra, ours in (
        ({}, {}),
        ({"trust_clip": True}, {"trust_bounds": (0.0, 1.0)}),
        ({"always_adapt": True}, {"exclude": "flag"}),
        ({"decoupled_decay": True}, {"decay": "before"}),
        ({"bias_correction": False}, {"bias_correction": False}),
        ({"max_grad_norm": None}, {"max_grad_norm": math.inf}),
    ):
        assert farthest(
            lambda groups, ours=ours: LAMB(groups, 1.0, weight_decay=DECAY, dialect="timm", **ours),
            lambda groups, extra=extra: theirs(groups, 1.0, weight_decay=DECAY, foreach=foreach, **extra),
            0.05,
        ) < 1e-10, extra  # fmt: skip


@pytest.mark.parametrize("nesterov, foreach", list(product((False, True), repeat=2)))
def test_pytorch_optimizer_lars_is_its_dialect(pytorch_optimizer, nesterov, foreach):
    options = {"weight_decay": DECAY, "nesterov": nesterov}
    assert farthest(
        lambda groups: LARS(groups, 1.0, 0.9, dialect="kozistr", **options),
        lambda groups: pytorch_optimizer.LARS(groups, 1.0, momentum=0.9, foreach=foreach, **options),
        0.2,
    ) < 1e-12  # fmt: skip


def test_pytorch_optimizer_lars_starts_as_the_paper_does_and_overwrites_the_gradient(pytorch_optimizer):
    """3.9.0 seeded the velocity with the raw gradient, which made the first step 86 times too long."""
    ends = []
    theirs = partial(pytorch_optimizer.LARS, lr=0.5, weight_decay=1e-4)
    for make in (partial(LARS, lr=0.5), theirs):
        p = nn.Parameter(torch.linspace(-1.0, 2.0, 12, dtype=torch.float64).view(3, 4))
        p.grad = torch.linspace(0.3, -0.2, 12, dtype=torch.float64).view(3, 4)
        optimizer, kept = make([p]), p.grad.clone()
        optimizer.step()
        ends.append((p.detach(), torch.equal(p.grad, kept)))
    assert torch.allclose(ends[0][0], ends[1][0], rtol=1e-12)
    assert (ends[0][1], ends[1][1]) == (True, False)


@pytest.mark.parametrize("foreach", [False, True])
def test_pytorch_optimizer_lamb_is_its_dialect(pytorch_optimizer, foreach):
    for extra, ours in (
        ({}, {}),
        ({"weight_decouple": False}, {"decay": "ratio"}),
        ({"adam_debias": True}, {"bias_correction": False}),
    ):
        dialect = partial(LAMB, lr=1.0, weight_decay=DECAY, dialect="kozistr", **ours)
        theirs = partial(pytorch_optimizer.Lamb, lr=1.0, weight_decay=DECAY, foreach=foreach, **extra)
        assert farthest(dialect, theirs, 0.05) < 1e-10, extra


@pytest.mark.parametrize("scale, expected", [(1.0, [10.0, 5.26, 3.69, 2.91]), (461.0, [0.217])])
def test_pytorch_optimizer_lamb_does_correct_a_bias_and_clamps_the_norm(pytorch_optimizer, scale, expected):
    """Its first steps are 1 / (1 - beta1^t) times the rate times |w|, and a norm above 10 counts as 10."""
    ours = partial(LAMB, lr=1e-4, weight_decay=0.0, dialect="kozistr")
    for make in (ours, partial(pytorch_optimizer.Lamb, lr=1e-4)):
        p = nn.Parameter(torch.ones(4, 4, dtype=torch.float64) * scale / 4)
        optimizer = make([p])
        for times in expected:
            before = p.detach().clone()
            p.grad = torch.ones_like(p)
            optimizer.step()
            assert (p.detach() - before).norm().item() == pytest.approx(times * 1e-4 * before.norm().item(), rel=2e-3)


def test_pytorch_optimizer_lamb_pre_norm_scales_down(pytorch_optimizer):
    """3.9.0 divided by the factor that it should multiply by: a norm of 46 became 2127."""
    p = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    p.grad = torch.full((4, 4), 11.5, dtype=torch.float64)
    optimizer = pytorch_optimizer.Lamb([p], 0.1, pre_norm=True)
    optimizer.step()
    assert (optimizer.state[p]["exp_avg"] / 0.1).norm().item() == pytest.approx(1.0, rel=1e-5)


def test_a_changed_bundle_changes_the_fingerprint_of_runs():
    """Fingerprints cover code, so the code names the sum of the data that it reads."""
    content = (paths.data() / "dialects.yaml").read_bytes()
    assert hashlib.sha256(content).hexdigest().startswith(dialects.SHA256), "write the new sum into dialects.SHA256"
