"""`labkit tta ...`: public logs as tables, and your own runs in public formats."""

import os
from pathlib import Path

from labkit.errors import RequestError


def dawnbench(path: str, csv: str | None, inference_csv: str | None) -> str:
    """Read DAWNBench entries; write the tables that are asked for; say what was read and what was left out."""
    from labkit.tta import dawnbench as reader

    places = checked(csv, inference_csv)
    found = reader.read(path)
    save((found.train, places[0]), (found.inference, places[1]))
    lines = []
    for task, rows in found.train.sort_values("tta_seconds").groupby("task", sort=False):
        lines.append(f"{task}, training ({rows.metric.iloc[0]} >= {rows.threshold.iloc[0]:g})")
        for row in rows.itertuples():
            price = "" if row.cost_usd != row.cost_usd else f"${row.cost_usd:,.2f}"
            lines.append(f"  {row.displayed_time or 'no time':>12}  {price:>10}  {row.entry}")
    for task, rows in found.inference.sort_values("latency_ms").groupby("task", sort=False):
        lines.append(f"{task}, inference")
        for row in rows.itertuples():
            price = "" if row.cost_usd_10000 != row.cost_usd_10000 else f"${row.cost_usd_10000:,.4f}"
            lines.append(f"  {row.latency_ms:>9.4g} ms  {price:>10}  {row.entry}")
    lines.append(f"{len(found.train)} training and {len(found.inference)} inference entries")
    return "\n".join(lines + left_out(found.refused) + written(places))


def mlperf(path: str, csv: str | None, runs_csv: str | None) -> str:
    """Read MLPerf result logs; write the tables that are asked for; say each score and what was left out."""
    from labkit.tta import mlperf as reader

    places = checked(csv, runs_csv)
    found = reader.read(path)
    save((found.systems, places[0]), (found.runs, places[1]))
    lines = []
    for row in found.systems.itertuples():
        score = f"{row.score_seconds:.2f} s" if row.status == "scored" else row.status
        lines.append(f"{row.round} {row.benchmark:<11} {row.converged:>3} of {row.runs:>3}  {score:>12}  {row.system}")
    lines.append(f"{len(found.runs)} logs of {len(found.systems)} systems; the score is run_stop - run_start, by the rule of its round")
    return "\n".join(lines + left_out(found.refused) + written(places))


def export(runs: list[str], to: str, out: str) -> str:
    """Write your own runs in a public format; one line a file."""
    from labkit.tta import export as exporter

    return "\n".join(str(path) for path in exporter.export([Path(run) for run in runs], to, Path(out)))


def left_out(refused: list[tuple]) -> list[str]:
    return [f"left out: {file}: {reason}" for file, reason in refused]


def written(places: list) -> list[str]:
    return [f"wrote {place}" for place in places if place]


def checked(*names: str | None) -> list[Path | None]:
    """The files to write, after a look whether they can be: nothing is read in vain."""
    places = [Path(name) if name is not None else None for name in names]
    given = [place for place in places if place]
    if len({place.absolute() for place in given}) < len(given):
        raise RequestError("two tables cannot go to one file; name two files")
    for place in given:
        if place.is_dir() or not place.parent.is_dir():
            raise RequestError(f"cannot write {place}: {'it is a folder' if place.is_dir() else 'its folder does not exist'}")
    return places


def save(*tables: tuple) -> None:
    """Whole tables or none: each is written beside its place and then moved there."""
    for table, place in tables:
        if place:
            temporary = place.with_name(f".{place.name}.{os.getpid()}")
            table.to_csv(temporary, index=False)
            os.replace(temporary, place)
