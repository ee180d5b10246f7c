"""Time to accuracy under a clock rule that is data, not code: the same spans are read by every rule.

A rule says which kinds of span count, whether time between spans counts, where the clock starts, and how a set of runs
becomes one number. A log that carries a single clock answers only that rule; anything else is *not answerable*, never a
guess. First crossing is `>=` on the raw value (for a loss `<=`). A run that misses takes infinitely long.

Sources of the rules: the benchmarks' own rule texts. DAWNBench's entries are silent on compilation; we count it, as
their answer on model initialisation does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.curve import SPAN_KINDS, Row, Run
from labkit.errors import RequestError, choose

ALL = frozenset(SPAN_KINDS)


@dataclass(frozen=True)
class ClockRule:
    """How seconds are counted.

    Attributes:
        counts: kinds of span on the clock.
        gaps: whether time outside every span counts too.
        starts_at: the first span of one of these kinds starts the clock (empty: the start of the run).
        per: `run` (each run is judged) or `set` (only the whole set is).
        score: how a set becomes one number, see `score`.
        says: the rule in words."""

    name: str
    counts: frozenset
    gaps: bool
    starts_at: frozenset
    per: str
    score: str
    says: str


RULES = {rule.name: rule for rule in (
    ClockRule("wall", ALL, True, frozenset(), "run", "median",
              "everything from the first line of the run, as a person at the desk would count"),
    ClockRule("dawnbench", frozenset({"init", "data", "compile", "train"}), False, frozenset(), "run", "best",
              "no evaluation, no checkpoints; one run, chosen by the submitter"),
    ClockRule("mlperf", frozenset({"data", "train", "evaluate", "checkpoint"}), True, frozenset({"data", "train"}),
              "run", "drop-extremes", "from the first touch of the data, evaluation on the clock, initialisation "
              "and compilation free; drop the fastest and the slowest, mean of the rest"),
    ClockRule("speedrun", frozenset({"train"}), False, frozenset({"train"}), "set", "mean-if-proved",
              "training only; the mean final metric of all runs must meet the target with p < 0.01"),
    ClockRule("algoperf", frozenset({"compile", "train"}), False, frozenset({"compile", "train"}), "run", "median",
              "update steps and compilation; the median counts a miss as infinite"),
)}


@dataclass(frozen=True)
class Answer:
    """Seconds under a rule (infinite for a miss), or `seconds=None` with the reason why it cannot be answered."""

    seconds: float | None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.seconds is not None and math.isfinite(self.seconds)

    def __str__(self) -> str:
        if self.seconds is None:
            return f"not answerable: {self.reason}"
        return f"{self.seconds:.3g} s" if math.isfinite(self.seconds) else "not reached"


def first_crossing(run: Run, target: dict) -> Row | None:
    """The first row that meets the target, in the order of the file.

    Args:
        target: `{"metric": name, "value": number, "higher": True or False}`."""
    higher = target.get("higher", True)
    for row in run.series(target["metric"]):
        if row.value >= target["value"] if higher else row.value <= target["value"]:
            return row
    return None


def clock_rule(name: str) -> ClockRule:
    choose("clock rule", name, RULES)
    return RULES[name]


def counted_seconds(run: Run, rule: ClockRule, until: float) -> float:
    """Seconds on the clock of `rule` from its start to `until` (seconds from the start of the run); spans may not
    overlap. A clock that has not started by then shows 0."""
    starts = [span.start for span in run.spans if span.kind in rule.starts_at]
    begin = min([*starts, until]) if rule.starts_at else 0.0
    inside = [(span.kind, max(span.start, begin), min(span.end, until)) for span in run.spans]
    inside = [(kind, start, end) for kind, start, end in inside if end > start]
    if rule.gaps:
        return until - begin - sum(end - start for kind, start, end in inside if kind not in rule.counts)
    return sum(end - start for kind, start, end in inside if kind in rule.counts)


def unanswerable(run: Run, rule: ClockRule) -> str:
    """Why a clock rule cannot read seconds off this run; empty if it can."""
    if run.header.arms > 1:
        return f"{run.header.arms} runs were trained together and share their seconds"
    if run.header.clock is not None:
        return "" if run.header.clock == rule.name else f"this log carries only the {run.header.clock} clock"
    kinds = {span.kind for span in run.spans}
    if not kinds:
        return "the run recorded no spans of time"
    for needed, what in ((rule.counts, "is on"), (rule.starts_at, "starts")):
        if needed and not kinds & needed:
            return f"the run recorded no span that {what} the {rule.name} clock ({', '.join(sorted(needed))})"
    return ""


def time_to_target(run: Run, rule: str = "dawnbench", target: dict | None = None) -> Answer:
    """Seconds that one run took to reach its target, under one clock rule.

    Args:
        target: defaults to the target in the run's header.

    When not to use it: for a rule that judges a set (`speedrun`), ask `score`; for a single run it is not answerable.
    """
    rule = clock_rule(rule)
    target = target or run.header.target
    if target is None:
        return Answer(None, "the run has no target")
    reason = unanswerable(run, rule)
    if reason:
        return Answer(None, reason)
    if rule.per == "set" and run.header.clock is None:
        return Answer(None, f"{rule.name} judges a set of runs, not one")
    row = first_crossing(run, target)
    if row is None:
        return Answer(math.inf)
    return Answer(row.when if run.header.clock else counted_seconds(run, rule, row.when))


def score(runs: Sequence[Run], rule: str = "dawnbench", target: dict | None = None) -> Answer:
    """What a benchmark with this rule would publish for these runs of one recipe.

    `best`: the fastest run. `median`: a miss is infinite. `drop-extremes`: of three runs or more, without the fastest
    and the slowest; one miss may be the slowest, two leave no score. `mean-if-proved`: the mean training time, if a
    one-sided t-test says with p < 0.01 that the mean final metric meets the target."""
    from labkit.tta import statistics

    chosen = clock_rule(rule)
    if not runs:
        raise RequestError("a score needs at least one run")
    if chosen.score == "mean-if-proved":
        return proved_mean(runs, chosen, target or runs[0].header.target, statistics)
    answers = [time_to_target(run, rule, target) for run in runs]
    unanswered = [answer for answer in answers if answer.seconds is None]
    if unanswered:
        return unanswered[0]
    times = [answer.seconds for answer in answers]
    if chosen.score == "best":
        return Answer(min(times))
    if chosen.score == "median":
        return Answer(float(np.median(times)))
    if len(times) < 3:
        return Answer(None, f"dropping the fastest and the slowest needs three runs or more, not {len(times)}")
    return Answer(*statistics.drop_extremes_mean(times))


def proved_mean(runs: Sequence[Run], rule: ClockRule, target: dict | None, statistics) -> Answer:
    """The speed-run rule: all runs train to their end; the set is judged on the mean of its final metric."""
    if target is None:
        return Answer(None, "the runs have no target")
    reasons = [unanswerable(run, rule) or run.header.clock and "a public log does not tell its training"
               for run in runs]
    if any(reasons):
        return Answer(None, next(filter(None, reasons)))
    if len(runs) < 2:
        return Answer(None, "a mean cannot be proved with one run")
    finals = [run.last(target["metric"]) for run in runs]
    try:
        test = statistics.mean_meets_target(finals, target["value"], higher_is_better=target.get("higher", True))
    except RequestError as error:
        return Answer(None, f"the mean final {target['metric']} cannot be tested: {error}")
    if not test.p_value < 0.01:
        found = f"(p = {test.p_value:.3g}, n = {len(runs)})"
        return Answer(math.inf, f"the mean {test.mean:.4g} is not proved to meet {target['value']} {found}")
    return Answer(float(np.mean([counted_seconds(run, rule, max(span.end for span in run.spans)) for run in runs])))
