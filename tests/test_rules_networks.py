"""Rules of lab 02: each verdict from runs that deserve it, and none without the runs that a claim asks for."""

import pytest

from labkit.lab import start
from labs import rules_networks as rules


@pytest.fixture
def lab(store_folder):
    return start("02", "smoke", record_to=str(store_folder), interactive=False)


def split(lab, scheme, error=1e-16, words=(10, 10), messages=(2, 2), ranks=4):
    return lab.evidence(
        "split",
        [
            ("error", error),
            ("words counted", words[0]),
            ("words by formula", words[1]),
            ("messages counted", messages[0]),
            ("messages by formula", messages[1]),
        ],
        scheme=scheme,
        ranks=ranks,
        network="n",
        batch=8,
    )


def test_splits_agree_only_with_small_errors_and_exact_counts(lab):
    asked = {"schemes": ["data", "rows"], "error": 1e-9, "ranks": 2}
    good = [split(lab, "data"), split(lab, "rows")]
    assert rules.splits_agree(good, **asked).outcome == "holds"
    assert rules.splits_agree(good[:1], **asked).outcome == "not attempted"
    for wrong in (
        split(lab, "rows", error=1e-6),
        split(lab, "rows", error=float("nan")),
        split(lab, "rows", words=(11, 10)),
        split(lab, "rows", messages=(2, 3)),
    ):
        found = rules.splits_agree([good[0], wrong], **asked)
        assert found.outcome == "contradicted" and found.evidence.endswith("off: rows")
    assert rules.splits_agree([good[0], split(lab, "rows", ranks=1)], **asked).outcome == "not attempted"


def test_bubbles_are_judged_for_every_schedule(lab):
    def bubble(name, off=0.0):
        rows = [
            (what, value, n)
            for n, value in enumerate((0.5, 0.2))
            for what, value in (("idle", value + off), ("formula", value))
        ]
        return lab.evidence("bubble", rows, schedule=name, pairs=[[2, 1], [2, 4]])

    asked = {"schedules": ["GPipe", "1F1B"], "error": 1e-9, "cases": 2}
    assert rules.bubble_as_formula([bubble("GPipe"), bubble("1F1B")], **asked).outcome == "holds"
    assert rules.bubble_as_formula([bubble("GPipe"), bubble("1F1B", 1e-3)], **asked).outcome == "contradicted"
    assert rules.bubble_as_formula([bubble("GPipe")], **asked).outcome == "not attempted"
    bad = [bubble("GPipe"), bubble("1F1B", float("nan")), bubble("1F1B")]
    assert rules.bubble_as_formula(bad, **asked).outcome == "contradicted"  # a later good run mends nothing
    assert rules.bubble_as_formula([bubble("GPipe"), bubble("1F1B")], **asked | {"cases": 3}).outcome == "not attempted"


@pytest.mark.parametrize("words, outcome", [(15, "holds"), (10, "contradicted"), (20, "contradicted")])
def test_words_of_two_schemes_are_compared_on_one_network(lab, words, outcome):
    asked = {"scheme": "sharded", "over": "data", "ratio": 1.5, "tolerance": 0.01, "ranks": 2}
    runs = [split(lab, "data"), split(lab, "sharded", words=(words, words))]
    assert rules.words_ratio(runs, **asked).outcome == outcome
    assert rules.words_ratio(runs[1:], **asked).outcome == "not attempted"
    assert rules.words_ratio([split(lab, "data", ranks=2), runs[1]], **asked).outcome == "not attempted"


@pytest.mark.parametrize(
    "old, new, outcome",
    [(3.0, 1.01, "holds"), (3.0, 1.2, "not seen"), (1.0, 1.2, "contradicted"), (1.0, 1.0, "not seen")],
)
def test_the_winner_changes_between_old_and_new_networks(lab, old, new, outcome):
    def plan(bandwidth, old=old, new=new):
        rows = [(f"data of {name}", gain) for name, gain in (("A", old), ("B", new))]
        rows += [(f"{scheme} of {name}", value) for scheme, value in (("hybrid", 1.0), ("model", 9.0)) for name in "AB"]
        return lab.evidence("plan", rows, devices=8, batch=256, bandwidth=bandwidth)

    asked = {
        "select": {"devices": 8, "batch": 256, "bandwidth": 1e10},
        "old": ["A"],
        "new": ["B"],
        "scheme": "data",
        "others": ["model", "hybrid"],
        "margin": 1.1,
    }
    found = rules.winner_changes([plan(1e10), plan(1e9, 3.0, 1.0)], **asked)
    assert found.outcome == outcome and f"so at {1 + (outcome == 'holds')} of 2" in found.evidence
    assert rules.winner_changes([plan(1e9)], **asked).outcome == "not attempted"


@pytest.mark.parametrize(
    "change, outcome",
    [
        ({}, "holds"),
        ({"conv by data": 4}, "not seen"),
        ({"exhaustive seconds": 0.9}, "not seen"),
        ({"conv by data": 0, "fc split": 0}, "contradicted"),
    ],
)
def test_the_hybrid_is_judged_by_kind_of_layer(lab, change, outcome):
    rows = {"conv": 5, "conv by data": 5, "fc": 3, "fc split": 3, "seconds": 1.0, "exhaustive seconds": 1.0, "tried": 9}
    run = lab.evidence("hybrid", (rows | change).items(), network="AlexNet")
    assert rules.hybrid_by_kind([run], select={"network": "AlexNet"}, error=1e-9).outcome == outcome
    assert rules.hybrid_by_kind([run], select={"network": "VGG-16"}, error=1e-9).outcome == "not attempted"
