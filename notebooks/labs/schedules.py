"""What lab 01 counts on graphs: schedules between Brent's bounds, wavefronts, networks by year, and checkpoints."""

import random
from collections.abc import Sequence

import numpy as np
import pandas as pd

from labs import graph, graph_memory, graph_schedule, zoo


def brent(step, processors: Sequence[int]) -> pd.DataFrame:
    """A greedy schedule at each number of processors: columns processors, steps, least, most, outside.

    `outside` is how far the steps lie outside the bounds, 0 if they do not."""
    rows = []
    for p in processors:
        (least, most), steps = graph_schedule.bounds(step.work, step.depth, p), graph_schedule.levels(step, p).time
        rows.append((p, steps, least, most, max(0, least - steps, steps - most)))
    return pd.DataFrame(rows, columns=["processors", "steps", "least", "most", "outside"])


def random_tasks(count: int, processors: int, seed: int) -> int:
    """The same `outside` for unit tasks of which each waits for up to three earlier ones."""
    draw = random.Random(seed)
    after = [tuple(sorted({draw.randrange(n) for _ in range(draw.randint(0, 3))})) if n else () for n in range(count)]
    least, most = graph_schedule.bounds(count, graph_schedule.depth(after), processors)
    steps = graph_schedule.tasks(after, processors).time
    return max(0, least - steps, steps - most)


def wavefronts(sizes: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """L recurrent layers over T steps, scheduled: columns layers, steps, wavefronts, widest, and how far both are from
    L + T - 1 and min(L, T)."""
    rows = []
    for layers, steps in sizes:
        found = graph_schedule.tasks(graph_schedule.wavefront(layers, steps), layers * steps)
        widest = max(busy for _, _, busy in found.used)
        rows.append((layers, steps, found.time, widest, abs(found.time - (layers + steps - 1)),
                     abs(widest - min(layers, steps))))
    return pd.DataFrame(rows, columns=["layers", "steps", "wavefronts", "widest", "wavefronts off", "width off"])


def networks(names: Sequence[str], batch: int = 1) -> pd.DataFrame:
    """`zoo.table` with the bytes that training keeps and inference holds at its peak, per sample of `batch`."""
    table = zoo.table(names, batch)
    kept, peak = [], []
    for name in names:
        model, shape = zoo.build(name), zoo.NETWORKS[name].shape
        kept.append(graph_memory.saved_bytes(model, shape, batch))
        peak.append(graph_memory.memory(model, shape, batch, training=False).peak)
    table = table.assign(training_bytes=kept, inference_bytes=peak)
    return table.sort_values("year", kind="stable", ignore_index=True)


EVIDENCE = {"macs_per_parameter": "macs_per_parameter", "layers": "layers", "depth": "inference_depth",
            "training_work": "step_work", "inference_work": "inference_work", "training_bytes": "training_bytes",
            "inference_bytes": "inference_bytes"}  # metric: column of `networks`


def checkpoints(lengths: Sequence[int], width: int = 16, batch: int = 64) -> tuple[pd.DataFrame, pd.DataFrame, float]:
    """Chains of each length in sqrt(L) segments; one of them in other numbers of segments; and the slope.

    Returns:
        (columns layers, segments, plain, bytes, forwards_again), (layers, segments, bytes) and the log-log slope of
        `bytes`, the peak, over the layers."""
    rows = []
    for length in lengths:
        found = graph_memory.checkpointing(length, width, batch, round(length**0.5))
        plain = graph_memory.memory(graph_memory.chain(length, width), (width,), batch).peak
        rows.append((length, found.segments, plain, found.peak, found.forwards_again))
    table = pd.DataFrame(rows, columns=["layers", "segments", "plain", "bytes", "forwards_again"])
    middle = lengths[1]
    counts = [count for count in (2**n for n in range(middle.bit_length())) if count <= middle]
    models = {count: graph_memory.Checkpointed(graph_memory.chain(middle, width), count) for count in counts}
    other = pd.DataFrame([(middle, count, graph_memory.memory(model, (width,), batch).peak)
                          for count, model in models.items()], columns=["layers", "segments", "bytes"])
    slope = float(np.polyfit(np.log(table["layers"]), np.log(table["bytes"]), 1)[0])
    return table, other, slope


def graph_capture(network: str):
    """The graph of a training step of a network of the zoo, on one sample."""
    return graph.capture(zoo.build(network), zoo.NETWORKS[network].shape)
