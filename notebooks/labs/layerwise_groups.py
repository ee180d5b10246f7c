"""The exclusion list undone: a callback for the arm of a comparison that has none."""

import pytorch_lightning as pl


class AdaptAll(pl.Callback):
    """Every parameter group gets the trust ratio and the weight decay of the first one, before the first step.

    Args:
        writer: the run that is being written; its only note is the number of tensors that were excluded before.

    When not to use it: anywhere but in that comparison. Biases start at 0, so their first ratio is a rule of its own.
    """

    def __init__(self, writer):
        self.writer = writer

    def on_train_start(self, trainer, task) -> None:
        included = 0
        for optimizer in trainer.optimizers:
            decay = optimizer.param_groups[0]["weight_decay"]
            for group in optimizer.param_groups:
                included += 0 if group["adapt"] else len(group["params"])
                group.update(adapt=True, weight_decay=decay)
        self.writer.metric("tensors_included", included)
