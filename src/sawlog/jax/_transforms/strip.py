"""``strip``: remove every log from a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from sawlog.jax import _compat
from sawlog.jax._core import libraries, lowering_marks
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.primitive import is_listening, not_listening
from sawlog.jax._core.silenced import Silenced


def strip(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function without its logs; no transformation around it sees them.

    Inside of a transformation the function is traced twice: the first time, to look for logs of
    functions that were traced before, as ``jax.closure_convert`` returns them.

    >>> import sawlog
    >>> def f(x):
    ...     sawlog.log({"x": x})
    ...     return x
    >>> sawlog.spool(sawlog.strip(f))(1.0)[1]
    logdict: empty
    """
    check_callable(fun, "strip")
    silent = without_new_logs(fun)

    @functools.wraps(fun)
    def stripped(*args: Any, **kwargs: Any) -> Any:
        silenced = _traced_before(silent, args, kwargs) if is_listening() else None
        if silenced is None:
            return silent(*args, **kwargs)
        return without_new_logs(silenced.evaluate)()

    return stripped


def without_new_logs(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function without its logs, but for those of functions traced before.

    It is traced once, where :func:`strip` traces it another time to look for such logs.
    """

    @functools.wraps(fun)
    def silent(*args: Any, **kwargs: Any) -> Any:
        with not_listening(), lowering_marks.stripping():
            return fun(*args, **kwargs)

    return silent


def _traced_before(fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the program of the call if it has logs all the same, of functions traced before."""
    tree = jax.tree.structure((args, kwargs))
    if _compat.not_tracing() or libraries.holds_state((args, kwargs), tree):
        return None
    try:
        silenced = Silenced(lambda args, kwargs: fun(*args, **kwargs), args, kwargs)
    except Exception:  # it changes objects of its surroundings, or raises as it will again
        return None
    return silenced if silenced.logs else None
