"""What the ranks of tests/test_networks.py do: `run_ranks(network_ranks.rows, 3, ...)`."""

import torch
from labs import split_ranks, zero
from torch import distributed, nn
from torch.multiprocessing.reductions import StorageWeakRef

from labkit.networks import spatial, tensor
from parallel.counting import Counting
from labkit.training.collectives import ProcessComm


def random(*shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(layers: list[nn.Module], shape: tuple) -> list[dict]:
    """Each layer by rows against whole: largest differences of outputs and gradients, messages and words sent forward
    and, all in all, with the backward pass."""
    found = []
    for layer in layers:
        comm, layer = ProcessComm(), layer.double()
        for seed, parameter in enumerate(layer.parameters()):  # every rank has a generator of its own
            parameter.data.copy_(random(*parameter.shape, seed=seed))
        x = random(*shape, seed=3).requires_grad_()
        y = layer(x)
        dy = random(*y.shape, seed=4)
        y.backward(dy)
        whole = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        mine = tensor.own(x.detach(), 2, comm).clone().requires_grad_()
        first = tensor.collectives.blocks(shape[2], comm.size)[comm.rank].start * y.shape[2] // shape[2]
        part = spatial.by_rows(layer, mine, comm)
        forward = comm.messages, comm.words
        part.backward(dy.narrow(2, first, part.shape[2]))
        sent = comm.messages, comm.words
        if whole:
            tensor.all_reduce_gradients([*layer.parameters()], comm)
        pairs = [(part, y.narrow(2, first, part.shape[2])), (mine.grad, tensor.own(x.grad, 2, comm)),
                 *zip((p.grad for p in layer.parameters()), whole, strict=True)]
        found.append({"errors": [(a - b).abs().max().item() for a, b in pairs], "forward": forward, "sent": sent})
    return found


MAPS = {
    "copy": (lambda x, comm: tensor.copy(x, comm), (4, 8)),
    "total": (lambda x, comm: tensor.total(x, comm), (4, 8)),
    "gather": (lambda x, comm: tensor.gather(x, 1, comm), (4, 3)),
    "scatter_sum": (lambda x, comm: tensor.scatter_sum(x, 0, comm), (8, 3)),
    "exchange": (lambda x, comm: tensor.exchange(x, 0, 1, comm), (2, 8, 3)),
    "halo": (lambda x, comm: spatial.halo(x, 2, 1, comm), (2, 3, 4, 5)),
}


def products(name: str) -> tuple[float, float]:
    """(<A x, y>, <x, A' y>), this rank's part, for random x and y of its own; A' is the gradient of A. What is the same
    on all ranks, the input of `copy` and the output of `total`, is one vector, and counts once."""
    comm, (go, shape) = ProcessComm(), MAPS[name]
    once_in, once_out = name == "copy", name == "total"
    x = random(*shape, seed=0 if once_in else comm.rank).requires_grad_()
    image = go(x, comm)
    y = random(*image.shape, seed=10 + (0 if once_out else comm.rank))
    image.backward(y)
    forward, backward = (image * y).sum().item(), (x * x.grad).sum().item()
    return forward / (comm.size if once_out else 1), backward / (comm.size if once_in else 1)


def all_products() -> dict[str, tuple]:
    return {name: products(name) for name in MAPS}


def dtensor(samples: int = 16) -> dict:
    """The network's fully connected pair by torch: gradients against one process, and the collectives that it calls."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    comm = ProcessComm()
    units, whole, x, y = split_ranks.alone(samples, "float64")
    pair = nn.Sequential(units[2][1], nn.Tanh(), units[3][0])
    mesh = init_device_mesh("cpu", (comm.size,))
    parallelize_module(pair, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    images = nn.Sequential(*units[:2], nn.Flatten())(x)
    with Counting() as sent:
        (split_ranks.loss(pair(images), y) / samples).backward()
    alone = [whole[2][1].weight, whole[2][1].bias, whole[3][0].weight, whole[3][0].bias]
    errors = [(p.grad.full_tensor() - q.grad).abs().max().item() for p, q in zip(pair.parameters(), alone, strict=True)]
    errors.append((units[0][0].weight.grad - whole[0][0].weight.grad).abs().max().item())
    return {"error": max(errors), "calls": dict(sent.calls), "sent": sent.traffic(comm.size)}


def uncounted() -> None:
    with Counting():
        distributed.broadcast(torch.zeros(3), 0)


def wrong(mistake: str) -> float:
    """The error of a split step with one line of it made wrong."""
    if mistake == "gradients not added up":
        tensor._sum = lambda x, comm: x.clone()
        return split_ranks.tensor_pair()["error"]
    if mistake == "halo gradients dropped":
        spatial._return = lambda dy, above, below, comm, _: dy[:, :, above : dy.shape[2] - below].clone()
        return split_ranks.placed("ssdd")["error"]
    if mistake == "mean of unequal means":
        comm = ProcessComm()
        units, whole, x, y = split_ranks.alone(7, "float64")
        model, x, y = nn.Sequential(*units), tensor.own(x, 0, comm), tensor.own(y, 0, comm)
        (split_ranks.loss(model(x), y) / len(x) / comm.size).backward()
        tensor.all_reduce_gradients([*model.parameters()], comm)
        return max((p.grad - q.grad).abs().max().item()
                   for p, q in zip(model.parameters(), nn.Sequential(*whole).parameters(), strict=True))
    raise ValueError(mistake)


def dropped() -> tuple[list[bool], list[int]]:
    """After a sharded forward pass: is each unit's gathered storage gone; how many parameters does this rank hold."""
    gathered = []

    class Watched(zero.Sharded):
        def gather(self, shard):
            whole = super().gather(shard)
            gathered.append(StorageWeakRef(whole.untyped_storage()))
            return whole

    comm = ProcessComm()
    model = nn.Sequential(*(Watched(unit, comm) for unit in split_ranks.network()))
    scores = model(split_ranks.batch(4)[0])
    gone = [reference.expired() for reference in gathered]
    scores.sum().backward()
    return gone, [sum(p.numel() for p in unit.parameters()) for unit in model]
