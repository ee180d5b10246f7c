"""labkit: a notebook course that measures parallel and large-batch deep learning on the machine you have. Importing it
is cheap: torch and matplotlib come with the first thing that needs them."""

__version__ = "0.1.0"


def start(*args, **kwargs):
    """Open a lab in a notebook; see `labkit.lab.start`."""
    from labkit import lab

    return lab.start(*args, **kwargs)
