"""Under every strategy of `parallel.strategies`: the process group that is there already, and one checkpoint that holds
what each rank needs to go on."""

from lightning_fabric.utilities.apply_func import move_data_to_device
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import distributed

from labkit.errors import RequestError
from labkit.training import wrapper


def _counts(count) -> list:
    counts = [count] * wrapper.world()[1]
    if len(counts) > 1:
        distributed.all_gather_object(counts, count)
    return counts


def even_steps(count: int) -> int:
    """The least `count` of all ranks: with unequal shards, the batches that each may read of an epoch without waiting
    for ever for the others, e.g. `Trainer(limit_train_batches=even_steps(len(batches)))`."""
    return min(_counts(count))


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
    """DDP on the ranks that are there. The one checkpoint holds every rank's weights, buffers, optimizer and `private`
    part (P times as large), so that a resumed run goes on exactly; with another number of ranks, from those of rank 0
    and with no private part.

    Raises:
        RequestError: ranks have unequal numbers of training batches, when a fit starts: those with more would wait for
            ever. Lightning's DDP waits; to leave out batches unasked would train on other data than was given. What has
            no length cannot be checked.
        WorkError: a rank's parameters are not finite, before a checkpoint is written and when a fit ends."""

    restore_checkpoint_after_setup = True  # or the weights that rank 0 sends at the start would replace the restored

    def __init__(self, **options):
        super().__init__(cluster_environment=Joined() if distributed.is_initialized() else None, **options)

    @property
    def root_device(self):
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]

    @property
    def distributed_sampler_kwargs(self):
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def private(self):
        """What else this rank has to itself, as plain values and tensors; None: nothing."""

    def restore(self, private) -> None:
        """Take back what `private` gave, on a rank that may have another device."""

    def on_train_start(self):
        counts = _counts(self.lightning_module.trainer.num_training_batches)
        if len({*counts}) > 1:
            raise RequestError(f"ranks 0 to {len(counts) - 1} have {', '.join(map(str, counts))} training batches; "
                               "give all as many, or limit them to the least: "
                               "Trainer(limit_train_batches=labkit.training.even_steps(len(batches)))")

    def on_train_end(self):
        self._check("ends with them")

    def _check(self, then: str) -> None:
        for parameter in self.lightning_module.parameters():
            wrapper.check_finite(parameter, "parameters", then)

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        self._check("saved no checkpoint")  # replicas exchange, and are checked, now and then only
        own = {name: checkpoint[name] for name in ("state_dict", "optimizer_states") if name in checkpoint}
        own = move_data_to_device(own | {"private": self.private()}, "cpu")  # no rank may fill another's GPU
        checkpoint["ranks"] = [own] * self.world_size
        if self.world_size > 1:
            distributed.gather_object(own, checkpoint["ranks"] if self.is_global_zero else None)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, *args, **options):
        checkpoint = super().load_checkpoint(*args, **options)
        ranks = checkpoint.pop("ranks", ())
        own = dict(ranks[self.global_rank]) if len(ranks) == self.world_size else {}
        self.restore(own.pop("private", None))
        return checkpoint | own
