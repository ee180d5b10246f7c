"""The report card of repeated runs: the statistics that one number of seconds leaves out, each with what it says; and a
larger batch, whose speed-up in time to accuracy is split into faster epochs and more of them.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labkit.errors import RequestError
from labkit.experiment import Recipe
from labkit.runs import Run
from labkit.tta import statistics
from labs import times


def card(runs: Sequence[Run], coarsest: int, price: float) -> pd.DataFrame:
    """One row a statistic: what is asked, the number, what it says.

    Args:
        coarsest: evaluation interval, in optimizer steps, at which the share of "which evaluation passed" is read.
        price: dollars per hour of the machine.
    """
    target = runs[0].header.target["value"]
    seconds = times.seconds_to_target(runs, "dawnbench")
    reached = [t for t in seconds if math.isfinite(t)]
    return pd.DataFrame(
        [
            proof(runs, target),
            *luck(reached),
            which_evaluation(runs, coarsest),
            order(runs, target),
            money(runs, seconds, price),
        ],
        columns=["question", "number", "what it says"],
    )


def proof(runs: Sequence[Run], target: float) -> tuple:
    """The speed-run rule: is the mean of the last evaluations above the target, by a one-sided t-test?"""
    question = f"is the mean final accuracy at least {target:g}?"
    try:
        test = statistics.mean_meets_target([times.curve(run)[1][-1] for run in runs], target)
    except RequestError as error:
        return question, "cannot be tested", str(error)
    found = f"mean {test.mean:.4f}, sd {test.sd:.4f}, n = {test.n}, p = {test.p_value:.2g}"
    return (
        question,
        found,
        "proved (p < 0.01)" if test.passes else "not proved: under the speed-run rule there is no record",
    )


def luck(reached: Sequence[float]) -> list[tuple]:
    """How much the best run flatters: by normal theory; the runs' own gap beside it."""
    question = "how much does the best run flatter?"
    if len(reached) < 2:
        return [(question, "fewer than two runs reached", "nothing to choose from")]
    mean, sd, n = float(np.mean(reached)), float(np.std(reached, ddof=1)), len(reached)
    theory = statistics.best_of_n_bias(sd, n) / mean
    return [
        (
            question,
            f"{1 - min(reached) / mean:.0%} of the mean (n = {n})",
            f"normal theory expects {theory:.0%} from luck alone",
        )
    ]


def which_evaluation(runs: Sequence[Run], coarsest: int) -> tuple:
    """Share of the variance that is only which evaluation passed, at the coarsest reading."""
    seconds = times.seconds_to_target(runs, "dawnbench", every=coarsest)
    share = statistics.evaluation_share(seconds, times.steps_to_target(runs, every=coarsest))
    found = "no spread to share" if math.isnan(share) else f"{share:.0%} of the variance"
    return (
        f"read every {coarsest} steps: what varies?",
        found,
        "is only which evaluation passed; the rest is the runs and the clock",
    )


def order(runs: Sequence[Run], target: float) -> tuple:
    """Whether the order of the runs survives a target that is one point lower."""
    easier = round(target - 0.01, 4)
    fast, easy = times.steps_to_target(runs), times.steps_to_target(runs, easier)
    tau = statistics.rank_agreement(fast, easy)
    found = "all alike" if math.isnan(tau) else f"Kendall's tau {tau:.2f}"
    return f"do the runs finish in the same order at {easier:g}?", found, "1: the same order; 0: the order is luck"


def money(runs: Sequence[Run], seconds: Sequence[float], price: float) -> tuple:
    """Dollars of one success, failures paid for."""
    expected = statistics.expected_time(seconds, times.full_cost(runs, "dawnbench"))
    dollars = statistics.cost(expected, price)
    shown = "no success to pay for" if math.isinf(dollars) else f"${dollars:.2g} in {expected:.3g} s"
    return (
        f"what does a success cost at ${price:g} an hour?",
        shown,
        "failures included; at one price, time and cost rank alike",
    )


def larger(recipe: Recipe, factor: int) -> Recipe:
    """The recipe at `factor` times the batch: rate by the square root, equal epochs, evaluated after equally many
    samples.

    Raises:
        RequestError: the batch does not fit the training images or the evaluation interval.
    """
    batch = recipe.batch * factor
    if batch > recipe.train:
        raise RequestError(
            f"a batch of {batch} is more than the {recipe.train} training images; set a smaller `larger`"
        )
    return dataclasses.replace(
        recipe,
        batch=batch,
        rate=recipe.rate * math.sqrt(factor),
        warmup_steps=round(recipe.warmup_steps / factor),
        evaluate_every=max(1, recipe.evaluate_every // factor),
    )


def split(small: Sequence[Run], large: Sequence[Run], target: float) -> tuple[pd.DataFrame, str]:
    """The speed-up in median time to `target` (training seconds) of the large batch over the small one, as throughput
    over epochs; and a sentence. The table has the numbers of both sides, and how many reach their announced target.
    """
    rows = []
    for runs in (small, large):
        seconds = float(np.median(times.seconds_to_target(runs, "algoperf", target)))
        passed = {value: times.steps_to_target(runs, value) for value in (target, times.at(runs[0])["value"])}
        epochs = float(np.median(passed[target])) * runs[0].config["batch"] / runs[0].config["train"]
        reach = {value: sum(map(math.isfinite, steps)) for value, steps in passed.items()}
        rows.append(
            {
                "batch": runs[0].config["batch"],
                **{f"reach {value:g}": f"{count} of {len(runs)}" for value, count in reach.items()},
                "median s (algoperf)": seconds,
                "epochs": epochs,
                "epochs per s": epochs / seconds,
            }
        )
    table = pd.DataFrame(rows)
    if not np.isfinite(table[["median s (algoperf)", "epochs"]].to_numpy()).all():
        return table, "Where more than half of the runs miss, the median is infinite and there is no speed-up to split."
    factor, (before, after) = rows[1]["batch"] / rows[0]["batch"], [row["median s (algoperf)"] for row in rows]
    found = statistics.scaling(before, after, 1, factor, rows[0]["epochs"], rows[1]["epochs"])
    return table, (
        f"To {target:g}, {factor:.0f} x the batch: {found.throughput_speedup:.2f} x the throughput, "
        f"{found.epochs_ratio:.2f} x the epochs, so {found.tta_speedup:.2f} x in time to accuracy."
    )
