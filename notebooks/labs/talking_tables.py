"""Lab 06's tables: what recorded runs and yours say, at the tuned rates; and the systems of the survey."""

import math

import numpy as np
import pandas as pd

from labkit.rules.general import published


def best(runs, name: str, **select) -> pd.DataFrame:
    """One row a case of the evidence `name` with the most steps among `runs`: tuned on the mean validation accuracy
    over seeds; means of test and reached at that rate, of the spread at the lowest, bytes a step, and whether the best
    rate ends its grid."""
    runs = [run for run in runs if run.config.get("evidence") == name
            and all(run.config.get(key) == value for key, value in select.items())]
    most = max((run.config["steps"] for run in runs), default=0)
    cases: dict = {}
    for run in runs:
        if run.config["steps"] == most:
            key = tuple(run.config.get(field) for field in ("method", "way", "tau", "graph"))
            cases.setdefault(key, {})[run.config["seed"]] = run
    rows = []
    for (method, way, tau, graph), group in cases.items():
        rates = next(iter(group.values())).config["rates"]
        same = [run for run in group.values() if run.config["rates"] == rates]
        table = {name: np.array([[row.value for row in run.series(name)] for run in same])
                 for name in ("validation", "test", "reached", "spread")}
        at = int(table["validation"].mean(0).argmax())
        reached = table["reached"][:, at]
        rows.append({"case": method or graph or way, "tau": tau, "rate": rates[at], "at end": at in (0, len(rates) - 1),
                     "test": table["test"][:, at].mean(), "low": table["test"][:, at].min(),
                     "high": table["test"][:, at].max(), "reached": reached.mean(),
                     "lowest": rates[0],
                     "spread": table["spread"][:, 0].mean(),  # at the lowest rate for all: it grows with the rate
                     "bytes a step": same[0].series("sent")[0].value / most, "seeds": len(same), "steps": most})
    return pd.DataFrame(rows)


def partners(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of `best` for "graphs" under plain names, the least spread first; and that order in words."""
    lowest, table = table["lowest"].min(), table.sort_values("spread")
    names = {"case": "graph", "rate": "best rate", "test": "test accuracy at it",
             "spread": f"spread at rate {lowest:g}"}
    told = " < ".join(f"{row.case} {row.spread:.3g}" for row in table.itertuples())
    return table[[*names, "bytes a step", "seeds"]].rename(columns=names), told


def elastic_against_averaging(tables: dict[str, pd.DataFrame], least: int = 16) -> str:
    """By how many points the elastic centre's test accuracy is above or below, over the periods of `least` or more."""
    told = []
    for source, table in tables.items():
        apart = table[table["tau"] >= least].pivot(index="tau", columns="case", values="test")
        if apart.empty:
            continue
        gap = 100 * (apart["elastic"] - apart["averaging"]).mean()
        seeds = int(table["seeds"].min())
        told.append(f"{source} ({seeds} seed{'s' * (seeds != 1)}) {abs(gap):.1f} points "
                    f"{'above' if gap > 0 else 'below'}")
    text = f"Elastic centre against averaging, mean over the periods of {least} or more: {', '.join(told)}."
    return text if told else f"No period of {least} or more was run."


def factors(runs) -> dict[str, float]:
    """Steps to the target of the ways of `phase.WAYS`, over those of dense (for gossip: of the complete graph);
    infinite where it was missed. Empty if dense missed it or something was not run."""
    table = {name: best(runs, name) for name in ("compressed", "periods", "graphs")}
    if any(part.empty for part in table.values()):
        return {}
    steps = table["compressed"].set_index("case")["reached"].to_dict()
    steps |= table["graphs"].set_index("case")["reached"].to_dict()
    rows = table["periods"]
    steps |= {f"tau {row.tau:g}": row.reached for row in rows[rows["case"] == "averaging"].itertuples()}
    of = {"1-bit": ("1-bit", "dense"), "top-k 1 %": ("top-k 1 %", "dense"), "local SGD, tau 16": ("tau 16", "dense"),
          "gossip, one-peer": ("one-peer", "complete")}
    if any(not math.isfinite(steps.get(base, math.inf)) or way not in steps for way, base in of.values()):
        return {}
    return {"dense": 1.0} | {way: steps[mine] / steps[base] for way, (mine, base) in of.items()}


def systems() -> pd.DataFrame:
    """Which named systems of the survey are shown where: `data/published/survey_systems.csv`."""
    table = published("survey_systems.csv")
    return table.assign(lab=table["lab"].map("{:02.0f}".format, na_action="ignore")).fillna("")
