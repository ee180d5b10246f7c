"""The figures of lab 05 about time: who waits, the race to the target, staleness of real workers, a full server.

Each function returns (figure, text alternative, data). Recorded runs are blue, yours orange, what a model says grey."""

import math

import numpy as np
import pandas as pd

from labkit.simulate import events
from labkit.teach import viz
from labs import async_times
from labs.async_tables import counted
from labs.delayed_figures import GREY, empty

NAMES = {"sync": "synchronous", "total": "total batch fixed", "backup": "backup workers", "async": "asynchronous"}
KINDS = {"constant": "constant", "lognormal": "log-normal", "straggler": "one straggler", "exponential": "exponential"}


def named(method: str) -> str:
    """A method's name in a figure or table."""
    return NAMES.get(method) or f"stale-synchronous, bound {async_times.family(method)[1]:g}"


def timeline(times: str = "straggler", workers: int = 4, until: float = 11.0, seed: int = 0):
    """Who computes when, under three methods: a bar is a gradient, a gap is waiting; the titles count what has taken
    effect by then."""
    fig, axes = viz.figure(1, 3, height=4.0, width=6.5, sharex=True)
    rows, said = [], []
    for ax, method in zip(axes, ("sync", "ssp 3", "async"), strict=True):
        plan = async_times.order(method, workers, times, 40 * workers, seed)
        who, began, ended = bars(plan, workers)
        for n, worker in enumerate(range(workers)):
            mine = (who == worker) & (began < until)
            ax.barh([worker] * mine.sum(), np.minimum(ended[mine], until) - began[mine], left=began[mine], height=0.7,
                    color=viz.SERIES[n % 4], edgecolor="white", linewidth=0.8)
        updates = int((plan.when <= until).sum())
        gradients = updates * (workers if plan.members is not None else 1)
        told = f"{named(method)}: {counted(gradients, 'gradient')} applied, in {counted(updates, 'update')}"
        ax.set_title(told, loc="left")
        ax.set(yticks=range(workers), ylabel="worker", xlim=(0, until))
        ax.invert_yaxis()
        ax.grid(False)
        said.append(told)
        rows += [{"method": method, "worker": w, "from": b, "to": e} for w, b, e in
                 zip(who.tolist(), began, ended, strict=True) if b < until]
    axes[-1].set_xlabel("virtual seconds")
    alt = f"{workers} workers, compute times {KINDS[times]}, {until:g} virtual seconds: " + "; ".join(said) + "."
    return fig, alt, pd.DataFrame(rows)


def bars(plan: events.Updates, workers: int) -> tuple:
    """(worker, began, ended) of every gradient."""
    if plan.members is None:
        return plan.worker, plan.began, plan.ended
    return np.tile(np.arange(workers), len(plan.when)), plan.began.ravel(), plan.ended.ravel()


def race(recorded: pd.DataFrame, yours: pd.DataFrame, workers: int):
    """Virtual seconds to the target by method, a panel for each kind of times; each tuned."""
    tables = [(name, async_times.best(table[table["workers"] == workers]) if len(table) else table, colour, marker)
              for name, table, colour, marker in (("recorded", recorded, viz.RECORDED, "o"),
                                                  ("yours", yours, viz.YOURS, "s"))]
    tables = [part for part in tables if len(part[1])]
    if not tables:
        return empty(f"no method reached the target with {workers} workers")
    shown = [kind for kind in KINDS if any((table["times"] == kind).any() for _, table, _, _ in tables)]
    every = sorted({method for _, table, _, _ in tables for method in table["method"]}, key=async_times.place)
    fig, axes = viz.figure(len(shown), 1, height=1.2 + 0.3 * len(every), width=6.5, sharey=True)
    said, most, least = [], 0.0, math.inf
    for ax, kind in zip(np.atleast_1d(axes), shown, strict=True):
        for name, table, colour, marker in tables:
            part = table[table["times"] == kind]
            places = [every.index(method) for method in part["method"]]
            shift = 0.0 if len(tables) == 1 else {"recorded": -0.12, "yours": 0.12}[name]
            places = np.array(places) + shift
            ax.plot(part["seconds"], places, color=colour, marker=marker, linestyle="none", label=name)
            if len(part):
                said.append(f"{name}, {KINDS[kind]}: " + ", ".join(f"{named(row.method)} {row.seconds:.3g}"
                                                                   for row in part.itertuples()))
                most, least = max(most, part["seconds"].max()), min(least, part["seconds"].min())
        ax.set_title(KINDS[kind])
        ax.set_ylim(len(every) - 0.5, -0.5)
    marks = [2.0**n for n in range(math.floor(math.log2(least)), math.ceil(math.log2(most)) + 1)]
    for ax in np.atleast_1d(axes):
        viz.log2_axis(ax, marks[:: math.ceil(len(marks) * len(shown) / 15)], "virtual seconds")
        ax.set_xlim(marks[0] / 1.15, marks[-1] * 1.4)
    np.atleast_1d(axes)[0].set_yticks(range(len(every)), map(named, every))
    if len(tables) > 1:
        fig.legend(*np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    alt = f"Virtual seconds to the target, {workers} workers, each method tuned. " + "; ".join(said) + "."
    return fig, alt, pd.concat([table.assign(source=name) for name, table, _, _ in tables])


def histogram(table: pd.DataFrame):
    """How stale gradients were on real processes, beside the simulator's: `async_times.staleness`, a bin for each whole
    number; what is beyond 8 for each worker is in the last."""
    workers = int(table["worker"].max()) + 1
    top = int(min(table["staleness"].max(), 8 * workers))
    places, sources = np.arange(top + 1), ("real", "simulated")
    parts = [table.loc[table["source"] == source, "staleness"].clip(upper=top) for source in sources]
    shares = [np.bincount(part, minlength=top + 1) / len(part) for part in parts]
    fig, ax = viz.figure(height=2.6)
    ax.bar(places - 0.2, shares[0], 0.4, color=viz.YOURS, label=f"{workers} real workers")
    ax.bar(places + 0.2, shares[1], 0.4, color=viz.LITERATURE, label="simulator")
    ax.axvline(workers - 1, color=GREY, linestyle=":", linewidth=1)
    ax.set(xlabel="staleness (updates in between)", ylabel="share of updates")
    ticks = places[:: 1 if top <= 20 else 4]
    ax.set_xticks(ticks, [f"{tick}" if tick < 8 * workers else f"{tick}+" for tick in ticks])
    ax.legend()
    means = table.groupby("source")["staleness"].mean()
    slow = table[table["worker"] == workers - 1].groupby("source")["staleness"].mean()
    alt = (f"Staleness of {workers} workers: mean {means['real']:.2f} on real processes, {means['simulated']:.2f} "
           f"in the simulator; P - 1 is {workers - 1} (dotted). The slow one: {slow.get('real', math.nan):.2f} and "
           f"{slow.get('simulated', math.nan):.2f}.")
    return fig, alt, pd.DataFrame({"staleness": places, "real": shares[0], "simulated": shares[1]})


def saturation(table: pd.DataFrame):
    """Updates a second against workers, for each number of shards, with the limit shards / message."""
    fig, ax = viz.figure(height=2.8)
    said = []
    for n, (shards, part) in enumerate(table.groupby("shards")):
        limit = (part["updates a second"] / part["share_of_limit"]).iloc[0]
        ax.axhline(limit, color=viz.LITERATURE, linestyle=":")
        ax.plot(part["workers"], part["updates a second"], color=viz.YOURS, marker=viz.MARKERS[n],
                linestyle=viz.LINES[n % 4])
        last = part.iloc[-1]
        ax.annotate(counted(shards, "shard"), (last["workers"], last["updates a second"]), xytext=(0, 4),
                    textcoords="offset points", ha="right", fontsize=8, color=viz.YOURS)
        said.append(f"{shards}: {last['updates a second']:.1f} of {limit:g} a second")
    viz.log2_axis(ax, list(table["workers"]), "workers")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_ylabel("updates a second")
    most = counted(int(table["workers"].max()), "worker")
    return fig, f"Updates a second with {most}, by shards: " + "; ".join(said) + ". Dotted: the limit.", table


def results(table: pd.DataFrame) -> pd.DataFrame:
    """`async_times.best` with the names of the figures, and a title for each column that says what it is."""
    found = async_times.best(table).drop(columns="seeds")
    found["method"], found["times"] = found["method"].map(named), found["times"].map(KINDS)
    return found.rename(columns={"seconds": "virtual seconds", "images": "images seen", "delay": "mean delay",
                                 "idle": "share of time idle", "at edge": "rate at edge"})
