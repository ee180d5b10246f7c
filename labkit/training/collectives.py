"""Collectives written out by hand, once, over a `comm`: for virtual ranks and numpy (`labkit.simulate.traced.run`) and
for processes and torch (`ProcessComm`, inside `labkit.training.ranks.run_ranks`).

All work in place on a 1-D array of n words, the same n on each of P ranks; any P and n go, n < P too. Rank r owns block
r of `blocks(n, P)`. What they cost is in `labkit.simulate.cost`. After Chan et al., Rabenseifner, and Patarasuk and
Yuan (the ring). When not to use it: for training; `torch.distributed.all_reduce` is faster and knows more networks."""

from collections.abc import Callable

from labkit.simulate.cost import group_size


def blocks(count: int, parts: int) -> list[slice]:
    """`parts` neighbouring slices of `count` words, whose lengths differ by one at most."""
    edges = [part * count // parts for part in range(parts + 1)]
    return [slice(low, high) for low, high in zip(edges, edges[1:], strict=False)]


class Group:
    """Some ranks of `comm`, numbered anew in the order given; this rank has to be one of them."""

    def __init__(self, comm, ranks):
        self._comm, self._ranks = comm, list(ranks)
        self.size, self.rank = len(self._ranks), self._ranks.index(comm.rank)
        self.add, self.empty, self.spare, self.finish = comm.add, comm.empty, comm.spare, comm.finish

    def send(self, array, dest):
        self._comm.send(array, self._ranks[dest])

    def recv(self, count, source, into=None):
        return self._comm.recv(count, self._ranks[source], into)

    def sendrecv(self, array, dest, count, source, into=None):
        return self._comm.sendrecv(array, self._ranks[dest], count, self._ranks[source], into)


def broadcast(array, comm, root: int = 0):
    """Rank `root`'s array to all, by a binomial tree: lg P rounds, n lg P words."""
    me, span = (comm.rank - root) % comm.size, 1
    while span < comm.size and not me & span:
        span *= 2
    if me:
        comm.recv(len(array), (me - span + root) % comm.size, into=array)
    while (span := span // 2) > 0:
        if me + span < comm.size:
            comm.send(array, (me + span + root) % comm.size)
    comm.finish()
    return array


def reduce_scatter(array, comm):
    """By a ring, P - 1 rounds: returns this rank's block of the sum, a view; the rest of `array` is then scratch."""
    size, rank, part = comm.size, comm.rank, blocks(len(array), comm.size)
    spare = comm.spare(-(-len(array) // size), like=array)
    for step in range(size - 1):
        out, into = array[part[(rank - step - 1) % size]], array[part[(rank - step - 2) % size]]
        got = comm.sendrecv(out, (rank + 1) % size, len(into), (rank - 1) % size, into=spare[: len(into)])
        comm.add(into, got)
    return array[part[rank]]


def all_gather(array, comm):
    """By a ring, P - 1 rounds: every rank's own block of `array` to all."""
    size, rank, part = comm.size, comm.rank, blocks(len(array), comm.size)
    for step in range(size - 1):
        out, into = array[part[(rank - step) % size]], array[part[(rank - step - 1) % size]]
        comm.sendrecv(out, (rank + 1) % size, len(into), (rank - 1) % size, into=into)
    return array


def all_to_all(array, comm):
    """Block j of this rank's array to rank j, in P - 1 rounds; returns the blocks received, in the order of ranks."""
    size, rank, part = comm.size, comm.rank, blocks(len(array), comm.size)
    own = len(array[part[rank]])
    out = comm.empty(size * own, like=array)
    out[rank * own : (rank + 1) * own] = array[part[rank]]
    for step in range(1, size):
        dest, source = (rank + step) % size, (rank - step) % size
        comm.sendrecv(array[part[dest]], dest, own, source, into=out[source * own : (source + 1) * own])
    return out


def all_reduce_naive(array, comm):
    """All to rank 0, which adds them up and sends the sum to each."""
    spare = comm.spare(len(array), like=array)
    for other in range(1, comm.size):
        if comm.rank == 0:
            comm.add(array, comm.recv(len(array), other, into=spare))
        elif comm.rank == other:
            comm.send(array, 0)
            comm.recv(len(array), 0, into=array)
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.send(array, other)
    comm.finish()
    return array


def all_reduce_tree(array, comm):
    """Up a binomial tree to rank 0 and down again."""
    spare, span = comm.spare(len(array), like=array), 1
    while span < comm.size and not comm.rank & span:
        if comm.rank + span < comm.size:
            comm.add(array, comm.recv(len(array), comm.rank + span, into=spare))
        span *= 2
    if comm.rank:
        comm.send(array, comm.rank - span)
    return broadcast(array, comm)


def _folded(inner: Callable) -> Callable:
    """`inner` on the first 2^k ranks: the others' arrays are added to theirs a round before, and sent a round after."""

    def all_reduce(array, comm):
        core, spare = 1 << (comm.size.bit_length() - 1), comm.spare(len(array), like=array)
        other = comm.rank ^ core
        if comm.rank >= core:
            comm.send(array, other)
            comm.recv(len(array), other, into=array)
        else:
            if other < comm.size:
                comm.add(array, comm.recv(len(array), other, into=spare))
            inner(array, Group(comm, range(core)), spare)
            if other < comm.size:
                comm.send(array, other)
        comm.finish()
        return array

    all_reduce.__doc__ = inner.__doc__
    return all_reduce


def _butterfly(array, comm, spare):
    """Recursive doubling: in round i exchange everything with the rank whose number differs in bit i."""
    span = 1
    while span < comm.size:
        comm.add(array, comm.sendrecv(array, comm.rank ^ span, len(array), comm.rank ^ span, into=spare))
        span *= 2


def _rabenseifner(array, comm, spare):
    """Reduce-scatter by recursive halving, all-gather by recursive doubling."""
    part, low, high, trail = blocks(len(array), comm.size), 0, comm.size, []
    while high - low > 1:
        middle = (low + high) // 2
        lower = comm.rank < middle
        halves = [array[part[a].start : part[b - 1].stop] for a, b in ((low, middle), (middle, high))]
        keep, give = halves if lower else reversed(halves)
        other = comm.rank ^ (middle - low)
        comm.add(keep, comm.sendrecv(give, other, len(keep), other, into=spare[: len(keep)]))
        trail.append((other, keep, give))
        low, high = (low, middle) if lower else (middle, high)
    for other, mine, theirs in reversed(trail):
        comm.sendrecv(mine, other, len(theirs), other, into=theirs)


all_reduce_butterfly, all_reduce_rabenseifner = _folded(_butterfly), _folded(_rabenseifner)


def all_reduce_ring(array, comm):
    """Reduce-scatter and all-gather around a ring."""
    reduce_scatter(array, comm)
    return all_gather(array, comm)


def all_reduce_hierarchical(array, comm, group: int | None = None):
    """Rings: reduce-scatter inside each `group` of neighbours, all-reduce of each block across the groups, all-gather.

    `group` has to divide P (else RequestError); without it, the divisor nearest below the root of P."""
    group = group_size(comm.size, group)
    place = comm.rank % group
    inside = Group(comm, range(comm.rank - place, comm.rank - place + group))
    all_reduce_ring(reduce_scatter(array, inside), Group(comm, range(place, comm.size, group)))
    return all_gather(array, inside)


ALL_REDUCE = {"naive": all_reduce_naive, "tree": all_reduce_tree, "butterfly": all_reduce_butterfly,
              "ring": all_reduce_ring, "rabenseifner": all_reduce_rabenseifner,
              "hierarchical": all_reduce_hierarchical}


class ProcessComm:
    """This process as a rank of `torch.distributed`; arrays are contiguous 1-D torch tensors, a word is an element.

    `messages` and `words` count what was sent; `dtype` is what `recv` expects where it is not told `into` what."""

    def __init__(self, dtype=None):
        import torch
        from torch import distributed

        self._torch, self._distributed, self._dtype, self._leaving, self._spare = torch, distributed, dtype, [], None
        self.rank, self.size, self.messages, self.words = distributed.get_rank(), distributed.get_world_size(), 0, 0

    def _start(self, array, dest):
        self.messages, self.words = self.messages + 1, self.words + len(array)
        return self._distributed.isend(array, dest)

    def send(self, array, dest):
        """Does not wait: sends a copy. `finish` before the process ends."""
        copy = array.clone()
        self._leaving.append((self._start(copy, dest), copy))

    def recv(self, count, source, into=None):
        into = self.empty(count) if into is None else into
        self._distributed.irecv(into, source).wait()
        return into

    def sendrecv(self, array, dest, count, source, into=None):
        into = self.empty(count, like=array) if into is None else into
        coming, going = self._distributed.irecv(into, source), self._start(array, dest)
        coming.wait()
        going.wait()
        return into

    def add(self, into, part):
        return into.add_(part)

    def empty(self, count, like=None):
        return self._torch.empty(count, dtype=self._dtype if like is None else like.dtype)

    def spare(self, count, like):
        """Room that the next call gives away again: touching new memory takes as long as sending it."""
        if self._spare is None or len(self._spare) < count or self._spare.dtype != like.dtype:
            self._spare = self.empty(count, like)
        return self._spare[:count]

    def finish(self):
        """Until everything sent has left."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving.clear()
