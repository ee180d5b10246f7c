"""`labkit run`, `reproduce` and `report`."""

import argparse
import sys
from pathlib import Path

from labkit import profiles
from labkit.cli import one_line, quiet_downloads, say
from labkit.errors import RequestError


def run(arguments) -> int:
    from runner import batch

    quiet_downloads()
    overrides = dict(profiles.parse_setting(text) for text in arguments.set)
    outcome = batch.run([arguments.lab], arguments.profile, arguments.seeds, overrides, arguments.out,
                        fresh=arguments.fresh)
    for path in [*outcome.notebooks, outcome.report]:
        say(str(path))
    return 0


def reproduce(arguments) -> int:
    from runner import batch

    quiet_downloads()
    labs = [lab.strip() for text in arguments.labs for lab in text.split(",") if lab.strip()]
    if arguments.labs and not labs:
        raise RequestError("--labs names no lab; write numbers with commas between them, such as 07,11, "
                           "or leave it away")
    options = {"jobs": arguments.jobs, "resume": arguments.resume, "fresh": arguments.fresh}
    outcome = batch.run(labs, arguments.profile, arguments.seeds, {}, arguments.out, **options)
    for lab, reason in outcome.failed.items():
        sys.stderr.write(f"labkit: lab {lab} failed: {one_line(reason)}\n")
    say(str(outcome.report))
    return 1 if outcome.failed else 0


def board(arguments) -> int:
    from runner import report

    path = report.scoreboard(None if arguments.html is None else Path(arguments.html))
    say(path if isinstance(path, str) else str(path))
    return 0


def add(verb) -> None:
    """Add these commands: `verb(function, name, help)` gives the parser of each."""
    one = verb(run, "run", "execute one lab's notebook")
    one.add_argument("lab", metavar="LAB", help="number or name, such as 07")
    two = verb(reproduce, "reproduce", "execute all labs and write one report")
    two.add_argument("--labs", action="append", default=[], metavar="LAB[,LAB]", help="only these labs")
    two.add_argument("--jobs", type=whole_number, default=1, metavar="N", help="notebooks at a time (timings want 1)")
    two.add_argument("--resume", action="store_true", help="go on with the newest results folder that was not finished")
    for command in (one, two):
        command.add_argument("--profile", default="quick", help="smoke, quick (default) or full")
        command.add_argument("--seeds", default="0", help="such as 0,1,2")
        command.add_argument("--out", default=None, metavar="DIR",
                             help="folder for executed notebooks and report (default: results/<time>)")
        command.add_argument("--fresh", action="store_true", help="train again what was finished before")
    one.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                     help="change one field of the profile")
    three = verb(board, "report", "the scoreboard of claims over recorded runs and your own")
    three.add_argument("--html", default=None, metavar="FILE", help="write it as an HTML page")


def whole_number(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 64")
    return int(text)
