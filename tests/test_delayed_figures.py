"""Lab 05's figures about late gradients and its plan: one definition of usable, seeds paired, odd choices refused."""

import math

import numpy as np
import pytest
from labs import delayed_figures, delayed_study, plan05

from labkit.curve import Header, Row, Run
from labkit.errors import RequestError
from labkit.profiles import resolve
from labkit.rules.finding import interval

RATES = [1.0, 0.5, 0.25, 0.125]


def run(evidence, seed, columns, **config):
    rows = [Row(0, 0.0, 0, 0.0, metric, value) for metric, values in columns.items() for value in values]
    return Run(Header("05", {"evidence": evidence, "rates": RATES, "seed": seed, **config}), rows=rows)


def cliffs(delay, *edges):
    """For each seed .9 up to its edge, and beyond .86 at the next rate (a mean just below .88), then 0."""
    found = []
    for seed, edge in enumerate(edges):
        values = [0.9 if rate <= edge else 0.86 if rate <= 2 * edge else 0.0 for rate in RATES]
        columns = {"validation_accuracy": values, "test_accuracy": values, "train_loss": [1.0] * len(RATES)}
        found.append(run("delayed", seed, columns, momentum=0.0, delay=delay))
    return found


@pytest.mark.parametrize(("delay", "rate", "state"), [
    (0, 1.9, "inside: it converges"), (0, 2.0, "on the edge: it swings for ever"), (0, 2.1, "outside: it diverges"),
    (1, 0.9, "inside"), (1, 1.0, "on the edge"), (1, 1.1, "outside"), (4, 2 * math.sin(math.pi / 18), "on the edge")])
def test_the_explorer_tells_inside_from_outside_and_from_the_edge(delay, rate, state):
    alt = delayed_figures.trajectory(delay, rate, 0.0)[1]
    assert f"so this choice is {state}" in alt


def test_with_momentum_the_edge_is_a_third_state_too():
    assert "on the edge" in delayed_figures.trajectory(1, 0.1, 0.9)[1]  # 1 - m: z = exp(i pi / 3) is a root
    assert "inside" in delayed_figures.trajectory(1, 0.0999, 0.9)[1]


@pytest.mark.parametrize("choice", [(-1, 0.3, 0.0), (1.5, 0.3, 0.0), (65, 0.3, 0.0), ("four", 0.3, 0.0),
                                    (None, 0.3, 0.0), (4, 0.0, 0.0), (4, -1.0, 0.0), (4, math.inf, 0.0),
                                    (4, math.nan, 0.0), (4, "fast", 0.0), (4, 0.3, 1.0), (4, 0.3, -0.1)])
def test_the_explorer_refuses_a_choice_that_means_nothing_in_one_line(choice):
    with pytest.raises(RequestError, match="the delay must be a whole number from 0 to 64") as caught:
        delayed_figures.trajectory(*choice)
    assert "\n" not in str(caught.value)


def test_both_figures_name_the_same_largest_usable_rates():
    runs = [*cliffs(0, 0.5, 0.25), *cliffs(2, 0.25, 0.25), *cliffs(4, 0.0, 0.0)]
    rates = delayed_study.usable_rates(runs, 0.0)
    assert rates == pytest.approx({0: math.sqrt(0.125), 2: 0.25})  # of the seeds; the mean is usable up to 0.25
    told = [f"delay {delay}" + colon + delayed_figures.fraction(rate)
            for delay, rate in rates.items() for colon in (": ", " ")]
    texts = delayed_figures.by_rate(runs, "yours", [0.0])[1] + delayed_figures.usable([], runs, [0.0])[1]
    assert all(words in texts for words in told) and "delay 4: none inside those tried" in texts


def test_accuracies_are_drawn_from_zero_and_what_diverged_is_explained():
    figure, alt, _ = delayed_figures.rescued([], [*cliffs(0, 0.5), *cliffs(2, 0.125)])
    assert figure.axes[0].get_ylim() == (0, 1) and "what diverged counts as 0" in alt


def implicit(workers, momentum, *losses):
    return [run("implicit", seed, {"train_loss": [9.0, loss, 9.0, 9.0]}, workers=workers, momentum=momentum)
            for seed, loss in enumerate(losses)]


def test_momentum_is_compared_seed_by_seed_with_an_interval():
    runs = [*implicit(1, 0.0, 1.0, 2.0, 4.0), *implicit(1, 0.9, 1.5, 4.0, 2.0)]
    found = delayed_study.momentum_factors(runs).iloc[0]
    mean, low, high = np.exp(interval(np.log([1.5, 2.0, 0.5])))
    assert (found.factor, found.low, found.high, found.seeds) == pytest.approx((mean, low, high, 3))
    alone = delayed_study.momentum_factors([*implicit(1, 0.0, 1.0), *implicit(1, 0.9, 1.5)]).iloc[0]
    assert alone.factor == pytest.approx(1.5) and math.isnan(alone.low)
    gone = run("implicit", 0, {"train_loss": [math.inf] * 4}, workers=1, momentum=0.0)
    lost = delayed_study.momentum_factors([gone, *implicit(1, 0.9, 1.5)])
    assert len(lost) == 0 and "factor" in lost


def test_the_legend_of_momenta_names_recorded_and_yours_and_a_marker_is_a_momentum():
    recorded = [*implicit(1, 0.0, 1.0, 2.0), *implicit(1, 0.3, 1.5, 2.5), *implicit(1, 0.9, 1.5, 4.0)]
    yours = [*implicit(1, 0.0, 1.0), *implicit(1, 0.9, 1.5)]
    figure, alt, _ = delayed_figures.momenta(recorded, yours)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["recorded, momentum 0.3", "recorded, momentum 0.9", "yours, momentum 0.9"]
    lines = {bar.get_label(): bar.lines[0] for bar in figure.axes[0].containers}
    assert lines[names[1]].get_marker() == lines[names[2]].get_marker() != lines[names[0]].get_marker()
    assert "1 worker x" in alt and "[" in alt.split("yours")[0] and "[" not in alt.split("yours")[1]


@pytest.mark.parametrize("name", ["delays", "momenta", "implicit_momenta"])
def test_what_others_are_compared_with_has_to_be_there(name):
    with pytest.raises(RequestError, match=rf"{name} \[.*\] must hold 0"):
        resolve("05", "smoke", {name: [4, 8] if name == "delays" else [0.9]})


def test_the_bisection_has_to_be_long_enough_for_its_longest_delay():
    assert resolve("05", "smoke", {"edge_delays": [0], "edge_steps": 1000}).edge_delays == [0]
    with pytest.raises(RequestError, match="edge_steps 1000 is too few.* 64; it must be at least 2080"):
        resolve("05", "smoke", {"edge_delays": [1, 64], "edge_steps": 1000})
    assert plan05.Profile().delays[0] == 0


def test_a_delay_is_left_for_the_exercise_to_predict():
    with pytest.raises(RequestError, match="delays must leave out one of 1 to 32"):
        resolve("05", "smoke", {"delays": list(range(33))})
    assert len(resolve("05", "smoke", {"delays": list(range(32))}).delays) == 32
