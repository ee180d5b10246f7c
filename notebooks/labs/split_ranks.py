"""What each rank of lab 02 does: for `run_ranks(split_ranks.placed, 4, "ddcc")` and the like.

Every rank makes the same small network and batch from a seed, computes the whole step alone, then its part of the split
step, and reports `error`, the largest difference of a gradient that it holds, relative to the largest gradient; and the
`messages` and `words` that it sent. `several` runs more of them in one launch."""

from copy import deepcopy
from functools import partial

import torch
from torch import distributed, nn
from torch.nn import functional as F

from labkit.errors import RequestError
from labkit.networks import tensor
from parallel.counting import Counting
from labkit.training.collectives import ProcessComm
from labs import cannon, splitting, zero

SHAPE, CLASSES = (4, 16, 16), 8  # of one image
DTYPES = {"float64": torch.float64, "float32": torch.float32}
loss = partial(F.cross_entropy, reduction="sum")


def network(dtype: str = "float64", seed: int = 0) -> list[nn.Sequential]:
    """Two convolutions and two fully connected layers, as units; channels divide among 2 and 4 ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        units = [
            nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(8, 8, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Flatten(), nn.Linear(8 * 4 * 4, 24), nn.Tanh()),
            nn.Sequential(nn.Linear(24, CLASSES)),
        ]
    return [unit.to(DTYPES[dtype]) for unit in units]


def batch(samples: int, dtype: str = "float64", seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [samples, 4, 16, 16] and classes [samples]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *SHAPE, generator=generator, dtype=torch.float64).to(DTYPES[dtype])
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def alone(samples: int, dtype: str) -> tuple[list[nn.Sequential], list[nn.Sequential], torch.Tensor, torch.Tensor]:
    """(units without gradients, the same with those of the whole batch in one process, x, y)."""
    units, (x, y) = network(dtype), batch(samples, dtype)
    whole = deepcopy(units)
    (loss(nn.Sequential(*whole)(x), y) / samples).backward()
    return units, whole, x, y


def _report(pairs, comm) -> dict:
    """`pairs` of gradients, (this rank's, the single process's)."""
    pairs = [*pairs]
    error = max(((mine - right).abs().max().item() for mine, right in pairs if right.numel()), default=0.0)
    largest = max((right.abs().max().item() for _, right in pairs if right.numel()), default=1.0)
    return {"error": error / largest, "messages": comm.messages, "words": comm.words}


def _parts(mine: nn.Module, whole: nn.Module, cut: str | None, comm) -> list[tuple]:
    """Pairs of gradients for `_report`: of a layer's part, and the same part of the whole layer's."""
    pairs = []
    for name, value in whole.named_parameters():
        right = tensor.held(name.split(".")[-1], value.grad, cut, comm) if cut else value.grad
        if right is not None:
            pairs.append((mine.get_parameter(name).grad, right))
    return pairs


def _gradients(model: nn.Module) -> list:
    return [parameter.grad for parameter in model.parameters()]


def data(samples: int = 16, dtype: str = "float64") -> dict:
    """Data parallelism, the smallest way: own samples, one all-reduce of all gradients. Any number of samples."""
    comm = ProcessComm()
    units, whole, x, y = alone(samples, dtype)
    model = nn.Sequential(*units)
    (loss(model(tensor.own(x, 0, comm)), tensor.own(y, 0, comm)) / samples).backward()
    tensor.all_reduce_gradients([*model.parameters()], comm)
    return _report(zip(_gradients(model), _gradients(nn.Sequential(*whole)), strict=True), comm)


def placed(letters: str, samples: int = 16, dtype: str = "float64") -> dict:
    """Each of the four layers split by its letter (see `labs.splitting`): "dddd" data, "ssdd" spatial, "crcr" model,
    "ddcc" hybrid."""
    comm = ProcessComm()
    units, whole, x, y = alone(samples, dtype)
    model = splitting.Split(units, letters, comm)
    part = model.step(x, y, loss)
    pairs = [pair for mine, right, letter in zip(model.units, whole, letters, strict=True)
             for pair in _parts(mine, right, splitting.CUTS.get(letter), comm)]  # fmt: skip
    return _report(pairs, comm) | {"loss": part.item()}


def tensor_pair(samples: int = 16, dtype: str = "float64") -> dict:
    """Megatron's pair: the first fully connected layer by columns, the second by rows, activations on every rank."""
    comm = ProcessComm()
    units, whole, x, y = alone(samples, dtype)
    images = nn.Sequential(*units[:2], nn.Flatten())(x)
    first, second = tensor.part(units[2][1], "columns", comm), tensor.part(units[3][0], "rows", comm)
    scores = tensor.total(second(torch.tanh(first(tensor.copy(images, comm)))), comm)
    (loss(scores, y) / samples).backward()
    pairs = [*_parts(first, whole[2][1], "columns", comm), *_parts(second, whole[3][0], "rows", comm)]
    convolutions = nn.Sequential(*units[:2]), nn.Sequential(*whole[:2])  # below the pair, the same on every rank
    return _report([*pairs, *zip(*map(_gradients, convolutions), strict=True)], comm)


def sharded(samples: int = 16, dtype: str = "float64") -> dict:
    """Sharded data parallelism by hand; `gathers`: of the parameters of each unit."""
    comm = ProcessComm()
    units, whole, x, y = alone(samples, dtype)
    model = nn.Sequential(*(zero.Sharded(unit, comm) for unit in units))
    (loss(model(tensor.own(x, 0, comm)), tensor.own(y, 0, comm)) / samples).backward()
    flat = [torch.cat([gradient.flatten() for gradient in _gradients(unit)]) for unit in whole]
    pairs = [(mine.shard.grad, right[mine.block]) for mine, right in zip(model, flat, strict=True)]
    return _report(pairs, comm) | {"gathers": [unit.gathers for unit in model]}


def fsdp(samples: int = 16, dtype: str = "float64") -> dict:
    """Sharded data parallelism by FSDP2; messages and words as rings send them, this rank's part, and `calls`."""
    return _by_torch(samples, dtype, zero.by_torch, lambda p: p.grad.full_tensor())


def ddp(samples: int = 16, dtype: str = "float64") -> dict:
    """Data parallelism by DistributedDataParallel, counted as `fsdp`."""
    return _by_torch(samples, dtype, lambda units: nn.parallel.DistributedDataParallel(nn.Sequential(*units)),
                     lambda p: p.grad)


def _by_torch(samples, dtype, make, gradient) -> dict:
    comm = ProcessComm()
    if samples % comm.size:  # torch averages the ranks' means, whatever number of samples each had
        raise RequestError(f"{samples} samples on {comm.size} ranks; torch's mean is right for equal shares only")
    units, whole, x, y = alone(samples, dtype)
    model = make(units)
    with Counting() as sent:
        F.cross_entropy(model(tensor.own(x, 0, comm)), tensor.own(y, 0, comm)).backward()
    messages, words = sent.traffic(comm.size)
    pairs = [(gradient(p), q) for p, q in zip(model.parameters(), _gradients(nn.Sequential(*whole)), strict=True)]
    return _report(pairs, comm) | {"messages": messages / comm.size, "words": words / comm.size, "calls": sent.calls}


def product(rows: int = 12, inputs: int = 8, outputs: int = 20, dtype: str = "float64") -> dict:
    """A fully connected layer y = x w with every matrix in P blocks, and its two gradients, by Cannon's algorithm."""
    comm = ProcessComm()
    generator = torch.Generator().manual_seed(2)
    x, w, dy = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])
                for shape in ((rows, inputs), (inputs, outputs), (rows, outputs)))  # fmt: skip
    mine = [cannon.block(matrix, comm).clone().requires_grad_() for matrix in (x, w)]
    y = cannon.multiply(*mine, comm)
    y.backward(cannon.block(dy, comm))
    pairs = [(y.detach(), x @ w), (mine[0].grad, dy @ w.T), (mine[1].grad, x.T @ dy)]
    return _report([(part, cannon.block(right, comm)) for part, right in pairs], comm)


def several(schemes: dict[str, tuple]) -> dict[str, dict]:
    """More schemes in one launch: name -> (function of this module by name, *arguments)."""
    results = {}
    for name, (function, *arguments) in schemes.items():
        results[name] = globals()[function](*arguments)
        distributed.barrier()
    return results
