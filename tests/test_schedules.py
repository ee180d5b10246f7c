"""Scaling rules and schedules: the published table, the invariants, and each named trap."""

import copy
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import RequestError
from labkit.optim.schedules import (
    RULES,
    Baseline,
    Schedule,
    fixed,
    legw,
    linear,
    linear_with_warmup,
    momentum_correction,
    square_root,
    to_torch,
    warmup_iterations,
)

IMAGENET = 1_281_167

# Batch, base rate, warm-up epochs of LEGW's ResNet-50 runs as its lab published them (NUS-HPC-AI-Lab,
# LARS-ImageNet-PyTorch; the 2048 row follows from the rule).
RESNET50 = [
    (512, 2**2, 10 / 2**6),
    (1024, 2**2.5, 10 / 2**5),
    (2048, 2**3, 10 / 2**4),
    (4096, 2**3.5, 10 / 2**3),
    (8192, 2**4, 10 / 2**2),
    (16384, 2**4.5, 5),
    (32768, 2**5, 14),
]


def test_schedules_need_no_torch():
    code = "import sys, labkit.optim, labkit.optim.schedules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("start", range(6))
def test_legw_gives_the_resnet50_table_from_any_of_its_rows(start):
    base = Baseline(*RESNET50[start])
    for batch, rate, epochs in RESNET50[:-1]:
        scaled = legw(base, batch)
        assert scaled.rate == pytest.approx(rate, rel=1e-12)
        assert scaled.warmup_epochs == pytest.approx(epochs, rel=1e-12)
        assert round(warmup_iterations(scaled, IMAGENET)) == 391


def test_the_published_32k_row_leaves_the_rule():
    batch, rate, epochs = RESNET50[-1]
    scaled = legw(Baseline(*RESNET50[0]), batch)
    assert scaled.rate == pytest.approx(rate, rel=1e-12)
    assert (scaled.warmup_epochs, epochs) == (10, 14)
    assert round(warmup_iterations(Baseline(batch, rate, epochs), IMAGENET)) == 547


@given(
    batch0=st.integers(1, 10**5),
    batch=st.integers(1, 10**6),
    rate=st.floats(1e-6, 1e3),
    epochs=st.floats(0, 100),
    samples=st.integers(1, 10**8),
)
def test_legw_keeps_warmup_iterations_and_rate_squared_over_batch(batch0, batch, rate, epochs, samples):
    base = Baseline(batch0, rate, epochs)
    scaled = legw(base, batch)
    assert warmup_iterations(scaled, samples) == pytest.approx(warmup_iterations(base, samples), rel=1e-9)
    assert scaled.rate**2 / batch == pytest.approx(rate**2 / batch0, rel=1e-9)


def test_the_other_rules():
    base = Baseline(128, 0.1, 0.5)
    assert fixed(base, 512).rate == 0.1
    assert square_root(base, 512).rate == pytest.approx(0.2)
    assert linear(base, 512).rate == pytest.approx(0.4)
    assert all(RULES[name](base, 512).warmup_epochs == 0.5 for name in ("fixed", "square_root", "linear"))
    assert linear_with_warmup(base, 512) == RULES["linear_with_warmup"](base, 512, warmup_epochs=5.0)
    assert linear_with_warmup(base, 512).warmup_epochs == 5.0
    for rule in RULES.values():
        assert rule(base, 128).rate == pytest.approx(0.1)
        assert rule(base, 512).batch == 512


def test_the_default_is_the_papers_formula_from_exactly_zero():
    schedule = Schedule(peak=3.0, total_steps=200, warmup_steps=40, decay="poly")
    assert schedule(0) == 0.0
    for t in range(201):
        assert schedule(t) == pytest.approx(3.0 * min(1, t / 40) * (1 - t / 200) ** 2, rel=1e-13, abs=0)
    assert schedule(200) == schedule(10**6) == 0.0


def test_gradual_warmup_adds_a_constant_amount_per_step():
    k = 8
    goyal = Schedule(peak=0.8, total_steps=100, warmup_steps=20, warmup_start=1 / k)
    assert goyal(0) == pytest.approx(0.8 / k)
    increments = [goyal(t + 1) - goyal(t) for t in range(20)]
    assert increments == pytest.approx([(0.8 - 0.1) / 20] * 20, rel=1e-12)
    assert goyal(20) == goyal(99) == 0.8


def test_constant_warmup_leaps():
    schedule = Schedule(peak=0.8, total_steps=100, warmup_steps=2.5, warmup="constant", warmup_start=0.125)
    assert [schedule(t) for t in range(5)] == [0.1, 0.1, 0.1, 0.8, 0.8]


def test_the_two_ramps_differ_by_one_step():
    zero = Schedule(peak=1.0, total_steps=100, warmup_steps=10)
    first = Schedule(peak=1.0, total_steps=100, warmup_steps=10, ramp="first-step")
    assert first(0) == 0.1 and zero(0) == 0.0
    assert [first(t) for t in range(30)] == [zero(t + 1) for t in range(30)]


def test_no_warmup_has_the_peak_at_step_zero():
    for ramp in ("zero", "first-step"):
        assert Schedule(peak=0.5, total_steps=10, ramp=ramp)(0) == 0.5


@pytest.mark.parametrize("warmup, expected", [(0.25, [0, 1, 1]), (1.5, [0, 2 / 3, 1]), (2.5, [0, 0.4, 0.8])])
def test_fractional_warmup(warmup, expected):
    schedule = Schedule(peak=1.0, total_steps=100, warmup_steps=warmup)
    assert [schedule(t) for t in range(3)] == pytest.approx(expected)


def test_where_the_decay_starts():
    options = {"peak": 1.0, "total_steps": 100, "warmup_steps": 40, "decay": "poly", "power": 0.5}
    start, after, jump = (Schedule(**options, decay_from=name) for name in ("start", "warmup-end", "jump"))
    assert start(40) == jump(40) == pytest.approx(math.sqrt(0.6))
    assert after(40) == 1.0 and after(70) == pytest.approx(math.sqrt(0.5))
    # Only the version that the author's MNIST scripts use falls as the warm-up ends.
    assert jump(39) == 0.975 and jump(39) - jump(40) > 0.2
    assert start(39) < start(40)
    assert after(100) == start(100) == jump(100) == 0.0


def test_decays():
    cosine = Schedule(peak=2.0, total_steps=100, decay="cosine", end=0.5)
    assert [cosine(t) for t in (0, 50, 100)] == pytest.approx([2.0, 1.25, 0.5])
    poly = Schedule(peak=2.0, total_steps=100, decay="poly", power=1.0, end=0.5)
    assert [poly(t) for t in (0, 50, 100, 101)] == pytest.approx([2.0, 1.25, 0.5, 0.5])
    exponential = Schedule(peak=2.0, total_steps=100, decay="exponential", gamma=0.01)
    assert [exponential(t) for t in (0, 50, 100)] == pytest.approx([2.0, 0.2, 0.02])
    steps = Schedule(peak=2.0, total_steps=100, decay="multistep", milestones=(30, 60.5), gamma=0.5)
    assert [steps(t) for t in (0, 29, 30, 60, 61, 99)] == [2, 2, 1, 1, 0.5, 0.5]
    shifted = Schedule(2.0, 100, 10, decay="multistep", milestones=(30,), gamma=0.5, decay_from="warmup-end")
    assert [shifted(t) for t in (39, 40)] == [2, 1]


@given(st.integers(1, 500), st.floats(0, 600), st.sampled_from(["constant", "poly", "cosine", "exponential"]),
       st.sampled_from(["start", "warmup-end", "jump"]), st.integers(0, 700))  # fmt: skip
def test_a_rate_is_never_negative_nor_above_the_peak(total, warmup, decay, origin, step):
    schedule = Schedule(0.7, total, warmup, decay=decay, decay_from=origin)
    assert 0.0 <= schedule(step) <= 0.7
    assert schedule.reaches_peak == (warmup < total)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"decay": "polynomial"}, "unknown decay 'polynomial'; allowed: constant, poly"),
        ({"warmup": "linear"}, "unknown warmup"),
        ({"ramp": "one"}, "unknown ramp"),
        ({"decay_from": "warmup"}, "unknown decay_from"),
        ({"peak": 0.0}, r"peak must be a number in \(0, inf\), not 0.0"),
        ({"total_steps": 0}, r"total_steps must be a number in \[1, inf\)"),
        ({"warmup_steps": -1}, "warmup_steps must be"),
        ({"peak": math.nan}, "peak must be"),
        ({"peak": "0.1"}, "peak must be a number"),
        ({"decay": "poly", "end": 2.0}, r"end must be a number in \[0, 1\], not 2.0"),
        ({"end": 0.1}, "end = 0.1 has no meaning for decay 'constant'; allowed: poly, cosine"),
        ({"decay": "multistep"}, r"milestones \(\) with decay 'multistep'; only multistep needs them"),
        ({"milestones": (3,)}, "with decay 'constant'; only multistep"),
        ({"decay": "multistep", "milestones": (5, 3)}, "milestones must be ascending"),
        ({"warmup": "constant"}, "needs warmup_start"),
        ({"gamma": 1.5}, r"gamma must be a number in \(0, 1\]"),
    ],
)
def test_what_a_schedule_refuses(change, message):
    with pytest.raises(RequestError, match=message) as refusal:
        Schedule(**{"peak": 1.0, "total_steps": 10, **change})
    assert "\n" not in str(refusal.value)


def test_what_rules_refuse():
    with pytest.raises(RequestError, match="batch must be a whole number"):
        Baseline(0, 0.1)
    with pytest.raises(RequestError, match="batch must be a whole number"):
        legw(Baseline(128, 0.1), 12.5)
    with pytest.raises(RequestError, match="warmup_epochs must be"):
        Baseline(128, 0.1, -1.0)
    with pytest.raises(RequestError, match="step must be"):
        Schedule(1.0, 10)(-1)


def test_torch_follows_the_schedule_group_by_group_and_resumes_exactly():
    torch = pytest.importorskip("torch")
    schedule = Schedule(peak=0.3, total_steps=30, warmup_steps=6.75, decay="poly")

    def build():
        weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.03}]
        optimizer = torch.optim.SGD(groups, lr=0.3, momentum=0.9)
        return weights, optimizer, to_torch(optimizer, schedule)

    def advance(weights, optimizer, scheduler, steps):
        rates = []
        for _ in range(steps):
            rates.append([group["lr"] for group in optimizer.param_groups])
            for weight in weights:
                weight.grad = weight.detach() ** 2
            optimizer.step()
            scheduler.step()
        return rates

    weights, optimizer, scheduler = build()
    rates = advance(weights, optimizer, scheduler, 12)
    assert rates[0] == [0.0, 0.0]
    assert [r[0] for r in rates] == [schedule(t) for t in range(12)]
    assert [r[1] for r in rates] == pytest.approx([schedule(t) / 10 for t in range(12)])

    again, optimizer2, scheduler2 = build()
    with torch.no_grad():
        for new, old in zip(again, weights, strict=True):
            new.copy_(old)
    # A copy, as from a file: torch's own load shares the saved tensors.
    optimizer2.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    scheduler2.load_state_dict(scheduler.state_dict())
    assert advance(weights, optimizer, scheduler, 10) == advance(again, optimizer2, scheduler2, 10)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))


def test_torch_optimizer_at_another_rate_is_refused():
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(RequestError, match="optimizer lr 0.1 is not the schedule's peak 0.3"):
        to_torch(optimizer, Schedule(0.3, 10))


def test_momentum_correction_needs_a_rate_to_correct():
    assert momentum_correction(0.1, 0.4) == pytest.approx(4.0)
    with pytest.raises(RequestError, match="previous_rate"):
        momentum_correction(0.0, 0.4)
