"""Lab 04's exercises: every solution passes, every planted mistake is told apart by its own message."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from labs import buckets, buckets_exercise, lab04
from labs import synchronous_imposters as line
from labs.synchronous_exercise import mistakes, one_process, why_wrong

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labkit.training.collectives import all_gather, all_reduce_naive, all_reduce_ring

SOURCE = (notebooks() / "src" / "04_synchronous_sgd.py").read_text(encoding="utf-8")
HEADS = {
    "04.1": "def answer(weights, x, y, gradient, comm):",
    "04.3": "def answer(counts, rank):",
    "04.4": "def answer(ready, sizes, cap, alpha, beta):",
    "04.5": "def answer(run):",
}


def solved(id):
    """What the solution of an exercise defines."""
    body = solution_code(SOURCE, id)
    if id in HEADS:
        body = HEADS[id] + "\n" + "\n".join("    " + text for text in body.splitlines())
    space = {"np": np, "all_reduce_ring": all_reduce_ring}
    exec(body, space)
    return space["answer" if id in HEADS else "slowest"]


@pytest.mark.parametrize("id", sorted(lab04.EXERCISES))
def test_the_solutions_are_right(id, capsys):
    assert check(id, solved(id)) is True


@pytest.mark.parametrize("id", sorted(lab04.EXERCISES))
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    unfilled = {"04.2": {"all": ..., "backups": ..., "dropped": ...}}.get(id, lambda *given: ...)
    assert check(id, unfilled) is None


def sgd(mean, momentum=0.9, after=lambda weights, comm: weights, updates=5, new=1.0, rate=0.1):
    """SGD on a rank, its gradient made by mean(gradient, comm)."""

    def answer(weights, x, y, gradient, comm):
        velocity = 0.0
        for _ in range(updates):
            velocity = momentum * velocity + new * mean(gradient(weights, x, y), comm)
            weights = weights - rate * velocity
        return after(weights, comm)

    return answer


def averaged(array, comm):
    return all_reduce_ring(array, comm) / comm.size


def from_all_samples(weights, x, y, gradient, comm):
    rows = np.column_stack([x, y]).ravel()
    everyone = comm.empty(rows.size * comm.size)
    everyone[comm.rank * rows.size : (comm.rank + 1) * rows.size] = rows
    rows = all_gather(everyone, comm).reshape(-1, x.shape[1] + 1)
    return sgd(lambda array, comm: array)(weights, rows[:, :-1], rows[:, -1], gradient, comm)


@pytest.mark.parametrize(
    "answer, message",
    [
        (sgd(lambda array, comm: array), "its own samples alone"),
        (sgd(all_reduce_ring), "times too long"),
        (sgd(lambda array, comm: averaged(array, comm) / comm.size), "times too short"),
        (sgd(lambda array, comm: array, after=averaged), "trained apart"),
        (sgd(averaged, momentum=0.0), "without momentum"),
        (sgd(averaged, updates=4), "four updates, of five"),
        (sgd(averaged, updates=6), "6 updates; 5 are asked for"),
        (sgd(averaged, updates=1), "1 update; 5 are asked for"),
        (sgd(averaged, updates=0), "have not moved"),
        (sgd(averaged, new=0.1), "a tenth of what they should be"),
        (sgd(averaged, momentum=0.1, new=0.9), "the gradient is added whole"),
        (sgd(averaged, momentum=0.1), "not 0.1"),
        (sgd(averaged, rate=1.0), "the rate, 0.1, is missing"),
        (sgd(averaged, rate=0.01), "and the rate is in it once"),
        (sgd(averaged, rate=-0.1), "subtract"),
        (sgd(lambda array, comm: all_reduce_ring(array, comm) / 8), "divide their sum by the ranks only"),
        (sgd(lambda array, comm: averaged(array, comm) * 8), "a mean over samples, not a sum"),
        (sgd(lambda array, comm: array, after=all_reduce_ring), "a sum of weights that were trained apart"),
        (lambda weights, *_: weights + np.nan, "comm.empty holds nan"),
        (lambda weights, *_: "the weights", "returns str"),
        (lambda weights, *_: weights + 7.0, "print them there"),
        (lambda *given: sgd(averaged)(*given).astype(np.float32), "compute in float64"),
        (from_all_samples, "send gradients only"),
        (lambda weights, x, y, gradient, comm: gradient(weights, x, y)[:3], "have shape"),
        (lambda weights, x, y, gradient, comm: comm.recv(1, comm.rank - 1), "on 1 rank"),
    ],
)
def test_mistakes_of_sgd_over_ranks(answer, message):
    assert message in lab04.sgd(answer)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_two_mistakes_of_sgd_are_taken_for_each_other(size):
    """Each slip's weights, made by its own options, are explained by its own words; so are two at once."""
    generator = np.random.default_rng(size)
    start, x, y = (generator.normal(size=shape) for shape in (12, (8 * size, 12), 8 * size))
    parts = [slice(8 * rank, 8 * rank + 8) for rank in range(size)]
    right, slips = one_process(start, x, y), mistakes(size)
    for options, text in slips:
        got = one_process(start, x, y, **options)
        if not np.allclose(got, right):
            assert why_wrong(got, right, start, x, y, parts, 0) == text, options
    said = why_wrong(one_process(start, x, y, momentum=0.0, updates=6), right, start, x, y, parts, 0)
    assert "without momentum" in said and said.endswith("6 updates; 5 are asked for")
    if size > 1:
        apart = [one_process(start, x[part], y[part], updates=6) for part in parts]
        for got, fault in ((apart[1], "its own samples alone"), (np.mean(apart, 0), "the mean of weights")):
            said = why_wrong(got, right, start, x, y, parts, 1)
            assert fault in said and said.endswith("6 updates; 5 are asked for")


def weights_summed(weights, x, y, gradient, comm):
    velocity = 0.0
    for _ in range(5):
        velocity = 0.9 * velocity + gradient(weights, x, y)
        weights = all_reduce_ring(weights - 0.1 * velocity, comm)
    return weights


def velocity_summed(weights, x, y, gradient, comm):
    velocity = np.zeros_like(weights)
    for _ in range(5):
        velocity = all_reduce_ring(0.9 * velocity + gradient(weights, x, y), comm)
        weights = weights - 0.1 * velocity / comm.size
    return weights


def step_before_gradient(weights, x, y, gradient, comm):
    velocity = np.zeros_like(weights)
    for _ in range(5):
        mean = averaged(gradient(weights, x, y), comm)
        weights = weights - 0.1 * velocity
        velocity = 0.9 * velocity + mean
    return weights


@pytest.mark.parametrize(
    "answer, message",
    [
        (weights_summed, "summed over ranks at every update"),
        (velocity_summed, "keep the mean"),
        (step_before_gradient, "before the velocity has the gradient"),
    ],
)
def test_mistakes_in_what_is_exchanged_or_kept(answer, message):
    assert message in lab04.sgd(answer)


def test_a_rank_that_does_not_call_the_exchange_is_named_with_the_learners_own_line():
    def alone(weights, x, y, gradient, comm):
        velocity = 0.0
        for _ in range(5):
            mean = gradient(weights, x, y)
            if comm.rank == 0:
                mean = all_reduce_ring(mean, comm) / comm.size
            velocity = 0.9 * velocity + mean
            weights = weights - 0.1 * velocity
        return weights

    def once_more(weights, x, y, gradient, comm):
        weights = sgd(averaged)(weights, x, y, gradient, comm)
        if comm.rank == 2:
            comm.recv(1, 1)
        return weights

    one, other = (lab04.sgd(answer) for answer in (alone, once_more))
    assert "(`mean = all_reduce_ring(mean, comm) / comm.size`)" in one
    assert "ranks 1, 2, 3 returned without calling it: all ranks have to call an exchange" in one
    assert "(`comm.recv(1, 1)`)" in other and "ranks 0, 1, 3 returned after fewer calls" in other


def test_any_all_reduce_and_averaged_parameters_are_accepted():
    assert lab04.sgd(sgd(lambda array, comm: all_reduce_naive(array, comm) / comm.size)) is None

    def parameters(weights, x, y, gradient, comm):
        velocity = 0.0
        for _ in range(5):
            velocity = 0.9 * velocity + gradient(weights, x, y)
            weights = averaged(weights - 0.1 * velocity, comm)
        return weights

    assert lab04.sgd(parameters) is None

    def velocities(weights, x, y, gradient, comm):
        mine = 0.0
        for _ in range(5):
            mine = 0.9 * mine + gradient(weights, x, y)
            weights = weights - 0.1 * averaged(mine.copy(), comm)
        return weights

    assert lab04.sgd(velocities) is None


@pytest.mark.parametrize(
    "what, value, message",
    [
        ("all", 2.0, "one worker's mean"),
        ("all", 32.0, "at the same time"),
        ("all", 0.125, "the fastest"),
        ("all", 2 * math.log(16), "ln P"),
        ("all", 3.3807, "a mean of 1 s"),
        ("all", 3.7615, "with backups"),
        ("backups", 6.7615, "without backups"),
        ("backups", 6.5031, "H_14"),
        ("backups", 1.0, "the last one that is waited for"),
        ("all", None, "None is no number"),
        ("all", 6.6365, "16 terms"),
        ("backups", 3.0, "the time for the last 2"),
        ("backups", 4.7615, "do without two"),
        ("dropped", 2, "a share"),
        ("dropped", 12.5, "a share"),
        ("dropped", 0.875, "that is used"),
        ("dropped", 0.4437, "share of time"),
        ("dropped", 0.5, "two of sixteen"),
        ("dropped", "two", "'two' is no number"),
    ],
)
def test_mistakes_of_the_slowest(what, value, message):
    found = lab04.slowest(solved("04.2") | {what: value})
    assert found.startswith(f"{what}: ") and message in found


@pytest.mark.parametrize("what", ["all", "backups", "dropped"])
def test_a_missing_part_of_the_slowest_is_called_missing(what):
    answer = solved("04.2")
    del answer[what]
    assert lab04.slowest(answer).startswith(f"`{what}` is missing")


def test_the_slowest_must_be_a_dictionary():
    assert "a dictionary" in lab04.slowest([6.76, 3.76, 0.125])


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda counts, rank: counts[rank] / sum(counts), "right for a *sum*"),
        (lambda counts, rank: sum(counts) / len(counts) / max(counts[rank], 1e-9), "upside down"),
        (lambda counts, rank: 1.0, "counts the same"),
        (lambda counts, rank: counts[rank], "grows with the batch"),
        (lambda counts, rank: counts[rank] / max(counts), "the mean shard"),
        (lambda counts, rank: len(counts) * counts[rank], "grows with the batch"),
        (lambda counts, rank: sum(counts) / max(counts[rank], 1e-9), "upside down"),
        (lambda counts, rank: 7.0, "n of N"),
        (lambda counts, rank: "a third", "'a third' is no number"),
        (lambda counts, rank: counts[rank] / sum(counts) if counts[rank] > 5 else None, "right for a *sum*"),
    ],
)
def test_mistakes_of_shard_weights(answer, message):
    assert message in lab04.shard_weight(answer)


@pytest.mark.parametrize("rule", sorted(buckets_exercise.RULES))
def test_mistakes_of_buckets(rule):
    found = lab04.bucketed(lambda *case: buckets_exercise.finish_of(*case, rule))
    assert found.endswith(buckets_exercise.RULES[rule])


def test_other_mistakes_of_buckets():
    assert "draw the link's timeline" in lab04.bucketed(lambda *case: -1.0)
    assert "return a number of seconds" in lab04.bucketed(lambda ready, *case: ready)
    assert "return a number of seconds" in lab04.bucketed(
        lambda *case: buckets_exercise.finish_of(*case) if case[2] < 14 else None
    )


def test_a_bucket_size_is_chosen_by_the_line_that_the_text_gives():
    (block,) = re.findall(r"(?ms)^# ```python\n(.*?)^# ```", SOURCE)
    ready = pd.DataFrame({"ready": [0.25, 0.5, 1.0], "bytes": [2 * buckets.MB, buckets.MB, buckets.MB // 2]})
    link, caps = buckets.relative(4, 1.0, float(ready["bytes"].sum()), 0.8, 0.02), [0.5, 1.0, 2.0, 8.0]
    space = {"my_finish": solved("04.4"), "ready": ready, "link": link, "whole": 1.0, "buckets": buckets,
             "settings": SimpleNamespace(bucket_caps=caps)}  # fmt: skip
    code = [text.removeprefix("# ") for text in block.splitlines()]
    exec("\n".join(code[:-1]), space)
    found = eval(code[-1], space)
    assert list(found) == caps
    right = buckets.sweep(ready["ready"], ready["bytes"], caps, link)["seconds"]
    assert list(found.values()) == pytest.approx(list(right), abs=5e-4)


@pytest.fixture(scope="module")
def runs():
    """A run of every kind, cut short."""
    return {fault: line.run(fault, 3, steps=2) for fault in (*line.FAULTS, line.RIGHT)}


def test_every_confusion_of_imposters_has_its_evidence(runs):
    local, scaled, uneven = line.FAULTS
    for true, given, message in (
        (local, scaled, "leave the direction alone"),
        (local, uneven, "no weighted sum"),
        (local, line.RIGHT, "differ: cosine"),
        (scaled, local, "only the length is off, 8 times"),
        (scaled, uneven, "are parallel"),
        (scaled, line.RIGHT, "only the length is off"),
        (uneven, local, "what were the weights"),
        (uneven, scaled, "leave the direction alone"),
        (uneven, line.RIGHT, "differ: cosine"),
        (line.RIGHT, local, "is the reference, to the last digits"),
        (local, "something else", "is none of"),
    ):
        assert message in line.confusion(true, given, runs[true]), (true, given)


def test_faults_show_in_gradients_as_the_text_says(runs):
    local, scaled, uneven = line.FAULTS
    for fault, made in runs.items():
        weights = [np.linalg.lstsq(r.T, g)[0] for r, g in zip(made.ranks, made.reference, strict=True)]
        rest = [np.linalg.norm(r.T @ w - g) / np.linalg.norm(g)
                for r, w, g in zip(made.ranks, weights, made.reference, strict=True)]  # fmt: skip
        assert all(value > 0.01 for value in rest) if fault == local else max(rest) < 1e-12
    assert np.allclose(np.linalg.lstsq(runs[uneven].ranks[0].T, runs[uneven].reference[0])[0] * 32, [5, 7, 8, 12])
    assert np.allclose(runs[scaled].applied, 8 * runs[scaled].reference)
    assert np.allclose(runs[line.RIGHT].applied, runs[line.RIGHT].reference, rtol=1e-10)


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda run: line.culprits()["A"], "run B is not"),
        (lambda run: line.FAULTS[1], "run A is not"),
    ],
)
def test_one_answer_for_all_convicts_nobody(answer, message):
    assert message in line.told_apart(answer)


def test_guessing_by_shortcuts_fails_on_the_unseen_runs():
    right = solved("04.5")

    def guilty(run):  # nobody is innocent
        return line.FAULTS[1] if right(run) == line.RIGHT else right(run)

    def longer(run):  # only factors above 1
        return line.FAULTS[0] if np.linalg.norm(run.applied[0]) < np.linalg.norm(run.reference[0]) / 2 else right(run)

    assert "the reference, to the last digits" in line.told_apart(guilty)
    assert "0.25 times" in line.told_apart(longer)
