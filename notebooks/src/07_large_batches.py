# %% [markdown]
# # 07 · Large batches: every scaling rule is a path through one table
#
# **In one sentence:** a rule that scales the learning rate with the batch picks one cell per batch size from a table of batch x peak rate x warm-up, so one table judges
# all rules at all base rates, and which rule wins can hang on the base rate that it starts from.
#
# **Cost:** about a minute at profile `quick` on one CPU core. **Before it:** lab 11 (what a clock measures). **You need:** stochastic gradient descent with momentum, and
# what an epoch is.

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
import dataclasses
import math

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML, display

import labkit
from labkit import plans, profiles
from labkit.experiment import Recipe
from labkit.optim import curvature, noise, schedules
from labkit.optim.factorial import LABELS, RULES
from labkit.rules.general import published
from labkit.teach import check, exercises, explore, hint, predict, scaling, solution, viz

lab = labkit.start("07", profile, seeds, overrides, record_to, interactive)
settings, table = lab.settings, plans.table(lab.settings)
recorded = lab.recorded()
full = profiles.resolve("07", "full")  # what the recorded sweep ran
exercises.say(f"{len(recorded)} recorded runs are here to lay yours over." if recorded else "No recorded runs are here: the figures show yours alone.")

# %% [markdown]
# ## What the literature says
#
# Let *B0* be a batch size for which a recipe was tuned, *B* a larger one, and *k = B / B0*. The **peak rate** is the highest learning rate of a run; a **warm-up** raises the
# rate from 0 to that peak over the first steps. One optimizer step is called an **update** or an **iteration**.
#
# | who | rule | what is known |
# |---|---|---|
# | You et al., *Large-batch training for LSTM and beyond* (arXiv 1901.08256; the SC'19 text calls the method DATE) | **LEGW**: rate x sqrt(k) and warm-up *epochs* x k | abstract: batch up to 64 times as large on LSTM applications, no loss of accuracy, no tuning (claim **L06**); 5.3 times faster on average on the same hardware (**L12**); much better than linear scaling (**L04**) |
# | Goyal et al. (arXiv 1706.02677) | **linear**: rate x k, after a warm-up of 5 epochs | gradual warm-up adds a constant amount per iteration |
# | EECS-2018-138, the report behind LEGW | sqrt(k) keeps the covariance of the update | checked below (**L18**) |
# | Nado et al. (arXiv 2102.06356) | tune every competitor | well-tuned standard optimizers match the special ones at large batch |
#
# The paper's full text was not at hand when this lab was written: what it shows of adaptive solvers, of 5-epoch warm-up and of curvature is **remembered**, and appears here
# without any figure of the paper (**L05**, **L13**, **L15**, **L16**, **L19**). These are published settings, which anyone can check:

# %%
resnet, mlperf = published("resnet50_legw.csv"), published("mlperf_rcp_resnet.csv")
fig, axes = viz.figure(2, 1, height=3.0)
for ax, column, label in zip(axes, ("rate", "warmup_epochs"), ("peak rate", "warm-up, epochs")):
    base = schedules.Baseline(512, float(resnet.rate[0]), float(resnet.warmup_epochs[0]))
    batches = [2**e for e in range(9, 17)]
    rule = [schedules.legw(base, batch) for batch in batches]
    ax.plot(batches, [getattr(point, column) for point in rule], color=scaling.STYLES["legw"][0], marker="", linestyle="-")
    ax.plot(resnet.batch, resnet[column], color=viz.LITERATURE, marker="o", linestyle="none")
    ax.plot(mlperf.batch, mlperf[column], color=viz.LITERATURE, marker="x", linestyle="none")
    viz.log2_axis(ax, [512, 2048, 8192, 32768], "batch size")
    ax.set_yscale("log", base=2)
    ax.set_ylabel(label)
    ax.set_yticks([2.0**e for e in (range(2, 7) if column == "rate" else range(-3, 6))], [f"{2.0**e:g}" for e in (range(2, 7) if column == "rate" else range(-3, 6))])
axes[0].text(700, 31, "line: LEGW from 512\no  authors' lab\nx  MLPerf, tuned by vendors", fontsize=8, color="#444444", va="center")
alt = (f"ResNet-50 settings: the authors' lab goes from rate {resnet.rate[0]:g} at 512 to {resnet.rate.iloc[-1]:g} at 32768, on the square root; its warm-up follows LEGW up to 16384 and is "
       f"{resnet.warmup_epochs.iloc[-1]:g} epochs instead of 10 at 32768 (L03). MLPerf's tuned warm-ups also grow with the batch; its rates flatten (L22).")
viz.show(fig, alt=alt, data=pd.concat([resnet.assign(table="ResNet-50, authors' lab"), mlperf.assign(table="MLPerf reference points")])[["table", "batch", "rate", "warmup_epochs", "source"]])

# %% [markdown]
# The last published row leaves its own rule: 14 warm-up epochs instead of 10. Even the authors' lab tuned a little (**L03**).
#
# ## Intuition
#
# An update is *rate x (gradient + noise)*, and the covariance of a mini-batch gradient is that of one sample divided by *B*. An epoch has *N / B* updates. So each rule keeps
# something constant, and no rule keeps everything:

# %%
def kept(rule: str, k: int) -> dict:
    """What a rule multiplies, at a batch k times as large, from a baseline with a short warm-up."""
    base = schedules.Baseline(1, 1.0, 1.0)
    scaled = schedules.RULES[rule](base, k)
    return {"rule": LABELS[rule], "rate": scaled.rate, "updates per epoch": 1 / k, "drift per epoch (rate x updates)": scaled.rate / k,
            "covariance of one update (rate^2 / B)": scaled.rate**2 / k, "warm-up updates": schedules.warmup_iterations(scaled, 1) if rule != "linear_with_warmup" else math.nan}


display(HTML(pd.DataFrame([kept(rule, 64) for rule in RULES]).to_html(index=False, border=0, float_format=lambda v: f"{v:.4g}", na_rep="5 epochs' worth")))

# %% [markdown]
# All numbers are factors at k = 64. **Linear** scaling keeps the drift: as far per epoch as before, in fewer and longer steps. It must fail once a step is longer than the
# curvature allows. **Square root** keeps the covariance of an update, but goes only 1/8 as far per epoch. **LEGW** is the square root with a warm-up that keeps its number of
# *updates*: k times the epochs at 1/k of the updates per epoch. "Linear scaling is a law" is a common belief; it is a choice of what to keep.
#
# In this lab: 4096 training images, 452 for validation and 452 for test, at batches of 16, 64, 256 and 1024. At 25 epochs that is 6400, 1600, 400 and **100** updates.

# %%
baseline = sorted(settings.lstm_rates)[-1]
fig, axes = viz.figure(2, 1, height=3.0)
largest, rows = table.batches[-1], []
steps = round(settings.epochs * (settings.train // largest))
levels = []
for rule in RULES:
    colour, marker = scaling.STYLES[rule]
    path = table.path(rule, baseline)
    axes[0].plot(table.batches, [cell.rate for cell in path], color=colour, marker=marker, linestyle="--" if rule in ("legw", "linear_with_warmup") else "-")
    shape = schedules.Schedule(peak=path[-1].rate, total_steps=steps, warmup_steps=path[-1].warmup_steps)
    axes[1].plot(range(steps), [shape(step) for step in range(steps)], color=colour, marker="", linestyle="--" if rule in ("legw", "linear_with_warmup") else "-")
    rows.append({"rule": LABELS[rule], "peak rate": path[-1].rate, "warm-up updates": path[-1].warmup_steps, "updates": steps})
for label, rule in (("fixed rate", "fixed"), ("square root, LEGW", "legw"), ("linear, linear + 5 epochs", "linear")):
    peak = table.path(rule, baseline)[-1].rate
    axes[0].annotate(label, (largest, peak), xytext=(-2, 6), textcoords="offset points", ha="right", fontsize=8, color=scaling.STYLES[rule][0])
viz.log2_axis(axes[0], table.batches, "batch size")
axes[0].set_yscale("log", base=2)
axes[0].set_ylim(baseline / 1.6, rows[2]["peak rate"] * 2.5)
axes[0].set_ylabel("peak rate")
axes[1].set_xlabel(f"update, of {steps} at batch {largest}")
axes[1].set_ylabel("rate")
alt = f"From base rate {scaling.power(baseline)}, at batch {largest}: " + "; ".join(f"{row['rule']} peaks at {row['peak rate']:.3g} after {row['warm-up updates']:g} of {steps} updates" for row in rows) + "."
viz.show(fig, alt=alt, data=rows)

# %% [markdown]
# ## Predict
#
# Commit before you run. First, the deep MLP (a plain network without normalisation): *which rule is most accurate at the largest batch, when the recipe of the smallest one is
# scaled and nothing is retuned?* Then the row-LSTM: *how many times faster is an epoch at the largest batch than at the smallest, on this machine?*

# %%
answer = None
best_rule = predict("07.p1", f"Most accurate at batch {largest} on the deep MLP, scaled without retuning?", [*LABELS.values(), "it depends on the base rate"], answer, lab)

# %%
answer = None
speed_up = predict("07.p2", f"Seconds of an epoch at batch {table.batches[0]}, divided by those at batch {largest} (row-LSTM)?", "times", answer, lab)

# %% [markdown]
# ## Build it
#
# LEGW is two lines. Write `my_legw`: from a baseline (batch size, peak rate, warm-up in epochs) to the peak rate and the warm-up epochs at another batch.

# %%
def my_legw(base_batch: int, base_rate: float, base_warmup_epochs: float, batch: int) -> tuple[float, float]:
    """(peak rate, warm-up epochs) at `batch`."""
    # STUB: return ...
    # BEGIN SOLUTION
    k = batch / base_batch
    return base_rate * math.sqrt(k), base_warmup_epochs * k
    # END SOLUTION


check("07.b1", my_legw)

# %% [markdown]
# And the schedule: a straight line from 0 at update 0 to the peak at update `warmup_steps` (which may be a fraction, or 0: no warm-up), constant from there on.

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
# Both checks compare yours with `labkit.optim.schedules` (`legw`, `Schedule`) over many batches and steps. What makes the rule interesting is what stays the same:

# %%
rows = []
for batch in table.batches:
    scaled = schedules.legw(schedules.Baseline(table.batches[0], baseline, settings.warmup_epochs), batch)
    rows.append({"batch": batch, "peak rate": scaled.rate, "warm-up epochs": scaled.warmup_epochs, "warm-up updates": schedules.warmup_iterations(scaled, settings.train), "updates in the run": round(settings.epochs * (settings.train // batch))})
display(HTML(pd.DataFrame(rows).to_html(index=False, border=0, float_format=lambda v: f"{v:.4g}")))

# %% [markdown]
# ## Run it
#
# **Two identities first.** *Curvature along the gradient*, g'Hg / |g|^2 (H is the Hessian, g the gradient), says how fast the slope changes in the direction of a step; its
# inverse is the longest sensible step. One double backward gives it exactly; a finite difference of gradients, in float64, must agree (**L17**). And the covariance of a
# mini-batch gradient must fall as 1/B (**L18**).

# %%
sample = Recipe(data=settings.data, train=settings.train, pool=settings.lstm_pool).load()
images = torch.tensor(sample.train_x[:256] / 255.0, dtype=torch.float32).sub(sample.mean).div(sample.std)
classes = torch.tensor(sample.train_y[:256])
small = {"row-lstm": {"projection": 16, "hidden": 16}, "deep-mlp": {"width": 32, "depth": 3}}
sizes = [batch for batch in (4, 16, 64, 256) if batch <= settings.train]
rows = []
for name, options in small.items():
    torch.manual_seed(0)
    model = labkit.models.build(name, image_shape=sample.shape, classes=sample.classes, **options)
    traces = [noise.gradient_covariance_trace(model, images, classes, batch, draws=64) for batch in sizes]
    lab.evidence("covariance of the gradient", [("gradient_covariance_trace", value, batch) for batch, value in zip(sizes, traces)], model=name, sizes=options)
    exact = model.double()
    inputs, targets = images[:32].double(), classes[:32]
    double = float(curvature.curvature_along_gradient(exact, torch.nn.functional.cross_entropy, inputs, targets))
    difference = float(curvature.finite_difference_curvature(exact, torch.nn.functional.cross_entropy, inputs, targets))
    error = abs(double - difference) / abs(difference)
    lab.evidence("curvature", [("curvature_relative_error", error, len(inputs))], model=name, sizes=options)
    rows.append({"model": name, "double backward": double, "finite difference": difference, "relative error": error, **{f"trace at {batch}": value for batch, value in zip(sizes, traces)},
                 "slope": float(np.polyfit(np.log(sizes), np.log(traces), 1)[0])})
display(HTML(pd.DataFrame(rows).to_html(index=False, border=0, float_format=lambda v: f"{v:.4g}")))

# %% [markdown]
# A slope near -1 is what the square root rests on: rate^2 / B stays the same. It says nothing of whether that is what one *should* keep.
#
# **The table.** The deep MLP trains on the cells that the five rules visit (arms of one batch size as one batched model), the row-LSTM, an LSTM that reads an image row by row,
# on those that this profile can afford.

# %%
mlp_runs = lab.train_together(plans.mlp_table(settings), lab.repeats(settings.mlp_seeds), label="deep MLP")

# %%
lstm_runs = lab.train(plans.lstm_table(settings), label="row-LSTM")
lstm_runs += lab.train(plans.adaptive(settings), label="adaptive solvers") + lab.train(plans.equal_steps(settings), label="equal updates")

# %% [markdown]
# **Seconds, with nothing else in them.** Two epochs of the row-LSTM at each batch; evaluation, data and set-up have spans of their own and are off this clock.

# %%
timed = lab.train([Recipe(data=settings.data, train=settings.train, batch=batch, rate=min(settings.lstm_rates), epochs=2.0, **plans.lstm(settings)) for batch in table.batches], label="timing")

# %% [markdown]
# **Curvature along the gradient**, probed during training on the same 256 images, at the same rate for every batch.

# %%
curved = lab.train(plans.curvature(settings), lab.repeats(settings.curvature_seeds), label="curvature")

# %%
yours = {model: scaling.Map(lab.used.values(), settings, model) for model in scaling.MODELS}
known = {model: scaling.Map(recorded, full, model) for model in scaling.MODELS}
judged = {model: known[model] if known[model].runs else yours[model] for model in scaling.MODELS}
if recorded and any(getattr(full, name) != getattr(settings, name) for name in ("train", "epochs", "mlp_width", "mlp_depth", "lstm_width", "lstm_pool")):
    exercises.say(f"Yours ({settings.train} images, {settings.epochs:g} epochs) are smaller than the recorded runs ({full.train} images, {full.epochs:g} epochs): compare shapes, not values.")
best_rule.compare(yours["deep-mlp"].winner(), "Over the base rates that are flat at the smallest batch.")

# %% [markdown]
# ## Compare
#
# ### The map
#
# Each square is a cell: batch across, peak rate up, one panel per warm-up. Numbers are recorded runs measured on this kit's data; orange is yours. Choose a rule, a base rate and
# a metric: the path shows what scaling does, the numbers along it are in the line below.

# %%
def the_map(model: str, rule: str, base_rate: str, metric: str):
    rates = {scaling.power(rate): rate for rate in judged[model].rates}
    chosen = RULES if rule == "all five" else [next(name for name, label in LABELS.items() if label == rule)]
    return scaling.heat_map(known[model], yours[model], chosen, rates.get(base_rate), metric)


base_rates = sorted({scaling.power(rate) for model in judged.values() for rate in model.rates}, key=lambda text: float(text[2:]))
explore(the_map, interactive, model=["deep-mlp", "row-lstm"], rule=["all five", *LABELS.values()], base_rate=["best flat", *base_rates], metric=list(scaling.METRICS))

# %%
explore(the_map, False, model=["row-lstm"], rule=["all five"], base_rate=["best flat"], metric=["test accuracy"])

# %% [markdown]
# Read it column by column. The good cells climb with the batch, roughly one step of rate for one of batch at first, then slower, and the top ends in a cliff where the rate is
# unstable. The rules differ in where they meet the cliff. The warm-up moves the cliff a little; it does not remove it.
#
# ### Scaled without retuning: who wins depends on the base rate
#
# At the smallest batch several base rates are equally good, within one standard error of the best on the *validation* images: the **flat set** (shaded). Tuning there cannot
# tell them apart. Scaling can:

# %%
fig, axes = viz.figure(2, 1, height=3.4, sharey=True)
for ax, model in zip(axes, scaling.MODELS):
    scaling.by_base_rate(ax, known[model], False)
    scaling.by_base_rate(ax, yours[model], True)
    ax.set_title(f"{model}, batch {judged[model].largest}")
    ax.set_ylim(0, 1)
axes[0].set_ylabel("test accuracy")
for ax in axes[:1]:
    for at, rule in enumerate(RULES):
        ax.plot([], [], color=scaling.STYLES[rule][0], marker=scaling.STYLES[rule][1], linestyle="-", label=LABELS[rule])
    ax.plot([], [], color=viz.YOURS, marker="o", fillstyle="none", linestyle="none", label="yours (by shape)")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
parts = [f"{model}: " + "; ".join(f"from {row['base rate']}{' (flat)' if row['flat'] else ''} LEGW {row['LEGW']:.3f}, linear {row['linear']:.3f}" for row in judged[model].verdicts().to_dict("records")) for model in judged]
viz.show(fig, alt=f"Test accuracy at the largest batch, LEGW against linear scaling. {'. '.join(parts)}.", data=pd.concat([judged[model].verdicts().assign(model=model) for model in judged]))

# %%
for model in scaling.MODELS:
    for theirs in ("linear", "linear_with_warmup", "square_root"):
        rows = judged[model].verdicts(theirs=theirs)
        flat_rows = rows[rows["flat"] == "yes"] if len(rows) else rows
        if len(flat_rows):
            won, lost = (flat_rows["winner"] == "LEGW").sum(), (flat_rows["winner"] == LABELS[theirs]).sum()
            exercises.say(f"**{model}, LEGW against {LABELS[theirs]}**: ahead by two standard errors on {won} of {len(flat_rows)} flat base rates, behind on {lost}, a tie on {len(flat_rows) - won - lost}.")

# %% [markdown]
# These are claims **L04**, **L05** and **L19**. A comparison from one tuned base rate, however well tuned, is one column of this figure. That is why the board prints the fraction
# of the flat set on which a claim holds.
#
# ### Accuracy, training loss and updates
#
# *"Large batches find sharp minima and generalise worse"* is the usual reading of a lower accuracy at a large batch. Look at the training loss beside it, and at the number of
# updates.

# %%
fig, axes = viz.figure(2, 1, height=3.4)
model = "row-lstm" if known["row-lstm"].runs else "deep-mlp"
start, rows = judged[model].flat()[-1], []
for source, own in ((known[model], False), (yours[model], True)):
    for rule in RULES if source.runs else ():
        colour, marker = scaling.STYLES[rule]
        path = [cell for cell in source.table.path(rule, start) if source.found(cell)]
        for ax, metric in zip(axes, ("test_accuracy", "train_loss")):
            values = [min(source.mean(cell, metric), 10.0) for cell in path]
            ax.plot([cell.batch for cell in path], values, color=viz.YOURS if own else colour, marker=marker, linestyle="none" if own else "-", fillstyle="none" if own else "full", label=None if own or ax is axes[1] else LABELS[rule])
        rows += [{"source": "yours" if own else "recorded", "rule": LABELS[rule], "batch": cell.batch, "updates": source.updates(cell.batch), "test accuracy": source.mean(cell), "training loss": source.mean(cell, "train_loss")} for cell in path]
axes[0].set_ylabel("test accuracy")
axes[0].set_ylim(0, 1)
axes[1].set_ylabel("training loss (10: diverged)")
axes[1].set_yscale("log")
for ax in axes:
    viz.log2_axis(ax, judged[model].table.batches, "batch size, and updates below it")
    ax.set_xticks(judged[model].table.batches, [f"{batch}\n{judged[model].updates(batch)}" for batch in judged[model].table.batches])
if known[model].runs:
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
at_top = [row for row in rows if row["batch"] == judged[model].largest and row["source"] == ("recorded" if known[model].runs else "yours")]
alt = f"{model} from base rate {scaling.power(start)}, at batch {judged[model].largest} ({judged[model].updates(judged[model].largest)} updates): " + "; ".join(f"{row['rule']} accuracy {row['test accuracy']:.3f}, loss {row['training loss']:.2g}" for row in at_top) + "."
viz.show(fig, alt=alt, data=rows)

# %% [markdown]
# If the accuracy of a large batch is low *and its training loss is high*, the network has not been trained enough: it is short of updates, which is not a failure to
# generalise. Two arms separate the two: **equal training loss** (read every run at the moment when its loss first falls to what the best run of the largest batch ends with) and
# **equal updates** (train the larger batch for as many updates as the smallest takes, at square-root rates).

# %%
fig, axes = viz.figure(2, 1, height=3.4, sharey=True)
rows = []
for ax, model in zip(axes, scaling.MODELS):
    for source, runs, own in ((known[model], recorded, False), (yours[model], list(lab.used.values()), True)):
        if source.retuned(source.largest) is None:
            continue
        goal = source.mean(source.retuned(source.largest), "train_loss")
        for batch in source.table.batches:
            cell = source.retuned(batch)
            if cell is None:
                continue
            at_loss = [scaling.accuracy_at_loss(run, goal * 1.001) for run in source.found(cell)]
            wanted = {**scaling.MODELS[model](source.settings), "optimizer": "sgd", "batch": batch, "curvature_every": 0, "train": source.settings.train}
            longer = [run.last("test_accuracy") for run in runs if all(run.config.get(key) == value for key, value in wanted.items()) and run.config["epochs"] > source.settings.epochs]
            rows.append({"model": model, "source": "yours" if own else "recorded", "batch": batch, "equal epochs, retuned": source.mean(cell), "equal loss": float(np.nanmean(at_loss)) if np.isfinite(at_loss).any() else math.nan,
                         "equal updates": float(np.mean(longer)) if longer else math.nan, "loss": goal})
        mine = [row for row in rows if row["model"] == model and row["source"] == ("yours" if own else "recorded")]
        for column, colour, marker in (("equal epochs, retuned", viz.RECORDED, "o"), ("equal loss", viz.SERIES[0], "s"), ("equal updates", viz.SERIES[1], "^")):
            points = [(row["batch"], row[column]) for row in mine if math.isfinite(row[column])]
            if points:
                ax.plot(*zip(*points), color=viz.YOURS if own else colour, marker=marker, linestyle="none" if own else "-", fillstyle="none" if own else "full")
    ax.set_title(model)
    viz.log2_axis(ax, judged[model].table.batches, "batch size")
axes[0].set_ylabel("test accuracy")
for column, colour, marker in (("equal epochs, retuned at each batch", viz.RECORDED, "o"), ("equal training loss", viz.SERIES[0], "s"), ("equal updates", viz.SERIES[1], "^"), ("yours (by shape)", viz.YOURS, "o")):
    axes[0].plot([], [], color=colour, marker=marker, linestyle="none" if column.startswith("yours") else "-", fillstyle="none" if column.startswith("yours") else "full", label=column)
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
shown = [f"{row['model']} {row['source']}, batch {row['batch']}: equal epochs {row['equal epochs, retuned']:.3f}, equal loss {row['equal loss']:.3f}, equal updates {row['equal updates']:.3f}".replace("nan", "not run") for row in rows]
viz.show(fig, alt="; ".join(shown) + ".", data=rows)

# %% [markdown]
# One standard error of one accuracy here is about one point, so read gaps of less than two or three points as nothing.
#
# ### Retuned at each batch, and the adaptive solvers
#
# A different question, never to be mixed with the one above: *if you may tune at every batch*, what is the best? The paper is remembered to place adaptive solvers behind LEGW
# (**L13**, no figure); Nado et al. say: tune them. Adam's rates here go from 2^-10 to 2^-4.

# %%
def solved(runs, configuration, solver: str, batch: int) -> dict:
    """{rate: (validation accuracy, test accuracy)} of an adaptive solver at a batch, means over seeds."""
    wanted = {**plans.lstm(configuration), "optimizer": solver, "batch": batch, "train": configuration.train, "epochs": configuration.epochs}
    found = [run for run in runs if all(run.config.get(key) == value for key, value in wanted.items())]
    return {rate: tuple(float(np.nanmean([run.last(f"{part}_accuracy") for run in found if run.config["rate"] == rate])) for part in ("validation", "test")) for rate in sorted({run.config["rate"] for run in found})}


rows = []
for source, runs, own in ((known["row-lstm"], recorded, False), (yours["row-lstm"], list(lab.used.values()), True)):
    for batch in source.table.batches:
        best = source.retuned(batch)
        if best is not None:
            rows.append({"source": "yours" if own else "recorded", "solver": "SGD", "batch": batch, "protocol": "retuned", "test accuracy": source.mean(best), "at": f"rate {scaling.power(best.rate)}, warm-up {best.warmup_steps:g}"})
        for rate in source.flat() if source.runs else ():
            if source.found(source.at("legw", rate, batch)):
                rows.append({"source": "yours" if own else "recorded", "solver": "LEGW", "batch": batch, "protocol": "scaled", "test accuracy": source.mean(source.at("legw", rate, batch)), "at": f"base {scaling.power(rate)}"})
        for solver in ("adam", "rmsprop", "adagrad", "adadelta"):
            numbers = solved(runs, source.settings, solver, batch)
            if numbers:
                rate = max(numbers, key=lambda rate: numbers[rate][0])
                rows.append({"source": "yours" if own else "recorded", "solver": solver, "batch": batch, "protocol": "retuned", "test accuracy": numbers[rate][1], "at": f"rate {scaling.power(rate)}"})
frame = pd.DataFrame(rows)
fig, ax = viz.figure(width=6.5, height=3.4)
looks = {"SGD": (viz.RECORDED, "o"), "adam": (viz.SERIES[2], "s"), "rmsprop": (viz.SERIES[1], "D"), "adagrad": (viz.SERIES[3], "v"), "adadelta": (viz.SERIES[4], "P"), "LEGW": (viz.SERIES[0], "^")}
for (source, solver), group in frame.groupby(["source", "solver"], sort=False):
    own, (colour, marker) = source == "yours", looks[solver]
    ax.plot(group["batch"], group["test accuracy"], color=viz.YOURS if own else colour, marker=marker, linestyle="none" if own or solver == "LEGW" else "-", fillstyle="none" if own else "full",
            label=None if own else "LEGW from each flat base rate (scaled)" if solver == "LEGW" else f"{solver}, retuned")
viz.log2_axis(ax, judged["row-lstm"].table.batches, "batch size")
ax.set_ylabel("test accuracy, row-LSTM")
if recorded:
    ax.legend(loc="lower left")
top = frame[frame["batch"] == judged["row-lstm"].largest]
viz.show(fig, alt=f"At batch {judged['row-lstm'].largest}: " + "; ".join(f"{row['solver']} {row['protocol']} {row['test accuracy']:.3f} ({row['at']}, {row['source']})" for row in top.to_dict("records")) + ".", data=frame)

# %% [markdown]
# ### Seconds at equal epochs
#
# A larger batch does the same arithmetic in fewer, wider steps, so an epoch gets faster until the machine is full. This is claim **L12**; the abstract's average is in grey. An
# epoch is not a target: what the speed-up is worth *with the accuracy kept* is **L12.kept**.

# %%
own = {run.config["batch"]: run.seconds("train") / 2.0 for run in timed}
past = {batch: float(np.median([run.seconds("train") / full.epochs for run in known["row-lstm"].runs if run.config["batch"] == batch and run.header.arms == 1])) for batch in known["row-lstm"].table.batches} if known["row-lstm"].runs else {}
fig, ax = viz.figure()
rows = []
for times, colour, label, offset in ((past, viz.RECORDED, "recorded", 8), (own, viz.YOURS, "yours", -10)):
    if times:
        factor = {batch: times[min(times)] / seconds for batch, seconds in times.items()}
        ax.plot(list(factor), list(factor.values()), color=colour, marker="o", linestyle="-")
        ax.annotate(label, (max(factor), factor[max(factor)]), xytext=(-4, offset), textcoords="offset points", color=colour, fontsize=8, ha="right")
        rows += [{"source": label, "batch": batch, "seconds per epoch": times[batch], "times faster": factor[batch]} for batch in times]
ax.axhline(5.3, color=viz.LITERATURE, linestyle="--")
ax.text(table.batches[0], 5.4, "5.3: average of four LSTM applications (abstract)", color=viz.LITERATURE, fontsize=8, va="bottom")
viz.log2_axis(ax, sorted({*own, *past}), "batch size")
ax.set_ylabel("times faster than the smallest batch")
ax.set_ylim(0, max(6.4, *(row["times faster"] * 1.1 for row in rows)))
viz.show(fig, alt="Row-LSTM, speed at equal epochs: " + "; ".join(f"{row['source']} {row['seconds per epoch']:.3g} s an epoch at batch {row['batch']} ({row['times faster']:.2f} times)" for row in rows) + ". The abstract reports 5.3 times on average.", data=rows)
speed_up.compare(own[min(own)] / own[max(own)], "Seconds of training only.")

# %% [markdown]
# ### Curvature: the peak moves in epochs, and stays in updates
#
# The paper is remembered to justify a warm-up that grows with the batch by this picture: curvature along the gradient starts small, peaks early, and the peak comes later (in
# epochs) for a larger batch (**L15**, **L16.epochs**). Below, the signed value, a running median of five probes; negative means that the slope flattens along the gradient. The
# same runs against updates are **L16.steps**: if the peak stays there, a warm-up of constant *updates*, LEGW's, covers it at every batch.

# %%
fig, axes = viz.figure(2, 1, height=3.4, sharey=True)
rows, tints = [], dict(zip((64, 256, 1024), (viz.SERIES[2], viz.SERIES[0], viz.SERIES[1])))
sources = [(run, False) for run in recorded if run.series("curvature") and run.config["model"] == "row-lstm"] + [(run, True) for run in curved]
for run, own in sources:
    probes, batch = run.series("curvature"), run.config["batch"]
    smooth = curvature.running_median([row.value for row in probes])
    top = int(np.argmax(smooth))
    colour = viz.YOURS if own else tints.get(batch, viz.RECORDED)
    for ax, axis in zip(axes, ("epoch", "step")):
        x = [getattr(row, axis) for row in probes]
        ax.plot(x, smooth, color=colour, marker="", linestyle="--" if own else "-", linewidth=1.0)
        ax.plot(x[top], smooth[top], color=colour, marker="v", markersize=6)
    rows.append({"source": "yours" if own else "recorded", "batch": batch, "seed": run.header.repeat, "start": smooth[0], "peak": smooth[top], "end": smooth[-1], "peak epoch": probes[top].epoch, "peak update": probes[top].step})
placed = set()
for row in rows:
    if (row["source"], row["batch"]) not in placed:
        placed.add((row["source"], row["batch"]))
        colour = viz.YOURS if row["source"] == "yours" else tints.get(row["batch"], viz.RECORDED)
        axes[0].annotate(f"B {row['batch']}", (row["peak epoch"], row["peak"]), xytext=(0, 5), textcoords="offset points", ha="center", color=colour, fontsize=8)
axes[0].set_xscale("symlog", base=2, linthresh=0.25)
axes[0].set_xlabel("epoch")
axes[1].set_xlabel("update")
axes[0].set_ylabel("curvature along the gradient")
peaks = {batch: np.mean([[row["peak epoch"], row["peak update"]] for row in rows if row["batch"] == batch], axis=0) for batch in sorted({row["batch"] for row in rows})}
viz.show(fig, alt="Row-LSTM at one rate, where the smoothed curvature peaks: " + "; ".join(f"batch {batch}: epoch {epoch:.2f}, update {step:.0f}" for batch, (epoch, step) in peaks.items()) + ". Triangles mark the peaks; dashed orange is yours.", data=rows)

# %% [markdown]
# ## Where it breaks
#
# - **Scale.** 4096 images and 100 updates at the largest batch, against 60000 images in the paper's MNIST application. With 100 updates a warm-up of 40 is dear: at this scale a
#   verdict on warm-up is a verdict about short runs.
# - **The models.** The row-LSTM reads 14 rows of 14 pixels with 64 units; the deep MLP is ours, chosen because it is touchy. Networks with normalisation move the cliff.
# - **Three seeds, 452 test images.** One standard error is about one point. The board asks for two.
# - **Seconds** are of this machine. On a GPU the small batch wastes more, and the speed-up is larger.
#
# ### Your own model
#
# Put your network and its recipe here: a batch for which it works, its rate, its warm-up. The cell scales it 16 times by LEGW and linearly, and trains all three. Two or three
# base rates tell you more than one.

# %%
class MyModel(torch.nn.Module):
    """Images [n, 1, 28, 28] -> scores [n, 10]. Yours goes here."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 5, stride=2), torch.nn.ReLU(), torch.nn.Flatten())
        self.classifier = torch.nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


my_base = schedules.Baseline(batch=32, rate=0.02, warmup_epochs=0.1)  # your batch, peak rate and warm-up
my_epochs = min(5.0, settings.epochs)
arms = {"baseline": my_base, "LEGW x 16": schedules.legw(my_base, 16 * my_base.batch), "linear x 16": schedules.linear(my_base, 16 * my_base.batch)}
rows = []
for name, scaled in arms.items():
    recipe = Recipe(data=settings.data, train=settings.train, sizes={"own": MyModel.__name__}, batch=scaled.batch, rate=scaled.rate, epochs=my_epochs, warmup_steps=schedules.warmup_iterations(scaled, settings.train))
    torch.manual_seed(0)
    run = lab.train([recipe], [0], label=name, fresh=True, model=MyModel())[0]
    rows.append({"arm": name, "batch": scaled.batch, "peak rate": scaled.rate, "warm-up updates": recipe.warmup_steps, "updates": recipe.steps, "test accuracy": run.last("test_accuracy"), "training loss": run.last("train_loss"), "seconds": run.seconds("train")})
display(HTML(pd.DataFrame(rows).to_html(index=False, border=0, float_format=lambda v: f"{v:.3g}")))

# %% [markdown]
# Inside your own training loop: `labkit.optim.schedules.legw(base, batch)` gives the rate and the warm-up, `to_torch(optimizer, Schedule(...))` the scheduler, stepped once per
# optimizer step; `labkit.tasks.ImageClassification(model, "sgd", schedule)` is the same as a Lightning module.
#
# **When not to use any rule:** when you can afford to tune at the large batch. A rule is what you use when you cannot.

# %% [markdown]
# ## Exercises
#
# ### 07.1 (warm-up) Scale a recipe
#
# A recipe is tuned at batch 16: peak rate 2^-5, warm-up 10/64 of an epoch, 4096 images. What are LEGW's peak rate, warm-up epochs and warm-up *updates* at batch 1024?

# %%
# STUB: scaled_recipe = {"rate": ..., "warmup_epochs": ..., "warmup_updates": ...}
# BEGIN SOLUTION
k = 1024 / 16
scaled_recipe = {"rate": 2**-5 * math.sqrt(k), "warmup_epochs": 10 / 64 * k, "warmup_updates": 10 / 64 * k * 4096 / 1024}
# END SOLUTION
check("07.1", scaled_recipe)

# %% [markdown]
# ### 07.2 (core) Write the judge
#
# Given three dictionaries by base rate, the validation accuracy at the smallest batch and the test accuracies of LEGW and of linear scaling at the largest, return the **fraction
# of the flat set on which LEGW wins**: a base rate is flat if its validation accuracy is at least the best one minus `error`; LEGW wins there if it is ahead by at least `bound`.

# %%
def fraction_won(validation: dict, legw: dict, linear: dict, error: float, bound: float) -> float:
    # STUB: return ...
    # BEGIN SOLUTION
    flat = [rate for rate, accuracy in validation.items() if accuracy >= max(validation.values()) - error]
    return sum(legw[rate] - linear[rate] >= bound for rate in flat) / len(flat)
    # END SOLUTION


check("07.2", fraction_won)

# %% [markdown]
# ### 07.3 (open) Make linear win, then make LEGW win
#
# Same model, same data, same batch: move only the base rate, inside the flat set of the row-LSTM. Give a base rate from which **linear** scaling beats LEGW at the largest batch by
# two standard errors of the difference, and one from which **LEGW** beats linear scaling by as much. If no flat rate does it, the answer is `"none"`, and that is a result too.
# The map above has all that you need. Then say which of your two verdicts you would have published.

# %%
wager = {"linear": ..., "legw": ..., "map": judged["row-lstm"]}
# STUB: base_rate_linear_wins = ...
# STUB: base_rate_legw_wins = ...
# BEGIN SOLUTION
duels = {rate: judged["row-lstm"].duel(rate) for rate in judged["row-lstm"].flat()}
won_by = {rule: [rate for rate, duel in duels.items() if duel is not None and duel.winner == rule] for rule in ("linear", "legw")}
base_rate_linear_wins = won_by["linear"][0] if won_by["linear"] else "none"
base_rate_legw_wins = won_by["legw"][-1] if won_by["legw"] else "none"
# END SOLUTION
check("07.3", {**wager, "linear": base_rate_linear_wins, "legw": base_rate_legw_wins})

# %% [markdown]
# ## Take away
#
# - A scaling rule is a path through one table; judge it over every base rate that you could not have told apart, not from one.
# - LEGW is the square root with a warm-up of constant *updates*; the curvature peak, which stays in updates at equal rate, is the argument for it.
# - Before you blame generalisation, look at the training loss and count the updates; keep *scaled without retuning* apart from *retuned at each batch*.
#
# **Next:** lab 08 (LARS and LAMB: a rate for each layer), lab 10 (when do more workers stop helping?). **Sources:** arXiv 1901.08256; UCB/EECS-2018-138; arXiv 1706.02677;
# arXiv 2102.06356; NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch; mlcommons/logging.

# %% [markdown]
# ## Record
#
# The board over recorded runs and yours: every claim, its rule written before the sweep. Misses and contradictions stay on it.

# %%
board = lab.board()
with pd.option_context("display.max_colwidth", None):
    display(HTML(board[["claim", "statement", "literature", "verdict", "evidence", "flat set"]].to_html(index=False, border=0, justify="left")))

# %%
lab.record()
