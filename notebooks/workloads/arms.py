"""Many small runs trained as one batched model (`torch.func.vmap`): arms that differ only in rate and warm-up see the
same batches, so one wide step serves all.

On one core this is several times faster than one run after the other wherever the overhead of a step exceeds its
arithmetic. Each arm becomes a `Run` of its own, marked `arms`, so no clock rule will ever take the shared seconds for
the time of one run. The naive version is `labkit.experiment.train`, one recipe at a time: same start, same batches,
and a step that differs by rounding only (which a long run at a high rate amplifies, as it does any rounding)."""

import dataclasses
import math
from collections.abc import Sequence

from labkit import experiment, models
from labkit.errors import RequestError
from labkit.experiment import Recipe, header
from labkit.runs import Run, RunWriter, Store

SHARED = ("rate", "warmup_steps")


def train_together(recipes: Sequence[Recipe], store: Store, *, lab: str, repeat: int = 0, claims: dict | None = None,
                   fresh: bool = False, progress=None) -> list[Run]:
    """Train recipes that differ only in `rate` and `warmup_steps`, with plain momentum SGD.

    Finished ones come from the store. A recipe that is the only one left to train is trained alone, by
    `labkit.experiment.train`, and owns its seconds.

    Returns:
        One run per recipe, in their order.

    Raises:
        RequestError: there is no recipe, the recipes differ in anything else, or they use what a batched step cannot
            (another model or optimizer, accumulation, mixed precision, probes of the curvature, a stop at the target);
            nothing is written.

    When not to use it: for anything whose seconds matter, and for models with batch normalisation or `nn.LSTM`, which
    vmap does not take."""
    if not recipes:
        raise RequestError("there are no recipes to train together; give at least one")
    first = recipes[0]
    for recipe in recipes:
        if dataclasses.replace(recipe, rate=first.rate, warmup_steps=first.warmup_steps) != first:
            raise RequestError(f"recipes trained together may differ only in {' and '.join(SHARED)}; "
                               "train the others one by one")
        recipe.schedule()  # refuses a rate that no schedule takes before anything is written
    plain = (first.optimizer == "sgd" and set(first.options) <= {"momentum"} and first.accumulate == 1
             and first.precision == "32-true" and not first.curvature_every and not first.stop_at_target)
    if not plain or first.model != "deep-mlp":
        raise RequestError("arms are trained together only for deep-mlp with plain momentum SGD in 32-true; "
                           "train these recipes one by one")
    data = first.load()
    # One file a recipe, so a recipe that is given twice is trained once.
    arms = {(recipe.rate, recipe.warmup_steps): recipe for recipe in recipes}
    tops = {arm: header(recipe, data, lab=lab, repeat=repeat, claims=claims, arms=len(arms))
            for arm, recipe in arms.items()}
    runs = {arm: None if fresh else store.find(top) for arm, top in tops.items()}
    todo = [arm for arm, run in runs.items() if run is None]
    if len(todo) == 1:
        runs[todo[0]] = experiment.train(arms[todo[0]], store, lab=lab, repeat=repeat, claims=claims, fresh=fresh,
                                         progress=progress)
    elif todo:
        writers = [store.write(dataclasses.replace(tops[arm], arms=len(todo))) for arm in todo]
        try:
            step_together([arms[arm] for arm in todo], data, writers, repeat, progress)
        except BaseException:
            for writer in writers:
                writer.finish("failed")
            raise
        for arm, writer in zip(todo, writers, strict=True):
            runs[arm] = writer.finish()
    return [runs[recipe.rate, recipe.warmup_steps] for recipe in recipes]


def step_together(recipes: Sequence[Recipe], data, writers: Sequence[RunWriter], repeat: int, progress) -> None:
    """The training loop: parameters stacked [arms, ...], one gradient per arm and step, v = m v + g, w = w - rate v.

    An arm whose metric stops being finite is evaluated once more on all parts and then no longer recorded, as a run of
    its own would have ended there."""
    import torch
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap
    from torch.nn import functional as F

    from labkit.datasets.memory import DeviceBatches, evaluation_batches
    from labkit.tta.callback import synchronise

    first, device = recipes[0], torch.device(recipes[0].device)
    scale = {"mean": data.mean, "std": data.std, "device": device}
    begin = writers[0].now()
    batches = DeviceBatches(data.train_x, data.train_y, first.batch, seed=repeat, augment=first.augment,
                            sampling=first.sampling, **scale)
    probe = min(1024, len(data.train_x))
    evaluations = {"train": (data.train_x[:probe], data.train_y[:probe]),
                   "validation": (data.validation_x, data.validation_y), "test": (data.test_x, data.test_y)}
    evaluations = {name: list(evaluation_batches(x, y, **scale)) for name, (x, y) in evaluations.items() if len(x)}
    loaded = writers[0].now()
    torch.manual_seed(repeat)
    model = models.build(first.model, image_shape=data.train_x.shape[1:], classes=data.classes, **first.sizes).to(
        device
    )
    weights, _ = stack_module_state([model] * len(recipes))
    weights = {name: value.detach().clone() for name, value in weights.items()}
    velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
    schedules = [recipe.schedule() for recipe in recipes]
    momentum = first.options.get("momentum", 0.0)

    def loss_of(parameters, images, classes):
        return F.cross_entropy(functional_call(model, parameters, (images,)), classes)

    gradients = vmap(grad_and_value(loss_of), in_dims=(0, None, None))
    logits_of = torch.no_grad()(
        vmap(lambda parameters, images: functional_call(model, parameters, (images,)), in_dims=(0, None))
    )

    def measure(name: str) -> dict:
        loss, correct, count = 0.0, 0.0, 0
        for images, classes in evaluations[name]:
            logits = logits_of(weights, images)
            losses = F.cross_entropy(logits.flatten(0, 1), classes.repeat(len(recipes)), reduction="none")
            loss = loss + losses.view(len(recipes), -1).sum(1)
            correct, count = correct + (logits.argmax(2) == classes).sum(1), count + len(classes)
        return {f"{name}_loss": (loss / count).tolist(), f"{name}_accuracy": (correct / count).tolist()}

    def evaluate(step: int, edge: float) -> float:
        synchronise(device)
        trained, table = writers[0].now(), {}
        for name in evaluations:
            if name in first.evaluate_on or step == first.steps:
                table |= measure(name)
        ended = {arm for arm in recorded if not all(math.isfinite(values[arm]) for values in table.values())}
        rest = {}
        for name in evaluations if ended else ():
            if f"{name}_loss" not in table:
                rest |= measure(name)
        now = writers[0].now()
        for arm in recorded:
            writers[arm].span("train", edge, trained)
            writers[arm].span("evaluate", trained, now)
            for name, values in sorted((table | rest if arm in ended else table).items()):
                writers[arm].metric(name, values[arm], step=step, epoch=step / len(batches), samples=step * first.batch,
                                    when=now)
        recorded.difference_update(ended)
        return now

    edge = writers[0].now()
    for writer in writers:
        writer.span("data", begin, loaded)
        writer.span("init", loaded, edge)
    recorded = set(range(len(recipes)))
    step, every = 0, first.evaluate_every or first.steps
    while step < first.steps and recorded:
        for images, classes in batches:
            gradient, loss = gradients(weights, images, classes)
            rates = torch.tensor([schedule(step) for schedule in schedules], device=device, dtype=images.dtype)
            for name, weight in weights.items():
                velocity[name].mul_(momentum).add_(gradient[name])
                weight.sub_(velocity[name] * rates.view(-1, *[1] * (weight.ndim - 1)))
            step += 1
            if progress is not None and step % 20 == 0:
                progress.update(step, loss=float(loss.nanmedian()))
            if step % every == 0 or step == first.steps:
                edge = evaluate(step, edge)
            if step == first.steps or not recorded:
                break
