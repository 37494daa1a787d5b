"""Sums over parts of the rows: merged in any way, they are those of all rows."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from sawlog.curvature import ConjugateGradients, fit
from sawlog.curvature._damping import Sampled, Spectrum
from sawlog.curvature._layer import FullMatrix, Kronecker, decomposed, without_rounding
from sawlog.curvature._row_sums import (
    OuterProducts,
    RotatedSquares,
    SidesOfRows,
    Squares,
    add_blocks,
)
from sawlog.errors import ArgumentError

SHAPE = (3, 4)


def orthonormal(size, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def rotated():
    basis = Kronecker(np.ones(SHAPE), orthonormal(3, 1), orthonormal(4, 2))
    return RotatedSquares({"w": SHAPE}, {"w": basis})


KINDS = {
    "diagonal": lambda: Squares({"w": SHAPE}),
    "ekfac": rotated,
    "shampoo": lambda: SidesOfRows({"w": SHAPE}),
    "fisher": lambda: OuterProducts({"w": SHAPE}),
}


def dense(layer):
    """Return the matrix over all elements."""
    unit = np.eye(12).reshape(12, *SHAPE)
    return layer.scaled(unit, layer.values, 0.0).reshape(12, 12)


# A part of 2 or 5 rows of 12 elements is kept as rows by "fisher", one of 9 or 20 is summed.
@pytest.mark.parametrize("sizes", [*itertools.permutations([2, 9, 20], 2), (2, 5), (5, 2, 9)])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_parts_are_the_whole(kind, sizes):
    rows = np.random.default_rng(0).normal(size=(sum(sizes), *SHAPE))
    whole = KINDS[kind]()
    whole.add("w", rows)
    first, *others = np.split(rows, np.cumsum(sizes)[:-1])
    joined = KINDS[kind]()
    joined.add("w", first)
    for part in others:
        own = joined.fresh()
        own.add("w", part)
        joined.merge(own.data())
    found, wanted = (each.layers()["w"] for each in (joined, whole))
    np.testing.assert_allclose(dense(found), dense(wanted), atol=1e-12)
    if kind == "fisher":
        flat = rows.reshape(len(rows), -1)
        np.testing.assert_allclose(dense(found), flat.T @ flat / len(flat), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_sums_are_empty_and_as_large(kind):
    used = KINDS[kind]()
    used.add("w", np.ones((2, *SHAPE)))
    fresh = used.fresh()
    assert type(fresh) is type(used)
    for count in (1, 5, 100):
        assert fresh.nbytes(count) == KINDS[kind]().nbytes(count) > 0
    before = dense(used.layers()["w"])
    used.merge(fresh.data())
    np.testing.assert_array_equal(dense(used.layers()["w"]), before)


def held(data):
    """The bytes of all arrays in the data of some sums."""
    if isinstance(data, np.ndarray):
        return data.nbytes
    several = (
        data.values() if isinstance(data, dict) else data if type(data) in (list, tuple) else ()
    )
    return sum(map(held, several))


@pytest.mark.parametrize("shape", [SHAPE, (2, 3, 4), (5, 1)])
@pytest.mark.parametrize("kind", ["diagonal", "shampoo", "fisher"])
def test_the_bytes_that_are_said_are_those_that_are_held(kind, shape):
    make = {"diagonal": Squares, "shampoo": SidesOfRows, "fisher": OuterProducts}[kind]
    shapes = {"w": shape, "v": (2, 2)}
    for count in (1, 2, 3, 6, 12, 13, 40):
        sums = make(shapes)
        for name, own in shapes.items():
            sums.add(name, np.ones((count, *own)))
        assert sums.nbytes(count) == held(sums.data())


def test_zeros_count_in_the_mean_and_not_in_the_typical_eigenvalue():
    found = Spectrum.of(np.array([6.0, 2.0, -1.0]), zeros=1)
    assert found == Spectrum(2.0, 5.0)
    assert Sampled(0.5, noise=4.0).amount(found, 10) == pytest.approx(0.5 * 2 + 4 * 5 / 10)
    assert Sampled(0.5, noise=4.0).amount(found, None) == 1.0


def test_each_query_is_solved_by_its_own_norm():
    """A small query beside a large one: its residual is a share of its own gradient."""
    matrix = np.diag([1.0, 5.0, 25.0, 125.0])
    exact = ConjugateGradients(
        lambda rows: {"w": rows["w"] @ matrix}, {"w": (4,)}, tolerance=1e-6, iterations=50
    )
    rows = np.stack([1e6 * np.array([1.0, 0, 0, 0]), np.ones(4)])
    solved = exact.solve_all({"w": rows}, damping=0.5)["w"]
    np.testing.assert_allclose(solved, rows / (np.diag(matrix) + 0.5), rtol=1e-4)


def test_a_layer_without_rows_does_not_end_its_block():
    rows = np.arange(6.0).reshape(3, 2)
    sums = Squares({"a": (2,), "b": (2,), "c": (2,)})
    add_blocks(sums, [{"a": rows[:0], "b": rows, "c": rows}, {"a": rows}])
    found = sums.layers()
    assert found.keys() == {"a", "b", "c"}
    for layer in found.values():
        np.testing.assert_array_equal(layer.values, (rows**2).mean(0))


@pytest.mark.parametrize("steps", [(2, 9), (2, 3, 9, 1), (5, 5)])
def test_parts_that_were_added_in_steps_count_once(steps):
    """Rows that were kept at first are not sent once more beside their sum."""
    rows = np.random.default_rng(3).normal(size=(4 + sum(steps), *SHAPE))
    first, *others = np.split(rows, np.cumsum((4, *steps))[:-1])
    joined = OuterProducts({"w": SHAPE})
    joined.add("w", first)
    own = joined.fresh()
    for part in others:
        own.add("w", part)
    joined.merge(own.data())
    flat = rows.reshape(len(rows), -1)
    np.testing.assert_allclose(dense(joined.layers()["w"]), flat.T @ flat / len(flat), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_in_double_precision(kind):
    """Squares of half-precision rows would overflow, and those of single precision round."""
    rows = np.random.default_rng(0).normal(size=(30, *SHAPE)) * 300
    found, wanted = KINDS[kind](), KINDS[kind]()
    for dtype in (np.float16, np.float32):
        add_blocks(found, [{"w": rows.astype(dtype)}])
        wanted.add("w", rows.astype(dtype).astype(np.float64))
    one, other = (dense(each.layers()["w"]) for each in (found, wanted))
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * np.abs(other).max())


def test_gradients_of_zeros_need_no_products():
    def product(rows):
        raise AssertionError

    exact = ConjugateGradients(product, {"w": (4,)})
    solved = exact.solve_all({"w": np.zeros((2, 4))}, damping=0.5)["w"]
    np.testing.assert_array_equal(solved, np.zeros((2, 4)))
    assert exact.residual == 0.0


def test_small_eigenvalues_are_no_rounding_errors():
    """Only those within the precision of the greatest one are."""
    values = np.array([[1.0, 1e-12, 1e-17, -1e-12], [1e-12, 1e-20, 1e-30, 0.0]])
    wanted = np.where(np.abs(values) > 1e-15 * values[:, :1], values, 0.0)
    np.testing.assert_array_equal(without_rounding(values), wanted)
    low, basis = decomposed(np.diag([1e-12, 1.0, 1e-18]))
    np.testing.assert_allclose(low, [0.0, 1e-12, 1.0], rtol=1e-9, atol=0)
    np.testing.assert_allclose(np.abs(basis) @ low, [1e-12, 1.0, 0.0], rtol=1e-9)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_matrix_that_is_not_symmetric_is_refused_whatever_its_size(size):
    matrix = size * np.array([[1.0, 0.25], [0.25, 1.0]])
    FullMatrix.of(matrix, (2,))
    FullMatrix.of(matrix + size * np.array([[0, 1e-7], [0, 0]]), (2,))
    with pytest.raises(ArgumentError, match="symmetric"):
        FullMatrix.of(matrix + size * np.array([[0, 1e-4], [0, 0]]), (2,))


def test_factors_of_another_order_are_refused():
    """As many elements are not enough: those of a transposed matrix are others."""
    rows = np.random.default_rng(0).normal(size=(5, 2, 3))
    left, right = np.eye(2), 2 * np.eye(3)
    for factors, fits in (((left, right), True), ((right, left), False)):
        measured = SimpleNamespace(kfac=lambda block, own=factors: own)
        for kind in ("kfac", "ekfac"):
            if fits:
                assert fit(kind, lambda: iter([{"w": rows}]), measured).count == 5
                continue
            with pytest.raises(ArgumentError, match=r"gradients of the shape \[3, 2\]"):
                fit(kind, lambda: iter([{"w": rows}]), measured)
