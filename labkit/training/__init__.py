"""Real ranks (`ranks`), the collectives between them (`collectives`), and the methods that train on them: averaging,
gossip and compressed gradients. The parameter server and the Lightning strategies lie in `notebooks/parallel`; their
names are found here: `labkit.training.GossipStrategy`, `labkit.training.serve`. `Trainer(strategy="labkit_gossip")`
needs one import before: `import labkit.training.strategies`."""

_PARTS = {"serve": "server", "Client": "client", "ServerOptimizer": "client", "Resumable": "resumable",
          "even_steps": "joined"}


def __getattr__(name: str):
    part = "strategies" if name.endswith("Strategy") else _PARTS.get(name)
    if part is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labkit.paths import lab_part

    return getattr(lab_part(part, "parallel"), name)
