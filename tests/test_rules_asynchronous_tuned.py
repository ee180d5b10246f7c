"""Lab 05's rules about tuned trainings: each outcome, held-out rates, and bad runs that hide among good ones."""

import itertools
import math

import numpy as np
import pytest
from labs import async_tables
from labs import rules_asynchronous_tuned as rules

from labkit.curve import Header, Row, Run

SETUP = {"steps": 9}


def run(name, seed, rates, columns, **config):
    """A run of evidence `name` with a list of values, one for each rate, of each metric."""
    rows = [Row(0, 0.0, 0, 0.0, metric, value) for metric, values in columns.items() for value in values]
    return Run(Header("05", {"evidence": name, "rates": list(rates), "seed": seed, **SETUP, **config}), rows=rows)


def outcome(rule, runs, **ask):
    """As the board has it: runs that cannot be judged are not attempted."""
    try:
        return rule(runs, setup=SETUP, **ask).outcome
    except ValueError:
        return "not attempted"


def places(good, bad):
    """The bad run before, between and after the good ones."""
    return [bad, *good], [*good[:2], bad, *good[2:]], [*good, bad]


GRID = [2.0**-n for n in range(9)]
DELAYS = {"momentum": 0.0, "delays": [2, 4, 8], "level": 0.88, "low": -1.25, "high": -0.75, "seeds": 3}


def cliff(delay, edge, seed, rates=GRID, high=0.9, low=0.1, test=None, **config):
    """Accuracy `high` up to an edge and `low` beyond."""
    columns = {"validation_accuracy": [high if rate <= edge else low for rate in rates]}
    columns["test_accuracy"] = columns["validation_accuracy"] if test is None else test
    return run("delayed", seed, rates, columns, delay=delay, **{"momentum": 0.0, **config})


def cliffs(edges, seeds=3):
    """`edges`: {delay: edge, or one for each seed}."""
    return [cliff(delay, edge[seed] if isinstance(edge, tuple) else edge, seed)
            for delay, edge in edges.items() for seed in range(seeds)]


@pytest.mark.parametrize("edges, expected", [
    ({2: 1 / 4, 4: 1 / 8, 8: 1 / 16}, "holds"),
    ({2: 1 / 4, 4: 1 / 4, 8: 1 / 4}, "contradicted"),
    ({2: 1 / 4, 4: 1 / 16, 8: 1 / 64}, "contradicted"),  # too steep is wrong too
    ({2: 1 / 4, 4: 1 / 8, 8: (1 / 8, 1 / 16, 1 / 32)}, "not seen"),
    ({2: 1, 4: 1 / 2, 8: 1 / 4}, "not attempted"),  # the largest tried is usable
    ({2: 1 / 4, 4: 1 / 8, 8: 0.0}, "not attempted"),
    ({2: 1 / 4, 4: 1 / 8}, "not attempted"),
])
def test_the_slope_of_the_usable_rate_is_judged_on_both_sides(edges, expected):
    assert outcome(rules.rate_falls_with_delay, cliffs(edges), **DELAYS) == expected


def test_a_bad_run_among_those_of_the_delays_is_found():
    good = cliffs({2: 1 / 4, 4: 1 / 8, 8: 1 / 16})
    assert outcome(rules.rate_falls_with_delay, [*good, cliff(8, 1 / 16, 1, train=1)], **DELAYS) == "holds"
    for runs in places(good, cliff(8, 1 / 4, 1)):  # seed 1 again, with another edge
        assert outcome(rules.rate_falls_with_delay, runs, **DELAYS) != "holds"
    for bad in (math.nan, math.inf):
        for runs in places(good, cliff(8, 1 / 16, 1, low=bad)):
            assert outcome(rules.rate_falls_with_delay, runs, **DELAYS) == "not attempted"
    short = run("delayed", 4, GRID, {"validation_accuracy": [0.9]}, delay=8, momentum=0.0)
    assert outcome(rules.rate_falls_with_delay, [*good, short], **DELAYS) == "not attempted"
    two = [part for part in good if part.config["seed"] < 2]
    assert outcome(rules.rate_falls_with_delay, [*two, *two], **DELAYS) == "not attempted"  # a seed counts once


def test_another_grid_with_too_few_seeds_and_another_setup_do_not_count():
    good = cliffs({2: 1 / 4, 4: 1 / 8, 8: 1 / 16})
    other = cliff(8, 1 / 4, 0, rates=GRID[1:])
    assert outcome(rules.rate_falls_with_delay, [other, *good], **DELAYS) == "holds"
    assert outcome(rules.rate_falls_with_delay, good, **{**DELAYS, "momentum": 0.9}) == "not attempted"


RESCUE = {"delays": [4], "fails": 0.05, "near": 0.05, "images": 452, "seeds": 3}


def rescue(kept, divided, best=(0.25,), base=0.9, delays=(4,)):
    """Of base rates `best` (.9 without delay): the test accuracies kept and divided."""
    runs = []
    for seed in range(3):
        flat = [base if rate in best else 0.2 for rate in GRID]
        runs.append(run("delayed", seed, GRID, {"validation_accuracy": flat, "test_accuracy": flat}, delay=0,
                        momentum=0.0))
        for delay in delays:
            late = [kept if rate in best else divided if rate * delay in best else 0.2 for rate in GRID]
            runs.append(run("delayed", seed, GRID, {"validation_accuracy": late, "test_accuracy": late}, delay=delay,
                            momentum=0.0))
    return runs


@pytest.mark.parametrize("kept, divided, expected", [
    (0.2, 0.9, "holds"), (0.2, 0.86, "holds"), (0.2, 0.95, "holds"),
    (0.88, 0.9, "contradicted"),  # the kept rate does not fail
    (0.2, 0.8, "contradicted"),  # the divided one rescues nothing, although it beats the kept one
    (0.2, math.nan, "not attempted"), (math.nan, 0.9, "not attempted"),
])
def test_both_halves_of_the_rescue_are_judged(kept, divided, expected):
    assert outcome(rules.dividing_rescues, rescue(kept, divided), **RESCUE) == expected


def test_the_rescue_holds_on_a_share_of_the_flat_set_and_at_each_delay():
    runs = rescue(0.2, 0.9, best=(0.25, 0.125))
    late = [0.2, 0.2, 0.2, 0.89, 0.9, 0.9, 0.2, 0.2, 0.2]  # 1/8 kept does not fail
    runs = [cliff(4, 0, part.config["seed"], test=late) if part.config["delay"] else part for part in runs]
    found = rules.dividing_rescues(runs, setup=SETUP, **RESCUE)
    assert (found.outcome, found.fraction) == ("partly", 0.5)
    both = [*rescue(0.2, 0.9), *(part for part in rescue(0.2, 0.7, delays=(8,)) if part.config["delay"])]
    assert outcome(rules.dividing_rescues, both, **{**RESCUE, "delays": [4, 8]}) == "contradicted"
    assert outcome(rules.dividing_rescues, both, **{**RESCUE, "delays": [4, 16]}) == "not attempted"
    good = rescue(0.2, 0.9)
    assert outcome(rules.dividing_rescues, good[:-1], **RESCUE) == "not attempted"
    for bad in places(good, [part for part in rescue(0.2, 0.6) if part.config["delay"]][1]):
        assert outcome(rules.dividing_rescues, bad, **RESCUE) != "holds"


MOMENTUM = {"workers": [1, 16], "low": 0.0, "high": 0.9, "seeds": 3}


def implicit(gain, spread=0.01, best=1):
    """Losses at 1 and 16 workers, with momentum .9 `gain` times those without at 16; the best of three rates."""
    runs = []
    for workers, momentum, seed in itertools.product((1, 16), (0.0, 0.9), range(3)):
        losses = [9.0, 9.0, 9.0]
        losses[best] = 0.3 * (gain if workers == 16 and momentum else 1.0) * (1 + spread * seed * (workers == 16))
        runs.append(run("implicit", seed, [0.1, 0.2, 0.4], {"train_loss": losses}, workers=workers, momentum=momentum))
    return runs


def test_momentum_pays_less_where_its_relative_loss_rises():
    assert outcome(rules.momentum_pays_less, implicit(1.5), **MOMENTUM) == "holds"
    assert outcome(rules.momentum_pays_less, implicit(0.7), **MOMENTUM) == "contradicted"
    assert outcome(rules.momentum_pays_less, implicit(1.0), **MOMENTUM) == "not seen"
    for lame in (implicit(1.5)[:6], implicit(1.5, best=0), implicit(1.5, best=2), implicit(math.nan),
                 implicit(math.inf), implicit(-1.0)):
        assert outcome(rules.momentum_pays_less, lame, **MOMENTUM) == "not attempted"
    bad = run("implicit", 1, [0.1, 0.2, 0.4], {"train_loss": [9.0, 0.01, 9.0]}, workers=16, momentum=0.9)
    for runs in places(implicit(1.5), bad):
        assert outcome(rules.momentum_pays_less, runs, **MOMENTUM) != "holds"


RACE = {"workers": [4], "barrier": ["sync", "total"], "seeds": 3}
RATES = [1.0, 0.5, 0.25]


def raced(seed, times, method, values):
    return run("tta", seed, RATES, {"seconds": values}, workers=4, times=times, method=method)


def races(constant, varied, noise=0.02, columns=(math.inf, None, 99.0)):
    """Seconds of asynchronous SGD with constant and log-normal times; the barrier takes 10, the slower one 20."""
    runs = []
    for (times, late), seed in itertools.product((("constant", constant), ("lognormal", varied)), range(3)):
        for method, value in (("async", late * (1 + noise * seed)), ("sync", 20.0), ("total", 10.0)):
            runs.append(raced(seed, times, method, [value if part is None else part for part in columns]))
    return runs


def test_no_variance_no_gain_is_judged_against_the_better_barrier():
    for late, expected in ((12, "holds"), (5, "contradicted"), (7.9, "not seen"), (math.nan, "not attempted"),
                           (math.inf, "not attempted"), (0.0, "not attempted")):
        assert outcome(rules.no_variance_no_gain, races(late, 5), bound=0.8, **RACE) == expected
    assert outcome(rules.no_variance_no_gain, races(12, 5)[:8], bound=0.8, **RACE) == "not attempted"
    for edge in ((None, 99.0, 99.0), (99.0, 99.0, None)):  # the best rate is an end of the grid
        assert outcome(rules.no_variance_no_gain, races(12, 5, columns=edge), bound=0.8, **RACE) == "not attempted"
    assert outcome(rules.no_variance_no_gain, races(12, 5), **{**RACE, "workers": [4, 16]}, bound=0.8) == \
        "not attempted"
    for bad in (raced(1, "constant", "async", [99.0, 1.0, 99.0]), raced(2, "constant", "async", [99.0, 1.0, 99.0])):
        for runs in places(races(12, 5), bad):
            assert outcome(rules.no_variance_no_gain, runs, bound=0.8, **RACE) != "holds"


def test_variance_gains_where_the_ratio_falls():
    ask = {"times": "lognormal", **RACE}
    assert outcome(rules.variance_gains, races(12, 6), **ask) == "holds"
    assert outcome(rules.variance_gains, races(6, 12), **ask) == "contradicted"
    assert outcome(rules.variance_gains, races(6, 6), **ask) == "not seen"
    assert outcome(rules.variance_gains, races(12, math.nan), **ask) == "not attempted"
    assert outcome(rules.variance_gains, races(12, 6), **{**ask, "times": "straggler"}) == "not attempted"
    for runs in places(races(12, 6), raced(0, "lognormal", "async", [99.0, 60.0, 99.0])):
        assert outcome(rules.variance_gains, runs, **ask) != "holds"


def test_a_seed_is_judged_at_the_rate_that_is_best_on_the_others():
    values = np.array([[4.0, 8.0, 9.0], [9.0, 4.0, 9.0], [9.0, 4.0, 9.0]])  # seed 0 would like another rate
    assert async_tables.held_out(values) == [1, 1, 1]
    assert async_tables.held_out(values[:1]) == [0]
    table = async_tables.Table((0.1, 0.2, 0.4), (0, 1, 2), {"loss": values})
    assert async_tables.judged_alone(table, "loss")[0] == pytest.approx((math.log(4), math.log(8)))
    missed = np.where(values == 8.0, math.inf, values)
    assert async_tables.judged_alone(table._replace(values={"loss": missed}), "loss") is None


def test_tables_sort_rates_and_seeds_and_give_each_repetition_its_turn():
    runs = [run("x", 1, [0.5, 0.1], {"loss": [5.0, 1.0]}), run("x", 0, [0.5, 0.1], {"loss": [6.0, 2.0]}),
            run("x", 1, [0.5, 0.1], {"loss": [7.0, 3.0]})]
    first, again = async_tables.tables(runs, {"evidence": "x"}, ("loss",), 2)
    assert first.rates == (0.1, 0.5) and first.seeds == (0, 1)
    assert first.values["loss"].tolist() == [[2, 6], [1, 5]] and again.values["loss"].tolist() == [[2, 6], [3, 7]]
    assert async_tables.tables(runs, {"evidence": "x"}, ("loss",), 3) == []
