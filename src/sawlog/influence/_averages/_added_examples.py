"""Weigh runs with an example against runs without it, to estimate what adding it changes.

Adding an example changes a metric by the integral of the derivative by its weight, from 0 to 1.
Runs without the example have the derivative at 0, runs with it that at 1. Their mean is too large
if the model learns the example: the derivative falls quickly from 0 on. To first order it is
``a / (1 + h w)^2`` at the weight ``w``, for an example of leverage ``h``. The integral is then
``a / (1 + h)``: the geometric mean of the derivatives at 0 and 1.
"""

from __future__ import annotations

import numpy as np

#: The sizes of the scores of one example are averaged with those of all examples, which count like
#: this number of queries: with few queries, the sizes of one example are uncertain.
PRIOR = 5


def integral_factors(members: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return factors ``[m, n]`` for the scores of runs, so that their mean is the integral.

    The share of runs without an example is ``1 / (1 + sqrt(r))``, where ``r`` is the ratio of the
    sizes of its scores in runs without it and with it, at least 1. If the scores for all queries
    have this ratio, the result is their geometric mean. Shares are at most 1, so noise is not
    enlarged.

    Args:
        members: the scores of each query in each run, ``[q, m, n]``.
        present: ``[m, n]``: whether each run has used an example.
    """
    with_it, without = present.sum(0), (~present).sum(0)
    known = (with_it > 0) & (without > 0)
    sizes = []
    scale = np.sqrt((members**2).mean((1, 2)))
    scale = np.where(scale > 0, scale, 1)[:, None]
    for chosen, count in ((~present, without), (present, with_it)):
        mean = np.where(chosen, members, 0).sum(1) / np.maximum(count, 1)
        size = ((mean / scale) ** 2).mean(0)
        prior = PRIOR / len(members) * size[known].mean() if known.any() else 0
        sizes.append(size + prior)
    if not np.all(sizes):
        return np.ones(present.shape)
    root = np.maximum(1, sizes[0] / sizes[1]) ** 0.25
    share = 1 / (1 + root)
    count = len(present)
    factors = np.where(
        present,
        (1 - share) * count / np.maximum(with_it, 1),
        share * count / np.maximum(without, 1),
    )
    return np.where(known, factors, 1.0)
