"""The figures of lab 09, recorded runs with yours laid over. Each function returns (figure, text alternative, data).

A rule keeps its colour and marker of lab 07; recorded runs are joined by lines, yours are orange outlines."""

import math

import numpy as np
import pandas as pd

from workloads.markov import Chain
from labkit.teach import viz
from labs.factorial import LABELS
from labs.layerwise_tuned import LOOKS
from labs.scaling_figures import STYLES, hollow, legend

SOLVERS = {name: look for name, look in LOOKS.items() if name != "nesterov"}  # as in lab 08
MARKERS = {"markov": "o", "words": "s", "prose": "^"}
NAMES = {"sgd": "SGD", "lars": "LARS", "lamb": "LAMB", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop",
         "adagrad": "Adagrad", "adadelta": "Adadelta"}


def memories(chain: Chain) -> list[float]:
    """The least loss, nats per token, of a model that remembers 0, 1, ... `order` tokens; the last is the floor."""
    states, size = len(chain.stationary), chain.vocabulary
    following = np.zeros((states, size))
    following[np.arange(states)[:, None], chain.successors] = chain.stationary[:, None] * chain.probabilities
    losses = []
    for memory in range(chain.order + 1):
        joint = following.reshape(-1, size**memory, size).sum(0)  # the oldest token of a state is its first digit
        share = joint.sum(1, keepdims=True)
        conditional = np.divide(joint, share, out=np.zeros_like(joint), where=share > 0)
        losses.append(float(-(joint * np.log(conditional, out=np.zeros_like(joint), where=conditional > 0)).sum()))
    return losses


def floor(vocabulary: int, order: int, branching: int):
    """Least perplexity by length of memory."""
    chain = Chain(vocabulary, order, min(branching, vocabulary))
    values = [vocabulary, *map(math.exp, memories(chain))]
    names = ["a guess", *(f"memory of {n}" for n in range(order + 1))]
    fig, ax = viz.figure(height=2.6)
    ax.bar(names, values, color=["#c9c9c9"] * (order + 1) + [viz.SERIES[0]])
    for at, value in enumerate(values):
        ax.annotate(f"{value:.2f}", (at, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8)
    ax.set_ylabel("least perplexity")
    ax.set_ylim(0, vocabulary * 1.12)
    ax.grid(False, axis="x")
    ax.set_title(f"{vocabulary} tokens, the next depends on the last {order}, {chain.successors.shape[1]} may follow")
    said = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, values, strict=True))
    return fig, (f"Least perplexity on a Markov text of {vocabulary} tokens, order {order}: {said}. "
                 "The last is the floor of any model."), pd.DataFrame({"model": names, "perplexity": values})


def metric_axis(ax, study) -> None:
    """Perplexity on a logarithmic axis with its floor, or BLEU from 0 to 100."""
    if study.judge["higher"]:
        ax.set_ylim(-3, 105)
        ax.set_ylabel("BLEU of characters")
        return
    data = study.application.recipe.load()
    least, most = (math.exp(data.floor), data.vocabulary) if data.floor else (40.0, data.vocabulary)
    ticks = [tick for tick in (1, 2, 3, 4, 6, 8, 16, 64, 250, 1000) if least * 0.9 < tick <= most * 1.05]
    ax.set_yscale("log")
    ax.set_ylim(least * 0.84, most * 1.15)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylabel("perplexity")
    if data.floor:
        ax.axhline(least, color="#222222", linewidth=1, linestyle=":")
        ax.text(0.42, least * 0.985, f"floor {least:.2f}", transform=ax.get_yaxis_transform(), fontsize=8, va="top")


def batch_axis(ax, study) -> None:
    viz.log2_axis(ax, study.table.batches, "batch size (updates below)")
    ax.set_xticks(study.table.batches, [f"{batch}\n{study.updates(batch)}" for batch in study.table.batches])
    ax.set_xlim(study.smallest / 1.5, study.largest * 1.6)


def sources(known: dict, yours: dict):
    """(name, study, whether it is yours), the recorded ones first."""
    return [(name, study, own) for own, group in ((False, known), (True, yours)) for name, study in group.items()]


def entries(looks: dict, names: dict, known: dict) -> list[tuple]:
    """What a legend holds: colours and shapes of what was recorded, or the shapes alone where only yours are drawn."""
    if not any(study.all for study in known.values()):
        return [(names[key], hollow(marker)) for key, (_, marker) in looks.items()]
    lines = [(names[key], {"color": colour, "marker": marker, "linestyle": "-"})
             for key, (colour, marker) in looks.items()]
    return [*lines, ("yours, by shape", hollow("o"))]


def ladders(known: dict, yours: dict):
    """Test perplexity or BLEU by batch for every rule; a line for each flat base rate, the highest one solid."""
    names = [name for name in known if known[name].runs or yours[name].runs]
    fig, axes = viz.figure(len(names), 1, width=6.5, height=3.3)
    panels, tables, said = dict(zip(names, np.atleast_1d(axes), strict=True)), [], []
    for name, study, own in sources(known, yours):
        if not study.runs:
            continue
        rows = study.rows()
        tables.append(rows.assign(source="yours" if own else "recorded"))
        for (label, rate), path in rows.groupby(["rule", "base rate"]):
            rule = next(rule for rule, shown in LABELS.items() if shown == label)
            colour, marker = STYLES[rule]
            line = ("-", "--", ":", "-.")[sorted(study.flat(), reverse=True).index(rate) % 4]
            look = hollow(marker) if own else {"color": colour, "marker": marker, "linestyle": line}
            # Side by side at the larger batches, where four rules may end alike.
            apart = 2 ** (0.16 * (list(STYLES).index(rule) - 2.5))
            places = [batch * apart if batch > study.smallest else batch for batch in path["batch"]]
            panels[name].plot(places, path["end"], **look)
        if own != bool(known[name].runs):
            main = rows[rows["batch"].isin([study.smallest, study.largest])]
            parts = [f"{row['rule']} from {row['base rate']:g} at {row['batch']}: {row['end']:.3g}"
                     for row in main.to_dict("records") if row["batch"] > study.smallest or row["rule"] == "LEGW"]
            said.append(f"{study.title}, {study.unit}: " + ", ".join(parts))
    for name, ax in panels.items():
        study = known[name] if known[name].runs else yours[name]
        metric_axis(ax, study)
        batch_axis(ax, study)
        ax.set_title(study.title)
    drawn = {rule: STYLES[rule] for rule in ("legw", "square_root", "linear", "linear_with_warmup")}
    legend(fig, next(iter(panels.values())), entries(drawn, LABELS, known), 3)
    data = pd.concat(tables, ignore_index=True)
    return fig, f"Scaled without retuning, every flat base rate. {'; '.join(said)}.", data


def seconds(known: dict, yours: dict):
    """Seconds of training by batch at equal epochs (LEGW, median over seeds and flat base rates), both axes log-2."""
    fig, ax = viz.figure(height=2.8)
    rows = []
    for name, study, own in sources(known, yours):
        found = study.rows()
        if not len(found):
            continue
        median = found[found["rule"] == LABELS["legw"]].groupby("batch")["seconds"].median()
        marker = MARKERS[name]
        look = hollow(marker) if own else {"color": viz.RECORDED, "marker": marker, "linestyle": "-"}
        ax.plot(median.index, median, label=f"{study.title}, {'yours' if own else 'recorded'}", **look)
        rows += [{"source": "yours" if own else "recorded", "study": study.title, "batch": batch, "seconds": value}
                 for batch, value in median.items()]
    data = pd.DataFrame(rows)
    batches = sorted(data["batch"].unique())
    viz.log2_axis(ax, batches, "batch size")
    ax.set_xlim(batches[0] / 1.3, batches[-1] * 1.3)
    with viz.style():
        fig.legend(loc="outside lower center", ncols=3)
    low, high = (math.log2(data["seconds"].min()), math.log2(data["seconds"].max()))
    viz.log2_axis(ax, [2.0**n for n in range(math.floor(low), math.ceil(high) + 1)], "seconds of training", axis="y")
    said = [f"{study} ({source}) {part['seconds'].iloc[0]:.3g} s at batch {part['batch'].iloc[0]}, "
            f"{part['seconds'].iloc[-1]:.3g} s at {part['batch'].iloc[-1]}"
            for (source, study), part in data.groupby(["source", "study"])]
    return fig, f"Seconds of training at equal epochs: {'; '.join(said)}.", data


def solvers(known: dict, yours: dict):
    """Test perplexity or BLEU at the largest batch by rate, a line a solver, beside LEGW's (dashed)."""
    names = [name for name in ("markov", "words") if known[name].all or yours[name].all]
    fig, axes = viz.figure(len(names), 1, width=6.5, height=3.5)
    said, rows = [], []
    for name, ax in zip(names, np.atleast_1d(axes), strict=True):
        main, best = known[name] if known[name].all else yours[name], []
        for study in (known[name], yours[name]):
            for solver, (colour, marker) in SOLVERS.items():
                curve = study.solver_curve(solver)
                look = hollow(marker) if study is yours[name] else {"color": colour, "marker": marker, "linestyle": "-"}
                if curve:
                    ax.plot(curve.keys(), [study.shown(value) for value in curve.values()], **look)
                rows += [{"source": "yours" if study is yours[name] else "recorded", "study": study.title,
                          "solver": NAMES[solver], "rate": rate, "end": study.shown(value), "unit": study.unit}
                         for rate, value in curve.items()]
                if study is main and study.best(solver):
                    rate, values, _ = study.best(solver)
                    best.append(f"{NAMES[solver]} {study.shown(np.mean(values)):.3g}")
        metric_axis(ax, main)
        ends = [main.shown(np.mean(found)) for rate in main.flat() if (found := main.ends("legw", rate, main.largest))]
        for end in ends:
            ax.axhline(end, color=STYLES["legw"][0], linestyle="--", linewidth=1)
        ax.set_xscale("log", base=2)
        ax.set_xlabel("rate at the largest batch")
        ax.set_title(f"{main.title}, batch {main.largest}")
        mine = ", ".join(f"{end:.3g}" for end in ends)
        said.append(f"{main.title}, {main.unit}: retuned {', '.join(best) or 'no solver'}; LEGW not retuned {mine}")
    drawn = {name: look for name, look in SOLVERS.items() if NAMES[name] in {row["solver"] for row in rows}}
    legw = ("LEGW, flat base rates", {"color": STYLES["legw"][0], "marker": "", "linestyle": "--"})
    legend(fig, np.atleast_1d(axes)[0], [*entries(drawn, NAMES, known), legw], 5)
    return fig, f"Solvers at the largest batch. {'; '.join(said)}.", pd.DataFrame(rows)


def trap(curves: dict, least: float):
    """Training loss by update of ports of one recipe, a line each; the floor is dotted.

    Args:
        curves: {name: losses in nats per token}."""
    fig, ax = viz.figure(height=2.9)
    looks = [("#222222", "-", 3.0), (viz.SERIES[0], "--", 1.5), (viz.SERIES[1], "-", 1.5), (viz.SERIES[2], "-", 1.5)]
    smooth = {name: pd.Series(losses).rolling(5, min_periods=1).mean() for name, losses in curves.items()}
    for (name, losses), (colour, line, width) in zip(smooth.items(), looks, strict=False):
        ax.plot(losses, color=colour, linestyle=line, linewidth=width, marker="", label=name)
    ax.axhline(least, color="#222222", linewidth=1, linestyle=":")
    ax.text(0.02, least * 0.99, f"floor {least:.3f}", transform=ax.get_yaxis_transform(), fontsize=8, va="top")
    ax.set_ylim(bottom=least * 0.88)
    ax.set_xlabel("update")
    ax.set_ylabel("training loss, nats per token")
    with viz.style():
        fig.legend(loc="outside lower center", ncols=2)
    ends = {name: float(losses.iloc[-1]) for name, losses in smooth.items()}
    alt = (f"Training loss after {len(next(iter(curves.values())))} updates: "
           + ", ".join(f"{name} {end:.3f}" for name, end in ends.items()) + f"; floor {least:.3f}.")
    return fig, alt, pd.DataFrame({"port": ends.keys(), "last loss": ends.values()})
