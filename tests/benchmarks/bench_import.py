"""What `import labkit` costs beyond a bare interpreter."""

import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]


def seconds(code: str) -> tuple[float, float]:
    """Wall and processor seconds of a Python that runs `code`."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_import(request):
    bare, kit = [], []
    seconds("import labkit")
    for _ in range(9):
        bare.append(seconds("pass"))
        kit.append(seconds("import labkit"))
    wall, processor = (median(k[i] - b[i] for k, b in zip(kit, bare, strict=True)) for i in (0, 1))
    request.config.benchmarks.append(
        f"{'import labkit, beyond a bare interpreter':<66} {wall:7.3f} s wall {processor:5.3f} s processor   "
        "aim <= 0.2 s"
    )
