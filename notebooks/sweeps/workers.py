"""Where the trials of a sweep are trained: in this process, or on a Ray cluster.

Each is a function of (trials, store, lock, beat) that yields, as they come, keys of the trials with None (the run is in
the store), the lines of the run, BUSY (another sweep is at it) or the text of what failed. A claim to a run is a lock
on one byte of the store's lock file: it ends with the process that holds it, however that ends."""

import contextlib
import importlib.util
import math
import os
import shlex
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

from labkit import machine, paths
from labkit.errors import RequestError
from labkit.runs import Store
from labkit.trial import attempt, elsewhere

ATTEMPTS = 4  # at a trial whose process or machine dies
BUSY = "busy"
CAPS, PLACES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"), ("LABKIT_DATA", "LABKIT_CACHE")
# What of a checkout a cluster is not sent: all but three folders (`?` twice, as Ray calls the checkout itself `.`).
UNSENT = ["/??*", *(f"!/{name}{below}" for name in ("labkit", "notebooks", "data") for below in ("", "/**")),
          "*.ipynb", "__pycache__", "/data/figures", "/data/results"]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}  # Ray reads them as it is imported


def possible(ray: str | None, gpus: float, cuda: bool) -> None:
    """Refuse what `place` cannot do. `cuda`: whether a trial wants a GPU."""
    whole = type(gpus) in (int, float) and 0 <= gpus < math.inf and (gpus <= 1 or gpus == int(gpus))
    for wrong, says in (
        (not whole, f"GPUs per trial must be a fraction of one or a whole number, not {gpus!r}"),
        (ray is None and gpus, "GPUs per trial are shared out by Ray; name a cluster, or leave them away"),
        (ray is not None and bool(gpus) != cuda, "GPUs per trial and recipes with device: cuda belong together; "
                                                 "give both or neither"),
        (ray is not None and importlib.util.find_spec("ray") is None,
         'Ray is not installed; run: pip install "labkit[cluster]"'),
    ):
        if wrong:
            raise RequestError(says)


def place(ray: str | None, gpus: float):
    """The function that trains, as a context manager; entering it connects to the cluster."""
    return contextlib.nullcontext(here) if ray is None else cluster(ray, gpus)


def claim(lock, identity: str) -> bool:
    """Whether this process may train that run: no other one holds it. Where files have no locks, always."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(identity, 16) >> 1)
        except (BlockingIOError, PermissionError):
            return False
    return True


def here(trials: dict, store: Store, lock, beat):
    for key, (trial, _) in trials.items():
        def update(step, steps=trial.recipe.steps, **numbers):
            beat(min(step / steps, 0.999), step=step, **numbers)

        yield key, attempt(trial, store, SimpleNamespace(update=update)) if claim(lock, key[1]) else BUSY


@contextlib.contextmanager
def cluster(address: str, gpus: float):
    """A Ray cluster. A worker that dies is replaced; where Ray is connected already, that connection is used.

    Raises:
        RequestError: nothing answers at this address, or no machine there is large enough for a trial."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    connected, cpus = ray.is_initialized(), machine.thread_cap() or 1
    if not connected:
        connect(ray, address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            raise RequestError(f"no machine of the cluster has the {cpus} CPUs (OMP_NUM_THREADS) and {gpus:g} GPUs of "
                               "a trial; ask for less")
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=ATTEMPTS - 1)(elsewhere)

        def make(trials: dict, store: Store, lock, beat):
            pending = {}
            for key, (trial, header) in trials.items():
                free = claim(lock, key[1])
                if free and store.find(header, anywhere=True) is None:
                    pending[remote.remote(trial)] = key
                else:
                    yield key, None if free else BUSY
            while pending:
                for ready in ray.wait(list(pending), timeout=1.0)[0]:
                    key = pending.pop(ready)
                    try:
                        answer = ray.get(ready)
                    except ray.exceptions.RayError as error:
                        answer = str(error)
                    yield key, answer
                beat()

        yield make
    finally:
        if not connected:
            ray.shutdown()


def connect(ray, address: str) -> None:
    """Connect quietly, with the code of labkit and of the labs sent along, and where data lies, if that is set here."""
    from labkit.datasets import download

    host, _, port = address.rpartition("://")[2].rpartition(":")
    own = {"include_dashboard": False, "object_store_memory": 100_000_000} if address == "local" else {}
    variables = {name: os.environ[name] for name in CAPS if name in os.environ}
    variables |= {name: str(Path(os.environ[name]).expanduser().resolve()) for name in PLACES if os.environ.get(name)}
    if address == "local":  # the sent code lies elsewhere, and would look there
        variables.setdefault("LABKIT_CACHE", str(download.cache_folder()))
    environment = {"working_dir": str(paths.root()), "excludes": UNSENT, "env_vars": variables}
    here = False
    with contextlib.suppress(OSError), socket.socket() as probe:
        here = probe.bind((host.strip("[]"), 0)) is None  # only an address of this machine can be bound
    if here and " " in sys.executable:  # Ray hands it to a shell: no worker would ever start
        environment["py_executable"] = shlex.quote(sys.executable)
    stop = signal.getsignal(signal.SIGTERM)
    try:
        if port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, runtime_env=environment, **own)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise RequestError(f"no Ray cluster answers at {address!r} ({' '.join(str(error).split())[:200]}); allowed: "
                           "auto, local, host:port (one that wants a token: set RAY_AUTH_MODE=token)") from None
    with contextlib.suppress(ValueError, TypeError):
        signal.signal(signal.SIGTERM, stop)  # Ray puts its own handler there
