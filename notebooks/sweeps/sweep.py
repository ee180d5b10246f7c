"""A sweep: a grid of recipes as data, trained here or on a Ray cluster, each run once.

The file is YAML:

  lab: "08"                              # tag of the runs: a lab's number, or any name
  base: {data: procedural, epochs: 4}    # fields of labkit.experiment.Recipe; the others keep their defaults
  grid:                                  # every combination of these, laid over base
    batch: [64, 128, 256]
    options.momentum: [0.0, 0.9]         # a dot reaches into a mapping
  also: [{batch: 512, epochs: 8}]        # single points beside the grid
  seeds: [0, 1]                          # each point once for each; default [0]
  rule:                                  # optional: rate and warmup_steps follow the batch by a scaling rule
    {name: legw, base: {batch: 64, rate: 0.1, warmup_epochs: 0.5}}

The rule's parts can be varied too: rule.name, rule.base.rate. Finished runs of the store are not trained again, so the
same command goes on after a kill; sweeps that run at the same time on one store share the work. A run counts if it was
made on this machine; under Ray, wherever it was made. The data must be here too, since its checksum is part of a run's
identity. Ray's workers need what labkit depends on and, unless it is bundled, the data (LABKIT_DATA is passed on, else
~/.cache/labkit there); labkit itself is sent to them."""

import contextlib
import dataclasses
import itertools
import re
import time
from dataclasses import dataclass
from pathlib import Path

from labkit.curve import canonical
from labkit.errors import RequestError, choose
from labkit.runs import Run, Store
from labkit.trial import Trial

ENTRIES = {"base": {}, "grid": {}, "also": [], "seeds": [0], "rule": {}}  # besides lab, and what they are if left out
DATA = ("data", "train", "validation", "test", "pool", "noise", "data_options")  # what decides the data of a recipe


@dataclass
class Outcome:
    """The finished runs in the order of their trials (one an identity); (trial, traceback) of those that failed."""

    runs: list[Run]
    failed: list[tuple[Trial, str]]


def load(path: str | Path) -> list[Trial]:
    """The trials of a file: the grid in its order, then `also`, each for every seed.

    Raises:
        RequestError: the file, an entry or a recipe is wrong. Data and models are looked at by `run`."""
    import yaml

    from labkit import claims, profiles

    Loader = type("Loader", (yaml.SafeLoader,), {})  # for which 1e-3 is a number too, as it is everywhere else
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
                                 list("-+0123456789"))
    try:
        content = want(yaml.load(Path(path).read_text(encoding="utf-8"), Loader), dict, "what it holds")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RequestError(f"{path} cannot be read as a sweep ({' '.join(str(error).split())})") from None
    for entry in content:
        choose("entry of a sweep", entry, ("lab", *ENTRIES))
    base, grid, also, seeds, rule = (want(content.get(entry, default), type(default), entry)
                                     for entry, default in ENTRIES.items())
    lists = [want(values, list, f"{name} in grid") for name, values in grid.items()]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)] if grid else []
    points += [want(point, dict, "a point of also") for point in also]
    if not points or not all(lists):
        raise RequestError("the sweep has no points; give it a grid such as {batch: [64, 128]}, no list of it empty")
    lab = content.get("lab") or ""
    lab = f"{lab:02d}" if type(lab) is int else str(lab)  # YAML reads 07 and 11 as numbers
    if not re.fullmatch(r"\w[\w.-]{0,63}", lab, re.ASCII):
        raise RequestError(f"lab must be a name of letters, digits, - and _, not {lab!r}")
    seeds, sworn, trials = profiles.parse_seeds(",".join(map(str, seeds))), claims.hashes(lab), []
    for point in points:
        name = ", ".join(f"{key} {value}" for key, value in point.items()) or "base"
        try:
            recipe = recipe_of([*base.items(), *point.items()], rule)
        except (RequestError, TypeError) as error:
            raise RequestError(f"{name}: {error}") from None
        trials += [Trial(lab, recipe, seed, f"{name}, seed {seed}", sworn) for seed in seeds]
    return trials


def want(value, kind: type, what: str):
    """The value, which must be a list or a mapping."""
    if not isinstance(value, kind):
        raise RequestError(f"{what} must be a {'list' if kind is list else 'mapping'}, not {value!r}")
    return value


def recipe_of(items: list[tuple], rule: dict | None = None):
    """The recipe with these (field, value), later ones over earlier ones, and what the rule makes of its batch."""
    from labkit.experiment import Recipe
    from labkit.optim.schedules import RULES, Baseline, warmup_iterations

    defaults = dataclasses.asdict(Recipe())
    values = {**defaults, "rule": rule}  # none of them is changed in place: points share what base holds
    for name, value in items:
        (*outer, last), place = str(name).split("."), values
        choose("field of a recipe", str(name).split(".")[0], values)
        for part in outer:
            place[part] = dict(want(place.get(part) or {}, dict, f"{part} of {name}"))
            place = place[part]
        place[last] = tuple(value) if isinstance(value, list) and isinstance(defaults.get(name), tuple) else value
    rule = values.pop("rule")
    recipe = Recipe(**values)
    if not rule:
        return recipe
    for name in {"rate", "warmup_steps"} & dict(items).keys():
        raise RequestError(f"{name} comes from the rule; leave it away, or vary rule.base.rate")
    try:
        own = {key: value for key, value in rule.items() if key not in ("name", "base")}
        choose("scaling rule", rule["name"], RULES)
        scaled = RULES[rule["name"]](Baseline(**rule["base"]), recipe.batch, **own)
    except (TypeError, KeyError, AttributeError) as error:
        raise RequestError("a rule must be a mapping such as {name: legw, base: {batch: 64, rate: 0.1, "
                           f"warmup_epochs: 0.5}}}} ({error})") from None
    base = dataclasses.replace(recipe, batch=rule["base"]["batch"], accumulate=1)
    steps = round(warmup_iterations(scaled, base.batch * base.workload.steps_per_epoch(base)), 6)
    return dataclasses.replace(recipe, rate=scaled.rate, warmup_steps=steps)


def check(trials, anywhere: bool = False) -> dict:
    """All that can be known before training: the data is there; the model, its optimizer and schedule can be made.

    Returns:
        `{(lab, identity): (trial, header)}`, each once, in the order of the trials.

    Raises:
        RequestError: the first thing that is wrong, and in which trial."""
    from labkit import experiment

    loaded, built, wanted = {}, set(), {}
    for trial in trials:
        recipe = trial.recipe
        # What a cluster has need not be here: neither its devices nor its hardware.
        here = dataclasses.replace(recipe, device="cpu") if anywhere else recipe
        try:
            key = canonical([getattr(recipe, name) for name in DATA])
            if key not in loaded:
                loaded[key] = recipe.load()
            header = experiment.header(here, loaded[key], lab=trial.lab, repeat=trial.repeat, claims=trial.claims)
            header = dataclasses.replace(header, config={**header.config, "device": recipe.device})
            wanted.setdefault((trial.lab, header.identity), (trial, header))
            recipe.schedule()
            for callback in recipe.callbacks:
                experiment.callback_of(callback, build=True)
            parts = canonical([key, recipe.model, recipe.sizes, recipe.optimizer, recipe.options])
            if parts not in built:
                model = recipe.workload.build(recipe, loaded[key])
                recipe.workload.task(recipe, loaded[key], model, recipe.evaluate_on).configure_optimizers()
                built.add(parts)
        except (ValueError, TypeError, RuntimeError, AssertionError, MemoryError) as error:
            raise RequestError(f"{trial.name or recipe}: {error}") from None
    return wanted


def run(trials, store: Store, ray: str | None = None, gpus_per_trial: float = 0) -> Outcome:
    """Train what the store does not hold, under one line of progress; a trial that fails stops no other.

    Args:
        ray: None, or the cluster: `auto`, `local` (one is started on this machine), `host:port`, `ray://host:port`. A
            trial takes as many CPUs as OMP_NUM_THREADS says here.
        gpus_per_trial: under Ray; may be a fraction.

    Raises:
        RequestError: the request is wrong, a trial cannot work, the cluster does not answer; nothing was written."""
    from labkit.progress import Progress, duration
    from runner import results
    from sweeps import workers

    trials, began, done, failed = list(trials), time.monotonic(), {}, {}
    workers.possible(ray, gpus_per_trial, any(trial.recipe.device.startswith("cuda") for trial in trials))
    wanted, label = check(trials, anywhere=ray is not None), "sweep " + " ".join(sorted({t.lab for t in trials}))

    def there(key) -> bool:
        if key not in done and (found := store.find(wanted[key][1], anywhere=ray is not None)) is not None:
            done[key] = found
        return key in done

    def left() -> dict:
        return {key: pair for key, pair in wanted.items() if key not in failed and not there(key)}

    def beat(part: float = 0.0, **numbers) -> None:
        progress.update(len(done) - before + len(failed) + part, failed=len(failed), **numbers)

    with workers.place(ray, gpus_per_trial) as make:
        results.writable(store.folder, "the store of runs")
        todo, before = left(), len(done)
        with open(store.folder / ".sweep.lock", "ab") as lock, Progress(len(todo), label) as progress:
            while todo:
                with contextlib.closing(make(todo, store, lock, beat)) as answers:
                    for key, answer in answers:
                        if isinstance(answer, bytes):
                            answer = store.keep(answer) and None
                        if answer is None and not there(key):
                            answer = "its run has another identity: labkit's code or the data is another one there"
                        if answer not in (None, workers.BUSY):
                            failed[key] = answer
                        beat()
                todo = left()
                time.sleep(1.0 if todo else 0.0)  # until another sweep is through with them
            progress.close(f"{label}: {len(done)} runs, {before} of them from before, {len(failed)} failed, "
                           f"in {duration(time.monotonic() - began)}")
    return Outcome([done[key] for key in wanted if key in done], [(wanted[key][0], failed[key]) for key in failed])
