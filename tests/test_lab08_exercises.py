"""Lab 08's exercises: every solution passes, every planted mistake is told apart by its own message."""

import math

import numpy as np
import pytest
import torch

from labkit.optim.groups import parameter_groups
from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs import lab08, layerwise_traces

SOURCE = (notebooks() / "src" / "08_lars_and_lamb.py").read_text(encoding="utf-8")
HEADS = {"08.b1": "def answer(w, g, v, rate, momentum, decay, eta):", "08.2": "def answer(model, decay):"}
NAMES = {"08.1": "by_hand", "08.3": "named"}


def solved(id):
    """What the solution of an exercise defines."""
    body = solution_code(SOURCE, id)
    if id in HEADS:
        body = HEADS[id] + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math, "np": np, "torch": torch, "layerwise_traces": layerwise_traces}
    exec(body, space)
    return space[NAMES.get(id, "answer")]


@pytest.mark.parametrize("id", sorted(lab08.EXERCISES))
def test_the_solutions_are_right(id, capsys):
    assert check(id, solved(id)) is True


@pytest.mark.parametrize("id", sorted(lab08.EXERCISES))
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    unfilled = {"08.1": {"ratio": ..., "step": ..., "sgd step": ...}, "08.3": dict.fromkeys("PQRST", ...)}
    assert check(id, unfilled.get(id, lambda *given: ...)) is None


def by_rule(convention="A", decayed="ratio", coefficient=None, zero="one", in_place=False, out=lambda w, v: (w, v)):
    """A LARS step with one thing wrong."""

    def answer(w, g, v, rate, momentum, decay, eta):
        a, b = w.norm(), g.norm()
        d = g + (0.0 if decayed == "outside" else decay) * w
        below = d.norm() if decayed == "sum" else b + (decay * a if decayed == "ratio" else 0.0)
        ratio = (coefficient or eta) * a / below
        if (a == 0 or b == 0) and zero != "none":
            ratio = 1.0
        if in_place:
            g += decay * w
        inside = {"A": rate * ratio, "B": ratio, "C": 1.0}[convention]
        outside = {"A": 1.0, "B": rate, "C": rate * ratio}[convention]
        v = momentum * v + inside * d
        return out(w - outside * v - (rate * decay * w if decayed == "outside" else 0.0), v)

    return answer


LARS_MISTAKES = {
    "convention B": by_rule("B"),
    "convention C": by_rule("C"),
    "the decay is missing from the ratio": by_rule(decayed="gradient"),
    "divides by |g + decay w|": by_rule(decayed="sum"),
    "belongs to the direction": by_rule(decayed="outside"),
    "eta is missing": by_rule(coefficient=1.0),
    "start at 0 never move": by_rule(zero="none"),
    "changes the gradient": by_rule(in_place=True),
    "return two torch tensors": by_rule(out=lambda w, v: w),
    "have the shape": by_rule(out=lambda w, v: (w.flatten(), v)),
    "off by up to": by_rule(out=lambda w, v: (1.01 * w, v)),
}


@pytest.mark.parametrize("words", LARS_MISTAKES)
def test_a_wrong_lars_step_is_told_why(words):
    assert words in lab08.lars_step(LARS_MISTAKES[words])


def test_nan_from_zero_over_zero_has_its_own_message():
    def answer(w, g, v, rate, momentum, decay, eta):
        ratio = eta * (w / w.norm()).norm() * w.norm() / (g.norm() + decay * w.norm())
        v = momentum * v + rate * ratio * (g + decay * w)
        return w - v, v

    assert "become nan" in lab08.lars_step(answer)


LENGTH = math.hypot(0.1, 0.7)
RIGHT = {"ratio": 0.005, "step": 8 * 0.005 * LENGTH, "sgd step": 8 * LENGTH}
HAND_MISTAKES = {
    "the decay's part is missing": {"ratio": 0.01},
    "divides by |g + decay w|": {"ratio": 0.005 / LENGTH},
    "eta = 0.001 is missing": {"ratio": 5.0},
    "give the ratio alone": {"ratio": 0.04},
    "upside down": {"ratio": 0.0001},
    "not along g alone": {"step": 0.02},
    "perpendicular": {"step": 0.04},
    "no momentum factor": {"step": 0.1 * RIGHT["step"]},
    "decay belongs to it": {"sgd step": 4.0},
    "check both": {"ratio": 0.3},
}


@pytest.mark.parametrize("words", HAND_MISTAKES)
def test_a_wrong_number_by_hand_is_told_why(words):
    assert words in lab08.by_hand({**RIGHT, **HAND_MISTAKES[words]})


def test_three_digits_are_enough_and_two_of_three_numbers_are_not():
    assert lab08.by_hand({key: float(f"{value:.3g}") for key, value in RIGHT.items()}) is None
    assert "dictionary" in lab08.by_hand({"ratio": 0.005, "step": 0.0283})


def groups_of(out, **changes):
    """Groups from a function (owner, name, parameter) -> is it excluded; `changes` of the second group."""

    def answer(model, decay):
        found = {}
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                found[parameter] = found.get(parameter, False) or out(module, name, parameter)
        return [
            {"params": [p for p, is_out in found.items() if not is_out], "weight_decay": decay},
            {"params": [p for p, is_out in found.items() if is_out], "weight_decay": 0.0, "adapt": False, **changes},
        ]

    return answer


def is_norm(module):
    return any(cls.__name__.rstrip("123d").endswith("Norm") for cls in type(module).__mro__)


def is_bias(name):
    return "bias" in name.split("_")


def doubled(model, decay):
    first, second = groups_of(lambda m, n, p: is_norm(m) or is_bias(n))(model, decay)
    return [{**first, "params": [*first["params"], model.head.weight]}, second]


GROUP_MISTAKES = {
    "does not exclude it": groups_of(lambda m, n, p: p.ndim < 2),
    "inside its name": groups_of(lambda m, n, p: is_norm(m) or "bias" in n),
    "its own name does not say so": groups_of(lambda m, n, p: "norm" in n or is_bias(n) or "Batch" in type(m).__name__),
    "bias of the LSTM": groups_of(lambda m, n, p: is_norm(m) or n == "bias"),
    "of batch norm": groups_of(lambda m, n, p: type(m).__name__.endswith("Norm") or is_bias(n)),
    "comes twice": doubled,
    "never be trained": lambda model, decay: [
        {"params": [], "weight_decay": decay},
        {"params": [], "weight_decay": 0.0, "adapt": False},
    ],
    "the excluded one 0": groups_of(lambda m, n, p: is_norm(m) or is_bias(n), weight_decay=0.01),
    '"adapt": False': groups_of(lambda m, n, p: is_norm(m) or is_bias(n), adapt=True),
    "two dictionaries": lambda model, decay: list(model.parameters()),
    'needs "params"': lambda model, decay: [{}, {}],
    "is not a parameter": lambda model, decay: [{"params": [torch.ones(1)]}, {"params": []}],
}


@pytest.mark.parametrize("words", GROUP_MISTAKES)
def test_wrong_groups_are_told_why(words):
    assert words in lab08.exclusion(GROUP_MISTAKES[words])


def test_the_kit_s_own_helper_solves_the_core_exercise():
    assert lab08.exclusion(parameter_groups) is None


@pytest.mark.parametrize("given", layerwise_traces.NAMES)
@pytest.mark.parametrize("letter", sorted(layerwise_traces.WROTE))
def test_every_confusion_of_two_dialects_is_told_by_what_parts_them(letter, given):
    right = layerwise_traces.WROTE[letter]
    message = lab08.dialects({**layerwise_traces.WROTE, letter: given})
    if given == right:
        assert message is None
    else:
        assert f"4 of 5 right. In {letter}, " in message and f"in {given} it" in message
        place = next(k for k in layerwise_traces.PLACES if layerwise_traces.PLACES[k] in message)
        assert layerwise_traces.FEATURES[right][place] in message


def test_names_may_be_written_in_any_case_and_others_are_refused():
    loud = {letter.lower(): name.upper() for letter, name in layerwise_traces.WROTE.items()}
    assert lab08.dialects(loud) is None
    assert "none of the five" in lab08.dialects({**layerwise_traces.WROTE, "P": "sgd"})
    assert "for each of" in lab08.dialects({"P": "timm"})
