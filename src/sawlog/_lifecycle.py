"""How resources end: at the end of a ``with``, and at the end of the program.

:class:`CloseOnExit` gives a class with ``close`` the methods of a context manager.
:func:`close_at_exit` and :func:`at_exit` are the one registry for the end of the program.
"""

from __future__ import annotations

import atexit
import enum
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self


class Closable(Protocol):
    """Anything with ``close``; ``fail``, where it has one, marks it as failed before that."""

    def close(self) -> None:
        """Release what it holds."""


def close_after(resource: Closable, error: BaseException | None) -> None:
    """Close a resource after a block that raised ``error``, or None.

    After an error, ``fail`` is called first. If closing fails as well, that is a note of the error,
    which is never hidden.
    """
    if error is not None:
        fail = getattr(resource, "fail", None)
        if callable(fail):
            fail()
    try:
        resource.close()
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"{resource!r} could not be closed either: {failure}")


class CloseOnExit:
    """A context manager that calls ``close``, and after an error ``fail`` before it.

    >>> class File(CloseOnExit):
    ...     def close(self):
    ...         print("closed")
    ...     def fail(self):
    ...         print("failed")
    >>> with File():
    ...     pass
    closed
    """

    def close(self) -> None:
        """Release what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        close_after(self, error)


# -- the end of the program -----------------------------------------------------------------------


class Stage(enum.IntEnum):
    """The order of what happens at the end of the program: each stage writes to the next ones."""

    RUNS = 0
    SINKS = 1
    DISPLAYS = 2
    STORES = 3


_registered: dict[int, tuple[Stage, Callable[[], None]]] = {}
_numbers = itertools.count()
_lock = threading.RLock()
_ending = False


def at_exit(callback: Callable[[], None], stage: Stage = Stage.SINKS) -> Callable[[], None]:
    """Call a function at the end of the program; the function returned cancels that.

    Stages run in their order, and within a stage what was registered last runs first. All of it
    runs before the exit functions that other libraries had registered by the last call of this:
    trackers have such functions, after which they accept nothing.
    """
    number = next(_numbers)
    with _lock:
        _registered[number] = stage, callback
        atexit.unregister(_run_all)
        atexit.register(_run_all)
    return lambda: _cancel(number)


def _cancel(number: int) -> None:
    _registered.pop(number, None)


def is_ending() -> bool:
    """Return whether the program is at its end, and closes what was left open."""
    return _ending


def _run_all() -> None:
    """Call what is registered, whatever fails; an interrupt is raised again at the end."""
    global _ending
    _ending = True
    interrupt: BaseException | None = None
    while _registered:
        first = min(_registered, key=lambda number: (_registered[number][0], -number))
        _, callback = _registered.pop(first)
        try:
            callback()
        except Exception as error:
            warnings.warn(f"At the end of the program: {error}", stacklevel=1)
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt


def ended_with_error() -> bool:
    """Return whether the program is ending because of an exception that was not caught.

    An interactive session continues after an exception, so the answer there is False.
    """
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


def close_at_exit(resource: Any, stage: Stage = Stage.SINKS) -> Callable[[], None]:
    """Close a resource at the end of the program; the function returned cancels that.

    Only a weak reference is held. If the program ends with an error, ``fail`` is called first.
    """
    reference = weakref.ref(resource)

    def close() -> None:
        left_open = reference()
        if left_open is None:
            return
        if ended_with_error():
            left_open.fail()
        try:
            left_open.close()
        except Exception as error:
            warnings.warn(
                f"{left_open!r} was not closed, and closing it now failed: {error}", stacklevel=1
            )

    return at_exit(close, stage)
