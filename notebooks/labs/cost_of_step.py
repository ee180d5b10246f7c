"""What lab 01 measures: a stack of fully connected layers by batch size, and inference beside training.

Timings are interleaved (`utilisation.paired`): compare within a round. When not to use it: to forecast another machine;
measure there."""

from collections.abc import Sequence

import pandas as pd
import torch

from labkit.rules.finding import chosen
from labs import utilisation
from labs.roofline import Roofline


def dense(width: int, batch: int) -> tuple[int, int]:
    """(FLOPs, bytes) of one fully connected layer going forward, float32, `width` in and out, without bias: inputs,
    weights and outputs move once each."""
    return 2 * batch * width * width, 4 * (width * width + 2 * batch * width)


def roofline_seconds(roof: Roofline, width: int, layers: int, batch: int) -> float:
    """The least seconds of the stack that the two roofs allow."""
    flops, moved = dense(width, batch)
    return layers * flops / roof.attainable(flops / moved)


def stack(width: int, layers: int, batches: Sequence[int], device: str = "cpu") -> dict:
    """{batch: forward pass through `layers` square layers, in place}, all with the same weights; together these have to
    be larger than the caches, or memory is not what is measured."""
    numbers = torch.Generator().manual_seed(0)
    weights = [torch.randn(width, width, generator=numbers).div(width**0.5).to(device) for _ in range(layers)]

    def forward(batch: int):
        states = [torch.randn(batch, width, generator=numbers).to(device) for _ in range(2)]

        def call():
            for n, weight in enumerate(weights):
                torch.mm(states[n % 2], weight, out=states[1 - n % 2])
            return states[layers % 2]

        return call

    return {batch: forward(batch) for batch in batches}


def by_batch(settings, roof: Roofline, device: str = "cpu") -> tuple[pd.DataFrame, list[tuple]]:
    """The stack at every batch size: a table for the figure, and the rows of its evidence.

    Returns:
        columns batch, intensity, seconds (median), roofline (seconds), microseconds a sample, GFLOP/s, bound."""
    work = stack(settings.width, settings.layers, settings.batches, device)
    with torch.inference_mode():
        timings = utilisation.paired(work, settings.rounds, device)
    evidence = [("seconds", row.seconds, int(row.name)) for row in timings.itertuples(False)]
    evidence += [("roofline", roofline_seconds(roof, settings.width, settings.layers, b), b) for b in settings.batches]
    return batch_table(timings, roof, settings.width, settings.layers), evidence


def batch_table(timings: pd.DataFrame, roof: Roofline, width: int, layers: int) -> pd.DataFrame:
    """The table of `by_batch` from timings (columns name, the batch size, and seconds)."""
    rows = []
    for batch, seconds in timings.groupby("name")["seconds"].median().items():
        flops, moved = dense(width, batch)
        bound = "memory" if flops / moved < roof.balance else "arithmetic"
        rows.append((int(batch), flops / moved, seconds, roofline_seconds(roof, width, layers, batch),
                     1e6 * seconds / batch, layers * flops / seconds / 1e9, bound))
    return pd.DataFrame(rows, columns=["batch", "intensity", "seconds", "roofline", "us a sample", "GFLOP/s", "bound"])


def recorded_batches(runs, settings) -> pd.DataFrame | None:
    """The table of `by_batch` from the last recorded run of this stack, on the roofs that were measured with it."""
    about = {"width": settings.width, "layers": settings.layers}
    found = chosen(runs, {"evidence": "batches", **about})
    if not found:
        return None
    run = found[-1]
    roof = Roofline(run.series("peak")[-1].value, run.series("bandwidth")[-1].value)
    seconds = [(row.samples, row.value) for row in run.series("seconds")]
    return batch_table(pd.DataFrame(seconds, columns=["name", "seconds"]), roof, **about)


def inference_beside_training(settings, device: str = "cpu") -> pd.DataFrame:
    """One training step and one inference of `settings.network` at each batch size, interleaved.

    Returns:
        columns what (training, inference), batch, ms (median), samples/s."""
    steps = {batch: [utilisation.Step(settings.network, batch, 2, device) for _ in range(2)]
             for batch in settings.network_batches}
    # Two objects: evaluation mode is for good, and a training step after it would be another one.
    work = {f"training {batch}": pair[0] for batch, pair in steps.items()}
    work |= {f"inference {batch}": pair[1].infer for batch, pair in steps.items()}
    timings = utilisation.paired(work, settings.rounds, device)
    rows = []
    for name, seconds in timings.groupby("name", sort=False)["seconds"].median().items():
        what, batch = name.split()
        rows.append((what, int(batch), 1e3 * seconds, int(batch) / seconds))
    return pd.DataFrame(rows, columns=["what", "batch", "ms", "samples/s"])
