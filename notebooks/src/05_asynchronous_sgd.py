# %% [markdown]
# # 05 · Asynchronous SGD: what does a late gradient cost?
#
# **Claim: if nobody waits, gradients come late, and with a delay of tau updates the largest rate that still works
# falls like 1/tau. Not waiting pays only where compute times vary; without variance it buys nothing.**
#
# Before it: lab 04 (synchronous SGD). Cost: the lab prints it below, where it was measured; quick fits one laptop
# core. No network. You need: stochastic gradient descent, and what a learning rate is.

# %% [markdown]
# ## You will be able to
#
# - **predict** the rate at which a delay makes training diverge, and make both sides of the prediction come true;
# - **read** staleness from a timeline, and say who waits under a bound on it;
# - **decide** between a barrier, backup workers, a bound and no barrier at all, by the variance of compute times;
# - **tell** what asynchrony shares with momentum, and what it does not.

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
import pandas as pd

import labkit
from labkit.progress import Progress
from labkit.teach import check, explore, hint, predict, solution, viz
from labkit.teach.exercises import say
from labs import async_figures, async_times, delayed, delayed_figures, delayed_study, hogwild, lab05
from labs.async_tables import counted
from labs.rules_asynchronous import edge
from labs.tables import show_table

lab = labkit.start("05", profile, seeds, overrides, record_to, interactive)
settings, recorded = lab.settings, lab.recorded()
digits = delayed.Digits.load(settings.train)

# %% [markdown]
# ## What the literature says
#
# P **workers** compute gradients of one model. Who keeps the parameters, and when may a worker go on? Ben-Nun and
# Hoefler's survey (section 7.1) orders the answers by **consistency**:
#
# | method | a worker goes on | systems |
# |---|---|---|
# | synchronous | when all have sent their gradient: a *barrier* | torch's DDP (lab 04) |
# | with backup workers | when all but the b slowest have | |
# | stale-synchronous (SSP), bound s | when it would be at most s gradients ahead of the slowest | Petuum |
# | asynchronous | at once | Downpour SGD |
# | lock-free, in shared memory | at once, and writes over others | HOGWILD! |
#
# Three titles are all that was seen of the rest: *staleness-aware* SGD divides the rate by the delay (**S28**);
# *asynchrony begets momentum* (**S29**); HOGWILD! is *lock-free* (**S32**). The survey is cited here for the taxonomy
# and no figure of it is shown. The formulas are derived and checked here (**S26**, **S29.quadratic**, **S33**).

# %% [markdown]
# ## Intuition
#
# **Who waits.** Four workers, number 0 five times slower; a bar is a gradient, a gap is waiting. Parameters are kept
# by a **parameter server**: workers push gradients to it and pull the newest parameters. Here messages are free. In the
# middle nobody may be more than 3 gradients ahead of the slowest. The titles count gradients that have been *applied*:
# a bar that the right border cuts is still being computed, and behind a barrier a finished one waits for the others.

# %%
fig, alt, data = async_figures.timeline()
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# Without a barrier nobody waits, and there are far more gradients in the same time. But each was computed on
# parameters that are no longer there. The **staleness** or **delay** tau of an update is the number of updates that
# took effect between the *reading* of the parameters and the *writing* of the gradient: with P workers, P - 1 on
# average, however fast or slow they are, as on average each of the others writes once in between.
#
# **What a delay does.** On a parabola of curvature lambda, with rate eta: w ← w - eta lambda w(t - tau). With tau = 0
# this converges up to eta lambda = 2. With a delay, you steer by an old picture of the road: you correct for where
# you were, too late, and too far. Choose a delay and a rate. Where is the edge?


# %%
explore(
    delayed_figures.trajectory,
    interactive,
    delay=(4, [0, 1, 2, 4, 8, 16, 32]),
    rate=(0.3, [0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 1.9, 2.1]),
    momentum=(0.0, [0.0, 0.3, 0.6, 0.9]),
)

# %% [markdown]
# The distance swings, at the edge with a period of 4 tau + 2 updates. The edge can be derived: a swing
# that neither grows nor shrinks is w(t) = cos(theta t), and putting it in gives theta = pi / (2 tau + 1) and
#
# **eta lambda < 2 sin( pi / (2 (2 tau + 1)) )**, which for long delays is about (pi/2) / (tau + 1/2).
#
# So twice the delay, half the rate. With momentum 0.9 the edge at tau = 1 is ten times lower already; it is found
# from the roots of a polynomial (`delayed.radius`).

# %% [markdown]
# ## Predict

# %%
late_ones = [delay for delay in sorted(settings.delays) if delay >= 2]
first, late = late_ones[0] if len(late_ones) > 1 else 0, late_ones[-1] if late_ones else 2
answer = None
falls = predict(
    "05.p1",
    f"A network, not a parabola: the largest rate that still trains, at delay {first} and at delay {late}. "
    "By what factor does it fall?",
    "times",
    answer,
    lab,
    low=0.0,
)

# %%
answer = None
most = max(settings.race_workers)
gain = predict(
    "05.p2",
    f"{most} workers, all exactly equally fast, messages free. To a target loss, each at its best rate, what is "
    "asynchronous SGD, against the best method with a barrier?",
    ["faster", "about as fast", "slower"],
    answer,
    lab,
)

# %% [markdown]
# ## Build it
#
# **The late update.** Gradient descent on w²/2, whose gradient at w is w. Start at 1. Update t (from 0) uses the
# distance of `delay` updates ago; as long as there is none so old, the first. Return all distances, the start among
# them.


# %%
def my_path(delay, rate, steps):
    w = [1.0]
    # STUB: return ...
    # BEGIN SOLUTION
    for t in range(steps):
        w.append(w[-1] - rate * w[max(t - delay, 0)])
    return w
    # END SOLUTION


check("05.b1", my_path)

# %% [markdown]
# **The edge by experiment.** `grows(rate)` runs the recursion for thousands of updates and says whether the swing is
# growing. Between `low`, where it does not, and `high`, where it does, find the border to 0.0001.


# %%
def my_edge(grows, low, high):
    # STUB: return ...
    # BEGIN SOLUTION
    for _ in range(25):
        middle = (low + high) / 2
        if grows(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2
    # END SOLUTION


check("05.b2", my_edge)

# %% [markdown]
# ## Run it
#
# ### The edge of the quadratic
#
# For every delay, without and with momentum, labkit's bisection (each trial is a run) against the theory (claims
# **S26** and **S26.momentum**).

# %%
found = {}
for momentum in (0.0, 0.9):
    edges = delayed.found_edges(settings.edge_delays, momentum, settings.edge_steps)
    found[momentum] = dict(zip(settings.edge_delays, edges.tolist(), strict=True))
    rows = [("edge", value, delay) for delay, value in found[momentum].items()]
    if momentum:
        rows += [
            ("edge_error", abs(value / delayed.edge_of(delay, momentum) - 1), delay)
            for delay, value in found[momentum].items()
        ]
    lab.evidence("edge", rows, momentum=momentum, steps=settings.edge_steps)
fig, alt, data = delayed_figures.edges(found)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# ### A network with a constant delay
#
# 784 pixels, 64 hidden units, 10 classes, batches of 32. P workers that take turns make a delay of exactly P - 1.
# Every delay has its **own grid of rates**: with a rate kept from no delay, one would measure only how wrong that
# rate is. Networks that differ in the rate train side by side, as one wide network.

# %%
cases = len(settings.momenta) * len(settings.delays) * len(lab.repeats(settings.seeds))
with Progress(cases, "constant delays") as progress:
    delayed_study.constant_delays(lab, settings, digits, progress)
    progress.close(f"constant delays: {counted(cases, 'case')}")
yours = list(lab.used.values())

# %% [markdown]
# ### Random delays
#
# Exponential compute times (a worker may finish at any moment, whatever it has spent so far) make the next writer
# uniformly random. On a parabola that gives, on average, *exactly* the path of SGD with momentum **1 - 1/P** and a
# rate that is P times smaller (claim **S29.quadratic**). Momentum and rate are fitted to the mean of thousands of
# paths.

# %%
rows = []
for workers in (2, 4, 8, 16):
    momentum, rate = delayed.implicit_momentum(workers, 0.1, seed=lab.seeds[0])
    errors = [("implicit_error", abs(momentum - (1 - 1 / workers))), ("rate_error", abs(rate * workers / 0.1 - 1))]
    lab.evidence("quadratic", errors, workers=workers)
    rows.append({"workers": workers, "momentum measured": momentum, "1 - 1/P": 1 - 1 / workers,
                 "rate measured": rate, "rate / P": 0.1 / workers})
show_table(rows)

# %% [markdown]
# *Where from?* The average of what the P workers have read follows the newest parameters, a P-th of the way at each
# update; the step is that average. A step that follows slowly is what momentum is. A *constant* delay is something
# else: it lowers the edge, while momentum m alone raises it, to 2 (1 + m), as the figure above shows at delay 0.
#
# In the network: each number of workers with several momenta, each with its own grid of rates (claim **S29**). As in
# the training with a constant delay, no clock is used: the simulator gives the *order* of updates, the gradients and
# losses are real.

# %%
cases = len(settings.workers) * len(lab.repeats(settings.seeds))
with Progress(cases, "random delays") as progress:
    delayed_study.random_delays(lab, settings, digits, progress)
    progress.close(f"random delays: {counted(cases, 'case')}")
yours = list(lab.used.values())

# %% [markdown]
# ### The race, in virtual time
#
# Gradients are real, seconds are not: the simulator says who writes when, and a network is trained along that order
# until its training loss is at the target. A gradient of 32 images takes 1 virtual second, messages none.
#
# | method | an update is | rates tried, octave by octave |
# |---|---|---|
# | synchronous | the mean of P gradients: the batch *grows* with P | from 1 down |
# | total batch fixed | 64 images, cut into P parts; a fifth of a gradient's time stays | from 1 down |
# | backup workers | the mean of all but the slowest (4 workers: 1, 16 workers: 2) | from 1 down |
# | stale-synchronous, several bounds | one gradient | from 4/P down, one more |
# | asynchronous | one gradient | from 4/P down, one more |
#
# Compute times: **constant** (the control), **log-normal** (sigma 0.5), or constant with **one worker five times
# slower**; profile smoke leaves log-normal out, and races 4 workers with one bound only. All methods may see equally
# many images, 32 x (120 P + 480); what has not reached the target by then has missed it.

# %%
tables = []
for seed in lab.repeats(settings.seeds):
    for workers in settings.race_workers:
        table = async_times.race(
            digits, workers, settings.race_times, async_times.methods(settings.race_bounds), settings.race_rates,
            settings.target, seed,
        )
        async_times.evidence(lab, settings, table, seed)
        tables.append(table.assign(seed=seed))
raced, known = pd.concat(tables), async_times.recorded(recorded)

# %% [markdown]
# ### Real processes
#
# A parameter server and real workers (`parallel.server`), each a process that talks to the server through a
# socket. One of them sleeps four times as long as the others. How stale are the gradients, and what does the
# simulator say of the same sleeps?

# %%
updates = settings.ranks * settings.rank_updates
late_by = async_times.staleness(settings.ranks, updates)
for kind, source in (("real", "measured"), ("simulated", "simulated")):
    values = late_by[late_by["source"] == kind]
    rows = [("staleness", row.staleness, row.worker) for row in values.itertuples()]
    lab.evidence(f"{kind} staleness", rows, source=source, ranks=settings.ranks, updates=updates)
fig, alt, data = async_figures.histogram(late_by)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# The slow worker's gradients are the stalest; the fast ones overtake it. The mean is near P - 1 for both. Real bars
# are wider spread than the simulator's, as real seconds vary a little, and here all processes may share one core.
#
# **Bound 0 is the barrier.** With s = 0 a stale-synchronous server has to give, bit for bit, the parameters of the
# synchronous one (claim **S31**); with any s nobody begins a gradient more than s ahead of the slowest, on real
# processes and in the simulator (claim **S31.gap**). A bound says something only where somebody comes up to it, and
# equal parameters only where they have moved: the claims ask for both.

# %%
off, moved = async_times.same_as_synchronous(settings.ranks)
lab.evidence("lockstep", [("ssp_zero_difference", off), ("moved", moved)], ranks=settings.ranks)
say(f"Largest difference between bound 0 and the synchronous server: {off:g}; a parameter moved by up to {moved:.2g}.")
rows, sleeps = [], async_times.one_slow(settings.ranks)
for bound in (1, 3):
    seen = async_times.real(settings.ranks, updates, sleeps, mode="ssp", bound=bound, until=max(48, updates // 4))
    ahead = {times: async_times.gaps(settings.ranks, bound, times) for times in async_times.TIMES}
    lab.evidence("real gap", [("gap", seen.gap)], bound=bound, ranks=settings.ranks)
    gaps = [("gap", value) for value in ahead.values()]
    lab.evidence("simulated gap", gaps, source="simulated", bound=bound, ranks=settings.ranks)
    rows.append({"bound": bound, "furthest ahead, real": seen.gap} | {f"simulated, {k}": v for k, v in ahead.items()})
show_table(rows)

# %% [markdown]
# **Without a lock.** HOGWILD! workers share memory and add to the parameters with no lock at all: load, add, store.
# If two do so at once, one of the two additions is lost. The whole race: 2 processes count a shared number up. Then
# logistic regression on samples with 256 (*dense*), 16 or 4 (*sparse*) non-zero values of 256 (the sample's
# **support**), with the writes of each weight counted (claim **S32**). Every step draws a new sample, so each weight is
# equally often in a support. Each process sleeps between load and store, so that a race of nanoseconds shows.

# %%
rows = []
for turn in range(settings.lost_repeats):
    expected, seen = hogwild.race(2, 200, 0.0001)
    done = {support: hogwild.lost(settings.ranks, support, pause=0.0002) for support in (256, 16, 4)}
    lost = [("dense_lost", done[256]["lost"]), ("sparse_lost", done[4]["lost"])]
    lab.evidence("lost", lost, ranks=settings.ranks, turn=turn, dense=256, sparse=4)
    rows.append({"counted up": seen, "of": expected})
    rows[-1] |= {f"lost, {support} of 256": f"{each['lost']:.1%}" for support, each in done.items()}
    rows[-1] |= {"loss before, dense": done[256]["before"], "after": done[256]["after"]}
show_table(rows)
limits = [f"{hogwild.most_lost(settings.ranks, support):.1%} of those of {support}" for support in (256, 16, 4)]
say(f"{settings.ranks} processes can on average lose at most {', '.join(limits)}.")

# %% [markdown]
# At each store of a weight, every other process holds at most one older copy of it, and only if the weight is in the
# support of its sample, which has the chance support / 256. So *on average* a share of at most
# (P - 1) x support / 256 is lost: one race may by chance lose a little more, and on dense samples, where this is more
# than all, it says nothing. A lost write costs less than it seems, as the one that took its place is a gradient too.
# Where supports hardly meet, almost none is lost: that is where working without a lock pays.
#
# **A full server.** Gradients come in through the server's port, and answers, the newest parameters, go out. With V
# bytes a message and W bytes a second *in each direction*, no more than W / V updates a second go through, whatever
# the number of workers. S **shards** (servers that keep a part of the parameters each) lift that limit S-fold (claim
# **S33**). Here a message takes 0.1 s each way, a gradient 1 s on average; all of it in virtual time.

# %%
tables = []
for shards in settings.shards:
    table = async_times.saturation(shards, settings.shard_workers, seed=lab.seeds[0])
    rows = [("share_of_limit", row.share_of_limit, row.workers) for row in table.itertuples()]
    lab.evidence("server", rows, source="simulated", shards=shards, workers=settings.shard_workers)
    tables.append(table)
fig, alt, data = async_figures.saturation(pd.concat(tables))
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# And long before it is full, gradients queue. If they arrive at random and each takes D seconds (an *M/D/1 queue*),
# they wait on average load x D / (2 (1 - load)) (claim **S33.queue**; 400 workers that write rarely):

# %%
rows = []
for load in (0.3, 0.6, 0.8):
    waited, formula = async_times.waiting(load, seed=lab.seeds[0])
    lab.evidence("queue", [("queue_error", abs(waited / formula - 1))], source="simulated", load=load)
    rows.append({"load": load, "seconds in the queue": waited, "formula": formula})
show_table(rows)

# %% [markdown]
# ## Compare
#
# ### The usable rate falls like 1/tau
#
# First all rates that were tried; of several seeds, the mean. A training that diverged counts as accuracy 0, so a mean
# can lie below the .1 of guessing. The dotted line is what we call **usable**: a validation accuracy of .88. The
# *largest usable rate* of several seeds is here, as below, the geometric mean of each seed's own; so it is not exactly
# where the mean crosses the line.

# %%
shown = recorded if delayed_study.delays(recorded, 0.0) else yours
fig, alt, data = delayed_figures.by_rate(shown, "recorded" if shown is recorded else "yours", settings.momenta)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# At each delay accuracy is flat up to a cliff, and falls within an octave or two. *A delay is fatal above its edge.*
# Left of its cliff a short delay trains as well as none. A long one does not quite get there: not as its gradients are
# late, but as its rates are small, and 1280 updates at a small rate do not go far enough. The longest delays hardly
# reach .88, or never do, and then they have no usable rate. Where are the cliffs? (Blue is recorded, five seeds; dotted
# grey is the edge of the quadratic with the same momentum, shifted to meet the shortest delay from 2 on.)

# %%
fig, alt, data = delayed_figures.usable(recorded, yours, settings.momenta)
viz.show(fig, alt=alt, data=data)
rates = delayed_study.usable_rates(yours, 0.0)
if {first, late} <= set(rates):
    step = 2 ** (1 / settings.per_octave)
    falls.compare(
        rates[first] / rates[late],
        f"The quadratic says {edge(first) / edge(late):.2f}. Rates were tried a factor of {step:.3g} apart, so this is "
        "known to about that factor either way: a prediction that is less far off is as good as right.",
    )

# %% [markdown]
# Without momentum it follows the quadratic from tau = 2 on (claim **S27**). At tau = 0 it is lower (at 1 hardly): there
# the noise of small batches sets the limit, not the curvature. With momentum 0.9 (**S27.momentum**) it is far lower at
# tau = 0, where the quadratic would bear a rate 38 times that of tau = 1. From tau = 4 on it lies a little below grey,
# by less than the factor between two rates that were tried, and at 16 clearly: there the smallest rates, as said,
# hardly reach .88 at all.
#
# ### Dividing the rate by the delay
#
# A rate tuned without delay, kept; and the same divided by tau, as staleness-aware SGD does (claim **S28**). Again a
# training that diverged counts as 0, where guessing would give .1:

# %%
fig, alt, data = delayed_figures.rescued(recorded, yours)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# (The rate is the largest of those that are among the best without delay. Dividing by a delay of 1 changes nothing.
# With a smaller rate, delay 4 does little harm yet: the board judges all of them, on both halves of the claim, *the
# kept rate fails* and *the divided one comes near the accuracy without delay*, and says on how many it holds.)
#
# So *"asynchronous SGD diverges"* and *"asynchronous SGD is as good"* can both be had from one experiment: retune the
# rate, or do not. The price of the smaller rate is time: more updates to the same loss.
#
# ### Asynchrony and momentum
#
# Training loss with momentum over that without, each at its own best rate; above 1, momentum hurts. Of several seeds,
# each is taken at the rate that is best on the *others*: a rate chosen by the number that it is judged by would
# flatter. Bars are 95 % intervals over seeds; one seed has none.

# %%
fig, alt, data = delayed_figures.momenta(recorded, yours)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# If asynchrony were momentum, momentum of one's own would pay less the more workers there are (**S29**). Read the
# trend, not the level: with batches of 32, noise and not curvature limits the rate, so momentum pays little even for
# one worker. And read the board: a trend in the means of five seeds that scatter as much as it rises is *not seen*, by
# our rule.
#
# ### Who wins the race?
#
# Virtual seconds to the same training loss. Of several seeds, each is again taken at the rate that is best on the
# others; a single seed (yours, at profile quick) at its own best rate.

# %%
for workers in settings.race_workers:
    fig, alt, data = async_figures.race(known, raced, workers)
    viz.show(fig, alt=alt, data=data)

# %%
best = async_times.best(raced)
best = best[(best["workers"] == most) & (best["times"] == "constant")].set_index("method")["seconds"]
barrier = best[best.index.isin(async_times.BARRIERS)]
if "async" in best and len(barrier):
    ratio = best["async"] / barrier.min()
    words = "faster" if ratio < 0.8 else "slower" if ratio > 1.25 else "about as fast"
    gain.compare(words, f"It took {ratio:.2f} times the seconds (within .8 to 1.25 is about as fast).")
else:
    say("No method with a barrier, or not the asynchronous one, reached the target with constant times: no comparison.")
results = async_figures.results(raced)
if len(results):
    show_table(results)
else:
    say(f"No method reached the target, a training loss of {settings.target:g}.")

# %% [markdown]
# - **"Asynchronous is faster" is wrong where times do not vary** (claim **S30**): nobody waits at the barrier, so
#   there is nothing to win, and late gradients want a smaller rate.
# - **With log-normal times it gains** (claim **S30.variance**): the barrier waits for the slowest of P.
# - **One slow worker** (claim **S30.straggler**) ruins the plain barrier. It ruins every bound as well: in the long run
#   SSP is as slow as the slowest. And look at the backup workers, which drop the straggler and keep the large rate.
# - **The bound** is a dial between the two: with varying times a larger one waits less. With constant times nobody is
#   ever ahead, and every bound gives the same order of updates as none.
# - **A fair opponent matters.** If the batch of the synchronous arm grows with P, it goes past the critical
#   batch (lab 10). With the total batch fixed, the barrier is a better opponent; here it pays a fifth of a second per
#   gradient as overhead, and nothing for messages.
# - *Rate at edge* says that the best rate was the lowest or highest tried: the true best may be better still. The
#   claims are not judged then.
#
# ## Where it breaks
#
# - **Scale.** One small network, 4096 images, one target, up to 16 workers.
# - **Virtual seconds.** Messages are free in the race, and what computing costs is drawn, not measured. Simulated
#   seconds say who waits for whom; they are no forecast of a cluster.
# - **A simulator's agreement with itself is no validation.** What ties it to reality here are the staleness and the
#   gaps of four processes on one machine.
# - **The target is a training loss.** Nothing here says that late gradients generalise as well; the test accuracies
#   above are those of 452 images.
# - **Constant rates.** A warm-up or a decay moves the edge along the run.
# - **The edge is that of the sharpest direction**, and curvature changes during training (lab 07).
#
# **When not to use it:** workers of equal speed on a fast network. Lab 04's barrier then costs little, is
# reproducible bit for bit, and needs no new rate.
#
# ### Your own model
#
# Any model and optimizer can push to the server: replace the optimizer by `server.ServerOptimizer` in the worker, and
# the rest of the loop stays. Start the server and the workers as processes of their own:
#
# ```python
# from parallel import server
# # process 0:
# sgd = lambda p: torch.optim.SGD(p, lr=0.1)
# report = server.serve(parameters, sgd, 3, "here.socket", mode="asynchronous", authkey=key)
# # processes 1, 2, 3:
# with server.Client("here.socket", worker, authkey=key) as client:
#     optimizer = server.ServerOptimizer(model.parameters(), client)
#     ...  # zero_grad, backward, step, as ever
# ```
#
# `report.updates` then holds the staleness of each gradient.

# %% [markdown]
# ## Exercises
#
# ### 05.1 (warm-up) Staleness by hand
#
# Three workers, A, B and C, read at the start. They write in the order **A B A C A B**, and each reads again right
# after its own writing. Give the staleness of the six writings, in order.

# %%
# STUB: by_hand = [..., ..., ..., ..., ..., ...]
# BEGIN SOLUTION
by_hand = [0, 1, 1, 3, 1, 3]
# END SOLUTION
check("05.1", by_hand)

# %% [markdown]
# ### 05.2 (core) Who waits?
#
# `pushed[i]` is how many gradients worker i has pushed so far. Under a bound s, may `worker` begin its next gradient?
# It may if that one's number, counted from 0, is at most s more than the number of gradients that the slowest has
# pushed.


# %%
def may_begin(pushed, worker, bound) -> bool:
    # STUB: return ...
    # BEGIN SOLUTION
    return pushed[worker] - min(pushed) <= bound
    # END SOLUTION


check("05.2", may_begin)

# %% [markdown]
# ### 05.3 (killer) Break it on purpose
#
# Choose a delay from 1 to 32 **that was not measured above**, and two rates: `inside`, an octave below the edge, and
# `outside`, an octave above it, so four times as large. The network is trained with both, without momentum. Both
# predictions have to come true: inside it *works*, which is here three quarters of the best accuracy without delay (a
# rate may work and not yet be usable), and outside it does not. What you know:

# %%
tried = {delay: delayed_study.accuracy(yours, 0.0, delay) for delay in settings.delays}
reference = lab05.reference(lab)
works = {
    delay: float(scores[scores >= lab05.SHARE * reference].index.max())
    for delay, scores in tried.items()
    if scores.max() >= lab05.SHARE * reference
}
show_table(
    [
        {"delay": delay, "largest rate that worked": rate, "quadratic's edge": float(edge(delay))}
        for delay, rate in works.items()
    ]
)

# %%
# STUB: my_delay, inside, outside = ..., ..., ...
# BEGIN SOLUTION
my_delay = min({*range(1, 33)} - {*settings.delays}, key=lambda delay: abs(delay - 6))
near = max(delay for delay in works if delay <= 8)  # the measured delay to scale from
border = works[near] * 2 ** (0.5 / settings.per_octave)  # between the rate that worked and the next one
border *= edge(my_delay) / edge(near)
inside, outside = border / 2, border * 2
# END SOLUTION
mine = {"delay": my_delay, "inside": inside, "outside": outside}
found_there = lab05.play(mine, lab)  # trains
if found_there is not None:  # else check says why
    lab.keep("05.3", mine | {"found": found_there})
    told = "Inside {inside:.3f}, outside {outside:.3f}; ".format(**found_there)
    say(f"{told}{lab05.SHARE * reference:.3f} is asked.")
check("05.3", mine | {"lab": lab})  # trains once more: no result is taken on trust

# %% [markdown]
# ## Take away
#
# - Staleness is P - 1 on average, whoever is fast or slow. The largest rate falls like one over it.
# - Retune the rate for every delay, or you measure only a bad rate; dividing by the delay is a good first guess.
# - Random delays act like momentum 1 - 1/P, constant ones do not.
# - Asynchrony saves waiting, so it pays where compute times vary, and not where they do not. Compare it with a good
#   barrier: backup workers, and a batch that does not grow without end.
# - A server has a port: bandwidth / message is the limit, shards lift it.
#
# **Next:** lab 06, where less is said. **Sources:** Ben-Nun and Hoefler, arXiv 1802.09941, section 7.

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours. Rules were written before their runs, with these exceptions. After a first
# trial, trainings with a constant delay got 1280 updates in place of 640, the race other grids of rates, and the
# processes of S32 a sleep between load and store; the margin of S33.queue was written after a first trial. After a
# second look most rules got sharper, and everything was run again, as it was once more after HOGWILD's processes began
# to draw new samples for each step: S27 judges the slopes of single seeds, S28 both
# halves of its statement, S29 and S30 choose a seed's rate on the other seeds, and each rule names the cases that have
# to be there. Seconds of the race, the server and the queue are virtual. Misses and contradictions stay on the board.

# %%
show_table(lab.board()[["claim", "statement", "literature", "verdict", "evidence", "scale gap"]])

# %%
lab.record()
