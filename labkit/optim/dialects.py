"""What public codes called LARS and LAMB really compute, as bundles of the options of `optim.LARS` and `optim.LAMB`.

Each dialect names only what differs from "paper". The bundles hold the rule and the small constants that come with it;
rate, momentum, betas and weight decay are the reader's own. Read in, and where installable run against, the versions
named. A bundle is not the library: `beyond` says what the library does that no option states."""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from labkit.errors import choose

NONE = (0.0, inf)  # bounds that bound nothing


@dataclass(frozen=True)
class Dialect:
    """One public implementation: what it is, its options beside the paper's, and what the options leave unsaid."""
    names: str
    options: dict[str, Any] = field(default_factory=dict)
    beyond: str = ""


LARS = {
    "paper": Dialect("Algorithm 1 of arXiv 1708.03888",
                     {"convention": "A", "decay": "ratio", "zero_norm": "one", "exclude": "flag",
                      "trust_coefficient": 1e-3, "eps": 0.0, "trust_bounds": NONE, "trust_clip": False}),
    "tpu": Dialect("tensorflow/tpu, ResNet and EfficientNet", {}, "excludes by names of variables"),
    "mlperf": Dialect("MLPerf's ResNet reference in TF2", {"eps": 1e-7},
                      "excludes by names; the documented epsilon of 0 becomes Keras's 1e-7"),
    "optax": Dialect("optax.lars", {"decay": "sum"}, "excludes by masks"),
    "noahgolmant": Dialect("noahgolmant/pytorch-lars", {"zero_norm": "none"},
                           "has a polynomial decay of its own that counts step() calls as epochs"),
    "nus": Dialect("NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch",
                   {"convention": "C", "eps": 1e-5, "trust_bounds": (0.0, 50.0)},
                   "clamps every number of the decayed gradient to +-10; reads each ratio back to the host"),
    "apex": Dialect("apex.parallel.LARC around torch.optim.SGD, clip=True",
                    {"convention": "B", "eps": 1e-8, "trust_coefficient": 0.02, "zero_norm": "skip",
                     "trust_clip": True}, "is no Optimizer and overwrites p.grad"),
    "torchlars": Dialect("kakaobrain/torchlars around torch.optim.SGD", {"convention": "B", "eps": 1e-8},
                         "overwrites p.grad"),
    "timm": Dialect("timm.optim.Lars 1.0.31", {"convention": "B", "eps": 1e-8, "exclude": "undecayed"},
                    "with its trust_clip=True the ratio 1 of a zero norm is divided by the rate as well"),
    "bolts": Dialect("Lightning Bolts 0.7 (and Flash)",
                     {"convention": "B", "eps": 1e-8, "zero_norm": "skip", "exclude": "undecayed"}),
    "jettify": Dialect("torch_optimizer.LARS",
                       {"convention": "B", "eps": 1e-8, "trust_coefficient": 0.01, "zero_norm": "skip",
                        "exclude": "undecayed"}, "documents a trust coefficient of 0.001"),
    "kozistr": Dialect("pytorch_optimizer.LARS 4.1.0",
                       {"convention": "B", "zero_norm": "quotient", "exclude": "vectors"},
                       "overwrites p.grad with the step"),
    "kozistr-3.9": Dialect("pytorch_optimizer.LARS 3.9.0",
                           {"convention": "B", "decay": "gradient", "exclude": "vectors"},
                           "starts the velocity at the raw gradient, so the first step is far too long"),
}

LAMB = {
    "paper": Dialect("the final algorithm of arXiv 1904.00962, phi(z) = z",
                     {"bias_correction": True, "decay": "ratio", "zero_norm": "one", "exclude": "flag", "eps": 1e-6,
                      "ratio_eps": 0.0, "phi_bounds": NONE, "trust_bounds": NONE, "max_grad_norm": inf,
                      "pre_normalize": False}),
    "tf-author": Dialect("fastalgo/imagenet_resnet50_lamb",
                         {"bias_correction": False, "exclude": "undecayed", "max_grad_norm": 1.0},
                         "excludes batch norm by names, and not the biases"),
    "tfa": Dialect("TensorFlow Addons", {}, "excludes by regular expressions"),
    "keras": Dialect("keras.optimizers.Lamb", {"decay": "before", "eps": 1e-7}),
    "apex": Dialect("apex.optimizers.FusedLAMB", {"exclude": "undecayed", "max_grad_norm": 1.0},
                    "overwrites p.grad; one step count for a whole group"),
    "nvlamb": Dialect("NVLAMB as NVIDIA describes it", {"pre_normalize": True},
                      "apex's use_nvlamb=True clips the norm at 1 where the description divides by it"),
    "timm": Dialect("timm.optim.Lamb 1.0.31", {"exclude": "undecayed", "max_grad_norm": 1.0},
                    "one step count for a whole group"),
    "jettify": Dialect("torch_optimizer.Lamb, cybertronai/pytorch-lamb",
                       {"bias_correction": False, "phi_bounds": (0.0, 10.0)},
                       "with debias=True its correction is bias_correction='rate'"),
    "kozistr": Dialect("pytorch_optimizer.Lamb 4.1.0",
                       {"bias_correction": "rate-first", "decay": "before", "ratio_eps": 1e-6,
                        "phi_bounds": (0.0, 10.0)}, "documents that it has no bias correction"),
}


def resolved(dialects: dict[str, Dialect], name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All options of a dialect; those `given` that are not None stand before the dialect's.

    Raises:
        RequestError: there is no dialect of that name."""
    choose("dialect", name, dialects)
    explicit = {option: value for option, value in given.items() if value is not None}
    return {**dialects["paper"].options, **dialects[name].options, **explicit}
