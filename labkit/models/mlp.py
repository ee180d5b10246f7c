"""A plain deep network: no normalisation, no shortcuts."""

from torch import Tensor, nn


class DeepMLP(nn.Module):
    """`depth` hidden ReLU layers of one width, Kaiming normal weights, zero biases.

    Deep enough to be touchy about its learning rate and quick enough for a laptop: what makes warm-up visible.
    When not to use it: for accuracy; and see a residual network for what normalisation changes.

    Args:
        inputs: pixels of an image, all channels.
        width: units of a hidden layer.
        depth: hidden layers, 1 or more."""

    def __init__(self, inputs: int = 784, width: int = 64, depth: int = 8, classes: int = 10):
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in in [inputs] + [width] * (depth - 1):
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, classes))
        for module in self.layers:
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images [N, ...] of `inputs` numbers each -> scores [N, classes]."""
        return self.layers(x)
