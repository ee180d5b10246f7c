"""Rules about what lab 05 counts: edges, gaps, lost updates, a full server. numpy only.

Every matching run is judged, comparisons are written so that NaN fails, and a rule answers `not attempted` unless each
case that it names is there. Rules about trainings, whose rates are tuned: `labs.rules_asynchronous_tuned`."""

import numpy as np

from labkit.rules.finding import Finding, chosen, needs


def edge(delay) -> float:
    """Largest stable rate x curvature of SGD with gradients `delay` updates old: 2 sin(pi / (2(2 delay + 1)))."""
    return 2 * np.sin(np.pi / (2 * (2 * np.asarray(delay) + 1)))


def verdict(good: bool) -> str:
    return "holds" if good else "contradicted"


def extreme(values, high: bool = True) -> float:
    """The largest (or smallest) of some numbers; NaN if one is."""
    return float(np.max(values) if high else np.min(values))


def each_at_most(runs, *, evidence, key, cases, most, least=None, select=None) -> Finding:
    """In every run of this evidence all values of each metric in `most` are at most its bound, and of each in `least`
    at least that. There must be all metrics for each of `cases`: values of `key`, a field of the configuration, or, if
    it is `samples`, of the rows."""
    bounds = [(metric, bound, True) for metric, bound in most.items()]
    bounds += [(metric, bound, False) for metric, bound in (least or {}).items()]
    found, good, told = chosen(runs, {"evidence": evidence, **(select or {})}), True, []
    for metric, bound, high in bounds:
        rows = [(run, row) for run in found for row in run.series(metric)]
        seen = {row.samples if key == "samples" else run.config.get(key) for run, row in rows}
        missing = sorted(set(cases) - seen)
        if missing or len({id(run) for run, _ in rows}) < len(found):
            return needs(f"{metric} in every run of {evidence}, at {key} {', '.join(map(str, missing or cases))}")
        values = [row.value for _, row in rows]
        good &= all(value <= bound if high else value >= bound for value in values)
        told.append(f"{'largest' if high else 'smallest'} {metric} {extreme(values, high):.2g}, bound {bound:g}")
    return Finding(verdict(good), f"{'; '.join(told)}; {key} {', '.join(map(str, cases))}", len(found))


def edges_equal_formula(runs, *, delays, tolerance) -> Finding:
    """Without momentum, every edge found by running is 2 sin(pi / (2(2 delay + 1))), relative to `tolerance`."""
    found = chosen(runs, {"evidence": "edge", "momentum": 0.0})
    rows = [row for run in found for row in run.series("edge")]
    if not set(delays) <= {row.samples for row in rows}:
        return needs(f"the edge at delays {delays}")
    errors = [abs(row.value / edge(row.samples) - 1) for row in rows]
    told = ", ".join(f"delay {row.samples}: {row.value:.4f}" for row in rows[: len(delays)])
    good = all(error <= tolerance for error in errors)
    return Finding(verdict(good), f"off by {extreme(errors):.1e} at most; {told}", len(rows))


def bounds_hold(runs, *, evidences, bounds) -> Finding:
    """For each of `evidences` (such as real and simulated gaps) and each of `bounds`: no `gap` is above the bound of
    its run, and one is equal to it, as a bound that nobody comes up to says nothing."""
    good, told, count = True, [], 0
    for evidence in evidences:
        found = chosen(runs, {"evidence": evidence})
        gaps = [(run.config["bound"], row.value) for run in found for row in run.series("gap")]
        short = [bound for bound in bounds if not any(own == bound and not gap < bound for own, gap in gaps)]
        if short or not all(run.series("gap") for run in found):
            return needs(f"{evidence} in every run, and one that comes up to the bound, at {bounds}")
        good &= all(gap <= bound for bound, gap in gaps)
        told.append(f"{evidence} above its bound by {extreme([gap - bound for bound, gap in gaps]):g} at most")
        count += len(found)
    return Finding(verdict(good), f"{'; '.join(told)}; somebody came up to each of {bounds}", count)


def sparse_loses_less(runs, *, dense, sparse, repeats) -> Finding:
    """In each repetition a smaller share of updates is lost on `sparse` non-zero values than on `dense` ones;
    contradicted if a larger one is in each. A repetition (`turn`) counts once, and each of its runs is judged."""
    found = chosen(runs, {"evidence": "lost", "dense": dense, "sparse": sparse})
    columns = [[[row.value for row in run.series(name)] for run in found] for name in ("dense_lost", "sparse_lost")]
    shares = [all(len(row) == 1 and 0 <= row[0] <= 1 for row in column) for column in columns]
    if len({run.config["turn"] for run in found}) < repeats or not all(shares):
        return needs(f"{repeats} repetitions of the race, with a share lost of dense and of sparse updates in each")
    many, few = np.array(columns)[..., 0]
    outcome = "holds" if (few < many).all() else "contradicted" if (few > many).all() else "not seen"
    told = f"lost on average {many.mean():.2%} of the dense and {few.mean():.2%} of the sparse updates"
    return Finding(outcome, f"{told}; least apart {(many - few).min():.2%}", len(found))


def server_saturates(runs, *, shards, workers, near) -> Finding:
    """Updates a second never exceed shards x bandwidth / message, and reach `near` of it with `workers` workers; so S
    shards lift the limit S-fold."""
    found = chosen(runs, {"evidence": "server"})
    rows = [(run.config["shards"], row) for run in found for row in run.series("share_of_limit")]
    there = {count for count, row in rows if row.samples == workers}
    if not set(shards) <= there or not all(run.series("share_of_limit") for run in found):
        return needs(f"throughput in every run, and that of {workers} workers with {shards} shards")
    every = [row.value for _, row in rows]
    full = [row.value for _, row in rows if row.samples >= workers]
    told = (f"at most {extreme(every):.4f} of shards x bandwidth / message; {extreme(full, False):.3f} or more with "
            f"{workers} workers; shards {', '.join(map(str, shards))}")
    good = all(value <= 1 + 1e-9 for value in every) and all(value >= near for value in full)
    return Finding(verdict(good), told, len(found))


RULES = (each_at_most, edges_equal_formula, bounds_hold, sparse_loses_less, server_saturates)
