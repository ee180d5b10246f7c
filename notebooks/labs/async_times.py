"""Time to a target in virtual time, with real gradients: waiting at a barrier against gradients that come late.

The simulator (`labkit.simulate.events`) says in which order gradients are written and when; `labs.delayed` trains a
small network along that order. So seconds are simulated, and how many updates are needed is not."""

import math
import tempfile

import numpy as np
import pandas as pd

from labkit.errors import choose
from labkit.simulate import events
from labkit.training.ranks import run_ranks
from labs import delayed, server_ranks

METHODS = ("sync", "total", "backup", "ssp", "async")
TIMES = ("constant", "lognormal", "straggler", "exponential")
SIGMA, SLOWER = 0.5, 5.0  # of log-normal times; how many times slower the one straggler is
IMAGES, TOTAL = 32, 64  # of a gradient; of the whole batch where that is fixed
OVERHEAD = 0.2  # share of the time of a gradient of `IMAGES` images that does not shrink with their number
BOUND = 3  # of stale-synchronous


def compute(times: str, images: int = IMAGES) -> events.Compute:
    """Compute times with mean 1 for a gradient of `IMAGES` images (the straggler's is `SLOWER`)."""
    choose("kind of times", times, TIMES)
    mean = OVERHEAD + (1 - OVERHEAD) * images / IMAGES
    kind = "constant" if times == "straggler" else times
    return events.Compute(kind, mean, sigma=SIGMA, slow={0: SLOWER} if times == "straggler" else {})


def backups(workers: int) -> int:
    """How many of the slowest gradients of a step are dropped."""
    return max(1, workers // 8)


def order(method: str, workers: int, times: str, updates: int, seed: int) -> events.Updates:
    """Who writes what, and when."""
    choose("method", method, METHODS)
    if method in ("ssp", "async"):
        bound = BOUND if method == "ssp" else math.inf
        return events.asynchronous(workers, updates, compute(times), bound=bound, seed=seed)
    images = TOTAL // workers if method == "total" else IMAGES
    dropped = backups(workers) if method == "backup" else 0
    return events.synchronous(workers, updates, compute(times, images), backup=dropped, seed=seed)


def batch(method: str, workers: int) -> int:
    """Images that one update has seen."""
    counted = {"sync": workers * IMAGES, "total": TOTAL, "backup": (workers - backups(workers)) * IMAGES}
    return counted.get(method, IMAGES)


def rates(method: str, workers: int, count: int) -> list[float]:
    """Octave grid that is tried: with a barrier from 1 down, else from 2 / workers down."""
    top = 1.0 if method in ("sync", "total", "backup") else 2.0 / workers
    return [top / 2**n for n in range(count)]


def most_updates(method: str, workers: int) -> int:
    """After so many updates a run that has not reached the target is a miss."""
    return {"sync": 240, "total": 1200, "backup": 240}.get(method, 120 * workers + 480)


def race(digits: delayed.Digits, workers: int, kinds, methods, count: int, target: float, seed: int) -> pd.DataFrame:
    """One row for each method, kind of times and rate: virtual seconds, updates and gradients to the target (infinite
    for a miss), mean delay and share of the time in which workers were idle.

    With a barrier the path does not depend on the times, so each rate is trained once for all kinds."""
    rows = []
    for method in methods:
        tried, updates, done = rates(method, workers, count), most_updates(method, workers), None
        for times in kinds:
            plan = order(method, workers, times, updates, seed)
            if done is None or method in ("ssp", "async"):
                every = max(2, 8 * IMAGES // batch(method, workers))
                run = delayed.train(digits, plan.read, tried, batch=batch(method, workers), seed=seed, every=every,
                                    target=target)
                done = run.crossing(target)
            clock = np.concatenate([[0.0], plan.when])
            for rate, steps in zip(tried, done, strict=True):
                reached = math.isfinite(steps)
                second = float(np.interp(steps, np.arange(len(clock)), clock)) if reached else math.inf
                rows.append({"method": method, "workers": workers, "times": times, "rate": rate, "seconds": second,
                             "updates": steps, "images": steps * batch(method, workers),
                             "delay": float(plan.staleness.mean()), "idle": float(plan.idle.mean())})
    return pd.DataFrame(rows)


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Of every method, number of workers and kind of times the rate with the fewest seconds: geometric means over
    `seed`; a rate at which one seed missed is out. `at edge` says that the rate is the lowest or highest tried."""
    rows = []
    for keys, part in table.groupby(["workers", "times", "method"], sort=False):
        part = part.assign(logs=np.log(part["seconds"]))
        means = part.groupby("rate")[["logs", "delay", "idle", "images"]].mean()
        rate = means["logs"].idxmin()
        if not math.isfinite(means["logs"][rate]):
            continue
        found = means.loc[rate]
        row = dict(zip(("workers", "times", "method"), keys, strict=True))
        row |= {"best rate": rate, "at edge": rate in (means.index.min(), means.index.max()),
                "seconds": math.exp(found["logs"]), "images": found["images"], "delay": found["delay"],
                "idle": found["idle"], "seeds": part["seed"].nunique() if "seed" in part else 1}
        rows.append(row)
    rows.sort(key=lambda row: (row["workers"], TIMES.index(row["times"]), METHODS.index(row["method"])))
    return pd.DataFrame(rows)


def recorded(runs) -> pd.DataFrame:
    """The table of `race` with a column `seed`, from recorded runs."""
    parts = []
    for run in runs:
        if run.config.get("evidence") == "tta":
            part = {key: run.config[key] for key in ("method", "workers", "times", "seed")}
            part |= {"rate": run.config["rates"]}
            part |= {name: [row.value for row in run.series(name)] for name in ("seconds", "images", "delay", "idle")}
            parts.append(pd.DataFrame(part))
    return pd.concat(parts) if parts else pd.DataFrame()


def evidence(lab, settings, table: pd.DataFrame, seed: int) -> None:
    """Record a race, one run for each method and kind of times."""
    for (method, workers, times), part in table.groupby(["method", "workers", "times"], sort=False):
        rows = [(name, value) for name in ("seconds", "images", "delay", "idle") for value in part[name]]
        lab.evidence("tta", rows, method=method, workers=int(workers), times=times, seed=seed,
                     rates=part["rate"].tolist(), target=settings.target, train=settings.train)


def saturation(shards: int, counts, message: float = 0.1, updates: int = 4000, seed: int = 0) -> pd.DataFrame:
    """Updates a second of a server, by number of workers that each compute for a second (exponential); a message keeps
    one of its `shards` busy for `message` / shards seconds. `share_of_limit` is of shards / message."""
    rows = []
    for workers in counts:
        plan = events.asynchronous(workers, updates, events.Compute("exponential"), link=events.Link(beta=message),
                                   size=1.0, shards=shards, seed=seed)
        speed = updates / plan.when[-1]
        rows.append({"shards": shards, "workers": workers, "updates a second": speed,
                     "share_of_limit": speed * message / shards})
    return pd.DataFrame(rows)


def waiting(load: float, workers: int = 400, message: float = 0.1, updates: int = 60000, seed: int = 0) -> tuple:
    """(mean seconds in the queue of a server, those of an M/D/1 queue, load D / (2 (1 - load))): so many workers that
    each write so rarely that their gradients arrive nearly at random, and keep the server busy for a share `load`."""
    mean = workers * message / load
    plan = events.asynchronous(workers, updates, events.Compute("exponential", mean), link=events.Link(beta=message),
                               size=1.0, seed=seed)
    late = (plan.when - plan.ended - message)[updates // 10 :]
    return float(late.mean()), load * message / (2 * (1 - load))


def gaps(workers: int, bound: int, times: str, updates: int = 2000, seed: int = 0) -> int:
    """The most gradients that any worker was ahead of the slowest when it began one, in the simulator."""
    plan = events.asynchronous(workers, updates, compute(times), bound=bound, seed=seed)
    number = np.zeros(updates, int)
    for worker in range(workers):
        mine = plan.worker == worker
        number[mine] = np.arange(mine.sum())
    ahead = 0
    for at in range(updates):
        written = np.bincount(plan.worker[: plan.read[at]], minlength=workers)
        ahead = max(ahead, int(number[at] - written.min()))
    return ahead


def real(workers: int, steps: int, sleeps: dict, **options):
    """The `Report` of a parameter server beside `workers` real processes, each of which sleeps so many seconds for
    every gradient. `options`: `until`, and those of `parallel.server.Server`."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        return run_ranks(server_ranks.train, 1 + workers, folder, steps, 8 * workers, sleeps=sleeps, **options)[0]


def same_as_synchronous(workers: int, steps: int = 12) -> float:
    """Largest difference of a parameter between the synchronous server and a stale-synchronous one with bound 0."""
    uneven = {worker: 0.002 * worker for worker in range(workers)}
    one, other = (real(workers, steps, uneven, mode=mode, momentum=0.9) for mode in ("synchronous", "ssp"))
    return max(float((a - b).abs().max()) for a, b in zip(one.parameters, other.parameters, strict=True))
