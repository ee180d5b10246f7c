"""Sharded data parallelism (ZeRO stage 3): each rank has its own samples, and 1/P of every unit's parameters.

A unit's parameters are gathered for its forward pass and dropped; what the backward pass needs of them is gathered
again then, and the gradients are reduce-scattered: 3 w (P-1)/P words, 3/2 of an all-reduce. `Sharded` is that written
out over `comm`, through hooks on saved tensors; `by_torch` is FSDP2, which gathers one unit while another computes.
*When not to use it*: where the network fits on each rank."""

from collections.abc import Sequence

import torch
from torch import distributed, nn
from torch.func import functional_call

from labkit.networks.tensor import LinearMap
from labkit.training import collectives


class Sharded(nn.Module):
    """One unit, a module without buffers, here stripped of its parameters. `shard`, its only parameter now, is this
    rank's block of all of them in a row; its gradient is the sum over the ranks. `gathers`: how often they were."""

    def __init__(self, unit: nn.Module, comm):
        super().__init__()
        whole = nn.utils.parameters_to_vector(unit.parameters()).detach()
        self.shapes = {name: value.shape for name, value in unit.named_parameters()}
        self.comm, self.total, self.gathers = comm, len(whole), 0
        self.block = collectives.blocks(self.total, comm.size)[comm.rank]
        self.shard = nn.Parameter(whole[self.block].clone())
        self.bare = [unit.to("meta")]  # in a list, so that its parameters, empty now, are not this module's

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        self.gathers += 1
        whole = shard.new_empty(self.total)
        whole[self.block] = shard
        return collectives.all_gather(whole, self.comm)

    def reduce(self, gradient: torch.Tensor) -> torch.Tensor:
        return collectives.reduce_scatter(gradient.clone(), self.comm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = LinearMap.apply(self.shard, self.gather, self.reduce)
        pieces = whole.split([shape.numel() for shape in self.shapes.values()])
        weights = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        place = whole.untyped_storage().data_ptr()

        def drop(saved):
            ours = saved.untyped_storage().data_ptr() == place
            return (saved.shape, saved.stride(), saved.storage_offset()) if ours else saved

        def restore(kept):
            return self.gather(self.shard.detach()).as_strided(*kept) if isinstance(kept, tuple) else kept

        with torch.autograd.graph.saved_tensors_hooks(drop, restore):
            return functional_call(self.bare[0], weights, (x,))


def by_torch(units: Sequence[nn.Module]) -> nn.Sequential:
    """`units` one after the other, each sharded on its own over all ranks; gradients are means over the ranks.

    FSDP2 cuts each tensor along its first dimension, padded to a multiple of P: only without padding are the words
    exactly `parallel.words.sharded`."""
    from torch.distributed import device_mesh, fsdp  # the import takes a second

    mesh = device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
    whole = nn.Sequential(*(fsdp.fully_shard(unit, mesh=mesh, reshard_after_forward=True) for unit in units))
    return fsdp.fully_shard(whole, mesh=mesh)
