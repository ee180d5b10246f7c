"""The rules that turn runs into findings, by name: `RULES`. Nothing else decides a verdict.

Those of one lab are in `notebooks/labs/rules_*.py`; each such module lists its own in a tuple `RULES`. A rule answers
`not attempted` unless every run that it asks for is there, with the number of seeds that it asks for."""

import ast
import contextlib
import functools
import inspect
import textwrap

from labkit import paths
from labkit.curve import canonical
from labkit.errors import RequestError, WorkError
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
    """The code of a rule, and of every function, class and constant of the rules and labs that it reaches by name, at
    any depth: what may not change after the sweep."""
    todo, done = [__getattr__("RULES")[name]], {}
    while todo:
        thing = todo.pop()
        if (key := f"{thing.__module__}.{thing.__qualname__}") in done:
            continue
        source = textwrap.dedent(inspect.getsource(thing))
        done[key] = plain_code(source)
        module = inspect.getmodule(thing)
        for node in ast.walk(ast.parse(source)):
            owner, other = module, getattr(node, "id", None)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner, other = getattr(module, node.value.id, None), node.attr
            found = getattr(owner, other, None) if other and inspect.ismodule(owner) else None
            if inspect.isfunction(found) or inspect.isclass(found):
                todo += [found] if found.__module__.startswith(("labkit.rules", "labs.")) else []
                continue
            found = found.tolist() if hasattr(found, "tolist") else found
            if isinstance(found, (bool, int, float, str, list, tuple, dict)):
                with contextlib.suppress(RequestError):  # what is no plain value, such as the list of the rules
                    done[f"{owner.__name__}.{other}"] = canonical(found)
    return "\n".join(done[key] for key in sorted(done))
