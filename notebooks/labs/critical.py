"""What lab 10 reads off its runs: the table of steps, the fit with its interval, and the prediction from a noise scale.

The measurements that decide verdicts are in `labs.rules_critical`; here they are put together for figures.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from labkit.optim.noise import noise_scale
from labs import plan10
from labs.plan10 import Profile
from labs.rules_critical import at_edge, best, by_cell, crossing, interval, knee_fit, resampled, steps_table, value_at
from labs.rules_critical_noise import noise_runs, path_noise


@dataclass
class Study:
    """Steps to the target on one kind of images, from runs that share all but batch and rate.

    Attributes:
        table: {batch: {rate: [steps of each seed]}}. best: {batch: (rate, steps)}, where the target was reached.
        floor, knee, rms: of the fit steps = floor (1 + knee / B); NaN with fewer than three batches.
        low, high: 95 % interval of the knee, a bootstrap over seeds; equal to it with one seed.
        top, rate_knee: of the fit best rate = top / (1 + rate_knee / B).
        scales: {seed: noise scale over the path to the target}.
    """

    runs: list
    target: float
    noise_runs: dict = field(default_factory=dict)

    def __post_init__(self):
        self.table, self.cells = steps_table(self.runs, self.target), by_cell(self.runs)
        self.best = best(self.table)
        self.edges, self.batches = at_edge(self.table, self.best), list(self.best)
        self.floor = self.knee = self.rms = self.low = self.high = self.top = self.rate_knee = math.nan
        self.scales = {seed: path_noise(run, self.target) for seed, run in self.noise_runs.items()}
        self.scales = {seed: scale for seed, scale in self.scales.items() if math.isfinite(scale)}
        if len(self.best) < 3:
            return
        rates, steps = zip(*self.best.values(), strict=True)
        self.floor, self.knee, self.rms = map(float, knee_fit(self.batches, steps))
        self.low, self.high = interval(knee_fit(self.batches, resampled(self.table)[1])[1])
        inverse, knee, _ = knee_fit(self.batches, [1 / rate for rate in rates])
        self.top, self.rate_knee = float(1 / inverse), float(knee)

    @property
    def seeds(self) -> int:
        return max((len(steps) for cells in self.table.values() for steps in cells.values()), default=0)

    @property
    def scale(self) -> float:
        """The noise scale: geometric mean over the seeds."""
        return float(np.exp(np.mean(np.log(list(self.scales.values()))))) if self.scales else math.nan

    def at_target(self, batch: int, metric: str) -> list[float]:
        """A metric at the step where the training loss meets the target, for each seed at the best rate."""
        runs = self.cells[batch][self.best[batch][0]].values()
        return [value_at(run, crossing(run, self.target), metric) for run in runs]

    def words(self) -> str:
        """The fit in one sentence."""
        if not math.isfinite(self.knee):
            return "the target was reached at fewer than three batches: no fit"
        span = f" [{self.low:.0f}, {self.high:.0f}]" if self.high > 1.001 * self.low else " (one seed: no interval)"
        return f"at least {self.floor:.0f} steps; critical batch {self.knee:.0f}{span}; rms of log steps {self.rms:.2f}"


def study(runs, settings: Profile, noise: float | None = None) -> Study:
    """The runs of one table: the digits, or the generated images at a noise level."""
    shared = {"data": "mnist5k" if noise is None else "procedural", "train": settings.train, "noise": noise,
              "sizes": {"width": settings.width, "depth": 1}, "options": {"momentum": 0.0}, "sampling": "replacement",
              "pool": 1 if noise is None else 2}  # fmt: skip
    mine = [run for run in runs if all(run.config.get(key) == value for key, value in shared.items())]
    watched = [run for run in mine if run.config["batch"] == settings.noise_batch]
    return Study([run for run in mine if run.config["accumulate"] == 1], settings.target,
                 noise_runs(watched, {"accumulate": settings.noise_parts}))  # fmt: skip


def control_arms(runs, settings: Profile) -> dict:
    """{"growth", "momentum", "updates": {arm: runs}} among runs, by the recipes that the settings ask for."""
    momenta = {f"m = {r.options['momentum']:g}, batch {r.batch}": r for r in plan10.momenta(settings)}
    plans = {"growth": plan10.growth(settings), "momentum": momenta, "updates": plan10.equal_updates(settings)}

    keys = ("train", "sizes", "options", "batch", "rate", "epochs", "decay")

    def same(run, recipe) -> bool:
        equal = all(run.config.get(key) == getattr(recipe, key) for key in keys)
        return equal and run.config.get("callbacks", []) == list(recipe.callbacks)

    return {kind: {name: [run for run in runs if "evidence" not in run.config and same(run, recipe)]
                   for name, recipe in plan.items()} for kind, plan in plans.items()}  # fmt: skip


def estimates(trace: float, square: float, small: int, parts: int, draws: int, seed: int = 0):
    """(tr Sigma, |G|^2) estimated `draws` times on a quadratic 0.5 |w - x|^2 in ten dimensions, whose gradient at one
    sample is G plus normal noise of covariance (trace / 10) times the identity. Arrays [draws]."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((draws, parts, small, 10)) * math.sqrt(trace / 10)
    gradients = math.sqrt(square / 10) + noise.mean(2)
    return noise_scale((gradients**2).sum(-1).mean(1), (gradients.mean(1) ** 2).sum(-1), small, small * parts)


def errors_of_mean(values, truth: float) -> float:
    """How many standard errors a mean lies from the truth."""
    return float(abs(np.mean(values) - truth) / (np.std(values, ddof=1) / math.sqrt(len(values))))


def gain(knee: float, images: int, workers):
    """(times fewer steps, times as many examples) of `workers` with `images` each, against one such worker."""
    batch = images * np.asarray(workers, float)
    fewer = (1 + knee / images) / (1 + knee / batch)
    return fewer, np.asarray(workers, float) / fewer
