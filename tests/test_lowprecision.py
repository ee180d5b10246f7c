"""Stochastic rounding has the right mean; rounding to nearest keeps a weight where it is, below half a step."""

import numpy as np
import pytest

from labkit.errors import RequestError
from labs import lowprecision
from labs.lowprecision import rounded

STEP = 4.0 / 2**7


def test_fixed_point_has_so_many_values():
    found = rounded(np.linspace(-9, 9, 10001), 4, 2.0, "nearest")
    assert np.array_equal(np.unique(found), np.arange(-8, 8) * 0.25)


def test_the_mean_of_stochastic_rounding_is_the_number():
    """Variance step^2 f (1 - f): five standard errors of 40000 draws."""
    x = STEP * np.array([0.0, 0.1, 0.5, 3.75, -2.3])
    draws = rounded(np.tile(x, (40000, 1)), 8, 4.0, "stochastic", np.random.default_rng(0))
    fraction = x / STEP - np.floor(x / STEP)
    error = STEP * np.sqrt(fraction * (1 - fraction) / len(draws))
    assert np.all(np.abs(draws.mean(0) - x) <= 5 * error + 1e-12)
    assert np.all(np.abs(draws - x) < STEP)


def test_updates_below_half_a_step_are_lost_to_nearest_only():
    w, rng = {"nearest": 0.0, "stochastic": 0.0}, np.random.default_rng(1)
    for _ in range(10000):
        w = {name: float(rounded(value + 0.01 * STEP, 8, 4.0, name, rng)) for name, value in w.items()}
    assert w["nearest"] == 0.0
    assert w["stochastic"] == pytest.approx(100 * STEP, rel=0.4)  # about 10 steps of deviation around 100


def test_training_stalls_with_nearest():
    table = lowprecision.study(range(3), steps=600)
    final = table[table["step"] == 600].pivot(index="seed", columns="rounding", values="loss")
    assert (final["float64"] < final["stochastic"]).all() and (2 * final["stochastic"] < final["nearest"]).all()
    rows = lowprecision.evidence(table)
    assert [(name, seed) for name, _, seed in rows][:4] == [("stochastic", 0), ("nearest", 0), ("float64", 0),
                                                            ("stochastic", 1)]  # fmt: skip


def test_roundings_start_alike_and_the_same_seed_repeats():
    one, two = (lowprecision.train("stochastic", 3, steps=20) for _ in range(2))
    assert np.array_equal(one, two) and one[0] == lowprecision.train("nearest", 3, steps=20)[0]


@pytest.mark.parametrize(("arguments", "message"), [
    ((8, 4.0, "up"), "unknown rounding 'up'; allowed: stochastic, nearest"),
    ((1, 4.0, "nearest"), "bits 1 must be 2 or more"),
    ((8, 4.0, "stochastic"), "needs rng"),
])  # fmt: skip
def test_what_is_refused(arguments, message):
    with pytest.raises(RequestError, match=message):
        rounded(np.zeros(3), *arguments)
