"""The parts of one timed run: its loaders, its checkpoints, and the figure of its ledger.

When not to use it: for the spread of repeated runs; that is `labs.times`.
"""

import logging
import warnings
from pathlib import Path

import pandas as pd
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from labkit.experiment import Recipe
from labkit.runs import Run
from labkit.teach import viz
from labkit.tta import clock
from labs.times import KINDS, at, segments


class SaveAtStartAndAfterEvaluations(pl.Callback):
    """Saves a checkpoint to `path` when training starts and after each evaluation: clock rules differ on these."""

    def __init__(self, path: str | Path):
        self.path = path

    def on_train_start(self, trainer, module) -> None:
        trainer.save_checkpoint(self.path)

    def on_validation_end(self, trainer, module) -> None:
        trainer.save_checkpoint(self.path)


def quiet(device: str) -> dict:
    """Trainer options for one device that write, log and show nothing; Lightning's advice is silenced for good.

    It advises on worker processes and logging, which do not matter for data that is in memory.
    """
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"pytorch_lightning\..*")
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    accelerator = "gpu" if device == "cuda" else "cpu"
    return {**dict.fromkeys(off, False), "num_sanity_val_steps": 0, "accelerator": accelerator, "devices": 1}


def loaders(recipe: Recipe) -> tuple[DataLoader, DataLoader]:
    """(training, validation) loaders of the recipe's images [n, c, h, w], scaled to mean 0 and standard deviation 1."""
    data = recipe.load()
    train, validation = (
        TensorDataset(torch.tensor((x / 255 - data.mean) / data.std, dtype=torch.float32), torch.tensor(y))
        for x, y in ((data.train_x, data.train_y), (data.validation_x, data.validation_y))
    )
    return DataLoader(train, recipe.batch, shuffle=True, drop_last=True), DataLoader(validation, 512)


def ledger_figure(run: Run):
    """One run's spans, a row a kind, and what each clock rule counts, up to the first crossing (else to the end)."""
    row = clock.first_crossing(run, at(run))
    until = row.when if row else max(span.end for span in run.spans)
    fig, (upper, lower) = viz.figure(rows=2, width=viz.MAX_WIDTH, height=3.6, sharex=True)
    for place, (kind, colour) in enumerate(KINDS.items()):
        spans = [span for span in run.spans if span.kind == kind and span.start < until]
        spans = [(span.start, min(span.end, until) - span.start) for span in spans]
        upper.broken_barh(spans, (place - 0.4, 0.8), color=colour)
        upper.text(until * 1.02, place, f"{sum(length for _, length in spans):.3f} s", va="center", fontsize=8)
    table = []
    for place, (name, rule) in enumerate(clock.RULES.items()):
        answer = clock.time_to_target(run, name)
        alone = answer.seconds is not None
        if alone:
            lower.broken_barh([(a, b - a) for a, b in segments(run, name, until)], (place - 0.4, 0.8), color=viz.YOURS)
        label = f"{answer.seconds:.3f} s" if answer else "not reached" if alone else "not answerable"
        lower.text(until * 1.02, place, label, va="center", fontsize=8)
        counts = [kind for kind in KINDS if kind in rule.counts] + ["gaps"] * rule.gaps
        table.append({"clock rule": name, "answer": str(answer), "counts": ", ".join(counts)})
    for ax, names, title in ((upper, KINDS, "what happened"), (lower, clock.RULES, "what each clock rule counts")):
        ax.set_yticks(range(len(names)), names)
        ax.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, until * 1.2), title=title)
        ax.set_axisbelow(True)
    lower.set_xlabel(f"seconds from the start of the run to its {'first crossing' if row else 'end: it never crossed'}")
    words = "; ".join(f"{line['clock rule']} {line['answer']}" for line in table)
    return fig, f"One run, seconds by clock rule: {words}.", pd.DataFrame(table)
