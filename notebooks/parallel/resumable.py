"""Loaders whose place in an epoch is in Lightning's checkpoint: a run goes on with the batch it would have read.

When not to use it: for loaders with worker processes or randomness that does not follow from the epoch's number; with
`limit_train_batches`, unless the module sets the epoch itself, as the kit's tasks do."""

from itertools import islice


class Resumable:
    """`batches` with a `set_epoch`, whose epochs follow from their number, such as `DeviceBatches`; each `iter` is the
    next epoch. Give it to `Trainer.fit` in their place. After a resume in mid-epoch the batches that were read before
    are made again and passed over."""

    def __init__(self, batches):
        self.batches, self.epoch, self.read, self._next, self._skip = batches, 0, 0, 0, 0

    def __len__(self):
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter` yields epoch `epoch` from its first batch."""
        self._next, self._skip = epoch, 0

    def __iter__(self):
        # A generator: an epoch begins when its first batch is read, however often a training loop opens the loader.
        self.epoch, self.read = self._next, self._skip
        self.set_epoch(self.epoch + 1)
        self.batches.set_epoch(self.epoch)
        for batch in islice(self.batches, self.read, None):
            self.read += 1
            yield batch

    def state_dict(self) -> dict:
        """The same on every rank."""
        return {"epoch": self.epoch, "read": self.read}

    def load_state_dict(self, state: dict) -> None:
        whole, self._skip = divmod(state["read"], len(self))
        self._next = state["epoch"] + whole
