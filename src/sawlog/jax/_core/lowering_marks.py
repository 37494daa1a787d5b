"""Marks on equations that may log when they are lowered, too late for any transformation to see.

JAX keeps metadata with an equation through every transformation, and restores it when the equation
is lowered. A walk that meets an equation with a Python function inside leaves such a mark, and a
log that is called below one knows that somebody listens and will not hear it.
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
    """While this context is entered, what is bound may log when it is lowered, to nobody."""
    return _compat.marked(_DROPPED)


def drops() -> bool:
    """Whether logs that are lowered here are dropped on purpose."""
    return _compat.mark() == _DROPPED


def dropped(eqn: Any) -> bool:
    """Whether the logs of an equation are dropped on purpose."""
    return _compat.mark_of(eqn) == _DROPPED


@contextlib.contextmanager
def stripping() -> Iterator[None]:
    """While this context is entered, logs are dropped on purpose, whoever should have listened."""
    before = getattr(_stripped, "on", False)
    _stripped.on = True
    try:
        yield
    finally:
        _stripped.on = before


def listening_to(eqn: Any, chosen: Selection) -> Any:
    """A context in which to bind an equation that may log ``chosen`` names when it is lowered."""
    who = (chosen, f"'{eqn.primitive.name}' used at {_compat.source_line(eqn)}")
    if who not in _listeners:
        number = _listeners[who] = str(next(_numbers))
        _by_number[number] = who
    return _compat.marked(_listeners[who])


def check_heard(site: Site) -> None:
    """Called for a log to which nobody listens: refuse it where somebody should have.

    Raises:
        UnsupportedPrimitiveError: naming the primitive that hid the log.
    """
    mark = _compat.mark()
    if mark is None or mark == _DROPPED or getattr(_stripped, "on", False):
        return
    chosen, what = _by_number[mark]
    if chosen.keys(site):
        raise UnsupportedPrimitiveError(
            f"There is a log of {', '.join(map(repr, site.keys))} at {site.where}, in a function "
            f"that JAX traces only when the primitive {what} is lowered. That is too late for it "
            "to be seen. Hint: move the log out of that function, drop it there with "
            "sawlog.strip(...), or leave it out with argnames=."
        )
