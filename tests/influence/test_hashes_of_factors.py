"""A saved curvature is fitted again as soon as any number of its Kronecker factors has changed."""

import numpy as np
import pytest

from sawlog.errors import UnknownNameError
from sawlog.influence._fitted_curvature import _hash_of_factors


class Factors:
    """Statistics of one layer."""

    def __init__(self, left, right):
        self.own = left, right

    def kfac(self, block):
        if block != "w":
            raise UnknownNameError(block)
        return self.own


PLAIN = (np.arange(9.0).reshape(3, 3), np.arange(4.0).reshape(2, 2))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (-1, -1)])
def test_each_number_of_each_factor_counts(side, place):
    changed = [each.copy() for each in PLAIN]
    changed[side][place] += 1e-9
    assert _hash_of_factors("w", Factors(*changed)) != _hash_of_factors("w", Factors(*PLAIN))


@pytest.mark.parametrize("layout", [np.copy, np.asfortranarray, lambda a: np.pad(a, 1)[1:-1, 1:-1]])
def test_equal_numbers_have_one_hash(layout):
    again = Factors(*(layout(each) for each in PLAIN))
    assert _hash_of_factors("w", again) == _hash_of_factors("w", Factors(*PLAIN)) != ""


def test_what_has_no_factors_has_no_hash():
    assert _hash_of_factors("w", None) == _hash_of_factors("v", Factors(*PLAIN)) == ""
