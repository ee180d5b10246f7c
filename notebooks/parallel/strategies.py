"""Lightning strategies of the methods. A Trainer knows their names (`labkit_local_sgd`, `labkit_elastic`,
`labkit_gossip`, `labkit_ddp`) after `import labkit.training.strategies`.

`Trainer(devices=1, strategy=GossipStrategy("ring"))` inside `run_ranks`, where the Trainer joins the process group that
exists, or in one process alone; under torchrun and SLURM with a node's `devices`, as for DDP. Metrics are those of each
rank's own replica. Several optimizers (manual optimization) are mixed each by itself, and gradients are then averaged
in `step`, after `clip_gradients`. When not to use it: precision 16-mixed (see `labkit.training.wrapper`)."""

import contextlib

from lightning_fabric.utilities.apply_func import move_data_to_device
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from torch import distributed

from labkit.errors import RequestError
from labkit.training import averaging, gossip, wrapper
from labkit.training.compression import State
from parallel.hooks import hook_of
from parallel.joined import Ranks


class Replicas(Ranks):
    """Every rank trains a replica, equal at the start; `method`, a `Wrapper` of its optimizer, mixes it with others. It
    takes the arguments; `buffers`: mix those of the module too."""

    method: type[wrapper.Wrapper]

    def __init__(self, *args, buffers: bool = False, **options):
        super().__init__()
        self.arguments, self.buffers, self.blocked = (args, options), buffers, False

    def setup_distributed(self):
        self.set_world_ranks()
        if self.world_size > 1:
            super().setup_distributed()

    def setup(self, trainer):
        # outside of fit, DDP would make all replicas rank 0's
        (super() if trainer.state.fn == "fit" else super(DDPStrategy, self)).setup(trainer)

    def _setup_model(self, model):
        return model

    def configure_ddp(self):
        for tensor in self.model.state_dict().values() if self.world_size > 1 else ():
            distributed.broadcast(tensor, 0)

    def setup_optimizers(self, trainer):
        if getattr(self.precision_plugin, "scaler", None):
            raise RequestError("16-mixed scales the loss and may skip one rank's step; use bf16-mixed")
        super().setup_optimizers(trainer)
        args, options = self.arguments
        mixed = [[*self.model.buffers()] if self.buffers else [], *[[]] * len(self.optimizers)]  # once, by the first
        self.optimizers = [self.method(inner, *args, buffers=buffers, **options)
                           for inner, buffers in zip(self.optimizers, mixed, strict=False)]

    @contextlib.contextmanager
    def block_backward_sync(self):  # while gradients accumulate
        self.blocked = True
        try:
            yield
        finally:
            self.blocked = False

    def post_backward(self, closure_loss):
        if len(self.optimizers) == 1 and not self.blocked:  # now, before Lightning clips; of several, one is stepped
            self.optimizers[0].gradients()
            self.optimizers[0].ready = True


class LocalSGDStrategy(Replicas):
    method = averaging.LocalSGD


class ElasticStrategy(Replicas):
    method = averaging.ElasticAveraging


class GossipStrategy(Replicas):
    method = gossip.Gossip


POWER = ("iter", "error_dict", "p_memory_dict", "q_memory_dict")  # what torch's PowerSGD keeps, by bucket


class HookedDDPStrategy(Ranks):
    """DDP whose gradients pass through `labkit.training.compression.hook_of(hook, **options)`; `hook_state` counts, and
    is saved for each rank. A run that is resumed with another hook begins with that hook's empty memory."""

    def __init__(self, hook: str = "none", **options):
        super().__init__()
        self.hook, self.hook_options, self.hook_state = hook, options, None

    def _register_ddp_hooks(self):
        self._settle_buckets()
        self.hook_state, hook = hook_of(self.hook, **self.hook_options)
        self.model.register_comm_hook(self.hook_state, hook)

    def _settle_buckets(self):
        """DDP fills its buckets anew after the first backward pass, in the order in which gradients came. That is made
        an empty one, from the last parameter to the first: then what PowerSGD keeps of a bucket, the order of random
        numbers and of sums are the same in the first step after a resume."""
        reducer = self.model.reducer
        reducer.prepare_for_backward([])
        sum(0 * parameter.sum() for parameter in self.model.parameters() if parameter.requires_grad).backward()
        reducer._rebuild_buckets()
        self.model.zero_grad()

    def private(self):
        state = self.hook_state
        if state is None or isinstance(state, State):
            return {"hook": self.hook, "state": state and state.state_dict()}
        kind, keys, *rest = state.rng.get_state()
        kept = {name: getattr(state, name) for name in POWER}
        return {"hook": self.hook, "state": kept | {"rng": (kind, keys.tolist(), *rest)}}

    def restore(self, private):
        if self.hook_state is None or not private or private["hook"] != self.hook:
            return
        if isinstance(self.hook_state, State):
            return self.hook_state.load_state_dict(private["state"])
        saved = move_data_to_device(private["state"], self.root_device)
        self.hook_state.rng.set_state(saved.pop("rng"))
        for name, value in saved.items():
            setattr(self.hook_state, name, value)


for _strategy, _name in ((LocalSGDStrategy, "local_sgd"), (ElasticStrategy, "elastic"), (GossipStrategy, "gossip"),
                         (HookedDDPStrategy, "ddp")):
    StrategyRegistry.register(f"labkit_{_name}", _strategy, override=True)
