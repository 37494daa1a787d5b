"""Averages over runs: their errors are as large as they say, and rough runs do little harm."""

import numpy as np
import pytest

from sawlog.influence._averages import average


def runs(count, seed=0, *, tails=5.0, early=3.0, paired=0.0):
    """Runs ``[m, 2, q, n]`` around one signal; the second part is noisier than the first."""
    random = np.random.default_rng([7, seed])
    signal = np.random.default_rng(3).normal(size=(2, 3, 150))
    noise = random.standard_t(tails, size=(count, 2, 3, 150))
    if paired:
        noise[1::2] = paired * noise[::2] + np.sqrt(1 - paired**2) * noise[1::2]
    return signal + noise * np.array([1.0, early])[:, None, None]


@pytest.mark.parametrize("kind", ["robust", "mean"])
@pytest.mark.parametrize("paired", [False, True])
def test_nine_of_ten_intervals_hold_the_value_of_further_runs(kind, paired):
    from sawlog.influence._averages import t_quantile

    correlation = -0.4 if paired else 0.0
    many = average(runs(200, 99, paired=correlation), kind, paired).values
    held = []
    for seed in range(12):
        found = average(runs(10, seed, paired=correlation), kind, paired)
        reach = t_quantile(0.9, 9) * found.errors
        held.append(np.abs(found.values - many) < reach)
    assert 0.85 < np.mean(held) < 0.95


def test_parts_that_disagree_have_smaller_weights_with_few_runs():
    few, many = average(runs(6)), average(runs(400))
    assert few.weights[1] < 0.7 < few.weights[0]
    assert (many.weights > 0.9).all()
    truth = np.random.default_rng(3).normal(size=(2, 3, 150)).sum(0)

    def off(found):
        return np.linalg.norm(found.values - truth)

    assert off(few) < 0.9 * off(average(runs(6), "mean"))
    np.testing.assert_allclose(few.members.mean(0), few.values)


def test_one_extreme_run_does_little_harm():
    usual = runs(10, early=1.0)
    extreme = usual.copy()
    extreme[4] *= 1000
    moved = np.linalg.norm(average(extreme).values - average(usual).values)
    assert moved < np.linalg.norm(average(usual).values)
    plain = average(extreme, "mean").values - average(usual, "mean").values
    assert np.linalg.norm(plain) > 20 * moved


def test_few_and_equal_runs():
    np.testing.assert_allclose(average(runs(3)).values, runs(3).sum(1).mean(0))
    assert np.isnan(average(runs(1)).errors).all()
    same = average(np.ones((6, 2, 1, 4)))
    np.testing.assert_allclose(same.values, 2, rtol=2e-3)
    assert (average(np.zeros((6, 2, 1, 4))).values == 0).all()
