"""``strip``: the same function with every log taken out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sawlog.jax._core import lowering_marks as _marks
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.primitive import not_listening


def strip(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with every log removed, whoever listens further out.

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
        with not_listening(), _marks.stripping():
            return fun(*args, **kwargs)

    return stripped
