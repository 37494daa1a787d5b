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

    >>> import sawlog
    >>> def f(x):
    ...     sawlog.log({"x": x})
    ...     return x
    >>> sawlog.spool(sawlog.strip(f))(1.0)[1]
    logdict: empty
    """
    check_callable(fun, "strip")

    @functools.wraps(fun)
    def stripped(*args: Any, **kwargs: Any) -> Any:
        listening = is_listening()
        with not_listening(), lowering_marks.stripping():
            silenced = _traced_before(fun, args, kwargs) if listening else None
            return fun(*args, **kwargs) if silenced is None else silenced.evaluate()

    return stripped


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
