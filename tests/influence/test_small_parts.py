"""Rates, errors, sums and what can be joined, each as a number that is known."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sawlog.errors import ArgumentError
from sawlog.influence import Logs, attribute, self_influence
from sawlog.influence._averages._score_errors import expected_errors
from sawlog.influence._join_logs import _pad_positions, join_arguments
from sawlog.influence._source import _SegmentRates
from sawlog.influence._validation._bank import Bank
from sawlog.influence._validation._groups import _standard_error

RNG = np.random.default_rng(3)


def test_how_far_a_constant_gradient_moves_the_weights():
    values = np.array([0.0, 1e-14, 5e-13, 1e-6, 0.5, 2.0])
    for time in (1e-8, 1.0, 1e6, 1e13):
        rates = _SegmentRates({"w": time, "": 7.0}, 0.0)
        # a series where the difference would be lost
        wanted = [
            time * (1 - time * e / 2) if time * e < 1e-9 else (1 - math.exp(-time * e)) / e
            for e in values
        ]
        np.testing.assert_allclose(rates.moved("w", values), wanted, rtol=1e-6)
        np.testing.assert_allclose(rates.left("w", values), np.exp(-time * values))
    decaying = _SegmentRates({"w": 2.0}, 0.25)
    np.testing.assert_allclose(decaying.left("w", values), np.exp(-2 * (values + 0.25)))
    np.testing.assert_allclose(decaying.moved("w", np.zeros(1)), (1 - math.exp(-0.5)) / 0.25)


def test_the_standard_error_of_a_difference_has_two_sizes():
    one, other = np.array([1.0, 2.0, 4.0]), np.array([0.0, 5.0, 1.0, 7.0, 3.0])
    wanted = math.sqrt(np.var(one, ddof=1) / 3 + np.var(other, ddof=1) / 5)
    assert _standard_error(one, other) == pytest.approx(wanted)
    assert _standard_error(other, one) == pytest.approx(wanted)
    assert _standard_error(one[:1], other) is None
    assert _standard_error(one, other[:1]) is None


def test_the_longest_of_several_decides_the_positions():
    several = [RNG.normal(size=(2, count, 4)) for count in (3, 2, 5, 1)]
    padded = _pad_positions("w", several)
    assert [each.shape for each in padded] == [(2, 5, 4)] * 4
    for before, after in zip(several, padded, strict=True):
        np.testing.assert_array_equal(after[:, : before.shape[1]], before)
        assert not after[:, before.shape[1] :].any()
    with pytest.raises(ArgumentError, match="different shapes"):
        _pad_positions("w", [np.zeros((2, 3, 4)), np.zeros((2, 3, 5))])


@pytest.mark.parametrize("odd", [1, 2, 3])
def test_every_one_of_several_logs_is_checked(odd):
    rows = [{"w": RNG.normal(size=(2, 3)), "b": RNG.normal(size=(2, 2))} for _ in range(4)]
    several = [Logs(own, ids=[2 * i, 2 * i + 1]) for i, own in enumerate(rows)]
    joined = Logs(**join_arguments(several))
    assert list(joined.ids) == [*range(8)]
    several[odd] = Logs({"w": rows[odd]["w"]}, ids=[8, 9])
    with pytest.raises(ArgumentError, match="different layers"):
        join_arguments(several)


def test_errors_of_scores_that_some_runs_do_not_vary():
    """An example or a query that never varies has no error; a single zero is an estimate."""
    values, variance = RNG.normal(size=(4, 6)), RNG.random((4, 6)) + 0.1
    variance[1, 2] = 0.0
    variance[:, 4] = 0.0
    variance[3] = 0.0
    found = expected_errors(values, variance, np.zeros((4, 6)), 5.0)
    assert found[1, 2] > 0
    assert not found[:, 4].any()
    assert not found[3].any()
    assert (np.delete(found[:3], 4, 1) > 0).all()


@pytest.mark.parametrize("mode", ["dot", "cosine", "l2"])
def test_rows_that_are_zero(mode):
    rows = {"w": np.array([[0.0, 0.0], [3.0, 4.0]])}
    query = {"w": np.array([[3.0, 4.0], [0.0, 0.0]])}
    found = attribute(rows, query, curvature="identity", mode=mode).values
    wanted = {
        "dot": [[0, 25], [0, 0]],
        "cosine": [[0, 1], [0, 0]],
        "l2": [[-25, 0], [0, -25]],
    }[mode]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_row_whose_square_is_nothing_has_no_direction():
    rows = {"w": np.array([[1e-200, 0.0], [0.0, 2.0]])}
    query = {"w": np.array([[1.0, 1.0]])}
    found = attribute(rows, query, curvature="identity", mode="cosine").values
    assert found[0, 0] == 0.0
    assert found[0, 1] == pytest.approx(0.5**0.5)


def test_self_influence_that_is_not_finite():
    rows = {"w": np.array([[1.0, 2.0], [np.inf, 1.0], [3.0, 0.0]])}
    with pytest.raises(Exception, match=r"finite"):
        self_influence(rows, curvature="identity")
    kept = self_influence(rows, curvature="identity", nonfinite="keep")
    np.testing.assert_array_equal(np.isfinite(kept.values), [True, False, True])


def test_what_a_bank_was_made_with():
    bank = SimpleNamespace(path="bank")
    for given in (None, 3):
        Bank._check(bank, "seed", 3, given)
    for given in (0, 4, "", False):
        with pytest.raises(ArgumentError, match="has seed=3"):
            Bank._check(bank, "seed", 3, given)
