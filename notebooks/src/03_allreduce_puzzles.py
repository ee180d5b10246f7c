# %% [markdown]
# # 03 · All-reduce puzzles: how many messages does a sum take?
#
# **Claim: to add up an array of n words over P processes, so that all have the sum, takes at least lg P rounds, and
# some process has to send 2n(P-1)/P words or more. The usual algorithms meet one of the two bounds or the other, so
# the best one depends on the size of the array and on the number of processes.**
#
# Before it: lab 00. Cost: the lab prints it below, where it was measured; quick fits one laptop core. No network. You
# need: Python, arrays, and a sum.

# %% [markdown]
# ## You will be able to
#
# - **write** broadcast, reduce-scatter and all-reduce by hand, for any number of ranks, and see each message;
# - **count** rounds and words of a collective, and hold them against what no algorithm can undercut;
# - **calibrate** a cost model on your machine, and say how far it is off;
# - **choose** an algorithm by the size of the array and the number of ranks, before you run it.

# %% [markdown]
# ## Set up

# %% tags=["setup"]
# the set-up cell is generated

# %% [markdown]
# ## Parameters

# %% tags=["parameters"]
profile: str = "quick"  # smoke | quick | full
seeds: str = "0"  # the first seed; the lab counts on from it
overrides: dict = {}  # fields of the profile, such as {"words": 240}
record_to: str = ""  # folder of your runs; empty: the local one
interactive: bool = True  # False: no sliders

# %%
import numpy as np
import pandas as pd
from IPython.display import HTML, display

import labkit
from labkit.simulate import cost, traced
from labkit.teach import check, explore, hint, predict, solution, viz
from labkit.teach.exercises import say
from labkit.training.collectives import ALL_REDUCE
from labs import calibration, collective_costs, collective_extras, collective_figures, puzzles

lab = labkit.start("03", profile, seeds, overrides, record_to, interactive)
settings, recorded = lab.settings, lab.recorded()


def show_table(rows) -> None:
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    with pd.option_context("display.max_colwidth", None):
        display(HTML(table.to_html(index=False, border=0, justify="left", float_format="{:.4g}".format)))


# %% [markdown]
# ## What the literature says
#
# In data-parallel training each of P processes (**ranks**) has a gradient of n words, and all need the sum: an
# **all-reduce**. Ben-Nun and Hoefler's survey (section 2.5) lists the usual algorithms and compares them by two
# numbers: **rounds** (messages that have to wait for each other) and **words** that a rank has to send or receive.
#
# | algorithm | idea | named after, or analysed by |
# |---|---|---|
# | tree | up to rank 0 and down again | |
# | butterfly | exchange everything with the neighbour, then 2 ranks off, then 4 ... (recursive doubling) | |
# | ring | P blocks travel around a ring, twice | Patarasuk and Yuan |
# | Rabenseifner | halve and halve again (reduce-scatter), then double (all-gather) | Rabenseifner |
# | lower bound | what each of the two numbers is at least | Chan et al. |
#
# The survey is cited here for the taxonomy. The formulas are our own, derived below and counted on every message
# (claims **S21**, **S22**); what the survey says of costs is only *remembered*, and no figure of it is shown.

# %% [markdown]
# ## Intuition
#
# **The model.** A message of n words takes **alpha + n beta** seconds: a start-up that costs the same for any message
# (*latency*), and a price per word (one over the *bandwidth*). In one round a rank can send one message and receive
# one. Adding up two words costs **gamma**. So an algorithm costs *rounds* x alpha + *words* x beta + *words added* x
# gamma, all along the **critical path**: the longest chain of things that wait for each other.
#
# **Two lower bounds.** After one round, what a rank knows comes from 2 ranks at most, after k rounds from 2^k: at
# least **lg P** rounds (the logarithm to the base 2, rounded up). And each word has to be moved P - 1 times until one
# rank holds its sum, and P - 1 times more until all do: n words on P ranks, evenly shared, make **2n(P-1)/P** a rank.
#
# | P = 2^k | rounds | words |
# |---|---|---|
# | tree | 2 lg P | 2n lg P |
# | butterfly | lg P | n lg P |
# | ring | 2(P-1) | 2n(P-1)/P |
# | Rabenseifner | 2 lg P | 2n(P-1)/P |
#
# The butterfly has the fewest rounds, the ring the fewest words. Short arrays are all latency, long ones all words.
# Where is the border? Move the sliders: ranks, size of the array (KiB), latency, bandwidth.


# %%
def which(ranks, size_kib, latency_us, gigabytes_a_second):
    return collective_costs.curves(
        ranks, 1e-6 * latency_us, 4e-9 / gigabytes_a_second, mark=int(256 * size_kib)
    )


explore(
    which,
    interactive,
    ranks=(32, [2, 4, 6, 8, 16, 31, 32, 64, 256]),
    size_kib=(1024, [1, 16, 64, 256, 1024, 16384]),
    latency_us=(5, [1, 5, 20, 100, 1000]),
    gigabytes_a_second=(10, [0.1, 1, 10, 100]),
)

# %% [markdown]
# The dotted line is the sum of the two bounds. The butterfly lies on it at the left, Rabenseifner's and the ring at
# the right. Now set 31 or 6 ranks: tree and ring take any number as it comes, but butterfly and Rabenseifner's
# **fold** the ranks beyond the last power of two into others first, which costs two rounds of whole arrays. That is
# what the last exercises are about.

# %% [markdown]
# ## Predict

# %%
answer = None
growth = predict(
    "03.p1",
    "A ring all-reduce goes from 8 to 16 ranks. How many times as many words does each rank send?",
    "times",
    answer,
    lab,
    low=0.0,
)

# %%
answer = None
ranks_here = max(settings.ranks)
small = min(settings.time_words)
quickest = predict(
    "03.p2",
    f"{ranks_here} real processes on this machine reduce {collective_costs.size_of(small)}. Which is the fastest?",
    ["tree", "butterfly", "ring", "rabenseifner"],
    answer,
    lab,
)

# %% [markdown]
# ## Build it
#
# Your function runs on **virtual ranks**: as many copies of it as there are ranks, in this notebook, one at a time.
# Each gets its own `array` and a `comm`, with the names of MPI (the standard library for messages):
#
# | call | what it does |
# |---|---|
# | `comm.rank`, `comm.size` | which rank this is, of how many |
# | `comm.send(array, dest)` | sends a copy, does not wait |
# | `comm.recv(count, source)` | waits for `count` words from `source`, returns them |
# | `comm.sendrecv(array, dest, count, source)` | both at once, in the same round |
#
# `np.array_split(array, P)` gives P blocks, as **views**: writing into a block (`block += ...`, `block[:] = ...`)
# changes the array. The drawing shows ranks from top to bottom and rounds from left to right; the numbers above are
# the words of a message. If something is wrong, the message at fault is red, and the check says which rank and which
# round. Ranks that wait for ever, and loops that never end, are stopped within about a second.
#
# **The first half of a ring.** The array is cut into P blocks; rank r **owns** block r. A **reduce-scatter** leaves
# in block r of rank r the sum of all ranks' blocks r. Every block travels once around the ring and is added to on the
# way.


# %%
def my_reduce_scatter(array, comm):
    P, r = comm.size, comm.rank
    block = np.array_split(array, P)
    # STUB: return ...
    # BEGIN SOLUTION
    for step in range(P - 1):
        out, into = block[(r - step - 1) % P], block[(r - step - 2) % P]
        into += comm.sendrecv(out, (r + 1) % P, len(into), (r - 1) % P)
    return array
    # END SOLUTION


mine = puzzles.attempt("reduce-scatter", my_reduce_scatter)
collective_figures.show(mine)
check("03.b1", mine)

# %% [markdown]
# **The whole ring.** An **all-gather** then takes the finished blocks around once more, without adding. Together they
# are an all-reduce.


# %%
def my_ring(array, comm):
    P, r = comm.size, comm.rank
    block = np.array_split(array, P)
    # STUB: return ...
    # BEGIN SOLUTION
    for step in range(P - 1):  # reduce-scatter
        out, into = block[(r - step - 1) % P], block[(r - step - 2) % P]
        into += comm.sendrecv(out, (r + 1) % P, len(into), (r - 1) % P)
    for step in range(P - 1):  # all-gather
        out, into = block[(r - step) % P], block[(r - step - 1) % P]
        into[:] = comm.sendrecv(out, (r + 1) % P, len(into), (r - 1) % P)
    return array
    # END SOLUTION


mine = puzzles.attempt("ring", my_ring)
collective_figures.show(mine)
check("03.b2", mine)

# %% [markdown]
# **What wrong looks like.** Three typical mistakes, for four ranks: added when the ring should only pass on; everyone
# waits first; a loop without an end.

# %%
def adds_again(array, comm):
    P, r = comm.size, comm.rank
    block = np.array_split(array, P)
    for step in range(2 * P - 2):
        into = block[(r - step - 2) % P]
        into += comm.sendrecv(block[(r - step - 1) % P], (r + 1) % P, len(into), (r - 1) % P)


def waits_first(array, comm):
    array += comm.recv(len(array), (comm.rank - 1) % comm.size)
    comm.send(array, (comm.rank + 1) % comm.size)


def never_ends(array, comm):
    distance = 1
    while distance < comm.size:
        distance *= 1


for mistake in (adds_again, waits_first, never_ends):
    say(f"`{mistake.__name__}`: {puzzles.attempt('ring', mistake).problem}")
collective_figures.show(puzzles.attempt("ring", adds_again))

# %% [markdown]
# ## Run it
#
# ### Every message of every algorithm
#
# labkit's own, in `labkit.training.collectives`, are written once and run on virtual and on real ranks. Here are all
# messages of three, for 8 ranks and 48 words.

# %%
def traces(names, size, words=48):
    return {name: calibration.trace_of(name, size, words) for name in names}


fig, alt, data = collective_figures.gallery(traces(("butterfly", "tree", "rabenseifner"), 8), 48)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# In the butterfly everybody works in every round, in the tree hardly anyone. Rabenseifner's sends half, a quarter, an
# eighth; then the same backwards. Beside them: the naive way (all to rank 0, and back), two levels of rings, and two
# binary trees at once (Sanders, Speck and Träff), each for half of the array, cut into pieces that follow each other.
# A tree leaves most ranks idle; whoever is a leaf in one tree works in the other. It has more rounds than the tree, of
# small pieces: it pays for long arrays. Two levels of rings need groups of equal size; a prime P has none, and there
# it is the plain ring.

# %%
others = traces(("naive", "hierarchical"), 8)
others["double tree, 2 pieces"] = traced.run(
    lambda comm: collective_extras.all_reduce_double_tree(np.ones(48), comm, 2), 8
)
fig, alt, data = collective_figures.gallery(others, 48)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# Six ranks are no power of two. The ring does not mind. Butterfly and Rabenseifner's fold: ranks 4 and 5 hand their
# arrays to 0 and 1, sit still, and get the sum at the end. *Circulant* (Bruck et al., Träff) needs no fold: it halves the distance, rounding
# up.

# %%
six = traces(("butterfly", "rabenseifner", "ring"), 6)
six["circulant"] = traced.run(
    lambda comm: collective_extras.all_reduce_circulant(np.ones(48), comm), 6
)
fig, alt, data = collective_figures.gallery(six, 48)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# ### Counted against the formulas
#
# Each algorithm on each number of ranks, for an array that all of them can cut evenly (claim **S21**; for ranks that
# are no power of two with the fold's two rounds of n words). And random ranks and lengths, also shorter than the
# number of ranks, against the two bounds (claim **S22**): 1 is the bound itself.

# %%
random, rows = np.random.default_rng(lab.seeds[0]), []
pairs = [(int(random.integers(2, 18)), int(random.integers(1, 200))) for _ in range(settings.draws)]
for name in ALL_REDUCE:
    found = {size: calibration.trace_of(name, size, settings.words) for size in settings.sizes}
    counts = [("rounds", trace.rounds, size) for size, trace in found.items()]
    counts += [("words", trace.words, size) for size, trace in found.items()]
    lab.evidence("counts", counts, algorithm=name, words=settings.words)
    over = []
    for size, words in pairs:
        trace = calibration.trace_of(name, size, words)
        over.append(("rounds_over", trace.rounds / puzzles.lg(size), size))
        over.append(("words_over", trace.words / (2 * words * (size - 1) / size), size))
    lab.evidence("bounds", over, algorithm=name, draws=settings.draws, seed=lab.seeds[0])
    each = {f"P = {size}": f"{trace.rounds}, {trace.words}" for size, trace in found.items()}
    rows.append({"rounds, words": name, **{key: each[key] for key in list(each)[-6:]}})
show_table(rows)
two = [calibration.trace_of("ring", size, settings.words).words for size in (8, 16)]
growth.compare(two[1] / two[0], "2n(P-1)/P is below 2n for any P: in words, a thousand ranks cost little more than sixteen.")

# %% [markdown]
# *"More workers, more to send"* is wrong for a ring. What grows is the number of rounds, and with it the latency.
#
# ### The same functions on real processes
#
# `run_ranks` starts real processes; there `comm` sends through `torch.distributed` (its library for CPUs is called
# gloo). Each algorithm has to give the sum that torch's own all-reduce gives, in float64, and to send exactly the
# messages and words that were counted above (claim **S21.real**).

# %%
tables = []
for ranks in settings.ranks:
    table = calibration.same_as_gloo(list(ALL_REDUCE), ranks, settings.words, lab.seeds[0])
    off = table["largest relative difference"]
    off = off + (table["messages"] - table["messages counted"]).abs()
    off = off + (table["words"] - table["words counted"]).abs()
    lab.evidence("equal", [("all_reduce_error", value) for value in off], ranks=ranks, words=settings.words)
    tables.append(table)
show_table(pd.concat(tables))

# %% [markdown]
# ### What a message costs here
#
# **Calibrate.** Two processes send an array to and fro (a *ping-pong*); half a round trip is one message. Each size
# is measured several times and the *fastest* counts, as a neighbour on the machine can only slow it down. Additions
# are timed apart. alpha, beta and gamma come from least squares on relative errors, none below 0.

# %%
fits = []
for turn in range(settings.calibrations):
    fit, timings = calibration.calibrate(settings.ping_words, settings.ping_repeats)
    fits.append((fit, timings))
    rows = [("alpha", fit.alpha), ("beta", fit.beta), ("gamma", fit.gamma), ("rms", fit.rms)]
    rows += [(row.kind, row.seconds, row.words) for row in timings.itertuples()]
    lab.evidence("calibration", rows, turn=turn, words=settings.ping_words, repeats=settings.ping_repeats)
fit, timings = sorted(fits, key=lambda pair: pair[0].alpha)[len(fits) // 2]  # the one in the middle
shown = calibration.recorded(recorded)
fig, alt, data = collective_costs.calibration(({"recorded": shown} if shown else {}) | {"yours": (fit, timings)})
viz.show(fig, alt=alt, data=data)
dear = f"; one start costs as much as {fit.alpha / fit.beta:,.0f} words" if fit.beta else ""
say(f"The model here: {collective_costs.fit_words(fit)}{dear}.")

# %% [markdown]
# Up to thousands of words a message costs the same: its size does not matter, its *number* does. How far is the line
# off? The fit says so: "typically off by" is the root mean square of (line - point) / point; real messages do not know
# our straight line. (The board takes several calibrations, and the middle one of their constants.)
#
# **Time whole all-reduces.** All algorithms and sizes in an order drawn anew in every round; the slowest rank counts.

# %%
names = [name for name in ALL_REDUCE if name != "naive"]
measured = []
for ranks in settings.ranks:
    table = calibration.measure(names, ranks, settings.time_words, settings.time_repeats, lab.seeds[0])
    rows = [(row.algorithm, row.seconds, row.words) for row in table.itertuples()]
    lab.evidence("times", rows, ranks=ranks, words=settings.time_words, repeats=settings.time_repeats)
    measured.append(table)
measured = pd.concat(measured)
fastest = measured.groupby(["algorithm", "ranks", "words"], as_index=False)["seconds"].min()

# %% [markdown]
# ## Compare
#
# ### Which algorithm wins where, in the model
#
# With the constants of this machine. First 8 ranks, then the map: size of the array against number of ranks.

# %%
fig, alt, data = collective_costs.curves(8, *fit[:3])
viz.show(fig, alt=alt, data=data)

# %%
fig, alt, data = collective_costs.winners(*fit[:3])
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# Small arrays belong to the butterfly, large ones to those with the fewest words (claim **S23**). Look at the
# stripes: at 8, 16, 32 ranks Rabenseifner's has both few rounds and few words. Beside them it has to fold, and loses
# large arrays to rings, on one level or two. *A library that uses "the best algorithm" has to look at P as well as at
# n.*
#
# ### Predicted and measured
#
# Points: the fastest of the timings on this machine. Lines: the model, with the constants of the ping-pong. `gloo` is
# torch's own.

# %%
fig, alt, data = collective_costs.timed(fastest, fit)
viz.show(fig, alt=alt, data=data)
here = fastest[(fastest["ranks"] == ranks_here) & (fastest["words"] == small)].set_index("algorithm")["seconds"]
here = here[["tree", "butterfly", "ring", "rabenseifner"]]
level = here[here <= 1.2 * here.min()]  # within 20 % of the fastest nobody has won
quickest.compare(
    quickest.answer if quickest.answer in level.index else here.idxmin(), f"In ms: {', '.join(f'{name} {1e3 * value:.3g}' for name, value in here.items())}; within 20 % is a tie."
)

# %% [markdown]
# Where points lie above their lines, the model is wrong, and the usual reason is simple: **it gives every rank a
# processor of its own.** With fewer cores than ranks, ranks take turns; then all messages of all ranks follow each
# other, and each turn waits for the operating system to switch. What counts is then not the longest chain but the
# *total*. So fit both: once the counts on the critical path, once the sums over all ranks.

# %%
by_hand = fastest[fastest["algorithm"] != "gloo"].reset_index(drop=True)
ways = calibration.both_ways(by_hand)
fig, alt, data = collective_costs.agreement(by_hand, ways)
viz.show(fig, alt=alt, data=data)
better = min(ways, key=lambda way: ways[way][0].rms)
say(
    f"Here the counts of **{better}** fit better ("
    + ", ".join(f"{way}: off by {found[0].rms:.0%}" for way, found in ways.items())
    + "). A parallel machine should favour the critical path."
)

# %% [markdown]
# On one core look at the small arrays: the tree keeps up with the butterfly or beats it, though its critical path is
# twice as long. It sends 2(P-1) messages in all, the butterfly P lg P, the ring 2P(P-1). That says nothing about a
# cluster: *a measurement on an overloaded machine measures the overload* (claim **S23.here** judges it all the same).
#
# ### A finer model
#
# **LogGP** splits alpha: o, the time a processor is busy with a message, and L, the wire. While a message is on the
# wire, the processor may start the next, a **gap** later at the earliest. For the naive all-reduce of 64 ranks (o 1 us,
# L 3 us, gap 1 us, 0.4 ns a word; alpha = L + 2 o = 5 us) that matters, as rank 0 sends 63 messages to different ranks:

# %%
rows = []
for name in ("naive", "butterfly", "ring", "rabenseifner"):
    for words in (256, 262144):
        plain = cost.seconds(name, words, 64, 5e-6, 4e-10)
        finer = collective_extras.loggp(name, words, 64, 3e-6, 1e-6, 1e-6, 4e-10)
        row = {"algorithm": name, "size": collective_costs.size_of(words)}
        rows.append({**row, "alpha-beta, us": 1e6 * plain, "LogGP, us": 1e6 * finer})
show_table(rows)

# %% [markdown]
# In all but the naive one, each message waits for the one before it, so the two models agree. The naive one is not
# as bad at small arrays as its 126 rounds say; its words no model can hide.
#
# ## Where it breaks
#
# - **Scale.** Two to four processes on one machine, through its loopback: no network, no switches, no GPUs. The
#   constants are those of this machine; more ranks exist in the model only.
# - **One core.** With fewer cores than ranks, real timings are those of taking turns. That is why the claims about
#   counts come from virtual ranks, and the claim about time (S23) from a model whose constants come from two
#   processes of which one works at a time.
# - **The model** knows one port per rank and no contention: on a real network, P messages at once may share a link.
#   Butterfly and Rabenseifner's send far, the ring only to neighbours.
# - **A "round" is a clock of the model**: real ranks do not wait for a round to end.
# - **Order of additions.** Floating-point sums depend on the order, so two algorithms differ in the last digits; and
#   an all-reduce that adds in another order each time gives another model each time.
# - **A simulator's agreement with itself is no validation.** That counts equal formulas only says that both describe
#   the same algorithm.
#
# **When not to write your own:** in training. `torch.distributed.all_reduce` knows your network, overlaps and
# pipelines.
#
# ### Your own machine
#
# `calibration.calibrate` runs between two processes of one machine. On two machines, start a script with `torchrun`
# that calls `run_ranks(calibration.ping_pong, 2, sizes, repeats)` on each: the same function then measures the
# network.

# %% [markdown]
# ## Exercises
#
# ### 03.1 (warm-up) Costs by hand
#
# 64 ranks, alpha = 5 us, 10 GB/s (a word is 4 bytes), adding is free. Give the rounds of a ring; the microseconds of
# a butterfly at 1 KiB, of a ring and of Rabenseifner's at 10 MiB (1 KiB = 1024 bytes); and the size in KiB at which
# butterfly and Rabenseifner's cost the same. Three digits.

# %%
# STUB: costs = {"ring rounds": ..., "butterfly 1 KiB": ..., "ring 10 MiB": ...}
# STUB: costs |= {"Rabenseifner 10 MiB": ..., "crossing KiB": ...}
# BEGIN SOLUTION
P, lgP, alpha, beta = 64, 6, 5.0, 4e-4  # us, us per word
n = 10 * 2**20 // 4
costs = {
    "ring rounds": 2 * (P - 1),
    "butterfly 1 KiB": lgP * (alpha + 256 * beta),
    "ring 10 MiB": 2 * (P - 1) * (alpha + n / P * beta),
    "Rabenseifner 10 MiB": 2 * lgP * alpha + 2 * n * (P - 1) / P * beta,
    "crossing KiB": lgP * alpha / (lgP - 2 * (P - 1) / P) / beta * 4 / 1024,
}
# END SOLUTION
check("03.1", costs)

# %% [markdown]
# ### 03.2 (core) Broadcast by a tree
#
# Rank 0 has an array; all need it. Write it for any number of ranks, in lg P rounds: whoever has it passes it on.


# %%
def my_broadcast(array, comm):
    # STUB: return ...
    # BEGIN SOLUTION
    distance = 1
    while distance < comm.size:
        if comm.rank < distance and comm.rank + distance < comm.size:
            comm.send(array, comm.rank + distance)
        elif distance <= comm.rank < 2 * distance:
            array[:] = comm.recv(len(array), comm.rank - distance)
        distance *= 2
    return array
    # END SOLUTION


mine = puzzles.attempt("broadcast", my_broadcast)
collective_figures.show(mine)
check("03.2", mine)

# %% [markdown]
# ### 03.3 (core) A butterfly for any number of ranks
#
# lg P rounds where P is a power of two; elsewhere fold: one round more before and one after.


# %%
def my_butterfly(array, comm):
    core = 1
    while 2 * core <= comm.size:
        core *= 2  # the largest power of two in P
    # STUB: return ...
    # BEGIN SOLUTION
    n, r = len(array), comm.rank
    if r >= core:
        comm.send(array, r - core)
        array[:] = comm.recv(n, r - core)
        return array
    if r + core < comm.size:
        array += comm.recv(n, r + core)
    distance = 1
    while distance < core:
        array += comm.sendrecv(array, r ^ distance, n, r ^ distance)
        distance *= 2
    if r + core < comm.size:
        comm.send(array, r + core)
    return array
    # END SOLUTION


mine = puzzles.attempt("butterfly", my_butterfly)
collective_figures.show(mine)
check("03.3", mine)

# %% [markdown]
# ### 03.4 (core) A tree, up and down
#
# Sum up to rank 0 along a binomial tree, then broadcast the sum down it: 2 lg P rounds, any number of ranks.


# %%
def my_tree(array, comm):
    # STUB: return ...
    # BEGIN SOLUTION
    n, r, distance = len(array), comm.rank, 1
    while distance < comm.size:  # up
        if r % (2 * distance) == distance:
            comm.send(array, r - distance)
        elif r % (2 * distance) == 0 and r + distance < comm.size:
            array += comm.recv(n, r + distance)
        distance *= 2
    while distance > 1:  # down
        distance //= 2
        if r % (2 * distance) == 0 and r + distance < comm.size:
            comm.send(array, r + distance)
        elif r % (2 * distance) == distance:
            array[:] = comm.recv(n, r - distance)
    return array
    # END SOLUTION


mine = puzzles.attempt("tree", my_tree)
collective_figures.show(mine)
check("03.4", mine)

# %% [markdown]
# ### 03.5 (core) Rabenseifner's: halve, then double
#
# As few words as a ring, in 2 lg P rounds. For a P that is no power of two: fold, as in 03.3.


# %%
def my_rabenseifner(array, comm):
    core = 1
    while 2 * core <= comm.size:
        core *= 2
    edge = np.linspace(0, len(array), core + 1).astype(int)  # block i is array[edge[i] : edge[i + 1]]
    # STUB: return ...
    # BEGIN SOLUTION
    n, r = len(array), comm.rank
    if r >= core:
        comm.send(array, r - core)
        array[:] = comm.recv(n, r - core)
        return array
    if r + core < comm.size:
        array += comm.recv(n, r + core)
    low, high, distance = 0, core, core // 2  # the blocks that this rank still sums
    while distance:
        middle = (low + high) // 2
        keep, give = ((middle, high), (low, middle)) if r & distance else ((low, middle), (middle, high))
        mine, out = (array[edge[a] : edge[b]] for a, b in (keep, give))
        mine += comm.sendrecv(out, r ^ distance, len(mine), r ^ distance)
        (low, high), distance = keep, distance // 2
    distance = 1
    while distance < core:
        length = high - low
        first, last = (low - length, low) if r & distance else (high, high + length)
        theirs = array[edge[first] : edge[last]]
        theirs[:] = comm.sendrecv(array[edge[low] : edge[high]], r ^ distance, len(theirs), r ^ distance)
        low, high, distance = min(low, first), max(high, last), 2 * distance
    if r + core < comm.size:
        comm.send(array, r + core)
    return array
    # END SOLUTION


mine = puzzles.attempt("rabenseifner", my_rabenseifner)
collective_figures.show(mine)
check("03.5", mine)

# %% [markdown]
# ### 03.6 (killer) Rabenseifner's idea for six ranks
#
# Folded, Rabenseifner's takes 6 rounds and 3.5n words for six ranks. Write an all-reduce for **six ranks** that moves
# no more words than the bound, 2n x 5/6, in no more rounds than that: 6. The ring needs 10, three rounds (the bound
# for rounds alone) can be reached, but not with so few words. Circulant above does it, in one way; find your own.
#
# **03.7 (star).** Among all that move so few words, which takes the fewest rounds? Five is possible.


# %%
def my_six(array, comm):
    # STUB: return ...
    # BEGIN SOLUTION
    third = np.array_split(array, 3)
    group, place = divmod(comm.rank, 3)  # two rings of three
    after, before = (3 * group + (place + step) % 3 for step in (1, -1))
    other = (comm.rank + 3) % 6
    for step in range(2):  # reduce-scatter in the ring: rank `place` gets its third of the group's sum
        out, into = third[(place - step - 1) % 3], third[(place - step - 2) % 3]
        into += comm.sendrecv(out, after, len(into), before)
    own = third[place]
    own += comm.sendrecv(own, other, len(own), other)  # swap with the other group: both are done
    for step in range(2):  # all-gather in the ring
        out, into = third[(place - step) % 3], third[(place - step - 1) % 3]
        into[:] = comm.sendrecv(out, after, len(into), before)
    return array
    # END SOLUTION


mine = puzzles.attempt("six", my_six)
collective_figures.show(mine)
if mine is not None:
    lab.keep("03.6", {"rounds": mine.trace.rounds, "words": mine.trace.words, "right": mine.problem is None})
check("03.6", mine)
check("03.7", puzzles.attempt("five rounds", my_six))

# %% [markdown]
# <details><summary>Why five (after you have solved it)</summary>
#
# After two rounds a rank knows at most 4 of the 6 parts, so nobody is done before the end of round 3; with so few words
# there is no room for more than one message to do much at once. Three rounds are possible with 3n words, five with 5n/3.
# Whether *four* rounds can do with 5n/3 words we have neither found nor ruled out: if you do, write to us.
#
# The same swap in the middle saves Rabenseifner's a round at any power of two: 2 lg P - 1, with as few words.
#
# </details>

# %% [markdown]
# ## Take away
#
# - An all-reduce costs rounds x alpha + words x beta; at least lg P and 2n(P-1)/P. Small arrays: few rounds
#   (butterfly). Large ones: few words (ring, Rabenseifner's).
# - The words of a ring do not grow with P, its rounds do.
# - Powers of two are special. A fold costs two rounds of whole arrays; other cuts (6 = 2 x 3) avoid it.
# - A cost model is worth what its calibration error says. On fewer cores than ranks, time is the sum over all ranks,
#   not the critical path.
#
# **Next:** lab 02, where a network is split and the words are counted; lab 04, where gradients are summed.
# **Sources:** Ben-Nun and Hoefler, arXiv 1802.09941, section 2.5; Chan et al., *Collective communication*, 2007;
# Rabenseifner, 2004; Patarasuk and Yuan, 2009; Träff, arXiv 2410.14234.

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours: every claim, its rule written before anything was timed. Misses and
# contradictions stay on it.

# %%
show_table(lab.board()[["claim", "statement", "verdict", "evidence", "scale gap"]])

# %%
lab.record()
