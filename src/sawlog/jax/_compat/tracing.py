"""Traces: which one is active, and how to trace a flat function to a jaxpr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from sawlog.jax._compat import private
from sawlog.jax._compat.private import ClosedJaxpr, Jaxpr
from sawlog.jax._compat.values import is_tracer

#: What this thread does with operations is ``trace_context.trace``; an ``Evaluates`` runs them.
trace_context: Any = private.core.trace_ctx
Evaluates: Any = private.core.EvalTrace


def not_tracing() -> bool:
    """Whether no transformation of JAX is under way in this thread."""
    return bool(private.core.trace_state_clean())


def evaluating() -> Any:
    """A context in which operations on known arrays are run, whatever is traced around it."""
    return private.core.eval_context()


def under_jit() -> bool:
    """Whether a program is traced to be compiled, however deep below other transformations."""
    trace = trace_context.trace
    if type(trace) is Evaluates:
        return False
    while trace is not None and not isinstance(trace, private.partial_eval.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


#: What JAX traces functions for that may return whatever they like.
_RETURN_ANYTHING = frozenset({"jit", "pjit", "checkpoint / remat", "sawlog"})


def inside_inner_function() -> bool:
    """Whether a branch, the body of a loop or the like is traced, however deep; not only ``jit``.

    Such a function must return what others return, or what it was given.
    """
    trace: Any = private.core.trace_ctx.trace
    while trace is not None:
        frame = getattr(trace, "frame", None)
        if frame is not None and frame.debug_info.traced_for not in _RETURN_ANYTHING:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def inside_jacfwd() -> bool:
    """Whether ``jax.jacfwd`` is at work; its ``vmap`` looks like any other from inside."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        names = (*code.co_varnames, *code.co_cellvars)  # jacrev has a jacfun too, without pushfwd
        if (
            code.co_name == "jacfun"
            and "pushfwd" in names
            and code.co_filename == private.api.__file__
        ):
            return True
        frame = frame.f_back
    return False


def trace_flat(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], name: str) -> ClosedJaxpr:
    """Trace ``fun``, which takes and returns flat lists, at exactly these abstract values."""
    debug = private.core.DebugInfo(
        traced_for="sawlog", func_src_info=name, arg_names=None, result_paths=None
    )
    wrapped = private.linear_util.wrap_init(lambda *args: list(fun(*args)), debug_info=debug)
    jaxpr, _, consts = private.partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return ClosedJaxpr(jaxpr, consts)


def hoist_consts(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Turn what ``closed`` closes over into leading inputs, when any of it is a tracer."""
    if not any(is_tracer(const) for const in closed.consts):
        return closed, []
    return ClosedJaxpr(private.partial_eval.convert_constvars_jaxpr(closed.jaxpr), ()), list(
        closed.consts
    )


def inline_consts(closed: ClosedJaxpr) -> tuple[Jaxpr, list[Any]]:
    """An open jaxpr that takes its constants as leading inputs, and those constants."""
    if not closed.consts:
        return closed.jaxpr, []
    return private.partial_eval.convert_constvars_jaxpr(closed.jaxpr), list(closed.consts)


def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """The same program with its inputs and outputs in another order."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(
        jaxpr.replace(
            invars=[jaxpr.invars[i] for i in inputs],
            outvars=[jaxpr.outvars[i] for i in outputs],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        closed.consts,
    )
