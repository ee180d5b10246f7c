"""Runs that are really killed in the middle of an epoch go on from their checkpoint exactly: on one process and on two
ranks, with what each rank keeps of its compressed gradients."""

import sys
from pathlib import Path

import pytest
import torch

from labkit.datasets.memory import DeviceBatches
from labkit.training import Resumable
from labkit.training.ranks import RanksError, run_ranks

sys.path.insert(0, str(Path(__file__).parent / "workers"))
import strategy_ranks  # noqa: E402

PRECISE = {"dtype": torch.float64, "precision": "64-true"}
# An epoch has 4 steps. The warm-up of Deep Gradient Compression is at its second of three densities at step 3.
HOOKS = {"topk": {"density": 0.05}, "dgc": {"density": 0.02, "stage": 2}, "onebit": {}, "qsgd": {"levels": 2},
         "powersgd": {}}
WAYS = [("gossip", {"topology": "one-peer"}), *(("ddp", {"hook": hook, **options}) for hook, options in HOOKS.items())]
NAMES = ["gossip", *HOOKS]


def fits(ranks, ways, saved=None, **options):
    """By way, what each rank ended with after 8 steps, from the beginning or from what was `saved`."""
    calls = [(way, {"steps": 8, "every": 3, "resume": path, **options})
             for way, path in zip(ways, saved or [None] * len(ways), strict=True)]
    return list(zip(*run_ranks(strategy_ranks.fits, ranks, calls), strict=True))


def kill(ranks, way, folder, **options):
    """The last rank is killed after step 5; the checkpoint is of step 3."""
    with pytest.raises(RanksError, match=f"rank {ranks - 1} of {ranks} failed: it was killed by SIGKILL"):
        run_ranks(strategy_ranks.fit, ranks, *way, steps=8, every=3, folder=str(folder), watch=(ranks - 1, 5, "dies"),
                  **options)
    assert [path.name for path in folder.glob("*")] == ["step=3.ckpt"]
    return str(folder / "step=3.ckpt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By way: what two ranks ended with in one go, after a kill and a resume, and the checkpoint."""
    saved = [kill(2, way, tmp_path_factory.mktemp("killed"), **PRECISE) for way in WAYS]
    both = fits(2, WAYS, **PRECISE), fits(2, WAYS, saved, **PRECISE)
    return dict(zip(NAMES, zip(*both, saved, strict=True), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_go_on_in_the_middle_of_an_epoch_bit_for_bit(runs, name):
    whole, resumed, _ = runs[name]
    for right, found in zip(whole, resumed, strict=True):
        assert found["step"] == 8 and torch.equal(found["weights"], right["weights"])
        assert found["counted"] == right["counted"]
    if name != "gossip":
        assert torch.equal(resumed[0]["weights"], resumed[1]["weights"])


def test_a_checkpoint_holds_what_each_rank_keeps_by_number_of_the_parameter(runs):
    parameters = len([*strategy_ranks.task().parameters()])
    for name in ("topk", "dgc", "onebit"):
        states = [rank["private"]["state"] for rank in torch.load(runs[name][2])["ranks"]]
        assert [sorted(state["kept"]) for state in states] == [[*range(parameters)]] * 2
        assert not torch.equal(states[0]["kept"][0]["rest"], states[1]["kept"][0]["rest"])
        assert [state["step"] for state in states] == [3, 3]
    states = [rank["private"]["state"] for rank in torch.load(runs["powersgd"][2])["ranks"]]
    assert [state["iter"] for state in states] == [3, 3] and all(state["error_dict"] for state in states)


def test_one_process_goes_on_in_the_middle_of_an_epoch_bit_for_bit(tmp_path):
    [[right]], saved = fits(1, [("auto", {})]), kill(1, ("auto", {}), tmp_path)
    [[found]] = fits(1, [("auto", {})], [saved])
    assert found["step"] == 8 and torch.equal(found["weights"], right["weights"])


# The loader alone


def loader(**options):
    x = torch.arange(40.0).view(-1, 1)
    return Resumable(DeviceBatches(x, torch.arange(40), 10, seed=1, **options))


def read(batches, count=None):
    return [labels.tolist() for _, (_, labels) in zip(range(count or len(batches)), batches, strict=False)]


def test_epochs_are_those_of_the_batches_inside():
    inside, batches = loader().batches, loader()
    assert [read(batches) for _ in range(3)] == [read(inside) for _ in range(3)] and len(batches) == 4
    batches.set_epoch(1)
    inside.set_epoch(1)
    assert read(batches) == read(inside)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8])
def test_after_so_many_batches_the_next_ones_follow(count):
    one, other = loader(), loader()
    everything = [batch for _ in range(5) for batch in read(one)]
    for _ in range(count // 4):
        read(other)
    unfinished = iter(other)
    before = read(unfinished, count % 4) if count % 4 else []
    resumed = loader()
    resumed.load_state_dict(other.state_dict())
    after = [batch for _ in range(3) for batch in read(resumed)]
    assert before == everything[count - len(before) : count] and after == everything[count:][: len(after)]
    assert len(after) == 12 - count % 4


def test_another_epoch_begins_at_its_first_batch():
    one, other = loader(), loader()
    one.load_state_dict({"epoch": 0, "read": 2})
    one.set_epoch(3)
    other.set_epoch(3)
    assert read(one) == read(other)
