"""The same code on arrays of numpy, torch and JAX: the same scores."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from sawlog.curvature import Curvature, Diagonal, FullMatrix, Joint, Kronecker, choose_damping, fit
from sawlog.errors import ArgumentError
from sawlog.influence import attribute, self_influence
from tests.influence.stores import written

DEVICES = {"torch": lambda: torch.device("cpu"), "name": lambda: "cpu", "jax": jax.devices}


def device_of(name):
    found = DEVICES[name]()
    return found[0] if isinstance(found, list) else found


@pytest.fixture(params=["float64", "float32", "bfloat16", "int8"])
def stored(request, tmp_path):
    random = np.random.default_rng(0)
    rows = {"a": random.normal(size=(40, 3, 4)), "b": random.normal(size=(40, 5))}
    queries = {name: random.normal(size=(3, *v.shape[1:])) for name, v in rows.items()}
    written(tmp_path / "logs", rows, np.arange(40), request.param, each=15)
    return tmp_path / "logs", queries, 1e-12 if request.param == "float64" else 2e-6


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("kind", ["identity", "diagonal", "fisher", "shampoo"])
def test_scores(stored, kind, name):
    path, queries, rtol = stored
    for mode in ("dot", "cosine", "l2"):
        options = {"curvature": kind, "mode": mode, "damping": 0.1, "per_layer": mode == "dot"}
        expected = attribute(path, queries, **options)
        found = attribute(path, queries, device=device_of(name), **options)
        close = {"rtol": 0, "atol": rtol * np.abs(expected.values).max()}
        np.testing.assert_allclose(found.values, expected.values, **close)
        for layer in expected.layers:
            np.testing.assert_allclose(found.layers[layer], expected.layers[layer], **close)
    expected = self_influence(path, curvature=kind)
    found = self_influence(path, curvature=kind, device=device_of(name))
    np.testing.assert_allclose(found.values, expected.values, rtol=100 * rtol)


def test_logs_and_queries_that_are_tensors():
    random = np.random.default_rng(0)
    rows, queries = random.normal(size=(2, 6, 3)).astype(np.float32)
    expected = queries @ rows.T
    for to in (torch.from_numpy, jnp.asarray, np.asarray):
        scores = attribute({"w": to(rows)}, {"w": to(queries)}, curvature="identity")
        np.testing.assert_allclose(scores.values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", [None, "cpu", "jax"])
@pytest.mark.parametrize("dtype", ["int4", "float8_e3m4", "uint16", "bool"])
def test_numbers_that_not_every_library_has(dtype, device):
    """Then numpy multiplies them."""
    numbers = np.array([[1, 0, 1], [0, 1, 1]])
    rows = numbers.astype(getattr(ml_dtypes, dtype, dtype))
    where = jax.devices()[0] if device == "jax" else device
    queries = {"w": np.arange(3.0)[None]}
    scores = attribute({"w": rows}, queries, curvature="identity", device=where)
    assert scores.values.tolist() == [[2, 3]]


def curvatures():
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=(n, n)))[0] for n in (2, 3))
    few = FullMatrix.of_rows(random.normal(size=(2, 6)), (2, 3))
    assert few.outside == 4
    matrix = random.normal(size=(6, 6))
    return {
        "identity": Curvature("identity", {}),
        "diagonal": Curvature("diagonal", {"w": Diagonal(random.uniform(size=(2, 3)))}),
        "kronecker": Curvature("k", {"w": Kronecker(random.uniform(size=(2, 3)), left, right)}),
        "few rows": Curvature("fisher", {"w": few}),
        "joint": Curvature("joint", {}, Joint(matrix @ matrix.T, {"w": (2, 3)})),
    }


@pytest.mark.parametrize("kind", curvatures())
def test_solving_where_the_rows_are(kind):
    curvature = curvatures()[kind]
    rows = np.random.default_rng(1).normal(size=(4, 2, 3))
    solved = curvature.solve_all({"w": rows}, 0.1)["w"]
    lengths = curvature.quadratic_all({"w": rows}, 0.1)["w"]
    np.testing.assert_allclose(lengths, (rows * solved).sum((1, 2)), rtol=1e-12)
    there = torch.from_numpy(rows)
    found = curvature.solve_all({"w": there}, 0.1)["w"]
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found, solved, rtol=1e-12)
    found = curvature.quadratic_all({"w": there}, 0.1)["w"]
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found, lengths, rtol=1e-12)
    for x64, rtol in ((False, 1e-5), (True, 1e-12)):
        with jax.enable_x64(x64):
            found = curvature.solve_all({"w": jnp.asarray(rows)}, 0.1)["w"]
            assert isinstance(found, jax.Array)
            assert found.dtype == (jnp.float64 if x64 else jnp.float32)
            np.testing.assert_allclose(found, solved, rtol=rtol)


@pytest.mark.parametrize("kind", ["diagonal", "fisher", "shampoo"])
@pytest.mark.parametrize("to", [torch.from_numpy, jnp.asarray])
def test_fitting_where_the_rows_are(kind, to):
    for count in (3, 30):  # fewer than elements, and more
        rows = np.random.default_rng(0).normal(size=(count, 2, 5)).astype(np.float32)
        expected = fit(kind, lambda rows=rows: iter([{"w": rows}]))
        found = fit(kind, lambda rows=rows: iter([{"w": to(rows[:2])}, {"w": to(rows[2:])}]))
        assert isinstance(found.layers["w"].values, np.ndarray)
        solved = [each.solve("w", rows, 0.1) for each in (found, expected)]
        np.testing.assert_allclose(*solved, rtol=1e-9, atol=1e-12)
        chosen = [choose_damping(each, {"w": to(rows)}) for each in (found, expected)]
        assert chosen[0] == pytest.approx(chosen[1])


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda:7", "is not available: .*Hint"),
        ("meta", "is not available: Cannot copy out of meta"),
        ("somewhere", "is not available"),
        (5, '`device` must be "numpy", a torch device'),
    ],
)
def test_no_such_device(device, said):
    if device == "cuda:7" and torch.cuda.device_count() > 7:
        pytest.skip("there is one")
    with pytest.raises(ArgumentError, match=said):
        attribute({"w": [[1.0]]}, {"w": [[1.0]]}, curvature="identity", device=device)
