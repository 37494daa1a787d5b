"""Conjugate gradients against dense solutions in float64."""

import pickle

import numpy as np
import pytest

import sawlog.curvature
from sawlog import influence
from sawlog.curvature import (
    ConjugateGradients,
    Curvature,
    Diagonal,
    Joint,
    Kronecker,
    Relative,
)
from sawlog.curvature._choose_damping import choose_damping
from sawlog.curvature._corrected import Corrected
from sawlog.curvature._layer import FullMatrix
from sawlog.errors import ArgumentError

SHAPES = {"a": (2, 3), "b": (4,)}
RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(14, 10)) * np.logspace(0, -2, 10)
MATRIX = ROOT.T @ ROOT / 14
ROWS = {name: RNG.normal(size=(5, *shape)) for name, shape in SHAPES.items()}


def flat(rows):
    return np.concatenate([rows[name].reshape(len(rows[name]), -1) for name in SHAPES], 1)


def split(values):
    return {"a": values[:, :6].reshape(-1, 2, 3), "b": values[:, 6:]}


def product(rows):
    return split(flat(rows) @ MATRIX)


DIAGONAL = Curvature(
    "diagonal",
    {"a": Diagonal(np.diag(MATRIX)[:6].reshape(2, 3)), "b": Diagonal(np.diag(MATRIX)[6:])},
)


@pytest.mark.parametrize("preconditioner", [None, DIAGONAL, Curvature("identity", {})])
@pytest.mark.parametrize("damping", [0.01, {"a": 0.1, "b": 0.02}])
def test_solutions_are_the_dense_ones(preconditioner, damping):
    own = ConjugateGradients(product, SHAPES, preconditioner, tolerance=1e-10)
    added = damping if isinstance(damping, dict) else {"a": damping, "b": damping}
    dense = MATRIX + np.diag([added["a"]] * 6 + [added["b"]] * 4)
    wanted = np.linalg.solve(dense, flat(ROWS).T).T
    np.testing.assert_allclose(flat(own.solve_all(ROWS, damping)), wanted, rtol=1e-7)
    assert own.residual <= 1e-10


@pytest.mark.parametrize("size", [1e-9, 1e6])
def test_small_and_large_gradients_are_solved_alike(size):
    """The residual is a share of the gradient, whatever the unit of the loss is."""
    residuals, solved = [], []
    for by in (1.0, size):
        own = ConjugateGradients(product, SHAPES, tolerance=1e-6)
        found = own.solve_all({name: by * rows for name, rows in ROWS.items()}, 0.01)
        residuals.append(own.residual)
        solved.append(flat(found) / by)
    assert 1e-9 < min(residuals) <= max(residuals) <= 1e-6
    np.testing.assert_allclose(solved[1], solved[0], rtol=1e-4)


def test_rows_whose_axes_were_merged():
    """The product sees the shapes that were given, and the solution has that of the rows."""
    seen = []

    def watched(rows):
        seen.append({name: values.shape[1:] for name, values in rows.items()})
        return product(rows)

    own = ConjugateGradients(watched, SHAPES, tolerance=1e-10)
    merged = {name: rows.reshape(len(rows), -1) for name, rows in ROWS.items()}
    found, wanted = own.solve_all(merged, 0.01), own.solve_all(ROWS, 0.01)
    assert all(each == SHAPES for each in seen)
    assert found["a"].shape == (5, 6)
    np.testing.assert_array_equal(flat(found), flat(wanted))


def test_a_good_preconditioner_needs_fewer_products():
    calls = {}
    exact = Curvature("gn", {}, Joint(MATRIX, SHAPES))
    for preconditioner in (None, DIAGONAL, exact):
        name = "none" if preconditioner is None else preconditioner.kind

        def counted(rows, name=name):
            calls[name] = calls.get(name, 0) + 1
            return product(rows)

        own = ConjugateGradients(counted, SHAPES, preconditioner, tolerance=1e-8)
        own.solve_all(ROWS, 1e-4)
    assert calls["gn"] == 1
    assert calls["gn"] < calls["diagonal"] < calls["none"]


def test_a_neumann_series_needs_more_products():
    """Both are preconditioned alike, and stop at the same residual: of the dense matrix."""
    calls, damping = [], 1e-3

    def counted(rows):
        calls.append(0)
        return product(rows)

    own = ConjugateGradients(counted, SHAPES, DIAGONAL, tolerance=1e-3)
    solved = flat(own.solve_all(ROWS, damping))
    dense, rows = MATRIX + damping * np.eye(10), flat(ROWS)
    np.testing.assert_allclose(solved, np.linalg.solve(dense, rows.T).T, rtol=0.02, atol=1)
    scale = 1 / (np.diag(MATRIX) + damping)
    scale = scale / np.linalg.eigvalsh(np.sqrt(scale)[:, None] * dense * np.sqrt(scale)).max()
    series, terms = np.zeros_like(rows), 0
    while np.linalg.norm(rows - series @ dense, axis=1).max() > own.residual * 10:
        series, terms = series + scale * (rows - series @ dense), terms + 1
    assert terms > 5 * len(calls)


def test_the_default_damping_is_that_of_the_whole_matrix():
    own = ConjugateGradients(product, SHAPES, count=14)
    joint = Curvature("gn", {}, Joint(MATRIX, SHAPES), 14)
    assert own.added("a") == own.added("b")
    assert own.added("a") == pytest.approx(joint.added("a"), rel=0.35)  # from random vectors


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_the_default_damping_of_a_diagonal_is_exact(scale):
    """Products with signs show the diagonal as it is, and damping grows with the curvature."""
    diagonal = scale * np.logspace(0, -3, 10)
    own = ConjugateGradients(lambda rows: split(flat(rows) * diagonal), SHAPES, count=7)
    typical = (diagonal**2).sum() / diagonal.sum()
    wanted = 0.1 * diagonal.mean() + 10 * typical / 7
    assert own.added("a") == pytest.approx(wanted, rel=1e-12)
    solved = own.solve_all(ROWS)
    np.testing.assert_allclose(flat(solved), flat(ROWS) / (diagonal + wanted), rtol=1e-3)


def test_scores_are_those_of_the_matrix():
    own = ConjugateGradients(product, SHAPES, DIAGONAL, tolerance=1e-10)
    exact = Curvature("gn", {}, Joint(MATRIX, SHAPES))
    train = split(RNG.normal(size=(8, 10)))
    found, wanted = (
        influence.attribute(train, ROWS, curvature=each, damping=0.01) for each in (own, exact)
    )
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-7)
    assert found.about["damping"] == {"a": 0.01, "b": 0.01}


def test_a_gradient_of_zeros_is_solved():
    rows = {name: np.zeros_like(values) for name, values in ROWS.items()}
    own = ConjugateGradients(product, SHAPES)
    assert not flat(own.solve_all(rows, 0.1)).any()
    mixed = {
        name: values * np.arange(5).reshape(-1, *(1,) * (values.ndim - 1))
        for name, values in ROWS.items()
    }
    dense = np.linalg.solve(MATRIX + 0.1 * np.eye(10), flat(mixed).T).T
    solved = ConjugateGradients(product, SHAPES, tolerance=1e-10).solve_all(mixed, 0.1)
    np.testing.assert_allclose(flat(solved), dense, rtol=1e-7, atol=1e-12)


def test_refused():
    own = ConjugateGradients(product, SHAPES, iterations=2)
    with pytest.raises(ArgumentError, match=r"After 2 iterations .* above tolerance=0.0001"):
        own.solve_all(ROWS, 1e-6)
    with pytest.raises(ArgumentError, match="couples the layers a, b"):
        own.solve_all({"a": ROWS["a"]}, 0.1)
    with pytest.raises(ArgumentError, match=r"have the shape \[3, 2\]"):
        own.solve_all({**ROWS, "a": ROWS["a"].reshape(5, 3, 2)}, 0.1)
    with pytest.raises(ArgumentError, match="negative eigenvalue"):
        ConjugateGradients(lambda rows: split(-flat(rows)), SHAPES).solve_all(ROWS, 0.1)
    with pytest.raises(ArgumentError, match='Hint: mode="dot"'):
        influence.attribute(ROWS, ROWS, curvature=own, mode="cosine", damping=0.1)
    with pytest.raises(ArgumentError, match="cannot be saved"):
        own.save("nowhere")
    with pytest.raises(ArgumentError, match="no layer 'c'"):
        own.added("c")
    with pytest.raises(ArgumentError, match="preconditioner has the layers a, and"):
        ConjugateGradients(product, SHAPES, Curvature("x", {"a": Diagonal(np.ones((2, 3)))}))
    with pytest.raises(ArgumentError, match="must return the layers"):
        ConjugateGradients(lambda rows: {}, SHAPES).solve_all(ROWS, 0.1)
    copy = pickle.loads(pickle.dumps(ConjugateGradients(product, SHAPES)))
    with pytest.raises(ArgumentError, match="not known in this process"):
        copy.solve_all(ROWS, 0.1)


@pytest.mark.parametrize("kind", ["diagonal", "kronecker", "joint", "identity"])
def test_functions_of_a_curvature(kind):
    """``f(H) g`` against the dense matrix."""
    square = {"a": (2, 3)}
    left, right = (np.linalg.eigh(r @ r.T)[1] for r in (RNG.normal(size=(n, n)) for n in (2, 3)))
    values = np.abs(RNG.normal(size=(2, 3)))
    turn = np.kron(left, right)
    dense = turn @ np.diag(values.ravel()) @ turn.T
    curvature, matrix = {
        "diagonal": (Curvature("x", {"a": Diagonal(values)}), np.diag(values.ravel())),
        "kronecker": (Curvature("x", {"a": Kronecker(values, left, right)}), dense),
        "joint": (Curvature("x", {}, Joint(dense, square)), dense),
        "identity": (Curvature("identity", {}), np.zeros((6, 6))),
    }[kind]
    own, basis = np.linalg.eigh(matrix)
    wanted = ROWS["a"].reshape(5, 6) @ (basis * 3 * np.exp(-own)) @ basis.T
    found = curvature.transform_all({"a": ROWS["a"]}, lambda name, values: 3 * np.exp(-values))
    np.testing.assert_allclose(found["a"].reshape(5, 6), wanted, rtol=1e-10)


@pytest.mark.parametrize("damping", [0.25, {"a": 0.25, "b": 1}])
def test_a_number_needs_no_products(damping):
    """Workers, which do not have the function, hash what is added; and each product takes time."""
    asked = []

    def counted(rows):
        asked.append(rows)
        return product(rows)

    own = ConjugateGradients(counted, SHAPES)
    assert [own.added("a", damping), own.added("a", damping)] == [0.25, 0.25]
    assert not asked
    assert (
        pickle.loads(pickle.dumps(ConjugateGradients(product, SHAPES))).added("a", damping) == 0.25
    )
    own.added("a")
    own.added("b", {"b": Relative(0.1)})
    assert len(asked) == 1  # the spectrum is that of all layers, and is estimated once


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_every_query_is_solved_to_the_tolerance(tolerance):
    """Many that are solved at once do not make up for one that is not."""
    matrix = np.diag(np.logspace(0, 4, 12))
    own = ConjugateGradients(
        lambda rows: {"w": rows["w"] @ matrix}, {"w": (12,)}, tolerance=tolerance, iterations=200
    )
    rows = np.concatenate([np.eye(12)[:1]] * 9 + [np.ones((1, 12))])
    solved = own.solve_all({"w": rows}, damping=0.0)["w"]
    left = np.linalg.norm(rows - solved @ matrix, axis=1) / np.linalg.norm(rows, axis=1)
    assert left.max() <= tolerance
    assert own.residual == pytest.approx(left.max(), rel=1e-6)


def test_what_was_moved_to_a_device_is_not_sent_along():
    sent = Curvature("diagonal", {"a": Diagonal(np.ones(2))}, count=5)
    sent._moved["a", "device"] = lambda: None  # which no process can receive
    found = pickle.loads(pickle.dumps(sent))
    assert not found._moved
    assert (found.kind, found.count) == ("diagonal", 5)
    np.testing.assert_array_equal(found.solve("a", np.ones((1, 2)), 1.0), [[0.5, 0.5]])


def test_a_curvature_remembers_the_weights_it_is_of(tmp_path):
    of = [{"weights": "w", "tensors": {"a": "1"}, "projection": ""}]
    for name, own in {
        "layers": Curvature("diagonal", {"a": Diagonal(np.ones(2))}, None, 5, of),
        "joint": Curvature("fisher", {}, Joint(np.eye(2), {"a": (2,)}), 5, of),
    }.items():
        own.save(tmp_path / name)
        found = sawlog.curvature.load(tmp_path / name)
        assert (list(found.provenance), found.count, found.kind) == (of, 5, own.kind)


def test_functions_count_outside_of_the_basis():
    """Fewer rows than elements leave directions whose eigenvalue is 0."""
    rows = RNG.normal(size=(3, 6))
    own = Curvature("fisher", {"a": FullMatrix.of_rows(rows, (2, 3))})
    values, basis = np.linalg.eigh(rows.T @ rows / 3)
    values = np.where(values > 1e-12, values, 0.0)
    wanted = ROWS["a"].reshape(5, 6) @ (basis * 3 * np.exp(-values)) @ basis.T
    found = own.transform_all({"a": ROWS["a"]}, lambda name, values: 3 * np.exp(-values))
    np.testing.assert_allclose(found["a"].reshape(5, 6), wanted, rtol=1e-9)


def test_damping_of_corrected_gradients_is_that_of_the_multiplied_ones():
    rows, held_out = RNG.normal(size=(3, 6)), RNG.normal(size=(4, 6))
    factors = np.array([0.1, 10.0, 1.0, 0.2, 5.0, 2.0])
    inner = FullMatrix.of_rows(rows * factors, (6,))
    plain = choose_damping(Curvature("fisher", {"a": inner}), {"a": held_out * factors})
    own = choose_damping(Curvature("fisher", {"a": Corrected(inner, factors)}), {"a": held_out})
    assert own == plain
