"""Rules for calls: ``jit`` and ``checkpoint`` get further outputs; others are inlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core.primitives import closed_call_p, jit_p, remat_p

from sawlog.jax import _compat
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.registry import register_rule
from sawlog.jax._core.stream import Streams


@register_rule(jit_p)
def jit(interpreter: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Bind a ``jit`` with further outputs; name, shardings, layouts and donation are kept."""
    new = interpreter.rewrite(_compat.inner_jaxpr(eqn))
    outs = _compat.bind_jit(eqn, new.closed, interpreter.leading(new), values, new.extra)
    return interpreter.split(new, outs)


@register_rule(closed_call_p, _compat.remat_opt_p, _compat.composite_p)
def closed_call(
    interpreter: Interpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Evaluate a call in place.

    That also covers the forward rule of a ``custom_vjp`` with ``optimize_remat``, and a
    ``lax.composite``, whose name tells the compiler a number of outputs.
    """
    inner = _compat.inner_jaxpr(eqn)
    return interpreter.run(inner.jaxpr, inner.consts, values)


@register_rule(remat_p)
def checkpoint(
    interpreter: Interpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Bind a ``checkpoint`` with further outputs; the policy is kept.

    A log is an output of the forward pass, so it is returned exactly once.
    """
    new = interpreter.rewrite(_compat.inner_jaxpr(eqn))
    return interpreter.split(
        new, _compat.bind_checkpoint(eqn, new.closed, interpreter.leading(new), values)
    )
