"""What each rank of lab 06's compression does: for `run_ranks(compression_ranks.trained, 4, "topk", density=0.1)`.
`several` runs more of them in one launch."""

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from parallel.counting import Counting
from labkit.training.collectives import ProcessComm
from labkit.training.compression import Memory, State, exchange, hook, hook_of
from labs import compression_extras

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def network(dtype: str = "float32") -> nn.Sequential:
    """24-32-5 with tanh: 965 parameters, in two matrices and two vectors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 5)).to(DTYPES[dtype])


def batch(step: int, rank: int, dtype: str = "float32", samples: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's own points of 5 noisy classes: [samples, 24] and [samples]."""
    generator = torch.Generator().manual_seed(10_000 * step + rank)
    y = torch.randint(5, (samples,), generator=generator)
    x = torch.randn(samples, 24, generator=generator, dtype=torch.float64) + 2 * F.one_hot(y, 24)
    return x.to(DTYPES[dtype]), y


def state_of(name: str, worker: int | None = None, seed: int = 0, **options) -> State:
    """By name, also of the extras whose wires differ in length: threshold (tau), adacomp (width)."""
    if name == "adacomp":
        return compression_extras.AdaComp(**options, seed=seed, worker=worker)
    if name == "threshold":
        return State(compression_extras.threshold(**options), Memory(feedback=True), seed, worker)
    return hook_of(name, seed, worker=worker, **options)[0]


def trained(name: str, way: str = "ddp", steps: int = 4, dtype: str = "float32", rate: float = 0.1, **options) -> dict:
    """SGD for some `steps` by one method; every rank has its own samples.

    Args:
        way: "ddp" with our hook; "bare", a loop with `exchange`; "torch", DDP with torch's hook of that name, or none.

    Returns:
        weights [965]; calls: collectives of the last step, {(kind, elements): times}; but for "torch", payload, sent
        and step as `State` counted them; for "powersgd" factors: elements of the buffers that it all-reduced."""
    rank, model = distributed.get_rank(), network(dtype)
    wrapped = model if way == "bare" else nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    state = None
    if way == "torch" and name == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way == "torch" and name != "none":
        power, its_hook = hook_of(name, **options)
        wrapped.register_comm_hook(power, its_hook)
    elif way != "torch":
        state = state_of(name, **options)
        if way == "ddp":
            wrapped.register_comm_hook(state, hook)
    for step in range(steps):
        x, y = batch(step, rank, dtype)
        wrapped.zero_grad()
        loss = F.cross_entropy(wrapped(x), y)
        with Counting() as counted:  # of the backward pass only: DDP broadcasts how it has arranged its buckets
            loss.backward()
            if way == "bare":
                exchange([parameter.grad for parameter in model.parameters()], state)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
    report = {"weights": parameters_to_vector(model.parameters()).detach(), "calls": dict(counted.calls)}
    if way == "torch" and name == "powersgd":  # its collectives start on a thread of gloo, where nobody counts
        report["factors"] = sum(part.numel() for memory in (power.p_memory_dict, power.q_memory_dict)
                                for part in memory.values())
    return report | ({"payload": state.payload, "sent": state.sent, "step": state.step} if state else {})


def alone(name: str, ranks: int, steps: int = 4, dtype: str = "float32", rate: float = 0.1, **options) -> torch.Tensor:
    """Weights [965] of the same training with all ranks in this process."""
    states, model = [state_of(name, worker, **options) for worker in range(ranks)], network(dtype)
    for step in range(steps):
        gradients = []
        for rank in range(ranks):
            x, y = batch(step, rank, dtype)
            gradients.append(torch.autograd.grad(F.cross_entropy(model(x), y), [*model.parameters()]))
        with torch.no_grad():
            for parameter, mean in zip(model.parameters(), compression_extras.together(states, gradients), strict=True):
                parameter -= rate * mean
    return parameters_to_vector(model.parameters()).detach()


def overflow(size: float = 1e6) -> None:
    """A gradient that float16 cannot hold."""
    exchange([torch.tensor([1.0, size])], state_of("fp16"))


def sparse(array: np.ndarray, switch: bool = True) -> tuple[np.ndarray, list[int], int]:
    """`compression_extras.sparse_sum` of this rank's row of `array` [P, n], and the words counted by the comm."""
    comm = ProcessComm(torch.int32)
    total, words = compression_extras.sparse_sum(array[comm.rank], comm, switch)
    return total, words, comm.words


def factors(batch_size: int, inputs: int, outputs: int) -> dict:
    """The gradient of a fully connected layer, summed over the ranks: by gathering the matrices, and by gathering the
    factors x [B, inputs] and dy [B, outputs] and multiplying. `error` is relative; words: elements gathered."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    x, dy = (torch.randn(batch_size, n, generator=generator, dtype=torch.float64) for n in (inputs, outputs))
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    totals, words = [], []
    for parts in ([dy.T @ x], [x, dy]):
        with Counting() as counted:
            heard = [part.new_empty(size, *part.shape) for part in parts]
            for into, part in zip(heard, parts, strict=True):
                gather(into.flatten(0, 1), part)
        totals.append(heard[0].sum(0) if len(heard) == 1 else heard[1].flatten(0, 1).T @ heard[0].flatten(0, 1))
        words.append(sum(elements * times for (_, elements), times in counted.calls.items()))
    error = (totals[0] - totals[1]).abs().max() / totals[0].abs().max()
    return {"error": error.item(), "words of matrices": words[0], "words of factors": words[1]}


def several(calls: dict[str, tuple]) -> dict[str, object]:
    """More of them in one launch: name -> (function of this module by name, arguments, options)."""
    results = {}
    for name, (function, arguments, options) in calls.items():
        results[name] = globals()[function](*arguments, **options)
        distributed.barrier()
    return results
