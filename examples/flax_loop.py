"""A training loop of flax.nnx whose model logs from inside: activations, losses, gradient norms.

    python examples/flax_loop.py

The model calls `sawlog.log` where it computes, and the loop decides where it goes: a store on disk.
"""

from __future__ import annotations

import argparse
import tempfile

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import sawlog
from sawlog.loggers import SaveLogger


class Mlp(nnx.Module):
    """Two layers, which log how many units are active."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.last = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.first(x))
        sawlog.log({"active": (hidden > 0).mean()})
        return self.last(hidden)[:, 0]


@nnx.jit
def update(model: Mlp, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> None:
    """One step of training."""

    def loss_of(model: Mlp) -> jax.Array:
        return ((model(x) - y) ** 2).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    sawlog.log({"loss": loss, "grad_norm": optax.tree.norm(grads)})
    optimizer.update(model, grads)


def main(arguments: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args(arguments)
    folder = options.folder or tempfile.mkdtemp()
    model = Mlp(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(1), (64, 8))
    y = jnp.sin(x[:, 0]) + x[:, 1]
    with SaveLogger(folder) as logger:
        state = logger.init(jax.random.key(0), lr=1e-2)
        step = logger.spool(update, state)
        for _ in range(options.steps):
            step(model, optimizer, x, y)
    logs = sawlog.load(f"{folder}/seed-0")
    print(f"loss {logs['loss'][0]:.3f} -> {logs['loss'][-1]:.3f}, active {logs['active'][-1]:.2f}")
    return folder


if __name__ == "__main__":
    main()
