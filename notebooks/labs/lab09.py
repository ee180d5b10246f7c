"""The exercises of lab 09: perplexity, a state that is carried, counts of updates, a fair mean, the lost factor 20."""

import itertools
import math

import torch
from torch.nn import functional as F

from workloads import text
from workloads.lstm_lm import LSTMLanguageModel
from labkit.teach.exercises import exercise
from labs.answers import number

FAULTS = {"summed": "the loss of the original is summed over the window, so its rate and its clipping norm mean "
                    "something else for a mean",
          "carried": "the state is not carried from window to window as the original's is",
          "alone": "the evaluation does not read the text as one stream, as the original's does"}


def same(a, b, rel: float = 1e-6) -> bool:
    return math.isclose(number(a), b, rel_tol=rel, abs_tol=1e-12)


def slip(value, slips) -> str:
    """The remark of the usual mistake that gives this value; empty if none does."""
    return next((remark for mistake, remark in slips if same(value, mistake)), "")


def perplexity(answer):
    """A function: natural logarithms of the probabilities of the tokens that came -> perplexity."""
    for logs in ([math.log(0.25)] * 4, [math.log(p) for p in (0.5, 0.1, 0.9, 0.02)], [math.log(0.3)]):
        found, n = answer(list(logs)), len(logs)
        right = math.exp(-sum(logs) / n)
        if not same(found, right):
            slips = ((2 ** (-sum(logs) / n), "that is 2 to a power of nats; with natural logarithms the base is e"),
                     (sum(math.exp(-x) for x in logs) / n, "that is the mean of 1/p; average the logarithms"),
                     (math.exp(-sum(logs)), "that is 1 / the probability of the whole text; average, do not add up"),
                     (-sum(logs) / n, "that is the loss; the perplexity is its exponential"),
                     (math.exp(sum(logs) / n), "that is below 1: the sign of the mean is wrong"))
            return (f"for probabilities {', '.join(f'{math.exp(x):.3g}' for x in logs)} it is {right:.4g}, "
                    f"not {found!r}: " + (slip(found, slips) or "exp(- mean of the logarithms)"))
    return None


def _fresh(dtype=torch.float64) -> LSTMLanguageModel:
    torch.manual_seed(0)
    return LSTMLanguageModel(8, hidden=12, layers=1, init=0.4).to(dtype)


def read(model, tokens, window: int, carried: bool = True, tail: bool = True) -> float:
    """Nats of tokens[1:] under the model, in one stream."""
    total, state = 0.0, None
    for inputs, targets, _ in text.Streams(tokens, 1, window, tail=tail):
        scores, state = model(inputs, state if carried else None)
        total += float(F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"))
    return total


def carry(answer):
    """A function (model, tokens, window) -> nats of the whole text, read by windows."""
    model = _fresh()
    tokens = text.load("markov", train=78, validation=0, test=0, vocabulary=8, order=2, branching=3).train
    with torch.no_grad():
        right = read(model, tokens, 20)
        found = answer(model, torch.as_tensor(tokens), 20)
        if isinstance(found, torch.Tensor):
            found = found.item() if found.numel() == 1 else found
        if not same(found, right, 1e-8):
            slips = ((read(model, tokens, 20, carried=False), "the state is dropped between the windows"),
                     (read(model, tokens, 20, tail=False), "the last, shorter window is left out; 77 tokens count"),
                     (right / 77, "that is the mean; return the sum"))
            near = next((remark for value, remark in slips if same(found, value, 1e-8)), "")
            return f"78 tokens in windows of 20 cost {right:.6f} nats, not {found!r}: " + (
                near or "every token but the first is predicted once, all before it in the state")
    return None


_COUNTS = {
    "updates_8": (249, ((250, "that forgets that the last token has no successor to predict"),
                        (2000, "that is 40000 / 20: divide by the 8 streams too"), (5000, "those are tokens"))),
    "updates_128": (15, ((15.6, "an unfinished window is no update"), (16, "an unfinished window is no update"))),
    "rate": (20.0, ((1.0, "the summed loss is 20 times the mean"), (0.05, "the other way: the mean is smaller"))),
    "clip": (0.25, ((100.0, "the other way round: the gradient of the mean is 20 times smaller"),
                    (5.0, "the gradient of the mean is 20 times smaller, so 5 would never clip as it did"))),
}


def counts(answer):
    """{"updates_8", "updates_128", "rate", "clip"}."""
    if not isinstance(answer, dict) or set(answer) != set(_COUNTS):
        return f"give a dictionary with {', '.join(_COUNTS)}"
    for key, (right, slips) in _COUNTS.items():
        if not same(answer[key], right):
            remark = slip(answer[key], slips) or ("(tokens // batch - 1) // window" if "up" in key else "factor: 20")
            return f"{key} {answer[key]} is not right: {remark}"
    return None


_PARTS = [(1.0, 100), (3.0, 10), (2.0, 40)]
_FAIR = math.exp(sum(loss * n for loss, n in _PARTS) / sum(n for _, n in _PARTS))


def fair(answer):
    """A function: [(mean loss in nats, tokens), ...] -> perplexity of the whole."""
    found = answer(list(_PARTS))
    if same(found, _FAIR, 1e-3):
        return None
    losses, total = [loss for loss, _ in _PARTS], sum(n for _, n in _PARTS)
    slips = ((math.exp(sum(losses) / 3), "that counts a batch of 10 tokens as much as one of 100"),
             (sum(map(math.exp, losses)) / 3, "that is a mean of perplexities; average losses, then take exp"),
             (sum(math.exp(loss) * n for loss, n in _PARTS) / total, "average losses, not perplexities, then take exp"))
    return f"of {_PARTS} the perplexity is {_FAIR:.4f}, not {found!r}: " + (
        slip(found, slips) or "add up nats and tokens, divide, then take exp")


STREAMS, WINDOW, RATE, CLIP = 20, 20, 0.3, 5.0


def original(model, train, test, *, steps: int, window: int = WINDOW, rate: float = RATE, clip: float = CLIP,
             summed: bool = True, carried: bool = True, alone: bool = True):
    """(training losses in nats per token, test loss): the tutorial's way, or with one of its habits left out.

    Plain SGD on 20 streams; the loss is averaged over streams and summed over the window; the gradient's norm is cut to
    `clip`; the state is carried; the test text is one stream."""
    losses, state, parameters = [], None, list(model.parameters())
    batches = itertools.chain.from_iterable(itertools.repeat(text.Streams(train, STREAMS, window)))
    for inputs, targets, first in itertools.islice(batches, steps):
        scores, state = model(inputs, state if carried and not first else None)
        state = tuple(part.detach() for part in state)
        mean = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        gradients = torch.autograd.grad(mean * window if summed else mean, parameters)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= rate * min(1.0, clip / norm) * gradient
        losses.append(float(mean.detach()))
    total, state = 0.0, None
    evaluation = text.Streams(test, 1 if alone else STREAMS, window, tail=True)
    count = sum(targets.numel() for _, targets, _ in evaluation)
    with torch.no_grad():
        for inputs, targets, _ in evaluation:
            scores, state = model(inputs, state)
            total += float(F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"))
    return losses, total / count


def case() -> dict:
    """The small text on which ports are compared: everything in float64."""
    data = text.load("markov", train=6000, validation=0, test=405, vocabulary=8, order=2, branching=3)
    return {"train": data.train, "test": data.test}


def agrees(a, b) -> bool:
    (losses, last), (theirs, their_last) = a, b
    return (len(losses) == len(theirs) and same(last, their_last, 1e-7)
            and all(same(x, y, 1e-7) for x, y in zip(losses, theirs, strict=True)))


def port(answer):
    """A function (model, train, test, steps, window, rate, clip) -> (losses, test loss), to agree with `original`."""
    steps, own = 20, case()
    given = answer(_fresh(), own["train"], own["test"], steps, WINDOW, RATE, CLIP)
    try:
        losses, last = given
        found = [float(loss) for loss in losses], float(last)
    except (TypeError, ValueError):
        return f"return the list of training losses and the test loss, not {type(given).__name__}"
    if agrees(found, original(_fresh(), **own, steps=steps)):
        return None
    if len(found[0]) != steps:
        return f"it returns {len(found[0])} training losses for {steps} updates"
    for count in (1, 2, 3):
        for broken in itertools.combinations(FAULTS, count):
            habits = {fault: False for fault in broken}
            if agrees(found, original(_fresh(), **own, steps=steps, **habits)):
                return f"{count} of 3 left: {FAULTS[broken[0]]}"
    right = original(_fresh(), **own, steps=steps)
    first = next((n for n, (a, b) in enumerate(zip(found[0], right[0], strict=True)) if not same(a, b, 1e-7)), None)
    if first is None:
        return (f"training agrees; the test loss is {found[1]:.6f}, not {right[1]:.6f}: one stream, every token but "
                "the first")
    why = {0: "what is reported is nats per token", 1: "look at the rate and the clipping of the first step"}
    return (f"update {first} has loss {found[0][first]:.6f} where the original has {right[0][first]:.6f}: "
            f"{why.get(first, 'they agree before it')}")


EXERCISES = {item.id: item for item in (
    exercise("09.b1", "perplexity", perplexity, (
        "The loss is minus the mean of the logarithms; the perplexity is e to the loss.",
        "math.exp(-sum(logs) / len(logs))")),
    exercise("09.b2", "carry the state", carry, (
        "Give the model the state that the window before left; the first window gets None. Targets are tokens[1:].",
        "for at in range(0, len(tokens) - 1, window): inputs are tokens[at:at + window], but never the last token.")),
    exercise("09.1", "count updates, find the factor", counts, (
        "Each of B streams holds tokens // B tokens; the last one of a stream has no successor.",
        "Sum = 20 x mean. So the same step needs 20 times the rate, and a norm 20 times smaller is cut at clip / 20.")),
    exercise("09.2", "a fair mean", fair, (
        "Every token counts the same, whatever batch it came in.",
        "exp(sum(loss * tokens) / sum(tokens))")),
    exercise("09.3", "the lost factor 20", port, (
        "Three things: what the rate multiplies, where a window's state comes from, and how many streams the test text "
        "is cut into.",
        "rate * window, clip / window (or sum the loss); pass on the detached state; one stream in the evaluation.")),
)}
