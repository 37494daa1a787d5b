"""The true Fisher and the exact Gauss-Newton matrix, against dense linear algebra."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog import influence
from sawlog.capture._label_sampling import LabelSampling
from sawlog.errors import ArgumentError
from sawlog.jax._capture_run.gauss_newton import _Rows
from sawlog.jax._capture_run.sampled_labels import keys_of

rng = np.random.default_rng(3)
PARAMS = {
    "first": {"w": rng.normal(size=(2, 4)).astype(np.float32), "b": np.ones(4, np.float32)},
    "last": rng.normal(size=(4, 3)).astype(np.float32),
}
X, Y = rng.normal(size=(6, 2)).astype(np.float32), np.arange(6, dtype=np.int32) % 3
BATCHES = [{"x": X[i : i + 3], "y": Y[i : i + 3]} for i in (0, 3)]


def outputs_fn(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["last"]


def loss_fn(params: Any, batch: Any) -> Any:
    logits = jax.nn.log_softmax(outputs_fn(params, batch))
    return -jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]


def squares_fn(params: Any, batch: Any) -> Any:
    return ((outputs_fn(params, batch) - batch["y"][:, None]) ** 2).mean(-1)


def sample(params: Any, batch: Any, keys: Any) -> Any:
    labels = jax.vmap(jax.random.categorical)(keys, outputs_fn(params, batch))
    return {**batch, "y": labels.astype(batch["y"].dtype)}


def flat(grads: Any) -> Any:
    """Gradients in the layout of the blocks, outputs first and the bias as the last column."""
    first = np.concatenate([grads["first"]["w"], grads["first"]["b"][..., None, :]], -2)
    parts = [np.swapaxes(part, -1, -2) for part in (first, grads["last"])]
    return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], -1)


def rows(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of both blocks, by hand: ``[6, 4, 3]`` and ``[6, 3, 4]``."""
    inputs = np.concatenate([batch["x"], np.ones((6, 1))], 1)
    hidden = np.tanh(inputs @ np.concatenate([PARAMS["first"]["w"], PARAMS["first"]["b"][None]]))
    p = np.exp(hidden @ PARAMS["last"])
    outer = p / p.sum(1, keepdims=True) - np.eye(3)[np.asarray(batch["y"])]
    inner = outer @ PARAMS["last"].T * (1 - hidden**2)
    return np.einsum("bi,bj->bij", inner, inputs), np.einsum("bi,bj->bij", outer, hidden)


def test_true_fisher(tmp_path: Path) -> None:
    run = sawlog.init("run", root=tmp_path)
    run.setup(statistic="ekfac", fisher="true", fisher_seed=4)
    run.watch(loss_fn, PARAMS, BATCHES[0], sample_labels=sample, quiet=True)
    found = run.extract(loss_fn, PARAMS, BATCHES, quiet=True)
    assert found.passes == ("K-FAC", "EK-FAC", "rows")
    data = {"x": X, "y": Y}
    drawn = sample(PARAMS, data, keys_of(LabelSampling(4, np.arange(6))))
    assert (np.asarray(drawn["y"]) != Y).any()
    for name, own in zip(("first/w", "last"), rows(drawn), strict=True):
        left, right = run.statistics.eigenbasis(name)
        turned = np.swapaxes(left, -1, -2) @ own @ right
        values = run.statistics.ekfac(name)
        np.testing.assert_allclose(values, (turned**2).mean(0), rtol=1e-4, atol=1e-6)
    inner = rows(drawn)[0][:, :, -1]  # their input is 1
    factor = run.statistics.kfac("first/w")[0]
    np.testing.assert_allclose(factor, inner.T @ inner / 6, rtol=1e-4, atol=1e-6)
    assert run.statistics.fisher == "true"
    with sawlog.store.open(run.store_path) as reader:  # rows have the labels of the data
        stored = reader.gather(range(6))["grad/last"]
    np.testing.assert_allclose(stored, rows(data)[1], rtol=1e-4, atol=1e-6)


def test_keys_depend_on_the_seed_and_the_id_alone() -> None:
    ids = np.array(["a", "b", "c"])
    keys = jax.random.key_data(keys_of(LabelSampling(0, ids)))
    alone = jax.random.key_data(keys_of(LabelSampling(0, ids[1:2])))
    np.testing.assert_array_equal(keys[1:2], alone)
    other = jax.random.key_data(keys_of(LabelSampling(1, ids)))
    assert len({tuple(key) for key in np.concatenate([keys, other]).tolist()}) == 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "nothing says how to draw them"),
        (lambda params, batch, keys: batch["y"], "another structure"),
        (lambda params, batch, keys: {**batch, "y": outputs_fn(params, batch)}, r"\[3, 3\]"),
    ],
)
def test_labels_that_cannot_be_drawn(tmp_path: Path, given: Any, words: str) -> None:
    run = sawlog.init("run", root=tmp_path)
    run.setup(statistic="kfac", fisher="true", save=[])
    run.watch(loss_fn, PARAMS, BATCHES[0], sample_labels=given, quiet=True)
    with pytest.raises(ArgumentError, match=words):
        run.record(range(3), PARAMS, BATCHES[0])


def dense(loss: str) -> np.ndarray:
    """The Gauss-Newton matrix by Jacobians and second derivatives of each example."""
    total = np.zeros((24, 24))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), PARAMS)
        for x in X.astype(np.float64):

            def outputs(params, x=x):
                return outputs_fn(params, {"x": x[None]})[0]

            if loss == "mse":
                second = np.eye(3) * 2 / 3
            else:
                second = np.asarray(jax.hessian(jax.nn.logsumexp)(outputs(params)))
            jacobian = flat(jax.tree.map(np.asarray, jax.jacrev(outputs)(params)))
            total += jacobian.T @ second @ jacobian
    return total / len(X)


@pytest.mark.turns
@pytest.mark.parametrize(("loss", "fun"), [("cross_entropy", loss_fn), ("mse", squares_fn)])
def test_gauss_newton(tmp_path: Path, loss: str, fun: Any) -> None:
    run = sawlog.init("run", root=tmp_path)
    run.watch(fun, PARAMS, BATCHES[0], quiet=True)
    found = sawlog.jax.gauss_newton(run, outputs_fn, PARAMS, BATCHES, loss)
    assert (found.kind, found.count) == ("gauss-newton", 6)
    assert dict(found.joint.shapes) == {"first/w": (4, 3), "last": (3, 4)}
    np.testing.assert_allclose(found.joint.matrix, dense(loss), rtol=1e-10, atol=1e-14)
    run.extract(fun, PARAMS, BATCHES, quiet=True)
    run.eval()
    run.record(["query"], PARAMS, {"x": X[:1], "y": Y[:1]})
    query, logs = run.get_log(), influence.Logs(run.store_path)
    scores = influence.attribute(logs, query, curvature=found, damping=0.1)
    with sawlog.store.open(run.store_path) as reader:
        names = ("grad/first/w", "grad/last")
        stored = reader.gather(range(6), names)
        own = np.concatenate([stored[name].reshape(6, -1) for name in names], 1)
    added = dense(loss) + 0.1 * np.eye(24)
    wanted = own[:1] @ np.linalg.solve(added, own.T)
    np.testing.assert_allclose(scores.values, wanted, rtol=1e-4)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_roots_of_the_second_derivative(loss: str) -> None:
    """Rows of ``R`` are the gradients by the outputs, and ``R^T R`` is that of the loss."""
    outputs = np.array([-1.0, 0.5, 2.0, 0.0], np.float32)
    p = np.exp(outputs) / np.exp(outputs).sum()
    wanted = {"cross_entropy": np.diag(p) - np.outer(p, p), "mse": np.eye(4) * 2 / 4}
    backend: Any = types.SimpleNamespace(capture_with=lambda fun: fun)
    weighted = _Rows(backend, lambda params, batch: params, loss)._weighted
    of_outputs = jax.jit(jax.grad(lambda o, k: weighted(o, (None, k))[0]))
    root = np.concatenate([of_outputs(outputs[None], k) for k in range(4)])
    np.testing.assert_allclose(root.T @ root, wanted[loss], atol=1e-6)


def test_gauss_newton_arguments(tmp_path: Path) -> None:
    run = sawlog.init("run", root=tmp_path)
    run.watch(loss_fn, PARAMS, BATCHES[0], quiet=True)

    def refused(words: str, fun: Any = outputs_fn, batches: Any = BATCHES, run: Any = run) -> None:
        with pytest.raises(ArgumentError, match=words):
            sawlog.jax.gauss_newton(run, fun, PARAMS, batches)

    refused("no examples", batches=[])
    refused(r"\[examples, outputs\]", loss_fn)
    refused("in another way", lambda p, b: outputs_fn(p, b) + (b["x"] @ p["first"]["w"])[:, :3])
    refused("watches a JAX function", run=None)
    run.setup(compress=2)
    refused("without compress")
