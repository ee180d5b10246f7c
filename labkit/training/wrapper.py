"""Methods of parallel training as wrappers of an optimizer, for a bare loop, Fabric and Lightning alike.

When not to use it: a GradScaler, which may skip one rank's step while the others wait for it."""

import inspect
from collections.abc import Iterable
from numbers import Integral, Real

import torch
from torch import Tensor, distributed

from labkit.errors import RequestError, WorkError


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


def check_finite(tensor: Tensor, what: str, then: str = "sent nothing") -> None:
    """WorkError, naming this rank, where what it is about to send is not finite. Costs no message: whoever started the
    ranks (`run_ranks`, torchrun) stops the others, or at last their group's timeout."""
    if not tensor.isfinite().all():
        raise WorkError(f"rank {world()[0]} has {what} that are not finite and {then}; lower the rate or clip, "
                        "then go on from the last checkpoint")


def check_number(name: str, value, low: float, high: float = 1e308, whole: bool = True) -> None:
    """RequestError unless `value` is a number, a `whole` one or any, from `low` to `high` (1e308: a finite one)."""
    if not isinstance(value, Integral if whole else Real) or isinstance(value, bool) or not low <= value <= high:
        limits = f"from {low:g} to {high:g}" if high < 1e308 else f"of {low:g} or more"
        raise RequestError(f"{name} must be a {'whole ' if whole else ''}number {limits}, not {value!r}")


class Wrapper(torch.optim.Optimizer):
    """`inner`, and what a method does around its step: closure, `gradients`, `before`, the step of `inner`, `after`. It
    shares the groups, state and defaults of `inner`; schedules may have either, and either reads the checkpoint.
    RequestError: `inner` needs a closure, as L-BFGS does, which calls it more than once in a step.

    Args:
        buffers: of the model, mixed with its parameters where they are floats; e.g. BatchNorm's statistics."""

    kept: tuple[str, ...] = ("steps",)  # what a checkpoint holds besides

    def __init__(self, inner: torch.optim.Optimizer, buffers: Iterable[Tensor] = ()):
        closure = inspect.signature(inner.step).parameters.get("closure")
        if closure and closure.default is closure.empty:
            raise RequestError(f"{type(inner).__name__} calls its closure as it likes; wrap one that needs none")
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.steps, self.ready = inner, 0, False
        self.buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._share()

    def _share(self):
        self.param_groups, self.state, self.defaults = self.inner.param_groups, self.inner.state, self.inner.defaults

    def __getstate__(self):  # for copies and pickle; a schedule binds its own `step` to the original
        return {name: value for name, value in vars(self).items() if name[0] != "_" and name != "step"}

    def check_size(self, words: int) -> None:
        """RequestError: parameters were added since the method began to keep vectors of so many words of them."""
        if words != (now := sum(tensor.numel() for tensor in self.mixed)):
            raise RequestError(f"{type(self).__name__} began with {words} words, now it has {now}; add "
                               "parameters before its first step, or make another one")

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
