"""What the tests of averaging and gossip run on ranks: small problems in a bare loop, in float64, without Lightning."""

from functools import partial

import torch
from torch import distributed as dist
from torch import nn

from parallel.counting import Counting
from parallel.joined import even_steps
from labkit.training import averaging, compression, gossip, wrapper
from labkit.training.wrapper import flatten
from labs import mix_extras, mix_ranks

SIZE = 5
METHODS = {"local": averaging.LocalSGD, "elastic": averaging.ElasticAveraging, "gossip": gossip.Gossip,
           "block": mix_extras.BlockMomentum}


def numbers(rank, steps, size=SIZE):
    """Targets of a rank's quadratic loss, one for each step: [steps, size]."""
    return torch.randn(steps, size, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def quadratic(method, options, steps=7, rate=0.3, momentum=0.0, optimizer="SGD"):
    """A rank's parameters after every step of 1/2 |w - target|^2, in two tensors; and what was all-reduced."""
    targets = numbers(wrapper.world()[0], steps)
    weights = [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in (2, SIZE - 2)]
    inner = (torch.optim.SGD(weights, rate, momentum) if optimizer == "SGD"
             else getattr(torch.optim, optimizer)(weights, rate))
    wrapped, path = METHODS[method](inner, **options), []
    with Counting() as sent:
        for target in targets:
            wrapped.zero_grad()
            (0.5 * (torch.cat(weights) - target).square().sum()).backward()
            wrapped.step()
            path.append(flatten(weights))
    centre = getattr(wrapped, "centre", None)
    return torch.stack(path), centre, dict(sent.calls)


def several(calls):
    return [quadratic(*args, **options) for args, options in calls]


def gossiped(topology, steps, momentum=0.0):
    """(path, messages, words) of `quadratic` by gossip, counted by the wrapper."""
    targets = numbers(dist.get_rank(), steps)
    weight = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    wrapped, path = gossip.Gossip(torch.optim.SGD([weight], 0.3, momentum), topology), []
    for target in targets:
        wrapped.zero_grad()
        (0.5 * (weight - target).square().sum()).backward()
        wrapped.step()
        path.append(weight.detach().clone())
    return torch.stack(path), wrapped.messages, wrapped.words


def statistics(method, options, given):
    """BatchNorm's running mean and its counter of batches, on every rank, after one step; rank r saw the constant r."""
    layer = nn.BatchNorm1d(3)
    wrapped = METHODS[method](torch.optim.SGD(layer.parameters(), 0.1), **options,
                              buffers=layer.buffers() if given else ())
    layer(torch.full((4, 3), float(dist.get_rank()))).sum().backward()
    wrapped.step()
    return layer.running_mean.tolist(), int(layer.num_batches_tracked)


def poisoned(method, options, who, step=2):
    """Rank `who` meets NaN in its gradient."""
    weight = nn.Parameter(torch.zeros(3))
    wrapped = METHODS[method](torch.optim.SGD([weight], 0.1), **options)
    for at in range(5):
        weight.grad = torch.full((3,), float("nan") if (dist.get_rank(), at) == (who, step) else 1.0)
        wrapped.step()


def poisoned_hook(name, way, who):
    """Rank `who` meets NaN in its gradient, under DDP with a hook of `hook_of`, or in a bare loop with `exchange`."""
    state, hook = compression.hook_of(name)
    model = nn.Linear(3, 2)
    wrapped = nn.parallel.DistributedDataParallel(model) if way == "hook" else model
    if way == "hook":
        wrapped.register_comm_hook(state, hook)
    wrapped(torch.full((4, 3), float("nan") if dist.get_rank() == who else 1.0)).sum().backward()
    if way == "exchange":
        compression.exchange([parameter.grad for parameter in model.parameters()], state)


def without_gradients(steps=3):
    """The synchronous part of post-local SGD, with weight decay, on five weights of 1: frozen; unused; used on rank 0
    only; used with a gradient of 0; used. Returns them, and which have a gradient in the end."""
    weights = [nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=at > 0) for at in range(5)]
    wrapped = averaging.LocalSGD(torch.optim.SGD(weights, 0.1, weight_decay=0.5), 2, begin=steps)
    for _ in range(steps):
        wrapped.zero_grad()
        frozen, unused, seldom, nothing, used = weights
        loss = 0 * nothing.sum() + (dist.get_rank() + frozen * used).sum()
        (loss + seldom.sum() if dist.get_rank() == 0 else loss).backward()
        wrapped.step()
    return torch.stack([weight.detach() for weight in weights]), [weight.grad is not None for weight in weights]


def uneven(counts, agreed):
    """Averaging in every step of an epoch that has another number of batches on every rank: how many were read."""
    count = counts[dist.get_rank()]
    weight = nn.Parameter(torch.zeros(3))
    wrapped = averaging.LocalSGD(torch.optim.SGD([weight], 0.1), 1)
    steps = even_steps(count) if agreed else count
    for _ in range(steps):
        weight.grad = torch.ones(3)
        wrapped.step()
    return steps


def looped():
    """`mix_ranks.train`: six steps of gossip on a small regression, each rank its own data."""
    torch.manual_seed(0)
    model, generator = nn.Linear(3, 1), torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(8, 3, generator=generator) for _ in range(6)]
    return mix_ranks.train(partial(gossip.Gossip, topology="ring"), model,
                           lambda model, x: (model(x) - x[:, :1]).square().mean(), batches, rate=0.1, every=2)
