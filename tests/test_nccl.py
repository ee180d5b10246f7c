"""The strategies and hooks over NCCL, on as many GPUs as there are (one is enough: then the group has one rank)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
import nccl_ranks  # noqa: E402

GPUS = min(2, torch.cuda.device_count())
needs_gpu = pytest.mark.skipif(not GPUS or not distributed.is_nccl_available(),
                               reason="needs a GPU of NVIDIA and a torch with NCCL")


def trained(folder, ranks, *more):
    """By rank, what `nccl_ranks` left under torchrun."""
    roots = [WORKERS, WORKERS.parents[1], WORKERS.parents[1] / "notebooks"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
               "--nproc-per-node", str(ranks), WORKERS / "nccl_ranks.py", folder, str(ranks), *more]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots)),
                                "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank.{rank}") for rank in range(ranks)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("nccl"), GPUS)


@needs_gpu
@pytest.mark.parametrize("way", nccl_ranks.WAYS)
def test_it_trains_on_gpus_and_goes_on_from_a_checkpoint(runs, way):
    for rank in runs:
        whole, resumed, backend, device = rank[way]
        assert device == "cuda" and backend == ("nccl" if GPUS > 1 else backend) and whole.isfinite().all()
        torch.testing.assert_close(resumed, whole, rtol=0, atol=1e-6)


@needs_gpu
def test_hooks_have_a_group_of_nccl_on_one_gpu_too(runs):
    assert runs[0]["none"][2] == "nccl"


@needs_gpu
@pytest.mark.parametrize("way", [way for way in nccl_ranks.WAYS if way not in ("elastic", "gossip", "local")])
def test_ranks_stay_equal(runs, way):
    assert all(torch.equal(rank[way][0], runs[0][way][0]) for rank in runs)


@needs_gpu
def test_gpus_agree_with_one_another_on_what_they_average(runs):
    torch.testing.assert_close(runs[0]["post-local"][0], runs[0]["none"][0], rtol=0, atol=1e-6)
