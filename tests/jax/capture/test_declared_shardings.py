"""Losses that say how values are sharded give the rows of `vmap(grad)` on an explicit mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sawlog
from tests.jax.capture.oracle import assert_equal, gradients
from tests.jax.capture.splitting import mesh


def product(p, x, sharded):
    hidden = jnp.tanh(x @ p["a"])
    out = P("d", None, None) if sharded else None
    return jnp.dot(hidden, p["c"], out_sharding=out)


def transposed_product(p, x, sharded):
    out = P("m", "d", None) if sharded else None
    return jnp.moveaxis(jnp.einsum("btf,fg->gbt", x, p["a"], out_sharding=out), 0, -1)


def product_of_each(p, x, sharded):
    out = P(None, "m") if sharded else None
    return jax.vmap(lambda x: jnp.dot(x, p["a"], out_sharding=out))(x)


def lookup(p, x, sharded):
    rows = jnp.abs(lax.stop_gradient(x[..., 0]) * 9).astype(int) % 6
    out = {"out_sharding": P("d", None, None)} if sharded else {}
    return p["a"].at[rows].get(**out) * x[..., :1]


def whole_parameter(p, x, sharded):
    return x @ (jax.sharding.reshard(p["a"], P()) if sharded else p["a"])


def automatic_layers(p, x, sharded):
    def layers(p, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w) * p["s"], None), x, p["l"])[0]

    out = P("d", None, None)
    return jax.sharding.auto_axes(layers, out_sharding=out)(p, x) if sharded else layers(p, x)


def convolution(p, x, sharded):
    del sharded
    spec = ("NTC", "TIO", "NTC")
    scaled = p["k"] / (1 + (p["k"] ** 2).sum())
    plain, other = (
        lax.conv_general_dilated(x, k, (1,), "SAME", dimension_numbers=spec)
        for k in (p["k"], scaled)
    )
    return plain + other


SHAPES = {"a": (6, 8), "c": (8, 4), "l": (2, 6, 6), "s": (6,), "k": (2, 6, 4)}
SPECS = {"a": P(None, "m"), "c": P("m", None), "l": P(None, None, "m"), "s": P(), "k": P()}
MODELS = {
    product: "ac",
    transposed_product: "a",
    product_of_each: "a",
    lookup: "a",
    whole_parameter: "a",
    automatic_layers: "ls",
    convolution: "k",
}


@pytest.mark.parametrize("options", [{}, {"projection": 2}], ids=["rows", "projected"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_rows_are_those_of_vmap_grad(model, options):
    rng = np.random.default_rng(0)

    def loss(p, x, sharded=True):
        return (model(p, x, sharded) ** 2).sum((1, 2))

    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=(4, 5, 6)))
        params = {name: jnp.asarray(rng.normal(size=SHAPES[name])) for name in MODELS[model]}

        def plain(p, x):
            return loss(p, x, sharded=False)

        if options:
            wanted = sawlog.jax.capture(plain, **options)(params, x).grads
        else:
            wanted = gradients(plain, params, x)
        with jax.set_mesh(mesh(2, 2, kind=AxisType.Explicit)):
            placed = {name: jax.device_put(w, SPECS[name]) for name, w in params.items()}
            capture = sawlog.jax.capture(loss, **options)
            captured = capture(placed, jax.device_put(x, P("d")))
        assert_equal(captured.grads, wanted)
        for rows in captured.grads.values():
            assert rows.sharding.spec[0] == "d"
