"""Referee of exercise 04.4: when is the last bucket through? Each usual mistake is played along with the right rule,
and named if it gives the learner's seconds in every case."""

import math
from collections.abc import Callable

import numpy as np

from labs import buckets
from labs.answers import number

RULES = {
    "whole": "all gradients went in one bucket; one leaves as soon as it holds cap bytes",
    "single": "every gradient went on its own; they are collected until cap bytes are there",
    "overlap": "nothing overlaps: a bucket leaves as soon as it is full, while the backward goes on",
    "queue": "two buckets are on the link at once: the second has to wait until the first is through",
    "first": "a bucket left when its first gradient was ready; it has to wait for its last",
    "eager": "the link does not wait for a bucket to be ready: it starts at the later of *ready* and *free*",
    "rest": "the last bucket, which nothing fills, has to be sent too",
    "alpha": "alpha is paid for each gradient; it is paid once a bucket",
    "no alpha": "alpha is missing: each bucket pays it once",
    "more": "a bucket is full as soon as it holds cap *or more*; yours waits for more than cap",
    "never above": "a bucket is full as soon as it holds cap *or more*, so it may hold more than cap",
    "last size": "beta is paid for the last gradient of a bucket only; it is paid for all of its bytes",
    "never emptied": "after a bucket has left, the next one begins with 0 bytes",
}


def assigned(sizes, cap, rule: str) -> list[list[int]]:
    """Places of gradients by bucket, by the rule or wrong as `rule` says."""
    if rule == "whole":
        return [list(range(len(sizes)))]
    if rule == "single":
        return [[place] for place in range(len(sizes))]
    if rule in ("more", "never above"):
        places = [[]]
        for place, size in enumerate(sizes):
            held = sum(sizes[p] for p in places[-1])
            if places[-1] and (held > cap if rule == "more" else held + size > cap):
                places.append([])
            places[-1].append(place)
        return places
    places = buckets.assign(sizes, cap)
    if rule == "rest":
        return [p for p in places if sum(sizes[q] for q in p) >= cap] or places[:1]
    if rule == "never emptied":
        return [places[0], *([place] for bucket in places[1:] for place in bucket)]
    return places


def finish_of(ready, sizes, cap, alpha, beta, rule: str = "") -> float:
    """Seconds at which the last bucket is through; `rule` names one way to get it wrong."""
    free, ends = max(ready) if rule == "overlap" else 0.0, [0.0]
    for bucket in assigned(sizes, cap, rule):
        full = ready[bucket[0]] if rule == "first" else max(ready[place] for place in bucket)
        messages = {"alpha": len(bucket), "no alpha": 0}.get(rule, 1)
        held = sum(sizes[place] for place in (range(bucket[-1] + 1) if rule == "never emptied" else bucket))
        start = {"queue": full, "eager": free or full}.get(rule, max(full, free))
        free = start + messages * alpha + beta * (sizes[bucket[-1]] if rule == "last size" else held)
        ends.append(free)
    return max(ends) if rule == "queue" else free


def cases() -> list[tuple]:
    """(ready, sizes, cap, alpha, beta), small ones by hand first; in one the cap is met exactly, one never fills it."""
    generator = np.random.default_rng(7)
    made = [
        ([1.0, 2.0, 4.0], [4, 4, 4], 4, 0.5, 0.25),
        ([1.0, 2.0, 9.0], [2, 2, 1], 3, 1.0, 0.5),
        ([1.0, 2.0, 3.0], [4, 2, 4], 6, 1.0, 0.5),
    ]
    for _ in range(12):
        count = int(generator.integers(3, 9))
        ready = np.cumsum(generator.integers(1, 6, count)).astype(float).tolist()
        sizes = generator.integers(1, 9, count).tolist()
        made.append((ready, sizes, int(generator.integers(2, 14)), float(generator.integers(1, 4)) / 2, 0.25))
    return [*made, ([1.0, 2.0, 9.0], [2, 2, 1], 100, 1.0, 0.5)]


def same(given, right: float) -> bool:
    return math.isclose(number(given), right, rel_tol=1e-6, abs_tol=1e-12)


def bucketed(answer: Callable) -> str | None:
    """Spec of 04.4: `answer(ready, sizes, cap, alpha, beta)`: seconds at which all gradients are summed."""
    played = [(case, answer(*(list(p) if isinstance(p, list) else p for p in case))) for case in cases()]
    off = next(((case, given) for case, given in played if not same(given, finish_of(*case))), None)
    if off is None:
        return None
    (ready, sizes, cap, alpha, beta), given = off
    told = (text for name, text in RULES.items() if all(same(given, finish_of(*case, name)) for case, given in played))
    why = next(told, "draw the link's timeline, bucket by bucket")
    if math.isnan(number(given)):
        why = "return a number of seconds"
    return f"ready {ready}, sizes {sizes}, cap {cap}, alpha {alpha}, beta {beta}: {given!r}; {why}"
