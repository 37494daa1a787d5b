"""A curvature of multiplied gradients is ``F H F`` over the elements, by dense matrices."""

import numpy as np
import pytest

from sawlog.curvature import Curvature, Diagonal, FullMatrix, Kronecker
from sawlog.curvature._corrected import EPSILON, Corrected, UnitMatrix, factors_of
from sawlog.curvature._stored_layer import layer_from
from sawlog.errors import ArgumentError

RNG = np.random.default_rng(0)
SHAPE = (2, 3)
FACTORS = RNG.uniform(0.5, 2, SHAPE)
ROWS = RNG.normal(size=(4, *SHAPE))


def turned(size):
    return np.linalg.qr(RNG.normal(size=(size, size)))[0]


INNER = {
    "diagonal": Diagonal(RNG.uniform(0.1, 2, SHAPE)),
    "kronecker": Kronecker(RNG.uniform(0.1, 2, SHAPE), turned(2), turned(3)),
    "full": FullMatrix(RNG.uniform(0.1, 2, 6), turned(6), SHAPE),
    "few directions": FullMatrix(RNG.uniform(0.1, 2, 2), turned(6)[:, :2], SHAPE),
    "identity": UnitMatrix(np.ones(SHAPE)),
}


def dense(layer):
    """The matrix over all elements, column by column."""
    unit = np.eye(6).reshape(6, *SHAPE)
    return layer.scaled(unit, layer.values, 0.0).reshape(6, 6)


@pytest.mark.parametrize("kind", INNER)
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_solutions_and_norms(kind, damping):
    inner = INNER[kind]
    if damping == 0.0 and inner.outside:
        return  # a pseudo-inverse, which others test
    layer, scale = Corrected(inner, FACTORS), np.diag(FACTORS.ravel())
    wanted = scale @ np.linalg.inv(dense(inner) + damping * np.eye(6)) @ scale
    own, flat = Curvature("own", {"w": layer}), ROWS.reshape(4, 6)
    solved = own.solve_all({"w": ROWS}, damping)["w"]
    np.testing.assert_allclose(solved.reshape(4, 6), flat @ wanted, rtol=1e-10)
    squares = own.quadratic_all({"w": ROWS}, damping)["w"]
    np.testing.assert_allclose(squares, np.einsum("ni,ij,nj->n", flat, wanted, flat), rtol=1e-10)


@pytest.mark.parametrize("kind", INNER)
def test_into_the_basis_and_back(kind):
    inner = INNER[kind]
    layer, scale = Corrected(inner, FACTORS), np.diag(FACTORS.ravel())
    np.testing.assert_allclose(layer.prepared(ROWS), ROWS * FACTORS)
    np.testing.assert_allclose(layer.into(ROWS), inner.into(ROWS * FACTORS))
    there_and_back = layer.back(layer.into(ROWS) * layer.values).reshape(4, 6)
    wanted = ROWS.reshape(4, 6) @ scale @ dense(inner) @ scale
    np.testing.assert_allclose(there_and_back, wanted, atol=1e-12)
    stored = layer_from(layer.arrays())
    assert type(stored.inner) is type(inner)
    assert stored.damping == inner.damping
    np.testing.assert_array_equal(stored.into(ROWS), layer.into(ROWS))


def test_moments_alone_are_not_damped():
    units = {"w": Corrected(UnitMatrix(np.ones(SHAPE)), FACTORS)}
    own = Curvature("second-moments", units, None, 10)
    assert own.added("w") == 0
    np.testing.assert_allclose(own.solve_all({"w": ROWS})["w"], ROWS * FACTORS**2)


def test_factors_are_one_over_the_root_and_a_little():
    moments = np.array([[4.0, 0.0, 1e-12], [1.0, 0.25, 9.0]])
    found = factors_of({"w": moments.ravel(), "other": np.ones(3)}, {"w": SHAPE})
    assert set(found) == {"w"}
    np.testing.assert_allclose(found["w"], 1 / (np.sqrt(moments) + EPSILON), rtol=1e-12)
    assert found["w"][0, 1] == pytest.approx(1e8)
    for odd in (-moments, np.where(moments == 9, np.nan, moments)):
        with pytest.raises(ArgumentError, match="negative, infinite or NaN"):
            factors_of({"w": odd}, {"w": SHAPE})
