"""Rules about what a training step reaches of the device, about inference by batch size, and about communication."""

import numpy as np
import pandas as pd

from labkit import paths
from labkit.rules.finding import Finding, chosen, needs
from labs import cost


def values_of(runs, select: dict, metric: str) -> list:
    """All rows of a metric in the chosen runs."""
    return [row for run in chosen(runs, select) for row in run.series(metric)]


def below_peak(runs, *, select, metric, bound, seeds) -> Finding:
    """In nine of ten rounds, the FLOP/s of the whole step over those of a matrix product timed in the same round are
    less than `bound`; contradicted if in nine of ten they are not.
    """
    values = [row.value for row in values_of(runs, select, metric)]
    if len(values) < seeds:
        return needs(f"{seeds} paired timings of the fast recipe's step and a matrix product")
    below = float(np.mean(np.array(values) < bound))
    middle, rounds = np.median(values), len(values)
    evidence = f"median {middle:.2f} of the matrix-multiply peak, below {bound:g} in {below:.0%} of {rounds} rounds"
    return Finding("holds" if below >= 0.9 else "contradicted" if below <= 0.1 else "not seen", evidence, len(values))


def idle_matrix_units(runs, *, select, metric, low, high, seeds) -> Finding:
    """The share of kernel time in kernels without matrix units lies in [low, high]; only a GPU's kernel names tell."""
    values = [row.value for row in values_of(runs, select, metric)]
    if len(values) < seeds:
        return needs("an NVIDIA GPU with matrix units: on a CPU no kernel name says whether they were used")
    middle = float(np.median(values))
    return Finding("holds" if low <= middle <= high else "not seen", f"{middle:.0%} of kernel time", len(values))


def latency_against_throughput(runs, *, select, metric, batches, rise, gain, flat, seeds) -> Finding:
    """Seconds of one inference, the batch size in the rows' `samples`: from the smallest to the largest of `batches`
    latency rises by `rise` or more and throughput by `gain` or more, and over the last step of the ladder throughput
    rises by `flat` at most.
    """
    rows = values_of(runs, select, metric)
    found = {batch: [row.value for row in rows if row.samples == batch] for batch in batches}
    if any(len(values) < seeds for values in found.values()):
        return needs(f"{seeds} timings of inference at each of the batches {', '.join(map(str, batches))}")
    latency = np.array([np.median(found[batch]) for batch in batches])
    speed = np.array(batches) / latency
    rose, gained, last = latency[-1] / latency[0], speed[-1] / speed[0], speed[-1] / speed[-2]
    evidence = (
        f"batch {batches[0]} to {batches[-1]}: latency x {rose:.1f}, throughput x {gained:.1f}; "
        f"from {batches[-2]} on throughput x {last:.2f}"
    )
    holds = rose >= rise and gained >= gain and last <= flat
    return Finding("holds" if holds else "not seen", evidence, len(rows))


def phases(text: str, epochs: float) -> np.ndarray:
    """`"13x128 15x224"` as rows (epochs, value), cut after so many epochs in all."""
    rows = np.array([[float(part) for part in phase.split("x")] for phase in text.split()])
    before = np.concatenate([[0.0], np.cumsum(rows[:-1, 0])])
    rows[:, 0] = np.clip(epochs - before, 0.0, rows[:, 0])
    return rows


def scaling_entries(times: str, schedules: str, images: int, side: int) -> pd.DataFrame | None:
    """Entries with what they had done when they reached their target: family, machines, workers, samples (images of
    side `side`, by area), optimizer steps, seconds; None while the table of times is not there.
    """
    folder = paths.data() / "published"
    if not (folder / times).is_file():
        return None
    found = pd.read_csv(folder / times, comment="#").query("task == 'ImageNet'")
    found["epochs"] = found["first_hit_epoch"] + found["flags"].fillna("").str.contains("first-epoch-zero")
    table = pd.read_csv(folder / schedules, comment="#").merge(found[["entry", "epochs", "tta_seconds"]], on="entry")
    work = [
        (
            images * sum(n * (size / side) ** 2 for n, size in phases(row.image_sides, row.epochs)),
            sum(n * images / size for n, size in phases(row.batches, row.epochs)),
        )
        for row in table.dropna(subset=["tta_seconds"]).itertuples()
    ]
    columns = ["entry", "family", "machines", "workers"]
    table = table.dropna(subset=["tta_seconds"])[columns + ["tta_seconds"]].rename(columns={"tta_seconds": "seconds"})
    return table.assign(samples=[w[0] for w in work], steps=[w[1] for w in work]).reset_index(drop=True)


def fitted(table: pd.DataFrame, family: str, fit, size: float, alpha: float) -> pd.DataFrame:
    """The family's entries with columns `predicted` (seconds) and `communication` (share of them), from a calibration
    on those with `fit` machines.
    """
    rows = table[table["family"] == family].sort_values("machines")
    known = rows[rows["machines"].isin(list(fit))]
    columns = (known[name] for name in ("samples", "steps", "workers", "seconds"))
    compute, beta = cost.calibrate(*columns, size=size, alpha=alpha)
    waiting = rows["steps"] * cost.ring_seconds(rows["workers"], size, alpha, beta)
    predicted = rows["samples"] / rows["workers"] * compute + waiting
    return rows.assign(predicted=predicted, communication=waiting / predicted, calibrated=rows["machines"].isin(fit))


def communication_over(
    runs, *, times, schedules, images, side, family, fit, held_out, size, alpha, bound, factor
) -> Finding:
    """The ring model, calibrated on the family's entries with `fit` machines, predicts the time of the one with
    `held_out` machines within `factor`, and gives communication `bound` or more of that time.
    """
    table = scaling_entries(times, schedules, images, side)
    if table is None or set(table.loc[table["family"] == family, "machines"]) < {*fit, held_out}:
        return needs(f"the times of the {family} entries in {times}")
    row = fitted(table, family, fit, size, alpha).set_index("machines").loc[held_out]
    off = row["predicted"] / row["seconds"]
    evidence = (
        f"{family}, calibrated on {' and '.join(map(str, fit))} machines: at {held_out} predicted "
        f"{row['predicted']:.0f} s, published {row['seconds']:.0f} s; {row['communication']:.0%} of it is communication"
    )
    if not 1 / factor <= off <= factor:
        return Finding("not seen", f"the model does not hold: {evidence}", 3)
    return Finding("holds" if row["communication"] >= bound else "not seen", evidence, 3)


RULES = (below_peak, idle_matrix_units, latency_against_throughput, communication_over)
