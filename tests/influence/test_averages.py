"""Averages over runs: their errors are as large as they say, and rough runs do little harm."""

import numpy as np
import pytest
from scipy import optimize

from sawlog.influence._averages._added_examples import integral_factors
from sawlog.influence._averages._average import RIDGE, _correlation, average
from sawlog.influence._averages._score_errors import expected_errors


def runs(count, seed=0, *, tails=5.0, early=3.0, paired=0.0):
    """Runs ``[m, 2, q, n]`` around one signal; the second part is noisier than the first."""
    random = np.random.default_rng([7, seed])
    signal = np.random.default_rng(3).normal(size=(2, 3, 150))
    noise = random.standard_t(tails, size=(count, 2, 3, 150))
    if paired:
        noise[1::2] = paired * noise[::2] + np.sqrt(1 - paired**2) * noise[1::2]
    return signal + noise * np.array([1.0, early])[:, None, None]


def guesses(count, seed=0, off=0.7):
    """Scores of another method for each run, ``[m, 1, q, n]``: near the signal, but not there."""
    random = np.random.default_rng([8, seed])
    signal = np.random.default_rng(3).normal(size=(2, 3, 150)).sum(0)
    bias = off * np.random.default_rng(4).normal(size=(3, 150))
    return 5 * (signal + bias + 0.5 * random.normal(size=(count, 1, 3, 150)))


@pytest.mark.parametrize(
    ("kind", "paired", "guessed"),
    [
        ("robust", False, False),
        ("robust", True, False),
        ("robust", False, True),
        ("robust", True, True),
        ("mean", False, True),
        ("mean", True, False),
    ],
)
def test_nine_of_ten_intervals_hold_the_value_of_further_runs(kind, paired, guessed):
    from sawlog.influence._averages._average import t_quantile

    correlation = -0.4 if paired else 0.0

    def averaged(count, seed):
        more = guesses(count, seed) if guessed else None
        return average(runs(count, seed, paired=correlation), kind, paired, more)

    many = averaged(400, 99).values
    held = []
    for seed in range(12):
        found = averaged(10, seed)
        reach = t_quantile(0.9, 9) * found.errors
        held.append(np.abs(found.values - many) < reach)
    assert 0.85 < np.mean(held) < 0.95


def test_what_differs_between_runs_with_and_without_an_example_is_no_error():
    from sawlog.influence._averages._average import t_quantile

    def halves(count, seed):
        random = np.random.default_rng([9, seed])
        present = np.zeros((count, 150), bool)
        for run in range(0, count, 2):
            present[run, random.permutation(150)[:75]] = True
            present[run + 1] = ~present[run]
        effect = np.linspace(-8, 8, 150)  # large for some examples only
        return runs(count, seed) + np.where(present, effect, 0)[:, None, None], present

    parts, present = halves(200, 99)
    many = average(parts, "mean", True, present=present).values
    held = []
    for seed in range(8):
        parts, present = halves(10, seed)
        found = average(parts, "mean", True, present=present)
        assert found.errors.mean() < 0.8 * average(parts, "mean").errors.mean()
        held.append(np.abs(found.values - many) < t_quantile(0.9, 9) * found.errors)
    assert 0.85 < np.mean(held) < 0.95
    assert np.mean(held, 0).min(0)[:10].mean() > 0.5  # also where the effect is large


def test_parts_that_disagree_have_smaller_weights_with_few_runs():
    few, many = average(runs(6)), average(runs(400))
    assert few.weights[1] < 0.7 < few.weights[0]
    assert (many.weights > 0.9).all()
    truth = np.random.default_rng(3).normal(size=(2, 3, 150)).sum(0)

    def off(found):
        return np.linalg.norm(found.values - truth)

    assert off(few) < 0.9 * off(average(runs(6), "mean"))
    np.testing.assert_allclose(few.members.mean(0), few.values)


def test_guesses_help_as_long_as_runs_disagree():
    truth = np.random.default_rng(3).normal(size=(2, 3, 150)).sum(0)

    def off(found):
        return np.linalg.norm(found.values - truth)

    few = average(runs(8), guesses=guesses(8))
    assert off(few) < 0.8 * off(average(runs(8)))
    assert off(few) < 0.8 * np.linalg.norm(guesses(8)[:, 0].mean(0) / 5 - truth)
    many = average(runs(600), guesses=guesses(600))
    assert 5 * many.weights[2] < 0.2 < 5 * few.weights[2]
    useless = average(runs(8), guesses=np.random.default_rng(0).normal(size=(8, 1, 3, 150)))
    assert off(useless) < 1.05 * off(average(runs(8)))
    plain = average(runs(8), "mean", guesses=guesses(8))
    np.testing.assert_array_equal(plain.values, average(runs(8), "mean").values)


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


# -- by hand, where the intervals above are too wide to tell --------------------------------------


def test_the_error_of_runs_with_and_without_an_example_is_their_pooled_variance():
    random = np.random.default_rng(1)
    present = np.zeros((8, 5), bool)
    for run in range(0, 8, 2):
        present[run] = random.permutation(5) < 3
        present[run + 1] = ~present[run]
    parts = random.normal(size=(8, 1, 2, 5))
    found = average(parts, "mean", True, present=present)
    pooled = np.zeros((2, 5))
    for q, n in np.ndindex(2, 5):
        own = parts[:, 0, q, n]
        groups = [own[present[:, n]], own[~present[:, n]]]
        pooled[q, n] = sum(((each - each.mean()) ** 2).sum() for each in groups) / (8 - 2)
    squares = expected_errors(found.values, pooled / 8, np.zeros((2, 5)), 6)
    np.testing.assert_allclose(found.errors, np.sqrt(squares))


@pytest.mark.parametrize("true", [0.0, -0.5, 0.3])
@pytest.mark.parametrize("count", [4, 6, 20])
def test_the_correlation_of_a_pair_is_not_that_of_gaps_from_the_mean(true, count):
    noise = np.random.default_rng(2).normal(size=(count, 10_000))
    noise[1::2] = true * noise[::2] + np.sqrt(1 - true**2) * noise[1::2]
    assert _correlation(noise) == pytest.approx(true, abs=0.04)
    assert _correlation(np.ones((4, 3))) == 0.0


def test_a_pair_needs_both_of_its_runs():
    odd = runs(7)
    one, other = (average(odd, "mean", paired) for paired in (True, False))
    np.testing.assert_array_equal(one.errors, other.errors)


@pytest.mark.parametrize("paired", [False, True])
def test_weights_are_the_least_squares_of_products_of_independent_runs(paired):
    """Two parts and a guess; all runs have the same size, so that none is scaled down."""
    random = np.random.default_rng(4)
    signal = random.normal(size=(3, 1, 200))
    parts = signal + random.normal(size=(6, 3, 1, 200)) * np.array([0.5, 3.0, 1.0])[:, None, None]
    parts /= np.sqrt((parts**2).mean(-1, keepdims=True))
    whole = parts[:, :2, 0].sum(1)
    size = np.median((whole**2).mean(1))
    together = 2 if paired else 1
    pairs = [(i, j) for i in range(6) for j in range(6) if i // together != j // together]
    product = sum(parts[i, :, 0] @ whole[j] for i, j in pairs) / len(pairs) / size
    mean = parts[:, :, 0].mean(0)
    square = mean @ mean.T / size
    square[np.diag_indices(3)] *= 1 + RIDGE
    root = np.linalg.cholesky(square).T
    wanted = optimize.lsq_linear(
        root, np.linalg.solve(root.T, product), (0, [1, 1, np.inf]), tol=1e-14
    ).x
    found = average(parts[:, :2], paired=paired, guesses=parts[:, 2:])
    np.testing.assert_allclose(found.weights, wanted, atol=1e-6)
    members = np.einsum("a,maqn->mqn", wanted, parts)
    np.testing.assert_allclose(found.members, members, atol=1e-5)


def least_squares(count, seed=0):
    """Exact derivatives of fits on pairs of halves: ``[m, 1, q, n]``, presence, true effects.

    The metric of a query is its squared error. The effect is that of the example on a fit to the
    others of the half: the metric without it minus the metric with it, ``[q, n]``.
    """
    data = np.random.default_rng(5)
    x, asked = data.normal(size=(40, 8)), data.normal(size=(6, 8))
    truth = data.normal(size=8)
    y, answers = x @ truth + data.normal(size=40), asked @ truth + data.normal(size=6)
    random = np.random.default_rng([6, seed])
    weights = np.zeros((count, 40))
    for run in range(0, count, 2):
        weights[run, random.permutation(40)[:20]] = 1
        weights[run + 1 : run + 2] = 1 - weights[run]

    def fitted(own):
        matrix = np.einsum("...n,ni,nj->...ij", own, x, x) + 0.5 * np.eye(8)
        side = np.einsum("...n,ni,n->...i", own, x, y)
        return matrix, np.linalg.solve(matrix, side[..., None])[..., 0]

    def metric(fit):
        return (fit @ asked.T - answers) ** 2

    matrix, fit = fitted(weights)
    moved = np.linalg.solve(matrix, (x.T * (y - fit @ x.T)[:, None]))  # [m, 8, n]
    slopes = 2 * (fit @ asked.T - answers)[..., None] * (asked @ moved)
    pick = np.eye(40, dtype=bool)
    without, with_it = (
        metric(fitted(np.where(pick, value, weights[:, None]))[1]).mean(0).T for value in (0, 1)
    )
    return -slopes[:, None], weights > 0, without - with_it


@pytest.mark.parametrize("count", [10, 11, 30])
def test_the_effect_of_adding_an_example_is_between_its_two_derivatives(count):
    """The mean of the derivatives at the weights 0 and 1 is too large where fits learn examples."""
    parts, present, effects = least_squares(count)
    members = parts[:, 0].swapaxes(0, 1)
    integrated = (members * integral_factors(members, present)).mean(1)

    def off(values):
        return np.linalg.norm(values - effects)

    assert off(integrated) < 0.5 * off(members.mean(1))

    def alike(values):
        pairs = zip(values, effects, strict=True)
        return np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])

    found = average(parts, "robust", True, present=present)
    np.testing.assert_allclose(found.members.mean(0), found.values)
    assert 1 - alike(found.values) < 0.7 * (1 - alike(average(parts, "mean").values))


def test_factors_of_examples_that_no_run_or_each_run_has_used():
    members, present = np.ones((2, 6, 4)), np.zeros((6, 4), bool)
    present[:, 0], present[::2, 1:3] = True, True
    np.testing.assert_allclose(integral_factors(members, present), 1)
    np.testing.assert_allclose(integral_factors(0 * members, present), 1)
    members[:, ~present[:, 1], 1] = 9  # the ratio 9: three quarters of the runs with it
    factors = integral_factors(np.repeat(members, 1000, 0), present)
    np.testing.assert_allclose((members * factors).mean(1)[0], [1, 3, 1, 1], rtol=0.05)


@pytest.mark.parametrize("kind", ["robust", "mean"])
def test_intervals_hold_the_value_of_two_hundred_further_fits(kind):
    from sawlog.influence._averages._average import t_quantile

    def averaged(count, seed):
        parts, present, _ = least_squares(count, seed)
        return average(parts, kind, True, present=present)

    many, held = averaged(200, 99).values, []
    for seed in range(12):
        found = averaged(10, seed)
        held.append(np.abs(found.values - many) < t_quantile(0.9, 9) * found.errors)
    assert 0.85 < np.mean(held) < 0.95


@pytest.mark.parametrize("count", [3, 4, 5])
def test_the_fewest_runs_of_which_one_can_be_told_to_be_rough(count):
    """One run is ten times as large; with three runs it is not known which of them are odd."""
    parts = np.ones((count, 1, 2, 6)) * np.linspace(1, 2, 6)
    parts[-1] *= 10
    found = average(parts)
    plain = average(parts, "mean")
    np.testing.assert_allclose(plain.values, parts.sum(1).mean(0))
    if count < 4:
        np.testing.assert_array_equal(found.values, plain.values)
        np.testing.assert_array_equal(found.members, plain.members)
    else:
        np.testing.assert_allclose(found.values, parts[0].sum(0), rtol=0.01)
