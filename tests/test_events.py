"""Training in virtual time against closed forms, a literal recursion, and the same server written in simpy."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs.virtual_gossip import gossip

from labkit.errors import RequestError
from labkit.simulate import cost
from labkit.simulate.events import Compute, Link, asynchronous, local_sgd, synchronous
from labkit.training.gossip import complete, one_peer, ring

sys.path.insert(0, str(Path(__file__).resolve().parent / "workers"))
import simpy_server  # noqa: E402

TIMES = {
    "constant": Compute(),
    "exponential": Compute("exponential"),
    "lognormal": Compute("lognormal", sigma=0.5),
    "measured": Compute("measured", samples=[0.5, 0.7, 3.1]),
    "straggler": Compute("lognormal", slow={1: 5.0}),
}
everywhere = pytest.mark.parametrize("compute", TIMES.values(), ids=TIMES)


def harmonic(count, power=1):
    return sum(1 / k**power for k in range(1, count + 1))


@pytest.mark.parametrize("workers, backup", [(2, 0), (8, 0), (32, 0), (8, 1), (32, 4)])
def test_a_barrier_waits_for_the_slowest_that_counts(workers, backup):
    """E[the (P - b)-th of P exponentials] = H_P - H_b; its variance is the same sum of squares."""
    steps = 4000
    updates = synchronous(workers, steps, Compute("exponential", 2.0), backup=backup, seed=3)
    error = 2 * math.sqrt((harmonic(workers, 2) - harmonic(backup, 2)) / steps)
    assert updates.when[-1] / steps == pytest.approx(2 * (harmonic(workers) - harmonic(backup)), abs=4 * error)
    assert (updates.members.sum(1) == workers - backup).all()


def test_one_slow_worker_makes_all_others_wait_and_a_backup_does_not_wait_for_it():
    straggler = Compute(slow={2: 5.0})
    assert synchronous(4, 100, straggler).idle == pytest.approx([0.8, 0.8, 0, 0.8])
    spared = synchronous(4, 100, straggler, backup=1)
    assert spared.when[-1] == pytest.approx(100) and not spared.members[:, 2].any()


def test_an_exchange_adds_the_seconds_of_its_all_reduce_to_every_step():
    exchange = cost.seconds("ring", 1000, 8, alpha=1e-3, beta=1e-6)
    updates = synchronous(8, 50, TIMES["exponential"], exchange=exchange)
    assert updates.when[-1] - 50 * exchange == pytest.approx(synchronous(8, 50, TIMES["exponential"]).when[-1])


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_a_server_with_random_arrivals_is_an_m_d_1_queue(load):
    """Many workers with exponential times: mean wait = service x load / (2 (1 - load))."""
    workers, service, waits, loads = 1000, load / 1000, [], []
    for seed in range(8):
        updates = asynchronous(workers, 20_000, Compute("exponential"), link=Link(beta=service), size=1, seed=seed)
        waits.append((updates.when - updates.ended - service).mean())
        loads.append(service * len(updates.when) / updates.when[-1])
    load = np.mean(loads)
    error = np.std(waits, ddof=1) / math.sqrt(len(waits))
    assert np.mean(waits) == pytest.approx(service * load / (2 * (1 - load)), abs=4 * error)


def test_a_server_saturates_at_bandwidth_over_message_and_shards_lift_that():
    def throughput(shards):
        return 5000 / asynchronous(64, 5000, Compute(mean=1e-3), link=Link(beta=1e-9), size=1e6, shards=shards).when[-1]

    rate = {shards: throughput(shards) for shards in (1, 2, 4)}
    assert rate[1] <= 1000 and rate[1] == pytest.approx(1000, rel=0.01)
    assert rate[2] == pytest.approx(2 * rate[1], rel=0.01) and rate[4] == pytest.approx(4 * rate[1], rel=0.01)


def test_an_idle_server_costs_a_worker_two_messages_a_step():
    updates = asynchronous(1, 100, Compute(mean=1.0), link=Link(0.1, 1e-3), size=50)
    assert np.diff(updates.when) == pytest.approx(np.full(99, 1 + 2 * (0.1 + 0.05)))


@pytest.mark.parametrize("kind", ["constant", "exponential", "lognormal", "straggler"])  # no ties in another order
@pytest.mark.parametrize("port, alpha", [(0.0, 0.0), (0.15, 0.02)])
def test_asynchronous_is_what_simpy_makes_of_the_same_server(kind, port, alpha):
    updates = asynchronous(5, 400, TIMES[kind], link=Link(alpha, port / 8), size=8, seed=4)
    rows = simpy_server.run(5, 400, TIMES[kind], port, alpha, seed=4)
    seconds, workers, versions = map(np.array, zip(*rows, strict=True))
    assert updates.when == pytest.approx(seconds, rel=1e-12)
    assert updates.worker.tolist() == workers.tolist() and updates.read.tolist() == versions.tolist()


@everywhere
def test_bound_zero_is_lockstep_and_no_bound_is_asynchronous(compute):
    lockstep, barrier = asynchronous(6, 600, compute, bound=0, seed=7), synchronous(6, 100, compute, seed=7)
    assert (lockstep.when[5::6] == barrier.when).all()
    assert (lockstep.read == np.arange(600) // 6 * 6).all()
    free, loose = asynchronous(6, 600, compute, seed=7), asynchronous(6, 600, compute, bound=600, seed=7)
    for name in ("when", "worker", "read", "began", "ended", "idle"):
        assert (getattr(free, name) == getattr(loose, name)).all()


@everywhere
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_a_gradient_sees_all_those_of_number_c_minus_s_minus_1(compute, bound):
    workers = 5
    updates = asynchronous(workers, 500, compute, bound=bound, link=Link(0.01, 0.01), size=1, seed=1)
    gaps = []
    for index, (worker, read) in enumerate(zip(updates.worker, updates.read, strict=True)):
        number = (updates.worker[:index] == worker).sum()
        gaps.append(number - np.bincount(updates.worker[:read], minlength=workers).min())
    assert max(gaps) <= bound
    assert updates.staleness.max() <= (workers - 1) * (2 * bound + 1)
    if compute.slow:
        assert max(gaps) == bound  # a straggler leads the others to the bound


@everywhere
def test_mean_staleness_is_one_update_of_each_other_worker(compute):
    """Every worker sees all updates between two of its own exactly once."""
    workers, count = 5, 3000
    updates = asynchronous(workers, count, compute)
    seen = sum(np.flatnonzero(updates.worker == worker)[-1] + 1 for worker in range(workers))
    assert updates.staleness.sum() == seen - count
    assert workers - 1 - 5 * workers**2 / count <= updates.staleness.mean() <= workers - 1


def test_equal_times_make_equal_staleness():
    assert asynchronous(7, 700, Compute()).staleness.tolist() == [*range(7)] + [6] * 693


@pytest.mark.parametrize("make", [synchronous, asynchronous])
def test_equal_seeds_equal_results_and_other_seeds_others(make):
    compute = TIMES["exponential"]
    assert (make(4, 50, compute, seed=1).when == make(4, 50, compute, seed=1).when).all()
    assert (make(4, 50, compute, seed=1).when != make(4, 50, compute, seed=2).when).all()


@everywhere
def test_a_gradient_takes_equally_long_in_every_method(compute):
    barrier, free = synchronous(3, 40, compute, seed=5), asynchronous(3, 300, compute, seed=5)
    for worker in range(3):
        seconds = (free.ended - free.began)[free.worker == worker][:40]
        assert seconds == pytest.approx((barrier.ended - barrier.began)[: len(seconds), worker])


def test_mean_time_is_the_one_asked_for():
    for compute in (Compute("exponential", 3.0), Compute("lognormal", 3.0, sigma=1.0)):
        times = compute.table(4, 20_000, 0)[0]
        assert times.mean() == pytest.approx(3, abs=4 * times.std() / math.sqrt(times.size))
    assert set(TIMES["measured"].table(2, 500, 0)[0].flat) == {0.5, 0.7, 3.1}


def test_local_steps_share_one_barrier():
    times = TIMES["exponential"].table(4, 30, 9)[0]
    updates = local_sgd(4, [3] * 10, TIMES["exponential"], exchange=0.5, seed=9)
    assert np.diff(updates.when, prepend=0) == pytest.approx(times.reshape(10, 3, 4).sum(1).max(1) + 0.5)
    late = local_sgd(4, [1] * 4 + [2, 2], Compute(), exchange=0.5)
    assert late.when.tolist() == [1.5, 3.0, 4.5, 6.0, 8.5, 11.0]
    assert (local_sgd(4, [1] * 20, TIMES["lognormal"]).when == synchronous(4, 20, TIMES["lognormal"]).when).all()


@pytest.mark.parametrize("graph", [ring(6), np.stack(one_peer(8))], ids=["ring", "one peer in turns"])
def test_gossip_waits_for_neighbours_only(graph):
    """A literal recursion: ready = begin + time; begin = the latest ready among oneself and the neighbours."""
    graphs = graph if graph.ndim == 3 else graph[None]
    workers, steps = graphs.shape[1], 30
    times, begin = TIMES["exponential"].table(workers, steps, 2)[0], [0.0] * graphs.shape[1]
    updates = gossip(graph, steps, TIMES["exponential"], seed=2)
    for step in range(steps):
        ready = [b + t for b, t in zip(begin, times[step], strict=True)]
        begin = [max(ready[j] for j in range(workers) if j == i or graphs[step % len(graphs)][i, j])
                 for i in range(workers)]  # fmt: skip
        assert updates.when[step] == pytest.approx(max(begin))
        assert updates.ended[step] == pytest.approx(ready)
    assert updates.when[-1] <= synchronous(workers, steps, TIMES["exponential"], seed=2).when[-1]


def test_a_delay_travels_one_hop_a_step_on_a_ring_and_everywhere_at_once_on_a_complete_graph():
    compute = Compute(slow={0: 4.0})
    late = gossip(ring(7), 3, compute).began > np.arange(3)[:, None]
    assert late.sum(1).tolist() == [0, 3, 5]
    everyone = gossip(complete(7), 5, compute)
    assert everyone.when.tolist() == synchronous(7, 5, compute).when.tolist()


def test_a_gossip_round_costs_its_messages_one_after_the_other():
    fast, slow = Link(0.25, 0.01), Link(2.0, 0.01)
    assert gossip(ring(6), 10, Compute(), link=fast, size=50).when[-1] == pytest.approx(10 * (1 + 0.25 + 2 * 0.5))
    assert gossip(complete(6), 10, Compute(), link=fast, size=50).when[-1] == pytest.approx(10 * (1 + 0.25 + 5 * 0.5))
    far = gossip(complete(6), 1, Compute(), link=lambda a, b: fast if a // 3 == b // 3 else slow, size=50)
    assert far.when[0] == pytest.approx(1 + 2.0 + 5 * 0.5)  # rank 0 reaches rank 5, in the other half, last


def test_a_death_stops_a_barrier_unless_a_backup_stands_in():
    dying = Compute(dies={2: 10.5})
    with pytest.raises(RequestError, match=r"step 10 waits for workers that are dead: \[2\]"):
        synchronous(4, 20, dying)
    with pytest.raises(RequestError, match=r"step 10 waits for workers that are dead: \[2\]"):
        gossip(ring(4), 20, dying)
    alive = synchronous(4, 20, dying, backup=1)
    assert alive.when[-1] == 20 and alive.members[10:, [0, 1, 3]].all()
    assert alive.idle[2] == pytest.approx(1 - 10.5 / 20)


@pytest.mark.parametrize("bound", [0, 2, math.inf])
def test_a_server_goes_on_without_the_dead(bound):
    updates = asynchronous(3, 100, Compute(dies={1: 10.5}), bound=bound)
    assert (updates.worker == 1).sum() == 10
    assert updates.when[-1] == pytest.approx(10 + (100 - 30) / 2, abs=1)
    assert updates.idle[1] == pytest.approx(1 - 10.5 / updates.when[-1])
    with pytest.raises(RequestError, match="all workers are dead after 27 of 100 updates"):
        asynchronous(3, 100, Compute(dies=dict.fromkeys(range(3), 9.5)), bound=bound)


def test_who_waits_for_the_dead_goes_on_at_the_second_of_the_death():
    """Worker 1 would need 100 s; with s = 1 the others stop after two gradients each, until it is gone."""
    updates = asynchronous(3, 8, Compute(slow={1: 100.0}, dies={1: 20.0}), bound=1)
    assert updates.when.tolist() == [1, 1, 2, 2, 21, 21, 22, 22]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_whoever_is_let_go_at_one_time_is_answered_in_the_order_of_workers(bound):
    """As by the real server. Worker 2 is as slow as a barrier: each of its gradients lets all others go on, and it
    itself, through a port that answers one after the other."""
    updates = asynchronous(4, 200, Compute(slow={2: 9.0}), bound=bound, link=Link(beta=0.01), size=1)
    late = np.flatnonzero(updates.worker == 2)[:-1]
    for push in late[bound:]:
        begun = [updates.began[push + 1 :][updates.worker[push + 1 :] == worker][0] for worker in range(4)]
        expected = updates.when[push] + 0.01 * np.arange(1, 5)
        assert begun == pytest.approx(expected)


counts = st.integers(1, 6)


@settings(max_examples=80, deadline=None)
@given(
    counts, st.integers(1, 60), st.sampled_from(sorted(TIMES)), st.sampled_from([0, 1, 3, math.inf]),
    st.sampled_from([0.0, 0.2]), st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_what_holds_for_every_order_of_updates(workers, count, kind, bound, seconds, seed, barrier):
    compute = TIMES[kind] if workers > 1 or kind != "straggler" else TIMES["constant"]
    if barrier:
        updates = synchronous(workers, count, compute, backup=workers // 3, exchange=seconds, seed=seed)
    else:
        updates = asynchronous(workers, count, compute, bound=bound, link=Link(seconds, 0.1), size=seconds, seed=seed)
    assert len(updates.when) == count and (np.diff(updates.when) >= 0).all() and updates.when[0] > 0
    assert (0 <= updates.read).all() and (updates.read <= np.arange(count)).all()
    assert (-1e-12 <= updates.idle).all() and (updates.idle <= 1).all()
    assert (updates.began <= updates.ended).all() and (updates.ended.T <= updates.when + 1e-12).all()
    if not barrier:  # a worker has read its own last gradient, and began no earlier than that was applied
        for worker in range(workers):
            mine = np.flatnonzero(updates.worker == worker)
            assert (updates.read[mine[1:]] > mine[:-1]).all()
            assert (updates.began[mine[1:]] >= updates.when[mine[:-1]]).all()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: Compute("gamma"), "unknown kind of compute time 'gamma'; allowed: constant, exponential"),
        (lambda: Compute(mean=0), "mean, slow and samples must be above 0"),
        (lambda: Compute(slow={0: -1.0}), "mean, slow and samples must be above 0"),
        *((lambda value=value, name=name: Compute(**{name: value}), "above 0 and finite, sigma and dies 0 or more")
          for bad in (math.nan, math.inf, -1.0)
          for name, value in (("mean", bad), ("sigma", bad), ("slow", {1: bad}))),
        *((lambda bad=bad, at=at: Compute("measured", samples=[1.0] * at + [bad] + [2.0]), "above 0 and finite")
          for bad in (math.nan, math.inf, -1.0, 0.0) for at in (0, 1)),
        *((lambda bad=bad: Compute(dies={0: bad}), "dies 0 or more") for bad in (math.nan, -1.0)),
        *((lambda bad=bad, name=name: Link(**{name: bad}), "alpha and beta of a link must be 0 or more")
          for bad in (math.nan, math.inf) for name in ("alpha", "beta")),
        *((lambda bad=bad: asynchronous(2, 3, Compute(), size=bad), f"size {bad} must")
          for bad in (math.nan, math.inf)),
        *((lambda bad=bad: asynchronous(2, 3, Compute(), bound=bad), f"bound {bad} and .* bound: whole or inf")
          for bad in (math.nan, 0.5)),
        *((lambda bad=bad: asynchronous(2, bad, Compute()), f"updates {bad} whole")
          for bad in (math.nan, math.inf, 2.5)),
        (lambda: asynchronous(2, 3, Compute(), shards=1.5), "shards 1.5 and"),
        *((lambda bad=bad: synchronous(2, bad, Compute()), f"steps {bad} must be whole") for bad in (math.inf, 2.5)),
        (lambda: synchronous(2, 3, Compute(), backup=0.5), "backup 0.5 0 to 1, whole"),
        (lambda: local_sgd(2, [1, 1.5], Compute()), "local steps must be"),
        (lambda: gossip(np.eye(3), 2.5, Compute()), "steps 2.5 must be"),
        (lambda: synchronous(2.5, 3, Compute()), "workers 2.5"),
        (lambda: synchronous(2, 3, Compute(), seed=-1), "seed -1"),
        *((lambda bad=bad: synchronous(2, 3, Compute(), exchange=bad), "exchange") for bad in (math.nan, math.inf)),
        *((lambda bad=bad: gossip(np.eye(3), 5, Compute(), size=bad), "size .* is out of range")
          for bad in (math.nan, math.inf, -1.0)),
        (lambda: Compute("measured"), "samples belong to kind measured"),
        (lambda: Compute(samples=[1.0]), "samples belong to kind measured"),
        (lambda: synchronous(4, 10, Compute(), backup=4), "backup 4 0 to 3"),
        (lambda: synchronous(4, 0, Compute()), "local steps"),
        (lambda: local_sgd(4, [2, 0], Compute()), "local steps"),
        (lambda: synchronous(4, 10, Compute(slow={4: 2.0})), "may name workers 0 to 3 only"),
        (lambda: asynchronous(0, 10, Compute()), "workers 0"),
        (lambda: Link(beta=-1e-9), "alpha and beta of a link must be 0 or more"),
        (lambda: asynchronous(4, 10, Compute(), bound=-1), "bound -1 and size 0.0 must be 0 or more"),
        (lambda: asynchronous(4, 10, Compute(), shards=0), "shards 0 and updates 10 whole and 1 or more"),
        (lambda: gossip(np.ones((3, 3)), 5, Compute()), "rows that sum to 1"),
    ],
)
def test_what_is_refused(wrong, message):
    with pytest.raises(RequestError, match=message):
        wrong()
