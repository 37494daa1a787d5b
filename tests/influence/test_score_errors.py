"""Errors of scores of any size: neither too small for large scores nor too large for small ones."""

import numpy as np
import pytest
from scipy import optimize, special

from sawlog.influence._averages._average import average, t_quantile
from sawlog.influence._averages._least_squares import least_squares
from sawlog.influence._averages._score_errors import (
    MOST,
    _log_variance,
    _mean_log,
    by_size,
    expected_errors,
    prior_degrees,
)


def signal():
    """Scores with heavy tails, ``[q, n]``, as those of training are."""
    return np.random.default_rng(3).standard_t(1.5, size=(8, 300))


def sized(count, seed):
    """Runs ``[m, 1, q, n]`` whose noise grows with the root of the size of a score."""
    random = np.random.default_rng([21, seed])
    noise = np.sqrt(0.1 + np.abs(signal())) * np.sqrt(random.gamma(3, size=(8, 300)) / 3)
    return (signal() + noise * random.normal(size=(count, 8, 300)))[:, None]


@pytest.mark.parametrize("kind", ["robust", "mean"])
@pytest.mark.parametrize("count", [6, 10, 30])
def test_intervals_hold_for_small_and_for_large_scores(kind, count):
    large = np.abs(signal()) > np.quantile(np.abs(signal()), 0.9, axis=1, keepdims=True)
    small = np.abs(signal()) < np.quantile(np.abs(signal()), 0.5, axis=1, keepdims=True)
    held = []
    for seed in range(8):
        found = average(sized(count, seed), kind)
        held.append(np.abs(found.values - signal()) <= t_quantile(0.9, count - 1) * found.errors)
    held = np.mean(held, 0)
    assert 0.87 < held.mean() < 0.95
    assert 0.85 < held[large].mean() < 0.97
    assert 0.85 < held[small].mean() < 0.95


def test_bias_that_grows_with_the_size_is_an_error_of_large_scores():
    values = signal()
    sizes = np.abs(values) / np.sqrt((values**2).mean(1, keepdims=True))
    random = np.random.default_rng(4)
    bias = 0.04 * values**2 + 0.01 * random.normal(size=values.shape)
    variance = 0.01 * random.chisquare(9, size=values.shape) / 9
    extra = expected_errors(values, variance, bias, 9) - expected_errors(
        values, variance, 0 * bias, 9
    )
    large = sizes > 3
    np.testing.assert_allclose(extra[large], 0.04 * values[large] ** 2, rtol=0.1)
    assert extra[sizes < 0.01].max() < 0.005
    negative = expected_errors(values, variance, -bias - 1, 9)
    np.testing.assert_array_equal(negative, expected_errors(values, variance, 0 * bias, 9))


def test_moderated_variances_by_an_independent_computation():
    """Relative non-negative least squares, and moments of logarithms, by scipy."""
    random = np.random.default_rng(5)
    values = random.standard_t(2, size=(5, 60))
    variance = (0.2 + np.abs(values)) * random.f(9, 7, size=(5, 60))
    scale = np.sqrt((values**2).mean(1, keepdims=True))
    sizes, target = np.abs(values) / scale, variance / scale**2
    columns = np.stack([np.ones_like(sizes), sizes, sizes**2], -1).reshape(-1, 3)
    usual = np.full(300, target.mean())
    for _ in range(4):
        usual = columns @ optimize.nnls(columns / usual[:, None], target.ravel() / usual)[0]
    usual = usual.reshape(5, 60)
    usual *= ((target / usual).sum(0) + 4) / 9
    logs = np.log(target / usual)
    prior = 2 * optimize.brentq(
        lambda x: special.polygamma(1, x) + special.polygamma(1, 4.5) - logs.var(), 0.1, 1e4
    )
    offset = special.digamma(prior / 2) - np.log(prior / 2) - special.digamma(4.5) + np.log(4.5)
    usual *= np.exp(logs.mean() + offset)
    wanted = (prior * usual + 9 * target) / (prior + 9) * scale**2
    np.testing.assert_allclose(
        expected_errors(values, variance, np.zeros_like(values), 9), wanted, rtol=1e-4
    )


@pytest.mark.parametrize("degrees", [1, 8, 29])
@pytest.mark.parametrize("prior", [2.0, 7.0, 40.0])
def test_the_degrees_of_the_expected_variance(degrees, prior):
    spread = special.polygamma(1, degrees / 2) + special.polygamma(1, prior / 2)
    assert prior_degrees(float(spread), degrees) == pytest.approx(prior, rel=1e-5)
    assert prior_degrees(float(special.polygamma(1, degrees / 2)), degrees) == MOST


def test_scores_of_rows_and_columns_that_never_vary_have_no_error():
    variance = np.ones((3, 4))
    variance[1], variance[:, 2] = 0, 0
    values = np.arange(12.0).reshape(3, 4)
    found = expected_errors(values, variance, np.zeros((3, 4)), 9)
    assert (found[1] == 0).all()
    assert (found[:, 2] == 0).all()
    assert (found[0, :2] > 0).all()
    assert (expected_errors(0 * values, 0 * variance, 0 * variance, 9) == 0).all()


def test_least_squares_with_bounds():
    random = np.random.default_rng(6)
    matrix, side = random.normal(size=(50, 4)), random.normal(size=50)
    matrix[:, 3] = -side + 0.1 * matrix[:, 3]
    wanted = optimize.lsq_linear(matrix, side, (0, [0.01, 9, 9, 9]), tol=1e-14).x
    found = least_squares(matrix.T @ matrix, matrix.T @ side, np.array([0.01, 9, 9, 9]))
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    assert 0 in found


def test_a_fit_by_size_has_no_negative_coefficient():
    sizes = np.linspace(0, 4, 50)[None]
    np.testing.assert_allclose(
        by_size(sizes, 1 + 2 * sizes + 3 * sizes**2, 1 + sizes), 1 + 2 * sizes + 3 * sizes**2
    )
    assert (by_size(sizes, -1 - sizes, np.ones_like(sizes)) == 0).all()


@pytest.mark.parametrize("degrees", [1.0, 2.5, 9.0, 19.0, 300.0])
def test_moments_of_logarithms_of_variances(degrees):
    """A variance of normal numbers is a gamma variable, whose logarithm has known moments."""
    wanted = special.digamma(degrees / 2) - np.log(degrees / 2)
    assert _mean_log(degrees) == pytest.approx(float(wanted), rel=1e-7)
    wanted = special.polygamma(1, degrees / 2)
    assert _log_variance(degrees) == pytest.approx(float(wanted), rel=1e-7)
