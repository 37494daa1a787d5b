"""JAX: several seeds of one training function, whose logs stream, return, shrink and are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import sawlog
from sawlog._trend import sparkline
from sawlog.demo._sizes import Sizes
from sawlog.loggers import ConsoleLogger, MultiLogger, SaveLogger

_LAYERS = (2, 32, 32, 1)
_NAMES = ["loss", "grad_norm", "accuracy", "layer0/dead", "layer1/dead"]


def two_spirals(key: jax.Array, count: int = 256) -> tuple[jax.Array, jax.Array]:
    """Return points on two intertwined spirals, and which spiral each is on."""
    angle_key, noise_key = jax.random.split(key)
    angle = jnp.sqrt(jax.random.uniform(angle_key, (count,))) * 2.2 * jnp.pi
    label = jnp.arange(count) % 2
    turn = angle + jnp.pi * label
    points = jnp.stack([jnp.cos(turn), jnp.sin(turn)], -1) * (angle / 4)[:, None]
    return points + 0.04 * jax.random.normal(noise_key, points.shape), label.astype(jnp.float32)


def init(key: jax.Array) -> list[dict[str, jax.Array]]:
    """Return the weights of a small MLP."""
    keys = jax.random.split(key, len(_LAYERS) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)}
        for k, m, n in zip(keys, _LAYERS, _LAYERS[1:], strict=False)
    ]


def loss_of(params: list[dict[str, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the logistic loss; log the accuracy, and how many units of each layer are off."""
    for i, layer in enumerate(params[:-1]):
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
        sawlog.log({f"layer{i}/dead": jnp.mean(jnp.all(x == 0, axis=0))})
    logits = (x @ params[-1]["w"] + params[-1]["b"])[:, 0]
    sawlog.log({"accuracy": jnp.mean((logits > 0) == (y > 0.5))})
    return jnp.mean(jnp.logaddexp(0, logits) - y * logits)


def trainer(steps: int) -> Callable[[jax.Array], jax.Array]:
    """Return a function that trains from a key by gradient descent, and returns the last loss."""
    shown = max(1, steps // 5)

    def train(key: jax.Array) -> jax.Array:
        data_key, init_key = jax.random.split(key)
        x, y = two_spirals(data_key)
        params = init(init_key)
        velocity = jax.tree.map(jnp.zeros_like, params)

        def step(state: Any, i: jax.Array) -> Any:
            params, velocity = state
            loss, grads = jax.value_and_grad(loss_of)(params, x, y)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            sawlog.log({"loss": loss, "grad_norm": norm}, step=i)
            jax.lax.cond(
                i % shown == 0,
                lambda: sawlog.log({"loss now": loss}, step=i, tags="live"),
                lambda: None,
            )
            velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, velocity, grads)
            return (jax.tree.map(jnp.add, params, velocity), velocity), loss

        return jax.lax.scan(step, (params, velocity), jnp.arange(steps))[1][-1]

    return train


def look_inside(console: Console, sizes: Sizes) -> sawlog.logdict:
    """Collect, stream and reduce the logs of several seeds; return what was collected."""
    console.rule("JAX: look inside a jitted program")
    said = f"Training {sizes.seeds} seeds at once, {sizes.steps} steps, one jitted vmap over keys."
    console.print(said)

    def live(logs: sawlog.logdict) -> None:
        values = "  ".join(f"{value:.3f}" for value in logs["loss now"])
        console.print(f"  step {int(logs.step['loss now'][0]):>3}   loss of each seed  {values}")

    train, keys = trainer(sizes.steps), jax.random.split(jax.random.key(0), sizes.seeds)
    run = sawlog.spool(jax.jit(jax.vmap(train)), argnames=_NAMES, keep_logs=True)
    start = time.perf_counter()
    final, logs = sawlog.tap(run, live, tags="live")(keys)
    logs = logs.to_numpy()
    seconds = time.perf_counter() - start
    _check(np.allclose(final, logs["loss"][-1]), "the logs differ from what training returned")
    console.print(_table(logs, sizes.seeds, console.encoding.startswith("utf")))
    values = sum(v.size for v in logs.values())
    console.print(
        f"{values:,} values of {len(logs)} names. Trace, compile, train: {seconds:.1f} s."
    )
    _reduce(console, train, keys, logs)
    return logs


def _table(logs: sawlog.logdict, seeds: int, unicode: bool) -> Table:
    table = Table(title="What the same run returned: one value a step, of every seed")
    for name in ("seed", "loss over time", "first", "last", "accuracy", "grad norm", "dead"):
        table.add_column(name, justify="left" if name.startswith("loss") else "right")
    for seed in range(seeds):
        loss = logs["loss"][:, seed]
        dead = (logs["layer0/dead"][-1, seed] + logs["layer1/dead"][-1, seed]) / 2
        means = [float(part.mean()) for part in np.array_split(loss, 16) if len(part)]
        table.add_row(
            str(seed),
            sparkline(means, unicode),
            f"{loss[0]:.3f}",
            f"{loss[-1]:.3f}",
            f"{logs['accuracy'][-1, seed]:.1%}",
            f"{logs['grad_norm'][-1, seed]:.3f}",
            f"{dead:.1%}",
        )
    return table


def _reduce(console: Console, train: Any, keys: jax.Array, logs: sawlog.logdict) -> None:
    chosen = {"loss": "mean", "grad_norm": "max"}
    bounded = sawlog.spool(jax.jit(jax.vmap(train)), argnames=list(chosen), reduce=chosen)
    _, small = bounded(keys)
    console.print(
        "\nThe same training, reduced inside the loop, so that memory does not grow:\n"
        f"  mean loss of each seed             {np.array2string(small['loss'], precision=3)}\n"
        f"  largest gradient norm of each seed {np.array2string(small['grad_norm'], precision=3)}"
    )
    same = np.allclose(small["loss"], logs["loss"].mean(axis=0), rtol=1e-4)
    _check(same, "the reduced logs differ from the mean of all logs")


def keep_runs(console: Console, folder: Path, logs: sawlog.logdict, sizes: Sizes) -> Path:
    """Write one run for each seed from inside of the jitted program; return the first of them."""
    console.rule("One run for each seed: on the screen, and on disk")
    train = trainer(sizes.steps)
    with MultiLogger(SaveLogger(folder), ConsoleLogger("spirals", total=sizes.steps)) as logger:

        def run(key: jax.Array) -> jax.Array:
            state = logger.init(key, steps=sizes.steps, momentum=0.9, lr=0.1)
            names = ["loss", "accuracy", "grad_norm"]
            return logger.tap(train, state, argnames=names, buffer=20)(key)

        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), sizes.seeds))
    runs = sorted(folder.iterdir())
    losses = np.stack([sawlog.load(run)["loss"] for run in runs])
    same = {tuple(x) for x in losses} == {tuple(x) for x in logs["loss"].T}
    _check(same, "what was loaded again is not bit for bit what was returned")
    console.print(f"\nLoaded {len(runs)} runs again: bit for bit what spool returned.\n")
    return runs[0]


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
