"""What a parameter server keeps: parameters and an optimizer, whose steps can be undone and gone on from."""

import copy
import inspect
from collections.abc import Callable
from math import inf
from numbers import Integral

import torch

from labkit.errors import RequestError
from labkit.training.collectives import blocks
from parallel.checks import number, trained


@torch.no_grad()
def sound(tensor: torch.Tensor) -> bool:
    """No NaN, no infinity: 0 times either is NaN. Some thirty times as fast as `isfinite().all()`."""
    return (tensor * 0).sum().item() == 0


def shard(parameters, servers: int) -> list[list[torch.Tensor]]:
    """One flat part of the parameters for each server; for optimizers that work element by element."""
    flat = torch.cat([p.detach().reshape(-1) for p in trained(parameters)])
    number("the number of servers", servers, 1, len(flat), Integral)
    return [[flat[part]] for part in blocks(len(flat), servers)]


class Kept:
    """Copies of the trained `parameters`, on the CPU, the `optimizer` made with them, and the number of its `steps`.

    Raises:
        RequestError: the parameters, the optimizer or the state to go on from cannot be used, or (if `finite`) hold NaN
        or infinity."""

    def __init__(self, parameters, optimizer: Callable, state: dict | None, finite: bool):
        self.parameters = [p.detach().cpu().clone().requires_grad_() for p in trained(parameters)]
        if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
            raise RequestError("the server's optimizer has to be a function of the parameters, e.g. "
                               "lambda p: torch.optim.SGD(p, lr=0.1)")
        self.dtype, self.nbytes = self.parameters[0].dtype, sum(p.nbytes for p in self.parameters)
        self.optimizer, self.steps, self.finite = optimizer(self.parameters), 0, finite
        needed = [p.name for p in inspect.signature(self.optimizer.step).parameters.values() if p.default is p.empty]
        if "closure" in needed:
            raise RequestError(f"{type(self.optimizer).__name__} needs a closure, and the data are with the workers; "
                               "take an optimizer whose step needs gradients alone")
        if len(rates := {float(group["lr"]) for group in self.optimizer.param_groups}) > 1:
            raise RequestError(f"the server's optimizer has the rates {', '.join(map(str, sorted(rates)))}; workers "
                               "send one for all parameters: give all groups the same")
        if state is not None:
            self._resume(state)
        if finite and not self._sound():
            raise RequestError("the parameters or the state to start from hold NaN or infinity; take earlier ones")

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def flat(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def state(self) -> dict:
        """A copy of all, from which a server goes on."""
        parameters, optimizer = [p.detach().clone() for p in self.parameters], self.optimizer.state_dict()
        return {"parameters": parameters, "optimizer": copy.deepcopy(optimizer), "steps": self.steps}

    def step(self, gradient: torch.Tensor, rate: float) -> bool:
        """One step with this flat gradient; if `finite`, undone and False where it led to NaN or infinity. That check
        takes a copy of all before each step."""
        before = self.state() if self.finite else None
        for p, part in zip(self.parameters, gradient.split([p.numel() for p in self.parameters]), strict=True):
            p.grad = part.view(p.shape)
        for options in self.optimizer.param_groups:
            options["lr"] = rate
        self.optimizer.step()
        if self.finite and not self._sound():
            self._set(before)
            return False
        self.steps += 1
        return True

    def _sound(self) -> bool:
        """Of the optimizer too: Adam's squares overflow long before a parameter does, and then it stands for ever."""
        inner = [value for values in self.optimizer.state.values() for value in values.values()]
        return all(sound(t) for t in [*self.parameters, *inner] if torch.is_tensor(t))

    def _resume(self, state: dict) -> None:
        try:
            number("its steps", state["steps"], 0, inf, Integral)
            theirs, ours = ([*((tuple(p.shape), p.dtype) for p in some["parameters"]),
                             *map(set, some["optimizer"]["param_groups"])] for some in (state, self.state()))
            if theirs != ours:
                raise ValueError("other shapes, types or options of the optimizer")
            self._set(state)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(f"state cannot be gone on from ({type(error).__name__} {error}); it has to be the state "
                               "of a report whose server had the same parameters and optimizer") from None

    @torch.no_grad()
    def _set(self, state: dict) -> None:
        for p, value in zip(self.parameters, state["parameters"], strict=True):
            p.copy_(value)
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # or steps would change the tensors in it
        self.steps = state["steps"]
