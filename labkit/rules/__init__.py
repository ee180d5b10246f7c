"""The rules that turn runs into findings, by name. Nothing else decides a verdict.

A rule answers `not attempted` unless every run that it asks for is there, with the number of seeds that it asks for.
"""

import functools
import inspect

from labkit.fingerprint import plain_code
from labkit.rules import general, scaling, times

FUNCTIONS = (
    scaling.ordering,
    scaling.not_inferior,
    scaling.near_retuned,
    scaling.adaptive_behind,
    scaling.faster,
    scaling.peak_moves,
    scaling.rises_and_falls,
    general.at_most,
    general.slope_within,
    general.published_rates,
    general.published_warmup,
    general.published_trend,
    general.published_misses,
    times.variation_at_most,
    times.evaluation_decides,
    times.ledger_adds_up,
    times.best_of_n,
)
RULES = {function.__name__: function for function in FUNCTIONS}


@functools.cache
def code(name: str) -> str:
    """The code of a rule and of every helper in its module that it reaches: what may not change after the sweep."""
    todo, done = [RULES[name]], {}
    while todo:
        function = todo.pop()
        if function.__qualname__ in done:
            continue
        done[function.__qualname__] = plain_code(inspect.getsource(function))
        module = inspect.getmodule(function)
        reached = (getattr(module, other, None) for other in function.__code__.co_names)
        todo += [
            other for other in reached if inspect.isfunction(other) and other.__module__.startswith("labkit.rules")
        ]
    return "\n".join(done[key] for key in sorted(done))
