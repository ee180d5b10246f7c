# %% [markdown]
# # 06 · Talking less: what may be left unsaid?
#
# **Claim: workers that train together can say far less than their gradients, by fewer bits an entry, fewer entries, fewer exchanges or fewer partners. What is left unsaid may be kept for later or be right on average, and what that costs in accuracy, in bytes and in time are three different questions.**
#
# Before it: lab 05. Cost: the lab prints it below, where it was measured; quick fits one laptop core. No network. You need: SGD, and what an all-reduce costs (lab 03).

# %% [markdown]
# ## You will be able to
#
# - **compute** the bytes that any of these methods puts on the wire, per worker and step;
# - **say** which compressors need a memory of what they left out, and build one;
# - **predict** how fast a graph of neighbours mixes, from one eigenvalue;
# - **choose** a method for a bandwidth and a number of workers, and say when saving bytes saves no time.

# %% [markdown]
# ## Set up

# %% tags=["setup"]
# the set-up cell is generated

# %% [markdown]
# ## Parameters

# %% tags=["parameters"]
profile: str = "quick"  # smoke | quick | full
seeds: str = "0"  # the first seed; the lab counts on from it
overrides: dict = {}  # fields of the profile, such as {"steps": 256}
record_to: str = ""  # folder of your runs; empty: the local one
interactive: bool = True  # False: no sliders

# %%
import numpy as np
import pandas as pd
import torch

import labkit
from labkit.teach import check, explore, hint, predict, solution, viz
from labkit.teach.exercises import say
from labs import budget, phase, talking, talking_figures, talking_maps, talking_study, talking_tables
from labs.tables import show_table

lab = labkit.start("06", profile, seeds, overrides, record_to, interactive)
settings, recorded = lab.settings, lab.recorded()
digits = talking.Digits.load(settings.train)


def both(name, **select) -> dict:
    """The tables of recorded runs and of yours, as far as there are any."""
    tables = {"recorded": talking_tables.best(recorded, name, **select)}
    tables["yours"] = talking_tables.best(list(lab.used.values()), name, **select)
    return {source: table for source, table in tables.items() if not table.empty}


# %% [markdown]
# ## What the literature says
#
# Ben-Nun and Hoefler's survey (section 7) sorts distributed training along three axes: how *consistent* the workers' parameters are, how *centralised* the exchange is, and how the messages are *compressed*. Lab 05 was about the first. Here are the other two, and the end of the first, where workers hardly talk. The survey is cited for this taxonomy. Formulas are our own and counted; what we only *remember* of it is never shown as a figure.
#
# | what is left unsaid | methods | named after, or by |
# |---|---|---|
# | bits of an entry | fp16; 1-bit SGD; QSGD; TernGrad | Seide et al.; Alistarh et al.; Wen et al. |
# | entries | top-k; Deep Gradient Compression (DGC) | Aji and Heafield; Lin et al. |
# | the rank of a matrix | PowerSGD (later than the survey) | Vogels et al. |
# | exchanges | local SGD, model averaging; block momentum (BMUF); elastic averaging (EASGD) | Zinkevich et al., Stich; Chen and Huo; Zhang et al. |
# | partners | gossip (D-PSGD) | Lian et al. |
# | the factors' product | sufficient factors (SFB) | Xie et al. |
#
# Claims **S34** to **S44** are judged at the end. Their rules were first written before the runs. What was changed after a
# look at earlier runs, mostly to judge more strictly, is written at the head of `data/claims/talking.yaml`: the points and
# the model of S42.phase, the margins of S38.real, what S39 and S41 look at.

# %% [markdown]
# ## Intuition
#
# **Two ways of leaving something out honestly.** A **compressor** turns a gradient g into a *wire*, a few bytes, and others hear Q(g). It is **unbiased** if the mean of Q(g) over its random numbers is g: QSGD and TernGrad round up or down at random so that it comes out right on average. The price is *variance*, that is more noise. A **biased** one, such as signs or the largest k entries, is always wrong in the same way. It needs a memory: with **error feedback** a worker adds what it left out, the *rest* e, to the next gradient:
#
# > send Q(g + e), then keep e = (g + e) - Q(g + e)
#
# All that was ever sent plus the rest is then exactly the sum of all gradients. Nothing is lost, only late: as in lab 05, a kind of staleness.
#
# **The wire, not the tensor.** Dense gradients are *added up on the way*: with P workers an all-reduce sends 2(P-1)/P words for each word. Signs or entries at different places cannot be added up on the way, so every wire goes to everyone (an *all-gather*): P - 1 wires. Saving a factor of 32 in the tensor saves less on the wire, and with many workers nothing. **PowerSGD** is made for that: it sends a matrix M of r rows and c columns as a product P Q^T of rank 1 (or 2, 4), and both P = M Q and Q = M^T P are sums over the workers, so they can be all-reduced: r + c words instead of r c.
#
# Move the sliders: a gradient of 25.6 million words (ResNet-50's), a density for top-k, a period tau for local SGD, levels for QSGD.


# %%
def what_is_said(percent, tau, levels, megabytes_a_second, workers):
    return talking_figures.said(percent / 100, tau, levels, megabytes_a_second, workers)


explore(
    what_is_said,
    interactive,
    percent=(1, [0.1, 0.5, 1, 5, 10]),
    tau=(16, [1, 4, 16, 64, 256]),
    levels=(4, [1, 4, 7, 127]),
    megabytes_a_second=(100, [1, 10, 100, 1000, 10000]),
    workers=(4, [2, 4, 16, 64, 256]),
)

# %% [markdown]
# Set 256 workers: dense has grown by a third, and what is all-gathered 85-fold. That is why systems switch from sparse to dense (below), or use wires that can be added up.
#
# ### The methods in one table
#
# n: bytes of the gradient (and of the parameters), P: workers. *State* is what a rank holds besides parameters, gradients and the state of its own optimizer (o: nothing for plain SGD, n with momentum, 2n with Adam). A server holds the parameters and the optimizer's state in place of the workers.
#
# | method | consistency | centralised? | bytes sent per rank and step | state per rank | when not to use it |
# |---|---|---|---|---|---|
# | synchronous (DDP) | equal | no | 2n(P-1)/P | none | slow links, stragglers |
# | backup workers | equal, some gradients dropped | either | 2n(P-1)/P | none | no stragglers: work is thrown away |
# | parameter server, synchronous | equal | yes | n, and the server n P | none (server: n + o) | many workers, one server |
# | stale-synchronous, s | at most s behind | yes | n | none (server: n + o) | equal workers: staleness for nothing |
# | asynchronous | unbounded | yes | n | none (server: n + o) | rates near the edge of stability (lab 05) |
# | Hogwild | unbounded, lost updates | shared memory | 0 | none | dense gradients; several machines |
# | fp16 | equal | no | n(P-1)/P | none | gradients that overflow or vanish in 16 bits |
# | 1-bit, QSGD, TernGrad | equal | no | (P-1) x n/32, n/8, n/20 about | rest n (1-bit) | fast links, many workers |
# | top-k, DGC | equal | no | (P-1) x 2 k / words x n | rest n (DGC: 2n) | without feedback; many workers |
# | PowerSGD, rank r | equal | no | 2(P-1)/P x 4 r (rows + columns) a matrix; vectors whole | rest n, one Q a matrix | few exchanges in all; small matrices |
# | local SGD, tau | apart for tau steps | no | 2n(P-1)/P / tau | none | long periods, unequal data |
# | post-local SGD, tau after m steps | equal for m steps, then apart for tau | no | 2n(P-1)/P, then / tau | none | short trainings: m has to be chosen as well |
# | block momentum (BMUF), tau | apart for tau steps | no | 2n(P-1)/P / tau | start and velocity, 2n | few averages in the whole training |
# | elastic averaging, tau | always apart, drawn to a centre | either | 2n(P-1)/P / tau | centre n | with no time to tune its pull |
# | gossip, d neighbours | always apart | no | d n | d n received | poorly connected graphs of many workers |
# | gossip, asynchronous | apart, stale | no | n | n | equal workers |
# | sufficient factors | equal | either | B (Ci + Co) words a layer to each | none | large batches; convolutions |
# | Krum, median | equal | either | (P-1) n | P n received | honest workers: samples are thrown away |

# %% [markdown]
# ## Predict

# %%
answer = None
saving = predict(
    "06.p1",
    "Four workers send the largest 1 % of their entries instead of all. How many times fewer bytes does each send?",
    "times",
    answer,
    lab,
    low=0.0,
)

# %%
answer = None
quickest = predict(
    "06.p2",
    "Real processes exchange 65,536 words a step over a link of 1 GB/s. Which is faster per step?",
    ["dense", "1-bit"],
    answer,
    lab,
)

# %% [markdown]
# ## Build it
#
# **One bit an entry.** 1-bit SGD sends the sign of every entry, and for each row of a matrix two numbers: the mean of its entries >= 0 and the mean of those < 0. Write what others *hear* of the matrix `rows` [r, n] (torch tensors).


# %%
def my_signs(rows):
    # STUB: return ...
    # BEGIN SOLUTION
    positive = rows >= 0
    up = (rows * positive).sum(1, keepdim=True) / positive.sum(1, keepdim=True).clamp(min=1)
    down = (rows * ~positive).sum(1, keepdim=True) / (~positive).sum(1, keepdim=True).clamp(min=1)
    return torch.where(positive, up, down)
    # END SOLUTION


check("06.b1", my_signs)

# %% [markdown]
# The check compares with labkit's compressor, which also packs eight signs to a byte.
#
# ## Run it
#
# ### Right on average?
#
# Many wires of one vector of 2000 entries. *Bias* compares the distance of their mean from the vector with what chance alone would give: 1 is none. *Variance* is relative to the squared norm; for QSGD with s levels it may be at most min(n/s², sqrt(n)/s) (claims **S36**, **S37**).

# %%
show_table(talking_study.moments(lab, settings.draws))

# %% [markdown]
# With one level QSGD is far noisier than TernGrad, though both send -1, 0 or 1: one takes the norm as the largest step, the other the largest entry. *Unbiased does not mean harmless.* In practice QSGD is used on buckets of a few hundred entries with a norm each, since the bound grows with sqrt(n).
#
# ### Where signs go wrong, and feedback puts it right
#
# A problem in four dimensions, where noise decides all signs and the useful part of the gradient is smaller (claim **S38.toy**). The number is the distance from the minimum after 400 steps, 1 at the start.

# %%
show_table(talking_study.toy(lab))

# %% [markdown]
# Signs alone do not move at any rate: the useful part vanishes in the mean of each half. With feedback it adds up in the rest until it shows. Whether that happens in a network is another question: claim **S38**, below.
#
# ### Many sparse gradients make a dense one
#
# If each of P workers sends a share d of all entries, at independent places, the sum has a share 1 - (1-d)^P. An entry costs 8 bytes (value and place) when sparse, 4 when dense. So beyond P* = ln(1/2) / ln(1-d), where half of the places are taken, dense is cheaper (claim **S39**). Here sparse sums run on virtual ranks that count their words, with and without the switch to dense.

# %%
sums = talking_study.union(lab)
show_table(sums)
real_places = talking_study.supports(lab, settings, digits)
fig, alt, data = talking_figures.union(sums, 0.03, real_places)
viz.show(fig, alt=alt, data=data)
ratios = real_places["ratio"]
say(
    f"Real gradients, top-k 1 %: their sum fills {ratios.min():.2f} to {ratios.max():.2f} of what independent places would fill."
)

# %% [markdown]
# Below 1 the workers agree on what is large more often than by chance, and their sum stays sparser than the formula says. How much more often depends on the batches and on the number of workers: claim **S39.real** asks for 0.9 or less in *every* case, and a single case above it is a miss, as the board says.
#
# ### Who listens to whom
#
# In **gossip** each worker mixes its parameters with those of its neighbours: w_i <- sum_j W_ij w_j, where rows and columns of W sum to 1. The mean of all stays what it was. What shrinks is the *disagreement*, the distance from the mean: in the long run by the second largest eigenvalue of W per round. On a ring with weights 1/3 that is 1/3 + 2/3 cos(2π/P) (claim **S34**).

# %%
show_table(talking_study.graphs(lab))
fig, alt, data = talking_figures.disagreement(settings.graph_workers)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# *One-peer* is the exponential graph in turns: first the neighbour, then the worker two off, then four. Each round is one message, and after lg P rounds all agree *exactly*, if P is a power of two (claim **S35**): it is lab 03's butterfly in disguise.
#
# ### The same on real processes
#
# The trainings below run in one process, with the pure functions that real ranks use (PowerSGD: a transcription of torch's hook; real ranks use torch's own, under DDP). Are they the same? Real ranks talk by gloo, and count what they send. `moved` is how far the parameter that went farthest has gone, and differences are relative to it (claim **S38.real**).

# %%
compressing, others = talking_study.real(lab, settings)
show_table(compressing)

# %% [markdown]
# The other methods on the same real ranks: gossip without gradients, averaging, and factors of a layer's gradient, that is x and dy in place of their product, which pay where B (Ci + Co) < Ci Co (claim **S40**).

# %%
show_table(others)

# %% [markdown]
# DGC sends almost everything at first: it begins with 25 % of the entries and comes down in stages of 8 steps, so the first 8 steps are all dense in effect. PowerSGD sends its first two exchanges whole. fp16 differs a little, since real ranks add up halves on the way, and here they are added up as floats.
#
# ### Train
#
# The same small network (196-32-10, digits of 14 x 14 pixels), every method at every rate of the same grid, four workers with 16 samples each, each with a quarter of the images. Methods with momentum get the grid divided by 8. Gossip: more workers with as many samples in all.

# %%
talking_study.trainings(lab, settings, digits)

# %% [markdown]
# ## Compare
#
# ### Accuracy against bytes
#
# At the rate with the best *validation* accuracy of each method; shown is the *test* accuracy (452 images: a standard error is about 1.5 points). One row a method, the most bytes on top.

# %%
compressed = both("compressed")
fig, alt, data = talking_figures.accuracy_bytes(compressed)
viz.show(fig, alt=alt, data=data)
bytes_of = compressed["yours"].set_index("case")["bytes a step"]
saving.compare(
    bytes_of["dense"] / bytes_of["top-k 1 %"],
    "Not 100: an entry needs its place too (2 x), and wires are all-gathered (3 instead of 1.5 times).",
)

# %% [markdown]
# Look down: from top to bottom bytes fall by more than a factor of 20. How far does accuracy fall? Two methods send fewer bytes a step the longer they train, so recorded runs and yours may differ: DGC sends 25 % of the entries in its first 8 steps, then a quarter of that, and 1 % only from step 24 on (over 128 steps that makes 4.6 kB a step, over 256 3.1 kB), and PowerSGD's first two exchanges are whole. PowerSGD alone among the small ones would send no more with more workers. And compare 1-bit with and without feedback, which send the same bytes (claim **S38**: five seeds, 256 steps, equal grids). The board says what came of it. A network is not the toy: where no direction depends on the signs alone, feedback may show little.
#
# ### Fewer exchanges
#
# Local SGD averages parameters every tau steps, and bytes fall as 1/tau (claim **S42**). Elastic averaging draws workers and a centre towards each other instead (claim **S43**, only remembered).

# %%
apart = both("periods")
fig, alt, data = talking_figures.periods(apart)
viz.show(fig, alt=alt, data=data)
say(talking_tables.elastic_against_averaging(apart))

# %% [markdown]
# A remembered claim is never more than *same shape* or *not seen* on the board, even where these runs speak against it. So read the interval beside it: if it lies below 0, the elastic centre was *worse* here, at these periods, with a pull that was not tuned.
#
# Here all workers draw from the same kind of data. If one had only zeros and ones, they would drift apart, and long periods would cost more.
#
# ### Fewer partners
#
# Accuracy is at each graph's *best rate*; *spread*, the distance of workers from their mean at the end, is for all graphs at one rate, the *lowest* of the grid: what the last step added, and what mixing has not yet removed. On average, the better a graph mixes, the less; the complete graph has only the last step's.

# %%
tables = both("graphs")
for source, table in tables.items():
    say(f"{source.capitalize()}, {settings.graph_workers if source == 'yours' else 16} workers:")
    rows, order = talking_tables.partners(table)
    show_table(rows)
    say(f"Spread, as measured: {order}.")

# %% [markdown]
# The spread at the end is one draw of the last few gradients, and the networks are not the same ones after so many steps: with a single seed, neighbours in this order may swap, even a torus and the complete graph. The second eigenvalue above speaks of the slowest part of the disagreement, with nothing added; here every step adds to all of its parts, so graphs of the same eigenvalue need not have the same spread.
#
# In bytes the graphs are farther apart than in accuracy: see whether what they differ by is more than the 1.5 points of chance.
#
# ### A liar (extra)
#
# Whoever averages trusts everyone. One of five workers sends noise, or its gradient times -10, or NaN. The **coordinate median** takes the middle value of each entry. **Krum** takes the gradient that is nearest to most others (claim **S44**). Final loss:

# %%
show_table(talking_study.liars(lab, settings).replace(np.inf, "diverged"))

# %% [markdown]
# ### "More bits saved = more time saved"?
#
# No. A step takes as long as computing, waiting, **encoding and decoding**, latency and bytes together; bytes count where the link is slow. To say which method is the fastest where, we need a *model*: the simulator in virtual time says how long workers wait for each other, the cost model of lab 03 what the exchange takes, and encoding costs seconds per word.
#
# Is the model any good? A test on real processes: each computes the gradient of a matrix of 256 x 256 words, exchanges it, and sleeps for bytes / bandwidth after sending. The model gets the constants of this machine, measured *apart*, on free links: the seconds of a gradient, a message, packing and unpacking. The ranks share the cores of this machine, so everything is measured with all ranks at it at once. Then it has to say the seconds per step at two bandwidths (claim **S42.phase**).

# %%
job, slow = talking_study.slowed(lab, settings)
say(
    f"Measured apart: gradient {1e3 * job.compute:.2g} ms, message {1e3 * job.alpha:.2g} ms + {1e9 * job.beta:.2g} ns a byte; "
    f"packing and unpacking all wires, 1-bit {1e3 * job.words * (job.encode['1-bit'][0] + settings.ranks * job.encode['1-bit'][1]):.2g} ms."
)
fig, alt, data = talking_maps.row_of(settings.ranks, job, slow, "yours")
viz.show(fig, alt=alt, data=data)
ratio = slow["measured"] / slow["predicted"]
say(f"Measured over predicted: {ratio.min():.2f} to {ratio.max():.2f}, in the middle {ratio.median():.2f}.")
fast = slow[slow["bandwidth"] == slow["bandwidth"].max()].set_index("way")["measured"]
quickest.compare(
    fast[["dense", "1-bit"]].idxmin(),
    f"Dense {1e3 * fast['dense']:.3g} ms, 1-bit {1e3 * fast['1-bit']:.3g} ms: packing 65,536 signs and unpacking everyone's takes longer than sending floats.",
)

# %% [markdown]
# Over the slow link it is the other way round. Local SGD is at the front of both: it saves bytes *and* encodes nothing. What it costs shows only in accuracy, so let us put both together.
#
# Where bytes decide, for dense and gossip on the slow link, the model came within about a tenth in our trials. Elsewhere it is the small things that it does not know which count: our optimizer's copying and checking (gossip), joining and cutting wires, and whatever else the machine was busy with. There it was off by a factor of up to three, and nearly always promised too much. It is a model to choose by where methods are far apart, not to time by.
#
# ### A map: which method where
#
# The figure above is one row of a map. Here is the same model, the same function, for larger machines: 25.6 million words, 100 ms of computing (log-normal, 20 %), 20 µs a message, 1 ns a word for packing and for unpacking: guesses, not measurements. Left: the shortest *step*. Middle: the shortest time *to the target*, where each method's steps are multiplied by how many more it needed in the trainings above (validation accuracy at the target; four workers, our small network). Right: the same among the methods that keep all workers' parameters equal. The number in a cell says by how much: how many times faster than dense.

# %%
every = [*recorded, *lab.used.values()]
factors = talking_tables.factors(recorded) or talking_tables.factors(list(lab.used.values()))
if factors:
    say("Steps to the target, dense = 1: " + ", ".join(f"{way} {value:.2f}" for way, value in factors.items()) + ".")
else:
    say("Something missed the target in these runs, or was not run, so the maps show seconds per step only.")
fig, alt, data = talking_maps.map_of(phase.Job(), factors)
viz.show(fig, alt=alt, data=data)
say(talking_maps.in_words(data))

# %% [markdown]
# Read the left map with suspicion: *per step* whoever talks least wins, and a worker that never talks would win everywhere. The middle one asks for progress, and changes little: at tau = 16 our small network needs few steps more, encodes nothing, and waits for the slowest once in 16 steps. Other tasks may ask a higher price. So look at the numbers, not only at the letters: where links are slow, the choice is worth a factor; where they are fast, hardly anything. If workers have to stay equal, the right map shows what is left: compressing pays on slow links, with few workers, since wires that are gathered grow with P.
#
# ## Where it breaks
#
# - **Scale.** 6,634 parameters, 4096 images, a few hundred steps, four workers in one process. Gradients of large networks have other spectra; what a compressor loses there may be more or less.
# - **Time.** The map is a model: links share nothing, nothing overlaps with computing, encoding costs a guessed constant. Real processes confirm it at two points only, for one number of ranks on one machine, with a link made slow by sleeping and constants of that machine. Workers that wait for a straggler, many workers, and a network were not measured. PowerSGD, whose bytes grow least with the workers, is not in the map: its matrices' shapes, and the time of its products, would have to be.
# - **Factors** of the maps to the target come from four workers (gossip: sixteen), and are used for 128.
# - **Tuning.** Rates are tuned on a grid of octaves; nothing else is (elastic averaging's pull, DGC's stages, momentum). Others may do better with more care, and that care is a cost as well.
# - **Equal data.** All workers' images are of one kind.
# - **A simulation's agreement with itself is no validation**: that real ranks send what the formula says shows that both describe one algorithm, not that it trains well.
#
# **When not to use any of this:** inside one machine, or where the exchange already hides behind the backward pass (lab 04). Measure first how much of a step is waiting for the network: that is all there is to gain.
#
# ### All systems of the survey
#
# What shows each named system here: really run, simulated, in a cost model, or in this table only. *By proxy*: a simpler stand-in with the same idea; its note says what is missing.

# %%
systems = talking_tables.systems()
how = systems["shown"] + systems["note"].str.startswith("by proxy").map({True: ", by proxy", False: ""})
show_table(pd.crosstab(systems["category"], how).rename_axis(columns=None).reset_index())
show_table(systems[systems["lab"] == "06"][["system", "reference", "shown", "where", "note"]])

# %% [markdown]
# The whole table is `data/published/survey_systems.csv`. What stands there as *table* is shown by no lab so far.

# %% [markdown]
# ## Exercises
#
# ### 06.1 (warm-up) Bytes by hand
#
# Four workers, one matrix of 100 rows and 1000 columns, float32. How many bytes does *one worker* send per step: dense (ring all-reduce); fp16 (ring all-reduce); 1-bit with two float32 means a row (all-gather); top-k with 1 % of the entries, a float32 and an int32 each (all-gather); local SGD with tau = 16 (ring all-reduce, per step on average); gossip on a ring? And from how many workers on does top-k 1 %, all-gathered, send as much as dense?

# %%
# STUB: sent = {"dense": ..., "fp16": ..., "1-bit": ..., "top-k": ...}
# STUB: sent |= {"local SGD": ..., "gossip": ..., "P of equal bytes": ...}
# BEGIN SOLUTION
P, n, k = 4, 100_000, 1_000
all_reduce, all_gather = 2 * (P - 1) / P, P - 1
sent = {
    "dense": all_reduce * 4 * n,
    "fp16": all_reduce * 2 * n,
    "1-bit": all_gather * (n / 8 + 8 * 100),
    "top-k": all_gather * 8 * k,
    "local SGD": all_reduce * 4 * n / 16,
    "gossip": 2 * 4 * n,
    "P of equal bytes": n / k,  # (P-1) 8 k = 2 (P-1)/P 4 n
}
# END SOLUTION
check("06.1", sent)

# %% [markdown]
# ### 06.2 (core) Error feedback
#
# `compress(vector)` returns what others hear of a vector. Return the list of what is sent for a list of gradients, such that nothing is ever lost.


# %%
def my_feedback(compress, gradients):
    # STUB: return ...
    # BEGIN SOLUTION
    rest, sent = torch.zeros_like(gradients[0]), []
    for gradient in gradients:
        full = gradient + rest
        sent.append(compress(full))
        rest = full - sent[-1]
    return sent
    # END SOLUTION


check("06.2", my_feedback)

# %% [markdown]
# ### 06.3 (core) A mixing matrix
#
# P workers on a ring. Each keeps a weight `stay` for itself and shares the rest evenly between its two neighbours. Return W [P, P] as a numpy array, also for P = 2, where both neighbours are the same worker.


# %%
def my_mixing(P, stay):
    # STUB: return ...
    # BEGIN SOLUTION
    W = stay * np.eye(P)
    for i in range(P):
        W[i, (i - 1) % P] += (1 - stay) / 2
        W[i, (i + 1) % P] += (1 - stay) / 2
    return W
    # END SOLUTION


check("06.3", my_mixing)

# %% [markdown]
# ### 06.4 (killer) A 10 kB budget
#
# Four workers have to reach an accuracy of 0.80 on the 452 *test* images, and each may send **10,000 bytes in all**, on the wire. The network has 6,634 parameters: one dense all-reduce would send 39,804 bytes. Choose
#
# - `compressor` and `options`: none, fp16, onebit (`feedback`), qsgd (`levels`, `bucket`), terngrad, topk (`density`, `feedback`), randomk, dgc (`density`, `momentum`, `stage`), dorefa (`bits`), powersgd (`rank`, `start`: how many exchanges are whole at first);
# - `tau`, steps of its own that a worker takes between two exchanges, `steps` in all (512 at most, a multiple of tau), and the `rate`.
#
# What is exchanged is the sum of a worker's tau gradients. Choose by the accuracy on the 452 *validation* images, which is all that you see; the check looks at the test images. It really trains (the whole of the bundled digits, in every profile) and counts the wire. **The fewest bytes win**: when you have passed, compare with the fewest that we know. The solution here is not the best.

# %%
# STUB: choice = {"compressor": "topk", "options": {"density": ...}, "tau": ..., "rate": ..., "steps": ...}
# BEGIN SOLUTION
choice = {"compressor": "terngrad", "options": {}, "tau": 96, "rate": 0.1, "steps": 192}
# END SOLUTION
mine = budget.play(choice)
if mine is not None and mine.problem is None:
    say(budget.standing(mine))
if check("06.4", choice):  # plays it once more: no result is taken on trust
    lab.keep("06.4", {"bytes": mine.sent, "validation": mine.validation, "test": mine.test, **mine.choice})

# %% [markdown]
# <details><summary>Why (after you have solved it)</summary>
#
# With 10,000 bytes and three others to tell, all wires of a worker together may have 3,333 bytes: half a byte a parameter. Saying little in *every* step wastes them: the first exchanges of a training say similar things again. Saying something about *every* parameter, twice, far apart, is better: ternary digits are a fifth of a byte each, and unbiased, so that the mean over four workers is less noisy than each of them. PowerSGD could afford five exchanges, but each is of rank 1: what the network needs in its first steps has a higher rank, and there are too few exchanges for error feedback to bring the rest.
#
# </details>

# %% [markdown]
# ## Take away
#
# - Count the wire, not the tensor: what cannot be added up on the way is sent P - 1 times.
# - Unbiased compressors pay in variance, biased ones need error feedback; it makes what was left out late instead of lost.
# - Sparse sums fill up: beyond P* = ln(1/2) / ln(1-d) send dense.
# - Averaging every tau steps divides the bytes by tau and costs no encoding. What it costs is agreement.
# - A graph mixes as its second eigenvalue says; one message a round is enough if the partner changes.
# - Bytes saved are seconds saved only where the link, and nothing else, is what a step waits for.
#
# **Next:** lab 07: many workers mean a large batch; how large may it be, and at which rate? (Lab 14, planned: runs that need no exchange at all.) **Sources:** Ben-Nun and Hoefler, arXiv 1802.09941, section 7; Seide et al. 2014; Alistarh et al. 2017 (QSGD); Wen et al. 2017 (TernGrad); Aji and Heafield 2017; Lin et al. 2018 (DGC); Vogels et al. 2019 (PowerSGD); Zhang et al. 2015 (EASGD); Lian et al. 2017 (D-PSGD); Renggli et al. (SparCML); Blanchard et al. 2017 (Krum).

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours: every claim. Which rules were changed after a look at earlier runs is written at the head of `data/claims/talking.yaml`. Misses and contradictions stay on it.

# %%
show_table(lab.board()[["claim", "statement", "verdict", "evidence", "scale gap"]])

# %%
lab.record()
