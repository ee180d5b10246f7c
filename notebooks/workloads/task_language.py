"""The Lightning module of language models that carry their state from window to window."""

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.errors import choose
from labkit.tasks.base import Task
from workloads.workload_language import LOSSES

LARGEST_LOGARITHM = 80.0  # nats; beyond it the perplexity would not fit float32


class LanguageModel(Task):
    """Cross-entropy of the next token, over batches (tokens, targets, first) of `workloads.text.Streams`.

    The state that a window leaves is where the next one starts, cut off from its gradient (truncated backpropagation
    through time); it starts from nothing where `first` is set. An evaluation has a state of its own, and a checkpoint
    holds the state, so that a run resumed in the middle of an epoch goes on exactly.

    Args:
        model: maps (tokens [streams, window], state) to (scores [streams, window, vocabulary], state); the state is a
            tuple of tensors, or None where a text begins.
        loss: `mean` over tokens, or `sum-over-time`, the mean over streams of the sum over the window, as the
            TensorFlow tutorial has it. That is `window` times the mean: the same trajectory (of SGD, with or without
            momentum) as the mean with the rate times `window` and the clipping norm divided by it. The other arguments
            are those of `Task`.

    Metrics are `<part>_loss`, nats per token whatever the loss, and `<part>_perplexity`, its exponential (at most
    exp(80)). When not to use it: for batches of windows that do not follow one another."""

    def __init__(self, model, *args, loss: str = "mean", **options):
        super().__init__(model, *args, **options)
        choose("loss", loss, LOSSES)
        self.loss, self._state = loss, {}

    def _read(self, kind: str, batch) -> tuple[Tensor, Tensor]:
        """Scores [tokens, vocabulary] and targets [tokens] of a window, read on from the last one of this kind."""
        tokens, targets, first = batch
        scores, state = self.model(tokens, None if first else self._state[kind])
        self._state[kind] = tuple(part.detach() for part in state)
        return scores.flatten(0, 1), targets.flatten()

    def training_step(self, batch, batch_index: int) -> Tensor:
        loss = F.cross_entropy(*self._read("train", batch))
        return loss if self.loss == "mean" else loss * batch[0].shape[1]

    def sums(self, batch) -> Tensor:
        scores, targets = self._read("evaluation", batch)
        loss = F.cross_entropy(scores.float(), targets, reduction="sum")
        return torch.stack([loss, torch.full_like(loss, len(targets))])

    def summary(self, totals: Tensor) -> dict[str, Tensor]:
        loss = totals[0] / totals[1]
        return {"loss": loss, "perplexity": loss.clamp(max=LARGEST_LOGARITHM).exp()}

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["carried_state"] = self._state.get("train")

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        if checkpoint["carried_state"] is not None:
            self._state["train"] = checkpoint["carried_state"]
