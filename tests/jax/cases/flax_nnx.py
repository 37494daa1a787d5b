"""Programs of flax nnx: modules that change while they run."""

from __future__ import annotations

import jax
import numpy as np
import optax
from flax import nnx
from jax import numpy as jnp

import sawlog

from .base import M23, X3, Program, case, many, once
from .flax_linen import FEW, K322, ONE_WAY, X2


class NnxLayer(nnx.Module):
    """One layer, with its activation logged."""

    def __init__(self, kernel) -> None:
        self.kernel = nnx.Param(jnp.asarray(kernel))

    def __call__(self, x):
        h = x @ self.kernel[...]
        sawlog.log("h", h)
        return h


class NnxNormed(nnx.Module):
    """Batch norm, dropout and a counter: state that changes while the module runs."""

    def __init__(self) -> None:
        self.norm = nnx.BatchNorm(3, momentum=0.5, epsilon=0.0, rngs=nnx.Rngs(0))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        h = self.norm(x)
        self.calls[...] += 1
        sawlog.log({"normed": h, "calls": self.calls[...]})
        return h


@case("flax_nnx", args=(M23**2,), ways=ONE_WAY, rtol=1e-4)
def nnx_split_merge_with_state() -> Program:
    """A pure function of a module's state, which gives the changed state back."""

    def fun(x):
        graph, state = nnx.split(NnxNormed())

        def apply(state, x):
            module = nnx.merge(graph, state)
            module(x)
            module(x)
            return nnx.state(module)

        state = apply(state, x)
        return state["norm"]["mean"][...], state["norm"]["var"][...], state["calls"][...]

    def answer(x):
        mean, var = x.mean(0), x.var(0)
        h = (x - mean) / np.sqrt(var)
        out = (0.75 * mean, 0.25 + 0.75 * var, np.int32(2))
        return out, {"normed": many([h, h]), "calls": many([np.int32(1), np.int32(2)])}

    return fun, answer


@case("flax_nnx", "scan", args=(K322, X2), ways=(*FEW, "grad"))
def nnx_scan_over_layers() -> Program:
    """`nnx.scan` over layers made by `nnx.vmap`."""

    def fun(kernels, x):
        layers = nnx.vmap(NnxLayer)(kernels)

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, layer):
            return layer(x)

        return forward(x, layers)

    def answer(kernels, x):
        seen = []
        for kernel in kernels:
            x = x @ kernel
            seen.append(x)
        return x, {"h": many(seen)}

    return fun, answer


@case("flax_nnx", "vmap", args=(K322, X2), ways=ONE_WAY)
def nnx_vmap() -> Program:
    """`nnx.vmap` over an ensemble."""

    def fun(kernels, x):
        members = nnx.vmap(NnxLayer)(kernels)
        return nnx.vmap(lambda member, x: member(x), in_axes=(0, None))(members, x)

    def answer(kernels, x):
        h = np.einsum("i,mij->mj", x, kernels)
        return h, {"h": once(h)}

    return fun, answer


@case("flax_nnx", "grad", "checkpoint", "jit", args=(K322[0], X2), ways=ONE_WAY)
def nnx_remat_grad() -> Program:
    """`nnx.grad` of a rematerialised call in `nnx.jit`: once."""

    def fun(kernel, x):
        @nnx.jit
        def loss(layer, x):
            return nnx.remat(lambda layer, x: layer(x))(layer, x).sum()

        return nnx.grad(loss)(NnxLayer(kernel), x)["kernel"][...]

    def answer(kernel, x):
        return np.outer(x, np.ones(2, np.float32)), {"h": once(x @ kernel)}

    return fun, answer


@case("flax_nnx", "grad", "scan", args=(K322[0], X2), ways=FEW, rtol=1e-4)
def nnx_training() -> Program:
    """An optimizer and metrics, all state that a scan of training steps carries."""

    def fun(kernel, x):
        model = NnxLayer(kernel)
        optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.5), wrt=nnx.Param)
        metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
        graph, state = nnx.split((model, optimizer, metrics))

        def step(state, i):
            model, optimizer, metrics = nnx.merge(graph, state)
            loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).sum())(model)
            optimizer.update(model, grads)
            metrics.update(loss=loss)
            sawlog.log({"mean_loss": metrics.compute()["loss"]}, step=i)
            return nnx.state((model, optimizer, metrics)), None

        state, _ = jax.lax.scan(step, state, jnp.arange(3))
        model, _, metrics = nnx.merge(graph, state)
        return model.kernel[...], metrics.compute()["loss"]

    def answer(kernel, x):
        momentum, losses, seen = np.zeros_like(kernel), [], []
        for _ in range(3):
            h = x @ kernel
            seen.append(h)
            losses.append(np.sum(h**2))
            momentum = np.float32(0.5) * momentum + np.outer(x, 2 * h)
            kernel = kernel - np.float32(0.1) * momentum
        means = [np.float32(np.mean(losses[: i + 1])) for i in range(3)]
        return (kernel, means[-1]), {"h": many(seen), "mean_loss": many(means, step=range(3))}

    return fun, answer


@case("flax_nnx", "prng", args=(X3,), ways=ONE_WAY)
def nnx_dropout() -> Program:
    """Dropout draws anew at each call: what is logged is what was used."""

    def fun(x):
        graph, state = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))

        @jax.jit
        def apply(state, x):
            dropout = nnx.merge(graph, state)
            first, second = dropout(x), dropout(x)
            sawlog.log({"first": first, "second": second})
            return first + second

        return apply(state, x)

    def answer(x):
        dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        first, second = np.asarray(dropout(x)), np.asarray(dropout(x))
        return first + second, {"first": once(first), "second": once(second)}

    return fun, answer
