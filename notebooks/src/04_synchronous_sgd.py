# %% [markdown]
# # 04 · Synchronous SGD: do P workers equal one large batch, and what breaks it?
#
# **Claim: P workers that average their gradients after every batch train exactly as one process with the whole batch,
# if three things hold: the loss is a mean over samples, every sample counts the same, and no layer looks across
# samples. Their price is waiting: a step takes as long as its slowest worker.**
#
# Before it: labs 11 (time to accuracy) and 03 (all-reduce). Cost: the lab prints it below, where it was measured; quick
# fits one laptop core. No network. You need: stochastic gradient descent (SGD) with momentum, and what an all-reduce is.

# %% [markdown]
# ## You will be able to
#
# - **prove**, on real processes and to the last digit, that data-parallel SGD is SGD with a large batch;
# - **name** what breaks it (batch normalisation, uneven shards, the loss's normalisation, equal random seeds), tell the
#   faults apart from gradients, and mend each;
# - **draw** the timeline of a step in which gradients travel while others are computed, and choose a bucket size;
# - **predict** the step time from the distribution of compute times, and say what dropping the slowest workers buys
#   and costs.

# %% [markdown]
# ## Set up

# %% tags=["setup"]
# the set-up cell is generated

# %% [markdown]
# ## Parameters

# %% tags=["parameters"]
profile: str = "quick"
seeds: str = "0"
overrides: dict = {}
record_to: str = ""
interactive: bool = True

# %%
import numpy as np
import pandas as pd

import labkit
from labkit.simulate.events import Compute
from labkit.teach import check, explore, hint, predict, solution, viz
from labkit.teach.exercises import say
from labkit.training.collectives import all_reduce_ring
from labkit.training.ranks import run_ranks
from labs import buckets, synchronous, synchronous_figures, synchronous_imposters, synchronous_recorded
from labs.tables import show_table

lab = labkit.start("04", profile, seeds, overrides, record_to, interactive)
settings, recorded = lab.settings, lab.recorded()
most = max(settings.ranks)

# %% [markdown]
# ## What the literature says
#
# Ben-Nun and Hoefler's survey (section 7.1) orders training on many workers by **consistency**: how old the parameters
# may be on which a gradient is computed. At one end is **synchronous SGD**: all workers compute gradients at the same
# parameters, an all-reduce makes the mean of them, all take the same step. Nothing is ever old, so everybody waits for
# the slowest. (The other end is lab 05.)
#
# | idea | from | here |
# |---|---|---|
# | the mean of gradients replaces a large batch | the survey's data parallelism | claims **S15.sgd**, **S15.uneven** |
# | batch normalisation sees only its worker's samples; *ghost* batches do so on purpose | Ioffe and Szegedy, arXiv 1502.03167; Hoffer et al., arXiv 1705.08741 | claim **S16** |
# | gradients leave in *buckets*, while the backward goes on | Li et al., arXiv 2006.15704 (DistributedDataParallel, **DDP**) | a timeline |
# | a step takes as long as its slowest worker | the survey | claim **S24** |
# | *backup workers*: do not wait for the slowest few | Chen et al., arXiv 1604.00981 | claim **S25** |
#
# The survey is cited for this taxonomy; no number of it is shown. The formulas are ours, and each is tested by a count.

# %% [markdown]
# ## Intuition
#
# **Why it is exact.** The gradient of a mean is the mean of gradients. Let rank r have n_r of the N samples of a batch:
#
# gradient of the batch = sum over r of (n_r / N) x (mean gradient of rank r's samples)
#
# With equal shards n_r / N is 1 / P, and the right side is what an all-reduce and a division give. Momentum and weight
# decay see the same gradient on all ranks, so parameters stay equal for ever. The formula also says what must not
# happen: n_r unequal but weights equal; a sum where a mean is meant; or *a gradient of rank r that depends on more than
# its own samples*, which is what batch normalisation makes.
#
# **Why it waits.** With P workers, whose times are independent, a step takes the *largest* of P times. Its mean grows
# with P although no worker got slower. For exponential times of mean 1 it is **H_P = 1 + 1/2 + ... + 1/P**: the first
# of P is done after 1/P on average, the next one 1/(P-1) later, and so on until the last, which takes 1 more. Do
# without the b slowest (**backup workers**), and the last b terms go: **H_P - H_b**. The price: b of P gradients are
# thrown away at every step.

# %%
explore(
    synchronous_figures.waiting,
    interactive,
    workers=(16, [2, 4, 8, 16, 32, 64]),
    times=("log-normal, sigma 0.3", list(synchronous_figures.TIMES)),
    backup=(1, [0, 1, 2, 4, 8]),
)

# %% [markdown]
# Choose *constant*: no waiting at all, and a backup only loses a gradient. *One worker 5 x slower*: everybody is five
# times slower, at any P, and one backup mends it. *Exponential* is the extreme: with `backup` at 8, half of the 16 workers
# are dropped, and useful gradients still come faster. (Left: drawn at random; right: means by formula, where there are
# more workers than backups.)

# %% [markdown]
# ## Predict

# %%
answer = None
same_guess = predict(
    "04.p1",
    f"A network with batch normalisation trains under DDP on {most} ranks with {settings.batch // most} samples each, and in "
    f"one process with all {settings.batch}. Same start, same data, float64. After {settings.steps} updates parameters are:",
    ["equal to the last digits", "different in the 6th digit", "different by a percent or more"],
    answer,
    lab,
)

# %%
answer = None
largest = max(settings.workers)
wait_guess = predict(
    "04.p2",
    f"{largest} workers whose times vary (log-normal, sigma {settings.sigma:g}: two thirds of the gradients are within "
    f"about {settings.sigma:.0%} of the typical time). How many times a gradient's mean time does a step take?",
    "times",
    answer,
    lab,
    low=1.0,
)

# %%
answer = None
bucket_guess = predict(
    "04.p3",
    "Gradients can be sent while others are computed. All of a network's gradients in one message, one message for each, "
    "or something between: which finishes first?",
    ["one message for all", "something between", "one message for each"],
    answer,
    lab,
)

# %% [markdown]
# ## Build it
#
# SGD with momentum over ranks, by hand. Your function runs on **virtual ranks** (lab 03): one copy for each, with its own
# samples `x` [samples, n] and `y`. `gradient(weights, x, y)` is the gradient of the mean loss over these. A rank can call
# `all_reduce_ring(array, comm)`, which leaves in `array` the *sum* over ranks, and knows `comm.size`. Five updates at
# rate 0.1 with momentum 0.9 (velocity = 0.9 velocity + gradient; weights = weights - 0.1 velocity). All ranks start with
# the same weights, and have to end with those of one process that has everybody's samples. On 1 to 4 ranks.


# %%
def my_sgd(weights, x, y, gradient, comm):
    """The weights after five updates."""
    # STUB: return ...
    # BEGIN SOLUTION
    velocity = np.zeros_like(weights)
    for _ in range(5):
        mean = all_reduce_ring(gradient(weights, x, y), comm) / comm.size
        velocity = 0.9 * velocity + mean
        weights = weights - 0.1 * velocity
    return weights
    # END SOLUTION


check("04.1", my_sgd)

# %% [markdown]
# ## Run it
#
# ### Equal, to the last digit
#
# The same on real processes, with a small convolutional network in float64 and momentum SGD with weight decay: by
# Lightning's DDP, by torch's, and by our own ring. Each rank also trains a copy alone on the whole batches, and compares.
# The numbers are the largest difference of any parameter on any rank, relative to the largest parameter (claim
# **S15.sgd**); parameters moved by tens of percent meanwhile.

# %%
found = synchronous.on_ranks(lab, settings)
show_table(synchronous.equal_table(found).reset_index())

# %% [markdown]
# (Blank: not run. Each start of Lightning takes seconds, so it trains at some numbers of ranks only, of 2 or more.)
#
# 1e-16 is the last digit of a float64: sums are made in another order, nothing more. (In float32 it would be 1e-7 an
# update, and in a long training that grows: equal in mathematics is not equal in bits.)
#
# ### Broken
#
# **"P workers are one large batch" is not always true.** The same comparison, the same updates, on the most ranks:

# %%
show_table(synchronous.broken_table(found, settings))
local = max(one["whole error"] for one in found[most]["local"])
measured = "different by a percent or more" if local > 3e-3 else "different in the 6th digit" if local > 1e-12 else "equal to the last digits"
same_guess.compare(measured, f"The largest difference is {local:.1g}; nothing about it is rounding.")

# %% [markdown]
# **Batch normalisation** divides by a standard deviation over the batch. A rank has its own samples only, so its
# *function* is another one: each sample's output depends on which samples share its rank. What P ranks compute is one
# process that cuts its batch into P **ghost batches**, each normalised by itself, and that holds to the last digit (claim
# **S16**). To get the large batch back, means and variances have to be made over all ranks, in the forward pass, with
# their gradients summed in the backward pass: **synchronised** batch normalisation. (torch's `SyncBatchNorm` is for GPUs
# only; ours is 20 lines in `labs.synchronous_nets`, two small all-reduces a layer and direction, for which everything
# waits.) Running statistics, used in evaluation, are rank 0's under DDP: those of a P-th of the data.
#
# **Uneven shards**: the mean over ranks of their means counts a sample of a small shard for more. With weights
# P n_r / N it is exact again (claim **S15.uneven**). The same happens *with equal shards* wherever a loss is a mean over
# fewer things than samples, such as tokens that are not padding, or classes that are not ignored.
#
# **The loss's normalisation.** DDP takes the mean over ranks of whatever gradients they bring:

# %%
show_table(synchronous.factor_table(found))

# %% [markdown]
# A sum makes the gradient as many times too long as a rank has samples; dividing by the whole batch makes it P times too
# short, since DDP divides by P once more. (*factor*: length of the first gradient, over that of the right one. *rest*:
# what of it is not parallel to the right one, over the same length: nothing but rounding.) Plain SGD then trains at another rate, weight decay at another strength, and
# *an optimizer such as Adam hides it*, as it divides by the gradient's length: until somebody changes P.
#
# **When data does not divide by P.** torch's `DistributedSampler` fills up with samples that it hands out twice; or it
# leaves the rest out. Counted for a data set of a few samples:

# %%
show_table(synchronous.padded(settings.padded, most))
joined = found[most]["join"]
other = "divide_by_initial_world_size=False"
rows = [{"rank": rank, "updates": one["updates"], "last gradient too short by, default": one["default"],
         f"..., with {other}": one[other]} for rank, one in enumerate(joined)]
show_table(rows)

# %% [markdown]
# Or ranks have different numbers of batches. Then those that have more wait for ever, unless torch's `Join` stands in for
# the ones that are through (lower table; each rank has one batch more than the one before, and 1 is a gradient as long
# as it should be). By default the sum is still divided by all P ranks, so that the last batches count for less: those of
# the last rank, alone in the end, for a P-th.
#
# **The same seed everywhere.** With `torch.manual_seed(0)` on all ranks their dropout masks are copies of each other.
# Nothing looks wrong, but the noise of the masks is not averaged away. The variance of the mean gradient, only masks
# being random:

# %%
noise = [{"ranks": ranks, **{kind: jobs[kind][0]["variance"] for kind in ("same masks", "own masks")}}
         for ranks, jobs in found.items() if "same masks" in jobs]
show_table([row | {"ratio": row["same masks"] / row["own masks"]} for row in noise])

# %% [markdown]
# The ratio is P: with equal seeds P ranks average as much mask noise as one. (With *different* seeds where equal ones are
# meant, as for the initial weights or a sampler's shuffle, the harm is the other way round. DDP sends rank 0's weights
# to all at the start; nobody does that for the order of samples.)
#
# ### Does it matter how few samples share statistics?
#
# Not equal need not mean worse. Since ranks are ghost batches to the last digit, one process can show what P ranks
# would learn. Two networks with batch normalisation (two convolutions; two fully connected layers), MNIST-5k, the same
# batch and rate; only the number of samples that share statistics changes. Lines are means, a dash is one seed.

# %%
norms = synchronous.few_samples(lab, settings, lab.repeats(settings.norm_seeds))
known = synchronous_recorded.ghost_training(recorded)
fig, alt, data = synchronous_figures.few_samples(norms, known)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# One standard error of one accuracy is more than a point (452 test images), and one seed is one seed. What counts is the number
# of *values* in a mean and a variance. A channel of a convolution has one at each position of each sample: dozens or
# hundreds, even with two samples. A unit of a fully connected layer has one a sample: of two values, normalised, only which of them is the
# larger is left. "Batch 1024" on 512 workers is a batch of 2 for such a layer.

# %% [markdown]
# ### Gradients on their way
#
# The backward pass finishes the last layer's gradients first; they need not wait for the others. A hook on every
# parameter notes when its gradient is ready, in a real backward of a network with six convolutions and two fully
# connected layers (the median of several). `18.weight` is the weight of layer 18, the last one: layers are counted from
# the input, and those without parameters (activations, pooling) count too. MB are 2^20 bytes, as DDP counts them.

# %%
ready = synchronous.ready_times(lab, settings)
whole, size = float(ready["ready"].max()), float(ready["bytes"].sum())
share = sorted(settings.link_shares)[len(settings.link_shares) // 2]
link = buckets.relative(settings.link_ranks, whole, size, share, settings.link_latency)
show_table([{"gradient": name, "MB": buckets.size_text(held), "ready after, in backwards": f"{at / whole:.3f}"}
            for name, held, at in zip(ready["gradient"], ready["bytes"], ready["ready"], strict=True)])

# %% [markdown]
# Put them on a link: a ring of several ranks by the alpha-beta model of lab 03, so fast that *all words take `share`
# times as long as this machine's backward*, and the messages of one all-reduce a few percent of it, however short. (In
# this way slow and fast machines have the same picture.) An all-reduce for each gradient pays the latency 16 times, most
# of it for biases of a few bytes. One for all cannot start before the end. DDP's way are **buckets**: gradients are
# collected in the order of getting ready, and leave when a bucket holds enough. (Top bar: a piece is the time until the
# next gradient. Below: a piece is a message. Colours alternate only to tell neighbours apart.)

# %%
caps = {"each on its own": 1e-9, "buckets of 0.25 MB": 0.25, "buckets of 1 MB": 1.0, "one bucket for all": 1e6}
fig, alt, data = synchronous_figures.timelines(ready, link, caps)
viz.show(fig, alt=alt, data=data)

# %%
studies = {"yours": ready} | synchronous_recorded.backward(recorded)
fig, alt, data = synchronous_figures.cap_curves(
    studies, settings.bucket_caps, sorted(settings.link_shares), settings.link_ranks, settings.link_latency
)
viz.show(fig, alt=alt, data=data)
ends = {name: buckets.timeline(ready["ready"], ready["bytes"], cap * buckets.MB, link)[-1].end for name, cap in
        {"one message for each": 1e-9, "one message for all": 1e6}.items()}
ends["something between"] = buckets.sweep(ready["ready"], ready["bytes"], settings.bucket_caps, link)["seconds"].min()
quickest = min(sorted(ends, key=lambda name: name != "something between"), key=ends.get)
bucket_guess.compare(quickest, f"In backwards: {', '.join(f'{name} {end / whole:.2f}' for name, end in ends.items())}.")

# %% [markdown]
# At the left end (*each*: a message for every gradient) 16 latencies are paid, at the right end everything starts late:
# that is the compromise. The lower line is what no bucket size undercuts: the backward, or the link if it takes longer. On
# a fast link nearly all is hidden, as long as not everything waits for the end. On a slow one the link is always busy; what
# is left to save is a late start and the number of messages. And mind *where* the words are: this network's largest layer
# is near its end, so it is ready early, which is lucky.
#
# Between the ends the line zigzags, since what is not through when the backward is over cannot be hidden, and that depends
# on **which layer shares the last bucket**. With 1 MB, layer 5's weight fills a bucket at about three quarters of the
# backward, and the last one has only the two small layers before it; with 2 MB the last one has all convolutions. Layers
# come in lumps, so a somewhat larger bucket can be better or worse. For the middle link:

# %%
found_sizes = buckets.sweep(ready["ready"], ready["bytes"], [0.0, *settings.bucket_caps], link)
show_table([{"bucket": f"{row['bucket MB']:g} MB" if row["bucket MB"] else "each on its own",
             "messages": int(row["buckets"]), "MB not through after the backward": f"{row['left MB']:.2f}",
             "done at, in backwards": f"{row['seconds'] / whole:.2f}"} for _, row in found_sizes.iterrows()])

# %% [markdown]
# Is that how DDP does it? On two real ranks, the gradients in each bucket that it really sent, for several
# `bucket_cap_mb`, beside our rule (a bucket is full as soon as it holds the cap or more):

# %%
sizes = dict(zip(ready["gradient"], ready["bytes"], strict=True))
rows = []
for one in run_ranks(buckets.ddp, 2, settings.bucket_ddp, timeout=120.0)[0]:
    ours = buckets.assign([sizes[name] for name in one["order"]], one["cap"] * buckets.MB)
    ours = [sorted(one["order"][place] for place in places) for places in ours]
    rows.append({"bucket_cap_mb": one["cap"], "gradients in each bucket, counted": str([len(b) for b in one["names"]]),
                 "by the rule": str([len(b) for b in ours]), "the same gradients": ours == one["names"]})
show_table(rows)

# %% [markdown]
# ### Waiting for the slowest
#
# The simulator (`labkit.simulate.events`) draws each worker's time for each step and waits for the slowest. Exponential
# times, Gaussian ones, log-normal ones, and **measured** ones: gradients of a small network, timed on this machine
# one after the other. All have mean 1. Lines are formulas: H_P, and for the others the mean of the largest of P draws
# as an integral.

# %%
times = synchronous.gradient_times(settings.timed)
lab.evidence("gradient times", [("relative", value, n) for n, value in enumerate(times / times.mean())], count=len(times))
kinds = {
    "exponential": Compute("exponential"),
    f"Gaussian, sd {settings.gauss:g}": synchronous.gaussian(1.0, settings.gauss),
    f"log-normal, sigma {settings.sigma:g}": Compute("lognormal", sigma=settings.sigma),
    "measured here": synchronous.measured_compute(times),
}
repeats = lab.repeats(settings.sim_seeds)
alone = [(workers, 0) for workers in settings.workers]
tables = [synchronous.simulated(lab, name, compute, alone, settings.sim_steps, repeats) for name, compute in kinds.items()]
growth = pd.concat(tables, ignore_index=True)
fig, alt, data = synchronous_figures.growth(growth, synchronous_recorded.measured_growth(recorded, settings.workers))
viz.show(fig, alt=alt, data=data)
last = growth[(growth["workers"] == largest) & growth["times"].str.startswith("log-normal")].iloc[0]
wait_guess.compare(last["mean"], f"By the formula {last['formula']:.3f}.")

# %% [markdown]
# *"Only the mean step time matters, its variance does not"* is wrong as soon as there is a barrier: all these workers are
# equally fast on average. The tail decides. Gaussian times grow like the square root of 2 ln P, exponential ones like
# ln P, and one rare stall of a machine, which a single worker would hardly notice, is met in nearly every step once P is
# large enough. How long is the tail of this machine? (If it has other work at the moment, the tail is also theirs.)

# %%
quantiles = np.quantile(times / times.mean(), [0.05, 0.5, 0.95, 0.99, 1.0])
names = ("5 %", "median", "95 %", "99 %", "slowest")
show_table([{"gradients": len(times), **{name: f"{value:.2f}" for name, value in zip(names, quantiles, strict=True)}}])

# %% [markdown]
# ### Not waiting for them
#
# Backup workers: exponential times against H_P - H_b (claims **S24** and **S25**; *off* is in standard errors of the
# simulated mean, up to 3 count as equal).

# %%
pairs = [(workers, b) for workers in settings.workers for b in settings.backups if b < workers]
dropped = synchronous.simulated(lab, "exponential", kinds["exponential"], pairs, settings.sim_steps, repeats)
both = pd.concat([tables[0], dropped], ignore_index=True)
both["off"] = (both["mean"] - both["formula"]).abs() / both["standard error"]
shown = both[both["workers"] >= sorted(settings.workers)[-2:][0]]
show_table(shown[["workers", "backup", "mean", "formula", "off"]].sort_values(["workers", "backup"]).round(3))

# %% [markdown]
# The same on real processes: a server that applies the mean of the first gradients of a step, and four workers, of which
# the last sleeps for a fifth of a second at every gradient. How many gradients of each worker counted:

# %%
show_table(synchronous.real_backups(lab))

# %% [markdown]
# Without a backup everybody sleeps along. With one nobody does, and the slow worker might as well not be there: it hands
# in gradients of steps that are over. Whatever samples it alone has are never learnt from.

# %% [markdown]
# ## Compare
#
# What does that buy? Left: the step gets shorter. Right: what counts is *gradients used* a second. A dropped gradient
# was computed, paid for, and is lost.

# %%
fig, alt, data = synchronous_figures.price(kinds, settings.price)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# With Gaussian times a backup or two pay a little, more do not. With a long tail the first one buys the most. Exponential
# times are memoryless, so there the fastest gradient is always the best bargain: a reason not to draw conclusions from
# them. And the right figure flatters backups: the step now has a batch of P - b shares instead of P, so below the critical
# batch (lab 10) it takes more steps. Backups replace a worker's *time*, never its *samples*.
#
# **Which cure for which fault?** One worker is always slow: replace it, or give it fewer samples, with weights
# P n_r / N. Any worker is slow now and then: backups, or asynchrony (lab 05). Nobody is slow: neither; there is nothing
# to win.

# %% [markdown]
# ## Where it breaks
#
# - **Scale gap.** Real ranks on one core prove what is equal and what is sent, not how fast it would be. Waiting is
#   simulated: workers are independent there. On real clusters they are slow *together* (one switch, one file server),
#   and a slow worker often stays slow.
# - **Dropping is not blind.** If slow gradients are slow because of their *data* (long sentences, large images), backups
#   drop these samples again and again: the mean is then of another data set.
# - **Overlap is a model**: here computing does not slow down sending. On CPUs and on GPUs the two share memory and cores.
# - **Equal in float64** to 1e-16; in float32 equal only at the start of a training, since rounding differs and grows.
# - **Synchronised statistics** put a message into every such layer, forward and backward, which nothing hides. Layer or
#   group normalisation looks at one sample at a time and has none of these problems.
# - **When not to use synchronous SGD**: when workers differ much in speed for good; when they come and go; beyond the
#   critical batch, where more samples an update buy nothing.

# %% [markdown]
# ## Exercises
#
# ### 04.2 Warm-up: the slowest of sixteen
#
# Sixteen workers, exponential times with a mean of 2 s. The mean step when all are waited for (`all`), when the two
# slowest are not (`backups`), both in seconds; and the share of gradients that is then dropped (`dropped`).

# %%
# STUB: slowest = {"all": ..., "backups": ..., "dropped": ...}
# BEGIN SOLUTION
H = lambda n: sum(1 / k for k in range(1, n + 1))
slowest = {"all": 2 * H(16), "backups": 2 * (H(16) - H(2)), "dropped": 2 / 16}
# END SOLUTION
check("04.2", slowest)

# %% [markdown]
# ### 04.3 Core: weights of uneven shards
#
# Rank `rank` has `counts[rank]` samples (perhaps none), and its loss is the mean over these. DDP takes the plain mean over
# ranks of the gradients. With which factor must the rank multiply its loss, so that the result is the gradient of the
# mean over all samples?


# %%
def my_weight(counts, rank):
    """A factor."""
    # STUB: return ...
    # BEGIN SOLUTION
    return len(counts) * counts[rank] / sum(counts)
    # END SOLUTION


check("04.3", my_weight)

# %% [markdown]
# ### 04.4 Core: when is the last bucket through?
#
# Gradients get ready at seconds `ready` (in order) and have `sizes` bytes. A bucket collects them, and is full as soon as
# it holds `cap` bytes or more; what is left at the end is a bucket too. A bucket of s bytes takes alpha + beta s on the
# link, which carries one at a time, in order. At which second is the last one through?
#
# With this function you can choose a bucket size. Once it is right, run this in a cell of its own: for each size in MB,
# when the network above is done on the middle link, in backwards.
#
# ```python
# alpha = link.seconds(0)  # of one all-reduce of nothing
# beta = (link.seconds(buckets.MB) - alpha) / buckets.MB  # and of one byte more
# when, held = ready["ready"].tolist(), ready["bytes"].tolist()
# {cap: round(my_finish(when, held, cap * buckets.MB, alpha, beta) / whole, 3) for cap in settings.bucket_caps}
# ```


# %%
def my_finish(ready, sizes, cap, alpha, beta):
    """Seconds."""
    # STUB: return ...
    # BEGIN SOLUTION
    free = held = 0
    for number, (when, size) in enumerate(zip(ready, sizes)):
        held += size
        if held >= cap or number == len(sizes) - 1:
            free = max(free, when) + alpha + beta * held
            held = 0
    return free
    # END SOLUTION


check("04.4", my_finish)

# %% [markdown]
# ### 04.5 Spot the imposter
#
# Three runs on four ranks, with batch 32, from the same start and on the same data. Each was meant to equal one process;
# none does. One has **local statistics** in its batch normalisation, one the **wrong normalisation** of its loss, one
# **uneven shards** with a plain mean. Which is which?

# %%
runs = synchronous_imposters.lineup()
right = synchronous_imposters.run(synchronous_imposters.RIGHT, 0)
fig, alt, data = synchronous_figures.suspects(runs, right)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# All three learn; the curves do not convict anybody. (One even learns faster. Is that a virtue?) But the gradients were
# kept, for n parameters:
#
# | field of a run | shape | what |
# |---|---|---|
# | `losses` | [updates] | loss over the whole batch |
# | `applied` | [updates, n] | what the optimizer was given |
# | `ranks` | [updates, 4, n] | gradient of each rank's *own mean loss*, before the exchange |
# | `reference` | [updates, n] | gradient of one process, at the same parameters, for the whole batch |
#
# Write `diagnose(run)`, which returns `"local statistics"`, `"wrong normalisation"`, `"uneven shards"` or
# `"nothing wrong"`. It is tried on `runs["A"]`, `runs["B"]` and `runs["C"]`, and then on five runs that you have not
# seen: one of them is innocent, and not every wrong factor is above 1. The reply to a wrong answer is evidence.


# %%
def diagnose(run):
    """One of the four names."""
    # STUB: return ...
    # BEGIN SOLUTION
    applied, reference = run.applied[0], run.reference[0]
    if np.allclose(applied, reference):
        return "nothing wrong"
    cosine = applied @ reference / np.linalg.norm(applied) / np.linalg.norm(reference)
    if cosine > 1 - 1e-9:
        return "wrong normalisation"
    weights = np.linalg.lstsq(run.ranks[0].T, reference)[0]
    rest = np.linalg.norm(run.ranks[0].T @ weights - reference) / np.linalg.norm(reference)
    return "uneven shards" if rest < 1e-9 else "local statistics"
    # END SOLUTION


check("04.5", diagnose)

# %% [markdown]
# <details><summary>How many samples did each rank have (after you have solved it)?</summary>
#
# The weights that least squares find are n_r / N: they name the shard sizes of a run in which nobody wrote them down. No
# such weights exist for local statistics: each rank's gradient is that of another function.
#
# </details>

# %% [markdown]
# ## Take away
#
# - The gradient of a mean is the mean of gradients: P workers are one large batch, to the last digit, for any optimizer.
# - Unless a layer looks across samples (batch normalisation: ghost batches, or pay for synchronised statistics), shards are
#   uneven (weigh by P n_r / N), the loss is not a mean over samples, or ranks share the seed of their noise.
# - Curves do not show which. Gradients do: direction, length, and whether some weights mend them.
# - Send gradients while others are computed; the bucket is a compromise between latency and a late start, and what counts
#   at the end is how little is left for the last one.
# - A barrier waits for the largest of P times. Its mean depends on the tail of the distribution; H_P - H_b for exponential
#   times. Backups cut the tail, and throw gradients away.
#
# **Next:** lab 05, where nobody waits, and gradients are late. **Sources:** arXiv 1802.09941 (the survey); arXiv 1502.03167
# (batch normalisation); arXiv 1705.08741 (ghost batches); arXiv 2006.15704 (DDP); arXiv 1604.00981 (backup workers).

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours: every claim, its rule written before anything ran.

# %%
show_table(lab.board()[["claim", "statement", "verdict", "evidence", "scale gap"]])

# %%
lab.record()
