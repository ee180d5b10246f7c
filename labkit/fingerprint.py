"""A fingerprint of the modules that make the science: it changes when their code does, not when a comment or a
docstring does."""

import ast
import functools
import hashlib
import importlib.util
from pathlib import Path


def plain_code(source: str) -> str:
    """Code without docstrings and comments, as its syntax tree, so that layout does not matter either."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return shape(tree)


def shape(node) -> str:
    """A syntax tree as text, the same under every version of Python (which `ast.dump` and `ast.unparse` are not)."""
    if isinstance(node, ast.AST):
        parts = (f"{key}={shape(value)}" for key, value in ast.iter_fields(node) if value not in (None, []))
        return f"{type(node).__name__}({','.join(parts)})"
    return f"[{','.join(map(shape, node))}]" if isinstance(node, list) else repr(node)


@functools.cache
def module_code(name: str) -> str:
    """The plain code of a module, read once: a file that is edited while a sweep runs is not what that sweep runs."""
    return plain_code(Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8"))


def fingerprint(modules) -> str:
    """Twelve hex digits of the code of the named modules (their order does not matter)."""
    digest = hashlib.sha256()
    for name in sorted(set(modules)):
        digest.update(f"{name}\0{module_code(name)}\0".encode())
    return digest.hexdigest()[:12]
