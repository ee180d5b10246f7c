# %% [markdown]
# # 10 · Critical batch size: when do more workers stop helping?
#
# **Claim: up to a critical batch size a larger batch buys fewer steps at almost no cost in examples, and beyond it
# almost nothing. Where that knee lies can be measured by training, and foretold from the noise of the gradient.**
#
# Before it: lab 11 (targets and time to accuracy). Cost: the lab prints it below, where it was measured; quick fits
# one laptop core. No network. You need: stochastic gradient descent, and what a batch is.

# %% [markdown]
# ## You will be able to
#
# - **measure** steps and examples to a target against the batch size, with the rate tuned at each, and name the three
#   regimes;
# - **estimate** the gradient noise scale from two batch sizes, without bias, in a training run of your own;
# - **foretell** the batch size beyond which workers stop paying, and say how far such a forecast can be trusted;
# - **tell** "too few updates" from "large batches generalise badly".

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
import math
import numbers

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML, display

import labkit
from labkit import profiles
from labkit.experiment import Recipe
from labkit.optim.noise import GradientNoise, noise_scale, smooth_ratio
from labkit.teach import check, explore, hint, predict, solution, viz
from labkit.teach.exercises import say
from labs import critical, critical_control_figures, critical_figures, lab10, plan10

lab = labkit.start("10", profile, seeds, overrides, record_to, interactive)
settings, recorded = lab.settings, lab.recorded()
full = profiles.resolve("10", "full")  # what the recorded sweep ran
known = critical.study(recorded, full)
say(
    f"{len(recorded)} recorded runs are here to lay yours over."
    if recorded
    else "No recorded runs are here: the figures show yours alone."
)

# %% [markdown]
# ## What the literature says
#
# A training run takes *S* **steps** (updates) of batch *B*, so it reads *E* = *S B* **examples**. Data parallelism
# gives each of *P* workers a share of the batch: more workers, larger *B*. It saves time only if *S* falls.
#
# | who | what | what is known |
# |---|---|---|
# | Shallue et al. (arXiv 1811.03600), 168160 models on 35 workloads | steps to a target against batch, everything retuned at each batch | abstract: perfect scaling, then diminishing returns, then no more (**R12**); no evidence that larger batches hurt out-of-sample performance (**R13**) |
# | McCandlish et al. (arXiv 1812.06162) | the **gradient noise scale** B_noise = tr Σ / \|G\|² | its estimators are in public code (**R15**) |
# | Smith et al. (arXiv 1711.00489) | grow the batch instead of decaying the rate | abstract: as good, with fewer updates (**R21**); a batch that grows with the momentum, slightly worse (**R22**) |
# | Hoffer et al. (arXiv 1705.08741) | square root of the rate, ghost batch normalisation, *equal updates* | public notes: closes the gap (**R23**); the distance from the start grows like log t (**R24**) |
#
# Σ is the covariance of the gradient of *one* example, *G* the gradient of the loss over all of them. What else the
# literature says of the noise scale and of the best rate is only **remembered** here and shown without any figure of a
# paper (**R14**, **R16** to **R19**).

# %% [markdown]
# ## Intuition
#
# A mini-batch gradient is *G* plus noise of covariance Σ / B. In a small batch the noise outweighs *G*: doubling the
# batch halves the noise, and the steps can be twice as long. In a large batch the gradient is already exact enough:
# more examples only make it more exact. The border is where noise and signal are equal, tr Σ / B = |G|², so
# **B_noise = tr Σ / |G|²**.
#
# One formula holds both ends: **S = S_min (1 + B_crit / B)**. At B far below B_crit, S is S_min B_crit / B (*perfect
# scaling*: half the steps for twice the batch). Far above it, S is S_min, however many workers you add (*maximal data
# parallelism*). Between the two are the *diminishing returns*; at B = B_crit you need twice the least steps *and* twice
# the least examples. What does that mean for workers?

# %%
explore(
    critical_figures.workers,
    interactive,
    knee=(256, [16, 64, 256, 1024, 4096, 65536]),
    images=(8, [1, 4, 8, 32, 128]),
)

# %% [markdown]
# The dotted line is perfect: P workers, P times fewer steps. Past the thin line, twice the workers no longer buy nearly
# half the steps, while the examples, and with them the bill, go on growing. Choose a larger critical batch or fewer
# images per worker, and the line moves right. **How many workers pay is a property of the problem, not of the
# cluster.**

# %% [markdown]
# ## Predict
#
# The model is a small network (784 pixels, 128 hidden units, 10 classes), plain SGD without momentum at a constant
# rate, 4096 images of MNIST. The target is a *training* loss, read on 1024 of the training images. At each batch
# size the best of several rates counts.

# %%
small, large = settings.batches[0], settings.batches[-1]
answer = None
fewer = predict(
    "10.p1",
    f"Batch {large} is {large // small} times batch {small}. How many times fewer steps does it need?",
    "times",
    answer,
    lab,
    low=0.0,
)

# %%
answer = None
rate_growth = predict(
    "10.p2",
    f"And its best rate, beside that of batch {small}?",
    [
        "about the same",
        "less than the square root says",
        "about the square root",
        "about linear",
    ],
    answer,
    lab,
)

# %% [markdown]
# ## Build it
#
# **The estimators.** The mean of |gradient|² over random batches is not |G|²: it is |G|² + tr Σ / B. Two batch sizes
# give two equations. Write the unbiased estimates of tr Σ and of |G|².


# %%
def my_noise_scale(small_sq, big_sq, b_small, b_big):
    """(trace of Sigma, |G|^2) from |gradient|^2 at two batch sizes."""
    # STUB: return ...
    # BEGIN SOLUTION
    trace = (small_sq - big_sq) / (1 / b_small - 1 / b_big)
    square = (b_big * big_sq - b_small * small_sq) / (b_big - b_small)
    return trace, square
    # END SOLUTION


check("10.b1", my_noise_scale)

# %% [markdown]
# **The fit.** Steps S at batches B lie on S = S_min (1 + B_crit / B). Find both constants. (labkit fits log S, so that
# small batches with their thousands of steps do not outweigh the others; on exact points you need not.)


# %%
def my_fit(batches, steps):
    """(S_min in steps, B_crit in samples), from arrays."""
    # STUB: return ...
    # BEGIN SOLUTION
    slope, least = np.polyfit(1 / batches, steps, 1)
    return least, slope / least
    # END SOLUTION


check("10.b2", my_fit)

# %% [markdown]
# ## Run it
#
# **An identity first** (claim **R15**). On a quadratic whose noise we chose, the estimators must be right *on average*
# over 4000 pairs of batches, 16 and 64. A single pair is a poor estimate: the last column says how often its |G|² is
# negative.

# %%
rows = []
for trace, square in ((10.0, 1.0), (100.0, 1.0), (100.0, 0.1)):
    found = critical.estimates(trace, square, small=16, parts=4, draws=4000)
    off = [
        critical.errors_of_mean(values, truth)
        for values, truth in zip(found, (trace, square), strict=True)
    ]
    lab.evidence(
        "R15", [("noise_estimate_error", value) for value in off], trace=trace, square=square
    )
    rows.append(
        {
            "true noise scale": trace / square,
            "ratio of means": float(found[0].mean() / found[1].mean()),
            "mean of ratios": float(np.mean(found[0] / found[1])),
            "errors of the trace": off[0],
            "errors of |G|^2": off[1],
            "|G|^2 below 0": f"{np.mean(found[1] < 0):.0%}",
        }
    )


def show_table(rows) -> None:
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    with pd.option_context("display.max_colwidth", None):
        display(
            HTML(
                table.to_html(
                    index=False, border=0, justify="left", float_format="{:.3g}".format
                )
            )
        )


show_table(rows)

# %% [markdown]
# "Errors" are standard errors between the mean of the estimates and the truth; up to 3 count as unbiased. *The mean of
# ratios* can be anything, even negative: a denominator near 0 rules it. So smooth the two series apart, then divide.
#
# **The table.** Every batch at several rates; those of one batch train as one batched model. A run is evaluated about
# every thirtieth of the steps that it is expected to need, and the crossing of the target is interpolated between two
# evaluations (linear in the logarithm of the loss).

# %%
runs = lab.train_together(
    plan10.table(settings), lab.repeats(settings.seeds), label="steps to target"
)
yours = critical.study(runs, settings)
say(f"Yours: {yours.words()}.")

# %% [markdown]
# **The noise scale, in training.** One run at batch 64, split into four micro-batches of 16: a micro-batch is the
# small batch, the step the big one. `labkit.optim.noise.GradientNoise` is a Lightning callback that does this with the
# gradients that training computes anyway. (Under data parallelism it takes each rank's own gradient for the small one.)

# %%
watched = lab.train([plan10.noise_run(settings)], lab.repeats(settings.noise_seeds), "noise scale")
yours = critical.study([*runs, *watched], settings)

# %% [markdown]
# **The noise knob.** Generated images (small pictures of strokes, shifted and dimmed) with added noise of a chosen
# level: the same table at each level.

# %%
levels = {}
for level in settings.knob:
    made = lab.train_together(
        plan10.knob(settings, level), lab.repeats(settings.knob_seeds), f"noise {level:g}"
    )
    made += lab.train([plan10.noise_run(settings, level)], [lab.seeds[0]], "noise scale")
    levels[level] = critical.study(made, settings, level)
known_levels = {level: critical.study(recorded, full, level) for level in full.knob}

# %% [markdown]
# **Controls.** Growing the batch; momentum; equal updates with batch normalisation. Their two-layer network has 64
# units a layer.

# %%
control_seeds, ghost_seeds = lab.repeats(settings.control_seeds), lab.repeats(settings.ghost_seeds)
arms = {
    "growth": {
        name: lab.train([recipe], control_seeds, name)
        for name, recipe in plan10.growth(settings).items()
    },
    "momentum": {
        f"m = {recipe.options['momentum']:g}, batch {recipe.batch}": lab.train(
            [recipe], control_seeds, "momentum"
        )
        for recipe in plan10.momenta(settings)
    },
    "updates": {
        name: lab.train([recipe], ghost_seeds, name)
        for name, recipe in plan10.equal_updates(settings).items()
    },
}
past = critical.control_arms(recorded, full)

# %% [markdown]
# ## Compare
#
# ### Steps, examples, and the knee
#
# Blue is recorded (measured here, five seeds), orange is yours. Dotted grey: the two limits, perfect scaling and the
# floor S_min. The vertical line is the fitted critical batch, the shade its 95 % interval from resampling the seeds.

# %% tags=["figure:10_critical"]
fig, alt, data = critical_figures.steps(known, yours)
viz.show(fig, alt=alt, data=data)
if {small, large} <= set(yours.best):
    fewer.compare(yours.best[small][1] / yours.best[large][1], "Each at its best rate.")

# %% [markdown]
# Left, the three regimes (**R12**, **R16**): a slope of -1, a bend, a floor. Right, the price: well below
# the knee all batches read about the same number of examples, at the knee twice as many; above it examples grow with the
# batch, because the steps no longer fall. A larger batch is *always* at least as good per step here, and never better per example.
#
# ### The best rate
#
# Small marks are the rates that were tried, crosses those at which a seed missed the target.

# %%
fig, alt, data = critical_figures.rates(known, yours)
viz.show(fig, alt=alt, data=data)
if {small, large} <= set(yours.best):
    growth = math.log(yours.best[large][0] / yours.best[small][0]) / math.log(large / small)
    words = ["about the same", "less than the square root says", "about the square root", "about linear"]
    at = int(np.digitize(growth, [0.1, 0.4, 0.6]))
    rate_growth.compare(words[at], f"From end to end it grew as B^{growth:.2f}, an average of two regimes.")

# %% [markdown]
# **"Linear scaling is a law" and "take the square root" are both wrong here.** The best rate grows about linearly well
# below the knee, about as the square root around it, and then stays: there, the curvature of the loss bounds the step, and a better gradient cannot change that
# (**R14**, **R19**). A rule of lab 07 that goes through all regions has to fail in one of them.
#
# ### Does the noise scale foretell the knee?
#
# Thin: the noise scale along training, numerator and denominator smoothed apart. A triangle marks the target. Thick:
# the ratio of sums over all steps up to it, which weighs every step alike. Grey: within three times the critical batch.

# %%
fig, alt, data = critical_figures.noise_course(known, yours)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# From the start to the target the noise scale grows from tens to hundreds, as |G|² shrinks faster than tr Σ, but not
# step by step: our rule (**R18**) asks for a rank correlation of .7 in each run, over eighths of the path (whose ends are
# the board's numbers; the thin lines are smoothed otherwise). So *"the noise scale"* of a run is no
# single number, and the value at the end can be several times the one that matters. Averaged over the path, it comes
# near the critical batch (**R17**: within a factor of three). It is a forecast of the order of magnitude, from one
# run instead of a sweep.
#
# ### Turning the knob
#
# Noisier images make the gradients of two examples differ more: tr Σ grows against |G|². Then more workers should pay
# (**R20**).

# %%
fig, alt, data = critical_control_figures.knob(known_levels, levels)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# Harder data, larger critical batch: more workers pay where there is more noise to average away. A knee that was
# measured on easy digits says nothing about yours.
#
# ### Does a large batch generalise worse?
#
# *"Large batches find sharp minima"* is the usual reading of a lower test accuracy. Here every batch is read at the
# *same training loss*, at its own best rate (**R13**). Bars are two standard errors over seeds.

# %%
fig, alt, data = critical_control_figures.equal_loss(known, yours)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# If the points lie level within their bars, the large batch has learnt nothing worse; it has only spent more examples.
# (One seed has no bars: then a point or so of accuracy means nothing.)
#
# The other half of the folklore is *too few updates*. Batch normalisation, a small batch, a large one at the square root
# of the rate for equal epochs, and the same for equal *updates* (**R23**); the recorded ones and yours may differ in both. **Ghost** means: statistics of each 16 or so
# rows, as the small batch had them, not of the whole batch.

# %%
title = f"batch {settings.control_batch} against {settings.large_batch} (recorded: {full.large_batch})"
fig, alt, data = critical_control_figures.controls(past["updates"], arms["updates"], title)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# With equal epochs the large batch makes a fraction of the updates: read its training loss in the data below the figure
# before you blame its minima. Three seeds are few: the rule takes two standard errors for an interval, and by Student's
# t, which is wider for three, "closed to within a point" would not be shown here, while the gap itself would.
#
# ### Growing the batch instead of decaying the rate
#
# Noise in the weights goes roughly as rate / batch. So quartering the rate and quadrupling the batch should calm a run
# equally; the second makes fewer updates (**R21**). Twice, at half and at three quarters of the run:

# %%
title = "rate / 4 or batch x 4, twice"
fig, alt, data = critical_control_figures.controls(past["growth"], arms["growth"], title)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# Momentum m lets each gradient act for about 1 / (1 - m) steps. A batch that grows in that proportion keeps the noise,
# with fewer updates, and Smith et al. find it slightly worse (**R22**). The rate stays:

# %%
title = "batch proportional to 1 / (1 - m)"
fig, alt, data = critical_control_figures.controls(past["momentum"], arms["momentum"], title)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# ### How far do the weights go?
#
# Hoffer et al. compare the early phase of training with a random walk in a random landscape, whose distance from the
# start grows like log t: a straight line here (**R24**). If it is so, a large batch with few steps has not gone far.
# Look at the bend: over our few hundred steps a power of t fits better, and the board says *contradicted*. Theirs ran
# for many thousands of steps.

# %%
fig, alt, data = critical_control_figures.distance(known, yours)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# ## Where it breaks
#
# - **Scale.** One network with a single hidden layer, 4096 images, one target. Nothing here says where the knee of
#   *your* problem is; it says how to find it.
# - **The knee belongs to a target.** A lower loss lies later on the path, where the noise scale is larger.
# - **Tuning.** The grid of rates has steps of half an octave (recorded) or one octave (quick). A best rate at the edge of
#   those tried is named in the caption; the true one may lie outside. With the rate *not* retuned, the knee that you
#   measure is that of your rate.
# - **Optimizer.** Plain SGD without momentum. Momentum, Adam or better curvature move the floor, and with it the knee.
# - **The estimate of |G|²** is a small difference of large numbers when the noise scale is far above the big batch.
#   Take larger batches, or average longer.
# - **The interval** resamples seeds: it does not know that the formula is only a formula, nor the coarseness of the
#   grid.
# - **The rates tried** lie around what a trial with another seed suggested.
#
# **When not to use the noise scale:** with batch normalisation (the gradient of a batch is no mean over examples), or
# when you can afford the sweep.
#
# ### Your own model
#
# Put your network here. The callback needs two batch sizes: accumulate, or train on several ranks.


# %%
class MyModel(torch.nn.Module):
    """Images [n, 1, 28, 28] -> scores [n, 10]. Yours goes here."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 5, stride=2), torch.nn.ReLU(), torch.nn.Flatten()
        )
        self.classifier = torch.nn.Linear(8 * 12 * 12, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


torch.manual_seed(0)
my_noise = GradientNoise(every=2)
my_recipe = Recipe(
    train=settings.train,
    sizes={"own": MyModel.__name__},  # tells these runs apart from the lab's own
    batch=64,
    accumulate=4,  # 4 micro-batches of 16
    rate=0.05,
    epochs=2.0,
)
lab.train([my_recipe], [0], "yours", model=MyModel(), callbacks=[my_noise])
path = smooth_ratio(my_noise.traces, my_noise.squares)
say(
    f"Your model: noise scale {my_noise.noise_scale:.0f} over {my_recipe.steps} steps, "
    f"{path[-1]:.0f} at the end. Batches far above that should not pay up to there."
)

# %% [markdown]
# In your own Trainer: `pl.Trainer(accumulate_grad_batches=4, callbacks=[GradientNoise()])`, or
# `pl.Trainer(strategy="ddp", devices=4, callbacks=[GradientNoise()])`; then read `.noise_scale`.

# %% [markdown]
# ## Exercises
#
# ### 10.1 (warm-up) Three batches by hand
#
# S_min is 100 steps, B_crit 200 samples. Give the steps at batches 50 and 800, the examples at 800, how many times
# *faster* (fewer steps) 800 is than 50, and how many times *dearer* (more examples).

# %%
# STUB: by_hand = {"steps at 50": ..., "steps at 800": ..., "examples at 800": ..., "faster": ..., "dearer": ...}
# BEGIN SOLUTION
at_50, at_800 = (100 * (1 + 200 / batch) for batch in (50, 800))
by_hand = {
    "steps at 50": at_50,
    "steps at 800": at_800,
    "examples at 800": at_800 * 800,
    "faster": at_50 / at_800,
    "dearer": at_800 * 800 / (at_50 * 50),
}
# END SOLUTION
check("10.1", by_hand)

# %% [markdown]
# ### 10.2 (core) One number for a whole path
#
# You logged |gradient|² of the small and of the big batch at each step (two arrays). Return the noise scale of the
# whole path, every step weighing alike. `noise_scale(small_sq, big_sq, b_small, b_big)` takes arrays too.


# %%
def of_the_path(small_sq, big_sq, b_small, b_big) -> float:
    # STUB: return ...
    # BEGIN SOLUTION
    traces, squares = noise_scale(small_sq, big_sq, b_small, b_big)
    return traces.sum() / squares.sum()
    # END SOLUTION


check("10.2", of_the_path)

# %% [markdown]
# ### 10.3 (open) Turn the noise knob until 64 workers pay
#
# 64 workers with 2 images each are a batch of 128. They pay, we say, if that needs at most twice the least examples,
# that is, if the critical batch is 128 or more. Choose a **noise level** of the generated images (0 to 2, none that was
# measured above) at which they do, with no more noise than needed (a critical batch of at most 512), and **say the
# critical batch before you run**. Your forecast has to be right within a factor of two. What do you know? The levels above.

# %%
say(
    "Known: "
    + "; ".join(
        f"noise {level:g}, critical batch {found.knee:.0f}, noise scale {found.scale:.0f}"
        for level, found in levels.items()
    )
)
# STUB: my_level, my_knee = ..., ...
# BEGIN SOLUTION
fits = [(level, found.knee) for level, found in levels.items() if math.isfinite(found.knee)]
slope, start = np.polyfit(*np.log(fits).T, 1) if len(fits) > 1 else (1.0, math.log(400))
my_knee = 256.0  # the middle of 128 to 512
my_level = round(min(2.0, math.exp((math.log(my_knee) - start) / slope)), 2)
# END SOLUTION
measured = None
if isinstance(my_level, numbers.Real) and 0 <= my_level <= 2 and my_knee is not ...:
    my_level = float(my_level)
    mine = lab.train_together(
        plan10.knob(settings, my_level), lab.repeats(1), f"noise {my_level}"
    )
    measured = critical.study(mine, settings, my_level)
    lab.keep("10.3", {"noise": my_level, "foretold": my_knee, "measured": measured.knee})
check(
    "10.3", {"noise": my_level, "knee": my_knee, "known": list(levels), "measured": measured or ""}
)

# %% [markdown]
# ## Take away
#
# - Steps fall with the batch up to a critical size, then stop. Below it workers are nearly free; above it they are
#   nearly useless.
# - The best rate is linear in the batch well below the knee, constant well above it, and bends in between. A scaling rule is a guess about where you
#   are.
# - The noise scale tr Σ / |G|², averaged as a ratio of sums over the path, foretells the knee to a small factor, and the
#   forecast belongs to a target.
# - Before you say that large batches generalise badly, compare at equal training loss, and count the updates.
#
# **Next:** lab 07, where a rate is scaled without being retuned. **Sources:** arXiv 1811.03600; arXiv 1812.06162;
# arXiv 1711.00489; arXiv 1705.08741; EleutherAI/gpt-neox.

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours: every claim, its rule written before the sweep. Misses and contradictions
# stay on it.

# %%
show_table(lab.board()[["claim", "statement", "literature", "verdict", "evidence"]])

# %%
lab.record()
