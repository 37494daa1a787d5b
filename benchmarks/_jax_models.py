"""A small GPT in plain JAX: stacked layers in a scan, and a tied head."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY = 4, 256, 4, 128, 5_000


def gpt_params(
    seed: int = 0,
    layers: int = LAYERS,
    width: int = WIDTH,
    vocabulary: int = VOCABULARY,
) -> dict[str, Any]:
    """Return the parameters: those of all layers are stacked."""
    keys = iter(jax.random.split(jax.random.key(seed), 8))

    def normal(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    return {
        "embedding": normal(vocabulary, width),
        "positions": normal(TOKENS, width),
        "layers": {
            "norm1": jnp.ones((layers, width)),
            "shift1": jnp.zeros((layers, width)),
            "qkv": normal(layers, width, 3 * width),
            "qkv_bias": jnp.zeros((layers, 3 * width)),
            "out": normal(layers, width, width),
            "out_bias": jnp.zeros((layers, width)),
            "norm2": jnp.ones((layers, width)),
            "shift2": jnp.zeros((layers, width)),
            "up": normal(layers, width, 4 * width),
            "up_bias": jnp.zeros((layers, 4 * width)),
            "down": normal(layers, 4 * width, width),
            "down_bias": jnp.zeros((layers, width)),
        },
        "norm": jnp.ones(width),
        "shift": jnp.zeros(width),
    }


def gpt_losses(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    """Return the mean cross entropy of each sequence, ``[examples]``."""
    tokens = batch["tokens"]
    x = params["embedding"][tokens[:, :-1]] + params["positions"][: tokens.shape[1] - 1]
    x, _ = jax.lax.scan(_block, x, params["layers"])
    x = _norm(x, params["norm"], params["shift"])
    scores = jax.nn.log_softmax(x @ params["embedding"].T)
    chosen = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)
    return -chosen[..., 0].mean(-1)


def gpt_batch(
    examples: int, seed: int = 1, tokens: int = TOKENS, vocabulary: int = VOCABULARY
) -> dict[str, Any]:
    """Return random tokens."""
    key = jax.random.key(seed)
    return {"tokens": jax.random.randint(key, (examples, tokens + 1), 0, vocabulary)}


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def _block(x: jax.Array, p: dict[str, Any]) -> tuple[jax.Array, None]:
    count, length, width = x.shape
    y = _norm(x, p["norm1"], p["shift1"]) @ p["qkv"] + p["qkv_bias"]
    q, k, v = (
        part.reshape(count, length, HEADS, width // HEADS) for part in jnp.split(y, 3, axis=-1)
    )
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * (width // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(count, length, width)
    x = x + mixed @ p["out"] + p["out_bias"]
    y = _norm(x, p["norm2"], p["shift2"]) @ p["up"] + p["up_bias"]
    return x + jax.nn.gelu(y) @ p["down"] + p["down_bias"], None
