"""`labkit sweep`."""

import argparse
import sys
from pathlib import Path

from labkit import paths
from labkit.cli import quiet_downloads, say
from labkit.errors import RequestError
from labkit.runs import Store
from sweeps import sweep as sweeps


def sweep(arguments) -> int:
    quiet_downloads()
    if arguments.out is not None and not arguments.out.strip():
        raise RequestError("--out is empty; give a folder")
    store = Store(Path(arguments.out).expanduser() if arguments.out else paths.store())
    outcome = sweeps.run(sweeps.load(arguments.file), store, arguments.ray, arguments.gpus_per_trial)
    for trial, trace in outcome.failed:
        sys.stderr.write(f"labkit: {trial.name} failed:\n{trace.rstrip()}\n")
    say(str(store.folder))
    return 1 if outcome.failed else 0


def add(verb) -> None:
    """Add this command: `verb(function, name, help)` gives its parser."""
    one = verb(sweep, "sweep", "train a grid of recipes that a file describes, here or on a Ray cluster")
    one.formatter_class, one.description = argparse.RawDescriptionHelpFormatter, sweeps.__doc__
    one.add_argument("file", metavar="FILE.yaml")
    one.add_argument("--ray", metavar="ADDRESS", help="auto, local, host:port or ray://host:port")
    one.add_argument("--gpus-per-trial", type=float, default=0, metavar="X", help="under Ray; may be a fraction")
    one.add_argument("--out", metavar="DIR", help="store of runs (default: LABKIT_STORE, or results/runs)")
