"""Lab 10 by profile: what it trains, as lists of recipes. The notebook trains them; nothing else does."""

import math
from dataclasses import dataclass, replace

from labkit.errors import RequestError
from labkit.experiment import Recipe
from labkit.profiles import setting
from labkit.runs import Run

NOISE = "labkit.optim.noise.GradientNoise"
CONTROLS = "labs.critical_controls"


@dataclass(frozen=True)
class Profile:
    """Lab 10: steps to a target against batch and rate, the noise scale, and controls."""

    train: int = setting(4096, "training images", least=64, most=4096)
    test_images: int = setting(904, "test images", least=1, most=904)
    width: int = setting(128, "hidden units", least=1)
    target: float = setting(0.1, "training loss to be reached", above=0)
    batches: list[int] = setting([8, 32, 128, 512], "batch sizes, increasing", least=2)
    rate_step: float = setting(1.0, "octaves between neighbouring rates", above=0, most=2)
    rate_reach: float = setting(1.0, "octaves of rates on each side of the guess", least=0, most=4)
    seeds: int = setting(1, "seeds of the table, counted from the first of `seeds`", least=1)
    cap: float = setting(2.0, "length of a run, in multiples of the steps that are expected", above=0)
    noise_batch: int = setting(64, "batch of the runs that measure the noise scale", least=2)
    noise_parts: int = setting(4, "micro-batches into which that batch is split", least=2)
    noise_seeds: int = setting(1, "seeds of those runs", least=1)
    knob: list[float] = setting([0.1, 0.9], "noise levels of the generated images, increasing", above=0, most=2)
    knob_batches: list[int] = setting([16, 128, 1024], "batch sizes at each noise level", least=2)
    knob_rate_step: float = setting(1.0, "octaves between neighbouring rates there", above=0, most=2)
    knob_seeds: int = setting(1, "seeds there", least=1)
    control_epochs: int = setting(6, "epochs of the controls", least=4)
    control_batch: int = setting(16, "small batch of the controls", least=2)
    large_batch: int = setting(256, "large batch of the controls", least=4)
    momenta: list[float] = setting([0.0, 0.9], "momentum m, whose batch grows as 1 / (1 - m)", least=0, most=0.99)
    control_seeds: int = setting(1, "seeds of the controls", least=1)
    ghost_seeds: int = setting(1, "seeds of those with equal updates, which are long", least=1)

    def __post_init__(self):
        for name in ("batches", "knob_batches"):
            values = getattr(self, name)
            if values != sorted(values) or len(values) < 3:
                raise RequestError(f"{name} {values} must be three sizes or more, increasing")
        if self.knob != sorted(self.knob):
            raise RequestError(f"knob {self.knob} must be increasing")
        largest = {name: max(getattr(self, name)) for name in ("batches", "knob_batches")}
        largest |= {"noise_batch": self.noise_batch, "large_batch": self.large_batch,
                    "momenta": max(momentum_batch(self, m) for m in self.momenta)}  # fmt: skip
        for name, batch in largest.items():
            if batch > self.train:
                raise RequestError(f"{name} asks for a batch of {batch}, more than the {self.train} training images")
        if self.noise_batch % self.noise_parts:
            raise RequestError(f"noise_batch {self.noise_batch} cannot be split into {self.noise_parts} equal parts")
        if self.large_batch % self.control_batch or self.large_batch == self.control_batch:
            raise RequestError(f"large_batch must be a multiple of control_batch {self.control_batch} and larger")


def expected(noise: float | None) -> tuple[float, float]:
    """(steps at a very large batch, critical batch) as a trial saw them, roughly: only the length of runs uses it."""
    return (81.0, 114.0) if noise is None else (30.0 + 75.0 * noise, 30.0 + 200.0 * noise)


def guess(noise: float | None, batch: int) -> float:
    """log2 of a rate near the best one of that trial, a multiple of 1/2: the middle of the rates that are tried."""
    top, knee = (0.57, 60) if noise is None else (0.6 + 1.3 * noise, 10 + 120 * noise)
    return round(2 * math.log2(top / (1 + knee / batch))) / 2


def rates(settings: Profile, noise: float | None, batch: int, step: float) -> list[float]:
    count = round(settings.rate_reach / step)
    return [2.0 ** (guess(noise, batch) + n * step) for n in range(-count, count + 1)]


def base(settings: Profile, noise: float | None, batch: int, rate: float, steps: int, **rest) -> Recipe:
    """A constant rate, no momentum, samples drawn with replacement; evaluated about 64 times."""
    images = {"data": "mnist5k", "validation": 0, "test": settings.test_images} if noise is None else {
        "data": "procedural", "pool": 2, "noise": noise, "test": settings.test_images}  # fmt: skip
    options = {"options": {"momentum": 0.0}, "evaluate_every": max(1, steps // 64),
               "evaluate_on": ("train", "test"), "sampling": "replacement", **rest}  # fmt: skip
    return Recipe(train=settings.train, sizes={"width": settings.width, "depth": 1}, batch=batch, rate=rate,
                  epochs=steps / (settings.train // batch), **images, **options)  # fmt: skip


def length(settings: Profile, noise: float | None, batch: int) -> int:
    """Steps of a run: `cap` times as many as are expected."""
    floor, knee = expected(noise)
    return math.ceil(settings.cap * floor * (1 + knee / batch))


def table(settings: Profile) -> list[Recipe]:
    """Batch x rate on the digits: what the critical batch size is read from."""
    return [base(settings, None, batch, rate, length(settings, None, batch))
            for batch in settings.batches for rate in rates(settings, None, batch, settings.rate_step)]  # fmt: skip


def knob(settings: Profile, noise: float) -> list[Recipe]:
    """The same, smaller, at one noise level of the generated images."""
    return [base(settings, noise, batch, rate, length(settings, noise, batch)) for batch in settings.knob_batches
            for rate in rates(settings, noise, batch, settings.knob_rate_step)]  # fmt: skip


def noise_run(settings: Profile, noise: float | None = None) -> Recipe:
    """One run whose noise scale and distance from its start are followed, at the guessed rate of its batch."""
    batch = settings.noise_batch
    watched = ({"name": NOISE}, {"name": f"{CONTROLS}.DistanceFromStart"})
    return base(settings, noise, batch, 2.0 ** guess(noise, batch), length(settings, noise, batch),
                accumulate=settings.noise_parts, callbacks=watched)  # fmt: skip


def control(settings: Profile, batch: int, rate: float, epochs: float, **rest) -> Recipe:
    options = {"options": {"momentum": 0.9}, **rest}
    return Recipe(train=settings.train, validation=0, test=settings.test_images, sizes={"width": 64, "depth": 2},
                  batch=batch, rate=rate, epochs=epochs, **options)  # fmt: skip


def growth(settings: Profile) -> dict[str, Recipe]:
    """The rate divided by four twice, or the batch multiplied by four twice, at the same epochs."""
    batch, epochs = settings.control_batch, settings.control_epochs
    marks = [epochs // 2, 3 * epochs // 4]
    per_epoch = settings.train // batch
    stepped = {"decay": "multistep", "decay_options": {"milestones": [m * per_epoch for m in marks], "gamma": 0.25}}
    grow = {"name": f"{CONTROLS}.GrowBatch", "milestones": marks, "factor": 4, "epochs": epochs, "batch": batch}
    still = {**grow, "milestones": [], "factor": 1}
    return {"rate decays": control(settings, batch, 2.0**-5, epochs, **stepped, callbacks=(still,)),
            "batch grows": control(settings, batch, 2.0**-5, epochs, callbacks=(grow,)),
            "neither": control(settings, batch, 2.0**-5, epochs, callbacks=(still,))}  # fmt: skip


def momentum_batch(settings: Profile, momentum: float) -> int:
    return round(settings.control_batch / (1 - momentum))


def momenta(settings: Profile) -> list[Recipe]:
    """Batch proportional to 1 / (1 - m) at one rate and equal epochs: the effective rate grows with the batch."""
    return [control(settings, momentum_batch(settings, m), 2.0**-4, settings.control_epochs, options={"momentum": m})
            for m in settings.momenta]  # fmt: skip


def equal_updates(settings: Profile) -> dict[str, Recipe]:
    """With batch normalisation: a small batch; a large one at sqrt(k) times the rate, for equal epochs and updates."""
    small, large, epochs = settings.control_batch, settings.large_batch, settings.control_epochs // 2
    k, rate = large // small, 2.0**-6
    ghost = ({"name": f"{CONTROLS}.Normalise", "ghost": small},)
    whole = ({"name": f"{CONTROLS}.Normalise", "ghost": 0},)
    scaled = rate * math.sqrt(k)
    return {"small": control(settings, small, rate, epochs, callbacks=whole),
            "large, equal epochs": control(settings, large, scaled, epochs, callbacks=whole),
            "large, equal epochs, ghosts": control(settings, large, scaled, epochs, callbacks=ghost),
            "large, equal updates": control(settings, large, scaled, epochs * k, callbacks=whole),
            "large, equal updates, ghosts": control(settings, large, scaled, epochs * k, callbacks=ghost)}  # fmt: skip


def kept(run: Run) -> Run:
    """What the recorded sweep keeps of a run that was trained together with others: the two metrics that the rules and
    figures read, up to the second evaluation after the target was met, and the last one; no times, which are nobody's.
    """
    if run.header.arms == 1:
        return run
    rows = [replace(row, when=0.0) for row in run.rows if row.name in ("train_loss", "test_accuracy")]
    met = [row.step for row in rows if row.name == "train_loss" and row.value <= Profile().target]
    until = met[:3][-1] if met else math.inf
    last = rows[-1].step if rows else 0
    return replace(run, spans=[], rows=[row for row in rows if row.step <= until or row.step == last])
