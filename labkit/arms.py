"""Many small runs trained as one batched model (`torch.func.vmap`): arms that differ only in rate and warm-up see the same batches, so one wide step serves all.

On one core this is several times faster than one run after the other wherever the overhead of a step exceeds its arithmetic. Each arm becomes a `Run` of its own, marked `arms`, so no clock
rule will ever take the shared seconds for the time of one run. The naive version is `labkit.experiment.train`, one recipe at a time; the two agree to rounding.
"""

import dataclasses
from collections.abc import Sequence

from labkit import models
from labkit.errors import RequestError
from labkit.experiment import Recipe, header
from labkit.runs import Run, RunWriter, Store

SHARED = ("rate", "warmup_steps")


def train_together(
    recipes: Sequence[Recipe],
    store: Store,
    *,
    lab: str,
    repeat: int = 0,
    claims: dict | None = None,
    fresh: bool = False,
    progress=None,
) -> list[Run]:
    """Train recipes that differ only in `rate` and `warmup_steps`, with plain momentum SGD; finished ones come from the store.

    Raises:
        RequestError: the recipes differ in anything else, or use what a batched step cannot (another optimizer, augmentation, accumulation, mixed precision, a stop at the target).

    When not to use it: for anything whose seconds matter, and for models with batch normalisation or `nn.LSTM`, which vmap does not take.
    """
    first = recipes[0]
    for recipe in recipes:
        if dataclasses.replace(recipe, rate=first.rate, warmup_steps=first.warmup_steps) != first:
            raise RequestError(
                f"recipes trained together may differ only in {' and '.join(SHARED)}; train the others one by one"
            )
    plain = (
        first.optimizer == "sgd"
        and set(first.options) <= {"momentum"}
        and first.accumulate == 1
        and first.precision == "32-true"
        and not first.stop_at_target
    )
    if not plain or first.model != "deep-mlp":
        raise RequestError(
            "arms are trained together only for deep-mlp with plain momentum SGD in 32-true; train these recipes one by one"
        )
    data = first.load()
    headers = [header(recipe, data, lab=lab, repeat=repeat, claims=claims, arms=len(recipes)) for recipe in recipes]
    runs = [None if fresh else store.find(top) for top in headers]
    todo = [index for index, run in enumerate(runs) if run is None]
    if todo:
        tops = [dataclasses.replace(headers[index], arms=len(todo)) for index in todo]
        writers = [store.write(top) for top in tops]
        try:
            step_together([recipes[index] for index in todo], data, writers, repeat, progress)
        except BaseException:
            for writer in writers:
                writer.finish("failed")
            raise
        for index, writer in zip(todo, writers, strict=True):
            runs[index] = writer.finish()
    return runs


def step_together(recipes: Sequence[Recipe], data, writers: Sequence[RunWriter], repeat: int, progress) -> None:
    """The training loop: parameters stacked [arms, ...], one gradient per arm and step, v = m v + g, w = w - rate v."""
    import torch
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap
    from torch.nn import functional as F

    from labkit.datasets.memory import DeviceBatches, evaluation_batches
    from labkit.tta.callback import synchronise

    first, device = recipes[0], torch.device(recipes[0].device)
    scale = {"mean": data.mean, "std": data.std, "device": device}
    begin = writers[0].now()
    batches = DeviceBatches(
        data.train_x, data.train_y, first.batch, seed=repeat, augment=first.augment, sampling=first.sampling, **scale
    )
    probe = min(1024, len(data.train_x))
    evaluations = {
        "train": (data.train_x[:probe], data.train_y[:probe]),
        "validation": (data.validation_x, data.validation_y),
        "test": (data.test_x, data.test_y),
    }
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

    def evaluate(step: int, edge: float) -> float:
        synchronise(device)
        trained = writers[0].now()
        table = {}
        for name, loader in evaluations.items():
            loss, correct, count = 0.0, 0.0, 0
            for images, classes in loader:
                logits = logits_of(weights, images)
                loss = loss + F.cross_entropy(
                    logits.flatten(0, 1), classes.repeat(len(recipes)), reduction="none"
                ).view(len(recipes), -1).sum(1)
                correct, count = correct + (logits.argmax(2) == classes).sum(1), count + len(classes)
            table[f"{name}_loss"], table[f"{name}_accuracy"] = (loss / count).tolist(), (correct / count).tolist()
        now = writers[0].now()
        for arm, writer in enumerate(writers):
            writer.span("train", edge, trained)
            writer.span("evaluate", trained, now)
            for name, values in sorted(table.items()):
                writer.metric(
                    name, values[arm], step=step, epoch=step / len(batches), samples=step * first.batch, when=now
                )
        return now

    edge = writers[0].now()
    for writer in writers:
        writer.span("data", begin, loaded)
        writer.span("init", loaded, edge)
    step, every = 0, first.evaluate_every or first.steps
    while step < first.steps:
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
            if step == first.steps:
                break
