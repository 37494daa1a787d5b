"""Python functions as objects: names, weak references, signatures."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from sawlog._validate import refuse


def check_callable(fun: Any, name: str) -> None:
    """Check that the argument of ``sawlog.<name>``, or a callback, is a function.

    Raises:
        ArgumentError: it cannot be called. The hint shows how ``name`` is used.
    """
    if not callable(fun):
        if name == "callback":
            hint = "tap(f, callback)(x), where callback(logs) takes a logdict."
            refuse("callback", "a function", fun, hint)
        refuse("fun", "a function", fun, f"{name}(f)(x), not {name}(f(x)).")


def name_of(fun: Any) -> str:
    """Return the name of a function, or of the class of another callable."""
    return getattr(fun, "__name__", None) or type(fun).__name__


def weak_reference(fun: Callable[..., Any]) -> Callable[[], Any]:
    """Return a function that returns ``fun`` as long as it is alive.

    A callable without weak references is kept alive.
    """
    try:
        return weakref.WeakMethod(fun) if inspect.ismethod(fun) else weakref.ref(fun)
    except TypeError:
        return lambda: fun


def named_like(body: Callable[..., Any], fun: Any, hidden: int) -> Callable[..., Any]:
    """Return ``body`` with the name and signature of ``fun``, without a reference to ``fun``.

    The signature has ``hidden`` positional parameters in front.
    """

    def named(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    named.__name__ = named.__qualname__ = name_of(fun)
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(fun)
        more = [
            inspect.Parameter(f"_sawlog{i}", inspect.Parameter.POSITIONAL_ONLY)
            for i in range(hidden)
        ]
        signature = signature.replace(parameters=[*more, *signature.parameters.values()])
        named.__signature__ = signature  # type: ignore[attr-defined]
    return named
