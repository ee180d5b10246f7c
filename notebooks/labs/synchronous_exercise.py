"""Referee of exercise 04.1: a learner's SGD runs on virtual ranks, and wrong weights are explained by the usual slips:
those that one process would have made with the same mistake, alone or with a second one."""

import itertools
import re
from collections.abc import Callable, Iterator

import numpy as np

from labkit.simulate import traced
from labs.answers import array

RATE, MOMENTUM, UPDATES = 0.1, 0.9, 5
WORDS, EACH = 12, 8  # parameters, and samples of a rank


def linear_gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of half the mean squared error of x @ weights, x [samples, n]."""
    return x.T @ (x @ weights - y) / len(x)


def one_process(weights, x, y, *, scale=1.0, rate=RATE, momentum=MOMENTUM, updates=UPDATES, new=1.0, nesterov=False,
                stuck=False, late=False, times=1.0) -> np.ndarray:  # fmt: skip
    """Weights after momentum SGD; `scale` of each gradient, `new` its weight in the velocity; `stuck`: all gradients at
    the first weights; `late`: a gradient counts from the update after it; `times`: what weights are multiplied with
    after an update."""
    velocity, start = np.zeros_like(weights), weights
    for _ in range(updates):
        gradient = scale * linear_gradient(start if stuck else weights, x, y)
        before, velocity = velocity, momentum * velocity + new * gradient
        step = before if late else gradient + momentum * velocity if nesterov else velocity
        weights = times * (weights - rate * step)
    return weights


def mistakes(size: int) -> list[tuple[dict, str]]:
    """(options of `one_process`, what to say), the likeliest first; those that change nothing on `size` ranks too."""
    samples = "each gradient is a mean over a rank's samples already: divide their sum by the ranks only"
    several = [
        ({"scale": size}, f"the gradient is {size} times too long: it is a sum, not a mean"),
        ({"scale": 1 / size}, f"the gradient is {size} times too short: it is divided twice"),
        ({"scale": size / EACH}, samples),
        ({"scale": 1 / EACH}, samples),
        ({"scale": EACH}, f"the gradient is {EACH} times too long: it is a mean over samples, not a sum"),
        ({"times": size}, "weights are summed over ranks at every update; their mean would do"),
        ({"momentum": MOMENTUM * size}, "the velocity that is kept is the ranks' sum, which grows with every exchange; "
                                        "keep the mean"),
    ]  # fmt: skip
    return several + [
        ({"momentum": 0.0}, "right for SGD without momentum; here it is 0.9"),
        ({"new": RATE}, "steps are a tenth of what they should be: the velocity is 0.9 velocity + gradient, not + 0.1 "
                        "gradient, and the rate is in it once"),
        ({"momentum": 1 - MOMENTUM, "new": MOMENTUM}, "0.9 belongs to the velocity, and the gradient is added whole"),
        ({"momentum": 1 - MOMENTUM}, "0.9 of the velocity is kept, not 0.1"),
        ({"nesterov": True}, "that is Nesterov's momentum; here weights take 0.1 of the velocity"),
        ({"rate": 1.0}, "the rate, 0.1, is missing"),
        ({"rate": -RATE}, "the weights go uphill: subtract"),
        ({"late": True}, "the step is made before the velocity has the gradient"),
        ({"stuck": True}, "every gradient was taken at the first weights; take it at those of the update"),
        ({"updates": UPDATES - 1}, "that is four updates, of five: count them, or add the gradient before the step"),
    ] + [({"updates": done}, f"that is {done} update{'s' * (done > 1)}; {UPDATES} are asked for")
         for done in (6, 1, 2, 3, 7, 8, 9, 10)]  # fmt: skip


def explained(start, x, y, parts: list[slice], rank: int) -> Iterator[tuple[np.ndarray, str]]:
    """(weights, the mistakes that lead to them) of a rank, one mistake first, then pairs."""
    yield start, "the weights have not moved: return the new ones"
    slips = [({}, ""), *mistakes(len(parts))]
    pairs = [(a | b, "; and ".join(filter(None, (first, second))))
             for (a, first), (b, second) in itertools.combinations(slips, 2) if not a.keys() & b.keys()]  # fmt: skip
    faults = {
        "those are the weights of its own samples alone: gradients have to be exchanged": lambda each: each[rank],
        "that is the mean of weights that were trained apart: exchange at every update": lambda each: np.mean(each, 0),
        "that is a sum of weights that were trained apart: exchange gradients, at every update": sum,
    }
    for options, why in pairs:
        yield one_process(start, x, y, **options), why
    for options, why in [({}, ""), *pairs]:
        apart = [one_process(start, x[part], y[part], **options) for part in parts]
        for fault, combined in faults.items():
            yield combined(apart), f"{fault}; and {why}" if why else fault


def why_wrong(got, right, start, x, y, parts: list[slice], rank: int) -> str:
    if not np.isfinite(got).all():
        return "not all are finite numbers (comm.empty holds nan until it is written)"
    if np.allclose(got, right, rtol=1e-4):
        return "by less than 1 in 10,000: compute in float64"
    with np.errstate(all="ignore"):
        for wrong, text in explained(start, x, y, parts, rank):
            if np.allclose(got, wrong, rtol=1e-7) and not np.allclose(wrong, right, rtol=1e-7):
                return text
    return "after one update they have to be start - 0.1 x the mean of all ranks' gradients; print them there"


def never_met(error: traced.TraceError, size: int) -> str:
    """What a deadlock means here: an exchange that not all ranks take part in equally often."""
    waits = re.findall(r"rank (\d+) in round \d+ for rank (\d+)(, which has finished)?", str(error))
    waiting = {int(rank) for rank, _, _ in waits}
    sent = [sum(source == rank for source, _, _ in error.trace.sent) for rank in range(size)]
    told = []
    for words, some in (("without calling it", [r for r in range(size) if r not in waiting and not sent[r]]),
                        ("after fewer calls", [r for r in range(size) if r not in waiting and sent[r]])):  # fmt: skip
        if some:
            told.append(f"rank{'s' * (len(some) > 1)} {', '.join(map(str, some))} returned {words}")
    return f"; {'; '.join(told)}: all ranks have to call an exchange, equally often" if told else ""


def sgd(answer: Callable) -> str | None:
    """Spec of 04.1: `answer(weights, x, y, gradient, comm)`: the weights after five updates, the same on all ranks."""
    generator = np.random.default_rng(4)
    for size in (1, 4, 2, 3):
        start, x = generator.normal(size=WORDS), generator.normal(size=(EACH * size, WORDS))
        y = generator.normal(size=EACH * size)
        parts = [slice(EACH * rank, EACH * (rank + 1)) for rank in range(size)]
        ranks = f"{size} rank{'s' * (size > 1)}"

        def program(comm, start=start, x=x, y=y, parts=parts):
            mine = parts[comm.rank]
            return answer(start.copy(), x[mine].copy(), y[mine].copy(), linear_gradient, comm)

        try:
            trace = traced.run(program, size)
        except traced.TraceError as error:
            if isinstance(error.__cause__, TypeError) and "ellipsis" in str(error.__cause__):
                raise error.__cause__ from None
            return f"on {ranks}: {error}{never_met(error, size) if error.kind == 'deadlock' else ''}"
        if any(result is None or result is ... for result in trace.results):
            return "return the weights"
        right = one_process(start, x, y)
        for rank, result in enumerate(trace.results):
            if (got := array(result)) is None:
                return f"rank {rank} returns {type(result).__name__}; return the weights, an array of {WORDS} numbers"
            if got.shape != right.shape:
                return f"the weights of rank {rank} have shape {got.shape}, not {right.shape}"
            if not np.allclose(got, right, rtol=1e-9, atol=1e-12):
                why = why_wrong(got, right, start, x, y, parts, rank)
                return f"rank {rank} of {size} ends with other weights than one process: {why}"
        least = UPDATES * 2 * WORDS * (size - 1) / size
        sent = max((sum(m.words for m in trace.messages if m.source == r) for r in range(size)), default=0)
        if sent > 2 * least:
            return f"right, but on {ranks} one sends {sent} words, where {least:.0f} do: send gradients only"
    return None
