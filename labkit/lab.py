"""The session that a lab's notebook holds (`lab = labkit.start(...)`). The lab's place in the course: `labkit.course`.

The session resolves the profile, owns the store of runs, trains recipes with one line of progress, remembers
predictions, judges the lab's claims and writes the record. Heavy imports happen inside the methods that need them."""

import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from labkit import claims, machine, paths, profiles
from labkit.course import Entry, costs, course, find, plan
from labkit.errors import RequestError
from labkit.runs import Header, Run, Store, read_many

__all__ = ["RECORD_MIME", "Entry", "Lab", "costs", "course", "default_device", "find", "plan", "request", "start"]

RECORD_MIME = "application/vnd.labkit.record+json"


def request(lab: str, profile: str = "quick", seeds: str = "0", overrides: dict | None = None):
    """Check a whole request before anything starts: the lab, its profile, its seeds, every field, that the data is
    there and holds as many images as asked for, and that the model takes its sizes.

    Returns:
        (entry, settings, list of seeds).

    Raises:
        RequestError: the first thing that is wrong.
        WorkError: the data is there and damaged."""
    from labkit import models
    from labkit.datasets import images

    entry = find(lab)
    settings = profiles.resolve(entry.number, profile, overrides)
    numbers = profiles.parse_seeds(seeds)
    if hasattr(settings, "data"):
        parts = {part: getattr(settings, part, None) or None for part in ("train", "validation", "test")}
        images.load(settings.data, **parts)
    if hasattr(settings, "model") and hasattr(settings, "sizes") and {"model", "sizes"} & set(overrides or {}):
        try:
            models.build(settings.model, **settings.sizes)
        except (RuntimeError, MemoryError):
            raise RequestError(f"sizes {settings.sizes} are more than this machine can hold; "
                               "choose smaller ones") from None
    return entry, settings, numbers


class Lab:
    """What a notebook holds on to. Made by `labkit.start`."""

    def __init__(self, entry: Entry, profile: str, settings, seeds: list[int], store: Store, interactive: bool):
        self.entry, self.profile, self.settings, self.seeds = entry, profile, settings, seeds
        self.store, self.interactive = store, interactive
        self.claims = claims.hashes(entry.number)
        self.predictions: dict = {}
        self.used: dict[str, Run] = {}
        self.begin = time.perf_counter()
        self.device = default_device()

    def repeats(self, count: int) -> list[int]:
        """`count` seeds, counted from the first that was asked for; all that were asked for, if those are more."""
        return self.seeds if len(self.seeds) >= count else list(range(self.seeds[0], self.seeds[0] + count))

    def train(self, recipes: Iterable, repeats: Sequence[int] | None = None, label: str = "training",
              fresh: bool = False, **options) -> list[Run]:
        """Train recipes one after the other, each for each repeat; those already in the store are not trained again.

        Args:
            options: passed on to `labkit.experiment.train` (`model`, `callbacks`). A run of your own model is always
                trained anew and stays out of the record: its identity does not cover your code."""
        from labkit import experiment

        own = options.get("model") is not None
        lab, sworn = (f"{self.entry.number}-own", {}) if own else (self.entry.number, self.claims)
        options |= {"lab": lab, "claims": sworn, "fresh": fresh or own}
        jobs = []
        for recipe in (dataclasses.replace(recipe, device=self.device) for recipe in recipes):
            for repeat in self.seeds if repeats is None else repeats:
                jobs.append((recipe, partial(experiment.train, recipe, self.store, repeat=repeat, **options)))
        runs = self._sweep(jobs, len(jobs), label)
        return runs if own else self._use(runs)

    def train_together(self, recipes: Sequence, repeats: Sequence[int] | None = None, label: str = "training",
                       fresh: bool = False) -> list[Run]:
        """The same for recipes that differ only in rate and warm-up within a batch size: those of one batch are
        trained as one batched model."""
        arms = paths.lab_part("arms", "workloads")
        repeats = self.seeds if repeats is None else repeats
        recipes = [dataclasses.replace(recipe, device=self.device) for recipe in recipes]
        options = {"lab": self.entry.number, "claims": self.claims, "fresh": fresh}
        jobs = []
        for repeat in repeats:
            for batch in sorted({recipe.batch for recipe in recipes}):
                group = [recipe for recipe in recipes if recipe.batch == batch]
                jobs.append((group[0], partial(arms.train_together, group, self.store, repeat=repeat, **options)))
        return self._use(self._sweep(jobs, len(recipes) * len(repeats), label))

    def _sweep(self, jobs: Sequence[tuple], total: int, label: str) -> list[Run]:
        """The runs of all jobs (recipe, function of `progress` that gives a run or several), under one line."""
        from labkit.progress import Progress

        runs: list[Run] = []
        with Progress(total, label) as progress:
            for recipe, job in jobs:
                made = job(progress=_Inner(progress, len(runs), recipe))
                runs += made if isinstance(made, list) else [made]
                progress.update(len(runs))
            progress.close(f"{label}: {counted(len(runs))}")
        return runs

    def evidence(self, name: str, rows: Iterable[tuple], source: str = "measured", **config) -> Run:
        """Record numbers that are not a training curve as a run of their own.

        Args:
            rows: (metric, value) or (metric, value, samples) each.
            source: `simulated` where the numbers are seconds of virtual time, or follow from them."""
        header = Header(self.entry.number, {"evidence": name, **config}, hardware=machine.hardware(self.device),
                        software=machine.software(), claims=self.claims, source=source)
        with self.store.write(header) as writer:
            for metric, value, *samples in rows:
                writer.metric(metric, value, samples=samples[0] if samples else 0)
        return self._use([writer.run])[0]

    def _use(self, runs: list[Run]) -> list[Run]:
        self.used.update({f"{run.header.identity}-{run.header.machine}": run for run in runs})
        return runs

    def recorded(self) -> list[Run]:
        """The runs of larger sweeps that are committed with the kit."""
        return read_many(paths.data() / "results" / f"{self.entry.number}.jsonl.gz")

    def keep(self, key: str, value) -> None:
        """Keep a prediction or an answer in the record, as JSON has it (a number of numpy as a number, NaN as a text).
        """
        plain = json.dumps(value, default=lambda part: part.tolist() if hasattr(part, "tolist") else str(part))
        self.predictions[key] = json.loads(plain, parse_constant=str)

    def board(self, runs: Iterable[Run] | None = None):
        """The lab's claims with verdicts, over the recorded runs and those of this session."""
        return claims.board([*self.recorded(), *self.used.values()] if runs is None else list(runs), self.entry.number)

    def record(self):
        """Display the record of this session: what ran, on what, and the verdicts. It travels inside the executed
        notebook."""
        own = claims.board(list(self.used.values()), self.entry.number)
        content = {"lab": self.entry.number, "profile": self.profile, "settings": dataclasses.asdict(self.settings),
                   "seeds": self.seeds, "seconds": round(time.perf_counter() - self.begin, 1),
                   "runs": sorted(self.used), "verdicts": dict(zip(own["claim"], own["verdict"], strict=True)),
                   "claims": self.claims, "predictions": self.predictions, "hardware": machine.hardware(self.device),
                   "software": machine.software()}
        text = f"recorded: {counted(len(self.used))} of lab {self.entry.number} at profile {self.profile}"
        if len(own):
            found = (f"{count} {verdict}" for verdict, count in own["verdict"].value_counts().items())
            text += f"; claims judged without the recorded runs: {', '.join(found)}"
        from IPython.display import display

        display({RECORD_MIME: content, "text/plain": text}, raw=True)


class _Inner:
    """Progress of one run inside a sweep: whole runs are counted, its step, loss and metric are shown."""

    def __init__(self, progress, done: int, recipe):
        self.progress, self.done, self.recipe = progress, done, recipe

    def update(self, step: int, **numbers) -> None:
        self.progress.update(self.done + min(step / self.recipe.steps, 0.999), step=step, **numbers)


def counted(runs: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}"


def default_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def start(lab: str, profile: str = "quick", seeds: str = "0", overrides: dict | None = None, record_to: str = "",
          interactive: bool = True) -> Lab:
    """Open a lab: check the request, prepare the store, show the plan.

    Args:
        lab: number or name.
        profile: smoke, quick or full.
        seeds: comma-separated, such as `0,1,2`.
        overrides: fields of the lab's profile.
        record_to: folder of runs; empty for the local one.
        interactive: False in batch runs: no widgets.

    Raises:
        RequestError: something in the request is wrong; nothing was written."""
    entry, settings, numbers = request(lab, profile, seeds, overrides)
    session = Lab(entry, profile, settings, numbers, Store(Path(record_to) if record_to else paths.store()),
                  interactive)
    from IPython.display import Markdown, display

    display(Markdown(plan(entry, profile, numbers)))
    return session
