"""Lab 02's schemes on real processes, each beside one process and beside its formula: rows for a table and evidence."""

import itertools
import math
from dataclasses import replace

import pandas as pd
import torch

from labkit.training.ranks import run_ranks
from labs import pipeline_timetable as pipeline
from labs import cannon, pipeline_ranks, planner_networks, split_jobs, split_ranks, zoo
from labs.pipeline_schedules import SCHEDULES
from labs.planner import Machine, Placement, score
from labs.planner_search import letters_for

LETTERS = {"data": "dddd", "columns": "cccc", "rows": "rrrr", "spatial": "ssdd"}
PIPELINES = ("GPipe", "1F1B")


def four_layers():
    """The small network of `split_ranks` as the planner's units."""
    network = torch.nn.Sequential(*split_ranks.network("float32"))
    return planner_networks.units_of(zoo.layers(network, split_ranks.SHAPE))


def real(ranks: int, samples: int, microbatches: int) -> list[dict]:
    """Every scheme in one launch of `ranks` processes (Cannon's algorithm on a square number of them only).

    A row: scheme, network, error (the largest of any rank), words and messages of the busiest rank (of all ranks for
    Cannon's), counted and by formula: the planner's, `labs.cannon`'s, and N A to each neighbour for a pipeline."""
    units = four_layers()
    # What the planner takes for this network where a message's start is free, as on a large machine.
    letters = LETTERS | {"hybrid": letters_for(units, Machine(latency=0.0), ranks, samples, "dcr").placement.stages[0]}
    jobs = {name: ("placed", text, samples) for name, text in letters.items()}
    jobs |= {"sharded": ("fsdp", samples), "sharded by hand": ("sharded", samples)}
    square = ranks in (1, 4)
    jobs |= {"cannon": ("product", *PRODUCT)} if square else {}
    results = run_ranks(
        split_jobs.everything, ranks, jobs, dict.fromkeys(PIPELINES, 1), microbatches, samples, timeout=120.0
    )
    found = {name: [result[name] for result in results] for name in results[0]}
    rows = []
    for name in (*letters, "sharded", "sharded by hand"):
        place = Placement((letters.get(name, "dddd"),), 1, name not in letters)
        plan = score(units, Machine(), ranks, samples, place)
        rows.append(_row(name, "2 conv, 2 fc", found[name], plan.words, plan.messages))
    if square:
        formula = _cannon(ranks)
        rows.append(_row("cannon", "1 fc, all ranks", found["cannon"], formula[1], formula[0], sum))
    ways = min(ranks - 1, 2)  # a stage in the middle sends both ways
    for name in PIPELINES:
        rows.append(
            _row(
                name,
                f"{ranks} stages, M = {microbatches}",
                found[name],
                ways * samples * pipeline_ranks.WIDTH,
                ways * microbatches,
            )
        )
    return rows


PRODUCT = (12, 8, 20)  # samples, inputs and outputs of the layer that Cannon's algorithm multiplies


def _cannon(ranks: int) -> tuple[int, int]:
    """(messages, words) of y = x w, dx = dy w' and dw = x' dy, and of the two transpositions, on all ranks."""
    n, cin, cout = PRODUCT
    parts = [
        cannon.sent(ranks, n, cin, cout),
        cannon.sent(ranks, n, cout, cin),
        cannon.sent(ranks, cin, n, cout),
        cannon.transposing(ranks, cin, cout),
        cannon.transposing(ranks, n, cin),
    ]
    return tuple(map(sum, zip(*parts, strict=True)))


def _row(scheme: str, network: str, results: list[dict], words: float, messages: float, over=max) -> dict:
    return {
        "scheme": scheme,
        "network": network,
        "error": max(result["error"] for result in results),
        "words counted": over(result["words"] for result in results),
        "words by formula": words,
        "messages counted": over(result["messages"] for result in results),
        "messages by formula": messages,
    }


def record(lab, rows: list[dict], ranks: int, samples: int) -> None:
    """Keep the rows as evidence in a lab's session."""
    for line in rows:
        values = [(key, value) for key, value in line.items() if key not in ("scheme", "network")]
        lab.evidence("split", values, scheme=line["scheme"], network=line["network"], ranks=ranks, batch=samples)


def bubbles(lab, stages: list[int], microbatches: list[int]) -> pd.DataFrame:
    """Idle share of each schedule by its simulated timetable and by the formula, for all pairs; kept as evidence."""
    rows = []
    for name in PIPELINES:
        pairs = list(itertools.product(stages, microbatches))
        found = [(s, m, pipeline.simulate(SCHEDULES[name](s, m)).bubble, pipeline.bubble(s, m)) for s, m in pairs]
        values = [(what, line[at], n) for n, line in enumerate(found) for what, at in (("idle", 2), ("formula", 3))]
        lab.evidence("bubble", values, source="simulated", schedule=name, pairs=[list(pair) for pair in pairs])
        rows += [(name, *line) for line in found]
    return pd.DataFrame(rows, columns=["schedule", "stages", "microbatches", "idle", "formula"])


def plans(lab, settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All networks through the planner at all batches and bandwidths, kept as evidence: (table at the main batch and
    machine, gain of the best split over data by network, batch and bandwidth)."""
    gains, machine = [], Machine()
    for batch, bandwidth in itertools.product(
        sorted({settings.plan_batch, *settings.batches}), sorted({machine.bandwidth, *settings.bandwidths})
    ):
        link = replace(machine, bandwidth=bandwidth)
        table = planner_networks.by_year(settings.networks, link, settings.devices, batch)
        values = [
            (f"{scheme} of {row['network']}", row[scheme])
            for _, row in table.iterrows()
            for scheme in ("data", "model", "hybrid")
            if not math.isnan(row[scheme])
        ]
        lab.evidence("plan", values, devices=settings.devices, batch=batch, bandwidth=bandwidth)
        best = table[["model", "hybrid"]].min(axis=1)
        gains.append(
            pd.DataFrame(
                {"network": table["network"], "batch": batch, "bandwidth": bandwidth, "gain": table["data"] / best}
            )
        )
        if (batch, bandwidth) == (settings.plan_batch, machine.bandwidth):
            main = table
    return main, pd.concat(gains, ignore_index=True)
