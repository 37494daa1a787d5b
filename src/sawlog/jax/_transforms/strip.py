"""``strip``: remove every log from a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sawlog.jax._core import lowering_marks
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.primitive import not_listening


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
        with not_listening(), lowering_marks.stripping():
            return fun(*args, **kwargs)

    return stripped
