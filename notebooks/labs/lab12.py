"""The exercises of lab 12: a reader and a score, five times by hand, a table by its names, and a referee's cases."""

import inspect
import json
import math
import traceback
from collections.abc import Callable
from numbers import Real

import numpy as np

from labkit.teach.exercises import exercise
from labkit.tta import statistics
from labs import public_logs
from labs.referee import CASES, CLAIMS, GUILTY, PLEAS


def log(seconds: float, status: str = "success", *, prefix: str = "", ranks: int = 1, shuffled=False, cut=False) -> str:
    """A made-up result log in the form of MLPerf v0.7 that runs for so many seconds."""
    begin = 1600000000000

    def line(at: float, key: str, value=None, **metadata) -> str:
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.split("_")[-1], "POINT_IN_TIME")
        entry = {"namespace": "", "time_ms": begin + round(1000 * at), "event_type": kind, "key": key, "value": value}
        return f"{prefix}:::MLLOG {json.dumps({**entry, 'metadata': metadata})}"

    lines = [line(-30, "init_start"), line(-0.1, "init_stop")]
    lines += [line(0.004 * (rank + 1 - ranks), "run_start") for rank in range(ranks)]
    lines += [
        line(part * seconds, "eval_accuracy", 0.75 * part, epoch_num=round(40 * part)) for part in (0.25, 0.5, 0.75)
    ]
    lines += [
        "epoch 39: loss 1.93",
        line(seconds, "run_stop", status=status),
        line(seconds + 9, "eval_accuracy", 0.7, epoch_num=41),
    ]
    lines = lines[:-2] if cut else lines[::-1] if shuffled else lines
    return "\n".join(lines) + "\n"


# 12.1: sets of logs that each catch one slip of reading or scoring.
PLAIN = [600.0, 610.5, 620.25, 640.0, 700.0]
TRAPS = {
    "the set has other text before :::MLLOG in its lines (`0: :::MLLOG ...`): look for the token": (
        [log(t, prefix="0: ") for t in PLAIN], math.nan),
    "in this set the lines of one log are not in the order of time: buffers flush late, so go by the keys": (
        [log(t, shuffled=t == 620.25) for t in PLAIN], math.nan),
    "in this set four ranks print run_start, some ms apart: the last one counts": (
        [log(t, ranks=4) for t in PLAIN], float(np.mean([610.512, 620.262, 640.012]))),
    "four ranks again, in logs whose lines are not in the order of time: the last run_start is the one with the "
    "largest time_ms, not the last line": (
        [log(t, ranks=4, shuffled=True) for t in PLAIN], float(np.mean([610.512, 620.262, 640.012]))),
    "a run whose status is 'aborted' missed its target, however fast it stopped: it is the slowest run": (
        [log(90.0, "aborted"), *map(log, PLAIN[:4])], float(np.mean(PLAIN[:3]))),
    "'abort' is a miss too: anything but 'success' is": (
        [log(90.0, "abort"), *map(log, PLAIN[:4])], float(np.mean(PLAIN[:3]))),
    "a log without run_stop was cut off: that is a miss, not a run to be left out": (
        [log(90.0, cut=True), *map(log, PLAIN[:4])], float(np.mean(PLAIN[1:4]))),
}  # fmt: skip


def _score(logs: list[str]) -> float:
    """What labkit makes of the logs."""
    found = [public_logs.read_text(text) for text in logs]
    return statistics.drop_extremes_mean([one["tta_seconds"] if one["converged"] else math.inf for one in found])[0]


def reads_and_scores(answer: Callable) -> str | None:
    """Spec of 12.1: `answer(logs)`, a list of texts, gives seconds, or infinity where there is no score."""
    given, right = answer([log(t) for t in PLAIN]), float(np.mean(PLAIN[1:4]))
    if not isinstance(given, Real):
        return f"return a number of seconds, or math.inf; you give {given!r}"
    slips = {
        1000 * right: "time_ms is in milliseconds",
        float(np.mean(PLAIN)): "that is the mean of all five: the fastest and the slowest are dropped first",
        float(np.median(PLAIN)): "that is the median: MLPerf takes the mean of what is left",
        float(np.mean(PLAIN[:4])): "only the slowest is dropped there: the fastest goes too",
        float(np.mean(PLAIN[1:])): "only the fastest is dropped there: the slowest goes too",
        min(PLAIN): "that is the fastest run, which is dropped",
    }
    for wrong, why in slips.items():
        if math.isclose(given, wrong, rel_tol=1e-9):
            return f"{given:g} for five runs of {PLAIN} s: {why}"
    if not math.isclose(given, right, abs_tol=1e-3):
        return f"five runs of {PLAIN} s score {right:.3f} s; you give {given:g}"
    for why, (logs, wrong) in TRAPS.items():
        try:
            given = answer(logs)
        except (ValueError, KeyError, IndexError, TypeError, StopIteration) as error:
            return f"{why} (yours raised {type(error).__name__}: {error})"
        if not isinstance(given, Real) or not math.isclose(given, _score(logs), abs_tol=1e-3):
            known = (
                " (that is the score of what you read instead)"
                if isinstance(given, Real) and math.isclose(given, wrong)
                else ""
            )
            return f"{why}; it scores {_score(logs):.3f} s, and you give {given}{known}"
    for fast in (80.0, 900.0):
        two = [log(fast, "aborted"), log(fast, "aborted"), *map(log, PLAIN[:3])]
        if answer(two) != math.inf:
            return f"with two misses there is no score, so return math.inf; you give {answer(two)}"
    random = np.random.default_rng(0)
    for _ in range(8):
        logs = [log(round(t, 3), "success" if random.random() > 0.2 else "abort") for t in random.uniform(300, 900, 5)]
        if not math.isclose(answer(logs), _score(logs), abs_tol=1e-3):
            return f"labkit scores a random set {_score(logs):g} s; you give {answer(logs):g}"
    return None


# 12.2: five runs of one system, the third of which missed its target; v0.7.
FIVE = [1204.6, 1251.0, math.inf, 1188.2, 1210.4]
HAND = {
    (
        "one miss",
        1213.55,
    ): (
        "that is the mean of the four that reached: the miss takes the place of the slowest, and the fastest is "
        "dropped as well"
    ),
    (
        "one miss",
        1207.5,
    ): "you dropped the miss and then two runs more: the miss *is* the slowest run, so it is the one dropped",
    ("one miss", 1210.4): "that is the median; the score is the mean of the three that are left",
    ("one miss", math.inf): "one miss is allowed: it counts as the slowest run, and the slowest is dropped",
    ("one miss", 970.84): "a miss is no run of 0 s: it is the slowest, not the fastest",
    (
        "two misses",
        1201.066667,
    ): "that is the mean of the three that reached: a second miss cannot be dropped as well, so there is no score",
    (
        "two misses",
        1207.5,
    ): "two runs are left, but one miss stays among those that count, and it is infinite: no score",
    ("two misses", 1204.6): "that is the middle of what is left; a second miss cannot be dropped, so there is no score",
}


def by_hand(answer: dict) -> str | None:
    """Spec of 12.2: the scores with one and with two misses."""
    if not isinstance(answer, dict) or set(answer) != {"one miss", "two misses"}:
        return 'give a dictionary with the entries "one miss" and "two misses"'
    for name, right in (("one miss", statistics.drop_extremes_mean(FIVE)[0]), ("two misses", math.inf)):
        given = answer[name]
        if not isinstance(given, Real):
            return f"{name}: give a number of seconds, or math.inf where there is no score; you give {given!r}"
        if given == right or math.isclose(given, right, abs_tol=0.005):
            continue
        why = next(
            (text for (key, wrong), text in HAND.items() if key == name and math.isclose(given, wrong, abs_tol=0.01)),
            None,
        )
        return f"{name}, {given:g} s: " + (
            why or "drop the fastest, drop the slowest (a miss is slower than any run), mean of the rest"
        )
    return None


# 12.3: (text, metric, threshold, seconds, what the wrong answers mean).
TABLES = (
    ("epoch\thours\ttop1Accuracy\n1\t0.5\t93.0\n2\t1.0\t94.5\n3\t1.5\t95.0\n", "top1Accuracy", 94.0, 3600.0,
     {1.0: "the column is in hours: multiply by 3600",
      5400.0: "that is the row of the best value; the first that passes counts",
      2.0: "that is the epoch, not the time"}),
    ("hours\tepoch\ttop1Accuracy\ttop5Accuracy\n0.25\t1\t75.0\t92.0\n0.5\t2\t76.0\t93.1\n",
     "top5Accuracy", 93.0, 1800.0,
     {7200.0: "here the table begins with hours: you read the epoch as hours; find columns by name, not by position",
      math.inf: "you read another column than the metric that was asked for: find it by name"}),
    ("epoch\tf1Score\thours\r\n1\t0.70\t0.5\r\n2\t0.7500\t1.25\r\n3\t0.76\t2.0\r\n", "f1Score", 0.75, 4500.0,
     {7200.0: "a value equal to the target counts: >=, not >",
      2700.0: "you read the metric as hours: find columns by name"}),
    ("\ufeffhours\tepoch\ttop1Accuracy\r\n0.5\t0\t94.02\r\n1.0\t1\t94.5\r\n", "top1Accuracy", 94.0, 1800.0,
     {3600.0: "you lost the first row of data: epochs may count from 0, and the header is one line"}),
    ("epoch\thours\ttop1Accuracy\n1\t0.5\t8.0\n2\t1.0\t10.2\n3\t1.5\t9.9\n", "top1Accuracy", 9.5, 3600.0,
     {5400.0: "as texts \"10.2\" is smaller than \"9.5\": compare numbers"}),
    ("epoch\thours\ttop1Accuracy\n1\t0.5\t93.996\n2\t1.0\t94.1\n", "top1Accuracy", 94.0, 3600.0,
     {1800.0: "93.996 is below 94: compare the raw value, never a rounded one"}),
    ("epoch\thours\ttop1Accuracy\n1\t0.5\t94.2\n2\t1.0\t93.1\n\n", "top1Accuracy", 94.0, 1800.0,
     {math.inf: "a curve that falls below the target again has still crossed it: its first passing row counts"}),
    ("epoch \t hours\t top1Accuracy\n 1\t 0.5\t 94.2", "top1Accuracy", 94.0, 1800.0,
     {math.inf: "the last line has no newline, and it counts all the same"}),
    ("epoch\thours\ttop1Accuracy\n1\t0.5\t93.0\n2\t1.0\t93.9\n", "top1Accuracy", 94.0, math.inf,
     {3600.0: "no row passes: a miss takes infinitely long, not as long as it ran",
      1800.0: "no row passes: argmax of nothing is 0, which is the first row; a miss is math.inf"}),
)  # fmt: skip
ODD = {
    0: "nothing is odd about this table; its last line ends in \\n, so split('\\n') leaves an empty row behind it",
    1: "the columns are in another order here",
    2: "the lines end in \\r\\n here: the last name is 'hours\\r' if you split at \\n alone (`splitlines`, or `strip`)",
    3: "the text begins with a byte order mark (\\ufeff): the first name is not 'hours' until you strip it",
    6: "there is a blank line at the end",
    7: "fields are padded with blanks here: strip them",
}


def _raised(error: Exception, answer: Callable) -> str:
    """What the learner's code raised, with its own line where that is known."""
    own = getattr(getattr(inspect.unwrap(answer), "__code__", None), "co_filename", None)
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own and frame.line]
    return f"yours raised {type(error).__name__}: {error}" + (f", at: {lines[-1]}" if lines else "")


def finds_columns_by_name(answer: Callable) -> str | None:
    """Spec of 12.3: `answer(text, metric, threshold)` gives seconds to the first hit, infinity for a miss."""
    for number, (text, metric, threshold, right, slips) in enumerate(TABLES):
        where = f"for {text[:40]!r}..., {metric} >= {threshold:g}"
        try:
            given = answer(text, metric, threshold)
        except Exception as error:  # the learner's code may raise anything; say what is odd about this table
            if "ellipsis" in str(error):  # not filled in yet
                raise
            return f"{ODD.get(number, 'your code stops')} ({_raised(error, answer)}); {where}"
        if not isinstance(given, Real):
            return f"return a number of seconds, math.inf for a miss; you give {given!r} {where}"
        if given != right and not math.isclose(given, right, abs_tol=1e-6):
            why = next(
                (said for wrong, said in slips.items() if given == wrong or math.isclose(given, wrong)), ODD.get(number)
            )
            return (
                f"{why or 'that is not the time of the first row that passes'}; {where} it is {right:g} s, and you "
                f"give {given:g}"
            )
    return None


# 12.4: the referee. The cases, the claims and the pleas of the honest are in `labs.referee`.
NEAR = 0.6  # s: a score may be rounded to whole seconds; the nearest wrong row is hundreds of seconds away
FORM = 'give {entry: ("refuse", line)} or {entry: ("re-score", line, seconds)}; leave out entries that are fine'


def _formed(entry, verdict) -> str | None:
    if entry not in CASES:
        return f"there is no entry {entry!r}; entries are {', '.join(CASES)}"
    length = {"refuse": 2, "re-score": 3}.get(verdict[0] if isinstance(verdict, (tuple, list)) and verdict else None)
    if length is None or len(verdict) != length or not all(isinstance(part, Real) for part in verdict[1:]):
        return f"entry {entry}, {verdict!r}: {FORM}"
    last = len(CASES[entry].splitlines())
    if verdict[1] not in range(1, last + 1):
        return f"entry {entry} has lines 1 to {last}; you name line {verdict[1]}"
    return None


def _slip(entry: str, seconds: float) -> str:
    """What most likely went wrong with a new score."""
    truth = GUILTY[entry]
    for wrong, why in truth["slips"].items():
        if math.isclose(seconds, wrong, rel_tol=1e-3):
            return why
    if math.isclose(seconds, truth["seconds"], rel_tol=5e-3):
        return "the row is right, the rounding is too coarse: take all digits of its hours"
    return f"which row is the first whose raw value is at least {CLAIMS[entry]['target']}?"


def referee(answer: dict) -> str | None:
    """Spec of 12.4: who is accused, of what, by which line."""
    if not isinstance(answer, dict):
        return FORM
    accused = {
        entry: verdict for entry, verdict in answer.items() if verdict not in ("accept", ("accept",), ["accept"])
    }
    for entry, verdict in accused.items():
        wrong = _formed(entry, verdict)
        if wrong:
            return wrong
    for entry, (kind, line, *_) in accused.items():
        if entry in PLEAS:
            return f"entry {entry} is honest. {PLEAS[entry].get(line, PLEAS[entry][0])}"
    for entry, (kind, line, *seconds) in accused.items():
        truth = GUILTY[entry]
        if kind != truth["verdict"]:
            return f"entry {entry} is one of the two, but {truth['other']}"
        if line not in truth["lines"]:
            return f"entry {entry}, {kind}: right, but line {line} does not show it. {truth['where']}"
        if seconds and not math.isclose(seconds[0], truth["seconds"], abs_tol=NEAR):
            why = _slip(entry, seconds[0])
            return f"entry {entry}, line {line}: right, but {seconds[0]:.8g} s is not the score: {why}"
    missing = len(GUILTY) - len(accused)
    if missing:
        left = "one entry stands" if missing == 1 else "two entries stand"
        return (
            f"{left} that should not: for each, redo the claim from the raw lines (start, stop, first value at the "
            "target)"
        )
    return None


def case_file() -> str:
    """Claims and logs of all entries, every line with its number before a bar; a carriage return is shown as \\r."""
    parts = []
    for entry, text in CASES.items():
        claim = CLAIMS[entry]
        parts.append(f"--- entry {entry}: {claim['form']}, target {claim['target']}, claims {claim['seconds']:,} s")
        parts += [
            f"{n:>2}| {line}"
            for n, line in enumerate(text.replace("\r", "\\r").replace("\t", "    ").split("\n"), 1)
            if line
        ]
    return "\n".join(parts)


EXERCISES = {
    item.id: item
    for item in (
        exercise("12.1", "read five logs and score them", reads_and_scores, (
            "Per log: partition each line at ':::MLLOG ', json.loads the rest, keep time_ms and the status by key.",
            (
                "No success, or no run_stop: math.inf. Sort, drop both ends, take the mean; two misses leave an "
                "infinite one in it."
            ),
        )),
        exercise("12.2", "five times by hand", by_hand, (
            "Write the five in order, the miss last.",
            "Cross out the first and the last. With two misses, what is left still holds one.",
        )),
        exercise("12.3", "a table by its names", finds_columns_by_name, (
            "text.lstrip('\\ufeff').splitlines(), split at tabs, strip every field.",
            "dict(zip(names, fields)) for each row; the first row whose float(row[metric]) >= threshold.",
        )),
        exercise("12.4", "referee", referee, (
            (
                "For each entry compute the claimed seconds again, by hand, from its lines. Odd is not wrong: ask "
                "whether the rule is broken."
            ),
            "One entry's value passes only when it is rounded. Another starts its clock twice, and trains in between.",
        )),
    )
}  # fmt: skip
