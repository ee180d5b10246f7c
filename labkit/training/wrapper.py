"""Methods of parallel training as wrappers of an optimizer, for a bare loop, Fabric and Lightning alike.

When not to use it: optimizers that call their closure more than once (L-BFGS); a GradScaler, which may skip one rank's
step while the others wait for it."""

from collections.abc import Iterable

import torch
from torch import Tensor, distributed

from labkit.errors import WorkError


def world() -> tuple[int, int]:
    """(this rank, how many there are); (0, 1) without a process group."""
    there = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if there else (0, 1)


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """One vector, a copy of all elements in order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def assign(tensors: list[Tensor], vector: Tensor) -> None:
    """The reverse of `flatten`, in place."""
    for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def check_finite(tensor: Tensor, what: str) -> None:
    """WorkError, naming this rank, where what it is about to send is not finite. Costs no message: whoever started the
    ranks (`run_ranks`, torchrun) stops the others, or at last their group's timeout."""
    if not tensor.isfinite().all():
        raise WorkError(f"rank {world()[0]} has {what} that are not finite and sent nothing; lower the rate or clip, "
                        "then go on from the last checkpoint")


class Wrapper(torch.optim.Optimizer):
    """`inner`, and what a method does around its step: closure, `gradients`, `before`, the step of `inner`, `after`. It
    shares the groups, state and defaults of `inner`; schedules may have either, and either reads the checkpoint.

    Args:
        buffers: of the model, mixed with its parameters where they are floats; e.g. BatchNorm's statistics."""

    kept: tuple[str, ...] = ("steps",)  # what a checkpoint holds besides

    def __init__(self, inner: torch.optim.Optimizer, buffers: Iterable[Tensor] = ()):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.steps, self.ready = inner, 0, False
        self.buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._share()

    def _share(self):
        self.param_groups, self.state, self.defaults = self.inner.param_groups, self.inner.state, self.inner.defaults

    @property
    def parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @property
    def mixed(self) -> list[Tensor]:
        return [*self.parameters, *self.buffers]

    def gradients(self) -> None:
        """Change the gradients. Who does it before `step`, so that clipping sees the result, sets `ready`."""

    def before(self) -> None:
        """Change the parameters, when the gradient at the old ones is there."""

    def after(self) -> None:
        """Change the parameters that have been stepped; `steps` includes that step."""

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        if not self.ready:
            self.gradients()
        self.before()
        self.inner.step()
        self.ready, self.steps = False, self.steps + 1
        self.after()
        return loss

    def state_dict(self) -> dict:
        return self.inner.state_dict() | {type(self).__name__: {name: getattr(self, name) for name in self.kept}}

    def load_state_dict(self, state_dict: dict) -> None:
        """Of this wrapper, or of a bare optimizer: then the method starts anew."""
        self.inner.load_state_dict(state_dict)
        self._share()
        for name, value in state_dict.get(type(self).__name__, {}).items():
            setattr(self, name, value.to(self.parameters[0].device) if isinstance(value, Tensor) else value)
