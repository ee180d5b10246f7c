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


def run(arguments) -> int:
    from labkit import profiles
    from labkit.paths import lab_part

    quiet_downloads()
    overrides = dict(profiles.parse_setting(text) for text in arguments.set)
    outcome = lab_part("batch", "runner").run([arguments.lab], arguments.profile, arguments.seeds, overrides,
                                              arguments.out, fresh=arguments.fresh)
    for path in [*outcome.notebooks, outcome.report]:
        say(str(path))
    return 0


def reproduce(arguments) -> int:
    from labkit.paths import lab_part

    quiet_downloads()
    labs = [lab.strip() for text in arguments.labs for lab in text.split(",") if lab.strip()]
    if arguments.labs and not labs:
        raise RequestError("--labs names no lab; write numbers with commas between them, such as 07,11, "
                           "or leave it away")
    options = {"jobs": arguments.jobs, "resume": arguments.resume, "fresh": arguments.fresh}
    outcome = lab_part("batch", "runner").run(labs, arguments.profile, arguments.seeds, {}, arguments.out, **options)
    for lab, reason in outcome.failed.items():
        sys.stderr.write(f"labkit: lab {lab} failed: {one_line(reason)}\n")
    say(str(outcome.report))
    return 1 if outcome.failed else 0


def list_labs(arguments) -> int:
    from labkit import course

    measured = course.costs()
    for entry in course.course().values():
        seconds = measured.get(entry.number, {}).get("quick", {}).get("seconds")
        state = "planned" if not entry.exists else f"{seconds:.0f} s" if seconds else "ready"
        say(f"{entry.stem:<28} {state:>8}   {entry.question}")
    return 0


def report(arguments) -> int:
    from labkit.paths import lab_part

    path = lab_part("report", "runner").scoreboard(None if arguments.html is None else Path(arguments.html))
    say(path if isinstance(path, str) else str(path))
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


def notebooks(arguments) -> int:
    from labkit import paths

    for path in paths.lab_part("builder", "authoring").write(paths.notebooks() / "src", paths.notebooks()):
        say(f"built {path}")
    if not arguments.sources_only:
        for path in paths.lab_part("outputs", "authoring").refresh(arguments.labs):
            say(f"kept the outputs of {path}")
    for path in paths.lab_part("readme", "authoring").refresh():
        say(f"wrote {path}")
    return 0


def badges(arguments) -> int:
    from labkit.paths import lab_part

    for path in lab_part("readme", "authoring").set_repository(arguments.repo):
        say(f"wrote {path}")
    return 0


def tta(arguments) -> int:
    from labkit.paths import lab_part

    commands = lab_part("commands", "readers")
    names = {"dawnbench": ("path", "csv", "inference_csv"), "mlperf": ("path", "csv", "runs_csv"),
             "export": ("runs", "to", "out")}
    say(getattr(commands, arguments.source)(*(getattr(arguments, name) for name in names[arguments.source])))
    return 0


def sweep(arguments) -> int:
    from labkit import paths
    from labkit.runs import Store

    quiet_downloads()
    if arguments.out is not None and not arguments.out.strip():
        raise RequestError("--out is empty; give a folder")
    store = Store(Path(arguments.out).expanduser() if arguments.out else paths.store())
    sweep = paths.lab_part("sweep", "sweeps")
    outcome = sweep.run(sweep.load(arguments.file), store, arguments.ray, arguments.gpus_per_trial)
    for trial, trace in outcome.failed:
        sys.stderr.write(f"labkit: {trial.name} failed:\n{trace.rstrip()}\n")
    say(str(store.folder))
    return 1 if outcome.failed else 0


def record(arguments) -> int:
    from labkit.paths import lab_part

    say(str(lab_part("outputs", "authoring").record(arguments.notebook)))
    return 0


def parser() -> Parser:
    from labkit.paths import lab_part, lab_parts

    top = Parser(prog="labkit", description="Measure parallel and large-batch deep learning on the machine you have.")
    top.add_argument("--version", action="version", version=f"labkit {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)

    def verb(function, name, help):
        one = verbs.add_parser(name, help=help, description=help)
        one.set_defaults(function=function)
        return one

    verb(list_labs, "list", "the labs, what each asks and what it cost where it was measured")
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
    three = verb(report, "report", "the scoreboard of claims over recorded runs and your own")
    three.add_argument("--html", default=None, metavar="FILE", help="write it as an HTML page")
    four = verb(data, "data", "list, fetch or verify datasets")
    four.add_argument("action", choices=("list", "fetch", "verify"))
    four.add_argument("names", nargs="*", metavar="NAME")
    five = verb(doctor, "doctor", "measure five numbers of this machine")
    five.add_argument("--long", action="store_true", help="larger measurements")
    six = verb(bench, "bench", "the benchmarks: ratios measured in one run")
    six.add_argument("select", nargs="*", metavar="PYTEST_ARGUMENT")
    seven = verb(notebooks, "notebooks", "build the notebooks from their sources and refresh their outputs")
    seven.add_argument("--sources-only", action="store_true", help="do not run them")
    seven.add_argument("labs", nargs="*", metavar="LAB", help="run only these")
    eight = verb(badges, "badges", "write the repository's public address into README and notebooks")
    eight.add_argument("repo", metavar="OWNER/NAME")
    sources = verb(tta, "tta", "time to accuracy: read public logs, export your runs")
    sources = sources.add_subparsers(dest="source", required=True, metavar="SOURCE", parser_class=Parser)
    one = sources.add_parser("dawnbench", help="entries of the DAWNBench repository, a task folder, or one entry")
    one.add_argument("path", metavar="PATH")
    one.add_argument("--csv", metavar="FILE", help="write the training entries as a table")
    one.add_argument("--inference-csv", metavar="FILE", help="write the inference entries as a table")
    two = sources.add_parser("mlperf", help="a folder of MLPerf Training result logs (v0.5, v0.6, v0.7 and later)")
    two.add_argument("path", metavar="PATH")
    two.add_argument("--csv", metavar="FILE", help="write the systems with their scores as a table")
    two.add_argument("--runs-csv", metavar="FILE", help="write every run as a table")
    three = sources.add_parser("export", help="write your own runs as DAWNBench entries or MLPerf log lines")
    three.add_argument("runs", nargs="+", metavar="RUNS", help=".jsonl or .jsonl.gz files, or folders with such files")
    three.add_argument("--to", required=True, choices=("dawnbench", "mlperf"))
    three.add_argument("--out", required=True, metavar="DIR")
    ten = verb(sweep, "sweep", "train a grid of recipes that a file describes, here or on a Ray cluster")
    if lab_parts("sweep", "sweeps"):  # its text is the help
        ten.description = lab_part("sweep", "sweeps").__doc__
    ten.formatter_class = argparse.RawDescriptionHelpFormatter
    ten.add_argument("file", metavar="FILE.yaml")
    ten.add_argument("--ray", metavar="ADDRESS", help="auto, local, host:port or ray://host:port")
    ten.add_argument("--gpus-per-trial", type=float, default=0, metavar="X", help="under Ray; may be a fraction")
    ten.add_argument("--out", metavar="DIR", help="store of runs (default: LABKIT_STORE, or results/runs)")
    nine = verb(record, "record", "pack the runs that an executed notebook used into data/results, to be committed")
    nine.add_argument("notebook", metavar="NOTEBOOK")
    return top


def whole_number(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 64")
    return int(text)


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
