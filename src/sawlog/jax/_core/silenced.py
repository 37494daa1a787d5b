"""Functions that evaluate programs traced before, without the logs of those programs.

A jaxpr that was traced while logs were recorded has them: operators of lineax, ``closure_convert``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from sawlog.jax import _compat
from sawlog.jax._core.handler import DropLogs
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import SITE_PRIMITIVES, has_site_effect


class Silenced:
    """The program of a call, traced. Only tracers among arguments and outputs are replaced."""

    def __init__(self, fun: Callable[..., Any], *args: Any) -> None:
        leaves, tree = jax.tree.flatten(args, is_leaf=lambda x: isinstance(x, SymbolicZero))
        traced = [i for i, leaf in enumerate(leaves) if _compat.is_tracer(leaf)]

        def flat(*values: Any) -> list[Any]:
            full = list(leaves)
            for i, value in zip(traced, values, strict=True):
                full[i] = value
            outs, self._tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, full)))
            own = [_compat.is_tracer(out) for out in outs]
            # Tracers must not be kept: they are invalid after this trace.
            self._fixed = [
                (mine, None if mine else out) for mine, out in zip(own, outs, strict=True)
            ]
            return [out for mine, out in zip(own, outs, strict=True) if mine]

        self._values = [leaves[i] for i in traced]
        types = [_compat.typeof(value) for value in self._values]
        self._closed = _compat.trace_flat(flat, types, "silenced")

    @property
    def logs(self) -> bool:
        """Whether there are logs to drop."""
        return has_site_effect(self._closed.effects)

    def evaluate(self) -> Any:
        """Evaluate the program in the current trace, and return the output of the function."""
        closed, silent = self._closed, Interpreter(DropLogs(SITE_PRIMITIVES))
        outs, _ = silent.run(closed.jaxpr, closed.consts, self._values)
        rest = iter(outs)
        return jax.tree.unflatten(
            self._tree, [next(rest) if mine else out for mine, out in self._fixed]
        )
