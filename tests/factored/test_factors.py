"""One factor alone: masks of any dtype, lookups with weights, groups and constant features."""

import numpy as np
import pytest

from sawlog.factored import Dense, OneHot, Pair, gradient

RNG = np.random.default_rng(2)
IDS = np.array([[0, 2, 2], [1, 1, 0]])
WEIGHTS = np.array([[1.0, 0.5, -2.0], [0.0, 3.0, 1.0]])


def whole(weights):
    wanted = np.zeros((2, 3, 4))
    for (i, j), number in np.ndenumerate(IDS):
        wanted[i, j, number] = weights[i, j]
    return wanted


def test_a_lookup_as_an_array():
    like = np.zeros(1)
    np.testing.assert_array_equal(OneHot(IDS, 4).full(like), whole(np.ones((2, 3))))
    np.testing.assert_array_equal(OneHot(IDS, 4, WEIGHTS).full(like), whole(WEIGHTS))
    assert OneHot(IDS, 4).full().dtype == np.float32
    assert OneHot(IDS, 4).full(like).dtype == np.float64


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_lookup_is_what_its_array_is(weights):
    one, matrix = OneHot(IDS, 4, weights), RNG.normal(size=(4, 2))
    dense = Dense(one.full(np.zeros(1)))
    np.testing.assert_allclose(one.projected(matrix).array, dense.projected(matrix).array)
    np.testing.assert_allclose(np.diag(one.moment()), dense.moment())  # no two at one position
    right = Dense(RNG.normal(size=(2, 3, 5)))
    np.testing.assert_allclose(gradient(Pair(one, right)), gradient(Pair(dense, right)))


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32, np.uint8])
@pytest.mark.parametrize("groups", [(), (2,)])
def test_a_mask_of_any_dtype_counts_what_is_not_zero(dtype, groups):
    array, mask = RNG.normal(size=(2, 3, *groups, 4)), np.array([[1, 0, 1], [0, 2, 0]])
    array[0, 1] = np.nan  # does not stay
    found = Dense(array, one=True).masked(mask.astype(dtype)).array
    wanted = np.concatenate([array, np.ones_like(array[..., :1])], -1)
    wanted[mask == 0] = 0
    np.testing.assert_array_equal(found, wanted)


def test_masks_leave_positions_of_lookups_out():
    mask = np.array([[True, False, True], [True, True, False]])
    right = RNG.normal(size=(2, 3, 5))
    for weights in (None, WEIGHTS):
        own = np.ones((2, 3)) if weights is None else weights
        found = gradient(Pair(OneHot(IDS, 4, weights), Dense(right)).masked(mask))
        wanted = np.einsum("bpi,bpj->bij", whole(own * mask), right)
        np.testing.assert_allclose(found, wanted)


def test_scales_are_of_examples():
    array, scale = RNG.normal(size=(2, 3, 2, 4)), np.array([2.0, -0.5])
    found = Dense(array, one=True).scaled(scale).array
    np.testing.assert_allclose(found[..., :-1], array * scale[:, None, None, None])
    np.testing.assert_allclose(found[..., -1], np.broadcast_to(scale[:, None, None], (2, 3, 2)))
