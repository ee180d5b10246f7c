"""Exercises of lab 04: SGD over ranks by hand, the slowest of P, weights of uneven shards, buckets, three imposters."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from labkit.simulate import traced
from labkit.teach.exercises import exercise
from labs import buckets, synchronous_imposters
from labs.answers import number
from labs.rules_synchronous import harmonic

RATE, MOMENTUM, UPDATES = 0.1, 0.9, 5


def same(given, right: float, tolerance: float = 1e-6) -> bool:
    return math.isclose(number(given), right, rel_tol=tolerance, abs_tol=1e-12)


def linear_gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of half the mean squared error of x @ weights, x [samples, n]."""
    return x.T @ (x @ weights - y) / len(x)


def one_process(weights, x, y, scale: float = 1.0, momentum: float = MOMENTUM) -> np.ndarray:
    velocity = np.zeros_like(weights)
    for _ in range(UPDATES):
        velocity = momentum * velocity + scale * linear_gradient(weights, x, y)
        weights = weights - RATE * velocity
    return weights


def sgd(answer: Callable) -> str | None:
    """Spec of 04.1: `answer(weights, x, y, gradient, comm)`: the weights after five updates, the same on all ranks."""
    generator = np.random.default_rng(4)
    for size in (1, 4, 2, 3):
        n, each = 12, 8
        start, x = generator.normal(size=n), generator.normal(size=(each * size, n))
        y = generator.normal(size=each * size)
        parts = [slice(each * rank, each * (rank + 1)) for rank in range(size)]

        def rank(comm, start=start, x=x, y=y, parts=parts):
            mine = parts[comm.rank]
            return answer(start.copy(), x[mine].copy(), y[mine].copy(), linear_gradient, comm)

        try:
            trace = traced.run(rank, size)
        except traced.TraceError as error:
            if isinstance(error.__cause__, TypeError) and "ellipsis" in str(error.__cause__):
                raise error.__cause__ from None
            return f"on {size} rank{'s' * (size > 1)}: {error}"
        if any(result is None or result is ... for result in trace.results):
            return "return the weights"
        right, apart = one_process(start, x, y), [one_process(start, x[mine], y[mine]) for mine in parts]
        for number_of, result in enumerate(trace.results):
            got = np.asarray(result, float)
            if got.shape != right.shape:
                return f"the weights of rank {number_of} have shape {got.shape}, not {right.shape}"
            if np.allclose(got, right, rtol=1e-9, atol=1e-12):
                continue
            slips = [
                (apart[number_of], "they are those of its own samples alone: gradients have to be exchanged"),
                (one_process(start, x, y, size), f"the gradient is {size} times too long: it is a sum, not a mean"),
                (one_process(start, x, y, 1 / size), f"the gradient is {size} times too short: it is divided twice"),
                (np.mean(apart, 0), "that is the mean of weights that were trained apart; exchange at every update"),
                (one_process(start, x, y, momentum=0.0), "right for SGD without momentum; here it is 0.9"),
            ]
            why = [text for wrong, text in slips if np.allclose(got, wrong) and not np.allclose(wrong, right)]
            return f"rank {number_of} of {size} ends with other weights than one process: {(why or ['look again'])[0]}"
        least = UPDATES * 2 * n * (size - 1) / size
        sent = max((sum(m.words for m in trace.messages if m.source == r) for r in range(size)), default=0)
        if sent > 2 * least:
            return f"right, but on {size} ranks one sends {sent} words, where {least:.0f} do: send gradients only"
    return None


SLOWEST = {"workers": 16, "seconds": 2.0, "backup": 2}


def slowest(answer: Mapping) -> str | None:
    """Spec of 04.2: `answer` holds `all`, `backups` (mean steps in seconds) and `dropped` (a share)."""
    if not isinstance(answer, Mapping):
        return "give a dictionary with all, backups and dropped"
    workers, mean, backup = SLOWEST.values()
    steps = {"all": mean * harmonic(workers), "backups": mean * (harmonic(workers) - harmonic(backup))}
    slips = [
        (mean, "that is one worker's mean: a step waits for the slowest of all"),
        (mean * workers, "workers compute at the same time: times do not add up"),
        (mean / workers, "that is the fastest of them"),
        (mean * math.log(workers), "ln P is what H_P grows like; add up 1 + 1/2 + ... + 1/P"),
        (mean * harmonic(workers - backup), "H_14 is for 14 workers that are all waited for; here 16 run"),
        (steps["all"], "that is without backups"),
        (steps["backups"], "that is with backups"),
    ]
    for what, right in steps.items():
        given = answer.get(what)
        if not same(given, right, 0.005):
            made = [(right / mean, f"that is for a mean of 1 s; here it is {mean:g} s"), *slips]
            why = [text for wrong, text in made if same(given, wrong, 0.005) and not same(wrong, right, 0.005)]
            return f"{what}: {(why or ['it is the mean of the last one that is waited for'])[0]}"
    dropped, share = answer.get("dropped"), backup / workers
    if not same(dropped, share, 0.005):
        why = "a share, between 0 and 1" if number(dropped) in (2.0, 12.5) else "two of sixteen in every step"
        return f"dropped: {why}"
    return None


SHARDS = ((8, 8, 8, 8), (3, 5, 7, 9), (1, 31), (10, 0, 2), (6,))


def shard_weight(answer: Callable) -> str | None:
    """Spec of 04.3: `answer(counts, rank)`: factor of that rank's mean loss, before a plain mean over ranks."""
    for counts in SHARDS:
        total, size = sum(counts), len(counts)
        for rank, count in enumerate(counts):
            right, given = size * count / total, answer(counts, rank)
            if same(given, right):
                continue
            value = number(given)
            slips = [
                (count / total, f"that is right for a *sum* over ranks; theirs is a mean, which divides by {size}"),
                (total / (size * count) if count else math.nan, "upside down: more samples have to count for more"),
                (1.0, "with factor 1 every rank counts the same, however few samples it has"),
                (count, "that grows with the batch: a mean over samples does not"),
                (count / max(counts), "compare with the mean shard, not with the largest"),
            ]
            why = [text for wrong, text in slips if not same(wrong, right) and same(value, wrong)]
            return f"shards {counts}, rank {rank}: {given!r}; {(why or ['its samples are n of N'])[0]}"
    return None


def finish_of(ready, sizes, cap, alpha, beta, rule: str = "") -> float:
    """Seconds at which the last bucket is through; `rule` names one way to get it wrong."""
    places = buckets.assign(sizes, cap)
    if rule == "never above":
        places = [[]]
        for place, size in enumerate(sizes):
            if places[-1] and sum(sizes[p] for p in places[-1]) + size > cap:
                places.append([])
            places[-1].append(place)
    if rule == "rest":
        places = [p for p in places if sum(sizes[q] for q in p) >= cap] or places[:1]
    free, ends = max(ready) if rule == "overlap" else 0.0, [0.0]
    for bucket in places:
        full = ready[bucket[0]] if rule == "first" else max(ready[place] for place in bucket)
        messages = len(bucket) if rule == "alpha" else 1
        start = full if rule == "queue" else max(full, free)
        free = start + messages * alpha + beta * sum(sizes[place] for place in bucket)
        ends.append(free)
    return max(ends) if rule == "queue" else free


RULES = {
    "overlap": "nothing overlaps: a bucket leaves as soon as it is full, while the backward goes on",
    "queue": "two buckets are on the link at once: the second has to wait until the first is through",
    "first": "a bucket left when its first gradient was ready; it has to wait for its last",
    "rest": "the last bucket, which nothing fills, has to be sent too",
    "alpha": "alpha is paid for each gradient; it is paid once a bucket",
    "never above": "a bucket is full as soon as it holds cap *or more*, so it may hold more than cap",
}


def bucketed(answer: Callable) -> str | None:
    """Spec of 04.4: `answer(ready, sizes, cap, alpha, beta)`: seconds at which all gradients are summed."""
    generator = np.random.default_rng(7)
    cases = [
        ([1.0, 2.0, 4.0], [4, 4, 4], 4, 0.5, 0.25),
        ([1.0, 2.0, 9.0], [2, 2, 1], 3, 1.0, 0.5),
        ([1.0, 2.0, 3.0], [4, 2, 4], 6, 1.0, 0.5),
    ]
    for _ in range(12):
        count = int(generator.integers(3, 9))
        ready = np.cumsum(generator.integers(1, 6, count)).astype(float).tolist()
        sizes = generator.integers(1, 9, count).tolist()
        cases.append((ready, sizes, int(generator.integers(2, 14)), float(generator.integers(1, 4)) / 2, 0.25))
    cases += [([1.0, 2.0, 9.0], [2, 2, 1], 100, 1.0, 0.5)]
    alive = set(RULES)
    for case in cases:
        right, given = finish_of(*case), answer(*(list(p) if isinstance(p, list) else p for p in case))
        alive &= {name for name in RULES if same(given, finish_of(*case, name))}
        if not same(given, right):
            told = [RULES[name] for name in RULES if name in alive] or ["draw the link's timeline, bucket by bucket"]
            ready, sizes, cap, alpha, beta = case
            return f"ready {ready}, sizes {sizes}, cap {cap}, alpha {alpha}, beta {beta}: {given!r}; {told[0]}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "04.1",
            "SGD over ranks, by hand",
            sgd,
            (
                "Each rank finds the gradient of its samples; all_reduce_ring(array, comm) makes it the ranks' sum.",
                "Divide the sum by comm.size, then go on as one process would: velocity = 0.9 velocity + gradient.",
            ),
        ),
        exercise(
            "04.2",
            "the slowest of sixteen",
            slowest,
            (
                "With P workers left the next one is done after 1 / P on average: add up 1/P + 1/(P-1) + ... + 1.",
                "Without the b slowest the last b terms, 1/b to 1, are never waited for: H_P - H_b, times the mean.",
            ),
        ),
        exercise(
            "04.3",
            "weights of uneven shards",
            shard_weight,
            (
                "The batch's mean is the sum over ranks of n_r / N times the rank's mean.",
                "The exchange divides by the number of ranks P, so multiply by it.",
            ),
        ),
        exercise(
            "04.4",
            "when is the last bucket through?",
            bucketed,
            (
                "Go through the gradients in order; a bucket with cap or more is full, and so is the last one.",
                "start = max(when its last gradient is ready, when the bucket before is through); "
                "end = start + alpha + beta x its size.",
            ),
        ),
        exercise(
            "04.5",
            "spot the imposter",
            synchronous_imposters.told_apart,
            (
                "Is run.applied[0] the reference? Is it parallel to it? Cosine first, then lengths.",
                "If not: np.linalg.lstsq(run.ranks[0].T, run.reference[0]) looks for weights of the ranks' gradients "
                "that give the reference. Do any?",
            ),
        ),
    )
}
