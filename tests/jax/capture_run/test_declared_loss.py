"""A loss that is joined in another way than declared is refused; others are left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.errors import ArgumentError

PARAMS = {"w": jnp.array([[0.3, -0.2], [0.5, 0.4], [-0.1, 0.7]])}
BATCH = (
    np.random.default_rng(0).normal(size=(4, 3)).astype("f4"),
    np.array([[1, 1], [1, 0], [1, 1], [0, 1]], "f4"),
)


def losses(params, batch):
    return (jnp.tanh(batch[0] @ params["w"]) ** 2).sum(-1)


JOINED = {
    "sum": lambda p, b: losses(p, b).sum(),
    "mean": lambda p, b: losses(p, b).mean(),
    "only of four": lambda p, b: losses(p, jax.tree.map(lambda x: x.reshape(4, -1), b)).mean(),
}


def record(tmp_path, loss, reduction="auto", size=4):
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(reduction=reduction)
    batch = jax.tree.map(lambda x: x[:size], BATCH)
    run.watch(loss, PARAMS, batch, quiet=True)
    run.record(np.arange(size), PARAMS, batch)
    run.finalize()
    return sawlog.store.open(run.store_path).gather(np.arange(size))["grad/w"]


@pytest.mark.parametrize(("loss", "said"), [("sum", "mean"), ("mean", "sum")])
def test_a_wrong_declaration_is_refused(tmp_path, loss, said):
    right = {"mean": "sum", "sum": "mean"}[said]
    with pytest.raises(ArgumentError, match=rf'is the {right} of.*run.setup\(reduction="{right}"'):
        record(tmp_path, JOINED[loss], said)


@pytest.mark.parametrize(
    ("loss", "said"), [("sum", "sum"), ("mean", "mean"), ("only of four", "mean")]
)
def test_a_right_declaration_is_taken(tmp_path, loss, said):
    rows = record(tmp_path, JOINED[loss], said)
    alone = jax.vmap(jax.grad(lambda p, x: losses(p, (x,))), (None, 0))(PARAMS, BATCH[0])
    expected = np.moveaxis(alone["w"], 2, 1).reshape(4, -1)
    np.testing.assert_allclose(rows.reshape(4, -1), expected, rtol=1e-5)


def test_one_example_may_be_a_sum_or_a_mean(tmp_path):
    for reduction in ("sum", "mean"):
        record(tmp_path / reduction, JOINED["sum"], reduction, size=1)


def test_losses_that_are_divided_by_the_size_of_the_batch_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="divided by the 4 examples"):
        record(tmp_path, lambda p, b: losses(p, b) / len(b[0]))
    record(tmp_path / "a number", lambda p, b: losses(p, b) / 4.5)
