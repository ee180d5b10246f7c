# %% [markdown]
# # 07 · Large batches: every scaling rule is a path through one table
#
# **In one sentence:** a rule that scales the learning rate with the batch picks one cell per batch size from a table
# of batch x peak rate x warm-up, so one table judges all rules at all base rates, and which rule wins can hang on the
# base rate that it starts from.
#
# **Cost:** about a minute or two at profile `quick` on one CPU core. **Before it:** lab 11 (what a clock measures) and lab
# 10 (up to which batch a larger one can pay at all). **You need:** stochastic gradient descent with momentum, and what an epoch is.

# %% [markdown]
# ## You will be able to
#
# - draw any scaling rule as a path through the (batch, rate, warm-up) table, and say where it leaves the good region;
# - write LEGW, and say what it keeps constant;
# - judge two rules over a *flat set* of base rates instead of one lucky rate;
# - tell "too few updates" from "large batches generalise badly".

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

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML, display

import labkit
from labkit import models, profiles
from labkit.experiment import Recipe
from labkit.optim import schedules
from labkit.rules.general import published
from labkit.teach import check, explore, hint, predict, solution, viz
from labkit.teach.exercises import say
from labs import curvature, noise, plan07, scaling, scaling_controls, scaling_figures, scaling_rules
from labs.factorial import LABELS, RULES

lab = labkit.start("07", profile, seeds, overrides, record_to, interactive)
settings, table = lab.settings, plan07.table(lab.settings)
recorded = lab.recorded()
full = profiles.resolve("07", "full")  # what the recorded sweep ran
say(
    f"{len(recorded)} recorded runs are here to lay yours over."
    if recorded
    else "No recorded runs are here: the figures show yours alone."
)

# %% [markdown]
# ## What the literature says
#
# Let *B0* be a batch size for which a recipe was tuned, *B* a larger one, and *k = B / B0*. The **peak rate** is the
# highest learning rate of a run; a **warm-up** raises the rate from 0 to that peak over the first steps. One optimizer
# step is called an **update** or an **iteration**.
#
# | who | rule | what is known |
# |---|---|---|
# | You et al., *Large-batch training for LSTM and beyond* (arXiv 1901.08256; the SC'19 text calls the method DATE) | **LEGW**: rate x sqrt(k) and warm-up *epochs* x k | abstract: batch up to 64 times as large on LSTM applications, no loss of accuracy, no tuning (claim **L06**); 5.3 times faster on average on the same hardware (**L12**); much better than linear scaling (**L04**) |
# | Goyal et al. (arXiv 1706.02677) | **linear**: rate x k, after a warm-up of 5 epochs | gradual warm-up adds a constant amount per iteration |
# | EECS-2018-138, the report behind LEGW | sqrt(k) keeps the covariance of the update | checked below (**L18**) |
# | Nado et al. (arXiv 2102.06356) | tune every competitor | well-tuned Nesterov momentum and Adam match or beat the layer-wise optimizers LARS and LAMB |
#
# The paper's full text was not at hand when this lab was written: what it shows of adaptive solvers, of 5-epoch
# warm-up and of curvature is **remembered**, and appears here without any figure of the paper (**L05**, **L13**,
# **L15**, **L16**, **L19**). These are published settings, which anyone can check:

# %%
resnet, mlperf = published("resnet50_legw.csv"), published("mlperf_rcp_resnet.csv")
fig, alt, data = scaling_rules.published_settings(resnet, mlperf)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# The last published row leaves its own rule: 14 warm-up epochs instead of 10. Even the authors' lab tuned a little
# (**L03**).
#
# ## Intuition
#
# An update is *rate x (gradient + noise)*, and the covariance of a mini-batch gradient is that of one sample divided
# by *B*. An epoch has *N / B* updates. So each rule keeps something constant, and no rule keeps everything:


# %%
def kept(rule: str, k: int) -> dict:
    """By which factor a rule changes four things, at a batch k times as large."""
    scaled = schedules.RULES[rule](schedules.Baseline(1, 1.0, 1.0), k)
    factors = {
        "peak rate": scaled.rate,
        "drift in an epoch: rate x updates": scaled.rate / k,
        "covariance of an update: rate^2 / B": scaled.rate**2 / k,
        "updates of warm-up": schedules.warmup_iterations(scaled, 1),
    }
    return {
        "rule": LABELS[rule],
        **{name: f"{f:g}" if f >= 1 else f"1/{1 / f:g}" for name, f in factors.items()},
    }


def show_table(rows) -> None:
    with pd.option_context("display.max_colwidth", None):
        display(
            HTML(
                pd.DataFrame(rows).to_html(
                    index=False, border=0, justify="left", float_format="{:.4g}".format
                )
            )
        )


show_table([kept(rule, 64) for rule in RULES if rule != "linear_with_warmup"])

# %% [markdown]
# Factors at k = 64, where an epoch has 1/64 of the updates. (Linear + 5 epochs is linear with a longer warm-up.)
# **Linear** scaling keeps the drift: as far per epoch as before, in fewer and longer steps. It must fail once a step
# is longer than the curvature allows. **Square root** keeps the covariance of an update, but goes only 1/8 as far per
# epoch. **LEGW** is the square root with a warm-up that keeps its number of *updates*: k times the epochs at 1/k of
# the updates per epoch. "Linear scaling is a law" is a common belief; it is a choice of what to keep.
#
# In the recorded sweep of this lab: 4096 training images of MNIST, 452 for validation and 452 for test, at batches of
# 16, 64, 256 and 1024. At 25 epochs that is 6400, 1600, 400 and **100** updates. Your own runs take some of these.

# %%
start, largest = max(settings.lstm_rates), table.batches[-1]
updates = round(settings.epochs * (settings.train // largest))
fig, alt, data = scaling_rules.rule_schedules(table, start, updates)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# ## Predict
#
# Commit before you run. First, the deep MLP (a plain network without normalisation): *which rule is most accurate at
# the largest batch, when the recipe of the smallest one is scaled and nothing is retuned?* Then the row-LSTM: *how
# many times faster is an epoch at the largest batch than at the smallest, on this machine?*

# %%
answer = None
best_rule = predict(
    "07.p1",
    f"Most accurate at batch {largest} on the deep MLP, scaled without retuning?",
    [*LABELS.values(), "it depends on the base rate"],
    answer,
    lab,
)

# %%
answer = None
speed_up = predict(
    "07.p2",
    f"Seconds of an epoch at batch {table.batches[0]}, divided by those at batch {largest} "
    "(row-LSTM)?",
    "times",
    answer,
    lab,
)

# %% [markdown]
# ## Build it
#
# LEGW is two lines. Write `my_legw`: from a baseline (batch size, peak rate, warm-up in epochs) to the peak rate and
# the warm-up epochs at another batch.


# %%
def my_legw(
    base_batch: int, base_rate: float, base_warmup_epochs: float, batch: int
) -> tuple[float, float]:
    """(peak rate, warm-up epochs) at `batch`."""
    # STUB: return ...
    # BEGIN SOLUTION
    k = batch / base_batch
    return base_rate * math.sqrt(k), base_warmup_epochs * k
    # END SOLUTION


check("07.b1", my_legw)

# %% [markdown]
# And the schedule: a straight line from 0 at update 0 to the peak at update `warmup_steps` (which may be a fraction,
# or 0: no warm-up), constant from there on.


# %%
def my_schedule(step: int, peak: float, warmup_steps: float) -> float:
    """The rate of update `step`, counted from 0."""
    # STUB: return ...
    # BEGIN SOLUTION
    if step >= warmup_steps:
        return peak
    return peak * step / warmup_steps
    # END SOLUTION


check("07.b2", my_schedule)

# %% [markdown]
# Both checks compare yours with `labkit.optim.schedules` (`legw`, `Schedule`) over many batches and steps. What makes
# the rule interesting is what stays the same:

# %%
rows, base = [], schedules.Baseline(table.batches[0], start, settings.warmup_epochs)
for batch in table.batches:
    scaled = schedules.legw(base, batch)
    rows.append(
        {
            "batch": batch,
            "peak rate": scaled.rate,
            "warm-up epochs": scaled.warmup_epochs,
            "warm-up updates": schedules.warmup_iterations(scaled, settings.train),
            "updates in the run": round(settings.epochs * (settings.train // batch)),
        }
    )
show_table(rows)

# %% [markdown]
# ## Run it
#
# **Two identities first.** *Curvature along the gradient*, g'Hg / |g|^2 (H is the Hessian, g the gradient), says how
# fast the slope changes in the direction of a step; its inverse is the longest sensible step. One double backward
# gives it exactly; a finite difference of gradients, in float64, must agree (**L17**). And the covariance of a
# mini-batch gradient must fall as 1/B (**L18**).

# %%
sample = Recipe(data=settings.data, train=settings.train, pool=settings.lstm_pool).load()
images = torch.tensor(sample.train_x[:256] / 255.0, dtype=torch.float32)
images = images.sub(sample.mean).div(sample.std)
classes = torch.tensor(sample.train_y[:256])
loss = torch.nn.functional.cross_entropy
small = {"row-lstm": {"projection": 16, "hidden": 16}, "deep-mlp": {"width": 32, "depth": 3}}
rows = []
for name, sizes in small.items():
    torch.manual_seed(0)
    model = models.build(name, image_shape=sample.shape, classes=sample.classes, **sizes)
    traces = {
        batch: noise.gradient_covariance_trace(model, images, classes, batch)
        for batch in (4, 16, 64, 256)
    }
    measured = [("gradient_covariance_trace", value, batch) for batch, value in traces.items()]
    lab.evidence("L18", measured, model=name)
    model, inputs, targets = model.double(), images[:32].double(), classes[:32]
    exact = float(curvature.curvature_along_gradient(model, loss, inputs, targets))
    difference = float(curvature.finite_difference_curvature(model, loss, inputs, targets))
    error = abs(exact - difference) / abs(difference)
    lab.evidence("L17", [("curvature_relative_error", error)], model=name)
    slope = float(np.polyfit(np.log(list(traces)), np.log(list(traces.values())), 1)[0])
    rows.append(
        {
            "model": name,
            "curvature": exact,
            "relative error": error,
            "slope of covariance against B": slope,
        }
    )
show_table(rows)

# %% [markdown]
# A slope near -1 is what the square root rests on: rate^2 / B stays the same. It says nothing of whether that is what
# one *should* keep.
#
# **The table.** The deep MLP trains on the cells that the five rules visit (arms of one batch size as one batched
# model), the row-LSTM, an LSTM that reads an image row by row, on those that this profile can afford.

# %%
mlp_runs = lab.train_together(
    plan07.mlp_table(settings), lab.repeats(settings.mlp_seeds), label="deep MLP"
)

# %%
lstm_runs = lab.train(plan07.lstm_table(settings), lab.repeats(settings.lstm_seeds), "row-LSTM")
lstm_runs += lab.train(plan07.adaptive(settings), label="adaptive solvers")
lstm_runs += lab.train(plan07.equal_steps(settings), label="equal updates")

# %% [markdown]
# **Seconds, with nothing else in them.** Two epochs of the row-LSTM at each batch; evaluation, data and set-up have
# spans of their own and are off this clock.

# %%
slice_of = {
    "data": settings.data,
    "train": settings.train,
    "rate": min(settings.lstm_rates),
    "epochs": 2.0,
    **plan07.lstm(settings),
}
timed = lab.train([Recipe(batch=batch, **slice_of) for batch in table.batches], label="timing")

# %% [markdown]
# **Curvature along the gradient**, probed during training on the same 256 images, at the same rate for every batch.

# %%
curved = lab.train(
    plan07.curvature(settings), lab.repeats(settings.curvature_seeds), label="curvature"
)

# %%
yours = {model: scaling.Map(lab.used.values(), settings, model) for model in scaling.MODELS}
known = {model: scaling.Map(recorded, full, model) for model in scaling.MODELS}
judged = {model: known[model] if known[model].runs else yours[model] for model in scaling.MODELS}
if recorded and (settings.train, settings.epochs) != (full.train, full.epochs):
    say(
        f"Yours ({settings.train} images, {settings.epochs:g} epochs) are not the recorded "
        f"experiment ({full.train} images, {full.epochs:g} epochs): compare shapes, not values."
    )
best_rule.compare(
    yours["deep-mlp"].winner(), "Over the base rates that are flat at the smallest batch."
)

# %% [markdown]
# ## Compare
#
# ### The map
#
# Each square is a cell: batch across, peak rate up, one panel per warm-up; the darker, the better. Blue is recorded,
# measured here over three seeds or fewer; orange is yours. Choose a model, a rule, a base rate and a metric: the path
# shows what scaling does, and the numbers along it are in the squares and in the line below.


# %%
def the_map(model: str, rule: str, base_rate: str, metric: str):
    chosen = [name for name, label in LABELS.items() if rule in (label, "all five")]
    by_name = {scaling.power(rate): rate for rate in judged[model].rates}
    rate = by_name.get(base_rate)  # None: the highest flat one
    return scaling_figures.heat_map(known[model], yours[model], chosen, rate, metric)


rates = sorted({rate for source in judged.values() for rate in source.rates})
explore(
    the_map,
    interactive,
    model=["row-lstm", "deep-mlp"],
    rule=["all five", *LABELS.values()],
    base_rate=["highest flat", *map(scaling.power, rates)],
    metric=list(scaling_figures.METRICS),
)

# %% [markdown]
# Read it column by column. Look for two things: how the best rate climbs from one batch to the next (by k, by sqrt(k),
# or less each time?), and the cliff above it, where training diverges. The rules differ in where they meet the cliff;
# a warm-up moves it, and costs updates below it. To see the deep MLP or the training loss, change the model or the
# metric: `"deep-mlp"`, `"training loss"`.
#
# ### Scaled without retuning: who wins depends on the base rate
#
# At the smallest batch several base rates are equally good, within one standard error of the best on the *validation*
# images: the **flat set** (shaded). Tuning there cannot tell them apart. Scaling can:

# %% tags=["figure:07_rules"]
fig, alt, data = scaling_figures.base_rates(known, yours)
viz.show(fig, alt=alt, data=data)

# %%
for model in scaling.MODELS:
    for theirs in ("linear", "linear_with_warmup", "square_root"):
        rows = judged[model].verdicts(theirs=theirs)
        winners = rows["winner"][rows["flat"]] if len(rows) else rows
        if len(winners):
            won, lost = sum(winners == "LEGW"), sum(winners == LABELS[theirs])
            say(
                f"**{model}, LEGW against {LABELS[theirs]}**: of {len(winners)} flat base rates it "
                f"is ahead by two standard errors on {won}, behind on {lost}, and a tie on "
                f"{len(winners) - won - lost}."
            )
    diverged = []
    for rule in RULES:
        cells = [judged[model].table.path(rule, rate)[-1] for rate in judged[model].flat()]
        ends = [value for cell in cells for value in judged[model].values(cell)]
        diverged.append(f"{LABELS[rule]} {sum(value < 0.2 for value in ends)} of {len(ends)}")
    say(f"**{model}**, runs that ended below .2 at batch {largest}: {', '.join(diverged)}.")

# %% [markdown]
# A tie means "not told apart", not "equal". Where one seed of three diverges, the standard error is so wide that no
# rule can win: look at the counts of diverged runs. One that the warm-up saves is evidence for it, too little for a verdict.
#
# These are claims **L04**, **L05** and **L19**. A comparison from one tuned base rate, however well tuned, is one
# column of this figure. That is why the board prints the fraction of the flat set on which a claim holds.
#
# ### Accuracy, training loss and updates
#
# *"Large batches find sharp minima and generalise worse"* is the usual reading of a lower accuracy at a large batch.
# Look at the training loss beside it, and at the number of updates. (Colours and shapes as in the figure above.)

# %%
model = "row-lstm" if known["row-lstm"].runs else "deep-mlp"
fig, alt, data = scaling_figures.ladder(known[model], yours[model])
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# If the accuracy of a large batch is low *and its training loss is high*, the network has not been trained enough: it
# is short of updates, which is not a failure to generalise. Two arms separate the two: **equal training loss** (read
# every run at the moment when its loss first falls to what the best run of the largest batch ends with) and **equal
# updates** (train the larger batch for as many updates as the smallest takes, at square-root rates).

# %%
fig, alt, data = scaling_controls.equal_footing(known, yours)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# One standard error of one accuracy here is about one point, so read gaps of less than two or three points as nothing.
# Equal updates were recorded for batches 64 and 256 (1024 would take too long on one core): given as many updates as
# the smallest batch, they lose nothing. What looked like a failure to generalise was a shortage of updates.
#
# ### Retuned at each batch, and the adaptive solvers
#
# A different question, never to be mixed with the one above: *if you may tune at every batch*, what is the best? The
# paper is remembered to place adaptive solvers behind LEGW (**L13**, no figure); Nado et al. say: tune them. Adam's
# rates here go from 2^-10 to 2^-4.

# %%
fig, alt, data = scaling_controls.retuned(known["row-lstm"], yours["row-lstm"])
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# ### Seconds at equal epochs
#
# A larger batch does the same arithmetic in fewer, wider steps, so an epoch gets faster until the machine is full.
# This is claim **L12**; the abstract's average is in grey. An epoch is not a target: what the speed-up is worth *with
# the accuracy kept* is **L12.kept**.

# %%
own = {run.config["batch"]: run.seconds("train") / 2.0 for run in timed}
past = {batch: known["row-lstm"].seconds(batch) for batch in known["row-lstm"].table.batches}
fig, alt, data = scaling_rules.speed(past, own)
viz.show(fig, alt=alt, data=data)
speed_up.compare(own[min(own)] / own[max(own)], "Seconds of training only.")

# %% [markdown]
# ### Curvature: the peak moves in epochs, and stays in updates
#
# The paper is remembered to justify a warm-up that grows with the batch by this picture: curvature along the gradient
# starts small, peaks early, and the peak comes later (in epochs) for a larger batch (**L15**, **L16.epochs**). Below,
# the signed value, a running median of five probes, one seed as a line (recorded in blue, yours dotted in orange: on the
# machine of the recorded runs the two coincide) and the peak of each seed as a triangle;
# negative means that the slope flattens along the gradient. The
# same runs against updates are **L16.steps**: a peak that stays at the same update is what a warm-up of constant
# *updates*, LEGW's, is made for.

# %%
past_curves = [
    run for run in recorded if run.series("curvature") and run.config["model"] == "row-lstm"
]
fig, alt, data = scaling_controls.curvature(past_curves, curved)
viz.show(fig, alt=alt, data=data)

# %% [markdown]
# Compare the peak's update with LEGW's warm-up of 40 updates: in the recorded runs the curvature has hardly begun to
# rise by then, so at this scale the warm-up ends *before* the peak and does not cover it. The invariant is seen, the
# argument from it is not. (And one of the two recorded peaks at batch 1024 lies at the very end of its run: it may
# have been rising still.)
#
# ## Where it breaks
#
# - **Scale.** 4096 images and 100 updates at the largest batch, against 60000 images in the paper's MNIST application.
#   With 100 updates a warm-up of 40 is dear: at this scale a verdict on warm-up is a verdict about short runs.
# - **The models.** The row-LSTM reads 14 rows of 14 pixels with 64 units; the deep MLP is ours, chosen because it is
#   touchy. Networks with normalisation move the cliff.
# - **Three seeds, 452 test images.** One standard error is about one point. The board asks for two.
# - **Linear + 5 epochs** ramps up from 0 here; Goyal et al. start the ramp at the baseline's own rate.
# - **Seconds** are of this machine. Where small batches leave more of the machine idle (a GPU), expect more.
#
# ### Your own model
#
# Put your network and its recipe here: a batch for which it works, its rate, its warm-up. The cell scales it 16 times
# by LEGW and linearly, and trains all three. Two or three base rates tell you more than one.


# %%
class MyModel(torch.nn.Module):
    """Images [n, 1, 28, 28] -> scores [n, 10]. Yours goes here."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 5, stride=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 16, 5, stride=2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
        )
        self.classifier = torch.nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


# Your batch, peak rate and warm-up:
my_base = schedules.Baseline(batch=32, rate=0.02, warmup_epochs=0.1)
my_epochs = min(5.0, settings.epochs)
my_scaled = {
    "baseline": my_base,
    "LEGW x 16": schedules.legw(my_base, 16 * my_base.batch),
    "linear x 16": schedules.linear(my_base, 16 * my_base.batch),
}
rows = []
for name, scaled in my_scaled.items():
    recipe = Recipe(
        data=settings.data,
        train=settings.train,
        sizes={"own": MyModel.__name__},  # tells these runs apart from the lab's own
        batch=scaled.batch,
        rate=scaled.rate,
        epochs=my_epochs,
        warmup_steps=schedules.warmup_iterations(scaled, settings.train),
    )
    torch.manual_seed(0)
    run = lab.train([recipe], [0], label=name, fresh=True, model=MyModel())[0]
    rows.append(
        {
            "arm": name,
            "batch": scaled.batch,
            "peak rate": scaled.rate,
            "warm-up updates": recipe.warmup_steps,
            "updates": recipe.steps,
            "test accuracy": run.last("test_accuracy"),
            "training loss": run.last("train_loss"),
            "seconds": run.seconds("train"),
        }
    )
show_table(rows)

# %% [markdown]
# Inside your own training loop: `labkit.optim.schedules.legw(base, batch)` gives the rate and the warm-up,
# `to_torch(optimizer, Schedule(...))` the scheduler, stepped once per optimizer step;
# `labkit.tasks.ImageClassification(model, "sgd", schedule)` is the same as a Lightning module.
#
# **When not to use any rule:** when you can afford to tune at the large batch. A rule is what you use when you cannot.

# %% [markdown]
# ## Exercises
#
# ### 07.1 (warm-up) Scale a recipe
#
# A recipe is tuned at batch 16: peak rate 2^-5, warm-up 10/64 of an epoch, 4096 images. What are LEGW's peak rate,
# warm-up epochs and warm-up *updates* at batch 1024?

# %%
# STUB: scaled_recipe = {"rate": ..., "warmup_epochs": ..., "warmup_updates": ...}
# BEGIN SOLUTION
k = 1024 / 16
scaled_recipe = {
    "rate": 2**-5 * math.sqrt(k),
    "warmup_epochs": 10 / 64 * k,
    "warmup_updates": 10 / 64 * k * 4096 / 1024,
}
# END SOLUTION
check("07.1", scaled_recipe)

# %% [markdown]
# ### 07.2 (core) Write the judge
#
# Given three dictionaries by base rate, the validation accuracy at the smallest batch and the test accuracies of LEGW
# and of linear scaling at the largest, return the **fraction of the flat set on which LEGW wins**: a base rate is flat
# if its validation accuracy is at least the best one minus `error`; LEGW wins there if it is ahead by at least
# `bound`.


# %%
def fraction_won(validation: dict, legw: dict, linear: dict, error: float, bound: float) -> float:
    # STUB: return ...
    # BEGIN SOLUTION
    lowest = max(validation.values()) - error
    flat = [rate for rate, accuracy in validation.items() if accuracy >= lowest]
    return sum(legw[rate] - linear[rate] >= bound for rate in flat) / len(flat)
    # END SOLUTION


check("07.2", fraction_won)

# %% [markdown]
# ### 07.3 (open) Make linear win, then make LEGW win
#
# Same model, same data, same batch: move only the base rate, inside the flat set of the row-LSTM. Give a base rate
# from which **linear** scaling beats LEGW at the largest batch by two standard errors of the difference, and one from
# which **LEGW** beats linear scaling by as much. If no flat rate does it, the answer is `"none"`: that too is a result,
# and then see how many notches outside the flat set you would have to go. Which verdict would you have published?

# %%
wager = {"linear": ..., "legw": ..., "map": judged["row-lstm"]}
# STUB: base_rate_linear_wins = ...
# STUB: base_rate_legw_wins = ...
# BEGIN SOLUTION
duels = {rate: judged["row-lstm"].duel(rate) for rate in judged["row-lstm"].flat()}
won_by = {
    rule: [rate for rate, duel in duels.items() if duel is not None and duel.winner == rule]
    for rule in ("linear", "legw")
}
base_rate_linear_wins = won_by["linear"][0] if won_by["linear"] else "none"
base_rate_legw_wins = won_by["legw"][-1] if won_by["legw"] else "none"
# END SOLUTION
check("07.3", {**wager, "linear": base_rate_linear_wins, "legw": base_rate_legw_wins})

# %% [markdown]
# ## Take away
#
# - A scaling rule is a path through one table; judge it over every base rate that you could not have told apart, not
#   from one.
# - LEGW is the square root with a warm-up of constant *updates*. The curvature peak does stay in updates at equal
#   rate, but here it comes after the warm-up has ended.
# - Before you blame generalisation, look at the training loss and count the updates; keep *scaled without retuning*
#   apart from *retuned at each batch*.
#
# **Next:** your own model, in the cell above. Lab 08 takes up LARS and LAMB, lab 09
# language models and translation. **Sources:**
# arXiv 1901.08256; UCB/EECS-2018-138; arXiv 1706.02677; arXiv 2102.06356; NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch;
# mlcommons/logging.

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours: every claim, its rule written before the sweep. Misses and contradictions
# stay on it.

# %%
board = lab.board()
show_table(board[["claim", "statement", "literature", "verdict", "evidence", "flat set"]])

# %%
lab.record()
