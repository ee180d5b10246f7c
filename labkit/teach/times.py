"""Reading a set of repeated runs: times under a clock rule, at another target, as if evaluated less often; and the figures of it.

Nothing is trained here. A run is read with `labkit.tta.clock`; what is drawn is what was computed, and every figure comes with its text and its numbers.
When not to use it: for a single run, or for runs of different recipes; these figures are about the spread of one recipe.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.errors import RequestError
from labkit.rules.times import thinned
from labkit.runs import Header, Row, Run, Span
from labkit.teach import viz
from labkit.tta import clock, statistics

PER_RUN = tuple(name for name, rule in clock.RULES.items() if rule.per == "run")
KINDS = {"init": viz.SERIES[1], "data": viz.SERIES[4], "train": viz.SERIES[0], "evaluate": viz.SERIES[3], "checkpoint": viz.SERIES[2]}


def at(run: Run, value: float | None = None) -> dict:
    """The run's target, or the same metric at another value."""
    return run.header.target if value is None else {**run.header.target, "value": value}


def curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of the target's metric during training: a closing evaluation at a step seen before is left out."""
    rows = {row.step: row.value for row in reversed(run.series(run.header.target["metric"]))}
    return np.array(sorted(rows)), np.array([rows[step] for step in sorted(rows)])


def steps_to_target(runs: Sequence[Run], value: float | None = None, every: int = 1) -> list[float]:
    """Optimizer steps at the first crossing of each run, read every `every` steps; a miss is infinite. Steps carry no timing noise."""
    rows = [clock.first_crossing(thinned(run, every), at(run, value)) for run in runs]
    return [math.inf if row is None else float(row.step) for row in rows]


def seconds_to_target(runs: Sequence[Run], rule: str, value: float | None = None, every: int = 1) -> list[float]:
    """Seconds of each run under a clock rule that judges single runs; a miss is infinite. The spans stay as they were: a rule that counts evaluation still pays for those left out.

    Raises:
        RequestError: the rule cannot answer for one of the runs.
    """
    answers = [clock.time_to_target(thinned(run, every), rule, at(run, value)) for run in runs]
    for answer in answers:
        if answer.seconds is None:
            raise RequestError(f"the times under {rule} are not answerable: {answer.reason}; choose one of {', '.join(PER_RUN)}")
    return [answer.seconds for answer in answers]


def full_cost(runs: Sequence[Run], rule: str) -> list[float]:
    """Seconds that each run costs under a rule if it trains to its end: what a failure is charged."""
    return [clock.counted_seconds(run, clock.clock_rule(rule), next(row.when for row in run.series(run.header.target["metric"]) if row.step == curve(run)[0][-1])) for run in runs]


def variation(times: Sequence[float]) -> float:
    """Coefficient of variation of those that reached; NaN where fewer than two did."""
    return statistics.summary(times)["cov"]


def kept(runs: Sequence[Run], value: float | None = None) -> int:
    """How many runs *end* at or above the target: the model that one keeps, not the best moment of its training."""
    return sum(curve(run)[1][-1] >= at(run, value)["value"] for run in runs)


def reread(runs: Sequence[Run], values: Sequence[float], intervals: Sequence[int]) -> pd.DataFrame:
    """The same runs at other targets and evaluation intervals: one row each, in steps."""
    rows = []
    for value in values:
        for every in intervals:
            steps = steps_to_target(runs, value, every)
            row = statistics.summary(steps)
            rows.append({"target": value, "every": every, "variation": row["cov"], "reach": row["reach_rate"], "median steps": row["median"], "end above": kept(runs, value) / len(runs)})
    return pd.DataFrame(rows)


def picked_by(choose_on: Sequence[float], value: Sequence[float], n: int) -> float:
    """Expected `value` of the run that has the largest `choose_on` among `n` drawn without replacement (ties by order): what selection buys on other data."""
    order = np.argsort(-np.asarray(choose_on, float), kind="stable")
    total = len(order)
    ways = [math.comb(total - 1 - i, n - 1) / math.comb(total, n) for i in range(total - n + 1)]
    return float(np.dot(ways, np.asarray(value, float)[order[:len(ways)]]))


def segments(run: Run, rule: str, until: float) -> list[tuple[float, float]]:
    """The pieces of the run's time that are on the clock of `rule` up to `until`; their lengths add up to `clock.counted_seconds`."""
    chosen = clock.clock_rule(rule)
    begin = min((span.start for span in run.spans if span.kind in chosen.starts_at), default=until) if chosen.starts_at else 0.0
    inside = sorted((max(span.start, begin), min(span.end, until), span.kind in chosen.counts) for span in run.spans)
    inside = [(start, end, counts) for start, end, counts in inside if end > start]
    if not chosen.gaps:
        return [(start, end) for start, end, counts in inside if counts]
    pieces, edge = [], begin
    for start, end, counts in inside:
        if not counts:
            pieces += [(edge, start)] if start > edge else []
            edge = end
    return pieces + ([(edge, until)] if until > edge else [])


def simulated(count: int = 24, seed: int = 0, steps: int = 1024, every: int = 8, target: float = 0.93) -> list[Run]:
    """Made-up runs with a known truth: each has its own pace and its own ceiling, and each evaluation is a noisy look at a smooth curve. Marked `simulated`: they explain, they prove nothing."""
    random, runs = np.random.default_rng(seed), []
    for repeat in range(count):
        pace, ceiling, step_seconds = 90 * random.lognormal(0, 0.2), random.normal(0.94, 0.006), 0.002 * random.lognormal(0, 0.02)
        run = Run(Header("11", {"simulated": True}, repeat, source="simulated", target={"metric": "validation_accuracy", "value": target, "higher": True}), status="finished")
        run.spans += [Span("init", 0.0, 0.03), Span("data", 0.03, 0.08)]
        now = 0.08
        for step in range(every, steps + 1, every):
            run.spans += [Span("train", now, now + every * step_seconds), Span("evaluate", now + every * step_seconds, now + every * step_seconds + 0.004)]
            now = run.spans[-1].end
            accuracy = ceiling - 0.5 * math.exp(-step / pace) + random.normal(0, 0.004)
            run.rows.append(Row(step, step / 64, step * 64, now, "validation_accuracy", accuracy))
        runs.append(run)
    return runs


def percent(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0%}"


def in_seconds(value: float) -> str:
    return f"{value:.3g} s" if math.isfinite(value) else "not reached"


def sets(yours: Sequence[Run], recorded: Sequence[Run] = ()) -> list[tuple]:
    """(name, runs, colour) of the recorded runs, if there are any, and of yours on top."""
    return [*([("recorded", recorded, viz.RECORDED)] if recorded else []), ("yours", yours, viz.YOURS)]


def curves_figure(yours: Sequence[Run], recorded: Sequence[Run] = ()):
    """All curves with their target and first crossings, one panel a set."""
    drawn, parts, table = sets(yours, recorded)[::-1], [], []
    fig, axes = viz.figure(columns=len(drawn))
    for ax, (name, runs, colour) in zip(np.atleast_1d(axes), drawn, strict=True):
        target, crossed = at(runs[0])["value"], steps_to_target(runs)
        for run, step in zip(runs, crossed, strict=True):
            ax.plot(*curve(run), color=colour, marker="", linestyle="-", linewidth=0.7, alpha=0.6)
            if math.isfinite(step):
                ax.plot(step, dict(zip(*curve(run)))[step], color="black", marker="o", markersize=3.5, linestyle="", zorder=3)
            table.append({"runs": name, "seed": run.header.repeat, "first crossing (step)": step, "final": curve(run)[1][-1]})
        ax.axhline(target, color="black", linewidth=0.9, linestyle="--")
        top, end = max(curve(run)[1].max() for run in runs), curve(runs[0])[0][-1]
        ax.set(xlabel="optimizer steps", ylim=(max(0, target - 0.12), top + 0.01), title=f"{name}: {runs[0].config.get('model', 'run')}, {len(runs)} runs")
        ax.text(end, max(0, target - 0.12) + 0.006, f"target {target:g} (dashed), dots: first crossing", ha="right", fontsize=8)
        reached = np.isfinite(crossed)
        spread = f" between step {min(crossed):.0f} and {max(np.array(crossed)[reached]):.0f}" if reached.any() else ""
        parts.append(f"{name}: {reached.sum()} of {len(runs)} runs cross {target:g}{spread}, and {kept(runs)} end at or above it")
    np.atleast_1d(axes)[0].set_ylabel("validation accuracy")
    return fig, "; ".join(parts) + ".", pd.DataFrame(table)


def ledger_figure(run: Run):
    """One run's spans, a row a kind, and below them what each clock rule counts up to the first crossing (or to the end, if there was none)."""
    row = clock.first_crossing(run, at(run))
    until = row.when if row else max(span.end for span in run.spans)
    fig, (upper, lower) = viz.figure(rows=2, width=viz.MAX_WIDTH, height=3.6, sharex=True)
    for place, (kind, colour) in enumerate(KINDS.items()):
        spans = [(span.start, min(span.end, until) - span.start) for span in run.spans if span.kind == kind and span.start < until]
        upper.broken_barh(spans, (place - 0.4, 0.8), color=colour)
        upper.text(until * 1.02, place, f"{sum(length for _, length in spans):.3f} s", va="center", fontsize=8)
    table = []
    for place, (name, rule) in enumerate(clock.RULES.items()):
        answer = clock.time_to_target(run, name)
        alone = answer.seconds is not None
        if alone:
            lower.broken_barh([(a, b - a) for a, b in segments(run, name, until)], (place - 0.4, 0.8), color=viz.YOURS)
        label = f"{answer.seconds:.3f} s" if answer else "not reached" if alone else "not answerable"
        lower.text(until * 1.02, place, label, va="center", fontsize=8)
        table.append({"clock rule": name, "answer": str(answer), "counts": ", ".join(kind for kind in KINDS if kind in rule.counts) + (", gaps" if rule.gaps else "")})
    for ax, names, title in ((upper, list(KINDS), "what happened"), (lower, list(clock.RULES), "what each clock rule counts")):
        ax.set_yticks(range(len(names)), names)
        ax.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, until * 1.2), title=title)
    lower.set_xlabel("seconds from the start of the run to its first crossing" if row else "seconds from the start of the run to its end: it never crossed")
    return fig, "One run, seconds by clock rule: " + "; ".join(f"{line['clock rule']} {line['answer']}" for line in table) + ".", pd.DataFrame(table)


def rules_figure(runs: Sequence[Run], name: str = "yours", colour: str = viz.YOURS):
    """Every run's time under every rule, the rule's published score as a diamond."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH)
    table, words = [], []
    for place, rule in enumerate(clock.RULES):
        score = clock.score(runs, rule) if len(runs) > 2 or clock.RULES[rule].score != "drop-extremes" else clock.Answer(None, "needs three runs")
        times = seconds_to_target(runs, rule) if rule in PER_RUN else []
        ok = sorted(filter(math.isfinite, times))
        ax.plot(ok, place + 0.24 * np.resize([-1, 0.3, -0.3, 1, 0], len(ok)), color=colour, marker="o", linestyle="", alpha=0.7)
        if score:
            ax.plot(score.seconds, place, color="black", marker="D", linestyle="", zorder=3)
        text = f"{clock.RULES[rule].score}: {score.seconds:.3g} s" if score else f"{clock.RULES[rule].score}: no score"
        ax.text(1.02, place, text + (f", {len(times) - len(ok)} missed" if len(ok) < len(times) else ""), transform=ax.get_yaxis_transform(), va="center", fontsize=8)
        table.append({"clock rule": rule, "score": clock.RULES[rule].score, "publishes": str(score), "why": score.reason, "median": np.median(times) if times else math.nan, "reached": len(ok) if times else None})
        words.append(f"{rule} ({clock.RULES[rule].score}) publishes {score}" + (f" because {score.reason}" if score.reason and score.seconds == math.inf else ""))
    ax.set_yticks(range(len(clock.RULES)), list(clock.RULES))
    ax.set(ylim=(len(clock.RULES) - 0.5, -0.5), xlabel="seconds to the first crossing; a dot is a run, a diamond what the rule publishes", title=f"{name}: {len(runs)} runs, one set of spans")
    ax.set_xlim(left=0)
    return fig, f"{name}, {len(runs)} runs: " + "; ".join(words) + ".", pd.DataFrame(table)


def grid_figure(runs: Sequence[Run], values: Sequence[float], intervals: Sequence[int], name: str = "yours"):
    """Variation (colour and first line of a cell) and reach rate (second line) by target and evaluation interval."""
    table = reread(runs, values, intervals)
    shown = table.pivot(index="every", columns="target", values="variation").to_numpy()
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=2.6)
    ax.imshow(np.ma.masked_invalid(shown), cmap="cividis", vmin=0, vmax=0.45, aspect="auto")
    for row in table.itertuples():
        x, y = list(values).index(row.target), sorted(intervals).index(row.every)
        light = row.variation < 0.25
        ax.text(x, y, f"{percent(row.variation)}\nreach {row.reach:.0%}", ha="center", va="center", fontsize=7.5, color="white" if light else "black")
    ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    ax.set_yticks(range(len(intervals)), [f"{every}" for every in sorted(intervals)])
    ax.grid(False)
    ax.set(xlabel="target (validation accuracy)", ylabel="steps between evaluations", title=f"{name}: variation of the steps to target, and reach rate")
    words = "; ".join(f"target {row.target:g} every {row.every}: {percent(row.variation)}, reach {row.reach:.0%}" for row in table.itertuples())
    return fig, f"{name}, variation and reach rate: {words}.", table


def reading_figure(runs: Sequence[Run], target: float, every: int, rule: str, name: str = "yours", colour: str = viz.YOURS):
    """Share of the runs that have reached, against seconds: the height of the plateau is the reach rate, the place where it passes one half the median."""
    times = seconds_to_target(runs, rule, target, every)
    row, cost = statistics.summary(times, full_cost(runs, rule)), max(full_cost(runs, rule))
    ok = sorted(filter(math.isfinite, times))
    fig, ax = viz.figure(height=2.8)
    ax.step([0, *ok, cost], [*(np.arange(len(ok) + 1) / len(times)), len(ok) / len(times)], where="post", color=colour, linestyle="-", marker="")
    ax.axhline(0.5, color="black", linewidth=0.7, linestyle=":")
    ax.set(xlabel=f"seconds under {rule}", ylabel="runs that have reached", ylim=(0, 1.05), xlim=(0, cost), title=f"{name}: target {target:g}, evaluated every {every} steps")
    if math.isfinite(row["median"]):
        ax.plot(row["median"], 0.5, color="black", marker="D", linestyle="")
        viz.direct_label(ax, row["median"], 0.46, f"median {row['median']:.3g} s", "black")
    words = (f"{name}, target {target:g}, evaluated every {every} steps, clock {rule}: reach rate {row['reach_rate']:.0%} [{row['reach_low']:.0%}, {row['reach_high']:.0%}], median {in_seconds(row['median'])}, "
             f"variation {percent(row['cov'])}, expected with failures {in_seconds(row['expected'])}, n = {row['n']}.")
    return fig, words, pd.DataFrame([row])
