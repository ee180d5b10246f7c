"""The budget of exercise 06.4: a choice of what to say is trained, and what it sent is counted on the wire."""

import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from labkit.errors import RequestError, WorkError, choose
from labkit.training.compression import Memory
from labs import compressors, talking
from labs.answers import number, truth

WORKERS = 4
BUDGET, GOAL, LONGEST = 10_000, 0.80, 512  # bytes a worker, accuracy, steps
KNOWN = {"compressor": "terngrad", "options": {}, "tau": 512, "rate": 0.05, "steps": 512}
LEAST, TRIED = 4_032, 1_638  # bytes of KNOWN; the choices of a grid of which it passes with the fewest
SWITCHES = ("feedback", "masking")  # options that are True or False; all others are numbers
WHOLE = ("levels", "bucket", "bits", "stage", "rank", "start")


@dataclass(frozen=True)
class Played:
    """What came of a choice: accuracy of the common model on the 452 validation images, to choose by, and on the 452
    test images, which count; no worker has either. Bytes on the wire of each worker in all."""

    choice: dict
    validation: float = math.nan
    test: float = math.nan
    sent: float = math.inf
    problem: str | None = None


@functools.cache
def _digits() -> talking.Digits:
    return talking.Digits.load()


def play(choice) -> Played | None:
    """Train as chosen: {"compressor", "options", "tau", "rate", "steps"}; 4 workers, 16 samples each, seed 0. None
    while there is no choice."""
    if choice is None or _open(choice):
        return None
    wanted = ("compressor", "options", "tau", "rate", "steps")
    if not isinstance(choice, Mapping) or set(choice) != set(wanted):
        return Played({}, problem=f"give a dictionary with {', '.join(wanted)}")
    if problem := _problem(choice):
        return Played(dict(choice), problem=problem)
    tau, steps, rate = (number(choice[name]) for name in ("tau", "steps", "rate"))
    options = {name: truth(value) if name in SWITCHES else int(number(value)) if name in WHOLE else number(value)
               for name, value in choice["options"].items()}
    if choice["compressor"] == "powersgd":  # torch's begins with two whole exchanges, the paper's with none
        options = {"start": 0, **options}
    method = talking.Method("yours", choice["compressor"], options, int(tau))
    try:
        run = talking.compressed(_digits(), method, [rate], workers=WORKERS, steps=int(steps))
    except (RequestError, WorkError) as error:
        return Played(dict(choice), problem=str(error))
    if not run.validation[0] > 0 or not all(part.isfinite().all() for part in run.weights):  # 0: scores overflow
        return Played(dict(choice), problem=f"training diverged at rate {rate:g}: choose a smaller one")
    return Played(dict(choice), float(run.validation[0]), float(run.test[0]), run.sent)


def standing(played: Played) -> str:
    """Bytes and validation accuracy of a choice, beside the fewest bytes that are known to do."""
    return (f"{played.sent:,.0f} bytes a worker, validation accuracy {played.validation:.3f}. The fewest that we know "
            f"to pass: {LEAST:,}, the best of {TRIED:,} choices on a grid; fewer may be possible.")


def _open(part) -> bool:
    """Whether `...` still stands somewhere in it."""
    return part is ... or isinstance(part, Mapping) and any(map(_open, part.values()))


def _problem(choice: Mapping) -> str | None:
    tau, steps, rate = (number(choice[name]) for name in ("tau", "steps", "rate"))
    if not (1 <= tau <= steps <= LONGEST and tau == round(tau) and steps == round(steps)):
        return f"tau and steps must be whole, 1 <= tau <= steps <= {LONGEST}"
    if not 0 < rate < math.inf or not isinstance(choice["options"], Mapping):
        return "rate must be above 0, and options a dictionary such as {'density': 0.01}"
    try:
        choose("compressor", choice["compressor"], compressors.NAMES)
        for name in choice["options"]:
            choose(f"option of {choice['compressor']}", name, options_of(choice["compressor"]))
    except RequestError as error:
        return str(error)
    for name, value in choice["options"].items():
        if name in SWITCHES and truth(value) is None:
            return f"option {name} must be True or False, not {value!r}"
        if name not in SWITCHES and not math.isfinite(number(value)):
            return f"option {name} must be a number, not {value!r}"
        if name in WHOLE and number(value) % 1:
            return f"option {name} must be a whole number, not {value!r}"
    return None


def options_of(name: str) -> list[str]:
    """What may be chosen of a compressor: arguments of its maker, and of the memory that it comes with."""
    make, memory = compressors.NAMES[name]
    kept = [field.name for field in fields(Memory)] if isinstance(memory, Memory) else []
    return [*inspect.signature(make).parameters, *kept]


def kept(answer) -> str | None:
    """What is wrong with a choice, which is played here, whatever was found before; None: goal and budget are met."""
    choice = answer.choice if isinstance(answer, Played) else answer
    return judged(play(choice))


def judged(answer: Played | None) -> str | None:
    """What is wrong with what `play` returned."""
    if answer is None:
        return "fill in the whole choice"
    if answer.problem:
        return answer.problem
    if answer.sent > BUDGET:
        wire = answer.sent / (WORKERS - 1)
        more = f" (a wire of {wire:,.0f} bytes goes to {WORKERS - 1} others)" if wire <= BUDGET else ""
        return (f"each worker sent {answer.sent:,.0f} bytes{more}, {BUDGET:,} are allowed; validation "
                f"accuracy {answer.validation:.3f}: say less each time, or less often")
    if not answer.validation >= GOAL:
        return (f"{answer.sent:,.0f} bytes are within the budget, but the validation accuracy is "
                f"{answer.validation:.3f}, below {GOAL}: spend them otherwise, or try another rate")
    if not answer.test >= GOAL:
        return (f"validation accuracy {answer.validation:.3f} was enough to choose by, but on the test images, which "
                f"count, it stays below {GOAL}: leave a margin")
    return None
