"""Projection matrices for gradients: random, or the principal directions of a second moment.

Random matrices are drawn by numpy from a seed and a name. They do not depend on the device or the
order of layers, and need not be stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from sawlog._validate import one_of, refuse


@dataclasses.dataclass(frozen=True)
class Projection:
    """The projection matrices of both sides of a layer; None leaves a side unchanged."""

    left: Any = None
    right: Any = None


def random_projection(kind: str, size: int, rank: int, *, seed: int, name: str) -> np.ndarray:
    """Return a random matrix ``[size, rank]`` that preserves dot products in expectation.

    Args:
        kind: ``"orthonormal"``: orthonormal columns times ``sqrt(size / rank)``; ``"gaussian"``:
            independent normal entries with variance ``1 / rank``.
        size, rank: The shape.
        seed, name: Determine the matrix.

    Raises:
        ArgumentError: The kind is unknown, or the rank is not from 1 to ``size``.

    >>> matrix = random_projection("orthonormal", 8, 2, seed=0, name="layer")
    >>> np.allclose(matrix.T @ matrix, 4 * np.eye(2), atol=1e-6)
    True
    """
    one_of("kind", kind, tuple(RANDOM_PROJECTIONS))
    if not 1 <= rank <= size:
        refuse("rank", f"an integer from 1 to {size} for {name!r}", rank)
    words = xxhash.xxh3_128_intdigest(f"{kind}\0{name}".encode(), seed=seed % 2**64)
    normal = np.random.Generator(np.random.PCG64(words)).standard_normal((size, rank))
    return RANDOM_PROJECTIONS[kind](normal).astype(np.float32)


def _scaled_orthonormal(normal: np.ndarray) -> np.ndarray:
    size, rank = normal.shape
    return _orthonormal(normal) * np.sqrt(size / rank)


def _scaled_gaussian(normal: np.ndarray) -> np.ndarray:
    return normal / np.sqrt(normal.shape[1])


RANDOM_PROJECTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "orthonormal": _scaled_orthonormal,
    "gaussian": _scaled_gaussian,
}
"""From normal numbers ``[size, rank]`` to a matrix that preserves dot products in expectation."""


def _orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Return Q of a QR decomposition whose R has a positive diagonal.

    This makes Q unique, so the result is the same everywhere, and uniformly distributed for normal
    entries. A tall random matrix is well conditioned, so R is computed by Cholesky, which is
    faster.
    """
    size, rank = matrix.shape
    if size < 2 * rank:
        columns, triangle = np.linalg.qr(matrix)
        return columns * np.sign(np.diag(triangle))
    lower = np.linalg.cholesky(matrix.T @ matrix)
    return np.linalg.solve(lower, matrix.T).T


def principal(moment: np.ndarray, rank: int) -> np.ndarray:
    """Return the ``rank`` principal directions of a second moment as columns, ``[size, rank]``.

    A moment with one axis is a diagonal, such as that of one-hot features.

    Raises:
        ArgumentError: The rank is not from 1 to ``size``.
    """
    size = moment.shape[0]
    if not 1 <= rank <= size:
        refuse("rank", f"an integer from 1 to {size}", rank)
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
