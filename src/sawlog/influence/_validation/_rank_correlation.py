"""The linear datamodeling score: rank correlations, their mean, and an interval for it."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import numpy as np

MOST_BLOCKS = 100  # of the jackknife
SPLITS = 20  # of the seeds into halves


@dataclasses.dataclass(frozen=True)
class MeanCorrelation:
    """The mean rank correlation over queries, with an interval.

    Args:
        mean: the mean over queries.
        low, high: the ends of the interval.
        per_query: the correlation of each query, ``[q]``.
    """

    mean: float
    low: float
    high: float
    per_query: np.ndarray


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1 along the first axis; equal values share the mean of their ranks.

    >>> ranks(np.array([[3.0], [1.0], [3.0]])).ravel()
    array([2.5, 1. , 2.5])
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, 0)
    count = len(values)
    place = np.arange(count).reshape(-1, *(1,) * (values.ndim - 1))
    starts = np.concatenate([np.ones_like(ordered[:1], bool), ordered[1:] != ordered[:-1]])
    first = np.maximum.accumulate(np.where(starts, place, 0), 0)
    ends = np.concatenate([starts[1:], np.ones_like(starts[:1])])
    last = np.minimum.accumulate(np.where(ends, place, count)[::-1], 0)[::-1]
    found = np.empty(values.shape)
    np.put_along_axis(found, order, (first + last) / 2 + 1, 0)
    return found


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the rank correlation of each column of two matrices ``[subsets, queries]``.

    It is 0 for a column whose values are all equal.

    >>> spearman(np.array([[1.0], [2.0], [4.0]]), np.array([[0.1], [0.5], [0.3]]))
    array([0.5])
    """
    left, right = ranks(one), ranks(other)
    left, right = left - left.mean(0), right - right.mean(0)
    lengths = np.sqrt((left**2).sum(0) * (right**2).sum(0))
    nothing = lengths == 0
    return np.where(nothing, 0.0, (left * right).sum(0) / np.where(nothing, 1.0, lengths))


def mean_correlation(
    predicted: np.ndarray, found: np.ndarray, confidence: float = 0.95
) -> MeanCorrelation:
    """Return the mean over queries of the rank correlation over subsets, with an interval.

    Subsets and queries are both taken as samples. The variance over subsets is that of a jackknife
    of the mean. The variance over queries is that of the correlations, less what the jackknife
    attributes to the subsets of single queries. The interval is symmetric in ``atanh`` of the
    mean, with quantiles of Student's distribution.

    Args:
        predicted, found: ``[subsets, queries]``, with at least 3 subsets.
        confidence: the probability that the interval contains the value for all subsets and
            queries.
    """
    per_query = spearman(predicted, found)
    mean = float(per_query.mean())
    blocks = min(len(predicted), MOST_BLOCKS)
    parts = np.array_split(np.arange(len(predicted)), blocks)
    left = np.stack([spearman(_without(predicted, p), _without(found, p)) for p in parts])
    factor = (blocks - 1) ** 2 / blocks
    of_subsets = factor * float(left.mean(1).var(ddof=1))
    of_queries, queries = 0.0, len(per_query)
    if queries > 1:
        noise = factor * float(left.var(0, ddof=1).mean())
        common = max(0.0, (queries * of_subsets - noise) / (queries - 1))  # same for all queries
        spread = float(per_query.var(ddof=1))
        of_queries = max(0.0, spread - max(0.0, noise - common)) / queries
    error, quantile = math.sqrt(of_subsets + of_queries), _student(confidence, blocks - 1)
    low, high = _interval(mean, error, quantile, len(predicted))
    return MeanCorrelation(mean, low, high, per_query)


def _without(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.delete(values, rows, axis=0)


def _interval(mean: float, error: float, quantile: float, subsets: int) -> tuple[float, float]:
    """Return an interval for a correlation, symmetric in its ``atanh``.

    A perfect correlation counts as if two neighbouring ranks were swapped: more is not known from
    these subsets, although the jackknife sees no error.
    """
    nearest = 1 - 12 / (subsets * (subsets**2 - 1))
    inside = max(-nearest, min(nearest, mean))
    least = 0.0 if abs(mean) < nearest else 1 / math.sqrt(max(1, subsets - 3))
    half = quantile * max(error / (1 - inside**2), least)
    low, high = math.tanh(math.atanh(inside) - half), math.tanh(math.atanh(inside) + half)
    return min(low, mean), max(high, mean)


def _student(confidence: float, freedom: int) -> float:
    """Return the two-sided quantile of Student's distribution, by an expansion in 1 / freedom."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def attainable(answers: np.ndarray, draw: int = 0) -> float | None:
    """Return the score that perfect predictions would have, given the noise of the seeds.

    The seeds are split into halves at random, and the answers of both are correlated. From this
    follows the correlation of the mean over all seeds with that over infinitely many. It is an
    upper bound if queries differ in how noisy they are.

    Args:
        answers: ``[seeds, subsets, queries]``.
        draw: the seed of the random splits.

    Returns:
        The estimate for all queries; None for a single seed.
    """
    seeds = len(answers)
    if seeds < 2:
        return None
    random = np.random.default_rng(draw)
    half = seeds // 2
    found = []
    for _ in range(1 if seeds == 2 else SPLITS):
        order = random.permutation(seeds)
        one, other = answers[order[:half]].mean(0), answers[order[half : 2 * half]].mean(0)
        found.append(spearman(one, other))
    halves = max(0.0, float(np.mean(found)))  # over queries first: single ones are noisy
    times = seeds / half  # of the number of seeds in a half
    return math.sqrt(times * halves / (1 + (times - 1) * halves))
