"""Rules of the user for primitives of their own."""

import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive

import sawlog
from sawlog.errors import CaptureError

W = {"w": jnp.ones((3, 3))}
X = jnp.arange(12.0).reshape(4, 3) / 10


def output(p, x):
    return x @ p["w"]


def test_a_rule_of_the_user():
    double_p = Primitive("double_of_a_test")
    double_p.def_impl(lambda x: 2 * x)
    double_p.def_abstract_eval(lambda x: x)

    def loss(p, x):
        return output(p, double_p.bind(x)).sum(1)

    with pytest.raises(CaptureError, match=r"'double_of_a_test' at .*without a rule"):
        sawlog.jax.capture(loss).plan(W, X)
    sawlog.jax.register_capture_rule(double_p)(lambda eqn, dims: dims)
    assert sawlog.jax.capture(loss).plan(W, X).blocks[0].shape == (3, 3)
    sawlog.jax.register_capture_rule(double_p)(lambda eqn, dims: [None])
    with pytest.raises(CaptureError, match="as its rule says"):
        sawlog.jax.capture(loss).plan(W, X)
