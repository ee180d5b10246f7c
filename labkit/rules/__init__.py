"""The rules that turn runs into findings, by name: `RULES`. Nothing else decides a verdict.

Those of one lab are in `notebooks/labs/rules_*.py`; each such module lists its own in a tuple `RULES`. A rule answers
`not attempted` unless every run that it asks for is there, with the number of seeds that it asks for."""

import functools
import inspect

from labkit import paths
from labkit.errors import WorkError
from labkit.fingerprint import plain_code
from labkit.rules import general


def __getattr__(name: str):
    """`RULES`, found when first asked for: the labs' rules import this package."""
    if name == "RULES":
        return collected(*map(paths.lab_part, paths.lab_parts("rules_")))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def collected(*modules) -> dict:
    """{name: rule} of the general rules and those of the modules.

    Raises:
        WorkError: a module lists no rules, or two rules share a name."""
    found = {}
    for module in (general, *modules):
        if not hasattr(module, "RULES"):
            raise WorkError(f"{module.__name__} lists no rules; give it a tuple RULES")
        for rule in module.RULES:
            other = found.setdefault(rule.__name__, rule)
            if other is not rule:
                raise WorkError(f"{other.__module__} and {module.__name__} both define {rule.__name__}; rename one")
    return found


@functools.cache
def code(name: str) -> str:
    """The code of a rule and of every helper among the rules that it reaches: what may not change after the sweep."""
    todo, done = [__getattr__("RULES")[name]], {}
    while todo:
        function = todo.pop()
        if function.__qualname__ in done:
            continue
        done[function.__qualname__] = plain_code(inspect.getsource(function))
        module = inspect.getmodule(function)
        reached = (getattr(module, other, None) for other in function.__code__.co_names)
        todo += [other for other in reached if inspect.isfunction(other)
                 and other.__module__.startswith(("labkit.rules", "labs.rules_"))]
    return "\n".join(done[key] for key in sorted(done))
