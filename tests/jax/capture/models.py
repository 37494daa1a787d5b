"""Whole models, in plain JAX and in libraries: a loss function, parameters and a batch."""

import functools
from collections.abc import Callable
from typing import Any

import equinox
import flax.linen as linen
import haiku
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

Model = Callable[[], tuple[Callable[[Any, Any], Any], Any, Any]]

EXAMPLES = 2
MODELS: dict[str, Model] = {}


def model(make: Model) -> Model:
    MODELS[make.__name__] = make
    return make


def normal(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


def in_float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float64) if equinox.is_inexact_array(x) else x, tree)


def total(y: Any) -> Any:
    flat = jnp.tanh(y).reshape(y.shape[0], -1)
    return (flat * jnp.cos(jnp.arange(flat.shape[1]))).sum(-1)


def _norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


@model
def gpt_of_scanned_layers() -> Any:
    heads, width, vocabulary = 2, 4, 7

    def block(x: Any, p: Any) -> Any:
        q, k, v = jnp.split(_norm(x, p["n1"]) @ p["qkv"] + p["qkv_b"], 3, axis=-1)
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in (q, k, v))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + y.reshape(x.shape) @ p["out"]
        return x + jax.nn.gelu(_norm(x, p["n2"]) @ p["up"] + p["up_b"]) @ p["down"] + p[
            "down_b"
        ], None

    def loss(p: Any, batch: Any) -> Any:
        tokens, mask = batch["tokens"], batch["mask"]
        x = p["e"][tokens] + p["pos"][: tokens.shape[1]]
        x, _ = lax.scan(jax.checkpoint(block), x, p["layers"])
        scores = jax.nn.log_softmax(_norm(x, p["n"]) @ p["e"].T)[:, :-1]
        chosen = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
        return -(chosen * mask[:, 1:]).sum(-1) / mask[:, 1:].sum(-1)

    layers = {
        "n1": normal(2, width),
        "qkv": normal(2, width, 3 * width),
        "qkv_b": normal(2, 3 * width),
        "out": normal(2, width, width),
        "n2": normal(2, width) + 1,
        "up": normal(2, width, 6),
        "up_b": normal(2, 6),
        "down": normal(2, 6, width),
        "down_b": normal(2, width) * 2,
    }
    params = {
        "e": normal(vocabulary, width),
        "pos": normal(8, width),
        "n": normal(width),
        "layers": layers,
    }
    tokens = jnp.asarray([[1, 2, 3, 3, 0], [6, 5, 6, 1, 2]])
    return (
        loss,
        params,
        {"tokens": tokens, "mask": jnp.asarray([[1.0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])},
    )


@model
def mixture_of_experts() -> Any:
    experts = 3

    def loss(p: Any, x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        gates, chosen = lax.top_k(jax.nn.softmax(flat @ p["router"]), 2)
        chosen = chosen.reshape(-1)
        order = jnp.argsort(chosen)
        token, sizes = order // 2, jnp.bincount(chosen, length=experts)
        y = lax.ragged_dot(flat[token], p["up"], sizes) + p["bias"][chosen[order]]
        y = lax.ragged_dot(jax.nn.silu(y), 2.0 * p["down"], sizes)
        y = y * gates.reshape(-1)[order][:, None]
        return total(x + jnp.zeros_like(flat).at[token].add(y).reshape(x.shape))

    shapes = {"router": (4, 3), "up": (3, 4, 5), "bias": (3, 5), "down": (3, 5, 4)}
    return loss, {name: normal(*shape) for name, shape in shapes.items()}, normal(EXAMPLES, 6, 4)


@model
def experts_sorted_and_back() -> Any:
    def loss(p: Any, x: Any) -> Any:
        flat = x.reshape(-1, 4)
        expert = jnp.argmax(flat @ p["router"], -1)
        order = jnp.argsort(expert)
        y = lax.ragged_dot(flat[order], p["w"], jnp.bincount(expert, length=3)) * p["scale"]
        return total(y[jnp.argsort(order)].reshape(x.shape))

    params = {"router": normal(4, 3), "w": normal(3, 4, 4), "scale": normal(4)}
    return loss, params, normal(EXAMPLES, 5, 4)


@model
def vision_transformer() -> Any:
    def loss(p: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(
            x, p["patch"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = (y + p["patch_b"]).reshape(x.shape[0], -1, 6)
        token = jnp.broadcast_to(p["token"], (x.shape[0], 1, 6))
        y = jnp.concatenate([token, y], axis=1) + p["pos"]
        heads = jnp.einsum("btd,sdhk->sbthk", y, p["qkv"])
        y = y + jax.nn.dot_product_attention(*heads).reshape(y.shape) @ p["out"]
        return total(y[:, 0] @ p["head"])

    shapes = {
        "patch": (2, 2, 3, 6),
        "patch_b": (6,),
        "token": (6,),
        "pos": (5, 6),
        "qkv": (3, 6, 2, 3),
        "out": (6, 6),
        "head": (6, 3),
    }
    return loss, {name: normal(*shape) for name, shape in shapes.items()}, normal(EXAMPLES, 4, 4, 3)


class _Perceptron(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.LayerNorm(param_dtype=jnp.float64)(linen.Dense(4, param_dtype=jnp.float64)(x))
        return linen.Dense(2, param_dtype=jnp.float64)(linen.relu(x))


def _of_linen(module: Any, batch: Any) -> Any:
    params = in_float64(jax.jit(module.init)(jax.random.key(0), batch))
    return lambda p, x: total(module.apply(p, x)), params, batch


@model
def linen_perceptron() -> Any:
    return _of_linen(_Perceptron(), normal(EXAMPLES, 3))


@model
def linen_lstm() -> Any:
    cell = linen.LSTMCell(3, param_dtype=jnp.float64)
    return _of_linen(linen.RNN(cell), normal(EXAMPLES, 4, 2))


@model
def linen_cnn() -> Any:
    double = {"param_dtype": jnp.float64}
    layers = [
        linen.Conv(4, (3, 3), **double),
        linen.GroupNorm(2, **double),
        linen.relu,
        functools.partial(linen.avg_pool, window_shape=(2, 2), strides=(2, 2)),
        linen.ConvTranspose(3, (2, 2), **double),
        functools.partial(linen.max_pool, window_shape=(2, 2)),
        lambda x: x.reshape(x.shape[0], -1),
        linen.Dense(3, **double),
    ]
    return _of_linen(linen.Sequential(layers), normal(EXAMPLES, 4, 4, 2))


@model
def nnx_perceptron() -> Any:
    class Perceptron(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(3, 4, rngs=rngs, param_dtype=jnp.float64)
            self.norm = nnx.LayerNorm(4, rngs=rngs, param_dtype=jnp.float64)
            self.last = nnx.Linear(4, 2, rngs=rngs, param_dtype=jnp.float64)

        def __call__(self, x: Any) -> Any:
            return self.last(nnx.relu(self.norm(self.first(x))))

    graph, state = nnx.split(Perceptron(nnx.Rngs(0)))
    return lambda p, x: total(nnx.merge(graph, p)(x)), state, normal(EXAMPLES, 3)


@model
def equinox_perceptron() -> Any:
    module = in_float64(equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)))
    params, rest = equinox.partition(module, equinox.is_array)
    return (
        lambda p, x: total(jax.vmap(equinox.combine(p, rest))(x)),
        params,
        normal(EXAMPLES, 3),
    )


@model
def haiku_perceptron() -> Any:
    pure = haiku.without_apply_rng(haiku.transform(lambda x: haiku.nets.MLP([4, 2])(x)))
    batch = normal(EXAMPLES, 3)
    params = in_float64(pure.init(jax.random.key(0), batch))
    return lambda p, x: total(pure.apply(p, x)), params, batch


NAMES = {
    "linen_perceptron": "params/Dense_0/kernel",
    "nnx_perceptron": "first/kernel",
    "equinox_perceptron": "layers/0/weight",
    "haiku_perceptron": "mlp/~/linear_0/w",
    "gpt_of_scanned_layers": "layers/qkv",
}
