"""Marks on equations that may log only when they are lowered, too late for any transformation.

JAX keeps metadata with an equation through every transformation, and restores it when the equation
is lowered. The interpreter marks an equation with a Python function inside. A log that is called
below such a mark knows that a transformation selected it and cannot see it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from sawlog.errors import UnsupportedPrimitiveError
from sawlog.jax import _compat
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site

_DROPPED = "dropped"
_listeners: dict[tuple[Selection, str], str] = {}
_by_number: dict[str, tuple[Selection, str]] = {}
_numbers = itertools.count()
_stripped = threading.local()


def dropping() -> Any:
    """Return a context that marks equations: logs that only show at lowering are dropped."""
    return _compat.marked(_DROPPED)


def kept() -> Any:
    """Return a context in which logs count, also in a traced program that dropped its own."""
    return _compat.marked("") if drops() else contextlib.nullcontext()


def drops() -> bool:
    """Return whether logs that are lowered here are dropped on purpose."""
    return _compat.mark() == _DROPPED


def dropped(eqn: Any) -> bool:
    """Return whether the logs of an equation are dropped on purpose."""
    return _compat.mark_of(eqn) == _DROPPED


@contextlib.contextmanager
def stripping() -> Iterator[None]:
    """Drop logs on purpose inside this context, under marks too."""
    before = getattr(_stripped, "on", False)
    _stripped.on = True
    try:
        yield
    finally:
        _stripped.on = before


def is_stripping() -> bool:
    """Return whether :func:`stripping` is active in this thread."""
    return getattr(_stripped, "on", False)


def listening_to(eqn: Any, chosen: Selection) -> Any:
    """Return a context that marks an equation: a log of ``chosen`` at lowering is an error."""
    listener = (chosen, f"'{eqn.primitive.name}' used at {_compat.source_line(eqn)}")
    if listener not in _listeners:
        number = _listeners[listener] = str(next(_numbers))
        _by_number[number] = listener
    return _compat.marked(_listeners[listener])


def check_not_selected(site: Site) -> None:
    """Check a log that no transformation sees.

    Raises:
        UnsupportedPrimitiveError: a transformation selected it, and a primitive hid it.
    """
    mark = _compat.mark()
    if mark is None or mark == _DROPPED or is_stripping():
        return
    chosen, what = _by_number[mark]
    if chosen.keys(site):
        raise UnsupportedPrimitiveError(
            f"There is a log of {', '.join(map(repr, site.keys))} at {site.where}, in a function "
            f"that JAX traces only when the primitive {what} is lowered. That is too late for "
            "sawlog to see it. Hint: move the log out of that function, remove it there with "
            "sawlog.strip(...), or exclude it with argnames=."
        )
