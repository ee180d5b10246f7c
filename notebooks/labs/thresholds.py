"""When each DAWNBench entry met other thresholds than its own, and how that changes a ranking."""

from collections.abc import Mapping

import pandas as pd

from readers import dawnbench
from labkit.tta.statistics import first_crossing


def thresholds(benchmark: dawnbench.Benchmark, grid: dict[str, list[float]]) -> pd.DataFrame:
    """Seconds to each threshold of {task: thresholds}, inf for a miss, as (task, entry, threshold, seconds). Not fair
    to an entry that was tuned for another threshold."""
    table = [(task, entry, value, first_crossing(hours * 3600, metric, value))
             for (task, entry), (hours, metric, _) in benchmark.curves.items() for value in grid.get(task, ())]
    return pd.DataFrame(table, columns=["task", "entry", "threshold", "seconds"])


def threshold_sensitivity(curves: Mapping, thresholds) -> dict[float, dict[str, float]]:
    """{threshold: {name: TTA}} for curves {name: (times, values)}. Not fair to an entry tuned for another threshold."""
    return {float(at): {name: first_crossing(*curve, at) for name, curve in curves.items()} for at in thresholds}
