"""What JAX keeps with an equation: its scopes, its source line, and marks of sawlog."""

from __future__ import annotations

from typing import Any

from sawlog.jax._compat import private
from sawlog.jax._compat.private import JaxprEqn


def equation_scope(eqn: JaxprEqn) -> Any:
    """Return a context with the name stack, source line and settings of an equation."""
    return _Scope(eqn)


class _Scope:
    __slots__ = ("_context", "_where")

    def __init__(self, eqn: JaxprEqn) -> None:
        names = private.source_info_util.current_name_stack() + eqn.source_info.name_stack
        self._where = private.source_info_util.user_context(
            eqn.source_info.traceback, name_stack=names
        )
        self._context = eqn.ctx.manager

    def __enter__(self) -> None:
        self._where.__enter__()
        self._context.__enter__()

    def __exit__(self, *exc: Any) -> Any:
        self._context.__exit__(*exc)
        return self._where.__exit__(*exc)


#: What :func:`source_line` returns for an equation that JAX traced earlier, for another caller.
UNKNOWN_LINE = "an unknown line"


def source_line(eqn: JaxprEqn) -> str:
    """Return ``file:line (function)`` of the user code that traced this equation."""
    return str(private.source_info_util.summarize(eqn.source_info)) or UNKNOWN_LINE


def scopes(eqn: JaxprEqn) -> list[str]:
    """Return the names of the scopes around an equation, outermost first."""
    stack = eqn.source_info.name_stack.stack
    return [item.name for item in stack if isinstance(item, private.source_info_util.Scope)]


def transforms(eqn: JaxprEqn) -> list[str]:
    """Return the transformations that produced an equation: ``jvp``, ``transpose``, ..."""
    stack = eqn.source_info.name_stack.stack
    return [item.name for item in stack if isinstance(item, private.source_info_util.Transform)]


def exclude_from_tracebacks(path: str) -> None:
    """Exclude files below ``path`` from what JAX considers user code."""
    private.source_info_util.register_exclusion(path)


_MARK = "sawlog"


def marked(text: str) -> Any:
    """Return a context that marks the equations traced in it with ``text``.

    JAX keeps the mark through every transformation, until the equation is lowered.
    """
    return private.xla_metadata.set_xla_metadata(**{_MARK: text})


def mark() -> str | None:
    """Return the mark of the equation that is being traced or lowered; None without one."""
    found = private.xla_metadata_lib.current_xla_metadata()
    return None if found is None else found.get(_MARK)


def mark_of(eqn: JaxprEqn) -> str | None:
    """Return the mark of an equation, see :func:`marked`; None without one."""
    found = eqn.ctx.xla_metadata
    return None if not found else found.get(_MARK)
