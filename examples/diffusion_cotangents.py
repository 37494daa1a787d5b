"""A small diffusion model, and the gradients that flow back through it.

    python examples/diffusion_cotangents.py

An MLP learns to denoise points of two rings. `log_cotangent` logs what reaches each layer on the
way back, so that the gradients of layers can be compared at every noise level. Then the sampler is
differentiated: how much does the end point of a sample depend on the point at each of its steps?
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sawlog

LEVELS, WIDTH, BATCH = 20, 64, 128
NOISE = jnp.linspace(0.01, 0.3, LEVELS)  # the variance that each level adds
KEPT = jnp.cumprod(1 - NOISE)  # the share of the data that is left at each level


def rings(key: Any, count: int) -> Any:
    """Points of two rings."""
    turn_key, ring_key = jax.random.split(key)
    turn = jax.random.uniform(turn_key, (count,)) * 2 * jnp.pi
    radius = jnp.where(jax.random.bernoulli(ring_key, 0.5, (count,)), 0.5, 1.5)
    return jnp.stack([jnp.cos(turn), jnp.sin(turn)], -1) * radius[:, None]


def init(key: Any) -> list[dict[str, Any]]:
    """The weights of an MLP of a point and its noise level."""
    sizes = (2 + LEVELS, WIDTH, WIDTH, WIDTH, 2)
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {
            "w": jax.random.normal(k, (sizes[i], sizes[i + 1])) * sizes[i] ** -0.5,
            "b": jnp.zeros(sizes[i + 1]),
        }
        for i, k in enumerate(keys)
    ]


def predicted_noise(params: Any, x: Any, level: Any) -> Any:
    """The noise in points of a level; logs the gradient that reaches the output of each layer."""
    x = jnp.concatenate([x, jax.nn.one_hot(level, LEVELS)], -1)
    for i, layer in enumerate(params):
        x = sawlog.log_cotangent(f"layer{i}", x @ layer["w"] + layer["b"], level=level)
        x = jax.nn.silu(x) if i < len(params) - 1 else x
    return x


def loss_of(params: Any, key: Any) -> Any:
    """How well the noise of one batch is predicted, all examples at one level."""
    data_key, noise_key, level_key = jax.random.split(key, 3)
    clean, noise = rings(data_key, BATCH), jax.random.normal(noise_key, (BATCH, 2))
    level = jax.random.randint(level_key, (), 0, LEVELS)
    noisy = jnp.sqrt(KEPT[level]) * clean + jnp.sqrt(1 - KEPT[level]) * noise
    levels = jnp.full(BATCH, level)
    loss = ((predicted_noise(params, noisy, levels) - noise) ** 2).mean()
    sawlog.log({"loss": loss}, level=level)
    return loss


def train(key: Any, steps: int) -> Any:
    """Adam; every gradient on the way is logged, averaged over its batch."""
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, steps))
    init_key, key = jax.random.split(key)
    params = init(init_key)

    def step(state: Any, own: Any) -> tuple[Any, None]:
        params, memory = state
        updates, memory = optimizer.update(jax.grad(loss_of)(params, own), memory, params)
        return (optax.apply_updates(params, updates), memory), None

    state = (params, optimizer.init(params))
    return jax.lax.scan(step, state, jax.random.split(key, steps))[0][0]


def sample(params: Any, start: Any, key: Any) -> Any:
    """Denoise points level by level; logs the gradient that reaches the point at each level."""

    def denoise(x: Any, given: Any) -> tuple[Any, None]:
        level, own = given
        x = sawlog.log_cotangent("x", x, level=level)
        noise = predicted_noise(params, x, jnp.full(len(x), level))
        mean = (x - NOISE[level] / jnp.sqrt(1 - KEPT[level]) * noise) / jnp.sqrt(1 - NOISE[level])
        return mean + (level > 0) * jnp.sqrt(NOISE[level]) * jax.random.normal(own, x.shape), None

    levels = jnp.arange(LEVELS)[::-1]
    return jax.lax.scan(denoise, start, (levels, jax.random.split(key, LEVELS)))[0]


def radius_of(start: Any, params: Any, key: Any) -> Any:
    """How far from the centre samples end, in sum: the gradient of each point is its own."""
    return jnp.linalg.norm(sample(params, start, key), axis=-1).sum()


def by_level(values: Any, levels: Any) -> np.ndarray:
    """The mean of values at each level, NaN for a level that was not drawn."""
    chosen = [values[levels == level] for level in range(LEVELS)]
    return np.array([own.mean() if len(own) else np.nan for own in chosen])


def main(arguments: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Train, sample, and print gradients by noise level; return them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--samples", type=int, default=512)
    options = parser.parse_args(arguments)
    key, start_key, sample_key = jax.random.split(jax.random.key(0), 3)
    params, logs = sawlog.spool(lambda key: train(key, options.steps))(key)
    logs = logs.to_numpy()
    table = {}
    for name in ("layer0", "layer1", "layer2", "layer3"):
        size = np.linalg.norm(logs[name].reshape(options.steps, -1), axis=1)
        level = logs.steps["level"][name].reshape(options.steps, -1)[:, 0]
        table[name] = by_level(size, level)
    table["loss"] = by_level(logs["loss"], logs.steps["level"]["loss"])

    start = jax.random.normal(start_key, (options.samples, 2))
    grad = jax.grad(radius_of)
    _, back = sawlog.spool(grad, argnames=["x"])(start, params, sample_key)
    back = back.to_numpy()
    pull = np.linalg.norm(back["x"], axis=-1).mean(1)  # in the order of the backward pass
    table["x"] = by_level(pull, back.steps["level"]["x"].reshape(LEVELS, -1)[:, 0])

    print("noise   loss   gradient that reaches the output of a layer     of the end of a sample,")
    print(
        "level           layer0    layer1    layer2    layer3           by the point at the level"
    )
    for level in range(0, LEVELS, max(1, LEVELS // 10)):
        sizes = "  ".join(f"{table[f'layer{i}'][level]:.2e}" for i in range(4))
        print(f"{level:>5}  {table['loss'][level]:.3f}  {sizes}   {table['x'][level]:.3f}")
    ends = sample(params, start, sample_key)
    radii = np.linalg.norm(ends, axis=-1)
    near = float(np.mean(np.minimum(np.abs(radii - 0.5), np.abs(radii - 1.5)) < 0.25))
    print(f"{near:.0%} of {options.samples} samples are within 0.25 of a ring")
    return {**table, "near": np.array(near)}


if __name__ == "__main__":
    main()
