"""Lab 06's exercises: every solution passes; a planted mistake is told apart by its own message."""

import itertools
import math

import numpy as np
import pytest
import torch
from labs import budget, lab06, talking

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code

SOURCE = (notebooks() / "src" / "06_talking_less.py").read_text(encoding="utf-8")
HEADS = {"06.b1": "rows", "06.2": "compress, gradients", "06.3": "P, stay"}


def solved(id):
    body = solution_code(SOURCE, id)
    space = {"np": np, "torch": torch}
    if id not in HEADS:
        exec(body, space)
        return space
    exec(f"def answer({HEADS[id]}):\n" + "\n".join("    " + line for line in body.splitlines()), space)
    return space["answer"]


@pytest.mark.parametrize("id", HEADS)
def test_the_solutions_are_right(id, capsys):
    assert check(id, solved(id)) is True


def test_the_solution_of_the_bytes_is_right(capsys):
    assert check("06.1", solved("06.1")["sent"]) is True
    assert check("06.1", {**solved("06.1")["sent"], "dense": ...}) is None
    assert "give a dictionary" in lab06.by_hand({"dense": 600_000})


@pytest.mark.parametrize("key, value", [(key, value) for key, (_, slips) in lab06._BY_HAND.items()
                                        for value, _ in slips])  # fmt: skip
def test_wrong_bytes_are_told_why(key, value):
    said = lab06.by_hand({**solved("06.1")["sent"], key: value})
    assert said.startswith(key) and dict(lab06._BY_HAND[key][1])[value] in said


def test_the_slips_of_one_number_differ():
    for right, slips in lab06._BY_HAND.values():
        for one, other in itertools.combinations([right, *(value for value, _ in slips)], 2):
            assert not math.isclose(one, other, rel_tol=2 * lab06.NEAR)


def one_size(rows):
    return rows.abs().mean(1, keepdim=True) * rows.sign()


def all_rows(rows):
    return torch.where(rows >= 0, rows[rows >= 0].mean(), rows[rows < 0].mean())


def turned(rows):
    right = solved("06.b1")(rows)
    return torch.where(rows >= 0, right, -right)


def above_zero(rows):
    return lab06.halves(rows, rows > 0)


def columns(rows):
    return lab06.halves(rows.T, rows.T >= 0).T


def one_wrong(rows):
    right = solved("06.b1")(rows)
    right[-1, 2] += 1
    return right


def all_at_the_end(compress, gradients):
    return [torch.zeros_like(part) for part in gradients[:-1]] + [sum(gradients)]


def kept(rest_of, sign=1.0):
    return lambda compress, gradients: lab06.with_feedback(compress, gradients, rest_of, sign)


def in_place(compress, gradients):
    rest, sent = torch.zeros_like(gradients[0]), []
    for gradient in gradients:
        gradient += rest
        sent.append(compress(gradient))
        rest = gradient - sent[-1]
    return sent


def one_way(P, stay):
    return stay * np.eye(P) + (1 - stay) * np.roll(np.eye(P), 1, axis=0)


def open_ring(P, stay):
    W = lab06.ring(P, stay)
    W[0, -1] = W[-1, 0] = 0
    return W


def too_heavy(P, stay):
    turn = np.roll(np.eye(P), 1, axis=0)
    return stay * np.eye(P) + (1 - stay) * (turn + turn.T)


def overwrites(P, stay):
    W = stay * np.eye(P)
    for i in range(P):
        W[i, (i - 1) % P] = W[i, (i + 1) % P] = (1 - stay) / 2
    return W


def drifts(P, stay):
    W = lab06.ring(P, stay)
    W[0] *= 0.9
    return W


MISTAKES = {
    ("06.b1", "bare signs"): torch.sign,
    ("06.b1", "one size for a row"): one_size,
    ("06.b1", "means of all rows together"): all_rows,
    ("06.b1", "is below 0 already"): turned,
    ("06.b1", "rows >= 0, not rows > 0"): above_zero,
    ("06.b1", "means of the columns"): columns,
    ("06.b1", "row 2, column 2 (from 0)"): one_wrong,
    ("06.b1", "of the shape of what was given"): lambda rows: rows.sum(1),
    ("06.2", "nothing is compressed"): lambda compress, gradients: gradients,
    ("06.2", "step 0 (from 0) is the first that differs: what is sent must be compress"): all_at_the_end,
    ("06.2", "must be the last rest"): lambda compress, gradients: [torch.zeros_like(part) for part in gradients],
    ("06.2", "nothing is remembered"): lambda compress, gradients: [compress(part) for part in gradients],
    ("06.2", "what was kept before is forgotten"): kept(lambda full, gradient, sent: gradient - sent),
    ("06.2", "still holds what was sent"): kept(lambda full, gradient, sent: full),
    ("06.2", "taken away from the next gradient"): kept(lambda full, gradient, sent: full - sent, -1.0),
    ("06.2", "add into a new tensor"): in_place,
    ("06.2", "return a list"): lambda compress, gradients: compress(gradients[0]),
    ("06.3", "only one of the two neighbours"): one_way,
    ("06.3", "the ring is not closed"): open_ring,
    ("06.3", "rows have to sum to 1"): too_heavy,
    ("06.3", "add, do not overwrite"): overwrites,
    ("06.3", "row 0 sums to 0.9"): drifts,
    ("06.3", "return a matrix 8 x 8"): lambda P, stay: np.eye(3),
}


@pytest.mark.parametrize("id, words", MISTAKES)
def test_a_planted_mistake_has_its_own_message(id, words, capsys):
    assert words in lab06.EXERCISES[id].spec(MISTAKES[id, words])
    assert check(id, MISTAKES[id, words]) is False


def test_the_budget_is_kept_by_the_solution_and_counted_on_the_wire(capsys):
    mine = budget.play(solved("06.4")["choice"])
    assert check("06.4", mine.choice) is True
    wire = sum(-(-math.prod(shape) // 5) + 4 for shape in talking.SHAPES)  # five ternary digits to a byte, one scale
    assert mine.sent == 2 * 3 * wire


def choice(**changes):
    return {"compressor": "terngrad", "options": {}, "tau": 16, "rate": 0.1, "steps": 32, **changes}


@pytest.mark.parametrize("changes, words", [
    ({"compressor": "none", "tau": 32}, "sent 39,804 bytes, 10,000 are allowed"),
    ({"tau": 8}, "(a wire of 5,376 bytes goes to 3 others)"),
    ({"rate": 1e-4}, "within the budget, but the validation accuracy is"),
    ({"tau": 24}, "multiple of tau"),
    ({"steps": 4096, "tau": 4096}, "tau <= steps <= 512"),
    ({"rate": -1}, "rate must be above 0"),
    ({"compressor": "zip"}, "zip"),
    ({"compressor": "powersgd", "tau": 16}, "3,744 bytes are within the budget, but the validation accuracy"),
    ({"compressor": "powersgd", "options": {"start": 2}}, "sent 79,608 bytes"),
    ({"compressor": "powersgd", "options": {"rank": 0}}, "rank 0 must be"),
    ({"options": {"density": 0.1}}, "density"),
    ({"compressor": "qsgd", "options": {"levels": "four"}}, "option levels must be a number, not 'four'"),
    ({"compressor": "qsgd", "options": {"levels": 2.5}}, "option levels must be a whole number"),
    ({"compressor": "qsgd", "options": {"levels": 1000}}, "from 1 to 127"),
    ({"compressor": "onebit", "options": {"feedback": "yes"}}, "option feedback must be True or False, not 'yes'"),
    ({"rate": 1e6}, "training diverged at rate 1e+06: choose a smaller one"),
    ({"tau": math.inf, "steps": math.inf}, "must be whole"),
    ({"tau": 1.5}, "must be whole"),
    ({"tau": 10**400, "steps": 10**400}, "must be whole"),
    ({"options": {1: 2}}, "unknown option of terngrad '1'; allowed: feedback, momentum, masking"),
    ({"options": {"seed": 3}}, "unknown option of terngrad 'seed'"),
    ({"options": {"name": "topk"}}, "unknown option of terngrad 'name'"),
    ({"options": {"workers": 2}, "compressor": "powersgd"}, "of powersgd 'workers'; allowed: rank, start"),
    ({"options": {None: 2}, "compressor": "topk"}, "unknown option of topk 'None'"),
    ({"options": {"density": [0.1]}, "compressor": "topk"}, "option density must be a number, not [0.1]"),
    ({"options": {"levels": 10**400}, "compressor": "qsgd"}, "option levels must be a number"),
    ({"options": {"bucket": math.inf}, "compressor": "qsgd"}, "option bucket must be a number, not inf"),
    ({"options": {"feedback": True}, "compressor": "randomk_scaled"}, "for use without feedback"),
    ({"compressor": ["topk"]}, "unknown compressor \"['topk']\""),
    ({"compressor": None}, "unknown compressor 'None'"),
    ({"options": ["density"]}, "options a dictionary"),
])  # fmt: skip
def test_a_choice_that_fails_is_told_why(changes, words):
    assert words in budget.kept(choice(**changes))


def test_a_forged_result_is_played_again(capsys):
    for forged in (budget.Played({}, 0.9, 1.0, 1.0), budget.Played(choice(rate=1e-4), 0.9, 1.0, 1.0)):
        assert check("06.4", forged) is False
    assert check("06.4", budget.Played(solved("06.4")["choice"])) is True
    assert "fill in" in budget.kept(budget.Played(choice(tau=...), 0.9, 1.0, 1.0))


@pytest.mark.parametrize("rate", [1e3, 1e6, 1e15, 1e30])
def test_what_has_diverged_leaves_no_bytes(rate):
    for name in ("none", "terngrad", "powersgd"):
        played = budget.play(choice(compressor=name, rate=rate, tau=2, steps=8))
        assert played.problem is None and played.validation > 0 or played.sent == math.inf


def test_a_choice_may_be_written_in_any_form():
    plain = choice(compressor="onebit", options={"feedback": False}, tau=8, steps=8)
    for form in (str, np.array, torch.tensor, lambda value: np.array([value]), lambda value: torch.tensor([value])):
        told = {name: form(plain[name]) for name in ("tau", "steps", "rate")}
        played = budget.play(plain | told | {"options": {"feedback": np.bool_(False)}})
        assert played.problem is None and played.sent == budget.play(plain).sent


def test_what_is_chosen_by_is_not_what_counts():
    played = budget.Played({}, validation=0.9, test=0.79, sent=100.0)
    assert "on the test images, which count" in budget.judged(played) and "0.79" not in budget.judged(played)
    assert "validation accuracy is 0.790" in budget.judged(budget.Played({}, validation=0.79, test=0.9, sent=100.0))
    assert budget.judged(budget.Played({}, validation=0.8, test=0.8, sent=100.0)) is None


def test_every_compressor_that_is_named_may_be_chosen():
    names = budget.kept(choice(compressor="zip")).split("allowed: ")[1].split(", ")
    for name in names:
        played = budget.play(choice(compressor=name, tau=2, steps=2))
        assert played.problem is None and played.sent > 0, name


def test_the_fewest_bytes_that_we_know_do():
    played = budget.play(budget.KNOWN)
    assert budget.judged(played) is None and played.sent == budget.LEAST
    assert f"{budget.LEAST:,}" in budget.standing(played)


def test_without_a_choice_there_is_no_answer(capsys):
    assert budget.play(choice(tau=..., rate=...)) is None
    assert budget.play(choice(options={"density": ...})) is None
    assert check("06.4", None) is None
    assert "give a dictionary" in budget.kept({"tau": 3})
    assert "give a dictionary" in budget.kept(3)


def stacked(make):
    return lambda compress, gradients: make(torch.stack(solved("06.2")(compress, gradients)))


FORMS = {
    "06.b1": [lambda rows: solved("06.b1")(rows).double(), lambda rows: solved("06.b1")(rows).numpy(),
              lambda rows: solved("06.b1")(rows).tolist(), lambda rows: solved("06.b1")(rows).requires_grad_()],
    "06.2": [stacked(lambda sent: sent), stacked(lambda sent: sent.float()), stacked(lambda sent: sent.numpy()),
             stacked(lambda sent: sent.tolist()), stacked(tuple), stacked(lambda sent: sent.clone().requires_grad_())],
    "06.3": [lambda P, stay: torch.tensor(lab06.ring(P, stay)).float().requires_grad_(),
             lambda P, stay: lab06.ring(P, stay).tolist(), lambda P, stay: [*lab06.ring(P, stay)]],
    "06.1": [{key: form(value) for key, value in solved("06.1")["sent"].items()}
             for form in (str, np.float32, lambda value: np.array([value]), lambda value: torch.tensor([[value]]))],
}  # fmt: skip


@pytest.mark.parametrize("id", FORMS)
def test_what_is_right_is_right_in_any_form(id, capsys):
    for answer in FORMS[id]:
        assert check(id, answer) is True


@pytest.mark.parametrize("wrong", [None, "a", {"a": 1}, 3.0, torch.zeros(()), [[1.0], [2.0, 3.0]]])
def test_what_is_no_array_is_told_so(wrong):
    assert "return a tensor of the shape" in lab06.signs(lambda rows: wrong)
    assert "return a list" in lab06.feedback(lambda compress, gradients: wrong)
    assert "return a matrix 8 x 8" in lab06.mixing(lambda P, stay: wrong)
