"""Programs on sharded values, the sharding of results, and the collectives in their HLO."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .cases.explicit import M48

STEPS = 5
ROWS = [M48 * 0.5**i for i in range(1, STEPS + 1)]
"""What `train` logs, by hand."""


def train(x: Any) -> Any:
    """Halve and log, in a loop."""

    def body(x: Any, i: Any) -> Any:
        x = x * 0.5
        sawlog.log({"x": x}, step=i)
        return x, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


def halve(x: Any) -> Any:
    """The same in a loop of unknown length."""

    def body(carry: Any) -> Any:
        i, x = carry
        x = x * 0.5
        sawlog.log({"x": x}, step=i)
        return i + 1, x

    return lax.while_loop(lambda carry: carry[1].sum() > 16, body, (0, x))[1]


def some(x: Any) -> Any:
    """Log every other time, in a branch."""

    def body(x: Any, i: Any) -> Any:
        x = x * 0.5
        lax.cond(i % 2 == 0, lambda: sawlog.log({"x": x}, step=i), lambda: None)
        return x, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


total = sawlog.Reduction(
    "total",
    init=lambda like: jnp.zeros(like.shape, like.dtype),  # not sharded, and need not be
    update=lambda state, x: state + x,
    finish=lambda state: state,
)

OPTIONS: list[tuple[dict[str, Any], Callable[[list], Any]]] = [
    ({}, np.stack),
    ({"reduce": "mean"}, lambda rows: np.mean(rows, axis=0)),
    ({"reduce": "sum"}, lambda rows: np.sum(rows, axis=0)),
    ({"reduce": "std"}, lambda rows: np.std(rows, axis=0)),
    ({"reduce": "min"}, lambda rows: np.min(rows, axis=0)),
    ({"reduce": "first"}, lambda rows: rows[0]),
    ({"reduce": "last"}, lambda rows: rows[-1]),
    ({"reduce": "count"}, lambda rows: np.full(rows[0].shape, len(rows), np.int32)),
    ({"reduce": total}, lambda rows: np.sum(rows, axis=0)),
    ({"interval": 2}, lambda rows: np.stack(rows[::2])),
    ({"interval": 2, "reduce": "max"}, lambda rows: rows[0]),
    ({"window": 2}, lambda rows: np.stack(rows[-2:])),
    ({"window": 2, "reduce": "mean"}, lambda rows: np.mean(rows[-2:], axis=0)),
    ({"capacity": {"x": 2}}, lambda rows: np.stack(rows[:2])),
    ({"capacity": {"x": 2}, "keep": "last"}, lambda rows: np.stack(rows[-2:])),
]


def context(mesh: Any, entered: bool) -> Any:
    """The mesh as context, or nothing: arrays know it themselves."""
    return jax.set_mesh(mesh) if entered else contextlib.nullcontext()


def spec_of(array: Any) -> tuple[Any, ...]:
    """The mesh axes of each axis, as the type says."""
    return tuple(jax.typeof(array).sharding.spec)


def collectives(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The communication between devices in the compiled program."""
    text = jax.jit(lambda *args: fun(*args)).lower(*args).compile().as_text()
    names = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return sorted(re.findall(rf" ({names})(?:-start)?\(", text))
