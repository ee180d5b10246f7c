"""Figures of lab 13's second half: (figure, text alternative, data) each.

`groups` is what `labs.lesion.groups` gives: (name, runs by cell, arm or candidate, colour), yours first, then the
recorded runs where there are any. When not to use them: for runs of different recipes under one name.
"""

import math

import numpy as np
import pandas as pd

from labkit.teach import viz
from labs import lesion, rules_lesion

DRAWS = ("reused", "fresh", "shifted")


def factor(row) -> str:
    """A factor of speed with its interval, as words."""
    if math.isnan(row["low"]):
        return f"{row['factor']:.2f}"
    return f"{row['factor']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def none_left(table) -> bool:
    """Whether every seed missed the target in some cell, so that there are no effects."""
    return table["seeds"].iloc[0] == 0


def factorial_figure(groups):
    """Seconds to the target in all eight cells: a dot a seed, a bar the geometric mean of the seeds that all cells
    reached. The axis is logarithmic; a miss has no dot and is counted in the words.
    """
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.2)
    rows, words = [], []
    for place, (name, cells, colour) in enumerate(groups):
        seconds, steps = lesion.readings(cells, "seconds"), lesion.readings(cells, "steps")
        table = np.array([seconds[cell] for cell in lesion.CELLS])
        complete = np.isfinite(table).all(axis=0)
        for x, cell in enumerate(lesion.CELLS):
            at = x + 0.28 * (place - (len(groups) - 1) / 2)
            found = [value for value in seconds[cell] if math.isfinite(value)]
            ax.plot([at] * len(found), found, color=colour, marker="o", linestyle="", markersize=3.5, alpha=0.6)
            mean = float(np.exp(np.log(table[x][complete]).mean())) if complete.any() else math.nan
            ax.plot([at - 0.12, at + 0.12], [mean, mean], color=colour, linestyle="-", marker="", linewidth=2)
            row = {"runs": name, "on": cell or "none", "seconds": mean, "reached": len(found), "of": len(seconds[cell])}
            reached = [value for value in steps[cell] if math.isfinite(value)]
            rows.append({**row, "median steps": float(np.median(reached)) if reached else math.nan})
        if complete.any():
            means = {row["on"]: row["seconds"] for row in rows if row["runs"] == name}
            best = min(means, key=means.get)
            words.append(
                f"{name}, {seeds(complete.size)}: {means['none']:.2f} s with none on, "
                f"{means['ABC']:.2f} s with all on, the fastest is {best} with {means[best]:.2f} s"
            )
        missed, few = lesion.misses(cells), "" if complete.any() else "; no seed is left that all cells reached"
        words.append(f"{name}: {missed} of {table.size} runs missed the target{few}")
        reached = "" if np.isfinite(table).any() else " (no run reached it)"
        ax.plot([], [], color=colour, marker="o", linestyle="", label=f"{name}{reached}")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    ax.set_xticks(range(len(lesion.CELLS)), ["none", *lesion.CELLS[1:]])
    ax.set(xlabel="optimisations that are on", ylabel="seconds to target (dawnbench)")
    ax.set_title("; ".join(f"{letter} {label}" for letter, label in lesion.FACTORS.items()))
    ax.legend(loc="upper right")
    return fig, "; ".join(words) + ".", pd.DataFrame(rows)


def forest(ax, lines, span) -> None:
    """Rows of (label, [(effect, colour)]) as points with intervals on a logarithmic axis of factors, cut at `span`."""
    for place, (_, effects) in enumerate(lines):
        for number, (row, colour) in enumerate(effects):
            y = place + 0.26 * (number - (len(effects) - 1) / 2)
            if not math.isnan(row["factor"]):
                value = float(np.clip(row["factor"], *span))
                ax.plot(value, y, color=colour, marker="osD"[number % 3], linestyle="", markersize=4.5)
            if not math.isnan(row["low"]):
                ax.plot(np.clip([row["low"], row["high"]], *span), [y, y], color=colour, linestyle="-", marker="")
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_yticks(range(len(lines)), [label for label, _ in lines])
    ax.set(ylim=(len(lines) - 0.5, -0.5), xlim=span)


def effect(table, kind: str, term: str):
    return table[(table["kind"] == kind) & (table["term"] == term)].iloc[0]


def composition_figure(groups):
    """Left: each optimisation alone, taken out of the full recipe, and its share. Right: what their products say
    against the joint speed-up. All in factors of seconds, with 95 % intervals where there are two seeds or more.
    """
    tables = [
        (name, lesion.factorial_effects(lesion.readings(cells, "seconds")), colour) for name, cells, colour in groups
    ]
    fig, (left, right) = viz.figure(columns=2, height=3.4)
    kinds = (("single", "alone"), ("lesion", "with the others on"), ("share", "share"))
    lines = [
        (f"{letter} {words}", [(effect(table, kind, letter), colour) for _, table, colour in tables])
        for letter in lesion.FACTORS
        for kind, words in kinds
    ]
    forest(left, lines, (1 / 8, 16))
    totals = (
        ("product of singles", "product of\nsingles"),
        ("joint", "joint"),
        ("product of lesions", "product of\nlesions"),
        ("singles over joint", "singles\nover joint"),
        ("lesions over joint", "lesions\nover joint"),
    )
    lines = [(words, [(effect(table, kind, "ABC"), colour) for _, table, colour in tables]) for kind, words in totals]
    forest(right, lines, (1 / 8, 64))
    left.set(xlabel="speed-up (1: no change)", title="one optimisation")
    right.set(xlabel="speed-up, or a ratio of two", title="all three")
    for place, (name, table, colour) in enumerate(tables):
        name = f"{name}: no seed is left" if none_left(table) else name
        right.text(0.98, 0.03 + 0.08 * place, name, transform=right.transAxes, ha="right", color=colour, fontsize=8)
    parts, rows = [], []
    for name, table, _ in tables:
        rows.append(table.assign(runs=name))
        if none_left(table):
            parts.append(f"{name}: no seed is left, {table['missed'].iloc[0]} left out for a miss")
            continue
        text = {kind: factor(effect(table, kind, "ABC")) for kind, _ in totals}
        shares = " x ".join(f"{letter} {effect(table, 'share', letter)['factor']:.2f}" for letter in lesion.FACTORS)
        parts.append(
            f"{name}: the product of the single speed-ups is {text['product of singles']}, the joint speed-up "
            f"{text['joint']}, the product of the lesions {text['product of lesions']}; singles over joint "
            f"{text['singles over joint']}, lesions over joint {text['lesions over joint']}; shares that multiply to "
            f"the joint one: {shares}; {seeds(table['seeds'].iloc[0])}, {table['missed'].iloc[0]} left out for a miss"
        )
    return fig, "; ".join(parts) + ".", pd.concat(rows, ignore_index=True).drop(columns=["log", "seeds", "missed"])


def effects_figure(groups):
    """Main effects and interactions on steps, on seconds per step, and on seconds, which are their product; of the
    recorded runs where there are any, else of yours.
    """
    name, cells, _ = groups[-1]
    tables = lesion.split_of_time(cells)
    name += ": no seed is left" if none_left(tables["seconds"]) else ""
    colours = dict(zip(tables, (viz.SERIES[0], viz.SERIES[1], "black")))
    terms = [("main", letter) for letter in lesion.FACTORS] + [
        ("interaction", term) for term in ("AB", "AC", "BC", "ABC")
    ]
    lines = []
    for kind, term in terms:
        label = f"{term} {lesion.FACTORS[term]}" if kind == "main" else " x ".join(term)
        lines.append((label, [(effect(table, kind, term), colours[what]) for what, table in tables.items()]))
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=3.6)
    forest(ax, lines, (1 / 16, 16))
    ax.axhline(2.5, color="black", linewidth=0.6, linestyle=":")
    for place, (what, colour) in enumerate(colours.items()):
        text, look = f"{what} ({('disc', 'square', 'diamond')[place]})", {"color": colour, "fontsize": 8}
        ax.text(0.99, 0.19 - 0.08 * place, text, transform=ax.transAxes, ha="right", **look)
    ax.set(
        xlabel="factor of speed; main effects above the dotted line, interactions below it",
        title=f"{name}: where the effects come from",
    )
    words = []
    for (kind, term), (label, effects) in zip(terms, [] if none_left(tables["seconds"]) else lines):
        steps, pace, seconds = (factor(row) for row, _ in effects)
        words.append(f"{label} {seconds} in seconds = {steps} in steps x {pace} in seconds per step")
    rows = pd.concat([table.assign(of=what) for what, table in tables.items()], ignore_index=True)
    rows = rows[rows["kind"].isin(["main", "interaction"])].drop(columns="log")
    return fig, f"{': '.join(filter(None, [name, '; '.join(words)]))}.", rows


def generalisation_figure(groups, margin: float = 0.02):
    """(fast - long) and (hasty - long) accuracy in points on the reused, the fresh and the shifted images, 95 %
    intervals over seeds and images, the margin dashed.
    """
    fig, ax = viz.figure(height=3.0)
    rows, words, low_end = [], [], -100 * margin
    several = [(name, arms, arm, colour) for name, arms, colour in groups for arm in ("fast", "hasty") if arm in arms]
    for place, (name, arms, arm, colour) in enumerate(several):
        fast, long = lesion.paired(arms, arm)
        parts, marker = [], "o" if arm == "fast" else "^"
        for x, draw in enumerate(DRAWS):
            value, low, high = (100 * part for part in rules_lesion.paired_interval(fast, long, draw))
            at = x + 0.16 * (place - (len(several) - 1) / 2)
            ax.plot([at, at], [low, high], color=colour, linestyle="-", marker="")
            ax.plot(at, value, color=colour, marker=marker, linestyle="", fillstyle="full" if arm == "fast" else "none")
            means = [100 * float(rules_lesion.blocks(part, draw).mean()) for part in (fast, long)]
            row = {"runs": name, "recipe": arm, "draw": draw, "its %": means[0], "long %": means[1], "seeds": len(fast)}
            rows.append({**row, "difference": value, "low": low, "high": high})
            parts.append(
                f"{draw} {means[0]:.1f} % against {means[1]:.1f} %, {value:+.1f} points [{low:+.1f}, {high:+.1f}]"
            )
            low_end = min(low_end, low)
        value, low, high = (100 * part for part in rules_lesion.paired_interval(fast, long, "fresh", "reused"))
        parts.append(f"fresh less reused {value:+.1f} points [{low:+.1f}, {high:+.1f}]")
        words.append(f"{name}, {seeds(len(fast))}, {arm} against long: {'; '.join(parts)}")
    for place, (name, _, colour) in enumerate(groups):
        ax.text(0.2 * place, 1.02, name, transform=ax.transAxes, color=colour, fontsize=8)
    ax.text(1, 1.02, "disc: fast; triangle: hasty", transform=ax.transAxes, fontsize=8, ha="right")
    ax.axhline(0, color="black", linewidth=0.8)
    ax.axhline(-100 * margin, color="black", linewidth=0.9, linestyle="--")
    ax.text(2.68, -100 * margin, f"margin\n{100 * margin:g} points", fontsize=8, va="center", ha="left")
    ax.set_xticks(range(3), ["reused\n(stopped on)", "fresh draw", "shifted\n(more noise)"])
    ax.set(xlim=(-0.5, 2.6), ylabel="accuracy less that of long, points", ylim=(1.1 * low_end - 0.3, None))
    return fig, "; ".join(words) + ".", pd.DataFrame(rows)


def reuse_figure(groups):
    """Left: each candidate on the reused and on the fresh images, the one that the reused set picks in a square. Right:
    the winner's optimism on each of the sets into which the fresh draw divides, and its mean with a 95 % interval.
    """
    fig, (left, right) = viz.figure(columns=2, height=3.0)
    rows, words, ends = [], [], []
    for place, (name, runs, colour) in enumerate(groups):
        reused = np.array([100 * run.last("validation_accuracy") for run in runs])
        fresh = np.array([100 * float(rules_lesion.blocks([run], "fresh").mean()) for run in runs])
        # Yours may be among the recorded ones, point for point: a ring shows around a dot.
        look = {"markersize": 3.5} if place else {"markersize": 7, "markerfacecolor": "none"}
        left.plot(reused, fresh, color=colour, marker="o", linestyle="", label=name, **look)
        best = int(np.argmax(reused))
        pick = {"marker": "s", "markersize": 12, "markerfacecolor": "none", "linestyle": ""}
        left.plot(reused[best], fresh[best], color=colour, **pick)
        ends += [*reused, *fresh]
        images = runs[0].config["validation"]
        found = rules_lesion.reuse(runs, images)
        optimism = 100 * np.array(found["optimism"])
        value, low, high = rules_lesion.mean_interval(optimism)
        tau = rules_lesion.mean_interval(found["tau"])
        spread = place + np.linspace(-0.15, 0.15, len(optimism))
        right.plot(optimism, spread, color=colour, marker="o", linestyle="", markersize=3, alpha=0.6)
        right.plot(value, place + 0.28, color="black", marker="D", linestyle="", markersize=4)
        if not math.isnan(low):
            right.plot([low, high], [place + 0.28] * 2, color="black", marker="", linestyle="-")
        words.append(
            f"{name}: the best of {len(runs)} candidates on {images} reused images has {reused[best]:.1f} % there and "
            f"{fresh[best]:.1f} % on the fresh draw, where {int((fresh > reused).sum())} of the candidates do better; "
            f"over {len(optimism)} other sets of {images} the winner's "
            f"accuracy is {value:+.2f} points [{low:+.2f}, {high:+.2f}] too good; Kendall's tau {tau[0]:.2f} "
            f"[{tau[1]:.2f}, {tau[2]:.2f}]"
        )
        for run, a, b in zip(runs, reused, fresh):
            recipe = {"batch": run.config["batch"], "rate": run.config["rate"], **run.config["options"]}
            rows.append({"runs": name, **recipe, "reused %": a, "fresh %": b})
    left.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", linewidth=0.7, linestyle=":", marker="")
    left.set(
        xlabel="accuracy on the reused set (%)", ylabel="on the fresh draw (%)", title="candidates; a square: the pick"
    )
    left.legend(loc="upper left")
    right.axvline(0, color="black", linewidth=0.8)
    right.set_yticks(range(len(groups)), [name for name, _, _ in groups])
    right.set(xlabel="winner: points too good", title="one dot a set", ylim=(len(groups) - 0.4, -0.5))
    return fig, "; ".join(words) + ".", pd.DataFrame(rows)
