"""The report card of repeated runs, and the split of a larger batch's speed-up."""

import dataclasses
import math

import numpy as np
import pytest

from labkit.errors import RequestError
from labkit.tta import statistics
from labs import times, times_card


@pytest.fixture(scope="module")
def runs():
    return times.simulated()


def batched(runs, batch, faster=1.0):
    """The same made-up runs at another batch size, with seconds divided by `faster`."""
    made = []
    for run in runs:
        header = dataclasses.replace(run.header, config={**run.config, "batch": batch, "train": 1024})
        spans = [dataclasses.replace(s, start=s.start / faster, end=s.end / faster) for s in run.spans]
        rows = [dataclasses.replace(r, when=r.when / faster) for r in run.rows]
        made.append(type(run)(header, spans, rows, run.status))
    return made


def test_card_has_one_row_for_each_question(runs):
    card = times_card.card(runs, 64, 3.0)
    assert len(card) == 5 and card.question.is_unique
    assert "proved" in card["what it says"][0]


def at_target(runs, value):
    headers = [dataclasses.replace(run.header, target={**run.header.target, "value": value}) for run in runs]
    return [type(run)(header, run.spans, run.rows, run.status) for run, header in zip(runs, headers, strict=True)]


def test_cost_is_the_expected_time_with_failures_at_the_price(runs):
    runs = at_target(runs, 0.945)
    seconds = times.seconds_to_target(runs, "dawnbench")
    expected = statistics.expected_time(seconds, times.full_cost(runs, "dawnbench"))
    assert any(map(math.isinf, seconds)), "these runs must hold a miss, or failures are not tested"
    _, shown, _ = times_card.money(runs, seconds, 3600.0)
    assert shown == f"${expected:.2g} in {expected:.3g} s"


def test_runs_that_all_miss_make_a_card_and_no_number(runs):
    card = times_card.card(at_target(runs, 0.9999), 64, 1.0)
    assert card.number.tolist()[1] == "fewer than two runs reached"
    assert card.number.tolist()[4] == "no success to pay for"
    assert card["what it says"][0].startswith("not proved")


def test_equal_runs_at_twice_the_batch_and_three_times_the_pace_split_exactly(runs):
    table, words = times_card.split(batched(runs, 32), batched(runs, 64, faster=3.0), 0.93)
    # The same steps at twice the batch are twice the epochs; at three times the pace that is six times the throughput.
    assert np.isclose(table["epochs"][1] / table["epochs"][0], 2)
    assert np.isclose(table["epochs per s"][1] / table["epochs per s"][0], 6)
    assert words == "To 0.93, 2 x the batch: 6.00 x the throughput, 2.00 x the epochs, so 3.00 x in time to accuracy."


def test_a_speed_up_is_read_at_the_target_that_is_asked_for_on_both_sides(runs):
    hard = at_target(runs, 0.945)
    small, large = batched(hard, 32), batched(hard, 64)
    table, words = times_card.split(small, large, 0.92)
    assert table["reach 0.92"].tolist() == ["24 of 24"] * 2 and words.startswith("To 0.92, 2 x the batch: ")
    reached = sum(map(math.isfinite, times.steps_to_target(hard)))
    assert table["reach 0.945"].tolist() == [f"{reached} of 24"] * 2 and 0 < reached < 24
    for runs_of, seconds in zip((small, large), table["median s (algoperf)"], strict=True):
        assert seconds == np.median(times.seconds_to_target(runs_of, "algoperf", 0.92))
    assert "no speed-up to split" in times_card.split(small, large, 0.96)[1]


def test_the_larger_batch_keeps_epochs_and_samples_between_evaluations(tiny):
    recipe = tiny(batch=16, rate=0.1, evaluate_every=8, warmup_steps=4)
    big = times_card.larger(recipe, 4)
    assert (big.batch, big.epochs, big.evaluate_every * big.batch) == (64, recipe.epochs, 8 * 16)
    assert math.isclose(big.rate, 0.2) and big.warmup_steps * big.batch == 4 * 16


def test_a_larger_batch_than_there_are_images_is_refused(tiny):
    with pytest.raises(RequestError, match="more than the 128 training images"):
        times_card.larger(tiny(batch=64), 4)
