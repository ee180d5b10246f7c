"""Rules about the gradient noise scale and about the controls of lab 10. numpy only; margins are in the claims."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs
from labs.rules_critical import complete, crossing, difference, interval, knee_fit, resampled


def noise_runs(runs, select: dict) -> dict:
    """{seed: run} of the runs that followed the noise scale."""
    ordered = sorted(chosen(runs, select), key=lambda run: run.header.began)
    return {run.header.repeat: run for run in ordered if run.series("noise_trace")}


def course(run, target: float):
    """(tr Sigma, |G|^2) per measured step until the training loss is at the target."""
    end = crossing(run, target)
    pairs = zip(run.series("noise_trace"), run.series("gradient_squared_norm"), strict=True)
    return np.array([(trace.value, square.value) for trace, square in pairs if trace.step <= end])


def path_noise(run, target: float) -> float:
    """Ratio of the sums over all steps until the target: every step weighs alike."""
    trace, square = course(run, target).sum(0)
    return float(trace / square) if square > 0 else math.inf


def noise_predicts(runs, *, select, target, batches, seeds, noise, noise_seeds, within) -> Finding:
    """Noise scale over the path to the target, divided by the critical batch of the fit, in [1 / within, within]."""
    ready, measured = complete(chosen(runs, select), target, batches, seeds), noise_runs(runs, {**select, **noise})
    if ready is None or len(measured) < noise_seeds:
        return needs(f"batches {batches} with {seeds} seeds, and {noise_seeds} runs with a noise scale")
    knee = float(knee_fit(batches, [steps for _, steps in ready[1].values()])[1])
    scales = [path_noise(run, target) for run in measured.values()]
    ratio = float(np.exp(np.mean(np.log(scales)))) / knee
    evidence = (f"noise scale over the path {', '.join(f'{scale:.0f}' for scale in scales)}; "
                f"critical batch {knee:.0f}; ratio {ratio:.2f}, allowed 1/{within:g} to {within:g}")  # fmt: skip
    return Finding("holds" if 1 / within <= ratio <= within else "contradicted", evidence, len(scales))


def parts_of(run, target: float, parts: int) -> list[float]:
    """The noise scale, as a ratio of sums, in equal parts of the path to the target."""
    return [float(trace / square) if square > 0 else math.inf
            for trace, square in (part.sum(0) for part in np.array_split(course(run, target), parts))]  # fmt: skip


def noise_grows(runs, *, select, target, seeds, parts, at_least) -> Finding:
    """Spearman's correlation of the noise scale with time, over `parts` of the path, is `at_least` so in every seed."""
    measured = noise_runs(runs, select)
    if len(measured) < seeds:
        return needs(f"{seeds} runs with a noise scale")
    found, ends = [], []
    for run in measured.values():
        values = parts_of(run, target, parts)
        found.append(float(np.corrcoef(np.arange(parts), np.argsort(np.argsort(values)))[0, 1]))
        ends.append(f"{values[0]:.0f} to {values[-1]:.0f}")
    evidence = f"rank correlation {', '.join(f'{value:.2f}' for value in found)}; {'; '.join(ends)}"
    return Finding("holds" if min(found) >= at_least else "not seen", evidence, len(found))


def knob_moves(runs, *, select, target, levels, batches, seeds, noise, share) -> Finding:
    """From each noise level to the next the critical batch rises in at least `share` of the bootstrap draws, and the
    noise scale over the path rises too."""
    knees, draws, scales = [], [], []
    for level in levels:
        ready = complete(chosen(runs, {**select, "noise": level, "accumulate": 1}), target, batches, seeds)
        measured = noise_runs(runs, {**select, **noise, "noise": level})
        if ready is None or not measured:
            return needs(f"noise levels {levels}: batches {batches} with {seeds} seeds, and a noise scale at each")
        knees.append(float(knee_fit(batches, [steps for _, steps in ready[1].values()])[1]))
        draws.append(knee_fit(batches, resampled(ready[0], seed=len(knees))[1])[1])
        scales.append(float(np.exp(np.mean([math.log(path_noise(run, target)) for run in measured.values()]))))
    rises = [float(np.mean(after > before)) for before, after in zip(draws, draws[1:])]
    said = [f"{level:g}: critical batch {knee:.0f} [{low:.0f}, {high:.0f}], noise scale {scale:.0f}"
            for level, knee, (low, high), scale in zip(levels, knees, map(interval, draws), scales)]  # fmt: skip
    up = min(rises) >= share and all(np.diff(scales) > 0)
    outcome = "holds" if up else "contradicted" if max(rises) <= 1 - share else "not seen"
    return Finding(outcome, "; ".join(said), len(levels) * len(batches) * seeds)


def ends(runs, select: dict, metric: str) -> dict:
    """{seed: final value} of the runs of one arm."""
    ordered = sorted(chosen(runs, select), key=lambda run: run.header.began)
    return {run.header.repeat: run.last(metric) for run in ordered}


def grown_batch(runs, *, decayed, grown, seeds, margin, fewer) -> Finding:
    """Growing the batch ends within `margin` of the test accuracy that decaying the rate gives (the whole interval of
    the difference), with at most `fewer` of the updates."""
    arms = [ends(runs, select, "test_accuracy") for select in (grown, decayed)]
    if min(map(len, arms)) < seeds:
        return needs(f"{seeds} seeds of both arms")
    gap, half = difference(*(list(arm.values()) for arm in arms))
    updates = [float(np.mean(list(ends(runs, select, "updates").values()))) for select in (grown, decayed)]
    loss = [float(np.mean(list(ends(runs, select, "train_loss").values()))) for select in (grown, decayed)]
    evidence = (f"test accuracy {100 * gap:+.2f} +/- {100 * half:.2f} points, training loss {loss[0]:.3f} against "
                f"{loss[1]:.3f}, updates {updates[0]:.0f} against {updates[1]:.0f}")  # fmt: skip
    same, apart = abs(gap) + half <= margin, abs(gap) - half > margin
    few = updates[0] <= fewer * updates[1]
    return Finding("holds" if same and few else "contradicted" if apart or not few else "not seen", evidence, 2 * seeds)


def slightly_worse(runs, *, plain, scaled, seeds, worse) -> Finding:
    """Each scaled arm's test accuracy is below the plain one's by more than two standard errors, and by at most
    `worse`."""
    arms = [ends(runs, select, "test_accuracy") for select in (plain, *scaled)]
    if min(map(len, arms)) < seeds:
        return needs(f"{seeds} seeds at each momentum")
    base, *others = (list(arm.values()) for arm in arms)
    gaps = [difference(other, base) for other in others]
    evidence = "; ".join(f"m = {select['options']['momentum']:g} at batch {select['batch']}: {100 * gap:+.2f} +/- "
                         f"{100 * half:.2f} points" for select, (gap, half) in zip(scaled, gaps))  # fmt: skip
    if all(gap + half < 0 and gap >= -worse for gap, half in gaps):
        return Finding("holds", evidence, len(arms) * seeds)
    against = any(gap + half < -worse or gap - half > 0 for gap, half in gaps)
    return Finding("contradicted" if against else "not seen", evidence, len(arms) * seeds)


def gap_closes(runs, *, small, short, long, seeds, margin) -> Finding:
    """The large batch is behind by more than two standard errors at equal epochs, and with equal updates it ends no
    more than `margin` behind (the lower end of the interval)."""
    arms = [list(ends(runs, select, "test_accuracy").values()) for select in (small, short, long)]
    if min(map(len, arms)) < seeds:
        return needs(f"{seeds} seeds of the three arms")
    (before, wide), (after, half) = difference(arms[1], arms[0]), difference(arms[2], arms[0])
    evidence = (f"against the small batch {100 * before:+.2f} +/- {100 * wide:.2f} points at equal epochs, "
                f"{100 * after:+.2f} +/- {100 * half:.2f} with equal updates")  # fmt: skip
    if before + wide >= 0:
        return Finding("not seen", f"no gap to close: {evidence}", 3 * seeds)
    outcome = "holds" if after - half >= -margin else "contradicted" if after + half < -margin else "not seen"
    return Finding(outcome, evidence, 3 * seeds)


def shares(run, start: int) -> tuple[float, float]:
    """R^2 of the distance from the start as a + b log t, and as a power of t, both in units of the distance."""
    rows = [row for row in run.series("distance") if row.step >= start]
    t, d = np.log([row.step for row in rows]), np.array([row.value for row in rows])
    line = np.polyval(np.polyfit(t, d, 1), t)
    power = np.exp(np.polyval(np.polyfit(t, np.log(d), 1), t))
    return tuple(float(1 - np.sum((d - fit) ** 2) / np.sum((d - d.mean()) ** 2)) for fit in (line, power))


def log_distance(runs, *, select, seeds, start, at_least) -> Finding:
    """The distance from the start fits a + b log t with R^2 of `at_least`, and better than a power of t, every time."""
    found = {run.header.repeat: shares(run, start) for run in chosen(runs, select) if run.series("distance")}
    if len(found) < seeds:
        return needs(f"{seeds} runs that follow the distance")
    evidence = "; ".join(f"R2 of log t {log:.3f}, of a power {power:.3f}" for log, power in found.values())
    holds = all(log >= at_least and log > power for log, power in found.values())
    worse = all(log < power for log, power in found.values())
    return Finding("holds" if holds else "contradicted" if worse else "not seen", evidence, len(found))


RULES = (noise_predicts, noise_grows, knob_moves, grown_batch, slightly_worse, gap_closes, log_distance)
