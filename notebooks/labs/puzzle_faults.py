"""What is wrong with a collective, read from what its words hold.

Each word of each rank's array is given a value that names both: 16 to the power of the rank, plus 2^32 times its place.
A sum of such values can be read back: which ranks' parts are in it, how often, and of which place. So a wrong result
says who is missing or counted twice, and every message on the way says what it carried. Exact up to 8 ranks.

When not to use it: for floating-point error, which whole numbers cannot show."""

import math
from collections.abc import Callable

import numpy as np

from labkit.simulate import traced

BASE, PLACE = 16, 2**32


def encoded(rank: int, words: int) -> np.ndarray:
    """The array of a rank, `words` float64."""
    return BASE**rank + PLACE * (np.arange(words) + 1.0)


def decoded(value, size: int) -> tuple | None:
    """(how often each rank's part is in it, the place that all of them have, or None if they differ); None for a value
    that is no sum of parts."""
    if not (np.isfinite(value) and 0 < value < 2**53 and value == int(value)):
        return None
    counts = tuple(int(value) % PLACE // BASE**rank % BASE for rank in range(size))
    place, rest = divmod(int(value) // PLACE, max(1, sum(counts)))
    return counts, None if rest else place - 1


def lost(trace: traced.Trace) -> list[int]:
    """Messages that nobody received, by their place in `trace.messages`."""
    got = {index for rank, steps in enumerate(trace.steps) for kind, index in steps
           if kind == "until" and trace.sent[index][1] == rank}  # fmt: skip
    return [index for index in range(len(trace.sent)) if index not in got]


def verdict(wanted: Callable, trace: traced.Trace, words: int) -> tuple | None:
    """(what is wrong, messages at fault, ranks at fault) of a run that has ended, or None; `wanted` as of a puzzle."""
    for rank, result in enumerate(trace.results):
        asked = wanted(rank, trace.size, words)
        if not isinstance(result, np.ndarray) or result.ndim != 1 or len(result) not in (words, len(asked)):
            shape = f"an array of shape {result.shape}" if hasattr(result, "shape") else repr(result)[:40]
            return f"rank {rank} returns {shape}; return the array, {words} words", [], [rank]
        offset = 0 if len(result) == words else asked[0][0] if asked else 0
        for place, parts in asked:
            right = sum(BASE**part for part in parts) + len(parts) * PLACE * (place + 1.0)
            value = result[place - offset]
            if value == right:
                continue
            said = doubled_on_the_way(trace) or wrong_word(trace, rank, place, value, right, parts)
            return said[0] + elsewhere(result, asked, trace.size), *said[1:]
    return None


def elsewhere(result, asked, size: int) -> str:
    """Where a whole sum lies that was asked for in other words: blocks shifted by one are a usual mistake."""
    places = {place for place, _ in asked}
    whole = [place for place, value in enumerate(result) if place not in places
             and decoded(value, size) == ((1,) * size, place)]  # fmt: skip
    if not whole or len(result) == len(asked):
        return ""
    where = f"word {whole[0]}" if len(whole) == 1 else f"words {whole[0]} to {whole[-1]}"
    return f". The whole sum is in its {where} instead, in the block of another rank"


def carriers(trace: traced.Trace, rank: int, part: int, place: int, before: float = math.inf) -> list[int]:
    """Messages to `rank`, carried before a round, that hold `part`'s word of that place."""
    found = []
    for index, message in enumerate(trace.messages):
        if message.dest == rank and message.round < before:
            inside = filter(None, (decoded(value, trace.size) for value in message.data))
            if any(counts[part] and place in (at, None) for counts, at in inside):
                found.append(index)
    return found


def came(trace: traced.Trace, indices: list[int]) -> str:
    messages = sorted((trace.messages[index].round, trace.messages[index].source) for index in indices)
    return " and ".join(f"in round {when} from rank {source}" for when, source in messages)


def doubled_on_the_way(trace: traced.Trace) -> tuple | None:
    """The first message that carries a part twice, explained by what its sender had received."""
    for message in sorted(trace.messages, key=lambda message: message.round):
        for counts, place in filter(None, (decoded(value, trace.size) for value in message.data)):
            twice = [part for part, count in enumerate(counts) if count > 1]
            if twice and place is not None:
                return double(trace, message.source, twice[0], place, message.round)
    return None


def double(trace: traced.Trace, rank: int, part: int, place: int, before: float = math.inf) -> tuple:
    brought = carriers(trace, rank, part, place, before)
    sent_on = "" if math.isinf(before) else f" before it sends in round {before}"
    text = f"rank {rank} counts rank {part}'s part of word {place} twice{sent_on}: "
    if part == rank and brought:
        return f"{text}its own part came back to it {came(trace, brought[-1:])}", brought[-1:], [rank]
    if len(brought) > 1:
        return f"{text}it came {came(trace, brought)}", brought[1:], [rank]
    return f"{text}it came {came(trace, brought) or 'in no message'}, and was added more than once", brought, [rank]


def names(ranks) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def wrong_word(trace: traced.Trace, rank: int, place: int, value, right: float, parts) -> tuple:
    """What a wrong word in the result of `rank` says."""
    found, parts = decoded(value, trace.size), list(parts)
    if found is None:
        if np.isnan(value):
            return f"word {place} of rank {rank} was never written: it is still what comm.empty gave", [], [rank]
        why = f"; that is the sum over {len(parts)}: do not divide" if value == right / len(parts) else ""
        return f"word {place} of rank {rank} is no sum of what the ranks had{why}", [], [rank]
    counts, at = found
    holds = [part for part, count in enumerate(counts) if count]
    extra = [part for part in holds if counts[part] > 1]
    if extra:
        return double(trace, rank, extra[0], place)
    missing = [part for part in parts if not counts[part]]
    if missing:
        lacks = rank if rank in missing else missing[0]
        reached = carriers(trace, rank, holds[0] if lacks == rank else lacks, place)
        why = (f"rank {lacks}'s part reached it {came(trace, reached)} and was lost there: overwritten, or added to "
               "something else" if reached else f"no message to rank {rank} ever held rank {lacks}'s part of it")
        if lacks == rank:
            why = f"its own part was overwritten by what came {came(trace, reached)}; add to it"
        return (f"word {place} of rank {rank} holds the part of {names(holds)} only; {names(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing: {why}"), reached, [rank]
    other = [part for part in holds if part not in parts]
    if other:
        brought = carriers(trace, rank, other[0], place)
        return f"word {place} of rank {rank} also holds the part of {names(other)}, which does not belong there", \
            brought, [rank]
    moved = [index for index, message in enumerate(trace.messages) if message.dest == rank
             and value in message.data]  # fmt: skip
    where = "words of different places" if at is None else f"word {at}"
    came_how = f" it came {came(trace, moved)}" if moved else " the blocks of the sum were mixed up here"
    return f"word {place} of rank {rank} holds a sum of {where}:{came_how}", moved, [rank]
