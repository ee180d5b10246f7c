"""The doctor: five finite numbers in order, no process or socket left behind."""

import math
import socket
import subprocess

import pytest

from labkit import doctor, machine
from labkit.errors import RequestError, WorkError

SMALL = {"gemm": 64, "copy_mib": 1, "repeats": 2}


@pytest.fixture
def children(monkeypatch):
    """Every process that is started during the test."""
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return started


@pytest.fixture
def sockets(monkeypatch):
    """Every listening socket that is opened during the test, with its address."""
    opened, create = [], socket.create_server

    def noted(address, **options):
        server = create(address, **options)
        opened.append((server, server.getsockname()[0]))
        return server

    monkeypatch.setattr(socket, "create_server", noted)
    return opened


def test_five_numbers_in_order_and_nothing_is_left_behind(children, sockets):
    rows = doctor.measure(**SMALL)
    assert [(name, unit) for name, _, unit in rows] == list(doctor.NUMBERS)
    assert all(math.isfinite(value) and value > 0 for _, value, _ in rows)
    assert children and all(process.returncode is not None for process in children)
    assert [(server.fileno(), host) for server, host in sockets] == [(-1, "127.0.0.1")]


def test_a_child_that_never_answers_is_ended_and_named(children, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE", 0.5)
    monkeypatch.setattr(doctor, "_ECHO", "import time; time.sleep(60)")
    with pytest.raises(WorkError, match="loopback could not be measured .*second Python must be allowed"):
        doctor.loopback(1, message=8)
    assert [process.returncode is not None for process in children] == [True]


def test_a_child_that_hangs_up_is_an_error_not_a_number(children, monkeypatch):
    hang_up = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(8)"
    monkeypatch.setattr(doctor, "_ECHO", hang_up)
    with pytest.raises(WorkError, match="loopback could not be measured"):
        doctor.loopback(1, message=8)
    assert all(process.returncode is not None for process in children)


def test_a_message_larger_than_the_childs_block_arrives_whole():
    with doctor._peer() as peer:
        for size in (0, 1, (1 << 20) + 7, 3 << 20):
            doctor._exchange(peer, bytes(size))  # raises unless the child read exactly `size` bytes and said so


@pytest.mark.parametrize("name", ["gemm", "copy_mib", "repeats"])
def test_a_size_below_one_is_refused_before_anything_starts(name, children):
    with pytest.raises(RequestError, match=f"{name} 0 is out of range; it must be 1 or more"):
        doctor.measure(**{**SMALL, name: 0})
    assert not children


def test_long_measures_at_the_larger_of_both_sizes(monkeypatch):
    seen = []
    monkeypatch.setattr(doctor, "matrix_multiply", lambda side, repeats: seen.append((side, repeats)) or 1.0)
    monkeypatch.setattr(doctor, "memory_bandwidth", lambda mib, repeats: seen.append((mib, repeats)) or 1.0)
    doctor.measure(quick=False, gemm=4096, copy_mib=1, repeats=1)
    assert seen == [(4096, 15), (1024, 15)]


def test_the_copy_takes_at_most_an_eighth_of_the_memory(monkeypatch):
    monkeypatch.setattr(machine, "memory_gib", lambda: 1 / 32)  # of which an eighth is 4 MiB
    monkeypatch.setattr(doctor, "median_seconds", lambda work, repeats: 2.0)
    assert doctor.memory_bandwidth(256, 1) == 2 * (4 << 20) / 2.0 / 1e9


def test_the_median_ignores_one_slow_call_and_the_warm_up(monkeypatch):
    now, cost = [0.0], iter([9.0, 1.0, 1.0, 50.0, 1.0])  # first call, second call, three timings

    def work():
        now[0] += next(cost)

    monkeypatch.setattr(doctor.time, "perf_counter", lambda: now[0])
    assert doctor.median_seconds(work, repeats=3) == 1.0


def test_a_short_call_is_repeated_until_a_timing_lasts(monkeypatch):
    now, calls = [0.0], []

    def work():
        calls.append(1)
        now[0] += 0.001

    monkeypatch.setattr(doctor.time, "perf_counter", lambda: now[0])
    assert doctor.median_seconds(work, repeats=3, least=0.02) == pytest.approx(0.001)
    assert len(calls) == 2 + 3 * 20


def test_measuring_leaves_the_readers_random_numbers_alone():
    import torch

    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    doctor.matrix_multiply(16, 1)
    assert torch.equal(torch.rand(4), wanted)
