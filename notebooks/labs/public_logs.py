"""The public logs as runs: rows of the tables, a made-up log, a checkout that is read now; your own runs beside them.

A public log carries the one clock of its benchmark; any other rule is not answerable for it, and nothing here guesses.
When not to use it: for curves. The tables hold what was derived from each log, not the log.
"""

import math
import os
import tempfile
from pathlib import Path

import pandas as pd

from labkit import paths
from labkit.curve import Header, Row, Run
from labkit.errors import RequestError
from labkit.experiment import Recipe, header
from labkit.rules.general import published
from labkit.runs import Store, read_many
from labkit.tta import clock
from readers import dawnbench, mlperf, mlperf_log
from labs import times

AUTUMN = pd.Timestamp("2018-11-04T09:00:00Z")  # 2:00 daylight time in US Pacific: clocks go back to 1:00


def as_runs(rows: pd.DataFrame) -> list[Run]:
    """MLPerf rows as runs that carry the mlperf clock and nothing else; a miss never meets its target."""
    made, target = [], {"metric": "converged", "value": 1.0, "higher": True}
    for row in rows.itertuples():
        config = {"round": row.round, "system": row.system, "benchmark": row.benchmark, "file": row.file}
        top = Header("12", config, source="public-log", clock="mlperf", target=target)
        made.append(Run(top, [], [Row(0, 0.0, 0, row.spent, "converged", float(row.converged))], "finished"))
    return made


def entry_run(row) -> Run:
    """One DAWNBench entry as a run that carries the dawnbench clock and nothing else."""
    target = {"metric": row.metric, "value": row.threshold, "higher": True}
    top = Header("12", {"entry": row.entry}, source="public-log", clock="dawnbench", target=target)
    return Run(top, [], [Row(0, 0.0, 0, row.tta_seconds, row.metric, row.metric_at_hit)], "finished")


def answers(groups: dict[str, list[Run]]) -> pd.DataFrame:
    """What each clock rule publishes for each set of runs: seconds, no score, or that it cannot be answered."""

    def said(answer) -> str:
        if answer.seconds is None:
            return "not answerable"
        return f"{answer.seconds:,.4g} s" if math.isfinite(answer.seconds) else "no score"

    cells = {name: {rule: said(clock.score(group, rule)) for rule in clock.RULES} for name, group in groups.items()}
    return pd.DataFrame(cells).rename_axis("clock rule")


def unable(group: list[Run], rule: str) -> str:
    """Why a rule cannot read seconds off these runs; empty where it can."""
    return next(filter(None, (clock.unanswerable(run, clock.RULES[rule]) for run in group)), "")


def spent(run: Run, rule: str) -> float:
    """Seconds that a run cost under a rule if it went on to its end: what a failure is charged."""
    return run.rows[-1].when if run.header.clock else times.full_cost([run], rule)[0]


def recorded() -> list[Run]:
    """The runs of lab 11's sweep that come with the course, to one target, each with its spans."""
    found = read_many(paths.data() / "results" / "11.jsonl.gz")
    return [run for run in found if run.header.target and run.spans and run.rows and run.header.arms == 1]


def own_runs(store: Store, recipe: Recipe, device: str) -> list[Run]:
    """Runs of this very recipe that lab 11 left in the store."""
    code, config = recipe.code(), {**header(recipe, recipe.load(), lab="11").config, "device": device}
    found = store.runs("11", damaged=[])
    kept = [run for run in found if run.config == config and run.header.code == code and run.header.arms == 1]
    return sorted(kept, key=lambda run: run.header.repeat)


def read_text(text: str) -> dict:
    """What labkit's reader says of the text of one MLPerf log."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result_0.txt"
        path.write_bytes(text.encode())
        return mlperf_log.read(path)


def hour_twice(epochs: int = 24, gap: int = 1290, began: int = 1541308110) -> str:
    """A made-up log in the form of v0.5 whose clock lives one hour twice: what is stamped in the hour after `AUTUMN` is
    stamped an hour early.
    """
    back, lines = AUTUMN.timestamp(), []
    form = ":::MLPv0.5.0 resnet {} (solver.cpp:1) {}"
    for epoch in range(-1, epochs):
        true = began + gap * (epoch + 2)
        stamp = true - 3600 if back <= true < back + 3600 else true
        value = round(0.763 - 0.66 * math.exp(-(epoch + 1) / 6), 5)
        lines.append(form.format(stamp, f'eval_accuracy: {{"epoch": {epoch}, "value": {value}}}'))
    start, stop = form.format(began, "run_start"), form.format(true, 'run_stop: {"success": true}')
    return "\n".join([start, form.format(began, "eval_target: 0.749"), *lines, stop, ""])


def live(folder: str | Path | None) -> str:
    """Read a checkout of the public logs now and compare it with the course's tables; says so where there is none."""
    folder = folder or os.environ.get("LABKIT_LOGS", "")
    if not folder:
        return "no checkout named: the tables that come with the course are used"
    below, said = Path(folder) / "dawnbench", []
    for what, reader, place, known, key in (
        (
            "DAWNBench entries",
            lambda p: dawnbench.read(p).train,
            below if below.is_dir() else folder,
            "dawnbench_train.csv",
            ["task", "entry"],
        ),
        ("MLPerf logs", lambda p: mlperf.read(p).runs, folder, "mlperf_runs.csv", ["run_start", "run_stop"]),
    ):
        try:
            found = reader(place)
        except RequestError:
            said.append(f"no {what} there")
            continue
        both = found.merge(published(known), on=key, suffixes=("", " known"))
        worst = (
            (both["tta_seconds"] - both["tta_seconds known"]).abs().max() if both["tta_seconds"].notna().any() else 0.0
        )
        said.append(f"{len(found)} {what} read now, {len(both)} of them in our table, largest difference {worst:.2g} s")
    return "; ".join(said)
