"""Square roots of optimizers: their derivative at 0 is 0, wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from sawlog.jax._training.safe_roots import with_safe_roots


def traced(x: Any) -> Any:
    """What `trace` returns can be called in newer JAX."""
    root = jax.jit(jnp.sqrt)
    return root.trace(x)(x) if "__call__" in vars(jax.stages.Traced) else root(x)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "plain": jnp.sqrt,
    "jit": jax.jit(jnp.sqrt),
    "traced": traced,
    "cond": lambda x: lax.cond(x >= 0, jnp.sqrt, lambda x: x, x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_derivative_at_0_is_0(name: str) -> None:
    fun = PROGRAMS[name]
    assert jax.grad(fun)(0.0) == float("inf")
    assert jax.grad(with_safe_roots(fun))(0.0) == 0
    assert jax.grad(with_safe_roots(fun))(4.0) == 0.25
