"""Collectives: right for every P and n, at exactly the stated cost, on virtual ranks and on real ones; never below the
lower bounds. The cost model: its crossovers and its fit."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import collective_extras as extras
from labs import cost_fit

from labkit.errors import RequestError
from labkit.simulate import cost
from labkit.simulate.traced import run
from labkit.training import collectives
from labkit.training.collectives import ALL_REDUCE, blocks
from labkit.training.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent / "workers"))
import collectives_ranks  # noqa: E402

EVERY = {**ALL_REDUCE, "circulant": extras.all_reduce_circulant, "double_tree": extras.all_reduce_double_tree}
sizes, lengths = st.integers(1, 17), st.integers(0, 60)


def start(rank: int, count: int, kind=np.int64) -> np.ndarray:
    return (np.arange(count, dtype=kind) + 1) * (rank + 1) ** 2


def traced(collective, size: int, count: int, kind=np.int64, **options):
    """On an array of its own for each rank, checked to be worked on in place."""

    def rank(comm):
        array = start(comm.rank, count, kind)
        found = collective(array, comm, **options)
        return array, found

    return run(rank, size, limit=20)


def total(size: int, count: int) -> np.ndarray:
    return sum(start(rank, count) for rank in range(size))


# The formulas of the textbooks (S21), lg the logarithm to base 2.
TEXTBOOK = {
    "naive": lambda n, p, lg: (2 * (p - 1), 2 * n * (p - 1)),
    "tree": lambda n, p, lg: (2 * lg, 2 * n * lg),
    "butterfly": lambda n, p, lg: (lg, n * lg),
    "ring": lambda n, p, lg: (2 * (p - 1), 2 * n * (p - 1) / p),
    "rabenseifner": lambda n, p, lg: (2 * lg, 2 * n * (p - 1) / p),
}


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_rounds_and_words_are_the_textbooks_at_powers_of_two(name, size):
    count = 3 * size
    trace = traced(ALL_REDUCE[name], size, count)
    assert (trace.rounds, trace.words) == TEXTBOOK[name](count, size, math.log2(size))
    assert all((array == total(size, count)).all() for array, _ in trace.results)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(EVERY)), sizes, lengths, st.sampled_from([np.int64, np.float32, np.float64]))
def test_every_all_reduce_is_right_and_in_place_for_any_p_and_n(name, size, count, kind):
    for array, found in traced(EVERY[name], size, count, kind).results:
        assert found is array and array.dtype == kind
        assert (array == total(size, count)).all()  # small whole numbers: exact in every kind


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*ALL_REDUCE, "reduce_scatter", "all_gather", "broadcast", "all_to_all"]),
    sizes, lengths, st.tuples(*3 * [st.integers(0, 9)]),
)  # fmt: skip
def test_the_closed_forms_are_exact_for_any_p_and_n(name, size, count, prices):
    trace = traced(ALL_REDUCE.get(name) or getattr(collectives, name), size, count)
    assert (trace.rounds, trace.words) == cost.counts(name, count, size)[:2]
    assert trace.seconds(*prices) == cost.seconds(name, count, size, *prices)


@pytest.mark.parametrize(
    ("name", "rounds", "words"), [("butterfly", 4, 4), ("rabenseifner", 6, 3.5), ("ring", 10, 5 / 3)]
)
def test_six_ranks_by_hand(name, rounds, words):
    # Butterfly and Rabenseifner: n in, the four's lg 4 n or 2 n 3/4, n out.
    trace = traced(ALL_REDUCE[name], 6, 60)
    assert (trace.rounds, trace.words) == (rounds, words * 60)
    assert cost.counts(name, 60, 6)[:2] == (rounds, words * 60)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(EVERY)), sizes, lengths, st.tuples(*3 * [st.floats(0, 9)]))
def test_no_all_reduce_beats_the_lower_bounds(name, size, count, prices):
    trace = traced(EVERY[name], size, count)
    if count:
        assert trace.rounds >= math.ceil(math.log2(size))
    assert trace.words * size >= 2 * count * (size - 1)
    assert trace.seconds(*prices) >= cost.lower_bound(count, size, *prices) * (1 - 1e-12)


@given(lengths, sizes)
def test_blocks_are_neighbours_of_one_length_but_for_one_word(count, parts):
    found = blocks(count, parts)
    assert np.concatenate([np.arange(count)[part] for part in found]).tolist() == list(range(count))
    assert len(found) == parts and {part.stop - part.start for part in found} <= {count // parts, -(-count // parts)}


@pytest.mark.parametrize(("size", "count"), [(1, 4), (2, 5), (3, 3), (5, 12), (6, 4), (8, 19)])
def test_the_other_collectives(size, count):
    part = blocks(count, size)
    for rank, (array, found) in enumerate(traced(collectives.reduce_scatter, size, count).results):
        assert found.tolist() == total(size, count)[part[rank]].tolist()
        assert found.base is array
    whole = np.concatenate([start(rank, count)[part[rank]] for rank in range(size)])
    for array, _ in traced(collectives.all_gather, size, count).results:
        assert array.tolist() == whole.tolist()
    for root in range(size):
        for array, _ in traced(collectives.broadcast, size, count, root=root).results:
            assert array.tolist() == start(root, count).tolist()
    for rank, (array, found) in enumerate(traced(collectives.all_to_all, size, count).results):
        assert found.tolist() == np.concatenate([start(other, count)[part[rank]] for other in range(size)]).tolist()
        assert array.tolist() == start(rank, count).tolist()


@pytest.mark.parametrize("root", range(6))
def test_a_broadcast_from_any_root_takes_lg_p_rounds(root):
    assert traced(collectives.broadcast, 6, 5, root=root).rounds == 3


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, 12])
def test_groups_keep_words_off_the_links_between_them(group):
    size, count = 12, 144
    trace = traced(ALL_REDUCE["hierarchical"], size, count, group=group)
    assert (trace.rounds, trace.words) == cost.counts("hierarchical", count, size, group)[:2]
    across = sum(m.words for m in trace.messages if m.source // group != m.dest // group)
    assert across == 2 * count * (size // group - 1)  # a ring of groups; a flat ring: as if each rank were a group
    assert trace.words == 2 * count * (size - 1) / size  # as few as a ring's
    assert all((array == total(size, count)).all() for array, _ in trace.results)


def test_groups_have_to_fill_all_ranks():
    with pytest.raises(RequestError, match="6 ranks do not fill groups of 4; allowed: 1, 2, 3, 6"):
        cost.counts("hierarchical", 8, 6, 4)
    assert [cost.group_size(size) for size in (1, 2, 6, 7, 12, 16, 64)] == [1, 1, 2, 1, 3, 4, 8]
    with pytest.raises(RequestError, match="unknown collective 'rnig'; allowed: naive, tree"):
        cost.counts("rnig", 8, 6)


@pytest.mark.parametrize("count, size, alpha", [(8, 0, 1.0), (8, -2, 1.0), (-8, 2, 1.0), (8.5, 2, 1.0), (8, 2.5, 1.0),
                                                (8, 2, float("nan")), (8, 2, -1.0), (8, 2, float("inf"))])  # fmt: skip
def test_impossible_costs_are_refused(count, size, alpha):
    with pytest.raises(RequestError, match="words and ranks whole"):
        cost.seconds("tree", count, size, alpha, 1.0)
    with pytest.raises(RequestError, match="words and ranks whole"):
        cost.best(count, size, alpha, 1.0)
    with pytest.raises(RequestError, match="words and ranks whole"):
        cost.lower_bound(count, size, alpha, 1.0)
    if alpha == 1.0:
        with pytest.raises(RequestError, match="words and ranks whole"):
            cost.counts("hierarchical", count, size)


# ---- two more


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 5))
def test_the_circulant_has_rabenseifners_numbers_at_every_p(size, block):
    trace = traced(extras.all_reduce_circulant, size, block * size)
    assert (trace.rounds, trace.words) == (2 * math.ceil(math.log2(size)), 2 * block * (size - 1))


@pytest.mark.parametrize("size", range(2, 20))
def test_two_trees_span_all_ranks_and_share_the_inner_work(size):
    inner = []
    for parents in extras.two_trees(size):
        assert parents.count(-1) == 1
        for rank in range(size):
            depth = 0
            while rank >= 0:
                rank, depth = parents[rank], depth + 1
            assert depth <= math.ceil(math.log2(size)) + 2
        assert max(map(parents.count, set(parents))) <= 2
        inner.append({parent for parent in parents if parent >= 0})
    if size % 2 == 0:
        assert not inner[0] & inner[1]


def test_a_double_tree_trades_rounds_for_words():
    traces = [traced(extras.all_reduce_double_tree, 16, 1920, pieces=pieces) for pieces in (1, 4, 16, 60)]
    assert sorted(t.rounds for t in traces) == [t.rounds for t in traces] and traces[0].rounds < 30
    assert sorted((t.words for t in traces), reverse=True) == [t.words for t in traces]
    assert 2 * 1920 * 15 / 16 <= traces[-1].words < 3.2 * 1920 < cost.counts("butterfly", 1920, 16).words


# ---- the model


def test_the_model_by_hand_at_64_ranks():
    # 5 us a message, 10 GB/s: microseconds, with one byte a word.
    def microseconds(name, count):
        return round(1e6 * cost.seconds(name, count, 64, 5e-6, 1e-10))

    assert [microseconds(name, 1000) for name in ("butterfly", "ring")] == [31, 630]
    assert [microseconds(name, 10**7) for name in ("butterfly", "ring", "rabenseifner")] == [6030, 2599, 2029]
    assert round(1e6 * cost.lower_bound(10**7, 64, 5e-6, 1e-10)) == 1999


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 10), st.floats(1e-7, 1e-4), st.floats(1e-11, 1e-8), st.floats(0, 1e-9))
def test_butterfly_wins_for_short_arrays_and_rabenseifner_for_long_ones(log, alpha, beta, gamma):
    size = 2**log
    at = cost_fit.crossover("butterfly", "rabenseifner", size, alpha, beta, gamma)
    near = size * round(at / size)
    both = [cost.seconds(name, near, size, alpha, beta, gamma) for name in ("butterfly", "rabenseifner")]
    assert both[0] == pytest.approx(both[1], abs=size * (beta + gamma) * log)
    for count, winner in ((at / 4, "butterfly"), (at * 4 + 4 * size, "rabenseifner")):
        among = ("naive", "tree", "ring", "butterfly", "rabenseifner")
        assert cost.best(int(count), size, alpha, beta, gamma, among) == winner


def test_where_one_algorithm_is_always_cheaper_there_is_no_crossover():
    assert cost_fit.crossover("butterfly", "tree", 8, 1e-6, 1e-9) is None  # half the rounds, half the words
    assert cost_fit.crossover("ring", "rabenseifner", 8, 1e-6, 1e-9) is None  # the same words in fewer rounds
    assert cost_fit.crossover("rabenseifner", "ring", 6, 1e-6, 1e-9) == pytest.approx(4e-6 / (3.5e-9 - 5e-9 / 3))


ROWS = [cost.counts(name, count, size) for name in ALL_REDUCE for count in (8, 1000, 100_000) for size in (2, 3, 4)]


def test_a_fit_finds_the_parameters_and_says_how_well():
    truth = np.array([4e-5, 2e-9, 5e-10])
    exact = cost_fit.fit((*row, np.dot(row, truth)) for row in ROWS)
    assert exact[:3] == pytest.approx(truth) and exact.rms < 1e-12
    random, misses, stated = np.random.default_rng(0), [], []
    for _ in range(300):
        noisy = [(*row, np.dot(row, truth) * (1 + 0.05 * random.standard_normal())) for row in ROWS]
        found = cost_fit.fit(noisy)
        misses.append(np.array(found[:3]) - truth)
        stated.append(found.errors)
        assert 0.03 < found.rms < 0.07
    # The stated standard errors are the spread over repeated measurements.
    assert np.nanmean(stated, axis=0) == pytest.approx(np.std(misses, axis=0), rel=0.2)


def test_a_fit_keeps_parameters_from_being_negative():
    rows = [(1, 10.0**k, 0, 1e-5 - 1e-12 * 10.0**k) for k in range(6)]
    found = cost_fit.fit(rows)
    assert found.beta == found.gamma == 0 and found.alpha == pytest.approx(1e-5, rel=0.01)
    assert math.isnan(found.errors[1]) and found.errors[0] > 0
    with pytest.raises(RequestError, match="at least 4 rows"):
        cost_fit.fit(rows[:3])
    with pytest.raises(RequestError, match="seconds > 0"):
        cost_fit.fit([*rows, (1, 1, 1, 0.0)])


@pytest.mark.parametrize("name", [name for name in ALL_REDUCE if name != "naive"])
def test_loggp_without_overhead_and_gap_is_alpha_beta(name):
    # A message of w words takes L + (w - 1) G: alpha = L - G, beta = G.
    assert extras.loggp(name, 96, 8, 5.0, 0, 0, 0.25) == pytest.approx(cost.seconds(name, 96, 8, 4.75, 0.25))


def test_loggp_by_hand_where_messages_follow_each_other_at_the_gap():
    # One word, L = 10, o = 2: the first is taken in at 14, two more at 3 s each; then the same outwards.
    assert extras.loggp("naive", 1, 4, 10, 2, 3, 100) == 2 * (14 + 2 * 3)
    assert extras.loggp("tree", 1, 4, 10, 2, 3, 100) == 4 * 14


# ---- real ranks


@pytest.mark.parametrize("size", [2, 3, 4])
def test_on_real_ranks_all_reduces_equal_gloos_and_send_what_is_counted(size):
    counts = [0, 2, 1000]
    by_rank = run_ranks(collectives_ranks.all_reduces, size, counts)
    assert {row[:2] for row in by_rank[0]} == {(name, count) for name in ALL_REDUCE for count in counts}
    for rank, rows in enumerate(by_rank):
        for name, count, error, messages, words in rows:
            mine = [m.words for m in traced(ALL_REDUCE[name], size, count).messages if m.source == rank]
            assert error <= 1e-12 and (messages, words) == (len(mine), sum(mine)), (name, count)


def test_the_others_on_real_ranks_equal_the_virtual_ones():
    size, count = 3, 10
    arrays = [collectives_ranks.data(count, rank).numpy() for rank in range(size)]
    real = run_ranks(collectives_ranks.others, size, count)
    virtual = run(lambda comm: {
        "reduce_scatter": collectives.reduce_scatter(arrays[comm.rank].copy(), comm),
        "all_gather": collectives.all_gather(arrays[comm.rank].copy(), comm),
        "broadcast": collectives.broadcast(arrays[comm.rank].copy(), comm, root=comm.size - 1),
        "all_to_all": collectives.all_to_all(arrays[comm.rank].copy(), comm),
    }, size).results  # fmt: skip
    for rank in range(size):
        for name, found in real[rank].items():
            assert found.numpy() == pytest.approx(virtual[rank][name], rel=1e-14), name


def test_a_real_send_does_not_wait_and_sends_a_copy():
    assert run_ranks(collectives_ranks.shout, 3, 4) == [[0.0, 1.0, 2.0, 3.0]] * 3


def test_the_collectives_load_without_torch(python):
    child = python("-c", "import sys, labkit.training.collectives as c; print(*c.ALL_REDUCE, 'torch' in sys.modules)")
    assert child.communicate()[0].split() == [*ALL_REDUCE, "False"]
