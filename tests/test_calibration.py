"""Lab 03's calibration on real processes, its fits on known costs, and its claim rules on planted runs."""

import itertools

import numpy as np
import pandas as pd
import pytest
from labs import calibration, collective_costs, cost_fit, rules_collectives

from labkit.curve import Header, Row, Run
from labkit.simulate import cost
from labkit.training.collectives import ALL_REDUCE

POWERS = (2, 4, 8, 16)


@pytest.mark.parametrize("size, words", [(2, 12), (3, 7)])
def test_real_ranks_give_the_sum_of_torch_and_send_what_was_counted(size, words):
    table = calibration.same_as_gloo(list(ALL_REDUCE), size, words, seed=1)
    assert list(table["algorithm"]) == list(ALL_REDUCE)
    assert table["largest relative difference"].max() < 1e-12
    assert (table["messages"] == table["messages counted"]).all() and (table["words"] == table["words counted"]).all()


def test_a_ping_pong_gives_constants_and_says_how_far_they_are_off():
    fit, rows = calibration.calibrate([1, 1024, 131072], 3)
    assert fit.alpha > 0 and 0 <= fit.rms < 1  # at 1 the best would be to predict nothing
    message = rows["kind"] == "message"
    assert list(rows["words"][message]) == [1, 1024, 131072] and list(rows["words"][~message]) == [131072]
    right = np.where(message, fit.alpha + fit.beta * rows["words"], fit.gamma * rows["words"])
    assert np.allclose(rows["fitted"], right)
    off = rows["fitted"] / rows["seconds"] - 1
    assert np.sqrt(np.mean(off**2)) == pytest.approx(fit.rms)


def test_all_reduces_are_timed_as_often_as_asked():
    table = calibration.measure(["ring", "butterfly"], 2, [8, 512], 3, seed=0)
    each = table.groupby(["algorithm", "words"]).size()
    assert set(each) == {3} and set(each.index) == set(itertools.product(("ring", "butterfly", "gloo"), (8, 512)))
    assert (table["seconds"] > 0).all() and set(table["ranks"]) == {2}


def costs(way, alpha, beta):
    """A table of timings that follow one of the two models exactly; totals over all ranks written out by hand."""
    rows = []
    for name, size, words in itertools.product(("ring", "butterfly"), POWERS[:3], (64, 4096)):
        log = size.bit_length() - 1
        if way == "critical path":
            rounds, moved = {"ring": (2 * (size - 1), 2 * words * (size - 1) / size),
                             "butterfly": (log, words * log)}[name]  # fmt: skip
        else:
            rounds, moved = {"ring": (2 * size * (size - 1), 2 * words * (size - 1)),
                             "butterfly": (size * log, size * words * log)}[name]  # fmt: skip
        rows.append((name, size, words, rounds * alpha + moved * beta))
    return pd.DataFrame(rows, columns=["algorithm", "ranks", "words", "seconds"])


@pytest.mark.parametrize("way, other", [("critical path", "all ranks"), ("all ranks", "critical path")])
def test_both_ways_of_counting_are_told_apart(way, other):
    found = calibration.both_ways(costs(way, 1e-4, 2e-9))
    assert found[way][0].rms < 1e-6 < 0.1 < found[other][0].rms
    assert found[way][0].alpha == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("name", ["tree", "butterfly", "ring", "rabenseifner"])
def test_the_formulas_of_the_rules_are_those_of_the_kit(name):
    for size in (2, 3, 4, 5, 6, 7, 8, 12, 16):
        assert rules_collectives.formula(name, size, 1680) == cost.counts(name, 1680, size)[:2]
    for size in POWERS:
        ours = rules_collectives.model_seconds(name, size, 1680, 3.0, 0.5, 0.25)
        assert ours == pytest.approx(cost.seconds(name, 1680, size, 3.0, 0.5, 0.25))


def run_of(config, rows):
    rows = [Row(0, 0.0, samples, 0.0, name, float(value)) for name, value, samples in rows]
    return Run(Header("03", config), [], rows, "finished")


def counted(wrong=None, size=8):
    names = ["tree", "butterfly", "ring", "rabenseifner"]
    runs = []
    for name in names:
        pairs = {at: list(rules_collectives.formula(name, at, 1680)) for at in (2, 6, 8)}
        if name == wrong:
            pairs[size][1] += 1
        rows = [(what, pairs[at][part], at) for at in pairs for part, what in enumerate(("rounds", "words"))]
        runs.append(run_of({"evidence": "counts", "algorithm": name, "words": 1680}, rows))
    return runs, {"algorithms": names, "sizes": [2, 6, 8], "words": 1680}


def test_one_word_too_many_contradicts_the_formulas():
    runs, asked = counted()
    assert rules_collectives.counts_equal_formulas(runs, **asked).outcome == "holds"
    assert rules_collectives.counts_equal_formulas(runs[1:], **asked).outcome == "not attempted"
    found = rules_collectives.counts_equal_formulas(counted("ring", 6)[0], **asked)
    assert found.outcome == "contradicted" and "ring on 6 ranks: 10 rounds and 2801 words" in found.evidence


@pytest.mark.parametrize("least, outcome", [(1.0, "holds"), (0.99, "contradicted")])
def test_an_algorithm_below_a_bound_contradicts_it(least, outcome):
    rows = [("rounds_over", 2.0, 4), ("words_over", least, 4), ("rounds_over", 1.0, 4), ("words_over", 1.5, 4)]
    runs = [run_of({"evidence": "bounds", "algorithm": "ring"}, rows)]
    assert rules_collectives.none_beats_the_bounds(runs, algorithms=["ring"], draws=2).outcome == outcome
    assert rules_collectives.none_beats_the_bounds(runs, algorithms=["ring"], draws=3).outcome == "not attempted"


def ordering(alpha, beta, rms=0.1, turns=3):
    rows = [("alpha", alpha, 0), ("beta", beta, 0), ("gamma", 0.0, 0), ("rms", rms, 0)]
    runs = [run_of({"evidence": "calibration", "turn": turn}, rows) for turn in range(turns)]
    return rules_collectives.small_butterfly_large_ring(
        runs, select={"evidence": "calibration"}, small=64, large=4194304, sizes=[4, 8, 64], error=0.5, seeds=3
    ).outcome


def test_the_order_needs_small_to_be_latency_and_large_to_be_words():
    assert ordering(1e-4, 1e-9) == "holds"
    assert ordering(1.0, 1e-9) == "not seen"  # a second of latency: 16 MB are small
    assert ordering(1e-9, 1e-6) == "not seen"  # none: 256 bytes are large
    assert ordering(1e-4, 1e-9, rms=0.6) == "not seen"
    assert ordering(1e-4, 1e-9, turns=2) == "not attempted"


def test_what_was_timed_is_compared_round_by_round():
    def judge(butterfly, ring, rabenseifner, rounds=10):
        pairs = {"butterfly": butterfly, "ring": ring, "rabenseifner": rabenseifner}.items()
        rows = [(name, value, words) for name, pair in pairs
                for words, value in zip((64, 4096), pair, strict=True) for _ in range(rounds)]  # fmt: skip
        run = run_of({"evidence": "times", "ranks": 4}, rows)
        return rules_collectives.timed_small_and_large(
            [run], select={"evidence": "times", "ranks": 4}, small=64, large=4096, share=0.9, seeds=9
        ).outcome

    assert judge((1.0, 9.0), (2.0, 8.0), (2.0, 10.0)) == "holds"
    assert judge((3.0, 9.0), (2.0, 8.0), (2.0, 8.0)) == "contradicted"
    assert judge((1.0, 9.0), (2.0, 8.0), (2.0, 8.0), rounds=8) == "not attempted"


def test_a_recorded_calibration_is_read_back():
    runs = [run_of({"evidence": "calibration", "turn": turn}, [("alpha", alpha, 0), ("beta", 1e-9, 0), ("gamma", 0, 0),
            ("rms", 0.1, 0), ("message", alpha, 1)]) for turn, alpha in enumerate((3e-5, 1e-5, 2e-5))]  # fmt: skip
    fit, rows = calibration.recorded(runs)
    assert fit.alpha == 2e-5 and list(rows["seconds"]) == [2e-5] and calibration.recorded([]) is None


def test_the_lead_changes_once_between_butterfly_and_rabenseifner():
    leads = collective_costs.leaders(64, 5e-6, 4e-10, 0.0, ("butterfly", "rabenseifner"))
    assert [name for name, _ in leads] == ["butterfly", "rabenseifner"]
    crossing = 6 * 5e-6 / (4e-10 * (6 - 2 * 63 / 64))  # 6 (alpha + n beta) = 12 alpha + 2 n beta 63/64
    assert leads[1][1] == pytest.approx(crossing, rel=0.06)  # within a step of the grid
    assert cost_fit.crossover("butterfly", "rabenseifner", 64, 5e-6, 4e-10) == pytest.approx(crossing)


def test_figures_of_costs_name_their_numbers():
    _, alt, data = collective_costs.curves(64, 5e-6, 4e-10, mark=262144)
    assert "rabenseifner from" in alt and "At 1 MiB: rabenseifner" in alt
    assert (data["lower bound"] <= data[["butterfly", "ring", "tree", "rabenseifner"]].min(axis=1) * (1 + 1e-9)).all()
    _, alt, data = collective_costs.winners(5e-6, 4e-10, most=8)
    assert set(data["ranks"]) == {2, 3, 4, 6, 7, 8} and "4 ranks: butterfly 4 B" in alt
    fit = cost_fit.Fit(1e-4, 0.0, 0.0, (float("nan"),) * 3, 0.2)
    assert "alpha 100 us, beta 0 ns a word, gamma" in collective_costs.fit_words(fit)


def test_a_later_good_run_mends_no_bad_one_and_a_nan_holds_nothing():
    good, asked = counted()
    assert rules_collectives.counts_equal_formulas([*counted("ring")[0], *good], **asked).outcome == "contradicted"
    right = [("rounds_over", 1.0, 4), ("words_over", 1.0, 4)]
    for wrong in (0.5, float("nan")):
        runs = [run_of({"evidence": "bounds", "algorithm": "ring", "seed": n}, rows)
                for n, rows in enumerate(([*right, ("words_over", wrong, 4)], right))]  # fmt: skip
        assert rules_collectives.none_beats_the_bounds(runs, algorithms=["ring"], draws=2).outcome == "contradicted"
    assert ordering(1e-4, 1e-9, rms=float("nan")) == "not seen"
