"""Eigenvalues, their rounding, and which shapes hold the same gradient."""

import itertools
import math

import numpy as np
import pytest

from sawlog.curvature._layer import decomposed, same_layout, without_rounding


@pytest.mark.parametrize("shape", [(5,), (5, 5), (3, 5, 5)], ids=["diagonal", "matrix", "groups"])
def test_a_moment_has_no_negative_eigenvalue_and_is_what_it_was(shape):
    rows = np.random.default_rng(0).normal(size=(2, *shape[:-2], 1, 5))
    if len(shape) == 1:
        moment = (rows**2).sum((0, 1))
        moment[1], moment[3] = 0.0, -1e-20  # a sum of float32 that cancels
    else:
        moment = np.einsum("n...pi,n...pj->...ij", rows, rows)  # of rank 2, so three are 0
    values, vectors = decomposed(moment)
    assert values.shape == shape[:-1] if len(shape) > 1 else (5,)
    assert (values >= 0).all()
    if len(shape) == 1:
        np.testing.assert_array_equal(values, np.maximum(moment, 0))
        np.testing.assert_array_equal(vectors, np.ones(5))
        return
    assert ((values > 0).sum(-1) == 2).all()  # what is 0 by theory is 0, not 1e-17
    back = vectors @ (values[..., None] * np.swapaxes(vectors, -1, -2))
    np.testing.assert_allclose(back, moment, atol=1e-12)
    coarse = moment.astype(np.float32)  # as a run sums it: eigenvalues of 0 are then -1e-7
    assert np.linalg.eigvalsh(coarse.astype(np.float64)).min() < -1e-9
    assert (decomposed(coarse)[0] >= 0).all()


def test_rounding_is_judged_by_the_greatest_of_each_group():
    """One group of a convolution may have gradients that are smaller by many orders."""
    values = np.array([[1e6, 1e-12, -1e-12], [1e-12, -2e-13, 1e-30]])
    found = without_rounding(values)
    np.testing.assert_array_equal(found, [[1e6, 0, 0], [1e-12, -2e-13, 0]])
    assert without_rounding(np.zeros((2, 0))).shape == (2, 0)


def _factorings(size):
    """All shapes of up to three axes with this many elements."""
    sizes = [n for n in range(1, size + 1) if size % n == 0]
    for axes in (1, 2, 3):
        yield from (s for s in itertools.product(sizes, repeat=axes) if math.prod(s) == size)


def _merged(shape):
    """A shape with any adjacent axes merged, and without axes of length 1."""
    plain = [n for n in shape if n > 1]
    for cuts in itertools.product([True, False], repeat=max(0, len(plain) - 1)):
        made = plain[:1]
        for cut, n in zip(cuts, plain[1:], strict=True):
            made = [*made, n] if cut else [*made[:-1], made[-1] * n]
        yield tuple(made)


def test_shapes_hold_the_same_gradient_where_one_merges_axes_of_the_other():
    for one, other in itertools.product(_factorings(12), repeat=2):
        first, second = (tuple(n for n in shape if n > 1) for shape in (one, other))
        wanted = first in _merged(other) or second in _merged(one)
        assert same_layout(one, other) == wanted, (one, other)
    assert not same_layout((2, 3), (2, 4))
