"""`labkit tta ...`: public logs as tables, and your own runs in public formats."""

import os
import re
from pathlib import Path

from labkit.errors import RequestError, WorkError, choose


def dawnbench(path: str, csv: str | None, inference_csv: str | None) -> str:
    """Read DAWNBench entries; write the tables that are asked for; say what was read and what was left out."""
    from readers import dawnbench as reader

    places = checked(csv, inference_csv)
    found = reader.read(path)
    save((found.train, places[0]), (found.inference, places[1]))
    lines = []
    timed = found.train.sort_values("tta_seconds").groupby(["task", "metric", "threshold"], sort=False, dropna=False)
    for (task, metric, threshold), rows in timed:
        lines.append(f"{task}, training ({metric} >= {threshold:g})" if threshold == threshold else f"{task}, training")
        for row in rows.itertuples():
            price = "" if row.cost_usd != row.cost_usd else f"${row.cost_usd:,.2f}"
            lines.append(f"  {row.displayed_time or 'no time':>12}  {price:>10}  {row.entry}")
    for task, rows in found.inference.sort_values("latency_ms").groupby("task", sort=False):
        lines.append(f"{task}, inference")
        for row in rows.itertuples():
            price = "" if row.cost_usd_10000 != row.cost_usd_10000 else f"${row.cost_usd_10000:,.4f}"
            lines.append(f"  {row.latency_ms:>9.4g} ms  {price:>10}  {row.entry}")
    lines.append(f"{len(found.train)} training and {len(found.inference)} inference entries")
    why = {word: reader.FLAGS[word] for word in ("unknown-task", "not-reached", "unterminated")}
    untimed = [(f"{row.task}/train/{row.entry}", "; ".join(why[word] for word in row.flags.split(";") if word in why))
               for row in found.train.itertuples() if not row.displayed_time]
    return "\n".join(lines + left_out(found.refused + untimed) + written(places))


def mlperf(path: str, csv: str | None, runs_csv: str | None) -> str:
    """Read MLPerf result logs; write the tables that are asked for; say each score and what was left out."""
    from readers import mlperf as reader

    places = checked(csv, runs_csv)
    found = reader.read(path)
    save((found.systems, places[0]), (found.runs, places[1]))
    lines = []
    for row in found.systems.itertuples():
        score = f"{row.score_seconds:.2f} s" if row.status == "scored" else row.status
        where = row.system + "  [target below that of its round]" * ("target-below-round" in row.flags)
        lines.append(f"{row.round} {row.benchmark:<11} {row.converged:>3} of {row.runs:>3}  {score:>12}  {where}")
    lines.append(f"{len(found.runs)} logs of {len(found.systems)} systems; scores by the rule of each round")
    return "\n".join(lines + left_out(found.refused) + written(places))


def export(paths: list[str], to: str, out: str) -> str:
    """Write the runs of .jsonl and .jsonl.gz files, or of folders with such files, in a public format; one line for
    each file written, and one, with the reason, for each run that is left out."""
    from labkit import runs
    from readers import export as exporter

    choose("format", to, ("dawnbench", "mlperf"))
    found, fit, skipped = [], [], []
    for path in map(Path, paths):
        files = [file for file in [path, *sorted(path.rglob("*"))] if re.search(r"\.jsonl(\.gz)?$", file.name)]
        if not any(map(Path.is_file, files)):
            raise RequestError(f"no runs at {path}; name .jsonl or .jsonl.gz files, or folders with such files")
        for file in filter(Path.is_file, files):
            try:
                packed = file.suffix == ".gz"
                found += runs.read_many(file) if packed else runs.parse(file.read_bytes().splitlines(True), str(file))
            except (WorkError, OSError) as error:
                skipped.append(f"left out: {error}")
    for run in found:
        try:
            fit += [run] if exporter.evaluations(run, to) else []
        except RequestError as error:
            skipped.append(f"left out: {error}")
    if not fit:
        why = dict.fromkeys(re.sub(".* exported: |left out: ", "", text) for text in skipped)
        raise RequestError(f"no run in these files can be exported ({'; '.join(why) or 'they hold none'}); name others")
    write = {"dawnbench": exporter.dawnbench, "mlperf": exporter.mlperf}[to]
    return "\n".join([*map(str, write(fit, Path(out))), *skipped])


def left_out(refused: list[tuple]) -> list[str]:
    return [f"left out: {file}: {reason}" for file, reason in refused]


def written(places: list) -> list[str]:
    return [f"wrote {place}" for place in places if place]


def checked(*names: str | None) -> list[Path | None]:
    """The files to write (links followed), after a look whether they can be: nothing is read in vain."""
    places = [None if name is None else Path(os.path.realpath(name)) for name in names]
    given = [place for place in places if place]
    if len(set(given)) < len(given):
        raise RequestError("two tables cannot go to one file; name two files")
    for place in given:
        there = place if place.exists() else place.parent
        wrong = "it is a folder" if place.is_dir() else "" if place.parent.is_dir() else "its folder does not exist"
        allowed = os.access(there, os.W_OK) and os.access(place.parent, os.W_OK)
        wrong = wrong or "it may not be written" * (not allowed)
        if wrong and not special(place):
            raise RequestError(f"cannot write {place}: {wrong}")
    return places


def special(place: Path) -> bool:
    """A device or pipe, which is written to and never replaced."""
    return place.exists() and not place.is_file() and not place.is_dir()


def save(*tables: tuple) -> None:
    """Whole tables or none: all are written beside their places, then moved there."""
    ready = [(table.to_csv(index=False), place) for table, place in tables if place]
    moves = [(place.with_name(f".{place.name}.{os.getpid()}"), place) for _, place in ready]
    try:
        for (text, place), (temporary, _) in zip(ready, moves):
            (place if special(place) else temporary).write_text(text, encoding="utf-8", newline="")
        for temporary, place in moves:
            if not special(place):
                os.replace(temporary, place)
    finally:
        for temporary, _ in moves:
            temporary.unlink(missing_ok=True)


def tta(arguments) -> int:
    """`labkit tta SOURCE ...`."""
    from labkit.cli import say

    calls = {"dawnbench": (dawnbench, "path", "csv", "inference_csv"), "mlperf": (mlperf, "path", "csv", "runs_csv"),
             "export": (export, "runs", "to", "out")}
    function, *names = calls[arguments.source]
    say(function(*(getattr(arguments, name) for name in names)))
    return 0


def add(verb) -> None:
    """Add this command: `verb(function, name, help)` gives its parser."""
    sources = verb(tta, "tta", "time to accuracy: read public logs, export your runs")
    sources = sources.add_subparsers(dest="source", required=True, metavar="SOURCE")
    one = sources.add_parser("dawnbench", help="entries of the DAWNBench repository, a task folder, or one entry")
    one.add_argument("path", metavar="PATH")
    one.add_argument("--csv", metavar="FILE", help="write the training entries as a table")
    one.add_argument("--inference-csv", metavar="FILE", help="write the inference entries as a table")
    two = sources.add_parser("mlperf", help="a folder of MLPerf Training result logs (v0.5, v0.6, v0.7 and later)")
    two.add_argument("path", metavar="PATH")
    two.add_argument("--csv", metavar="FILE", help="write the systems with their scores as a table")
    two.add_argument("--runs-csv", metavar="FILE", help="write every run as a table")
    three = sources.add_parser("export", help="write your own runs as DAWNBench entries or MLPerf log lines")
    three.add_argument("runs", nargs="+", metavar="RUNS", help=".jsonl or .jsonl.gz files, or folders with such files")
    three.add_argument("--to", required=True, choices=("dawnbench", "mlperf"))
    three.add_argument("--out", required=True, metavar="DIR")
