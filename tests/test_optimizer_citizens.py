"""LARS and LAMB as citizens of torch: what every optimizer there must bear, and what the fused path must not change."""

import copy
import math
import pickle
import socket
from dataclasses import replace
from importlib import util
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.errors import RequestError
from labkit.optim import LAMB, LARS, build, dialects
from labkit.optim.fused import LARGE, STACK
from labkit.optim.groups import parameter_groups
from labkit.optim.schedules import Schedule, to_torch

BOTH = pytest.mark.parametrize("optimizer_class", [LARS, LAMB])
RATE = Schedule(peak=1.0, total_steps=40, warmup_steps=8.0, decay="poly", power=2.0)
PEAK = {LARS: 5.0, LAMB: 0.02}
WORKERS = Path(__file__).parent / "workers"

# What both paths can do, and have to agree on at float32.
OPTIONS = [
    *[(LARS, {"convention": c, "nesterov": n, "decay": d})
      for c, n, d in product("ABC", (False, True), ("ratio", "outside"))],
    *[(LARS, {"convention": c, "momentum": 0.0}) for c in "ABC"],
    *[(LARS, {"convention": c, "trust_clip": True, "trust_coefficient": 0.05}) for c in "ABC"],
    (LARS, {"trust_bounds": (0.004, 0.02)}),
    *[(LARS, {"dialect": name}) for name in ("nus", "torchlars", "timm", "kozistr", "kozistr-3.9")],
    *[(LAMB, {"decay": d, "bias_correction": b})
      for d, b in product(("ratio", "outside", "before"), (True, False, "rate"))],
    *[(LAMB, {"dialect": name}) for name in dialects.LAMB],
]  # fmt: skip


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def data(samples: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, generator=generator)
    return x, torch.randint(0, 3, (samples,), generator=generator)


def mixed_tensors() -> list[nn.Parameter]:
    """Stacks of equal shapes (one longer than a stack may be), large tensors alone, a number, an empty tensor."""
    generator = torch.Generator().manual_seed(2)
    many = STACK // (128 * 128) + 1
    shapes = [(128, 128)] * many + [(64,)] * 5 + [(LARGE + 1,), (3, LARGE), (3, 2, 1, 1), (4, 3, 2, 2), (), (0, 4)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def walk(optimizer, parameters, steps: int) -> None:
    """Steps under a ramp and a decay with gradients drawn from a seed, the second tensor's at first 0."""
    generator = torch.Generator().manual_seed(3)
    peak = PEAK[type(optimizer)]
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * RATE(step)
        for i, p in enumerate(parameters):
            p.grad = torch.randn(p.shape, generator=generator).to(p) * (0.0 if i == 1 and step < 2 else 1.0)
        optimizer.step()


def largest_relative_difference(ours, theirs) -> float:
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.numel()]
    return max((a - b).norm().item() / max(b.norm().item(), 1e-30) for a, b in pairs)


@pytest.mark.parametrize("optimizer_class, options", OPTIONS)
def test_fused_and_foreach_agree(optimizer_class, options):
    ends = []
    for fused in (True, False):
        parameters = mixed_tensors()
        groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "adapt": False, "weight_decay": 0.1}]
        walk(optimizer_class(groups, lr=1.0, weight_decay=0.05, fused=fused, **options), parameters, 6)
        ends.append([p.detach() for p in parameters])
    assert largest_relative_difference(*ends) < 1e-6


@BOTH
def test_the_fused_path_is_really_taken(optimizer_class, monkeypatch):
    """Else the comparison above would compare one path with itself."""
    called = []
    kernel = "_fused_sgd_" if optimizer_class is LARS else "_fused_adam_"
    real = getattr(torch, kernel)
    monkeypatch.setattr(torch, kernel, lambda *args, **options: called.append(1) or real(*args, **options))
    for fused in (True, False):
        called.clear()
        walk(optimizer_class(parameters := mixed_tensors(), lr=1.0, fused=fused), parameters, 1)
        assert bool(called) == fused


@BOTH
@pytest.mark.parametrize("where", ["weight", "grad", "state"])
def test_memory_formats_change_nothing(optimizer_class, where):
    """A channels-last weight keeps the kernels, gradients and state of another layout leave them."""
    torch.manual_seed(4)
    plain, other = (nn.Parameter(torch.randn(4, 3, 2, 2)) for _ in range(2))
    with torch.no_grad():
        other.copy_(plain)
    optimizers = [optimizer_class([p], lr=PEAK[optimizer_class]) for p in (plain, other)]
    for step in range(6):
        if where == "weight" and step == 0:
            other.data = other.data.to(memory_format=torch.channels_last)
        for p in (plain, other):
            p.grad = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(step))
        if where != "state":
            other.grad = other.grad.to(memory_format=torch.channels_last)
        elif step == 3:
            for name, value in optimizers[1].state[other].items():
                if value.dim() == 4:
                    optimizers[1].state[other][name] = value.to(memory_format=torch.channels_last)
        for optimizer in optimizers:
            optimizer.step()
    assert torch.allclose(plain, other, rtol=1e-6, atol=1e-7)


@BOTH
def test_gradients_are_left_as_they_are(optimizer_class):
    for options in ({}, {"nesterov": True} if optimizer_class is LARS else {"max_grad_norm": 0.1}):
        parameters = mixed_tensors()
        optimizer = optimizer_class(parameters, lr=0.1, **options)
        for p in parameters:
            p.grad = torch.randn_like(p)
        kept = [p.grad.clone() for p in parameters]
        optimizer.step()
        assert all(torch.equal(p.grad, k) for p, k in zip(parameters, kept, strict=True))


@BOTH
@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy"])
def test_resume_is_bit_equal_with_groups_added_on_the_way(optimizer_class, how):
    parameters = mixed_tensors()
    optimizer = optimizer_class(parameters[:9], lr=1.0)
    walk(optimizer, parameters, 3)
    optimizer.add_param_group({"params": parameters[9:], "weight_decay": 0.2, "adapt": False})
    walk(optimizer, parameters, 3)
    if how == "state_dict":
        again = [nn.Parameter(p.detach().clone()) for p in parameters]
        resumed = optimizer_class([{"params": again[:9]}, {"params": again[9:]}], lr=1.0)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        both = [optimizer, *parameters]
        resumed, *again = pickle.loads(pickle.dumps(both)) if how == "pickle" else copy.deepcopy(both)
    for one, tensors in ((optimizer, parameters), (resumed, again)):
        walk(one, tensors, 4)
    assert all(torch.equal(p, q) for p, q in zip(parameters, again, strict=True))


@BOTH
def test_a_checkpoint_older_than_an_option_loads(optimizer_class):
    p = nn.Parameter(torch.ones(3))
    optimizer = optimizer_class([p], lr=0.1)
    saved = optimizer.state_dict()
    for name in ("exclude", "fused", "trust_bounds"):
        del saved["param_groups"][0][name]
    optimizer.load_state_dict(saved)
    p.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.param_groups[0]["exclude"] == "flag" and (p < 1).all()


@BOTH
def test_accumulated_gradients_are_those_of_the_large_batch(optimizer_class):
    x, y = data()
    ends = []
    for parts in (1, 4):
        model = small_network()
        optimizer = optimizer_class(parameter_groups(model, 0.1), lr=PEAK[optimizer_class])
        for _ in range(10):
            optimizer.zero_grad()
            for inputs, targets in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (F.cross_entropy(model(inputs), targets) / parts).backward()
            optimizer.step()
        ends.append([p.detach() for p in model.parameters()])
    assert largest_relative_difference(*ends) < 1e-5


@BOTH
def test_grad_scaler_unscales_and_skips_an_overflow(optimizer_class):
    x, y = data()
    plain, scaled = small_network(), small_network()
    optimizers = [optimizer_class(parameter_groups(m, 0.1), lr=PEAK[optimizer_class]) for m in (plain, scaled)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    for step in range(12):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        scaler.scale(F.cross_entropy(scaled(x), y)).backward()
        if step == 5:
            scaled[0].weight.grad[0, 0] = math.inf
        else:
            optimizers[0].step()
        before = scaler.get_scale()
        scaler.step(optimizers[1])
        scaler.update()
        assert scaler.get_scale() < before if step == 5 else scaler.get_scale() >= before
    assert largest_relative_difference(*([p.detach() for p in m.parameters()] for m in (scaled, plain))) < 1e-5


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_takes_either_path_to_the_same_weights(optimizer_class, dtype):
    ends = []
    for fused in (True, False):
        parameters = [nn.Parameter(p.detach().to(dtype)) for p in mixed_tensors()[-6:]]
        optimizer = optimizer_class(parameters, lr=1.0, fused=fused)
        walk(optimizer, parameters, 6)
        assert all(value.dtype == torch.float32 for state in optimizer.state.values() for value in state.values())
        ends.append([p.detach().float() for p in parameters])
    assert largest_relative_difference(*ends) < 2 * torch.finfo(dtype).eps


@BOTH
def test_a_closure_a_scheduler_and_a_rate_in_a_tensor(optimizer_class):
    x, y = data()
    ends = []
    for rate in (PEAK[optimizer_class], torch.tensor(PEAK[optimizer_class])):
        model = small_network()
        optimizer = optimizer_class(parameter_groups(model, 0.1), lr=rate)
        scheduler = to_torch(optimizer, replace(RATE, peak=PEAK[optimizer_class]))
        losses = []

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(20):
            losses.append(optimizer.step(closure).item())
            scheduler.step()
        assert losses[-1] < losses[0] - 0.1
        ends.append([p.detach() for p in model.parameters()])
    assert largest_relative_difference(*ends) < 1e-5


class NoReadBack(TorchDispatchMode):
    """Refuses whatever would make a GPU's host wait for a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default), func
        return func(*args, **(kwargs or {}))


@BOTH
@pytest.mark.parametrize("fused", [True, False])
def test_the_path_of_a_gpu_reads_nothing_back(optimizer_class, fused):
    extra = {"trust_clip": True} if optimizer_class is LARS else {"max_grad_norm": 1.0}
    parameters = mixed_tensors()
    optimizer = optimizer_class(parameters, lr=torch.tensor(0.1), fused=fused, **extra)
    for p in parameters:
        p.grad = torch.randn_like(p)
    if fused:  # the CPU's own path does read back, which shows that the mode can tell
        with pytest.raises(AssertionError, match="_local_scalar_dense"), NoReadBack():
            optimizer.step()
    else:
        with NoReadBack():
            optimizer.step()
            optimizer.step()


def test_through_lightning_with_clipping_and_accumulation(tmp_path):
    import pytorch_lightning as pl
    from torch.utils.data import DataLoader, TensorDataset

    class Task(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = small_network()

        def training_step(self, batch):
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return build.build("lamb", self.model, rate=0.02, weight_decay=0.1)

    x, y = data()
    task = Task()
    before = F.cross_entropy(task.model(x), y).item()
    pl.Trainer(
        max_epochs=10,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(task, DataLoader(TensorDataset(x, y), 6))
    assert F.cross_entropy(task.model(x), y).item() < before - 0.1


@pytest.fixture(scope="module")
def two_ranks(python, tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    output = tmp_path_factory.mktemp("ranks") / "ends.pt"
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [python(WORKERS / "sharded.py", output, env={**common, "RANK": str(rank)}) for rank in range(2)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=240)
        assert rank.returncode == 0, errors[-3000:]
    return torch.load(output)


@pytest.mark.parametrize("name", ["lars", "lars outside", "lamb", "lamb skip"])
@pytest.mark.parametrize("how", ["fsdp", "ddp"])
def test_two_ranks_equal_one_process(two_ranks, name, how):
    spec = util.spec_from_file_location("sharded", WORKERS / "sharded.py")
    sharded = util.module_from_spec(spec)
    spec.loader.exec_module(sharded)
    alone, together = sharded.train(name, "single"), two_ranks[name, how]
    assert alone.keys() == together.keys()
    for key, value in alone.items():
        assert torch.allclose(value, together[key], rtol=1e-10, atol=1e-10), key


@pytest.mark.parametrize("convention", ["A", "B", "C"])
def test_a_ramp_that_starts_at_rate_0_fills_large_and_small_velocities_alike(convention):
    """Clipped at the rate, every ratio is 1 there; a kernel for large tensors must not see it otherwise."""
    velocities = []
    for fused in (True, False):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size)) for size in ((200, 200), (10, 10))]
        optimizer = LARS(parameters, lr=0.0, dialect="timm", convention=convention, trust_clip=True, fused=fused)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        velocities.append([optimizer.state[parameter]["momentum_buffer"] for parameter in parameters])
    for one, other in zip(*velocities, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("convention", ["A", "B"])
def test_a_tiny_rate_times_ratio_is_not_lost_beside_one(convention):
    """Huge gradients (a summed loss) make ratios of 1e-13: the kernel's dampening would be 1 - 1e-17."""
    velocities = []
    for fused in (True, False):
        parameter = nn.Parameter(torch.ones(200, 200))
        optimizer = LARS([parameter], lr=1e-4, weight_decay=0.0, convention=convention, fused=fused)
        parameter.grad = torch.full_like(parameter, 1e9)
        optimizer.step()
        velocities.append(optimizer.state[parameter]["momentum_buffer"])
    torch.testing.assert_close(*velocities, rtol=1e-4, atol=0.0)  # as float32 norms agree


@pytest.mark.parametrize("optimizer_class", [LARS, LAMB])
def test_a_group_cannot_have_a_dialect_of_its_own(optimizer_class):
    with pytest.raises(RequestError, match="dialect is of the whole optimizer"):
        optimizer_class([{"params": [nn.Parameter(torch.ones(2))], "dialect": "timm"}], lr=0.1)
