"""Rules about splitting a network: equal gradients and counted words on real ranks, bubbles of schedules, and what the
planner's cost model (`labs.planner`, a model and no measurement) chooses. Identities are judged at every profile."""

import numpy as np

from labkit.rules.finding import Finding, chosen, needs


def last(run, metric: str) -> float:
    """The last value of a metric in a run."""
    return run.series(metric)[-1].value


def splits_agree(runs, *, schemes, error, ranks) -> Finding:
    """Each scheme ran on `ranks` real processes or more: its gradients are within `error` of those of one process
    (largest difference over the largest gradient), and the words and messages that it counted are those of its formula.
    """
    runs = [run for run in chosen(runs, {"evidence": "split"}) if run.config["ranks"] >= ranks]
    found = {scheme: chosen(runs, {"scheme": scheme}) for scheme in schemes}
    if missing := [scheme for scheme in schemes if not found[scheme]]:
        return needs(f"{', '.join(missing)} on {ranks} real processes")
    runs = [run for part in found.values() for run in part]
    off = [run.config["scheme"] for run in runs if not last(run, "error") <= error]
    counts = [
        run.config["scheme"]
        for run in runs
        for what in ("words", "messages")
        if last(run, f"{what} counted") != last(run, f"{what} by formula")
    ]
    evidence = (
        f"{', '.join(schemes)}: largest error {np.max([last(run, 'error') for run in runs]):.1g}, bound {error:g}; "
        f"counts differ from the formula in {len(counts)} of {2 * len(runs)}"
    )
    wrong = f"; off: {', '.join(dict.fromkeys(off + counts))}" if off or counts else ""
    return Finding("contradicted" if wrong else "holds", evidence + wrong, len(runs))


def bubble_as_formula(runs, *, schedules, error, cases) -> Finding:
    """The idle share of a simulated schedule is (S-1)/(M+S-1), for each of `schedules` in `cases` pairs (S, M) or more;
    the rows' `samples` number the pairs of the run's configuration."""
    off = {name: {} for name in schedules}
    for run in chosen(runs, {"evidence": "bubble"}):
        for row in run.series("idle") if run.config["schedule"] in off else ():
            stages, micro = run.config["pairs"][row.samples]
            difference = abs(row.value - (stages - 1) / (micro + stages - 1))
            off[run.config["schedule"]].setdefault((stages, micro), []).append(difference)
    if min(map(len, off.values())) < cases:
        return needs(f"{cases} pairs of stages and microbatches for each of {', '.join(schedules)}")
    worst = float(np.max([value for part in off.values() for values in part.values() for value in values]))
    count = sum(map(len, off.values()))
    return Finding(
        "holds" if worst <= error else "contradicted",
        f"largest of {count} differences {worst:.1g}, bound {error:g}",
        count,
    )


def words_ratio(runs, *, scheme, over, ratio, tolerance, ranks) -> Finding:
    """Words counted for `scheme` over those for `over`, same network and ranks, are `ratio` within `tolerance`."""
    pairs = [
        (last(a, "words counted"), last(b, "words counted"))
        for a in chosen(runs, {"evidence": "split", "scheme": scheme})
        for b in chosen(
            runs, {"evidence": "split", "scheme": over, "ranks": a.config["ranks"], "network": a.config["network"]}
        )
        if a.config["ranks"] >= ranks
    ]
    if not pairs:
        return needs(f"{scheme} and {over} of one network on {ranks} real processes")
    found = [a / b for a, b in pairs]
    worst = found[int(np.argmax(np.abs(np.array(found) - ratio)))]  # the NaN, if there is one
    return Finding(
        "holds" if abs(worst - ratio) <= tolerance * ratio else "contradicted",
        f"{scheme} / {over} {worst:.4f} in words counted, expected {ratio:g}",
        len(found),
    )


def winner_changes(runs, *, select, old, new, scheme, others, margin) -> Finding:
    """By the planner, at the devices, batch and machine of `select`: for each network of `old` one of `others` is
    faster than `scheme` by a factor of `margin` or more, for each of `new` none is; contradicted if it is the other way
    round for all. How often it is so at the other batches and bandwidths that were planned stands in the evidence."""
    gains: dict = {}
    for run in chosen(runs, {"evidence": "plan", "devices": select["devices"]}):
        for name in (name for name in (*old, *new) if run.series(f"{scheme} of {name}")):
            rest = [last(run, f"{other} of {name}") for other in others if run.series(f"{other} of {name}")]
            at = (run.config["batch"], run.config["bandwidth"])
            gains.setdefault(at, {})[name] = last(run, f"{scheme} of {name}") / min(rest)
    whole = {at: found for at, found in gains.items() if {*old, *new} <= set(found)}
    main = whole.get((select["batch"], select["bandwidth"]))
    if main is None:
        return needs(f"plans of {', '.join([*old, *new])} at batch {select['batch']}")

    def changes(found):
        return all(found[name] >= margin for name in old) and all(found[name] < margin for name in new)

    said = ", ".join(f"{name} x {main[name]:.2f}" for name in [*old, *new])
    evidence = (
        f"{scheme} over the best of {' and '.join(others)}: {said}; margin {margin:g}; so at "
        f"{sum(map(changes, whole.values()))} of {len(whole)} pairs of batch and bandwidth"
    )
    if changes(main):
        return Finding("holds", evidence, len(main))
    reverse = all(main[name] < margin for name in old) and all(main[name] >= margin for name in new)
    return Finding("contradicted" if reverse else "not seen", evidence, len(main))


def hybrid_by_kind(runs, *, select, error) -> Finding:
    """The planner's choice of data, columns or rows for each layer: data for every convolution, a split for every fully
    connected layer, and as fast as the best of all choices scored one by one; in every run of it, of which the first
    that differs is told. Contradicted if there no layer is so."""
    found = chosen(runs, {"evidence": "hybrid", **select})
    if not found:
        return needs("the planner's choice and all choices scored")
    for run in found:
        conv, by_data, fully, split = (last(run, name) for name in ("conv", "conv by data", "fc", "fc split"))
        off = abs(last(run, "seconds") / last(run, "exhaustive seconds") - 1)
        evidence = (
            f"{by_data:.0f} of {conv:.0f} convolutions by data, {split:.0f} of {fully:.0f} fully connected layers "
            f"split; {off:.1g} from the best of {last(run, 'tried'):.0f} choices"
        )
        if not (by_data == conv and split == fully and off <= error):
            return Finding("contradicted" if not by_data and not split else "not seen", evidence, len(found))
    return Finding("holds", evidence, len(found))


RULES = (splits_agree, bubble_as_formula, words_ratio, winner_changes, hybrid_by_kind)
