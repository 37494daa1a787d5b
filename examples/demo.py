"""Train a small classifier for several seeds at once and look inside while it trains.

One training function with ``sawlog.log`` in it, one jitted ``vmap`` over seeds: what is tagged
``live`` streams to the terminal as it happens, everything else comes back with the result, in full
or reduced inside the loop. Then the same runs are shown in one table and written to disk, one store
a seed; a process that logs a row for every example is killed, goes on where it stopped, and nothing
is lost; and the gradient of every single example is logged from a PyTorch model.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import per_example
from rich.console import Console
from rich.table import Table

import sawlog
import sawlog.store
from sawlog.cli import main as command_line
from sawlog.loggers import ConsoleLogger, MultiLogger, SaveLogger

SEEDS, STEPS, SHOW_EVERY = 5, 300, 60
SIZES = (2, 32, 32, 1)


def two_spirals(key: jax.Array, count: int = 256) -> tuple[jax.Array, jax.Array]:
    """Points on two intertwined spirals, and which spiral each is on."""
    angle_key, noise_key = jax.random.split(key)
    angle = jnp.sqrt(jax.random.uniform(angle_key, (count,))) * 2.2 * jnp.pi
    label = jnp.arange(count) % 2
    turn = angle + jnp.pi * label
    points = jnp.stack([jnp.cos(turn), jnp.sin(turn)], -1) * (angle / 4)[:, None]
    return points + 0.04 * jax.random.normal(noise_key, points.shape), label.astype(jnp.float32)


def init(key: jax.Array) -> list[dict[str, jax.Array]]:
    """Weights of a small MLP."""
    keys = jax.random.split(key, len(SIZES) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)}
        for k, m, n in zip(keys, SIZES, SIZES[1:], strict=False)
    ]


def loss_of(params: list[dict[str, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
    """Logistic loss; logs the accuracy and how many units of each hidden layer are off."""
    for i, layer in enumerate(params[:-1]):
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
        sawlog.log({f"layer{i}/dead": jnp.mean(jnp.all(x == 0, axis=0))})
    logits = (x @ params[-1]["w"] + params[-1]["b"])[:, 0]
    sawlog.log({"accuracy": jnp.mean((logits > 0) == (y > 0.5))})
    return jnp.mean(jnp.logaddexp(0, logits) - y * logits)


def train(key: jax.Array) -> jax.Array:
    """Gradient descent with momentum; returns the final loss."""
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
            i % SHOW_EVERY == 0,
            lambda: sawlog.log({"loss now": loss}, step=i, tags="live"),
            lambda: None,
        )
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, velocity, grads)
        return (jax.tree.map(jnp.add, params, velocity), velocity), loss

    return jax.lax.scan(step, (params, velocity), jnp.arange(STEPS))[1][-1]


def sparkline(values: np.ndarray, width: int = 16) -> str:
    """A row of little bars."""
    bars = "▁▂▃▄▅▆▇█"
    pooled = [chunk.mean() for chunk in np.array_split(values, width)]
    low, high = min(pooled), max(pooled)
    return "".join(bars[int((v - low) / (high - low + 1e-12) * 7.999)] for v in pooled)


def look_inside(console: Console) -> sawlog.logdict:
    """Spool, tap and reduce one training run of several seeds."""
    console.print(f"Training {SEEDS} seeds at once, {STEPS} steps, one jitted vmap over keys.\n")

    def live(logs: sawlog.logdict) -> None:
        values = "  ".join(f"{value:.3f}" for value in logs["loss now"])
        console.print(f"  step {int(logs.step['loss now'][0]):>3}   loss of each seed  {values}")

    history = ["loss", "grad_norm", "accuracy", "layer0/dead", "layer1/dead"]
    run = sawlog.spool(jax.jit(jax.vmap(train)), argnames=history, keep_logs=True)
    run = sawlog.tap(run, live, tags="live")
    start = time.perf_counter()
    final, logs = run(jax.random.split(jax.random.key(0), SEEDS))
    seconds = time.perf_counter() - start

    logs = logs.to_numpy()
    table = Table(title="\nWhat the same run returned: one value a step, of every seed")
    for name in ("seed", "loss over time", "first", "last", "accuracy", "grad norm", "dead"):
        table.add_column(name, justify="left" if name.startswith("loss") else "right")
    for seed in range(SEEDS):
        loss = logs["loss"][:, seed]
        dead = (logs["layer0/dead"][-1, seed] + logs["layer1/dead"][-1, seed]) / 2
        table.add_row(
            str(seed),
            sparkline(loss),
            f"{loss[0]:.3f}",
            f"{loss[-1]:.3f}",
            f"{logs['accuracy'][-1, seed]:.1%}",
            f"{logs['grad_norm'][-1, seed]:.3f}",
            f"{dead:.1%}",
        )
    console.print(table)
    best = logs.reduce({"accuracy": "max", "loss": "min"})
    console.print(
        f"Best accuracy of each seed: {np.array2string(best['accuracy'], precision=3)}\n"
        f"The logs hold {sum(v.size for v in logs.values()):,} values of {len(logs)} names. "
        f"Trace, compile, train: {seconds:.1f} s."
    )
    assert np.allclose(final, logs["loss"][-1])

    bounded = sawlog.spool(
        jax.jit(jax.vmap(train)),
        argnames=["loss", "grad_norm"],
        reduce={"loss": "mean", "grad_norm": "max"},
    )
    _, small = bounded(jax.random.split(jax.random.key(0), SEEDS))
    console.print(
        "\nThe same training, reduced inside the loop, so that memory does not grow:\n"
        f"  mean loss of each seed             {np.array2string(small['loss'], precision=3)}\n"
        f"  largest gradient norm of each seed {np.array2string(small['grad_norm'], precision=3)}"
    )
    assert np.allclose(small["loss"], logs["loss"].mean(axis=0), rtol=1e-4)
    return logs


def keep_runs(console: Console, folder: Path, logs: sawlog.logdict) -> None:
    """One run on disk for each seed, from inside of the jitted program, and all in one table."""
    console.rule("One run for each seed: on the screen, and on disk")
    with MultiLogger(SaveLogger(folder), ConsoleLogger("spirals", total=STEPS)) as logger:

        def run(key: jax.Array) -> jax.Array:
            state = logger.init(key, steps=STEPS)
            names = ["loss", "accuracy", "grad_norm"]
            return logger.tap(train, state, argnames=names, buffer=20)(key)

        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), SEEDS))
    runs = sorted(folder.iterdir())
    losses = np.stack([sawlog.load(run)["loss"] for run in runs])
    assert {tuple(x) for x in losses} == {tuple(x) for x in logs["loss"].T}, "not bit for bit"
    console.print(f"\nLoaded {len(runs)} runs again: bit for bit what spool returned.\n")
    command_line(["show", str(runs[0])])


ROWS, WIDTH = 40_000, 256
WRITER = """
import sys, numpy as np, sawlog.store
with sawlog.store.create(sys.argv[1], exists="append", segment_bytes=1 << 20) as writer:
    todo = writer.missing(range(int(sys.argv[2])))
    print(len(todo), flush=True)
    for ids in np.array_split(todo, max(1, len(todo) // 100)):
        writer.append(ids, {"grad": np.sin(ids[:, None] + np.arange(int(sys.argv[3])))})
"""


def kill_and_resume(console: Console, path: Path) -> None:
    """A process that writes rows is killed three times, each time in the middle of its work."""
    console.rule("Killed, and resumed")
    command = [sys.executable, "-c", WRITER, str(path), str(ROWS), str(WIDTH)]
    for attempt in range(4):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            missing = int(writer.stdout.readline())
            console.print(
                f"  a writer starts; {missing:>6,} of {ROWS:,} examples are missing", end=""
            )
            if attempt < 3:
                time.sleep(0.12)
                os.kill(writer.pid, signal.SIGKILL)
                console.print("   kill -9")
        if attempt == 3:
            console.print("   it finishes")
    with sawlog.store.open(path) as reader:
        ids = np.random.default_rng(0).permutation(ROWS)[:1000]
        assert np.array_equal(np.sort(reader.ids()), np.arange(ROWS))
        rows = reader.gather(ids)["grad"]
        assert np.array_equal(rows, np.sin(ids[:, None] + np.arange(WIDTH)))
        seen = sum(len(block) for block in reader.blocks(budget=8 << 20))
        assert seen == ROWS
    done = sawlog.store.compact(path)
    console.print(
        f"All {ROWS:,} rows are there once, every checksum holds. Compacted: "
        f"{done.segments_before} files to {done.segments_after}.\n"
    )
    command_line(["verify", str(path)])


def main() -> None:
    """Run it all."""
    console = Console()
    logs = look_inside(console)
    with tempfile.TemporaryDirectory() as folder:
        keep_runs(console, Path(folder) / "spirals", logs)
        kill_and_resume(console, Path(folder) / "rows")
        per_example.show(console, Path(folder))


if __name__ == "__main__":
    main()
