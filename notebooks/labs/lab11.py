"""The exercises of lab 11: repeated runs, the ledger by hand, failures, and a benchmark won without training faster."""

import itertools
import math
from collections.abc import Callable, Sequence
from numbers import Real

import numpy as np

from labkit.runs import Header, Row, Run, Span
from labkit.teach.exercises import exercise
from labs import times as reading
from labkit.tta import clock, statistics

BAND = 0.02
PICKS = {
    "median": lambda times, cost: float(np.median(times)),
    "expected": statistics.expected_time,
    "mean of the reached": lambda times, cost: float(np.mean([t for t in times if math.isfinite(t)] or [math.inf])),
    "best": lambda times, cost: min(times),
}
FIELDS = ("rule", "target", "every", "pick")

# 11.1: curves that each catch one way of reading a first crossing. Each is read beside "exact", so that an answer that
# drops the misses still has a time to take the median of.
CURVES = {
    "best later": ([1.0, 2.0, 3.0, 4.0], [0.80, 0.85, 0.91, 0.97]),
    "exact": ([1.0, 2.0, 3.0], [0.80, 0.90, 0.95]),
    "falls back": ([1.0, 2.0, 3.0, 4.0], [0.80, 0.91, 0.85, 0.88]),
    "miss": ([1.0, 2.0, 3.0], [0.80, 0.89, 0.89]),
}
FAITHFUL = {
    "exact": (2.0, "a value equal to the target must count: first crossing is >=, not >"),
    "falls back": (2.0, "a curve that falls below the target again has still crossed it at its first passing value"),
    "best later": (3.0, "the time of the best value is not the time of the first that passes"),
    "miss": (math.inf, "a run that never passes takes infinitely long: its time is math.inf"),
}
MISSES = {
    1.0: "a run that never passes takes infinitely long, not until its first evaluation (argmax of nothing is 0)",
    3.0: "a run that never passes takes infinitely long, not as long as it ran",
}
SHAPE = "return three things: the list of times (one for each curve), their median and the reach rate"


def _plain(given):
    """An answer to 11.1 with arrays, series and tensors as lists and numbers."""
    given = given.tolist() if hasattr(given, "tolist") else given
    return [_plain(part) for part in given] if isinstance(given, (tuple, list)) else given


def _shape(given, curves: int) -> str | None:
    """What is wrong with the form of an answer to 11.1, made plain."""
    if given is None:
        return SHAPE
    if not isinstance(given, list) or len(given) != 3 or not isinstance(given[0], list):
        return f"{SHAPE}; for {curves} curves you give {given!r}"
    for part, values in (("every time", given[0]), ("the median", given[1:2]), ("the reach rate", given[2:])):
        if not all(isinstance(value, Real) for value in values):
            return f"{SHAPE}; {part} is a number (a miss is math.inf), and you give {list(values)}"
    return None


def times_median_reach(answer: Callable) -> str | None:
    """Spec of 11.1: `answer(curves, target)` gives (times, median with misses as infinity, reach rate)."""
    for name, curve in CURVES.items():
        given = _plain(answer([curve, CURVES["exact"]], 0.90))
        wrong = _shape(given, 2)
        if wrong:
            return wrong
        times = list(given[0])
        if len(times) != 2:
            left_out = "a miss stays in the list, as math.inf" if name == "miss" else "each curve has one time"
            return f"{left_out}: for two curves you give the times {times}"
        if times[0] != FAITHFUL[name][0]:
            why = MISSES.get(times[0], FAITHFUL[name][1]) if name == "miss" else FAITHFUL[name][1]
            return f"{why}; for times {curve[0]} and values {curve[1]} you give {times[0]}"
    curves = [CURVES["exact"], CURVES["best later"], CURVES["miss"], CURVES["miss"], CURVES["miss"]]
    times, median, reach = _plain(answer(curves, 0.90))
    if median == 2.5:
        return "your median leaves the misses out: with 3 of 5 runs missed, the middle run is a miss, so it is infinite"
    if median != math.inf:
        return f"the median of times {list(times)} is infinite; you give {median}"
    if not math.isclose(reach, 0.4, rel_tol=1e-6):
        return f"2 of these 5 runs reach the target, a rate of 0.4; you give {reach}"
    random = np.random.default_rng(0)
    for _ in range(40):
        curves = [(np.arange(1.0, 9.0), np.round(random.uniform(0.8, 0.95, 8), 2)) for _ in range(7)]
        times, median, reach = _plain(answer(curves, 0.93))
        expected = [statistics.first_crossing(*curve, 0.93) for curve in curves]
        middle, rate = statistics.median(expected).value, statistics.reach_rate(expected).value
        if list(times) != expected or median != middle:
            return f"labkit reads {expected} with median {middle}; you give {list(times)}, {median}"
        if not math.isclose(reach, rate, rel_tol=1e-6):
            return f"labkit's reach rate of {expected} is {rate}; you give {reach}"
    return None


# 11.2: a ledger that is read by hand. Seconds; nothing happens between 12 and 12.5; the crossing is at 19.5.
LEDGER = Run(
    Header("11", {}, source="simulated", target={"metric": "accuracy", "value": 0.9, "higher": True}),
    [
        Span("init", 0, 2),
        Span("data", 2, 3),
        Span("train", 3, 9),
        Span("evaluate", 9, 10),
        Span("checkpoint", 10, 12),
        Span("train", 12.5, 18.5),
        Span("evaluate", 18.5, 19.5),
    ],
    [Row(100, 1, 100, 10, "accuracy", 0.85), Row(200, 2, 200, 19.5, "accuracy", 0.9)],
    "finished",
)
LEDGER_MISTAKES = {
    ("wall", 19.0): "the wall clock does not stop between spans: 0.5 s passed there in which nothing was recorded",
    ("dawnbench", 19.5): "that is the wall clock; dawnbench leaves evaluation, checkpoints and unrecorded time out",
    ("dawnbench", 17.0): "dawnbench counts neither evaluation nor checkpoints (2 s each here)",
    ("dawnbench", 12.0): "dawnbench counts initialisation and data too, not training alone",
    ("mlperf", 19.5): "initialisation is free under mlperf: its clock starts at the first touch of the data",
    ("mlperf", 17.0): "the mlperf clock runs from start to stop, so the 0.5 s without a span count as well",
    ("mlperf", 15.5): "evaluation and checkpoints (2 s each here) are both on the mlperf clock: nothing stops it",
    ("algoperf", 15.0): "algoperf counts update steps and compilation only: neither initialisation nor data",
}


def _off_by(rule: str, seconds: float) -> str:
    """What of the ledger is as long as an answer is wrong: forgotten where `seconds` is negative, else too much."""
    lengths: dict[str, list[float]] = {}
    for span in LEDGER.spans:
        lengths.setdefault(span.kind, []).append(span.end - span.start)
    gap = LEDGER.spans[-1].end - sum(map(sum, lengths.values()))
    pieces = [("the time without a span", gap, clock.RULES[rule].gaps)]
    for kind, parts in lengths.items():
        counted = kind in clock.RULES[rule].counts
        pieces.append((kind if len(parts) == 1 else f"all spans of {kind}", sum(parts), counted))
        pieces += [(f"one span of {kind}", parts[0], counted)] if len(parts) > 1 else []
    fits = [
        name
        for name, length, counted in pieces
        if counted == (seconds < 0) and math.isclose(length, abs(seconds), abs_tol=1e-6)
    ]
    what = "missing, as long as" if seconds < 0 else "too much, as long as"
    named = f"{abs(seconds):g} s {what} {' or '.join(fits)}; " if fits else ""
    return f"{named}{rule} is: {clock.RULES[rule].says}"


def ledger_by_hand(answer: dict) -> str | None:
    """Spec of 11.2: seconds under each rule that judges single runs."""
    if not isinstance(answer, dict):
        return f"give the seconds by rule, a dictionary with the entries {', '.join(reading.PER_RUN)}; not {answer!r}"
    for rule in reading.PER_RUN:
        if rule not in answer:
            return f"give the seconds under {rule} too"
        given, right = answer[rule], clock.time_to_target(LEDGER, rule).seconds
        if not isinstance(given, Real):
            return f"under {rule} a number of seconds is expected, such as 1.5; you give {given!r}"
        if not math.isclose(given, right, abs_tol=1e-6):
            why = LEDGER_MISTAKES.get((rule, float(given))) or _off_by(rule, given - right)
            return f"{given:g} s under {rule}: {why}"
    return None


def expected_with_failures(answer: Callable) -> str | None:
    """Spec of 11.3: `answer(times, budget)`, budget seconds for each failure."""
    for times, budget in (([10.0, 20.0, *[math.inf] * 3], 40.0), ([3.0, 5.0], 9.0), ([1.0, math.inf], 7.0)):
        given, right = answer(times, budget), statistics.expected_time(times, budget)
        ok = [t for t in times if math.isfinite(t)]
        mean, p = np.mean(ok), len(ok) / len(times)
        if given is not None and math.isclose(given, right):
            continue
        if given is None:
            return "return a number of seconds"
        if math.isclose(given, mean):
            missed = len(times) - len(ok)
            failures = "1 failure was" if missed == 1 else f"{missed} failures were"
            return f"{given:g} s is the mean of those that reached: {failures} paid too"
        if math.isclose(given, mean / p):
            return f"{given:g} s is the mean / p: it charges a failure what a success costs, but it ran {budget:g} s"
        if math.isclose(given, budget / p):
            return f"{given:g} s is budget / p: that is right only if a success costs the whole budget too"
        if math.isclose(given, mean + (1 - p) * budget):
            return f"{given:g} s allows for one failure at most: before a success there are (1-p)/p on average, not 1-p"
        return f"for times {times} and budget {budget:g} the expected time is {right:g} s; you give {given:g}"
    return None


def grid(runs: Sequence[Run]) -> dict[str, list]:
    """What the benchmark of 11.4 leaves open; the target may lie within `BAND` of the announced one."""
    announced, every = runs[0].header.target["value"], runs[0].config.get("evaluate_every", 1)
    targets = [round(announced + shift, 6) for shift in (-BAND, -BAND / 2, 0.0, BAND / 2, BAND)]
    return {
        "rule": list(reading.PER_RUN),
        "target": targets,
        "every": [every * n for n in (1, 2, 4, 8, 32)],
        "pick": list(PICKS),
    }


def honest(runs: Sequence[Run]) -> dict:
    """What was announced before the runs: everything on the clock, the announced target, every evaluation, all runs."""
    return {"rule": "wall", "target": grid(runs)["target"][2], "every": grid(runs)["every"][0], "pick": "median"}


def published(runs: Sequence[Run], choices: dict) -> float:
    """The seconds that these choices publish for the runs; infinite where they leave no number."""
    times = reading.seconds_to_target(runs, choices["rule"], choices["target"], choices["every"])
    return float(PICKS[choices["pick"]](times, reading.full_cost(runs, choices["rule"])))


def refusal(runs: Sequence[Run], choices: dict) -> str | None:
    """Why the benchmark of 11.4 does not accept these choices."""
    options = grid(runs)
    for field in FIELDS:
        if field not in choices:
            return f"choose the {field} too; allowed: {options[field]}"
    target, announced = choices["target"], options["target"][2]
    if not isinstance(target, Real):
        return f"target {target!r} is not a number, such as {options['target'][0]:g}"
    if not abs(target - announced) <= BAND + 1e-9:
        return f"target {target:g} is outside the band: at most {BAND} from {announced:g}"
    for field in ("rule", "every", "pick"):
        if choices[field] not in options[field]:
            return f"{field} {choices[field]!r} is not among {options[field]}"
    return None


def won(runs: Sequence[Run], choices: dict) -> str:
    """What the choices publish beside the honest median, in words."""
    if any(choices.get(field) in (..., None) for field in FIELDS):
        return "no choices yet: nothing is won"
    if refusal(runs, choices):
        return f"nothing is won by a choice that is refused: {refusal(runs, choices)}"
    fair, taken = published(runs, honest(runs)), published(runs, choices)
    said = f"honest {reading.in_seconds(fair)}, with your choices {reading.in_seconds(taken)}"
    if not math.isfinite(fair) and taken < fair:
        return f"{said}: the honest median is a miss, so any finite number is won"
    return f"{said}: " + (f"a factor of {fair / taken:.2f} won, no run is faster" if taken < fair else "nothing won")


def least(runs: Sequence[Run]) -> tuple[float, dict]:
    """The smallest number that the grid allows, by trying all of it."""
    options, found = grid(runs), []
    for rule in options["rule"]:
        cost = reading.full_cost(runs, rule)
        for target, every in itertools.product(options["target"], options["every"]):
            times = reading.seconds_to_target(runs, rule, target, every)
            found += [
                (float(PICKS[pick](times, cost)), dict(zip(FIELDS, (rule, target, every, pick), strict=True)))
                for pick in options["pick"]
            ]
    return min(found, key=lambda pair: pair[0])


def win_without_training(answer: dict) -> str | None:
    """Spec of 11.4: the four choices, and `runs` beside them."""
    runs, options = answer["runs"], grid(answer["runs"])
    if refusal(runs, answer):
        return refusal(runs, answer)
    taken = published(runs, answer)
    if taken <= least(runs)[0] * (1 + 1e-9):
        return None
    for field in FIELDS:
        best = min(published(runs, {**answer, field: value}) for value in options[field])
        if best < taken:
            return f"{won(runs, answer)}; changing the {field} alone would publish {reading.in_seconds(best)}"
    return f"{won(runs, answer)}; no single change helps, but a pair of them does: try all combinations"


# 11.5: entries of a benchmark. `announced` was fixed before (or after) the runs; the other fields were handed in.
ANNOUNCED = {"rule": "wall", "target": 0.93, "every": 8, "pick": "median", "runs": 12}
FAIR = {"before": True, "evaluations": 22, "tuned_on": "validation", "read_on": "test"}


def entry(announced: dict | None = None, **changes) -> dict:
    """A fair entry with changes; `announced` changes the announcement, and what is handed in follows it."""
    plan = {**ANNOUNCED, **(announced or {})}
    return {**FAIR, **plan, "announced": plan, **changes}


HONEST = {
    "everything as announced": entry(),
    "another clock, announced before": entry({"rule": "mlperf"}),
    "expected time with failures, announced before": entry({"pick": "expected"}),
    "another target and interval, announced before": entry({"target": 0.9, "every": 16}, evaluations=11),
    "thirty runs, announced before": entry({"runs": 30}),
    "read on validation, where nothing was tuned": entry(tuned_on="nothing", read_on="validation"),
}
CHEATS = {
    "the clock was changed after the runs": entry(rule="algoperf"),
    "the target was lowered after the runs": entry(target=0.91),
    "the runs were read at fewer evaluations than announced": entry(every=64, evaluations=3),
    "the runs were read at more evaluations than announced: more looks, more luck": entry(every=1),
    "the best run was picked from those that were made": entry(pick="best"),
    "the best run is what the announcement says: announcing a cheat does not make it fair": entry({"pick": "best"}),
    "the mean of the reached was announced: failures cost nothing there": entry({"pick": "mean of the reached"}),
    "three of the announced twelve runs were not handed in": entry(runs=9),
    "runs were added to the announced twelve until the number was good": entry(runs=15),
    "everything was announced after the runs were seen": entry(before=False),
    "a single run was announced: it has no reach rate and no spread": entry({"runs": 1}),
    "the median run passes at its first evaluation: its variation of 0 is only the interval": entry(
        {"every": 256}, evaluations=1
    ),
    "the number was read on the very images that the recipe was tuned on": entry(read_on="validation"),
}


def forbids_the_cheats(answer: Callable) -> str | None:
    """Spec of 11.5: `answer(entry)` gives a list of reasons against the entry (empty: allowed), or True / False."""
    for allowed, entries in ((True, HONEST), (False, CHEATS)):
        for name, given in entries.items():
            verdict = answer({**given, "announced": dict(given["announced"])})
            if not isinstance(verdict, (bool, list, tuple)):
                return f"return a list of reasons (empty: allowed) or True / False, not {verdict!r}"
            accepted = verdict if isinstance(verdict, bool) else len(verdict) == 0
            why = "" if isinstance(verdict, bool) else f" ({'; '.join(map(str, verdict))})"
            if accepted != allowed:
                return f"your rule {f'refuses an honest entry{why}' if allowed else 'lets this through'}: {name}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "11.1",
            "first crossing, median, reach rate",
            times_median_reach,
            (
                "Per curve: the first time whose value is >= the target, else math.inf: `next(iterator, math.inf)`.",
                "np.median of the times, misses and all, is the median; the reach rate is the share of finite times.",
            ),
        ),
        exercise(
            "11.2",
            "one ledger, four clocks",
            ledger_by_hand,
            (
                "Write the seven spans in a row and cross out, per rule, what it does not count.",
                "wall and mlperf lose nothing between their start and the crossing; dawnbench and algoperf add up spans.",
            ),
        ),
        exercise(
            "11.3",
            "expected time with failures",
            expected_with_failures,
            (
                "A success of probability p comes after (1-p)/p failures on average.",
                "Mean of the times that reached, plus (1-p)/p times the budget.",
            ),
        ),
        exercise(
            "11.4",
            "win without training faster",
            win_without_training,
            (
                "Change one choice at a time and keep what publishes less; start with the pick.",
                "Which clock counts least? Which target is crossed first? How many looks at each curve? Which run?",
            ),
        ),
        exercise(
            "11.5",
            "the rule that forbids it",
            forbids_the_cheats,
            (
                "Compare every field that was handed in with the announcement, and ask when that was made.",
                "Then what no announcement heals: the pick, how many runs, how many evaluations, which images.",
            ),
        ),
    )
}
