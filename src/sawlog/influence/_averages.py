"""Averages over runs or checkpoints, with standard errors."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np

from sawlog import _validate


@dataclasses.dataclass(frozen=True)
class Average:
    """An average over members.

    Args:
        values: The average, ``[q, n]``.
        errors: Its standard error, ``[q, n]``.
        members: What each member contributes, ``[m, q, n]``; their mean is ``values``.
    """

    values: np.ndarray
    errors: np.ndarray
    members: np.ndarray


def average(members: np.ndarray, kind: str = "robust", paired: bool = False) -> Average:
    members = np.asarray(members, np.float64)
    values = members.mean(0)
    n = len(members)
    errors = members.std(0, ddof=1) / np.sqrt(n) if n > 1 else np.full(values.shape, np.nan)
    return Average(values, errors, members)


def t_quantile(level: float, degrees: float) -> float:
    """Return ``t`` such that Student's distribution has a share ``level`` between ``-t`` and ``t``.

    >>> round(t_quantile(0.9, 9), 3), round(t_quantile(0.95, float("inf")), 3)
    (1.833, 1.96)
    """
    level = _validate.fraction("level", level)
    if not 0 < level < 1:
        _validate.refuse("level", "a number between 0 and 1", level)
    if degrees < 1:
        return math.inf
    normal = statistics.NormalDist().inv_cdf(0.5 + level / 2)
    if degrees > 1e6:
        return normal
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_share(middle, degrees) < level else (low, middle)
    return high


def _t_share(t: float, degrees: float) -> float:
    """Return the share of Student's distribution between ``-t`` and ``t``, by Gauss quadrature.

    With ``x = sqrt(degrees) tan(a)`` the density is a power of a cosine.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    end = math.atan(t / math.sqrt(degrees))
    angles = end * (nodes + 1) / 2
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return float(scale * end * np.sum(weights * np.cos(angles) ** (degrees - 1)))
