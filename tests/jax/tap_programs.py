"""Callbacks and programs for the tests of tap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

import sawlog


def tapped(fun: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[Any]]:
    """The output, and what the callback was given, call by call."""
    seen: list[Any] = []
    out = sawlog.tap(fun, seen.append, **options)(*args)
    return out, seen


def called(transformed: Callable[[Callable], Callable], *args: Any) -> tuple[Any, list[Any]]:
    """The same where the tap sits inside: `transformed(callback)` makes the function."""
    seen: list[Any] = []
    out = jax.block_until_ready(transformed(seen.append)(*args))
    jax.effects_barrier()
    return out, seen


def column(seen: list[Any], key: str) -> list[Any]:
    """The values of one key, callback by callback."""
    return [one[key].tolist() for one in seen if key in one]


def labelled(x: Any) -> Any:
    sawlog.log({"a": x, "b": 2 * x}, tags="first")
    sawlog.log({"b": 3 * x, "ab": 4 * x}, tags=("second", "both"))
    sawlog.log("c", 5 * x, tags=["both"])
    return x


def failing_site(x: Any) -> Any:
    def body(c: Any, i: Any) -> Any:
        sawlog.log({"c": c}, step=i)  # the failing site
        return c + 1, None

    return lax.scan(body, x, jnp.arange(6))[0]


class Boom(Exception):
    """What the callbacks here raise."""


def pair(x: Any) -> Any:
    sawlog.log({"x": x}, step=3)
    sawlog.log({"const": 1.0, "y": jnp.stack([x, -x])})
    return x * 2
