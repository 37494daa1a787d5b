"""Projected gradients of each example of a JAX function: ``capture`` against ``vmap(grad)``.

A GPT with 4 scanned layers of width 256 and a tied head, 8 sequences of 128 tokens, rank 64, all
parameters, float32. The plain way is a jitted ``value_and_grad`` of the mean loss. ``vmap(grad)``
computes the gradients of all examples and projects them afterwards; both must give the same rows.
Memory is what the compiler plans for temporary arrays and outputs, per further example, as a ratio
to that of the plain way.

How much faster capture is depends on the number of positions of an example, ``t``, and the rank
``r``: for each parameter and example, whole gradients and their projection take about ``6 t + 2 r``
operations and the time to write and read them; capture takes about ``4 t``. So a GPT with short
sequences and a large vocabulary, and a perceptron, whose examples have one position, are measured
as well.

Run with --quick for fewer rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _jax_models import gpt_batch, gpt_losses, gpt_params
from _timing import Contestant, Row, compare, report

import sawlog.jax
from sawlog.jax._capture.parameters import leaf_names
from sawlog.jax._capture.program import random_matrices
from sawlog.run_files._blocks import Block

RANK, EXAMPLES = 64, 8


def plain(params: Any, batch: Any, matrices: Any) -> Any:
    """Return loss and gradient of the batch."""
    del matrices
    return jax.value_and_grad(lambda p: gpt_losses(p, batch).mean())(params)


def captured(params: Any, batch: Any, matrices: Any) -> Any:
    """Return the projected rows of each block."""
    return sawlog.jax.capture(gpt_losses, projection=matrices)(params, batch).grads


def by_vmap(
    blocks: tuple[Block, ...], losses: Callable[..., Any] = gpt_losses
) -> Callable[..., Any]:
    """Return a function that computes whole gradients of all examples and projects them."""

    def one(params: Any, example: Any) -> Any:
        return losses(params, jax.tree.map(lambda x: x[None], example))[0]

    def rows(params: Any, batch: Any, matrices: Any) -> Any:
        found = jax.vmap(jax.grad(one), (None, 0))(params, batch)
        named = dict(zip(leaf_names(found), jax.tree.leaves(found), strict=True))
        return {block.name: _projected(block, named, *matrices[block.name]) for block in blocks}

    return rows


def _projected(block: Block, rows: Any, left: Any, right: Any) -> Any:
    """Project; weights, all of which have a bias, are stored as inputs and outputs."""
    matrix = rows[block.name]
    if block.cols == 1:
        matrix = matrix.reshape(len(matrix), -1, 1)
    elif block.inputs == "right" and (len(block.parameters) > 1 or len(block.shape) > 2):
        matrix = jnp.swapaxes(matrix, -1, -2)
    if len(block.parameters) > 1:
        matrix = jnp.concatenate([matrix, rows[block.parameters[1]][..., None]], axis=-1)
    matrix = matrix if left is None else jnp.swapaxes(left, -1, -2) @ matrix
    return matrix if right is None else matrix @ right


def compiled(fun: Callable[..., Any], *args: Any) -> tuple[Callable[[], Any], int]:
    """Return a call that waits for the result, and its bytes of temporaries and outputs."""
    program = jax.jit(fun).lower(*args).compile()
    memory = program.memory_analysis()

    def call() -> Any:
        return jax.block_until_ready(program(*args))

    return call, memory.temp_size_in_bytes + memory.output_size_in_bytes


def perceptron(rounds: int) -> list[Row]:
    """Compare on a perceptron 784-512-512-10 with 256 examples, which have one position each."""
    keys = jax.random.split(jax.random.key(0), 5)
    sizes = (784, 512, 512, 10)
    params = {
        f"{i}": {
            "w": 0.05 * jax.random.normal(keys[i], sizes[i : i + 2]),
            "b": jnp.zeros(sizes[i + 1]),
        }
        for i in range(3)
    }
    batch = (
        jax.random.normal(keys[3], (256, 784)),
        jax.random.randint(keys[4], (256,), 0, 10),
    )

    def losses(params: Any, batch: Any) -> Any:
        x, y = batch
        for i in range(3):
            x = (jax.nn.relu(x) if i else x) @ params[f"{i}"]["w"] + params[f"{i}"]["b"]
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], axis=1)[:, 0]

    blocks = sawlog.jax.capture(losses).plan(params, batch).blocks
    matrices = jax.tree.map(jnp.asarray, random_matrices(blocks, RANK))
    calls = {
        "plain": lambda p, b, m: jax.value_and_grad(lambda p: losses(p, b).mean())(p),
        "capture": lambda p, b, m: sawlog.jax.capture(losses, projection=m)(p, b).grads,
        "vmap(grad)": by_vmap(blocks, losses),
    }
    plain, ours, theirs = (
        Contestant(name, compiled(call, params, batch, matrices)[0]) for name, call in calls.items()
    )
    wanted = theirs.call()
    for name, rows in ours.call().items():
        np.testing.assert_allclose(rows, wanted[name], atol=1e-4 * float(jnp.abs(rows).max()))
    what = f"MLP, rank {RANK}"
    return [
        *compare(what, [plain, ours], rounds=3 * rounds),
        *compare(what, [theirs, ours], rounds=rounds, limits={"capture": 20.0}, speed=True),
    ]


def main() -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--save", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    rounds = 5 if options.quick else 15
    rows = gpt(rounds) + short_sequences(rounds) + perceptron(rounds)
    return 0 if report(rows, "Per-example gradients of JAX functions", options.save) else 1


def short_sequences(rounds: int) -> list[Row]:
    """Compare on 64 sequences of 8 tokens from a vocabulary of 16,000."""
    size = {"tokens": 8, "vocabulary": 16_000}
    params, batch = gpt_params(vocabulary=16_000), gpt_batch(64, **size)
    blocks = sawlog.jax.capture(gpt_losses).plan(params, batch).blocks
    matrices = jax.tree.map(jnp.asarray, random_matrices(blocks, RANK))
    ways = {"plain": plain, "capture": captured, "vmap(grad)": by_vmap(blocks)}
    first, ours, theirs = (
        Contestant(name, compiled(way, params, batch, matrices)[0]) for name, way in ways.items()
    )
    what = f"GPT, short sequences, rank {RANK}"
    return [
        *compare(what, [first, ours], rounds=rounds, limits={"capture": 1.0}),
        *compare(what, [theirs, ours], rounds=max(rounds // 3, 2), speed=True),
    ]


def gpt(rounds: int) -> list[Row]:
    """Compare on 8 sequences of 128 tokens, and compare the memory."""
    params, batch = gpt_params(), gpt_batch(EXAMPLES)
    blocks = sawlog.jax.capture(gpt_losses).plan(params, batch).blocks
    matrices = jax.tree.map(jnp.asarray, random_matrices(blocks, RANK))
    ways = {"plain": plain, "capture": captured, "vmap(grad)": by_vmap(blocks)}
    calls: dict[str, Callable[[], Any]] = {}
    growth: dict[str, float] = {}
    for name, way in ways.items():
        calls[name], small = compiled(way, params, batch, matrices)
        _, large = compiled(way, params, gpt_batch(2 * EXAMPLES), matrices)
        growth[name] = (large - small) / EXAMPLES
    ours, theirs = calls["capture"](), calls["vmap(grad)"]()
    for name, rows in theirs.items():
        scale = float(jnp.abs(rows).max())
        np.testing.assert_allclose(ours[name], rows, atol=1e-4 * scale, err_msg=name)
    contestants = {name: Contestant(name, call) for name, call in calls.items()}
    found = [
        *compare(
            f"GPT, rank {RANK}",
            [contestants["plain"], contestants["capture"]],
            rounds=rounds,
            limits={"capture": 1.0},
        ),
        *compare(
            f"GPT, rank {RANK}",
            [contestants["vmap(grad)"], contestants["capture"]],
            rounds=max(rounds // 3, 2),
            speed=True,
        ),
    ]
    for name, limit in (("capture", 1.2), ("vmap(grad)", None)):
        ratio = growth[name] / growth["plain"]
        who = f"{name} / plain"
        found.append(Row("memory of a further example", who, ratio, ratio, ratio, 0.0, limit))
    return found


if __name__ == "__main__":
    sys.exit(main())
