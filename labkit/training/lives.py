"""The life of a rank that `labkit.training.ranks` has started, and what the launcher hears of it: a result, an
exception, or how it ended. Both sides meet in a pipe, and in a folder of what each rank wrote."""

import contextlib
import faulthandler
import linecache
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

from labkit.errors import WorkError

GRACE = 2.0  # seconds in which the others may report after one rank has failed
PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")


class RanksError(WorkError):
    """A run of ranks failed. `reports` holds, by rank, what each that failed or was stopped had to say."""

    def __init__(self, message: str, reports: dict[int, str]):
        super().__init__("\n\n".join([message, *(f"-- rank {rank}: {text}" for rank, text in sorted(reports.items()))]))
        self.reports = reports


@dataclass(frozen=True)
class Failure:
    """In the place of the result of a rank that failed while others went on."""

    rank: int
    reason: str


def live(pipe, call: bytes, shared: dict, rank: int, size: int, folder: str, settings: dict, threads: int,
         timeout: float) -> None:
    """The life of one rank, in its own process."""
    os.environ.clear()
    os.environ.update({name: value for name, value in settings.items() if value})
    with contextlib.suppress(AttributeError, OSError):
        os.setsid()  # Ctrl-C is the launcher's to handle: it stops every rank, and what that has started
    threading.Thread(target=_end_with_launcher, args=(folder,), daemon=True).start()
    for number, name in ((1, "out"), (2, "err")):
        with open(Path(folder) / f"{rank}.{name}", "wb") as file:
            os.dup2(file.fileno(), number)
    stack = open(Path(folder) / f"{rank}.stack", "w")  # noqa: SIM115 - faulthandler needs it open until the end
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(str(Path(folder) / "meet"), size), rank=rank,
                                world_size=size, timeout=timedelta(seconds=timeout + 10))  # the launcher is first
        fn, args, kwargs = pickle.loads(call)
        result = fn(*args, **kwargs, **shared)
        try:
            report = pickle.dumps((True, result))
        except Exception as error:  # whatever pickling may raise
            raise TypeError(f"what {fn} returned cannot be sent to another process: {error}") from None
    except BaseException as error:  # SystemExit too: whatever ended this rank has to be told
        lines = [line for line in traceback.format_exception(error) if __file__ not in line]
        report = pickle.dumps((False, ("".join(lines).strip(), f"{type(error).__name__}: {error}".splitlines()[0])))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # fn may have closed or replaced it
            stream.flush()
    pipe.send_bytes(report)
    pipe.close()
    with contextlib.suppress(Exception):  # the result is out; a peer that fails now is its own story
        dist.barrier()
        dist.destroy_process_group()


def _end_with_launcher(folder: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder, ignore_errors=True)  # the launcher had no time to
        with contextlib.suppress(AttributeError, OSError):
            os.killpg(0, signal.SIGKILL)  # this rank is the first of its group
        os._exit(1)


def collect(pipes, processes, folder: Path, timeout: float, survivors: bool) -> list:
    """Every rank's result, or a RanksError as soon as it is clear that there will not be one."""
    deadline, began = time.monotonic() + timeout, time.monotonic()
    results, reports, waiting = {}, {}, dict(enumerate(pipes))
    cause, limit = None, deadline
    while waiting and (left := limit - time.monotonic()) > 0:
        ready = connection.wait(list(waiting.values()), left)
        for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
            try:
                done, value = pickle.loads(waiting.pop(rank).recv_bytes())
            except (EOFError, ConnectionError):  # it closed its end without a word
                processes[rank].join(GRACE)
                done, value = False, ("", _ending(processes[rank].exitcode))
            except Exception as error:  # whatever unpickling may raise
                done, value = False, ("", f"its result cannot be read here: {type(error).__name__}: {error}")
            if done:
                results[rank] = value
                continue
            text, line = value
            tail = (folder / f"{rank}.err").read_text(errors="replace")[-2000:].strip() if not text else ""
            reports[rank] = text or "\n".join(filter(None, [line, tail]))
            secondary = any(sign in line for sign in PEER)
            if cause is None or (cause[2] and not secondary):
                cause = (rank, line, secondary)
            if survivors:
                results[rank] = Failure(rank, line)
            else:
                limit = min(limit, time.monotonic() + GRACE)
    if survivors:
        results |= {rank: Failure(rank, f"it had not finished after {timeout:g} s") for rank in waiting}
    if len(results) == len(pipes):
        return [results[rank] for rank in range(len(pipes))]
    places = _where({rank: processes[rank] for rank in waiting}, folder)
    for rank, place in places.items():
        reports[rank] = f"stopped by the launcher; it was at\n{place}"
    size = len(pipes)
    if cause is None:
        raise RanksError(f"after {time.monotonic() - began:.0f} s {_late(places, sorted(results), size)}; "
                         "look where each one waits, or raise timeout", reports)
    raise RanksError(f"rank {cause[0]} of {size} failed: {cause[1]}; all ranks were stopped", reports)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return (f"it ended with exit status {code} and no result (if the call of run_ranks is in a script, it has to be "
            'under if __name__ == "__main__":)')


def _late(places: dict[int, str], ended: list[int], size: int) -> str:
    """Who was late, and who only waited for others: in a collective, in `wait()`, or in backward, where DDP waits."""
    frames = {rank: re.match(r'\s*File "(.+)", line (\d+) in (\w+)', place) for rank, place in places.items()}
    idle = [rank for rank, at in frames.items() if at and (
        "torch/distributed/" in at[1] or at[3] == "_engine_run_backward"
        or ".wait(" in linecache.getline(at[1], int(at[2])))]
    busy, told = [rank for rank in places if rank not in idle or not all(frames.values())], ""
    if 0 < len(busy) < len(places):
        told = f"; rank {str(idle)[1:-1]} waited for it"
    elif ended and not busy:
        told = f"; rank {str(ended)[1:-1]} had ended: do all have as many batches? See labkit.training.even_steps"
    return f"rank {str(busy or idle)[1:-1]} of {size} had not finished and was stopped{told}"


def _where(processes: dict, folder: Path) -> dict[int, str]:
    """The Python stacks of ranks that do not answer."""
    for process in processes.values() if hasattr(faulthandler, "register") else ():
        with contextlib.suppress(OSError, TypeError):  # it may end at this moment
            os.kill(process.pid, signal.SIGUSR1)
    files = {rank: folder / f"{rank}.stack" for rank in processes}
    patience = time.monotonic() + 1.0
    while time.monotonic() < patience and not all(file.stat().st_size for file in files.values()):
        time.sleep(0.05)
    places = {}
    for rank, file in files.items():
        lines = [line for line in file.read_text(errors="replace").splitlines()[1:]
                 if __file__ not in line and "/multiprocessing/" not in line]
        places[rank] = "\n".join(lines) or "an unknown place"
    return places


def replay(folder: Path, size: int) -> None:
    """Show what ranks wrote, one rank after the other, where it belongs in this process."""
    for rank in range(size):
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            for line in (folder / f"{rank}.{name}").read_text(errors="replace").splitlines():
                if line.strip() and not line.startswith("[Gloo]"):
                    stream.write(f"[rank {rank}] {line}\n")
