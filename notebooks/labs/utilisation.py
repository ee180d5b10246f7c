"""Measuring lab 13: one training step as an object, interleaved paired timings, variants of a step, inference by batch.

Pixels and labels are random: what a step costs does not depend on them. When not to use it: to train.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from labkit import models, paths
from labs.roofline import waited
from labkit.rules.finding import chosen
from labs import cost
from labkit.tta import statistics

BASE = "float32"


class Step:
    """One training step of a classifier: forward, mean cross-entropy, backward, update. Call it to take the step.

    Args:
        batch, pool: images are [batch, 1, 28 / pool, 28 / pool].
        precision: a name of torch.dtype; anything but float32 is autocast (float16 without loss scaling: it times the
            step, it would not train).
        channels_last: images and weights in the memory order [n, height, width, channels].
    """

    def __init__(
        self,
        model: str,
        batch: int,
        pool: int = 2,
        device: str = "cpu",
        precision: str = BASE,
        channels_last: bool = False,
    ):
        side = 28 // pool
        order = torch.channels_last if channels_last else torch.contiguous_format
        numbers = torch.Generator().manual_seed(0)
        self.images = torch.rand(batch, 1, side, side, generator=numbers).to(device, memory_format=order)
        self.classes = torch.randint(10, (batch,), generator=numbers).to(device)
        self.model = models.build(model, image_shape=(1, side, side)).to(device, memory_format=order)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        self.device, self.precision = device, precision

    def __call__(self, update: Callable = contextlib.nullcontext) -> None:
        with self.autocast():
            loss = F.cross_entropy(self.model(self.images), self.classes)
        loss.backward()
        with update():
            self.optimizer.step()
            self.optimizer.zero_grad()

    def autocast(self):
        kind, dtype = torch.device(self.device).type, getattr(torch, self.precision)
        return torch.autocast(kind, dtype) if self.precision != BASE else contextlib.nullcontext()

    def infer(self) -> torch.Tensor:
        """Scores [batch, 10] with the model as it is used: evaluation mode, no gradients."""
        self.model.eval()
        with torch.inference_mode(), self.autocast():
            return self.model(self.images)


def paired(work: Mapping, rounds: int, device: str = "cpu", least: float = 0.01) -> pd.DataFrame:
    """Time several callables side by side: in every round each of them once, in an order that moves on.

    A busy machine then disturbs all of them alike; compare within a round (`speed_ups`), never across rounds.

    Args:
        work: callables by name; each is called twice before its clock starts.
        least: seconds that one timing lasts at least; what is quicker is repeated within it.

    Returns:
        columns round, name, seconds (of one call).
    """
    calls = {}
    for name, call in work.items():
        waited(device, call)
        begin = time.perf_counter()
        waited(device, call)
        calls[name] = max(1, math.ceil(least / max(time.perf_counter() - begin, 1e-7)))
    rows, names = [], list(work)
    for at in range(rounds):
        for name in names[at % len(names) :] + names[: at % len(names)]:
            begin = time.perf_counter()
            for _ in range(calls[name]):
                waited(device, work[name])
            rows.append((at, name, (time.perf_counter() - begin) / calls[name]))
    return pd.DataFrame(rows, columns=["round", "name", "seconds"])


def speed_ups(timings: pd.DataFrame, base) -> pd.DataFrame:
    """Median of the paired ratios seconds(base) / seconds(name), a bootstrap interval, and the median seconds."""
    table = timings.pivot(index="round", columns="name", values="seconds")
    rows = []
    for name in timings["name"].unique():
        found = statistics.median(table[base] / table[name])
        rows.append((name, found.value, found.low, found.high, float(table[name].median())))
    return pd.DataFrame(rows, columns=["name", "speed-up", "low", "high", "seconds"])


def variants(settings, device: str = "cpu") -> tuple[dict, dict]:
    """(steps by name, what is left out and why): number formats and memory orders of the lab's model.

    Features are tried, not looked up: a step that fails, or takes more than `settings.slow` seconds, is left out.
    """
    choices = {
        BASE: {},
        "bfloat16": {"precision": "bfloat16"},
        "float16": {"precision": "float16"},
        "channels-last": {"channels_last": True},
        "bfloat16 + channels-last": {"precision": "bfloat16", "channels_last": True},
    }
    steps, left_out = {}, {}
    for name, options in choices.items():
        images = settings.model in ("resnet8", "resnet20", "resnet9")
        if options.get("channels_last") and not images:
            left_out[name] = f"{settings.model} has no image channels inside"
            continue
        step = Step(settings.model, settings.batch, settings.pool, device, **options)
        try:
            waited(device, step)
            begin = time.perf_counter()
            waited(device, step)
        except RuntimeError as error:
            left_out[name] = f"this device or torch cannot do it: {str(error).splitlines()[0][:100]}"
            continue
        seconds = time.perf_counter() - begin
        if name != BASE and seconds > settings.slow:
            left_out[name] = f"one step took {seconds:.1f} s, more than the {settings.slow:g} s allowed"
        else:
            steps[name] = step
    return steps, left_out


def compiled(settings, device: str = "cpu") -> dict | str:
    """{"compile": seconds, "timings": rows of `paired`} of torch.compile against eager, or why there is none.

    It runs in a process of its own, which is ended after `settings.compile_patience` seconds: compiling cannot be
    interrupted from within.
    """
    if not settings.compile_patience:
        return "not tried at this profile (compile_patience is 0)"
    arguments = json.dumps([settings.model, settings.batch, settings.pool, device, settings.rounds])
    code = f"import sys; sys.path[:0] = {[str(paths.root()), str(paths.notebooks())]!r}\n"
    code += f"from labs import utilisation; utilisation.compile_and_time(*{arguments})"
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # an empty cache: what is compiled is compiled anew
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": folder}
        options = {"capture_output": True, "text": True, "timeout": settings.compile_patience, "env": environment}
        try:
            done = subprocess.run([sys.executable, "-c", code], check=False, **options)
        except subprocess.TimeoutExpired:
            return f"not compiled within {settings.compile_patience:g} s"
    if done.returncode:
        missing = "InvalidCxxCompiler" in done.stderr
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
        return "there is no C++ compiler here, which torch.compile needs" if missing else f"it failed: {last}"
    return json.loads(done.stdout.splitlines()[-1])


def compile_and_time(model: str, batch: int, pool: int, device: str, rounds: int) -> None:
    """What the process of `compiled` does: print its answer as one line of JSON."""
    eager, fast = (Step(model, batch, pool, device) for _ in range(2))
    fast.model = torch.compile(fast.model)
    begin = time.perf_counter()
    waited(device, fast)
    took = time.perf_counter() - begin
    timings = paired({BASE: eager, "torch.compile": fast}, rounds, device)
    sys.stdout.write("\n" + json.dumps({"compile": took, "timings": timings.values.tolist()}) + "\n")


def peak_rounds(step: Step, flops: float, side: int, rounds: int) -> pd.DataFrame:
    """A matrix product and a step side by side: columns round, peak and achieved (FLOP/s), of_peak."""
    numbers = torch.Generator().manual_seed(0)
    dtype = getattr(torch, step.precision)
    left, right = (torch.rand(side, side, generator=numbers).to(step.device, dtype) for _ in range(2))
    out = torch.empty_like(left)
    timings = paired({"product": lambda: torch.mm(left, right, out=out), "step": step}, rounds, step.device)
    table = timings.pivot(index="round", columns="name", values="seconds").reset_index()
    table["peak"], table["achieved"] = 2 * side**3 / table["product"], flops / table["step"]
    table["of_peak"] = table["achieved"] / table["peak"]
    return table[["round", "peak", "achieved", "of_peak"]]


def by_batch(settings, device: str = "cpu") -> dict[str, pd.DataFrame]:
    """Timings (as of `paired`, the name being the batch size) of training and of inference."""
    steps = {batch: Step(settings.model, batch, settings.pool, device) for batch in settings.batches}
    training = paired(steps, settings.rounds, device)
    inference = paired({batch: step.infer for batch, step in steps.items()}, settings.rounds, device)
    return {"training": training, "inference": inference}


def batch_table(timings: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Columns what, batch, ms (median of a step or an inference), images/s."""
    rows = []
    for what, found in timings.items():
        for batch, seconds in found.groupby("name")["seconds"].median().items():
            rows.append((what, int(batch), 1e3 * seconds, batch / seconds))
    return pd.DataFrame(rows, columns=["what", "batch", "ms", "images/s"])


def recorded_timings(runs: Sequence, evidence: str, **about) -> pd.DataFrame | None:
    """The last recorded timings of this kind, as of `paired` (name: batch size or variant), whose configuration agrees
    with `about`; None where there are none.

    One run only: a ratio between two machines or two days would not be paired.
    """
    found = chosen(runs, {"evidence": evidence, **about})
    if not found:
        return None
    rows = [(row.samples if row.name == "seconds" else row.name, row.value) for row in found[-1].rows]
    table = pd.DataFrame(rows, columns=["name", "seconds"])
    return table.assign(round=table.groupby("name").cumcount())


def recorded_peaks(runs: Sequence, **about) -> dict[str, pd.DataFrame]:
    """Recorded `of_peak` by model, of the runs whose configuration agrees with `about`."""
    found = chosen(runs, {"evidence": "step", **about})
    return {run.config["model"]: pd.DataFrame({"of_peak": [row.value for row in run.rows]}) for run in found}


def communication(workers: Sequence[int], compute: float, size: float, alpha: float, beta: float, overlap: float):
    """The ring model at several numbers of workers: a fixed batch per worker, and a fixed batch that they share.

    Args:
        compute: seconds of a step on one worker at its own batch. size: bytes of the gradients.

    Returns:
        columns workers, what, share (of the step that waits for communication), speed-up (images/s over one worker).
    """
    count, rows = np.asarray(workers, float), []
    talking = cost.ring_seconds(count, size, alpha, beta)
    for what, own in (
        ("fixed batch per worker", np.full_like(count, compute)),
        ("fixed batch in all", compute / count),
    ):
        seconds, share = cost.step_seconds(own, talking, overlap)
        work = count if what == "fixed batch per worker" else 1
        rows += zip(workers, [what] * len(count), share, work * compute / seconds, strict=True)
    return pd.DataFrame(rows, columns=["workers", "what", "share", "speed-up"])
