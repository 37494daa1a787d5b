"""Probes: where the watched function differentiates another one, measure the gradients inside.

A program that was differentiated no longer shows which gradient belongs to which value. So while
``watch`` traces a function, each function that it differentiates is traced first, and gets a
``log_cotangent`` under a number on every input and on the output of every equation that could be
that of a layer. The numbers are resolved to names when the whole program is known
(:mod:`~sawlog.jax._watch.plan`); logs of numbers that belong to no layer are removed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core.functions import name_of
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter, Rewritten
from sawlog.jax._core.primitive import SITE_PRIMITIVES, is_watching
from sawlog.jax._core.registry import has_rule
from sawlog.jax._watch.measures import log_norm_of_cotangent

_PREFIX = "\0probe "
_numbers = itertools.count()


def is_probe(key: str) -> bool:
    """Return whether a key is the number of a probe."""
    return key.startswith(_PREFIX)


def probe(x: Any) -> Any:
    """Return ``x`` with a probe on it."""
    return log_norm_of_cotangent(f"{_PREFIX}{next(_numbers)}", x, "a watched function")


class _AddProbes(Interpreter):
    """Evaluate a program with probes on the outputs of its equations."""

    def __init__(self) -> None:
        super().__init__(Handler())

    def rewrite(self, inner: Any) -> Rewritten:
        """Trace an inner program again; each time, so that its probes get numbers of their own."""
        return self.trace(inner)

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], tuple]:
        """Evaluate one equation."""
        if _compat.subjaxprs(eqn.params):
            skipped = eqn.primitive in (custom_jvp_call_p, custom_vjp_call_p, while_p)
            if has_rule(eqn.primitive) and not skipped:
                return self.rule(eqn)(self, eqn, values)
            return _compat.bind_equation(eqn, values), ()
        outs = _compat.bind_equation(eqn, values)
        if _is_candidate(eqn):
            outs[0] = probe(outs[0])
        return outs, ()


def _is_candidate(eqn: Any) -> bool:
    """Return whether an equation of two operands and real numbers may apply a parameter to data."""
    if eqn.primitive in SITE_PRIMITIVES or len(eqn.outvars) != 1:
        return False
    operands = [atom for atom in eqn.invars if not isinstance(atom, _compat.Literal)]
    return len(operands) > 1 and _flows(eqn.outvars[0].aval)


def _flows(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def add_probes(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a differentiated function with probes, if ``watch`` is tracing."""
    if not is_watching():
        return fun

    @functools.wraps(fun, updated=())
    def probed(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        structure: list[tuple[Any, list[Any]]] = []

        def flat(*values: Any) -> list[Any]:
            outs, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, values)))
            is_array = [_compat.is_jax_value(out) for out in outs]
            pairs = list(zip(outs, is_array, strict=True))
            structure.append((out_tree, [None if array else (out,) for out, array in pairs]))
            return [out for out, array in pairs if array]

        closed = _compat.trace_flat(flat, [_compat.typeof(x) for x in leaves], name_of(fun))
        marked = [probe(x) if _flows(_compat.typeof(x)) else x for x in leaves]
        arrays, _ = _AddProbes().run(closed.jaxpr, closed.consts, marked)
        return _restored(structure[0], arrays)

    return probed


def _restored(structure: tuple[Any, list[Any]], arrays: Sequence[Any]) -> Any:
    out_tree, kept = structure
    values = iter(arrays)
    return jax.tree.unflatten(out_tree, [next(values) if one is None else one[0] for one in kept])


_compat.wrap_differentiated(add_probes)
