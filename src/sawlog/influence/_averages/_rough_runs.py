"""Scale down rough runs: those whose scores are larger than in the median run.

The size of the median run, the usual size, is known from few runs only. If it is off, all scores of
a query are too large or too small by one factor. Differences between the runs do not show this,
because after scaling all rough runs have the same size.
"""

from __future__ import annotations

import numpy as np


def scale_down(parts: np.ndarray) -> np.ndarray:
    """Scale runs ``[m, a, n]`` down to the usual size of each part, unless they are smaller."""
    sizes, usual = _sizes(parts)
    return parts * _factors(sizes, usual)


def usual_size_errors(parts: np.ndarray) -> np.ndarray:
    """Return how :func:`scale_down` changes if usual sizes err, ``[2, m, a, n]``.

    First if they are larger by their standard error, then if they are smaller. The standard error
    is that of a median: half of the distance between two quantiles, of logarithms.
    """
    sizes, usual = _sizes(parts)
    reach = 0.5 / np.sqrt(len(parts))
    low, high = np.quantile(sizes, [0.5 - reach, 0.5 + reach], axis=0)
    known = low > 0
    ratio = np.sqrt(np.where(known, high, 1) / np.where(known, low, 1))
    rough = (sizes >= usual) * _factors(sizes, usual)
    return np.stack([parts * rough * (ratio - 1), parts * rough * (1 / ratio - 1)])


def _sizes(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the size of each part of each run, ``[m, a, 1]``, and the usual one, ``[a, 1]``."""
    sizes = np.sqrt((parts**2).mean(-1, keepdims=True))
    return sizes, np.median(sizes, 0)


def _factors(sizes: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Return what parts are multiplied with; 1 if most runs have no scores."""
    return np.where((sizes > usual) & (usual > 0), usual / np.where(sizes > 0, sizes, 1), 1)
