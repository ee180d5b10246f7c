"""Where one training step spends its time: by kind of kernel, with the FLOPs and bytes of each kind.

Time is what torch.profiler saw: on a CPU an operator's own time, on a CUDA device that of the kernels it started. FLOPs
of matrix work are counted (`torch.utils.flop_counter`, and a formula for fused recurrent layers); for every other
kernel they are estimated as one per element of its largest tensor. Bytes are estimated as all tensors that go in plus
all that come out, as if no cache kept any. When not to use it: for small differences. The profiler slows a step of
many small operators (`profiled` against `seconds` says by how much); compare two versions with interleaved timings."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from labs.roofline import waited

# An operator's kind is the first pattern that its name begins with, `aten::` and outer underscores taken off.
KINDS = {
    "gemm/conv": r"(add)?(mm|mv|bmm|baddbmm)$|.*conv(olution|\dd_|_transpose)|.*rnn|.*lstm_cell|.*scaled_dot_product",
    "norm": r".*(batch|layer|group|instance|rms)_norm",
    "pooling": r".*pool",
    "reduction/loss": r"(log_)?softmax|nll_loss|cross_entropy|mse_loss|logsumexp|sum|mean|var|std|a?max$|a?min$|argm"
    r"|norm$|linalg|prod",
    "elementwise": r"(foreach_)?(add|r?sub|mul|div|neg$|pow|r?sqrt|exp2?$|expm1|log|abs|lerp|sign|where|clamp|threshold"
    r"|relu|leaky|gelu|silu|sigmoid|tanh|hardtanh|elu|dropout|bernoulli|[gl][te]$|eq$|ne$|maximum|minimum|fused)",
    "data movement": r"(to_)?copy|clone|contiguous|cat|stack|constant_pad|pad|fill|(new_)?(zero|ones|full)|gather|index"
    r"|scatter|embedding|flip|roll|repeat|(slice|select|unfold)_backward",
    "optimizer": r"(?!)",  # by place, not by name: everything inside the update
    "overhead": r"t$|view|reshape|as_strided|(new_)?empty|expand|permute|transpose|slice|select|(un)?squeeze|detach"
    r"|alias|split|chunk|unbind|linear|matmul|conv\dd$|lstm$|to$|flatten|resize|resolve|result_type|narrow|unsafe",
    "other": r"",
}
# A GPU's matrix units show in the names of its kernels: the shape of their instruction, or the library's word for it.
MATRIX_UNITS = re.compile(r"(?i)hmma|wgmma|gmma|tensorop|xmma|[hsibc](?:884|1688|16816|16832|8816)")


@dataclass
class Kind:
    """What the kernels of one kind took in one step: seconds, FLOPs, bytes."""

    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


@dataclass
class Trace:
    """One step by kind of kernel (`KINDS`). `overhead` is what computes nothing: Python, dispatch, views, an idle GPU.

    `seconds` is the fastest undisturbed step, `profiled` the fastest one under the profiler, which `kinds` splits.
    `matrix_units` is the share of kernel time in kernels that use them; None where that cannot be observed (CPU)."""

    seconds: float
    profiled: float
    kinds: dict[str, Kind]
    matrix_units: float | None = None

    @property
    def flops(self) -> float:
        """FLOPs of the step's matrix work; over `seconds` they are what the step achieves."""
        return self.kinds["gemm/conv"].flops


def trace(step: Callable, device: str = "cpu", repeats: int = 3) -> Trace:
    """Profile `repeats` steps, each after an undisturbed one, and count the work of one more.

    Of each sort the fastest is kept: an interruption only ever adds, and would be read as overhead.

    Args:
        step: `step(update)` takes one training step and enters the context `update()` around the optimizer's part;
            it can be called without. Its model trains meanwhile: the weights are not what they were."""
    plain, found = [], []
    waited(device, step)
    for _ in range(repeats):
        waited(device, step)
        begin = time.perf_counter()
        waited(device, step)
        plain.append(time.perf_counter() - begin)
        found.append(_profiled(step, device))
    with _Counter() as counter:
        step(counter.update)
    whole, seconds, units = min(found, key=lambda each: each[0])
    kinds = {kind: Kind(seconds[kind], *counter.work[kind]) for kind in KINDS}
    kinds["overhead"].seconds = max(0.0, whole - sum(kinds[kind].seconds for kind in KINDS if kind != "overhead"))
    return Trace(min(plain), whole, kinds, units)


def kind_of(operator: str) -> str:
    """The kind of an operator by its name, as profiler and dispatcher give it; what is not aten's is overhead."""
    if not operator.startswith("aten::"):
        return "overhead"
    name = operator.removeprefix("aten::").split(".")[0].strip("_")
    return next(kind for kind, pattern in KINDS.items() if re.match(pattern, name))


def _profiled(step: Callable, device: str) -> tuple[float, dict, float | None]:
    """(seconds of the step, seconds by kind, share of kernel time on matrix units)."""
    on_gpu, mark = device.startswith("cuda"), "labkit.update"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    profiler, kinds, units = profile(activities=activities, acc_events=True), dict.fromkeys(KINDS, 0.0), [0.0, 0.0]
    with _no_native_messages():
        profiler.start()
    begin = time.perf_counter()
    waited(device, step, lambda: record_function(mark))
    whole = time.perf_counter() - begin
    with _no_native_messages():
        profiler.stop()
    for event in profiler.events():
        kind, above = kind_of(event.name), event
        while above is not None:
            kind, above = "optimizer" if above.name == mark else kind, above.cpu_parent
        kernels = event.kernels if on_gpu else []
        kinds[kind] += 1e-6 * (sum(k.duration for k in kernels) if on_gpu else event.self_cpu_time_total)
        for kernel in kernels:
            units[bool(MATRIX_UNITS.search(kernel.name))] += kernel.duration
    return whole, kinds, units[1] / sum(units) if sum(units) else None


@contextlib.contextmanager
def _no_native_messages():
    """The profiler's library announces its start and stop on file descriptor 2, whatever its log level."""
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)


class _Counter(TorchDispatchMode):
    """Adds up [FLOPs, bytes] by kind for every operator below autograd."""

    def __init__(self):
        super().__init__()
        self.work, self.updating = {kind: [0.0, 0.0] for kind in KINDS}, False

    @contextlib.contextmanager
    def update(self):
        self.updating = True
        yield
        self.updating = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        kind = kind_of(func._schema.name)
        if kind != "overhead":
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            work = self.work["optimizer" if self.updating else kind]
            work[0] += _flops(func, args, kwargs or {}, out, max((x.numel() for x in tensors), default=0))
            work[1] += sum(x.numel() * x.element_size() for x in tensors)
        return out


def _flops(func, args, kwargs, out, largest: int) -> float:
    """FLOPs of one operator: torch's own count, 2 a weight and a step for a fused recurrent layer, else `largest`."""
    if func._overloadpacket in flop_registry:
        return flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
    if "_rnn" in func._schema.name:  # [steps, batch, features] or [batch, steps, features], then its weights
        weights = sum(x.numel() for x in tree_leaves(args[1:3]) if isinstance(x, torch.Tensor) and x.ndim == 2)
        return (4 if "backward" in func._schema.name else 2) * weights * args[0].shape[0] * args[0].shape[1]
    return float(largest)
