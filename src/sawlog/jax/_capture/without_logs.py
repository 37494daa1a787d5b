"""Evaluate a part of the loss again without its logs.

Rows are computed by binding an equation once more, for one example at a time. What it logs was
logged when the loss was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sawlog.jax import _compat
from sawlog.jax._core import lowering_marks
from sawlog.jax._core.handler import DropLogs
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import SITE_PRIMITIVES


def bind_silently(eqn: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that binds an equation, to differentiate it, without its logs."""
    interpreter = Interpreter(DropLogs(SITE_PRIMITIVES))
    if not _compat.subjaxprs(eqn.params) or not interpreter.sites_in(eqn):
        return lambda values: _compat.bind_differentiably(eqn, values)
    plain = interpreter.without_logs(eqn)

    def bind(values: Sequence[Any]) -> list[Any]:
        with lowering_marks.dropping():
            return plain(*values)

    return bind


def without_logs(closed: Any) -> Any:
    """Return a program without its logs."""
    interpreter = Interpreter(DropLogs(SITE_PRIMITIVES))
    return interpreter.trace(closed).closed if interpreter.sites_of(closed) else closed


def has_logs(eqn: Any) -> bool:
    """Return whether an equation logs."""
    return bool(Interpreter(DropLogs(SITE_PRIMITIVES)).sites_in(eqn))
