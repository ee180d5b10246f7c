"""Lab 07's exercises: every solution of the notebook passes, and each usual mistake is told what it is."""

import dataclasses
import math

import pytest

from labkit import paths, profiles
from labs.factorial import Cell
from labkit.runs import Header, Row, Run
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs import plan07
from labs.lab07 import EXERCISES
from labs.scaling import Map

SOURCE = paths.notebooks() / "src" / "07_large_batches.py"
RATES = [2.0**-8, 2.0**-7, 2.0**-6, 2.0**-5]


def table_run(cell: Cell, settings, validation: float, test: float, repeat: int = 0) -> Run:
    """A finished run of the row-LSTM on a cell of the table, with the final accuracies given."""
    per_epoch = settings.train // cell.batch
    recipe = plan07._recipe(settings, cell, **plan07.lstm(settings))
    names = {"validation_accuracy": validation, "test_accuracy": test, "train_loss": 1 - test}
    rows = [Row(25 * per_epoch, 25.0, 25 * settings.train, 1.0, name, value) for name, value in names.items()]
    header = Header("07", dataclasses.asdict(recipe), repeat, began=f"2024-01-01T00:00:0{repeat}")
    return Run(header, rows=rows, status="finished")


@pytest.fixture(scope="module")
def ground() -> Map:
    """Flat: 2^-7 and 2^-6. Linear wins from 2^-7, neither from 2^-6; LEGW wins from 2^-5, which is not flat."""
    settings = profiles.resolve("07", "full", {"lstm_rates": RATES})
    table = plan07.table(settings)
    base = dict(zip(RATES, (0.94, 0.955, 0.96, 0.93), strict=True))
    large = dict(zip(RATES, ((0.40, 0.93), (0.66, 0.93), (0.88, 0.89), (0.93, 0.40)), strict=True))
    runs = [table_run(table.path("fixed", rate)[0], settings, base[rate], base[rate]) for rate in RATES]
    for rate in RATES:
        for rule, test in zip(("legw", "linear"), large[rate], strict=True):
            runs.append(table_run(table.path(rule, rate)[-1], settings, test, test))
    return Map(runs, settings, "row-lstm")


def wagered(ground, linear, legw) -> str | None:
    return EXERCISES["07.3"].spec({"linear": linear, "legw": legw, "map": ground})


def solved(id: str, **names) -> dict:
    """The names that the notebook's solution of an exercise defines."""
    code = solution_code(SOURCE.read_text(encoding="utf-8"), id)
    scope = {"math": math, **names}
    head = {
        "07.b1": "def answer(base_batch, base_rate, base_warmup_epochs, batch):\n",
        "07.b2": "def answer(step, peak, warmup_steps):\n",
        "07.2": "def answer(validation, legw, linear, error, bound):\n",
    }.get(id)
    body = head + "\n".join("    " + line for line in code.splitlines()) if head else code
    exec(compile(body, id, "exec"), scope)
    return scope


@pytest.mark.parametrize("id", ["07.b1", "07.b2", "07.2"])
def test_the_solutions_that_are_functions_pass(id):
    assert check(id, solved(id)["answer"]) is True


def test_the_recipe_scaled_by_hand_passes():
    assert check("07.1", solved("07.1")["scaled_recipe"]) is True


def test_the_wager_of_the_solution_passes_on_the_runs_it_is_given(ground):
    names = solved("07.3", judged={"row-lstm": ground})
    assert names["base_rate_linear_wins"] == 2.0**-7 and names["base_rate_legw_wins"] == "none"
    assert wagered(ground, names["base_rate_linear_wins"], names["base_rate_legw_wins"]) is None


@pytest.mark.parametrize(
    "mistake, message",
    [
        (lambda b, r, w, n: (r * n / b, w * n / b), "linear scaling"),
        (lambda b, r, w, n: (r, w * n / b), "unscaled"),
        (lambda b, r, w, n: (r * math.sqrt(n / b), w), "fewer updates at a larger batch"),
        (lambda b, r, w, n: (r * math.sqrt(n / b), w * math.sqrt(n / b)), "only the rate takes sqrt"),
        (lambda b, r, w, n: (r * math.sqrt(n / b), w * b / n), "shrinks"),
        (lambda b, r, w, n: r * math.sqrt(n / b), "two numbers"),
    ],
)
def test_a_wrong_legw_is_told_how_it_is_wrong(mistake, message):
    assert message in EXERCISES["07.b1"].spec(mistake)


@pytest.mark.parametrize(
    "mistake, message",
    [
        (lambda t, peak, w: peak if t + 1 >= w else peak * (t + 1) / w, "Update 0 has rate 0"),
        (lambda t, peak, w: peak * t / w, "never stops rising"),
        (lambda t, peak, w: min(peak, peak * t / w), "divides by zero"),
        (lambda t, peak, w: str(peak), "a number"),
        (lambda t, peak, w: peak, "at update 0 your rate is 0.25, not 0"),
    ],
)
def test_a_wrong_schedule_is_told_how_it_is_wrong(mistake, message):
    assert message in EXERCISES["07.b2"].spec(mistake)


@pytest.mark.parametrize(
    "mistake, message",
    [
        ({"rate": 2.0}, "linear scaling"),
        ({"rate": 2**-5}, "not scaled"),
        ({"warmup_epochs": 1.25}, "the epochs take k"),
        ({"warmup_epochs": 10 / 64}, "less than one update"),
        ({"warmup_updates": 2560}, "batch 16's updates"),
        ({"warmup_updates": 10}, "those are epochs"),
        ({"warmup_updates": "40"}, "4 updates"),
    ],
)
def test_a_recipe_scaled_wrongly_is_told_where(mistake, message):
    right = {"rate": 0.25, "warmup_epochs": 10.0, "warmup_updates": 40.0}
    assert message in EXERCISES["07.1"].spec({**right, **mistake})


def test_a_recipe_without_its_three_numbers_is_asked_for_them():
    assert "warmup_updates" in EXERCISES["07.1"].spec({"rate": 0.25})


def flat_of(validation, error):
    return [rate for rate, value in validation.items() if value >= max(validation.values()) - error]


@pytest.mark.parametrize(
    "mistake, message",
    [
        (lambda v, a, b, error, bound: sum(a[r] > b[r] for r in flat_of(v, error)) / len(flat_of(v, error)), "a tie"),
        (lambda v, a, b, error, bound: float(a[max(v, key=v.get)] - b[max(v, key=v.get)] >= bound), "alone"),
        (lambda v, a, b, error, bound: sum(a[r] - b[r] >= bound for r in v) / len(v), "all five"),
        (lambda v, a, b, error, bound: sum(a[r] > b[r] for r in v) / len(v), "counts a tie"),
        (lambda v, a, b, error, bound: sum(a[r] - b[r] >= bound for r in flat_of(v, error)), "number of wins"),
        (
            lambda v, a, b, error, bound: (
                sum(a[r] - b[r] >= bound for r in flat_of(v, error))
                / sum(abs(a[r] - b[r]) >= bound for r in flat_of(v, error))
            ),
            "a loss belongs",
        ),
        (
            lambda v, a, b, error, bound: sum(a[r] - b[r] > bound for r in flat_of(v, error)) / len(flat_of(v, error)),
            "exactly the bound wins",
        ),
        (lambda v, a, b, error, bound: flat_of(v, error), "a fraction"),
    ],
)
def test_a_wrong_judge_is_told_how_it_is_wrong(mistake, message):
    assert message in EXERCISES["07.2"].spec(mistake)


@pytest.mark.parametrize(
    "linear, legw, message",
    [
        (2.0**-6, "none", "0.015625 is in the flat set, but linear does not win there, it is a tie: LEGW 0.880"),
        (2.0**-8, "none", "0.00390625 is not in the flat set (0.0078125, 0.015625)"),
        (2.0**-7, 2.0**-7, "0.0078125 is in the flat set, but LEGW does not win there, linear wins"),
        (2.0**-7, 2.0**-5, "0.03125 is not in the flat set"),
        ("none", "none", '"none" is wrong for linear: it wins from 1 of the 2'),
        (0.3, "none", "0.3 is not a base rate here"),
        ("small", "none", "give a base rate"),
    ],
)
def test_a_lost_wager_shows_the_numbers_that_decide_it(ground, linear, legw, message):
    assert message in wagered(ground, linear, legw)


def test_a_wager_without_runs_asks_for_them():
    empty = Map([], profiles.resolve("07", "full"), "row-lstm")
    assert "run the row-LSTM cells first" in wagered(empty, 2.0**-7, "none")


def test_an_unfilled_wager_is_not_answered_yet(ground, capsys):
    assert check("07.3", {"linear": ..., "legw": ..., "map": ground}) is None
    assert "not answered yet" in capsys.readouterr().out
