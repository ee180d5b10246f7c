"""What torch's own parallelism (DDP, FSDP2, DTensor) sends, counted at its dispatcher, which every collective passes.
`ProcessComm` counts the hand-written ones. When not to use it: for compiled graphs; for groups of some of the ranks."""

from collections import Counter

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.errors import WorkError
from parallel import words

KINDS = {"allreduce_": "all_reduce", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
         "all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


class Counting(TorchDispatchMode):
    """Within `with Counting() as sent:`, `sent.calls` holds (collective, words of the whole tensor): times called.

    Raises:
        WorkError: a collective that is not in `KINDS`."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result, name = op(*args, **(kwargs or {})), op._opname
        if op.namespace in ("c10d", "_c10d_functional") and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            if name not in KINDS:
                raise WorkError(f"cannot count {op}; known: {', '.join(KINDS)}")
            leaves = tree_leaves((args, result))
            self.calls[KINDS[name], max(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))] += 1
        return result

    def traffic(self, ranks: int) -> words.Traffic:
        """What rings send for that: the totals over `ranks` ranks."""
        total = words.Traffic(0, 0)
        for kind, size in self.calls.elements():
            total += (words.all_reduce if kind == "all_reduce" else words.gather)(ranks, size)
        return total
