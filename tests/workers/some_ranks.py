"""Functions that tests run on ranks."""

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import torch
import torch.distributed as dist


def identity(value=None):
    return dist.get_rank(), dist.get_world_size(), torch.get_num_threads(), value


def total(tensor):
    tensor += dist.get_rank()
    dist.all_reduce(tensor)
    return tensor


def raises(who):
    if dist.get_rank() == who:
        raise ArithmeticError(f"nothing works on {who}")
    dist.barrier()


def exits(who):
    if dist.get_rank() == who:
        sys.exit(3)
    dist.barrier()


def dies(who):
    if dist.get_rank() == who:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hangs(who):
    if dist.get_rank() == who:
        time.sleep(1000)
    return dist.get_rank()


def waits_in_a_collective(who):
    if dist.get_rank() != who:
        dist.all_reduce(torch.ones(1))
    return dist.get_rank()


def sleeps_while_others_wait(who):
    if dist.get_rank() == who:
        time.sleep(1000)
    work = dist.all_reduce(torch.ones(1), async_op=dist.get_rank() == 0)
    if work is not None:
        work.wait()


def says(word):
    print(word, dist.get_rank())
    print("trouble", dist.get_rank(), file=sys.stderr)


def environment(name):
    return os.environ.get(name)


def unpicklable():
    return lambda: 0


def product(n):
    """A product large enough that torch would use several threads if it had them."""
    return float((torch.ones(n, n) @ torch.ones(n, n)).sum())


def leaves_pids(folder):
    (Path(folder) / f"{dist.get_rank()}.pid").write_text(str(os.getpid()))
    time.sleep(1000)


def adds_to(counter):
    counter[dist.get_rank()] += 1 + dist.get_rank()
    dist.barrier()
    return float(counter.sum())


def one_fails(how):
    if dist.get_rank() == 1:
        how = {"raise": raises, "die": dies, "hang": hangs}[how]
        how(1)
    return dist.get_rank()


def says_and_raises(word):
    print(word, dist.get_rank(), flush=True)
    dist.barrier()
    raise ArithmeticError("after that")


def of_a_module_of_its_own():
    module = types.ModuleType("known_here_only")
    module.Result = type("Result", (), {"__module__": "known_here_only"})
    sys.modules["known_here_only"] = module
    return module.Result()


def starts_another():
    return subprocess.Popen(["sleep", "300"]).pid


def wait_for_each_other():
    dist.recv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size())


def closes_its_output():
    sys.stdout.close()
    return 1
