"""`sawlog.jax.watch` on one model of four libraries: the same numbers under their own names."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import haiku as hk
import jax
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax import numpy as jnp

import sawlog
from tests.jax.watch.test_watch import PARAMS, X, by_hand, watch

RATE = 0.1


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.relu(linen.Dense(2, name="first")(x))
        return linen.Dense(1, use_bias=False, name="last")(x)


def in_linen() -> tuple[Any, tuple]:
    model = Linen()

    def step(variables: Any, x: Any) -> Any:
        gradient = jax.grad(lambda v: jnp.sum(model.apply(v, x) ** 2))(variables)
        return jax.tree.map(lambda p, g: p - RATE * g, variables, gradient)

    return watch(step), ({"params": PARAMS}, X)


class Nnx(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(3, 2, rngs=rngs)
        self.last = nnx.Linear(2, 1, use_bias=False, rngs=rngs)
        self.first.kernel.set_value(jnp.asarray(PARAMS["first"]["kernel"]))
        self.first.bias.set_value(jnp.asarray(PARAMS["first"]["bias"]))
        self.last.kernel.set_value(jnp.asarray(PARAMS["last"]["kernel"]))

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.first(x)))


def in_nnx() -> tuple[Any, tuple]:
    def gradient(model: Nnx, x: Any) -> Any:
        return nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)

    return watch(gradient), (Nnx(), X)


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self) -> None:
        first = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        last = eqx.nn.Linear(2, 1, use_bias=False, key=jax.random.key(0))
        where = lambda linear: (linear.weight, linear.bias)
        values = (jnp.asarray(PARAMS["first"]["kernel"].T), jnp.asarray(PARAMS["first"]["bias"]))
        self.first = eqx.tree_at(where, first, values)
        self.last = eqx.tree_at(lambda m: m.weight, last, jnp.asarray(PARAMS["last"]["kernel"].T))

    def __call__(self, x: Any) -> Any:
        return self.last(jax.nn.relu(self.first(x)))


def in_equinox() -> tuple[Any, tuple]:
    optimizer = optax.sgd(RATE)

    def step(model: Any, x: Any) -> Any:
        gradient = eqx.filter_grad(lambda model: jnp.sum(jax.vmap(model)(x) ** 2))(model)
        change, _ = optimizer.update(gradient, optimizer.init(eqx.filter(model, eqx.is_array)))
        return eqx.apply_updates(model, change)

    model = Equinox()
    return watch(step, model), (model, X)


def in_haiku() -> tuple[Any, tuple]:
    def forward(x: Any) -> Any:
        h = jax.nn.relu(hk.Linear(2, name="first")(x))
        return jnp.sum(hk.Linear(1, with_bias=False, name="last")(h) ** 2)

    model = hk.without_apply_rng(hk.transform(forward))
    names = {"kernel": "w", "bias": "b"}
    params = {
        layer: {names[leaf]: value for leaf, value in leaves.items()}
        for layer, leaves in PARAMS.items()
    }
    return jax.value_and_grad(watch(model.apply, params)), (params, X)


#: Of each library: the program, the names of the layers and leaves, and whether it updates.
LIBRARIES: dict[str, tuple[Any, dict[str, str], bool]] = {
    "linen": (in_linen, {"first": "params/first", "last": "params/last"}, True),
    "nnx": (in_nnx, {}, False),
    "equinox": (in_equinox, {"kernel": "weight"}, True),
    "haiku": (in_haiku, {"kernel": "w", "bias": "b"}, False),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_library(library: str) -> None:
    make, names, updates = LIBRARIES[library]
    fun, args = make()
    expected = {
        "/".join(names.get(part, part) for part in name.split("/")): value
        for name, value in by_hand().items()
        if updates or not name.startswith("update")
    }
    _, logs = sawlog.spool(fun)(*args)
    assert set(logs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-5, err_msg=name)
