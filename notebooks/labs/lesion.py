"""Lab 13's second half: three optimisations switched on and off in all eight ways; fast and long training read on a
fresh draw; a test set that many candidates have used. Recipes, and the runs of a session by cell, arm and candidate.

The statistics are in `labs.rules_lesion`, because the claims are judged by them.
"""

import dataclasses
import itertools
import math

import pytorch_lightning as pl
import torch

from labkit import profiles
from labkit.datasets.memory import normalise
from labkit.experiment import OPTIONAL, Recipe
from labkit.teach import viz
from labkit.tta.callback import TimeToAccuracy
from labs.rules_lesion import factorial_effects, readings

__all__ = ["CELLS", "FACTORS", "Draws", "factorial_effects", "readings"]

FACTORS = {"A": "larger batch", "B": "momentum", "C": "smaller images"}
MOMENTUM = 0.9
CELLS = tuple("".join(cell) for size in range(4) for cell in itertools.combinations("ABC", size))
BLOCK = 64  # images whose accuracy is one row of a run
SEEN = 8192  # images at the front of the test stream, on which trials of these recipes were read: fresh ones come after


def recipe(settings, on: str, **changes) -> Recipe:
    """The row-LSTM on generated images with the optimisations `on`, a subset of "ABC", at a constant rate; `changes`
    are fields of the recipe. Evaluations come after equally many images in every cell.

    A multiplies batch and rate by the same number. B is momentum at the same effective rate, rate / (1 - momentum).
    C pools 2 x 2 pixels.
    """
    small, large = settings.lesion_batches
    batch, momentum = changes.pop("batch", large if "A" in on else small), MOMENTUM if "B" in on else 0.0
    effective = changes.pop("effective", settings.lesion_rate * batch / small)
    fields = {
        "data": "procedural",
        "noise": settings.lesion_noise,
        "train": settings.lesion_train,
        "validation": settings.lesion_validation,
        "test": BLOCK,
        "pool": 2 if "C" in on else 1,
        "model": "row-lstm",
        "sizes": settings.lesion_sizes,
        "options": {"momentum": momentum},
        "batch": batch,
        "rate": round(effective * (1 - momentum), 9),
        "epochs": settings.lesion_epochs,
        "evaluate_every": max(1, 4 * large // batch),
        "evaluate_on": ("validation",),
    }
    return Recipe(**{**fields, **changes})


def target(value: float) -> dict:
    """A target and the stop at it, as fields of a recipe."""
    return {"target": {"metric": "validation_accuracy", "value": value, "higher": True}, "stop_at_target": True}


def lesion_recipes(settings) -> dict[str, Recipe]:
    """{cell: recipe}; a cell is named by the optimisations that are on, "" is none."""
    return {cell: recipe(settings, cell, **target(settings.lesion_target)) for cell in CELLS}


def lesion_words(settings) -> str:
    """What the eight cells have in common, and the two ends of A, for the reader."""
    (small, large), rate = settings.lesion_batches, settings.lesion_rate
    return (
        f"A: batch {small} or {large}, effective rate {rate:g} or {rate * large / small:g}. All cells: target "
        f"{settings.lesion_target:.1%} of {settings.lesion_validation} validation images, read every {4 * large} "
        f"training images; a miss after {settings.lesion_epochs:g} epochs of {settings.lesion_train} images."
    )


def arm_words(settings) -> str:
    """Batch, cycle and target of the fast, the hasty and the long recipe, for the reader."""
    small, large = settings.lesion_batches
    return (
        f"fast: batch {large}, {settings.general_cycle:g} epochs, target {settings.general_target:.1%}; "
        f"hasty: {settings.general_cycle / 2:g} epochs, {settings.hasty_target:.1%}; "
        f"long: batch {small}, {settings.general_epochs:g} epochs, no target"
    )


def cycle(settings, on: str, epochs: float, **changes) -> Recipe:
    """The recipe with warm-up over the first fifth, then cosine decay to 0, at `general_peak` times the rate."""
    plain = recipe(settings, on, epochs=epochs, **changes)
    steps = round(plain.steps / 5)
    return dataclasses.replace(
        plain, rate=round(plain.rate * settings.general_peak, 9), warmup_steps=float(steps), decay="cosine"
    )


def arm_recipes(settings) -> dict[str, Recipe]:
    """`fast`: all three optimisations and a short cycle, stopped at a target near the ceiling. `hasty`: half that cycle
    and an easier target. `long`: the same network on the same small images, small batch, a long cycle to its end. The
    fresh draw (see `Draws`) is as large as their test part.
    """
    fresh = {"test": settings.general_fresh}
    once = settings.lesion_train // settings.lesion_batches[0]  # steps of an epoch: nothing waits for its evaluations
    return {
        "fast": cycle(settings, "ABC", settings.general_cycle, **fresh, **target(settings.general_target)),
        "hasty": cycle(settings, "ABC", settings.general_cycle / 2, **fresh, **target(settings.hasty_target)),
        "long": cycle(settings, "BC", settings.general_epochs, **fresh, evaluate_every=once),
    }


def candidate_recipes(settings) -> list[Recipe]:
    """Peak rate x batch x momentum on small images, each trained with a cycle over equally many images; compared on
    `tuned_reused` validation images.
    """
    sizes = {"validation": settings.tuned_reused, "test": settings.tuned_fresh, "evaluate_every": 0}
    found = []
    for factor, batch, on in itertools.product(settings.tuned_factors, settings.tuned_batches, ("C", "BC")):
        effective = settings.lesion_rate * factor * batch / settings.lesion_batches[0]
        found.append(cycle(settings, on, settings.tuned_epochs, **sizes, batch=batch, effective=effective))
    return found


class Draws(pl.Callback):
    """After training, writes the model's accuracy on each block of 64 images of three draws into its run, as rows
    `reused_block` (the validation images), `fresh_block` (as many images of the same generator as the test part holds,
    from the place `first` of its test stream on) and, with a `shift`, `shifted_block`: those with that noise instead.
    `samples` of a row is the size of the block; the rows keep the order of the images, which is what pairs two runs. A
    last, smaller block is left out.

    It is after the last training step, in no span: no clock counts it, as clocks stop at the first crossing.

    When not to use it: with data that are not generated; a fixed test set has no fresh draw.
    """

    def __init__(self, recipe: Recipe, shift: float | None = None, first: int = SEEN):
        data = recipe.load()
        self.scale = data.mean, data.std
        self.draws = {"reused": (data.validation_x, data.validation_y)}
        for name, noise in (("fresh", recipe.noise), ("shifted", shift)):
            if noise is not None:
                more = dataclasses.replace(recipe, noise=noise, test=first + len(data.test_x)).load()
                self.draws[name] = more.test_x[first:], more.test_y[first:]

    def on_train_end(self, trainer, task) -> None:
        clock = next(callback for callback in trainer.callbacks if isinstance(callback, TimeToAccuracy))
        last = clock.writer.run.rows[-1] if clock.writer.run.rows else None
        training = task.training
        task.eval()
        where = {"step": trainer.global_step, "epoch": last.epoch if last else 0.0, "samples": BLOCK}
        for name, (x, y) in self.draws.items():
            for value in accuracy_by_block(task, x, y, *self.scale):
                clock.writer.metric(f"{name}_block", value, **where)
        task.train(training)


@torch.no_grad()
def accuracy_by_block(task, x, y, mean: float, std: float) -> list[float]:
    """Accuracy on each whole block of images [n, c, h, w] (bytes) with labels [n], normalised as in training."""
    found = []
    for start in range(0, len(x), 16 * BLOCK):
        part = normalise(torch.from_numpy(x[start : start + 16 * BLOCK]).to(task.device), mean, std, torch.float32)
        right = task(part).argmax(1).cpu() == torch.from_numpy(y[start : start + 16 * BLOCK])
        found += [float(block.float().mean()) for block in right.split(BLOCK) if len(block) == BLOCK]
    return found


def train_lesion(lab) -> dict:
    """Train all eight cells: {cell: runs}. Seeds are the outer loop and every seed begins at another cell, so that a
    machine that grows slower, or is slow at first, is no effect of an optimisation.
    """
    recipes, repeats = lesion_recipes(lab.settings), lab.repeats(lab.settings.lesion_seeds)
    found = {cell: [] for cell in CELLS}
    for place, repeat in enumerate(repeats):
        turned = [CELLS[(place + at) % len(CELLS)] for at in range(len(CELLS))]
        label = f"lesion study, seed {place + 1} of {len(repeats)}"
        for cell, run in zip(turned, lab.train([recipes[cell] for cell in turned], [repeat], label)):
            found[cell].append(run)
    return found


def train_arms(lab) -> dict:
    """Train the fast, the hasty and the long recipe: {arm: runs}, each run with the rows of `Draws` (they share their images)."""
    recipes, repeats = arm_recipes(lab.settings), lab.repeats(lab.settings.general_seeds)
    draws = [Draws(recipes["long"], lab.settings.general_shift)]
    return {arm: lab.train([chosen], repeats, f"{arm} recipe", callbacks=draws) for arm, chosen in recipes.items()}


def train_candidates(lab) -> list:
    """Train every candidate once, each with the rows of `Draws` (they share their images, so one callback serves)."""
    recipes = candidate_recipes(lab.settings)
    return lab.train(recipes, lab.repeats(1)[:1], "candidates", callbacks=[Draws(recipes[0])])


def of_recipe(runs, chosen: Recipe) -> list:
    """The runs of a recipe, on whatever device, in the order of their seeds."""
    wanted = {key: list(part) if isinstance(part, tuple) else part for key, part in dataclasses.asdict(chosen).items()
              if key != "device" and (part or key not in OPTIONAL)}  # as in the header of a run
    found = [run for run in runs if {k: v for k, v in run.config.items() if k != "device"} == wanted]
    return sorted(found, key=lambda run: run.header.repeat)


def recorded(lab, recipes: dict) -> dict:
    """{name: recorded runs}, or nothing where one of the recipes has none."""
    runs = lab.recorded()
    found = {name: of_recipe(runs, chosen) for name, chosen in recipes.items()}
    return found if all(found.values()) else {}


def groups(lab, yours, make) -> list:
    """[("yours", yours, colour), ("recorded", ..., colour)]; the second only where profile full has been recorded.

    Args:
        make: `lesion_recipes`, `arm_recipes` or `candidate_recipes`.
    """
    recipes = make(profiles.resolve(lab.entry.number, "full"))
    listed = isinstance(recipes, list)
    found = recorded(lab, dict(enumerate(recipes)) if listed else recipes)
    if listed:
        found = [runs[0] for runs in found.values()]
    return [("yours", yours, viz.YOURS)] + ([("recorded", found, viz.RECORDED)] if found else [])


def split_of_time(cells: dict) -> dict:
    """{"steps": effects, "seconds per step": effects, "seconds": effects}: tables of `factorial_effects`; the logs of
    the first two add up to those of the third.
    """
    return {what: factorial_effects(readings(cells, what)) for what in ("steps", "seconds per step", "seconds")}


def misses(cells: dict) -> int:
    """How many runs did not reach the target."""
    return sum(math.isinf(number) for numbers in readings(cells, "steps").values() for number in numbers)


def paired(arms: dict, arm: str = "fast") -> tuple[list, list]:
    """The runs of an arm and the long ones of the seeds that both have, in the same order."""
    by_seed = [{run.header.repeat: run for run in arms[name]} for name in (arm, "long")]
    common = sorted(by_seed[0].keys() & by_seed[1].keys())
    return tuple([runs[repeat] for repeat in common] for runs in by_seed)
