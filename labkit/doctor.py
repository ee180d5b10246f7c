"""The doctor: five numbers that decide what parallel training costs on this machine.

Arithmetic, memory, the start of a message, its bytes, the start of a process: the constants of every cost model in the
course. All five are the processor's, under the thread cap that is set, also where there is a GPU. When not to use it:
to rank machines; the peak is what one well-shaped operation reaches through torch, not what the vendor promises."""

import contextlib
import math
import socket
import subprocess
import sys
import time
from statistics import median

from labkit import machine
from labkit.errors import RequestError, WorkError

NUMBERS = (("matrix-multiply peak", "GFLOP/s"), ("memory bandwidth", "GB/s"), ("loopback latency", "us"),
           ("loopback bandwidth", "GB/s"), ("process start", "ms"))
LONG = {"gemm": 2048, "copy_mib": 1024, "repeats": 15}  # at least, where measuring may take its time
PATIENCE = 30.0  # seconds before a second process that does not answer is given up
# The other end of the loopback: 8 bytes say how many bytes follow; they are read, and the 8 bytes go back.
_ECHO = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
block = bytearray(1 << 20)
while head := peer.recv(8, socket.MSG_WAITALL):
    left = int.from_bytes(head, "big")
    while left and (got := peer.recv_into(block, min(left, len(block)))):
        left -= got
    peer.sendall(head)
"""


def measure(quick: bool = True, gemm: int = 1024, copy_mib: int = 256, repeats: int = 5) -> list[tuple]:
    """The five numbers of this machine: (name, value, unit) each, in the order of `NUMBERS`.

    Args:
        quick: False measures at the sizes of `LONG` where those are larger.
        gemm: side of the square float32 matrices.
        copy_mib: MiB copied, an eighth of the memory at most; in the last-level cache, the number is the cache's.
        repeats: measurements of which the median is taken.

    Raises:
        RequestError: a size is less than 1.
        WorkError: the second process cannot be started or reached."""
    sizes = {"gemm": gemm, "copy_mib": copy_mib, "repeats": repeats}
    for name, value in sizes.items():
        if value < 1:
            raise RequestError(f"{name} {value} is out of range; it must be 1 or more")
    gemm, copy_mib, repeats = (value if quick else max(value, LONG[name]) for name, value in sizes.items())
    values = (matrix_multiply(gemm, repeats), memory_bandwidth(copy_mib, repeats), *loopback(repeats),
              process_start(repeats))
    return [(name, value, unit) for (name, unit), value in zip(NUMBERS, values, strict=True)]


def median_seconds(work, repeats: int, least: float = 0.02) -> float:
    """Seconds of one `work()`: the median over `repeats`, each of enough calls to last about `least` seconds.

    Two calls before the clock starts warm caches and allocator."""
    work()
    begin = time.perf_counter()
    work()
    calls = max(1, math.ceil(least / max(time.perf_counter() - begin, 1e-7)))
    samples = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        samples.append((time.perf_counter() - begin) / calls)
    return median(samples)


def matrix_multiply(side: int = 1024, repeats: int = 5) -> float:
    """GFLOP/s of a square float32 matrix product, counted as 2 side^3 operations."""
    import torch

    numbers = torch.Generator().manual_seed(0)  # its own: measuring leaves the reader's random numbers alone
    left, right = (torch.rand(side, side, dtype=torch.float32, generator=numbers) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * side**3 / median_seconds(lambda: torch.mm(left, right, out=out), repeats) / 1e9


def memory_bandwidth(mib: int = 256, repeats: int = 5) -> float:
    """GB/s (10^9 bytes) of a copy, bytes read and bytes written both counted; threads as for the matrix product."""
    import torch

    memory = machine.memory_gib()
    mib = max(1, min(mib, int(memory * 128))) if memory else mib
    source = torch.ones(mib << 18, dtype=torch.float32)
    target = torch.zeros_like(source)  # its pages exist before the clock starts
    return 2 * (mib << 20) / median_seconds(lambda: target.copy_(source), repeats) / 1e9


def loopback(repeats: int = 5, message: int = 16 << 20) -> tuple[float, float]:
    """Latency (us) and bandwidth (GB/s) between two processes over TCP on 127.0.0.1.

    They are alpha and beta of the model seconds = alpha + bytes / beta. Latency is half a round trip of 8 bytes,
    bandwidth is `message` bytes over the time until they are acknowledged.

    Raises:
        WorkError: the second process cannot be started or reached."""
    payload = bytes(message)
    try:
        with _peer() as peer:
            alpha = median_seconds(lambda: _exchange(peer, b""), repeats) / 2
            return 1e6 * alpha, message / median_seconds(lambda: _exchange(peer, payload), repeats) / 1e9
    except OSError as error:
        wanted = "a second Python must be allowed to start and to reach 127.0.0.1"
        raise WorkError(f"loopback could not be measured ({error}); {wanted}") from None


@contextlib.contextmanager
def _peer():
    """A connection to a second process that runs `_ECHO`; both are gone afterwards, whatever happens inside."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        server.settimeout(PATIENCE)
        command = [sys.executable, "-c", _ECHO, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                with server.accept()[0] as peer:
                    peer.settimeout(PATIENCE)
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    yield peer
            finally:
                process.kill()


def _exchange(peer: socket.socket, payload: bytes) -> None:
    head = len(payload).to_bytes(8, "big")
    peer.sendall(head)
    peer.sendall(payload)
    if peer.recv(8) != head:
        raise ConnectionError("the second process ended early")


def process_start(repeats: int = 5) -> float:
    """Milliseconds from asking for a Python process that does nothing until it has ended."""
    return 1e3 * median_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), repeats)
