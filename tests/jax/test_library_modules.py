"""Modules of flax nnx and of equinox as arguments of spool and tap."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import sawlog

# --- nnx: a training step changes the model and the optimizer ------------------------------------


class Line(nnx.Module):
    """y = w * x."""

    def __init__(self) -> None:
        self.w = nnx.Param(jnp.float32(0))
        self.calls = nnx.Variable(jnp.int32(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.w[...] * x


def step(model, optimizer, x):
    """One step towards w = 1."""
    loss, grads = nnx.value_and_grad(lambda m: (m(x) - x) ** 2)(model)
    optimizer.update(model, grads)
    sawlog.log({"loss": loss})
    return loss


def wrapped_ways(seen):
    """Ways to run a step, all of which return the loss."""
    spooled, tapped = sawlog.spool(step), sawlog.tap(step, seen.append)
    return {
        "spool": lambda *args: spooled(*args)[0],
        "nnx.jit(spool)": lambda *args: nnx.jit(spooled)(*args)[0],
        "spool(nnx.jit)": lambda *args: sawlog.spool(nnx.jit(step))(*args)[0],
        "tap": tapped,
        "nnx.jit(tap)": nnx.jit(tapped),
        "tap(nnx.jit)": sawlog.tap(nnx.jit(step), seen.append),
    }


@pytest.mark.parametrize("name", list(wrapped_ways([])))
def test_nnx_trains(name: str) -> None:
    model = Line()
    optimizer = nnx.Optimizer(model, optax.sgd(0.25), wrt=nnx.Param)
    run = wrapped_ways([])[name]
    losses = [float(run(model, optimizer, jnp.float32(1))) for _ in range(3)]
    jax.effects_barrier()
    assert losses == [1, 0.25, 0.0625]
    assert float(model.w[...]) == 0.875
    assert int(model.calls[...]) == 3
    assert int(optimizer.step[...]) == 3


# --- equinox: models with numbers and functions among their leaves -------------------------------


class Rectifier(eqx.Module):
    """A number and a function that are leaves, not static fields."""

    weight: jax.Array
    slope: float
    activation: object
    bias: bool

    def __call__(self, x):
        h = self.activation(self.weight * x) * self.slope
        if self.bias:
            h = h + 1
        sawlog.log("h", h)
        return h


def rectifier():
    """A small model."""
    return Rectifier(jnp.float32(2), 0.5, jax.nn.relu, True)


EQUINOX = {
    "spool(filter_jit)": lambda f: sawlog.spool(eqx.filter_jit(f)),
    "filter_jit(spool)": lambda f: eqx.filter_jit(sawlog.spool(f)),
    "spool": sawlog.spool,
}


@pytest.mark.parametrize("name", list(EQUINOX))
def test_equinox_python_leaves(name: str) -> None:
    out, logs = EQUINOX[name](lambda model, x: model(x))(rectifier(), jnp.float32(3))
    assert out == 4
    assert logs["h"] == 4


@pytest.mark.parametrize("name", list(EQUINOX))
def test_equinox_mlp_grad(name: str) -> None:
    def fun(model, x):
        loss, grads = eqx.filter_value_and_grad(lambda m: m(x).sum())(model)
        sawlog.log("loss", loss)
        return grads.layers[0].bias

    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    x = jnp.ones(2)
    out, logs = EQUINOX[name](fun)(model, x)
    np.testing.assert_allclose(out, fun(model, x), rtol=1e-5)
    np.testing.assert_allclose(logs["loss"], model(x).sum(), rtol=1e-5)
