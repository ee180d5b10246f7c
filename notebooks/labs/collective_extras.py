"""Two more all-reduces, over the same `comm` as `labkit.training.collectives`: one for any P, one for long pipelines;
and the cost of all-reduces in LogGP."""

from labkit.simulate.cost import counts
from labkit.training.collectives import blocks


def all_reduce_circulant(array, comm):
    """Reduce-scatter and all-gather along skips that halve, rounding up: 2 lg P rounds and 2n(P-1)/P words for any P.

    Those are Rabenseifner's numbers at P = 2^k without its fold elsewhere (Bruck et al.; Traeff). Each rank turns its
    array so that its own block comes first; the blocks that travel together are then neighbours. Exact in words where P
    divides n; else more, by a word a block at most."""
    size, rank, part = comm.size, comm.rank, blocks(len(array), comm.size)
    own, edges = part[rank].start, [0]
    for step in range(size):
        block = part[(rank + step) % size]
        edges.append(edges[-1] + block.stop - block.start)
    turned, spare = comm.empty(len(array), like=array), comm.spare(len(array), like=array)
    turned[: len(array) - own], turned[len(array) - own :] = array[own:], array[:own]
    trail, span = [], size
    while span > 1:
        skip = (span + 1) // 2  # blocks skip to span go that far ahead; as many come back to the front
        far, near = turned[edges[skip] : edges[span]], turned[: edges[span - skip]]
        ahead, behind = (rank + skip) % size, (rank - skip) % size
        comm.add(near, comm.sendrecv(far, ahead, len(near), behind, into=spare[: len(near)]))
        trail.append((near, far, ahead, behind))
        span = skip
    for near, far, ahead, behind in reversed(trail):
        comm.sendrecv(near, behind, len(far), ahead, into=far)
    array[own:], array[:own] = turned[: len(array) - own], turned[len(array) - own :]
    return array


def two_trees(size: int) -> list[list[int]]:
    """The parents (-1: the root) of each rank in two binary trees; for even `size`, no rank is inner in both.

    In the first odd ranks are leaves; the second is its mirror image, or for odd `size` the same one rank on."""
    first = [-1]
    for rank in range(1, size):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        first.append(up if up < size else rank ^ bit)
    if size % 2:
        moved = [first[rank - 1] for rank in range(size)]
        return [first, [-1 if up < 0 else (up + 1) % size for up in moved]]
    return [first, [-1 if up < 0 else size - 1 - up for up in reversed(first)]]


def all_reduce_double_tree(array, comm, pieces: int = 8):
    """Half of the array up and down one tree, half through the other, each in `pieces` that follow each other.

    Few rounds for few pieces, like a tree; few words for many, like a ring (2n to 3n: Sanders, Speck and Traeff colour
    the trees to reach 2n, which this does not). A rank first sends all that it has to add nothing to. On the way down
    it takes the tree where it is inner some pieces ahead of the other, as leaves get theirs last: to wait for them
    sooner would hold up those below."""
    trees = two_trees(comm.size)
    children = [[rank for rank in range(comm.size) if parents[rank] == comm.rank] for parents in trees]
    inner, leaf = sorted((0, 1), key=lambda t: -len(children[t]))
    halves, ahead = blocks(len(array), 2), 2 * comm.size.bit_length()
    part = [[array[half][piece] for piece in blocks(half.stop - half.start, pieces)] for half in halves]
    spare = comm.spare(len(array), like=array)
    for t in (leaf, inner):
        for words in part[t]:
            for child in children[t]:
                comm.add(words, comm.recv(len(words), child, into=spare[: len(words)]))
            if trees[t][comm.rank] >= 0:
                comm.send(words, trees[t][comm.rank])
    for step in range(pieces + ahead):
        for t, piece in ((inner, step), (leaf, step - ahead)):
            if 0 <= piece < pieces:
                words = part[t][piece]
                if trees[t][comm.rank] >= 0:
                    comm.recv(len(words), trees[t][comm.rank], into=words)
                for child in children[t]:
                    comm.send(words, child)
    comm.finish()
    return array


def loggp(collective: str, count: int, size: int, latency: float, overhead: float, gap: float, per_word: float):
    """Seconds of an all-reduce in LogGP, adding up left out; the gap is that between messages of one rank.

    A message of w words takes o + (w - 1) G + L + o. In all but the naive one a rank sends on what it has just
    received, so these follow each other and g does not show (g <= L + 2 o); rank 0 of the naive one takes in, and gives
    out, one message after max(g, o) + (w - 1) G."""
    rounds, words, _ = counts(collective, count, size)
    if collective == "naive" and size > 1:
        long = max(count - 1, 0) * per_word
        return 2 * (latency + 2 * overhead + long + (size - 2) * (max(gap, overhead) + long))
    return rounds * (latency + 2 * overhead) + max(words - rounds, 0) * per_word
