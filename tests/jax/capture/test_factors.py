"""Factors of uses whose dimensions are in no natural order, and of ids out of bounds: by default.

All uses are in one program, which is compiled once.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import sawlog.jax
from tests.jax.capture.cases_base import total
from tests.jax.capture.oracle import assert_equal, assert_pairs, gradients

SHAPES = {
    "clip": (6, 2),
    "fill": (6, 2),
    "column": (2, 6),
    "two": (3, 4, 5),
    "other": (3, 5, 4),
    "first": (5, 3),
    "groups": (2, 4, 3),
    "transposed": (5, 3),
    "spread": (1, 3),
    "turned": (4, 1),
    "kernel": (2, 5, 3),
    "grouped": (2, 1, 6),
    "wide": (1, 3),
    "high": (4, 1),
}


def uses(p, batch):
    """The output of each use, ``[examples, ...]``."""
    x, ids = batch["x"], batch["ids"]
    yield p["clip"].at[ids].get(mode="clip")
    yield p["fill"].at[ids].get(mode="fill", fill_value=0.5)
    yield jnp.moveaxis(p["column"].at[:, ids].get(mode="clip"), 1, 0)
    yield lax.dot_general(x, p["two"], (((2, 1), (0, 1)), ((), ())))
    yield lax.dot_general(x, p["other"], (((1, 2), (2, 0)), ((), ())))
    yield jnp.moveaxis(lax.dot_general(p["first"], x, (((1,), (2,)), ((), ()))), 1, 0)
    yield jnp.einsum("btf,otf->bto", x, p["groups"])
    yield x @ (2 * p["transposed"]).T
    yield x * jnp.broadcast_to(p["spread"], (4, 3))
    yield x * jnp.broadcast_to(p["turned"], (4, 3)).T.T
    both = jnp.broadcast_to(p["wide"], (4, 3)) * jnp.broadcast_to(p["high"], (4, 3))
    yield x * jnp.tanh(both)
    yield jnp.swapaxes(x, 1, 2) * jnp.broadcast_to(p["wide"], (4, 3)).T
    numbers = lax.ConvDimensionNumbers((0, 2, 1), (1, 2, 0), (0, 2, 1))
    yield lax.conv_general_dilated(x, p["kernel"], (2,), ((1, 0),), None, None, numbers)
    pairs = lax.ConvDimensionNumbers((0, 2, 1), (2, 1, 0), (0, 2, 1))
    yield lax.conv_general_dilated(x, p["grouped"], (1,), "SAME", None, (2,), pairs, 3)


def loss(p, batch):
    return sum(total(y) for y in uses(p, batch))


def test_rows_and_pairs_of_uses():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()}
        batch = {
            "x": jnp.asarray(rng.normal(size=(3, 4, 3))),
            "ids": jnp.asarray([[-9, 0, 7, 5], [2, 8, -1, 2], [6, 1, -6, 3]]),
        }
        whole = sawlog.jax.capture(loss, what=("grad", "pairs"))
        plan = whole.plan(params, batch)
        got, wanted = jax.jit(lambda p, b: (whole(p, b), gradients(loss, p, b)))(params, batch)
        assert_equal(got.grads, wanted)
        assert_pairs(got, plan, None, None)
