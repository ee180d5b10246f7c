"""The exercises of lab 08: a LARS step, a trust ratio by hand, the exclusion groups of a model, and the five traces."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from labkit import optim
from labkit.optim.groups import parameter_groups
from labkit.teach.exercises import exercise
from labs.answers import number
from labs import layerwise_traces

ENOUGH = 0.005  # relative: three digits of a right number are right


def close(a, b, rel_tol: float = ENOUGH) -> bool:
    return math.isclose(number(a), b, rel_tol=rel_tol, abs_tol=1e-12)


# 08.b1: weights, gradients by step, rates by step; the second case has a norm that is 0.
def _case(zero: bool):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(4, 3, generator=generator, dtype=torch.float64) * (not zero)
    grads = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(4)]
    return weights, grads, (1.0, 2.0, 4.0, 1.0)


def _by_labkit(zero: bool, steps: int, **options) -> torch.Tensor:
    weights, grads, rates = _case(zero)
    weights.requires_grad_()
    optimizer = optim.LARS([weights], lr=1.0, momentum=0.9, weight_decay=0.3, **{"trust_coefficient": 0.05, **options})
    for rate, grad in zip(rates[:steps], grads, strict=False):
        optimizer.param_groups[0]["lr"], weights.grad = rate, grad
        optimizer.step()
    return weights.detach()


LARS_SLIPS = (
    ({"convention": "B"}, "that has the rate outside the velocity: v <- m v + r d; w <- w - rate v is convention B"),
    ({"convention": "C"}, "that has rate and ratio outside the velocity, which is convention C"),
    ({"decay": "gradient"}, "the decay is missing from the ratio: divide by |g| + decay |w|"),
    ({"decay": "sum"}, "that divides by |g + decay w|; the rule adds the two norms"),
    ({"decay": "outside"}, "the decay belongs to the direction, g + decay w, before ratio and velocity"),
    ({"trust_coefficient": 1.0}, "the trust coefficient eta is missing"),
)


def lars_step(answer):
    """A function (w, g, v, rate, momentum, decay, eta) -> (w, v), on float64 tensors."""
    for zero in (False, True):
        weights, grads, rates = _case(zero)
        velocity = torch.zeros_like(weights)
        for steps, (rate, grad) in enumerate(zip(rates, grads, strict=True), 1):
            kept = weights.clone(), grad.clone(), velocity.clone()
            found = answer(weights, grad, velocity, rate, 0.9, 0.3, 0.05)
            if not isinstance(found, (tuple, list)) or len(found) != 2 or not all(map(torch.is_tensor, found)):
                return "return two torch tensors: the new weights and the new velocity"
            if not torch.equal(grad, kept[1]):
                return "your step changes the gradient it was given: write g = g + ..., not g += ..."
            weights, velocity = found
            wanted = _by_labkit(zero, steps)
            if weights.shape != wanted.shape:
                return f"your weights have the shape {tuple(weights.shape)}, not {tuple(wanted.shape)}"
            if torch.allclose(weights, wanted, rtol=1e-9, atol=1e-12):
                continue
            if zero:
                still = torch.equal(weights, kept[0])
                what = "never move" if still else "become nan" if weights.isnan().any() else "move otherwise"
                return f"weights that start at 0 {what}: where a norm is 0 the ratio is 1"
            for options, remark in LARS_SLIPS:
                if torch.allclose(weights, _by_labkit(zero, steps, **options), rtol=1e-9, atol=1e-12):
                    return f"after step {steps} (rates {', '.join(f'{r:g}' for r in rates[:steps])}): {remark}"
            return f"after step {steps} your weights are off by up to {float((weights - wanted).abs().max()):.3g}"
    return None


# 08.1: w = (3, 4), g = (-0.4, 0.3), decay 0.1, eta 0.001, rate 8, the first step (the velocity is 0).
_BY_HAND = {
    "ratio": (
        0.005,
        (
            (0.01, "the denominator is |g| + decay |w|, and the decay's part is missing"),
            (0.001 * 5 / math.hypot(0.1, 0.7), "that divides by |g + decay w|; the rule adds the two norms"),
            (5.0, "the trust coefficient eta = 0.001 is missing"),
            (0.04, "that is the ratio times the rate; give the ratio alone"),
            (0.001 * 0.5 / 5, "upside down: weights over gradient"),
        ),
    ),
    "step": (
        8 * 0.005 * math.hypot(0.1, 0.7),
        (
            (8 * 0.005 * 0.5, "the step is along g + decay w, not along g alone"),
            (8 * 0.005 * 1.0, "|g + decay w| is not |g| + |decay w| here: the two are perpendicular"),
            (0.005 * math.hypot(0.1, 0.7), "the rate is missing"),
            (8 * 0.005 * math.hypot(0.1, 0.7) / 10, "the first step has no momentum factor"),
        ),
    ),
    "sgd step": (
        8 * math.hypot(0.1, 0.7),
        (
            (8 * 0.5, "decay belongs to it too: rate times |g + decay w|"),
            (math.hypot(0.1, 0.7), "the rate is missing"),
        ),
    ),
}


def by_hand(answer):
    """{"ratio", "step", "sgd step"} of one tensor: the ratio, the length of LARS's first step, and of plain SGD's."""
    if not isinstance(answer, Mapping) or set(answer) != set(_BY_HAND):
        return f"give a dictionary with {', '.join(_BY_HAND)}"
    for key, (right, slips) in _BY_HAND.items():
        given = answer[key]
        if not close(given, right):
            remark = next((text for value, text in slips if close(given, value)), "|w| = 5 and |g| = 0.5: check both, and give three digits")
            return f"{key} {given!r} is not right: {remark}"
    return None


# 08.2
class Gain(nn.Module):
    """A norm of one's own, without "norm" in the name of its parameter."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))


class TinyRMSNorm(Gain):
    pass


class Puzzle(nn.Module):
    """A model in which every rule of thumb goes wrong somewhere."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.rows = nn.LSTM(6, 6)
        self.norm_of_my_own = TinyRMSNorm()
        self.head = nn.Linear(6, 9)
        self.head.weight = self.embedding.weight  # tied: one tensor, two names
        self.mixing = nn.Parameter(torch.ones(6))  # a vector, and neither a bias nor a norm
        self.layers = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2))
        self.debiased = nn.Parameter(torch.ones(3, 3))  # "bias" inside a word


def exclusion(answer):
    """A function (model, weight decay) -> [adapted group, excluded group], as `groups.parameter_groups` makes them."""
    model = Puzzle()
    names = {id(p): name for name, p in model.named_parameters()}
    found = answer(model, 0.01)
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not all(isinstance(g, Mapping) for g in found):
        return "return a list of two dictionaries: the adapted group, then the excluded one"
    wanted = parameter_groups(model, 0.01)
    try:
        groups = [list(group["params"]) for group in found]
    except KeyError:
        return 'each group needs "params", a list of parameters'
    seen = [id(p) for group in groups for p in group]
    if any(key not in names for key in seen):
        return "a group holds what is not a parameter of the model; take them from model.named_modules()"
    twice = next((names[key] for key in seen if seen.count(key) > 1), None)
    if twice:
        return f"{twice} comes twice (a tied weight has two names and is one tensor): it would be stepped twice"
    lost = next((name for key, name in names.items() if key not in seen), None)
    if lost:
        return f"{lost} is in no group: it would never be trained"
    adapted = {id(p) for p in wanted[0]["params"]}
    why = {
        "mixing": "a vector, but neither a bias nor of a norm: that it has one dimension does not exclude it",
        "debiased": 'has "bias" inside its name, but is none: look at the words between underscores',
        "norm_of_my_own.gain": "the gain of a norm, known by its module's class: its own name does not say so",
        "rows": "a bias of the LSTM: its name has the word bias and more",
        "layers.1": "of batch norm: its scale, called weight, belongs to the excluded too",
    }
    for place, group in enumerate(groups):
        for p in group:
            if (id(p) in adapted) != (place == 0):
                name = names[id(p)]
                reason = next((text for key, text in why.items() if name.startswith(key)), "look at what it is")
                return f"{name} is in the {('adapted', 'excluded')[place]} group: {reason}"
    if found[0].get("weight_decay") != 0.01 or found[1].get("weight_decay") != 0.0:
        return "the adapted group has the weight decay that was given, the excluded one 0"
    if found[0].get("adapt", True) is not True or found[1].get("adapt") is not False:
        return 'the excluded group needs "adapt": False, or LARS gives it a trust ratio all the same'
    return None


def dialects(answer):
    """{letter: name of a dialect} for the five traces."""
    wrote, names = layerwise_traces.WROTE, layerwise_traces.NAMES
    if not isinstance(answer, Mapping) or {str(key).upper() for key in answer} != set(wrote):
        return f"give a dictionary with a name for each of {', '.join(wrote)}"
    given = {str(key).upper(): str(value).strip().lower() for key, value in answer.items()}
    unknown = [name for name in given.values() if name not in names]
    if unknown:
        return f"{unknown[0]!r} is none of the five: {', '.join(names)}"
    right = sum(given[letter] == name for letter, name in wrote.items())
    for letter, name in wrote.items():
        if given[letter] != name:
            return f"{right} of 5 right. In {letter}, {layerwise_traces.parted(given[letter], name)}"
    return None


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "08.b1",
            "a LARS step",
            lars_step,
            (
                "Three lines: the ratio r, then v <- momentum v + rate r (g + decay w), then w <- w - v.",
                "Compute |w| and |g| first; if one of them is 0, r is 1.",
            ),
        ),
        exercise(
            "08.1",
            "a trust ratio by hand",
            by_hand,
            (
                "|w| = 5 and |g| = 0.5; the ratio is eta |w| / (|g| + decay |w|).",
                "g + decay w = (-0.1, 0.7); a first step of LARS is rate x ratio x its length.",
            ),
        ),
        exercise(
            "08.2",
            "exclusion groups",
            exclusion,
            (
                "Walk over model.modules() and module.named_parameters(recurse=False): the owner's class tells.",
                'A bias: "bias" in name.split("_"). A norm: type(module).__name__ ends in Norm, or in Norm and a '
                "dimension such as 1d. Keep a dictionary from tensor to excluded, so that a tied one comes once.",
            ),
        ),
        exercise(
            "08.3",
            "name that dialect",
            dialects,
            (
                "Begin with the only tensor that never moves: who has no rule for |w| = 0? Then look at the fall.",
                "Rate inside the velocity: the step fades. Outside: it falls at once. Ratio outside too: an old "
                "gradient meets a new ratio at the drop. min(r, rate): the rate has no say where r is smaller.",
            ),
        ),
    )
}
