"""Programs written with equinox and optax."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, X3, Program, case, many, once
from .libraries import B2, W32, by_hand


class EqxNet(eqx.Module):
    """One layer of weights, with its activation logged."""

    kernel: jax.Array
    bias: jax.Array
    name: str = eqx.field(static=True, default="net")

    def __call__(self, x):
        h = x @ self.kernel + self.bias
        sawlog.log(f"{self.name}/h", h)
        return (h * h).sum()


@case("equinox", args=lambda: (EqxNet(jnp.asarray(W32), jnp.asarray(B2)), M23), vmap=False)
def equinox_as_argument() -> Program:
    """A module as an argument; its name is static."""

    def fun(model, x):
        return model(x)

    def answer(model, x):
        h, loss = by_hand(x)
        return loss, {"net/h": once(h)}

    return fun, answer


@case("equinox", "jit", args=lambda: (EqxNet(jnp.asarray(W32), jnp.asarray(B2)), M23), vmap=False)
def equinox_filter_jit() -> Program:
    """`eqx.filter_jit`, called twice."""
    step = eqx.filter_jit(lambda model, x: model(x))

    def fun(model, x):
        return step(model, x) + step(model, x + 1)

    def answer(model, x):
        (h, loss), (h1, loss1) = by_hand(x), by_hand(x + 1)
        return loss + loss1, {"net/h": many([h, h1])}

    return fun, answer


@case("equinox", "grad", args=(M23,))
def equinox_filter_grad() -> Program:
    """`eqx.filter_value_and_grad` of a module with a function in it."""

    class Activated(eqx.Module):
        net: EqxNet
        activation: object = jnp.tanh

        def __call__(self, x):
            return self.net(x)

    model = Activated(EqxNet(jnp.asarray(W32), jnp.asarray(B2)))

    def fun(x):
        loss, grads = eqx.filter_value_and_grad(lambda m: m(x))(model)
        return loss, grads.net.bias

    def answer(x):
        h, loss = by_hand(x)
        return (loss, np.sum(2 * h, axis=0)), {"net/h": once(h)}

    return fun, answer


@case("equinox", "vmap", args=(M23,))
def equinox_filter_vmap() -> Program:
    """`eqx.filter_vmap` over rows."""
    model = EqxNet(jnp.asarray(W32), jnp.asarray(B2))

    def fun(x):
        return eqx.filter_vmap(lambda m, row: m(row), in_axes=(None, 0))(model, x)

    def answer(x):
        h, _ = by_hand(x)
        return np.sum(h * h, axis=1), {"net/h": once(h)}

    return fun, answer


@case("equinox", "jit", args=(M23, jnp.tanh), jit=False, vmap=False, grad=False)
def equinox_filter_jit_outermost() -> Program:
    """The function given to the transformation is a `filter_jit` with a function argument."""

    @eqx.filter_jit
    def fun(x, activation):
        sawlog.log("x", x * 2)
        return x.sum()

    def answer(x, activation):
        return np.sum(x), {"x": once(x * 2)}

    return fun, answer


# --- optax ------------------------------------------------------------------------------------


@case("optax", "scan", "grad", "steps", args=(X3,), rtol=1e-5)
def optax_sgd_momentum_in_scan() -> Program:
    """A training loop: loss, gradient and parameters of each step."""
    optimizer = optax.sgd(0.25, momentum=0.5)

    def fun(target):
        def loss_of(w):
            loss = ((w - target) ** 2).sum()
            sawlog.log("inside", loss)
            return loss

        def train(carry, i):
            w, state = carry
            loss, grads = jax.value_and_grad(loss_of)(w)
            updates, state = optimizer.update(grads, state, w)
            w = optax.apply_updates(w, updates)
            sawlog.log({"loss": loss, "grads": grads, "w": w}, step=i)
            return (w, state), loss

        start = jnp.zeros(3)
        (w, _), _ = lax.scan(train, (start, optimizer.init(start)), jnp.arange(4))
        return w

    def answer(target):
        w, velocity = np.zeros(3, np.float32), np.zeros(3, np.float32)
        seen = {"loss": [], "grads": [], "w": []}
        for _ in range(4):
            grads = 2 * (w - target)
            seen["loss"].append(np.sum((w - target) ** 2))
            seen["grads"].append(grads)
            velocity = np.float32(0.5) * velocity + grads
            w = w - np.float32(0.25) * velocity
            seen["w"].append(w)
        logs = {key: many(values, step=range(4)) for key, values in seen.items()}
        return w, logs | {"inside": many(seen["loss"])}

    return fun, answer


@case("optax", "scan", "grad", "jit", args=(X3,), rtol=1e-4, grad=False)
def optax_adam_in_jitted_step() -> Program:
    """Adam with a jitted step, called from a Python loop and from a scan."""
    optimizer = optax.adam(0.5)

    def fun(target):
        @jax.jit
        def step(w, state):
            grads = jax.grad(lambda v: ((v - target) ** 2).sum())(w)
            updates, state = optimizer.update(grads, state)
            sawlog.log({"updates": updates})
            return optax.apply_updates(w, updates), state

        w = jnp.zeros(3)
        w, state = step(w, optimizer.init(w))
        return lax.scan(lambda c, _: (step(*c), None), (w, state), length=2)[0][0]

    def answer(target):
        w, m, v = (np.zeros(3, np.float32) for _ in range(3))
        seen = []
        for t in range(1, 4):
            grads = 2 * (w - target)
            m = np.float32(0.9) * m + np.float32(0.1) * grads
            v = np.float32(0.999) * v + np.float32(0.001) * grads**2
            m_hat = m / (1 - np.float32(0.9) ** t)
            v_hat = v / (1 - np.float32(0.999) ** t)
            update = -np.float32(0.5) * m_hat / (np.sqrt(v_hat) + np.float32(1e-8))
            seen.append(update)
            w = w + update
        return w, {"updates": many(seen)}

    return fun, answer


@case("optax", "vmap", "scan", "grad", args=(M23,), rtol=1e-5)
def training_over_seeds() -> Program:
    """A training loop under vmap over runs: [steps, runs]."""
    optimizer = optax.sgd(0.25)

    def fun(targets):
        def run(target):
            def loss_of(w):
                return ((w - target) ** 2).sum()

            def train(carry, i):
                w, state = carry
                loss, grads = jax.value_and_grad(loss_of)(w)
                sawlog.log({"loss": loss}, step=i)
                updates, state = optimizer.update(grads, state)
                return (optax.apply_updates(w, updates), state), None

            start = jnp.zeros(3)
            return lax.scan(train, (start, optimizer.init(start)), jnp.arange(3))[0][0]

        return jax.vmap(run)(targets)

    def answer(targets):
        w, seen = np.zeros((2, 3), np.float32), []
        for _ in range(3):
            seen.append(np.sum((w - targets) ** 2, axis=1))
            w = w - np.float32(0.5) * (w - targets)
        steps = [np.full(2, i, np.int32) for i in range(3)]
        return w, {"loss": many(seen, step=steps)}

    return fun, answer
