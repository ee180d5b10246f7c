"""Writes lines of MLPerf logs for tests: the three formats, with the same calls. Times are in seconds from `START`."""

import json

START = 1_500_000_000  # seconds after 1970: 14 July 2017
FORMATS = ("v0.5", "v0.6", "v0.7")
SHOWN = ("tta_seconds", "last_value", "target", "evaluations", "last_epoch", "run_start", "run_stop", "converged")


def line(format: str, when: float, key: str, value=None, benchmark: str = "resnet", since: float = START, **metadata):
    """One line. In v0.5, `value` is the text after the tag; in the others metadata go with it."""
    if format == "v0.5":
        told = "" if value is None else f": {json.dumps(value)}"
        return f":::MLPv0.5.0 {benchmark} {since + when:.3f} (train.py:7) {key}{told}\n"
    body = {"value": value, "metadata": {"file": "train.py", "lineno": 7, **metadata}}
    if format == "v0.6":
        return f":::MLL {since + when:.3f} {key}: {json.dumps(body)}\n"
    return (
        ":::MLLOG " + json.dumps({"namespace": "", "time_ms": round(1000 * (since + when)), "key": key, **body}) + "\n"
    )


def name(format: str, benchmark: str = "resnet") -> str:
    """The line that names the benchmark, where lines do not."""
    return line(format, -30, "submission_benchmark", benchmark) if format != "v0.5" else ""


def start(format: str, when: float = 0.0, **more) -> str:
    return line(format, when, "run_start", **more)


def stop(format: str, when: float, success=True, **more) -> str:
    if format == "v0.5":
        return line(format, when, "run_stop", None if success is None else {"success": success}, **more)
    told = {} if success is None else {"status": "success" if success else "aborted"}
    return line(format, when, "run_stop", **told, **more)


def evaluation(format: str, when: float, epoch, value, **more) -> str:
    if format == "v0.5":
        return line(format, when, "eval_accuracy", {"epoch": epoch, "value": value}, **more)
    return line(format, when, "eval_accuracy", value, epoch_num=epoch, **more)


def log(
    format: str,
    values=(0.3, 0.6, 0.76),
    every: float = 100.0,
    success=True,
    target=0.749,
    benchmark="resnet",
    since=START,
):
    """A whole run with one evaluation each `every` seconds; it stops 10 ms after the last."""
    more = {"since": since} if format != "v0.5" else {"since": since, "benchmark": benchmark}
    text = name(format, benchmark) + start(format, **more)
    if format == "v0.5" and target is not None:
        text += line(format, 1.0, "eval_target", target, **more)
    for number, value in enumerate(values, 1):
        text += evaluation(format, number * every, number, value, **more)
    return text + stop(format, len(values) * every + 0.01, success, **more)
