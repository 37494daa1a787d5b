"""Projected gradients of each example of a JAX function, against a plain gradient and ``vmap(grad)``.

A GPT with 4 scanned layers of width 256 and a tied head, 8 sequences of 128 tokens, rank 64, all
parameters, float32. ``vmap(grad)`` computes the same rows and projects them afterwards; it is
checked that both agree. Memory is what the compiler plans for temporary arrays and outputs.

Run with --quick for fewer rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from _jax_models import gpt_losses

RANK, EXAMPLES = 64, 8


def compiled(fun: Callable[..., Any], *args: Any) -> tuple[Callable[[], Any], float]:
    """Return a call that waits for the result, and the megabytes of temporaries and outputs."""
    program = jax.jit(fun).lower(*args).compile()
    memory = program.memory_analysis()
    size = memory.temp_size_in_bytes + memory.output_size_in_bytes

    def call() -> Any:
        return jax.block_until_ready(program(*args))

    return call, size / 2**20


def plain(params: Any, batch: Any) -> Any:
    """Return loss and gradient of the batch."""
    return jax.value_and_grad(lambda p: gpt_losses(p, batch).mean())(params)
