"""Calls: ``jit``, ``closed_call`` and ``checkpoint`` stay what they are, with further outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core.primitives import closed_call_p, jit_p, remat_p

from sawlog.jax import _compat
from sawlog.jax._interpreter import Interpreter
from sawlog.jax._registry import register_rule
from sawlog.jax._stream import Streams


@register_rule(jit_p)
def jit(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Keeps the name, shardings, layouts and donation."""
    new = walk.rewrite(eqn.params["jaxpr"])
    before = walk.leading(new)
    params = _compat.widen_jit(eqn.params, new.closed, len(before), new.extra)
    return walk.split(new, eqn.primitive.bind(*before, *values, **params))


@register_rule(closed_call_p)
def closed_call(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """A call without any meaning of its own is evaluated in place."""
    inner = eqn.params["call_jaxpr"]
    return walk.run(inner.jaxpr, inner.consts, values)


@register_rule(remat_p)
def checkpoint(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Keeps the policy; a log is an output of the forward pass, so it is there exactly once."""
    new = walk.rewrite(eqn.params["jaxpr"])
    jaxpr, consts = _compat.inline_consts(new.closed)
    before = [*consts, *walk.leading(new)]
    params = _compat.widen_remat(eqn.params, jaxpr, len(before))
    return walk.split(new, eqn.primitive.bind(*before, *values, **params))
