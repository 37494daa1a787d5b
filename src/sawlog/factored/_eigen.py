"""Eigenvectors of second moments."""

from __future__ import annotations

import numpy as np

#: How far a moment of float32 numbers may be from a multiple of the identity.
_ROUNDING = 1e-5


def eigh(moment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues and eigenvectors of symmetric matrices ``[..., n, n]``.

    Those of a multiple of the identity are the axes. Any basis is one of eigenvectors there, and
    otherwise rounding errors would choose it: the moment of projected one-hot inputs that are all
    equally frequent is such a matrix, as for a table of positions.

    >>> eigh(np.array([[2.0, 1e-7], [1e-7, 2.0]]))[1].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    moment = np.asarray(moment)
    values, vectors = np.linalg.eigh(moment)
    if not moment.shape[-1]:
        return values, vectors
    mean = np.trace(moment, axis1=-2, axis2=-1)[..., None, None] / moment.shape[-1]
    axes = np.broadcast_to(np.eye(moment.shape[-1], dtype=vectors.dtype), moment.shape)
    far = np.abs(moment - mean * axes).max((-2, -1), keepdims=True)
    return values, np.where(far <= _ROUNDING * np.abs(mean), axes, vectors)
