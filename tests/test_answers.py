"""A right number is right in whatever form a learner has it."""

import math

import numpy as np
import pytest
import torch
from labs.answers import array, items, number, truth


@pytest.mark.parametrize("form", [int, float, str, np.int64, np.float32, np.array, torch.tensor,
                                  lambda four: np.array([four]), lambda four: torch.tensor([[four]]),
                                  lambda four: torch.tensor(float(four), requires_grad=True)])  # fmt: skip
def test_one_number_in_any_form(form):
    assert number(form(4)) == 4.0


@pytest.mark.parametrize("other", [True, "four", "nan", None, ..., [4.0], (1, 2), np.zeros(2), torch.zeros(2), {},
                                   10**400, np.True_, torch.tensor(True), np.array(["x"])])  # fmt: skip
def test_anything_else_equals_nothing(other):
    assert math.isnan(number(other))


@pytest.mark.parametrize("form", [bool, np.bool_, np.array, torch.tensor, lambda yes: np.array([yes]),
                                  lambda yes: torch.tensor([yes])])  # fmt: skip
def test_one_truth_in_any_form(form):
    assert truth(form(True)) is True and truth(form(False)) is False


@pytest.mark.parametrize("other", [1, "True", None, ..., [True], np.ones(2, bool), torch.tensor(1)])
def test_anything_else_is_neither_true_nor_false(other):
    assert truth(other) is None


ROWS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("form", [list, np.array, np.float32, torch.tensor, lambda rows: torch.tensor(rows).bfloat16(),
                                  lambda rows: torch.tensor(rows, requires_grad=True),
                                  lambda rows: list(torch.tensor(rows, requires_grad=True)),
                                  lambda rows: [[torch.tensor([v]) for v in row] for row in rows]])  # fmt: skip
def test_numbers_in_any_form(form):
    assert array(form(ROWS)).tolist() == ROWS


@pytest.mark.parametrize("other", [None, "a", {}, [[1.0], [2.0, 3.0]], ..., object()])
def test_what_holds_no_numbers(other):
    assert array(other) is None


def test_items_of_whatever_holds_some():
    for form in (list, tuple, np.array, torch.tensor, lambda part: torch.tensor([part, part])[:1]):
        assert items(form([1.0, 2.0])) == [1.0, 2.0]
    for other in (None, "ab", {1: 2}, 3.0, torch.tensor(3.0)):
        assert items(other) is None
