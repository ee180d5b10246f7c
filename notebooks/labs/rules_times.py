"""Rules about time to accuracy over a set of repeated runs. numpy only."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs
from labkit.tta import clock, statistics


def timed(runs, select, rule: str):
    """Times to target of the chosen runs under a clock rule, for those that can answer."""
    answers = [clock.time_to_target(run, rule) for run in chosen(runs, select)]
    return [answer.seconds for answer in answers if answer.seconds is not None]


def variation_at_most(runs, *, select, clock_rule, bound, seeds) -> Finding:
    """The coefficient of variation of the time to target is at most `bound`: holds if its whole 95 % interval is,
    contradicted if none of it is.
    """
    times = timed(runs, select, clock_rule)
    reached = [t for t in times if math.isfinite(t)]
    if len(times) < seeds or len(reached) < 2:
        return needs(f"{seeds} timed runs to the target")
    variation = statistics.coefficient_of_variation(times)
    evidence = f"variation {variation.value:.2f} [{variation.low:.2f}, {variation.high:.2f}] over {len(reached)} of {len(times)} runs, bound {bound}"
    return Finding(
        "holds" if variation.high <= bound else "contradicted" if variation.low > bound else "not seen",
        evidence,
        len(times),
    )


def evaluation_decides(runs, *, select, every, share, seeds) -> Finding:
    """Read at evaluations `every` optimizer steps apart, at least `share` of the variance of steps to target is
    between evaluations, not within one.

    Steps carry no timing noise: with them, runs that pass at the same evaluation are equal, so what is left is only
    which evaluation passed. Seconds add the noise of the machine.
    """
    runs = chosen(runs, select)
    times, passed = [], []
    for run in runs:
        target = run.header.target
        rows = [row for row in run.series(target["metric"]) if row.step % every == 0 and row.value >= target["value"]]
        answer = clock.time_to_target(thinned(run, every), "dawnbench")
        if rows and answer:
            times.append(answer.seconds)
            passed.append(rows[0].step)
    if len(times) < seeds:
        return needs(f"{seeds} runs that reach the target")
    found = statistics.evaluation_share(times, passed)
    return Finding(
        "holds" if found >= share else "not seen",
        f"{found:.0%} of the variance of seconds is which evaluation passed ({len(set(passed))} of them, every {every} steps)",
        len(times),
    )


def thinned(run, every: int):
    """The same run as if it had been evaluated only `every` optimizer steps (its spans as they were)."""
    return type(run)(run.header, run.spans, [row for row in run.rows if row.step % every == 0], run.status)


def ledger_adds_up(runs, *, tolerance) -> Finding:
    """For every run, the wall clock minus the benchmark clock equals the spans and gaps that the benchmark leaves out,
    up to the crossing.
    """
    worst, count = 0.0, 0
    for run in runs:
        wall, bench = clock.time_to_target(run, "wall"), clock.time_to_target(run, "dawnbench")
        if not (wall and bench):
            continue
        until = clock.first_crossing(run, run.header.target).when
        inside = [(span.kind, min(span.end, until) - span.start) for span in run.spans if span.start < until]
        left_out = sum(length for kind, length in inside if kind not in clock.RULES["dawnbench"].counts)
        gaps = until - sum(length for _, length in inside)
        worst, count = max(worst, abs(wall.seconds - bench.seconds - left_out - gaps)), count + 1
    if not count:
        return needs("a timed run that reaches its target")
    return Finding(
        "holds" if worst <= tolerance else "contradicted", f"largest difference {worst:.1e} s over {count} runs", count
    )


def best_of_n(runs, *, select, clock_rule, n, seeds, tolerance) -> Finding:
    """The expected best of `n` resampled runs lies about sd x E[max of n normals] below the mean; the gap between the
    two, in units of sd, is at most `tolerance`.
    """
    times = [t for t in timed(runs, select, clock_rule) if math.isfinite(t)]
    if len(times) < seeds:
        return needs(f"{seeds} runs that reach the target")
    mean, sd = float(np.mean(times)), float(np.std(times, ddof=1))
    bias, normal = mean - statistics.expected_best_of(times, n), statistics.best_of_n_bias(sd, n)
    evidence = f"best of {n} flatters by {bias / mean:.0%} of the mean; normal theory says {normal / mean:.0%}"
    return Finding("holds" if abs(bias - normal) <= tolerance * sd else "not seen", evidence, len(times))


RULES = (variation_at_most, evaluation_decides, ledger_adds_up, best_of_n)
