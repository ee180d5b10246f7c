"""All that wants a GPU, in one sitting: `python tests/gpu/run.py [--out DIR] [--minutes 8] [--device cuda]`.

Five parts, each a process with a share of the minutes; what one leaves over, the next may use. A part that would run
over is stopped and keeps the numbers it has, one that fails is recorded, and the next begins. `DIR/record.json` is
written anew after each; `DIR/runs` holds the trained runs. Exit status: 0, all parts were done or stopped; 1, one
failed; 2, the request was wrong. `--device cpu --tiny` runs all parts on small things to test the script; its numbers
mean nothing."""
# ruff: noqa: E402

import argparse
import contextlib
import copy
import json
import math
import multiprocessing
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path

BEGAN = time.time()  # unlike perf_counter, the same in every process
# Before CUDA starts, and for the process that compiles: else a convolution in float32 would really be one in TF32.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "notebooks")]

import pandas as pd
import torch
from labs import plan13, times, utilisation
from labs.trace import Trace, trace
from pytorch_lightning.callbacks import LambdaCallback
from torch.nn import functional as F

from labkit import experiment, machine, models, paths
from labkit.datasets.download import available
from labkit.errors import RequestError, WorkError, choose
from labs import roofline
from runner import results
from labkit.optim import build
from labkit.optim.schedules import require_range
from labkit.runs import Store
from labkit.tta import clock, statistics

SHARES = {"runs": 0.62, "kernels": 0.06, "roofline": 0.08, "precision": 0.18, "optimizers": 0.06}
RATES = {"lars": 0.5, "lamb": 0.01}
WARM_UP = 10**6  # a seed that no run has


@dataclass(frozen=True)
class GpuRecipe(experiment.Recipe):
    """A recipe with what `arrange` adds to the task, so that the run's header tells it."""
    label_smoothing: float = 0.1
    channels_last: bool = True


# The target was written down before any run on a GPU.
FULL = GpuRecipe(data="fashion-mnist", train=55000, validation=5000, model="resnet9", sizes={"width": 32}, batch=1024,
                 rate=0.5, epochs=8.0, warmup_steps=106, decay="poly", augment=("flip",), evaluate_every=53,
                 decay_options={"power": 1.0, "decay_from": "warmup-end"}, evaluate_on=("validation",),
                 options={"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
                 target={"metric": "validation_accuracy", "value": 0.92, "higher": True})
TINY = replace(FULL, data="procedural", noise=0.1, train=256, validation=64, test=64, pool=2, sizes={"width": 4},
               batch=32, rate=0.2, warmup_steps=8, epochs=4.0, evaluate_every=8, target={**FULL.target, "value": 0.2})
LAB_13 = plan13.Profile(models=["resnet9"], model="resnet9", pool=1, batch=512, batches=[1, 16, 128, 1024],
                        compile_patience=120.0)
TINY_13 = plan13.Profile(models=["resnet8"], batch=8, batches=[1, 8], rounds=3)


def arrange(trainer, task, stage) -> None:
    """Before the model goes to its device."""
    task.label_smoothing = GpuRecipe.label_smoothing
    task.model.to(memory_format=torch.channels_last)


class Bench:
    """The parts: each yields its numbers as they come (`says`: a line for a reader); `left()` are its seconds."""

    def __init__(self, device: str, tiny: bool, out: Path):
        self.device, self.out, self.count, self.on_gpu = device, out, 20, device == "cuda"
        bfloat16 = not self.on_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
        self.recipe = replace(TINY if tiny else FULL, device=device, precision=f"{'bf' * bfloat16}16-mixed")
        self.settings = TINY_13 if tiny else LAB_13
        self.sizes = (128, 8, 2) if tiny else (8192, 1024, 9)  # side of the product, MiB copied, repeats

    def train(self, recipe: GpuRecipe, folder: str, repeat: int):
        callbacks = [LambdaCallback(setup=arrange)]
        return experiment.train(recipe, Store(self.out / folder), lab="gpu", repeat=repeat, callbacks=callbacks)

    def runs(self, left):
        """Time to accuracy. What is slow only once (the context, cuDNN's choices) goes into one epoch that is thrown
        away: its seconds, `warm_up_s`, are in no run."""
        begin, slowest, runs = time.perf_counter(), 0.0, []
        self.train(replace(self.recipe, epochs=1.0, target=None), "warm-up", WARM_UP)
        yield {"warm_up_s": time.perf_counter() - begin}
        for repeat in range(self.count):
            if left() < 1.1 * slowest:
                yield {"stopped": f"{repeat} of {self.count} runs fitted into its time"}
                break
            begin = time.perf_counter()
            runs.append(self.train(self.recipe, "runs", repeat))
            slowest = max(slowest, time.perf_counter() - begin)
            yield reading(runs)

    def traced(self, dtype: str) -> tuple[utilisation.Step, Trace]:
        """Lab 13's step with the recipe's network, which is narrower, in a number format, and its trace."""
        step = utilisation.Step(self.recipe.model, self.recipe.batch, self.recipe.pool, self.device, dtype)
        step.model = models.build(self.recipe.model, tuple(step.images.shape[1:]), **self.recipe.sizes)
        step.model.to(self.device, memory_format=torch.channels_last)
        step.optimizer = torch.optim.SGD(step.model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        return step, trace(step, self.device, self.sizes[2])

    def kernels(self, left):
        for dtype in roofline.DTYPES:
            _, one = self.traced(dtype)
            units = "not observable on a CPU" if one.matrix_units is None else round(one.matrix_units, 3)
            shares = {kind: part.seconds / one.profiled for kind, part in one.kinds.items()}
            most = ", ".join(f"{kind} {shares[kind]:.0%}" for kind in sorted(shares, key=shares.get, reverse=True)[:4])
            yield {dtype: {"step_s": one.seconds, "profiled_s": one.profiled, "shares": shares, "matrix_units": units,
                           "says": f"{most}; matrix units {units}" + " of kernel time" * self.on_gpu}}

    def roofline(self, left):
        for dtype in roofline.DTYPES:
            try:
                roof, (step, one) = roofline.measure(dtype, self.device, *self.sizes), self.traced(dtype)
            except WorkError as error:
                yield {dtype: {"says": str(error)}}
                continue
            rounds = utilisation.peak_rounds(step, one.flops, self.sizes[0], self.settings.rounds)
            share, kinds = statistics.median(rounds["of_peak"]), {k: asdict(part) for k, part in one.kinds.items()}
            achieved = rounds["achieved"].median()
            yield {dtype: {**asdict(roof), "achieved": achieved, "of_peak": asdict(share), "kinds": kinds,
                           "says": f"peak {roof.peak / 1e12:.3g} TFLOP/s, {roof.bandwidth / 1e9:.4g} GB/s; step "
                                   f"{achieved / 1e12:.3g} TFLOP/s, {share.value:.1%} of the peak"}}

    def precision(self, left):
        """Lab 13's numbers, for its own network; compiling comes last and gets the time that is left."""
        steps, left_out = utilisation.variants(self.settings, self.device)
        table = utilisation.speed_ups(utilisation.paired(steps, self.settings.rounds, self.device), utilisation.BASE)
        rows = table.to_dict("records")
        says = "; ".join(f"{row['name']} x {row['speed-up']:.2f}" for row in rows)
        yield {"variants": {"rows": rows, "left_out": left_out, "says": says}}
        rows = utilisation.batch_table(utilisation.by_batch(self.settings, self.device)).to_dict("records")
        best = max(rows, key=lambda row: row["images/s"])
        says = "at most {images/s:.0f} images/s, {what}, batch {batch}".format(**best)
        yield {"batches": {"rows": rows, "says": says}}
        patience = max(0.0, min(self.settings.compile_patience, left() - 5))
        one = utilisation.compiled(replace(self.settings, compile_patience=patience), self.device)
        says = one
        if not isinstance(one, str):
            timings = pd.DataFrame(one["timings"], columns=["round", "name", "seconds"])
            gain = utilisation.speed_ups(timings, utilisation.BASE).set_index("name").loc["torch.compile", "speed-up"]
            says = f"x {gain:.2f} after {one['compile']:.0f} s of compiling"
        yield {"torch.compile": {"result": one, "says": says}}

    def optimizers(self, left):
        """What is promised of LARS and LAMB on a GPU."""
        failed = []
        for name in build.LAYERWISE:
            for check in (self.no_wait, self.as_on_cpu, self.loss_scaling):
                what, says = f"{name}, {check.__name__}", "passed"
                try:
                    if self.on_gpu or check == self.loss_scaling:
                        check(name)
                    else:
                        says = "skipped: needs a GPU"
                except (AssertionError, RuntimeError) as error:
                    says = f"failed: {str(error)[:300]}"
                    failed.append(what)
                yield {what: {"says": says}}
        if failed:
            raise WorkError("; ".join(failed))

    def learner(self, name: str, device: str):
        """(model, optimizer, function that gives a loss): products only, which repeat themselves bit by bit."""
        torch.manual_seed(0)
        model, x, y = models.build("deep-mlp").to(device), torch.rand(64, 784).to(device), torch.arange(64) % 10
        optimizer = build.build(name, model, rate=RATES[name], weight_decay=1e-4)
        return model, optimizer, lambda: F.cross_entropy(model(x), y.to(device))

    def no_wait(self, name: str) -> None:
        _, optimizer, loss = self.learner(name, self.device)
        for _ in range(3):  # the first makes the state
            (value := loss()).backward()
            torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
                with contextlib.suppress(RuntimeError):  # the mode has to notice a wait, or it proves nothing
                    float(value)
                    raise AssertionError("torch did not notice a wait")
            finally:
                torch.cuda.set_sync_debug_mode("default")

    def as_on_cpu(self, name: str) -> None:
        (ours, one, _), (theirs, other, _) = (self.learner(name, device) for device in (self.device, "cpu"))
        for _ in range(3):
            for here, there in zip(ours.parameters(), theirs.parameters(), strict=True):
                there.grad = torch.randn_like(there)
                here.grad = there.grad.to(self.device)
            one.step(), other.step()
        for here, there in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(here.cpu(), there, rtol=1e-4, atol=1e-6)

    def loss_scaling(self, name: str) -> None:
        """A scaled step is the plain step; an overflow moves nothing and halves the scale."""
        (plain, one, plain_loss), (model, optimizer, loss) = (self.learner(name, self.device) for _ in range(2))
        scaler = torch.amp.GradScaler(self.device, init_scale=1024.0)
        plain_loss().backward()
        one.step()
        for overflow in (False, True):
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            wanted = copy.deepcopy((model if overflow else plain).state_dict())
            if overflow:
                next(model.parameters()).grad.fill_(math.inf)
            scaler.step(optimizer)
            scaler.update()
            torch.testing.assert_close(dict(model.state_dict()), dict(wanted), rtol=1e-5, atol=1e-7)
        assert scaler.get_scale() == 512, f"the scale is {scaler.get_scale()} after an overflow, not 512"


def reading(runs: list) -> dict:
    """What each clock rule publishes for these runs, or why nothing, and the statistics of those that judge one run."""
    final = {f"{part}_accuracy": [run.last(f"{part}_accuracy") for run in runs] for part in ("validation", "test")}
    target, mean = runs[0].header.target["value"], sum(final["test_accuracy"]) / len(runs)
    says = f"{times.kept(runs)} of {len(runs)} end at {target:g} or above; mean test accuracy {mean:.4f}"
    found = {"n": len(runs), "final": {**final, "says": says}}
    for name, rule in clock.RULES.items():
        answer = clock.score(runs, name)
        row = found[name] = {"score": rule.score, "seconds": answer.seconds, "why_not": answer.reason}
        if rule.per == "run":
            row["times"] = times.seconds_to_target(runs, name)
            row |= statistics.summary(row["times"], times.full_cost(runs, name))
            says = (f"{row['reached']} of {row['n']} reached, median {times.in_seconds(row['median'])}, "
                    f"variation {times.percent(row['cov'])}, expected {times.in_seconds(row['expected'])}")
        else:
            says = f"one run is {clock.time_to_target(runs[0], name)}"
        row["says"] = f"{rule.score} {answer}{answer.reason and f' ({answer.reason})'}; {says}"
    return found


def work(part, until: float, pipe) -> None:
    """What a part's process does: send the numbers as they come, then how it ended."""
    torch.backends.cudnn.benchmark = True
    try:
        for numbers in part(lambda: until - time.time()):
            pipe.send((numbers, ""))
        pipe.send(({}, "done"))
    except Exception as error:
        status = f"failed: {type(error).__name__}: {str(error)[:200]}"
        pipe.send(({"traceback": traceback.format_exc()}, status))


def perform(parts: dict, shares: dict, seconds: float, keep, began: float) -> None:
    """Do the parts in order, each until its share of the seconds is over; `keep(records)` is called after each."""
    records, until, spawn = [], began, multiprocessing.get_context("spawn")  # a fork could not use CUDA
    for name, part in parts.items():
        start, until, numbers, status = time.time(), until + shares[name] * seconds, {}, ""
        here, there = spawn.Pipe(duplex=False)
        child = spawn.Process(target=work, args=(part, until, there), daemon=True)
        child.start()
        there.close()
        try:
            while not status and here.poll(max(0.0, until - time.time())):
                found, status = here.recv()
                numbers |= found
            status = status or f"stopped: over its time ({max(0.0, until - start):.0f} s)"
        except EOFError:
            child.join()
            status = f"failed: its process ended with exit code {child.exitcode}"
        child.kill()
        child.join()
        status = f"stopped: {numbers['stopped']}" if "stopped" in numbers else status
        records.append({"part": name, "status": status, "wall_s": time.time() - start, "numbers": numbers})
        keep(records)


def request() -> argparse.Namespace:
    """The command line, checked before anything starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="a new or empty folder (default: a new one in results/)")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together (default 8)")
    parser.add_argument("--device", default="cuda", help="cuda (CUDA_VISIBLE_DEVICES picks which), or cpu")
    parser.add_argument("--tiny", action="store_true", help="small things only: tests the script, measures nothing")
    asked = parser.parse_args()
    choose("device", asked.device, ("cuda", "cpu"))
    require_range("--minutes", asked.minutes, open_low=True)
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise RequestError("device cuda is not there: torch sees no CUDA GPU; --device cpu --tiny tests the script")
    if not asked.tiny and not available("fashion-mnist"):
        raise RequestError("fashion-mnist is not here; run: python -m labkit data fetch fashion-mnist, or set "
                           "LABKIT_DATA to a folder with its four files")
    stamp = time.strftime("gpu_%Y-%m-%d_%H-%M-%S")
    asked.out = Path(asked.out).expanduser().resolve() if asked.out else paths.results() / stamp
    if asked.out.is_dir() and any(asked.out.iterdir()):
        raise RequestError(f"--out {asked.out} holds files; choose a new or empty folder")
    results.writable(asked.out, "--out")
    return asked


def main() -> int:
    try:
        asked = request()
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2
    bench, file = Bench(asked.device, asked.tiny, asked.out), asked.out / "record.json"
    software = machine.software() | {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    top = {"began": results.now(), "tiny": asked.tiny, "hardware": machine.hardware(asked.device), "software": software,
           "tf32_override": os.environ["NVIDIA_TF32_OVERRIDE"], "recipe": asdict(bench.recipe)}

    def keep(records: list[dict]) -> None:
        top["parts"] = records
        # JSON lacks infinity and NaN: they become text.
        plain = json.loads(json.dumps(top, default=lambda number: number.item()), parse_constant=str)
        file.with_suffix(".tmp").write_text(json.dumps(plain, indent=1))
        os.replace(file.with_suffix(".tmp"), file)
        print("{part:<11}{wall_s:6.1f} s  {status}".format(**records[-1]), flush=True)

    perform({name: getattr(bench, name) for name in SHARES}, SHARES, 60 * asked.minutes, keep, BEGAN)
    print(f"\nOn {top['hardware']['device']} with torch {software['torch']}, {top['began']}; record: {file}")
    for record in top["parts"]:
        for name, row in record["numbers"].items():
            if isinstance(row, dict):
                print(f"{record['part']:<11}{name}: {row['says']}")
    return int(any(record["status"].startswith("failed") for record in top["parts"]))


if __name__ == "__main__":
    sys.exit(main())
