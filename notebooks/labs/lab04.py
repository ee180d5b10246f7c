"""Exercises of lab 04: SGD over ranks by hand, the slowest of P, weights of uneven shards, buckets, three imposters."""

import math
from collections.abc import Callable, Mapping

from labkit.teach.exercises import exercise
from labs import synchronous_imposters
from labs.answers import number
from labs.buckets_exercise import bucketed
from labs.rules_synchronous import harmonic
from labs.synchronous_exercise import sgd


def same(given, right: float, tolerance: float = 1e-6) -> bool:
    return math.isclose(number(given), right, rel_tol=tolerance, abs_tol=1e-12)


SLOWEST = {"workers": 16, "seconds": 2.0, "backup": 2}


def slowest(answer: Mapping) -> str | None:
    """Spec of 04.2: `answer` holds `all`, `backups` (mean steps in seconds) and `dropped` (a share)."""
    if not isinstance(answer, Mapping):
        return "give a dictionary with all, backups and dropped"
    for what in ("all", "backups", "dropped"):
        if what not in answer:
            return f"`{what}` is missing; give a dictionary with all, backups and dropped"
        if math.isnan(number(answer[what])):
            return f"{what}: {answer[what]!r} is no number"
    workers, mean, backup = SLOWEST.values()
    steps = {"all": mean * harmonic(workers), "backups": mean * (harmonic(workers) - harmonic(backup))}
    slips = [
        (mean, "that is one worker's mean: a step waits for the slowest of all"),
        (mean * workers, "workers compute at the same time: times do not add up"),
        (mean / workers, "that is the fastest of them"),
        (mean * math.log(workers), "ln P is what H_P grows like; add up 1 + 1/2 + ... + 1/P"),
        (mean * harmonic(workers - backup), "H_14 is for 14 workers that are all waited for; here 16 run"),
        (mean * harmonic(backup), "that is the slowest of 2; what is left off is the time for the last 2 of 16"),
        (mean * (harmonic(workers) - harmonic(backup - 1)), "that is without the slowest one; do without two"),
        (mean * harmonic(workers - 1), "the sum has 16 terms, 1 to 1/16"),
        (steps["all"], "that is without backups"),
        (steps["backups"], "that is with backups"),
    ]
    for what, right in steps.items():
        given = answer[what]
        if not same(given, right, 0.005):
            made = [(right / mean, f"that is for a mean of 1 s; here it is {mean:g} s"), *slips]
            why = [text for wrong, text in made if same(given, wrong, 0.005) and not same(wrong, right, 0.005)]
            return f"{what}: {(why or ['it is the mean of the last one that is waited for'])[0]}"
    dropped, share = answer["dropped"], backup / workers
    if not same(dropped, share, 0.005):
        slips = [
            (backup, "a share, between 0 and 1"),
            (100 * share, "a share, between 0 and 1"),
            (1 - share, "that is the share that is used"),
            (1 - steps["backups"] / steps["all"], "that is the share of time saved; gradients are asked for"),
        ]
        why = [text for wrong, text in slips if same(dropped, wrong, 0.005)]
        return f"dropped: {(why or ['two of sixteen in every step'])[0]}"
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
            if math.isnan(value):
                return f"shards {counts}, rank {rank}: {given!r} is no number"
            slips = [
                (count / total, f"that is right for a *sum* over ranks; theirs is a mean, which divides by {size}"),
                (total / (size * count) if count else math.nan, "upside down: more samples have to count for more"),
                (1.0, "with factor 1 every rank counts the same, however few samples it has"),
                (count, "that grows with the batch: a mean over samples does not"),
                (size * count, "that grows with the batch: a mean over samples does not"),
                (total / count if count else math.nan, "upside down: more samples have to count for more"),
                (count / max(counts), "compare with the mean shard, not with the largest"),
            ]
            why = [text for wrong, text in slips if not same(wrong, right) and same(value, wrong)]
            return f"shards {counts}, rank {rank}: {given!r}; {(why or ['its samples are n of N'])[0]}"
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
