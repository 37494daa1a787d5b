"""A training loop of equinox and optax, four seeds at once, one run for each.

    python examples/equinox_loop.py

The whole loop is one jitted program: `sawlog.log` inside of `scan` and `vmap` becomes the logs of
each seed, in a folder of its own.
"""

from __future__ import annotations

import argparse
import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import sawlog
from sawlog.loggers import SaveLogger


def train(key: jax.Array, steps: int) -> jax.Array:
    """Train one model, and return its last loss."""
    model = eqx.nn.MLP(8, "scalar", 32, 1, key=key)
    optimizer = optax.adam(1e-2)
    params, static = eqx.partition(model, eqx.is_array)
    x = jax.random.normal(jax.random.fold_in(key, 1), (64, 8))
    y = jnp.sin(x[:, 0]) + x[:, 1]

    def loss_of(params: eqx.nn.MLP) -> jax.Array:
        return ((jax.vmap(eqx.combine(params, static))(x) - y) ** 2).mean()

    def step(carry: tuple, number: jax.Array) -> tuple:
        params, state = carry
        loss, grads = jax.value_and_grad(loss_of)(params)
        sawlog.log({"loss": loss, "grad_norm": optax.tree.norm(grads)}, step=number)
        updates, state = optimizer.update(grads, state)
        return (eqx.apply_updates(params, updates), state), loss

    _, losses = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))
    return losses[-1]


def main(arguments: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args(arguments)
    folder = options.folder or tempfile.mkdtemp()
    with SaveLogger(folder) as logger:

        def run(seed: jax.Array) -> jax.Array:
            key = jax.random.key(seed)
            state = logger.init(key, lr=1e-2)
            return logger.spool(lambda key: train(key, options.steps), state)(key)

        jax.jit(jax.vmap(run))(jnp.arange(4)).block_until_ready()
    for seed in range(4):
        loss = sawlog.load(f"{folder}/seed-{seed}")["loss"]
        print(f"seed {seed}: loss {loss[0]:.3f} -> {loss[-1]:.3f}")
    return folder


if __name__ == "__main__":
    main()
