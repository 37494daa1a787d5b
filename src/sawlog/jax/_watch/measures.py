"""What ``watch`` computes of an array: norms and the share of dead units; and how it is logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sawlog.jax._core import lowering_marks
from sawlog.jax._core.primitive import cotangent_p, is_listening, log_p
from sawlog.jax._core.site import Site

#: The tag of every log of ``watch``.
TAG = "watch"
#: The scope of equations that only measure. Nothing is logged about them.
SCOPE = "sawlog_watch"
_LEAF = jax.tree.structure(0)


@jax.named_scope(SCOPE)
def norm(x: Any, batch: int = 0) -> Any:
    """Return the L2 norm of ``x`` over all axes but the first ``batch``.

    It is computed in float32, or in float64 if JAX is set to that, and does not overflow.
    """
    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
    axes = tuple(range(batch, x.ndim))
    size = jnp.abs(lax.stop_gradient(x)).astype(dtype)
    if not x.size:
        return jnp.sum(size, axes)
    largest = jnp.max(size, axes, keepdims=True)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    total = jnp.sum(jnp.square(size / scale), axes)
    return jnp.sqrt(total) * jnp.squeeze(scale, axes)


@jax.named_scope(SCOPE)
def dead_share(x: Any, axis: int) -> Any:
    """Return the share of units, the elements along ``axis``, that are zero everywhere else."""
    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
    others = tuple(i for i in range(x.ndim) if i != axis)
    return jnp.mean(jnp.all(lax.stop_gradient(x) == 0, others), dtype=dtype)


def site_of(names: Sequence[str], where: str, **options: Any) -> Site:
    """Return the site of a log of single arrays."""
    return Site(tuple(names), (_LEAF,) * len(names), (), (TAG,), None, where, **options)


def emit(values: dict[str, Any], where: str, condition: Any = None) -> None:
    """Log values, where a condition holds if there is one."""
    if not is_listening():
        return
    operands = list(values.values())
    site = site_of(list(values), where)
    if condition is not None:
        operands.append(condition)
        site = site_of(list(values), where, masked=True, conditional=True)
    with lowering_marks.kept():
        log_p.bind(*operands, site=site)


def log_norm_of_cotangent(name: str, x: Any, where: str) -> Any:
    """Return ``x``; where a gradient flows back through it, log the norm of that gradient."""
    return cotangent_p.bind(x, site=site_of([name], where, measure=norm))[0]
