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
