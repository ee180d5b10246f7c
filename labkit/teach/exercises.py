"""Exercises with instant feedback: a check that says what is wrong, two hints, and the solution one call away.

The exercises of lab 07 are in `notebooks/labs/lab07.py`; their solutions exist once, in the notebook's source,
between the lines `# BEGIN SOLUTION` and `# END SOLUTION`."""

import functools
import inspect
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import RequestError, WorkError, choose
from ..paths import lab_part, lab_parts, notebooks
from ..progress import notebook_shell

BEGIN, END, STUB = "# BEGIN SOLUTION", "# END SOLUTION", "# STUB:"
CHECK = re.compile(r"""\bcheck\(\s*["'](\d\d\.\w+)["']""")


@dataclass(frozen=True)
class Exercise:
    """`spec(answer)` returns None when the answer is right, else one sentence that says what is wrong with it."""

    id: str
    title: str
    spec: Callable[[object], str | None]
    hints: tuple[str, str]


def exercise(id: str, title: str, spec: Callable[[object], str | None], hints=()) -> Exercise:
    """Describe one exercise, for a lab's `EXERCISES` dictionary.

    Raises:
        RequestError: the number is not like `07.2`, `spec` cannot be called, or there are not two hints."""
    if not re.fullmatch(r"\d\d\.\w+", id):
        raise RequestError(f"exercise {id!r}: the number is the lab's two digits, a dot and the exercise, as in 07.2")
    if not callable(spec):
        raise RequestError(f"exercise {id}: spec must be a function of the answer; given: {spec!r}")
    if len(hints) != 2 or not all(isinstance(text, str) and text.strip() for text in hints):
        raise RequestError(f"exercise {id}: give two hints; given: {len(hints)}")
    return Exercise(id, title, spec, tuple(hints))


def find(id: str, registry: Mapping[str, Exercise] | None = None) -> Exercise:
    """The exercise with this number, from `registry` or from its lab's module.

    Raises:
        RequestError: there is none; the message lists the lab's exercises."""
    if registry is None:
        if f"lab{id[:2]}" not in lab_parts("lab"):
            raise RequestError(f"exercise {id!r}: there is no lab {id[:2]!r} with exercises")
        registry = lab_part(f"lab{id[:2]}").EXERCISES
    choose("exercise", id, registry)
    return registry[id]


def check(id: str, answer, registry: Mapping[str, Exercise] | None = None) -> bool | None:
    """Check an answer and show the verdict: True if right, False if wrong, None if there is no answer yet.

    No answer yet: None, `...`, a collection that holds `...`, or a function that returns one of these whenever the
    check calls it. An exception from the answer becomes a message with the line it came from, never a traceback.

    Raises:
        RequestError: there is no such exercise."""
    item = find(id, registry)
    if answer is None or _unfilled(answer):
        return _report(item, None, "")
    returned: list = []
    try:
        message = item.spec(_watched(answer, returned))
    except Exception as error:  # the learner's code may raise anything
        if "ellipsis" in str(error):  # arithmetic on the `...` of an unfilled line
            return _report(item, None, "")
        message = f"it raised {type(error).__name__}: {error}{_place(error, answer)}"
    if message is None:
        return _report(item, True, "")
    if returned and all(value is None or _unfilled(value) for value in returned):
        return _report(item, None, "")
    return _report(item, False, message)


def hint(id: str, n: int = 1, registry: Mapping[str, Exercise] | None = None) -> None:
    """Show the n-th hint (1 or 2).

    Raises:
        RequestError: there is no such exercise or hint."""
    item = find(id, registry)
    choose(f"hint of {id}", n, range(1, len(item.hints) + 1))
    more = f'next: hint("{id}", {n + 1})' if n < len(item.hints) else f'the solution: solution("{id}")'
    text = item.hints[n - 1]
    say(f"**{id}, hint {n} of {len(item.hints)}.** {text}\n\n`{more}`", f"{id}, hint {n}: {text}\n{more}")


def solution(id: str, source_dir: str | Path | None = None) -> None:
    """Show the solution's code, as the notebook's source holds it.

    Raises:
        RequestError: no notebook has an exercise of that number.
        WorkError: the sources are not beside the package, or the exercise has no solution between markers."""
    folder = Path(source_dir) if source_dir else notebooks() / "src"
    if not folder.is_dir():
        raise WorkError(f"the solution of {id} is in the course's notebooks/src, which is not beside this labkit")
    paths = sorted(folder.glob(f"{id[:2]}_*.py")) if re.fullmatch(r"\d\d\.\w+", id) else []
    if not paths:
        raise RequestError(f"exercise {id!r}: there is no notebook with this number")
    code = solution_code(paths[0].read_text(encoding="utf-8"), id)
    say(f"**{id}, solution.**\n\n```python\n{code}\n```", f"{id}, solution:\n{code}")


def solution_code(source: str, id: str) -> str:
    """The lines between the solution markers of the cell that checks `id`, or of the nearest cell above it, dedented.

    Raises:
        RequestError: no cell checks `id`.
        WorkError: there is no solution between that check and the one before it."""
    cells = re.split(r"(?m)^# %%.*\n?", source)
    at = next((n for n, cell in enumerate(cells) if id in CHECK.findall(cell)), None)
    if at is None:
        choose("exercise", id, sorted(set(CHECK.findall(source))))
    for n in range(at, -1, -1):
        if n < at and CHECK.search(cells[n]):
            break
        blocks = re.findall(rf"(?ms)^[ \t]*{BEGIN}[ \t]*\n(.*?)^[ \t]*{END}", cells[n])
        if blocks:
            return "\n\n".join(textwrap.dedent(block).rstrip() for block in blocks)
    raise WorkError(f"exercise {id} has no solution between {BEGIN!r} and {END!r}")


def say(markdown: str, plain: str | None = None) -> None:
    """Show a sentence: as Markdown in a notebook, as plain text on standard output anywhere else."""
    plain = markdown if plain is None else plain
    if notebook_shell() is None:
        sys.stdout.write(plain + "\n")
        return
    from IPython.display import display

    display({"text/markdown": markdown, "text/plain": plain}, raw=True)


def _report(item: Exercise, right: bool | None, message: str) -> bool | None:
    if right is None:
        text = f'not answered yet ({item.title}). Help: hint("{item.id}"), then solution("{item.id}")'
    elif right:
        text = f"right ({item.title})"
    elif isinstance(message, str) and message:
        text = f'not yet: {message}\nHelp: hint("{item.id}")'
    else:
        raise WorkError(f"exercise {item.id}: spec must return None or a sentence; it returned {message!r}")
    say(f"**{item.id}**: " + text.replace("\n", "\n\n"), f"{item.id}: {text}")
    return right


def _unfilled(answer) -> bool:
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, (list, tuple)) else ()
    return answer is ... or any(part is ... or isinstance(part, dict) and _unfilled(part) for part in parts)


def _watched(answer, returned: list):
    """The learner's function, noting what it returns; anything else unchanged."""
    if not inspect.isfunction(answer):
        return answer

    @functools.wraps(answer)
    def call(*args, **kwargs):
        value = answer(*args, **kwargs)
        returned.append(value)
        return value

    return call


def _place(error: Exception, answer) -> str:
    """The learner's own line, when the exception passed through it."""
    code = getattr(answer, "__code__", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if code is not None and frame.filename == code.co_filename and frame.line:
            return f", at line {frame.lineno} of your cell: {frame.line}"
    return ""
