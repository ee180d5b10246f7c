"""Ranks that train on their own and are averaged now and then: parameters, and `buffers` where given; momentum and the
like stay each rank's own. When not to use it: on fast networks, where averaging all gradients costs little."""

import torch
from torch import Tensor, distributed

from labkit.training.wrapper import Wrapper, assign, check_finite, check_number, flatten, world


def mean(tensors: list[Tensor], what: str = "parameters") -> Tensor:
    """The mean over ranks of `flatten(tensors)`, by one all-reduce. WorkError: this rank's are not finite."""
    vector, (_, size) = flatten(tensors), world()
    check_finite(vector, what)
    if size > 1:
        distributed.all_reduce(vector)
    return vector.div_(size)


class LocalSGD(Wrapper):
    """All ranks take the mean of their parameters every `period` steps: n words all-reduced. With `period` 1, SGD (with
    momentum too) is synchronous SGD; Adam is not. Before step `begin` gradients are averaged instead, in every step; a
    word more for each tensor tells whether a rank has one: zeros stand for a missing one, if not all ranks miss it.
    After Zinkevich et al., McDonald et al.; Lin et al. (post-local SGD: `begin`)."""

    def __init__(self, inner, period: int = 8, begin: int = 0, buffers=()):
        super().__init__(inner, buffers)
        check_number("period", period, 1)
        check_number("begin", begin, 0)
        self.period, self.begin = period, begin

    def gradients(self):
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        if self.steps < self.begin and trained:
            held = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
            there = held[0].new_tensor([p.grad is not None for p in trained])
            assign([*held, there], mean([*held, there], "gradients"))
            for parameter, gradient, anywhere in zip(trained, held, there.tolist(), strict=True):
                parameter.grad = gradient if anywhere else None

    def after(self):
        if self.steps > self.begin and (self.steps - self.begin) % self.period == 0:
            assign(self.mixed, mean(self.mixed))


class ElasticAveraging(Wrapper):
    """Synchronous EASGD (Zhang et al.). Every `period` steps ranks are drawn to `centre` c, and c to them:
    w_i <- w_i - alpha (w_i - c) - the optimizer's step at the old w_i, c <- (1 - P alpha) c + P alpha mean w_i.
    The centre, n words on each rank, is the trained model: `assign(wrapper.mixed, wrapper.centre)`. `alpha` None is
    0.9 / P; beyond 1 / P the centre would overshoot."""

    kept = ("steps", "centre")

    def __init__(self, inner, period: int = 8, alpha: float | None = None, buffers=()):
        super().__init__(inner, buffers)
        size = world()[1]
        check_number("period", period, 1)
        check_number("alpha", 0.9 / size if alpha is None else alpha, 1e-9, 1 / size, whole=False)
        self.period, self.pull, self.centre = period, 0.9 if alpha is None else alpha * size, None

    def before(self):
        if self.centre is None:
            self.centre = mean(self.mixed)
        elif self.steps % self.period == 0:
            self.check_size(len(self.centre))
            middle, here = mean(self.mixed), flatten(self.mixed)
            assign(self.mixed, here.lerp(self.centre, self.pull / world()[1]))
            self.centre = self.centre.lerp(middle, self.pull)
