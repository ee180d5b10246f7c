"""Gradients on their way while others are still computed: when each is ready, and what buckets make of it.

A bucket is a group of gradients that are summed over ranks in one all-reduce, as DistributedDataParallel does it. When
gradients are ready is measured in a real backward; what an all-reduce takes is the alpha-beta model of a ring
(`labkit.simulate.cost`). When not to use it: where computing slows down sending, as it does on one machine."""

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import pandas as pd
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from labkit.simulate import cost

MB = 2**20
WORD = 4  # bytes of a float32


class Link(NamedTuple):
    """Ranks in a ring, seconds per message, bytes a second."""

    ranks: int
    alpha: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        """Of one all-reduce of `size` bytes."""
        return cost.seconds("ring", -(-int(size) // WORD), self.ranks, self.alpha, WORD / self.bandwidth)


def relative(ranks: int, backward: float, size: float, share: float, latency: float) -> Link:
    """A link as fast as this machine computes: words of all gradients (`size` bytes) take `share` of the `backward`
    seconds, the messages of one all-reduce, however short, `latency` of them. So slow and fast machines compare."""
    rounds, words, _ = cost.counts("ring", -(-int(size) // WORD), ranks)
    return Link(ranks, latency * backward / rounds, words * WORD / (share * backward))


class Bucket(NamedTuple):
    """`gradients` (places in the order of getting ready), bytes, and seconds: full, on its way, through."""

    gradients: list
    size: float
    ready: float
    start: float
    end: float


def network() -> nn.Sequential:
    """For images [3, 32, 32]: six convolutions, two fully connected layers; 16 gradients, 1.2 million words."""
    layers, inputs = [], 3
    for place, channels in enumerate((32, 32, 64, 64, 128, 128)):
        layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()] + [nn.MaxPool2d(2)] * (place % 2)
        inputs = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 448), nn.ReLU(), nn.Linear(448, 10))


def measured(samples: int, repeats: int, seed: int = 0) -> pd.DataFrame:
    """One row a gradient, in the order in which a backward finishes them: name, bytes, and seconds since its begin, the
    median of `repeats` (after two that warm up); `spread` their standard deviation. The order is the last one seen."""
    torch.manual_seed(seed)
    model = network()
    x, y, seen = torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,)), {}

    def note(name):
        return lambda parameter: seen.setdefault(name, []).append(time.perf_counter())

    hooks = [p.register_post_accumulate_grad_hook(note(name)) for name, p in model.named_parameters()]
    starts = []
    for _ in range(repeats + 2):
        loss = F.cross_entropy(model(x), y)
        starts.append(time.perf_counter())
        loss.backward()
        model.zero_grad(set_to_none=False)
    for hook in hooks:
        hook.remove()
    sizes = {name: p.numel() * WORD for name, p in model.named_parameters()}
    after = {name: [at - start for at, start in zip(times, starts, strict=True)][2:] for name, times in seen.items()}
    order = sorted(after, key=lambda name: after[name][-1])
    rows = [(name, sizes[name], median(after[name]), pd.Series(after[name]).std(ddof=0)) for name in order]
    table = pd.DataFrame(rows, columns=["gradient", "bytes", "ready", "spread"])
    return table.assign(ready=table["ready"].cummax())  # medians of neighbours may swap by microseconds


def assign(sizes: Sequence[float], cap: float, first: float | None = None) -> list[list[int]]:
    """Places of `sizes` (bytes, in the order of getting ready) by bucket: one is full as soon as it holds `cap` bytes
    or more; the `first` one may be smaller. That is DistributedDataParallel's rule."""
    buckets, held, limit = [[]], 0.0, cap if first is None else first
    for place, size in enumerate(sizes):
        buckets[-1].append(place)
        held += size
        if held >= limit:
            buckets.append([])
            held, limit = 0.0, cap
    return [bucket for bucket in buckets if bucket]


def timeline(ready: Sequence[float], sizes: Sequence[float], cap: float, link: Link) -> list[Bucket]:
    """Each bucket on its way: after its last gradient is ready, and after the bucket before it is through."""
    made, free = [], 0.0
    for places in assign(sizes, cap):
        full, size = max(ready[place] for place in places), sum(sizes[place] for place in places)
        start = max(full, free)
        free = start + link.seconds(size)
        made.append(Bucket(places, size, full, start, free))
    return made


def sweep(ready: Sequence[float], sizes: Sequence[float], caps: Sequence[float], link: Link) -> pd.DataFrame:
    """Seconds from the begin of the backward until all gradients are summed, by bucket size in MB; one row a size, 0
    for each gradient on its own. `left MB` were not through when the backward was over."""
    rows = []
    for cap in caps:
        made = timeline(ready, sizes, cap * MB, link)
        left = sum(bucket.size for bucket in made if bucket.end > max(ready)) / MB
        rows.append((cap, len(made), made[-1].end, made[-1].end - max(ready), left))
    return pd.DataFrame(rows, columns=["bucket MB", "buckets", "seconds", "not hidden", "left MB"])


def size_text(size: float) -> str:
    """Bytes in MB of 2^20 bytes, as `bucket_cap_mb` counts, without exponents."""
    return f"{size / MB:.3f}" if size >= MB / 2000 else "< 0.001"


def ddp(caps: Sequence[float], samples: int = 2) -> list[dict]:
    """On a rank: buckets that DistributedDataParallel really sends with `bucket_cap_mb`, None its default. `names`: the
    gradients of each; `order`: in which they were ready in the step that DDP takes as its model, the first one.

    The first step's buckets follow the order of the layers backwards, the later ones' the order seen in the first."""
    found = []
    for cap in caps:
        torch.manual_seed(0)
        model, order, sent = network(), [], []
        names = {parameter: name for name, parameter in model.named_parameters()}
        for parameter, name in names.items():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name, order=order: order.append(name))
        wrapped = DistributedDataParallel(model, **({} if cap is None else {"bucket_cap_mb": cap}))

        def hook(state, bucket, sent=sent, names=names):
            sent.append([names[parameter] for parameter in bucket.parameters()])
            work = distributed.all_reduce(bucket.buffer().div_(distributed.get_world_size()), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        wrapped.register_comm_hook(None, hook)
        x, y = torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))
        for _ in range(3):
            sent.clear()
            F.cross_entropy(wrapped(x), y).backward()
        found.append({"cap": cap, "names": [sorted(names) for names in sent], "order": order[: len(names)]})
    return found
