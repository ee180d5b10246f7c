"""The exercises of lab 07: LEGW and its schedule, a recipe scaled by hand, the judge over a flat set, and the wager on base rates."""

import math

from labkit.optim.factorial import LABELS
from labkit.optim.schedules import Baseline, Schedule, legw
from labkit.teach.exercises import exercise
from labkit.teach.scaling import power


def legw_rule(answer):
    """A function (base batch, base rate, base warm-up epochs, batch) -> (peak rate, warm-up epochs)."""
    for base_batch, rate, epochs in ((16, 0.03125, 0.15625), (20, 1.0, 0.0), (128, 0.1, 2.5)):
        for k in (1, 4, 10, 64):
            found = answer(base_batch, rate, epochs, base_batch * k)
            try:
                got_rate, got_epochs = map(float, found)
            except (TypeError, ValueError):
                return f"it returns {found!r}; return two numbers, the peak rate and the warm-up epochs"
            wanted = legw(Baseline(base_batch, rate, epochs), base_batch * k)
            if not math.isclose(got_rate, wanted.rate, rel_tol=1e-9):
                what = " That is linear scaling." if math.isclose(got_rate, rate * k, rel_tol=1e-9) else " That is the baseline's own rate." if math.isclose(got_rate, rate, rel_tol=1e-9) else ""
                return f"from batch {base_batch}, rate {rate:g} to batch {base_batch * k} your peak rate is {got_rate:.6g}, not {wanted.rate:.6g}.{what}"
            if not math.isclose(got_epochs, wanted.warmup_epochs, rel_tol=1e-9, abs_tol=1e-12):
                what = (" Constant epochs are fewer updates at a larger batch." if math.isclose(got_epochs, epochs, rel_tol=1e-9)
                        else " The warm-up takes k, only the rate takes sqrt(k)." if math.isclose(got_epochs, epochs * math.sqrt(k), rel_tol=1e-9) else "")
                return f"at k = {k} your warm-up is {got_epochs:.6g} epochs, not {wanted.warmup_epochs:.6g}.{what}"
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
            if not isinstance(found, (int, float)):
                return f"it returns {found!r} at update {step}; return the rate, a number"
            if not math.isclose(found, shape(step), rel_tol=1e-9, abs_tol=1e-12):
                what = (" Update 0 has rate 0 in LEGW's formula: step / warmup_steps, not (step + 1) / warmup_steps." if steps and math.isclose(found, min(peak, peak * (step + 1) / steps), rel_tol=1e-9)
                        else " It never stops rising: hold the peak after the warm-up." if found > peak else "")
                return f"peak {peak:g}, warm-up {steps:g}: at update {step} your rate is {found:.6g}, not {shape(step):.6g}.{what}"
    return None


def scaled_by_hand(answer):
    """{"rate", "warmup_epochs", "warmup_updates"} at batch 1024 from batch 16, 2^-5, 10/64 epochs, 4096 images."""
    if not isinstance(answer, dict) or set(answer) != {"rate", "warmup_epochs", "warmup_updates"}:
        return 'give a dictionary with "rate", "warmup_epochs" and "warmup_updates"'
    for key, right, slips in (("rate", 0.25, {2.0: "that is linear scaling, x 64; LEGW's rate takes sqrt(64)", 0.03125: "that is the rate of batch 16, not scaled"}),
                              ("warmup_epochs", 10.0, {1.25: "that is sqrt(k) times; the warm-up epochs take k", 10 / 64: "those are the epochs of batch 16; at 4 updates an epoch they would not be one update"}),
                              ("warmup_updates", 40.0, {2560.0: "that is 10 epochs at batch 16; at batch 1024 an epoch has 4 updates", 10.0: "those are epochs; an epoch at batch 1024 has 4 updates"})):
        if not isinstance(answer[key], (int, float)) or not math.isclose(answer[key], right, rel_tol=1e-6):
            said = next((text for value, text in slips.items() if isinstance(answer[key], (int, float)) and math.isclose(answer[key], value, rel_tol=1e-6)), "k = 64; 4096 / 1024 = 4 updates an epoch")
            return f"{key} {answer[key]} is not right: {said}"
    return None


_JUDGE = {"validation": {1: 0.93, 2: 0.95, 4: 0.96, 8: 0.952, 16: 0.90}, "legw": {1: 0.4, 2: 0.80, 4: 0.90, 8: 0.92, 16: 0.93}, "linear": {1: 0.9, 2: 0.88, 4: 0.89, 8: 0.30, 16: 0.1}}


def judge(answer):
    """A function (validation, legw, linear, error, bound) -> fraction of the flat set that LEGW wins."""
    right = answer(**{name: dict(values) for name, values in _JUDGE.items()}, error=0.01, bound=0.03)
    if not isinstance(right, (int, float)) or isinstance(right, bool):
        return f"it returns {right!r}; return a fraction between 0 and 1"
    slips = {1.0: "that counts the loss at base rate 2 as a win, or leaves it out: .95 is within .01 of the best, .96, so it is flat", 2 / 3: "a lead of .01 is within the bound of .03: a tie, not a win",
             0.0: "that judges at the best base rate alone, where the lead is within the bound; the flat set has three", 2 / 5: "that judges over all five base rates; only three are flat",
             3 / 5: "that judges over all five base rates, and counts a tie as a win", 1.0 / 2: "the best minus the error is .95, and .95 itself is flat: at least, not more than"}
    if not math.isclose(right, 1 / 3, rel_tol=1e-9):
        said = next((text for value, text in slips.items() if math.isclose(right, value, abs_tol=1e-9)), "the flat set is {2, 4, 8}: LEGW loses, ties and wins")
        return f"with a best validation accuracy of .96, error .01 and bound .03 the fraction is 1/3, not {right:.3g}: {said}"
    edge = answer({1: 0.75, 2: 0.5}, {1: 0.75, 2: 0.5}, {1: 0.5, 2: 0.0}, error=0.25, bound=0.25)
    if edge != 1.0:
        return f"a lead of exactly the bound, at a rate exactly one error below the best, counts; you give {edge:.3g}, not 1"
    return None


def wager(answer):
    """{"linear": base rate or "none", "legw": the same, "map": the runs that decide}."""
    ground = answer["map"]
    flat, duels = ground.flat(), {rate: ground.duel(rate) for rate in ground.rates}
    if not any(duels.get(rate) for rate in flat):
        return "no base rate of the flat set has both rules at the largest batch yet; run the row-LSTM cells first"
    for rule, other in (("linear", "legw"), ("legw", "linear")):
        given = answer[rule]
        possible = [rate for rate in flat if duels[rate] and duels[rate].winner == rule]
        if isinstance(given, str):
            if given != "none":
                return f'{given!r} for {LABELS[rule]}: give a base rate, or "none"'
            if possible:
                return f'"none" is wrong for {LABELS[rule]}: it does win from {len(possible)} of the {len(flat)} flat base rates; compare the two lines inside the shaded set'
            continue
        rate = next((known for known in ground.rates if isinstance(given, (int, float)) and math.isclose(known, given, rel_tol=1e-3)), None)
        if rate is None:
            return f"{given} is not a base rate of the table; they are {', '.join(f'{known:g} ({power(known)})' for known in ground.rates)}"
        if rate not in flat:
            return f"{rate:g} is not in the flat set ({', '.join(f'{known:g}' for known in flat)}): at the smallest batch you would not have chosen it"
        duel = duels[rate]
        if duel is None:
            return f"{rate:g} has not been run by both rules at batch {ground.largest}; choose another, or run it"
        if duel.winner != rule:
            numbers = f"LEGW {duel.ours:.3f}, linear {duel.theirs:.3f}, and two standard errors are {duel.bound:.3f}"
            said = f"{LABELS[other]} wins" if duel.winner == other else "it is a tie"
            return f"{rate:g} is in the flat set, but there {said}: {numbers}"
    return None


EXERCISES = {item.id: item for item in (
    exercise("07.b1", "LEGW", legw_rule, ("Let k be the new batch over the base batch. The rate takes its square root.", "return base_rate * math.sqrt(k), base_warmup_epochs * k")),
    exercise("07.b2", "warm-up, then constant", warmup_schedule, ("The rate is the peak times the share of the warm-up that is done, at most 1.", "Ask first whether step >= warmup_steps: then there is no division by 0 either.")),
    exercise("07.1", "a recipe scaled by hand", scaled_by_hand, ("k = 1024 / 16 = 64. The rate takes its square root, the warm-up epochs take k.", "An epoch at batch 1024 has 4096 / 1024 = 4 updates; the warm-up has as many updates as at batch 16.")),
    exercise("07.2", "the judge over the flat set", judge, ("First list the flat base rates: accuracy at least max(validation.values()) - error.", "Count those with legw[rate] - linear[rate] >= bound, and divide by the number of flat ones.")),
    exercise("07.3", "make linear win, make LEGW win", wager, ("LEGW multiplies the base rate by sqrt(k), linear by k: which of the two wants a small base rate?", 'judged["row-lstm"].verdicts() lists every base rate, whether it is flat, and who wins. Try the two ends of the flat set.')),
)}
