"""A worker's end of the parameter server (`parallel.server`), and the messages between the two.

Raw bytes of flat tensors travel over a socket, never pickle, with `FRAME` bytes of headers each."""

import errno
import socket
import struct
import time
from contextlib import suppress
from math import inf
from multiprocessing import AuthenticationError, connection, current_process
from numbers import Integral

import torch

from labkit.errors import RequestError, WorkError
from labkit.training.collectives import blocks
from parallel.checks import MOST_WORKERS, both, number, place, trained

HEADER = struct.Struct("<iiqd")  # kind, worker, words (of PARAMETERS: steps of the server), rate
FRAME = HEADER.size + 4  # the 4 are of `multiprocessing.connection`, for messages below 2 GiB
JOIN, PARAMETERS, GRADIENT, LEAVE, REFUSED = range(5)
# What a message can raise that was cut off or never was one. ValueError: text, or the name of a host, that is none.
BROKEN = (EOFError, OSError, AuthenticationError, AssertionError, struct.error, ValueError, MemoryError, OverflowError)


def send(pipe, kind: int, body=b"", worker: int = 0, words: int = 0, rate: float = 0.0) -> int:
    """Bytes sent: a header, and a flat tensor, bytes or a line of text."""
    if isinstance(body, torch.Tensor):
        body = body.contiguous().view(torch.uint8).numpy().tobytes()
    body = body.encode()[:900] if isinstance(body, str) else body
    pipe.send_bytes(HEADER.pack(kind, worker, words, rate) + body)
    return FRAME + len(body)


def receive(pipe, most: int | None = None) -> tuple[int, int, int, float, bytearray]:
    """kind, worker, words, rate and body (`most`: of so many bytes) of a message. Raises one of `BROKEN`."""
    message = pipe.recv_bytes(None if most is None else HEADER.size + most)
    return *HEADER.unpack_from(message), bytearray(message[HEADER.size :])


def dismiss(pipe, kind: int, why: str) -> None:
    """A last word, if it is still heard."""
    with suppress(OSError):
        send(pipe, kind, why)
    pipe.close()


def open_socket(address) -> socket.socket:
    return socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)


def listening(address, backlog: int) -> socket.socket:
    """A server's socket. RequestError: the address cannot be used."""
    listener = open_socket(address)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except (OSError, ValueError) as error:
        listener.close()
        killed = getattr(error, "errno", 0) == errno.EADDRINUSE and isinstance(address, str)
        raise RequestError(f"address {address} cannot be used ({error}); take another"
                           + ", or remove the file that a killed server left" * killed) from None
    return listener


def prove(sock: socket.socket, authkey: bytes | None, timeout: float, *, server: bool = False):
    """A connection whose reads and writes end within `timeout`, once each side has shown that it knows the authkey."""
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(timeout), int(timeout % 1 * 1e6)))
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pipe, steps = connection.Connection(sock.detach()), (connection.answer_challenge, connection.deliver_challenge)
    for step in reversed(steps) if server else steps:
        step(pipe, authkey or bytes(current_process().authkey))
    return pipe


def meet(sock: socket.socket, authkey: bytes | None, timeout: float) -> tuple:
    """A stranger at the server: (its connection, its first message) or (None, why not)."""
    pipe = None
    try:
        pipe = prove(sock, authkey, timeout, server=True)
        return pipe, receive(pipe, 100)
    except BROKEN as error:
        what = "a first message that cannot be read" if pipe else "a connection without the authkey"
        return None, f"{what} ({type(error).__name__} {error})"


class Client:
    """Worker number `worker` of the server at `address`, or of a list of them in the order of `server.shard`.

    Use it by `with`: an exception is then told to the server as the reason for leaving. `steps` is how many the server
    had made when the parameters were pulled, with shards the fewest of any; `rate` is the (first) server's; `sent` and
    `received` are bytes of gradients and of parameters.

    After an error it has left, as an answer that comes late would be taken for that to the next gradient.

    Raises:
        RequestError: an argument cannot be used, or the server turned this worker away. WorkError: the server stopped,
        is gone, or silent for `timeout`; or this worker has left."""

    def __init__(self, address, worker: int, *, authkey: bytes | None = None, timeout: float = 60.0):
        both(timeout, authkey)
        number("worker", worker, 0, MOST_WORKERS - 1, Integral)
        self.addresses = [place(one) for one in (address if isinstance(address, list) else [address])]
        self.worker, self.authkey, self.timeout, self.parts = worker, authkey, timeout, {}
        self.rate, self.steps, self.sent, self.received = 0.0, 0, 0, 0

    def join(self, flat: torch.Tensor) -> torch.Tensor:
        """The servers' parameters, written over `flat` (1-D, CPU)."""
        if self.parts:
            raise RequestError(f"worker {self.worker} has joined already; make a client for each optimizer")
        number("the number of addresses", len(self.addresses), 1, len(flat), Integral)
        for address, part in zip(self.addresses, blocks(len(flat), len(self.addresses)), strict=True):
            pipe = self._connect(address)
            self.parts[pipe] = part
            with suppress(OSError):  # as below
                send(pipe, JOIN, str(flat.dtype), self.worker, part.stop - part.start)
        return self._pull(flat, RequestError)

    def exchange(self, flat: torch.Tensor, rate: float) -> torch.Tensor:
        """Push the gradient `flat`, to be applied at `rate`; the parameters pulled then, written over it."""
        if not self.parts:
            raise WorkError(f"worker {self.worker} is at no server: it has left, after an error or at the end of "
                            "`with`, or never joined; make a new Client and ServerOptimizer, as another worker")
        for pipe, part in self.parts.items():
            with suppress(OSError):  # what the server said before it went is still to be read
                self.sent += send(pipe, GRADIENT, flat[part], rate=rate)
        return self._pull(flat, WorkError)

    def close(self, why: str = "") -> None:
        """Leave: done, or for the reason given."""
        for pipe in self.parts:
            dismiss(pipe, LEAVE, why)
        self.parts = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close(f"{kind.__name__}: {error}" if kind else "")

    def _connect(self, address):
        end, name = time.monotonic() + self.timeout, f"worker {self.worker}"
        while True:
            sock = open_socket(address)
            try:
                sock.connect(address)
                return prove(sock, self.authkey, self.timeout)
            except AuthenticationError:
                raise RequestError(f"{name}: the server at {address} has another authkey; give both the same") from None
            except BROKEN as error:
                sock.close()
                if time.monotonic() > end:
                    raise WorkError(f"{name}: no server at {address} for {self.timeout:g} s ({error})") from None
                time.sleep(0.02)  # it may be on its way

    def _pull(self, flat: torch.Tensor, refusal: type[Exception]) -> torch.Tensor:
        missing, name, steps, rates = dict(self.parts), f"worker {self.worker}", {}, {}
        try:
            while missing:
                ready = connection.wait(missing, self.timeout)  # in any order: servers must not wait for one another
                if not ready:
                    raise WorkError(f"{name}: the server did not answer for {self.timeout:g} s")
                for pipe in ready:
                    here = flat[missing.pop(pipe)]
                    try:
                        kind, _, steps[pipe], rates[pipe], body = receive(pipe, max(here.nbytes, 1000))
                    except BROKEN as error:
                        raise WorkError(f"{name}: the server is gone ({type(error).__name__} {error})") from None
                    if kind == REFUSED:
                        raise refusal(f"{name}: the server ended this: {body.decode(errors='replace')}")
                    if kind != PARAMETERS or len(body) != here.nbytes:
                        raise WorkError(f"{name}: the server sent message {kind} of {len(body)} bytes, no parameters")
                    here.copy_(torch.frombuffer(body, dtype=flat.dtype))
                    self.received += FRAME + len(body)
        except BaseException as error:
            self.close(f"{type(error).__name__}: {error}")
            raise
        self.steps, self.rate = min(steps.values()), rates[next(iter(self.parts))]
        return flat


class ServerOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` pushes the gradients and pulls the parameters: for a bare loop, Fabric, or a Lightning
    Trainer on one device. `lr` (by default the server's) is the rate sent along, so schedules act.

    Momentum and the like are the server's, and so is resuming: the parameters here are the server's from the beginning.
    Buffers (of BatchNorm) stay local. Frozen parameters (requires_grad=False) are neither sent nor written, here or at
    the server. Others without a gradient count as zeros: weight decay and momentum of the server move them.

    Raises:
        RequestError: groups of different rates (one is sent for all) or one that is NaN, infinite or negative; sparse
        gradients; parameters added, frozen or freed after the start. Else as `Client`."""

    def __init__(self, params, client: Client, lr: float | None = None):
        super().__init__(params, {"lr": lr})
        self.client, self.held = client, self._trained()
        self._write(client.join(torch.cat([p.detach().cpu().reshape(-1) for p in self.held])))
        for group in self.param_groups:
            group["lr"] = client.rate if group["lr"] is None else group["lr"]
        self._rate()

    def add_param_group(self, param_group):
        if hasattr(self, "held"):
            raise RequestError("the server has had its parameters since the start; give the optimizer all at once")
        super().add_param_group(param_group)

    def _trained(self) -> list[torch.Tensor]:
        return trained(p for group in self.param_groups for p in group["params"])

    def _rate(self) -> float:
        rates = sorted({float(group["lr"]) for group in self.param_groups})
        if len(rates) > 1 or not 0 <= rates[0] < inf:
            raise RequestError(f"groups have the rates {', '.join(map(str, rates))}; the server gets one for all "
                               "parameters: give all groups the same, finite, 0 or more")
        return rates[0]

    @torch.no_grad()
    def _write(self, flat: torch.Tensor) -> None:
        for p, part in zip(self.held, flat.split([p.numel() for p in self.held]), strict=True):
            p.copy_(part.view(p.shape))

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if [*map(id, self._trained())] != [*map(id, self.held)]:
            raise RequestError("parameters were frozen or freed after the start, and the server has those of then; "
                               "decide before the optimizer is made")
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.held]
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise RequestError("a gradient is sparse, and the server takes dense ones; e.g. nn.Embedding(sparse=False)")
        flat = torch.cat([gradient.cpu().reshape(-1) for gradient in gradients])
        self._write(self.client.exchange(flat, self._rate()))
        return loss
