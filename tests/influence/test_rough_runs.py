"""Runs of very different sizes: their scale is uncertain, and standard errors include it."""

import numpy as np
import pytest

from sawlog.influence._averages._average import average, t_quantile
from sawlog.influence._averages._rough_runs import scale_down, usual_size_errors


def rough(count, seed, spread):
    """Runs ``[m, 2, q, n]`` of one signal; all scores of a query in a run have one random size."""
    random = np.random.default_rng([11, seed])
    signal = np.random.default_rng(5).normal(size=(2, 12, 60))
    size = np.exp(spread * random.normal(size=(count, 1, 12, 1)))
    return size * (signal + 0.7 * random.normal(size=(count, 2, 12, 60)))


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 1.5])
def test_intervals_hold_if_the_sizes_of_runs_differ(spread):
    many = average(rough(400, 99, spread)).values
    large = np.abs(many) > np.quantile(np.abs(many), 0.75, axis=1, keepdims=True)
    held = []
    for seed in range(12):
        found = average(rough(10, seed, spread))
        held.append(np.abs(found.values - many) <= t_quantile(0.9, 9) * found.errors)
    assert 0.85 < np.mean(held) < 0.96, np.mean(held)
    # large scores show first that all of them are too large or too small
    assert np.mean(held, 0)[large].mean() > 0.8


def test_the_error_of_the_usual_size_by_hand():
    parts = np.array([1.0, 2.0, 4.0, 8.0])[:, None, None] * np.array([1.0, -1.0])
    scaled = np.array([1.0, 2.0, 3.0, 3.0])[:, None, None] * np.array([1.0, -1.0])
    np.testing.assert_allclose(scale_down(parts), scaled)
    ratio = np.sqrt(5.0 / 1.75)  # the quantiles 0.25 and 0.75 of the sizes of four runs
    larger, smaller = usual_size_errors(parts)
    np.testing.assert_allclose(larger[:2], 0)
    np.testing.assert_allclose(larger[2:], scaled[2:] * (ratio - 1))
    np.testing.assert_allclose(smaller[2:], scaled[2:] * (1 / ratio - 1))


def test_equal_runs_have_no_error_of_their_size():
    parts = np.ones((6, 2, 3))
    assert (usual_size_errors(parts) == 0).all()
    assert (scale_down(parts) == 1).all()


def test_runs_without_any_scores_do_not_delete_the_others():
    parts = np.zeros((6, 1, 3))
    parts[:2] = 5
    np.testing.assert_array_equal(scale_down(parts), parts)
    assert (usual_size_errors(parts) == 0).all()
    assert (average(parts[:, :, None]).errors > 0).all()
