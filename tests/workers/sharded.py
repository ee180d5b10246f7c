"""One rank of two that train a small network with LARS and LAMB, sharded by `fully_shard` or replicated by DDP.

Usage: sharded.py OUTPUT with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Rank 0 leaves there the whole weights
after training, and the whole first moment that the optimizer holds; `train(world=1)` is what they should equal.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from labkit.optim import LAMB, LARS
from labkit.optim.groups import parameter_groups
from labkit.optim.schedules import Schedule

RATE = Schedule(peak=1.0, total_steps=20, warmup_steps=5.0, decay="poly", power=2.0)
OPTIMIZERS = {
    "lars": lambda groups: LARS(groups, 0.5, trust_coefficient=0.2, zero_norm="skip"),
    "lars outside": lambda groups: LARS(groups, 0.5, trust_coefficient=0.2, decay="outside", nesterov=True),
    "lamb": lambda groups: LAMB(groups, 0.05, max_grad_norm=0.5),
    "lamb skip": lambda groups: LAMB(groups, 0.05, zero_norm="skip", dialect="nvlamb"),
}
SIZES = {"lars": "momentum_buffer", "lars outside": "momentum_buffer", "lamb": "exp_avg", "lamb skip": "exp_avg"}


def train(name: str, how: str, world: int = 1, rank: int = 0) -> dict[str, torch.Tensor]:
    """20 steps on 24 samples each; 5 and 3 rows do not divide among two ranks, and of 1 row one rank holds nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1), nn.Linear(1, 3)).double()
    x, y = torch.randn(24, 6, dtype=torch.float64), torch.randint(0, 3, (24,))
    net = model
    if how == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        net = fully_shard(model, mesh=mesh)
    elif how == "ddp":
        net = DistributedDataParallel(model)
    optimizer = OPTIMIZERS[name](parameter_groups(model, 0.1))
    peak = optimizer.param_groups[0]["lr"]
    whole = StateDictOptions(full_state_dict=True)
    for step in range(20):
        if how == "fsdp" and step == 10:  # what a resumed job does
            saved = get_optimizer_state_dict(model, optimizer)
            optimizer = OPTIMIZERS[name](parameter_groups(model, 0.1))
            set_optimizer_state_dict(model, optimizer, saved)
        for group in optimizer.param_groups:
            group["lr"] = peak * RATE(step)
        optimizer.zero_grad()
        F.cross_entropy(net(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
    weights = {key: getattr(value, "full_tensor", lambda value=value: value)().clone()
               for key, value in model.state_dict().items()}  # fmt: skip
    state = get_optimizer_state_dict(model, optimizer, options=whole)["state"]
    return weights | {f"{key} state": value[SIZES[name]].clone() for key, value in state.items()}


def main(output: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ends = {(name, how): train(name, how, world, rank) for name in OPTIMIZERS for how in ("fsdp", "ddp")}
    if rank == 0:
        torch.save(ends, output)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
