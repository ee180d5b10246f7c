"""Lab 13's measuring, figures and rules: pairs survive drift, what is left out is said, what was planted is found."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from labkit import paths, profiles
from labkit.errors import RequestError
from labs import roofline
from labs import trace
from labkit.runs import Header, Row, Run
from labs import cost
from labkit.teach import viz
from labs import rules_utilisation as rules
from labs import utilisation, utilisation_figures, utilisation_scaling

SMALL = {"models": ["deep-mlp"], "model": "deep-mlp", "batch": 8, "batches": [1, 8], "rounds": 3, "repeats": 1}


def settings(**changes):
    return profiles.resolve("13", "smoke", {**SMALL, **changes})


@pytest.mark.parametrize("profile", profiles.NAMES)
def test_every_profile_fits(profile):
    assert profiles.resolve("13", profile).model in profiles.resolve("13", profile).models


def test_the_varied_model_must_be_traced_too():
    with pytest.raises(RequestError, match="model resnet20 is not among models"):
        settings(model="resnet20")


def test_every_round_times_each_once_in_an_order_that_moves_on():
    seen = []
    work = {name: lambda name=name: seen.append(name) for name in "abc"}
    table = utilisation.paired(work, rounds=4, least=0.0)
    assert table.groupby("round")["name"].apply(set).tolist() == [set("abc")] * 4
    assert seen[6:] == list("abc" + "bca" + "cab" + "abc")  # the first six calls warm up


def test_a_drift_that_hits_both_leaves_the_paired_ratio_alone():
    drift = [1.0, 3.0, 2.0, 10.0, 1.5]
    rows = [(at, name, seconds * d) for at, d in enumerate(drift) for name, seconds in (("slow", 2.0), ("fast", 1.0))]
    table = utilisation.speed_ups(pd.DataFrame(rows, columns=["round", "name", "seconds"]), "slow")
    found = table.set_index("name").loc["fast"]
    assert (found["speed-up"], found["low"], found["high"]) == (2.0, 2.0, 2.0)


def test_what_a_step_cannot_do_is_left_out_with_its_reason(monkeypatch):
    steps, left_out = utilisation.variants(settings())
    assert utilisation.BASE in steps and "no image channels" in left_out["channels-last"]

    class Broken(utilisation.Step):
        def __call__(self, update=None):
            if self.precision == "float16":
                raise RuntimeError("no half\nsecond line")
            super().__call__()

    monkeypatch.setattr(utilisation, "Step", Broken)
    steps, left_out = utilisation.variants(settings(slow=1e-9))
    assert list(steps) == [utilisation.BASE]
    assert left_out["float16"].endswith("cannot do it: no half") and "more than the 1e-09 s" in left_out["bfloat16"]


def test_a_step_trains_and_inference_leaves_no_gradient():
    step = utilisation.Step("resnet8", 4, pool=2, precision="bfloat16", channels_last=True)
    before = [p.detach().clone() for p in step.model.parameters()]
    step()
    assert any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters()))
    assert step.infer().shape == (4, 10) and not step.infer().requires_grad


def test_compiling_is_not_tried_without_patience_and_given_up_after_it():
    assert utilisation.compiled(settings()) == "not tried at this profile (compile_patience is 0)"
    assert utilisation.compiled(settings(compile_patience=0.05)) == "not compiled within 0.05 s"


@pytest.mark.parametrize(
    "error, words",
    [("torch._inductor.exc.InvalidCxxCompiler: none", "no C++ compiler"), ("Boom: x", "failed: Boom: x")],
)
def test_a_compiler_that_is_missing_or_fails_is_named(error, words, monkeypatch):
    done = SimpleNamespace(returncode=1, stdout="", stderr=f"Traceback\n{error}\n")
    monkeypatch.setattr(utilisation.subprocess, "run", lambda *args, **options: done)
    assert words in utilisation.compiled(settings(compile_patience=9.0))


def test_one_worker_talks_to_nobody_and_a_shared_batch_waits_more():
    table = utilisation.communication([1, 4, 64], compute=0.1, size=1e8, alpha=1e-5, beta=1e-9, overlap=0.5)
    own, shared = (rows.set_index("workers") for _, rows in table.groupby("what", sort=False))
    assert own["share"][1] == shared["share"][1] == 0 and own["speed-up"][1] == shared["speed-up"][1] == 1
    assert own["share"][64] < shared["share"][64] and own["speed-up"][64] > shared["speed-up"][64]
    step, share = cost.step_seconds(0.1, cost.ring_seconds(64, 1e8, 1e-5, 1e-9), 0.5)
    assert own["share"][64] == pytest.approx(share) and own["speed-up"][64] == pytest.approx(64 * 0.1 / step)


def evidence(name, rows, **config):
    run = Run(Header("13", {"evidence": name, **config}), status="finished")
    run.rows += [Row(0, 0.0, samples, 0.0, metric, value) for metric, value, samples in rows]
    return run


def test_recorded_timings_are_those_of_the_last_run_round_by_round():
    old = evidence("inference", [("seconds", 9.0, 1)])
    new = evidence("inference", [("seconds", s, b) for s, b in ((1.0, 1), (2.0, 4), (1.5, 1), (2.5, 4))])
    table = utilisation.recorded_timings([old, new], "inference")
    assert table["round"].tolist() == [0, 0, 1, 1] and table["name"].tolist() == [1, 4, 1, 4]
    named = utilisation.recorded_timings([evidence("variants", [("float16", 3.0, 0)])], "variants")
    assert named["name"].tolist() == ["float16"] and utilisation.recorded_timings([new], "variants") is None


def test_recorded_numbers_of_another_batch_or_model_are_not_drawn_beside_yours():
    about = {"model": "resnet8", "batch": 64, "pool": 2}
    steps = [evidence("step", [("of_peak", 0.5, 0)], **about), evidence("step", [("of_peak", 0.9, 0)], model="other")]
    assert utilisation.recorded_peaks(steps, batch=64, pool=2)["resnet8"]["of_peak"].tolist() == [0.5]
    assert utilisation.recorded_peaks(steps, batch=16, pool=2) == {}
    times = [evidence("variants", [("float32", 1.0, 0)], **about)]
    assert utilisation.recorded_timings(times, "variants", **about) is not None
    for other in ({"batch": 16}, {"pool": 1}, {"model": "resnet20"}):
        assert utilisation.recorded_timings(times, "variants", **{**about, **other}) is None


@pytest.mark.parametrize(
    "values, outcome",
    [
        ([0.3] * 10, "holds"),
        ([0.7] * 10, "contradicted"),
        ([0.3] * 5 + [0.7] * 5, "not seen"),
        ([0.3] * 4, "not attempted"),
    ],
)
def test_below_the_peak(values, outcome):
    runs = [evidence("step", [("of_peak", v, 0) for v in values], model="resnet8")]
    rule = {"select": {"evidence": "step", "model": "resnet8"}, "metric": "of_peak", "bound": 0.5, "seeds": 10}
    assert rules.below_peak(runs, **rule).outcome == outcome


@pytest.mark.parametrize("share, outcome", [(0.85, "holds"), (0.4, "not seen"), (None, "not attempted")])
def test_matrix_units_that_stay_idle(share, outcome):
    runs = [evidence("trace", [] if share is None else [("idle", share, 0)])]
    found = rules.idle_matrix_units(runs, select={}, metric="idle", low=0.75, high=0.95, seeds=1)
    assert found.outcome == outcome and (share is not None or "NVIDIA GPU" in found.evidence)


@pytest.mark.parametrize(
    "latency, outcome",
    [
        ({1: 1.0, 64: 4.0, 256: 15.0}, "holds"),
        ({1: 1.0, 64: 64.0, 256: 256.0}, "not seen"),  # throughput does not rise
        ({1: 1.0, 64: 1.0, 256: 1.1}, "not seen"),  # neither does latency
        ({1: 1.0, 64: 4.0, 256: 8.0}, "not seen"),  # throughput still doubles at the end
        ({1: 1.0, 64: 4.0}, "not attempted"),
    ],
)
def test_latency_against_throughput(latency, outcome):
    runs = [evidence("inference", [("seconds", s, batch) for batch, s in latency.items() for _ in range(3)])]
    rule = {"metric": "seconds", "batches": [1, 64, 256], "rise": 2.0, "gain": 2.0, "flat": 1.5, "seeds": 3}
    assert rules.latency_against_throughput(runs, select={}, **rule).outcome == outcome


def test_a_schedule_is_cut_where_the_target_was_reached():
    assert rules.phases("13x128 15x224 2x288", 30).tolist() == [[13, 128], [15, 224], [2, 288]]
    assert rules.phases("13x128 15x224 2x288", 20).tolist() == [[13, 128], [7, 224], [0, 288]]


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """Write the published tables of three planted entries: `entries(seconds by machines)`."""
    folder = tmp_path / "published"
    folder.mkdir()
    monkeypatch.setattr(paths, "data", lambda: tmp_path)
    rows = [f"e{m},f,{m},{8 * m},10x224,10x{256 * 8 * m}" for m in (4, 8, 16)]
    head = "entry,family,machines,workers,image_sides,batches"
    (folder / "schedules.csv").write_text("\n".join(["# planted", head, *rows]))

    def write(seconds):
        lines = [f"{task},e{m},9,{s},first-epoch-zero" for m, s in seconds.items() for task in ("ImageNet",)]
        lines.append("CIFAR10,e4,1,1.0,")  # the same name in another task
        (folder / "times.csv").write_text("\n".join(["task,entry,first_hit_epoch,tta_seconds,flags", *lines]))

    return write


RULE = {
    "times": "times.csv",
    "schedules": "schedules.csv",
    "images": 1_000_000,
    "side": 224,
    "family": "f",
    "fit": [4, 8],
    "held_out": 16,
    "size": 5e7,
    "alpha": 1e-5,
    "bound": 0.5,
    "factor": 1.25,
}


def planted(compute, beta):
    seconds = {}
    for machines in (4, 8, 16):
        steps = 10 * RULE["images"] / (256 * 8 * machines)
        seconds[machines] = steps * (256 * compute + float(cost.ring_seconds(8 * machines, 5e7, 1e-5, beta)))
    return seconds


def test_communication_that_was_planted_is_found(entries):
    assert rules.communication_over([], **RULE).outcome == "not attempted"  # no table of times yet
    entries(planted(1e-3, 5e-9))
    found = rules.communication_over([], **RULE)
    ring = float(cost.ring_seconds(128, 5e7, 1e-5, 5e-9))
    assert found.outcome == "holds" and f"{ring / (ring + 0.256):.0%} of it is communication" in found.evidence
    entries(planted(1e-3, 1e-10))
    assert rules.communication_over([], **RULE).outcome == "not seen"


def test_a_held_out_entry_that_the_model_misses_decides_nothing(entries):
    times = planted(1e-3, 5e-9)
    entries({**times, 16: 2 * times[16]})
    found = rules.communication_over([], **RULE)
    assert found.outcome == "not seen" and found.evidence.startswith("the model does not hold")
    entries({4: times[4], 8: times[8]})
    assert rules.communication_over([], **RULE).outcome == "not attempted"


def test_the_published_schedules_name_entries_once_and_cover_their_epochs():
    table = pd.read_csv(paths.data() / "published" / "dawnbench_schedules.csv", comment="#")
    assert table["entry"].is_unique and set(table.groupby("family").size()) <= {2, 3}
    for row in table.itertuples():
        sides, batches = (rules.phases(text, math.inf)[:, 0].sum() for text in (row.image_sides, row.batches))
        assert sides == batches, row.entry


def a_trace(**seconds):
    kinds = {kind: trace.Kind(seconds.get(kind.split("/")[0], 0.0), 2e9, 1e9) for kind in trace.KINDS}
    return trace.Trace(0.8, sum(seconds.values()), kinds)


def test_the_bars_add_up_and_say_their_shares():
    fig, alt, data = utilisation_figures.where_figure({"net": a_trace(gemm=0.6, norm=0.3, overhead=0.1)}, 64)
    assert "gemm/conv 60%, norm 30%, overhead 10%" in alt and "800 ms a step" in alt
    assert data["share"].sum() == pytest.approx(1) and viz.render(fig)


def test_the_roofline_marks_every_kind_that_takes_time_and_the_step():
    roof = roofline.Roofline(1e11, 1e10)
    fig, alt, data = utilisation_figures.roofline_figure(roof, "net", a_trace(gemm=0.6, norm=0.3))
    assert "balance at 10 FLOPs per byte" in alt and "whole step" in alt and "17% of its roof" in alt
    assert set(data["kind"]) == {"gemm/conv", "norm"} and viz.render(fig)


def test_labels_are_moved_apart_and_stay_in_order():
    placed = utilisation_figures._apart([1.0, 1.01, 50.0, 1.02], gap=1.5)
    assert placed == pytest.approx([1.0, 1.5, 50.0, 2.25])
    assert all(b / a > 1.49 for a, b in itertools.pairwise(sorted(placed)))


def test_the_other_figures_say_their_numbers():
    table = pd.DataFrame(
        [("float32", 1.0, 1.0, 1.0, 0.1), ("float16", 0.5, 0.4, 0.6, 0.2)],
        columns=["name", "speed-up", "low", "high", "seconds"],
    )
    fig, alt, data = utilisation_scaling.speed_ups_figure([("yours", table, viz.YOURS)], {"torch.compile": "none"}, "t")
    slow = table.assign(**{"speed-up": [1.0, 0.05], "low": [1.0, 0.04], "high": [1.0, 0.2]})
    ax = utilisation_scaling.speed_ups_figure([("yours", slow, viz.YOURS)], {}, "t")[0].axes[0]
    assert all(float(label.get_text()) == at for label, at in zip(ax.get_xticklabels(), ax.get_xticks(), strict=True))
    assert "float16 x 0.50 [0.40, 0.60]" in alt and "torch.compile: none" in alt and viz.render(fig)

    rounds = pd.DataFrame({"of_peak": [0.2, 0.3, 0.4]})
    fig, alt, data = utilisation_figures.peak_figure([("yours", {"net": rounds}, viz.YOURS)], 0.5)
    assert "net 0.30 (from 0.20 to 0.40)" in alt and viz.render(fig)

    timings = pd.DataFrame({"round": [0, 0], "name": [1, 8], "seconds": [0.001, 0.002]})
    table = utilisation.batch_table({"training": timings, "inference": timings})
    fig, alt, data = utilisation_scaling.batch_figure([("yours", table, viz.YOURS)], "net")
    assert "batch 8 2 ms and 4e+03 images/s" in alt and len(data) == 4 and viz.render(fig)

    table = utilisation.communication([1, 2, 128], 0.1, 1e9, 1e-5, 1e-9, 0.0)
    fig, alt, data = utilisation_scaling.communication_figure(table, "ring")
    assert len(fig.axes) == 2 and len(utilisation_scaling.communication_figure(table, "ring", both=False)[0].axes) == 1
    assert alt.startswith("Model, not a measurement") and "from 2 workers on" in alt and viz.render(fig)


def test_the_entries_figure_gives_efficiency_and_prediction(entries):
    entries(planted(1e-3, 5e-9))
    found = rules.scaling_entries("times.csv", "schedules.csv", RULE["images"], 224)
    predicted = rules.fitted(found, "f", (4, 8), 5e7, 1e-5)
    fig, alt, _ = utilisation_scaling.entries_figure(found, predicted)
    assert np.allclose(predicted["predicted"], predicted["seconds"]) and "32 workers 1.00" in alt and viz.render(fig)
