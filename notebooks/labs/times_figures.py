"""Figures that lay your runs beside the recorded ones and the literature: (figure, text alternative, data) each.

`groups` is a list of (name, runs, colour): yours first, then the recorded runs where there are any. The runs of a group
share one recipe and one target. When not to use them: for runs of different recipes in one group.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.rules.general import published
from labkit.runs import Run
from labkit.teach import viz
from labkit.tta import statistics
from labs import times
from labs.thresholds import threshold_sensitivity

Groups = Sequence[tuple[str, Sequence[Run], str]]
DRAWN = 12  # curves of a group: more lines hide each other; the dots are those of all runs


def reached_seconds(runs: Sequence[Run]) -> list[float]:
    """Seconds under dawnbench of the runs that reached their target."""
    return [seconds for seconds in times.seconds_to_target(runs, "dawnbench") if math.isfinite(seconds)]


def crossings_figure(groups: Groups):
    """Validation curves, a panel a group, with every run's first crossing as a dot; the data are those of `yours`."""
    fig, axes = viz.figure(columns=len(groups))
    parts, table = [], []
    for ax, (name, runs, colour) in zip(np.atleast_1d(axes), groups):
        target, crossed = times.at(runs[0])["value"], times.steps_to_target(runs)
        curves = [times.curve(run) for run in runs]
        thin = {"marker": "", "linestyle": "-", "linewidth": 0.3, "antialiased": False}
        dot = {"color": "black", "marker": "o", "markersize": 3.5, "linestyle": "", "zorder": 3}
        for drawn, ((steps, values), step) in enumerate(zip(curves, crossed)):
            if drawn < DRAWN:
                ax.plot(steps, values, color=colour, **thin)
            if math.isfinite(step):
                ax.plot(step, values[list(steps).index(step)], **dot)
        if name == "yours":
            table = [
                {
                    "seed": run.header.repeat,
                    "first crossing (step)": step,
                    "final validation": values[-1],
                    "final test": run.last("test_accuracy"),
                }
                for run, step, (_, values) in zip(runs, crossed, curves)
            ]
        ax.axhline(target, color="black", linewidth=0.9, linestyle="--")
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        title = f"{name}: {runs[0].config['model']}, {count}" + f", {DRAWN} drawn" * (len(runs) > DRAWN)
        top = max(values.max() for _, values in curves)
        ax.set(xlabel="optimizer steps", ylim=(max(0, target - 0.12), top + 0.01), title=title)
        note = f"dashed: target {target:g}\ndots: first crossings"
        ax.text(0.98, 0.03, note, transform=ax.transAxes, ha="right", fontsize=8)
        reached = [step for step in crossed if math.isfinite(step)]
        spread = f", the first at step {min(reached):.0f} and the last at step {max(reached):.0f}" if reached else ""
        kept = times.kept(runs)
        cross, end = "crosses" if len(reached) == 1 else "cross", "ends" if kept == 1 else "end"
        parts.append(f"{name}: {len(reached)} of {count} {cross} {target:g}{spread}; {kept} {end} at or above it")
    np.atleast_1d(axes)[0].set_ylabel("validation accuracy")
    return fig, "; ".join(parts) + ".", pd.DataFrame(table)


def literature_figure(groups: Groups):
    """Reach rates beside those that READMEs report (left), the variation of the seconds beside our bound (right)."""
    readmes = published("reach_rates.csv").itertuples()
    cases = [(row.recipe, row.reached, row.runs, viz.LITERATURE) for row in readmes]
    for name, runs, colour in groups[::-1]:
        cases.append((name, sum(map(math.isfinite, times.steps_to_target(runs))), len(runs), colour))
    fig, (left, right) = viz.figure(columns=2, height=2.9, width_ratios=[3, 2])
    table, rates, words = [], [], []
    for place, (name, reached, count, colour) in enumerate(cases):
        rate = statistics.reach_rate([1.0] * int(reached) + [math.inf] * int(count - reached))
        left.plot([rate.low, rate.high], [place, place], color=colour, marker="", linestyle="-")
        left.plot(rate.value, place, color=colour, marker="o", linestyle="")
        text = f"{reached}/{count}"
        left.text(rate.value, place - 0.18, text, ha="center", va="bottom", fontsize=8, color=colour)
        interval = {"rate": rate.value, "low": rate.low, "high": rate.high}
        table.append({"recipe": name, "reached": reached, "runs": count, **interval})
        rates.append(f"{name} {text} [{rate.low:.2f}, {rate.high:.2f}]")
    left.set_yticks(range(len(cases)), [case[0].replace(" (", "\n(") for case in cases])
    left.set(xlim=(0, 1.02), ylim=(len(cases) - 0.5, -0.7), xlabel="reach rate, 95 % interval")
    for place, (name, runs, colour) in enumerate(groups[::-1]):
        found = reached_seconds(runs)
        if len(found) > 1:
            k = statistics.coefficient_of_variation(found)
            right.plot([k.low, min(k.high, 1)], [place, place], color=colour, marker="", linestyle="-")
            right.plot(k.value, place, color=colour, marker="o", linestyle="")
            look = {"ha": "left", "va": "bottom", "fontsize": 8, "color": colour}
            right.text(max(k.value, 0.17), place - 0.05, f"{k.value:.2f}", **look)  # never on the line of the bound
            words.append(f"{name} {k.value:.2f} [{k.low:.2f}, {k.high:.2f}] over {k.n} runs")
    right.axvline(0.15, color="black", linewidth=0.9, linestyle="--")
    right.text(0.17, len(groups) - 0.35, 'our bound\nfor "low"', fontsize=8, va="bottom")
    right.set_yticks(range(len(groups)), [group[0] for group in groups[::-1]])
    right.set(xlim=(0, 1), ylim=(len(groups) - 0.3, -0.6), xlabel="variation, 95 % interval")
    spread = "; ".join(words) or "fewer than two runs reached"
    alt = f"Reach rates: {'; '.join(rates)}. Variation of the seconds under dawnbench: {spread}. "
    alt += "The literature's variation is not drawn: no number is known to us."
    return fig, alt, pd.DataFrame(table)


def target_figure(groups: Groups):
    """Median steps against the target moved by points, relative to the announced one (where that is a miss, to the
    smallest median); the line ends where the median is a miss.
    """
    shifts = np.round(np.arange(-0.05, 0.0201, 0.005), 4)
    here, one, two = (list(shifts).index(shift) for shift in (0.0, -0.01, -0.02))
    fig, ax = viz.figure(height=2.8)
    table, words, ends, top = [], [], [], 1.0
    for name, runs, colour in groups[::-1]:
        announced, curves = times.at(runs[0])["value"], {run.header.repeat: times.curve(run) for run in runs}
        found = [
            list(steps.values()) for steps in threshold_sensitivity(curves, announced + shifts).values()
        ]
        medians = np.array([np.median(steps) for steps in found])
        if not np.isfinite(medians).any():
            words.append(f"{name}: the median is a miss at every target drawn")
            continue
        base = medians[here] if math.isfinite(medians[here]) else np.min(medians)
        drawn = np.where(np.isfinite(medians), medians / base, math.nan)
        ax.plot(100 * shifts, drawn, color=colour, marker="o", markersize=3.5, linestyle="-", markevery=1)
        last, top = np.flatnonzero(np.isfinite(drawn))[-1], max(top, np.nanmax(drawn))
        ends.append((drawn[last], 100 * shifts[last], name, colour))
        for shift, median, steps in zip(shifts, medians, found):
            share = np.mean(np.isfinite(steps))
            row = {"runs": name, "target": announced + shift, "median steps": median, "reach rate": share}
            table.append(row)
        words.append(
            f"{name}: one point less than {announced:g} takes {drawn[one]:.2f} of the median steps, two points less "
            f"{drawn[two]:.2f}"
            if math.isfinite(drawn[one])
            else f"{name}: the median is a miss even one point below {announced:g}"
        )
    height = -math.inf
    for level, end, label, colour in sorted(ends):  # at their line's end, none on another
        height = max(level, height + 0.09 * top)
        if end == 100 * shifts[-1]:
            viz.direct_label(ax, end, height, label, colour)
        else:  # beside it other lines go on; all rise, so that above it there is room
            look = {"ha": "right", "va": "bottom", "fontsize": 8, "color": colour, "zorder": 4}
            frame = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            ax.text(end, height + 0.03 * top, f"{label}, then a miss", bbox=frame, **look)
    ax.axvline(0, color="black", linewidth=0.9, linestyle="--")
    ax.set(xlabel="target moved by (points of accuracy)", ylabel="median steps, relative")
    ax.set(xlim=(-5.3, 4.5), ylim=(0, 1.17 * top))
    return fig, "; ".join(words) + ".", pd.DataFrame(table)


def best_of_figure(groups: Groups):
    """Expected time of the best of n runs over the mean, exact (solid) and for normal times (dashed)."""
    fig, ax = viz.figure(height=2.8)
    table, words = [], []
    for name, runs, colour in groups[::-1]:
        found = reached_seconds(runs)
        if len(found) < 2:
            continue
        mean, sd, counts = np.mean(found), np.std(found, ddof=1), range(1, len(found) + 1)
        best = [statistics.expected_best_of(found, n) / mean for n in counts]
        theory = [1 - statistics.best_of_n_bias(sd, n) / mean for n in counts]
        ax.plot(counts, best, color=colour, marker="o", markersize=3.5, linestyle="-", markevery=1)
        ax.plot(counts, theory, color=colour, marker="", linestyle="--", linewidth=0.9)
        viz.direct_label(ax, counts[-1], best[-1] - (0.1 if name == "yours" else 0), name, colour)
        for n, exact, normal in zip(counts, best, theory):
            table.append({"runs": name, "n": n, "best / mean": exact, "normal theory": normal})
        n = min(5, len(found))
        words.append(
            f"{name}: the best of {n} runs takes {best[n - 1]:.2f} of the mean (normal theory {theory[n - 1]:.2f}), "
            f"the best of all {len(found)} takes {best[-1]:.2f}"
        )
    ax.text(0.02, 0.05, "dashed: normal theory", transform=ax.transAxes, fontsize=8)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="runs from which the best is shown", ylabel="expected time / mean", ylim=(0, 1.05))
    ax.set_xlim(0.5, max(len(runs) for _, runs, _ in groups) * 1.2)
    return fig, ("; ".join(words) or "fewer than two runs reached the target") + ".", pd.DataFrame(table)


def readme_sum(groups: Groups) -> tuple[pd.DataFrame, str]:
    """The seconds of everything and by dawnbench, of cifar10-fast and of each group's median; and the README's sum."""
    part = dict(published("clock_rules_cifar10.csv")[["part", "seconds"]].itertuples(index=False))
    wall, bench = part["with validation on the clock"], part["by the DAWNBench rule"]
    lines = [("cifar10-fast, V100 (README)", wall, bench)]
    words = f"README: {wall} s - {part['validation']} s of validation + {part['preprocessing']} s of preprocessing"
    words += f" = {wall - part['validation'] + part['preprocessing']} s"
    for name, runs, _ in groups[::-1]:
        medians = [float(np.median(times.seconds_to_target(runs, rule))) for rule in ("wall", "dawnbench")]
        lines += [(f"{name}, median", *medians)] if math.isfinite(medians[1]) else []
    table = pd.DataFrame(lines, columns=["run", "everything", "by dawnbench"])
    return table.assign(ratio=table["everything"] / table["by dawnbench"]).round(3), words


def selection_gains(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Points above the mean of the final accuracy, on `validation` and on `test`, of the best by validation of n runs,
    for n from one to all.
    """
    final = {
        "validation": [times.curve(run)[1][-1] for run in runs],
        "test": [run.last("test_accuracy") for run in runs],
    }
    points = {part: [100 * value for value in values] for part, values in final.items()}
    return {
        part: [times.picked_by(points["validation"], values, n + 1) - np.mean(values) for n in range(len(runs))]
        for part, values in points.items()
    }


def kept_figure(groups: Groups):
    """Who crosses and who ends at or above the target (left); what choosing by validation gains, by part (right)."""
    fig, (left, right) = viz.figure(columns=2, height=2.8, width_ratios=[2, 3])
    table, words = [], []
    for place, (name, runs, colour) in enumerate(groups):
        rate, end = statistics.reach_rate(times.steps_to_target(runs)).value, times.kept(runs) / len(runs)
        for x, share in ((0, rate), (1, end)):
            left.bar(x + 0.4 * place, share, 0.36, color=colour)
            left.text(x + 0.4 * place, share + 0.02, f"{share:.0%}", ha="center", fontsize=8)
        gains, counts, every = selection_gains(runs), range(1, len(runs) + 1), max(1, len(runs) // 10)
        for part, line, mark in (("validation", "-", "o"), ("test", "--", "s")):
            look = {"color": colour, "linestyle": line, "marker": mark, "markersize": 3, "markevery": every}
            right.plot(counts, gains[part], **look)
            label = part if len(groups) == 1 else f"{name}: {part}"
            viz.direct_label(right, counts[-1], gains[part][-1], label, colour)
        peak = 100 * np.mean([values.max() - values[-1] for _, values in map(times.curve, runs)])
        seconds = times.seconds_to_target(runs, "dawnbench")
        fastest, expected = min(seconds), statistics.expected_time(seconds, times.full_cost(runs, "dawnbench"))
        validation, test = gains["validation"][-1], gains["test"][-1]
        table.append(
            {
                "runs": name,
                "reach rate": rate,
                "end above": end,
                "peak - final (points)": peak,
                "gain on validation": validation,
                "gain on test": test,
                "fastest s": fastest,
                "expected s": expected,
            }
        )
        words.append(
            f"{name}: {rate:.0%} of the runs cross the target and {end:.0%} end at or above it; the peak of a curve is "
            f"{peak:.1f} points above its end; the best of {len(runs)} by validation is {validation:+.1f} points on "
            f"validation and {test:+.1f} on test; the fastest run takes {times.in_seconds(fastest)}, "
            f"the expected time with failures is {times.in_seconds(expected)}"
        )
    middle = 0.2 * (len(groups) - 1)
    left.set_xticks([middle, 1 + middle], ["cross the\ntarget", "end at or\nabove it"])
    left.set(ylim=(0, 1.15), ylabel="share of the runs")
    left.set_axisbelow(True)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.axhline(0, color="black", linewidth=0.7)
    right.set(xlabel="runs from which the best by validation is taken", ylabel="gain over the mean (points)")
    right.set_xlim(0.5, max(len(runs) for _, runs, _ in groups) * 1.55)
    return fig, "; ".join(words) + ".", pd.DataFrame(table)
