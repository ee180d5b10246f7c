"""Winograd's minimal filtering F(m x m, 3 x 3) for convolutions with stride 1, forward and both gradients.

A tile of a = m + 2 pixels a side gives m x m outputs with a^2 multiplications in place of 9 m^2: 2.25 times fewer for
m = 2, 4 times for m = 4. Y = A' [(G w G') * (B' d B)] A, Lavin and Gray (2016); the matrices are made here by the
Toom-Cook construction. Arguments as in `labkit.operators.convolution`.
When not to use it: with large tiles in few bits. The entries grow with m, and rounding errors with them."""

import numpy as np
import torch
from torch.nn import functional as F

TILES = {"winograd": 2, "winograd4": 4}
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # small ones keep the entries, and so the errors, small


def matrices(m: int, r: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [a, m], B [a, a], G [a, r], a = m + r - 1: A' ((G w) * (B' d)) = the m correlations of d [a] with w [r].

    The product of two polynomials (m, r coefficients) from its values at a - 1 `POINTS` and infinity, transposed."""
    points = np.array(POINTS[: m + r - 2])
    others = [np.delete(points, i) for i in range(len(points))]
    scale = [np.prod(p - rest) for p, rest in zip(points, others, strict=True)]
    a = np.vstack([points[:, None] ** np.arange(m), np.eye(m)[-1]])
    g = np.vstack([points[:, None] ** np.arange(r) / np.array(scale)[:, None], np.eye(r)[-1]])
    b = np.stack([*(np.append(np.poly(rest)[::-1], 0.0) for rest in others), np.poly(points)[::-1]], axis=1)
    return a, b, g


def both(matrix, fields):
    """`matrix` [p, i] applied along both of the first two dimensions of `fields` [i, i, ...]: [p, p, ...]."""
    half = (matrix @ fields.flatten(1)).unflatten(1, fields.shape[1:])
    return (matrix @ half.flatten(2)).unflatten(2, fields.shape[2:])


def tiles(x, out, m, b):
    """B' d B of every tile d: [a, a, G, C, N, rows of tiles, columns of tiles]; zeros complete the last ones."""
    x = F.pad(x, (0, -out[1] % m, 0, -out[0] % m))
    n, g, c, y, z = x.stride()
    shape = (m + 2, m + 2, *x.shape[1:3], len(x), -(-out[0] // m), -(-out[1] // m))
    return both(b.T, x.as_strided(shape, (y, z, g, c, n, m * y, m * z)))


def forward(x, w, g, m, out=None):
    out = out or g.out
    a, b, kernel = (torch.from_numpy(matrix).to(x) for matrix in matrices(m))
    d = tiles(x, out, m, b)
    found = (both(kernel, w.permute(3, 4, 0, 1, 2)) @ d.flatten(4)).unflatten(-1, d.shape[4:])
    y = both(a.T, found).permute(4, 2, 3, 5, 0, 6, 1)
    return y.flatten(5).flatten(3, 4)[..., : out[0], : out[1]]


def grad_x(dy, w, g, m):
    """Itself a convolution: of dy, padded by 2, with the flipped kernels, inputs and outputs exchanged."""
    return forward(F.pad(dy, (2,) * 4), w.flip(3, 4).transpose(1, 2), g, m, out=g.padded)


def grad_w(x, dy, g, m):
    """The transpose of the forward pass in w: G' [sum over tiles of (A dy A') * (B' d B)] G."""
    a, b, kernel = (torch.from_numpy(matrix).to(x) for matrix in matrices(m))
    d = tiles(x, g.out, m, b)
    dy = F.pad(dy, (0, -g.out[1] % m, 0, -g.out[0] % m)).unflatten(4, (-1, m)).unflatten(3, (-1, m))
    outputs = both(a, dy.permute(4, 6, 1, 2, 0, 3, 5))
    return both(kernel.T, outputs.flatten(4) @ d.flatten(4).mT).permute(2, 3, 4, 0, 1)
