"""What an answer to an exercise may look like: what is right is right in any form."""

import math

import numpy as np


def single(answer):
    """The one item of an array or tensor; anything else as it is."""
    alone = hasattr(answer, "item") and hasattr(answer, "shape") and math.prod(answer.shape) == 1
    return answer.item() if alone else answer


def number(answer) -> float:
    """A number in whatever form a learner has it: of Python or numpy, a tensor or array of one element, or written as
    text; NaN for anything else, which equals nothing."""
    answer = single(answer)
    if isinstance(answer, bool):
        return math.nan
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        return math.nan


def truth(answer) -> bool | None:
    """True or False, of Python or numpy, or a tensor or array of one; None for anything else."""
    answer = single(answer)
    return answer if isinstance(answer, bool) else None


def items(answer) -> list | None:
    """Those of a list, tuple, or array or tensor (flattened); None for anything else."""
    if hasattr(answer, "tolist") and getattr(answer, "shape", ()):
        answer = np.ravel(answer.tolist()).tolist()
    return list(answer) if isinstance(answer, (list, tuple)) else None


def array(answer) -> np.ndarray | None:
    """Numbers as float64: of an array or tensor, with or without gradients, or of lists of these or of numbers (what
    has one element counts as a number there); None for anything else."""
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu().double().numpy()
    elif isinstance(answer, (list, tuple)):
        answer = [single(array(part)) for part in answer]
    try:
        return None if answer is None else np.asarray(answer, float)
    except (TypeError, ValueError, RuntimeError):
        return None
