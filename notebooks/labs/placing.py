"""Exercise 02.5, place this network: AlexNet on eight small devices; the leader board is the best of all placements."""

import functools
from collections.abc import Mapping

import pandas as pd

from labkit.errors import RequestError
from labs import planner_networks
from labs.answers import number
from labs.planner import Machine, Placement, Plan, piece, score
from labs.planner_search import optimum, schemes

DEVICES, BATCH, MICRO = 8, 256, (1, 2, 4, 8, 16)
MACHINE = Machine(flops=10e12, bandwidth=1e9, latency=5e-6, memory=200e6)
ENOUGH = 1.05  # times the optimum's seconds


def alexnet():
    return planner_networks.units("AlexNet")


@functools.cache
def leader() -> Plan:
    """The best of all placements of 02.5."""
    return optimum(alexnet(), MACHINE, DEVICES, BATCH, micros=MICRO)


def placed(answer) -> Plan:
    """The plan of an answer to 02.5.

    Raises:
        RequestError: it is no placement, or not possible."""
    if not isinstance(answer, Mapping) or set(answer) != {"stages", "micro", "sharded"}:
        raise RequestError("give a dictionary with stages, micro and sharded")
    stages = answer["stages"]
    stages = (stages,) if isinstance(stages, str) else stages
    if not isinstance(stages, (list, tuple)) or not all(isinstance(text, str) for text in stages):
        raise RequestError("stages is a list of texts, one a stage, with one letter a layer")
    micro = number(answer["micro"])
    if micro not in MICRO:
        raise RequestError(f"micro {answer['micro']!r}: choose one of {', '.join(map(str, MICRO))}")
    return score(alexnet(), MACHINE, DEVICES, BATCH, Placement(tuple(stages), int(micro), bool(answer["sharded"])))


def place(answer) -> str | None:
    """Spec of 02.5: a placement that fits, within 5 % of the optimum's time."""
    try:
        plan = placed(answer)
    except RequestError as error:
        return str(error)
    stages, units = plan.placement.stages, alexnet()
    each, names = DEVICES // len(stages), [unit.name for unit in units]
    if not plan.fits:
        s = max(range(len(stages)), key=lambda n: plan.memory[n])
        start, more = sum(map(len, stages[:s])), plan.memory[s] - MACHINE.memory
        pieces = [
            piece(unit, letter, BATCH // plan.placement.micro, each, MACHINE, plan.placement.sharded)
            for unit, letter in zip(units[start : start + len(stages[s])], stages[s], strict=True)
        ]
        flying = min(len(stages) - s, plan.placement.micro)
        state, kept = [p.state + p.gathered for p in pieces], [flying * p.kept for p in pieces]
        part = sum(kept) / plan.memory[s]
        kind, parts = ("weights, gradients and momentum", state) if part < 0.5 else ("activations", kept)
        most = names[start + max(range(len(parts)), key=parts.__getitem__)]
        first = s * each
        who = f"devices {first} to {first + each - 1}" if each > 1 else f"device {first}"
        return (
            f"{who} (stage {s}) need{'s' * (each == 1)} {plan.memory[s] / 1e6:.0f} MB, {more / 1e6:.0f} MB too "
            f"many; {max(part, 1 - part):.0%} of it {kind}, most for {most}"
        )
    best = leader()
    if plan.seconds <= ENOUGH * best.seconds:
        return None
    told = f"it fits and takes {1e3 * plan.seconds:.1f} ms, {plan.seconds / best.seconds:.2f} times the best one's; "
    if plan.waiting - best.waiting > plan.communication - best.communication:
        return told + f"{plan.waiting / plan.seconds:.0%} of the step waits: more even stages, or more microbatches"
    worst = max(range(len(names)), key=plan.by_unit.__getitem__)
    return told + f"{plan.communication / plan.seconds:.0%} of it sends, and {names[worst]} costs most words"


def board(answer=None) -> pd.DataFrame:
    """The leader board of 02.5: the named schemes, the optimum (its time only), and the answer where it is one."""
    rows = [(name, plan) for name, plan in schemes(alexnet(), MACHINE, DEVICES, BATCH).items()]
    rows.append(("the best of all", leader()))
    try:
        rows.append(("yours", placed(answer)))
    except RequestError:
        pass
    table = pd.DataFrame(
        [
            (
                name,
                1e3 * plan.seconds,
                f"{plan.waiting / plan.seconds:.0%}",
                plan.words / 1e6,
                max(plan.memory) / 1e6,
                "yes" if plan.fits else "no",
            )
            for name, plan in rows
            if plan
        ],
        columns=["placement", "ms a step", "waits", "million words sent", "MB on the fullest device", "fits"],
    )
    return table.sort_values(["fits", "ms a step"], ascending=[False, True], ignore_index=True).round(1)
