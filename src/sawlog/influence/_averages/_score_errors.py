"""The squared error of each score from few runs, smoothed over scores of similar size.

The variance of one score over few runs is uncertain by a large factor, and so is the square of its
bias. Those of all scores together are known well. They grow with the size of scores, and variances
differ between examples. As with moderated variances of genes (Smyth 2004), the variance of each
score is averaged with the expected one. How much that counts is estimated: logarithms of variances
differ from what is expected by more than those of so few runs, if true variances differ.
"""

from __future__ import annotations

import math

import numpy as np

from sawlog.influence._averages._least_squares import least_squares

#: What the scores of one example have in common is averaged with that of all examples, which count
#: like this number of queries.
PRIOR = 4
#: How often relative least squares are repeated.
ROUNDS = 4
#: The expected variance counts like this number of runs at most.
MOST = 1e6


def expected_errors(
    values: np.ndarray, variance: np.ndarray, bias: np.ndarray, degrees: float
) -> np.ndarray:
    """Return the variance plus the squared bias that is expected of each score.

    Args:
        values: the scores, ``[q, n]``.
        variance: an estimate for each score, ``[q, n]``.
        bias: an estimate of the squared bias of each score, ``[q, n]``, which may be negative.
        degrees: the degrees of freedom of the estimated variance.
    """
    square = (values**2).mean(1, keepdims=True)
    square = np.where(square > 0, square, 1)
    sizes = np.abs(values) / np.sqrt(square)
    usual, own = _moderated(variance / square, sizes, degrees)
    if bias.any():
        own = own + by_size(sizes, bias / square, usual)
    known = (variance > 0).any(0) & (variance > 0).any(1, keepdims=True)
    return np.where(known, own * square, variance)


def _moderated(
    variance: np.ndarray, sizes: np.ndarray, degrees: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected variance of each score, and its average with the estimated one."""
    whole = variance.mean()
    if whole == 0:
        return np.ones_like(variance), variance
    usual = np.full_like(variance, whole)
    for _ in range(ROUNDS):
        usual = np.maximum(by_size(sizes, variance, usual), 1e-3 * whole)
    queries = len(variance)
    usual = usual * ((variance / usual).sum(0) + PRIOR) / (queries + PRIOR)
    known = variance > 0
    logs = np.log(variance[known] / usual[known])
    prior = prior_degrees(float(logs.var()), degrees)
    if prior < MOST:  # of varying variances, the logarithm is known best
        shift = logs.mean() - _mean_log(degrees) + _mean_log(prior)
        usual = usual * math.exp(shift)
    return usual, (prior * usual + degrees * variance) / (prior + degrees)


def by_size(sizes: np.ndarray, target: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Fit ``a + b size + c size^2`` to a target with this noise; no coefficient is negative."""
    columns = np.stack([np.ones_like(sizes), sizes, sizes**2])
    scaled = (columns / noise).reshape(3, -1)
    weights = least_squares(scaled @ scaled.T, scaled @ (target / noise).ravel())
    return np.tensordot(weights, columns, 1)


def prior_degrees(spread: float, degrees: float) -> float:
    """Return for how many degrees of freedom the expected variance counts.

    Args:
        spread: the variance of the logarithms of estimated variances.
        degrees: the degrees of freedom of these estimates.
    """
    wanted = spread - _log_variance(degrees)
    if wanted <= _log_variance(MOST):
        return MOST
    low, high = 1e-3, MOST
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _log_variance(middle) > wanted else (low, middle)
    return high


def _mean_log(degrees: float) -> float:
    """Return the mean logarithm of a variance that is estimated from normal numbers."""
    x, total = degrees / 2, -math.log(degrees / 2)
    while x < 10:  # the digamma function: by recurrence, then as a series
        total -= 1 / x
        x += 1
    return total + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4)


def _log_variance(degrees: float) -> float:
    """Return the variance of the logarithm of a variance that is estimated from normal numbers."""
    x, total = degrees / 2, 0.0
    while x < 10:  # the trigamma function
        total += 1 / x**2
        x += 1
    return total + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5)
