"""More figures of the public logs: what scale and money buy, and what a clock says. See `labs.public_figures`.

When not to use it: for prices of today; costs here are hourly prices of 2017 to 2020 times the logged time.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.runs import Run
from labkit.teach import viz
from labkit.tta import clock, statistics
from readers import mlperf
from labs import public_logs
from labs.public_figures import DASHED, DOTS, INK, PALE, SHAPES, short, told

PICKS = {  # ways to make one number of repeated runs: (seconds with misses infinite, seconds that each run cost)
    "fastest run": lambda t, cost: min(t),
    "mean of the reached": lambda t, cost: float(np.mean([x for x in t if math.isfinite(x)] or [math.inf])),
    "median, misses infinite": lambda t, cost: float(np.median(t)),
    "expected, failures paid": statistics.expected_time,
}


def ladder_figure(table: pd.DataFrame):
    """Speed-up over the smallest system in throughput and in TTA, on log-2 axes (left); epochs (right)."""
    fig, (left, right) = viz.figure(columns=2, height=2.5, width_ratios=[5, 4])
    cores, base = table["cores"], table["cores"].min()
    left.plot(cores, cores / base, color="black", marker="", linestyle=":", linewidth=0.9)
    viz.direct_label(left, cores.iloc[-1], 1.12 * cores.iloc[-1] / base, "ideal", "black")
    for name, label, line, mark, shift in (
        ("throughput", "throughput", "--", "s", 1.0),
        ("tta", "TTA", "-", "o", 0.86),
    ):
        left.fill_between(cores, table[f"{name} low"], table[f"{name} high"], color=PALE, linewidth=0)
        left.plot(cores, table[name], color=INK, marker=mark, linestyle=line)
        viz.direct_label(
            left, cores.iloc[-1], shift * table[name].iloc[-1], f"{label} {table[name].iloc[-1]:.1f}", "black"
        )
    viz.log2_axis(left, cores, "TPU v3 cores")
    viz.log2_axis(left, [1, 2, 4, 8, 16, 32, 64], "times as fast as 32 cores", axis="y")
    left.set_xlim(base * 0.85, cores.iloc[-1] * 7)
    ratio, low, high = (table[f"epochs ratio{end}"] for end in ("", " low", " high"))
    right.fill_between(cores, low, high, color=PALE, linewidth=0)
    right.plot(cores, ratio, color=INK, marker="^", linestyle="-")
    viz.log2_axis(right, cores, "TPU v3 cores")
    right.set(ylim=(0.9, 1.4), ylabel="epochs, relative to 32 cores")
    last = table.iloc[-1]
    alt = (
        f"From {base} to {last['cores']:.0f} cores ({last['cores'] / base:.0f} times as many) ResNet-50 reaches "
        "its target "
        f"{last['tta']:.1f} [{last['tta low']:.1f}, {last['tta high']:.1f}] times as fast: throughput x "
        f"{last['throughput']:.1f} "
        f"[{last['throughput low']:.1f}, {last['throughput high']:.1f}], divided by {last['epochs ratio']:.2f} "
        f"[{last['epochs ratio low']:.2f}, {last['epochs ratio high']:.2f}] times the epochs "
        f"({table['epochs'].iloc[0]:.1f} to "
        f"{last['epochs']:.1f}). At {table['cores'].iloc[1]} cores: TTA x {table['tta'].iloc[1]:.1f}."
    )
    return fig, alt, table[["cores", "runs", "seconds", "epochs", "tta", "throughput", "epochs ratio"]]


def cost_figure(table: pd.DataFrame, tasks: Sequence[str] = ("ImageNet", "CIFAR10")):
    """Dollars against seconds, a panel a task, with the entries that no other beats in both joined by a line."""
    fig, axes = viz.figure(columns=len(tasks), height=2.5)
    words, kept = [], []
    for ax, task in zip(axes, tasks):
        rows = table[(table["task"] == task)].dropna(subset=["tta_seconds", "cost_usd"]).reset_index(drop=True)
        front = rows.iloc[statistics.pareto_front(rows[["tta_seconds", "cost_usd"]])]
        ax.plot(rows["tta_seconds"], rows["cost_usd"], color=INK, marker=SHAPES[task], **DOTS)
        ax.plot(
            front["tta_seconds"],
            front["cost_usd"],
            color="black",
            marker=SHAPES[task],
            markersize=4.5,
            linestyle="-",
            linewidth=0.9,
        )
        early = rows[rows["date"] < "2018-05"].reset_index(drop=True)
        then = early.iloc[statistics.pareto_front(early[["tta_seconds", "cost_usd"]])]
        ax.plot(then["tta_seconds"], then["cost_usd"], color=INK, marker="", linestyle="--", linewidth=0.9)
        viz.direct_label(ax, then["tta_seconds"].iloc[0], 1.6 * then["cost_usd"].iloc[0], "April 2018", INK)
        for row in front.itertuples():
            viz.direct_label(
                ax,
                row.tta_seconds,
                row.cost_usd * (1.5 if row.Index == front.index[0] else 0.9),
                f"{told(row.tta_seconds)}, ${row.cost_usd:.2g}",
                "black",
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set(
            xlabel="seconds to the target",
            title=f"{task}: {len(rows)} with a price",
            ylim=(rows["cost_usd"].min() / 2, None),
        )
        missing = int((table["task"] == task).sum()) - len(rows)
        fast, cheap = front.iloc[0], front.iloc[-1]
        words.append(
            f"{task}: {len(front)} of {len(rows)} priced entries are unbeaten, from {short(fast.entry)} "
            f"({told(fast.tta_seconds)}, "
            f"${fast.cost_usd:.3g}) to {short(cheap.entry)} ({told(cheap.tta_seconds)}, ${cheap.cost_usd:.3g}); "
            f"{missing} name no price"
        )
        kept += [then.assign(front="April 2018"), front.assign(front="all")]
    axes[0].set_ylabel("US dollars to the target")
    columns = ["task", "front", "entry", "tta_seconds", "cost_usd", "date"]
    data = pd.concat(kept)[columns]
    return fig, "; ".join(words) + ".", data.assign(date=data["date"].dt.date)


def inference_figure(table: pd.DataFrame):
    """Latency of one image against accuracy above the threshold (left) and against cost (right)."""
    fig, (left, right) = viz.figure(columns=2, height=2.4)
    images = table[table["task"] != "SQuAD"]
    official = {"ImageNet": 93.0, "CIFAR10": 94.0}
    for task, rows in images.groupby("task"):
        left.plot(rows["latency_ms"], rows["accuracy"] - official[task], color=INK, marker=SHAPES[task], **DOTS)
        priced = rows.dropna(subset="cost_usd_10000")
        right.plot(priced["latency_ms"], priced["cost_usd_10000"], color=INK, marker=SHAPES[task], **DOTS)
    latency = np.array([0.4, 120.0])
    for price in (0.1, 1.0, 10.0):
        right.plot(latency, 1e4 * latency / 3.6e6 * price, color=PALE, marker="", linestyle="-", linewidth=0.8)
        viz.direct_label(right, latency[-1], 1e4 * latency[-1] / 3.6e6 * price, f"${price:g}/h", INK)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlabel("milliseconds for one image")
    left.set(ylabel="points above the threshold", title="square ImageNet, circle CIFAR10")
    right.set_yscale("log")
    right.set(ylabel="dollars for 10,000 images", title="lines: hourly price x latency", xlim=(0.3, 600))
    priced = images.dropna(subset="cost_usd_10000")
    hourly = priced["cost_usd_10000"] / 1e4 / (priced["latency_ms"] / 3.6e6)
    rank = statistics.rank_agreement(priced["latency_ms"].tolist(), priced["cost_usd_10000"].tolist())
    ends = [
        f"{task} {rows['latency_ms'].max():.3g} to {rows['latency_ms'].min():.3g} ms"
        for task, rows in images.groupby("task")
    ]
    alt = (
        f"Latency of one image: {', '.join(ends)}. {len(priced)} of {len(images)} entries name a cost; divided by "
        "the latency it is an "
        f"hourly price of ${hourly.min():.2f} to ${hourly.max():.2f}. Kendall tau of latency and cost: {rank:.2f}."
    )
    columns = ["task", "entry", "date", "accuracy", "latency_ms", "cost_usd_10000"]
    return fig, alt, images[columns].sort_values("latency_ms").head(10)


def picks_figure(runs: Sequence[Run], rule: str, name: str, colour: str = INK):
    """One set of runs under one clock rule: the runs, and what five ways of making one number publish of them; a rule
    that judges the whole set makes one number, of what every run took to its end.
    """
    fig, ax = viz.figure(width=viz.MAX_WIDTH, height=2.6)
    why, whole = public_logs.unable(list(runs), rule), clock.RULES[rule].per == "set"
    if whole and not why:
        answer = clock.score(runs, rule)
        why = answer.reason if answer.seconds is None else ""
    if why:
        ax.axis("off")
        ax.text(0.5, 0.5, f"{name}\nunder {rule}: not answerable,\n{why}", ha="center", va="center", fontsize=10)
        return fig, f"{name} under {rule}: not answerable, {why}.", None
    if whole:
        seconds = [clock.counted_seconds(run, clock.RULES[rule], max(span.end for span in run.spans)) for run in runs]
        found = {"mean to the end" if math.isfinite(answer.seconds) else "target not proved": answer.seconds}
    else:
        seconds = [clock.time_to_target(run, rule).seconds for run in runs]
        cost, known = [public_logs.spent(run, rule) for run in runs], runs[0].config
        found = {pick: make(seconds, cost) for pick, make in PICKS.items()}
        score = mlperf.scored(known.get("round", "v0.7"), known.get("benchmark", ""), seconds)
        found["MLPerf, by its round"] = score[0]
    ok = sorted(filter(math.isfinite, seconds))
    y = len(found) + 0.3 * np.resize([-1, 0.3, -0.3, 1, 0], len(ok))
    ax.plot(ok, y, color=colour, marker="o", alpha=0.6, **DOTS)
    for place, (pick, value) in enumerate(found.items()):
        finite = math.isfinite(value)
        if finite:
            ax.plot(value, place, color="black", marker="D", **DOTS)
        text = f"{value:,.4g} s" if finite else "no number"
        ax.text(1.02, place, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8)
    missed = len(seconds) - len(ok)
    ax.text(
        1.02,
        len(found),
        "judged\ntogether" if whole else f"{missed} of {len(seconds)}\nmissed",
        transform=ax.get_yaxis_transform(),
        va="center",
        fontsize=8,
    )
    ax.set_yticks(range(len(found) + 1), [*found, "the runs"])
    ax.set(ylim=(len(found) + 0.6, -0.5), xlabel=f"seconds under {rule}", title=name)
    ax.set_xlim(left=0)
    words = ", ".join(
        f"{pick} {f'{value:,.4g} s' if math.isfinite(value) else 'no number'}" for pick, value in found.items()
    )
    data = pd.DataFrame({"one number": found.keys(), "seconds": found.values()})
    of = f"judged together{f', {answer.reason}' if answer.reason else ''}" if whole else f"{missed} missed"
    return fig, f"{name} under {rule}, n = {len(seconds)}, {of}: {words}.", data


def autumn_figure(table: pd.DataFrame, text: str):
    """When the Intel runs ran, those with a stepping clock in black (left); the gaps of the made-up log (right)."""
    fig, (left, right) = viz.figure(columns=2, height=2.5, width_ratios=[5, 4])
    rows = table[(table["round"] == "v0.5") & table["system"].str.contains("8180_") & (table["benchmark"] == "resnet")]
    rows = rows.sort_values(["system", "file"]).reset_index(drop=True)
    stepped = rows["flags"].fillna("").str.contains("clock-stepped")
    when = [pd.to_datetime(rows[name], unit="s", utc=True) for name in ("run_start", "run_stop")]
    across = (when[0] < public_logs.AUTUMN) & (when[1] > public_logs.AUTUMN)
    for place in rows.index:
        look = {"color": "black" if stepped[place] else INK, "linewidth": 2.4 if stepped[place] else 1}
        left.plot([when[0][place], when[1][place]], [place] * 2, marker="", linestyle="-", **look)
    left.axvline(public_logs.AUTUMN, **DASHED)
    left.set_yticks(
        [rows.index[rows["system"] == s].values.mean() for s in rows["system"].unique()],
        ["1 x 2\nsockets", "8 x 2\nsockets", "1 x 4\nsockets"][: rows["system"].nunique()],
    )
    left.set(ylim=(len(rows) - 0.3, -0.7), title="15 public runs; black: clock steps", xlabel="November 2018 (UTC)")
    left.set_xticks([pd.Timestamp(f"2018-11-{day:02}", tz="UTC") for day in (1, 4, 7)], ["1", "4", "7"])
    stamps = [int(line.split()[2]) for line in text.splitlines() if "eval_accuracy" in line]
    gaps = np.diff(stamps) / 60
    right.plot(
        range(len(gaps)), gaps, color=viz.SERIES[0], marker="o", markersize=3, linestyle="-", linewidth=0.8, markevery=1
    )
    right.axhline(0, color="black", linewidth=0.7)
    right.set(xlabel="epoch", ylabel="minutes since the last", title="a made-up log of this kind")
    mean = rows["spent"] / rows["last_epoch"].add(2) / 60
    slow = int((across & ~stepped).sum())
    alt = (
        f"{int(across.sum())} of {len(rows)} runs were under way at {public_logs.AUTUMN:%H:%M} UTC on 4 November "
        f"2018; {int(stepped.sum())} "
        f"of these, and no other, show a clock that steps back and returns. The other {slow} evaluate only every "
        f"{mean[across & ~stepped].mean():.0f} minutes. The made-up log: gaps of {np.median(gaps):.0f} minutes, "
        f"but one of {gaps.min():.0f} and one of {gaps.max():.0f}."
    )
    data = pd.DataFrame(
        {
            "system": rows["system"].str[11:],
            "file": rows["file"].str[:-4],
            "start (UTC)": when[0].dt.strftime("%d %b %H:%M"),
            "hours": rows["spent"] / 3600,
            "evaluations": rows["evaluations"],
            "clock steps": stepped,
        }
    )
    return fig, alt, data
