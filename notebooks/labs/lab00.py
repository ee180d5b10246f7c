"""The exercises of lab 00: units, the price of an all-reduce, and a measurement that lies."""

import math

from labkit import doctor
from labkit.teach.exercises import exercise

FACTOR = 2.0  # between an honest number and one that was fooled


def _near(value, wanted: float) -> bool:
    return isinstance(value, (int, float)) and math.isclose(value, wanted, rel_tol=1e-6)


def _bandwidth(answer) -> str | None:
    for nanoseconds in (0.1, 0.5, 4.0):
        given, wanted = answer(nanoseconds), 1 / nanoseconds
        if _near(given, wanted):
            continue
        case = f"at {nanoseconds:g} ns per byte you say {given} GB/s"
        if _near(given, nanoseconds):
            return f"{case}: that is the number you were given; bytes per second are the inverse of seconds per byte"
        if any(_near(given, wanted * 1000**power) for power in (-3, -2, -1, 1, 2, 3)):
            return f"{case}, off by a power of 1000: a nanosecond is 1e-9 s and a GB is 1e9 bytes"
        if _near(given, wanted * 8) or _near(given, wanted / 8):
            return f"{case}, off by 8: GB/s counts bytes, Gbit/s counts bits"
        if _near(given, wanted * 1e9 / 2**30):
            return f"{case}: that is GiB/s (2^30 bytes); here a GB is 10^9 bytes"
        return f"{case}, not {wanted:g}"
    return None


def ring_seconds(size: float, ranks: int, latency: float, bandwidth: float) -> float:
    """Seconds of a ring all-reduce of `size` bytes over `ranks`, with latency in us and bandwidth in GB/s."""
    return 2 * (ranks - 1) * (latency * 1e-6 + size / ranks / (bandwidth * 1e9))


def _units(given, wanted: float, rounds: int, start: float, transfer: float) -> str | None:
    """What to say to an answer with the right rounds and pieces, where only powers of 1000 are wrong."""
    powers = [1000.0**power for power in range(-4, 5)]
    if any(_near(given, wanted * power) for power in powers):
        return "only a power of 1000 is wrong: the answer is in seconds, 1 us is 1e-6 s and 1 GB is 1e9 bytes"
    if any(_near(given, rounds * (start * one + transfer * other)) for one in powers for other in powers):
        return "the rounds are right, the units are not: the latency is in us (* 1e-6), the bandwidth in GB/s (* 1e9)"
    return None


def _allreduce(answer) -> str | None:
    for size, ranks, latency, bandwidth in ((8e6, 4, 20.0, 2.0), (1e3, 8, 5.0, 10.0), (1e9, 2, 50.0, 1.0)):
        given, wanted = answer(size, ranks, latency, bandwidth), ring_seconds(size, ranks, latency, bandwidth)
        if _near(given, wanted):
            continue
        start, transfer = latency * 1e-6, size / (bandwidth * 1e9)
        rounds = 2 * (ranks - 1)
        case = f"for {size:g} bytes, {ranks} ranks, {latency:g} us and {bandwidth:g} GB/s you say {given} s"
        mistakes = (
            (wanted / 2, "half of it: the pieces go round twice, once to add up and once to hand out the sums"),
            (rounds * (start + transfer), "every round sends the whole vector; a ring sends one piece of size / ranks"),
            (start + rounds * transfer / ranks, "the latency is paid once; every round starts a message of its own"),
            (2 * ranks * (start + transfer / ranks), "one round too many each way: ranks - 1 hops reach everyone"),
            (rounds * (latency + transfer / ranks), "the latency is in microseconds; make it seconds"),
            (rounds * (start + size / ranks / bandwidth), "the bandwidth is in GB/s; make it bytes per second"),
        )
        why = next((why for value, why in mistakes if _near(given, value)), None)
        why = why or _units(given, wanted, rounds, start, transfer / ranks)
        why = why or "each of 2 (ranks - 1) rounds costs one latency and size / ranks bytes"
        return f"{case}, not {wanted:.6g}: {why}"
    return _alone(answer)


def _alone(answer) -> str | None:
    given = answer(1e6, 1, 20.0, 2.0)
    return None if given == 0 else f"one rank has nothing to send, so it needs 0 s; you say {given}"


def _fooled(answer) -> str | None:
    names = [name for name, _ in doctor.NUMBERS]
    if not isinstance(answer, dict) or set(answer) != {"number", "honest", "fooled"}:
        return 'the answer is a dictionary with the entries "number", "honest" and "fooled"'
    if answer["number"] not in names:
        return f"the doctor has no number {answer['number']!r}; it has {', '.join(names)}"
    values = []
    for part in ("honest", "fooled"):
        try:
            found = {name: (value, unit) for name, value, unit in answer[part]}
        except (TypeError, ValueError):
            found = {}
        if list(found) != names:
            return f'"{part}" is not what doctor.measure(...) returns: five rows of name, value and unit'
        values.append(found[answer["number"]][0])
    if not all(math.isfinite(value) and value > 0 for value in values):
        return f"{values[0]} and {values[1]} are no measurements: both must be positive"
    factor = max(values) / min(values)
    if factor >= FACTOR:
        return None
    return f"the {answer['number']} changed by a factor of {factor:.2f} only; find sizes that change it by {FACTOR:g}"


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "00.1",
            "nanoseconds per byte as GB/s",
            _bandwidth,
            (
                "Write both as fractions: one is seconds over bytes, the other bytes over seconds.",
                "The 1e-9 of the nanosecond and the 1e9 of the gigabyte cancel exactly: what is left is 1 / x.",
            ),
        ),
        exercise(
            "00.2",
            "the price of an all-reduce",
            _allreduce,
            (
                "Count messages first: how many rounds until every piece has passed everyone, twice?",
                "2 (ranks - 1) rounds; each costs latency * 1e-6 + (size / ranks) / (bandwidth * 1e9) seconds.",
            ),
        ),
        exercise(
            "00.3",
            "make the doctor lie",
            _fooled,
            (
                "What does a copy measure when source and target fit into the cache? What does a matrix product "
                "measure when it is so small that calling it takes longer than computing it?",
                "doctor.measure(gemm=16, copy_mib=1, repeats=3) fools two of the five numbers, in opposite "
                "directions; compare it with the numbers of this notebook.",
            ),
        ),
    )
}
