"""Networks by name. Importing this does not import torch; building one does."""

from importlib import import_module

from labkit.errors import RequestError, choose

# name: (module, builder, fixed arguments, sizes a caller may change, what it takes of the image)
_MODELS = {"row-lstm": ("lstm", "RowLSTM", {}, ("projection", "hidden"), "rows"),
           "deep-mlp": ("mlp", "DeepMLP", {}, ("width", "depth"), "pixels"),
           "resnet8": ("resnet", "cifar_resnet", {"depth": 8}, ("zero_gamma",), "channels"),
           "resnet20": ("resnet", "cifar_resnet", {"depth": 20}, ("zero_gamma",), "channels"),
           "resnet56": ("resnet", "cifar_resnet", {"depth": 56}, ("zero_gamma",), "channels"),
           "resnet9": ("resnet", "resnet9", {}, ("width",), "channels"),
           "resnet18": ("resnet", "imagenet_resnet", {"depth": 18}, ("zero_gamma",), "channels"),
           "resnet50": ("resnet", "imagenet_resnet", {"depth": 50}, ("zero_gamma",), "channels")}
NAMES = tuple(_MODELS)


def build(name: str, image_shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, **sizes):
    """A fresh network for images [N, channels, height, width] that answers with scores [N, classes].

    Args:
        name: one of `NAMES`.
        image_shape: (channels, height, width).
        sizes: what that network lets you change: row-lstm projection, hidden; deep-mlp width, depth; resnet9 width;
            the other ResNets zero_gamma.

    Raises:
        RequestError: unknown name or size, a size that is not a positive whole number, or an image that is too small.
    """
    choose("model", name, NAMES)
    module, builder, fixed, allowed, takes = _MODELS[name]
    for key in sizes:
        choose(f"size of {name}", key, allowed)
    if len(image_shape) != 3:
        raise RequestError(f"image_shape must be (channels, height, width), not {image_shape}")
    for key, value in [*zip(("channels", "height", "width"), image_shape), ("classes", classes), *sizes.items()]:
        if key == "zero_gamma" and not isinstance(value, bool):
            raise RequestError(f"zero_gamma must be True or False, not {value!r}")
        if key != "zero_gamma" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RequestError(f"{key} must be a whole number, 1 or more, not {value!r}")
    channels, height, width = image_shape
    if name == "resnet9" and min(height, width) < 8:
        raise RequestError(f"resnet9 halves an image three times: it needs 8 x 8 or more, not {height} x {width}")
    image = {"rows": {"rows": height, "columns": width, "channels": channels},
             "pixels": {"inputs": channels * height * width},
             "channels": {"channels": channels}}[takes]
    return getattr(import_module(f"{__name__}.{module}"), builder)(classes=classes, **image, **fixed, **sizes)


def source_modules(name: str) -> list[str]:
    """The modules whose code defines the network, for a fingerprint of what produced a result."""
    choose("model", name, NAMES)
    return [f"{__name__}.{_MODELS[name][0]}"]
