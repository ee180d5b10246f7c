"""Lab 01's exercises: every solution passes, every planted mistake is told apart by its own message."""

import math

import pytest
import torch
from torch.nn import functional as F

from labkit.operators import convolution, work
from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labs import beat_conv, lab01

SOURCE = (notebooks() / "src" / "01_cost_of_a_step.py").read_text(encoding="utf-8")


def solved(id, head="", name="answer"):
    """What the solution of an exercise defines; `head` is the line that the solution's body stands under."""
    body = solution_code(SOURCE, id)
    if head:
        body = head + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math, "torch": torch, "F": F, "work": work, "lab01": lab01}
    exec(body, space)
    return space[name]


@pytest.mark.parametrize(
    "id, head, name",
    [("01.1", "def answer(x, w, padding):", "answer"), ("01.2", "", "layer"), ("01.3", "", "limits")],
)
def test_the_solutions_are_right(id, head, name, capsys):
    assert check(id, solved(id, head, name)) is True


@pytest.mark.parametrize("id", sorted(lab01.EXERCISES))
def test_an_unfilled_answer_is_no_mistake(id, capsys):
    assert check(id, (lambda *given: ...) if id == "01.1" else {"x": ...}) is None


def shaped(columns=lambda c: c, output=lambda y: y, pad=True, flip=False):
    def answer(x, w, padding):
        made = F.unfold(x, w.shape[2:], padding=padding if pad else 0)
        y = F.conv2d(x, w.flip(2, 3) if flip else w, padding=padding)
        return output(y), columns(made)

    return answer


def by_position(columns):
    return columns.flip(1)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda x, w, p: F.conv2d(x, w, padding=p), "return two tensors"),
        (shaped(columns=lambda c: c.mT), "lying on its side"),
        (shaped(pad=False), "Pad the image first"),
        (shaped(columns=lambda c: c[:, :4]), "One column a position"),
        (shaped(columns=by_position), "the channel comes first"),
        (shaped(output=lambda y: y.flatten(2)), "fold H'W' back"),
        (shaped(flip=True), "you flipped the kernel"),
        (shaped(output=lambda y: 2 * y), "multiply w as a matrix"),
    ],
)
def test_im2col_by_halves_is_told_apart(answer, words):
    assert words in lab01.columns_and_product(answer)


RIGHT = {"W": 7225344, "D forward": 9, "D grad_weight": 12, "D grad_input": 10}


@pytest.mark.parametrize(
    "part, value, words",
    [
        ("W", 2 * 7225344, "those are FLOPs"),
        ("W", 7225344 // 8, "each image of the batch"),
        ("W", 8 * 32 * 16 * 144 * 9, "14 x 14 again"),
        ("W", 8 * 32 * 16 * 196, "3 x 3 positions"),
        ("W", 8 * 32 * 196 * 9, "all 16 input channels"),
        ("D forward", 8, "products come first"),
        ("D forward", 5, "over the window as well"),
        ("D forward", 144, "one addition after the other"),
        ("D grad_weight", 9, "sums over the batch and all positions"),
        ("D grad_weight", 4, "over all positions too"),
        ("D grad_weight", 11, "products come first"),
        ("D grad_input", 9, "is not 9"),
        ("D grad_input", 6, "up to 9 windows"),
        ("D grad_input", "ten", "give a number for"),
        ("W", 12345, "W is not 12345"),
    ],
)
def test_a_layer_counted_wrongly_by_hand_gets_the_reason(part, value, words):
    assert lab01.by_hand(RIGHT) is None
    assert words in lab01.by_hand({**RIGHT, part: value})


def limits():
    return solved("01.3", name="limits")


FC, CONV = "fully connected, 4096 to 4096, batch 1", "convolution 3 x 3, 64 to 64 channels, 56 x 56, batch 1"


@pytest.mark.parametrize(
    "name, change, words",
    [
        (FC, lambda roof, ms: ("arithmetic", ms), "0.5 FLOPs per byte; the balance is 10"),
        (CONV, lambda roof, ms: ("memory", ms), "is not what limits it"),
        (FC, lambda roof, ms: ("bus", ms), "'memory' or 'arithmetic'"),
        (FC, lambda roof, ms: (roof, ms / 1e3), "those are seconds"),
        (FC, lambda roof, ms: (roof, ms / 4), "4 bytes"),
        (CONV, lambda roof, ms: (roof, ms / 2), "a multiply-add is two FLOPs"),
        (FC, lambda roof, ms: (roof, 0.3355), "the *slower* of the two"),
        (FC, lambda roof, ms: (roof, ms + 0.33554), "one after the other"),
        (FC, lambda roof, ms: roof, "give two things"),
    ],
)
def test_a_wrong_roof_gets_the_reason(name, change, words):
    answer = limits()
    answer[name] = change(*answer[name])
    assert words in lab01.roofs(answer)


FIELDS = {"x": (1, 2, 12, 12), "w": (3, 2, 5, 5), "padding": 2, "method": "fft"}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"extra": 1}, "exactly x, w, padding, method"),
        ({"x": (2, 12, 12)}, "(N, Ci, H, W)"),
        ({"w": (3, 4, 5, 5)}, "groups"),
        ({"w": (3, 2, 99, 99)}, "kernel"),
        ({"padding": 1.5}, "padding"),
        ({"method": "winograd"}, "3x3"),
        ({"method": "magic"}, "unknown method"),
        ({"x": (64, 64, 512, 512), "w": (3, 64, 5, 5)}, "too large"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused(change, words):
    assert words in beat_conv.beats_conv2d({**FIELDS, **change})


def ticking(seconds):
    """A clock on which the calls between two readings take what `seconds` says next, over and over."""
    state = {"now": 0.0, "reading": 0}

    def clock():
        state["reading"] += 1
        if state["reading"] % 2 == 0:
            state["now"] += seconds()
        return state["now"]

    return clock


def raced(method, **fields):
    x, w, padding, call = beat_conv.parsed({**FIELDS, "method": method, **fields})
    return beat_conv.race(call, x, w, padding, clock=ticking(lambda: 0.01))


@pytest.mark.parametrize("method", ["direct", "im2col", "fft"])
def test_an_honest_method_runs_its_rounds(method):
    ratios = raced(method)
    assert len(ratios) >= beat_conv.ROUNDS[0] and ratios == pytest.approx([1.0] * len(ratios))


def cached():
    kept = []

    def method(x, w, padding):
        kept.append(kept[0] if kept else F.conv2d(x, w, padding=padding))
        return kept[-1]

    return method


def overwriting(x, w, padding):
    x.zero_()
    return F.conv2d(x, w, padding=padding)


class Late(torch.Tensor):
    """A tensor that could compute itself after the clock has stopped."""


@pytest.mark.parametrize(
    "method, words",
    [
        (cached(), "on new numbers it is off"),
        (overwriting, "it is off by"),
        (lambda x, w, padding: F.conv2d(x, w), "the same work"),
        (lambda x, w, padding: F.conv2d(x, w, padding=padding).half(), "fewer bits"),
        (lambda x, w, padding: F.conv2d(x, w.flip(2), padding=padding), "it is off by"),
        (lambda x, w, padding: 1.001 * F.conv2d(x, w, padding=padding), "it is off by 1.0e-03"),
        (lambda x, w, padding: F.conv2d(x, w, padding=padding).as_subclass(Late), "not a torch.Tensor"),
        (lambda x, w, padding: None, "NoneType"),
    ],
)
def test_an_unfair_method_is_found_out(method, words):
    assert words in raced(method)


def test_more_threads_are_no_fair_race():
    before = torch.get_num_threads()

    def method(x, w, padding):
        torch.set_num_threads(before + 1)
        return F.conv2d(x, w, padding=padding)

    assert "number of threads" in raced(method)
    assert torch.get_num_threads() == before


def test_a_call_that_is_too_slow_for_the_check_is_refused():
    x, w, padding, call = beat_conv.parsed(FIELDS)
    assert "smaller shape" in beat_conv.race(call, x, w, padding, clock=ticking(lambda: 3.0))


@pytest.mark.parametrize(
    "ratios, words",
    [([2.0] * 9, None), ([0.5] * 9, "F.conv2d wins"), ([1.02] * 9, "too close to call"), ([0.9, 1.2] * 6, "too close")],
)
def test_the_interval_decides(ratios, words, capsys):
    found = beat_conv.beats_conv2d(FIELDS, race=lambda *given: ratios)
    assert found is None if words is None else words in found
    assert ("You win" in capsys.readouterr().out) == (words is None)


def test_the_solution_of_the_killer_saves_multiplications_tenfold(capsys):
    answer = solved("01.4", name="attempt")
    x, w, padding, _ = beat_conv.parsed(answer)
    sizes = (x[0], x[1], w[0], *x[2:], w[2])
    direct, fast = (convolution.cost(name, *sizes, padding=padding) for name in ("direct", "fft"))
    assert direct.multiplications > 10 * (fast.multiplications + fast.transforms)
    assert beat_conv.beats_conv2d(answer, race=lambda *given: [2.0] * 9) is None
