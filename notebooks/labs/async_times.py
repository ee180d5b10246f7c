"""Time to a target in virtual time, with real gradients: waiting at a barrier against gradients that come late.

The simulator (`labkit.simulate.events`) says in which order gradients are written and when; `labs.delayed` trains a
small network along that order. So seconds are simulated, and how many updates are needed is not."""

import math
import tempfile

import numpy as np
import pandas as pd

from labkit.errors import RequestError, choose
from labkit.simulate import events
from labkit.training.ranks import run_ranks
from labs import delayed, server_ranks
from labs.async_tables import held_out, logs_of

BARRIERS, FAMILIES = ("sync", "total", "backup"), ("sync", "total", "backup", "ssp", "async")
TIMES = ("constant", "lognormal", "straggler", "exponential")
SIGMA, SLOWER = 0.5, 5.0  # of log-normal times; how many times slower the one straggler is
IMAGES, TOTAL = 32, 64  # of a gradient; of the whole batch where that is fixed
OVERHEAD = 0.2  # share of the time of a gradient of `IMAGES` images that does not shrink with their number
ASKED = ("seconds", "images", "delay", "idle")
BEST = ("workers", "times", "method", "best rate", "at edge", "seconds", "images", "delay", "idle", "seeds")


def methods(bounds) -> list[str]:
    """Those of the race: three with a barrier, stale-synchronous with each bound ("ssp 3"), asynchronous."""
    return [*BARRIERS, *(f"ssp {bound}" for bound in sorted(bounds)), "async"]


def family(method: str) -> tuple[str, float]:
    """(one of `FAMILIES`, the bound on how far ahead a worker may be)."""
    name, _, bound = method.partition(" ")
    choose("method", name, FAMILIES)
    if bound and not (name == "ssp" and bound.isdecimal()):
        raise RequestError(f"method {method!r} is not understood; only ssp has a bound, a whole number, as in 'ssp 3'")
    return name, float(bound) if bound else math.inf


def place(method: str) -> tuple:
    """What methods are sorted by."""
    return FAMILIES.index(family(method)[0]), family(method)[1]


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
    if family(method)[0] not in BARRIERS:
        bound = family(method)[1]
        return events.asynchronous(workers, updates, compute(times), bound=bound, seed=seed)
    images = TOTAL // workers if method == "total" else IMAGES
    dropped = backups(workers) if method == "backup" else 0
    return events.synchronous(workers, updates, compute(times, images), backup=dropped, seed=seed)


def batch(method: str, workers: int) -> int:
    """Images that one update has seen."""
    counted = {"sync": workers * IMAGES, "total": TOTAL, "backup": (workers - backups(workers)) * IMAGES}
    return counted.get(method, IMAGES)


def rates(method: str, workers: int, count: int) -> list[float]:
    """Octave grid that is tried: `count` rates from 1 down with a barrier, else one more, from 4 / workers down."""
    if method in BARRIERS:
        return [2.0**-n for n in range(count)]
    return [4.0 / workers / 2**n for n in range(count + 1)]


def most_images(workers: int) -> int:
    """After so many images, whatever the method, a run that has not reached the target is a miss."""
    return IMAGES * (120 * workers + 480)


def race(digits: delayed.Digits, workers: int, kinds, methods, count: int, target: float, seed: int) -> pd.DataFrame:
    """One row for each method, kind of times and rate: virtual seconds, updates and gradients to the target (infinite
    for a miss), mean delay and share of the time in which workers were idle.

    The path depends on the order of updates, not on the times: equal orders, as all of a method with a barrier, are
    trained once.

    Raises:
        RequestError: the target is no lower than the loss at the start."""
    start = float(delayed.Arms(digits, [1.0], [0.0], seed).losses(digits.probe)[0])
    if not target < start:
        raise RequestError(f"target {target:g} is reached before the race begins: the loss at the start is "
                           f"{start:.3g}; choose a lower target")
    rows, known = [], {}
    for method in methods:
        tried, size = rates(method, workers, count), batch(method, workers)
        for times in kinds:
            plan = order(method, workers, times, most_images(workers) // size, seed)
            path = (size, *tried, plan.read.tobytes())
            if path not in known:
                run = delayed.train(digits, plan.read, tried, batch=size, seed=seed, every=max(2, 8 * IMAGES // size),
                                    target=target)
                known[path] = run.crossing(target)
            done = known[path]
            clock = np.concatenate([[0.0], plan.when])
            for rate, steps in zip(tried, done, strict=True):
                reached = math.isfinite(steps)
                second = float(np.interp(steps, np.arange(len(clock)), clock)) if reached else math.inf
                rows.append({"method": method, "workers": workers, "times": times, "rate": rate, "seconds": second,
                             "updates": steps, "images": steps * size,
                             "delay": float(plan.staleness.mean()), "idle": float(plan.idle.mean())})
    return pd.DataFrame(rows)


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Of every method, number of workers and kind of times: the rate with the smallest geometric mean of seconds, and
    means at it; `seconds` are those of each seed at the rate that is best on the others (of one seed, at its own best).
    A method of which a seed missed there, or was at the target from the start, is left out; the columns are `BEST` even
    where all are. `at edge`: the best rate is the lowest or highest tried."""
    rows = []
    table = table if "seed" in table else table.assign(seed=0)
    for (workers, times, method), part in table.groupby(["workers", "times", "method"], sort=False):
        grid = part.pivot(index="seed", columns="rate", values="seconds")
        logs, columns = logs_of(grid.to_numpy()), range(len(grid))
        seconds, at = logs[columns, held_out(grid.to_numpy())].mean(), int(logs.mean(0).argmin())
        if not math.isfinite(seconds):
            continue
        means = part[part["rate"] == grid.columns[at]][["images", "delay", "idle"]].mean()
        rows.append({"workers": workers, "times": times, "method": method, "best rate": grid.columns[at],
                     "at edge": at in (0, grid.shape[1] - 1), "seconds": math.exp(seconds), **means,
                     "seeds": len(grid)})
    rows.sort(key=lambda row: (row["workers"], TIMES.index(row["times"]), place(row["method"])))
    return pd.DataFrame(rows, columns=list(BEST))


def recorded(runs) -> pd.DataFrame:
    """The table of `race` with a column `seed`, from recorded runs."""
    parts = []
    for run in runs:
        if run.config.get("evidence") == "tta":
            part = {key: run.config[key] for key in ("method", "workers", "times", "seed")}
            part |= {"rate": run.config["rates"]}
            parts.append(pd.DataFrame(part | {name: [row.value for row in run.series(name)] for name in ASKED}))
    return pd.concat(parts) if parts else pd.DataFrame()


def evidence(lab, settings, table: pd.DataFrame, seed: int) -> None:
    """Record a race, one run for each method and kind of times."""
    for (method, workers, times), part in table.groupby(["method", "workers", "times"], sort=False):
        rows = [(name, value) for name in ASKED for value in part[name]]
        lab.evidence("tta", rows, source="simulated", method=method, workers=int(workers), times=times, seed=seed,
                     rates=part["rate"].tolist(), target=settings.target, train=settings.train,
                     images=most_images(int(workers)))


def saturation(shards: int, counts, message: float = 0.1, updates: int = 4000, seed: int = 0) -> pd.DataFrame:
    """Updates a second of a server, by number of workers that each compute for a second (exponential). A message, in
    parts of equal size, keeps the port of each of the `shards` busy for `message` / shards seconds, gradients the port
    in, answers the port out. `share_of_limit` is of shards / message."""
    rows = []
    for workers in sorted(counts):
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


def one_slow(workers: int, sleep: float = 0.01, factor: float = 4.0) -> dict:
    """Seconds that each worker sleeps for a gradient: the last one `factor` times as long as the others."""
    return {worker: sleep * (factor if worker == workers - 1 else 1.0) for worker in range(workers)}


def staleness(workers: int, updates: int) -> pd.DataFrame:
    """Source (real, simulated), worker and staleness of each of so many updates: asynchronous, one worker slow."""
    sleeps = one_slow(workers)
    report = real(workers, updates, sleeps, mode="asynchronous", until=updates)
    rows = [("real", row.worker, row.staleness) for row in report.updates if row.staleness is not None]
    slow = {worker: sleep / sleeps[0] for worker, sleep in sleeps.items()}
    plan = events.asynchronous(workers, updates, events.Compute("constant", sleeps[0], slow=slow))
    rows += [("simulated", *pair) for pair in zip(plan.worker.tolist(), plan.staleness.tolist(), strict=True)]
    return pd.DataFrame(rows, columns=["source", "worker", "staleness"])


def same_as_synchronous(workers: int, steps: int = 12) -> tuple[float, float]:
    """(largest difference of a parameter between the synchronous server and a stale-synchronous one with bound 0, how
    far a parameter has moved at most)."""
    uneven = {worker: 0.002 * worker for worker in range(workers)}
    one, other = (real(workers, steps, uneven, mode=mode, momentum=0.9).parameters for mode in ("synchronous", "ssp"))
    start = [p.detach() for p in server_ranks.network().parameters()]
    return furthest(one, other), furthest(one, start)


def furthest(some, others) -> float:
    """The largest difference between parameters; NaN if there is one."""
    return float(np.max([(a - b).abs().max().item() for a, b in zip(some, others, strict=True)]))
