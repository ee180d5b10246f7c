"""Lab 09's exercises, plan and rules: solutions pass, planted mistakes are told apart, verdicts follow from numbers."""

import dataclasses
import math

import pytest
import torch
from labs import lab09, language_figures, plan09
from labs.language_studies import Study, judge_of
from labs.rules_language import ahead, kept, solvers_behind, sooner

from labkit import claims, profiles
from workloads import text
from workloads.markov import Chain
from labkit.paths import notebooks
from labkit.runs import Header, Row, Run, Span
from labkit.teach import check
from labkit.teach.exercises import solution_code

SOURCE = (notebooks() / "src" / "09_language_and_translation.py").read_text(encoding="utf-8")


def solved(id, head="", name="answer"):
    """What the solution of an exercise defines; `head` is the line that the solution's body stands under."""
    body = solution_code(SOURCE, id)
    if head:
        body = head + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math, "torch": torch}
    exec(body, space)
    return space[name]


@pytest.mark.parametrize("id, head, name", [("09.b1", "def answer(logs):", "answer"), ("09.1", "", "counts"),
                                            ("09.b2", "def answer(model, tokens, window):", "answer"),
                                            ("09.2", "def answer(parts):", "answer")])
def test_every_solution_passes(id, head, name):
    assert check(id, solved(id, head, name)) is True


def ported(summed=False, carried=False, alone=False):
    """The exercise's function with some of its three faults left in."""
    def answer(model, train, test, steps, window, rate, clip):
        factor = window if summed else 1
        return lab09.original(model, train, test, steps=steps, window=window, rate=rate * factor, clip=clip / factor,
                              summed=False, carried=carried, alone=alone)
    return answer


def test_the_repaired_port_is_the_notebooks_own():
    cell = next(part for part in SOURCE.split("# %%") if "def my_port" in part).partition('check("09.3"')[0]
    lines = [line for line in cell.splitlines() if "STUB:" not in line]
    space = {"math": math, "torch": torch, "text": text}
    exec("\n".join(lines), space)
    assert lab09.port(space["my_port"]) is None
    assert lab09.port(ported(True, True, True)) is None
    stubs = "\n".join(line.replace("# STUB: ", "") for line in cell.splitlines())
    stubs = stubs.split("# BEGIN SOLUTION")
    broken = stubs[0] + "".join(part.partition("# END SOLUTION")[2] for part in stubs[1:])
    exec(broken, space)
    assert "3 of 3 left" in lab09.port(space["my_port"])


@pytest.mark.parametrize("habits, message", [
    ({"carried": True, "alone": True}, "1 of 3 left: the loss of the original is summed"),
    ({"summed": True, "alone": True}, "1 of 3 left: the state is not carried"),
    ({"summed": True, "carried": True}, "1 of 3 left: the evaluation does not read the text as one stream"),
    ({}, "3 of 3 left"),
])
def test_the_check_says_which_fault_of_a_port_is_left(habits, message):
    assert message in lab09.port(ported(**habits))


@pytest.mark.parametrize("id, answer, message", [
    ("09.b1", lambda logs: 2 ** (-sum(logs) / len(logs)), "the base is e"),
    ("09.b1", lambda logs: math.exp(-sum(logs)), "the probability of the whole text"),
    ("09.b1", lambda logs: -sum(logs) / len(logs), "that is the loss"),
    ("09.2", lambda parts: math.exp(sum(loss for loss, _ in parts) / 3), "a batch of 10 tokens as much"),
    ("09.2", lambda parts: sum(math.exp(x) * n for x, n in parts) / sum(n for _, n in parts), "average losses"),
    ("09.b2", lambda m, t, w: lab09.read(m, t.numpy(), w, carried=False), "the state is dropped"),
    ("09.b2", lambda m, t, w: lab09.read(m, t.numpy(), w, tail=False), "the last, shorter window is left out"),
    ("09.b2", lambda m, t, w: lab09.read(m, t.numpy(), w) / 77, "return the sum"),
    ("09.1", {"updates_8": 250, "updates_128": 15, "rate": 20, "clip": 0.25}, "the last token has no successor"),
    ("09.1", {"updates_8": 249, "updates_128": 15, "rate": 20, "clip": 100.0}, "clip 100.0 is not right"),
    ("09.3", lambda *a: ([1.0], 2.0), "1 training losses for 20 updates"),
])
def test_every_planted_mistake_has_its_own_message(id, answer, message):
    assert message in lab09.EXERCISES[id].spec(answer)


def test_a_longer_memory_costs_less_down_to_the_floor():
    chain = Chain(vocabulary=5, order=3, branching=2)
    losses = language_figures.memories(chain)
    assert losses == sorted(losses, reverse=True) and len(losses) == 4
    assert losses[-1] == pytest.approx(chain.entropy_rate, rel=1e-9)


@pytest.mark.parametrize("profile", profiles.NAMES)
@pytest.mark.parametrize("study", plan09.STUDIES)
def test_the_recipes_are_the_cells_of_the_table(profile, study):
    settings = profiles.resolve("09", profile)
    table, rates = plan09.table(settings, study), getattr(settings, f"{study}_rates") or [0.5]
    got = {(r.batch, r.rate, r.warmup_steps) for r in plan09.scaling(settings, study, rates)}
    rules = ["legw"] if study == "prose" else settings.rules
    wanted = {(c.batch, c.rate, c.warmup_steps) for rate in rates for rule in rules for c in table.path(rule, rate)
              if c.batch > table.batches[0] or rule == "legw"}
    assert got == wanted
    assert {(r.batch, r.rate, r.warmup_steps) for r in plan09.tuning(settings, study)} <= got


def test_the_claims_judge_what_the_full_profile_runs():
    settings = profiles.resolve("09", "full")
    for claim in claims.load("09"):
        select = claim.parameters.get("select")
        if select is None:
            continue
        study = {"markov": "markov", "number-words": "words", "prose": "prose"}[select["data"]]
        own = plan09.application(settings, study).recipe
        assert {key: getattr(own, key) for key in select if key != "optimizer"} == {
            key: value for key, value in select.items() if key != "optimizer"}, claim.id
        table = dataclasses.asdict(plan09.table(settings, study))
        assert {**claim.parameters["table"], "batches": tuple(claim.parameters["table"]["batches"])} == table, claim.id
        assert claim.parameters["rates"] == getattr(settings, f"{study}_rates"), claim.id
        judge = claim.parameters["judge"]
        assert {key: judge[key] for key in judge_of(study)} == judge_of(study), claim.id
        assert judge["seeds"] == settings.repeats
        assert claim.parameters.get("octaves", 7) == settings.octaves


TABLE = {"batches": [4, 16], "samples": 400, "warmup_epochs": 0.1, "long_warmup_epochs": 5.0}
JUDGE = {"metric": "loss", "higher": False, "noise": 0.01, "worst": 2.0, "tuning": 0, "seeds": 2, "margin": 2.0}


def run(batch, rate, warmup, values, solver="sgd", seconds=1.0):
    """Two seeds of one cell: validation and test loss of each."""
    made = []
    for seed, (validation, test) in enumerate(values):
        config = {"data": "markov", "batch": batch, "rate": rate, "warmup_steps": warmup, "optimizer": solver}
        rows = [Row(1, 1.0, 1, 1.0, "validation_loss", validation), Row(1, 1.0, 1, 1.0, "test_loss", test)]
        made.append(Run(Header("09", config, repeat=seed), [Span("train", 0.0, seconds)], rows, "finished"))
    return made


def ladder(top_legw=(0.9, 0.91), top_linear=(1.5, 1.6), linear_two=(0.95, 0.9)):
    """Base rates 1 and 2 are flat, 4 is not. LEGW's warm-up is 10 updates."""
    runs = run(4, 1.0, 10.0, [(1.000, 0.90), (1.2, 0.91)], seconds=8.0)
    runs += run(4, 2.0, 10.0, [(1.009, 0.90), (1.2, 0.91)], seconds=8.0)
    runs += run(4, 4.0, 10.0, [(1.02, 0.90), (1.2, 0.91)])
    for rate, linear in ((1.0, top_linear), (2.0, linear_two)):
        runs += run(16, 2 * rate, 10.0, [(1.0, value) for value in top_legw], seconds=2.0)
        runs += run(16, 4 * rate, 0.0, [(1.0, value) for value in linear])
    return runs


COMMON = {"select": {"data": "markov"}, "table": TABLE, "rates": [1.0, 2.0, 4.0], "batch": 16, "judge": JUDGE}


def test_an_ordering_is_judged_over_the_flat_set():
    found = ahead(ladder(), ours="legw", theirs="linear", **COMMON)
    assert (found.outcome, found.fraction) == ("partly", 0.5)  # a tie from 2, and 4 is not flat
    assert ahead(ladder(linear_two=(math.inf, math.nan)), ours="legw", theirs="linear", **COMMON).outcome == "holds"
    assert ahead(ladder(), ours="linear", theirs="legw", **COMMON).outcome == "not seen"
    few = [one for one in ladder() if one.header.repeat == 0]
    assert ahead(few, ours="legw", theirs="linear", **COMMON).outcome == "not attempted"


def test_what_is_kept_is_kept_within_the_margin():
    assert kept(ladder(), path="legw", **COMMON).outcome == "holds"
    assert kept(ladder(top_legw=(1.0, 1.01)), path="legw", **COMMON).outcome == "contradicted"


def test_seconds_count_at_equal_epochs_or_with_the_value_kept():
    options = {**COMMON, "path": "legw", "at_least": 2.0}
    fast = sooner(ladder(), iso=False, **options)
    assert fast.outcome == "holds" and "4.00 times" in fast.evidence
    assert sooner(ladder(), iso=True, **options).outcome == "holds"
    worse = sooner(ladder(top_legw=(1.0, 1.01)), iso=True, **options)
    assert worse.outcome == "not seen" and "1.00 times" in worse.evidence


def test_a_solver_is_tuned_on_validation_and_read_on_test():
    runs = ladder()
    for solver in ("adam", "adamw", "rmsprop", "adagrad", "adadelta"):
        runs += run(16, 0.1, 0.0, [(0.8, 1.4), (0.8, 1.4)], solver) + run(16, 0.2, 0.0, [(0.9, 0.5)], solver)
    options = {**COMMON, "path": "legw"}
    assert solvers_behind(runs, octaves=2, **options).outcome == "holds"
    assert solvers_behind(runs, octaves=3, **options).outcome == "not attempted"
    better = runs + run(16, 0.3, 0.0, [(0.7, 0.6), (0.7, 0.6)], "adam")
    assert solvers_behind(better, octaves=2, **options).fraction == 0.8


def test_a_study_reads_only_its_own_runs():
    settings = profiles.resolve("09", "smoke")
    own = plan09.tuning(settings, "markov")[0]
    config = {**dataclasses.asdict(own), "data": "markov"}
    rows = [Row(1, 1.0, 1, 1.0, f"{part}_loss", 1.5) for part in ("validation", "test")]
    mine = Run(Header("09", config), [Span("train", 0.0, 2.0)], rows, "finished")
    other = Run(Header("09", {**config, "train": 17}), [], rows, "finished")
    study = Study([mine, other], settings, "markov")
    assert study.runs == [mine] and study.flat() == [own.rate] and study.shown(1.5) == math.exp(1.5)
    assert study.rows()["seconds"].tolist() == [2.0] * len(settings.rules)
