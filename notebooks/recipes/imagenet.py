"""ResNet-50 with LARS by LEGW on a folder of class folders, on one GPU or on many nodes.

python notebooks/recipes/imagenet.py FOLDER --batch 1024
torchrun --nproc-per-node 8 notebooks/recipes/imagenet.py FOLDER --batch 8192 --per-device 64 --precision bf16-mixed

The ladder from 512 to 32768 is that of the LEGW authors' laboratory (data/published/resnet50_legw.csv): the rate goes
with the square root of the batch, the warm-up epochs with the batch, then poly(2) to 0. It writes a run of labkit with
its clock, and a checkpoint after each epoch. On many nodes FOLDER and --out must be shared."""

import argparse
import contextlib
import dataclasses
import logging
import os
import pickle
import sys
import time
import warnings
from pathlib import Path

import folder
import pytorch_lightning as pl
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from labkit import cli, machine, models, paths
from labkit.errors import RequestError, WorkError
from labkit.fingerprint import fingerprint
from labkit.optim import LARS, dialects, groups, schedules
from labkit.progress import Progress
from labkit.runs import Header, Store
from labkit.tasks import ImageClassification
from labkit.tta.callback import TimeToAccuracy

BASELINE = schedules.Baseline(1024, 2**2.5, 10 / 2**5)
SMOOTHING, MOMENTUM, DECAY = 0.1, 0.9, 1e-4
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # usual for ImageNet: red, green, blue in bytes
CODE = ("folder", "imagenet", "labkit.models.resnet", "labkit.tasks.base", "labkit.tasks.images",
        *(f"labkit.optim.{name}" for name in ("dialects", "fused", "groups", "lars", "schedules")))
IN_WORKER = f"{WorkError.__module__}.{WorkError.__name__}: "  # how a worker process's last line of a traceback begins


def setting(batch: int, row: bool = False) -> tuple[schedules.Scaled, dict]:
    """Rate and warm-up at a batch by LEGW, and options of LARS; with `row`, where the laboratory left its own rule."""
    if row and batch != 32768:
        raise RequestError(f"--row is for batch 32768, whose published row leaves the rule; leave it away for {batch}")
    return (schedules.Scaled(batch, 2.0**5, 14.0), {"eps": 0.0}) if row else (schedules.legw(BASELINE, batch), {})


class Classifier(ImageClassification):
    """Images come as bytes and are normalised on the device; an evaluation adds top-5 and leaves padding out.
    (That all ranks judge with BatchNorm's statistics of rank 0, which it also saves, is Lightning's doing.)"""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.register_buffer("scale", torch.tensor([MEAN, STD]).view(2, 3, 1, 1), persistent=False)

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        return (batch[0] - self.scale[0]) / self.scale[1], batch[1]

    def sums(self, batch) -> torch.Tensor:
        logits, classes = self.model(batch[0]).float(), batch[1]
        hits = logits.topk(min(5, logits.shape[1])).indices == classes[:, None]
        loss = F.cross_entropy(logits, classes, reduction="sum", ignore_index=folder.PADDING)
        return torch.stack([loss, hits[:, 0].sum(), hits.sum(), (classes != folder.PADDING).sum()])

    def summary(self, totals: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(zip(("loss", "accuracy", "top5_accuracy"), totals[:3] / totals[3], strict=True))


class Batches:
    """Training batches from where the run stands. `position()`, the micro-batches that it has had, is asked when the
    first one is read: a resumed trainer knows it only then, and calls no hook for an epoch that it takes up again."""

    def __init__(self, length: int, order, position, **loader):
        self.length, self.order, self.position, self.loader = length, order, position, loader

    def __len__(self) -> int:
        return self.length

    def __iter__(self):
        epoch, done = divmod(self.position(), self.length)
        yield from DataLoader(batch_sampler=self.order(epoch, done), **self.loader)


class Clock(TimeToAccuracy):
    """Its lines are in each checkpoint, so that a resumed run is one run: the clock goes on from there, and what was
    trained after the checkpoint, and lost, is not counted."""

    def on_save_checkpoint(self, trainer, task, checkpoint) -> None:
        if run := self.writer and self.writer.run:
            checkpoint["labkit"] = [[dataclasses.asdict(line) for line in lines] for lines in (run.spans, run.rows)]

    def restore(self, path: Path) -> float:
        """Write them again; returns the seconds that the run had taken at that checkpoint."""
        spans, rows = torch.load(path, map_location="cpu", weights_only=False, mmap=True)["labkit"]
        for line in spans:
            self.writer.span(**line)
        for line in rows:
            self.writer.metric(**line)
        return spans[-1]["end"]


def readable(checkpoint: Path) -> None:
    """Refuse a checkpoint that is damaged or another program's, before anything is written."""
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=False, mmap=True)["labkit"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise RequestError(f"{checkpoint} is no sound checkpoint ({' '.join(str(error).split())[:100]}); "
                           "delete it and start again without --resume") from None


def train(given, began: float) -> str:
    """Train what the command line asks for; what to say of it on rank 0, elsewhere nothing."""
    rank, world, local = (int(os.environ.get(name, unset)) for name, unset in
                          (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1)))
    on_gpu, per_device = torch.cuda.is_available(), given.per_device or max(1, given.batch // world)
    for name, least in (("batch", 1), ("per_device", 1), ("size", 1), ("epochs", 1e-6), ("limit_steps", 1),
                        ("workers", 0), ("seed", 0)):
        if (value := getattr(given, name)) is not None:
            schedules.require_range(f"--{name.replace('_', '-')}", value, least)
    if given.batch % (per_device * world):
        raise RequestError(f"batch {given.batch} is no multiple of {per_device} images on each of {world} process(es); "
                           "choose another --batch or --per-device")
    classes, images, judged, checksum = folder.scan(given.folder)
    ready = time.perf_counter()
    per_epoch, accumulate = len(images.files) // given.batch, given.batch // (per_device * world)
    if not per_epoch:
        raise RequestError(f"batch {given.batch} is larger than the {len(images.files)} training images; choose less")
    scaled, options = setting(given.batch, given.row)
    options |= {"momentum": MOMENTUM, "dialect": given.dialect}
    warmup = schedules.warmup_iterations(scaled, len(images.files))
    plan = schedules.Schedule(scaled.rate, max(1, round(given.epochs * per_epoch)), warmup, decay="poly", power=2.0,
                              decay_from="warmup-end")
    steps = min(plan.total_steps, given.limit_steps or plan.total_steps)

    config = {name: getattr(given, name) for name in ("model", "size", "batch", "epochs", "precision")}
    config |= {"per_device": per_device, "processes": world, "optimizer": "lars", "options": options,
               "weight_decay": DECAY, "label_smoothing": SMOOTHING, "schedule": dataclasses.asdict(plan)}
    header = Header("imagenet", config, given.seed, code=fingerprint(CODE), software=machine.software(),
                    data={"name": given.folder.resolve().name, "checksum": checksum},
                    hardware=machine.hardware("cuda" if on_gpu else "cpu"))
    store = Store(Path(given.out).expanduser() if given.out else paths.store())
    last = store.folder / header.lab / header.identity / "last.ckpt"
    if (resumed := last.exists()) and not given.resume:
        raise RequestError(f"{last} is a checkpoint of this very run; go on from it by --resume, or delete it")
    if resumed:
        readable(last)
    if given.limit_steps:  # another run, of the same checkpoints
        header = dataclasses.replace(header, config={**config, "limit_steps": steps})

    torch.manual_seed(given.seed)
    model = models.build(given.model, (3, given.size, given.size), len(classes), zero_gamma=True)
    task = Classifier(model.to(memory_format=torch.channels_last) if on_gpu else model, lambda own: LARS(
        groups.parameter_groups(own.model, DECAY), lr=plan.peak, **options), plan, label_smoothing=SMOOTHING)
    reading = {"num_workers": given.workers, "pin_memory": on_gpu}
    order = (len(images.files), given.batch, per_device, rank, world, given.seed)
    batches = Batches(per_epoch * accumulate, lambda *at: folder.epoch_order(*order, *at), lambda: trainer.global_step
                      * accumulate, dataset=folder.Images(images, given.size, given.seed), **reading)
    evaluation = DataLoader(folder.Images(judged, given.size), **reading,
                            batch_sampler=folder.evaluation_order(len(judged.files), per_device, rank, world))
    with store.write(header) if rank == 0 else contextlib.nullcontext() as writer:
        clock = Clock(writer, given.batch, progress=Progress(steps, f"batch {given.batch}") if rank == 0 else None)
        saved = pl.callbacks.ModelCheckpoint(last.parent, last.stem, enable_version_counter=False)
        trainer = pl.Trainer(max_steps=steps, max_epochs=-1, accelerator="gpu" if on_gpu else "cpu", devices=local,
                             num_nodes=world // local, strategy="ddp" if world > 1 else "auto", benchmark=on_gpu,
                             precision=given.precision, accumulate_grad_batches=accumulate, num_sanity_val_steps=0,
                             use_distributed_sampler=False, logger=False, enable_progress_bar=False,
                             enable_model_summary=False, callbacks=[clock, saved])
        if rank == 0:
            writer.start = began - (clock.restore(last) if resumed else 0.0)
            writer.span("data", began - writer.start, ready - writer.start)
            writer.span("init", ready - writer.start, writer.now())
        trainer.fit(task, batches, evaluation, ckpt_path=last if resumed else None, weights_only=False)
        if clock.evaluated_at != trainer.global_step:
            trainer.validate(task, evaluation, verbose=False)
        if rank:
            return ""
        clock.progress.update(trainer.global_step)
        clock.progress.close()
        run = writer.finish()
    top1, top5 = (run.last(f"validation_{name}") for name in ("accuracy", "top5_accuracy"))
    return (f"{trainer.global_step} of {plan.total_steps} steps, peak rate {plan.peak:.4g}, warm-up {warmup:.1f}: "
            f"top-1 {top1:.4f}, top-5 {top5:.4f}\n{writer.path}\n")


def parser() -> cli.Parser:
    top = cli.Parser(prog="imagenet.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = top.add_argument
    add("folder", metavar="FOLDER", type=Path, help="holds train/<class>/ and val/<class>/ with the same classes")
    add("--batch", type=int, required=True, help="images of an optimizer step, over all processes")
    add("--per-device", type=int, help="images of a micro-batch, over which BatchNorm takes its statistics (published "
        "runs: 64 to 128); the rest of the batch is accumulated. Default: the whole share of a process")
    add("--row", action="store_true", help="at 32768 the published exception: warm-up 14 epochs, not 10, and eps 0")
    add("--dialect", choices=dialects.LARS, default="paper", help="of LARS; the published rows ran nus")
    add("--epochs", type=float, default=90.0)
    add("--limit-steps", type=int, help="stop there, on the schedule of the whole run")
    add("--resume", action="store_true", help="go on from this run's last checkpoint, where there is one")
    add("--precision", choices=("32-true", "bf16-mixed", "16-mixed"), default="32-true")
    add("--workers", type=int, default=8, help="processes that read images, for each rank")
    add("--model", choices=("resnet50", "resnet18", "resnet8"), default="resnet50")
    add("--size", type=int, default=224, help="pixels along a side")
    add("--seed", type=int, default=0)
    add("--out", metavar="DIR", help="of runs and checkpoints (default: LABKIT_STORE, or results/runs)")
    return top


def main(arguments=None) -> int:
    """Exit 0 done, 1 the work failed, 2 the request was wrong; one line says which."""
    began = time.perf_counter()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning\..*|PIL\..*")
    try:
        sys.stdout.write(train(parser().parse_args(arguments), began))
        if torch.distributed.is_initialized():  # a rank that leaves first would make its peers abort
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
    except (RequestError, WorkError, OSError) as error:
        # From a worker process a message comes as the end of a traceback. All ranks find out what is wrong to ask for.
        if isinstance(error, WorkError) or os.environ.get("LOCAL_RANK", "0") == "0":
            sys.stderr.write(f"imagenet.py: {str(error).strip().splitlines()[-1].removeprefix(IN_WORKER)}\n")
        return 2 if isinstance(error, RequestError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
