"""Rules about identities of lab 06: bytes, bias and variance, mixing, and real ranks against one process. Every
matching run is judged, and NaN never passes a bound."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs


def values(runs, metric: str) -> list[tuple[int, float]]:
    """(samples, value) of a metric in all of the runs."""
    return [(row.samples, row.value) for run in runs for row in run.series(metric)]


def by_key(runs, key: str) -> dict:
    """Runs by a value of their configuration."""
    found: dict = {}
    for run in runs:
        found.setdefault(run.config[key], []).append(run)
    return found


def worst_of(found) -> float:
    """The largest; infinite where one is NaN."""
    return max((math.inf if math.isnan(value) else value for value in found), default=0.0)


def unbiased_within(runs, *, compressor, levels, bias, draws) -> Finding:
    """For each of `levels`: the mean of `draws` wires or more is off by no more than chance (squared distance over its
    expectation at most `bias`), and the variance is below its bound where one was recorded."""
    found = [run for run in chosen(runs, {"evidence": "moments", "compressor": compressor})
             if run.config["draws"] >= draws]
    if missing := sorted(set(levels) - {run.config["levels"] for run in found}):
        return needs(f"{compressor} with levels {missing}, {draws} draws each")
    told, wrong = [], []
    for run in found:
        parts = {name: [value for _, value in values([run], name)] for name in ("bias", "variance", "bound")}
        bounds = len(parts["bound"]) if compressor != "qsgd" else len(parts["variance"])
        if not parts["bias"] or not parts["variance"] or len(parts["bound"]) != bounds:
            return needs("bias, variance and, for QSGD, the bound of every run")
        bad = not all(value <= bias for value in parts["bias"]) or not np.isfinite(parts["variance"]).all()
        if parts["bound"]:
            bad |= any(not value <= bound for value, bound in zip(parts["variance"], parts["bound"], strict=True))
        bound = f" (bound {parts['bound'][0]:.3g})" if parts["bound"] else ""
        numbers = f"variance {parts['variance'][0]:.3g}{bound}, bias {parts['bias'][0]:.2f}"
        told.append(f"s = {run.config['levels']}: {numbers}")
        wrong += [run.config["levels"]] * bad
    off = f"; off: {sorted(set(wrong))}" if wrong else ""
    return Finding("contradicted" if wrong else "holds", "; ".join(dict.fromkeys(told)) + off, len(found))


def toy_needs_feedback(runs, *, still, moved, rates) -> Finding:
    """On the toy problem signs alone leave the distance at 1, within `still`, for every rate; with feedback it falls to
    `moved` or below at one rate or more; `rates` rates at least, in every run."""
    found = chosen(runs, {"evidence": "toy"})
    tables = [[[value for _, value in values([run], name)] for name in ("without", "with")] for run in found]
    if not found or any(min(map(len, table)) < rates for table in tables):
        return needs(f"the toy at {rates} rates, with and without feedback")
    off = worst_of(abs(value - 1) for without, _ in tables for value in without)
    least = worst_of(min(with_) if all(map(math.isfinite, with_)) else math.nan for _, with_ in tables)
    good = off <= still and least <= moved
    return Finding("holds" if good else "contradicted", f"distance 1 at the start; signs alone move it by {off:.2g} at "
                   f"most, with feedback it ends at {least:.2g} at best", len(found))


def union_as_formula(runs, *, ranks, errors, words) -> Finding:
    """For each number of `ranks`, sums of independent sparse places by recursive doubling: the union is 1 - (1-d)^P
    within `errors` standard errors; all words that a rank sends, in all rounds, are those of the unions of 1, 2, 4, ...
    P/2 ranks, without the switch and with it (relative `words`); and beyond P* = ln(1/2) / ln(1-d), only there, the sum
    is fewer words dense than as places and values. There are ranks on both sides of P*."""
    found = chosen(runs, {"evidence": "union"})
    tables = [{name: dict(values([run], name)) for name in ("union", "switched", "sparse")} for run in found]
    if not found or any(not set(ranks) <= set(part) for table in tables for part in table.values()):
        return needs(f"the union of {ranks} ranks, and its words")
    worst, apart, wrong = 0.0, 0.0, set()
    for run, table in zip(found, tables, strict=True):
        density, count = run.config["density"], run.config["words"]
        border = math.log(0.5) / math.log(1 - density)
        if not min(ranks) < border < max(ranks):
            return needs(f"ranks on both sides of P* = {border:.3g}")
        for size, union in table["union"].items():
            formula = 1 - (1 - density) ** size
            off = worst_of([abs(union - formula) / math.sqrt(formula * (1 - formula) / count)])
            unions = [1 - (1 - density) ** (2**turn) for turn in range(int(size).bit_length() - 1)]
            for name, most in (("sparse", math.inf), ("switched", 1.0)):
                right = sum(1 + count * min(2 * part, most) for part in unions)
                difference = worst_of([abs(table[name][size] / right - 1)])
                apart = max(apart, difference)
                wrong |= set() if difference <= words else {size}
            worst = max(worst, off)
            if not off <= errors or (2 * union > 1) != (size > border):
                wrong.add(size)
    told = f"; off at P = {sorted(wrong)}" if wrong else ""
    return Finding("contradicted" if wrong else "holds", f"union off by {worst:.1f} standard errors at most, words by "
                   f"{100 * apart:.2g} %{told}", len(found))


def factors_pay_as_formula(runs, *, error) -> Finding:
    """Gathering factors gives the gradient of gathering matrices (relative `error`), and counted words are fewer
    exactly where B (Ci + Co) < Ci Co, on every rank; there are cases of both kinds."""
    found = chosen(runs, {"evidence": "factors"})
    pays = {run.config["batch"] * (run.config["inputs"] + run.config["outputs"]) < run.config["inputs"]
            * run.config["outputs"] for run in found}
    if pays != {True, False}:
        return needs("a case in which factors pay and one in which they do not")
    wrong, worst = [], 0.0
    for run in found:
        batch, inputs, outputs = (run.config[name] for name in ("batch", "inputs", "outputs"))
        parts = [[value for _, value in values([run], name)] for name in ("error", "matrices", "factors")]
        if any(len(part) != run.config["ranks"] for part in parts):
            return needs("error and words of every case, from every rank")
        right = batch * (inputs + outputs) < inputs * outputs
        fewer = [there < here for here, there in zip(*parts[1:], strict=True)]
        worst = max(worst, worst_of(parts[0]))
        if not worst_of(parts[0]) <= error or any(each != right for each in fewer) or not np.isfinite(parts).all():
            wrong.append((batch, inputs, outputs))
    off = f"; off at {wrong}" if wrong else ""
    evidence = f"{len(found)} cases, largest error {worst:.1g}{off}"
    return Finding("contradicted" if wrong else "holds", evidence, len(found))


def ranks_say_the_same(runs, *, methods, error, rounding, moved) -> Finding:
    """Every real rank ends at the parameters of the workers in one process (largest difference, relative to the
    farthest that one moved, at most `error`, or what `rounding` allows a method), has sent the same bytes, and has
    moved by `moved` or more; for each of `methods`."""
    found = chosen(runs, {"evidence": "real"})
    if missing := sorted(set(methods) - {run.config["method"] for run in found}):
        return needs(f"{', '.join(missing)} on real ranks")
    wrong, worst = [], 0.0
    for run in found:
        method, ranks = run.config["method"], run.config["ranks"]
        errors, went, real = ([value for _, value in values([run], name)] for name in ("error", "moved", "sent"))
        alone = [value for _, value in values([run], "sent_alone")]
        if not len(errors) == len(went) == len(real) == ranks >= 2 or len(alone) != 1:
            return needs("error, movement and bytes of every rank")
        worst = max(worst, worst_of(errors)) if method not in rounding else worst
        good = worst_of(errors) <= rounding.get(method, error) and all(moved <= value < math.inf for value in went)
        if not good or not alone[0] > 0 or any(value != alone[0] for value in real):
            wrong.append(method)
    off = f"; off: {', '.join(dict.fromkeys(wrong))}" if wrong else ", bytes by none"
    but = f" (but {', '.join(rounding)})" if rounding else ""
    evidence = f"{len(found)} comparisons, parameters differ by {worst:.1g} at most{but}{off}"
    return Finding("contradicted" if wrong else "holds", evidence, len(found))


def averaging_is_synchronous(runs, *, least, bound, moved) -> Finding:
    """On every one of `least` ranks or more: averaged every step and synchronous SGD end at the same parameters
    (relative `bound`), and have moved by `moved` or more."""
    found = chosen(runs, {"evidence": "equal"})
    if not found:
        return needs("local SGD with period 1 on real ranks")
    errors, wrong = [], False
    for run in found:
        parts = [values([run], name) for name in ("synchronous_error", "moved")]
        if any([rank for rank, _ in part] != list(range(run.config["ranks"])) for part in parts):
            return needs("error and movement of every rank")
        if run.config["ranks"] < least:
            return needs(f"{least} ranks or more")
        errors += [value for _, value in parts[0]]
        wrong |= not worst_of(errors) <= bound or not all(moved <= value < math.inf for _, value in parts[1])
    evidence = f"{len(errors)} ranks, largest relative difference {worst_of(errors):.2g}"
    return Finding("contradicted" if wrong else "holds", evidence, len(found))


def decays_as_eigenvalue(runs, *, ranks, error) -> Finding:
    """Disagreement on the ring falls per round by 1/3 + 2/3 cos(2 pi / P), relative `error`, for each of `ranks`."""
    found = values(chosen(runs, {"evidence": "decay", "graph": "ring"}), "decay")
    if missing := sorted(set(ranks) - {size for size, _ in found}):
        return needs(f"the ring of {missing} ranks")
    off = [(size, abs(value / (1 / 3 + 2 / 3 * math.cos(2 * math.pi / size)) - 1)) for size, value in found]
    wrong = sorted({size for size, part in off if not part <= error})
    told = ", ".join(f"P = {size}: {value:.4f}" for size, value in dict(found).items())
    return Finding("contradicted" if wrong else "holds", told + (f"; off at P = {wrong}" if wrong else ""), len(found))


def mixes_exactly(runs, *, ranks, bound) -> Finding:
    """After lg P rounds of the one-peer exponential graph disagreement, relative to the start, is `bound` or less."""
    found = values(chosen(runs, {"evidence": "mixes"}), "left")
    if missing := sorted(set(ranks) - {size for size, _ in found}):
        return needs(f"the one-peer graph of {missing} ranks")
    wrong = sorted({size for size, value in found if not 0 <= value <= bound})
    evidence = f"at most {max(value for _, value in found):.1g} of the start is left"
    evidence += f"; off at P = {wrong}" if wrong else ""
    return Finding("contradicted" if wrong else "holds", evidence, len(found))


RULES = (unbiased_within, toy_needs_feedback, union_as_formula, factors_pay_as_formula, ranks_say_the_same,
         averaging_is_synchronous, decays_as_eigenvalue, mixes_exactly)
