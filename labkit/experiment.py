"""From a recipe to a run: one configuration, trained through Lightning, recorded span by span. The single path to a
trained number."""

import dataclasses
import importlib
import inspect
import math
import warnings
from dataclasses import dataclass, field

from labkit import machine, paths, workloads
from labkit.errors import RequestError, WorkError, choose
from labkit.fingerprint import fingerprint
from labkit.optim import build as optimizers
from labkit.optim.schedules import Schedule
from labkit.runs import Header, Run, Store

SCIENCE = ("labkit.experiment", "labkit.tasks.base", "labkit.optim.build", "labkit.optim.schedules")
PARTS = ("train", "validation", "test")
# Left out of a run's identity where they are not used.
OPTIONAL = ("data_options", "clip", "callbacks")
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "bf16-true")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run besides its repeat number. Two equal recipes are the same experiment."""

    data: str = "mnist5k"  # a name of labkit.workloads
    train: int = 4096  # training images, tokens of text or sentence pairs
    validation: int | None = None  # of the validation part; None: what the dataset gives
    test: int | None = None  # of the test part; None: what the dataset gives
    pool: int = 1  # mean-pool the images by this factor
    noise: float | None = None  # noise knob of the procedural images
    data_options: dict = field(default_factory=dict)  # what else the data takes: window, vocabulary, ...
    model: str = "deep-mlp"  # one of the models that the data's workload trains
    sizes: dict = field(default_factory=dict)  # keyword arguments of the model
    optimizer: str = "sgd"  # a name of labkit.optim.build
    options: dict = field(default_factory=lambda: {"momentum": 0.9})  # its options
    batch: int = 64  # samples per optimizer step: images, streams of text, sentence pairs
    rate: float = 0.1  # peak learning rate
    epochs: float = 1.0  # passes over the training images
    warmup_steps: float = 0.0  # optimizer steps from 0 to the peak rate
    decay: str = "constant"  # shape after the warm-up
    decay_options: dict = field(default_factory=dict)  # power, milestones, ... of that shape
    augment: tuple = ()  # flip, crop, cutout
    sampling: str = "shuffle"  # or replacement
    accumulate: int = 1  # micro-batches per optimizer step
    precision: str = "32-true"
    clip: float = 0.0  # largest global norm of the gradient; 0: not clipped
    evaluate_every: int = 0  # optimizer steps between evaluations; 0: once, at the end
    evaluate_on: tuple = ("train", "validation", "test")  # parts evaluated during training; at the end all are
    curvature_every: int = 0  # optimizer steps between probes of the curvature along the gradient; 0: none
    target: dict | None = None  # {"metric", "value", "higher"}
    stop_at_target: bool = False
    callbacks: tuple = ()  # Lightning callbacks as data: ({"name": "labs.module.Class", ...its arguments}, ...)
    device: str = "cpu"  # cpu, cuda, mps

    def __post_init__(self):
        for name in ("train", "pool", "batch", "accumulate", "evaluate_every", "curvature_every"):
            if type(getattr(self, name)) is not int:
                raise RequestError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        for name in ("rate", "epochs", "warmup_steps", "clip"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RequestError(f"{name} must be a finite number, not {value!r}")
        for name in ("sizes", "options", "decay_options", "data_options"):
            if not isinstance(getattr(self, name), dict):
                raise RequestError(f"{name} must be a mapping such as {{'momentum': 0.9}}, not {getattr(self, name)!r}")
        choose("device", str(self.device).split(":")[0], ("cpu", "cuda", "mps"))
        choose("model", self.model, self.workload.MODELS)
        choose("optimizer", self.optimizer, optimizers.OPTIONS)
        choose("precision", self.precision, PRECISIONS)
        for part in self.evaluate_on:
            choose("part to evaluate on", part, PARTS)
        for name in ("batch", "train", "pool", "accumulate"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} {getattr(self, name)} is out of range; it must be 1 or more")
        for name in ("rate", "warmup_steps", "evaluate_every", "curvature_every", "clip"):
            if not getattr(self, name) >= 0:
                raise RequestError(f"{name} {getattr(self, name)} is negative; it must be 0 or more")
        if not self.epochs > 0:
            raise RequestError(f"epochs {self.epochs} is out of range; it must be more than 0")
        if self.batch % self.accumulate:
            raise RequestError(f"batch {self.batch} cannot be split into {self.accumulate} equal micro-batches; "
                               "accumulate must divide the batch")
        for callback in self.callbacks:
            callback_of(callback)
        self.workload.check(self)

    @property
    def workload(self):
        """The module of `labkit.workloads` that knows this kind of data."""
        return workloads.find(self.data)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return max(1, round(self.epochs * self.workload.steps_per_epoch(self)))

    def schedule(self) -> Schedule:
        return Schedule(peak=self.rate, total_steps=self.steps, warmup_steps=self.warmup_steps, decay=self.decay,
                        **self.decay_options)

    def load(self):
        """The data, with its `name` and `checksum`; what else it holds, its workload knows."""
        return self.workload.load(self)

    def code(self) -> str:
        """Fingerprint of the modules that compute this recipe."""
        modules = [*SCIENCE, *self.workload.source_modules(self)]
        if self.optimizer in optimizers.LAYERWISE:
            modules += [f"labkit.optim.{self.optimizer}", "labkit.optim.fused", "labkit.optim.dialects"]
        if self.optimizer in optimizers.LAYERWISE or self.options.get("weight_decay"):
            modules.append("labkit.optim.groups")
        if self.curvature_every:
            modules += ["labs.curvature", paths.lab_part("curvature_probe").__name__]
        modules += [callback["name"].rpartition(".")[0] for callback in self.callbacks]
        return fingerprint(modules)


def callback_of(entry, writer=None, *, build: bool = False):
    """The class of labkit or of labs that an entry of a recipe's `callbacks` names; with `build`, made with the entry's
    arguments and the run's writer. RequestError: no mapping with such a name, or no class that takes the arguments."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name.startswith(("labkit.", "labs.")):
        raise RequestError(f"a callback must be a mapping such as {{'name': 'labs.module.Class'}}, not {entry!r}")
    module, _, cls = name.rpartition(".")
    arguments = {key: value for key, value in entry.items() if key != "name"}
    try:
        home = (paths.lab_part(module.removeprefix("labs.")) if module.startswith("labs.")
                else importlib.import_module(module))
        made = getattr(home, cls)
        inspect.signature(made).bind(writer=writer, **arguments)
    except (ImportError, AttributeError, WorkError):
        raise RequestError(f"there is no callback {name}; name a class of labkit or of notebooks/labs") from None
    except TypeError as error:
        raise RequestError(f"callback {name} cannot take {arguments}: {error}") from None
    return made(writer=writer, **arguments) if build else made


def header(recipe: Recipe, data, *, lab: str, repeat: int = 0, claims: dict | None = None,
           arms: int = 1) -> Header:
    """The header of the run of a recipe on this machine; `claims` are the hashes of the rules that will judge it."""
    config = {key: list(value) if isinstance(value, tuple) else value
              for key, value in dataclasses.asdict(recipe).items() if value or key not in OPTIONAL}
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
    from labkit.tasks import base  # noqa: F401  (imported here so that loading Lightning is in nobody's run)

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


def fit(recipe: Recipe, data, writer, repeat: int, progress, model, callbacks):
    """The body of `train`: data span, init span, then Lightning with the clock attached."""
    import logging

    import pytorch_lightning as pl
    import torch

    from labkit.tta.callback import TimeToAccuracy, synchronise

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    device, workload = torch.device(recipe.device), recipe.workload
    begin = writer.now()
    batches, loaders = workload.loaders(recipe, data, repeat)
    during = tuple(name for name in loaders if name in recipe.evaluate_on)
    synchronise(device)
    loaded = writer.now()
    writer.span("data", begin, loaded)
    torch.manual_seed(repeat)
    task = workload.task(recipe, data, workload.build(recipe, data) if model is None else model, during)
    clock = TimeToAccuracy(writer, recipe.batch, recipe.stop_at_target, progress)
    named = [callback_of(entry, writer, build=True) for entry in recipe.callbacks]
    if recipe.curvature_every:
        probe = paths.lab_part("curvature_probe").CurvatureProbe
        named.append(probe(recipe.curvature_every, *workload.probe(recipe, data), writer))
    every = recipe.evaluate_every or recipe.steps
    trainer = pl.Trainer(max_steps=recipe.steps, max_epochs=-1,
                         accelerator={"cuda": "gpu"}.get(device.type, device.type), devices=1,
                         precision=recipe.precision, accumulate_grad_batches=recipe.accumulate,
                         gradient_clip_val=recipe.clip or None, val_check_interval=every * recipe.accumulate,
                         check_val_every_n_epoch=None, num_sanity_val_steps=0, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         callbacks=[clock, *named, *callbacks])
    writer.span("init", loaded, writer.now())
    trainer.fit(task, batches, [loaders[name] for name in during])
    if clock.evaluated_at != trainer.global_step or len(during) < len(loaders):
        task.evaluations = tuple(loaders)
        trainer.validate(task, list(loaders.values()), verbose=False)
    if hasattr(workload, "final"):  # numbers that are too dear to take during training
        began = writer.now()
        for name, value in workload.final(recipe, data, task).items():
            writer.metric(name, value, step=trainer.global_step,
                          epoch=trainer.global_step * recipe.accumulate / len(batches),
                          samples=trainer.global_step * recipe.batch)
        writer.span("evaluate", began, writer.now())
    return task
