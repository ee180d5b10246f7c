"""Lab 00's exercises: every solution passes, every typical mistake is told apart from the others."""

import pytest

from labkit import doctor
from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs.lab00 import EXERCISES, ring_seconds

SOURCE = notebooks() / "src" / "00_start_here.py"
HONEST = [(name, 10.0, unit) for name, unit in doctor.NUMBERS]
FASTER = [(name, 30.0 if name == "memory bandwidth" else value, unit) for name, value, unit in HONEST]
LIE = {"number": "memory bandwidth", "honest": HONEST, "fooled": FASTER}


def message(id, answer):
    return EXERCISES[id].spec(answer)


def test_the_published_functions_pass(capsys):
    cells = SOURCE.read_text(encoding="utf-8").split("# %%\n")
    for id, name in (("00.1", "gb_per_s"), ("00.2", "allreduce_seconds")):
        cell = next(cell for cell in cells if f"def {name}(" in cell)
        space: dict = {}
        exec(cell[: cell.index("check(")], space)
        assert check(id, space[name]) is True
    assert "not yet" not in capsys.readouterr().out


def test_the_published_lie_compares_what_the_doctor_measured(monkeypatch):
    # What the doctor finds at those sizes is a matter of the machine; that the answer names the right number is not.
    fooled = [(name, value / 20 if name == "matrix-multiply peak" else value, unit) for name, value, unit in HONEST]
    monkeypatch.setattr(doctor, "measure", lambda **sizes: fooled)
    space = {"measured": HONEST, "doctor": doctor}
    exec(solution_code(SOURCE.read_text(encoding="utf-8"), "00.3"), space)
    assert message("00.3", space["lie"]) is None


@pytest.mark.parametrize(
    "mistake, says",
    [
        (lambda ns: ns, "the inverse of seconds per byte"),
        (lambda ns: 1000 / ns, "off by a power of 1000"),
        (lambda ns: 1e-9 / ns, "off by a power of 1000"),
        (lambda ns: 8 / ns, "counts bytes, Gbit/s counts bits"),
        (lambda ns: 1e9 / ns / 2**30, "that is GiB/s"),
        (lambda ns: 2 / ns, "not 10"),
        (lambda ns: "fast", "not 10"),
    ],
)
def test_each_mistake_with_units_has_its_own_message(mistake, says):
    assert says in message("00.1", mistake)


def ring(n, p, a, b):
    return 2 * (p - 1) * (a * 1e-6 + n / p / (b * 1e9))


@pytest.mark.parametrize(
    "mistake, says",
    [
        (lambda n, p, a, b: ring(n, p, a, b) / 2, "the pieces go round twice"),
        (lambda n, p, a, b: 2 * (p - 1) * (a * 1e-6 + n / (b * 1e9)), "every round sends the whole vector"),
        (lambda n, p, a, b: a * 1e-6 + 2 * (p - 1) * n / p / (b * 1e9), "the latency is paid once"),
        (lambda n, p, a, b: 2 * p * (a * 1e-6 + n / p / (b * 1e9)), "one round too many each way"),
        (lambda n, p, a, b: 2 * (p - 1) * (a + n / p / (b * 1e9)), "the latency is in microseconds"),
        (lambda n, p, a, b: 2 * (p - 1) * (a * 1e-6 + n / p / b), "the bandwidth is in GB/s"),
        (lambda n, p, a, b: 2 * (p - 1) * (a + n / p / b), "the rounds are right, the units are not"),
        (lambda n, p, a, b: 2 * (p - 1) * (a * 1e-3 + n / p / (b * 1e9)), "the rounds are right, the units are not"),
        (lambda n, p, a, b: ring(n, p, a, b) * 1e3, "only a power of 1000 is wrong"),
        (lambda n, p, a, b: ring(n, p, a, b) * 1e6, "only a power of 1000 is wrong"),
        (lambda n, p, a, b: "fast", "each of 2 (ranks - 1) rounds costs"),
        (lambda n, p, a, b: n / (b * 1e9), "each of 2 (ranks - 1) rounds costs"),
        (lambda n, p, a, b: ring(n, p, a, b) if p > 1 else a * 1e-6, "one rank has nothing to send"),
    ],
)
def test_each_mistake_in_the_all_reduce_has_its_own_message(mistake, says):
    assert says in message("00.2", mistake)


def ring_by_hand(vectors):
    """All-reduce vectors of one number a piece round a ring; returns what every rank holds, and the rounds."""
    ranks = len(vectors)
    held, rounds = [list(vector) for vector in vectors], 0
    for phase in (0, 1):
        for step in range(ranks - 1):
            pieces = [(rank + phase - step) % ranks for rank in range(ranks)]
            sent = [(piece, held[rank][piece]) for rank, piece in enumerate(pieces)]
            for rank in range(ranks):
                piece, value = sent[rank - 1]
                held[rank][piece] = value if phase else held[rank][piece] + value
            rounds += 1
    return held, rounds


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_the_formula_counts_what_a_ring_really_sends(ranks):
    vectors = [[10**rank + piece for piece in range(ranks)] for rank in range(ranks)]
    held, rounds = ring_by_hand(vectors)
    assert held == [[sum(column) for column in zip(*vectors)]] * ranks
    # A second a message and none a byte counts rounds; a second a byte and none a message counts bytes a rank sends.
    assert ring_seconds(1.0, ranks, 1e6, 1e30) == pytest.approx(rounds)
    assert ring_seconds(float(ranks), ranks, 0.0, 1e-9) == pytest.approx(rounds)


@pytest.mark.parametrize(
    "answer, says",
    [
        ({"number": "memory bandwidth"}, "entries"),
        ([1, 2], "a dictionary"),
        ({**LIE, "number": "speed"}, "the doctor has no number 'speed'"),
        ({**LIE, "fooled": 30.0}, '"fooled" is not what doctor.measure(...) returns'),
        ({**LIE, "honest": HONEST[:2]}, '"honest" is not what doctor.measure(...) returns'),
        ({**LIE, "fooled": HONEST}, "changed by a factor of 1.00 only"),
        ({**LIE, "fooled": [(n, -v, u) for n, v, u in HONEST]}, "both must be positive"),
    ],
)
def test_a_lie_that_is_none_is_told_why(answer, says):
    assert says in message("00.3", answer)


def test_a_lie_may_go_either_way():
    assert message("00.3", LIE) is None
    assert message("00.3", {**LIE, "honest": LIE["fooled"], "fooled": LIE["honest"]}) is None


def test_an_empty_answer_is_not_answered_yet(capsys):
    assert [check(id, None) for id in EXERCISES] == [None] * 3
    assert capsys.readouterr().out.count("not answered yet") == 3
