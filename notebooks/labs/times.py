"""Reading repeated runs: under a clock rule, at another target, as if evaluated less often; and the figures of a set.

Nothing is trained here. A run is read with `labkit.tta.clock`; every figure comes with its text and its numbers.
When not to use it: for a single run, or for runs of different recipes; all this is about the spread of one recipe.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.errors import RequestError
from labkit.runs import Header, Row, Run, Span
from labkit.teach import viz
from labkit.tta import clock, statistics
from labs.rules_times import thinned

PER_RUN = tuple(name for name, rule in clock.RULES.items() if rule.per == "run")
KINDS = dict(zip(("init", "data", "train", "evaluate", "checkpoint"), (viz.SERIES[n] for n in (1, 4, 0, 3, 2))))


def at(run: Run, value: float | None = None) -> dict:
    """The run's target, or the same metric at another value."""
    return run.header.target if value is None else {**run.header.target, "value": value}


def curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of the target's metric; a closing evaluation at a step that was evaluated before is left out."""
    rows = {row.step: row.value for row in reversed(run.series(run.header.target["metric"]))}
    return np.array(sorted(rows)), np.array([rows[step] for step in sorted(rows)])


def steps_to_target(runs: Sequence[Run], value: float | None = None, every: int = 1) -> list[float]:
    """Optimizer steps at the first crossing of each run, read every `every` steps; a miss is infinite.

    Steps carry no timing noise: what varies is the training, and which evaluation passed.
    """
    rows = [clock.first_crossing(thinned(run, every), at(run, value)) for run in runs]
    return [math.inf if row is None else float(row.step) for row in rows]


def seconds_to_target(runs: Sequence[Run], rule: str, value: float | None = None, every: int = 1) -> list[float]:
    """Seconds of each run under a clock rule that judges single runs, read every `every` steps; a miss is infinite.

    The spans stay as they were: a rule that counts evaluation still pays for the evaluations that are left out.

    Raises:
        RequestError: the rule cannot answer for one of the runs.
    """
    answers = [clock.time_to_target(thinned(run, every), rule, at(run, value)) for run in runs]
    for answer in answers:
        if answer.seconds is None:
            raise RequestError(f"seconds under {rule} are not answerable ({answer.reason}); try {', '.join(PER_RUN)}")
    return [answer.seconds for answer in answers]


def full_cost(runs: Sequence[Run], rule: str) -> list[float]:
    """Seconds that each run costs under a rule if it trains to its end: what a failure is charged."""
    seconds = []
    for run in runs:
        rows, last = run.series(run.header.target["metric"]), curve(run)[0][-1]
        until = next(row.when for row in rows if row.step == last)
        seconds.append(clock.counted_seconds(run, clock.clock_rule(rule), until))
    return seconds


def variation(times: Sequence[float]) -> float:
    """Coefficient of variation of those that reached; NaN where fewer than two did."""
    return statistics.summary(times)["cov"]


def kept(runs: Sequence[Run], value: float | None = None) -> int:
    """How many runs *end* at or above the target: the model that one keeps, not the best moment of its training."""
    return sum(curve(run)[1][-1] >= at(run, value)["value"] for run in runs)


def moved(runs: Sequence[Run]) -> list[float]:
    """Targets around the announced one, easiest first."""
    shifts = (-0.1, -0.05, -0.02, -0.01, 0.0, 0.005, 0.01)
    return [round(at(runs[0])["value"] + shift, 4) for shift in shifts]


def reread(runs: Sequence[Run], values: Sequence[float], intervals: Sequence[int]) -> pd.DataFrame:
    """The same runs at other targets and evaluation intervals: one row each, in steps."""
    rows = []
    for value in values:
        for every in intervals:
            steps = steps_to_target(runs, value, every)
            row = statistics.summary(steps)
            rows.append(
                {
                    "target": value,
                    "every": every,
                    "variation": row["cov"],
                    "reach": row["reach_rate"],
                    "median steps": row["median"],
                    "end above": kept(runs, value) / len(runs),
                }
            )
    return pd.DataFrame(rows)


def picked_by(choose_on: Sequence[float], value: Sequence[float], n: int) -> float:
    """Expected `value` of the run with the largest `choose_on` among `n` drawn without replacement (ties by order)."""
    order = np.argsort(-np.asarray(choose_on, float), kind="stable")
    total = len(order)
    ways = [math.comb(total - 1 - i, n - 1) / math.comb(total, n) for i in range(total - n + 1)]
    return float(np.dot(ways, np.asarray(value, float)[order[: len(ways)]]))


def segments(run: Run, rule: str, until: float) -> list[tuple[float, float]]:
    """Pieces (start, end) of the run on the clock of `rule` up to `until`; they add up to `clock.counted_seconds`."""
    chosen = clock.clock_rule(rule)
    starts = [span.start for span in run.spans if span.kind in chosen.starts_at]
    begin = min(starts, default=until) if chosen.starts_at else 0.0
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
    """Made-up runs with a known truth: each has its own pace and ceiling, each evaluation is a noisy look at a curve.

    Marked `simulated`: they explain, they prove nothing.
    """
    random, runs = np.random.default_rng(seed), []
    goal = {"metric": "validation_accuracy", "value": target, "higher": True}
    for repeat in range(count):
        pace, ceiling, second = 90 * random.lognormal(0, 0.2), random.normal(0.94, 0.006), random.lognormal(-6.2, 0.02)
        run = Run(Header("11", {"simulated": True}, repeat, source="simulated", target=goal), status="finished")
        run.spans += [Span("init", 0.0, 0.03), Span("data", 0.03, now := 0.08)]
        for step in range(every, steps + 1, every):
            trained = now + every * second
            run.spans += [Span("train", now, trained), Span("evaluate", trained, now := trained + 0.004)]
            accuracy = ceiling - 0.5 * math.exp(-step / pace) + random.normal(0, 0.004)
            run.rows.append(Row(step, step / 64, step * 64, now, goal["metric"], accuracy))
        runs.append(run)
    return runs


def percent(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0%}"


def in_seconds(value: float) -> str:
    return f"{value:.3g} s" if math.isfinite(value) else "not reached"


def rules_figure(runs: Sequence[Run], name: str = "yours", colour: str = viz.YOURS):
    """Every run's time under every rule, the rule's published score as a diamond."""
    fig, ax = viz.figure(width=viz.MAX_WIDTH)
    table, words = [], []
    for place, (rule, about) in enumerate(clock.RULES.items()):
        few = about.score == "drop-extremes" and len(runs) < 3
        score = clock.Answer(None, "needs three runs") if few else clock.score(runs, rule)
        times = seconds_to_target(runs, rule) if rule in PER_RUN else []
        ok = sorted(filter(math.isfinite, times))
        spread = place + 0.24 * np.resize([-1, 0.3, -0.3, 1, 0], len(ok))
        ax.plot(ok, spread, color=colour, marker="o", linestyle="", alpha=0.7)
        if score:
            ax.plot(score.seconds, place, color="black", marker="D", linestyle="", zorder=3)
        text = f"{about.score}: {in_seconds(score.seconds) if score else 'no score'}"
        text += f"\n{len(times) - len(ok)} of {len(times)} missed" if len(ok) < len(times) else ""
        ax.text(1.02, place, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8)
        why = f" because {score.reason}" if score.reason and not score else ""
        table.append(
            {
                "clock rule": rule,
                "score": about.score,
                "publishes": str(score),
                "why": score.reason,
                "median": float(np.median(times)) if times else math.nan,
                "reached": len(ok) if times else "",
            }
        )
        words.append(f"{rule} ({about.score}) publishes {score if score.seconds is not None else 'nothing'}{why}")
    ax.set_yticks(range(len(clock.RULES)), list(clock.RULES))
    ax.set(
        ylim=(len(clock.RULES) - 0.5, -0.5),
        title=f"{name}: {len(runs)} runs, one set of spans",
        xlabel="seconds to the first crossing; a dot is a run, a diamond what is published",
    )
    ax.set_xlim(left=0)
    return fig, f"{name}, {len(runs)} runs: {'; '.join(words)}.", pd.DataFrame(table)


def grid_figure(runs: Sequence[Run], values: Sequence[float], intervals: Sequence[int], name: str = "yours"):
    """Variation (colour, first line of a cell) and reach rate (second line) by target and evaluation interval."""
    table = reread(runs, values, intervals)
    shown = table.pivot(index="every", columns="target", values="variation").to_numpy()
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=2.6)
    ax.imshow(np.ma.masked_invalid(shown), cmap="cividis", vmin=0, vmax=0.45, aspect="auto")
    for row in table.itertuples():
        x, y = list(values).index(row.target), sorted(intervals).index(row.every)
        ink = "white" if row.variation < 0.2 else "black"
        text = f"{percent(row.variation)}\n({row.reach:.0%})"
        ax.text(x, y, text, ha="center", va="center", fontsize=7.5, color=ink)
    ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    ax.set_yticks(range(len(intervals)), [f"{every}" for every in sorted(intervals)])
    ax.grid(False)
    ax.set(
        xlabel="target (validation accuracy)",
        ylabel="steps between evaluations",
        title=f"{name}: variation of the steps to target (reach rate)",
    )
    parts = []
    for every, rows in table.groupby("every"):
        pairs = (f"{percent(row.variation)} ({row.reach:.0%})" for row in rows.itertuples())
        parts.append(f"every {every} steps {', '.join(pairs)}")
    targets = ", ".join(f"{value:g}" for value in values)
    return fig, f"{name}, variation (reach rate) at targets {targets}: {'; '.join(parts)}.", table


def reading_figure(runs: Sequence[Run], target: float, every: int, rule: str, name: str, colour: str = viz.YOURS):
    """Share of the runs that have reached, against seconds: the plateau is the reach rate, one half the median."""
    times, cost = seconds_to_target(runs, rule, target, every), full_cost(runs, rule)
    row, ok = statistics.summary(times, cost), sorted(filter(math.isfinite, times))
    share = np.arange(len(ok) + 1) / len(times)
    fig, ax = viz.figure(height=2.8)
    ax.step([0, *ok, max(cost)], [*share, share[-1]], where="post", color=colour, linestyle="-", marker="")
    ax.axhline(0.5, color="black", linewidth=0.7, linestyle=":")
    ax.set(
        xlabel=f"seconds under {rule}",
        ylabel="runs that have reached",
        ylim=(0, 1.05),
        xlim=(0, max(cost)),
        title=f"{name}: target {target:g}, evaluated every {every} steps",
    )
    if math.isfinite(row["median"]):
        ax.plot(row["median"], 0.5, color="black", marker="D", linestyle="")
        viz.direct_label(ax, row["median"], 0.44, f"median {row['median']:.3g} s", "black")
    else:
        ax.text(0.98 * max(cost), 0.51, "median not reached", ha="right", va="bottom", fontsize=8)
    rate = f"{row['reach_rate']:.0%} [{row['reach_low']:.0%}, {row['reach_high']:.0%}]"
    words = (
        f"{name}, target {target:g}, evaluated every {every} steps, clock {rule}: reach rate {rate}, "
        f"median {in_seconds(row['median'])}, variation {percent(row['cov'])}, "
        f"expected with failures {in_seconds(row['expected'])}, n = {row['n']}."
    )
    return fig, words, pd.DataFrame([row])
