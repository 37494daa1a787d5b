"""Matrices that gradients are projected with: random ones, or the main directions of a moment.

Random ones are made by numpy from a seed and a name, so that they are the same on every device,
whatever the order of the layers, and need not be stored.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import xxhash

from sawlog.errors import ArgumentError

KINDS = ("orthonormal", "gaussian")


@dataclasses.dataclass(frozen=True)
class Projection:
    """The matrices of the two sides of a layer; None leaves a side as it is."""

    left: Any = None
    right: Any = None


def random_projection(kind: str, size: int, rank: int, *, seed: int, name: str) -> np.ndarray:
    """A matrix ``[size, rank]`` whose product with its transpose is the identity on average.

    ``"orthonormal"``: orthonormal columns, scaled by ``sqrt(size / rank)``; ``"gaussian"``:
    independent normal entries with variance ``1 / rank``. Dots of projected vectors are then those
    of the vectors on average, for both kinds.

    >>> matrix = random_projection("orthonormal", 8, 2, seed=0, name="layer")
    >>> np.allclose(matrix.T @ matrix, 4 * np.eye(2), atol=1e-6)
    True
    """
    if kind not in KINDS:
        listed = ", ".join(map(repr, KINDS))
        raise ArgumentError(f"A random projection is one of {listed}, not {kind!r}.")
    if not 1 <= rank <= size:
        raise ArgumentError(f"The rank of a projection is from 1 to {size}, not {rank} ({name}).")
    words = xxhash.xxh3_128_intdigest(f"{kind}\0{name}".encode(), seed=seed % 2**64)
    normal = np.random.Generator(np.random.PCG64(words)).standard_normal((size, rank))
    if kind == "gaussian":
        return (normal / np.sqrt(rank)).astype(np.float32)
    return (_orthonormal(normal) * np.sqrt(size / rank)).astype(np.float32)


def _orthonormal(matrix: np.ndarray) -> np.ndarray:
    """The first factor of a QR decomposition, where the second has a positive diagonal.

    That makes it unique: one answer everywhere, and from normal entries the uniform distribution.
    A tall matrix is well conditioned, and its second factor is then found faster by Cholesky.
    """
    size, rank = matrix.shape
    if size < 2 * rank:
        columns, triangle = np.linalg.qr(matrix)
        return columns * np.sign(np.diag(triangle))
    lower = np.linalg.cholesky(matrix.T @ matrix)
    return np.linalg.solve(lower, matrix.T).T


def principal(moment: np.ndarray, rank: int) -> np.ndarray:
    """The ``rank`` main directions of a second moment, as the columns of ``[size, rank]``.

    A moment with one axis is that of features that never occur together: its diagonal.
    """
    size = moment.shape[0]
    if not 1 <= rank <= size:
        raise ArgumentError(f"The rank of a projection is from 1 to {size}, not {rank}.")
    if moment.ndim == 1:
        chosen = np.argsort(-moment, kind="stable")[:rank]
        matrix = np.zeros((size, rank), np.float32)
        matrix[chosen, np.arange(rank)] = 1
        return matrix
    values, vectors = np.linalg.eigh(moment.astype(np.float64))
    del values  # ascending
    vectors = vectors[:, ::-1][:, :rank]
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(rank)])
    return (vectors * signs).astype(np.float32)
