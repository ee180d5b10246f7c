"""Lab 04's exercises: every solution passes, every planted mistake is told apart by its own message."""

import math

import numpy as np
import pytest
from labs import lab04
from labs import synchronous_imposters as line

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


def sgd(mean, momentum=0.9, after=lambda weights, comm: weights):
    """Five updates on a rank, its gradient made by mean(gradient, comm)."""

    def answer(weights, x, y, gradient, comm):
        velocity = 0.0
        for _ in range(5):
            velocity = momentum * velocity + mean(gradient(weights, x, y), comm)
            weights = weights - 0.1 * velocity
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
        (from_all_samples, "send gradients only"),
        (lambda weights, x, y, gradient, comm: gradient(weights, x, y)[:3], "have shape"),
        (lambda weights, x, y, gradient, comm: comm.recv(1, comm.rank - 1), "on 1 rank"),
    ],
)
def test_mistakes_of_sgd_over_ranks(answer, message):
    assert message in lab04.sgd(answer)


def test_any_all_reduce_and_averaged_parameters_are_accepted():
    assert lab04.sgd(sgd(lambda array, comm: all_reduce_naive(array, comm) / comm.size)) is None

    def parameters(weights, x, y, gradient, comm):
        velocity = 0.0
        for _ in range(5):
            velocity = 0.9 * velocity + gradient(weights, x, y)
            weights = averaged(weights - 0.1 * velocity, comm)
        return weights

    assert lab04.sgd(parameters) is None


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
        ("dropped", 2, "a share"),
        ("dropped", 0.5, "two of sixteen"),
        ("dropped", "two", "two of sixteen"),
    ],
)
def test_mistakes_of_the_slowest(what, value, message):
    found = lab04.slowest(solved("04.2") | {what: value})
    assert found.startswith(f"{what}: ") and message in found


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
        (lambda counts, rank: 7.0, "n of N"),
    ],
)
def test_mistakes_of_shard_weights(answer, message):
    assert message in lab04.shard_weight(answer)


@pytest.mark.parametrize("rule", sorted(lab04.RULES))
def test_mistakes_of_buckets(rule):
    assert lab04.RULES[rule] in lab04.bucketed(lambda *case: lab04.finish_of(*case, rule))


def test_another_mistake_of_buckets():
    assert "draw the link's timeline" in lab04.bucketed(lambda *case: -1.0)


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
