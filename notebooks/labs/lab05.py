"""The exercises of lab 05: the late update, the edge by bisection, staleness by hand, who waits, and breaking it."""

import math
from collections.abc import Mapping
from itertools import product

import numpy as np

from labkit.lab import Lab
from labkit.teach.exercises import exercise
from labs import delayed, delayed_study
from labs.answers import array, items, number, truth
from labs.async_tables import counted

ORDER = "ABACAB"  # 05.1: who writes, in order; all read at the start, and again after each writing of their own
CHOICE = {"delay", "inside", "outside"}
SHARE = 0.75  # 05.3: of the best validation accuracy without delay; a training that has less has broken


def staleness(order) -> list[int]:
    """Of every writing: how many others took effect since its writer last read."""
    read, found = {}, []
    for at, worker in enumerate(order):
        found.append(at - read.get(worker, 0))
        read[worker] = at + 1
    return found


def late_path(answer):
    """A function (delay, rate, steps) -> distances after 0 .. steps updates."""
    for delay, rate, steps in ((0, 0.5, 8), (3, 0.3, 20), (1, 0.7, 10), (5, 0.4, 30)):
        given, right = answer(delay, rate, steps), delayed.path(delay, rate, steps=steps)
        found, asked = array(given), f"delay {delay}, rate {rate:g}, {steps} updates"
        if found is None or found.size != right.size:
            yours = f"a {type(given).__name__}" if found is None else f"{found.size} in shape {found.shape}"
            return f"{asked}: return {steps + 1} numbers, the start 1.0 among them; yours: {yours}"
        found, near = found.ravel(), {"rtol": 1e-5, "atol": 1e-5 * np.abs(right).max()}  # float32 will do
        if np.allclose(found, right, **near):
            continue
        slips = ((delayed.path(0, rate, steps=steps), "the gradient is taken where w is now, not where it was"),
                 (delayed.path(delay + 1, rate, steps=steps), "the gradient is one update too old: w[t - delay]"),
                 (delayed.path(delay, -rate, steps=steps), "the sign is turned: go down, against the gradient"))
        if delay:
            slips += ((delayed.path(delay - 1, rate, steps=steps), "the gradient is one update too young"),
                      (waits_at_start(delay, rate, steps), "it waits for the first gradients: at the start, the oldest "
                       "parameters that exist, w[0], are used"))
        why = next((why for wrong, why in slips if np.allclose(found, wrong, **near)), None)
        at = int(np.flatnonzero(~np.isclose(found, right, **near))[0])
        why = f": {why}" if why else ""
        return f"{asked}: after {counted(at, 'update')} yours is {found[at]:.6g}, not {right[at]:.6g}{why}"
    return None


def waits_at_start(delay: int, rate: float, steps: int) -> np.ndarray:
    """The usual slip: no update until the first gradient is `delay` updates old."""
    w = [1.0]
    for step in range(steps):
        w.append(w[-1] - (rate * w[step - delay] if step >= delay else 0.0))
    return np.array(w)


def bisection(answer):
    """A function (grows, low, high) -> the border between rates that do not grow and rates that do."""
    for border in (0.3473, 1.0, 1.9, 0.0095):
        calls = []

        def grows(rate, border=border, calls=calls):
            calls.append(rate)
            if len(calls) > 200:
                raise RuntimeError("more than 200 trials; halve the interval at each")
            return rate > border

        found = number(answer(grows, 0.0, 2.5))
        if not math.isfinite(found):
            return "return one number, the border"
        if abs(found - border) > 1e-4:
            if abs(found - 2.5) < 1e-3 or abs(found) < 1e-3:
                return (f"for a border at {border:g} it ends at {found:.4g}: where the middle grows, the border lies "
                        "below it, so `high` has to move")
            return f"for a border at {border:g} it returns {found:.6g}; within 0.0001 is asked: halve more often"
    return None


def by_hand(answer):
    """A list of six numbers."""
    right, answer = staleness(ORDER), items(answer)
    if answer is None or len(answer) != len(right):
        return f"give a list of {len(right)} numbers, one for each writing"
    found = [number(part) for part in answer]
    none = next((n for n, part in enumerate(found) if not math.isfinite(part)), None)
    if none is not None:
        return f"entry {none + 1} of your list is no number: {answer[none]!r}"
    since_start = list(range(len(right)))
    slips = (([value + 1 for value in right], "every number is one too many: a writing does not count itself"),
             (since_start, "that is how old the start is; a worker reads again after its own writing"),
             ([ORDER[:at].count(worker) for at, worker in enumerate(ORDER)], "that counts the worker's own writings; "
              "staleness counts those of the others"))
    for wrong, why in slips:
        if found == wrong:
            return why
    at = next((n for n, (mine, truth) in enumerate(zip(found, right, strict=True)) if mine != truth), None)
    if at is None:
        return None
    return (f"writing number {at + 1}, of {ORDER[at]}, is not {found[at]:g} old: count the writings since {ORDER[at]} "
            "last read, at the start or after its own")


def who_waits(answer):
    """A function (pushed, worker, bound) -> may this worker begin its next gradient?"""
    cases = [(list(pushed), worker, bound) for pushed in product(range(5), repeat=3) for worker in range(3)
             for bound in (0, 1, 3)]
    cases += [([7, 7, 7, 7], 2, 0), ([10, 12, 13], 2, 2), ([10, 12, 13], 2, 3)]
    mine = []
    for pushed, worker, bound in cases:
        value = truth(answer(list(pushed), worker, bound))
        if value is None:
            return "return True or False"
        mine.append(value)
    right = [pushed[worker] - min(pushed) <= bound for pushed, worker, bound in cases]
    if mine == right:
        return None
    slips = (([p[w] - min(p) < s for p, w, s in cases], "with bound 0 nobody could ever begin: <=, not <; "
              "the next gradient's number is pushed[worker], as numbers count from 0"),
             ([max(p) - min(p) <= s for p, w, s in cases], "that asks whether anyone is too far ahead; only this one "
              "counts, and the slowest must never wait"),
             ([max(p) - p[w] <= s for p, w, s in cases], "that stops the slow ones; those ahead have to wait"),
             ([p[w] - sum(p) / len(p) <= s for p, w, s in cases], "the slowest worker counts, not the mean"))
    for wrong, why in slips:
        if mine == wrong:
            return why
    at = next(n for n, pair in enumerate(zip(mine, right, strict=True)) if pair[0] != pair[1])
    pushed, worker, bound = cases[at]
    return (f"pushed {pushed}, worker {worker}, bound {bound}: yours says {mine[at]}; the slowest has pushed "
            f"{min(pushed)}, this one {pushed[worker]}")


def refused(answer, taken) -> str | None:
    """Why these choices, {delay, inside, outside}, cannot be tried; None if they can."""
    delay, inside, outside = (number(answer[key]) for key in ("delay", "inside", "outside"))
    if not 1 <= delay <= 32 or delay != round(delay) or delay in taken:
        return f"choose a whole delay from 1 to 32 that was not measured above ({', '.join(map(str, taken))})"
    if not 0 < inside < math.inf or not math.isclose(outside, 4 * inside, rel_tol=0.01):
        return "one octave inside and one outside the edge: the outer rate has to be four times the inner one"
    return None


def play(choice, lab: Lab) -> dict | None:
    """Validation accuracies {inside, outside} that come of a choice {delay, inside, outside} with this session's
    settings and seed; None if it cannot be tried."""
    if refused(choice, lab.settings.delays) is not None:
        return None
    delay, *rates = (number(choice[key]) for key in ("delay", "inside", "outside"))
    order, digits = delayed.constant(int(delay), lab.settings.steps), delayed.Digits.load(lab.settings.train)
    run = delayed.train(digits, order, rates, seed=lab.seeds[0], every=64)
    return dict(zip(("inside", "outside"), run.validation.tolist(), strict=True))


def reference(lab: Lab) -> float:
    """The best validation accuracy of this session without delay and momentum; NaN if there is none."""
    return float(delayed_study.accuracy(list(lab.used.values()), 0.0, 0).max())


def break_it(answer):
    """{delay, inside, outside, lab: the session}: the choice is trained here, whatever the notebook has seen of it."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("lab"), Lab) or not CHOICE <= set(answer):
        return "leave the call of check as it is"
    lab = answer["lab"]
    if (problem := refused(answer, lab.settings.delays)) is not None:
        return problem
    best = reference(lab)
    return judged(**play(answer, lab), best=best) if best > 0 else (
        f"the best accuracy without delay is {best}, no number above 0: run the trainings above")


def judged(inside: float, outside: float, best: float) -> str | None:
    """Validation accuracies against the `best` one without delay: None if both are on their sides."""
    need = SHARE * best
    told = f"accuracy {inside:.2f} inside, {outside:.2f} outside, {need:.2f} is needed to hold"
    if inside < need and outside < need:
        return f"both broke ({told}): your edge is too high, or the inner rate so low that it got nowhere in time"
    if inside >= need and outside >= need:
        return f"both held ({told}): your edge is too low"
    right = inside >= need > outside
    return None if right else f"it held outside and broke inside ({told}): so low a rate gets nowhere in time"


EXERCISES = {
    item.id: item
    for item in (
        exercise("05.b1", "the late update", late_path, (
            "Keep all distances in a list. The gradient of w^2 / 2 at w is w itself.",
            "Update t (from 0) uses w[max(t - delay, 0)]: w.append(w[-1] - rate * w[max(t - delay, 0)]).")),
        exercise("05.b2", "the edge by bisection", bisection, (
            "Try the middle of low and high. If it grows, the border lies below: high = middle. Else low = middle.",
            "25 halvings of 2.5 leave less than 0.0000001.")),
        exercise("05.1", "staleness by hand", by_hand, (
            "Note beside each worker after which writing it last read: 0 for all at the start, then after its own.",
            "The third writing is A's. A read after the first writing; since then B wrote: staleness 1.")),
        exercise("05.2", "who waits", who_waits, (
            "Number the gradients of each worker from 0: the next one of a worker has the number pushed[worker].",
            "It may begin when all have pushed at least that number minus the bound; so compare with min(pushed).")),
        exercise("05.3", "break it on purpose", break_it, (
            "The edge of the quadratic gives the ratio of two delays: edge(mine) / edge(measured).",
            "Take the largest rate that worked at a delay measured above, and the next one that broke; the edge lies "
            "between. Scale it to your delay, halve it, double it.")),
    )
}  # fmt: skip
