"""Curvatures by themselves, against dense matrices of numpy."""

import numpy as np
import pytest

from sawlog.curvature import (
    Curvature,
    Diagonal,
    FullMatrix,
    Relative,
    Typical,
    fit,
)
from sawlog.errors import ArgumentError
from tests.influence.dense import hessian

from .curvature_helpers import FITTED, Factored, dense, fitted, random_rows

SHAPES = {"matrix": (3, 4), "vector": (5, 1), "groups": (2, 3, 2), "one": (1, 1)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FITTED)
def test_solve_whiten_and_quadratic_are_those_of_the_dense_matrix(kind, shape):
    rows = random_rows(20, *SHAPES[shape])
    curvature = fitted(kind, rows, blocks=3)
    matrix = dense(curvature.layers["w"]) + 0.2 * np.eye(rows[0].size)
    flat = rows.reshape(20, -1)
    solved = np.linalg.solve(matrix, flat.T).T
    np.testing.assert_allclose(curvature.solve("w", rows, 0.2).reshape(20, -1), solved, rtol=1e-9)
    quadratic = (flat * solved).sum(1)
    np.testing.assert_allclose(curvature.quadratic("w", rows, 0.2), quadratic, rtol=1e-9)
    white = curvature.whiten("w", rows, 0.2).reshape(20, -1)
    np.testing.assert_allclose(white @ white.T, flat @ solved.T, rtol=1e-8, atol=1e-9)
    assert curvature.solve("w", rows, 0.2).shape == rows.shape


@pytest.mark.parametrize("kind", FITTED)
def test_it_does_not_matter_in_which_blocks_the_rows_come(kind):
    rows = random_rows(12, 3, 2)
    alone = dense(fitted(kind, rows).layers["w"])
    np.testing.assert_allclose(dense(fitted(kind, rows, blocks=12).layers["w"]), alone, rtol=1e-9)


@pytest.mark.parametrize("shape", ["matrix", "vector", "groups"])
@pytest.mark.parametrize("kind", ["diagonal", "fisher", "shampoo"])
def test_it_is_the_dense_matrix_by_hand(kind, shape):
    rows = random_rows(9, *SHAPES[shape])
    found = dense(fitted(kind, rows).layers["w"])
    np.testing.assert_allclose(found, hessian(kind, rows), rtol=1e-9, atol=1e-12)


def test_kfac_of_a_diagonal_factor():
    left, right = np.array([0.5, 0.0, 2.0]), np.array([[2.0, 1.0], [1.0, 2.0]])
    rows = random_rows(4, 3, 2)
    curvature = fit("kfac", lambda: iter([{"w": rows}]), Factored({"w": (left, right)}))
    found = dense(curvature.layers["w"])
    np.testing.assert_allclose(found, np.kron(np.diag(left), right), atol=1e-14)
    solved = curvature.solve("w", rows, 0.0)
    expected = np.einsum("i,nij,jk->nik", [2.0, 0.0, 0.5], rows, np.linalg.inv(right))
    np.testing.assert_allclose(solved, expected, atol=1e-13)


def test_examples_are_counted():
    """Those of all blocks, not of the layers, unless the caller knows how many there are."""
    blocks = [{"a": random_rows(n, 2), "b": random_rows(n, 3)} for n in (4, 0, 3)]
    assert fit("diagonal", lambda: iter(blocks)).count == 7
    assert fit("diagonal", lambda: iter(blocks), count=9).count == 9


def test_rows_may_come_in_a_buffer_that_is_used_again():
    """Few rows are kept until they are many: as they were."""
    rows = random_rows(3, 8)

    def scan():
        buffer = np.empty((1, 8))
        for row in rows:
            buffer[0] = row
            yield {"w": buffer}

    found = dense(fit("fisher", scan).layers["w"])
    np.testing.assert_allclose(found, rows.T @ rows / 3, atol=1e-12)


def test_layers_whose_blocks_differ_in_length():
    """Means are over the rows of each layer."""
    rows = {"a": random_rows(6, 2), "b": random_rows(2, 3)}
    blocks = [{"a": rows["a"][:2], "b": rows["b"]}, {"a": rows["a"][2:], "b": rows["b"][:0]}]
    found = fit("diagonal", lambda: iter(blocks))
    for name, values in rows.items():
        np.testing.assert_allclose(found.layers[name].values, (values**2).mean(0), rtol=1e-12)


# -- spectra --------------------------------------------------------------------------------------


def test_rounding_is_that_of_each_group():
    """Eigenvalues of one group may be as small as the rounding of another's."""
    rows = random_rows(20, 2, 3, 3) * np.array([1.0, 1e-9])[:, None, None]
    for kind in ("kfac", "shampoo"):
        values = fitted(kind, rows).layers["w"].values
        assert (values > 0).all()
        assert values[0].min() > 1e6 * values[1].max()


def test_negative_eigenvalues_count_as_zero_for_damping():
    curvature = Curvature("exact", {"w": FullMatrix.of(np.diag([2.0, -1.0]), (2,))})
    assert curvature.added("w", Relative(0.5)) == pytest.approx(0.5)
    assert curvature.added("w", Typical(0.5)) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("kind", FITTED)
def test_without_damping_it_is_the_pseudo_inverse(kind, size):
    """Fewer gradients than elements; eigenvalues as small as 1e-30 and as large as 1e+30."""
    scale = np.sqrt(size)
    rows = scale * random_rows(3, 4, 1) * np.array([1.0, 1, 1, 0])[:, None]
    curvature = fitted(kind, rows)
    matrix = dense(curvature.layers["w"])
    queries = scale * random_rows(5, 4, 1, seed=1)
    expected = queries.reshape(5, -1) @ np.linalg.pinv(matrix, rcond=1e-12, hermitian=True)
    found = curvature.solve("w", queries, 0.0).reshape(5, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", FITTED)
def test_a_rank_deficient_curvature_has_no_part_in_what_never_occurs(kind):
    rows = np.zeros((6, 3, 4))
    rows[:, 1:, :2] = random_rows(6, 2, 2)
    turned = np.linalg.qr(random_rows(3, 3, seed=2))[0] @ rows @ np.linalg.qr(random_rows(4, 4))[0]
    rows = rows if kind == "diagonal" else turned
    curvature = fitted(kind, rows)
    solved = curvature.solve("w", rows, 0.0)
    matrix = dense(curvature.layers["w"])
    inverse = np.linalg.pinv(matrix, rcond=1e-11, hermitian=True)
    expected = (rows.reshape(6, -1) @ inverse).reshape(rows.shape)
    np.testing.assert_allclose(solved, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_eigenvalues_of_any_size_stay_apart():
    """Nothing is cut off that is no rounding: a diagonal has none."""
    curvature = Curvature("diagonal", {"w": Diagonal(np.array([1e30, 1.0, 1e-30, 0.0]))})
    found = curvature.solve("w", np.ones((1, 4)), 0.0)
    np.testing.assert_allclose(found, [[1e-30, 1.0, 1e30, 0.0]], rtol=1e-12)


def test_a_gradient_that_is_always_zero():
    curvature = fitted("fisher", np.zeros((3, 2, 1)))
    np.testing.assert_array_equal(curvature.solve("w", np.ones((1, 2, 1))), np.zeros((1, 2, 1)))
    np.testing.assert_allclose(curvature.solve("w", np.ones((1, 2, 1)), 0.5), np.full((1, 2, 1), 2))


def test_negative_eigenvalues_are_never_cut_off_silently():
    hessian = np.diag([2.0, -0.5])
    curvature = Curvature("exact", {"w": FullMatrix.of(hessian, (2,))})
    with pytest.raises(ArgumentError, match=r"eigenvalue -0\.5, which a damping of 0\.1 leaves"):
        curvature.solve("w", np.ones((1, 2)), 0.1)
    np.testing.assert_allclose(curvature.solve("w", np.ones((1, 2)), 1.0), [[1 / 3, 2.0]])


def test_a_matrix_must_be_symmetric_and_fit():
    with pytest.raises(ArgumentError, match="symmetric"):
        FullMatrix.of(np.array([[1.0, 2.0], [0.0, 1.0]]), (2,))
    with pytest.raises(ArgumentError, match="symmetric and finite"):
        FullMatrix.of(np.full((2, 2), np.nan), (2,))
    with pytest.raises(ArgumentError, match=r"have 3 elements, but the matrix has the shape \[2"):
        FullMatrix.of(np.eye(2), (3,))
