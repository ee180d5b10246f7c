"""The course: its labs, their order and routes, and what each cost where it was measured. Reading it imports nothing
heavy."""

import json
from dataclasses import dataclass
from pathlib import Path

from labkit import paths
from labkit.errors import RequestError, WorkError


@dataclass(frozen=True)
class Entry:
    """A lab in the course: number, name, question, the labs it needs, the routes it lies on."""

    number: str
    name: str
    question: str
    needs: tuple
    routes: tuple

    @property
    def stem(self) -> str:
        return f"{self.number}_{self.name}"

    @property
    def notebook(self) -> Path:
        return paths.notebooks() / f"{self.stem}.ipynb"

    @property
    def exists(self) -> bool:
        return self.notebook.exists() or (paths.notebooks() / "src" / f"{self.stem}.py").exists()


def course() -> dict[str, Entry]:
    """All labs by number, built or not."""
    import yaml

    content = yaml.safe_load((paths.data() / "labs.yaml").read_text(encoding="utf-8"))
    return {number: Entry(number, e["name"], e["question"], tuple(e["needs"]), tuple(e["routes"]))
            for number, e in content.items()}


def find(text: str) -> Entry:
    """A lab by number (`7`, `07`) or name (`large_batches`, `07_large_batches`).

    Raises:
        RequestError: no such lab, or one that is not built yet; names those that are."""
    labs, wanted = list(course().values()), str(text).strip().removesuffix(".ipynb")
    if wanted.isascii() and wanted.isdecimal() and len(wanted) == 1:
        wanted = f"0{wanted}"
    allowed = ", ".join(entry.stem for entry in labs if entry.exists) or "none yet"
    for entry in labs:
        if wanted in (entry.number, entry.name, entry.stem):
            if not entry.exists:
                raise RequestError(f"lab {entry.stem} is planned but not written yet; allowed: {allowed}")
            return entry
    raise RequestError(f"unknown lab {str(text)!r}; allowed: {allowed}")


def costs() -> dict:
    """Measured seconds of each lab and profile, with the machine they were measured on.

    Returns:
        `{lab: {profile: {"seconds", "cpu", "threads"}}}`; empty where nothing was measured yet.

    Raises:
        WorkError: the file that holds them cannot be understood."""
    path = paths.data() / "results" / "costs.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise WorkError(f"{path.name} is not sound JSON ({error}); restore it or delete it") from None


def plan(entry: Entry, profile: str, seeds: list[int]) -> str:
    """One paragraph of Markdown: what is about to run and what it cost where it was measured."""
    cost = costs().get(entry.number, {}).get(profile)
    time = "Its time has not been measured yet."
    if cost:
        threads = f"{cost.get('threads') or 'all'} thread{'s' * (cost.get('threads') != 1)}"
        time = f"It took {cost['seconds']:.0f} s on {cost['cpu']} ({threads})."
    return (f"**Lab {entry.number}** at profile **{profile}**, seeds {', '.join(map(str, seeds))}. "
            f"{time} A run that was finished before is not trained again.")
