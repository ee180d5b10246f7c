"""What every rule returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """An outcome (`holds`, `partly`, `not seen`, `contradicted`, `not attempted`), the evidence in words, how many
    runs, and the fraction of the flat set of base rates on which it held."""

    outcome: str
    evidence: str
    runs: int = 0
    fraction: float | None = None


def needs(what: str) -> Finding:
    """Not attempted, and what would be needed."""
    return Finding("not attempted", f"needs {what}")


def chosen(runs, select: dict):
    """Runs whose configuration has all of these values."""
    return [run for run in runs if all(run.config.get(key) == value for key, value in select.items())]
