"""Classification of images: MNIST, Fashion-MNIST, CIFAR-10, procedural ones."""

from labkit import models
from labkit.datasets import images
from labkit.errors import RequestError

NAMES, MODELS = images.NAMES, models.NAMES


def check(recipe) -> None:
    if recipe.batch > recipe.train:
        raise RequestError(f"batch {recipe.batch} is larger than the {recipe.train} training images; "
                           f"choose a batch of at most {recipe.train}")
    if recipe.data_options:
        raise RequestError(f"data_options {recipe.data_options} have no meaning for {recipe.data}; leave them empty")


def steps_per_epoch(recipe) -> int:
    return recipe.train // recipe.batch


def load(recipe) -> images.Images:
    return images.load(recipe.data, train=recipe.train, validation=recipe.validation, test=recipe.test,
                       pool=recipe.pool, noise=recipe.noise)


def _scale(recipe, data) -> dict:
    import torch

    return {"mean": data.mean, "std": data.std, "device": torch.device(recipe.device)}


def loaders(recipe, data, seed: int):
    """Training batches, and evaluation batches by part (a probe of at most 1024 training images among them)."""
    from labkit.datasets.memory import DeviceBatches, evaluation_batches

    batches = DeviceBatches(data.train_x, data.train_y, recipe.batch // recipe.accumulate, seed=seed,
                            augment=recipe.augment, sampling=recipe.sampling, **_scale(recipe, data))
    probe = min(1024, len(data.train_x))
    parts = {"train": (data.train_x[:probe], data.train_y[:probe]),
             "validation": (data.validation_x, data.validation_y), "test": (data.test_x, data.test_y)}
    return batches, {name: evaluation_batches(x, y, **_scale(recipe, data)) for name, (x, y) in parts.items() if len(x)}


def build(recipe, data):
    return models.build(recipe.model, image_shape=data.train_x.shape[1:], classes=data.classes, **recipe.sizes)


def task(recipe, data, model, evaluations):
    from labkit.tasks.images import ImageClassification

    return ImageClassification(model, recipe.optimizer, recipe.schedule(), evaluations,
                               optimizer_options=recipe.options)


def probe(recipe, data):
    """256 training images and their classes, the same at every probe."""
    from labkit.datasets.memory import evaluation_batches

    return evaluation_batches(data.train_x[:256], data.train_y[:256], 256, **_scale(recipe, data))[0]


def source_modules(recipe) -> list[str]:
    modules = [__name__, "labkit.tasks.images", "labkit.datasets.images", "labkit.datasets.memory",
               *models.source_modules(recipe.model)]
    return [*modules, "labkit.datasets.procedural"] if recipe.data == "procedural" else modules
