"""A worker's end of the parameter server (`parallel.server`), and the messages between the two.

Raw bytes of flat tensors travel over a socket, never pickle, with `FRAME` bytes of headers each."""

import socket
import struct
import time
from contextlib import suppress
from multiprocessing import AuthenticationError, connection, current_process

import torch

from labkit.errors import RequestError, WorkError
from labkit.training.collectives import blocks

HEADER = struct.Struct("<iiqd")  # kind, worker, words (of PARAMETERS: steps of the server), rate
FRAME = HEADER.size + 4  # the 4 are of `multiprocessing.connection`, for messages below 2 GiB
JOIN, PARAMETERS, GRADIENT, LEAVE, REFUSED = range(5)
BROKEN = (EOFError, OSError, AuthenticationError, AssertionError, struct.error)


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


class Client:
    """Worker number `worker` of the server at `address`, or of a list of them in the order of `server.shard`.

    Use it by `with`: an exception is then told to the server as the reason for leaving. `steps` is how many the server
    had made when the parameters were pulled, with shards the fewest of any; `rate` is the (first) server's; `sent` and
    `received` are bytes of gradients and of parameters.

    Raises:
        RequestError: the server turned this worker away. WorkError: it stopped, is gone, or silent for `timeout`."""

    def __init__(self, address, worker: int, *, authkey: bytes | None = None, timeout: float = 60.0):
        self.addresses = address if isinstance(address, list) else [address]
        self.worker, self.authkey, self.timeout, self.parts = worker, authkey, timeout, {}
        self.rate, self.steps, self.sent, self.received = 0.0, 0, 0, 0

    def join(self, flat: torch.Tensor) -> torch.Tensor:
        """The servers' parameters, written over `flat` (1-D, CPU)."""
        for address, part in zip(self.addresses, blocks(len(flat), len(self.addresses)), strict=True):
            pipe = self._connect(address)
            self.parts[pipe] = part
            send(pipe, JOIN, str(flat.dtype), self.worker, part.stop - part.start)
        return self._pull(flat, RequestError)

    def exchange(self, flat: torch.Tensor, rate: float) -> torch.Tensor:
        """Push the gradient `flat`, to be applied at `rate`; the parameters pulled then, written over it."""
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
        while missing:
            ready = connection.wait(missing, self.timeout)  # in any order: servers must not wait for one another
            if not ready:
                raise WorkError(f"{name}: the server did not answer for {self.timeout:g} s")
            for pipe in ready:
                try:
                    kind, _, steps[pipe], rates[pipe], body = receive(pipe)
                except BROKEN as error:
                    raise WorkError(f"{name}: the server is gone ({type(error).__name__} {error})") from None
                if kind == REFUSED:
                    raise refusal(f"{name}: the server ended this: {body.decode(errors='replace')}")
                flat[missing.pop(pipe)] = torch.frombuffer(body, dtype=flat.dtype)
                self.received += FRAME + len(body)
        self.steps, self.rate = min(steps.values()), rates[next(iter(self.parts))]
        return flat


class ServerOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` pushes the gradients and pulls the parameters: for a bare loop, Fabric, or a Lightning
    Trainer on one device. `lr` (by default the server's) is the rate sent along, so schedules act.

    Momentum and the like are the server's, and so is resuming: the parameters here are the server's from the beginning.
    Buffers (of BatchNorm) stay local. RequestError: groups have different rates; one is sent for all."""

    def __init__(self, params, client: Client, lr: float | None = None):
        super().__init__(params, {"lr": lr})
        self.client, self.held = client, [p for group in self.param_groups for p in group["params"]]
        self._write(client.join(torch.cat([p.detach().cpu().reshape(-1) for p in self.held])))
        for group in self.param_groups:
            group["lr"] = client.rate if group["lr"] is None else group["lr"]
        self._rate()

    def _rate(self) -> float:
        rates = sorted({float(group["lr"]) for group in self.param_groups})
        if len(rates) > 1:
            raise RequestError(f"groups have the rates {', '.join(map(str, rates))}; the server gets one for all "
                               "parameters: give all groups the same")
        return rates[0]

    @torch.no_grad()
    def _write(self, flat: torch.Tensor) -> None:
        for p, part in zip(self.held, flat.split([p.numel() for p in self.held]), strict=True):
            p.copy_(part.view(p.shape))

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = None if closure is None else closure()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.held]
        flat = torch.cat([gradient.cpu().reshape(-1) for gradient in gradients])
        self._write(self.client.exchange(flat, self._rate()))
        return loss
