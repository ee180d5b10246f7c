"""The exercises of lab 07: LEGW and its schedule, a recipe scaled by hand, the judge, and the wager on base rates."""

import math
from numbers import Real

from labs.factorial import LABELS
from labkit.optim.schedules import Baseline, Schedule, legw
from labkit.teach.exercises import exercise
from labs.scaling import power


def same(a, b) -> bool:
    return isinstance(a, Real) and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)


def slip(value, slips) -> str:
    """The remark of the usual mistake that gives this value; `slips` are (value, remark); empty if none does."""
    return next((remark for mistake, remark in slips if same(value, mistake)), "")


def legw_rule(answer):
    """A function (base batch, base rate, base warm-up epochs, batch) -> (peak rate, warm-up epochs)."""
    for base_batch, rate, epochs in ((16, 0.03125, 0.15625), (20, 1.0, 0.0), (128, 0.1, 2.5)):
        for k in (1, 4, 10, 64):
            found = answer(base_batch, rate, epochs, base_batch * k)
            try:
                own_rate, own_epochs = map(float, found)
            except (TypeError, ValueError):
                return f"it returns {found!r}; return two numbers, the peak rate and the warm-up epochs"
            wanted = legw(Baseline(base_batch, rate, epochs), base_batch * k)
            if not same(own_rate, wanted.rate):
                remark = slip(own_rate, ((rate * k, " That is linear scaling."), (rate, " That is the rate unscaled.")))
                asked = f"from batch {base_batch} at rate {rate:g} to batch {base_batch * k}"
                return f"{asked} your peak rate is {own_rate:.6g}, not {wanted.rate:.6g}.{remark}"
            if not same(own_epochs, wanted.warmup_epochs):
                slips = (
                    (epochs, " The same epochs are fewer updates at a larger batch."),
                    (epochs * math.sqrt(k), " The warm-up takes k; only the rate takes sqrt(k)."),
                    (epochs / k, " That shrinks it: at a larger batch an epoch has fewer updates already."),
                )
                remark = slip(own_epochs, slips)
                return f"at k = {k} your warm-up is {own_epochs:.6g} epochs, not {wanted.warmup_epochs:.6g}.{remark}"
    return None


def warmup_schedule(answer):
    """A function (step, peak, warm-up steps) -> rate: linear from 0, then constant."""
    for peak, steps in ((0.25, 40.0), (2.0, 0.0), (1.0, 12.8)):
        shape = Schedule(peak=peak, total_steps=100, warmup_steps=steps)
        for step in (0, 1, 12, 13, 20, 39, 40, 41, 99):
            try:
                found = answer(step, peak, steps)
            except ZeroDivisionError:
                return f"with warm-up {steps:g} it divides by zero; no warm-up means the peak from update 0 on"
            if not isinstance(found, Real):
                return f"it returns {found!r} at update {step}; return the rate, a number"
            if not same(found, shape(step)):
                late = min(peak, peak * (step + 1) / steps) if steps else math.nan
                remark = slip(found, ((late, " Update 0 has rate 0: step / warmup_steps, not (step + 1)."),))
                if not remark and found > peak:
                    remark = " It never stops rising: hold the peak after the warm-up."
                asked = f"peak {peak:g}, warm-up {steps:g}: at update {step}"
                return f"{asked} your rate is {found:.6g}, not {shape(step):.6g}.{remark}"
    return None


_BY_HAND = {
    "rate": (0.25, ((2.0, "that is linear scaling; LEGW's takes sqrt(64)"), (2**-5, "that is batch 16's, not scaled"))),
    "warmup_epochs": (
        10.0,
        ((1.25, "that is sqrt(k) times; the epochs take k"), (10 / 64, "that is batch 16's: less than one update now")),
    ),
    "warmup_updates": (
        40.0,
        ((2560.0, "those are batch 16's updates in 10 epochs"), (10.0, "those are epochs, of 4 updates each")),
    ),
}


def scaled_by_hand(answer):
    """{"rate", "warmup_epochs", "warmup_updates"} at batch 1024 from batch 16, 2^-5, 10/64 epochs, 4096 images."""
    if not isinstance(answer, dict) or set(answer) != set(_BY_HAND):
        return f"give a dictionary with {', '.join(_BY_HAND)}"
    for key, (right, slips) in _BY_HAND.items():
        if not same(answer[key], right):
            remark = slip(answer[key], slips) or "k is 64, and an epoch at batch 1024 has 4096 / 1024 = 4 updates"
            return f"{key} {answer[key]} is not right: {remark}"
    return None


# The flat set is {2, 4, 8}: LEGW loses at 2, is ahead within the bound at 4, and wins at 8.
_CASE = {
    "validation": {1: 0.930, 2: 0.951, 4: 0.960, 8: 0.955, 16: 0.900},
    "legw": {1: 0.40, 2: 0.80, 4: 0.90, 8: 0.92, 16: 0.93},
    "linear": {1: 0.90, 2: 0.88, 4: 0.89, 8: 0.30, 16: 0.10},
}
_JUDGE_SLIPS = (
    (2 / 3, "a lead of .01 is within the bound of .03: a tie, not a win"),
    (0.0, "that judges at the best base rate alone; the flat set has three"),
    (2 / 5, "that judges over all five base rates; three are flat"),
    (3 / 5, "that judges over all five base rates and counts a tie as a win"),
    (1 / 2, "a loss belongs to the flat set too, and so does a tie: three base rates are flat"),
    (1.0, "return the share of the flat set, not the number of wins"),
)


def judge(answer):
    """A function (validation, legw, linear, error, bound) -> fraction of the flat set that LEGW wins."""
    share = answer(*({**values} for values in _CASE.values()), error=0.01, bound=0.03)
    if not isinstance(share, Real) or isinstance(share, bool):
        return f"it returns {share!r}; return a fraction between 0 and 1"
    if not same(share, 1 / 3):
        remark = slip(share, _JUDGE_SLIPS) or "the flat base rates are three: LEGW loses, ties and wins"
        return f"on five base rates with error .01 and bound .03 the fraction is 1/3, not {share:.3g}: {remark}"
    edge = answer({1: 0.75, 2: 0.5}, {1: 0.75, 2: 0.5}, {1: 0.5, 2: 0.5}, error=0.25, bound=0.25)
    if not same(edge, 0.5):
        return f"exactly one error below the best is flat, and a lead of exactly the bound wins: 1/2, not {edge:.3g}"
    return None


def wager(answer):
    """{"linear": base rate or "none", "legw": the same, "map": the `scaling.Map` whose runs decide}."""
    ground = answer["map"]
    flat, duels = ground.flat(), {rate: ground.duel(rate) for rate in ground.rates}
    if not any(duels[rate] for rate in flat):
        return "no flat base rate has runs of both rules at the largest batch yet; run the row-LSTM cells first"
    for rule in ("linear", "legw"):
        remark = claimed(answer[rule], rule, flat, duels)
        if remark:
            return remark
    return None


def claimed(given, rule: str, flat, duels) -> str | None:
    """What is wrong with the base rate (or "none") that is said to make `rule` win."""
    if isinstance(given, str) and given != "none":
        return f'{given!r} for {LABELS[rule]}: give a base rate, such as 2**-6, or "none"'
    if given == "none":
        count = sum(duels[rate] is not None and duels[rate].winner == rule for rate in flat)
        wins = f"it wins from {count} of the {len(flat)} flat base rates"
        return (
            f'"none" is wrong for {LABELS[rule]}: {wins}; compare the two lines inside the shaded set'
            if count
            else None
        )
    rate = next((known for known in duels if same(given, known)), None)
    if rate is None:
        return (
            f"{given} is not a base rate here; they are {', '.join(f'{known:g} ({power(known)})' for known in duels)}"
        )
    if rate not in flat:
        flat_rates = ", ".join(f"{known:g}" for known in flat)
        return f"{rate:g} is not in the flat set ({flat_rates}): at the smallest batch you would not have chosen it"
    duel = duels[rate]
    if duel is None:
        return f"{rate:g} has no runs of both rules at the largest batch; choose another or train it"
    if duel.winner != rule:
        said = "it is a tie" if duel.winner == "tie" else f"{LABELS[duel.winner]} wins"
        numbers = f"LEGW {duel.ours:.3f}, linear {duel.theirs:.3f}, two standard errors {duel.bound:.3f}"
        return f"{rate:g} is in the flat set, but {LABELS[rule]} does not win there, {said}: {numbers}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "07.b1",
            "LEGW",
            legw_rule,
            ("Let k be the new batch over the base batch.", "The rate takes sqrt(k), the warm-up in epochs takes k."),
        ),
        exercise(
            "07.b2",
            "warm-up, then constant",
            warmup_schedule,
            (
                "During the warm-up the rate is the peak times the share of the warm-up that is done.",
                "Ask first whether step >= warmup_steps: then nothing is divided by 0 either.",
            ),
        ),
        exercise(
            "07.1",
            "a recipe scaled by hand",
            scaled_by_hand,
            (
                "k = 1024 / 16 = 64. The rate takes its square root, the warm-up epochs take k.",
                "An epoch at batch 1024 has 4096 / 1024 = 4 updates; compare with the updates of warm-up at batch 16.",
            ),
        ),
        exercise(
            "07.2",
            "the judge over the flat set",
            judge,
            (
                "First list the flat base rates: accuracy at least max(validation.values()) - error.",
                "Count those with legw[rate] - linear[rate] >= bound, and divide by the number of flat ones.",
            ),
        ),
        exercise(
            "07.3",
            "make linear win, make LEGW win",
            wager,
            (
                "From one base rate linear scaling goes sqrt(k) times as far up as LEGW: which wants the smaller one?",
                'judged["row-lstm"].verdicts() lists the base rates, which are flat, and who wins by two errors.',
            ),
        ),
    )
}
