"""Lightning strategies of the methods. Importing this registers their names, `labkit_local_sgd` and so on.

`Trainer(devices=1, strategy=GossipStrategy("ring"))` inside `run_ranks`, where the Trainer joins the process group that
exists, or in one process alone; under torchrun and SLURM with a node's `devices`, as for DDP. Metrics are those of each
rank's own replica. When not to use it: precision 16-mixed (see `labkit.training.wrapper`)."""

import contextlib

from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from torch import distributed

from labkit.errors import RequestError
from labkit.training import averaging, gossip, wrapper


class Joined(LightningEnvironment):
    """The process group that exists already."""

    creates_processes_externally = True

    def world_size(self):
        return wrapper.world()[1]

    def global_rank(self):
        return wrapper.world()[0]

    local_rank = global_rank

    def teardown(self):
        """Not ours to end."""


class Ranks(DDPStrategy):
    """What all have in common. The one checkpoint holds every rank's weights, buffers and optimizer (P times as large),
    so that a resumed run goes on exactly; with another number of ranks, from those of rank 0."""

    restore_checkpoint_after_setup = True  # or the weights that rank 0 sends at the start would replace the restored

    def __init__(self, **options):
        super().__init__(cluster_environment=Joined() if distributed.is_initialized() else None, **options)

    @property
    def root_device(self):
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]

    @property
    def distributed_sampler_kwargs(self):
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        own = {name: checkpoint[name] for name in ("state_dict", "optimizer_states") if name in checkpoint}
        checkpoint["ranks"] = [own] * self.world_size
        if self.world_size > 1:
            distributed.gather_object(own, checkpoint["ranks"] if self.is_global_zero else None)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, *args, **options):
        checkpoint = super().load_checkpoint(*args, **options)
        ranks = checkpoint.pop("ranks", ())
        return checkpoint | (ranks[self.global_rank] if len(ranks) == self.world_size else {})


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
        (args, options), buffers = self.arguments, [*self.model.buffers()] if self.buffers else []
        self.optimizers = [self.method(inner, *args, buffers=buffers, **options) for inner in self.optimizers]

    @contextlib.contextmanager
    def block_backward_sync(self):  # while gradients accumulate
        self.blocked = True
        yield
        self.blocked = False

    def post_backward(self, closure_loss):
        for optimizer in () if self.blocked else self.optimizers:  # now, before Lightning clips
            optimizer.gradients()
            optimizer.ready = True


class LocalSGDStrategy(Replicas):
    method = averaging.LocalSGD


class ElasticStrategy(Replicas):
    method = averaging.ElasticAveraging


class GossipStrategy(Replicas):
    method = gossip.Gossip


class HookedDDPStrategy(Ranks):
    """DDP whose gradients pass through `labkit.training.compression.hook_of(hook, **options)`; `hook_state` counts."""

    def __init__(self, hook: str = "none", **options):
        super().__init__()
        self.hook, self.hook_options = hook, options

    def _register_ddp_hooks(self):
        from labkit.training.compression import hook_of

        self.hook_state, hook = hook_of(self.hook, **self.hook_options)

        def checked(state, bucket):
            wrapper.check_finite(bucket.buffer(), "gradients")
            return hook(state, bucket)

        self.model.register_comm_hook(self.hook_state, checked)


for _strategy, _name in ((LocalSGDStrategy, "local_sgd"), (ElasticStrategy, "elastic"), (GossipStrategy, "gossip"),
                         (HookedDDPStrategy, "ddp")):
    StrategyRegistry.register(f"labkit_{_name}", _strategy, override=True)
