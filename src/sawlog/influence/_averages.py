"""Averages over runs or checkpoints, with standard errors."""

from __future__ import annotations

import dataclasses

import numpy as np


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
