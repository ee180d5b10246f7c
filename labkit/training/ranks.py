"""One way to start ranks: `run_ranks(fn, 4)` calls `fn` on four real processes that can talk, and returns what each
returned. It works again and again in one notebook kernel, in scripts and in tests, and under `torchrun`.

Why it is made so. A forked child of a kernel that has computed with several threads hangs in its first such
computation; a spawned one imports torch for seconds. So ranks are forked from a server process that has imported torch
and done nothing else (`forkserver`; `spawn` where there is none). labkit and your modules are imported anew in every
rank: an edited file counts at the next call. Ranks meet at a file, not at a port, so two runs cannot collide. A rank
whose launcher dies ends itself."""

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import types
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from labkit.errors import RequestError
from labkit.training import lives

Failure, RanksError = lives.Failure, lives.RanksError
# Never labkit: the server would keep its old code. The last two take seconds, once here instead of in every rank.
PRELOAD = ["numpy", "torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.pipelining"]
MODULE = ("{what} is defined in this notebook or on the command line, where other processes cannot import it; write it "
          "to a file (first line of its cell: %%writefile my_ranks.py), run that cell, then use it by: import my_ranks")


def run_ranks(fn: Callable, world_size: int, *args, timeout: float = 60.0, threads: int = 1,
              env: dict[str, str] | None = None, shared: dict | None = None, survivors: bool = False,
              **kwargs) -> list:
    """Call `fn(*args, **kwargs)` on `world_size` processes, with `torch.distributed` (gloo) initialised in each.

    Under `torchrun` this process already is a rank: then `fn` runs here, on the group that torchrun describes.

    Args:
        fn: a function of an importable module. It, its arguments and its results travel by pickle, so every rank has
            its own copies, and tensors come back as such.
        timeout: seconds for the whole run, and of every collective in it.
        threads: of torch in each rank (under torchrun, as it is set there). env: its variables, besides those here.
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
        raise RequestError(f"timeout {timeout} and threads {threads} are out of range; above 0 and at most 1e6 s, and "
                           "1 to 1024")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or "=" in name or "\0" in name + value:
            raise RequestError(f"env: {name!r}: {value!r} is no environment variable; give texts, no = in a name")
    shared = shared or {}
    if any(not isinstance(tensor, torch.Tensor) or tensor.is_cuda or name in kwargs for name, tensor in shared.items()):
        raise RequestError("shared must be CPU tensors by name, and no name may be an argument too")
    if dist.is_torchelastic_launched():
        if shared or survivors or env:
            raise RequestError("shared, survivors and env are for ranks that run_ranks starts, not for torchrun's")
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
                    process = context.Process(target=lives.live, name=f"rank {rank}", args=(
                        theirs, call, shared, rank, world_size, folder, settings, threads, timeout))
                    process.start()
                    theirs.close()
                    pipes.append(mine)
                    processes.append(process)
            results = lives.collect(pipes, processes, Path(folder), timeout, survivors)
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
            lives.replay(Path(folder), world_size)
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
    """Start the server of forks, if it does not run. An interrupt while it still imports would end it."""
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
