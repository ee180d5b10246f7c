"""What a number was measured on: hardware, software and the machine key that keeps timings of two machines apart."""

import hashlib
import importlib.metadata
import os
import platform
import re
from pathlib import Path

PACKAGES = ("torch", "pytorch-lightning", "numpy", "pandas", "scipy", "papermill")


def cpu_name() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else (platform.processor() or platform.machine())


def memory_gib() -> float | None:
    """Physical memory in GiB, or None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def thread_cap() -> int | None:
    """Threads that `OMP_NUM_THREADS` allows at its outermost level; None where it sets no cap."""
    outermost = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(outermost) or None if outermost.isascii() and outermost.isdecimal() and len(outermost) < 6 else None


def hardware(device: str = "cpu") -> dict:
    """Processor, logical CPUs, thread cap, memory, accelerator.

    Args:
        device: `cpu`, or a torch device such as `cuda:0`, whose name is then read from torch."""
    facts = {"cpu": cpu_name(), "cpus": os.cpu_count() or 1, "threads": thread_cap(), "memory_gib": memory_gib(),
             "device": "cpu"}
    if device.startswith("cuda"):
        import torch

        facts["device"] = torch.cuda.get_device_name(device)
    elif device != "cpu":
        facts["device"] = device
    return facts


def software() -> dict:
    """Versions, read from package metadata so that nothing heavy is imported."""
    versions = {"python": platform.python_version(), "system": platform.system()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def machine_key(facts: dict) -> str:
    """Eight hex digits that tell two machines (or two thread caps) apart."""
    text = "|".join(str(facts.get(part)) for part in ("cpu", "cpus", "threads", "device"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
