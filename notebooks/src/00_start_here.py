# %% [markdown]
# # 00 · Start here: is my machine ready, and what will each lab cost me?
#
# **Five numbers of your machine decide what parallel training costs on it. Guess them first, then measure them.**
#
# Welcome. This course measures parallel and large-batch deep learning on the machine you have, and sets every number
# beside the literature's. Needs: nothing but a laptop; no GPU, no network, no earlier lab. Run the cells from top to
# bottom (*Shift+Enter*); the Parameters section says how long that took where it was measured.

# %% [markdown]
# ## You will be able to
#
# - **measure** the five numbers behind every cost model of this course, without being fooled by your own clock;
# - **say** from two of them when arithmetic limits a training step and when memory does;
# - **choose** a route through the labs, knowing what each one costs.

# %% [markdown]
# ## Set up
#
# This cell is the same in every lab. It finds the course, caps the threads *before* torch is loaded (why that matters
# is shown under "Where it breaks"), and says what it found.

# %% tags=["setup"]
# The set-up cell is generated.

# %% [markdown]
# ## Parameters
#
# Every lab has these five, and you may change them here:
#
# - `profile`: how large the lab runs. `smoke` is for tests, `quick` for a laptop, `full` for a GPU or patience. The
#   cells never differ between profiles, only the sizes do.
# - `seeds`: which repetitions, such as `"0,1,2"`. A *seed* fixes all random choices of one run.
# - `overrides`: change single sizes, such as `{"repeats": 9}`.
# - `record_to`: the folder of your *store*. Empty is the local one. Every finished run is kept there, and no run that
#   is finished is trained again; so stop whenever you like and go on later.
# - `interactive`: sliders where you can use them.

# %% tags=["parameters"]
profile: str = "quick"  # smoke, quick or full
seeds: str = "0"  # comma separated
overrides: dict = {}  # fields of the lab's profile
record_to: str = ""  # folder of runs; empty for the local one
interactive: bool = True  # False in batch runs

# %%
import os
import subprocess
import sys
import time
from statistics import median

import pandas as pd
import torch
from IPython.display import Markdown, display
from torch import nn

import labkit
from labkit import course, doctor, models
from labkit.teach import check, explore, hint, predict, solution, viz  # noqa: F401
from labs import course_map, machine_figures, readiness

lab = labkit.start("00", profile, seeds, overrides, record_to, interactive)

# %% [markdown]
# ### Is it ready?
#
# Eight things that go wrong on readers' machines, each with what to do about it.

# %%
found = readiness.checks()
display(
    Markdown(
        "\n".join(
            f"- {'ready' if good else '**to do**'} · {what}: {text}" for what, good, text in found
        )
    )
)
todo = [what for what, good, _ in found if not good]
print(f"Look at these first: {', '.join(todo)}." if todo else "Your machine is ready.")

# %% [markdown]
# ## What the literature says
#
# Three papers are behind the course. None of them is about your laptop; all of them are about quantities that your
# laptop has too.
#
# - **survey**: Ben-Nun & Hoefler, *Demystifying Parallel and Distributed Deep Learning*, 2019
#   ([arXiv 1802.09941](https://arxiv.org/abs/1802.09941)). It sorts the places where deep learning can run in parallel:
#   inside an operator, across a network, across many workers that train together. *The course* runs each kind, and
#   counts its operations, bytes and messages.
# - **legw**: You et al., *Large-batch training for LSTM and beyond*, 2019
#   ([arXiv 1901.08256](https://arxiv.org/abs/1901.08256)). A rule for larger batches: with a batch k times as large, take √k
#   times the learning rate and k times the warm-up epochs. *The course* trains along that rule and along its rivals,
#   and keeps score.
# - **dawnbench**: Coleman et al., *Analysis of DAWNBench*, 2019
#   ([arXiv 1806.01427](https://arxiv.org/abs/1806.01427)). Speed is judged by *time to accuracy*: training time until a given
#   accuracy on data that training does not use. *The course* measures it on your machine, and re-reads public logs.
#
# Each lab ends with a *board*: what a paper claims, the rule that would show it here (written before any run), and
# the verdict, misses included. This lab claims nothing, so it has no board; it measures what the others are paid in.

# %% [markdown]
# ## Intuition
#
# Training in parallel spends time in four places, and five numbers price them:
#
# 1. **Arithmetic.** The *matrix-multiply peak*, in GFLOP/s: 10⁹ floating-point operations (one multiplication or one
#    addition) a second. Nearly all the arithmetic of a network is matrix products.
# 2. **Memory.** The *memory bandwidth*, in GB/s: 10⁹ bytes a second to and from main memory.
# 3. **Messages.** A message of n bytes takes about **α + n/β** seconds. α, the *latency*, is the cost of sending
#    anything at all; β, the *bandwidth*, is how fast the bytes then flow. We measure both over the *loopback*: two
#    processes on this machine that talk through the network software, but never touch a network.
# 4. **Starting.** The milliseconds to *start a process*: what a new worker costs before it has done anything.
#
# The first two meet in one picture, the *roofline*. Divide an operation's FLOPs by the bytes it has to move: its
# *intensity*. With few FLOPs per byte, memory is the limit, however fast the arithmetic; with many, arithmetic is.
# They balance at peak / bandwidth FLOPs per byte. The figure is for an **imaginary machine**, not to spoil your
# guesses.

# %%
IMAGINARY = 1000.0  # GFLOP/s


def roofline(matrix_side, bandwidth):
    """Attainable speed over intensity: the slope is memory, the flat roof is arithmetic."""
    product = f"{matrix_side} x {matrix_side} matrix product"
    work = {"add two vectors": 1 / 12, "matrix x vector": 1 / 2, product: matrix_side / 6}
    rows = [
        {
            "operation": name,
            "FLOPs per byte": intensity,
            "GFLOP/s at most": min(IMAGINARY, bandwidth * intensity),
        }
        for name, intensity in work.items()
    ]
    return machine_figures.roofline(rows, IMAGINARY, bandwidth)


explore(
    roofline,
    interactive,
    matrix_side=(256, [4, 16, 64, 256, 1024]),
    bandwidth=(100, [25, 100, 400]),
)

# %% [markdown]
# A product of two n x n matrices does 2n³ FLOPs on 12n² bytes (three matrices, 4 bytes a number): n/6 FLOPs per byte,
# so a large product is limited by arithmetic and a small one by memory. That is also the first reason why a bigger
# batch is faster: a layer reads its weights once a batch, so a batch of B does about B/2 FLOPs per byte of weights.

# %% [markdown]
# ## Predict
#
# **Guess five numbers of the machine in front of you, before the doctor measures them.** Put a number in place of
# `None`. Nobody knows these by heart; think in powers of ten, and be wrong with pride. A guess may stay empty.
#
# How far off you are is your **handicap for the course**: the mean of |log₁₀(guess / measured)|. 0 is perfect, 0.3 is
# a factor of two, 1 is a factor of ten.

# %%
guess_matrix_multiply = None  # GFLOP/s: with large matrices, the thread cap as it is set
guess_memory = None  # GB/s: copying a large array, bytes read and bytes written both counted
guess_latency = None  # us (millionths of a second): between two processes, a message of 8 bytes
guess_loopback = None  # GB/s: between two processes, a message of 16 MiB
guess_process = None  # ms: starting a Python that does nothing, and waiting for its end

guesses = [
    predict(
        "00.p1",
        "How fast does this machine multiply large matrices?",
        "GFLOP/s",
        guess_matrix_multiply,
        lab,
    ),
    predict("00.p2", "How fast does it copy memory?", "GB/s", guess_memory, lab),
    predict(
        "00.p3",
        "How long is a tiny message under way between two processes?",
        "us",
        guess_latency,
        lab,
    ),
    predict("00.p4", "How fast do the bytes of a large message flow?", "GB/s", guess_loopback, lab),
    predict(
        "00.p5",
        "How long does it take to start a Python process and see it end?",
        "ms",
        guess_process,
        lab,
    ),
]

# %% [markdown]
# ## Build it
#
# How do you time a matrix product honestly? Three habits, used in the whole course:
#
# - **Warm up outside the clock.** The first call pays for memory, threads and code that later calls find ready.
# - **Time long enough.** Repeat a short operation until the clock's own cost does not matter.
# - **Take the median of several timings**, not the best (a lucky moment) and not the mean (one interruption ruins
#   it).


# %%
def my_peak(side, repeats):
    """GFLOP/s of a float32 matrix product: warm up, then the median over `repeats` timings."""
    left, right = torch.rand(side, side), torch.rand(side, side)
    calls = max(1, (1024 // side) ** 3)  # about equally much work in a timing, whatever the side
    for _ in range(2):
        left @ right  # the warm-up
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            left @ right
        seconds.append((time.perf_counter() - begin) / calls)
    return 2 * side**3 / median(seconds) / 1e9


mine = my_peak(lab.settings.gemm, lab.settings.repeats)
theirs = doctor.matrix_multiply(lab.settings.gemm, lab.settings.repeats)
factor = max(mine, theirs) / min(mine, theirs)
print(
    f"you {mine:.3g} GFLOP/s, labkit.doctor {theirs:.3g} GFLOP/s: "
    + (
        f"a factor of {factor:.2f} apart, within the 3 that we allow"
        if factor <= 3
        else f"a factor of {factor:.1f} apart, more than 3: something else is running here; "
        "try again"
    )
)

# %% [markdown]
# This is the processor. On a GPU an operation returns *before* it is done, so a clock that does not wait for the
# device (`torch.cuda.synchronize()`) measures how fast you can ask, not how fast it answers.

# %% [markdown]
# ## Run it
#
# The doctor measures all five, each as the median of several timings. The same from a terminal: `labkit doctor`. All
# five are the processor's, also where there is a GPU.

# %%
sizes = {
    "gemm": lab.settings.gemm,
    "copy_mib": lab.settings.copy_mib,
    "repeats": lab.settings.repeats,
}
measured = doctor.measure(**sizes)
metrics = [name.replace(" ", "_").replace("-", "_") for name, _, _ in measured]
units = {metric: unit for metric, (_, _, unit) in zip(metrics, measured, strict=True)}
values = [value for _, value, _ in measured]
lab.evidence("doctor", zip(metrics, values, strict=True), units=units, **sizes)
peak, memory, latency, loopback, start_up = values
for guess, value in zip(guesses, values, strict=True):
    guess.compare(value)

# %% [markdown]
# ### A prediction from the first number
#
# If arithmetic were everything, a training step would take its FLOPs divided by the peak. Take the *deep MLP* of lab
# 07: 784 inputs, 8 hidden layers of 64 units, 10 classes. Going forward, a layer with a x b weights does 2ab FLOPs
# per sample; going backward twice that, once for the gradient of the weights and once for that of its input (which
# the first layer does not need). Is the estimate right?


# %%
def step_flops(widths, batch):
    """FLOPs of one training step of a plain network: only the matrix products count."""
    products = [a * b for a, b in zip(widths, widths[1:])]
    return 2 * batch * (3 * sum(products) - products[0])


def step_seconds(model, batch, inputs=784, repeats=5):
    """Measured seconds of one step: forward, loss, backward, update."""
    x, y = torch.rand(batch, inputs), torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return doctor.median_seconds(step, repeats)


torch.manual_seed(lab.seeds[0])
widths, batches = [784] + [64] * 8 + [10], [16, 64, 256, 1024, 4096]
model = models.build("deep-mlp", width=64, depth=8)
seconds = [step_seconds(model, batch) for batch in batches]
rows = zip(["step_seconds"] * len(batches), seconds, batches)
lab.evidence("step", rows, model="deep-mlp", widths=widths)
steps = pd.DataFrame(
    {
        "batch": batches,
        "estimated ms": [1e-6 * step_flops(widths, batch) / peak for batch in batches],
        "measured ms": [1e3 * value for value in seconds],
    }
)
steps["times the estimate"] = steps["measured ms"] / steps["estimated ms"]

fig, alt, data = machine_figures.steps(steps)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# What the estimate leaves out is everything but the products: each of the many small operations in a step has a price
# of its own, whatever the batch, and the layers between the products only move memory. At a small batch that is most
# of the step; at a large one many samples share it. **A peak is a bound, not a forecast**, and cores x gigahertz is
# not even that. Lab 01 takes the gap apart; lab 10 asks when a larger batch stops paying in another currency,
# training steps.

# %% [markdown]
# ## Compare
#
# Your guesses and the measurements; if results of the doctor came with the course, those as well (in blue: another
# machine, not a better answer).

# %%
recorded = [
    [run.last(metric) for metric in metrics]
    for run in lab.recorded()
    if run.config.get("evidence") == "doctor"
]
fig, alt, data = machine_figures.guesses(measured, guesses, recorded)
viz.show(fig, alt=alt, data=data)

errors = data["log10 error"].dropna()
if len(errors):
    handicap = float(errors.mean())
    lab.keep("handicap", round(handicap, 2))
    print(
        f"Your handicap for the course: {handicap:.2f} over {len(errors)} of 5 guesses, "
        f"a typical factor of {10**handicap:.1f}. It is in your record."
    )
else:
    print(
        "No guesses, no handicap. To get one: fill in the Predict cell, run it, then run these "
        "cells again."
    )

# %% [markdown]
# ### What your numbers mean
#
# These five lines follow from your measurements by one division each. The first is the roofline's: below that many
# FLOPs per byte your processor waits for its memory, above it the memory waits for the processor.

# %%
meaning = [
    ("arithmetic and memory balance at", peak / memory, "FLOPs per byte"),
    (
        "so a layer that reads its weights once is limited by arithmetic from a batch of",
        2 * peak / memory,
        "",
    ),
    ("one byte to or from memory costs", 1 / memory, "ns"),
    ("a message spends as long starting as flowing at (α β)", latency * loopback, "kB"),
    ("while one process starts, arithmetic at its peak would do", peak * start_up / 1e3, "GFLOP"),
]
lines = [f"- {text} **{f'{value:.3g} {unit}'.strip()}**" for text, value, unit in meaning]
display(Markdown("\n".join(lines)))

# %% [markdown]
# ### What each lab will cost you, and three ways through
#
# An arrow leads from a lab to those that need it; lab 16, the scoreboard, looks back on all of them and comes last.
# **Dashed labs are planned and not written yet.** The routes, each in the order to take it:
#
# - **an evening**: measure time properly (11), find when more workers stop helping (10), then ask whether a large batch
#   can be trained by rule (07);
# - **a week**: the same, then workers that wait (04) or do not
#   (05), public logs (12), and the scoreboard. Lab 04 leans on lab 03, which this route leaves out: exercise 00.2
#   below holds the idea that it needs;
# - **a semester**: all labs, about one a week.

# %%
entries, costs = course.course(), course.costs()
plan = course_map.table(entries, costs, profile, gflops=peak)
fig, alt, data = course_map.draw(entries, plan)
viz.show(fig, alt=alt, data=data)
display(course_map.summary(entries, plan).set_index("route"))
known = plan[plan["seconds"].notna()]
if known.empty:
    print(f"No lab has been measured at profile {profile} yet.")
else:
    machines = ", ".join(sorted(set(known["cpu"])))
    print(f"Seconds at profile {profile} measured on {machines}: that machine's time, not yours.")
if known["scaled"].any():
    print(
        "Where it says 'about', scaled to yours by the two matrix-multiply peaks: a rough guide "
        "for small models."
    )

# %% [markdown]
# ## Where it breaks
#
# A measurement holds for the moment and the settings it was made in. Three things spoil it on an ordinary machine:
#
# - **Noisy neighbours.** Another program, or another tenant of a cloud host, takes the core away in the middle of
#   your timing. You may have no way to see who.
# - **Threads that wait by spinning.** OpenMP, the library through which torch uses several cores, hands every
#   operation to a team of threads, and the operation is done when the *last* of them is. A thread that waits may
#   sleep (`OMP_WAIT_POLICY=PASSIVE`) or spin: burn its core until work comes (`ACTIVE`). Where cores are shared,
#   spinning threads take them from the very thread they wait for. The policy and the thread cap are read once,
#   when torch is loaded; set later, they do nothing.
# - **A machine that slows down.** A laptop lowers its clock when hot or on battery. Measure plugged in; measure
#   twice, a minute apart, and trust neither number further than they agree.
#
# Below, a small matrix product is timed again and again: as it is set; beside one busy process per core (at most 8);
# and in a fresh Python that uses all cores with spinning threads.

# %%
SIDE, TIMES, cpus = 256, 15, os.cpu_count() or 1
# Gone after 20 s in any case:
BUSY = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"

noise = {"as it is set": [doctor.matrix_multiply(SIDE, 1) for _ in range(TIMES)]}
crowd = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(min(cpus, 8))]
try:
    time.sleep(0.3)  # let them start
    noise["with neighbours"] = [doctor.matrix_multiply(SIDE, 1) for _ in range(TIMES)]
finally:
    for process in crowd:
        process.kill()
        process.wait()
timing = f"doctor.matrix_multiply({SIDE}, 1)"
code = f"from labkit import doctor; print(*[{timing} for _ in range({TIMES})])"
spinning = os.environ | {"OMP_NUM_THREADS": str(cpus), "OMP_WAIT_POLICY": "ACTIVE"}
printed = subprocess.check_output(
    [sys.executable, "-c", code], cwd=root, env=spinning, text=True, timeout=120
)
noise[f"{cpus} threads, spinning"] = [float(number) for number in printed.split()]

fig, alt, data = machine_figures.noise(noise, SIDE, cpus)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# What you see depends on how many cores were free just now: on an idle machine neighbours cost nothing until every
# core is taken, and spinning threads may even win. So a time in this course never stands alone: it comes with its
# hardware, its thread cap and a spread, and no test in it depends on a clock.
#
# **The scale gap.** Two processes on one machine are not two machines: between computers, latency and bandwidth are
# those of a network, and a cluster's are far from a laptop's in either direction. The *formulas* carry over; the
# constants have to be measured where you train. A GPU has its own roofline, which these numbers do not tell.
#
# **On your own model.** Put the widths of your own plain network here. The second number is a floor: no batch of it
# can be faster than this on this processor.

# %%
my_widths, my_batch = [784, 512, 512, 10], 64
flops = step_flops(my_widths, my_batch)
floor = 1e-6 * flops / peak
print(f"one step: {flops / 1e9:.3g} GFLOP, at least {floor:.3g} ms at your measured peak")

# %% [markdown]
# ## Exercises
#
# Every exercise works like this: write your answer, run the cell, and it is checked at once. Stuck? `hint("00.1")`,
# then `hint("00.1", 2)`, then `solution("00.1")`. An empty answer breaks nothing, and nothing further down needs your
# answer.

# %% [markdown]
# **00.1 (warm-up).** Some give memory speed as nanoseconds per byte, others as GB/s. Convert the first to the second.


# %%
def gb_per_s(ns_per_byte):
    """GB/s (10^9 bytes a second) of a memory that needs `ns_per_byte` nanoseconds for each byte."""
    # BEGIN SOLUTION
    return 1 / ns_per_byte
    # END SOLUTION


check("00.1", gb_per_s)

# %% [markdown]
# **00.2 (core).** Workers that train together must add up their gradients and each get the sum: an *all-reduce*. In a
# *ring*, each of P workers (*ranks*) talks to its right neighbour only. The vector of n bytes is cut into P pieces.
# In each round every rank sends one piece on. After P − 1 rounds every sum is complete somewhere; after P − 1 more,
# every rank has all of them. One message costs α + (its bytes)/β, and the ranks send at the same time. How long does
# it take? Mind the units, and what happens with a single rank.


# %%
def allreduce_seconds(size, ranks, latency, bandwidth):
    """Seconds to all-reduce `size` bytes over a ring of `ranks`.

    `latency` is in us, `bandwidth` in GB/s.
    """
    # BEGIN SOLUTION
    rounds = 2 * (ranks - 1)
    alpha, beta = latency * 1e-6, bandwidth * 1e9
    return rounds * (alpha + size / ranks / beta)
    # END SOLUTION


check("00.2", allreduce_seconds)

# %% [markdown]
# With your numbers, what would four workers on this machine pay to add up the gradients of the deep MLP (80,010
# numbers of 4 bytes), and how does that compare with a step above? Try `allreduce_seconds(4 * 80010, 4, latency,
# loopback)`.
#
# **00.3 (open): make the doctor lie.** Find sizes for `doctor.measure(gemm=..., copy_mib=..., repeats=...)` at which
# one of its numbers comes out at least twice, or at most half, of what this notebook measured. Then say to yourself
# what it really measured. Benchmarks go wrong in just this way, and seldom on purpose.

# %%
# STUB: # lie = {"number": "memory bandwidth", "honest": measured, "fooled": doctor.measure(...)}
# STUB: lie = None
# BEGIN SOLUTION
# A 16 x 16 product takes less time than calling it: the "peak" is the cost of a call.
lie = {
    "number": "matrix-multiply peak",
    "honest": measured,
    "fooled": doctor.measure(gemm=16, copy_mib=1, repeats=3),
}
# END SOLUTION
check("00.3", lie)

# %% [markdown]
# ## Take away
#
# - Five measured numbers (peak, memory bandwidth, α, β, the start of a process) price every design in this course.
# - The peak is a bound: a small step is slower than its FLOPs say, and the roofline says which limit to look at
#   first.
# - A time without its hardware, thread cap and spread is an anecdote.
#
# Next: lab 11, how time to accuracy is measured, and how one fools oneself. Sources: the three papers above; the
# formulas here are derived in place.

# %% [markdown]
# ## Record
#
# Every lab ends with its record: what ran, on what, and your predictions. It travels inside the executed notebook and
# in your store; nothing is sent anywhere.

# %%
lab.record()
