"""Lab 02's exercises: every solution passes, every planted mistake is told apart by its own message."""

import itertools
import math
import time

import numpy as np
import pytest
import torch

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labkit.training.collectives import all_gather, all_reduce_ring, reduce_scatter
from labs import lab02, placing

SOURCE = (notebooks() / "src" / "02_splitting_a_network.py").read_text(encoding="utf-8")
HEADS = {
    "02.1": "def answer(x, weight, dy, comm):",
    "02.3": "def answer(stages, percent):",
    "02.4": "def answer(samples, channels, height, width, kernel, ranks, rank):",
}
NAMES = {"02.2": "two_ways", "02.5": "placement"}


def solved(id):
    """What the solution of an exercise defines."""
    body = solution_code(SOURCE, id)
    if id in HEADS:
        body = HEADS[id] + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"all_gather": all_gather, "reduce_scatter": reduce_scatter}
    exec(body, space)
    return space[NAMES.get(id, "answer")]


@pytest.mark.parametrize("id", sorted(lab02.EXERCISES))
def test_the_solutions_are_right(id, capsys):
    assert check(id, solved(id)) is True


@pytest.mark.parametrize("id", sorted(lab02.EXERCISES))
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    unfilled = {"02.2": None, "02.5": {"stages": ..., "micro": 1, "sharded": False}}.get(id, lambda *given: ...)
    assert check(id, unfilled) is None


def gathered(x, comm):
    every = comm.empty(x.size * comm.size)
    every[comm.rank * x.size : (comm.rank + 1) * x.size] = x.ravel()
    return all_gather(every, comm).reshape(-1, x.shape[1])


def columns(**wrong):
    """The right layer with some of its results made by `wrong[name](x, every, weight, dy, comm)`."""

    def answer(x, weight, dy, comm):
        every = gathered(x, comm)
        found = {
            "y": every @ weight,
            "dx": reduce_scatter((dy @ weight.T).ravel(), comm).reshape(x.shape),
            "dw": every.T @ dy,
        }
        found |= {name: make(x, every, weight, dy, comm) for name, make in wrong.items()}
        return found["y"], found["dx"], found["dw"]

    return answer


def own(x, comm):
    return slice(comm.rank * len(x), (comm.rank + 1) * len(x))


def summed(x, every, weight, dy, comm):
    return all_reduce_ring((dy @ weight.T).ravel(), comm).reshape(-1, x.shape[1])


def forever(x, weight, dy, comm):
    while True:
        x = x + comm.rank


COLUMN_MISTAKES = {
    "this rank's samples only: gather": columns(y=lambda x, every, w, dy, comm: x @ w),
    "this rank's columns only": columns(dx=lambda x, every, w, dy, comm: (dy @ w.T)[own(x, comm)]),
    "right and has all samples": columns(dx=summed),
    "it has this rank's samples only": columns(dw=lambda x, every, w, dy, comm: x.T @ dy[own(x, comm)]),
    "do not average": columns(dw=lambda x, every, w, dy, comm: every.T @ dy / comm.size),
    "are enough": columns(dx=lambda *given: summed(*given)[own(given[0], given[4])]),
    "its shape is": columns(dw=lambda x, every, w, dy, comm: (every.T @ dy).T),
    "wrong numbers": columns(y=lambda x, every, w, dy, comm: 2 * every @ w),
    "return three arrays": lambda x, weight, dy, comm: x @ weight,
    "return y, dx, dw": lambda x, weight, dy, comm: None,
    "rank 0": lambda x, weight, dy, comm: comm.recv(3, (comm.rank + 1) % comm.size),  # all wait for each other
    "a loop without an end": forever,
}


@pytest.mark.parametrize("words", COLUMN_MISTAKES)
def test_a_wrong_layer_by_columns_is_told_why_within_seconds(words):
    begin = time.monotonic()
    assert words in lab02.column_layer(COLUMN_MISTAKES[words])
    assert time.monotonic() - begin < 30  # it stops by itself; how soon is the tracer's own test


def two_ways(**changes):
    """The right answer of 02.2 with one part made by `changes[part](right numbers, batch)`."""
    right = {batch: lab02.layer_words(batch) for batch in lab02.BATCHES}
    return {b: {**r, **{part: make(r, b) for part, make in changes.items()}} for b, r in right.items()}


WORD_MISTAKES = {
    "a sum travels twice": two_ways(data=lambda r, b: r["data"] / 2),
    "inputs go forward, their": two_ways(columns=lambda r, b: r["columns"] / 2),
    "all devices send together": two_ways(data=lambda r, b: 8 * r["data"]),
    "its own part": two_ways(columns=lambda r, b: r["columns"] * 8 / 7),
    "in bytes": two_ways(columns=lambda r, b: 4 * r["columns"]),
    "what the other way sends": two_ways(data=lambda r, b: r["columns"]),
    "columns gather the inputs": two_ways(columns=lambda r, b: 2 * b * 4096 * 7 / 8),
    "by data the gradients": two_ways(data=lambda r, b: 2 * b * 4096 * 7 / 8),
    "look again": two_ways(columns=lambda r, b: 12345),
    "compare your two": two_ways(fewer=lambda r, b: "columns"),
    "8192 is missing": {256: lab02.layer_words(256)},
}


@pytest.mark.parametrize("words", WORD_MISTAKES)
def test_wrong_words_of_a_layer_are_told_why(words):
    assert words in lab02.two_ways(WORD_MISTAKES[words])


def test_the_layer_goes_by_columns_at_the_small_batch_and_by_data_at_the_large_one():
    assert [lab02.layer_words(batch)["fewer"] for batch in lab02.BATCHES] == ["columns", "data"]


def fewest(stages, percent):
    return next(m for m in itertools.count(1) if 100 * (stages - 1) <= percent * (m + stages - 1))


MICRO_MISTAKES = {
    "divide by the whole time": lambda s, p: max(1, math.ceil((s - 1) * 100 / p)),
    "S - 1 slots": lambda s, p: max(1, math.ceil(s * (100 - p) / p)) if s > 1 else 1,
    "is whole: round up": lambda s, p: max(1, (s - 1) * (100 - p) / p) if s > 1 else 1,
    "at least one": lambda s, p: fewest(s, p) if s > 1 else 0,
    "fewer would do": lambda s, p: fewest(s, p) + 1,
}


def test_the_right_number_of_microbatches_may_be_found_by_trying():
    assert lab02.least_microbatches(fewest) is None
    assert lab02.least_microbatches(lambda s, p: np.float64(fewest(s, p))) is None
    assert lab02.least_microbatches(lambda s, p: torch.tensor(fewest(s, p))) is None


@pytest.mark.parametrize("words", MICRO_MISTAKES)
def test_a_wrong_number_of_microbatches_is_told_why(words):
    assert words in lab02.least_microbatches(MICRO_MISTAKES[words])


def test_too_few_microbatches_are_told_their_bubble():
    assert "2 stages and 33 %: 2; the bubble is 33.3%" in lab02.least_microbatches(
        lambda s, p: 2 if (s, p) == (2, 33) else fewest(s, p)
    )


def halo(per_neighbour, sides=lambda r, p: (r > 0) + (r < p - 1)):
    return lambda n, c, h, w, k, p, r: sides(r, p) * per_neighbour(n, c, h, w, k)


HALO_MISTAKES = {
    "forward only": halo(lambda n, c, h, w, k: (k - 1) // 2 * n * c * w),
    "count it once": halo(lambda n, c, h, w, k: 4 * (k - 1) // 2 * n * c * w),
    "one neighbour only": halo(lambda n, c, h, w, k: 2 * (k - 1) // 2 * n * c * w, lambda r, p: 2),
    "a row has W words": halo(lambda n, c, h, w, k: 2 * (k // 2) * n * c * h),
    "by (K - 1) / 2": halo(lambda n, c, h, w, k: 2 * k * n * c * w),
    "for every sample": halo(lambda n, c, h, w, k: 2 * (k // 2) * c * w),
    "for every channel": halo(lambda n, c, h, w, k: 2 * (k // 2) * n * w),
    "draw the rows": halo(lambda n, c, h, w, k: 7),
}


@pytest.mark.parametrize("words", HALO_MISTAKES)
def test_wrong_words_of_a_halo_are_told_why(words):
    assert words in lab02.halos(HALO_MISTAKES[words])


def placement(stages, micro=1, sharded=False):
    return {"stages": stages, "micro": micro, "sharded": sharded}


PLACEMENT_MISTAKES = {
    "devices 0 to 7 (stage 0) need 894 MB, 694 MB too many; 82% of it weights": placement(["dddddddd"]),
    "devices 0 to 7 (stage 0) need 282 MB, 82 MB too many; 58% of it activations": placement(["dddddrcr"]),
    "device 5 (stage 5) needs 456 MB": placement(list("dddddddd"), 16),
    "fc6 costs most words": placement(["dddddrcr"], 8),
    "of the step waits": placement(["ddddd", "rcr"], 4),
    "unknown letter 'x'": placement(["dddddxcr"]),
    "7 letters for 8 layers": placement(["dddddrc"]),
    "3 stages on 8 devices": placement(["ddd", "dd", "rcr"]),
    "fc6 by spatial: 0 rows": placement(["dddddsdd"]),
    "conv1 by rows: 3 input channels": placement(["rddddrcr"]),
    "choose one of 1, 2": placement(["dddddrcr"], 3),
    "list of texts": placement([1, 2]),
    "with stages, micro and sharded": ["dddddrcr"],
}


@pytest.mark.parametrize("words", PLACEMENT_MISTAKES)
def test_a_placement_that_is_not_the_best_is_told_why(words):
    assert words in placing.place(PLACEMENT_MISTAKES[words])


def test_no_named_scheme_fits_and_the_best_of_all_is_no_named_scheme(capsys):
    table = placing.board(solved("02.5"))
    assert list(table["placement"])[:2] == ["the best of all", "yours"]
    assert set(table["fits"][2:]) == {"no"} and len(table) == 8
    assert len(placing.leader().placement.stages) == 2
    for unfilled in (None, ..., placement(...)):
        assert list(placing.board(unfilled)["placement"]).count("yours") == 0


def test_stages_may_be_a_tuple_or_one_text_and_microbatches_any_number():
    assert placing.place({"stages": ("ddddd", "rcr"), "micro": np.int64(16), "sharded": False}) is None
    assert "282 MB" in placing.place(placement("dddddrcr"))


def test_the_messages_of_one_exercise_differ():
    for spec, mistakes in (
        (lab02.column_layer, {k: v for k, v in COLUMN_MISTAKES.items() if v is not forever}),
        (lab02.two_ways, WORD_MISTAKES),
        (lab02.halos, HALO_MISTAKES),
        (placing.place, PLACEMENT_MISTAKES),
    ):
        said = [spec(answer) for answer in mistakes.values()]
        assert len(set(said)) == len(said)
