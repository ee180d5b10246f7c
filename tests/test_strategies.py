"""The kit's task unchanged under each Lightning strategy, on two real ranks: equal to a bare loop and to Fabric, with
clipping, accumulation, checkpoints and kills; started by run_ranks, torchrun, as under SLURM, and alone."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit.errors import RequestError
from labkit.training.ranks import RanksError, run_ranks

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
import strategy_ranks  # noqa: E402

METHODS = [("local", {"period": 3}), ("elastic", {"period": 2}), ("gossip", {"topology": "one-peer"})]
NAMES = ["labkit_local_sgd", "labkit_elastic", "labkit_gossip", "labkit_ddp"]


@pytest.fixture(scope="module")
def runs():
    """By method: each rank's Trainer, plain, and with clipping and accumulation; the same in bare loops and Fabric."""
    hard = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    ranks = run_ranks(strategy_ranks.several, 2, {
        "fit": [(way, changes) for way in METHODS for changes in ({}, hard)],
        "loops": [((*way, {"clip": 0.5, "accumulate": 2}), {}) for way in METHODS]})
    return {way[0]: ([rank["fit"][2 * at : 2 * at + 2] for rank in ranks], [rank["loops"][at] for rank in ranks])
            for at, way in enumerate(METHODS)}


@pytest.mark.parametrize("method", ["local", "elastic", "gossip"])
def test_the_trainer_equals_a_bare_loop_and_fabric(runs, method):
    trainers, loops = runs[method]
    for (easy, clipped), loop in zip(trainers, loops, strict=True):
        for place in ("bare", "fabric"):
            assert torch.equal(loop[place][0], easy["weights"]) and torch.equal(loop[place][1], clipped["weights"])
        assert not torch.equal(loop["bare"][0], loop["bare"][1]) and not torch.equal(loop["bare"][1], loop["bare"][2])
    zero, one = (easy for easy, _ in trainers)
    for rank, found in enumerate((zero, one)):
        assert (found["zero"], found["rank"], found["world"], found["step"]) == (rank == 0, rank, 2, 7)
    assert zero["metrics"] == one["metrics"] and "validation_accuracy" in zero["metrics"]
    assert not torch.equal(zero["weights"], one["weights"])  # replicas of their own


@pytest.fixture(scope="module")
def doubles():
    """Two ranks at 64-bit, by name: equal to one process on the whole batch, or not."""
    plain = {"dtype": torch.float64, "precision": "64-true"}
    clipped, accumulated = {"gradient_clip_val": 0.3}, {"batch": 8, "accumulate_grad_batches": 2}
    early = ("local", {"begin": 99})
    calls = {"ddp": (("ddp", {}), plain), "accumulated": (("ddp", {}), plain | accumulated),
             "clipped": (("ddp", {}), plain | clipped), "post-local clipped": (early, plain | clipped),
             "post-local accumulated": (early, plain | accumulated), "every step": (("local", {"period": 1}), plain)}
    ranks = run_ranks(strategy_ranks.fits, 2, [*calls.values()])
    found = {}
    for at, (name, (_, options)) in enumerate(calls.items()):
        alone = strategy_ranks.fit("local", {}, **options)
        found[name] = [made["weights"] for made in (ranks[0][at], ranks[1][at], alone)]
    return found


@pytest.mark.parametrize("name", ["ddp", "accumulated", "clipped", "post-local clipped", "post-local accumulated",
                                  "every step"])
def test_two_ranks_equal_one_process_at_the_whole_batch(doubles, name):
    one, other, alone = doubles[name]
    assert torch.equal(one, other)
    torch.testing.assert_close(one, alone, rtol=0, atol=1e-10)


def test_gradients_are_averaged_once_a_step_however_many_accumulate():
    found = run_ranks(strategy_ranks.several, 2, {"averages": [((1,), {}), ((2,), {})]})
    assert found == [{"averages": [["gradients"] * 4] * 2}] * 2


def test_of_several_optimizers_the_one_that_is_stepped_is_averaged():
    """Two networks that train against each other on two ranks are those of one process on the whole batch."""
    alone = strategy_ranks.adversaries({"begin": 99})[0]
    for weights, averaged, _ in run_ranks(strategy_ranks.adversaries, 2, {"begin": 99}):
        torch.testing.assert_close(weights, alone, rtol=0, atol=1e-10)
        assert averaged == [3] * 10  # weight, bias and which of them are there, once for each of ten steps
    (one, calls, _), (other, *_) = run_ranks(strategy_ranks.adversaries, 2, {"period": 5})
    assert torch.equal(one, other) and calls == [2, 2]  # each at its fifth step


def test_buffers_are_mixed_by_the_first_of_several_optimizers():
    assert strategy_ranks.adversaries({"buffers": True})[2] == [3, 2]
    assert strategy_ranks.adversaries({})[2] == [2, 2]


def test_an_error_while_gradients_accumulate_blocks_no_later_average():
    strategy = strategy_ranks.strategies.LocalSGDStrategy()
    with pytest.raises(ArithmeticError), strategy.block_backward_sync():
        assert strategy.blocked
        raise ArithmeticError
    assert not strategy.blocked


def test_names_are_known_after_one_import():
    code = ("import labkit.training.strategies as known, pytorch_lightning as pl; print([type(pl.Trainer("
            "strategy=name, accelerator='cpu', devices=1, barebones=True).strategy) is kind for name, kind in "
            "(('labkit_local_sgd', known.LocalSGDStrategy), ('labkit_elastic', known.ElasticStrategy), "
            "('labkit_gossip', known.GossipStrategy), ('labkit_ddp', known.HookedDDPStrategy))])")
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.stdout == "[True, True, True, True]\n", done.stderr


def test_names_work_as_classes_do():
    kinds = ("local", "elastic", "gossip", "ddp")
    for found in run_ranks(strategy_ranks.fits, 2, [((way, {}), {"steps": 9}) for way in (*NAMES, *kinds)]):
        for by_name, by_class in zip(found[:4], found[4:], strict=True):
            assert torch.equal(by_name["weights"], by_class["weights"])


def test_compressed_gradients_train_and_ranks_stay_equal():
    hooks = ({}, {"hook": "fp16"}, {"hook": "topk", "density": 0.05})
    plain, half, sparse = zip(*run_ranks(strategy_ranks.fits, 2, [(("ddp", hook), {}) for hook in hooks]), strict=True)
    for found in (plain, half, sparse):
        assert torch.equal(found[0]["weights"], found[1]["weights"])
    assert 0 < (plain[0]["weights"] - half[0]["weights"]).abs().max() < 1e-2
    assert (plain[0]["weights"] - sparse[0]["weights"]).abs().max() > 1e-2


def test_validation_leaves_the_replicas_as_they_are():
    (zero, zero_after), (one, one_after) = run_ranks(strategy_ranks.validated, 2, "gossip", {})
    assert torch.equal(zero, zero_after) and torch.equal(one, one_after) and not torch.equal(zero, one)


def test_logged_values_are_reduced_over_ranks():
    assert run_ranks(strategy_ranks.logged, 2, ["labkit_gossip", "labkit_ddp"]) == [[0.5, 0.5]] * 2


def test_a_killed_run_goes_on_from_its_checkpoint_exactly(tmp_path):
    ways = [*METHODS, ("ddp", {})]
    whole = run_ranks(strategy_ranks.fits, 2, [(way, {"steps": 8}) for way in ways])
    with pytest.raises(RanksError, match="rank 1 of 2 failed: it was killed by SIGKILL"):
        run_ranks(strategy_ranks.fits, 2, [  # the last of them is killed after its sixth step, the others end there
            (way, {"steps": 6, "folder": str(tmp_path / way[0]), "watch": (1, 6, "dies" if way[0] == "ddp" else "")})
            for way in ways])
    assert [path.name for path in (tmp_path / "ddp").glob("*")] == ["step=4.ckpt"]  # one file, of rank 0
    saved = {way[0]: str(tmp_path / way[0] / "step=4.ckpt") for way in ways}
    resumed = run_ranks(strategy_ranks.fits, 2, [(way, {"steps": 8, "resume": saved[way[0]]}) for way in ways])
    for rank in range(2):
        for found, right in zip(resumed[rank], whole[rank], strict=True):
            assert found["step"] == 8 and torch.equal(found["weights"], right["weights"])
    alone = strategy_ranks.fit("gossip", {}, 8, resume=saved["gossip"])
    assert alone["step"] == 8 and alone["weights"].isfinite().all()  # another number of ranks goes on too


def test_a_rank_that_sends_nan_is_named():
    with pytest.raises(RanksError, match="rank 1 of 2 failed: .*rank 1 has gradients that are not finite"):
        run_ranks(strategy_ranks.fit, 2, "ddp", {}, watch=(1, 3, "nan"))


@pytest.mark.parametrize("way", [("local", {"period": 99}), ("elastic", {"period": 99})])
def test_replicas_with_nan_are_not_saved_and_the_checkpoint_before_goes_on(way, tmp_path):
    """No exchange comes after the first step: the check is that of saving, at the end of the second epoch of 4 steps."""
    with pytest.raises(RanksError, match="rank 1 of 2 failed: .*rank 1 has parameters .*finite and saved no check"):
        run_ranks(strategy_ranks.fit, 2, *way, steps=12, folder=str(tmp_path), watch=(1, 5, "nan"))
    assert [path.name for path in tmp_path.glob("*")] == ["step=4.ckpt"]
    whole = run_ranks(strategy_ranks.fit, 2, *way, steps=12)
    resumed = run_ranks(strategy_ranks.fit, 2, *way, steps=12, resume=str(tmp_path / "step=4.ckpt"))
    for found, right in zip(resumed, whole, strict=True):
        assert found["step"] == 12 and torch.equal(found["weights"], right["weights"])


def test_a_fit_does_not_end_well_with_nan():
    with pytest.raises(RanksError, match="rank 1 of 2 failed: .*rank 1 has parameters .*finite and ends with them"):
        run_ranks(strategy_ranks.fit, 2, "local", {"period": 99}, steps=6, watch=(1, 5, "nan"))


@pytest.mark.parametrize("name", ["local", "ddp"])
def test_uneven_shards_are_refused_at_the_start_and_train_when_limited(name):
    with pytest.raises(RanksError, match="RequestError: ranks 0 to 1 have 4, 3 training batches; .*even_steps"):
        run_ranks(strategy_ranks.uneven, 2, name, [4, 3], False, timeout=30)
    assert run_ranks(strategy_ranks.uneven, 2, name, [4, 3], True) == [3, 3]


@pytest.mark.parametrize("name", ["gossip", "ddp"])
def test_a_rank_that_hangs_is_stopped_in_time_with_its_place(name):
    with pytest.raises(RanksError, match="rank 1 of 2 had not finished and was stopped; rank 0 waited for it") as error:
        run_ranks(strategy_ranks.fit, 2, name, {}, watch=(1, 3, "hangs"), timeout=15)
    assert "on_train_batch_end" in error.value.reports[1]


def test_alone_it_is_the_plain_trainer():
    plain = strategy_ranks.trainer("auto", 7)
    module = strategy_ranks.task()
    plain.fit(module, strategy_ranks.batches())
    for name in NAMES[:3]:
        found = strategy_ranks.fit(name, {})
        if name != "labkit_elastic":  # which is drawn to its centre
            assert torch.equal(found["weights"], strategy_ranks.flatten(module.parameters()))
        assert (found["zero"], found["world"]) == (True, 1)
    assert not torch.distributed.is_initialized()


def test_torchrun_starts_the_same_run(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               WORKERS / "strategy_ranks.py", tmp_path / "rank", "1", "2"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    same_as_run_ranks(tmp_path)


def test_slurm_starts_the_same_run(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tasks = []
    for rank in range(2):  # what srun --nodes 1 --ntasks-per-node 2 sets
        slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2",
                 "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "localhost",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        tasks.append(subprocess.Popen([sys.executable, WORKERS / "strategy_ranks.py", tmp_path / "rank", "1", "2"],
                                      env=environment() | {key: str(value) for key, value in slurm.items()},
                                      stderr=subprocess.PIPE, text=True))
    try:
        for process in tasks:
            assert process.wait(120) == 0, process.stderr.read()
    finally:
        for process in tasks:
            process.kill()
            process.communicate()
    same_as_run_ranks(tmp_path)


def environment():
    paths = [Path(__file__).parent.parent, Path(__file__).parent.parent / "notebooks", WORKERS]
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "GLOO_SOCKET_IFNAME": loopback}


def same_as_run_ranks(folder):
    for rank, mine in enumerate(run_ranks(strategy_ranks.fit, 2, "gossip", {})):
        found = torch.load(folder / f"rank.{rank}")
        assert (found["world"], found["zero"], found["step"]) == (2, rank == 0, 7)
        assert torch.equal(found["weights"], mine["weights"])


def test_a_scaler_that_skips_steps_is_refused():
    strategy = strategy_ranks.strategies.GossipStrategy()
    strategy.precision_plugin = SimpleNamespace(scaler=object())
    with pytest.raises(RequestError, match="use bf16-mixed"):
        strategy.setup_optimizers(None)


def test_the_package_gives_strategies_lazily():
    code = "import sys, labkit.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
    import labkit.training

    assert labkit.training.GossipStrategy is strategy_ranks.strategies.GossipStrategy
    with pytest.raises(AttributeError, match="nothing"):
        _ = labkit.training.nothing
