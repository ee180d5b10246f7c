"""The parameter server: equal to one process where it must be, and every failure of a worker is survived or named.

Ranks are real processes, really killed and hung. What is about messages, not about processes, runs with the server in a
thread."""

import contextlib
import functools
import math
import multiprocessing
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from labs import server_ranks
from lightning_fabric import Fabric
from torch import nn

from labkit.errors import RequestError, WorkError
from labkit.simulate import events
from parallel import client as wire
from parallel import server
from labkit.training.ranks import Failure, run_ranks
from parallel.kept import sound
from parallel.server import FRAME, Client, ServerError, ServerOptimizer, Update, serve

STEPS, SAMPLES = 6, 24
WORDS = sum(p.numel() for p in server_ranks.network().parameters())


def ranks(folder, workers, steps=STEPS, samples=SAMPLES, *, servers=1, job=server_ranks.train, **options):
    return run_ranks(job, servers + workers, str(folder), steps, samples, servers=servers, **options)


def same(mine, theirs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@contextlib.contextmanager
def running(tmp_path, workers, parameters=None, optimizer=None, **options):
    """A server in a thread: (address, a list that will hold its report, or what it raised)."""
    address, result = str(tmp_path / "s"), []
    parameters = [torch.zeros(3, dtype=torch.float64)] if parameters is None else parameters

    def life():
        try:
            result.append(serve(parameters, optimizer or server_ranks.sgd(0.1), workers, address, authkey=b"key",
                                **{"timeout": 20, **options}))
        except (RequestError, WorkError) as error:
            result.append(error)

    thread = threading.Thread(target=life)
    thread.start()
    try:
        yield address, result
    finally:
        thread.join(30)
        assert not thread.is_alive() and not os.path.exists(address)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def joined(address, worker, words=3, **options):
    """A client that has joined, with no optimizer around it."""
    client = Client(address, worker, **{"authkey": b"key", "timeout": 20, **options})
    client.join(torch.zeros(words, dtype=torch.float64))
    return client


# Semantics: what the parameters are afterwards.

@pytest.mark.parametrize("workers", [2, 4])
def test_synchronous_workers_equal_one_process_at_the_whole_batch(tmp_path, workers):
    report, *others = ranks(tmp_path, workers, momentum=0.9)
    alone = server_ranks.one_process(STEPS, SAMPLES, momentum=0.9)
    assert all((a - b).abs().max() < 1e-10 for a, b in zip(report.parameters, alone, strict=True))
    assert all(same(other["parameters"], report.parameters) for other in others)
    assert report.state["steps"] == STEPS and {update.staleness for update in report.updates} == {0}


@pytest.mark.parametrize("mode", ["synchronous", "ssp"])
def test_a_bound_of_0_and_the_synchronous_server_are_the_rank_ordered_mean_bit_for_bit(tmp_path, mode):
    options = {"momentum": 0.9, "dtype": torch.float32}
    report = ranks(tmp_path, 3, mode=mode, sleeps={0: 0.02, 1: 0.01}, **options)[0]
    assert same(report.parameters, server_ranks.one_process(STEPS, SAMPLES, parts=3, **options))
    assert report.gap == 0


@pytest.mark.parametrize(("mode", "bound"), [("ssp", 1), ("ssp", 3), ("asynchronous", 0)])
def test_clocks_are_at_most_s_apart_and_without_a_bound_further(tmp_path, mode, bound):
    report = ranks(tmp_path, 3, 12, mode=mode, bound=bound, sleeps={2: 0.05})[0]
    assert report.gap == bound if mode == "ssp" else report.gap > 3
    pushed = [0, 0, 0]
    for update in report.updates:  # nobody has pushed number c before all had pushed c - s
        assert mode != "ssp" or update.clock - min(pushed) <= bound
        assert update.clock == pushed[update.worker]
        pushed[update.worker] += 1
    assert pushed == [12, 12, 12]


def test_asynchronous_with_one_worker_is_plain_sgd_exactly(tmp_path):
    options = {"momentum": 0.9, "dtype": torch.float32}
    report = ranks(tmp_path, 1, mode="asynchronous", **options)[0]
    assert same(report.parameters, server_ranks.one_process(STEPS, SAMPLES, **options))


def test_backup_workers_take_the_first_gradients_of_a_step_and_drop_the_late_ones(tmp_path):
    sleeps = {2: 1.5}  # the third is always late: every step is the mean of the first two parts of three
    report = ranks(tmp_path, 3, 50, backup=1, until=STEPS, sleeps=sleeps)[0]
    model = server_ranks.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(STEPS):
        inputs, classes = (part[: SAMPLES * 2 // 3] for part in server_ranks.batch(step, SAMPLES))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
    held = [report.updates[at] for at in range(len(report.updates)) if report.updates[at].staleness is not None]
    assert report.state["steps"] == STEPS and {update.worker for update in held} == {0, 1}
    assert all((a - b).abs().max() < 1e-10 for a, b in zip(report.parameters, model.parameters(), strict=True))
    assert [update.worker for update in report.updates if update.staleness is None] == [2]


def test_a_late_gradient_does_not_complete_a_step(tmp_path):
    servers = []
    with running(tmp_path, 3, backup=1, after=servers.append) as (address, result):
        with joined(address, 0) as one, joined(address, 1) as other, joined(address, 2) as late:
            first = threading.Thread(target=lambda: [one.exchange(vector(1, 0, 0), 0.1) for _ in range(3)])
            first.start()
            for _ in range(2):  # with worker 0's: steps 0 and 1
                other.exchange(vector(0, 1, 0), 0.1)
            while len(servers[0].seen.updates) < 5:  # until worker 0 has pushed for step 2
                time.sleep(0.01)
            assert late.exchange(vector(9, 9, 9), 0.1).tolist() == [-0.1, -0.1, 0] and late.steps == 2
            late.exchange(vector(0, 0, 1), 0.1)  # in time for step 2
            first.join(20)
    assert result[0].parameters[0].tolist() == pytest.approx([-0.15, -0.1, -0.05])
    assert [update.staleness for update in result[0].updates] == [0, 0, 0, 0, 0, None, 0]
    assert [update.clock for update in result[0].updates[5:]] == [0, 2]


def test_a_backup_worker_that_comes_late_takes_part_in_the_current_step(tmp_path):
    with running(tmp_path, 3, backup=1) as (address, result):
        with joined(address, 0) as one:
            other = joined(address, 1)
            first = threading.Thread(target=lambda: [one.exchange(vector(1, 0, 0), 0.1) for _ in range(3)])
            first.start()
            for _ in range(2):
                other.exchange(vector(0, 1, 0), 0.1)
            other.close("broken")  # now both that are left are needed
            with joined(address, 2) as late:
                assert late.steps == 2
                late.exchange(vector(0, 0, 1), 0.1)
                first.join(20)
    assert result[0].parameters[0].tolist() == pytest.approx([-0.15, -0.1, -0.05]) and result[0].state["steps"] == 3


def test_shards_equal_the_central_server_and_each_moves_its_share_of_the_bytes(tmp_path):
    workers, servers = 2, 2
    found = ranks(tmp_path, workers, servers=servers, momentum=0.9)
    parts = torch.cat([part for report in found[:servers] for part in report.parameters])
    alone = server_ranks.one_process(STEPS, SAMPLES, parts=workers, momentum=0.9)
    assert torch.equal(parts, torch.cat([p.reshape(-1) for p in alone]))
    message = 8 * WORDS / servers + FRAME
    for report in found[:servers]:  # 2 (V / S + FRAME) per worker and step, and the parameters once at the start
        assert (report.received, report.sent) == (workers * STEPS * message, workers * (STEPS + 1) * message)
    for worker in found[servers:]:
        assert (worker["sent"], worker["received"]) == (servers * STEPS * message, servers * (STEPS + 1) * message)


def test_staleness_of_real_workers_agrees_with_the_simulator(tmp_path):
    slow, steps = 3, 16
    report = ranks(tmp_path, 4, 10**6, mode="asynchronous", until=4 * steps,
                   sleeps={worker: 0.02 * (slow if worker == 3 else 1) for worker in range(4)})[0]
    real = [update.staleness for update in report.updates]
    assert real == [at - update.read for at, update in enumerate(report.updates)]  # one gradient, one step
    plan = events.asynchronous(4, len(real), events.Compute(mean=0.02, slow={3: slow}))

    def histogram(staleness):
        few, old = sum(tau <= 4 for tau in staleness), sum(tau > 4 for tau in staleness)
        return few / len(staleness), old / len(staleness), sum(staleness) / len(staleness)

    for mine, theirs, near in zip(histogram(real), histogram(plan.staleness.tolist()), (0.15, 0.15, 0.5), strict=True):
        assert mine == pytest.approx(theirs, abs=near)
    assert sum(real) / len(real) == pytest.approx(3, abs=0.5)  # P - 1, whoever is slow


def test_a_gradient_is_divided_by_its_staleness_and_its_delay_compensated(tmp_path):
    start, a, b = vector(1, -2, 3), vector(1, 1, 1), vector(-2, 0.5, 1)
    with running(tmp_path, 2, [start], mode="asynchronous", aware=True, compensate=0.5) as (address, result):
        with joined(address, 0) as one, joined(address, 1) as other:
            first = one.exchange(a.clone(), 0.1)
            second = one.exchange(a.clone(), 0.1)
            third = other.exchange(b.clone(), 0.1)
    assert torch.equal(first, start - 0.1 * a) and torch.equal(second, first - 0.1 * a)
    compensated = b + 0.5 * b * b * (second - start)
    assert torch.allclose(third, second - 0.1 * compensated / 2, rtol=1e-14, atol=0)
    assert [update.staleness for update in result[0].updates] == [0, 0, 2]


def test_a_server_goes_on_from_the_state_of_another(tmp_path):
    options = {"momentum": 0.9, "dtype": torch.float32}
    half = ranks(tmp_path, 2, 3, **options)[0]
    whole = ranks(tmp_path, 2, 3, first=3, state=[half.state], **options)[0]
    assert whole.state["steps"] == 6
    assert same(whole.parameters, server_ranks.one_process(6, SAMPLES, parts=2, **options))


def test_workers_with_fewer_gradients_leave_and_hang_nobody(tmp_path):
    report = ranks(tmp_path, 3, faults={1: (2, "leave")})[0]
    assert report.state["steps"] == STEPS and not report.gone
    assert [sum(update.worker == worker for update in report.updates) for worker in range(3)] == [STEPS, 2, STEPS]


def test_what_follows_the_server_is_told_of_every_step(tmp_path):
    seen = []

    def look(it):
        seen.append((it.steps, it.report().parameters[0].tolist()))

    with running(tmp_path, 1, after=look) as (address, _), joined(address, 0) as client:
        client.exchange(vector(1, 0, 0), 0.5)
        client.exchange(vector(0, 1, 0), 0.25)
        assert client.steps == 2
    assert seen == [(1, [-0.5, 0, 0]), (2, [-0.5, -0.25, 0])]


# Lightning and Fabric: the worker is an ordinary Trainer.


def task_of(recipe):
    data = recipe.load()
    torch.manual_seed(0)
    return recipe.workload.task(recipe, data, recipe.workload.build(recipe, data), ())


def fitted(recipe, optimizer=None, **options):
    """The parameters after a fit, with an optimizer (a function of the task) in place of the recipe's."""
    task = task_of(recipe)
    task.optimizer = optimizer or task.optimizer
    trainer = pl.Trainer(max_steps=recipe.steps, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, **options)
    trainer.fit(task, recipe.workload.loaders(recipe, recipe.load(), 0)[0])
    return [p.detach() for p in task.parameters()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.1}, {"accumulate_grad_batches": 2}])
def test_a_trainer_is_a_worker_and_its_schedule_clipping_and_accumulation_act(tmp_path, tiny, options):
    recipe = tiny(decay="cosine", warmup_steps=4)
    plain = fitted(recipe, lambda task: torch.optim.SGD(task.parameters(), lr=recipe.rate, momentum=0.9), **options)
    start = [p.detach().clone() for p in task_of(recipe).parameters()]
    with running(tmp_path, 1, start, server_ranks.sgd(1.0, 0.9), mode="asynchronous") as (address, result):
        with Client(address, 0, authkey=b"key") as client:
            mine = fitted(recipe, lambda task: ServerOptimizer(task.parameters(), client, lr=recipe.rate), **options)
    assert same(mine, plain) and same(result[0].parameters, plain)
    assert len(result[0].updates) == recipe.steps
    if options:
        assert not same(plain, fitted(recipe))


@pytest.mark.filterwarnings("ignore")
def test_fabric_takes_it_as_any_optimizer(tmp_path):
    fabric, model = Fabric(accelerator="cpu", devices=1), server_ranks.network(torch.float32)
    with running(tmp_path, 1, list(server_ranks.network(torch.float32).parameters())) as (address, _):
        with Client(address, 0, authkey=b"key") as client:
            model, optimizer = fabric.setup(model, ServerOptimizer(model.parameters(), client))
            for step in range(3):
                optimizer.zero_grad()
                inputs, classes = server_ranks.batch(step, SAMPLES, torch.float32)
                fabric.backward(nn.functional.cross_entropy(model(inputs), classes))
                optimizer.step()
    alone = server_ranks.one_process(3, SAMPLES, rate=0.1, dtype=torch.float32)
    assert same([p.detach() for p in model.parameters()], alone)


# Failures: real processes, killed, hung, or raising.

FAULTS = {"kill": "was cut off: killed", "nan": "sent NaN or infinity as its gradient 2",
          "raise": "stopped: ValueError: the data is broken", "hang": "sent nothing for 1 s"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("mode", "bound"), [("asynchronous", 0), ("ssp", 1)])
def test_an_asynchronous_or_ssp_server_goes_on_without_a_worker_that_fails_and_says_so(tmp_path, mode, bound, fault):
    report, *others = ranks(tmp_path, 3, mode=mode, bound=bound, faults={1: (2, fault)}, patience=1, timeout=5,
                            survivors=True)
    [(worker, second, why)] = report.gone
    assert worker == 1 and second > 0 and why.startswith(FAULTS[fault])
    assert [sum(update.worker == at for update in report.updates) for at in range(3)] == [STEPS, 2, STEPS]
    assert isinstance(others[1], Failure) and not isinstance(others[0], Failure)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_synchronous_server_stops_naming_the_worker_and_so_do_the_others(tmp_path, fault):
    began = time.monotonic()
    found = ranks(tmp_path, 3, job=server_ranks.stopped, faults={1: (2, fault)}, patience=1, timeout=5, survivors=True)
    message, report = found[0]
    assert message.startswith(f"worker 1 of 3 {FAULTS[fault]}") and "stopped after 2 steps" in message
    for other in (found[1], found[3]):
        assert f"the server ended this: worker 1 of 3 {FAULTS[fault]}" in other.reason
    assert fault == "hang" or time.monotonic() - began < 5
    again = ranks(tmp_path, 3, STEPS - 2, first=2, state=[report.state])[0]  # and goes on from its last whole step
    assert same(again.parameters, server_ranks.one_process(STEPS, SAMPLES, parts=3))


def test_backup_workers_make_up_for_as_many_failures_and_no_more(tmp_path):
    report = ranks(tmp_path, 3, 12, backup=1, until=STEPS, faults={1: (2, "kill")}, survivors=True)[0]
    assert report.state["steps"] >= STEPS and [worker for worker, *_ in report.gone] == [1]
    faults = {1: (2, "kill"), 2: (3, "kill")}
    message, report = ranks(tmp_path, 3, 12, job=server_ranks.stopped, backup=1, faults=faults, survivors=True)[0]
    assert "was cut off" in message and len(report.gone) == 2


def test_where_all_workers_have_failed_the_server_says_so(tmp_path):
    faults = {0: (1, "kill"), 1: (1, "raise")}
    options = {"job": server_ranks.stopped, "mode": "asynchronous", "faults": faults, "survivors": True}
    message, report = ranks(tmp_path, 2, **options)[0]
    assert message.startswith("worker ") and {worker for worker, *_ in report.gone} == {0, 1}


def test_a_worker_that_never_comes_is_waited_for_no_longer_than_the_timeout(tmp_path):
    with running(tmp_path, 2, mode="ssp", timeout=0.5) as (address, result), joined(address, 0) as client:
        client.exchange(vector(1, 1, 1), 0.1)  # s = 0: until worker 1 is given up
    assert [(worker, why) for worker, _, why in result[0].gone] == [(1, "did not connect for 0.5 s")]
    with running(tmp_path, 2, timeout=0.5) as (address, result), joined(address, 0) as client:
        with pytest.raises(WorkError, match="worker 0: the server ended this: worker 1 of 2 did not connect"):
            client.exchange(vector(1, 1, 1), 0.1)
    assert isinstance(result[0], ServerError)


def test_a_message_that_stops_half_way_loses_its_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "STALLED", 0.3)
    with running(tmp_path, 2, mode="asynchronous") as (address, result), joined(address, 0) as good:
        bad = joined(address, 1)
        os.write(next(iter(bad.parts)).fileno(), (1000).to_bytes(4, "big") + b"half")
        good.exchange(vector(1, 1, 1), 0.1)
        with pytest.raises(WorkError, match="worker 1: the server"):
            bad.exchange(vector(1, 1, 1), 0.1)
    assert result[0].gone[0][2].startswith("sent a message that cannot be read, or half of one")
    assert len(result[0].updates) == 1
    bad.close()


def test_nan_may_be_let_through(tmp_path):
    with running(tmp_path, 1, finite=False) as (address, result), joined(address, 0) as client:
        assert client.exchange(vector(math.nan, 0, 1), 0.1).isnan().tolist() == [True, False, False]
    assert not result[0].gone


# Who may come in.


def test_strangers_are_turned_away_in_one_line_and_the_server_goes_on(tmp_path):
    with running(tmp_path, 2) as (address, result):
        with pytest.raises(RequestError, match="worker 0: the server at .* has another authkey; give both the same"):
            joined(address, 0, authkey=b"wrong")
        with pytest.raises(RequestError, match="there are workers 0 to 1, and no 2"):
            joined(address, 2)
        with pytest.raises(RequestError, match="has 4 words of torch.float64, the server 3 words of torch.float64"):
            joined(address, 0, words=4)
        with pytest.raises(RequestError, match="has 3 words of torch.float32, the server 3 words of torch.float64"):
            Client(address, 0, authkey=b"key").join(torch.zeros(3))
        with joined(address, 0), joined(address, 1):
            with pytest.raises(RequestError, match="worker 1 is connected already; give each its own number"):
                joined(address, 1)
    assert len(result[0].refused) == 5 and "authkey" in "".join(result[0].refused) and not result[0].gone


def test_a_worker_that_has_left_does_not_come_back(tmp_path):
    with running(tmp_path, 2) as (address, _), joined(address, 1):
        joined(address, 0).close()
        with pytest.raises(RequestError, match="worker 0 was here before and is gone"):
            joined(address, 0)


def test_peers_that_say_nothing_hold_nobody_up(tmp_path, monkeypatch):
    """Each alone would, one after the other, take 2 s; workers have 4 s to connect, and 5 s to hear from a server."""
    monkeypatch.setattr(server, "STALLED", 2.0)
    with running(tmp_path, 2, timeout=4) as (address, result), contextlib.ExitStack() as peers:
        for number in range(4):
            silent = peers.enter_context(socket.socket(socket.AF_UNIX))
            while True:  # until the server is there
                with contextlib.suppress(OSError):
                    silent.connect(address)
                    break
            if number == 3:
                silent.sendall(b"\0\0")  # and one that stops within its first four bytes
        with joined(address, 0) as one, joined(address, 1) as other:
            thread = threading.Thread(target=one.exchange, args=(vector(1, 1, 1), 0.1))
            thread.start()
            other.exchange(vector(1, 1, 1), 0.1)
            thread.join(20)
    assert len(result[0].updates) == 2 and not result[0].gone


def test_a_peer_that_says_nothing_is_refused_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "STALLED", 0.3)
    servers = []
    with running(tmp_path, 1, after=servers.append) as (address, result), socket.socket(socket.AF_UNIX) as silent:
        with joined(address, 0) as client:
            silent.connect(address)
            client.exchange(vector(1, 1, 1), 0.1)
            while not servers[0].seen.refused:  # the server waits for this worker meanwhile
                time.sleep(0.02)
    assert len(result[0].updates) == 1 and "without the authkey (BlockingIOError" in result[0].refused[0]


def stranger(address, *first):
    """A connection that knows the authkey and begins with these bytes."""
    while True:  # until the server is there
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(address)
            break
        except OSError:
            sock.close()
    pipe = wire.prove(sock, b"key", 20)
    for message in first:
        pipe.send_bytes(message)
    return pipe


@pytest.mark.parametrize(("message", "said"), [
    (wire.HEADER.pack(wire.GRADIENT, 0, 3, 0.1) + b"torch.float64", "a first message is of kind 2, not 0: to join"),
    (wire.HEADER.pack(wire.LEAVE, 0, 3, 0.1) + b"torch.float64", "a first message is of kind 3"),
    (wire.HEADER.pack(-7, 0, 3, 0.1) + b"torch.float64", "a first message is of kind -7"),
    (wire.HEADER.pack(wire.JOIN, 0, 3, 0.1) + b"\xff\xfe", "has 3 words of \ufffd\ufffd, the server 3 words of"),
    (wire.HEADER.pack(wire.JOIN, -1, 3, 0.1) + b"torch.float64", "there are workers 0 to 0, and no -1"),
    (wire.HEADER.pack(wire.JOIN, 0, -3, 0.1) + b"torch.float64", "has -3 words of torch.float64"),
    (b"short", "a first message that cannot be read (error unpack_from requires"), (b"", "a first message that cannot"),
    (bytes(10_000), "a first message that cannot be read (OSError bad message length)")])
def test_a_bad_first_message_is_refused_and_the_server_goes_on(tmp_path, message, said):
    with running(tmp_path, 1) as (address, result):
        pipe = stranger(address, message)
        with contextlib.suppress(EOFError, ConnectionError):  # a refusal in words where the message could be read
            assert wire.receive(pipe)[0] == wire.REFUSED
        pipe.close()
        with joined(address, 0) as client:
            assert client.exchange(vector(1, 1, 1), 0.1).tolist() == [-0.1] * 3
    [refused] = result[0].refused
    assert said in refused and not result[0].gone and len(result[0].updates) == 1


@pytest.mark.parametrize(("kind", "body", "rate", "said"), [
    (wire.GRADIENT, vector(1, 2), 0.1, "broke the protocol: it sent a gradient of 16 bytes; the parameters have 24"),
    (wire.GRADIENT, vector(1, 2, 3, 4), 0.1, "a gradient of 32 bytes"), (wire.GRADIENT, b"123", 0.1, "of 3 bytes"),
    (wire.GRADIENT, b"", 0.1, "a gradient of 0 bytes"),
    (wire.GRADIENT, vector(1, 2, 3), math.nan, "the rate nan; allowed"),
    (wire.GRADIENT, vector(1, 2, 3), -1.0, "the rate -1"), (wire.GRADIENT, vector(1, 2, 3), math.inf, "the rate inf"),
    (wire.GRADIENT, vector(1, 2, 3), 1e307, "the rate 1e+307; allowed: 0 to 1.79769e+305"),
    (wire.JOIN, b"torch.float64", 0.1, "it sent a message of kind 0, where a gradient (2) may come"),
    (99, b"", 0.1, "a message of kind 99"),
    (wire.GRADIENT, bytes(5000), 0.1, "cannot be read, or half of one (OSError"),
    (wire.LEAVE, b"\xff" * 9, 0.1, "stopped: \ufffd")])
def test_a_worker_that_breaks_the_protocol_is_gone_and_the_others_go_on(tmp_path, kind, body, rate, said):
    with running(tmp_path, 2, mode="asynchronous") as (address, result), joined(address, 0) as good:
        bad = joined(address, 1)
        wire.send(next(iter(bad.parts)), kind, body, rate=rate)
        with pytest.raises(WorkError, match="worker 1: the server"):
            bad._pull(torch.zeros(3, dtype=torch.float64), WorkError)
        assert good.exchange(vector(1, 1, 1), 0.1).tolist() == [-0.1] * 3
    [(worker, _, why)] = result[0].gone
    assert worker == 1 and said in why and len(result[0].updates) == 1


@pytest.mark.parametrize(("raw", "said"), [
    (b"\xff" * 100, "OSError bad message length"), (struct.pack("!iQ", -1, 1 << 40), "OSError bad message length"),
    (struct.pack("!i", -5), "unpack_from requires a buffer"), (struct.pack("!i", 3) + b"abc", "unpack_from requires"),
    (struct.pack("!i", 0), "unpack_from requires a buffer"), (struct.pack("!i", 2**31 - 1), "OSError bad message")])
@pytest.mark.parametrize("end", ["server", "client"])
def test_raw_bytes_that_are_no_message_end_that_connection_alone(tmp_path, raw, said, end):
    if end == "server":
        with running(tmp_path, 2, mode="asynchronous") as (address, result), joined(address, 0) as good:
            bad = joined(address, 1)
            os.write(next(iter(bad.parts)).fileno(), raw)
            with pytest.raises(WorkError, match="worker 1: the server"):
                bad._pull(vector(0, 0, 0), WorkError)
            assert good.exchange(vector(1, 1, 1), 0.1).tolist() == [-0.1] * 3
        [(worker, _, why)] = result[0].gone
        assert worker == 1 and why.startswith("sent a message that cannot be read") and said in why
    else:
        client, (here, there) = Client(str(tmp_path / "s"), 1), multiprocessing.Pipe()
        client.parts = {here: slice(0, 3)}
        os.write(there.fileno(), raw)
        with pytest.raises(WorkError, match=f"worker 1: the server is gone .*{said}"):
            client.exchange(vector(1, 2, 3), 0.1)


@pytest.mark.parametrize("error", [MemoryError("no room"), OverflowError("too large"), struct.error("bad")])
def test_whatever_reading_a_message_can_raise_loses_that_worker_alone(tmp_path, monkeypatch, error):
    bad, ends = 1, [multiprocessing.Pipe() for _ in range(2)]
    one = server.Server([vector(0, 0, 0)], server_ranks.sgd(0.1), 2, mode="asynchronous")
    for number, member in one.members.items():
        member.pipe, member.clock = ends[number][0], 0

    def recv_bytes(most):
        raise error

    monkeypatch.setattr(ends[bad][0], "recv_bytes", recv_bytes)
    one._receive(bad, one.members[bad])
    assert one.seen.gone[0][0] == bad and str(error) in one.seen.gone[0][2] and list(one.members) == [0]
    assert str(error) in wire.receive(ends[bad][1])[-1].decode()
    one.close()


@pytest.mark.parametrize("mode", ["synchronous", "ssp"])
def test_a_second_gradient_before_the_answer_is_called_that(tmp_path, mode):
    with running(tmp_path, 2, mode=mode) as (address, result), joined(address, 0) as hasty, joined(address, 1) as good:
        for _ in range(2):
            wire.send(next(iter(hasty.parts)), wire.GRADIENT, vector(1, 1, 1), rate=0.1)
        with pytest.raises(WorkError, match="it sent a second gradient before the answer to its first"):
            hasty._pull(vector(0, 0, 0), WorkError)
        if mode == "ssp":  # what it had pushed is not applied
            assert good.exchange(vector(1, 2, 3), 1.0).tolist() == [-1, -2, -3]
    report = result[0] if mode == "ssp" else result[0].report
    assert [worker for worker, *_ in report.gone] == [0]


def test_a_client_that_has_left_pushes_nothing_and_leaves_the_model_alone(tmp_path):
    p = nn.Parameter(vector(5, 5, 5))
    with running(tmp_path, 1):
        with Client(str(tmp_path / "s"), 0, authkey=b"key") as client:
            optimizer = ServerOptimizer([p], client)
            with pytest.raises(RequestError, match="worker 0 has joined already; make a client for each optimizer"):
                ServerOptimizer([nn.Parameter(vector(1, 1, 1))], client)
            p.grad = vector(1, 2, 3)
            optimizer.step()
        before = p.detach().clone()
        with pytest.raises(WorkError, match="worker 0 is at no server: it has left, after an error or at the end of"):
            optimizer.step()
    assert torch.equal(p.detach(), before) and before.tolist() == pytest.approx([-0.1, -0.2, -0.3])
    with pytest.raises(WorkError, match="or never joined"):
        Client(str(tmp_path / "s"), 0).exchange(vector(1, 2, 3), 0.1)


@pytest.mark.parametrize("error", [WorkError, KeyboardInterrupt])
def test_an_answer_that_comes_late_is_not_taken_for_the_next(tmp_path, monkeypatch, error):
    """After a timeout, or Ctrl-C in a notebook, a further step must not read the answer to the step before."""
    p, slow = nn.Parameter(vector(0, 0, 0)), threading.Event()
    with running(tmp_path, 1, after=lambda _: slow.wait(20)) as (address, result):
        client = Client(address, 0, authkey=b"key", timeout=5)
        optimizer = ServerOptimizer([p], client)
        p.grad = vector(1, 1, 1)
        if error is KeyboardInterrupt:
            monkeypatch.setattr(wire.connection, "wait", interrupting(wire.connection.wait, threading.get_ident()))
        else:
            client.timeout = 0.2
        with pytest.raises(error):
            optimizer.step()
        monkeypatch.undo()
        slow.set()
        with pytest.raises(WorkError, match="worker 0 is at no server"):
            optimizer.step()
    assert p.tolist() == [0, 0, 0] and isinstance(result[0], ServerError)


def interrupting(wait, thread):
    """Ctrl-C in that thread alone: the server's lies in another."""

    def interrupted(*arguments):
        if threading.get_ident() == thread:
            raise KeyboardInterrupt
        return wait(*arguments)

    return interrupted


# What is kept stays finite.

HUGE = torch.tensor([3e38, 0, 0])  # finite in float32; ten times of it is not


@pytest.mark.parametrize("make", [server_ranks.sgd(0.1, 0.9), lambda p: torch.optim.Adam(p, lr=0.1)])
def test_a_finite_gradient_that_makes_the_server_infinite_is_undone_and_its_worker_is_gone(tmp_path, make):
    """With Adam the parameters stay finite and the square of the gradient does not."""
    start, gradient = [torch.zeros(3)], torch.ones(3)
    with running(tmp_path, 2, start, make, mode="asynchronous") as (address, result):
        with Client(address, 0, authkey=b"key") as good, Client(address, 1, authkey=b"key") as bad:
            good.join(torch.zeros(3))
            bad.join(torch.zeros(3))
            good.exchange(gradient.clone(), 0.1)
            with pytest.raises(WorkError, match=r"worker 1 of 2 sent the largest gradient, 3e\+38, of .* at rate 10"):
                bad.exchange(HUGE.clone(), 10.0)
            last = good.exchange(gradient.clone(), 0.1)
    report, p = result[0], torch.zeros(3, requires_grad=True)
    optimizer = make([p])
    for _ in range(2):  # as if the other had never been, its momentum included
        p.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(last, p.detach()) and [worker for worker, *_ in report.gone] == [1]
    assert report.state["steps"] == 2 and [update.staleness for update in report.updates] == [0, None, 0]


def test_a_synchronous_server_names_who_made_it_infinite_and_its_state_goes_on(tmp_path):
    with running(tmp_path, 2, [torch.zeros(3)], server_ranks.sgd(10.0)) as (address, result):
        clients = [Client(address, worker, authkey=b"key") for worker in range(2)]
        for client in clients:
            client.join(torch.zeros(3))
        wire.send(next(iter(clients[0].parts)), wire.GRADIENT, torch.ones(3), rate=10.0)
        with pytest.raises(WorkError, match="worker 1 of 2 sent the largest gradient"):
            clients[1].exchange(HUGE.clone(), 10.0)
        with pytest.raises(WorkError, match="worker 1 of 2 sent the largest gradient"):
            clients[0]._pull(torch.zeros(3), WorkError)
    report = result[0].report
    assert report.parameters[0].tolist() == report.state["parameters"][0].tolist() == [0, 0, 0]
    assert [worker for worker, *_ in report.gone] == [1] and report.state["steps"] == 0
    with running(tmp_path, 1, [torch.ones(3)], state=report.state) as (address, _):
        with Client(address, 0, authkey=b"key") as client:
            assert client.join(torch.ones(3)).tolist() == [0, 0, 0]


def test_a_backup_server_makes_the_step_without_the_one_that_made_it_infinite(tmp_path):
    with running(tmp_path, 3, [torch.zeros(3)], backup=1) as (address, result):
        clients = [Client(address, worker, authkey=b"key") for worker in range(3)]
        for client in clients:
            client.join(torch.zeros(3))
        for client, body in zip(clients, (torch.ones(3), HUGE), strict=False):
            wire.send(next(iter(client.parts)), wire.GRADIENT, body, rate=10.0)
        with pytest.raises(WorkError, match="worker 1 of 3 sent the largest gradient"):
            clients[1]._pull(torch.zeros(3), WorkError)
        assert clients[2].exchange(3 * torch.ones(3), 10.0).tolist() == [-20.0] * 3  # the mean of 1 and 3
        assert clients[0]._pull(torch.zeros(3), WorkError).tolist() == [-20.0] * 3
        for client in clients:
            client.close()
    assert result[0].state["steps"] == 1
    assert {update.worker: update.staleness for update in result[0].updates} == {0: 0, 1: None, 2: 0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64,
                                   torch.bool])
def test_sound_is_what_is_finite(dtype):
    top = 1 if dtype == torch.bool else (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    for value in (0, 1, top) + ((-top, math.nan, math.inf, -math.inf) if dtype.is_floating_point else ()):
        for tensor in (torch.tensor(value, dtype=dtype), torch.tensor([1] * 5 + [value] * 3, dtype=dtype)):
            assert sound(tensor) == bool(tensor.isfinite().all())
    assert sound(torch.zeros(0, dtype=dtype))


def test_infinity_may_be_let_through(tmp_path):
    with running(tmp_path, 1, [torch.zeros(3)], finite=False) as (address, _):
        with Client(address, 0, authkey=b"key") as client:
            client.join(torch.zeros(3))
            assert client.exchange(HUGE.clone(), 10.0).tolist() == [-math.inf, 0, 0]


# States of other servers.


def made(parameters, optimizer=None, workers=1, **options):
    return server.Server(parameters, optimizer or server_ranks.sgd(0.1, 0.9), workers, **options)


def test_the_state_of_another_model_or_optimizer_is_refused():
    mine = [torch.zeros(3), torch.zeros(2, 3)]
    good = made(mine).report().state
    assert made(mine, state=good).steps == 0
    others = [made([torch.zeros(9)]), made([torch.zeros(3), torch.zeros(3, 2)]), made([p.double() for p in mine]),
              made(mine[:1]), made(mine, lambda p: torch.optim.Adam(p))]
    parameters = [torch.full((3,), math.nan), torch.zeros(2, 3)]
    changes = [{"steps": -1}, {"steps": "x"}, {"parameters": torch.zeros(9)}, {"optimizer": {}}, {"optimizer": None}]
    bad = [other.report().state for other in others] + [{}, [], 5, "state"] + [{**good, **change} for change in changes]
    for state in bad:
        with pytest.raises(RequestError, match="state cannot be gone on from .*; it has to be the state of a report"):
            made(mine, state=state)
    with pytest.raises(RequestError, match="to start from hold NaN or infinity"):
        made(mine, state={**good, "parameters": parameters})
    with pytest.raises(RequestError, match="to start from hold NaN or infinity"):
        made(parameters)
    assert made(parameters, finite=False).steps == 0


def test_going_on_twice_from_one_state_is_the_same_twice(tmp_path):
    """The first to go on must not change the momentum in it."""
    first = made([torch.zeros(3)])
    first.kept.step(torch.ones(3), 0.1)
    state, ends = first.report().state, []
    for _ in range(2):
        one = made([torch.zeros(3)], state=state)
        one.kept.step(torch.ones(3), 0.1)
        ends.append(one.report().parameters[0])
    assert torch.equal(*ends) and ends[0].tolist() == pytest.approx([-0.29] * 3)  # 0.1 + 0.1 (0.9 + 1)


# What is held: trained parameters, and always the same ones.


def test_frozen_parameters_stay_as_they_are_on_both_sides(tmp_path):
    def model():
        one = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
        nn.init.ones_(one[0].weight)
        return one.requires_grad_(True)

    served, mine = model(), model()
    for one in (served, mine):
        one[0].requires_grad_(False)
    frozen = [p.detach().clone() for p in mine[0].parameters()]
    decay = functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    with running(tmp_path, 1, list(served.parameters()), decay) as (address, result):
        with Client(address, 0, authkey=b"key") as client:
            optimizer = ServerOptimizer(mine.parameters(), client)
            mine(torch.ones(1, 2).double()).sum().backward()
            optimizer.step()
            assert client.sent == 3 * 8 + FRAME
    assert same([p.detach() for p in mine[0].parameters()], frozen)
    assert same(result[0].parameters, [p.detach() for p in mine[1].parameters()]) and len(result[0].parameters) == 2
    assert not same(result[0].parameters, [p.detach() for p in served[1].parameters()])
    with running(tmp_path, 1, [p.detach() for p in served.parameters()]) as (address, _):  # the server knows of none
        with pytest.raises(RequestError, match="the worker has 3 words of torch.float64, the server 9 words"):
            ServerOptimizer(mine.parameters(), Client(address, 0, authkey=b"key"))
        with joined(address, 0, 9):
            pass


def test_what_is_held_cannot_change_after_the_start(tmp_path):
    first, second = nn.Parameter(vector(1)), nn.Parameter(vector(2, 3))
    with running(tmp_path, 1) as (address, result), Client(address, 0, authkey=b"key") as client:
        optimizer = ServerOptimizer([first, second], client)
        with pytest.raises(RequestError, match="the server has had its parameters since the start"):
            optimizer.add_param_group({"params": [nn.Parameter(vector(4))]})
        second.requires_grad_(False)
        with pytest.raises(RequestError, match="parameters were frozen or freed after the start"):
            optimizer.step()
        second.requires_grad_(True)
        optimizer.step()
        second.grad = torch.sparse_coo_tensor([[0]], [1.0], (2,), dtype=torch.float64, check_invariants=True)
        with pytest.raises(RequestError, match="a gradient is sparse, and the server takes dense ones"):
            optimizer.step()
        second.grad, optimizer.param_groups[0]["lr"] = None, math.nan
        with pytest.raises(RequestError, match="groups have the rates nan; .* finite, 0 or more"):
            optimizer.step()
    assert result[0].state["steps"] == 1


@pytest.mark.parametrize(("parameters", "message"), [
    ([], "there is no parameter to train: the list is empty"), ([torch.zeros(0)], "no parameter to train"),
    ([nn.Parameter(torch.zeros(3), requires_grad=False)], "no parameter to train"),
    ([torch.zeros(3), torch.zeros(3).double()], "the parameters are of torch.float32, torch.float64; all have to be"),
    ([torch.zeros(3, dtype=torch.int64)], "the parameters are of torch.int64"),
    ([torch.zeros(3, dtype=torch.complex64)], "the parameters are of torch.complex64"),
    ([torch.zeros(3).to_sparse(), torch.zeros(3)], "torch.float32, torch.sparse_coo")])
def test_parameters_that_cannot_travel_are_refused_at_both_ends(tmp_path, parameters, message):
    with pytest.raises(RequestError, match=message):
        serve(parameters, server_ranks.sgd(), 1, tmp_path / "s")
    with pytest.raises(RequestError, match=message):
        server.shard(parameters, 1)
    if parameters:
        with pytest.raises(RequestError, match=message):
            ServerOptimizer(parameters, Client(tmp_path / "s", 0))


def test_there_are_no_more_shards_than_words(tmp_path):
    for servers in (0, -1, 4, 1.5, "2"):
        with pytest.raises(RequestError, match=f"the number of servers {servers!r} cannot be used; .* from 1 to 3"):
            server.shard([torch.zeros(3)], servers)
    assert [len(part[0]) for part in server.shard([torch.zeros(3)], 3)] == [1, 1, 1]
    for addresses in ([], [str(tmp_path / f"{number}") for number in range(4)]):
        with pytest.raises(RequestError, match="the number of addresses .* from 1 to 3"):
            Client(addresses, 0).join(torch.zeros(3))


def test_an_optimizer_that_needs_a_closure_or_is_already_made_is_refused():
    with pytest.raises(RequestError, match="LBFGS needs a closure, and the data are with the workers"):
        made([torch.zeros(3)], torch.optim.LBFGS)
    with pytest.raises(RequestError, match="the server's optimizer has to be a function of the parameters"):
        made([torch.zeros(3)], torch.optim.SGD([torch.zeros(3)], 0.1))


def test_who_takes_no_parameters_does_not_mix_up_those_of_others(tmp_path):
    """Of four workers the last two have pushed for the next step and wait for one more. Parameters go to the first two;
    the first is gone: it is let go, and only then is the step of the last two made."""
    parameters = [torch.zeros(1, dtype=torch.float64)]
    one = server.Server(parameters, server_ranks.sgd(0.1), 4, backup=2)
    ends = [multiprocessing.Pipe() for _ in range(4)]
    for number, member in one.members.items():
        member.pipe, member.clock = ends[number][0], 0
        if number >= 2:
            member.row, member.gradient = Update(number, 0, 0, 0.0, None), torch.ones(1, dtype=torch.float64)
            member.rate, member.place = 0.1, number - 2
            one.seen.updates.append(member.row)
    one.members[0].clock = one.members[1].clock = -1
    ends[0][1].close()
    one._let_on({number: one.members[number] for number in (0, 1)})
    _, _, steps, _, body = wire.receive(ends[1][1])
    assert (steps, torch.frombuffer(body, dtype=torch.float64).tolist()) == (0, [0.0])
    assert [number for number, *_ in one.seen.gone] == [0] and one.steps == 1
    for late in (2, 3):
        _, _, steps, _, body = wire.receive(ends[late][1])
        assert (steps, torch.frombuffer(body, dtype=torch.float64).tolist()) == (1, [-0.1])
    one.close()


def test_of_several_servers_the_fewest_steps_and_the_rate_of_the_first_are_told(tmp_path):
    """Whichever answers last. The first has made 7 steps before and is slower to answer, then the second."""
    for slow in (0, 1):
        servers, addresses = [], [str(tmp_path / f"{slow}{number}") for number in range(2)]
        for number, address in enumerate(addresses):
            state = {"parameters": [torch.zeros(2).double()], "steps": 7 - 4 * number,
                     "optimizer": torch.optim.SGD([torch.zeros(2)], 0.1 * (1 + number)).state_dict()}
            wait = functools.partial(time.sleep, 0.3 * (number == slow))
            options = {"authkey": b"key", "state": state, "after": lambda _, wait=wait: wait()}
            servers.append(threading.Thread(target=serve, kwargs=options,
                                            args=([torch.zeros(2).double()], server_ranks.sgd(), 1, address)))
            servers[-1].start()
        with Client(addresses, 0, authkey=b"key", timeout=20) as client:
            client.join(torch.zeros(4).double())
            assert (client.steps, client.rate) == (3, pytest.approx(0.1))
            client.exchange(torch.ones(4).double(), 0.5)
            assert (client.steps, client.rate) == (4, 0.5)
        for thread in servers:
            thread.join(20)
            assert not thread.is_alive()


def test_groups_of_different_rates_are_refused(tmp_path):
    with pytest.raises(RequestError, match="the server's optimizer has the rates 0.1, 0.2; workers send one"):
        server.Server([torch.zeros(1), torch.zeros(1)],
                      lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.2}], 0.1), 1)
    first, second = (nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (1, 2))
    with running(tmp_path, 1) as (address, result), Client(address, 0, authkey=b"key") as client:
        optimizer = ServerOptimizer([{"params": [first]}, {"params": [second], "lr": 0.1}], client)
        optimizer.step()  # the server's rate is 0.1, too
        optimizer.param_groups[1]["lr"] = 0.3
        with pytest.raises(RequestError, match="groups have the rates 0.1, 0.3; the server gets one for all"):
            optimizer.step()
    assert result[0].state["steps"] == 1


def test_an_address_may_be_a_host_and_a_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    for _ in range(2):  # again at once: a port that was just in use can be taken
        result = []
        thread = threading.Thread(target=lambda result=result: result.append(
            serve([torch.zeros(3, dtype=torch.float64)], server_ranks.sgd(), 1, address, authkey=b"key")))
        thread.start()
        with joined(address, 0) as client:
            assert client.exchange(vector(1, 2, 3), 1.0).tolist() == [-1, -2, -3]
        thread.join(20)
        assert result[0].state["steps"] == 1


@pytest.mark.parametrize(("options", "message"), [
    ({"mode": "sync"}, "unknown mode 'sync'; allowed: synchronous, ssp, asynchronous"),
    ({"backup": 2}, r"backup \(synchronous, less than the 2 workers\) 2 cannot be used; .* a whole number from 0 to 1"),
    ({"backup": 1, "mode": "ssp"}, "1 cannot be used; it has to be a whole number from 0 to 0"),
    ({"backup": 1.5}, "1.5 cannot be used"), ({"backup": None}, "None cannot be used"),
    ({"bound": -1, "mode": "ssp"}, "bound -1 cannot be used; it has to be a whole number from 0 to inf"),
    ({"bound": math.nan, "mode": "ssp"}, "bound nan"), ({"bound": 1.5, "mode": "ssp"}, "bound 1.5"),
    ({"workers": 0}, "workers 0 cannot be used"), ({"workers": 1.5}, "workers 1.5"),
    ({"workers": True}, "workers True"), ({"workers": "2"}, "workers '2'"),
    ({"compensate": math.nan}, "compensate nan"), ({"compensate": math.inf}, "compensate inf"),
    ({"compensate": -1}, "compensate -1"),
    ({"timeout": math.inf}, r"timeout \(seconds\) inf cannot be used; it has to be a number from 0.001 to 1e\+06"),
    ({"timeout": math.nan}, "nan cannot be used"), ({"timeout": 0}, "0 cannot be used"), ({"timeout": -1}, "-1 cannot"),
    ({"timeout": "5"}, "'5' cannot be used"), ({"timeout": None}, "None cannot be used"),
    ({"authkey": "key"}, "authkey is a str; it has to be bytes"),
])
def test_impossible_options_are_refused_before_anything_starts(tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        serve(**{"parameters": [torch.zeros(3)], "optimizer": server_ranks.sgd(), "workers": 2,
                 "address": tmp_path / "s", **options})
    assert not os.path.exists(tmp_path / "s")
    shared = {name: value for name, value in options.items() if name in ("timeout", "authkey")}
    if shared:
        with pytest.raises(RequestError, match=message):
            Client(tmp_path / "s", 0, **shared)


def test_a_bound_may_be_infinite():
    assert made([torch.zeros(3)], mode="ssp", bound=math.inf).bound == math.inf


@pytest.mark.parametrize("worker", [-1, 1.0, "0", None, 2**31])
def test_a_worker_has_a_number(tmp_path, worker):
    with pytest.raises(RequestError, match="worker .* cannot be used; it has to be a whole number from 0"):
        Client(tmp_path / "s", worker)


def test_an_address_may_be_a_path(tmp_path):
    with running(tmp_path, 1) as (address, _), joined(Path(address), 0):
        pass
    result = []
    thread = threading.Thread(target=lambda: result.append(
        serve([vector(0, 0, 0)], server_ranks.sgd(), 1, tmp_path / "p", authkey=b"key")))
    thread.start()
    with joined([tmp_path / "p"], 0) as client:
        assert client.exchange(vector(1, 2, 3), 1.0).tolist() == [-1, -2, -3]
    thread.join(20)
    assert result[0].state["steps"] == 1 and not (tmp_path / "p").exists()


@pytest.mark.parametrize(("address", "message"), [
    (("127.0.0.1", -1), "port -1 cannot be used; it has to be a whole number from 1 to 65535"),
    (("127.0.0.1", 0), "port 0 cannot"), (("127.0.0.1", 65536), "port 65536 cannot"),
    (("127.0.0.1", "80"), "port '80' cannot"),
    (("127.0.0.1",), "has to be the path of a socket file or a tuple"), ((b"h", 80), "or a tuple .host, port."),
    ("", "has to be the path"), (5, "address 5 cannot be used"), (None, "address None"), (b"path", "address b'path'"),
    ("a\0b", "cannot be used"),
    ("x" * 150, "has 150 bytes; the path of a socket file may have 103: take a shorter one")])
def test_an_address_that_is_none_is_refused_at_both_ends(address, message):
    for start in (lambda: serve([torch.zeros(3)], server_ranks.sgd(), 1, address), lambda: Client(address, 0),
                  lambda: Client([address], 0)):
        with pytest.raises(RequestError, match=message) as found:
            start()
        assert "\n" not in str(found.value) and "killed" not in str(found.value)


def test_a_server_has_one_address_that_exists(tmp_path):
    for address, message in (([str(tmp_path / "s")], "a list of addresses is for the client of several servers"),
                             (tmp_path / "none" / "s", "cannot be used .*No such file.*; take another$"),
                             (("a" * 70 + ".example", 80), r"cannot be used .*; take another$")):
        with pytest.raises(RequestError, match=message):
            serve([torch.zeros(3)], server_ranks.sgd(), 1, address)
    with pytest.raises(WorkError, match="worker 0: no server at"):  # no such host, and not even the name of one
        Client(("a" * 70 + ".example", 80), 0, timeout=0.05).join(torch.zeros(3))


def test_an_address_that_is_taken_or_empty_is_told(tmp_path):
    with running(tmp_path, 1) as (address, _), joined(address, 0):
        with pytest.raises(RequestError, match="address .* cannot be used .*; take another, or remove the file that"):
            serve([torch.zeros(3)], server_ranks.sgd(), 1, address)
        assert os.path.exists(address)
    with pytest.raises(WorkError, match="worker 0: no server at .* for 0.1 s"):
        joined(address, 0, timeout=0.1)


def test_nothing_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with running(tmp_path, 2, mode="asynchronous") as (address, _):
        joined(address, 0).close()
        with pytest.raises(KeyError), joined(address, 1):
            raise KeyError("a worker's own error")
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
