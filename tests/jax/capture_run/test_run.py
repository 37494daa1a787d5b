"""Runs of JAX functions: what is stored, refused and continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import ArgumentError, CaptureError, DuplicateIdError, WeightsMismatchError
from sawlog.jax._capture.captured import Captured

rng = np.random.default_rng(0)
X = rng.normal(size=(8, 3)).astype(np.float32)
PARAMS = {
    "kernel": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32),
    "bias": jnp.asarray(rng.normal(size=2), jnp.float32),
}


def loss_fn(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["kernel"] + params["bias"]).sum(-1) ** 2


def expected(params: Any = PARAMS, x: Any = X) -> np.ndarray:
    """The rows by `vmap(grad)`: outputs are rows, inputs and the bias are columns."""
    alone = jax.grad(lambda params, x: loss_fn(params, x[None])[0])
    found = jax.vmap(alone, (None, 0))(params, jnp.asarray(x))
    return np.concatenate([found["kernel"].transpose(0, 2, 1), found["bias"][..., None]], -1)


def rows_of(run: Any, ids: Any, name: str = "grad/kernel") -> np.ndarray:
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        return np.asarray(reader.gather(ids, [name])[name])


@pytest.fixture
def run(tmp_path: Path) -> Any:
    run = sawlog.init("run", root=tmp_path)
    run.watch(loss_fn, PARAMS, X[:4], quiet=True)
    return run


# -- what is stored --------------------------------------------------------------------------------


def test_micro_batches(run: Any) -> None:
    """Gradient accumulation: each micro-batch is recorded; the rest of a batch is another shape."""
    losses = [run.record(np.arange(8)[part], PARAMS, X[part]) for part in np.split(np.arange(8), 2)]
    np.testing.assert_allclose(np.concatenate(losses), loss_fn(PARAMS, X), rtol=1e-6)
    np.testing.assert_allclose(rows_of(run, range(8)), expected(), rtol=1e-5, atol=1e-6)


def test_micro_batches_in_the_loss(tmp_path: Path) -> None:
    """A loss that splits its batch cannot be called with one example, as the check would."""

    def accumulated(params: Any, x: Any) -> Any:
        def step(total: Any, part: Any) -> Any:
            return total + loss_fn(params, part).sum(), None

        return jax.lax.scan(step, 0.0, x.reshape(2, 2, 3))[0] / len(x)

    run = sawlog.init("run", root=tmp_path)
    run.setup(reduction="mean")
    done = run.extract(accumulated, PARAMS, [X[:4], X[4:]], quiet=True)
    assert done.check is not None
    assert done.check.ok
    np.testing.assert_allclose(rows_of(run, range(8)), expected(), rtol=1e-5, atol=1e-6)


def test_a_first_batch_that_is_not_finite(run: Any) -> None:
    """The example is named, or skipped; the proof waits for a batch that is finite."""
    broken = X[:4].copy()
    broken[1] = np.nan
    with pytest.raises(sawlog.errors.SawlogError, match=r"\b1\b") as caught:
        run.record(range(4), PARAMS, broken)
    assert "add up" not in str(caught.value)
    run.finalize()
    run.setup(nonfinite="skip")
    with pytest.warns(UserWarning, match="1"):
        run.record(range(4), PARAMS, broken)
    run.record(range(4, 8), PARAMS, X[4:])
    ids = [0, 2, 3, 4, 5, 6, 7]
    np.testing.assert_allclose(rows_of(run, ids), expected()[ids], rtol=1e-5, atol=1e-6)


def test_sharded_batch(run: Any) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    batch = jax.device_put(X, NamedSharding(mesh, P("data")))
    params = jax.device_put(PARAMS, NamedSharding(mesh, P()))
    run.record(range(8), params, batch)
    np.testing.assert_allclose(rows_of(run, range(8)), expected(), rtol=1e-5, atol=1e-6)


def test_continued(run: Any, tmp_path: Path) -> None:
    """A second program skips what is logged, and computes only what is missing of a batch."""
    run.record(["a", "b", "c", "d"], PARAMS, X[:4])
    run.finalize()
    again = sawlog.init("run", root=tmp_path)
    again.watch(loss_fn, PARAMS, X[:4], quiet=True)
    assert again.missing(["a", "e"]).tolist() == ["e"]
    assert again.record(["a", "b", "c", "d"], PARAMS, X[:4]) is None
    again.record(["d", "e", "f", "g"], PARAMS, X[3:7])
    found = rows_of(again, list("abcdefg"))
    np.testing.assert_allclose(found, expected()[:7], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_number_for_a_batch(reduction: str, tmp_path: Path) -> None:
    def whole(params: Any, x: Any) -> Any:
        return getattr(loss_fn(params, x), reduction)(), {"size": len(x)}

    run = sawlog.init("run", root=tmp_path)
    with pytest.raises(ArgumentError, match=r"one number .*Hint: return one loss for each"):
        run.watch(whole, PARAMS, X, has_aux=True)
    run.setup(reduction=reduction)
    run.watch(whole, PARAMS, X, has_aux=True, quiet=True)
    run.record(range(8), PARAMS, X)
    np.testing.assert_allclose(rows_of(run, range(8)), expected(), rtol=1e-5, atol=1e-6)


def test_other_axes_and_names(tmp_path: Path) -> None:
    run = sawlog.init("run", root=tmp_path)

    def turned(params: Any, batch: Any) -> Any:
        return loss_fn(params, batch["x"].T * batch["scale"])

    batch = {"x": X.T, "scale": np.float32(1)}
    axes = {"x": 1, "scale": None}
    report = run.watch(turned, PARAMS, batch, names="kernel", batch_axes=axes, quiet=True)
    assert [block.name for block in report.blocks] == ["kernel"]
    assert report.skipped == (("bias", "not selected by names="),)
    run.record(range(8), PARAMS, batch)
    np.testing.assert_allclose(rows_of(run, range(8)), expected()[..., :3], rtol=1e-5, atol=1e-6)


def test_factors_of_positions(tmp_path: Path) -> None:
    """Inputs and output gradients multiply to the gradient; scores of positions sum to scores."""

    def sequence(params: Any, x: Any) -> Any:
        return (jnp.tanh(x @ params["kernel"] + params["bias"]) ** 2).sum((1, 2))

    x = X.reshape(2, 4, 3)
    run = sawlog.init("run", root=tmp_path)
    run.setup(log=["forward", "backward", "grad"], statistic=["mean", "covariance"])
    run.watch(sequence, PARAMS, x, quiet=True)
    run.record([0, 1], PARAMS, x)
    inputs, outputs = (rows_of(run, [0, 1], f"{kind}/kernel") for kind in ("forward", "backward"))
    np.testing.assert_array_equal(inputs, x)
    moment = run.statistics.covariance("forward/kernel")  # a mean over all positions
    np.testing.assert_allclose(moment, X.T @ X / 8, rtol=1e-5)
    full = np.concatenate([inputs, np.ones((2, 4, 1), np.float32)], -1)
    product = np.einsum("bto,bti->boi", outputs, full)
    np.testing.assert_allclose(rows_of(run, [0, 1]), product, rtol=1e-5, atol=1e-6)
    run.eval()
    run.record([0, 1], PARAMS, x)
    asked = run.get_log()
    whole = sawlog.influence.attribute(run.store_path, asked, curvature="identity").values
    tokens = sawlog.influence.token_scores(run.store_path, asked, curvature="identity")
    assert tokens.shape == (2, 2, 4)
    np.testing.assert_allclose(tokens.sum(-1), whole, rtol=1e-5)


def test_masked_moments(tmp_path: Path) -> None:
    """Positions that the mask leaves out count for no moment."""

    def sequence(params: Any, batch: Any) -> Any:
        x, mask = batch
        return ((x @ params["kernel"]).sum(-1) * mask).sum(1)

    x, mask = X.reshape(2, 4, 3), np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.float32)
    run = sawlog.init("run", root=tmp_path)
    run.setup(statistic="kfac", save=[])
    run.watch(sequence, {"kernel": PARAMS["kernel"]}, (x, mask), quiet=True)
    run.record([0, 1], {"kernel": PARAMS["kernel"]}, (x, mask), mask=mask)
    left, right = run.statistics.kfac("kernel")
    kept = x[mask > 0]
    np.testing.assert_allclose(right, kept.T @ kept / 5, rtol=1e-5)
    np.testing.assert_allclose(left, np.full((2, 2), 5 / 2), rtol=1e-6)  # sums of an example


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_moments_of_inputs_include_the_bias(precision: str, tmp_path: Path) -> None:
    run = sawlog.init("run", root=tmp_path, config={"statistic": "kfac", "precision": precision})
    run.watch(loss_fn, PARAMS, X, quiet=True)
    run.record(range(8), PARAMS, X)
    full = np.concatenate([X, np.ones((8, 1))], 1)
    right = run.statistics.kfac("kernel")[1]
    np.testing.assert_allclose(right, full.T @ full / 8, rtol=1e-6, atol=1e-7)


def test_a_batch_that_is_stored_in_part(tmp_path: Path) -> None:
    """Factors and masks of the examples that are missing, not of the first ones, are added."""

    def sequence(params: Any, batch: Any) -> Any:
        x, mask = batch
        return ((x @ params["kernel"]).sum(-1) * mask).sum(1)

    params = {"kernel": PARAMS["kernel"]}
    x = np.concatenate([X, X[:4] + 1]).reshape(3, 4, 3)
    mask = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], np.float32)
    first, again = (sawlog.init("run", root=tmp_path, config={"statistic": "kfac"}) for _ in "ab")
    for run, rows in ((first, slice(1, 2)), (again, slice(0, 3))):
        run.watch(sequence, params, (x[rows], mask[rows]), quiet=True)
        run.record(np.arange(3)[rows], params, (x[rows], mask[rows]), mask=mask[rows])
        run.finalize()
    kept = x[mask > 0]
    right = again.statistics.kfac("kernel")[1]
    np.testing.assert_allclose(right, kept.T @ kept / 6, rtol=1e-5)


def test_a_weight_that_is_used_twice(tmp_path: Path) -> None:
    """Inputs are numbered in the order of the forward pass, gradients in that of the backward."""
    square = {"w": jnp.asarray(rng.normal(size=(3, 3)), jnp.float32)}

    def twice(params: Any, x: Any) -> Any:
        return ((x @ params["w"]) @ params["w"] * jnp.arange(3.0)).sum(-1)

    run = sawlog.init("run", root=tmp_path)
    run.setup(log=["forward", "backward"])
    run.watch(twice, square, X[:2], quiet=True)
    run.record([0, 1], square, X[:2])
    w, out = np.asarray(square["w"]), np.tile(np.arange(3.0, dtype=np.float32), (2, 1))
    answer = {
        "forward/w": X[:2],
        "forward/w#2": X[:2] @ w,
        "backward/w": out,
        "backward/w#2": out @ w.T,
    }
    for name, values in answer.items():
        np.testing.assert_allclose(rows_of(run, [0, 1], name), values, rtol=1e-5, err_msg=name)


def test_extract_without_watch(tmp_path: Path) -> None:
    run = sawlog.init("run", root=tmp_path)
    done = run.extract(loss_fn, PARAMS, iter([X[:4], X[4:]]), quiet=True)
    assert (done.examples, done.passes) == ((8,), ("rows",))
    assert done.check is not None
    assert done.check.ok
    np.testing.assert_allclose(rows_of(run, range(8)), expected(), rtol=1e-5, atol=1e-6)


def test_self_influence(run: Any) -> None:
    run.record(range(8), PARAMS, X)
    found = run.influence.compute_self_influence(curvature="identity")
    norms = (expected().reshape(8, -1) ** 2).sum(1)
    np.testing.assert_allclose(found.values, norms, rtol=1e-5)


# -- what is refused -------------------------------------------------------------------------------


def test_changed_parameters(run: Any) -> None:
    run.record(range(4), PARAMS, X[:4])
    copied = jax.tree.map(jnp.copy, PARAMS)  # other arrays of equal numbers
    run.record(range(4, 6), copied, X[4:6])
    moved = {**PARAMS, "bias": PARAMS["bias"] + 1}
    with pytest.raises(WeightsMismatchError, match=r"1 tensors differ \(bias\)"):
        run.record(range(6, 8), moved, X[6:])
    run.finalize()
    run.setup(weights="any")
    run.record(range(6, 8), moved, X[6:])
    np.testing.assert_allclose(rows_of(run, [7])[0], expected(moved)[7], rtol=1e-5, atol=1e-6)


def test_numpy_parameters_that_change_in_place(tmp_path: Path) -> None:
    params = jax.tree.map(np.array, PARAMS)
    run = sawlog.init("run", root=tmp_path)
    run.watch(loss_fn, params, X, quiet=True)
    run.record(range(4), params, X[:4])
    params["kernel"][0, 0] += 1
    with pytest.raises(WeightsMismatchError, match="kernel"):
        run.record(range(4, 8), params, X[4:])


def test_errors(run: Any) -> None:
    with pytest.raises(ArgumentError, match="has 4 examples, and 3 ids were given"):
        run.record([1, 2, 3], PARAMS, X[:4])
    run.record(range(4), PARAMS, X[:4])
    with pytest.raises(DuplicateIdError):
        run.record(range(4), PARAMS, X[:4])
    with pytest.raises(CaptureError, match=r"infinite or NaN .*grad/kernel"):
        run.record(range(4, 8), PARAMS, X[4:] * np.nan)
    with pytest.raises(CaptureError, match=r"Hint: .*run\.record"), run(data_id=[9]):
        loss_fn(PARAMS, X[:1])
    with pytest.raises(CaptureError, match=r"inside jax\.jit .*sawlog\.jax\.capture"):
        jax.jit(lambda x: run.record(range(4), PARAMS, x))(X[:4])
    with pytest.raises(ArgumentError, match="another loss function"):
        run.extract(lambda params, x: loss_fn(params, x), PARAMS, [X])
    run.finalize()
    run.setup(log=["forward", "grad"], forward="output")
    with pytest.raises(ArgumentError, match='forward="input"'):
        run.record([20], PARAMS, X[:1])


def test_examples_that_interact(tmp_path: Path) -> None:
    def interacting(params: Any, x: Any) -> Any:
        h = x @ params["kernel"]
        return ((h - h.mean(0)) ** 2).sum(-1)

    with pytest.raises(CaptureError, match="depends on other examples"):
        sawlog.init("other", root=tmp_path).watch(interacting, PARAMS, X, quiet=True)


def test_a_query_of_another_kind(run: Any) -> None:
    """A query may be another function of the same model; not one that uses it otherwise."""
    run.record(range(8), PARAMS, X)
    run.eval()

    def margin(params: Any, x: Any) -> Any:
        return -loss_fn(params, x)

    run.record([0, 1], PARAMS, X[:2], loss_fn=margin)
    found = run.get_log().whole().rows()["kernel"]
    np.testing.assert_allclose(found, -expected()[:2], rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match="another way than the watched one"):
        run.record([0], PARAMS, X[:1], loss_fn=lambda params, x: (params["bias"] * x[:, :2]).sum(1))


def test_what_can_be_watched(tmp_path: Path) -> None:
    run = sawlog.init("run", root=tmp_path)
    for what in ((PARAMS,), (loss_fn,), (loss_fn, PARAMS)):
        with pytest.raises(ArgumentError, match=r"Hint: run\.watch\(model\)"):
            run.watch(*what)
    with pytest.raises(ArgumentError, match=r"Hint: run\.watch\(loss_fn, params, batch\)"):
        run.record([1], PARAMS, X[:1])
    with pytest.raises(ArgumentError, match="No model is watched"):
        run.missing([1])


def test_check_finds_random_numbers(tmp_path: Path) -> None:
    """Noise that depends on the shape of the batch is not that of an example alone."""

    def noisy(params: Any, x: Any) -> Any:
        return loss_fn(params, x * jax.random.normal(jax.random.key(0), x.shape))

    run = sawlog.init("run", root=tmp_path)
    run.watch(noisy, PARAMS, X, quiet=True)
    found = run.check(noisy, X, quiet=True)
    assert not found.ok
    with pytest.raises(CaptureError, match="not what its examples give alone"):
        run.extract(noisy, PARAMS, [X], quiet=True)
    assert run.check(lambda params, x: loss_fn(params, x), X, quiet=True).ok


def test_a_batch_whose_rows_are_not_its_gradient_is_refused(run: Any, monkeypatch: Any) -> None:
    """The first batch of a shape is proven, and no row of it is stored if that fails."""
    checked: list[tuple[int, ...]] = []

    def check(self: Any, rtol: Any = None) -> None:
        checked.append(self.losses.shape)
        if self.losses.shape == (3,):
            raise CaptureError("do not add up")

    monkeypatch.setattr(Captured, "check", check)
    for ids in ([0, 1], [2, 3]):
        run.record(ids, PARAMS, X[ids])
    for _ in range(2):
        with pytest.raises(CaptureError, match="do not add up"):
            run.record([4, 5, 6], PARAMS, X[4:7])
    run.record([4], PARAMS, X[4:5])
    assert checked == [(2,), (3,), (3,), (1,)]
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert reader.ids().tolist() == [0, 1, 2, 3, 4]
