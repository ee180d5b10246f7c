"""One way to start ranks: `run_ranks(fn, 4)` calls `fn` on four real processes that can talk, and returns what each
returned. It works again and again in one notebook kernel, in scripts and in tests, and under `torchrun`.

Why it is made so. A forked child of a kernel that has computed with several threads hangs in its first such
computation; a spawned one imports torch for seconds. So ranks are forked from a server process that has imported torch
and done nothing else (`forkserver`; `spawn` where there is none). labkit and your modules are imported anew in every
rank: an edited file counts at the next call. Ranks meet at a file, not at a port, so two runs cannot collide. A rank
whose launcher dies ends itself."""

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

from labkit.errors import RequestError, WorkError

# Never labkit: the server would keep its old code. The last two take seconds, once here instead of in every rank.
PRELOAD = ["numpy", "torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.pipelining"]
GRACE = 2.0  # seconds in which the others may report after one rank has failed
PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")
MODULE = ("{what} is defined in this notebook or on the command line, where other processes cannot import it; write it "
          "to a file (first line of its cell: %%writefile my_ranks.py), run that cell, then use it by: import my_ranks")


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


def run_ranks(fn: Callable, world_size: int, *args, timeout: float = 60.0, threads: int = 1,
              env: dict[str, str] | None = None, shared: dict | None = None, survivors: bool = False,
              **kwargs) -> list:
    """Call `fn(*args, **kwargs)` on `world_size` processes, with `torch.distributed` (gloo) initialised in each.

    Under `torchrun` this process already is a rank: then `fn` runs here, on the group that torchrun describes.

    Args:
        fn: a function of an importable module. It, its arguments and its results travel by pickle, so every rank has
            its own copies, and tensors come back as such.
        timeout: seconds for the whole run, and of every collective in it.
        threads: of torch in each rank (under torchrun, as it is set there). env: environment variables of the ranks, besides those of this process.
        shared: CPU tensors by name, given to `fn` as keyword arguments: one memory for all ranks and for this process,
            into which they are moved for good.
        survivors: a rank that raises, dies or is late does not stop the others; a `Failure` takes its result's place.

    Returns:
        What `fn` returned, by rank. What ranks printed is printed here, in the order of ranks, when all have ended.

    Raises:
        RequestError: `fn` cannot be imported elsewhere, an argument cannot be pickled, a number is out of range, or
            memory is to be shared under torchrun.
        RanksError: a rank raised, died or had not finished in time; all are stopped, and each one's traceback is told.

    When not to use it: to train faster on one machine with one core; for GPUs, where `torchrun` starts a script."""
    import torch
    import torch.distributed as dist

    if type(world_size) is not int or not 1 <= world_size <= 256:
        raise RequestError(f"world_size {world_size!r} is out of range; it must be a whole number from 1 to 256")
    if not 0 < timeout <= 1e6 or type(threads) is not int or not 1 <= threads <= 1024:
        raise RequestError(f"timeout {timeout} and threads {threads} are out of range; above 0 and at most 1e6 s, 1 to 1024")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or "=" in name or "\0" in name + value:
            raise RequestError(f"env: {name!r}: {value!r} is no environment variable; give texts, no = in a name")
    shared = shared or {}
    if any(not isinstance(tensor, torch.Tensor) or tensor.is_cuda or name in kwargs for name, tensor in shared.items()):
        raise RequestError("shared must be CPU tensors by name, and no name may be an argument too")
    if dist.is_torchelastic_launched():
        if shared or survivors or env:
            raise RequestError("shared, survivors and env are for ranks that run_ranks starts itself, not for torchrun's")
        return _under_torchrun(fn, world_size, args, kwargs, timeout)
    call = _pickled(fn, args, kwargs)
    for tensor in shared.values():
        tensor.share_memory_()
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(PRELOAD)
    settings = os.environ | {"GLOO_SOCKET_IFNAME": _loopback(), "OMP_NUM_THREADS": str(threads)} | (env or {})
    with tempfile.TemporaryDirectory(prefix="labkit-ranks-", ignore_cleanup_errors=True) as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            for name in ("out", "err", "stack"):
                (Path(folder) / f"{rank}.{name}").touch()
        try:
            if method == "forkserver":
                _start_server()
            with _main_of(call):
                for rank in range(world_size):
                    mine, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=_rank, name=f"rank {rank}", args=(
                        theirs, call, shared, rank, world_size, folder, settings, threads, timeout))
                    process.start()
                    theirs.close()
                    pipes.append(mine)
                    processes.append(process)
            results = _collect(pipes, processes, Path(folder), timeout, survivors)
        finally:
            for process in processes:
                process.kill()
                with contextlib.suppress(AttributeError, OSError):  # and what it has started itself
                    os.killpg(process.pid, signal.SIGKILL)
            for process in processes:
                process.join()
                process.close()
            for pipe in pipes:
                pipe.close()
            _replay(Path(folder), world_size)
    return results


def _under_torchrun(fn, world_size, args, kwargs, timeout) -> list:
    import torch.distributed as dist

    given = int(os.environ.get("WORLD_SIZE", "1"))
    if given != world_size:
        raise RequestError(f"torchrun started {given} ranks, {world_size} are asked for; "
                           f"start it with --nproc-per-node {world_size}, or that many in all")
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        results: list = [None] * world_size
        dist.all_gather_object(results, fn(*args, **kwargs))
        return results
    finally:
        if ours:
            dist.destroy_process_group()


def _pickled(fn, args, kwargs) -> bytes:
    """The call as bytes. Plain pickle: that of multiprocessing would let ranks share the memory of tensors."""
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", repr(inner))
    if not callable(fn):
        raise RequestError(f"fn must be a function; given: {fn!r}")
    try:
        call = pickle.dumps((fn, args, kwargs))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if getattr(inner, "__module__", "") == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
            raise RequestError(MODULE.format(what=name)) from None
        if "<locals>" in name or "<lambda>" in name:
            raise RequestError(f"{name} is defined inside a function, where other processes cannot import it; "
                               "define it at the top of a module") from None
        raise RequestError(f"the call of {name} cannot be sent to other processes ({error}); give plain values, arrays "
                           "and tensors, and functions of modules") from None
    if b"__main__" in call and not hasattr(sys.modules["__main__"], "__file__"):
        own = getattr(inner, "__module__", "") == "__main__"
        raise RequestError(MODULE.format(what=name if own else f"something that {name} is given"))
    return call


def _start_server() -> None:
    """Start the server of forks, if it does not run. An interrupt that reached it while it still imports would end it."""
    from multiprocessing import forkserver, resource_tracker

    resource_tracker.ensure_running()  # it would lift the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _main_of(call: bytes):
    """Children import the script that is `__main__` again; they need that only where the call names it."""
    main = sys.modules["__main__"]
    if b"__main__" not in call:
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _loopback() -> str:
    return os.environ.get("GLOO_SOCKET_IFNAME") or {"linux": "lo", "darwin": "lo0"}.get(sys.platform, "")


def _rank(pipe, call: bytes, shared: dict, rank: int, size: int, folder: str, settings: dict, threads: int,
          timeout: float) -> None:
    """The life of one rank, in its own process."""
    os.environ.clear()
    os.environ.update({name: value for name, value in settings.items() if value})
    with contextlib.suppress(AttributeError, OSError):
        os.setsid()  # Ctrl-C is the launcher's to handle: it stops every rank, and what that has started
    threading.Thread(target=_end_with_launcher, daemon=True).start()
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


def _end_with_launcher() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        with contextlib.suppress(AttributeError, OSError):
            os.killpg(0, signal.SIGKILL)  # this rank is the first of its group
        os._exit(1)


def _collect(pipes, processes, folder: Path, timeout: float, survivors: bool) -> list:
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
    for rank, place in _where({rank: processes[rank] for rank in waiting}, folder).items():
        reports[rank] = f"stopped by the launcher; it was at\n{place}"
    size = len(pipes)
    if cause is None:
        names = ", ".join(map(str, waiting))
        raise RanksError(f"after {time.monotonic() - began:.0f} s rank {names} of {size} had not finished and was stopped; "
                         "look where each one waits, or raise timeout", reports)
    raise RanksError(f"rank {cause[0]} of {size} failed: {cause[1]}; all ranks were stopped", reports)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return (f"it ended with exit status {code} and no result (if the call of run_ranks is in a script, it has to be under "
            'if __name__ == "__main__":)')


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


def _replay(folder: Path, size: int) -> None:
    """Show what ranks wrote, one rank after the other, where it belongs in this process."""
    for rank in range(size):
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            for line in (folder / f"{rank}.{name}").read_text(errors="replace").splitlines():
                if line.strip() and not line.startswith("[Gloo]"):
                    stream.write(f"[rank {rank}] {line}\n")
