"""From a recipe to a run: one configuration, trained through Lightning, recorded span by span. The single path to a
trained number."""

import dataclasses
import math
import warnings
from dataclasses import dataclass, field

from labkit import machine, models
from labkit.datasets import images
from labkit.errors import RequestError, choose
from labkit.fingerprint import fingerprint
from labkit.optim import build as optimizers
from labkit.optim.schedules import Schedule
from labkit.runs import Header, Run, Store

SCIENCE = ("labkit.experiment", "labkit.tasks", "labkit.datasets.images", "labkit.datasets.memory",
           "labkit.optim.build", "labkit.optim.schedules")
PARTS = ("train", "validation", "test")
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "bf16-true")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run besides its repeat number. Two equal recipes are the same experiment."""

    data: str = "mnist5k"  # a name of labkit.datasets.images
    train: int = 4096  # training images
    validation: int | None = None  # validation images; None: what the dataset gives
    test: int | None = None  # test images; None: what the dataset gives
    pool: int = 1  # mean-pool the images by this factor
    noise: float | None = None  # noise knob of the procedural images
    model: str = "deep-mlp"  # a name of labkit.models
    sizes: dict = field(default_factory=dict)  # keyword arguments of the model
    optimizer: str = "sgd"  # a name of labkit.optim.build
    options: dict = field(default_factory=lambda: {"momentum": 0.9})  # its options
    batch: int = 64  # samples per optimizer step
    rate: float = 0.1  # peak learning rate
    epochs: float = 1.0  # passes over the training images
    warmup_steps: float = 0.0  # optimizer steps from 0 to the peak rate
    decay: str = "constant"  # shape after the warm-up
    decay_options: dict = field(default_factory=dict)  # power, milestones, ... of that shape
    augment: tuple = ()  # flip, crop, cutout
    sampling: str = "shuffle"  # or replacement
    accumulate: int = 1  # micro-batches per optimizer step
    precision: str = "32-true"
    evaluate_every: int = 0  # optimizer steps between evaluations; 0: once, at the end
    evaluate_on: tuple = ("train", "validation", "test")  # parts evaluated during training; at the end all are
    curvature_every: int = 0  # optimizer steps between probes of the curvature along the gradient; 0: none
    target: dict | None = None  # {"metric", "value", "higher"}
    stop_at_target: bool = False
    device: str = "cpu"  # cpu, cuda, mps

    def __post_init__(self):
        for name in ("train", "pool", "batch", "accumulate", "evaluate_every", "curvature_every"):
            if type(getattr(self, name)) is not int:
                raise RequestError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        for name in ("rate", "epochs", "warmup_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RequestError(f"{name} must be a finite number, not {value!r}")
        for name in ("sizes", "options", "decay_options"):
            if not isinstance(getattr(self, name), dict):
                raise RequestError(f"{name} must be a mapping such as {{'momentum': 0.9}}, not {getattr(self, name)!r}")
        choose("device", str(self.device).split(":")[0], ("cpu", "cuda", "mps"))
        choose("dataset", self.data, images.NAMES)
        choose("model", self.model, models.NAMES)
        choose("optimizer", self.optimizer, optimizers.OPTIONS)
        choose("precision", self.precision, PRECISIONS)
        for part in self.evaluate_on:
            choose("part to evaluate on", part, PARTS)
        for name in ("batch", "train", "pool", "accumulate"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} {getattr(self, name)} is out of range; it must be 1 or more")
        for name in ("rate", "warmup_steps", "evaluate_every", "curvature_every"):
            if not getattr(self, name) >= 0:
                raise RequestError(f"{name} {getattr(self, name)} is negative; it must be 0 or more")
        if not self.epochs > 0:
            raise RequestError(f"epochs {self.epochs} is out of range; it must be more than 0")
        if self.batch > self.train:
            raise RequestError(f"batch {self.batch} is larger than the {self.train} training images; "
                               f"choose a batch of at most {self.train}")
        if self.batch % self.accumulate:
            raise RequestError(f"batch {self.batch} cannot be split into {self.accumulate} equal micro-batches; "
                               "accumulate must divide the batch")

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return max(1, round(self.epochs * (self.train // self.batch)))

    def schedule(self) -> Schedule:
        return Schedule(peak=self.rate, total_steps=self.steps, warmup_steps=self.warmup_steps, decay=self.decay,
                        **self.decay_options)

    def load(self) -> images.Images:
        return images.load(self.data, train=self.train, validation=self.validation, test=self.test, pool=self.pool,
                           noise=self.noise)

    def code(self) -> str:
        """Fingerprint of the modules that compute this recipe."""
        modules = [*SCIENCE, *models.source_modules(self.model)]
        if self.optimizer in optimizers.LAYERWISE:
            modules.append(f"labkit.optim.{self.optimizer}")
        if self.optimizer in optimizers.LAYERWISE or self.options.get("weight_decay"):
            modules.append("labkit.optim.groups")
        if self.curvature_every:
            modules += ["labkit.optim.curvature", "labkit.optim.probe"]
        if self.data == "procedural":
            modules.append("labkit.datasets.procedural")
        return fingerprint(modules)


def header(recipe: Recipe, data: images.Images, *, lab: str, repeat: int = 0, claims: dict | None = None,
           arms: int = 1) -> Header:
    """The header of the run of a recipe on this machine; `claims` are the hashes of the rules that will judge it."""
    config = {key: list(value) if isinstance(value, tuple) else value
              for key, value in dataclasses.asdict(recipe).items()}
    return Header(lab=lab, config=config, repeat=repeat, data={"name": data.name, "checksum": data.checksum},
                  code=recipe.code(), target=recipe.target, hardware=machine.hardware(recipe.device),
                  software=machine.software(), claims=claims or {}, arms=arms)


def train(recipe: Recipe, store: Store, *, lab: str, repeat: int = 0, claims: dict | None = None, fresh: bool = False,
          progress=None, model=None, callbacks=()) -> Run:
    """Train one recipe once through Lightning, or return the finished run of the store.

    Args:
        model: your own `nn.Module` in place of the one that the recipe names; then give the recipe's `sizes` an
            entry that tells it apart.
        callbacks: further Lightning callbacks.
        fresh: train even if the store holds this run.

    Raises:
        RequestError: the data is missing or too small for the recipe; nothing is written."""
    from labkit import tasks  # noqa: F401  (imported here so that loading Lightning is in nobody's run)

    data = recipe.load()
    top = header(recipe, data, lab=lab, repeat=repeat, claims=claims)
    done = None if fresh else store.find(top)
    if done is not None:
        return done
    with store.write(top) as writer, warnings.catch_warnings():
        # Lightning advises on worker processes and logging intervals, which do not apply to data that is already on the
        # device.
        warnings.filterwarnings("ignore", module=r"pytorch_lightning\..*")
        fit(recipe, data, writer, repeat, progress, model, callbacks)
        return writer.run if writer.run.status == "finished" else writer.finish()


def fit(recipe: Recipe, data: images.Images, writer, repeat: int, progress, model, callbacks):
    """The body of `train`: data span, init span, then Lightning with the clock attached."""
    import logging

    import pytorch_lightning as pl
    import torch

    from labkit.datasets.memory import DeviceBatches, evaluation_batches
    from labkit.tasks import ImageClassification
    from labkit.tta.callback import TimeToAccuracy, synchronise

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    device = torch.device(recipe.device)
    scale = {"mean": data.mean, "std": data.std, "device": device}
    begin = writer.now()
    batches = DeviceBatches(data.train_x, data.train_y, recipe.batch // recipe.accumulate, seed=repeat,
                            augment=recipe.augment, sampling=recipe.sampling, **scale)
    probe = min(1024, len(data.train_x))
    evaluations = {"train": (data.train_x[:probe], data.train_y[:probe]),
                   "validation": (data.validation_x, data.validation_y), "test": (data.test_x, data.test_y)}
    loaders = {name: evaluation_batches(x, y, **scale) for name, (x, y) in evaluations.items() if len(x)}
    during = tuple(name for name in loaders if name in recipe.evaluate_on)
    synchronise(device)
    loaded = writer.now()
    writer.span("data", begin, loaded)
    torch.manual_seed(repeat)
    if model is None:
        model = models.build(recipe.model, image_shape=data.train_x.shape[1:], classes=data.classes, **recipe.sizes)
    task = ImageClassification(model, recipe.optimizer, recipe.schedule(), during, optimizer_options=recipe.options)
    clock = TimeToAccuracy(writer, recipe.batch, recipe.stop_at_target, progress)
    if recipe.curvature_every:
        from labkit.optim.probe import CurvatureProbe

        callbacks = [
            *callbacks,
            CurvatureProbe(recipe.curvature_every,
                           *evaluation_batches(data.train_x[:256], data.train_y[:256], 256, **scale)[0], writer),
        ]
    every = recipe.evaluate_every or recipe.steps
    trainer = pl.Trainer(max_steps=recipe.steps, max_epochs=-1,
                         accelerator={"cuda": "gpu"}.get(device.type, device.type), devices=1,
                         precision=recipe.precision, accumulate_grad_batches=recipe.accumulate,
                         val_check_interval=every * recipe.accumulate, check_val_every_n_epoch=None,
                         num_sanity_val_steps=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False, callbacks=[clock, *callbacks])
    writer.span("init", loaded, writer.now())
    trainer.fit(task, batches, [loaders[name] for name in during])
    if clock.evaluated_at != trainer.global_step or len(during) < len(loaders):
        task.evaluations = tuple(loaders)
        trainer.validate(task, list(loaders.values()), verbose=False)
    return task
