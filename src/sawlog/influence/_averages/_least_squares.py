"""Least squares with bounds, for a few unknowns."""

from __future__ import annotations

from typing import Any

import numpy as np

#: How often each unknown is improved. There are about ten.
SWEEPS = 500


def least_squares(
    square: np.ndarray, product: np.ndarray, upper: Any = np.inf, ridge: float = 0.0
) -> np.ndarray:
    """Minimize ``w' square w / 2 - w' product`` for ``w`` from 0 to ``upper``, one by one.

    Args:
        square: a symmetric matrix without negative eigenvalues.
        product: a vector.
        upper: the largest value of each unknown.
        ridge: by which share the diagonal is increased, for stable results.
    """
    upper = np.broadcast_to(upper, product.shape)
    sizes = np.diag(square) * (1 + ridge)
    weights = np.zeros(len(product))
    for _ in range(SWEEPS):
        for at in np.flatnonzero(sizes > 0):
            rest = product[at] - square[at] @ weights + square[at, at] * weights[at]
            weights[at] = min(max(rest / sizes[at], 0), upper[at])
    return weights
