"""`labkit notebooks`, `badges` and `record`: what the authors of the course use."""

from labkit import paths
from labkit.cli import say


def notebooks(arguments) -> int:
    from authoring import builder, outputs, readme

    for path in builder.write(paths.notebooks() / "src", paths.notebooks()):
        say(f"built {path}")
    if not arguments.sources_only:
        for path in outputs.refresh(arguments.labs):
            say(f"kept the outputs of {path}")
    for path in readme.refresh():
        say(f"wrote {path}")
    return 0


def badges(arguments) -> int:
    from authoring import readme

    for path in readme.set_repository(arguments.repo):
        say(f"wrote {path}")
    return 0


def record(arguments) -> int:
    from authoring import outputs

    say(str(outputs.record(arguments.notebook)))
    return 0


def add(verb) -> None:
    """Add these commands: `verb(function, name, help)` gives the parser of each."""
    one = verb(notebooks, "notebooks", "build the notebooks from their sources and refresh their outputs")
    one.add_argument("--sources-only", action="store_true", help="do not run them")
    one.add_argument("labs", nargs="*", metavar="LAB", help="run only these")
    two = verb(badges, "badges", "write the repository's public address into README and notebooks")
    two.add_argument("repo", metavar="OWNER/NAME")
    three = verb(record, "record", "pack the runs that an executed notebook used into data/results, to be committed")
    three.add_argument("notebook", metavar="NOTEBOOK")
