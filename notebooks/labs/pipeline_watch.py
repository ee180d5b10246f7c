"""What a rank of `torch.distributed.pipelining` really does: its actions, what it sends, what it holds.

Four methods of torch's stages are wrapped that all its schedules call (seen in torch 2.13). Held tensors are followed
one by one through `saved_tensors_hooks`: they count as long as autograd keeps them alive, whatever the schedule says.
"""

import weakref

import torch

from labs.pipeline_timetable import Action


class _Saved:
    """A tensor kept for the backward of `owner`, a (microbatch, chunk)."""

    def __init__(self, tensor: torch.Tensor, owner: tuple[int, int]):
        self.tensor, self.owner = tensor, owner


class Watch:
    """Attach it to each stage of a rank, run, then read it: `Watch(parameters)`, `by_torch(..., watch=watch.attach)`.

    Attributes: actions, in order; messages and words sent to other ranks (the data only, not torch's set-up); held, the
    number of (microbatch, chunk) pairs alive after each action; peak_words, the most activation words (parameters and
    what the loss keeps left out; a tensor that two operators keep counts once)."""

    def __init__(self, parameters):
        self.actions: list[Action] = []
        self.messages, self.words, self.peak_words = 0, 0, 0
        self.held: list[int] = []
        self._parameters = {p.untyped_storage().data_ptr() for p in parameters}
        self._alive = weakref.WeakSet()

    def attach(self, stage, chunk: int) -> None:
        for name, kind in (("forward_one_chunk", "F"), ("backward_one_chunk", "B"), ("backward_weight_one_chunk", "W")):
            setattr(stage, name, self._acting(getattr(stage, name), kind, chunk))
        for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
            setattr(stage, name, self._sending(getattr(stage, name)))

    def _acting(self, method, kind: str, chunk: int):
        def act(microbatch, *args, full_backward=True, **kwargs):
            split = {"full_backward": full_backward} if kind == "B" else {}
            self.actions.append(Action(kind if full_backward else "I", microbatch, chunk))
            hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: self._keep(t, (microbatch, chunk)), _fetch)
            with hooks:
                result = method(microbatch, *args, **split, **kwargs)
            self.held.append(len({saved.owner for saved in self._alive}))
            sizes = {saved.tensor.untyped_storage().data_ptr(): saved.tensor.numel() for saved in self._alive}
            self.peak_words = max(self.peak_words, sum(sizes.values()))
            return result

        return act

    def _sending(self, method):
        def send(microbatch):
            operations = method(microbatch)
            self.messages += len(operations)
            self.words += sum(operation.tensor.numel() for operation in operations)
            return operations

        return send

    def _keep(self, tensor: torch.Tensor, owner: tuple[int, int]):
        if tensor.untyped_storage().data_ptr() in self._parameters:
            return tensor
        saved = _Saved(tensor.detach(), owner)  # else the graph would hold itself
        self._alive.add(saved)
        return saved


def _fetch(saved):
    return saved.tensor if isinstance(saved, _Saved) else saved
