"""A curvature that couples the layers, against one dense matrix."""

import numpy as np
import pytest

from sawlog.curvature import Curvature, load
from sawlog.curvature._joint import Joint
from sawlog.errors import ArgumentError
from sawlog.influence import attribute, self_influence

SHAPES = {"a": (2, 2), "b": (3,)}


def drawn(n, seed):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=(n, *shape)) for name, shape in SHAPES.items()}


def flat(rows):
    return np.concatenate([rows[name].reshape(len(rows[name]), -1) for name in SHAPES], 1)


@pytest.fixture
def moment():
    rows = flat(drawn(30, 5))
    return rows.T @ rows / 30


@pytest.mark.parametrize("damping", [0.3, {"a": 0.1, "b": 0.7}])
def test_scores(tmp_path, moment, damping):
    added = damping if isinstance(damping, dict) else {"a": damping, "b": damping}
    inverse = np.linalg.inv(moment + np.diag([added["a"]] * 4 + [added["b"]] * 3))
    rows, queries = drawn(6, 0), drawn(2, 1)
    Curvature("joint", {}, Joint(moment, SHAPES)).save(tmp_path / "saved")
    for curvature in (Curvature("joint", {}, Joint(moment, SHAPES)), load(tmp_path / "saved")):
        options = {"curvature": curvature, "damping": damping}
        scores = attribute(rows, queries, per_layer=True, **options)
        dots = flat(queries) @ inverse @ flat(rows).T
        np.testing.assert_allclose(scores.values, dots, rtol=1e-9)
        np.testing.assert_allclose(sum(scores.layers.values()), dots, rtol=1e-9)
        theirs = np.einsum("ni,ij,nj->n", flat(rows), inverse, flat(rows))
        own = np.einsum("ni,ij,nj->n", flat(queries), inverse, flat(queries))
        ranking = self_influence(rows, **options)
        np.testing.assert_allclose(ranking.values, theirs, rtol=1e-9)
        cosines = attribute(rows, queries, mode="cosine", **options)
        np.testing.assert_allclose(cosines.values, dots / np.sqrt(np.outer(own, theirs)), rtol=1e-9)
        apart = attribute(rows, queries, mode="l2", **options)
        np.testing.assert_allclose(apart.values, 2 * dots - theirs - own[:, None], rtol=1e-9)


def test_it_needs_all_layers(moment):
    curvature = Curvature("joint", {}, Joint(moment, SHAPES))
    with pytest.raises(ArgumentError, match="couples"):
        attribute(drawn(3, 0), drawn(2, 1), curvature=curvature, names=["a"])
    with pytest.raises(ArgumentError, match="couples all layers"):
        curvature.solve("a", drawn(3, 0)["a"])


def test_layers_in_any_order(moment):
    """The matrix has an order, rows have another; sizes differ."""
    added = {"a": 0.1, "b": 0.7}
    inverse = np.linalg.inv(moment + np.diag([0.1] * 4 + [0.7] * 3))
    rows, queries = drawn(6, 0), drawn(2, 1)
    joint = Joint(moment, SHAPES)
    turned = {name: rows[name] for name in reversed(rows)}
    assert list(turned) == ["b", "a"]
    expected = flat(rows) @ inverse
    found = joint.solve(turned, added)
    np.testing.assert_allclose(flat(found), expected, rtol=1e-9)
    curvature = Curvature("joint", {}, joint)
    quadratic = curvature.quadratic_all(turned, added)
    np.testing.assert_allclose(sum(quadratic.values()), (flat(rows) * expected).sum(1), rtol=1e-9)
    for mixed in (dict(reversed(queries.items())), queries):
        scores = attribute(turned, mixed, curvature=curvature, damping=added)
        np.testing.assert_allclose(scores.values, flat(queries) @ expected.T, rtol=1e-9)
    again = joint.solve(rows, added)  # the matrix is as it was
    np.testing.assert_allclose(flat(again), expected, rtol=1e-9)


def test_the_default_damping_goes_by_the_whole_matrix_and_the_examples(tmp_path, moment):
    values = np.linalg.eigvalsh(moment)
    typical = (values**2).sum() / values.sum()
    Curvature("joint", {}, Joint(moment, SHAPES), 30).save(tmp_path / "saved")
    for curvature in (Curvature("joint", {}, Joint(moment, SHAPES), 30), load(tmp_path / "saved")):
        for name in SHAPES:
            expected = 0.1 * values.mean() + 10 * typical / 30
            assert curvature.added(name) == pytest.approx(expected)


def test_several_layers_each_have_their_part():
    random = np.random.default_rng(2)
    shapes = {"a": (2, 1), "b": (3,), "c": (1, 4), "d": (1,)}
    root = random.normal(size=(12, 10))
    matrix, sizes = root.T @ root / 12, [2, 3, 4, 1]
    added = {"a": 0.1, "b": 0.7, "c": 0.4, "d": 0.2}
    dense = matrix + np.diag(np.repeat(list(added.values()), sizes))
    rows = {name: random.normal(size=(5, *shape)) for name, shape in shapes.items()}
    whole = np.concatenate([each.reshape(5, -1) for each in rows.values()], 1)
    joint = Joint(matrix, shapes)
    wanted = np.split(np.linalg.solve(dense, whole.T).T, np.cumsum(sizes)[:-1], axis=1)
    for (name, found), own in zip(joint.solve(rows, added).items(), wanted, strict=True):
        np.testing.assert_allclose(found.reshape(5, -1), own, rtol=1e-9, err_msg=name)
    values, basis = np.linalg.eigh(matrix)
    roots = np.split(whole @ (basis * np.sqrt(values)) @ basis.T, np.cumsum(sizes)[:-1], axis=1)
    turned = joint.transform(rows, lambda name, each: np.sqrt(each))
    for (name, found), own in zip(turned.items(), roots, strict=True):
        np.testing.assert_allclose(found.reshape(5, -1), own, rtol=1e-9, err_msg=name)


def test_functions_see_no_negative_eigenvalues():
    joint = Joint(np.diag([-1e-17, 1.0, 4.0]), {"a": (3,)})
    found = joint.transform({"a": np.ones((1, 3))}, lambda name, values: np.sqrt(values))["a"]
    assert found.tolist() == [[0.0, 1.0, 2.0]]
