"""Traces: which one is active, and how to trace a flat function to a jaxpr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from sawlog.jax._compat import private
from sawlog.jax._compat.private import ClosedJaxpr, Jaxpr
from sawlog.jax._compat.values import is_tracer

#: ``trace_context.trace`` is the active trace of this thread; an ``EvalTrace`` runs operations.
trace_context: Any = private.core.trace_ctx
EvalTrace: Any = private.core.EvalTrace


def not_tracing() -> bool:
    """Return whether no transformation of JAX is active in this thread."""
    return bool(private.core.trace_state_clean())


def evaluating() -> Any:
    """Return a context in which operations on concrete arrays run, also inside a trace."""
    return private.core.eval_context()


def under_jit() -> bool:
    """Return whether a program is traced for compilation, at any depth of transformations."""
    trace = trace_context.trace
    if type(trace) is EvalTrace:
        return False
    while trace is not None and not isinstance(trace, private.partial_eval.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


#: Reasons for tracing under which the function may return any structure.
_RETURN_ANYTHING = frozenset({"jit", "pjit", "checkpoint / remat", "sawlog"})


def inside_inner_function() -> bool:
    """Return whether a branch, the body of a loop or the like is traced, at any depth.

    Such a function must return the same structure as other branches, or as its carry. The function
    of a ``jit`` is not one.
    """
    trace: Any = private.core.trace_ctx.trace
    while trace is not None:
        frame = getattr(trace, "frame", None)
        if frame is not None and frame.debug_info.traced_for not in _RETURN_ANYTHING:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def inside_jacfwd() -> bool:
    """Return whether ``jax.jacfwd`` is on the stack.

    Nothing else tells its ``vmap`` from that of the user.
    """
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


def inside_custom_jvp_rule() -> bool:
    """Return whether the rule of a ``custom_jvp`` is on the stack, where values may be tangents."""
    rules = {
        getattr(trace.process_custom_jvp_call, "__code__", None)
        for trace in (private.ad.JVPTrace, private.ad.LinearizeTrace)
    }
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code in rules:
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
    """Turn the constants of ``closed`` into leading inputs, if any of them is a tracer.

    Returns:
        The program, and the values of its new inputs.
    """
    if not any(is_tracer(const) for const in closed.consts):
        return closed, []
    return ClosedJaxpr(private.partial_eval.convert_constvars_jaxpr(closed.jaxpr), ()), list(
        closed.consts
    )


def inline_consts(closed: ClosedJaxpr) -> tuple[Jaxpr, list[Any]]:
    """Return an open jaxpr that takes its constants as leading inputs, and the constants."""
    if not closed.consts:
        return closed.jaxpr, []
    return private.partial_eval.convert_constvars_jaxpr(closed.jaxpr), list(closed.consts)


def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program with its inputs and outputs selected by position, in this order."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(
        jaxpr.replace(
            invars=[jaxpr.invars[i] for i in inputs],
            outvars=[jaxpr.outvars[i] for i in outputs],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        closed.consts,
    )
