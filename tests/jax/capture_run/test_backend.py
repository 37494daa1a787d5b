"""What the backend of a run keeps from batch to batch, and when it looks again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sawlog.errors import ArgumentError, CaptureError
from sawlog.factored import Dense, Pair
from sawlog.jax._capture_run.backend import JaxBackend, WatchedFunction
from sawlog.jax._capture_run.fingerprint import ParameterFingerprint
from sawlog.jax._capture_run.sampled_labels import keys_of
from sawlog.jax._capture_run.statistics import add_moments
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options

W = {"w": jnp.arange(6.0).reshape(3, 2) / 6}
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def each_loss(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"]).sum(-1)


def backend_of(loss_fn: Any, reduction: str = "auto") -> JaxBackend:
    return JaxBackend(loss_fn, W, X, WatchedFunction(None, False, 0), reduction)


def rows(make: Any, batch: Any = X) -> np.ndarray:
    return np.asarray(make(("grad",), {})(W, batch).grads["w"])


def test_one_loss_function_may_be_a_mean_and_a_sum() -> None:
    def joined(params: Any, x: Any) -> Any:
        assert len(x) > 1  # else one of the two would be refused, as its examples alone show
        return each_loss(params, x).sum()

    backend = backend_of(joined, "sum")
    summed = rows(backend.capture_of(joined, "sum", W, X))
    mean = rows(backend.capture_of(joined, "mean", W, X))
    np.testing.assert_allclose(mean, 4 * summed, rtol=1e-6)
    again = rows(backend.capture_of(joined, "sum", W, X))
    np.testing.assert_array_equal(again, summed)


def test_what_is_captured_is_what_was_asked_for() -> None:
    backend = backend_of(each_loss)
    make = backend.capture_of(each_loss, "auto", W, X)
    projection: dict[str, Any] = {}
    grads = make(("grad",), projection)(W, X)
    pairs = make(("pairs",), projection)(W, X)
    assert {*grads.grads} == {"w"}
    assert {*pairs.pairs} == {"w"}
    assert not pairs.grads
    assert make(("grad",), projection) is make(("grad",), projection)
    assert make(("grad",), {}) is not make(("grad",), projection)


@pytest.mark.parametrize("other", ["dtype", "shape", "finite"])
def test_another_kind_of_batch_is_proven_again(other: str) -> None:
    """So is the next one, where there was nothing to compare."""
    proofs = []
    backend = backend_of(each_loss)
    original = backend.proof

    def proof(loss_fn: Any, how: str) -> Any:
        proofs.append(1)
        return original(loss_fn, how)

    backend.proof = proof  # type: ignore[method-assign]
    second = {"dtype": X.astype(np.int32), "shape": X[:3], "finite": X}[other]
    first = X * np.nan if other == "finite" else X
    backend.capture_of(each_loss, "auto", W, first)
    assert len(proofs) == 1
    if other != "finite":
        backend.capture_of(each_loss, "auto", W, first)
        assert len(proofs) == 1
    backend.capture_of(each_loss, "auto", W, second)
    assert len(proofs) == 2
    backend.capture_of(each_loss, "auto", W, second)
    assert len(proofs) == 2


def test_a_wrong_derivative_behind_a_batch_that_is_not_finite() -> None:
    """The first batch shows nothing, so the second one is proven."""
    clipped = jax.custom_vjp(lambda w: w)
    clipped.defvjp(lambda w: (w, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))

    def loss(params: Any, x: Any) -> Any:
        return (x @ clipped(params["w"])).sum(-1)

    backend = backend_of(loss)
    backend.capture_of(loss, "auto", W, X * np.nan)
    with pytest.raises(CaptureError, match="add up"):
        backend.capture_of(loss, "auto", W, X)


@pytest.mark.parametrize("size", [3, 5])
def test_one_id_for_each_example(size: int) -> None:
    backend = backend_of(each_loss)
    backend.check_size(X, 4)
    with pytest.raises(ArgumentError, match=f"has 4 examples, and {size} ids"):
        backend.check_size(X, size)


def test_which_arrays_changed() -> None:
    one, two = jnp.arange(3.0), np.ones(2)
    prints = ParameterFingerprint()
    before = prints.now({"a": one, "b": two}, "")
    assert prints.changed({"a": one, "b": two}) == []
    assert prints.changed({"a": jnp.arange(3.0), "b": two.copy()}) == []
    assert prints.changed({"a": one + 1, "b": two}) == ["a"]
    assert prints.changed({"a": one}) == ["b"]
    assert prints.changed({"a": one, "b": two, "c": two}) == ["c"]
    assert prints.changed({"a": one.astype(jnp.int32), "b": two}) == ["a"]
    assert prints.changed({"a": one.reshape(3, 1), "b": two}) == ["a"]
    two[1] = 5  # in place
    assert prints.changed({"a": one, "b": two}) == ["b"]
    assert prints.now({"a": one, "b": two}, "") != before
    assert prints.changed({"a": one, "b": two}) == []


def test_every_example_has_a_key_of_its_own() -> None:
    """Of two words, so that keys are as different as they can be."""
    uniforms = np.random.default_rng(0).random((5, 2))
    asked = []
    sampling = SimpleNamespace(uniforms=lambda count: asked.append(count) or uniforms[:, :count])
    words = np.asarray(jax.random.key_data(keys_of(sampling)))  # type: ignore[arg-type]
    assert asked == [2]
    np.testing.assert_array_equal(words, (uniforms * 2.0**32).astype(np.uint32))


@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 0], [1, 0, 0]], bool), np.ones((2, 4))])
def test_moments_count_the_positions(mask: Any) -> None:
    """Those of the mask, if it is of this layer's positions."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 3, 5))
    found = []
    sums = SimpleNamespace(add=lambda *args: found.append(args))
    block = Block("w", ("w",), (2, 5), "right")
    pair = Pair(Dense(jnp.asarray(left)), Dense(jnp.asarray(right)))
    options = Options(statistic=["kfac"])
    add_moments(sums, block, pair, (None, None), mask, options)  # type: ignore[arg-type]
    fits = mask is not None and mask.shape == (2, 3)
    by = mask.astype(float) if fits else np.ones((2, 3))
    assert [count for *_, count in found] == [int(by.sum())] * 2
    for (_, total, _), each in zip(found, (left, right), strict=True):
        expected = np.einsum("bp,bpi,bpj->ij", by, each, each)
        np.testing.assert_allclose(total, expected, rtol=1e-5)
