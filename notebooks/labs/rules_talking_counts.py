"""Rules about identities of lab 06: bytes, bias and variance, mixing, and real ranks against one process. Every
matching run is judged, and NaN never passes a bound."""

import math

import numpy as np

from labkit.rules.finding import Finding, chosen, needs


def values(runs, metric: str) -> list[tuple[int, float]]:
    """(samples, value) of a metric in all of the runs."""
    return [(row.samples, row.value) for run in runs for row in run.series(metric)]


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
        if not parts["bias"] or not parts["variance"] or (compressor == "qsgd" and not parts["bound"]):
            return needs("bias, variance and, for QSGD, the bound of every run")
        bad = not all(value <= bias for value in parts["bias"]) or not np.isfinite(parts["variance"]).all()
        bad |= any(not value <= bound for value, bound in zip(parts["variance"], parts["bound"], strict=False))
        bound = f" (bound {parts['bound'][0]:.3g})" if parts["bound"] else ""
        numbers = f"variance {parts['variance'][0]:.3g}{bound}, bias {parts['bias'][0]:.2f}"
        told.append(f"s = {run.config['levels']}: {numbers}")
        wrong += [run.config["levels"]] * bad
    off = f"; off: {sorted(set(wrong))}" if wrong else ""
    return Finding("contradicted" if wrong else "holds", "; ".join(dict.fromkeys(told)) + off, len(found))


def toy_needs_feedback(runs, *, still, moved, rates) -> Finding:
    """On the toy problem signs alone leave the distance at `still` or above for every rate, with feedback it falls to
    `moved` or below at one rate or more; `rates` rates at least."""
    found = chosen(runs, {"evidence": "toy"})
    without, with_ = (values(found, name) for name in ("without", "with"))
    if not found or min(len(without), len(with_)) < rates:
        return needs(f"the toy at {rates} rates, with and without feedback")
    bad = any(not value >= still for _, value in without) or not min(value for _, value in with_) <= moved
    return Finding("contradicted" if bad else "holds", f"distance 1 at the start; signs alone end at "
                   f"{min(value for _, value in without):.3g} or more, with feedback at "
                   f"{min(value for _, value in with_):.2g} at best", len(found))


def union_as_formula(runs, *, ranks, errors) -> Finding:
    """Union of independent sparse places is 1 - (1-d)^P within `errors` standard errors for each number of `ranks`, and
    switching to dense sends fewer words exactly where half of the ranks are more than P* = ln(1/2) / ln(1-d)."""
    found = chosen(runs, {"evidence": "union"})
    tables = [{name: dict(values([run], name)) for name in ("union", "switched", "sparse")} for run in found]
    if not found or any(not set(ranks) <= set(part) for table in tables for part in table.values()):
        return needs(f"the union of {ranks} ranks, and its words")
    worst, wrong = 0.0, set()
    for run, table in zip(found, tables, strict=True):
        density, words = run.config["density"], run.config["words"]
        border = math.log(0.5) / math.log(1 - density)
        for size, union in table["union"].items():
            formula = 1 - (1 - density) ** size
            off = abs(union - formula) / math.sqrt(formula * (1 - formula) / words)
            saved = table["sparse"][size] - table["switched"][size]
            worst = max(worst, off if off == off else math.inf)
            if not off <= errors or not saved >= 0 or (saved > 0) != (size / 2 > border):
                wrong.add(size)
    off = f"; off at P = {sorted(wrong)}" if wrong else ""
    return Finding("contradicted" if wrong else "holds", f"off by {worst:.1f} standard errors at most{off}", len(found))


def factors_pay_as_formula(runs, *, error) -> Finding:
    """Gathering factors gives the gradient of gathering matrices (relative `error`), and counted words are fewer
    exactly where B (Ci + Co) < Ci Co; there are cases of both kinds."""
    found = chosen(runs, {"evidence": "factors"})
    pays = {run.config["batch"] * (run.config["inputs"] + run.config["outputs"]) < run.config["inputs"]
            * run.config["outputs"] for run in found}
    if pays != {True, False}:
        return needs("a case in which factors pay and one in which they do not")
    wrong, worst = [], 0.0
    for run in found:
        batch, inputs, outputs = (run.config[name] for name in ("batch", "inputs", "outputs"))
        parts = [[value for _, value in values([run], name)] for name in ("error", "matrices", "factors")]
        if not all(parts):
            return needs("error and words of every case")
        fewer = parts[2][0] < parts[1][0]
        worst = max(worst, parts[0][0])
        if not all(value <= error for value in parts[0]) or fewer != (batch * (inputs + outputs) < inputs * outputs):
            wrong.append((batch, inputs, outputs))
    off = f"; off at {wrong}" if wrong else ""
    evidence = f"{len(found)} cases, largest error {worst:.1g}{off}"
    return Finding("contradicted" if wrong else "holds", evidence, len(found))


def ranks_say_the_same(runs, *, methods, error) -> Finding:
    """Real ranks end at the parameters of the workers in one process (largest difference at most `error`) and have sent
    the same bytes, for each of `methods`."""
    found = chosen(runs, {"evidence": "real"})
    if missing := sorted(set(methods) - {run.config["method"] for run in found}):
        return needs(f"{', '.join(missing)} on real ranks")
    wrong, worst = [], 0.0
    for run in found:
        errors, real, alone = ([value for _, value in values([run], name)] for name in ("error", "sent", "sent_alone"))
        if not errors or not real or len(alone) != 1:
            return needs("error and bytes of every rank")
        worst = max(worst, *errors)
        if not all(value <= error for value in errors) or any(value != alone[0] for value in real):
            wrong.append(run.config["method"])
    off = f"; off: {', '.join(dict.fromkeys(wrong))}" if wrong else ", bytes by none"
    evidence = f"{len(found)} comparisons, parameters differ by {worst:.1g} at most{off}"
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
    wrong = sorted({size for size, value in found if not value <= bound})
    evidence = f"at most {max(value for _, value in found):.1g} of the start is left"
    evidence += f"; off at P = {wrong}" if wrong else ""
    return Finding("contradicted" if wrong else "holds", evidence, len(found))


RULES = (unbiased_within, toy_needs_feedback, union_as_formula, factors_pay_as_formula,
         ranks_say_the_same, decays_as_eigenvalue, mixes_exactly)
