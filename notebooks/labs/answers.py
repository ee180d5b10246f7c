"""What an answer to an exercise may look like."""

import math


def number(answer) -> float:
    """A number in whatever form a learner has it: of Python or numpy, a tensor or array without dimensions, or written
    as text; NaN for anything else, which equals nothing."""
    if isinstance(answer, bool):
        return math.nan
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
