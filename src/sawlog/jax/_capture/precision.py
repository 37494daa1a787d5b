"""The least precise type of a program: mixed precision has larger rounding errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from sawlog.jax import _compat

#: The error of sums that half precision and less precise types may have, relative to their terms.
_COARSE = {16: 0.03, 8: 0.2}


def coarsest(closed: Any) -> str | None:
    """Return the least precise type below float32 in a program, at any depth; None without one."""
    small = {dtype for dtype in _floats(closed.jaxpr) if jnp.finfo(dtype).bits < 32}
    return max(small, key=lambda dtype: float(jnp.finfo(dtype).eps)).name if small else None


def _floats(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        for var in eqn.outvars:
            dtype = getattr(var.aval, "dtype", None)
            if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
                yield jnp.dtype(dtype)
        for inner in _compat.subjaxprs(eqn.params):
            yield from _floats(getattr(inner, "jaxpr", inner))


def coarse_tolerance(dtype: str | None) -> float:
    """Return the tolerance of a program whose least precise type is this; 0 without one."""
    return 0.0 if dtype is None else _COARSE[16 if jnp.finfo(dtype).bits > 8 else 8]
