"""Averages over runs or checkpoints, with standard errors."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics

import numpy as np

from sawlog import _validate
from sawlog.influence._averages._added_examples import integral_factors
from sawlog.influence._averages._least_squares import least_squares
from sawlog.influence._averages._rough_runs import scale_down, usual_size_errors
from sawlog.influence._averages._score_errors import expected_errors

#: With fewer runs, ``"robust"`` is the mean: too few to tell which are rough.
FEWEST = 4
#: How much the size of a part is increased, for stable weights.
RIDGE = 1e-3


@dataclasses.dataclass(frozen=True)
class Average:
    """An average over members.

    Args:
        values: the average, ``[q, n]``.
        errors: its standard error, ``[q, n]``.
        members: what each member contributes, ``[m, q, n]``; their mean is ``values``.
        weights: the weight of each part of a member, then of each guess.
    """

    values: np.ndarray
    errors: np.ndarray
    members: np.ndarray
    weights: np.ndarray


def average(
    parts: np.ndarray,
    kind: str = "robust",
    paired: bool = False,
    guesses: np.ndarray | None = None,
    present: np.ndarray | None = None,
) -> Average:
    """Average the scores of independent runs, each given as a sum of parts.

    ``"mean"`` is the mean. ``"robust"`` has a smaller error if runs are rough, in three steps:

    1. The scores of a run for a query are scaled down if they are larger than those of most runs.
       How uncertain their size is becomes part of the errors, see :mod:`._rough_runs`.
    2. Parts that agree less between runs get smaller weights, from 0 to 1, and guesses get a
       weight, from 0. The weights minimize the expected squared distance to the mean of
       infinitely many runs, which products of different runs estimate without bias. With many
       runs, the weights of all parts tend to 1, and those of guesses to 0.
    3. For complementary halves, runs with and without an example are weighed by the sizes of its
       scores in them, see :func:`integral_factors`.

    Args:
        parts: ``[m, a, q, n]``: for each run, what each part contributes to the scores.
        kind: ``"robust"`` or ``"mean"``.
        paired: whether runs ``2 j`` and ``2 j + 1`` belong together, as those on complementary
            halves of the data do: one errs where the other does not.
        guesses: ``[m, k, q, n]``: scores of other methods for each run, which may be biased.
        present: ``[m, n]``: whether each run has used an example, for pairs of complementary
            halves. Its scores differ between runs with and without it; this is not an error,
            because half of the runs have it.
    """
    count, own, queries, _ = parts.shape
    robust = kind == "robust" and count >= FEWEST
    halves = present if paired and count >= FEWEST else None
    paired = paired and count >= FEWEST and count % 2 == 0
    if robust and guesses is not None and guesses.shape[1]:
        parts = np.concatenate([parts, guesses], 1)
    weights = _weights(parts, own, 2 if paired else 1) if robust else np.ones(own)
    found = [_one(parts[:, :, q].astype(np.float64), own, weights, robust) for q in range(queries)]
    members, gaps, moved = (np.stack(each) for each in zip(*found, strict=True))
    if robust and halves is not None:
        factors = integral_factors(members, halves)
        members, gaps, moved = members * factors, gaps * factors, moved * factors
    values = members.mean(1)
    if count < 2:
        return Average(values, np.full(values.shape, np.nan), members.swapaxes(0, 1), weights)
    variance_of = functools.partial(_variance, paired=paired, halves=halves)
    variance = np.stack([variance_of(each) for each in members])
    bias = np.stack([each.mean(0) ** 2 - variance_of(each) for each in gaps])
    common = (moved.mean(2) ** 2).mean(1)
    degrees = count - (1 if halves is None else 2)
    errors = np.sqrt(expected_errors(values, variance, bias, degrees) + common)
    return Average(values, errors, members.swapaxes(0, 1), weights)


def _one(
    parts: np.ndarray, own: int, weights: np.ndarray, robust: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the members of one query from ``[m, a, n]``, and what their mean may err by.

    Returns:
        The members, ``[m, n]``. Their distances from those of the mean, likewise: weights other
        than 1 move the average away from it. By how much members change if the usual sizes of the
        parts are larger or smaller by their standard errors, ``[2, m, n]``.
    """
    if not robust:
        members = parts.sum(1)
        return members, np.zeros_like(members), np.zeros((2, 1, 1))  # no distance, no scale
    scaled = scale_down(parts)
    members = np.einsum("a,man->mn", weights, scaled)
    moved = np.einsum("a,sman->smn", weights, usual_size_errors(parts))
    return members, members - scaled[:, :own].sum(1), moved


def _variance(members: np.ndarray, paired: bool, halves: np.ndarray | None) -> np.ndarray:
    """Return the variance of the mean of members ``[m, n]``."""
    count = len(members)
    if halves is not None:
        with_it, without = (
            np.where(chosen, members, 0).sum(0) / np.maximum(1, chosen.sum(0))
            for chosen in (halves, ~halves)
        )
        gaps = members - np.where(halves, with_it, without)
        return (gaps**2).sum(0) / (count - 2) / count
    share = (1 + _correlation(members) if paired else 1) / count
    return share * members.var(0, ddof=1)


def _correlation(members: np.ndarray) -> float:
    """Return the correlation of the two runs of a pair, over all examples of a query."""
    count = len(members)
    gaps = members - members.mean(0)
    total = float(np.sum(gaps**2)) / 2
    if total == 0:
        return 0.0
    raw = float(np.sum(gaps[::2] * gaps[1::2])) / total
    # Gaps from the mean of m runs are correlated by -1 / (m - 1) also if the runs are not.
    found = (raw * (1 - 1 / count) + 1 / count) / (1 - (1 - raw) / count)
    return min(0.5, max(-0.75, found))


def _sums(runs: np.ndarray, together: int) -> np.ndarray:
    """Sum ``together`` successive runs."""
    return runs.reshape(-1, together, *runs.shape[1:]).sum(1)


def _weights(parts: np.ndarray, own: int, together: int) -> np.ndarray:
    """Return the weight of each part, pooled over queries scaled to equal size.

    The target is the sum of the first ``own`` parts. Only products of independent runs count: not
    of ``together`` successive ones.
    """
    count, kinds, queries, _ = parts.shape
    square, product = np.zeros((kinds, kinds)), np.zeros(kinds)
    for q in range(queries):
        scaled = scale_down(parts[:, :, q].astype(np.float64))
        whole = scaled[:, :own].sum(1)
        size = np.median((whole**2).mean(1))
        if size == 0:
            continue
        mean = scaled.mean(0)
        square += mean @ mean.T / size
        same = np.einsum("man,mn->a", *(_sums(each, together) for each in (scaled, whole)))
        pairs = count * (count - together)
        product += (count**2 * mean @ whole.mean(0) - same) / pairs / size
    if not np.trace(square):
        return (np.arange(kinds) < own).astype(float)
    upper = np.where(np.arange(kinds) < own, 1, np.inf)
    return least_squares(square, product, upper, RIDGE)


@functools.lru_cache(maxsize=256)
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
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_share(middle, degrees) < level else (low, middle)
    return high


@functools.cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(200)


def _t_share(t: float, degrees: float) -> float:
    """Return the share of Student's distribution between ``-t`` and ``t``, by Gauss quadrature.

    With ``x = sqrt(degrees) tan(a)`` the density is a power of a cosine.
    """
    nodes, weights = _quadrature()
    end = math.atan(t / math.sqrt(degrees))
    angles = end * (nodes + 1) / 2
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return float(scale * end * np.sum(weights * np.cos(angles) ** (degrees - 1)))
