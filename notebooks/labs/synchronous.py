"""Lab 04's studies: training on real ranks beside one process, step times of a barrier, what drops out, and how far
batch normalisation with few samples can be pushed. Each returns tables, and keeps them as evidence of a session."""

import itertools
import math
import tempfile
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy import integrate, stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

from labkit.datasets import images
from labkit.simulate.events import Compute, synchronous
from labkit.training.ranks import run_ranks
from labs import buckets, server_ranks, synchronous_ranks
from labs.rules_synchronous import harmonic
from labs.synchronous_nets import GhostNorm

WAYS = ("lightning", "ddp", "ring")


def shards(ranks: int, batch: int) -> list[int]:
    """Sizes of uneven shards, 1 : 2 : 3 ... as well as whole samples allow; each has one at least."""
    edges = [round(batch * rank * (rank + 1) / (ranks * (ranks + 1))) for rank in range(ranks + 1)]
    return [max(1, high - low) for low, high in itertools.pairwise(edges)]


def jobs(settings, ranks: int) -> dict:
    """What runs on so many ranks, by name: (function of `labs.synchronous_ranks`, arguments ...)."""
    steps, batch, counts = settings.steps, settings.batch, shards(ranks, settings.batch)
    made = {way: ("equal", way, steps, batch) for way in WAYS if way != "lightning" or ranks in settings.lightning}
    if ranks > 1:
        made |= {kind: ("normalised", kind, steps, batch) for kind in ("local", "synchronised")}
        made |= {mean: ("uneven", mean, steps, counts) for mean in ("plain", "weighted")}
        made |= {loss: ("gradient_factor", loss, batch) for loss in ("mean", "sum", "divided by the whole batch")}
        made |= {"join": ("joined", list(range(2, ranks + 2)))}
        made |= {name: ("dropout", settings.draws, name == "same masks") for name in ("same masks", "own masks")}
    return made


def on_ranks(lab, settings) -> dict[int, dict[str, list[dict]]]:
    """One launch for each number of ranks: {ranks: {job: what each rank reported}}; the identities as evidence."""
    found = {}
    for ranks in settings.ranks:
        tasks = jobs(settings, ranks)
        results = run_ranks(synchronous_ranks.several, ranks, tasks, timeout=300.0)
        found[ranks] = {name: [result[name] for result in results] for name in tasks}
        about = {"ranks": ranks, "steps": settings.steps, "batch": settings.batch}
        labels = {way: ("equal", {"way": way}) for way in WAYS}
        labels |= {kind: ("normalised", {"statistics": kind}) for kind in ("local", "synchronised")}
        labels |= {mean: ("uneven", {"mean": mean}) for mean in ("plain", "weighted")}
        for name, (evidence, config) in labels.items():
            reports = enumerate(found[ranks].get(name, ()))
            rows = [(metric, value, rank) for rank, one in reports for metric, value in one.items()]
            if rows:
                lab.evidence(evidence, rows, **config, **about)
    return found


def equal_table(found: dict) -> pd.DataFrame:
    """Largest relative difference of any parameter, by way and number of ranks."""
    names = {ranks: f"{ranks} rank{'s' * (ranks > 1)}" for ranks in found}
    rows = [{"way": way} | {names[ranks]: max(one["error"] for one in jobs[way]) if way in jobs else math.nan
                            for ranks, jobs in found.items()} for way in WAYS]  # fmt: skip
    return pd.DataFrame(rows).set_index("way")


def broken_table(found: dict, settings) -> pd.DataFrame:
    """What makes ranks differ from one process, and the cure: after the same updates, on the most ranks."""
    ranks = max(found)
    jobs, counts = found[ranks], " + ".join(map(str, shards(ranks, settings.batch)))

    def far(name, metric):
        return max(one[metric] for one in jobs[name])

    rows = [
        ("batch normalisation, local statistics", far("local", "whole error")),
        ("... against one process with ghost batches", far("local", "ghost error")),
        ("batch normalisation, synchronised", far("synchronised", "whole error")),
        (f"shards of {counts} samples, plain mean over ranks", far("plain", "error")),
        ("... weighted by P n / B", far("weighted", "error")),
    ]
    return pd.DataFrame(rows, columns=["training", "largest difference"])


def factor_table(found: dict) -> pd.DataFrame:
    """The first gradient over the right one, by how each rank's loss was normalised; `rest`: what is not parallel."""
    names = {"mean": "mean over its own samples", "sum": "sum over its own samples",
             "divided by the whole batch": "its sum, divided by the whole batch"}  # fmt: skip
    return pd.DataFrame([{"each rank's loss": text, "ranks": ranks, **jobs[name][0]}
                         for ranks, jobs in found.items() for name, text in names.items() if name in jobs])  # fmt: skip


def padded(samples: int, ranks: int) -> pd.DataFrame:
    """What DistributedSampler hands out in an epoch of `samples`: once filled up, once with the rest left out."""
    rows = []
    for name, drop in (("filled up (its default)", False), ("drop_last=True", True)):
        data = range(samples)
        every = [list(DistributedSampler(data, ranks, rank, shuffle=True, drop_last=drop)) for rank in range(ranks)]
        read = [sample for part in every for sample in part]
        twice = len(read) - len(set(read))
        rows.append({"sampler": name, "samples a rank": len(every[0]), "read twice": twice,
                     "left out": samples - len(set(read))})  # fmt: skip
    return pd.DataFrame(rows)


def expected(compute: Compute, workers: int, backup: int = 0) -> float:
    """Mean seconds until all but the `backup` slowest of `workers` are done: the mean of an order statistic.

    In closed form for exponential times (H_P - H_b) and for measured ones (a sum over the sorted samples), by an
    integral over the quantiles for log-normal ones. Workers are independent and alike."""
    if compute.kind == "constant":
        return compute.mean
    if compute.kind == "exponential":
        return compute.mean * (harmonic(workers) - harmonic(backup))
    place = stats.beta(workers - backup, backup + 1)  # of the quantile that the slowest one waited for has
    if compute.kind == "measured":
        times = np.sort(compute.samples)
        return float(np.diff(place.cdf(np.linspace(0, 1, len(times) + 1))) @ times)
    shift = math.log(compute.mean) - compute.sigma**2 / 2
    return integrate.quad(
        lambda z: place.pdf(stats.norm.cdf(z)) * stats.norm.pdf(z) * math.exp(shift + compute.sigma * z),
        -8, 9, limit=200, points=[0, stats.norm.ppf((workers - backup) / (workers + 1))],
    )[0]  # fmt: skip


def gaussian(mean: float, sigma: float, count: int = 4001) -> Compute:
    """Gaussian times, as `count` equally likely ones: their quantiles. For `sigma` below mean / 4: all are above 0."""
    return Compute("measured", samples=tuple(stats.norm.ppf((np.arange(count) + 0.5) / count, mean, sigma)))


def step_times(compute: Compute, workers: int, backup: int, steps: int, seed: int) -> np.ndarray:
    """Simulated seconds of each step."""
    return np.diff(synchronous(workers, steps, compute, backup=backup, seed=seed).when, prepend=0.0)


def simulated(lab, name: str, compute: Compute, cases: Sequence[tuple[int, int]], steps: int, seeds: Sequence[int]):
    """Mean step of each case (workers, backup) by the simulator, all seeds, and by formula; kept as evidence."""
    rows = []
    for workers, backup in cases:
        parts = [step_times(compute, workers, backup, steps, seed) for seed in seeds]
        for seed, part in zip(seeds, parts, strict=True):
            about = {"kind": name, "workers": workers, "backup": backup, "seed": seed, "steps": steps}
            rows_of_case = [("mean", part.mean(), steps), ("spread", part.std(ddof=1), steps)]
            lab.evidence("step time", rows_of_case, source="simulated", **about)
        every, formula = np.concatenate(parts), expected(compute, workers, backup)
        rows.append({"times": name, "workers": workers, "backup": backup, "mean": every.mean(), "formula": formula,
                     "standard error": every.std(ddof=1) / math.sqrt(len(every))})  # fmt: skip
    return pd.DataFrame(rows)


def real_backups(lab, workers: int = 4, steps: int = 8, sleep: float = 0.2) -> pd.DataFrame:
    """A synchronous server and `workers` on real processes, of which the last sleeps at every gradient: how many
    gradients of each counted, and how many were dropped, without and with one backup; kept as evidence."""
    rows = []
    for backup in (0, 1):
        options = {"backup": backup, "until": steps, "sleeps": {workers - 1: sleep}}
        with tempfile.TemporaryDirectory() as folder:
            report = run_ranks(server_ranks.train, workers + 1, folder, 20 * steps, 4 * workers, **options)[0]
        held = [update.worker for update in report.updates if update.staleness is not None]
        used = [held.count(worker) for worker in range(workers)]
        late, made = len(report.updates) - len(held), report.state["steps"]
        lab.evidence("real backups", [("used", n, worker) for worker, n in enumerate(used)] + [("dropped", late)],
                     workers=workers, backup=backup, steps=steps)  # fmt: skip
        names = {f"of worker {worker}": n for worker, n in enumerate(used)}
        rows.append({"backups": backup, "steps": made, **names, "arrived too late": late})
    return pd.DataFrame(rows)


def gradient_times(repeats: int, samples: int = 64, seed: int = 0) -> np.ndarray:
    """Seconds of `repeats` gradients of a small network on this machine, one after the other, after five to warm up."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    x, y, times = torch.randn(samples, 784), torch.randint(10, (samples,)), []
    for _ in range(repeats + 5):
        start = time.perf_counter()
        F.cross_entropy(model(x), y).backward()
        times.append(time.perf_counter() - start)
    return np.array(times[5:])


def measured_compute(times: Sequence[float]) -> Compute:
    """Measured times as a distribution of mean 1."""
    return Compute("measured", samples=tuple(np.asarray(times) / np.mean(times)))


def ready_times(lab, settings) -> pd.DataFrame:
    """`buckets.measured` with this lab's settings, kept as evidence."""
    table = buckets.measured(settings.bucket_samples, settings.bucket_repeats)
    rows = [(metric, row[metric], place) for place, row in table.iterrows() for metric in ("ready", "bytes")]
    lab.evidence("backward", rows, samples=settings.bucket_samples, repeats=settings.bucket_repeats)
    return table


def normalised_network(name: str, counts: Sequence[int]) -> nn.Sequential:
    """For images [n, 1, 28, 28]: two layers with batch normalisation over `counts` samples each. A channel of the
    `convolutions` has many positions in each sample, a unit of the `fully connected` network one."""
    if name == "convolutions":
        return nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(1, 8, 3), GhostNorm(8, counts), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3), GhostNorm(16, counts), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
        )  # fmt: skip
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, 64):
        layers += [nn.Linear(inputs, 64), nn.Unflatten(1, (64, 1, 1)), GhostNorm(64, counts), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def few_samples(lab, settings, seeds: Sequence[int]) -> pd.DataFrame:
    """Test accuracy, same batch and rate, by network and by the samples that share statistics; kept as evidence."""
    data, rows = images.load("mnist5k"), []
    parts = [torch.as_tensor(part).float() / 255 for part in (data.train_x, data.test_x)]
    x, test = ((part - data.mean) / data.std for part in parts)
    y, kinds = torch.as_tensor(data.train_y), torch.as_tensor(data.test_y)
    batch = settings.norm_batch
    for name, each, seed in itertools.product(("convolutions", "fully connected"), settings.norm_samples, seeds):
        torch.manual_seed(seed)
        model, order = normalised_network(name, [each] * (batch // each)), torch.Generator().manual_seed(seed)
        optimizer = torch.optim.SGD(model.parameters(), settings.norm_rate, 0.9)
        for _ in range(settings.norm_epochs):
            shuffled = torch.randperm(len(x), generator=order)
            for of_batch in shuffled[: len(x) // batch * batch].split(batch):
                optimizer.zero_grad()
                F.cross_entropy(model(x[of_batch]), y[of_batch]).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            right = float((model(test).argmax(1) == kinds).float().mean())
        about = {"network": name, "each": each, "seed": seed, "batch": batch, "rate": settings.norm_rate}
        lab.evidence("ghost training", [("test_accuracy", right)], epochs=settings.norm_epochs, **about)
        rows.append({"network": name, "samples a rank": each, "seed": seed, "test_accuracy": right})
    return pd.DataFrame(rows)
