"""What a check says about rows and losses, given those of the examples alone."""

import numpy as np
import pytest

from sawlog.capture._check import added_up, compared, loss_problem


def test_each_example_is_measured_by_its_own_size():
    alone = np.array([[3.0, 4.0], [0.03, 0.04]])
    wrong = alone * np.array([[1.0, 1.0], [1.0, 1.5]])
    found = compared("fc", wrong, alone, tolerance=1e-3, floor=0.0)
    assert found.error == pytest.approx(0.4)
    assert not found.same
    assert compared("fc", alone, alone, tolerance=1e-3, floor=0.0).same
    assert compared("fc", wrong, alone, tolerance=1e-3, floor=100.0).same  # of other layers


def test_a_factor_that_all_rows_have():
    alone = np.array([[3.0, 4.0], [1.0, 2.0]])
    found = compared("fc", alone / 5, alone, tolerance=1e-3, floor=0.0)
    assert found.factor == pytest.approx(5.0)
    assert found.rest == pytest.approx(0.0, abs=1e-12)
    assert found.verdict == "off by the factor 0.2"
    assert compared("fc", alone * np.nan, alone, 1e-3, 0.0).verdict == "not finite"
    assert compared("fc", alone * 0, alone, 1e-3, 0.0).verdict == "logged as 0"


def test_rows_that_add_up_to_the_gradient_of_the_batch():
    rows = np.array([[1.0, 2.0], [3.0, -1.0]])
    same = compared("fc", rows, rows, 1e-3, 0.0)
    scale = np.array([2.0, 4.0])
    whole = (rows / scale[:, None]).sum(0)
    assert added_up(same, rows, scale, whole, 1e-6).same
    wrong = added_up(same, rows, scale, whole * 1.1, 1e-3)
    assert not wrong.same
    assert wrong.verdict == "does not add up to the batch"
    ignored = added_up(same, rows, np.array([2.0, 0.0]), rows[0] / 2, 1e-6)  # of no weight
    assert ignored.same
    assert added_up(same, rows, None, whole, 1e-6) is same
    assert not added_up(same, rows, scale, whole * 1.1, 1e-3, floor=1.0).same
    assert added_up(same, rows, scale, whole * 1.1, 1e-3, floor=1000.0).same  # of other layers


@pytest.mark.parametrize("whole", [2.0, 1.5, 4.5, 1.0])  # a mean of any weights, a sum
def test_a_loss_that_joins_those_of_its_examples(whole):
    assert loss_problem(whole, None, {0: 1.0, 1: 1.5, 2: 2.0}, 3, 1e-6) == ""


@pytest.mark.parametrize("whole", [0.5, 2.5, 4.4, -1.0])
def test_a_loss_that_does_not(whole):
    assert "neither a mean" in loss_problem(whole, None, {0: 1.0, 1: 1.5, 2: 2.0}, 3, 1e-6)
    assert loss_problem(whole, None, {0: 1.0, 2: 2.0}, 3, 1e-6) == ""  # not all are known


def test_losses_of_examples():
    each = np.array([1.0, 1.5, 2.0])
    assert loss_problem(0.0, each, {0: 1.0, 2: 2.0}, 3, 1e-6) == ""
    assert "examples [2]" in loss_problem(0.0, each, {0: 1.0, 2: 2.1}, 3, 1e-6)
