"""Virtual time: who waits, what a full server lets through, and that a race trains what it says."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from labs import async_figures, async_times, delayed, virtual
from torch import nn
from torch.nn import functional as F

from labkit.errors import RequestError


def digits():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(120, 12, generator=generator)
    parts = [(x, x[:, :3].argmax(1))] * 4
    return delayed.Digits(*parts)


@pytest.mark.parametrize("workers", [4, 16])
def test_with_constant_times_nobody_waits_and_staleness_is_p_minus_1(workers):
    for method in ("sync", "total", "async"):
        plan = async_times.order(method, workers, "constant", 40 * workers, 0)
        assert plan.idle == pytest.approx(np.zeros(workers), abs=1e-9)
    assert (plan.staleness[workers:] == workers - 1).all()


def test_a_fixed_total_batch_makes_a_step_shorter_but_not_without_end():
    for workers, seconds in ((4, 0.2 + 0.8 / 2), (16, 0.2 + 0.8 / 8)):
        plan = async_times.order("total", workers, "constant", 10, 0)
        assert plan.when[-1] == pytest.approx(10 * seconds)
        assert async_times.batch("total", workers) == 64
    assert async_times.batch("backup", 16) == 14 * 32 and async_times.batch("async", 16) == 32


def test_a_straggler_stops_the_barrier_and_the_bound_but_not_backup_workers():
    steps, each = 400, {}
    for method in ("sync", "backup", "ssp 3", "async"):
        plan = async_times.order(method, 4, "straggler", steps, 0)
        each[method] = plan.when[-1] / (steps if plan.members is not None else steps / 4)
    assert each["sync"] == pytest.approx(5.0) and each["backup"] == pytest.approx(1.0)
    assert each["ssp 3"] == pytest.approx(5.0, rel=0.05)  # as slow as the slowest
    assert each["async"] == pytest.approx(4 / (3 + 1 / 5), rel=0.02)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_nobody_is_further_ahead_than_the_bound_and_somebody_comes_up_to_it(bound):
    assert max(async_times.gaps(4, bound, times, 300) for times in async_times.TIMES) == bound


def test_a_server_lets_through_shards_over_message_and_no_more():
    for shards in (1, 4):
        table = async_times.saturation(shards, [1, 100], updates=2000)
        assert table["share_of_limit"].max() <= 1 and table["share_of_limit"].iloc[-1] > 0.95
        assert table["updates a second"].iloc[0] == pytest.approx(1 / (1 + 2 * 0.1 / shards), rel=0.1)


def test_gradients_queue_as_in_an_m_d_1_queue():
    waited, formula = async_times.waiting(0.6, updates=30000)
    assert formula == pytest.approx(0.6 * 0.1 / 0.8) and waited == pytest.approx(formula, rel=0.1)


def test_a_race_trains_the_barrier_once_and_reads_its_seconds_from_every_clock():
    table = async_times.race(digits(), 4, ["constant", "straggler"], ("sync", "async"), 3, 0.9, 0)
    sync = table[table["method"] == "sync"].pivot(index="rate", columns="times", values="seconds")
    assert np.isfinite(sync.to_numpy()).any()
    assert sync["straggler"].to_numpy() == pytest.approx(5 * sync["constant"].to_numpy())
    run = delayed.train(digits(), delayed.constant(3, 200), [0.25], every=8, target=0.9)
    mine = table[(table["method"] == "async") & (table["times"] == "constant") & (table["rate"] == 0.25)]
    assert mine["updates"].iloc[0] == pytest.approx(run.crossing(0.9)[0])


def test_the_race_trains_what_the_gradient_mode_of_the_simulator_trains():
    data, plan = digits(), async_times.order("async", 4, "lognormal", 24, 3)
    arms = delayed.Arms(data, [0.1], [0.5], 2)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3))
    start = arms.weights[0].T, arms.weights[1][0], arms.weights[2][0].T, arms.weights[3][0, 0]
    for parameter, value in zip(model.parameters(), start, strict=True):
        parameter.data = value.clone()
    rows = iter(torch.randint(120, (24, 8), generator=torch.Generator().manual_seed(2)))

    def draw(workers):
        picked = torch.stack([next(rows) for _ in workers])
        return data.train[0][picked], data.train[1][picked]

    batches = SimpleNamespace(begin=lambda workers: draw)
    other = virtual.train(plan, model, F.cross_entropy, batches, 0.1, data.probe, momentum=0.5, every=6)
    ours = delayed.train(data, plan.read, [0.1], 0.5, batch=8, seed=2, every=6)
    assert ours.steps.tolist() == other.update.tolist()
    assert ours.losses[:, 0] == pytest.approx(other.loss, rel=1e-4)


def test_the_best_rate_is_that_of_the_geometric_mean_and_no_seed_may_miss():
    seconds = {1.0: (4.0, 16.0, 8.0), 0.5: (1.0, math.inf, math.inf)}
    rows = [("sync", rate, seed, value) for rate, values in seconds.items() for seed, value in enumerate(values)]
    table = pd.DataFrame(rows, columns=["method", "rate", "seed", "seconds"]).assign(workers=4, times="constant")
    table = table.assign(delay=0.0, idle=0.0, images=1.0)
    found = async_times.best(table)
    assert found["best rate"].tolist() == [1.0] and found["seconds"].tolist() == pytest.approx([8.0])
    none = async_times.best(table[table["rate"] < 1])
    assert len(none) == 0 and list(none) == list(async_times.BEST)
    at_once = async_times.best(table.assign(seconds=0.0))
    assert len(at_once) == 0 and list(async_figures.results(at_once))[:3] == ["workers", "times", "method"]
    assert "no method reached the target" in async_figures.race(pd.DataFrame(), at_once, 4)[1]


def test_a_target_that_the_start_has_reached_is_refused():
    with pytest.raises(RequestError, match="target 3 is reached before the race begins: the loss at the start is 1"):
        async_times.race(digits(), 4, ["constant"], ("sync",), 2, 3.0, 0)


def test_a_table_and_a_figure_have_the_same_names_of_methods():
    rows = [(method, rate, rate) for method in async_times.methods([3]) for rate in (1.0, 0.5, 0.25)]
    table = pd.DataFrame(rows, columns=["method", "rate", "seconds"]).assign(workers=4, times="constant", seed=0)
    table = table.assign(delay=0.0, idle=0.0, images=1.0)
    names = async_figures.results(table)["method"].tolist()
    figure, alt, _ = async_figures.race(pd.DataFrame(), table, 4)
    assert names == [label.get_text() for label in figure.axes[0].get_yticklabels()] and all(n in alt for n in names)


def test_a_timeline_counts_what_was_applied_and_not_what_was_begun():
    _, alt, bars = async_figures.timeline()
    assert "synchronous: 8 gradients applied, in 2 updates" in alt and "bound 3: 20 gradients applied" in alt
    assert (bars["method"] == "sync").sum() > 8
    assert "1 gradient applied, in 1 update;" in async_figures.timeline("constant", 1, 1.5)[1]


def test_the_seconds_of_a_seed_are_those_at_the_rate_that_is_best_on_the_others():
    seconds = {1.0: (4.0, 9.0, 9.0), 0.5: (8.0, 4.0, 4.0), 0.25: (9.0, 9.0, 9.0)}
    rows = [("sync", rate, seed, value) for rate, values in seconds.items() for seed, value in enumerate(values)]
    table = pd.DataFrame(rows, columns=["method", "rate", "seed", "seconds"]).assign(workers=4, times="constant")
    table = table.assign(delay=0.0, idle=0.0, images=1.0)
    found = async_times.best(table).iloc[0]
    assert found["best rate"] == 0.5 and found["seconds"] == pytest.approx(128 ** (1 / 3)) and not found["at edge"]
    alone = async_times.best(table[table["seed"] == 0].drop(columns="seed")).iloc[0]
    assert alone["best rate"] == 1.0 and alone["seconds"] == pytest.approx(4.0) and alone["at edge"]


def test_bound_zero_gives_the_parameters_of_the_synchronous_server_bit_for_bit():
    off, moved = async_times.same_as_synchronous(2, 4)
    assert off == 0.0 and moved > 0.01


def test_real_and_simulated_staleness_agree_for_four_workers_of_which_one_is_slow():
    table = async_times.staleness(4, 240)
    for source, part in table.groupby("source"):
        means = part.groupby("worker")["staleness"].mean()
        assert len(part) >= 240 and part["staleness"].min() >= 0
        assert part["staleness"].mean() == pytest.approx(3, abs=0.5)  # P - 1, whoever is slow
        assert means[3] > means[:3].max(), source


def test_bounds_are_methods_of_their_own_and_sorted():
    methods = async_times.methods([8, 1])
    assert methods == ["sync", "total", "backup", "ssp 1", "ssp 8", "async"]
    assert sorted(methods[::-1], key=async_times.place) == methods
    late = [async_times.order(method, 4, "lognormal", 2000, 0).when[-1] for method in ("ssp 1", "ssp 8", "async")]
    assert late == sorted(late, reverse=True) and len(set(late)) == 3  # a larger bound waits less
    with pytest.raises(RequestError, match="method"):
        async_times.order("spp 3", 4, "constant", 8, 0)
    for method in ("async 3", "ssp x", "ssp -1", "sync 0"):
        with pytest.raises(RequestError, match="only ssp has a bound"):
            async_times.order(method, 4, "constant", 8, 0)


@pytest.mark.parametrize("workers", [4, 16])
def test_all_methods_may_see_as_many_images(workers):
    for method in async_times.methods([3]):
        size = async_times.batch(method, workers)
        assert async_times.most_images(workers) - size < async_times.most_images(workers) // size * size
