"""Optimizers by name, with the parameter groups that each wants. Importable without torch."""

from labkit.errors import RequestError, choose

# Options beyond the rate that a name understands; anything else is refused rather than ignored.
OPTIONS = {"sgd": ("momentum", "weight_decay", "nesterov"), "adam": ("betas", "eps", "weight_decay"),
           "adamw": ("betas", "eps", "weight_decay"), "rmsprop": ("alpha", "eps", "weight_decay", "momentum"),
           "adagrad": ("weight_decay", "eps"), "adadelta": ("rho", "eps", "weight_decay"),
           "lars": ("momentum", "nesterov", "weight_decay", "trust_coefficient", "eps", "dialect", "convention",
                    "decay"),
           "lamb": ("betas", "eps", "weight_decay", "bias_correction", "dialect", "max_grad_norm")}
LAYERWISE = ("lars", "lamb")


def build(name: str, model, rate: float | None = None, *, fused: bool = True, **options):
    """A `torch.optim.Optimizer` over the parameters of `model`.

    Weight decay spares biases and normalisation layers; LARS and LAMB leave those out of their trust ratio too.

    Args:
        rate: learning rate; None keeps the optimizer's default.
        fused: use torch's fused kernels where the optimizer has them.

    Raises:
        RequestError: unknown name or option, or a negative rate."""
    choose("optimizer", name, OPTIONS)
    for option in options:
        choose(f"option of {name}", option, OPTIONS[name])
    if rate is not None and not rate >= 0.0:
        raise RequestError(f"rate {rate} of {name} is negative; a learning rate must be 0 or more")
    if rate is None and name in LAYERWISE:
        raise RequestError(f"{name} has no default rate; give one")
    import torch

    from labkit import optim
    from labkit.optim.groups import parameter_groups

    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
               "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad, "adadelta": torch.optim.Adadelta,
               "lars": optim.LARS, "lamb": optim.LAMB}
    decay = options.pop("weight_decay", 0.0)
    groups = parameter_groups(model, decay) if decay or name in LAYERWISE else list(model.parameters())
    if name not in LAYERWISE and decay:
        for group in groups:
            group.pop("adapt", None)
    if name in ("sgd", "adam", "adamw", "adagrad"):
        options["fused"] = fused
    if rate is not None:
        options["lr"] = rate
    return classes[name](groups, **options)
