"""The strategies of `parallel.strategies` by the package's name. `import labkit.training.strategies` registers them, so
that a Trainer knows them by name: `Trainer(strategy="labkit_gossip")`."""

from functools import partial

from labkit.paths import lab_part

__getattr__ = partial(getattr, lab_part("strategies", "parallel"))
