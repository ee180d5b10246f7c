"""What a message costs on this machine: timed on real processes, fitted to alpha + beta n + gamma (words added).

The functions of the first half run on ranks, by `labkit.training.ranks.run_ranks`. A time is that of the slowest rank.
When not to use it: to rank algorithms on a machine with fewer cores than ranks. There, ranks take turns, and what is
timed is all the work of all ranks, not the critical path; `both_ways` shows which of the two it is."""

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.simulate import cost, traced
from labkit.training.collectives import ALL_REDUCE, ProcessComm
from labkit.training.ranks import run_ranks
from labs import cost_fit

TIMEOUT = 240.0  # seconds: of one start of ranks
LONG = 65536  # words from which on the start of an addition is lost in its time


def ping_pong(sizes: Sequence[int], repeats: int) -> list[tuple[int, float]]:
    """On two ranks: (words, seconds) of one way, half of a round trip, `repeats` times for each size, in an order drawn
    anew each time: what follows a long message would else always pay for what that left behind."""
    import torch
    from torch import distributed

    comm, rows, order = ProcessComm(torch.float32), [], np.random.default_rng(0)
    rooms = {words: torch.ones(words) for words in sizes}
    for turn in range(repeats + 2):
        for words in order.permutation(list(rooms)).tolist():
            room = rooms[words]
            distributed.barrier()
            begin = time.perf_counter()
            if comm.rank == 0:
                comm.send(room, 1)
                comm.finish()
                comm.recv(words, 1, into=room)
            else:
                comm.recv(words, 0, into=room)
                comm.send(room, 0)
                comm.finish()
            if turn >= 2:  # the first two warm up connections and caches
                rows.append((words, (time.perf_counter() - begin) / 2))
    return rows


def additions(sizes: Sequence[int], repeats: int) -> list[tuple[int, float]]:
    """On any rank: (words, seconds) of adding two arrays up."""
    import torch

    rows = []
    for words in sizes:
        into, part = torch.ones(words), torch.zeros(words)
        for turn in range(repeats + 2):
            begin = time.perf_counter()
            into.add_(part)
            if turn >= 2:
                rows.append((words, time.perf_counter() - begin))
    return rows


def all_reduces(names: Sequence[str], sizes: Sequence[int], repeats: int, seed: int) -> list[tuple[str, int, float]]:
    """On every rank: (algorithm, words, seconds), `repeats` rounds in which all are timed in an order drawn anew; the
    library's own all-reduce goes by the name `gloo`."""
    import torch
    from torch import distributed

    comm, rows = ProcessComm(torch.float32), []
    jobs, order = list(itertools.product((*names, "gloo"), sizes)), np.random.default_rng(seed)
    for turn in range(repeats + 1):
        for job in order.permutation(len(jobs)):
            name, words = jobs[job]
            array = torch.ones(words)
            distributed.barrier()
            begin = time.perf_counter()
            distributed.all_reduce(array) if name == "gloo" else ALL_REDUCE[name](array, comm)
            if turn:
                rows.append((name, words, time.perf_counter() - begin))
    return rows


def equalities(names: Sequence[str], words: int, seed: int) -> list[tuple[str, float, int, int]]:
    """On every rank, in float64: (algorithm, largest difference from `torch.distributed.all_reduce` over the largest
    sum, messages sent, words sent)."""
    import torch
    from torch import distributed

    rows = []
    for name in names:
        comm = ProcessComm(torch.float64)
        array = torch.randn(words, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + comm.rank))
        right = array.clone()
        distributed.all_reduce(right)
        ALL_REDUCE[name](array, comm)
        rows.append((name, float((array - right).abs().max() / right.abs().max()), comm.messages, comm.words))
    return rows


def trace_of(name: str, size: int, words: int) -> traced.Trace:
    """An algorithm on virtual ranks."""
    return traced.run(lambda comm: ALL_REDUCE[name](np.ones(words), comm), size)


def same_as_gloo(names: Sequence[str], size: int, words: int, seed: int) -> pd.DataFrame:
    """Real ranks against torch's all-reduce, and what they sent against the virtual ranks: one row an algorithm."""
    by_rank, rows = run_ranks(equalities, size, names, words, seed, timeout=TIMEOUT), []
    for at, name in enumerate(names):
        found, trace = [rank[at] for rank in by_rank], trace_of(name, size, words)
        rows.append({
            "ranks": size, "algorithm": name, "largest relative difference": max(row[1] for row in found),
            "messages": sum(row[2] for row in found), "messages counted": len(trace.messages),
            "words": sum(row[3] for row in found), "words counted": sum(m.words for m in trace.messages),
        })  # fmt: skip
    return pd.DataFrame(rows)


def fastest(rows: Sequence[tuple]) -> pd.DataFrame:
    """(..., words, seconds) rows as a table of the least seconds, by size: a busy machine only adds."""
    names = ["words", "seconds"] if len(rows[0]) == 2 else ["algorithm", "words", "seconds"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.groupby(names[:-1], as_index=False)["seconds"].min()


def calibrate(sizes: Sequence[int], repeats: int) -> tuple[cost_fit.Fit, pd.DataFrame]:
    """alpha and beta from a ping-pong, gamma from additions, in one fit; the rows that were fitted are beside it, with
    what the fit says of them as `fitted`."""
    pings = fastest(run_ranks(ping_pong, 2, sizes, repeats, timeout=TIMEOUT)[0])
    long = [words for words in sizes if words >= LONG] or [max(sizes)]
    (added,) = run_ranks(additions, 1, long, repeats, timeout=TIMEOUT)
    rows = pd.concat([pings.assign(kind="message"), fastest(added).assign(kind="addition")], ignore_index=True)
    message = rows["kind"] == "message"
    columns = [message.astype(int), message * rows["words"], ~message * rows["words"]]
    fit = cost_fit.fit(zip(*columns, rows["seconds"], strict=True))
    fitted = sum(column * value for column, value in zip(columns, fit[:3], strict=True))
    return fit, rows.assign(fitted=fitted)


def recorded(runs) -> tuple[cost_fit.Fit, pd.DataFrame] | None:
    """The recorded calibration with the middle alpha, as `calibrate` gives one (errors are not recorded)."""
    found = [run for run in runs if run.config.get("evidence") == "calibration"]
    if not found:
        return None
    run = sorted(found, key=lambda run: run.last("alpha"))[len(found) // 2]
    fit = cost_fit.Fit(*(run.last(name) for name in ("alpha", "beta", "gamma")), (float("nan"),) * 3, run.last("rms"))
    rows = [(row.samples, row.value, row.name) for row in run.rows if row.name in ("message", "addition")]
    return fit, pd.DataFrame(rows, columns=["words", "seconds", "kind"])


def measure(names: Sequence[str], size: int, sizes: Sequence[int], repeats: int, seed: int) -> pd.DataFrame:
    """Every all-reduce timed on `size` ranks: (algorithm, words, seconds of the slowest rank), a row for each round."""
    by_rank = run_ranks(all_reduces, size, names, sizes, repeats, seed, timeout=TIMEOUT)
    frame = pd.DataFrame(by_rank[0], columns=["algorithm", "words", "seconds"])
    return frame.assign(seconds=np.max([[row[2] for row in rows] for rows in by_rank], axis=0), ranks=size)


def both_ways(table: pd.DataFrame) -> dict[str, tuple[cost_fit.Fit, np.ndarray]]:
    """The fastest of `measure` (columns algorithm, ranks, words, seconds) fitted twice: to the counts on the critical path,
    and to those summed over all ranks. Each with what it says of the rows."""
    path, total = [], []
    for row in table.itertuples():
        path.append(cost.counts(row.algorithm, row.words, row.ranks))
        trace = trace_of(row.algorithm, row.ranks, 12 * row.ranks)  # words scale: traced small, then stretched
        scale = row.words / (12 * row.ranks)
        added = sum(value for steps in trace.steps for kind, value in steps if kind == "add")
        total.append((len(trace.messages), scale * sum(m.words for m in trace.messages), scale * added))
    found = {}
    for name, counts in (("critical path", path), ("all ranks", total)):
        counts = np.array(counts, float)
        fit = cost_fit.fit(np.column_stack([counts, table["seconds"]]))
        found[name] = fit, counts @ np.array(fit[:3])
    return found
