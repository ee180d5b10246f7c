"""One MLPerf Training result log, judged: the official time, `run_stop - run_start` of a converged run, or a reason why
there is none; never a guess.

Nothing depends on the order of lines: several ranks write into one file, buffers flush late, and some lines carry time
zero. What must agree does so in time: no work before the start, epochs that do not run backwards, a success next to an
evaluation that meets the logged target."""

import gzip
import math
import stat
from pathlib import Path

from readers.mlperf_lines import Lines, Unreadable, events, number

LARGEST = 64 * 2**20  # bytes; public logs are about 1 MB at most
SHORTEST, LONGEST = 1e-3, 366 * 86400.0  # seconds of a run
TOGETHER = 1.0  # seconds within which several ranks may print one evaluation
RANKS = 10.0  # seconds within which several ranks may start or stop
SLACK = 0.05  # seconds by which the last evaluation may be stamped after the stop that it caused
TARGETS = {("v0.5", "resnet"): 0.749, ("v0.5", "ssd"): 0.212, ("v0.5", "gnmt"): 21.8, ("v0.5", "transformer"): 25.0}
TARGETS[("v0.5", "ncf")] = 0.635
FLAGS = {
    "clock-origin": "start and stop have another origin than 1970; lines with true times confirm their unit",
    "clock-stepped-and-returned": "the clock was set back and later forward by as much; start and stop are not touched",
    "evaluation-after-stop": "the run was evaluated after it had stopped; what that said is left empty",
    "evaluation-outside": "evaluations after run_stop or at time zero, which are ignored",
    "garbled-lines": "tagged lines that cannot be read: what they hid of the evaluations is left empty",
    "last-evaluation-missing": "the evaluation that stopped the run is not in the log: what it said is left empty",
    "lines-repeated": "several ranks printed run_start or run_stop; the last start and the first stop count",
    "target-above-round": "the logged target is above the one that the round's public logs have",
    "target-below-round": "the logged target is easier than the one that the round's public logs have",
    "not-converged": "the log says that the run missed its target",
    "success-inferred": "run_stop does not say how it ended; the last evaluation meets the logged target or not",
    "target-met-earlier": "an evaluation met the target before the one at which the run stopped",
}


def read(path: Path) -> dict:
    """What one log says (`.gz` is unpacked).

    Returns:
        `format, benchmark` (one name for each, or ""), `run_start, run_stop` (seconds as logged), `tta_seconds` (NaN
        for a miss), `converged, last_value, target, evaluations, last_epoch, flags` (a list), `reason` (why there is no
        number; else ""), `course` (seconds since run_start, epoch, value of each evaluation)."""
    record = blank()
    try:
        about = path.stat()
        if about.st_size > LARGEST or not stat.S_ISREG(about.st_mode):
            raise Unreadable(f"no plain file, or larger than {LARGEST >> 20} MiB")
        content = path.read_bytes()
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise Unreadable(f"larger than {LARGEST >> 20} MiB")
        lines = events(content)
        record.update(format=lines.format, benchmark=lines.benchmark)
        judge(lines, record)
    except (OSError, EOFError, Unreadable) as error:
        reason = str(error)
        if not isinstance(error, Unreadable):
            reason = f"cannot be read: {getattr(error, 'strerror', '') or error}"
        return {**blank(), "format": record["format"], "benchmark": record["benchmark"], "reason": reason}
    return record


def blank() -> dict:
    return {
        "format": "", "benchmark": "", "run_start": math.nan, "run_stop": math.nan, "tta_seconds": math.nan,
        "converged": False, "last_value": None, "target": None, "evaluations": None, "last_epoch": None, "flags": [],
        "reason": "", "course": [],
    }  # fmt: skip


def judge(lines: Lines, record: dict) -> None:
    """Fill in the record from the lines, or say why that cannot be done."""
    start, stop, success = interval(lines, record)
    record["run_start"], record["run_stop"] = start, stop
    target = target_of(lines.found)
    known = TARGETS.get((lines.format, lines.benchmark))
    if known is not None and isinstance(target, float) and target != known:
        record["flags"].append("target-below-round" if target < known else "target-above-round")
    course, after = evaluations(lines, start, stop, record)
    check_epochs(course, record)
    record["course"] = [(seconds - start, epoch, value) for seconds, epoch, value in course]
    record["target"] = shown(target)
    last = course[-1][2] if course else None
    whole = complete(course, after, lines, start, stop, success, record)
    if success is None:
        reached = target is not None and course and meets(last, target)
        if target is None or not course or not (whole or reached):
            raise Unreadable("run_stop does not say how it ended, and no evaluation beside it meets a logged target")
        success = reached
        record["flags"].append("success-inferred")
    elif target is not None and course and meets(last, target) != success and (success or not lines.garbled):
        said = "success" if success else "no success"
        raise Unreadable(f"contradicts itself: run_stop says {said} at {shown(last)}, the target is {shown(target)}")
    if success and is_nan(last):
        raise Unreadable("contradicts itself: run_stop says success, the last evaluation is no number")
    if target is not None and success and any(meets(value, target) for _, _, value in course[:-1]):
        record["flags"].append("target-met-earlier")
    record["converged"] = success
    if success:
        record["tta_seconds"] = round(stop - start, 6)  # stamps have at best microseconds
    else:
        record["flags"].append("not-converged")
    if lines.garbled:
        record["flags"].append("garbled-lines")
    elif whole:
        record["evaluations"] = len(course)
        if course and not is_nan(last):
            record["last_value"], record["last_epoch"] = shown(last), course[-1][1]


def complete(course: list, after: list, lines: Lines, start: float, stop: float, success, record: dict) -> bool:
    """Whether the evaluation that stopped the run is there, as far as its beginning or the usual pace can tell. If not,
    what the run's own stop says stands, and what that evaluation said is left empty.

    Raises:
        Unreadable: a run that did not miss has no evaluation at all."""
    late = bool(after) and (lines.benchmark == "minigo" or after[0][0] <= stop + TOGETHER or not course)
    if not course and not after and success is not False:
        raise Unreadable("contradicts itself: no evaluation before run_stop")
    if course:
        times = [start] + [seconds for seconds, *_ in course]
        pace = sorted(b - a for a, b in zip(times, times[1:]))[len(course) // 2]
        lost = len(course) > 2 and stop - times[-1] > max(TOGETHER, pace) / 2
        lost |= any(tag == "eval_start" and times[-1] + 1e-3 < seconds < stop - 1e-3 for seconds, tag in lines.work)
        if not lost and not (late and lines.benchmark == "minigo"):
            return True
        record["flags"].append("evaluation-after-stop" if late else "last-evaluation-missing")
        return False
    record["flags"] += ["evaluation-after-stop"] * late
    return not late


def interval(lines: Lines, record: dict) -> tuple[float, float, bool | None]:
    """Start and stop in seconds as logged, and whether run_stop says success (None: it says nothing)."""
    starts, stops = (sorted(seconds for seconds, *_ in lines.found[key]) for key in ("run_start", "run_stop"))
    if not starts:
        raise Unreadable("no run_start")
    if not stops:
        raise Unreadable("no run_stop: cut off, or it never ended")
    for key, times in (("run_start", starts), ("run_stop", stops)):
        if times[-1] - times[0] > RANKS:
            raise Unreadable(f"contradicts itself: {len(times)} {key} lines, {times[-1] - times[0]:.0f} s apart")
        if len(times) > 1:
            record["flags"].append("lines-repeated")
    said = {outcome(value, metadata) for _, value, metadata in lines.found["run_stop"]}
    if len(said) > 1:
        raise Unreadable("contradicts itself: run_stop lines with different outcomes")
    start, stop = starts[-1], stops[0]
    early = min((seconds for seconds, tag in lines.work if seconds > 0 and tag != "eval_start"), default=start)
    if early < starts[0] - TOGETHER:  # an evaluation alone may warm up before
        raise Unreadable(f"contradicts itself: training began {start - early:.6g} s before run_start")
    if not SHORTEST <= stop - start <= LONGEST:
        raise Unreadable(f"its clock cannot be right: run_stop {stop - start:.6g} s after run_start")
    # Another origin is believed where lines with true times leave room for the run, and no room for it in seconds.
    if start > 4.1e9 or start < 1e9 and not stop - start <= lines.span < 1000 * (stop - start):
        raise Unreadable(f"its clock cannot be right: run_start {start:.6g} s after 1970, which no line confirms")
    if start < 1e9:
        record["flags"].append("clock-origin")
    return start, stop, said.pop()


def outcome(value, metadata: dict) -> bool | None:
    """Whether a run_stop says success; anything but success that it does say is a miss.

    Raises:
        Unreadable: its value and its metadata disagree."""
    inner = value.get("success", value.get("status")) if isinstance(value, dict) else value
    said = {str(one).lower() in ("true", "success", "1") for one in (metadata.get("status"), inner) if one is not None}
    if len(said) > 1:
        raise Unreadable("contradicts itself: run_stop says two things")
    return said.pop() if said else None


def target_of(lines: dict):
    """The logged target, a number or numbers by name; None if none is logged."""
    try:
        given = [value for _, value, _ in lines["eval_target"] if value is not None]
        given = [value["value"] if isinstance(value, dict) and "value" in value else value for value in given]
        targets = [measured(value) for value in given]
    except (ValueError, OverflowError):
        raise Unreadable("its eval_target is no number") from None
    if any(target != targets[0] for target in targets):
        raise Unreadable("contradicts itself: it names two targets")
    return targets[0] if targets else None


def evaluations(lines: Lines, start: float, stop: float, record: dict) -> tuple[list, list]:
    """(seconds, epoch, value) of the evaluations from start to stop, in time, and of those after the stop."""
    found, course, after = [], [], []
    for seconds, value, metadata in lines.found["eval_accuracy"]:
        inner = value if isinstance(value, dict) and "value" in value else {}
        epoch = inner.get("epoch", metadata.get("epoch_num"))
        try:
            epoch = number(epoch)
        except (ValueError, OverflowError):
            epoch = None  # some write placeholders
        try:
            found.append((seconds, epoch, measured(inner.get("value", value))))
        except (ValueError, OverflowError):
            lines.garbled = True
    for one in sorted(found, key=lambda one: (one[0], -math.inf if one[1] is None else one[1], str(one[2]))):
        if 0 < one[0] < start - SLACK:
            raise Unreadable(f"contradicts itself: an evaluation {start - one[0]:.6g} s before run_start")
        if one[0] < start or one[0] > stop + SLACK:
            after += [one] * (one[0] > stop)
            record["flags"] += ["evaluation-outside"] * ("evaluation-outside" not in record["flags"])
        elif not course or one[1] != course[-1][1] or one[0] - course[-1][0] > TOGETHER:
            course.append(one)
        elif not same(one[2], course[-1][2]):
            if one[1] is not None and one[0] - course[-1][0] <= SLACK:
                raise Unreadable(f"contradicts itself: {shown(course[-1][2])} and {shown(one[2])} for one evaluation")
            course.append(one)
    return course, after


def measured(value):
    """A metric from 0 to 100: a float (NaN where the run diverged), or floats by name or place (box and mask)."""
    if isinstance(value, list) and value:
        value = {str(place): part for place, part in enumerate(value)}
    if isinstance(value, dict) and value:
        return {str(name): measured(part) for name, part in sorted(value.items())}
    if is_nan(value):
        return math.nan
    if not 0 <= number(value) <= 100:
        raise ValueError(f"{value!r} is no metric")
    return number(value)


def same(one, other) -> bool:
    """Whether several ranks may have printed these for one evaluation: equal but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4) or is_nan(one) and is_nan(other)
    return str(one) == str(other)


def is_nan(value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def meets(value, target) -> bool:
    if isinstance(value, dict) and isinstance(target, dict):
        return all(value.get(name, -math.inf) >= bound for name, bound in target.items())
    if isinstance(value, dict) or isinstance(target, dict):
        raise Unreadable("contradicts itself: target and evaluation are of different kinds")
    return value >= target


def check_epochs(course: list[tuple], record: dict) -> None:
    """Refuse a log whose epochs run backwards in time, unless its clock stepped back and later forward by as much (an
    hour that was lived through twice): then start and stop agree with each other."""
    epochs = [epoch for _, epoch, _ in course if epoch is not None]
    if epochs == sorted(epochs):
        return
    times = [seconds for seconds, epoch, _ in sorted(course, key=lambda one: (one[1] is not None, one[1] or 0.0))]
    gaps = [b - a for a, b in zip(times, times[1:])]
    usual = sorted(gaps)[len(gaps) // 2]
    steps = [gap - usual for gap in gaps if abs(gap - usual) > usual / 2]
    if usual > 0 and len(steps) == 2 and steps[0] < 0 and abs(sum(steps)) < usual / 10:
        record["flags"].append("clock-stepped-and-returned")
        course.sort(key=lambda one: -math.inf if one[1] is None else one[1])
        return
    raise Unreadable("its clock cannot be right: a later epoch has an earlier time")


def shown(value):
    """A metric as one cell of a table."""
    return "; ".join(f"{name} {part!r}" for name, part in value.items()) if isinstance(value, dict) else value
