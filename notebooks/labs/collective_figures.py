"""Figures of lab 03: who sends what to whom in which round. Each function returns (figure, text alternative, data)."""

import math

import pandas as pd
from matplotlib.patches import FancyArrowPatch

from labkit.teach import viz
from labkit.teach.exercises import say
from labs.puzzles import Attempt

GOOD, BAD, PALE = viz.SERIES[0], "#c00020", "#777777"
ACROSS = 18  # columns of rounds in one row of a figure
WIDE = 8  # up to so many rounds, words are written on single arrows where they differ within a round


def arrow(ax, start, end, bad: bool = False, dashed: bool = False) -> None:
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9 if bad else 6, shrinkA=1, shrinkB=1,
                                 color=BAD if bad else GOOD, linewidth=1.8 if bad else 0.9, zorder=3 if bad else 2,
                                 linestyle="--" if dashed else "-"))  # fmt: skip


def lanes(ax, size: int, left: float, rounds: int, faulty=()) -> None:
    """One line for each rank, with its number before it; a cross at the end of those at fault."""
    for rank in range(size):
        ax.plot([left, left + rounds], [rank, rank], color="#dddddd", linewidth=0.8, marker="", linestyle="-", zorder=1)
        bad = rank in faulty
        ax.text(left - 0.12, rank, str(rank), fontsize=7.5, ha="right", va="center", color=BAD if bad else "#333333",
                fontweight="bold" if bad else "normal")  # fmt: skip
        if bad:
            ax.plot([left + rounds], [rank], color=BAD, marker="X", markersize=6, zorder=4)


def drawn(ax, messages, left: float, first: int, last: int, wrong=()) -> None:
    """The messages of rounds `first` to `last` as arrows, from `left` on; above each round, the words of a message."""
    for when in range(first, last + 1):
        inside = [(index, m) for index, m in enumerate(messages) if m.round == when]
        x, words = left + when - first, sorted({m.words for _, m in inside})
        for index, m in inside:
            arrow(ax, (x, m.source), (x + 0.92, m.dest), index in wrong)
            if len(words) > 1 and last - first < WIDE:
                spot = m.source + 0.32 * (m.dest - m.source)
                ax.text(x + 0.3, spot, str(m.words), fontsize=6.5, ha="center", va="center", color="#333333", zorder=5,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})  # fmt: skip
        if words:
            text = str(words[0]) if len(words) == 1 else f"{words[0]}-{words[-1]}"
            ax.text(x + 0.46, -0.72, text, fontsize=7, ha="center", va="center", color=PALE)


def plain(ax, size: int, width: float, top: float = 1.2) -> None:
    ax.set(xlim=(-0.6, width), ylim=(size - 0.5, -top))
    ax.set_axis_off()


def table(messages) -> pd.DataFrame:
    """One row a round: its messages as `from>to:words`."""
    rounds: dict = {}
    for m in sorted(messages, key=lambda m: (m.round, m.source)):
        rounds.setdefault(m.round, []).append(f"{m.source}>{m.dest}:{m.words}")
    rows = [{"round": when, "from>to:words": " ".join(sent)} for when, sent in rounds.items()]
    return pd.DataFrame(rows, columns=["round", "from>to:words"])


def gallery(traces: dict, words: int):
    """Several algorithms of the same size, packed side by side into rows: {name: `labkit.simulate.traced.Trace`}."""
    rows, used = [[]], 0.0
    for name, trace in traces.items():
        if rows[-1] and used + max(4, trace.rounds) > ACROSS:
            rows.append([])
            used = 0.0
        rows[-1].append((name, trace, used))
        used += max(4, trace.rounds) + 1
    size = next(iter(traces.values())).size
    fig, axes = viz.figure(1, len(rows), width=6.5, height=min(4.0, len(rows) * (0.7 + 0.15 * size)), squeeze=False)
    for ax, row in zip(axes.flat, rows, strict=True):
        for name, trace, left in row:
            lanes(ax, size, left, trace.rounds)
            drawn(ax, trace.messages, left, 1, trace.rounds)
            ax.text(left, -1.25, f"{name}\n{trace.rounds} rounds, {trace.words} words", fontsize=7.5, va="bottom")
        plain(ax, size, ACROSS, 3.2)
    said = "; ".join(f"{name}: {trace.rounds} rounds, {trace.words} words on the critical path, {len(trace.messages)} "
                     "messages" for name, trace in traces.items())  # fmt: skip
    rows = [{"algorithm": name, "rounds": t.rounds, "words": t.words, "messages": len(t.messages),
             "words of all messages": sum(m.words for m in t.messages)} for name, t in traces.items()]  # fmt: skip
    return fig, f"All-reduce of {words} words on {size} ranks. {said}.", pd.DataFrame(rows)


def attempt(found: Attempt):
    """The messages of a learner's run; those at fault in red, thick, and named in the title."""
    messages, size = found.trace.messages, found.size
    rounds = max([1, *(m.round for m in messages)])
    shown = min(rounds, 2 * ACROSS)
    across = min(ACROSS, max(5, shown))
    count = math.ceil(shown / across)
    height = min(4.0, 0.4 + count * (0.3 + 0.26 * size))
    fig, axes = viz.figure(1, count, width=min(6.5, 1.0 + 0.6 * across), height=height, squeeze=False)
    for n, ax in enumerate(axes.flat):
        first = n * across + 1
        last = min(shown, first + across - 1)
        lanes(ax, size, 0.0, last - first + 1, found.ranks if n == count - 1 else ())
        drawn(ax, messages, 0.0, first, last, found.wrong)
        plain(ax, size, across + 0.5)
    for source, waiting in found.waits:
        x = min(across - 1, max([0, *(m.round for m in messages if waiting in (m.source, m.dest))]) % across)
        arrow(axes.flat[-1], (x, source), (x + 0.92, waiting), True, dashed=True)
    state = "right" if found.problem is None else "not yet"
    fig.suptitle(f"{found.puzzle.title}, {size} ranks, {found.words} words: {state}", fontsize=9)
    red = [f"round {messages[i].round} from rank {messages[i].source} to {messages[i].dest}" for i in found.wrong[:4]]
    red += [f"rank {waiting} waits for rank {source} (dashed)" for source, waiting in found.waits[:4]]
    alt = f"Your messages. {found.score}." + (f" In red: {'; '.join(red)}." if red else "")
    alt += f" Only the first {shown} of {rounds} rounds are drawn." * (shown < rounds)
    return fig, alt, table(messages)


def show(found: Attempt | None) -> None:
    """Draw an attempt, if there is one."""
    if found is None:
        say("Nothing to draw yet: fill in the function above.")
        return
    fig, alt, data = attempt(found)
    viz.show(fig, alt=alt, data=data)
