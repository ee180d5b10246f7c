"""How noisy a mini-batch gradient is: the trace of its covariance.

Source: the technical report behind LEGW (EECS-2018-138, abstract) argues that a step of rate x gradient keeps its
covariance when the rate grows with the square root of the batch, because the covariance of the gradient falls as 1/B.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def gradient(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy over a batch, as one vector [parameters]; `.grad` is left alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(F.cross_entropy(model(images), classes), parameters)
    return torch.cat([part.flatten() for part in parts])


def gradient_covariance_trace(model: nn.Module, images: Tensor, classes: Tensor, batch: int, draws: int = 64,
                              seed: int = 0) -> float:
    """Unbiased estimate of tr Cov of the gradient of a random batch, from `draws` batches drawn with replacement at
    fixed weights.

    Args:
        images: [n, c, h, w]; classes: [n]; the batches are drawn from these.

    When not to use it: with batch normalisation, whose gradient of a batch is no mean over samples."""
    generator = torch.Generator().manual_seed(seed)
    total, square = 0.0, 0.0
    for _ in range(draws):
        rows = torch.randint(len(images), (batch,), generator=generator)
        vector = gradient(model, images[rows], classes[rows]).double()
        total, square = total + vector, square + float(vector @ vector)
    return (square - float(total @ total) / draws) / (draws - 1)
