"""Programs of flax linen: lifted transforms."""

from __future__ import annotations

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

import sawlog

from .base import M23, X3, ZERO, Program, absent, case, f32, many, once
from .libraries import PARAMS, LinenNet, by_hand

FEW = ("jit_spool", "tap")
ONE_WAY = ("jit_spool",)
K322 = np.array(
    [[[1.0, 0.5], [-1.0, 2.0]], [[0.5, 0.0], [1.0, 1.0]], [[2.0, -0.5], [0.0, 1.0]]], np.float32
)
X2 = f32(1.0, -2.0)

# --- linen ------------------------------------------------------------------------------------


class LinenLayer(nn.Module):
    """One of several layers, with its activation logged."""

    @nn.compact
    def __call__(self, x, _=None):
        x = x @ self.param("kernel", nn.initializers.ones, (2, 2))
        sawlog.log("h", x)
        return x, None


@case("flax_linen", "scan", args=({"params": {"kernel": K322}}, X2), ways=(*FEW, "grad", "vmap"))
def linen_scan_over_layers() -> Program:
    """`nn.scan` over the layers of a stack: one entry a layer."""

    def fun(params, x):
        layers = nn.scan(
            LinenLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        return layers().apply(params, x)[0]

    def answer(params, x):
        seen = []
        for kernel in params["params"]["kernel"]:
            x = x @ kernel
            seen.append(x)
        return x, {"h": many(seen)}

    return fun, answer


@case("flax_linen", "scan", "checkpoint", "grad", args=(K322, X2), ways=ONE_WAY)
def linen_remat_scan_grad() -> Program:
    """Rematerialised layers in a scan under grad: once each."""

    def fun(kernels, x):
        layers = nn.scan(
            nn.remat(LinenLayer, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
        )
        return jax.grad(lambda v: layers().apply({"params": {"kernel": kernels}}, v)[0].sum())(x)

    def answer(kernels, x):
        seen, gradient = [], np.ones(2, np.float32)
        for kernel in kernels:
            x = x @ kernel
            seen.append(x)
        for kernel in kernels[::-1]:
            gradient = gradient @ kernel.T
        return gradient, {"h": many(seen)}

    return fun, answer


class LinenShared(nn.Module):
    """A step of a loop, with a log of a parameter that all steps share."""

    @nn.compact
    def __call__(self, carry, x):
        scale = self.param("scale", nn.initializers.ones, ())
        sawlog.log("scale", scale)
        jax.jit(lambda scale: sawlog.log("in_jit", scale))(scale)
        jax.lax.cond(carry > 1, lambda: sawlog.log("large", carry), lambda: None)
        return carry + scale * x, None


@case("flax_linen", "scan", args=({"params": {"scale": f32(2.0)}}, X3), ways=(*FEW, "grad"))
def linen_scan_with_shared_parameters() -> Program:
    """What `nn.scan` does not carry is logged once an iteration as well, and no more."""

    def fun(params, xs):
        cell = nn.scan(LinenShared, variable_broadcast="params", split_rngs={"params": False})
        return cell().apply(params, jnp.float32(0), xs)[0]

    def answer(params, xs):
        scale = params["params"]["scale"]
        carries = np.cumsum(np.append(ZERO, scale * xs))
        large = [carry for carry in carries[:-1] if carry > 1]
        shared = many([scale] * 3)
        return carries[-1], {"scale": shared, "in_jit": shared, "large": many(large)}

    return fun, answer


@case("flax_linen", "vmap", args=({"params": {"kernel": K322}}, X2), ways=ONE_WAY)
def linen_vmap() -> Program:
    """`nn.vmap` over an ensemble: every member logs."""

    def fun(params, x):
        members = nn.vmap(
            LinenLayer,
            in_axes=None,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            axis_size=3,
        )
        return members().apply(params, x)[0]

    def answer(params, x):
        h = np.einsum("i,mij->mj", x, params["params"]["kernel"])
        return h, {"h": once(h)}

    return fun, answer


class LinenJit(nn.Module):
    """A jitted layer, used twice."""

    @nn.compact
    def __call__(self, x):
        net = nn.jit(LinenNet)(name="net")
        return (net(x) + net(2 * x)).sum()


@case("flax_linen", "jit", args=({"params": {"net": PARAMS["params"]}}, M23), ways=ONE_WAY)
def linen_jit() -> Program:
    """`nn.jit`."""

    def fun(params, x):
        return LinenJit().apply(params, x)

    def answer(params, x):
        (h, loss), (h2, loss2) = by_hand(x), by_hand(2 * x)
        return loss + loss2, {"h": many([h, h2])}

    return fun, answer


class LinenBranches(nn.Module):
    """Layers in the branches of `nn.cond` and in the body of `nn.while_loop`."""

    @nn.compact
    def __call__(self, x):
        layer = LinenLayer(name="layer")
        if self.is_initializing():
            return layer(x)[0]

        def turns(module, v):
            sawlog.log("negative", v)
            return -v

        x = nn.cond(x[0] > 0, lambda m, v: m(v)[0], turns, layer, x)
        grow = nn.while_loop(
            lambda module, v: jnp.sum(v) < 8, lambda module, v: module(v)[0], layer, x
        )
        return grow


@case("flax_linen", "cond", "while", args=({"params": {"layer": {"kernel": K322[0]}}}, X2 + 3),
      ways=("plain", "tap"))  # fmt: skip
def linen_cond_and_while() -> Program:
    """`nn.cond` and `nn.while_loop`."""

    def fun(params, x):
        return LinenBranches().apply(params, x)

    def answer(params, x):
        kernel, seen = params["params"]["layer"]["kernel"], []
        assert x[0] > 0
        while not seen or x.sum() < 8:
            x = x @ kernel
            seen.append(x)
        return x, {"h": many(seen), "negative": absent(x)}

    return fun, answer


class LinenTied(nn.Module):
    """Variables that are changed on the way in, and a `sow` beside the log."""

    @nn.compact
    def __call__(self, x):
        doubled = nn.map_variables(
            LinenLayer, "params", lambda tree: jax.tree.map(lambda w: 2 * w, tree)
        )
        h, _ = doubled(name="layer")(x)
        self.sow("intermediates", "h", h)
        sawlog.log("sown", h)
        return h


@case("flax_linen", args=({"params": {"layer": {"kernel": K322[0]}}}, X2), ways=ONE_WAY)
def linen_map_variables_and_sow() -> Program:
    """`nn.map_variables`; what is sown comes out as well."""

    def fun(params, x):
        return LinenTied().apply(params, x, mutable=["intermediates"])

    def answer(params, x):
        h = x @ (2 * params["params"]["layer"]["kernel"])
        return (h, {"intermediates": {"h": (h,)}}), {"h": once(h), "sown": once(h)}

    return fun, answer


class LinenSigned(nn.Module):
    """A gradient of the module's own."""

    @nn.compact
    def __call__(self, x):
        def forward(module, x):
            return nn.vjp(lambda module, x: module(x)[0], module, x)

        def backward(vjp, gradient):
            sawlog.log("flows_back", gradient)
            params, x = vjp(gradient)
            return jax.tree.map(jnp.sign, params), x

        sign_grad = nn.custom_vjp(
            lambda module, x: module(x)[0], forward_fn=forward, backward_fn=backward
        )
        return sign_grad(LinenLayer(name="layer"), x).sum()


@case("flax_linen", "custom_vjp", "grad",
      args=({"params": {"layer": {"kernel": K322[0]}}}, X2), ways=FEW)  # fmt: skip
def linen_custom_vjp() -> Program:
    """`nn.custom_vjp` under grad: the forward and the backward rule."""

    def fun(params, x):
        return jax.grad(lambda p: LinenSigned().apply(p, x))(params)

    def answer(params, x):
        h = x @ params["params"]["layer"]["kernel"]
        ones = np.ones(2, np.float32)
        gradient = np.sign(np.outer(x, ones))
        return {"params": {"layer": {"kernel": gradient}}}, {
            "h": once(h),
            "flows_back": once(ones),
        }

    return fun, answer


class LinenNorm(nn.Module):
    """Batch norm with running statistics."""

    @nn.compact
    def __call__(self, x):
        h = nn.BatchNorm(use_running_average=False, momentum=0.5, epsilon=0.0)(x)
        sawlog.log("normed", h)
        return h


@case("flax_linen", args=(M23**2,), ways=ONE_WAY, rtol=1e-4)
def linen_batch_norm() -> Program:
    """Statistics that a training step changes come out beside the logs."""

    def fun(x):
        module = LinenNorm()
        scale = {"BatchNorm_0": {"scale": jnp.ones(3), "bias": jnp.zeros(3)}}
        stats = {"BatchNorm_0": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}
        variables = {"params": scale, "batch_stats": stats}
        return module.apply(variables, x, mutable=["batch_stats"])

    def answer(x):
        mean, var = x.mean(0), x.var(0)
        h = (x - mean) / np.sqrt(var)
        stats = {"mean": 0.5 * mean, "var": 0.5 + 0.5 * var}
        return (h, {"batch_stats": {"BatchNorm_0": stats}}), {"normed": once(h)}

    return fun, answer
