"""Lab 01: its counts equal formulas, its rules tell apart what was planted, its records come back as they went in."""

import itertools
import math

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from labkit import claims, profiles
from labkit.errors import RequestError
from labkit.lab import start
from labkit.operators import work
from labkit.runs import Header, Row, Run, Span
from labs import (
    conv_evidence,
    cost_figures,
    cost_of_step,
    cost_timing_figures,
    counted,
    plan01,
    rules_operators,
    schedules,
    zoo,
)
from labs.roofline import Roofline

CLAIMS = {claim.id: claim for claim in claims.load("01")}
HASHES = {claim.id: claim.hash for claim in CLAIMS.values()}
SMOKE = profiles.resolve("01", "smoke")


def evidence(name, rows, **config):
    """A finished run of `lab.evidence`, which the claims of lab 01 accept."""
    made = [Row(0, 0.0, row[2] if len(row) > 2 else 0, 0.0, row[0], row[1]) for row in rows]
    header = Header("01", {"evidence": name, **config}, 0, claims=HASHES)
    return Run(header, [Span("train", 0.0, 1.0)], made, "finished")


def verdict(id, *runs):
    return claims.judge(CLAIMS[id], runs).verdict


# Counts.


@given(st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_flops_and_bytes_of_a_layer_are_those_of_its_tensors(batch, width):
    x, w = torch.ones(batch, width), torch.ones(width, width)
    with FlopCounterMode(display=False) as counter:
        y = x @ w
    assert cost_of_step.dense(width, batch) == (counter.get_total_flops(), sum(4 * t.numel() for t in (x, w, y)))


def test_the_slower_of_two_roofs_is_the_bound():
    roof = Roofline(peak=1e9, bandwidth=1e8)
    for batch in (1, 64):
        flops, moved = cost_of_step.dense(128, batch)
        assert cost_of_step.roofline_seconds(roof, 128, 3, batch) == pytest.approx(3 * max(flops / 1e9, moved / 1e8))


def test_the_stack_is_a_product_of_its_layers():
    numbers = torch.Generator().manual_seed(0)
    weights = [torch.randn(8, 8, generator=numbers) / 8**0.5 for _ in range(3)]
    found = cost_of_step.stack(8, 3, [4])[4]()
    assert torch.allclose(found, torch.randn(4, 8, generator=numbers) @ weights[0] @ weights[1] @ weights[2], atol=1e-6)


def test_every_layer_written_out_equals_its_formula_and_torch():
    rows = counted.operators(3, seed=7)
    assert {row[0] for row in rows} == {"activation", "fully connected", "convolution", "pooling", "batch norm",
                                        "LSTM cell", "GRU cell"}  # fmt: skip
    for layer, direction, w, d, w_counted, d_counted, by_torch in rows:
        assert (w, d) == (w_counted, d_counted), (layer, direction)
        assert by_torch in (None, w), (layer, direction)


def test_a_tree_of_n_values_has_n_minus_one_operations_and_lg_n_levels():
    for n in range(1, 40):
        tally = counted.Tally()
        assert (tally.tree([0] * n), tally.work) == (work.lg(n), n - 1)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_random_graphs_are_scheduled_within_brents_bounds(count, processors, seed):
    assert schedules.random_tasks(count, processors, seed) == 0


def test_a_captured_network_is_scheduled_within_brents_bounds():
    graph = schedules.graph_capture("LeNet-5")
    table = schedules.brent(graph, [1, 3, 1000, 10**6])
    assert (table["outside"] == 0).all()
    assert (table["steps"].iloc[0], table["steps"].iloc[-1]) == (graph.work, graph.depth)


def test_wavefronts():
    table = schedules.wavefronts(list(itertools.product((1, 2, 5), (1, 4, 6))))
    assert (table["wavefronts"] == table["layers"] + table["steps"] - 1).all()
    assert (table["widest"] == table[["layers", "steps"]].min(axis=1)).all()


def test_checkpoints_hold_two_roots_and_a_constant():
    lengths, segments, slope = schedules.checkpoints([16, 36, 64, 100])
    results = lengths["bytes"] / (4 * 16 * 64)  # one result is 64 x 16 float32
    beyond = results - 2 * lengths["layers"] ** 0.5
    assert beyond.max() - beyond.min() < 0.01 and 0 < beyond.iloc[0] < 5
    assert (lengths["forwards_again"] == 1).all() and 0.4 <= slope <= 0.5
    assert segments["segments"][segments["bytes"].idxmin()] in (4, 8)  # the root of 36 lies between


def test_convolutions_are_equal_and_counted():
    assert conv_evidence.equality().to_numpy().max() < 1e-4
    saved = conv_evidence.savings().set_index("method")
    assert list(saved["products"]) == [147456, 82944] and set(saved["direct"]) == {331776}
    assert list(saved["saving"]) == [2.25, 4.0] and not saved[["saving off", "counted off"]].to_numpy().any()
    held = conv_evidence.columns_memory()
    assert held["times as many words"].iloc[0] == pytest.approx(9 * 144 / 196) and not held["off"].any()


def test_errors_are_paired_by_seed():
    table = conv_evidence.errors(range(3))
    assert table.groupby("method").size().eq(3).all()
    assert (table["error"] < 1e-4).all()


# Rules.


def test_one_count_that_is_off_contradicts_an_identity():
    rows = [("work_off", 0.0)] * 20 + [("depth_off", 0.0)] * 20
    assert verdict("S01", evidence("operators", rows)) == "holds exactly"
    assert verdict("S01", evidence("operators", [*rows, ("depth_off", 1.0)])) == "contradicted"
    assert verdict("S01", evidence("operators", [*rows, ("work_off", math.nan)])) == "contradicted"
    assert verdict("S01", evidence("operators", rows[:5])) == "not attempted"


IMAGES = {"images": 2, "channels": 16, "side": 64, "largest": 31}


def kernel_run(at_three, at_last, rounds=15):
    rows = []
    for kernel, ratio in ((3, at_three), (31, at_last)):
        for n in range(rounds):
            busy = 1 + n % 3  # the machine's: both of a round
            rows += [("fft", busy, kernel), ("library", busy * ratio, kernel), ("im2col", busy, kernel)]
    return evidence("kernels", rows, **IMAGES)


@pytest.mark.parametrize(
    "at_three, at_last, found",
    [(0.1, 4.0, "same shape at smaller scale"), (0.1, 1.01, "not seen"), (2.0, 4.0, "not seen"),
     (0.1, 0.5, "not seen")],
)
def test_a_large_kernel_is_won_by_the_fft_or_not(at_three, at_last, found):
    assert verdict("S06", kernel_run(at_three, at_last)) == found
    assert verdict("S06", kernel_run(at_three, at_last, 5)) == "not attempted"
    finding = rules_operators.wins_when_large([kernel_run(0.1, 0.5)], **CLAIMS["S06"].parameters)
    assert finding.outcome == "contradicted"  # the board says "not seen": the claim is only remembered


@pytest.mark.parametrize(
    "ratios, found",
    [([6, 7, 6, 8, 7], "reproduced"), ([0.5, 1.1, 2.0, 0.9, 1.2], "not seen"), ([0.2] * 4 + [0.3], "contradicted")],
)
def test_errors_are_judged_by_two_standard_errors(ratios, found):
    rows = [("F(2,3)", 1.0, n) for n in range(5)] + [("F(4,3)", ratio, n) for n, ratio in enumerate(ratios)]
    assert verdict("S07", evidence("winograd", rows)) == found
    assert verdict("S07", evidence("winograd", rows[:4])) == "not attempted"


STACK = {"width": 2048, "layers": 8, "last": 512}


def batch_run(each, roofline=lambda batch: 1.0, rounds=15):
    """`each(batch)`: seconds a sample; `roofline(batch)`: the bound, in units of the measured seconds."""
    batches = [1, 8, 64, 256, 512]
    rows = [("seconds", batch * each(batch), batch) for batch in batches for _ in range(rounds)]
    rows += [("roofline", batch * each(batch) * roofline(batch), batch) for batch in batches]
    return evidence("batches", [*rows, ("peak", 1e11), ("bandwidth", 1e10)], **STACK)


@pytest.mark.parametrize(
    "each, found",
    [
        (lambda batch: 1 + 9 / batch, "same shape at smaller scale"),
        (lambda batch: 1 / batch, "not seen"),  # it never flattens
        (lambda batch: 1.0, "contradicted"),
    ],
)
def test_time_a_sample_has_to_fall_and_then_to_be_flat(each, found):
    assert verdict("S11", batch_run(each)) == found
    assert verdict("S11", batch_run(each, rounds=3)) == "not attempted"


@pytest.mark.parametrize(
    "roofline, found",
    [
        (lambda batch: 0.8, "same shape at smaller scale"),
        (lambda batch: 0.3 if batch == 8 else 0.9, "not seen"),
        (lambda batch: 0.1, "contradicted"),
    ],
)
def test_a_forecast_has_to_be_within_its_factor_everywhere(roofline, found):
    assert verdict("S11.roof", batch_run(lambda batch: 1.0, roofline)) == found


def network_runs(change=lambda n, row: row, count=9):
    rows = [{"macs_per_parameter": 10.0 + n, "layers": 5.0 + n, "depth": 50.0 + n, "training_work": 3.0,
             "inference_work": 1.0, "training_bytes": 10.0, "inference_bytes": 3.0} for n in range(count)]  # fmt: skip
    rows = [change(n, dict(row)) for n, row in enumerate(rows)]
    return [evidence("network", list(row.items()), network=f"net{n}", year=1998 + n) for n, row in enumerate(rows)]


def test_networks_are_judged_by_rank_and_each_by_its_ratio():
    assert verdict("S12", *network_runs()) == verdict("S14", *network_runs()) == "same shape at smaller scale"
    assert verdict("S12", *network_runs(lambda n, row: row | {"layers": 100.0 - n})) == "contradicted"
    assert verdict("S12", *network_runs(lambda n, row: row | {"layers": 5.0 + n % 3})) == "not seen"
    assert verdict("S12", *network_runs(count=5)) == "not attempted"
    assert verdict("S14", *network_runs(lambda n, row: row | {"training_work": 2.0 if n == 0 else 3.0})) == "not seen"
    assert verdict("S14", *network_runs(lambda n, row: row | {"training_work": 2.0})) == "contradicted"
    assert verdict("S14.memory", *network_runs(lambda n, row: row | {"inference_bytes": 9.0 - n})) == "not seen"


@pytest.mark.parametrize(
    "power, again, found",
    [(0.5, 1.0, "same shape at smaller scale"), (1.0, 1.0, "contradicted"), (0.5, 2.0, "contradicted")],
)
def test_checkpoints_need_the_slope_and_the_price(power, again, found):
    rows = [row for n in (16, 64, 256, 1024) for row in (("bytes", 8.0 * n**power, n), ("forwards_again", again, n))]
    assert verdict("S09", evidence("checkpointing", rows)) == found
    assert verdict("S09", evidence("checkpointing", rows[:4])) == "not attempted"


@pytest.mark.parametrize(
    "planned, found",
    [([9, 5, 3, 3], "same shape at smaller scale"), ([9, 9, 9, 3], "not seen"), ([9, 10, 3, 3], "contradicted")],
)
def test_a_plan_may_never_be_slower(planned, found):
    rows = [("planned", cost, n) for n, cost in enumerate(planned)]
    rows += [("whole", cost, n) for n, cost in enumerate([9, 9, 9, 3])]
    assert verdict("S10", evidence("micro_batches", rows)) == found


# Records, profiles and figures.


def test_claims_of_time_name_the_sizes_of_the_full_profile():
    full = profiles.resolve("01", "full")
    assert CLAIMS["S06"].rule["select"] == {"evidence": "kernels", **conv_evidence.about_kernels(full)}
    about = {"width": full.width, "layers": full.layers, "last": full.batches[-1]}
    assert CLAIMS["S11"].rule["select"] == CLAIMS["S11.roof"].rule["select"] == {"evidence": "batches", **about}
    assert min(full.rounds, full.kernel_rounds) >= max(CLAIMS[id].rule["seeds"] for id in ("S06", "S11", "S11.roof"))
    assert set(plan01.Profile().networks) == set(zoo.NETWORKS)


@pytest.mark.parametrize(
    "field, value, words",
    [("batches", [8, 1], "increasing"), ("kernels", [3, 4], "odd"), ("kernels", [3, 99], "kernel_side"),
     ("networks", ["LeNet-6"], "LeNet-5")],
)  # fmt: skip
def test_profiles_that_cannot_be_measured_are_refused(field, value, words):
    with pytest.raises(RequestError, match=words):
        profiles.resolve("01", "quick", {field: value})


def test_recorded_batches_come_back_as_the_table_that_was_shown():
    roof = Roofline(1e11, 1e10)
    table, rows = cost_of_step.by_batch(SMOKE, roof)
    assert list(table["batch"]) == SMOKE.batches and (table["seconds"] > 0).all()
    assert set(table["bound"]) <= {"memory", "arithmetic"}
    about = {"width": SMOKE.width, "layers": SMOKE.layers, "last": SMOKE.batches[-1]}
    run = evidence("batches", [*rows, ("peak", roof.peak), ("bandwidth", roof.bandwidth)], **about)
    pd.testing.assert_frame_equal(cost_of_step.recorded_batches([run], SMOKE), table)
    assert cost_of_step.recorded_batches([run], profiles.resolve("01", "quick")) is None
    fig, alt, _ = cost_timing_figures.batches([("recorded", table, "C0"), ("yours", table, "C1")], roof, SMOKE.width)
    assert f"{table['us a sample'].iloc[0]:.4g} us a sample at batch 1" in alt


def test_recorded_kernels_come_back_as_the_timings_that_were_shown():
    timings = conv_evidence.kernels(SMOKE)
    rows = [(row.name, row.seconds, int(row.kernel)) for row in timings.itertuples(index=False)]
    run = evidence("kernels", rows, **conv_evidence.about_kernels(SMOKE))
    found = conv_evidence.recorded_kernels([run], SMOKE)
    order, columns = ["name", "kernel", "round"], ["name", "kernel", "round", "seconds"]
    pd.testing.assert_frame_equal(found.sort_values(order, ignore_index=True)[columns],
                                  timings.sort_values(order, ignore_index=True)[columns])  # fmt: skip
    assert conv_evidence.recorded_kernels([], SMOKE) is None
    fig, alt, data = cost_timing_figures.kernels([("yours", timings, "C1")])
    assert list(data["kernel"]) == SMOKE.kernels and "FFT is" in alt


def test_inference_is_timed_beside_training_at_every_batch():
    table = cost_of_step.inference_beside_training(SMOKE)
    assert sorted(zip(table["what"], table["batch"], strict=True)) == sorted(
        itertools.product(("inference", "training"), SMOKE.network_batches))  # fmt: skip
    assert table["samples/s"].to_numpy() == pytest.approx(1e3 * table["batch"] / table["ms"])
    assert "Training takes" in cost_timing_figures.inference(table, "resnet8")[1]


def test_counted_figures_say_their_numbers():
    graph = schedules.graph_capture("LeNet-5")
    table = schedules.brent(graph, SMOKE.processors)
    alt = cost_figures.brent(table, "LeNet-5", graph.depth, 16)[1]
    assert f"Never below D = {graph.depth}" in alt and f"{graph.work:.4g} steps" in alt
    assert "13 wavefronts" in cost_figures.wavefront(4, 10)[1]
    networks = schedules.networks(["LeNet-5", "AlexNet"])
    shown = networks.rename(columns={"inference_depth": "depth", "inference_parallelism": "parallelism"})
    assert "5 to 8" in cost_figures.networks(shown)[1]
    assert set(schedules.EVIDENCE.values()) <= set(networks)


def test_a_rule_wants_every_metric_counts_a_seed_once_and_takes_no_nan(store_folder):
    lab = start("01", "smoke", record_to=str(store_folder), interactive=False)
    rows = [("work_off", 0.0)] * 20
    asked = {"metrics": ["work_off", "depth_off"], "bound": 0, "cases": 20}
    assert rules_operators.none_off([lab.evidence("a", rows)], **asked).outcome == "not attempted"
    assert rules_operators.none_off([lab.evidence("b", [*rows, ("depth_off", math.nan)])], **asked).outcome == "contradicted"
    pairs = {"select": {"evidence": "w"}, "metric": "small", "than": "large", "errors": 2.0, "seeds": 3}
    runs = [lab.evidence("w", [(n, v, s) for s in range(3) for n, v in (("small", 1.0), ("large", 2.0 + s))], turn=turn)
            for turn in range(2)]
    assert rules_operators.smaller(runs, **pairs).runs == 3
    assert rules_operators.smaller(runs, **pairs | {"seeds": 4}).outcome == "not attempted"
    same = lab.evidence("e", [(n, 1.0, s) for s in range(3) for n in ("small", "large")])
    assert rules_operators.smaller([same], **pairs | {"select": {"evidence": "e"}}).outcome == "not seen"
