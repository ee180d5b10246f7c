"""Cannon's algorithm (1969): a product of matrices on a square grid of P = q x q ranks, each with one block of each,
written once over `comm`: for traced numpy ranks and real torch processes.

Rank i q + j holds block (i, j). Row i of A first moves i blocks to the left, column j of B moves j blocks up, so that
the blocks on a rank match; then q times: multiply, add, move A by one to the left and B by one up. For A [n, k] and
B [k, m] all ranks together send (n k + k m) (q^2 - 1)/q words: with B gathered whole on every rank they would
send k m (q^2 - 1). No rank ever holds more than one block of each.

*When not to use it*: P is no square, or sides are no multiples of q; SUMMA has neither limit."""

import math

import torch

from labkit.errors import RequestError


def grid(comm) -> tuple[int, int, int]:
    """(q, row, column) of this rank.

    Raises:
        RequestError: the number of ranks is no square."""
    q = math.isqrt(comm.size)
    if q * q != comm.size:
        raise RequestError(f"Cannon's algorithm needs a square number of ranks, not {comm.size}; choose 1, 4, 9 or 16")
    return q, *divmod(comm.rank, q)


def block(matrix, comm):
    """This rank's block of a whole matrix, a view.

    Raises:
        RequestError: a side is no multiple of q."""
    q, i, j = grid(comm)
    (rows, columns), (more, over) = matrix.shape, (side % q for side in matrix.shape)
    if more or over:
        raise RequestError(f"a {rows} x {columns} matrix has no {q} x {q} equal blocks; choose multiples of {q}")
    return matrix[i * rows // q : (i + 1) * rows // q, j * columns // q : (j + 1) * columns // q]


def _move(part, comm, dest: int, source: int):
    """`part` to `dest`; what comes from `source`, in the same shape."""
    if dest == comm.rank:
        return part
    flat = part.reshape(-1)
    return comm.sendrecv(flat, dest, len(flat), source).reshape(part.shape)


def product(a, b, comm):
    """This rank's block of A B from its blocks `a` [n/q, k/q] and `b` [k/q, m/q], arrays or tensors."""
    q, i, j = grid(comm)

    def rank(row, column):
        return row % q * q + column % q

    a = _move(a, comm, rank(i, j - i), rank(i, j + i))
    b = _move(b, comm, rank(i - j, j), rank(i + j, j))
    total = a @ b
    for _ in range(q - 1):
        a = _move(a, comm, rank(i, j - 1), rank(i, j + 1))
        b = _move(b, comm, rank(i - 1, j), rank(i + 1, j))
        total = total + a @ b
    return total


def transposed(a, comm):
    """This rank's block of the transposed matrix: blocks (i, j) and (j, i) change places."""
    q, i, j = grid(comm)
    return _move(a.T, comm, j * q + i, j * q + i)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, comm):
        ctx.save_for_backward(x, w)
        ctx.comm = comm
        return product(x, w, comm)

    @staticmethod
    def backward(ctx, dy):
        (x, w), comm = ctx.saved_tensors, ctx.comm
        return product(dy, transposed(w, comm), comm), product(transposed(x, comm), dy, comm), None


def multiply(x: torch.Tensor, w: torch.Tensor, comm) -> torch.Tensor:
    """This rank's block of x w, differentiable: dx = dy w' and dw = x' dy, two more products and two transpositions."""
    return _Multiply.apply(x, w, comm)


def sent(ranks: int, rows: int, inner: int, columns: int) -> tuple[int, int]:
    """(messages, words) of all ranks together for one `product`."""
    q = math.isqrt(ranks)
    words = (rows * inner + inner * columns) * (ranks - 1) // q
    return 2 * ranks * (q - 1) + 2 * q * (q - 1), words


def transposing(ranks: int, rows: int, columns: int) -> tuple[int, int]:
    """(messages, words) of all ranks together for one `transposed`: the q blocks on the diagonal stay."""
    moving = ranks - math.isqrt(ranks)
    return moving, moving * rows * columns // ranks
