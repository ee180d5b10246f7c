"""Lab 06's sweeps and counts: they train, count and record evidence. `labs.talking_tables` reads it back."""

import math

import numpy as np
import pandas as pd
import torch

from labkit.progress import Progress
from labkit.simulate import traced
from labkit.training import gossip
from labkit.training.compression import hook_of
from labkit.training.ranks import run_ranks
from labs import compression_extras, mix_ranks, phase, plan06, robust, talking, talking_ranks
from labs.compression_extras import sparse_sum

REAL = ("dense", "fp16", "1-bit", "QSGD 4 levels", "TernGrad", "top-k 1 %", "DGC 1 %", "PowerSGD rank 1")
POINTS = (4e6, 1e9)  # bytes a second of the two links


def _rows(run: talking.Trained) -> list[tuple]:
    parts = {"validation": run.validation, "test": run.test, "reached": run.reached, "spread": run.spread}
    rows = [(name, float(value)) for name, values in parts.items() for value in values]
    return [*((name, value if value == value else math.inf) for name, value in rows), ("sent", run.sent)]


def trainings(lab, settings, digits: talking.Digits) -> None:
    """Every compressor, period and graph at its rates, for the session's seeds."""
    seeds, common = lab.repeats(settings.seeds), {"steps": settings.steps, "target": settings.target}
    told = {"steps": settings.steps, "train": settings.train}
    jobs = []
    for seed in seeds:
        for method in talking.METHODS.values():
            rates = plan06.rates(settings, method.scale)
            jobs.append(("compressed", {"method": method.label, "workers": 4, "rates": rates, "seed": seed},
                         lambda m=method, r=rates, s=seed: talking.compressed(digits, m, r, seed=s, **common)))
        rates = plan06.rates(settings)
        for way in ("averaging", "elastic"):
            for tau in settings.periods:
                jobs.append(("periods", {"way": way, "tau": tau, "workers": 4, "rates": rates, "seed": seed},
                             lambda w=way, t=tau, r=rates, s=seed: talking.averaged(digits, w, t, r, seed=s, **common)))
        for graph in settings.graphs:
            size = settings.graph_workers
            jobs.append(("graphs", {"graph": graph, "workers": size, "rates": rates, "seed": seed},
                         lambda g=graph, r=rates, s=seed, p=size: talking.gossiped(
                             digits, g, r, seed=s, workers=p, batch=64 // p, **common)))
    with Progress(len(jobs), "training") as progress:
        for at, (name, config, job) in enumerate(jobs):
            lab.evidence(name, _rows(job()), **config, **told)
            progress.update(at + 1)
        progress.close(f"training: {len(jobs)} methods, each at all of its rates")


def moments(lab, draws: int, words: int = 2000) -> pd.DataFrame:
    """Bias and variance of random wires of one normal vector; `bias` is 1 by chance alone, large if there is any."""
    vector = torch.randn(words, generator=torch.Generator().manual_seed(lab.seeds[0]))
    cases = [("qsgd", s, {"levels": s, "bucket": 0}) for s in (1, 4, 16)] + [("terngrad", 1, {})]
    rows = []
    for name, levels, options in cases:
        compressor = hook_of(name, worker=0, **options)[0].compressor
        generator = torch.Generator().manual_seed(lab.seeds[0] + 1)
        heard = torch.stack([compressor.decode(compressor.encode(vector, generator), vector) for _ in range(draws)])
        square, off = vector.square().sum(), (heard.mean(0) - vector).square().sum()
        each = (heard - vector).square().sum(1).mean()
        row = {"bias": float(off / (each / draws)), "variance": float(each / square)}
        if name == "qsgd":
            row["bound"] = min(words / levels**2, math.sqrt(words) / levels)
        lab.evidence("moments", list(row.items()), compressor=name, levels=levels, draws=draws, words=words)
        rows.append({"compressor": name, "levels": levels, **row})
    return pd.DataFrame(rows)


def toy(lab) -> pd.DataFrame:
    """Distance from the minimum after 400 steps of signs, from 1, with feedback and without."""
    rows = [{"rate": rate, "without": compression_extras.signs_alone(False, rate),
             "with": compression_extras.signs_alone(True, rate)} for rate in (0.001, 0.003, 0.01, 0.03)]
    lab.evidence("toy", [(name, row[name]) for row in rows for name in ("without", "with")])
    return pd.DataFrame(rows)


def union(lab, density: float = 0.03, words: int = 10_000, ranks=(2, 4, 8, 16, 32, 64)) -> pd.DataFrame:
    """Sums of sparse vectors with independent places, on virtual ranks: the density of the sum, and a rank's words."""
    random, rows = np.random.default_rng(lab.seeds[0]), []
    for size in ranks:
        array = np.zeros((size, words), np.float32)
        for row in array:
            row[random.choice(words, round(density * words), replace=False)] = 1.0
        row = {"P": size, "union": float((array.sum(0) > 0).mean()),
               "formula": compression_extras.union_density(density, size)}
        for name, switch in (("switched", True), ("sparse", False)):
            done = traced.run(lambda comm, a=array, s=switch: sparse_sum(a[comm.rank], comm, s), size, limit=60)
            row[name] = float(np.mean([sum(counted) for _, counted in done.results]))
        rows.append({**row, "dense": math.log2(size) * (words + 1)})
    counted = [(name, row[name], row["P"]) for row in rows for name in ("union", "switched", "sparse")]
    lab.evidence("union", counted, density=density, words=words)
    return pd.DataFrame(rows)


def supports(lab, settings, digits: talking.Digits, ranks=(4, 16), density: float = 0.01) -> pd.DataFrame:
    """Union of the largest entries of real workers' gradients of the first layer, after 32 steps, and its ratio to that
    of independent places."""
    rows = []
    for seed in lab.repeats(settings.seeds):
        start = talking.compressed(digits, talking.METHODS["dense"], [0.25], steps=32, seed=seed).weights
        for size in ranks:
            nets, at = talking.Nets(size, seed), talking.draws(len(digits.train[1]), size, 1, 16, seed + 1)[0]
            nets.weights = [part.repeat(size, *[1] * (part.dim() - 1)) for part in start]
            first = nets.gradient(digits.train[0][at], digits.train[1][at])[0].flatten(1)
            k = round(density * first.shape[1])
            found = len(first.abs().topk(k, 1).indices.unique()) / first.shape[1]
            ratio = found / compression_extras.union_density(k / first.shape[1], size)
            rows.append({"seed": seed, "P": size, "union": found, "ratio": ratio})
        own = [("ratio", row["ratio"], row["P"]) for row in rows if row["seed"] == seed]
        lab.evidence("supports", own, seed=seed, train=settings.train, density=density)
    return pd.DataFrame(rows)


def graphs(lab, ranks=(4, 8, 16, 32)) -> pd.DataFrame:
    """Disagreement per round on the ring in the long run, and what the one-peer graph leaves after lg P rounds."""
    rows = []
    for size in ranks:
        path = mix_ranks.decay_alone([gossip.ring(size)], 40 * size)
        at = next((n for n, value in enumerate(path) if value < 1e-9 * path[0]), len(path) - 1)  # then rounding counts
        rows.append({"P": size, "decay": (path[at] / path[at // 2]) ** (1 / (at - at // 2)),
                     "formula": 1 / 3 + 2 / 3 * math.cos(2 * math.pi / size),
                     "second eigenvalue": gossip.second_eigenvalue(gossip.ring(size))})
    lab.evidence("decay", [("decay", row["decay"], row["P"]) for row in rows], graph="ring")
    left = []
    for size in (2, *ranks):
        path = mix_ranks.decay_alone(gossip.one_peer(size), size.bit_length() - 1)
        left.append(("left", path[-1] / path[0], size))
    lab.evidence("mixes", left)
    return pd.DataFrame(rows)


def real(lab, settings, rate: float = 0.25) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(the same trainings on real ranks, with differences relative to the farthest that a parameter moved; gossip on
    them, local SGD against synchronous SGD, and factors: what was found and what should be)."""
    size, steps, rows, checks = settings.ranks, settings.rank_steps, [], []
    small = talking.Digits.load(1024)
    found = run_ranks(talking_ranks.compared, size, list(REAL), rate, steps, timeout=120)
    for label in REAL:
        alone = talking.compressed(small, talking.METHODS[label], [rate], workers=size, steps=steps)
        vector = torch.cat([part.flatten() for part in alone.weights])
        told = [report[label] for report in found]
        errors = [float((part["weights"] - vector).abs().max() / part["moved"]) for part in told]
        counted = [(name, value, rank) for name, values in (("error", errors), ("moved", [t["moved"] for t in told]),
                                                            ("sent", [t["sent"] for t in told]))
                   for rank, value in enumerate(values)]
        lab.evidence("real", [*counted, ("sent_alone", alone.sent)], method=label, ranks=size, steps=steps, rate=rate)
        rows.append({"method": label, "moved": told[0]["moved"], "largest difference": max(errors),
                     "bytes of a rank": told[0]["sent"], "in one process": alone.sent})
    reports = run_ranks(talking_ranks.several, size)
    ring, left = reports[0]["ring"], reports[0]["one-peer"]
    if size >= 4:  # smaller rings are no rings
        lab.evidence("decay", [("decay", (ring[-1] / ring[0]) ** (1 / (len(ring) - 1)), size)], graph="ring", real=True)
        checks.append(("gossip on the ring: disagreement after a round, over before", (ring[-1] / ring[0]) ** (
            1 / (len(ring) - 1)), 1 / 3 + 2 / 3 * math.cos(2 * math.pi / size), "S34"))
    if size & (size - 1) == 0:  # the claim is about powers of two
        lab.evidence("mixes", [("left", left[-1] / left[0], size)], real=True)
        rounds = f"{len(left) - 1} round{'s' * (len(left) != 2)}"
        checks.append((f"one-peer gossip: what is left after {rounds}", left[-1] / left[0], 0.0, "S35"))
    equal = [(name, value, rank) for rank, report in enumerate(reports)
             for name, value in zip(("synchronous_error", "moved"), report["synchronous"], strict=True)]
    lab.evidence("equal", equal, ranks=size)
    checks.append(("averaging after every step against synchronous SGD: largest difference",
                   max(report["synchronous"][0] for report in reports), 0.0, "S41"))
    for at, ((batch, inputs, outputs), _) in enumerate(reports[0]["factors"]):
        counts = [report["factors"][at][1] for report in reports]
        told = [(name, part[key], rank) for rank, part in enumerate(counts) for name, key in (
            ("error", "error"), ("matrices", "words of matrices"), ("factors", "words of factors"))]
        lab.evidence("factors", told, batch=batch, inputs=inputs, outputs=outputs, ranks=size)
        checks.append((f"factors of {batch} samples, {inputs} to {outputs}: words, over those of matrices",
                       counts[0]["words of factors"] / counts[0]["words of matrices"],
                       batch * (inputs + outputs) / (inputs * outputs), "S40"))
    return pd.DataFrame(rows), pd.DataFrame(checks, columns=["what", "found", "should be", "claim"])


def slowed(lab, settings) -> tuple[phase.Job, pd.DataFrame]:
    """(the job that was calibrated on free links, seconds per step on slowed links: predicted by the map's own model
    with that job, and measured)."""
    steps, size = settings.throttled_steps, settings.ranks
    reports = run_ranks(talking_ranks.slowed, size, list(POINTS), steps, timeout=180)
    parts = {name: max(report["parts"][name] for report in reports) for name in reports[0]["parts"]}
    job, rows = phase.calibrated(parts), []
    constants = [*parts.items()]
    for at, bandwidth in enumerate(POINTS):
        says = phase.step_seconds(size, bandwidth, job)
        took = {way: max(report["took"][at][way] for report in reports) for way in phase.WAYS}
        counted = [("predicted", says[way]) for way in phase.WAYS] + [("measured", took[way]) for way in phase.WAYS]
        lab.evidence("throttled", [*counted, *constants], bandwidth=bandwidth, ways=list(phase.WAYS), ranks=size,
                     steps=steps)
        rows += [{"bandwidth": bandwidth, "way": way, "predicted": says[way], "measured": took[way]}
                 for way in phase.WAYS]
    return job, pd.DataFrame(rows)


def liars(lab, settings) -> pd.DataFrame:
    """Final loss of every rule and lie, one rank of five lying."""
    rows = robust.study(lab.repeats(settings.liar_seeds))
    for rule, lie, seed, loss in rows:
        lab.evidence("liar", [("loss", loss)], rule=rule, lie=lie, seed=seed)
    table = pd.DataFrame(rows, columns=["rule", "lie", "seed", "loss"])
    return table.groupby(["rule", "lie"])["loss"].mean().unstack().rename_axis(columns=None).reset_index()
