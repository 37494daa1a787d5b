"""What JAX keeps with an equation: its scopes, its source line, and marks of sawlog."""

from __future__ import annotations

from typing import Any

from sawlog.jax._compat import private
from sawlog.jax._compat.private import JaxprEqn


def equation_scope(eqn: JaxprEqn) -> Any:
    """The name stack, source position and settings an equation was traced under."""
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


def source_line(eqn: JaxprEqn) -> str:
    """``file:line (function)`` of the user's code that made this equation."""
    return str(private.source_info_util.summarize(eqn.source_info)) or "an unknown line"


def scopes(eqn: JaxprEqn) -> list[str]:
    """The names of the scopes an equation was traced in, outermost first."""
    stack = eqn.source_info.name_stack.stack
    return [item.name for item in stack if isinstance(item, private.source_info_util.Scope)]


def transforms(eqn: JaxprEqn) -> list[str]:
    """The names of the transformations an equation comes from: ``jvp``, ``transpose``, ..."""
    stack = eqn.source_info.name_stack.stack
    return [item.name for item in stack if isinstance(item, private.source_info_util.Transform)]


def exclude_from_tracebacks(path: str) -> None:
    """Keep files below ``path`` out of what JAX takes for the user's code."""
    private.source_info_util.register_exclusion(path)


_MARK = "sawlog"


def marked(text: str) -> Any:
    """A context whose equations carry ``text``, wherever they go, until they are lowered."""
    return private.xla_metadata.set_xla_metadata(**{_MARK: text})


def mark() -> str | None:
    """What the equation carries that is being lowered."""
    found = private.xla_metadata_lib.current_xla_metadata()
    return None if found is None else found.get(_MARK)


def mark_of(eqn: JaxprEqn) -> str | None:
    """What an equation carries, see :func:`marked`."""
    found = eqn.ctx.xla_metadata
    return None if not found else found.get(_MARK)
