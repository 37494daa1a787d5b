"""Programs written with flax."""

from __future__ import annotations

import jax
import numpy as np
from flax import linen as nn
from flax import nnx
from jax import numpy as jnp

import sawlog

from .base import M23, X3, Program, case, f32, many, once

W32 = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]], np.float32)
B2 = f32(0.5, -0.5)
PARAMS = {"params": {"Dense_0": {"kernel": W32, "bias": B2}}}

# --- flax linen -------------------------------------------------------------------------------


class LinenNet(nn.Module):
    """One layer, with its activation logged."""

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(2)(x)
        sawlog.log("h", h)
        return h * h


@case("flax_linen", args=(PARAMS, M23))
def linen_apply() -> Program:
    """A linen module."""

    def fun(params, x):
        return LinenNet().apply(params, x).sum()

    def answer(params, x):
        layer = params["params"]["Dense_0"]
        h = x @ layer["kernel"] + layer["bias"]
        return np.sum(h * h), {"h": once(h)}

    return fun, answer


@case("flax_linen", "grad", args=(PARAMS, M23))
def linen_grad() -> Program:
    """The gradient of a linen module's loss."""

    def fun(params, x):
        return jax.grad(lambda p: LinenNet().apply(p, x).sum())(params)

    def answer(params, x):
        layer = params["params"]["Dense_0"]
        h = x @ layer["kernel"] + layer["bias"]
        grads = {"kernel": x.T @ (2 * h), "bias": np.sum(2 * h, axis=0)}
        return {"params": {"Dense_0": grads}}, {"h": once(h)}

    return fun, answer


class LinenRemat(nn.Module):
    """A rematerialised layer."""

    @nn.compact
    def __call__(self, x):
        return nn.remat(LinenNet)(name="net")(x).sum()


@case("flax_linen", "checkpoint", "grad", args=({"params": {"net": PARAMS["params"]}}, M23))
def linen_remat() -> Program:
    """`nn.remat` under grad: once."""

    def fun(params, x):
        return jax.grad(lambda v: LinenRemat().apply(params, v))(x)

    def answer(params, x):
        layer = params["params"]["net"]["Dense_0"]
        h = x @ layer["kernel"] + layer["bias"]
        return 2 * h @ layer["kernel"].T, {"h": once(h)}

    return fun, answer


class LinenCell(nn.Module):
    """One step of a recurrent loop."""

    @nn.compact
    def __call__(self, carry, x):
        scale = self.param("scale", nn.initializers.ones, ())
        carry = carry + scale * x
        sawlog.log("carry", carry)
        return carry, carry


@case("flax_linen", "scan", args=({"params": {"scale": f32(2.0)}}, X3))
def linen_scan() -> Program:
    """`nn.scan`: one entry an iteration."""

    def fun(params, xs):
        cell = nn.scan(LinenCell, variable_broadcast="params", split_rngs={"params": False})
        return cell().apply(params, jnp.float32(0), xs)[0]

    def answer(params, xs):
        seen = np.cumsum(params["params"]["scale"] * xs)
        return seen[-1], {"carry": many(list(seen))}

    return fun, answer


# --- flax nnx ---------------------------------------------------------------------------------


class NnxNet(nnx.Module):
    """One layer of weights, with its activation logged."""

    def __init__(self) -> None:
        self.kernel = nnx.Param(jnp.asarray(W32))
        self.bias = nnx.Param(jnp.asarray(B2))

    def __call__(self, x):
        h = x @ self.kernel[...] + self.bias[...]
        sawlog.log("h", h)
        return (h * h).sum()


def by_hand(x):
    """The activation and the loss of the network above."""
    h = x @ W32 + B2
    return h, np.sum(h * h)


@case("flax_nnx", "closure", args=(M23,))
def nnx_closed_over() -> Program:
    """A module of the enclosing scope."""
    model = NnxNet()

    def fun(x):
        return model(x)

    def answer(x):
        h, loss = by_hand(x)
        return loss, {"h": once(h)}

    return fun, answer


@case("flax_nnx", args=lambda: (NnxNet(), M23), vmap=False, grad=False)
def nnx_as_argument() -> Program:
    """A module as an argument."""

    def fun(model, x):
        return model(x) + 1

    def answer(model, x):
        h, loss = by_hand(x)
        return loss + 1, {"h": once(h)}

    return fun, answer


@case("flax_nnx", "jit", "grad", args=(M23,))
def nnx_grad_by_state() -> Program:
    """Split, differentiate by the state, merge."""

    def fun(x):
        graph, state = nnx.split(NnxNet())

        @jax.jit
        def loss(state):
            return nnx.merge(graph, state)(x)

        return jax.grad(loss)(state)["bias"][...]

    def answer(x):
        h, _ = by_hand(x)
        return np.sum(2 * h, axis=0), {"h": once(h)}

    return fun, answer


@case("flax_nnx", "jit", args=(M23,))
def nnx_jit() -> Program:
    """`nnx.jit` of a module's method."""

    def fun(x):
        return nnx.jit(lambda model, v: model(v))(NnxNet(), x)

    def answer(x):
        h, loss = by_hand(x)
        return loss, {"h": once(h)}

    return fun, answer
