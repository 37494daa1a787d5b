"""A flax model that trains under a live dashboard, in the terminal or in the browser.

    python examples/flax_dashboard.py              # the dashboard of the console
    python examples/flax_dashboard.py --view       # a page in the browser, live while it trains

A convolutional network learns to tell drawn bars from crosses and rings. The model logs from
inside: activations, the norm of each gradient, a histogram of the logits. Two loggers take it: one
draws the dashboard, one writes the run to disk, which is what the page shows.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import sawlog
from sawlog.loggers import ConsoleLogger, MultiLogger, SaveLogger

SIDE, KINDS = 16, 3


def drawings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of bars, crosses and rings, and which of them each is."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, KINDS, count)
    row, column = np.mgrid[:SIDE, :SIDE]
    images = random.normal(0, 0.4, (count, SIDE, SIDE, 1))
    for image, kind in zip(images[..., 0], kinds, strict=True):
        y, x = random.integers(5, 11, 2)
        bar, beam = np.abs(column - x) < 1, np.abs(row - y) < 1
        ring = np.abs(np.hypot(row - y, column - x) - 4) < 0.7
        image += (bar, bar | beam, ring)[kind]
    return images.astype(np.float32), kinds


class Network(nnx.Module):
    """Two convolutions and a linear layer, which log how many units are active."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 8, (3, 3), strides=2, rngs=rngs)
        self.second = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.last = nnx.Linear(16 * (SIDE // 4) ** 2, KINDS, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for name, layer in (("first", self.first), ("second", self.second)):
            x = nnx.relu(layer(x))
            sawlog.log({f"active/{name}": (x > 0).mean()})
        return self.last(x.reshape(len(x), -1))


@nnx.jit
def update(
    model: Network, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array, step: jax.Array
) -> None:
    """One step of training."""

    def loss_of(model: Network) -> tuple[jax.Array, jax.Array]:
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

    (loss, logits), grads = nnx.value_and_grad(loss_of, has_aux=True)(model)
    right = (logits.argmax(1) == y).mean()
    norms = {f"grad_norm/{name}": optax.tree.norm(own) for name, own in grads.items()}
    sawlog.log({"loss": loss, "accuracy": right, "logits": logits, **norms}, step=step)
    optimizer.update(model, grads)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train under the dashboard; return the folder of the run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--view", action="store_true", help="show a live page instead")
    options = parser.parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp()) / "shapes"
    images, kinds = drawings(1024, seed=0)
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    loggers = [SaveLogger(folder)]
    if not options.view:
        loggers.append(ConsoleLogger("shapes", total=options.steps))
    with contextlib.ExitStack() as stack:
        if options.view:
            address = stack.enter_context(sawlog.report.served(folder.parent))
            print(f"Watch it at {address}")
        logger = stack.enter_context(MultiLogger(*loggers))
        state = logger.init(jax.random.key(0), lr=3e-3, steps=options.steps)
        train = logger.spool(update, state)
        random = np.random.default_rng(0)
        for step in range(options.steps):
            rows = random.integers(0, len(images), 64)
            train(model, optimizer, images[rows], kinds[rows], jnp.asarray(step))
        logger.close()
        if options.view:
            input("Training has ended; press Enter to stop the page. ")
    logs = sawlog.load(folder / "seed-0")
    print(f"accuracy {logs['accuracy'][:20].mean():.0%} -> {logs['accuracy'][-20:].mean():.0%}")
    print(f"The run: {folder / 'seed-0'}")
    return folder


if __name__ == "__main__":
    main()
