"""Lab 04: ranks equal one process or differ as they should; step times and buckets equal their formulas; rules."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from labs import buckets, plan04, synchronous, synchronous_ranks
from labs import rules_synchronous as rules
from labs import synchronous_figures as figures
from labs import synchronous_recorded as recorded
from labs.synchronous_nets import GhostNorm, network, samples
from torch import nn

from labkit import lab as labs_session
from labkit import profiles
from labkit.errors import RequestError
from labkit.simulate.events import Compute
from labkit.training.ranks import run_ranks


@pytest.fixture(scope="module")
def found():
    """What three ranks report, with shards of different sizes."""
    jobs = {
        "ddp": ("equal", "ddp", 4, 12),
        "ring": ("equal", "ring", 4, 12),
        "local": ("normalised", "local", 4, 12),
        "synchronised": ("normalised", "synchronised", 4, 12),
        "plain": ("uneven", "plain", 4, [2, 3, 7]),
        "weighted": ("uneven", "weighted", 4, [2, 3, 7]),
        "both cures": ("uneven", "weighted", 4, [2, 3, 7], True),
        "sum": ("gradient_factor", "sum", 12),
        "whole": ("gradient_factor", "divided by the whole batch", 12),
        "join": ("joined", [1, 2, 4]),
        "same": ("dropout", 300, True),
        "own": ("dropout", 300, False),
    }
    results = run_ranks(synchronous_ranks.several, 3, jobs, timeout=120.0)
    return {name: [result[name] for result in results] for name in jobs}


def test_ranks_equal_one_process_after_steps_that_moved_the_parameters(found):
    for one in found["ddp"] + found["ring"]:
        assert one["error"] < 1e-10 and one["moved"] > 1e-2


def test_local_statistics_are_ghost_batches_and_synchronised_ones_the_whole_batch(found):
    for one in found["local"]:
        assert one["ghost error"] < 1e-10 and one["whole error"] > 1e-3
    for one in found["synchronised"]:
        assert one["whole error"] < 1e-10 and one["ghost error"] > 1e-3


def test_uneven_shards_need_weights(found):
    assert all(one["error"] > 1e-3 for one in found["plain"]) and all(one["error"] < 1e-10 for one in found["weighted"])


def test_synchronised_statistics_of_uneven_shards_count_samples(found):
    assert all(one["error"] < 1e-10 for one in found["both cures"])


def test_a_wrong_normalisation_changes_the_length_alone(found):
    for one in found["sum"]:
        assert one["factor"] == pytest.approx(4, rel=1e-12) and one["rest"] < 1e-12
    for one in found["whole"]:
        assert one["factor"] == pytest.approx(1 / 3, rel=1e-12) and one["rest"] < 1e-12


def test_join_divides_by_all_ranks_unless_told_otherwise(found):
    assert [one["updates"] for one in found["join"]] == [1, 2, 4]
    assert [one["default"] for one in found["join"]] == pytest.approx([1, 1.5, 3])
    assert [one["divide_by_initial_world_size=False"] for one in found["join"]] == pytest.approx([1, 1, 1])


def test_equal_masks_are_not_averaged_away(found):
    ratio = found["same"][0]["variance"] / found["own"][0]["variance"]
    assert ratio == pytest.approx(3, rel=0.1)


def test_lightning_equals_one_process():
    for one in run_ranks(synchronous_ranks.equal, 2, "lightning", 4, 8, timeout=120.0):
        assert one["error"] < 1e-10 and one["moved"] > 1e-2


def test_ghost_norm_of_one_part_is_torch_batch_norm():
    x, _ = samples(6)
    ours, torchs = GhostNorm(1, [6]).double(), nn.BatchNorm2d(1).double()
    assert torch.equal(ours(x), torchs(x)) and torch.equal(ours.running_var, torchs.running_var)
    assert torch.equal(ours.eval()(x), torchs.eval()(x))


def test_ghost_norm_keeps_the_first_parts_statistics():
    x, _ = samples(6)
    ours, torchs = GhostNorm(1, [2, 4]).double(), nn.BatchNorm2d(1).double()
    assert torch.equal(ours(x)[:2], torchs(x[:2])) and torch.equal(ours.running_mean, torchs.running_mean)
    assert torch.equal(ours(x)[2:], nn.BatchNorm2d(1).double()(x[2:]))


def test_samples_and_network_are_the_same_wherever_they_are_made():
    assert torch.equal(samples(5, 3)[0], samples(5, 3)[0])
    assert all(map(torch.equal, network().parameters(), network().parameters()))


@pytest.mark.parametrize("ranks, batch", [(2, 24), (4, 24), (4, 20), (1, 3), (8, 72)])
def test_shards_are_uneven_whole_and_complete(ranks, batch):
    counts = synchronous.shards(ranks, batch)
    assert len(counts) == ranks and sum(counts) == batch and min(counts) >= 1
    assert ranks == 1 or len(set(counts)) > 1


def test_padding_repeats_and_dropping_leaves_out():
    filled, dropped = synchronous.padded(10, 4).to_dict("records")
    assert (filled["samples a rank"], filled["read twice"], filled["left out"]) == (3, 2, 0)
    assert (dropped["samples a rank"], dropped["read twice"], dropped["left out"]) == (2, 0, 2)


def order_statistic(times, workers, backup):
    """Mean of the last one waited for, over all draws with replacement, by counting every one of them."""
    return np.mean([sorted(draw)[workers - backup - 1] for draw in itertools.product(times, repeat=workers)])


@pytest.mark.parametrize("workers, backup", [(1, 0), (3, 0), (3, 2), (4, 1)])
def test_expected_steps_of_measured_times_equal_a_count_of_all_cases(workers, backup):
    times = (0.5, 1.0, 1.25, 4.0)
    found = synchronous.expected(Compute("measured", samples=times), workers, backup)
    assert found == pytest.approx(order_statistic(times, workers, backup), rel=1e-12)


def test_expected_steps_of_exponential_times_are_harmonic():
    assert synchronous.expected(Compute("exponential", mean=2.0), 4) == pytest.approx(2 * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert synchronous.expected(Compute("exponential"), 16, 4) == pytest.approx(sum(1 / n for n in range(5, 17)))


@pytest.mark.parametrize("workers, backup", [(1, 0), (2, 0), (16, 0), (16, 4), (1000, 0)])
def test_expected_steps_of_log_normal_times_equal_those_of_their_quantiles(workers, backup):
    from scipy import stats

    places = (np.arange(200_000) + 0.5) / 200_000
    quantiles = Compute("measured", samples=np.exp(stats.norm.ppf(places) * 0.3 - 0.045))
    found = synchronous.expected(Compute("lognormal", sigma=0.3), workers, backup)
    assert found == pytest.approx(synchronous.expected(quantiles, workers, backup), rel=2e-3)


def test_two_gaussian_workers_wait_as_the_textbook_says():
    found = synchronous.expected(synchronous.gaussian(1.0, 0.2), 2)
    assert found == pytest.approx(1 + 0.2 / math.sqrt(math.pi), rel=1e-3)


def test_a_barrier_of_constant_times_never_waits():
    compute = Compute()
    assert synchronous.expected(compute, 64) == 1
    assert np.allclose(synchronous.step_times(compute, 64, 0, 5, 0), 1)


# Buckets


def test_a_bucket_is_full_when_it_holds_the_cap_or_more():
    assert buckets.assign([4, 4, 4], 4) == [[0], [1], [2]]
    assert buckets.assign([1, 2, 9, 1], 3) == [[0, 1], [2], [3]]
    assert buckets.assign([1, 1, 1, 1], 3, first=1) == [[0], [1, 2, 3]]
    assert buckets.assign([1, 2], 1e9) == [[0, 1]]


def test_ddp_sends_the_buckets_of_the_rule():
    sizes = {name: parameter.numel() * 4 for name, parameter in buckets.network().named_parameters()}
    for one in run_ranks(buckets.ddp, 2, [0.1, 1.0, None], timeout=120.0)[0]:
        first, cap = (buckets.MB, 25 * buckets.MB) if one["cap"] is None else (None, one["cap"] * buckets.MB)
        ours = buckets.assign([sizes[name] for name in one["order"]], cap, first)
        assert [sorted(one["order"][place] for place in places) for places in ours] == one["names"]


def test_a_timeline_by_hand():
    link = buckets.relative(2, 1.0, 8 * buckets.MB, share=0.5, latency=0.25)
    assert link.seconds(8 * buckets.MB) == pytest.approx(0.75)
    size = 4 * buckets.MB
    first, second = buckets.timeline([0.25, 1.0], [size, size], size, link)
    assert (first.start, first.end) == pytest.approx((0.25, 0.75))
    assert (second.start, second.end) == pytest.approx((1, 1.5))
    first, second = buckets.timeline([0.25, 0.5], [size, size], size, link)
    assert (second.ready, second.start) == pytest.approx((0.5, 0.75))
    (whole,) = buckets.timeline([0.25, 1.0], [size, size], 1e12, link)
    assert (whole.start, whole.end) == pytest.approx((1.0, 1.75))


def test_no_bucket_size_undercuts_the_backward_or_the_link():
    ready, sizes = np.linspace(0.1, 1.0, 12), np.full(12, buckets.MB / 4)
    for share in (0.1, 3.0):
        link = buckets.relative(8, 1.0, sizes.sum(), share, 0.01)
        table = buckets.sweep(ready, sizes, [0.1, 1, 100], link)
        assert (table["seconds"] >= max(1.0, share) - 1e-9).all()
        assert table["left MB"].iloc[-1] == 3  # all twelve
        assert table["seconds"].iloc[-1] == pytest.approx(1 + share + 0.01, rel=1e-3)


def test_gradients_are_ready_in_order_and_add_up_to_the_network():
    table = buckets.measured(samples=1, repeats=1)
    assert table["ready"].is_monotonic_increasing and (table["ready"] > 0).all()
    assert table["bytes"].sum() == 4 * sum(p.numel() for p in buckets.network().parameters())
    assert table["gradient"].iloc[0].startswith("18.") and table["gradient"].iloc[-1].startswith("0.")


# Rules


@pytest.fixture
def lab(store_folder):
    return labs_session.start("04", "smoke", record_to=str(store_folder), interactive=False)


def test_profiles_resolve_and_refuse_what_does_not_fit():
    for name in profiles.NAMES:
        assert isinstance(profiles.resolve("04", name), plan04.Profile)
    for wrong, message in (
        ({"batch": 25}, "no multiple of 2 ranks"),
        ({"ranks": [8], "batch": 16, "lightning": [8]}, "too small for uneven shards"),
        ({"norm_samples": [48]}, "no multiple of 48 samples"),
        ({"lightning": [3]}, "some of ranks"),
        ({"ranks": [1], "lightning": [1]}, r"ranks \[1\] must hold a number of 2 or more"),
    ):
        with pytest.raises(RequestError, match=message):
            profiles.resolve("04", "quick", wrong)


AGREES = {"cases": ["ddp", "ring"], "ranks": 2, "steps": 5, "error": 1e-10, "moved": 1e-2}


def equal(lab, way, error=1e-16, moved=0.3, ranks=2, steps=5, n=0):
    """Good on all ranks but the first, of which this is told."""
    rows = [("error", 1e-16, rank) for rank in range(1, ranks)] + [("moved", 0.3, rank) for rank in range(1, ranks)]
    rows += [("error", error, 0)] + [("moved", moved, 0)] * (moved is not None)
    return lab.evidence("equal", rows, way=way, ranks=ranks, steps=steps, batch=n)


def test_training_agrees_only_where_every_run_does(lab):
    good = [equal(lab, "ddp"), equal(lab, "ring")]
    assert rules.training_agrees(good, **AGREES).outcome == "holds"
    assert rules.training_agrees(good[:1], **AGREES).outcome == "not attempted"
    for options in ({"ranks": 1}, {"steps": 4}, {"moved": None}):
        assert rules.training_agrees([good[0], equal(lab, "ring", **options)], **AGREES).outcome == "not attempted"
    for options in ({"error": 1e-9}, {"error": math.nan}, {"moved": 1e-9}, {"moved": math.nan}):
        verdict = rules.training_agrees([*good, equal(lab, "ring", n=1, **options)], **AGREES)
        assert verdict.outcome == "contradicted" and verdict.evidence.endswith("off: ring")


def test_statistics_decide_needs_all_three_comparisons(lab):
    asked = {"ranks": 2, "error": 1e-10, "differs": 1e-3}

    def run(statistics, whole, ghost, ranks=2):
        values = {"whole error": whole, "ghost error": ghost}
        rows = [(name, value, n) for n in range(ranks) for name, value in values.items()]
        return lab.evidence("normalised", rows, statistics=statistics, ranks=ranks, at=[str(whole), str(ghost)])

    local, synchronised = run("local", 0.02, 1e-16), run("synchronised", 1e-16, 0.02)
    assert rules.statistics_decide([local, synchronised], **asked).outcome == "holds"
    for part in ([local], [synchronised], [local, run("synchronised", 1e-16, 0.02, ranks=1)]):
        assert rules.statistics_decide(part, **asked).outcome == "not attempted"
    for wrong in (run("local", 1e-16, 1e-16), run("local", 0.02, 1e-3), run("synchronised", 1e-3, 0.02),
                  run("local", math.nan, 1e-16), run("synchronised", math.nan, 0.02)):  # fmt: skip
        assert rules.statistics_decide([local, synchronised, wrong], **asked).outcome == "contradicted"


def test_weights_decide_needs_a_plain_mean_that_is_off(lab):
    asked = {"ranks": 2, "error": 1e-10, "differs": 1e-3}

    def run(mean, error, reports=4):
        rows = [("error", error, rank) for rank in range(reports)]
        return lab.evidence("uneven", rows, mean=mean, ranks=4, at=f"{error} {reports}")

    plain, weighted = run("plain", 0.02), run("weighted", 1e-16)
    assert rules.weights_decide([plain, weighted], **asked).outcome == "holds"
    assert rules.weights_decide([plain], **asked).outcome == "not attempted"
    assert rules.weights_decide([plain, weighted, run("plain", 0.02, reports=3)], **asked).outcome == "not attempted"
    for wrong in (run("plain", 1e-9), run("weighted", 1e-4), run("weighted", math.nan)):
        assert rules.weights_decide([plain, weighted, wrong], **asked).outcome == "contradicted"


STEPS = {"workers": [2, 4], "backups": [0, 1], "errors": 3.0, "steps": 2000}


def step(lab, workers, backup, seed=0, off=0.0, count=2000, spread=1.0, metrics=("mean", "spread")):
    mean = sum(1 / n for n in range(backup + 1, workers + 1)) + off / math.sqrt(count)
    values = {"mean": mean, "spread": spread}
    about = {"kind": "exponential", "workers": workers, "backup": backup, "seed": seed, "steps": count}
    return lab.evidence("step time", [(name, values[name], count) for name in metrics], source="simulated", **about)


def test_step_times_are_judged_in_every_case_by_distinct_seeds(lab):
    cases = [(workers, backup) for workers in (2, 4) for backup in (0, 1)]
    good = [step(lab, *case) for case in cases]
    assert rules.step_time_as_formula(good, **STEPS).outcome == "holds"
    assert rules.step_time_as_formula(good[1:], **STEPS).outcome == "not attempted"
    short = [step(lab, 4, 1, count=1000), step(lab, 4, 1, count=999)]  # one seed, twice
    assert rules.step_time_as_formula([*good[:3], *short], **STEPS).outcome == "not attempted"
    other = [step(lab, 4, 1, count=1000), step(lab, 4, 1, seed=1, count=1000)]
    assert rules.step_time_as_formula([*good[:3], *other], **STEPS).outcome == "holds"
    for options in ({"off": 3.5}, {"off": math.nan}, {"spread": 0.0, "off": 1.0}):
        verdict = rules.step_time_as_formula([*good[:3], step(lab, 4, 1, **options)], **STEPS)
        assert verdict.outcome == "contradicted" and verdict.evidence.endswith("off: 4 workers, 1 backup")
    repeated = step(lab, 4, 1, count=1500, off=6.0)  # of a seed that is there already, with more steps
    assert rules.step_time_as_formula([*good, repeated], **STEPS).outcome == "contradicted"
    half = step(lab, 4, 1, metrics=("mean",))
    assert rules.step_time_as_formula([*good[:3], half], **STEPS).outcome == "not attempted"


def test_the_simulator_is_within_three_standard_errors_of_the_formulas(lab):
    for backups in ([0], [1, 2]):
        cases = [(workers, backup) for workers in (4, 8) for backup in backups]
        synchronous.simulated(lab, "exponential", Compute("exponential"), cases, 2000, [0])
    assert {run.header.source for run in lab.used.values()} == {"simulated"}
    asked = {"workers": [4, 8], "backups": [0, 1, 2], "errors": 3.0, "steps": 2000}
    assert rules.step_time_as_formula(list(lab.used.values()), **asked).outcome == "holds"


# Recorded runs


def test_recorded_runs_are_read_as_the_figures_want_them(lab):
    assert recorded.ghost_training([]) is None and recorded.measured_growth([], [2]) is None
    assert recorded.backward([]) == {}
    about = {"each": 2, "seed": 7, "network": "fully connected", "batch": 64}
    lab.evidence("ghost training", [("test_accuracy", 0.5)], **about)
    lab.evidence("backward", [("ready", 0.25), ("bytes", 8), ("ready", 0.5), ("bytes", 4)])
    lab.evidence("gradient times", [("relative", 0.5), ("relative", 1.5)])
    runs = list(lab.used.values())
    (row,) = recorded.ghost_training(runs).to_dict("records")
    assert row == {"network": "fully connected", "samples a rank": 2, "seed": 7, "test_accuracy": 0.5}
    assert recorded.backward(runs)["recorded"].to_dict("list") == {"bytes": [8, 4], "ready": [0.25, 0.5]}
    assert recorded.measured_growth(runs, [2])["formula"].tolist() == pytest.approx([1.25])  # 1.5, but 0.5 once in four


def test_figures_draw_yours_over_what_is_recorded(lab):
    known = pd.DataFrame({"network": "convolutions", "samples a rank": [2, 4], "seed": 0, "test_accuracy": [0.8, 0.9]})
    _, alt, _ = figures.few_samples(known.assign(seed=1), known)
    assert "recorded, convolutions (1 seed): 0.800 with 2, 0.900 with 4" in alt and "yours, convolutions" in alt
    table = pd.DataFrame({"ready": [0.5, 1.0], "bytes": [buckets.MB, buckets.MB]})
    _, alt, data = figures.cap_curves({"yours": table, "recorded": table}, [0.5, 8.0], [1.0], 4, 0.0)
    assert set(data["source"]) == {"yours", "recorded"}
    assert "words take 1: each on its own 1.50, best 1.50 so, largest bucket 2.00" in alt
    yours = data[data["source"] == "yours"][["MB", "messages", "left MB"]]
    assert yours.values.tolist() == [[0, 2, 1], [0.5, 2, 1], [8, 1, 2]]


@pytest.mark.parametrize("times", sorted(figures.TIMES))
def test_the_explorer_draws_every_choice(times):
    for workers, backup in ((2, 8), (8, 0)):
        _, alt, data = figures.waiting(workers, times, backup, steps=20)
        kept = data["workers"] > backup
        assert f"{workers} workers" in alt and (data["all"] >= data.iloc[:, 2] - 1e-12)[kept].all()
        assert data.iloc[:, 2].isna().equals(~kept)  # as many workers as backups, or fewer: nothing to draw
        alone = 5.0 if times.endswith("slower") else 1.0
        assert data["all"][0] == pytest.approx(alone, rel=1e-3)


def test_the_explorer_says_when_fewer_can_be_left_out_than_asked():
    _, alt, _ = figures.waiting(2, "exponential", 8, steps=20)
    assert "8 slowest not waited for, at most 1 of 2 can" in alt


@pytest.mark.parametrize(
    "choice, message",
    [((4, "weibull", 0), "unknown times 'weibull'; allowed: constant"), ((0, "constant", 0), "1 or more workers"),
     ((4, "constant", -1), "0 or more backups")],
)  # fmt: skip
def test_the_explorer_refuses_what_is_not_there(choice, message):
    with pytest.raises(RequestError, match=message):
        figures.waiting(*choice)


def test_labels_are_as_near_to_their_lines_as_can_be():
    assert figures.spread([1.0, 2.0, 4.0], 0.5) == pytest.approx([1, 2, 4])
    assert figures.spread([1.0, 1.0, 1.0, 4.0], 0.5) == pytest.approx([0.5, 1, 1.5, 4])
    places = [1.31, 1.36, 1.37, 1.8]
    found = figures.spread(places, 0.2)
    assert min(np.diff(found)) > 0.2 - 1e-9 and max(abs(np.array(found) - places)) < 0.2


def test_one_rank_is_no_ranks():
    assert list(synchronous.equal_table({1: {"ddp": [{"error": 0.0}]}, 2: {}}).columns) == ["1 rank", "2 ranks"]


def test_sizes_have_one_unit_and_no_exponent():
    assert [buckets.size_text(size) for size in (40, 2**19, 3.5 * 2**20)] == ["< 0.001", "0.500", "3.500"]
