"""The command line: `labkit ...` and `python -m labkit ...`. Exit 0 done, 1 the work failed, 2 the request was wrong
(one line on standard error, nothing started, nothing written)."""

import os

# Before anything can import torch: idle OpenMP threads that spin make a training step take seconds where a core is
# shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))

import argparse
import contextlib
import signal
import sys
from pathlib import Path

from labkit import __version__
from labkit.errors import RequestError, WorkError, choose


PLUGINS = ("runner", "readers", "sweeps", "authoring")


class Parser(argparse.ArgumentParser):
    """argparse that reports a wrong request as this program does: one line, exit 2."""

    def error(self, message: str):
        raise RequestError(f"{message}; see {self.prog} --help")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def quiet_downloads() -> None:
    """pooch says on standard error what it is about to fetch; here one line says what came of it."""
    import pooch

    pooch.get_logger().setLevel("WARNING")


def list_labs(arguments) -> int:
    from labkit import course

    measured = course.costs()
    for entry in course.course().values():
        seconds = measured.get(entry.number, {}).get("quick", {}).get("seconds")
        state = "planned" if not entry.exists else f"{seconds:.0f} s" if seconds else "ready"
        say(f"{entry.stem:<28} {state:>8}   {entry.question}")
    return 0


def data(arguments) -> int:
    from labkit.datasets import download

    for name in arguments.names:
        choose("dataset", name, download.NAMES)
    if arguments.action == "list":
        for row in download.status():
            if row.name in (arguments.names or download.NAMES):
                say(f"{row.name:<14}  {row.state:<8}  {row.where}")
        return 0
    quiet_downloads()
    names = arguments.names or (download.BUNDLED if arguments.action == "verify" else [])
    if not names:
        raise RequestError(f"labkit data {arguments.action} needs a dataset; allowed: {', '.join(download.NAMES)}")
    for name in names:
        if arguments.action == "fetch":
            download.require(name)
            say(f"{name}: ready")
        else:
            say(f"{name}: {verified(name)}")
    return 0


def verified(name: str) -> str:
    """What was checked: the sums of a downloaded set's files; a bundled set is read whole."""
    from labkit.datasets import download, images

    row = download.verify(name)
    if row.files:
        return f"{len(row.files)} file(s) in {row.where} have the right checksums"
    loaded = images.load(name)
    return f"{len(loaded.train_x)} training and {len(loaded.test_x)} test images are sound"


def doctor(arguments) -> int:
    from labkit import doctor as doctors

    for name, value, unit in doctors.measure(quick=not arguments.long):
        say(f"{name:<34} {value:>12.4g} {unit}")
    return 0


def bench(arguments) -> int:
    import subprocess

    from labkit import paths

    folder = paths.root() / "tests" / "benchmarks"
    command = [sys.executable, *"-m pytest -s -q -p no:cacheprovider".split(), str(folder), *arguments.select]
    return 1 if subprocess.run(command, cwd=paths.root()).returncode else 0


def parser() -> Parser:
    """The commands of this package, and those that the folders of `PLUGINS` beside the notebooks add."""
    from labkit.paths import lab_part, lab_parts

    top = Parser(prog="labkit", description="Measure parallel and large-batch deep learning on the machine you have.")
    top.add_argument("--version", action="version", version=f"labkit {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)

    def verb(function, name, help):
        one = verbs.add_parser(name, help=help, description=help)
        one.set_defaults(function=function)
        return one

    verb(list_labs, "list", "the labs, what each asks and what it cost where it was measured")
    one = verb(data, "data", "list, fetch or verify datasets")
    one.add_argument("action", choices=("list", "fetch", "verify"))
    one.add_argument("names", nargs="*", metavar="NAME")
    two = verb(doctor, "doctor", "measure five numbers of this machine")
    two.add_argument("--long", action="store_true", help="larger measurements")
    three = verb(bench, "bench", "the benchmarks: ratios measured in one run")
    three.add_argument("select", nargs="*", metavar="PYTEST_ARGUMENT")
    for package in PLUGINS:
        if lab_parts("commands", package):
            lab_part("commands", package).add(verb)
    return top


def main(arguments=None) -> int:
    """Run one command; every expected failure is one line on standard error."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # closed by who called
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show stops nothing
    with contextlib.suppress(ValueError, OSError):  # only the main thread may; elsewhere it stays as it is
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop is a stop, whoever asks for it
    try:
        parsed = parser().parse_args(arguments)
        status = parsed.function(parsed)
        sys.stdout.flush()  # so that a reader who has gone is noticed here, not while Python ends
        return status
    except KeyboardInterrupt:
        sys.stderr.write("labkit: stopped; finished runs are kept, the same command goes on from them\n")
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RequestError, WorkError, OSError) as error:
        sys.stderr.write(f"labkit: {one_line(error)}\n")
        return 2 if isinstance(error, RequestError) else 1


def one_line(error: Exception | str) -> str:
    return " ".join(str(error).split())
