"""Whole models give the gradient of each example, in float64."""

import jax
import numpy as np
import pytest

import sawlog.jax
from sawlog.jax._capture.parameters import leaf_names
from tests.jax.capture.models import EXAMPLES, MODELS, NAMES
from tests.jax.capture.oracle import assert_equal

TOLERANCE = {"gpt_of_scanned_layers": 1e-6}  # jax.nn computes its softmax in float32
#: Their layers are fragments, or those of other models.
SLOW = {"linen_lstm", "linen_cnn", "nnx_perceptron", "haiku_perceptron"}


@pytest.mark.turns
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.thorough][: each in SLOW]) for each in MODELS]
)
def test_rows_are_those_of_a_batch_of_one(name: str):
    with jax.enable_x64(True):
        loss, params, batch = MODELS[name]()
        one = jax.jit(jax.grad(lambda p, b: loss(p, b)[0]))
        parts = [jax.tree.map(lambda x, i=i: x[i : i + 1], batch) for i in range(EXAMPLES)]
        wanted = jax.tree.map(lambda *g: np.stack(g), *(one(params, part) for part in parts))
        captured = jax.jit(sawlog.jax.capture(loss, prove=True))(params, batch)
        named = dict(zip(leaf_names(wanted), jax.tree.leaves(wanted), strict=True))
        assert NAMES.get(name, next(iter(named))) in named
        assert_equal(captured.grads, named, TOLERANCE.get(name, 1e-9))
        captured.check()


def test_slow_models_exist():
    assert set(MODELS) > SLOW


def test_a_scanned_gpt_has_a_block_for_each_weight_with_its_bias():
    loss, params, batch = MODELS["gpt_of_scanned_layers"]()
    plan = sawlog.jax.capture(loss).plan(params, batch)
    blocks = {block.name: (block.parameters[1:], block.shape) for block in plan.blocks}
    assert blocks["layers/qkv"] == (("layers/qkv_b",), (2, 12, 5))
    assert blocks["layers/down"] == (("layers/down_b",), (2, 4, 7))
    assert blocks["layers/out"] == ((), (2, 4, 4))
    assert blocks["e"] == ((), (7, 4))
    assert not plan.slow
    assert not plan.unused
