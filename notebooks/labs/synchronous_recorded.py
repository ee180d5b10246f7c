"""What lab 04's recorded runs say, in the form in which its figures want it; nothing where none are here."""

from collections.abc import Sequence

import pandas as pd

from labkit.rules.finding import chosen
from labs import synchronous


def values(run, metric: str) -> list[float]:
    return [row.value for row in run.series(metric)]


def ghost_training(runs) -> pd.DataFrame | None:
    """Test accuracy by network, samples that share statistics and seed."""
    names = {"network": "network", "samples a rank": "each", "seed": "seed"}
    rows = [{name: run.config[key] for name, key in names.items()} | {"test_accuracy": values(run, "test_accuracy")[-1]}
            for run in chosen(runs, {"evidence": "ghost training"})]  # fmt: skip
    return pd.DataFrame(rows) if rows else None


def backward(runs) -> dict[str, pd.DataFrame]:
    """{"recorded": bytes and ready of each gradient} of the last recorded backward."""
    found = chosen(runs, {"evidence": "backward"})
    return {"recorded": pd.DataFrame({name: values(found[-1], name) for name in ("bytes", "ready")})} if found else {}


def measured_growth(runs, workers: Sequence[int]) -> pd.DataFrame | None:
    """Mean step by formula for the recorded times of gradients; None without them."""
    found = chosen(runs, {"evidence": "gradient times"})
    if not found:
        return None
    compute = synchronous.measured_compute(values(found[-1], "relative"))
    rows = [(count, synchronous.expected(compute, count)) for count in workers]
    table = pd.DataFrame(rows, columns=["workers", "formula"])
    return table.assign(mean=table["formula"], times="measured, recorded")
